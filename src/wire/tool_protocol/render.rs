//! Renders a request with tools as one without: tools in the system prompt, calls and results as text.

use std::sync::Arc;

use super::prompt::{tool_choice_text, tool_prompt};
use super::text_format::{ResultToWrite, ResultWriter, write_calls};
use crate::{ModelRequest, ToolChoice, ToolDefinition};
use callsheet_values::message::{Message, MessageList, RequestPart, ResponseMessage};
use callsheet_values::types::{
    ContentPart, MessagePart, ModelOrigin, ToolCall, ToolProtocol, Wire,
};

/// Turns requests with tools into requests without: the tools are in the system prompt, calls and results
/// in the text.
///
/// It keeps the messages of the last request, so that what did not change is neither written again nor
/// encoded again.
#[derive(Debug)]
pub struct PromptRenderer {
    protocol: ToolProtocol,
    wire: Wire,
    results: ResultWriter,
    prompt: Option<SystemPrompt>,
    /// The model of the last request. Messages of other models are rendered without their metadata.
    model: String,
    /// Reasoning in tags goes back with the calls.
    sends_reasoning: bool,
    /// Each rendered message with its sources: one message, or all results of a turn.
    rendered: Vec<(Vec<Arc<Message>>, Arc<Message>)>,
}

/// The system prompt with the tools, and the values that it was rendered from.
#[derive(Debug)]
struct SystemPrompt {
    tools: Arc<[ToolDefinition]>,
    system: Option<String>,
    allows_several: bool,
    text: String,
}

impl PromptRenderer {
    /// Makes a renderer for requests of this protocol and wire format.
    pub fn new(protocol: ToolProtocol, wire: Wire) -> Self {
        let results = ResultWriter::new(protocol);
        let (model, rendered) = (String::new(), Vec::new());
        Self { protocol, wire, results, prompt: None, model, sends_reasoning: true, rendered }
    }

    /// Returns whether it renders for this protocol and wire format.
    pub fn matches(&self, protocol: ToolProtocol, wire: Wire) -> bool {
        (self.protocol, self.wire) == (protocol, wire)
    }

    /// Returns the request as it is sent: without tools. A tool choice other than `Auto` becomes its last message.
    pub fn render(&mut self, request: &ModelRequest) -> ModelRequest {
        let has_tools = !request.tools.is_empty();
        let system = if has_tools { Some(self.system(request)) } else { request.system.clone() };
        let mut messages = self.messages(request);
        if let Some(text) = tool_choice_text(&request.tool_choice).filter(|_| has_tools) {
            messages.push(Message::user(text));
        }
        ModelRequest {
            system,
            messages,
            tools: Arc::new([]),
            tool_choice: ToolChoice::Auto,
            parallel_tool_calls: None,
            ..request.clone()
        }
    }

    fn system(&mut self, request: &ModelRequest) -> String {
        let ModelRequest { tools, system, .. } = request;
        let allows_several = request.parallel_tool_calls != Some(false);
        let is_same = |prompt: &&SystemPrompt| {
            (Arc::ptr_eq(&prompt.tools, tools) || prompt.tools == *tools)
                && prompt.system == *system
                && prompt.allows_several == allows_several
        };
        if let Some(prompt) = self.prompt.as_ref().filter(is_same) {
            return prompt.text.clone();
        }
        let tool_text = tool_prompt(self.protocol, tools, allows_several);
        let text = match system.as_deref().filter(|system| !system.is_empty()) {
            Some(system) => format!("{system}\n\n{tool_text}"),
            None => tool_text,
        };
        let (tools, system) = (Arc::clone(tools), system.clone());
        self.prompt = Some(SystemPrompt { tools, system, allows_several, text: text.clone() });
        text
    }

    fn messages(&mut self, request: &ModelRequest) -> MessageList {
        let target_model = ModelOrigin { wire: self.wire, model: request.model.clone() };
        let sends_reasoning = request.reasoning.includes(true);
        if self.model != request.model || self.sends_reasoning != sends_reasoning {
            self.model.clone_from(&request.model);
            self.sends_reasoning = sends_reasoning;
            self.rendered.clear();
        }
        let is_result = |message: &Arc<Message>| matches!(**message, Message::Tool { .. });
        let groups = request.messages.chunk_by(|one, next| is_result(one) && is_result(next));
        let mut known = std::mem::take(&mut self.rendered).into_iter();
        let mut is_known = true;
        for group in groups {
            let last = known.next().filter(|_| is_known);
            let same = last.filter(|(sources, _)| {
                sources.len() == group.len()
                    && sources.iter().zip(group).all(|(old, new)| Arc::ptr_eq(old, new))
            });
            is_known = same.is_some();
            let entry =
                same.unwrap_or_else(|| (group.to_vec(), self.render_group(group, &target_model)));
            self.rendered.push(entry);
        }
        self.rendered.iter().map(|(_, message)| Arc::clone(message)).collect()
    }

    /// Renders one message, or the results of a turn.
    fn render_group(&self, group: &[Arc<Message>], target_model: &ModelOrigin) -> Arc<Message> {
        let mut results = Vec::new();
        for message in group {
            match &**message {
                Message::User { .. } | Message::Summary { .. } => return Arc::clone(message),
                Message::Assistant(response) if response.calls.is_empty() => {
                    return Arc::clone(message);
                }
                Message::Assistant(response) => {
                    let response = self.render_response(response, target_model);
                    return Arc::new(Message::Assistant(Arc::new(response)));
                }
                Message::Tool { call_id, name, content, metadata: _ } => {
                    results.push(ResultToWrite { call_id, name, content });
                }
            }
        }
        let mut parts = self.results.write(&results);
        let content = match parts.as_mut_slice() {
            [ContentPart::Text(text)] => std::mem::take(text).into(),
            _ => parts.into(),
        };
        Arc::new(Message::User { content })
    }

    /// Returns the message with its calls as text. Keeps the order of the parts, and the metadata of the provider
    /// except that of the calls.
    fn render_response(
        &self,
        message: &ResponseMessage,
        target_model: &ModelOrigin,
    ) -> ResponseMessage {
        let message = &*message.with_tagged_reasoning(target_model, self.sends_reasoning);
        let (mut text, mut reasoning) = (String::new(), String::new());
        let mut parts = Vec::new();
        let mut calls: Vec<&ToolCall> = Vec::new();
        // Opening messages keep their reasoning. The dialect decides whether it is sent.
        let is_author = message.is_from(target_model) || message.origin.is_none();
        let request_parts = message.parts_for(is_author);
        let mut request_parts = request_parts.iter().peekable();
        while let Some(part) = request_parts.next() {
            match part {
                RequestPart::Text { text: more, members } => {
                    text.push_str(more);
                    let members = members.map(Arc::from);
                    parts.push(MessagePart::Text { bytes: more.len(), members });
                }
                RequestPart::Reasoning { text: more, members } => {
                    reasoning.push_str(more);
                    let members = members.map(Arc::from);
                    parts.push(MessagePart::Reasoning { bytes: more.len(), members });
                }
                RequestPart::Raw(json) => parts.push(MessagePart::Raw { json: Arc::from(*json) }),
                RequestPart::Call { call, members: _ } => {
                    // Calls that follow each other are written together, after the last of them.
                    calls.push(call);
                    if matches!(request_parts.peek(), Some(RequestPart::Call { .. })) {
                        continue;
                    }
                    let before = text.len();
                    if !text.is_empty() && !text.ends_with('\n') {
                        text.push('\n');
                    }
                    text.push_str(&write_calls(self.protocol, &calls));
                    calls.clear();
                    if let Some(RequestPart::Text { text: next, .. }) = request_parts.peek()
                        && !next.is_empty()
                        && !next.starts_with('\n')
                    {
                        text.push('\n');
                    }
                    // The calls belong to the text before them, unless it has metadata.
                    let more = text.len() - before;
                    match parts.last_mut() {
                        Some(MessagePart::Text { bytes, members: None }) => *bytes += more,
                        Some(_) | None => {
                            parts.push(MessagePart::Text { bytes: more, members: None });
                        }
                    }
                }
            }
        }
        // Without recorded parts, the message is only text and reasoning.
        if message.parts.is_empty() {
            reasoning.clone_from(&message.reasoning);
            parts.clear();
        }
        let (calls, origin) = (Vec::new(), message.origin.clone());
        ResponseMessage { text, reasoning, calls, origin, parts, hint_bytes: message.hint_bytes }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use ToolProtocol::{Arrow, Hermes, Pythonic, React, Xml};
    use callsheet_values::message::ResultContent;
    use callsheet_values::types::{CallKey, Content, Image};

    fn call(index: u32, name: &str, arguments: Value) -> ToolCall {
        ToolCall {
            key: CallKey { turn: 1, attempt: 1, index },
            id: format!("call_0_{index}").into(),
            provider_id: None,
            name: name.into(),
            arguments: arguments.into(),
            raw: None,
            indirect: false,
        }
    }

    fn origin() -> ModelOrigin {
        ModelOrigin { wire: Wire::OpenaiChat, model: "m".into() }
    }

    /// A turn with two calls, whose results hold words of the protocols.
    fn request() -> ModelRequest {
        let arguments = json!({"a": [1, true, null], "text": "it's\n\"é\""});
        let response = ResponseMessage {
            text: "I look.".into(),
            calls: vec![call(0, "f", arguments), call(1, "clock", json!({}))],
            origin: Some(Arc::new(origin())),
            ..ResponseMessage::default()
        };
        let words = "</tool_response> <tool_call> </parameter>\nAction: f\n**Action Input**: x\n\
                     =>#f {}\n[f(a=1)] [1] <|python_tag|>";
        let properties = json!({"a": {"type": "array"}, "text": {"type": "string"}});
        let tools = [
            ToolDefinition::new(
                "f",
                "Does it.",
                json!({"type": "object", "properties": properties}),
            ),
            ToolDefinition::new("clock", "Tells the time.", json!({"type": "object"})),
        ];
        ModelRequest {
            system: Some("Be brief.".into()),
            tools: tools.into(),
            ..ModelRequest::new(
                "m",
                vec![
                    Message::user("Go."),
                    Message::Assistant(response.into()),
                    Message::tool_result("call_0_0", "f", words),
                    Message::tool_result("call_0_1", "clock", "noon"),
                    Message::user("And?"),
                ]
                .into(),
            )
        }
    }

    fn written(request: &ModelRequest) -> String {
        let mut text = request.system.clone().unwrap_or_default();
        for message in request.messages.iter() {
            let (role, content) = match &**message {
                Message::User { content } => ("user", content.text().into_owned()),
                Message::Assistant(response) => ("assistant", response.text.clone()),
                Message::Summary { .. } | Message::Tool { .. } => panic!("{message:?}"),
            };
            text.push_str(&format!("\n---------- {role}\n{content}"));
        }
        text
    }

    #[test]
    fn tools_calls_and_results_are_text() {
        for protocol in [Hermes, Xml, React, Pythonic, Arrow] {
            let request = request();
            let rendered = PromptRenderer::new(protocol, Wire::OpenaiChat).render(&request);
            assert!(rendered.tools.is_empty() && rendered.parallel_tool_calls.is_none());
            insta::assert_snapshot!(format!("{protocol:?}"), written(&rendered));
        }
    }

    /// Written calls are read again as the same calls, and written results contain no call.
    #[test]
    fn written_calls_are_read_as_the_same_calls() {
        use crate::tool_protocol::CallReader;
        use crate::{CallDelta, Delta};
        for protocol in [Hermes, Xml, React, Pythonic, Arrow] {
            let request = request();
            let rendered = PromptRenderer::new(protocol, Wire::OpenaiChat).render(&request);
            let (Message::Assistant(before), Message::Assistant(after)) =
                (&*request.messages[1], &*rendered.messages[1])
            else {
                panic!("a message of the model")
            };
            let mut reader = CallReader::reading(protocol, Arc::clone(&request.tools));
            let deltas = reader.read(vec![Delta::Text(after.text.clone()), Delta::Done]);
            let calls: Vec<(String, Value)> = deltas
                .iter()
                .filter_map(|delta| {
                    let Delta::Call(CallDelta { name, arguments, .. }) = delta else { return None };
                    let arguments = serde_json::from_str(arguments.as_deref()?).ok()?;
                    Some((name.clone()?, arguments))
                })
                .collect();
            let expected: Vec<(String, Value)> = before
                .calls
                .iter()
                .map(|call| (call.name.to_string(), Value::clone(&call.arguments)))
                .collect();
            assert_eq!(calls, expected, "{protocol:?}");
            let Message::User { content } = &*rendered.messages[2] else { panic!("the results") };
            let mut reader = CallReader::reading(protocol, Arc::clone(&request.tools));
            let inner = content.text().replace("<tool_response", "<").replace("Observation:", "");
            let deltas = reader.read(vec![Delta::Text(inner), Delta::Done]);
            assert!(!deltas.iter().any(|delta| matches!(delta, Delta::Call(_))), "{deltas:?}");
        }
    }

    #[test]
    fn messages_that_did_not_change_are_shared_with_the_next_request() {
        let mut renderer = PromptRenderer::new(Hermes, Wire::OpenaiChat);
        let first = renderer.render(&request());
        // Other allocations: nothing is shared.
        let request = request();
        let second = renderer.render(&request);
        assert_eq!(first.messages, second.messages);
        let mut longer = request.clone();
        longer.messages.push(Message::user("More."));
        let third = renderer.render(&longer);
        let is_shared = |at: usize| Arc::ptr_eq(&second.messages[at], &third.messages[at]);
        assert!((0..4).all(is_shared));
        assert_eq!(third.messages.len(), 5);
        // A change in the middle.
        let mut changed = longer.clone();
        *changed.messages.get_mut(2).unwrap() = Message::tool_result("call_0_0", "f", "cleared");
        let fourth = renderer.render(&changed);
        let fresh = PromptRenderer::new(Hermes, Wire::OpenaiChat).render(&changed);
        assert_eq!(fourth, fresh);
        assert_ne!(fourth.messages[2], third.messages[2]);
    }

    #[test]
    fn the_rule_for_calling_tools_stands_in_the_last_message() {
        let mut renderer = PromptRenderer::new(Hermes, Wire::OpenaiChat);
        let auto = renderer.render(&request());
        for (choice, words) in [
            (ToolChoice::None, "Answer now, in plain text. Do not call a tool in this response."),
            (ToolChoice::Required, "Call at least one tool in this response."),
            (ToolChoice::Tool("f".into()), "Call the tool f in this response."),
        ] {
            let mut chosen = request();
            chosen.tool_choice = choice;
            let rendered = renderer.render(&chosen);
            let (last, before) = rendered.messages.split_last().unwrap();
            assert_eq!(**last, Message::user(words));
            assert_eq!(before, &auto.messages[..]);
            assert_eq!(
                (&rendered.system, &rendered.tool_choice),
                (&auto.system, &ToolChoice::Auto)
            );
            chosen.tools = Arc::new([]);
            let rendered = renderer.render(&chosen);
            assert_eq!(rendered.messages.len(), auto.messages.len());
            assert_eq!(rendered.system.as_deref(), Some("Be brief."));
        }
    }

    #[test]
    fn the_order_of_parts_and_the_data_of_the_service_stay() {
        let members: Option<Arc<str>> = Some("{\"s\":1}".into());
        let message = ResponseMessage {
            text: "abc".into(),
            reasoning: "hm".into(),
            calls: vec![call(0, "clock", json!({}))],
            origin: Some(Arc::new(origin())),
            parts: vec![
                MessagePart::Reasoning { bytes: 2, members: members.clone() },
                MessagePart::Text { bytes: 1, members: None },
                MessagePart::Call { index: 0, members: members.clone() },
                MessagePart::Text { bytes: 2, members: None },
            ],
            hint_bytes: None,
        };
        let renderer = PromptRenderer::new(Arrow, Wire::OpenaiChat);
        let rendered = renderer.render_response(&message, &origin());
        assert_eq!(rendered.text, "a\n=>#clock {}\nbc");
        assert_eq!(
            rendered.parts,
            [
                MessagePart::Reasoning { bytes: 2, members },
                MessagePart::Text { bytes: 14, members: None },
                MessagePart::Text { bytes: 2, members: None },
            ]
        );
        let other = ModelOrigin { wire: Wire::OllamaChat, model: "m".into() };
        assert_eq!(renderer.render_response(&message, &other).text, "abc\n=>#clock {}");
    }

    #[test]
    fn another_model_gets_messages_that_are_rendered_for_it() {
        let message = ResponseMessage {
            text: "a".into(),
            calls: vec![call(0, "clock", json!({}))],
            origin: Some(Arc::new(origin())),
            parts: vec![
                MessagePart::Text { bytes: 1, members: Some("{\"s\":1}".into()) },
                MessagePart::Call { index: 0, members: None },
            ],
            ..ResponseMessage::default()
        };
        let request = ModelRequest::new("m", vec![Message::Assistant(message.into())].into());
        let other = ModelRequest { model: "n".into(), ..request.clone() };
        let mut renderer = PromptRenderer::new(Hermes, Wire::OpenaiChat);
        let first = renderer.render(&request);
        let second = renderer.render(&other);
        assert_ne!(first.messages, second.messages);
        assert_eq!(second, PromptRenderer::new(Hermes, Wire::OpenaiChat).render(&other));
    }

    #[test]
    fn every_name_of_a_parameter_is_read_again() {
        use crate::{CallReader, Delta};
        for name in ["a", "a-b", "größe", "a.b", "a b", ""] {
            let arguments = json!({ name: 1 });
            let written = write_calls(Pythonic, &[&call(0, "f", arguments.clone())]);
            let mut reader = CallReader::reading(Pythonic, Arc::new([]));
            let deltas = reader.read(vec![Delta::Text(written.clone()), Delta::Done]);
            let read = deltas.iter().find_map(|delta| {
                let Delta::Call(call) = delta else { return None };
                call.arguments.clone()
            });
            assert_eq!(read, Some(arguments.to_string()), "{written}");
        }
    }

    #[test]
    fn images_of_results_stay_images() {
        let image = Image::parse("data:image/png;base64,AAAA").unwrap();
        let parts = vec![ContentPart::Text("see".into()), ContentPart::Image(image.clone())];
        let content = ResultContent::from_parts(parts.into());
        let request =
            ModelRequest::new("m", vec![Message::tool_result("c\"<", "f", content)].into());
        let rendered = PromptRenderer::new(Hermes, Wire::OpenaiChat).render(&request);
        let expected: Content = vec![
            ContentPart::Text("<tool_response id=\"c__\" name=\"f\">\nsee".into()),
            ContentPart::Image(image),
            ContentPart::Text("\n</tool_response>".into()),
        ]
        .into();
        assert_eq!(*rendered.messages[0], Message::User { content: expected });
    }
}
