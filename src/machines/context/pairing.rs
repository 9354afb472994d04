//! The pairing rule: an assistant message is directly followed by exactly one result for each of its
//! calls.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::json;

use callsheet_values::message::Message;

/// Repairs messages to satisfy the pairing rule, and returns the number of repairs. A repair adds
/// the missing result of a call, or removes a result that has no call or repeats another one.
#[must_use]
pub fn repair_pairing(messages: &[Arc<Message>]) -> (Vec<Arc<Message>>, u32) {
    debug_assert!(
        messages.iter().all(|message| has_unique_ids(message)),
        "ids are unique in a message"
    );
    repair(messages)
}

/// Returns whether the messages satisfy the pairing rule. The history does not check such messages again.
#[must_use]
pub(super) fn are_paired(messages: &[Arc<Message>]) -> bool {
    messages.iter().all(|message| has_unique_ids(message)) && repair(messages).1 == 0
}

fn repair(messages: &[Arc<Message>]) -> (Vec<Arc<Message>>, u32) {
    let mut repaired = Vec::with_capacity(messages.len());
    let mut repairs = 0;
    let mut open: Vec<(&Arc<str>, &Arc<str>)> = Vec::new();
    for message in messages {
        match message.as_ref() {
            Message::Tool { call_id, .. } => match open.iter().position(|(id, _)| *id == call_id) {
                Some(index) => {
                    open.remove(index);
                    repaired.push(Arc::clone(message));
                }
                None => repairs += 1,
            },
            Message::User { .. } | Message::Summary { .. } => {
                repairs += add_missing_results(&mut open, &mut repaired);
                repaired.push(Arc::clone(message));
            }
            Message::Assistant(response) => {
                repairs += add_missing_results(&mut open, &mut repaired);
                open.extend(response.calls.iter().map(|call| (&call.id, &call.name)));
                repaired.push(Arc::clone(message));
            }
        }
    }
    repairs += add_missing_results(&mut open, &mut repaired);
    (repaired, repairs)
}

/// Returns whether all calls of a message have different ids.
fn has_unique_ids(message: &Message) -> bool {
    let Message::Assistant(message) = message else { return true };
    let ids: BTreeSet<&str> = message.calls.iter().map(|call| &*call.id).collect();
    ids.len() == message.calls.len()
}

/// Adds a result for each open call, and returns how many it added.
fn add_missing_results(
    open: &mut Vec<(&Arc<str>, &Arc<str>)>,
    repaired: &mut Vec<Arc<Message>>,
) -> u32 {
    let mut repairs = 0;
    for (id, name) in open.drain(..) {
        repairs += 1;
        repaired.push(Arc::new(Message::Tool {
            call_id: Arc::clone(id),
            name: Arc::clone(name),
            content: "Error: the result of this call was lost".into(),
            metadata: json!({"error": true}),
        }));
    }
    repairs
}

#[cfg(test)]
mod tests {
    use super::*;
    use callsheet_values::message::ResponseMessage;
    use callsheet_values::types::{CallKey, ToolCall};

    fn user() -> Arc<Message> {
        Arc::new(Message::User { content: "hi".into() })
    }

    fn assistant(ids: &[&str]) -> Arc<Message> {
        let calls = ids.iter().zip(0..).map(|(id, index)| ToolCall {
            key: CallKey { turn: 1, attempt: 1, index },
            id: (*id).into(),
            provider_id: None,
            name: "clock".into(),
            arguments: json!({}).into(),
            raw: None,
            indirect: false,
        });
        let calls = calls.collect();
        Arc::new(Message::Assistant(ResponseMessage { calls, ..ResponseMessage::default() }.into()))
    }

    fn tool(id: &str) -> Arc<Message> {
        Arc::new(Message::Tool {
            call_id: id.into(),
            name: "clock".into(),
            content: "noon".into(),
            metadata: json!({}),
        })
    }

    #[track_caller]
    fn check(messages: &[Arc<Message>], roles: &str, repairs: u32) {
        let (repaired, count) = repair_pairing(messages);
        let seen: Vec<String> = repaired
            .iter()
            .map(|message| match message.as_ref() {
                Message::User { .. } | Message::Summary { .. } => "user".to_owned(),
                Message::Assistant { .. } => "assistant".to_owned(),
                Message::Tool { call_id, .. } => call_id.to_string(),
            })
            .collect();
        assert_eq!((seen.join(" ").as_str(), count), (roles, repairs));
    }

    #[test]
    fn paired_messages_are_unchanged() {
        check(
            &[user(), assistant(&["a", "b"]), tool("a"), tool("b"), assistant(&[])],
            "user assistant a b assistant",
            0,
        );
    }

    #[test]
    fn ids_may_repeat_between_turns() {
        check(
            &[user(), assistant(&["0"]), tool("0"), assistant(&["0"]), tool("0")],
            "user assistant 0 assistant 0",
            0,
        );
    }

    #[test]
    fn missing_results_are_added_and_superfluous_ones_removed() {
        check(&[user(), assistant(&["a", "b"]), tool("b"), user()], "user assistant b a user", 1);
        check(&[user(), assistant(&["a"]), tool("a"), tool("a")], "user assistant a", 1);
        check(&[user(), tool("x"), assistant(&["a"])], "user assistant a", 2);
    }
}
