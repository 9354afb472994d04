//! One call of a tool, as an actor: its attempts, within the limits of its tool, and its outcome.
//!
//! A call is tried again after an error if its tool allows it (`retries`), if the attempt can do no harm (the
//! tool has no effects, is idempotent, or the call was certainly not sent), if another attempt may help, and
//! if there is time before the deadline. The wait doubles with each attempt, from a quarter of a second up to
//! ten seconds; the wait that a service asks for wins. All attempts are one call with one outcome and one
//! idempotency key. An open circuit breaker ends the call at once.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef};
use tokio::time::Instant;

use super::blocking::BlockingPool;
use super::gauge::CountGuard;
use super::tool_limiter::{CallPermit, ToolBreakerGuard, ToolLimiter};
use callsheet_tools::{NextAttempt, Tool, ToolContext, ToolError, ToolOutput, ToolSpec};
use callsheet_values::types::{FailureKind, Secrets, ToolOutcome, ToolStatus};

/// The wait before the second attempt of a call. It doubles with each further one.
const FIRST_WAIT: Duration = Duration::from_millis(250);
/// The longest of these waits.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// The slot in which a call leaves its outcome for the tool supervisor. A message could not be used:
/// the supervisor receives the end of an actor before the actor's last message.
pub(super) type OutcomeSlot = Arc<Mutex<Option<ToolOutcome>>>;

/// Runs one call. A kill of the actor drops the tool's future (of a blocking tool: at its next await), and a panic ends
/// only this call. The values of the call belong to its message, so that they are dropped before the tool supervisor
/// receives the end of the actor.
pub(super) struct ToolActor;

/// The only message to a [`ToolActor`]: run the call.
pub(super) struct RunTool {
    pub(super) attempts: ToolAttempts,
    pub(super) slot: OutcomeSlot,
    /// The secrets of the host, which are replaced in the log.
    pub(super) secrets: Secrets,
    pub(super) _counted: [CountGuard; 2],
}

impl Actor for ToolActor {
    type Msg = RunTool;
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<RunTool>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle(
        &self,
        myself: ActorRef<RunTool>,
        run: RunTool,
        (): &mut (),
    ) -> Result<(), ActorProcessingErr> {
        let call = &run.attempts;
        let (result, attempts) = call.run().await;
        let mut outcome = outcome(&call.context, result, &run.secrets);
        outcome.attempts = NonZeroU32::new(attempts).filter(|attempts| attempts.get() > 1);
        outcome.max_bytes = call.spec.max_result_bytes;
        *run.slot.lock() = Some(outcome);
        myself.stop(None);
        Ok(())
    }
}

/// The attempts of a call.
pub(super) struct ToolAttempts {
    pub(super) tool: Arc<dyn Tool>,
    pub(super) spec: Arc<ToolSpec>,
    pub(super) context: ToolContext,
    /// Identifies the session among those that share the rate of the tool.
    pub(super) session: ActorId,
    pub(super) limiter: Option<Arc<ToolLimiter>>,
    /// The pool whose threads the tool may block, if it does.
    pub(super) pool: Option<BlockingPool>,
    /// The permit of its tool, if the call needed one. It is held until the tool's future is dropped.
    pub(super) permit: Option<Arc<CallPermit>>,
}

impl ToolAttempts {
    /// Runs the call. Returns its result and the number of attempts.
    async fn run(&self) -> (Result<ToolOutput, ToolError>, u32) {
        let mut attempts = 0;
        let mut last_error: Option<ToolError> = None;
        loop {
            let breaker_call = match self.pass_breaker() {
                Ok(breaker_call) => breaker_call,
                Err(refusal) => {
                    // An open breaker ends the call at once, also before a further attempt.
                    let error = last_error.unwrap_or(refusal);
                    return (Err(with_attempts(error, attempts)), attempts);
                }
            };
            let result = self.attempt(breaker_call).await;
            attempts += 1;
            let Err(error) = result else { return (result, attempts) };
            let Some(wait) = self.wait_before_next(&error, attempts) else {
                return (Err(with_attempts(error, attempts)), attempts);
            };
            let next = async {
                tokio::time::sleep(wait).await;
                if let Some(limiter) = &self.limiter {
                    limiter.wait_for_rate(self.session).await;
                }
            };
            tokio::select! {
                () = next => self.context.begin_again(),
                () = self.context.cancelled() => return (Err(error), attempts),
            }
            last_error = Some(error);
        }
    }

    fn pass_breaker(&self) -> Result<Option<ToolBreakerGuard>, ToolError> {
        self.limiter.as_ref().map_or(Ok(None), |limiter| limiter.pass_breaker(&self.context))
    }

    async fn attempt(
        &self,
        breaker_call: Option<ToolBreakerGuard>,
    ) -> Result<ToolOutput, ToolError> {
        let (tool, context) = (Arc::clone(&self.tool), self.context.clone());
        let permit = self.permit.clone();
        let run = async move {
            let _permit = permit;
            // `tool.run` would call the implementation for `Arc`, which boxes a second future.
            (*tool).run(context).await
        };
        let result = match &self.pool {
            None => run.await,
            Some(pool) => {
                let ended = || Err(ToolError::new("the host is shutting down").permanent());
                pool.clone().run(run).await.unwrap_or_else(ended)
            }
        };
        // An interrupted call says nothing about the tool, unless its deadline has passed.
        if let Some(breaker_call) = breaker_call.filter(|_| !self.context.is_cancelled()) {
            breaker_call.report(result.as_ref().err());
        }
        result
    }

    /// Returns the wait before the next attempt, if there is one.
    fn wait_before_next(&self, error: &ToolError, attempts: u32) -> Option<Duration> {
        let may_repeat = !self.spec.has_effects() || self.spec.idempotent || error.is_unsent();
        if attempts > self.spec.retries || !may_repeat || self.context.is_cancelled() {
            return None;
        }
        let doublings = attempts.saturating_sub(1).min(16);
        let wait = match error.next_attempt() {
            NextAttempt::Useless => return None,
            NextAttempt::After(wait) => wait,
            NextAttempt::MayHelp => (FIRST_WAIT * 2_u32.pow(doublings)).min(LONGEST_WAIT),
        };
        let deadline = self.context.deadline();
        let is_in_time = |at: Instant| deadline.is_none_or(|deadline| at < deadline);
        Instant::now().checked_add(wait).filter(|at| is_in_time(*at)).map(|_| wait)
    }
}

/// Adds the number of attempts to the error's message, if there were several.
fn with_attempts(error: ToolError, attempts: u32) -> ToolError {
    error.map_message(|message| match attempts {
        0 | 1 => message,
        _ => format!("{message} (after {attempts} attempts)"),
    })
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
pub(super) fn failed_outcome(kind: FailureKind, what: &str) -> ToolOutcome {
    ToolOutcome::not_ok(ToolStatus::Failed, kind, format!("Error: {what}"))
}
