//! Content that is left out of later requests, because a service refused it or a client asked for it: which messages a
//! refused request may have to lose, and the lines that replace them. `session::exclusion` decides.
//!
//! Only content that no accepted request has had is blamed: images, results of tools, and inputs of earlier runs. The
//! text of the input that the run itself has to answer stays. If that is refused, the run ends.

use std::sync::Arc;

use super::compaction::results;
use callsheet_values::message::{Message, ResultContent};
use callsheet_values::record::ExcludedMessage;
use callsheet_values::types::{
    CallKey, Content, ContentPart, ContentRefusal, Image, READ_VAR, Reference,
};

/// The member of a result's metadata that says that the result is left out.
pub(super) const EXCLUDED: &str = "excluded";

/// The kinds of content that the next request has, that no accepted request has had, and that may be left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Excludable {
    /// Images.
    pub images: bool,
    /// Texts: results of tools, and inputs of earlier runs.
    pub texts: bool,
}

impl Excludable {
    /// Returns whether something can be left out.
    #[must_use]
    pub fn any(self) -> bool {
        self.images || self.texts
    }
}

/// Returns the kinds of content that may be left out. The arguments are those of [`plan_exclusion`].
#[must_use]
pub fn excludable(
    messages: &[Arc<Message>],
    run_start: usize,
    is_excluded: impl Fn(&Arc<Message>) -> bool,
) -> Excludable {
    let mut found = Excludable::default();
    for (at, message) in unaccepted(messages) {
        found.images |= has_image(message);
        found.texts |= may_replace(message, at, run_start) && !is_excluded(message);
    }
    found
}

/// The content that a refused request loses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExclusionPlan {
    /// The messages, and of which only the images.
    pub messages: Vec<ExcludedMessage>,
    /// The error does not name this content.
    pub tentative: bool,
}

/// Plans which content a refused request loses: the images, if the error names them and there are some, or else all
/// that may be left out. `run_start` is the index of the first message of the run. `is_excluded` returns whether a
/// message is the line of one that is left out.
#[must_use]
pub fn plan_exclusion(
    messages: &[Arc<Message>],
    run_start: usize,
    refusal: ContentRefusal,
    is_excluded: impl Fn(&Arc<Message>) -> bool,
) -> ExclusionPlan {
    let has_images = unaccepted(messages).any(|(_, message)| has_image(message));
    let images_only = refusal == ContentRefusal::Image && has_images;
    let plan = unaccepted(messages).filter_map(|(index, message)| {
        let is_replaced =
            !images_only && may_replace(message, index, run_start) && !is_excluded(message);
        (is_replaced || has_image(message)).then_some(ExcludedMessage {
            index,
            seq: None,
            call: None,
            images: !is_replaced,
        })
    });
    let messages = plan.collect();
    let tentative = match refusal {
        ContentRefusal::Image => !has_images,
        ContentRefusal::Policy => false,
        ContentRefusal::Unnamed => true,
    };
    ExclusionPlan { messages, tentative }
}

/// Sets the calls of those messages that are results.
pub fn name_calls(messages: &[Arc<Message>], excluded: &mut [ExcludedMessage]) {
    for (at, call) in results(messages) {
        if let Some(message) = excluded.iter_mut().find(|message| message.index == at) {
            message.call = Some(call.key);
        }
    }
}

/// Returns the index of the result of a call.
#[must_use]
pub fn find_result(messages: &[Arc<Message>], key: CallKey) -> Option<usize> {
    results(messages).find(|(_, call)| call.key == key).map(|(at, _)| at)
}

/// Returns the messages that no accepted request has had.
fn unaccepted(messages: &[Arc<Message>]) -> impl Iterator<Item = (usize, &Arc<Message>)> {
    messages.iter().enumerate().skip(accepted_len(messages))
}

/// Returns the number of messages up to the newest one which shows that a request with those before it was accepted: a
/// response of a model, the log of a run, or a summary. The messages that a session was opened with show nothing.
#[must_use]
pub fn accepted_len(messages: &[Arc<Message>]) -> usize {
    let shows_acceptance = |message: &Arc<Message>| match &**message {
        Message::Assistant(response) => response.origin.is_some() || response.hint_bytes.is_some(),
        Message::Summary { .. } => true,
        Message::User { .. } | Message::Tool { .. } => false,
    };
    messages.iter().rposition(shows_acceptance).map_or(0, |at| at + 1)
}

fn has_image(message: &Message) -> bool {
    match message {
        Message::User { content } => content.images().next().is_some(),
        Message::Tool { content, .. } => content.images().next().is_some(),
        Message::Summary { .. } | Message::Assistant(_) => false,
    }
}

/// Returns whether the whole message may be replaced: a result, or an input of an earlier run.
fn may_replace(message: &Message, index: usize, run_start: usize) -> bool {
    match message {
        Message::Tool { .. } => true,
        Message::User { .. } => index < run_start,
        Message::Summary { .. } | Message::Assistant(_) => false,
    }
}

/// Returns the message that replaces one that is left out. If `references` is true, the line about a result names its
/// reference. Responses and summaries stay.
#[must_use]
pub fn replacement(message: &Message, excluded: &ExcludedMessage, references: bool) -> Message {
    match message {
        Message::User { content } if excluded.images => {
            let part = |part: &ContentPart| match part {
                ContentPart::Text(_) => part.clone(),
                ContentPart::Image(image) => ContentPart::Text(image_line(image)),
            };
            let parts: Vec<_> = content.parts().iter().map(part).collect();
            Message::User { content: Content::from(parts) }
        }
        Message::User { content } => {
            let bytes: usize = content.text().len();
            let line = format!("[left out by the host: a message of the user, {bytes} bytes]");
            Message::User { content: line.into() }
        }
        Message::Tool { call_id, name, content, metadata } => {
            let reference = excluded.call.filter(|_| references && **name != *READ_VAR);
            let reference = reference.map(|key| Reference::Result(key).to_string());
            let (line, mut metadata) =
                (result_line(name, content, excluded, reference), metadata.clone());
            if let Some(members) = metadata.as_object_mut().filter(|_| !excluded.images) {
                members.insert(EXCLUDED.to_owned(), true.into());
            }
            let (call_id, name) = (Arc::clone(call_id), Arc::clone(name));
            Message::Tool { call_id, name, content: line.into(), metadata }
        }
        Message::Summary { .. } | Message::Assistant(_) => message.clone(),
    }
}

fn image_line(image: &Image) -> String {
    let line = image.model_text();
    format!("{}: left out by the host]", line.trim_end_matches(']'))
}

fn result_line(
    name: &str,
    content: &ResultContent,
    excluded: &ExcludedMessage,
    reference: Option<String>,
) -> String {
    if excluded.images {
        // The text has a line about each image.
        let reference = reference.map(|it| format!(": {it}")).unwrap_or_default();
        return format!("{}\n[the images are left out by the host{reference}]", &**content);
    }
    let reference = reference.map(|it| format!(". read_var reads it: {it}")).unwrap_or_default();
    format!("[left out by the host: the result of {name}, {} bytes{reference}]", content.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use callsheet_values::message::ResponseMessage;
    use callsheet_values::types::{ModelOrigin, ToolCall, Wire};
    use serde_json::json;

    fn image() -> ContentPart {
        ContentPart::Image(Image::parse("data:image/png;base64,AAAA").unwrap())
    }

    fn answer(turn: u32) -> Arc<Message> {
        let key = CallKey { turn, attempt: 1, index: 0 };
        let call = ToolCall {
            key,
            id: "c".into(),
            provider_id: None,
            name: "fetch".into(),
            arguments: json!({}).into(),
            raw: None,
            indirect: false,
        };
        let origin = Some(Arc::new(ModelOrigin { wire: Wire::OpenaiChat, model: "m".into() }));
        let message = ResponseMessage { calls: vec![call], origin, ..ResponseMessage::default() };
        Arc::new(Message::Assistant(message.into()))
    }

    fn user(parts: Vec<ContentPart>) -> Arc<Message> {
        Arc::new(Message::user(Content::from(parts)))
    }

    fn words(text: &str) -> ContentPart {
        ContentPart::Text(text.to_owned())
    }

    fn result(parts: Vec<ContentPart>) -> Arc<Message> {
        Arc::new(Message::tool_result("c", "fetch", ResultContent::from_parts(parts.into())))
    }

    /// Returns the planned indexes, negative ones for images alone.
    fn planned(messages: &[Arc<Message>], start: usize, refusal: ContentRefusal) -> Vec<String> {
        let mut plan = plan_exclusion(messages, start, refusal, |_| false).messages;
        assert_eq!(excludable(messages, start, |_| false).any(), !plan.is_empty());
        name_calls(messages, &mut plan);
        plan.iter().map(ExcludedMessage::name).collect()
    }

    #[test]
    fn only_content_that_no_accepted_request_has_had_is_left_out() {
        use ContentRefusal::{Image, Policy, Unnamed};
        let mut messages = vec![user(vec![words("look"), image()])];
        assert_eq!(planned(&messages, 0, Image), ["message 0 (images)"]);
        assert_eq!(planned(&messages, 0, Policy), ["message 0 (images)"]);
        // The next run: the input of the one before is left out, because it was not accepted.
        messages.push(user(vec![words("hello")]));
        assert_eq!(planned(&messages, 1, Unnamed), ["message 0"]);
        assert_eq!(planned(&messages, 1, Image), ["message 0 (images)"]);
        messages.extend([answer(1), result(vec![words("a"), image()])]);
        assert_eq!(planned(&messages, 1, Image), ["t1a1c0 (images)"]);
        assert_eq!(planned(&messages, 1, Unnamed), ["t1a1c0"]);
        messages.extend([answer(2), result(vec![words("a")]), user(vec![words("steered")])]);
        assert_eq!(planned(&messages, 1, Policy), ["t2a1c0"]);
        // The error names images, and there are none.
        let plan = plan_exclusion(&messages, 1, Image, |_| false);
        assert_eq!((plan.messages.len(), plan.tentative), (1, true));
        messages.truncate(2);
        messages.remove(0);
        assert_eq!(planned(&messages, 0, Unnamed), Vec::<String>::new());
    }

    #[test]
    fn messages_that_a_session_was_opened_with_were_not_accepted() {
        let opened = ResponseMessage { text: "Hi.".into(), ..ResponseMessage::default() };
        let opened = Arc::new(Message::Assistant(opened.into()));
        let messages = [user(vec![image()]), opened, user(vec![words("hello")])];
        assert_eq!(planned(&messages, 2, ContentRefusal::Image), ["message 0 (images)"]);
    }

    #[test]
    fn one_line_stands_for_content_that_is_left_out() {
        let messages =
            [user(vec![words("look"), image()]), answer(1), result(vec![words("a"), image()])];
        let line = |index: usize, images, references| {
            let mut excluded = [ExcludedMessage { index, seq: None, call: None, images }];
            name_calls(&messages, &mut excluded);
            match replacement(&messages[index], &excluded[0], references) {
                Message::User { content } => content.text().into_owned(),
                Message::Tool { content, .. } => content.to_string(),
                other @ (Message::Summary { .. } | Message::Assistant(_)) => panic!("{other:?}"),
            }
        };
        assert_eq!(line(0, true, true), "look\n[image image/png, 3 bytes: left out by the host]");
        assert_eq!(line(0, false, true), "[left out by the host: a message of the user, 4 bytes]");
        assert_eq!(
            line(2, true, true),
            "a\n[image image/png, 3 bytes]\n[the images are left out by the host: $VAR_REF{{t1a1c0}}]"
        );
        assert_eq!(
            line(2, false, true),
            "[left out by the host: the result of fetch, 28 bytes. read_var reads it: $VAR_REF{{t1a1c0}}]"
        );
        assert_eq!(line(2, false, false), "[left out by the host: the result of fetch, 28 bytes]");
    }
}
