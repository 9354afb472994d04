//! What goes back to a model of what it said itself.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::message::{RequestPart, ResponseMessage};
use crate::types::MessagePart;
use crate::wire::loose::Scalar;

/// Characters of an item's id that a service takes.
pub(super) const ID_CHARS_MAX: usize = 64;

/// How the items of one message go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Back {
    /// As they came.
    Whole,
    /// Without their ids, as some services hand out ids that they do not take: reasoning, text and
    /// calls.
    WithoutIds,
    /// Text and calls alone.
    Bare,
}

/// What decides whether an item of the service's own can go back.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct OwnItem<'a> {
    #[serde(rename = "type", borrow)]
    kind: Scalar<'a>,
    #[serde(borrow)]
    id: Scalar<'a>,
    #[serde(borrow)]
    encrypted_content: Scalar<'a>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
}

impl<'a> OwnItem<'a> {
    /// Reads an item that was kept.
    pub(super) fn of(json: &'a str) -> Self {
        serde_json::from_str(json).unwrap_or_default()
    }

    pub(super) fn is_reasoning(&self) -> bool {
        self.kind.as_text() == Some("reasoning")
    }

    /// Whether it is a call that the client should have answered. None of them is a tool of
    /// ours, so there is no answer, and without one the service would refuse it.
    fn wants_an_answer(&self) -> bool {
        let kind = self.kind.as_text().unwrap_or_default();
        let ours = ["computer_call", "local_shell_call", "shell_call", "apply_patch_call"];
        ours.contains(&kind) || kind == "mcp_approval_request"
    }

    fn has_content(&self) -> bool {
        let is_some = |text: &str| !text.is_empty();
        self.encrypted_content.as_text().is_some_and(is_some)
            || self.content.is_some_and(|content| content.get().contains('{'))
    }

    /// Whether the service takes it back; `stores` if it knows items by their ids.
    pub(super) fn can_go(&self, stores: bool) -> bool {
        match self.kind.as_text() {
            None | Some("") => false,
            Some("reasoning") => stores || self.has_content(),
            Some(_) => !self.wants_an_answer(),
        }
    }
}

/// Decides how a message of the asked model goes back to it.
pub(super) fn back(message: &ResponseMessage, pieces: &[RequestPart<'_>], stores: bool) -> Back {
    // Whether something of the service's follows that a reasoning item can have led to.
    let mut is_followed = false;
    for part in message.parts.iter().rev() {
        match part {
            MessagePart::Reasoning { .. } | MessagePart::Text { bytes: 0, .. } => {}
            MessagePart::Text { .. } => is_followed = true,
            MessagePart::Call { index, .. } => {
                is_followed = message.calls.iter().any(|call| call.key.index == *index);
            }
            MessagePart::Raw { json } => {
                let item = OwnItem::of(json);
                let goes = item.can_go(stores) && (is_followed || !item.is_reasoning());
                if !goes && item.is_reasoning() {
                    return Back::Bare;
                }
                is_followed = goes;
            }
        }
    }
    let is_long = |id: &str| id.chars().count() > ID_CHARS_MAX;
    let has_long_id = pieces.iter().any(|piece| match piece {
        RequestPart::Text { members: Some(json), .. }
        | RequestPart::Call { members: Some(json), .. }
        | RequestPart::Raw(json) => OwnItem::of(json).id.as_text().is_some_and(is_long),
        RequestPart::Text { .. } | RequestPart::Call { .. } | RequestPart::Reasoning { .. } => {
            false
        }
    });
    if has_long_id { Back::WithoutIds } else { Back::Whole }
}
