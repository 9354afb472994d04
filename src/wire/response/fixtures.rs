//! Deltas for the tests of the machines.

use crate::{CallDelta, Delta};
use callsheet_values::types::{FinishKind, FinishReason};

/// Returns a complete call in one piece.
pub fn call(index: u64, name: &str, arguments: &str) -> Delta {
    Delta::Call(CallDelta {
        index: Some(index),
        id: Some(format!("id{index}")),
        name: Some(name.to_owned()),
        arguments: Some(arguments.to_owned()),
        ..CallDelta::default()
    })
}

/// Returns a delta of text.
pub fn text(text: &str) -> Delta {
    Delta::Text(text.to_owned())
}

/// Returns the end of a response.
pub fn finish(kind: FinishKind) -> Delta {
    Delta::Finish(FinishReason::new(kind, format!("{kind:?}")))
}
