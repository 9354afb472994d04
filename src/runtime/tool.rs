//! One call of a tool, as an actor.

use std::num::NonZeroU32;
use std::sync::Arc;

use parking_lot::Mutex;
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};

use super::gauge::CountGuard;
use super::tool_attempts::ToolAttempts;
use crate::tool::{ToolContext, ToolError, ToolOutput};
use crate::types::{FailureKind, Secrets, ToolOutcome, ToolStatus};

/// The slot in which a call leaves its outcome for the tool supervisor. A message could not be used:
/// the supervisor receives the end of an actor before the actor's last message.
pub(super) type OutcomeSlot = Arc<Mutex<Option<ToolOutcome>>>;

/// Runs one call when it starts, and receives no messages. A kill of the actor drops the tool's
/// future, and a panic ends only this call.
#[derive(Debug)]
pub(super) struct ToolActor;

/// The values that a call needs.
pub(super) struct ToolSetup {
    pub(super) attempts: ToolAttempts,
    pub(super) slot: OutcomeSlot,
    /// The secrets of the host, which are replaced in the log.
    pub(super) secrets: Secrets,
    pub(super) counted: [CountGuard; 2],
}

impl Actor for ToolActor {
    type Msg = ();
    type State = Option<Box<ToolSetup>>;
    /// Boxed, because the actor library moves it several times.
    type Arguments = Box<ToolSetup>;

    async fn pre_start(
        &self,
        _: ActorRef<()>,
        work: Box<ToolSetup>,
    ) -> Result<Option<Box<ToolSetup>>, ActorProcessingErr> {
        Ok(Some(work))
    }

    async fn post_start(
        &self,
        myself: ActorRef<()>,
        state: &mut Option<Box<ToolSetup>>,
    ) -> Result<(), ActorProcessingErr> {
        let Some(work) = state.take() else { return Ok(()) };
        let ToolSetup { attempts: call, slot, secrets, counted: _counted } = *work;
        let (result, attempts) = call.run().await;
        let mut outcome = outcome(&call.context, result, &secrets);
        outcome.attempts = NonZeroU32::new(attempts).filter(|attempts| attempts.get() > 1);
        outcome.max_bytes = call.spec.max_result_bytes;
        *slot.lock() = Some(outcome);
        myself.stop(None);
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _: ActorRef<()>,
        _: SupervisionEvent,
        _: &mut Option<Box<ToolSetup>>,
    ) -> Result<(), ActorProcessingErr> {
        Ok(())
    }
}

/// Returns the outcome of a call. The sources of its error go to the log.
fn outcome(
    call: &ToolContext,
    ran: Result<ToolOutput, ToolError>,
    secrets: &Secrets,
) -> ToolOutcome {
    let error = match ran {
        Ok(mut output) => {
            output.limit();
            return outcome_of(output);
        }
        Err(error) => error,
    };
    if let Some(sources) = error.source_chain() {
        tracing::warn!(
            session = call.session().as_str(),
            run = &*call.run().0,
            turn = call.key().turn,
            tool_id = %call.key(),
            tool_name = call.tool(),
            error = &*secrets.redact(&sources),
            "tool_failed"
        );
    }
    let message = format!("Error: {}", error.message());
    ToolOutcome::not_ok(error.status(), error.kind(), message)
}

/// Returns the outcome of a call with this output.
pub(super) fn outcome_of(output: ToolOutput) -> ToolOutcome {
    let is_error = output.is_error();
    let (text, full) = output.into_parts();
    let outcome = if is_error {
        ToolOutcome::not_ok(ToolStatus::Failed, FailureKind::ToolError, text)
    } else {
        ToolOutcome::ok(text)
    };
    outcome.with_full(full)
}

/// Returns the outcome of a call whose tool failed, or whose actor died.
pub(super) fn failed(kind: FailureKind, what: &str) -> ToolOutcome {
    ToolOutcome::not_ok(ToolStatus::Failed, kind, format!("Error: {what}"))
}
