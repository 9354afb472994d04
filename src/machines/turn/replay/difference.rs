//! The comparison of a recorded and a replayed record, and the report of their difference.

use std::time::Duration;

use std::fmt;

use serde_json::Value;

use crate::turn::CONTENT_REFUSED;
use callsheet_values::event::{StatsReport, TurnTimes};
use callsheet_values::record::{Record, Seq};
use callsheet_values::types::{FinishReason, excerpt};

/// The number of characters of a record that a report quotes.
const QUOTED_CHARS: usize = 600;

/// The first difference between a recording and its replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The number of the record. `None` if the history or the variables differ.
    pub seq: Option<Seq>,
    /// The recorded record.
    pub recorded: Option<Record>,
    /// The replayed record. `None` if the replay makes no record there.
    pub replayed_record: Option<Record>,
    /// A description for people.
    pub reason: String,
}

/// A recorded record that differs from the replayed one.
#[derive(Debug)]
pub struct Mismatch {
    /// The index of the recorded record.
    pub index: usize,
    /// The record that the machine makes now. `None`: none.
    pub now: Option<Box<Record>>,
    /// A description of the machine's state, for people.
    pub state: String,
}

/// Returns whether two records are equal except for the values that `timeless` removes.
pub fn same(recorded: &Record, now: &Record) -> bool {
    recorded == now || timeless(recorded) == timeless(now)
}

/// Returns the record without times, values that depend on times, and other values that a replay cannot repeat.
pub(super) fn timeless(record: &Record) -> Record {
    let mut record = record.clone();
    match &mut record {
        // The prompt is that of the configuration at the time.
        Record::AttemptStarted { wait_ms, prompt, reason, streamed, .. } => {
            (*wait_ms, *prompt) = (0, None);
            // Earlier versions did not stream after two silent attempts.
            *streamed = true;
            // It repeats the error of the attempt before, whose record is compared.
            if let Some(reason) = reason {
                reason.clear();
            }
        }
        // Journals of earlier versions have another text of the error, and not that of the attempt. It is not fed to the
        // machine again.
        Record::AttemptFailed { error, host_stopped, voided, .. } => {
            *voided = None;
            if *host_stopped {
                error.message.clear();
            }
        }
        Record::ResponseEnded { displayed_segments, finish_reason, .. } => {
            displayed_segments.clear();
            clear_refusal(finish_reason);
        }
        Record::CallEnded { started, wait, duration, early, .. } => {
            *early = false;
            *started = started.map(|_| Duration::ZERO);
            (*wait, *duration) = (Duration::ZERO, Duration::ZERO);
        }
        Record::TurnCommitted { summary, .. } => {
            summary.times = TurnTimes::default();
            clear_refusal(&mut summary.finish_reason);
        }
        Record::RunEnded { stats, error, finish_reason, .. } => {
            // Journals of earlier versions have neither.
            *finish_reason = None;
            if error.as_ref().is_some_and(|error| error.code == CONTENT_REFUSED) {
                *error = None;
            }
            let StatsReport { turns, tool_calls, input_tokens, output_tokens, .. } = *stats;
            *stats = StatsReport {
                turns,
                tool_calls,
                input_tokens,
                output_tokens,
                ..StatsReport::default()
            };
        }
        // The position of the call in the stream is not recorded. The whole message is compared
        // with the response. Journals of earlier versions have other keys.
        Record::CallIntended { so_far, idempotency_key, .. } => {
            *so_far = None;
            idempotency_key.clear();
        }
        Record::SessionOpened { .. }
        | Record::SessionForked { .. }
        | Record::InputQueued { .. }
        | Record::InputRemoved { .. }
        | Record::RunStarted { .. }
        | Record::RunReopened { .. }
        | Record::CallReported { .. }
        | Record::HooksDecided { .. }
        | Record::TurnHooksDecided { .. }
        | Record::ApprovalAsked { .. }
        | Record::ApprovalGiven { .. }
        | Record::Steered { .. }
        | Record::Instructed { .. }
        | Record::StopAsked { .. }
        | Record::LimitReached { .. }
        | Record::ToolsFrozen { .. }
        | Record::Compacted { .. }
        | Record::SessionClosed => {}
    }
    record
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.seq {
            Some(Seq(seq)) => write!(f, "record {seq}: {}", self.reason)?,
            None => write!(f, "{}", self.reason)?,
        }
        let (recorded, now) =
            (self.recorded.as_ref().map(json), self.replayed_record.as_ref().map(json));
        if let (Some(recorded), Some(now)) = (&recorded, &now)
            && recorded.get("type") == now.get("type")
        {
            let mut paths = Vec::new();
            differing(recorded, now, &mut String::new(), &mut paths);
            write!(f, "\n  differs:  {}", paths.join(", "))?;
        }
        if let Some(recorded) = &recorded {
            write!(f, "\n  recorded: {}", excerpt(&recorded.to_string(), QUOTED_CHARS))?;
        }
        match &now {
            Some(now) => write!(f, "\n  now:      {}", excerpt(&now.to_string(), QUOTED_CHARS)),
            None if recorded.is_some() => f.write_str("\n  now:      nothing of the kind"),
            None => Ok(()),
        }
    }
}

/// Removes the details of a refusal. Journals of earlier versions have none.
fn clear_refusal(finish_reason: &mut Option<FinishReason>) {
    if let Some(finish_reason) = finish_reason {
        finish_reason.refusal = None;
    }
}

fn json(record: &Record) -> Value {
    serde_json::to_value(timeless(record)).unwrap_or_default()
}

/// Collects the paths at which two values differ.
fn differing(left: &Value, right: &Value, path: &mut String, found: &mut Vec<String>) {
    let length = path.len();
    let mut deeper = |key: &str, left: &Value, right: &Value| {
        if length > 0 {
            path.push('.');
        }
        path.push_str(key);
        differing(left, right, path, found);
        path.truncate(length);
    };
    match (left, right) {
        (left, right) if left == right => {}
        (Value::Object(left), Value::Object(right)) => {
            for (key, value) in left {
                deeper(key, value, right.get(key).unwrap_or(&Value::Null));
            }
            for (key, value) in right.iter().filter(|(key, _)| !left.contains_key(*key)) {
                deeper(key, &Value::Null, value);
            }
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            for (index, (left, right)) in left.iter().zip(right).enumerate() {
                deeper(&index.to_string(), left, right);
            }
        }
        _ => found.push(path.clone()),
    }
}
