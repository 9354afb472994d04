//! What a client has done for a run that waits for it: its decisions, its answers to questions, and the results of the
//! calls that it has run. All of it is checked before any of it has an effect.

use std::collections::BTreeSet;

use serde_json::Value;

use super::super::error::ApiError;
use super::chats::{self, ChatPath};
use super::waits::{KnownWaits, WaitId};
use callsheet_host::runtime::{SessionHandle, SessionSnapshot};
use callsheet_machines::turn::ApprovalDecision;
use callsheet_tools::ToolOutput;
use callsheet_values::config::TokenScope;
use callsheet_values::types::{ApprovalVerdict, CallKey, Content};

/// Maximum length of a decision's message, which the model reads after a rejection.
const MESSAGE_CHARS_MAX: usize = 4000;

/// What a client has done for a run.
#[derive(Debug, Default)]
pub(super) struct Replies {
    pub(super) decisions: Vec<(WaitId, ApprovalDecision)>,
    /// The results of calls. Those of calls that do not wait any more are ignored: a client repeats all of them.
    pub(super) results: Vec<(CallKey, ToolOutput)>,
    /// The approvals and questions of the session that the client has answered before, in the same message.
    pub(super) earlier: BTreeSet<WaitId>,
}

/// Whether a request of a chat starts a run, or goes on with the one that waits.
#[derive(Debug)]
pub(super) enum ChatAction {
    /// A run with this input.
    Run(Content),
    /// The rest of the run that waits.
    Rest(Replies),
}

impl Replies {
    pub(super) fn is_empty(&self) -> bool {
        self.decisions.is_empty() && self.results.is_empty()
    }

    /// Adds a decision about a call, or the answer to a question. `content`: that to a question with a form.
    pub(super) fn decide(
        &mut self,
        id: WaitId,
        is_approved: bool,
        message: Option<String>,
        content: Option<Value>,
    ) {
        let verdict = match is_approved {
            true => ApprovalVerdict::Approved,
            false => ApprovalVerdict::Rejected,
        };
        let (phase, arguments_sha256) = (id.phase(), id.arguments_sha256.clone());
        let decision =
            ApprovalDecision { phase, verdict, message, arguments_sha256, content, author: None };
        self.decisions.push((id, decision));
    }

    /// Returns what is known about the waits of the run in progress with these answers.
    pub(super) fn known(&self, snapshot: &SessionSnapshot) -> KnownWaits {
        let now = self.decisions.iter().map(|(id, _)| id);
        KnownWaits {
            answered: now.chain(&self.earlier).cloned().collect(),
            answered_calls: self.results.iter().map(|(key, _)| *key).collect(),
            ..KnownWaits::of(snapshot)
        }
    }

    /// Gives the session what the client has done. `snapshot` is its state before.
    ///
    /// # Errors
    /// If the caller must not decide, a decision is too long, stale, or other than the one that was made before.
    pub(super) async fn apply(
        self,
        path: &ChatPath,
        session: &SessionHandle,
        snapshot: &SessionSnapshot,
    ) -> Result<(), ApiError> {
        self.check(path).await?;
        let open = KnownWaits::of(snapshot).open;
        // Decisions about calls that wait no more have no effect, and may be refused: so they come first.
        let (open, past): (Vec<_>, Vec<_>) =
            self.decisions.into_iter().partition(|(id, _)| open.contains(id));
        for (id, decision) in past.into_iter().chain(open) {
            let decided = match &id.child {
                Some(child) => path.caller.with_author(session.other(child)),
                None => session.clone(),
            };
            let message = decision.message.filter(|message| !message.trim().is_empty());
            decided.decide(id.key, ApprovalDecision { message, ..decision }).await?;
        }
        let calls = snapshot.current_run.iter().flat_map(|run| &run.client_calls);
        let waiting: Vec<&str> = calls.map(|call| &*call.tool_id).collect();
        for (key, output) in self.results {
            let id = key.to_string();
            if waiting.contains(&id.as_str()) {
                session.answer_call(&id, output).await?;
            }
        }
        Ok(())
    }

    async fn check(&self, path: &ChatPath) -> Result<(), ApiError> {
        if !self.decisions.is_empty() {
            path.caller.check_scope(TokenScope::Approve)?;
        }
        for (id, decision) in &self.decisions {
            let message = decision.message.as_deref().unwrap_or_default();
            if message.chars().nth(MESSAGE_CHARS_MAX).is_some() {
                let message = format!(
                    "the message about {} has more than {MESSAGE_CHARS_MAX} characters",
                    id.call_id()
                );
                return Err(chats::bad_request(message));
            }
            if let Some(child) = &id.child {
                path.caller.check_session(&path.state.host.session(child)).await?;
            }
        }
        Ok(())
    }
}
