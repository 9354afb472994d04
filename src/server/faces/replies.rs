//! What a client has done for a run that waits for it: its decisions, its answers to questions, and the results of the
//! calls that it has run. All of it is checked before any of it has an effect.

use serde_json::Value;

use super::super::access::Caller;
use super::super::error::ApiError;
use super::super::state::ApiState;
use super::waits::{KnownWaits, WaitId};
use callsheet_host::runtime::{SessionHandle, SessionSnapshot};
use callsheet_machines::turn::ApprovalDecision;
use callsheet_tools::ToolOutput;
use callsheet_values::config::TokenScope;
use callsheet_values::types::{ApprovalVerdict, CallKey};

/// Maximum length of a decision's message, which the model reads after a rejection.
const MESSAGE_CHARS_MAX: usize = 4000;

/// A decision about a call, or the answer to a question.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Decision {
    pub(super) id: WaitId,
    pub(super) is_approved: bool,
    pub(super) message: Option<String>,
    /// The answer to a question with a form.
    pub(super) content: Option<Value>,
}

impl Decision {
    fn to_approval_decision(&self) -> ApprovalDecision {
        ApprovalDecision {
            phase: self.id.phase(),
            verdict: match self.is_approved {
                true => ApprovalVerdict::Approved,
                false => ApprovalVerdict::Rejected,
            },
            message: self.message.clone().filter(|message| !message.trim().is_empty()),
            arguments_sha256: self.id.arguments_sha256.clone(),
            content: self.content.clone(),
            author: None,
        }
    }
}

/// What a client has done for a run.
#[derive(Debug, Default)]
pub(super) struct Replies {
    pub(super) decisions: Vec<Decision>,
    /// The results of calls. Those of calls that do not wait any more are ignored: a client repeats all of them.
    pub(super) results: Vec<(CallKey, ToolOutput)>,
}

impl Replies {
    pub(super) fn is_empty(&self) -> bool {
        self.decisions.is_empty() && self.results.is_empty()
    }

    /// Gives the session what the client has done. `snapshot` is its state before.
    ///
    /// # Errors
    /// If the caller must not decide, a decision is too long, stale, or other than the one that was made before.
    pub(super) async fn apply(
        self,
        state: &ApiState,
        caller: &Caller,
        session: &SessionHandle,
        snapshot: &SessionSnapshot,
    ) -> Result<(), ApiError> {
        self.check(state, caller).await?;
        let run = snapshot.current_run.as_ref();
        let known = KnownWaits::of_run(run, snapshot.seq);
        // Decisions about calls that wait no more have no effect, and may be refused: so they come first.
        let (open, past): (Vec<_>, Vec<_>) =
            self.decisions.iter().partition(|decision| known.is_open(&decision.id));
        for decision in past.into_iter().chain(open) {
            let decided = match &decision.id.child {
                Some(child) => caller.with_author(session.other(child)),
                None => session.clone(),
            };
            decided.decide(decision.id.key, decision.to_approval_decision()).await?;
        }
        let waits = |key: CallKey| {
            let mut calls = run.iter().flat_map(|run| &run.client_calls);
            calls.any(|call| call.tool_id.parse() == Ok(key))
        };
        for (key, output) in self.results {
            if waits(key) {
                session.answer_call(&key.to_string(), output).await?;
            }
        }
        Ok(())
    }

    async fn check(&self, state: &ApiState, caller: &Caller) -> Result<(), ApiError> {
        if !self.decisions.is_empty() {
            caller.check_scope(TokenScope::Approve)?;
        }
        for decision in &self.decisions {
            let message = decision.message.as_deref().unwrap_or_default();
            if message.chars().nth(MESSAGE_CHARS_MAX).is_some() {
                let message = format!(
                    "the message about {} has more than {MESSAGE_CHARS_MAX} characters",
                    decision.id.call_id()
                );
                return Err(ApiError::bad_request("invalid_request", message));
            }
            if let Some(child) = &decision.id.child {
                caller.check_session(&state.host.session(child)).await?;
            }
        }
        Ok(())
    }
}
