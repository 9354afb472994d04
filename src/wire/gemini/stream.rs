//! The calls of a streamed response: complete in one part, or spread over several parts.
//!
//! Vertex AI starts a call with `willContinue`. The parts after it have values with their paths, and
//! a part without `willContinue` closes the call. The next call and a good finish close it too,
//! because the last part is sometimes missing
//! (<https://cloud.google.com/vertex-ai/generative-ai/docs/multimodal/function-calling>).

use serde_json::value::RawValue;

use super::arguments::PartialArguments;
use super::payload::{CallPayload, PartialArgumentPayload};
use crate::{CallDelta, Delta, Problem, ProviderMetadata};
use callsheet_values::types::excerpt;

/// Maximum number of pieces in one part. If a list holds more, further pieces may have been ignored.
const PIECES_MAX: usize = 4096;

/// The calls of a response, as far as they have come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CallTracker {
    /// Number of calls so far.
    count: u64,
    open: Option<Box<OpenCall>>,
}

/// A call whose arguments are incomplete.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OpenCall {
    index: u64,
    name: Option<String>,
    arguments: PartialArguments,
}

impl CallTracker {
    /// Returns whether the response has no call so far.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds the call, or the piece of a call, of a part. `members` go back with the call.
    pub(super) fn push(
        &mut self,
        call: CallPayload<'_>,
        members: Option<Box<str>>,
        out: &mut Vec<Delta>,
    ) {
        let CallPayload { id, name, args, mut partial, will_continue } = call;
        let (id, name) = (id.into_text(), name.into_text());
        let will_continue = will_continue.0.as_deref() == Some("true");
        let in_pieces = will_continue || !partial.is_empty();
        let continues = match &self.open {
            Some(open) => {
                // Every piece may repeat the name of its call. A piece with a name starts another call
                // if its name differs, if it has `args`, or if it has `willContinue` and no values.
                let has_more = !partial.is_empty() || !will_continue;
                name.is_none() || (name == open.name && args.is_none() && has_more)
            }
            None => false,
        };
        // An empty part closes a call. If none is open, its members belong to the last one.
        let is_empty = name.is_none() && id.is_none() && args.is_none() && !in_pieces;
        if !continues && !is_empty {
            self.close(out);
            self.begin(id, name, args.filter(|_| !in_pieces), in_pieces, out);
        } else if let (Some(open), true) = (&self.open, id.is_some()) {
            out.push(Delta::Call(CallDelta {
                index: Some(open.index),
                id,
                ..CallDelta::default()
            }));
        }
        if let (Some(members), Some(index)) = (members, self.count.checked_sub(1)) {
            out.push(Delta::Metadata(ProviderMetadata::Call { index, members }));
        }
        let Some(open) = self.open.as_mut() else { return };
        if let Some(object) = args
            && open.arguments.replace(object.get()).is_err()
        {
            out.push(invalid_path(object.get()));
        }
        let mut pieces = 0;
        for PartialArgumentPayload { path, value } in partial.items_mut() {
            pieces += 1;
            let path = path.as_text().unwrap_or_default();
            if let Some(value) = value.take()
                && open.arguments.push(path, value).is_err()
            {
                out.push(invalid_path(path));
            }
        }
        if pieces > PIECES_MAX {
            open.arguments.mark_incomplete();
            out.push(invalid_path("too many pieces at once"));
        }
        if !will_continue {
            self.close(out);
        }
    }

    /// Starts a call, which is complete unless `in_pieces`.
    fn begin(
        &mut self,
        id: Option<String>,
        name: Option<String>,
        args: Option<&RawValue>,
        in_pieces: bool,
        out: &mut Vec<Delta>,
    ) {
        let index = self.count;
        self.count += 1;
        let arguments = match args {
            // If the call is never closed this is invalid JSON, so that the call does not pass for one
            // without arguments.
            None if in_pieces => "{",
            None => "{}",
            Some(args) => args.get(),
        };
        if in_pieces {
            let arguments = PartialArguments::default();
            self.open = Some(Box::new(OpenCall { index, name: name.clone(), arguments }));
        }
        out.push(Delta::Call(CallDelta {
            index: Some(index),
            id,
            name,
            arguments: Some(arguments.to_owned()),
            is_marked_start: true,
            ..CallDelta::default()
        }));
        if !in_pieces {
            out.push(Delta::Seal { index, arguments: None });
        }
    }

    /// Seals the open call, which counts as complete.
    pub(super) fn close(&mut self, out: &mut Vec<Delta>) {
        if let Some(open) = self.open.take() {
            let arguments = Some(open.arguments.into_text());
            out.push(Delta::Seal { index: open.index, arguments });
        }
    }

    /// Publishes the arguments so far of the open call, which was cut off.
    pub(super) fn break_off(&mut self, out: &mut Vec<Delta>) {
        if let Some(open) = self.open.take() {
            out.push(Delta::Call(CallDelta {
                index: Some(open.index),
                arguments: Some(open.arguments.into_partial_text()),
                ..CallDelta::default()
            }));
        }
    }
}

fn invalid_path(detail: &str) -> Delta {
    Delta::Problem(Problem { code: "argument_without_place", detail: excerpt(detail, 200) })
}
