//! The pending approvals of a turn, from its records. Questions of tools and calls for the client are among them.

use std::collections::BTreeMap;

use callsheet_values::event::ApprovalRequest;
use callsheet_values::record::{JournalEntry, Record, Seq};
use callsheet_values::types::CallKey;

/// An approval that was requested and is neither decided nor void.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingApprovalRequest {
    /// The request.
    pub request: ApprovalRequest,
    /// The position of its record.
    pub seq: Seq,
    /// The time of the request: Unix time in milliseconds.
    pub asked_at: u64,
}

/// Returns the pending approvals of a turn in call order. `entries` are the turn's records so far.
pub fn pending_approvals<'a>(
    entries: impl IntoIterator<Item = &'a JournalEntry>,
) -> Vec<PendingApprovalRequest> {
    let mut pending: BTreeMap<CallKey, PendingApprovalRequest> = BTreeMap::new();
    for JournalEntry { seq, record, time, .. } in entries {
        match record {
            // The calls of an attempt that failed, or that another one follows, are void.
            Record::AttemptStarted { .. } | Record::AttemptFailed { kept: false, .. } => {
                pending.clear();
            }
            Record::ApprovalAsked { request } => {
                let request = (**request).clone();
                let key = request.call.key;
                pending.insert(key, PendingApprovalRequest { request, seq: *seq, asked_at: *time });
            }
            // The approval is decided, or the call has a result. A review of the result is another request.
            Record::ApprovalGiven { key, .. } | Record::CallReported { key, .. } => {
                pending.remove(key);
            }
            Record::CallEnded { call, .. } => {
                pending.remove(&call.key);
            }
            Record::TurnCommitted { .. } => pending.clear(),
            Record::SessionOpened { .. }
            | Record::SessionForked { .. }
            | Record::SessionClosed
            | Record::ToolsFrozen { .. }
            | Record::Compacted { .. }
            | Record::InputQueued { .. }
            | Record::InputRemoved { .. }
            | Record::RunStarted { .. }
            | Record::RunReopened { .. }
            | Record::Instructed { .. }
            | Record::RunEnded { .. }
            | Record::Steered { .. }
            | Record::StopAsked { .. }
            | Record::LimitReached { .. }
            | Record::AttemptFailed { .. }
            | Record::ResponseEnded { .. }
            | Record::CallIntended { .. }
            | Record::HooksDecided { .. }
            | Record::TurnHooksDecided { .. } => {}
        }
    }
    pending.into_values().collect()
}
