//! Calls that the client runs: the open ones, and their results.

use std::sync::atomic::Ordering;

use super::error::{ClientResultError, HostError};
use super::handle::SessionHandle;
use super::message::SessionMessage;
use super::run_events::ClientCall;
use super::snapshot::PendingClientCall;
use super::supervisor::redact_outcome;
use super::tool::outcome_of;
use callsheet_tools::ToolOutput;
use callsheet_values::record::Seq;
use callsheet_values::transcript::{CallTranscript, Transcript};
use callsheet_values::types::{CallKey, FailureKind, RESULT_BYTES_MAX, ToolStatus};

impl SessionHandle {
    /// Returns the calls of the current run that the client has to run, in call order: for a program that answers
    /// later than on [`RunEvent::ClientCall`](super::RunEvent::ClientCall), for example after a restart.
    ///
    /// # Errors
    /// If the session is closed.
    pub async fn client_calls(&self) -> Result<Vec<ClientCall>, HostError> {
        // The caller can answer client calls: from now on they wait, and the host does not answer them itself.
        self.host_ref.shared.approvals_are_read.store(true, Ordering::Relaxed);
        let run = self.stored_snapshot().await?.current_run;
        let open = run.map(|run| run.client_calls).unwrap_or_default().into_iter();
        let call = |pending: PendingClientCall| {
            let key = pending.tool_id.parse().ok()?;
            Some(ClientCall { pending, key, session: self.clone() })
        };
        Ok(open.filter_map(call).collect())
    }

    /// Sends the result of a call that the client has run, by the id of the call. Returns when the result is durable.
    ///
    /// # Errors
    /// If there is no such call, it has a result or has ended, the result is too large, or the session is closed.
    pub async fn answer_call(
        &self,
        tool_id: &str,
        output: impl Into<ToolOutput>,
    ) -> Result<(), HostError> {
        let key = tool_id.parse().map_err(|_| ClientResultError::NoSuchCall)?;
        self.answer(key, output.into()).await
    }

    pub(super) async fn answer(&self, key: CallKey, output: ToolOutput) -> Result<(), HostError> {
        let bytes = output.bytes();
        if bytes > RESULT_BYTES_MAX {
            let maximum = RESULT_BYTES_MAX;
            return Err(ClientResultError::TooLarge { bytes, maximum }.into());
        }
        let mut outcome = outcome_of(output);
        redact_outcome(&self.host_ref.shared.catalog.secrets, &mut outcome);
        let ask = |reply| {
            let outcome = Box::new(outcome.clone());
            SessionMessage::AnswerCall { key, outcome, reply }
        };
        let (accepted, awake_session) = self.ask_turn(ask).await?;
        // Also after a refusal, whose reason is read from stored records.
        awake_session.log.wait_durable(awake_session.log.last_seq()).await?;
        match accepted {
            Ok(()) => Ok(()),
            Err(_) => Err(self.refused_result(key).await?.into()),
        }
    }

    /// Returns the reason why the result of a call is not awaited.
    async fn refused_result(&self, key: CallKey) -> Result<ClientResultError, HostError> {
        let entries = self.records(Seq(0)).await?;
        let transcript = Transcript::read(&entries);
        let turns = transcript.runs.iter().flat_map(|run| &run.turns);
        let mut attempts =
            turns.filter(|turn| turn.number == key.turn).flat_map(|turn| &turn.attempts);
        let call = attempts.find_map(|attempt| attempt.calls.get(&key));
        Ok(match call.filter(|call| call.is_by_client()) {
            None => ClientResultError::NoSuchCall,
            Some(call) if is_answered(call) => ClientResultError::AlreadyAnswered,
            Some(_) => ClientResultError::CallEnded,
        })
    }
}

/// Returns whether the call has a result: a report, a success or an error of the tool. The client gave it, or the
/// host did because nothing reads the events of the run. Every other end is without a result.
fn is_answered(call: &CallTranscript<'_>) -> bool {
    !call.reports.is_empty()
        || call.outcomes.iter().any(|ended| {
            let kind = ended.outcome.kind;
            ended.outcome.status == ToolStatus::Ok || kind == Some(FailureKind::ToolError)
        })
}
