//! Reads a response by Callsheet's reader.

use std::sync::Arc;

use callsheet::types::{FinishKind, FinishReason, ToolProtocol};
use callsheet::wire::{CallReader, Delta, ToolDefinition};

use crate::generate::parsed_arguments;
use crate::random::Random;
use serde_json::Value;

/// One call as it was read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CallRead {
    pub(crate) name: String,
    pub(crate) arguments: String,
    pub(crate) is_repaired: bool,
    pub(crate) is_sealed: bool,
}

impl CallRead {
    /// Returns the arguments as an object, if they are one.
    pub(crate) fn object(&self) -> Option<Value> {
        parsed_arguments(&self.arguments)
    }
}

/// A response as it was read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reading {
    /// The texts before, between and after the calls: one more than calls.
    pub(crate) texts: Vec<String>,
    pub(crate) calls: Vec<CallRead>,
    pub(crate) problems: Vec<String>,
}

impl Reading {
    pub(crate) fn text(&self) -> String {
        self.texts.concat()
    }
}

/// Reads a text that arrives in these pieces, in a response that ends for this reason.
pub(crate) fn read(
    protocol: ToolProtocol,
    tools: &Arc<[ToolDefinition]>,
    pieces: &[&str],
    finish: FinishKind,
) -> Reading {
    let mut reader = CallReader::new(protocol, tools).expect("tools are offered");
    let mut deltas = Vec::new();
    for piece in pieces {
        deltas.extend(reader.read(vec![Delta::Text((*piece).to_owned())]));
    }
    let reason = Delta::Finish(FinishReason::new(finish, "x"));
    deltas.extend(reader.read(vec![reason.clone()]).into_iter().filter(|delta| *delta != reason));
    deltas.extend(reader.finish());
    let mut reading = Reading { texts: vec![String::new()], calls: vec![], problems: vec![] };
    let (mut indexes, mut surplus) = (Vec::new(), Vec::new());
    for delta in deltas {
        match delta {
            Delta::Text(text) => reading.texts.last_mut().expect("one text").push_str(&text),
            // The protocol allows only one.
            Delta::Call(call) if call.is_surplus => surplus.extend(call.index),
            Delta::Call(call) => {
                assert!(call.is_marked_start, "a call comes whole");
                indexes.push(call.index.expect("an index"));
                reading.texts.push(String::new());
                reading.calls.push(CallRead {
                    name: call.name.unwrap_or_default(),
                    arguments: call.arguments.unwrap_or_default(),
                    is_repaired: call.is_repaired,
                    is_sealed: false,
                });
            }
            Delta::Seal { index, .. } if surplus.contains(&index) => {}
            Delta::Seal { index, .. } => {
                let at = indexes.iter().position(|known| *known == index).expect("a known call");
                let is_sealed = &mut reading.calls[at].is_sealed;
                assert!(!std::mem::replace(is_sealed, true), "a call is sealed once");
            }
            Delta::Problem(problem) => reading.problems.push(problem.code.to_owned()),
            other => panic!("unexpected delta {other:?}"),
        }
    }
    reading
}

/// Cuts a text at random positions.
pub(crate) fn cut<'t>(random: &mut Random, text: &'t str) -> Vec<&'t str> {
    let mut positions: Vec<usize> = (0..random.below(8)).map(|_| random.position(text)).collect();
    positions.sort_unstable();
    let mut pieces = Vec::new();
    let mut from = 0;
    for position in positions {
        pieces.push(&text[from..position]);
        from = position;
    }
    pieces.push(&text[from..]);
    pieces
}

pub(crate) fn characters(text: &str) -> Vec<&str> {
    text.split("").filter(|piece| !piece.is_empty()).collect()
}
