//! A committed turn: its contents, and how it is read from its records.

use std::sync::Arc;

use callsheet_values::event::TurnTimes;
use callsheet_values::record::{Record, ResponseMessage, TurnEnd};
use callsheet_values::transcript::{CallTranscript, Transcript, TurnCommit, TurnTranscript};
use callsheet_values::types::{CallKey, FinishKind, FinishReason, ToolResult, Usage};

/// A turn that is committed, in memory: with the message and the results that the history gets. In the journal these
/// are in several records, of which [`Record::TurnCommitted`] is the last.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CommittedTurn {
    /// The number of the turn in its session.
    pub number: u32,
    /// The end of the turn.
    pub end: TurnEnd,
    /// The model's message; `None` if the response is void or empty.
    pub message: Option<Arc<ResponseMessage>>,
    /// One result for each call of the message, in call order.
    pub results: Vec<ToolResult>,
    /// Names of the calls that were dropped when they opened.
    pub dropped_calls: Vec<Arc<str>>,
    /// The finish reason of the response.
    pub finish_reason: Option<FinishReason>,
    /// The usage of the turn, all attempts together.
    pub usage: Usage,
    /// The input tokens of the last attempt, as its service counted them; 0 if it did not.
    pub request_tokens: u64,
    /// The times of the turn.
    pub times: TurnTimes,
}

impl CommittedTurn {
    /// Returns whether the service paused its response. It continues when it is sent the message back,
    /// so that an empty message is not a pause.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        let paused = |finish: &FinishReason| finish.kind == FinishKind::Pause;
        self.finish_reason.as_ref().is_some_and(paused)
            && self.message.as_ref().is_some_and(|message| !message.is_blank())
    }

    /// Returns whether its run is left out of later requests, because the model or its service refused to answer. The
    /// runs in journals of earlier versions, which have no details of refusals, stay.
    #[must_use]
    pub fn is_left_out(&self) -> bool {
        let is_refusal = |finish: &FinishReason| finish.refusal.is_some();
        self.end == TurnEnd::Refused && self.finish_reason.as_ref().is_some_and(is_refusal)
    }

    /// Returns the first committed turn in these records. Its times are in whole milliseconds.
    /// Returns `None` if no turn is committed or a call has no outcome.
    pub fn from_records<'a>(records: impl IntoIterator<Item = &'a Record>) -> Option<Self> {
        let transcript = Transcript::from_records(records);
        let (turn, commit) = transcript.runs.iter().flat_map(|run| run.committed()).next()?;
        Self::from_transcript(turn, commit).ok()
    }

    /// Returns the turn as it was committed.
    ///
    /// # Errors
    /// Returns the first call of the message that has no outcome.
    pub fn from_transcript(
        turn: &TurnTranscript<'_>,
        commit: TurnCommit<'_>,
    ) -> Result<Self, CallKey> {
        let message = turn.response().map(|response| response.message);
        let results = turn.kept_calls().iter().map(|call| {
            let outcome = turn.call(call.key).and_then(CallTranscript::outcome);
            Ok(outcome.ok_or(call.key)?.result(call.clone()))
        });
        Ok(Self {
            number: turn.number,
            end: commit.end.clone(),
            results: results.collect::<Result<_, _>>()?,
            message: message.filter(|message| !message.is_blank()).cloned(),
            dropped_calls: turn
                .response()
                .map(|response| response.dropped_calls)
                .unwrap_or_default()
                .to_vec(),
            finish_reason: commit.summary.finish_reason.clone(),
            usage: commit.summary.usage,
            request_tokens: turn.response().map_or(0, |response| response.usage.input_tokens),
            times: commit.summary.times,
        })
    }
}

/// Returns the results of the last turn in these records, which may be open: in call order, up to
/// the first call that has no outcome.
pub fn results_so_far<'a>(
    records: impl IntoIterator<Item = &'a Record>,
) -> impl Iterator<Item = ToolResult> {
    let transcript = Transcript::from_records(records);
    let turn = transcript.runs.last().and_then(|run| run.turns.last());
    let calls = turn.map(TurnTranscript::kept_calls).unwrap_or_default();
    let results = calls.iter().map_while(|call| {
        let outcome = turn?.call(call.key)?.outcome()?;
        Some(outcome.result(call.clone()))
    });
    results.collect::<Vec<_>>().into_iter()
}
