//! Deltas for the tests of the machines.

use crate::types::{FinishKind, FinishReason};
use crate::wire::{CallDelta, Delta};

/// Returns a complete call in one piece.
pub(crate) fn call(index: u64, name: &str, arguments: &str) -> Delta {
    Delta::Call(CallDelta {
        index: Some(index),
        id: Some(format!("id{index}")),
        name: Some(name.to_owned()),
        arguments: Some(arguments.to_owned()),
        ..CallDelta::default()
    })
}

pub(crate) fn text(text: &str) -> Delta {
    Delta::Text(text.to_owned())
}

pub(crate) fn finish(kind: FinishKind) -> Delta {
    Delta::Finish(FinishReason::new(kind, format!("{kind:?}")))
}
