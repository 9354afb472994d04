//! The results of calls that the client has run: those that a run waits for, and those that it has accepted before.

use std::collections::{BTreeMap, BTreeSet};

use axum::http::StatusCode;
use callsheet_tools::ToolOutput;

use super::super::openai_error::{OpenAiError, wrong};
use super::super::records::for_each_record;
use super::super::retries::RunPlace;
use super::fold::parse_call_id;
use super::messages::output;
use callsheet_host::runtime::{SessionHandle, SessionSnapshot};
use callsheet_values::record::Record;
use callsheet_values::types::{
    CallKey, Content, RESULT_BYTES_MAX, RunId, Seq, ToolOutcome, excerpt,
};

/// The results of a request.
#[derive(Debug, Default)]
pub(super) struct SentResults {
    /// Those that the current run waits for.
    pub(super) awaited: BTreeMap<CallKey, ToolOutput>,
    /// The others.
    pub(super) ended: BTreeMap<CallKey, ToolOutput>,
}

impl SentResults {
    /// Reads the results of a request.
    ///
    /// # Errors
    /// If one is too large, is of no call of this host, or if a call has no result that the run waits for.
    pub(super) fn read(
        results: &[(String, Content)],
        snapshot: &SessionSnapshot,
    ) -> Result<Self, OpenAiError> {
        let open = snapshot.current_run.iter().flat_map(|run| &run.client_calls);
        let mut open: BTreeSet<&str> = open.map(|call| &*call.tool_id).collect();
        let mut sent = Self::default();
        for (id, content) in results {
            let key = parse_call_id(id).and_then(|(_, tool_id)| tool_id.parse::<CallKey>().ok());
            let key = key.ok_or_else(|| call_ended(&format!("{:?}", excerpt(id, 64))))?;
            let output = output(content);
            if output.bytes() > RESULT_BYTES_MAX {
                let message = format!("the result of {key} has more than {RESULT_BYTES_MAX} bytes");
                let status = StatusCode::PAYLOAD_TOO_LARGE;
                return Err(OpenAiError::new(status, "result_too_large", message));
            }
            match open.remove(&*key.to_string()) {
                true => sent.awaited.insert(key, output),
                false => sent.ended.insert(key, output),
            };
        }
        match open.first().filter(|_| !sent.awaited.is_empty()) {
            None => Ok(sent),
            Some(missing) => {
                let message = format!("the call {missing} has no result: send those of all calls");
                Err(wrong("messages", message))
            }
        }
    }

    /// Returns where the run goes on behind the results of calls that have ended, if it has accepted equal ones.
    ///
    /// # Errors
    /// If a call has ended without a result of the client, or with another one.
    pub(super) async fn accepted(&self, session: &SessionHandle) -> Result<RunPlace, OpenAiError> {
        let (mut run, mut accepted) = (None::<RunId>, BTreeMap::<CallKey, AcceptedResult>::new());
        for_each_record(session, |entry| {
            if let Record::RunStarted { run_id, .. } = entry.record {
                run = Some(run_id);
            } else if let Record::CallEnded { call, outcome, notes, amended: false, .. } =
                entry.record
                && let Some(run) = run.clone().filter(|_| notes.by_client)
            {
                let result = AcceptedResult { seq: entry.seq, run, outcome };
                accepted.insert(call.key, result);
            }
        })
        .await?;
        let mut place = None::<RunPlace>;
        for (key, output) in &self.ended {
            let found = accepted.get(key).ok_or_else(|| call_ended(&key.to_string()))?;
            if !found.is_equal(output) {
                let message = format!("the call {key} has another result already");
                return Err(call_conflict(message));
            }
            let (session, seq) = (session.id().clone(), found.seq);
            if place.as_ref().is_none_or(|place| seq < place.seq) {
                place = Some(RunPlace { session, run: found.run.clone(), seq });
            }
        }
        place.ok_or_else(|| call_ended("?"))
    }
}

/// A result that the client has sent before.
struct AcceptedResult {
    seq: Seq,
    run: RunId,
    outcome: ToolOutcome,
}

impl AcceptedResult {
    fn is_equal(&self, output: &ToolOutput) -> bool {
        let (text, full) = output.clone().into_parts();
        *self.outcome.content == *text && self.outcome.full.as_deref() == full.as_ref()
    }
}

/// Returns the error of a result that nothing waits for.
pub(super) fn call_ended(call: &str) -> OpenAiError {
    call_conflict(format!("the call {call} waits for no result"))
}

fn call_conflict(message: String) -> OpenAiError {
    OpenAiError::new(StatusCode::UNPROCESSABLE_ENTITY, "call_ended", message)
}
