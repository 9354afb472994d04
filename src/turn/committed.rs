//! A turn that is over, from its records.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::effect::TurnRecord;
use crate::event::TurnSummary;
use crate::record::{Record, ResponseMessage, TurnEnd};
use crate::types::{CallKey, ResultNotes, ToolCall, ToolOutcome, ToolResult, WriteSet};

/// What is gathered of a turn until its commit.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gathered {
    response: Option<(Arc<ResponseMessage>, Vec<Arc<str>>)>,
    ended: BTreeMap<CallKey, EndedCall>,
}

/// A call's outcome as it was recorded last.
#[derive(Clone, Debug)]
pub(super) struct EndedCall {
    pub(super) outcome: ToolOutcome,
    pub(super) notes: ResultNotes,
    pub(super) writes: WriteSet,
    pub(super) started: Option<Duration>,
    pub(super) wait: Duration,
    pub(super) duration: Duration,
}

impl TurnRecord {
    /// The turn that these records are of, if its commit is among them: the same as its owner
    /// told the session of, with times in whole milliseconds. None too where a call of it has no
    /// outcome.
    pub fn from_records<'a>(records: impl IntoIterator<Item = &'a Record>) -> Option<Self> {
        let mut gathered = Gathered::default();
        for record in records {
            if let Record::TurnCommitted { turn, end, summary } = record {
                return gathered.commit(*turn, end, summary).ok();
            }
            gathered.take_in(record);
        }
        None
    }
}

/// The results of a turn that is not over, from its records so far: in call order, up to the first
/// call that has none.
pub fn results_so_far<'a>(
    records: impl IntoIterator<Item = &'a Record>,
) -> impl Iterator<Item = ToolResult> {
    let mut gathered = Gathered::default();
    records.into_iter().for_each(|record| gathered.take_in(record));
    let Gathered { response, mut ended } = gathered;
    let calls = response.unwrap_or_default().0.calls.clone().into_iter();
    calls.map_while(move |call| Some(ended.remove(&call.key)?.result(call)))
}

impl Gathered {
    pub(crate) fn take_in(&mut self, record: &Record) {
        match record {
            Record::AttemptStarted { .. } => *self = Self::default(),
            Record::ResponseEnded { message, dropped_calls, .. } => {
                self.response = Some((message.clone(), dropped_calls.clone()));
            }
            Record::CallEnded { call, .. } => {
                if let Some(ended) = EndedCall::of(record) {
                    self.ended.insert(call.key, ended);
                }
            }
            Record::SessionOpened { .. }
            | Record::SessionForked { .. }
            | Record::InputQueued { .. }
            | Record::RunStarted { .. }
            | Record::AttemptFailed { .. }
            | Record::CallIntended { .. }
            | Record::CallReported { .. }
            | Record::ApprovalAsked { .. }
            | Record::ApprovalGiven { .. }
            | Record::TurnCommitted { .. }
            | Record::Steered { .. }
            | Record::StopAsked { .. }
            | Record::LimitReached { .. }
            | Record::RunEnded { .. }
            | Record::SessionClosed => {}
        }
    }

    /// The turn as its commit says that it is.
    ///
    /// # Errors
    /// The first call of its message that has no outcome.
    pub(crate) fn commit(
        self,
        turn: u32,
        end: &TurnEnd,
        summary: &TurnSummary,
    ) -> Result<TurnRecord, CallKey> {
        let Self { response, mut ended } = self;
        let (message, dropped_calls) = response.unwrap_or_default();
        let results = message.calls.iter().map(|call| match ended.remove(&call.key) {
            Some(ended) => Ok(ended.result(call.clone())),
            None => Err(call.key),
        });
        Ok(TurnRecord {
            number: turn,
            end: end.clone(),
            results: results.collect::<Result<_, _>>()?,
            message: Some(message).filter(|message| !message.is_blank()),
            dropped_calls,
            finish_reason: summary.finish_reason.clone(),
            usage: summary.usage,
            times: summary.times,
        })
    }
}

impl EndedCall {
    /// What a record says of a call's end, if it is about that.
    pub(super) fn of(record: &Record) -> Option<Self> {
        let Record::CallEnded { outcome, notes, writes, started_ms, wait_ms, duration_ms, .. } =
            record
        else {
            return None;
        };
        Some(Self {
            outcome: outcome.clone(),
            notes: notes.clone(),
            writes: writes.clone(),
            started: started_ms.map(Duration::from_millis),
            wait: Duration::from_millis(*wait_ms),
            duration: Duration::from_millis(*duration_ms),
        })
    }

    fn result(self, call: ToolCall) -> ToolResult {
        let Self { outcome, notes, writes, started, wait, duration } = self;
        ToolResult { call, outcome, notes, started, wait, duration, writes }
    }
}
