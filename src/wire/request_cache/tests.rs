use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use super::*;
use crate::WireFormat as _;
use crate::{ToolChoice, ToolDefinition};
use callsheet_values::message::{ResponseMessage, ResultContent};
use callsheet_values::types::{
    CallKey, CompactionKind, Content, ContentPart, Image, MessagePart, ModelOrigin, ReasoningField,
    SendReasoning, ToolCall,
};

const WIRES: [Wire; 5] = [
    Wire::OpenaiChat,
    Wire::OpenaiResponses,
    Wire::AnthropicMessages,
    Wire::GeminiGenerate,
    Wire::OllamaChat,
];

fn user(text: &str) -> Message {
    Message::User { content: text.into() }
}

fn call(index: u32, id: &str) -> ToolCall {
    ToolCall {
        key: CallKey { turn: 1, attempt: 1, index },
        id: id.into(),
        provider_id: Some(id.into()),
        name: "add".into(),
        arguments: json!({"a": 1}).into(),
        raw: None,
        indirect: false,
    }
}

fn result(id: &str) -> Message {
    let metadata = json!({"error": id == "c1"});
    Message::Tool { call_id: id.into(), name: "add".into(), content: "3".into(), metadata }
}

fn result_with_image(id: &str) -> Message {
    let image = ContentPart::Image(Image::parse("data:image/png;base64,AAAA").unwrap());
    let content = Content::from(vec![ContentPart::Text("3".into()), image]);
    let content = ResultContent::from_parts(content);
    Message::Tool { call_id: id.into(), name: "add".into(), content, metadata: json!({}) }
}

fn request(messages: MessageList) -> ModelRequest {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    let tool = ToolDefinition { name: "add".into(), description: "Adds.".into(), schema };
    ModelRequest {
        system: Some("Be brief.".into()),
        tools: [tool].into(),
        prompt_cache: true,
        prompt_cache_key: Some("key".into()),
        ..ModelRequest::new("m", messages)
    }
}

/// Returns a history of `count` turns, each with a call, its result and a message of the user.
fn turns(count: usize) -> MessageList {
    let turn = |at: usize| {
        let id = format!("c{at}");
        let origin = Some(Arc::new(ModelOrigin { wire: Wire::OpenaiChat, model: "m".into() }));
        let calls = vec![call(0, &id)];
        let response = ResponseMessage { calls, origin, ..ResponseMessage::default() };
        [Message::Assistant(response.into()), result(&id), user("And on.")]
    };
    let all = std::iter::once(user("Go on.")).chain((0..count).flat_map(turn));
    all.map(Arc::new).collect()
}

/// A change of the session or of the request between two requests.
#[derive(Clone, Debug)]
enum Change {
    Append(Vec<Message>),
    /// Changes a message in place.
    Edit(usize),
    /// Replaces the first messages by a summary.
    Compact(usize),
    Model(&'static str),
    Wire(Wire),
    System(&'static str),
    Choice(ToolChoice),
    Stream(bool),
    Stores(bool),
    Reasoning(ReasoningRule),
    NewTools,
    /// Replaces all messages by equal copies.
    Copy,
}

fn part() -> impl Strategy<Value = MessagePart> {
    let raw = |value: Value| MessagePart::Raw { json: value.to_string().into() };
    let members = || {
        select(vec![
            None,
            Some(json!({"field": "reasoning_content", "signature": "s"})),
            Some(json!({"type": "custom_tool_call", "id": "x"})),
        ])
        .prop_map(|members| members.map(|members| members.to_string().into()))
    };
    prop_oneof![
        (0_usize..3, members()).prop_map(|(bytes, members)| MessagePart::Text { bytes, members }),
        (0_usize..3, members())
            .prop_map(|(bytes, members)| MessagePart::Reasoning { bytes, members }),
        (0_u32..2, members()).prop_map(|(index, members)| MessagePart::Call { index, members }),
        select(vec![
            raw(json!({"type": "server_tool_use", "id": "s", "name": "web_search"})),
            raw(json!({"type": "web_search_tool_result", "tool_use_id": "s"})),
            raw(json!({"type": "redacted_thinking", "data": "x"})),
            raw(json!({"type": "reasoning", "id": "rs", "encrypted_content": "e"})),
        ]),
    ]
}

/// Returns a message of a model, mostly of the one that receives the request.
fn response(wire: Wire) -> impl Strategy<Value = Message> {
    let origin = prop_oneof![
        3 => Just((wire, "m")),
        1 => (select(&WIRES[..]), select(vec!["m", "n"])),
    ];
    let ids = select(vec![vec![], vec!["c0"], vec!["c0", "c1"]]);
    let parts = prop::collection::vec(part(), 0..4);
    let text = select(vec!["", "ok ", "abc"]);
    (proptest::option::weighted(0.9, origin), ids, parts, text).prop_map(
        |(origin, ids, parts, text)| {
            Message::Assistant(
                ResponseMessage {
                    text: text.into(),
                    reasoning: "hmm".into(),
                    calls: ids.iter().zip(0..).map(|(id, index)| call(index, id)).collect(),
                    origin: origin
                        .map(|(wire, model)| Arc::new(ModelOrigin { wire, model: model.into() })),
                    parts,
                    hint_bytes: None,
                }
                .into(),
            )
        },
    )
}

fn message(wire: Wire) -> impl Strategy<Value = Message> {
    let image = ContentPart::Image(Image::parse("data:image/png;base64,AAAA").unwrap());
    let image = Message::User { content: Content::from(vec![image]) };
    prop_oneof![
        2 => select(vec![user("a"), user(""), image]),
        3 => response(wire),
        3 => select(vec![result("c0"), result("c1"), result_with_image("c0"), result_with_image("c1")]),
    ]
}

fn change(wire: Wire) -> impl Strategy<Value = Change> {
    prop_oneof![
        20 => prop::collection::vec(message(wire), 0..4).prop_map(Change::Append),
        1 => any::<usize>().prop_map(Change::Edit),
        1 => any::<usize>().prop_map(Change::Compact),
        1 => select(vec!["m", "n"]).prop_map(Change::Model),
        1 => select(&WIRES[..]).prop_map(Change::Wire),
        1 => select(vec!["", "Be brief."]).prop_map(Change::System),
        1 => select(vec![ToolChoice::Auto, ToolChoice::None]).prop_map(Change::Choice),
        1 => any::<bool>().prop_map(Change::Stream),
        1 => any::<bool>().prop_map(Change::Stores),
        1 => reasoning_rule().prop_map(Change::Reasoning),
        1 => Just(Change::NewTools),
        1 => Just(Change::Copy),
    ]
}

fn reasoning_rule() -> impl Strategy<Value = ReasoningRule> {
    use SendReasoning::{All, Auto, Calls, Never};
    let field = select(vec![None, Some(ReasoningField::Reasoning)]);
    let send = select(vec![Auto, All, Calls, Never]);
    (send, field, any::<bool>(), any::<bool>()).prop_map(
        |(send, field, refuses_empty, is_fallback)| ReasoningRule {
            send,
            field,
            refuses_empty,
            is_fallback,
        },
    )
}

fn perform(change: Change, wire: &mut Wire, request: &mut ModelRequest) {
    let messages = &mut request.messages;
    match change {
        Change::Append(new) => new.into_iter().for_each(|message| messages.push(message)),
        Change::Edit(place) => match messages.get_mut(place % messages.len().max(1)) {
            Some(Message::Tool { content, .. }) => *content = format!("{content} (edited)").into(),
            Some(Message::Assistant(response)) => {
                Arc::make_mut(response).text.push_str(" (edited)")
            }
            Some(message @ (Message::User { .. } | Message::Summary { .. })) => {
                *message = user("edited")
            }
            None => {}
        },
        Change::Compact(count) => {
            let rest = messages.iter().skip(count % (messages.len() + 1)).cloned();
            *messages = std::iter::once(Arc::new(user("In short."))).chain(rest).collect();
        }
        Change::Model(model) => request.model = model.into(),
        Change::Wire(other) => *wire = other,
        Change::System(system) => request.system = Some(system.into()),
        Change::Choice(choice) => request.tool_choice = choice,
        Change::Stream(stream) => request.stream = stream,
        Change::Stores(stores) => {
            request.extra_body.insert("store".into(), stores.into());
        }
        Change::Reasoning(rule) => request.reasoning = rule,
        Change::NewTools => request.tools = Arc::new([]),
        Change::Copy => {
            *messages = messages.iter().map(|message| Arc::new(Message::clone(message))).collect();
        }
    }
}

/// A step of a session: a response with results for its calls, and inputs of the user, which are never blank.
#[derive(Clone, Debug)]
struct Step {
    response: Option<Message>,
    has_images: bool,
    inputs: Vec<Message>,
    /// The next request is the last one of its run.
    is_final: bool,
    /// The response has a call that the service runs itself.
    calls_service: bool,
    /// The response has the result of the service's call before.
    answers_service: bool,
    /// The service pauses the response, and continues it.
    pauses: bool,
}

fn step(wire: Wire) -> impl Strategy<Value = Step> {
    let input = prop_oneof![Just(user("And on.")), Just(user_with_image())];
    let inputs = prop::collection::vec(input, 0..3);
    let flags = [any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()];
    (prop::option::weighted(0.9, response(wire)), inputs, flags).prop_map(
        |(response, inputs, flags)| {
            let [has_images, is_final, calls_service, answers_service, pauses] = flags;
            Step { response, has_images, inputs, is_final, calls_service, answers_service, pauses }
        },
    )
}

impl Step {
    /// Returns the messages that are added to a history. `calls` is the number of the service's calls so far,
    /// and `open` are those without a result.
    fn messages(
        self,
        wire: Wire,
        last: Option<&Message>,
        (calls, open): &mut (usize, Vec<String>),
    ) -> Vec<Message> {
        // A response follows results.
        let awaits_response = matches!(last, Some(Message::Tool { .. }));
        let default = || Message::Assistant(ResponseMessage::default().into());
        let mut response = self.response.or_else(|| awaits_response.then(default));
        if let Some(Message::Assistant(message)) = &mut response {
            let message = Arc::make_mut(message);
            message.parts.retain(
                |part| !matches!(part, MessagePart::Raw { json } if json.contains("tool_")),
            );
            let is_own = message.origin.as_ref().is_some_and(|origin| {
                (origin.wire, &*origin.model) == (Wire::AnthropicMessages, "m")
            });
            let raw = |value: Value| MessagePart::Raw { json: value.to_string().into() };
            if wire == Wire::AnthropicMessages && is_own {
                if self.answers_service
                    && let Some(id) = open.pop()
                {
                    let result = json!({"type": "web_search_tool_result", "tool_use_id": id});
                    message.parts.insert(0, raw(result));
                }
                if self.calls_service {
                    *calls += 1;
                    let id = format!("s{calls}");
                    open.push(id.clone());
                    message.parts.push(raw(
                        json!({"type": "server_tool_use", "id": id, "name": "web_search", "input": {}}),
                    ));
                }
            }
            // A blank response is no message of a history.
            if message.text.is_empty() && message.calls.is_empty() {
                message.text.push_str("ok");
            }
        }
        let results = match &response {
            Some(Message::Assistant(message)) => {
                let result = |call: &ToolCall| match self.has_images {
                    true => result_with_image(&call.id),
                    false => result(&call.id),
                };
                message.calls.iter().map(result).collect()
            }
            _ => Vec::new(),
        };
        let mut messages: Vec<_> = response.into_iter().chain(results).chain(self.inputs).collect();
        // A run goes on after results, a pause or an input.
        if let Some(Message::Assistant(_)) = messages.last()
            && !self.pauses
        {
            messages.push(user("And on."));
        }
        if messages.iter().any(|message| matches!(message, Message::User { .. })) {
            open.clear();
        }
        messages
    }
}

fn user_with_image() -> Message {
    let image = ContentPart::Image(Image::parse("data:image/png;base64,AAAA").unwrap());
    Message::User { content: vec![ContentPart::Text("Look.".into()), image].into() }
}

proptest! {
    #[test]
    fn a_cached_body_equals_a_body_written_from_scratch(
        (wire, changes) in select(&WIRES[..]).prop_flat_map(|wire| {
            (Just(wire), prop::collection::vec((change(wire), any::<bool>()), 1..12))
        }),
    ) {
        let (mut wire, mut request) = (wire, request(MessageList::default()));
        let (mut cache, mut held) = (RequestCache::default(), Vec::new());
        for (change, holds) in changes {
            perform(change, &mut wire, &mut request);
            let body = cache.encode_body(wire, &request, |request| crate::write_head(wire, request).into());
            let in_full = wire.request_body(&request);
            prop_assert_eq!(&body, &in_full, "{:?}", String::from_utf8_lossy(&body));
            prop_assert!(serde_json::from_slice::<Value>(&body).is_ok());
            if holds {
                held.push((body, in_full));
            }
        }
        // A body that is still held is not modified.
        for (body, in_full) in held {
            prop_assert_eq!(body, in_full);
        }
    }
}

#[test]
fn the_prefix_of_a_history_is_reused_on_every_wire() {
    for (wire, reusable) in WIRES.into_iter().zip([30, 31, 31, 31, 31]) {
        let mut request = request(turns(10));
        let mut cache = RequestCache::default();
        let before =
            cache.encode_body(wire, &request, |request| crate::write_head(wire, request).into());
        let prefix = cache.last.as_ref().unwrap().prefix;
        assert_eq!(prefix.messages, reusable, "{wire}");
        let last = before.len() - prefix.bytes;
        assert!(
            (1..400).contains(&last),
            "{wire}: {last} bytes are not reused, more than the last two turns"
        );
        request.messages.push(user("And more."));
        let body =
            cache.encode_body(wire, &request, |request| crate::write_head(wire, request).into());
        assert_eq!(body[..prefix.bytes], before[..prefix.bytes], "{wire}");
        assert_eq!(body, wire.request_body(&request), "{wire}");
    }
}

/// Sends the requests in order. Returns the reason for a break of the prompt for each but the first.
fn breaks_of(requests: &[(Wire, ModelRequest)]) -> Vec<Option<PromptChange>> {
    let mut cache = RequestCache::default();
    let breaks = requests.iter().map(|(wire, request)| {
        cache.encode_body(*wire, request, |request| crate::write_head(*wire, request).into());
        cache.prompt_break()
    });
    breaks.skip(1).collect()
}

#[test]
fn what_is_appended_is_no_break_and_everything_else_is_one() {
    use PromptChange::{Config, Fallback, InputsJoined, RunOverride, ToolsRefreshed, Unexplained};
    let cleared = PromptChange::Compacted(CompactionKind::Cleared);
    for wire in WIRES {
        let base = request(turns(3));
        let grown = |turns_more: usize| {
            let more = turns(turns_more);
            let more = more.iter().skip(1).cloned();
            ModelRequest {
                messages: base.messages.iter().cloned().chain(more).collect(),
                ..base.clone()
            }
        };
        let edited = {
            let mut request = grown(1);
            let mut messages = request.messages.to_vec();
            messages[0] = Arc::new(user("Stop."));
            request.messages = messages.into();
            request
        };
        let copied = ModelRequest {
            messages: base.messages.iter().map(|m| Arc::new(Message::clone(m))).collect(),
            ..base.clone()
        };
        let final_answer =
            ModelRequest { tool_choice: ToolChoice::None, stream: false, ..grown(1) };
        let steered = {
            let mut request = base.clone();
            request.messages.push(user("And this."));
            request
        };
        // Chat Completions joins inputs that follow each other to one message.
        let joined = (wire == Wire::OpenaiChat).then_some(InputsJoined);
        assert_eq!(breaks_of(&[(wire, base.clone()), (wire, steered)]), [joined], "{wire}");
        for same in [base.clone(), grown(1), grown(20), copied, final_answer.clone()] {
            let sent = [(wire, base.clone()), (wire, same), (wire, grown(21))];
            let breaks = breaks_of(&sent[..2]);
            assert_eq!(breaks, [None], "{wire}");
        }
        let sent = [base.clone(), final_answer, grown(2)].map(|request| (wire, request));
        assert_eq!(breaks_of(&sent), [None, None], "{wire}");
        let shorter = ModelRequest { messages: turns(1), ..base.clone() };
        let no_tools = ModelRequest { tools: [].into(), ..grown(1) };
        let other_system = ModelRequest { system: Some("Be long.".into()), ..grown(1) };
        for other in [edited.clone(), shorter, no_tools, other_system] {
            let sent = |other: ModelRequest| breaks_of(&[(wire, base.clone()), (wire, other)]);
            assert_eq!(sent(other.clone()), [Some(Unexplained)], "{wire}");
            for reason in [cleared, RunOverride, ToolsRefreshed, Config] {
                let other = ModelRequest { prompt_change: Some(reason), ..other.clone() };
                assert_eq!(sent(other), [Some(reason)], "{wire}");
            }
        }
        // A reason without a break is none.
        let reason = ModelRequest { prompt_change: Some(cleared), ..grown(1) };
        assert_eq!(breaks_of(&[(wire, base.clone()), (wire, reason)]), [None], "{wire}");
        // A hook explains the request that it changed, and the one after it, but no other.
        let hooked = |messages: MessageList| ModelRequest {
            system: Some("Be careful.".into()),
            prompt_change: Some(PromptChange::Hook),
            messages,
            ..base.clone()
        };
        let (hook, first, second) = (Some(PromptChange::Hook), turns(3), grown(1).messages);
        let sent =
            [base.clone(), hooked(first.clone()), hooked(second.clone()), grown(2), edited.clone()];
        let breaks = breaks_of(&sent.map(|request| (wire, request)));
        assert_eq!(breaks, [hook, None, hook, Some(Unexplained)], "{wire}");
        // After a request that a hook changed, the end of its change is no break if nothing else is one.
        let same = ModelRequest { system: base.system.clone(), ..hooked(second) };
        let sent = [base.clone(), same, grown(2), edited.clone()].map(|request| (wire, request));
        assert_eq!(breaks_of(&sent), [None, None, Some(Unexplained)], "{wire}");
        let other_wire = WIRES[(WIRES.iter().position(|w| *w == wire).unwrap() + 1) % 5];
        let other_model =
            ModelRequest { model: "n".into(), prompt_change: Some(cleared), ..edited };
        let sent = [(wire, base.clone()), (wire, other_model), (other_wire, grown(1))];
        assert_eq!(breaks_of(&sent), [Some(Fallback), Some(Fallback)], "{wire}");
    }
}

#[test]
fn a_learnt_rule_for_reasoning_explains_the_break_that_it_causes() {
    let learnt = |messages: MessageList| {
        let reasoning = ReasoningRule { send: SendReasoning::All, ..ReasoningRule::default() };
        ModelRequest { reasoning, ..request(messages) }
    };
    for wire in WIRES {
        let reason = Some(PromptChange::Reasoning).filter(|_| wire != Wire::GeminiGenerate);
        let sent = [request(turns(2)), learnt(turns(2)), learnt(turns(3)), request(turns(3))];
        let breaks = breaks_of(&sent.map(|request| (wire, request)));
        assert_eq!(breaks, [reason, None, reason], "{wire}");
        // Without a message of a model there is nothing to change.
        let (first, second) = (turns(0), turns(1));
        let sent = [request(first), learnt(second)].map(|request| (wire, request));
        assert_eq!(breaks_of(&sent), [None], "{wire}");
    }
}

proptest! {
    #[test]
    fn a_history_that_grows_never_breaks_the_prompt(
        (wire, steps) in select(&WIRES[..]).prop_flat_map(|wire| {
            (Just(wire), prop::collection::vec(step(wire), 1..8))
        }),
        reasoning in reasoning_rule(),
    ) {
        let mut request = request(vec![user("Go on.")].into());
        request.reasoning = reasoning;
        let mut cache = RequestCache::default();
        let mut before: Option<Value> = None;
        let mut service_calls = (0, Vec::new());
        for step in steps {
            request.tool_choice = if step.is_final { ToolChoice::None } else { ToolChoice::Auto };
            cache.encode_body(wire, &request, |request| crate::write_head(wire, request).into());
            prop_assert!(matches!(cache.prompt_break(), None | Some(PromptChange::InputsJoined)));
            // The whole body agrees.
            let body: Value = serde_json::from_slice(&wire.request_body(&request)).unwrap();
            if let Some(before) = &before {
                let text = |value: &Value| value.to_string().into_bytes();
                let found =
                    prefix::body_continuation(crate::history_member(wire), &text(before), &text(&body));
                prop_assert_ne!(found, prefix::Continuation::Breaks, "{}\n{}", before, body);
            }
            before = Some(body);
            let last = request.messages.last().map(|message| Message::clone(message));
            let messages = step.messages(wire, last.as_ref(), &mut service_calls);
            messages.into_iter().for_each(|message| request.messages.push(message));
        }
    }
}

#[test]
fn the_cost_of_the_next_body_does_not_depend_on_the_length_of_the_history() {
    for is_held in [false, true] {
        let costs = [10, 1_000].map(|count| {
            let mut request = request(turns(count));
            let mut cache = RequestCache::default();
            let mut next = |request: &ModelRequest| {
                cache.encode_body(Wire::OpenaiChat, request, |head| {
                    crate::write_head(Wire::OpenaiChat, head).into()
                })
            };
            next(&request);
            let mut add_turn = || {
                let [.., response, result, _] = &*turns(1) else { panic!("a turn") };
                let more = [response, result].map(Arc::clone);
                request.messages = request.messages.iter().cloned().chain(more).collect();
                request.clone()
            };
            // The first addition may grow the buffer.
            let held = next(&add_turn());
            let held = Some(held).filter(|_| is_held);
            let request = add_turn();
            let cost = allocation_counter::measure(|| drop(next(&request)));
            drop(held);
            // A body that is still held is copied.
            (cost.count_total, cost.bytes_total * u64::from(!is_held))
        });
        assert_eq!(costs[0], costs[1], "held: {is_held}");
    }
}

#[test]
fn sessions_share_the_heads_of_their_requests() {
    let mut heads = HeadCache::default();
    for wire in WIRES {
        let mut heads = HeadCache::default();
        for at in 0..3 * HEADS_MAX {
            let request = ModelRequest {
                max_output_tokens: u32::try_from(at % (HEADS_MAX + 1)).ok(),
                ..request(turns(at % 3))
            };
            let body =
                RequestCache::default().encode_body(wire, &request, |head| heads.head(wire, head));
            assert_eq!(body, wire.request_body(&request));
            assert!(heads.heads.len() <= HEADS_MAX);
        }
    }
    let request = request(MessageList::default());
    let first = heads.head(Wire::OpenaiChat, &request);
    let again = heads.head(Wire::OpenaiChat, &request.clone());
    assert_eq!(first.as_ptr(), again.as_ptr(), "it is encoded once");
}
