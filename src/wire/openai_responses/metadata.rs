//! Metadata: the form in which a model's items are replayed to it.
//!
//! The service checks that the replayed items of a model are consistent. Its error messages give the rules:
//!
//! - A reasoning item and the item that it led to are replayed together ("was provided without its
//!   required following item", "without its required 'reasoning' item").
//! - Reasoning that the service did not store must have its content ("Items are not persisted when
//!   `store` is set to false").
//! - Ids of calls have at most 64 characters.
//!
//! Items are replayed as they came. If a reasoning item cannot be, the message is replayed as text and
//! calls without ids. If an id is too long, all items are replayed without ids. Calls of the service's
//! own tools that wait for a result of the client are left out.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::lenient::Scalar;
use callsheet_values::message::{RequestPart, ResponseMessage};
use callsheet_values::types::MessagePart;

/// Maximum length of the id of an item or a call, from the service's error message for longer ids.
pub(super) const ID_CHARS_MAX: usize = 64;

/// The form in which the items of one message are replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplayMode {
    /// Items as they came.
    Whole,
    /// Reasoning, text and calls without their ids, because some services send ids that they refuse.
    /// Other items are left out.
    WithoutIds,
    /// Text and calls alone, without ids.
    Bare,
}

/// The members that decide whether an item of the service's own can be replayed.
#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct ProviderItem<'a> {
    #[serde(rename = "type")]
    kind: Scalar<'a>,
    id: Scalar<'a>,
    encrypted_content: Scalar<'a>,
    content: Option<&'a RawValue>,
}

impl<'a> ProviderItem<'a> {
    /// Reads a kept item.
    pub(super) fn read(json: &'a str) -> Self {
        serde_json::from_str(json).unwrap_or_default()
    }

    pub(super) fn is_reasoning(&self) -> bool {
        self.kind.as_text() == Some("reasoning")
    }

    /// Returns whether it is a call that the client must answer. None of these is a tool of ours, so
    /// there is no result, and the service refuses the call without one.
    fn needs_client_result(&self) -> bool {
        let kind = self.kind.as_text().unwrap_or_default();
        let client_calls = ["computer_call", "local_shell_call", "shell_call", "apply_patch_call"];
        client_calls.contains(&kind) || kind == "mcp_approval_request"
    }

    fn has_content(&self) -> bool {
        let is_some = |text: &str| !text.is_empty();
        self.encrypted_content.as_text().is_some_and(is_some)
            || self.content.is_some_and(|content| content.get().contains('{'))
    }

    /// Returns whether the service accepts it. `stores` is true if the service stores items and
    /// finds them by their ids.
    pub(super) fn can_go_back(&self, stores: bool) -> bool {
        match self.kind.as_text() {
            None | Some("") => false,
            Some("reasoning") => stores || self.has_content(),
            Some(_) => !self.needs_client_result(),
        }
    }
}

/// Returns the form in which a message is replayed to the model that wrote it.
///
/// A reasoning item can be replayed only if an item follows to which it can have led. If one reasoning
/// item cannot be replayed, the result is [`ReplayMode::Bare`].
pub(super) fn replay_mode(
    message: &ResponseMessage,
    parts: &[RequestPart<'_>],
    stores: bool,
) -> ReplayMode {
    let mut is_followed = false;
    for part in message.parts.iter().rev() {
        match part {
            MessagePart::Reasoning { .. }
            | MessagePart::TaggedReasoning { .. }
            | MessagePart::Text { bytes: 0, .. } => {}
            // A part without an id was cut off, because the id of its item is kept when the item is complete;
            // or its item had no id.
            MessagePart::Text { members, .. } => is_followed = has_id(members.as_deref()),
            MessagePart::Call { index, members } => {
                let is_kept = message.calls.iter().any(|call| call.key.index == *index);
                is_followed = is_kept && has_id(members.as_deref());
            }
            MessagePart::Raw { json } => {
                let item = ProviderItem::read(json);
                let goes_back = item.can_go_back(stores) && (is_followed || !item.is_reasoning());
                if !goes_back && item.is_reasoning() {
                    return ReplayMode::Bare;
                }
                is_followed = goes_back;
            }
        }
    }
    let is_long = |id: &str| id.chars().count() > ID_CHARS_MAX;
    let has_long_id = parts.iter().any(|part| match part {
        RequestPart::Text { members: Some(json), .. }
        | RequestPart::Call { members: Some(json), .. }
        | RequestPart::Raw(json) => ProviderItem::read(json).id.as_text().is_some_and(is_long),
        RequestPart::Text { .. } | RequestPart::Call { .. } | RequestPart::Reasoning { .. } => {
            false
        }
    });
    if has_long_id { ReplayMode::WithoutIds } else { ReplayMode::Whole }
}

/// Returns whether the members of a part hold the id of its item.
fn has_id(members: Option<&str>) -> bool {
    let has_text = |id: &str| !id.is_empty();
    members.is_some_and(|json| ProviderItem::read(json).id.as_text().is_some_and(has_text))
}
