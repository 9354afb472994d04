//! The limits of each tool in the whole host: concurrent calls, a rate limit (calls start at equal intervals, without
//! bursts), and a circuit breaker.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::{Mutex, RwLock};
use ractor::ActorId;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::fair_semaphore::{FairSemaphore, PermitRequest};
use super::gauge::Gauge;
use super::task::OwnedTask;
use callsheet_machines::turn::{
    Breaker, BreakerChange, BreakerPermit, BreakerRules, BreakerState, PermitReply, ServiceSignal,
};
use callsheet_tools::{NextAttempt, ToolContext, ToolError, ToolRegistry, ToolSpec};
use callsheet_values::config::CallRate;
use callsheet_values::types::FailureKind;

/// The limiters of the tools that have limits. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct ToolLimiters {
    tools: Arc<RwLock<BTreeMap<String, Arc<ToolLimiter>>>>,
    waiting: Gauge,
}

/// The limits of one tool, shared by all sessions.
#[derive(Debug)]
pub(super) struct ToolLimiter {
    permits: Option<Arc<FairSemaphore>>,
    rate: Option<Arc<RateLimiter>>,
    breaker: Option<Arc<ToolBreaker>>,
    waiting: Gauge,
}

/// A permit of a tool, or a waiting request for one. Dropping it releases the permit or cancels the request.
#[derive(Debug)]
pub(super) struct CallPermit {
    /// Dropped before the permit that it waits for.
    _wait: Option<OwnedTask>,
    _permit: Option<PermitRequest>,
}

impl ToolLimiters {
    /// Creates the limiters of these tools. `waiting` counts the calls that wait.
    pub(super) fn new(tools: &ToolRegistry, waiting: &Gauge) -> Self {
        let limiters = Self { tools: Arc::default(), waiting: waiting.clone() };
        for (_, tool) in tools.iter() {
            limiters.add(&tool.spec);
        }
        limiters
    }

    /// Adds the limiter of a tool that has limits, unless there is one of this name.
    pub(super) fn add(&self, tool: &ToolSpec) {
        let has_limits = tool.is_limited() || tool.breaker_failures > 0;
        if has_limits && !self.tools.read().contains_key(&tool.name) {
            let limiter = ToolLimiter::new(tool, &self.waiting);
            self.tools.write().entry(tool.name.clone()).or_insert_with(|| Arc::new(limiter));
        }
    }

    /// Returns the limiter of a tool, if it has limits.
    pub(super) fn get(&self, tool: &str) -> Option<Arc<ToolLimiter>> {
        self.tools.read().get(tool).cloned()
    }

    /// Returns the states of the circuit breakers by tool.
    pub(super) fn breaker_states(&self) -> Vec<(String, BreakerState)> {
        let tools = self.tools.read();
        let states = tools
            .iter()
            .filter_map(|(name, limiter)| Some((name.clone(), limiter.breaker.as_ref()?.state())));
        states.collect()
    }

    /// Requests a permit of a tool for a call of a session. If the call has to wait, `granted` is called when
    /// it may start; `granted` must be quick. The call also waits for `ready` (`Tool::ready`), which ends when
    /// the MCP server of the tool has started, or at its `start_timeout`. A call of a tool without limits needs
    /// no permit: without `ready` it is granted at once.
    pub(super) fn request_permit(
        &self,
        tool: &str,
        session: ActorId,
        ready: Option<BoxFuture<'static, ()>>,
        granted: impl FnOnce() + Send + 'static,
    ) -> (PermitReply, Option<CallPermit>) {
        match self.get(tool) {
            Some(limiter) => limiter.request_permit(session, ready, granted),
            None if ready.is_none() => (PermitReply::Granted, None),
            None => ToolLimiter::unlimited(&self.waiting).request_permit(session, ready, granted),
        }
    }
}

impl ToolLimiter {
    fn new(tool: &ToolSpec, waiting: &Gauge) -> Self {
        Self {
            permits: tool.max_concurrent.map(|max| FairSemaphore::new(max, waiting.clone())),
            rate: tool.rate.map(|rate| Arc::new(RateLimiter::new(rate))),
            breaker: ToolBreaker::new(tool),
            waiting: waiting.clone(),
        }
    }

    fn unlimited(waiting: &Gauge) -> Self {
        Self { permits: None, rate: None, breaker: None, waiting: waiting.clone() }
    }

    /// Requests a permit of `max_concurrent`, then waits for `ready`, then for the rate limiter.
    fn request_permit(
        &self,
        session: ActorId,
        ready: Option<BoxFuture<'static, ()>>,
        granted: impl FnOnce() + Send + 'static,
    ) -> (PermitReply, Option<CallPermit>) {
        if self.rate.is_none() && ready.is_none() {
            let Some(permits) = &self.permits else { return (PermitReply::Granted, None) };
            let (reply, permit) = permits.request(session, granted);
            return (reply, Some(CallPermit { _wait: None, _permit: Some(permit) }));
        }
        let (grant, has_permit) = oneshot::channel();
        let permit = self.permits.as_ref().map(|permits| {
            permits.request(session, move || {
                // A receiver that was dropped has released its permit.
                let _ = grant.send(());
            })
        });
        let (waits, permit) = match permit {
            Some((reply, permit)) => (reply == PermitReply::Waiting, Some(permit)),
            None => (false, None),
        };
        let starts_now = || self.rate.as_ref().is_none_or(|rate| rate.start_now(session));
        if !waits && ready.is_none() && starts_now() {
            return (PermitReply::Granted, Some(CallPermit { _wait: None, _permit: permit }));
        }
        let reply = match (waits, &ready) {
            (true, _) => PermitReply::Waiting,
            (false, Some(_)) => PermitReply::ServerStarting,
            (false, None) => PermitReply::RateLimited,
        };
        let (rate, waiting) = (self.rate.clone(), self.waiting.clone());
        let wait = async move {
            if waits {
                let _ = has_permit.await;
            }
            let _waiting = waiting.increment();
            if let Some(ready) = ready {
                ready.await;
            }
            if let Some(rate) = rate {
                rate.wait(session).await;
            }
            granted();
        };
        let task = OwnedTask::spawn(&Gauge::default(), wait);
        (reply, Some(CallPermit { _wait: Some(task), _permit: permit }))
    }

    /// Waits until a further attempt of a call may start.
    pub(super) async fn wait_for_rate(&self, session: ActorId) {
        if let Some(rate) = &self.rate {
            rate.wait(session).await;
        }
    }

    /// Lets a call through, unless the circuit breaker is open.
    ///
    /// # Errors
    /// If the circuit breaker is open.
    pub(super) fn pass_breaker(
        &self,
        call: &ToolContext,
    ) -> Result<Option<ToolBreakerGuard>, ToolError> {
        self.breaker.as_ref().map(|breaker| breaker.pass(call)).transpose()
    }
}

/// Starts at most one call in each interval. Sessions take turns.
#[derive(Debug)]
struct RateLimiter {
    interval: Duration,
    /// Its only permit belongs to the call that starts next.
    queue: Arc<FairSemaphore>,
    next_start: Mutex<Instant>,
}

impl RateLimiter {
    fn new(rate: CallRate) -> Self {
        Self {
            interval: rate.interval(),
            queue: FairSemaphore::new(std::num::NonZeroU32::MIN, Gauge::default()),
            next_start: Mutex::new(Instant::now()),
        }
    }

    /// Starts a call if it does not have to wait. Returns whether it was started.
    fn start_now(&self, session: ActorId) -> bool {
        let (reply, _permit) = self.queue.request(session, || ());
        reply == PermitReply::Granted && self.try_start().is_ok()
    }

    /// Waits until a call may start, and starts it.
    async fn wait(&self, session: ActorId) {
        let (grant, granted) = oneshot::channel();
        let (reply, _permit) = self.queue.request(session, move || {
            let _ = grant.send(());
        });
        if reply == PermitReply::Waiting {
            let _ = granted.await;
        }
        while let Err(next_start) = self.try_start() {
            tokio::time::sleep_until(next_start).await;
        }
    }

    /// Starts a call, or returns the time at which the next one may start.
    fn try_start(&self) -> Result<(), Instant> {
        let mut next_start = self.next_start.lock();
        let now = Instant::now();
        if now < *next_start {
            return Err(*next_start);
        }
        *next_start = now + self.interval;
        Ok(())
    }
}

/// The circuit breaker of one tool.
#[derive(Debug)]
struct ToolBreaker {
    tool: String,
    /// Locked for short sections, never across an await.
    breaker: Mutex<Breaker>,
    /// The origin of the breaker's clock.
    started: Instant,
}

/// A call that the circuit breaker has let through. Dropping it reports a failure if the deadline of the call
/// has passed, else an unknown result.
#[derive(Debug)]
pub(super) struct ToolBreakerGuard {
    breaker: Arc<ToolBreaker>,
    permit: Option<BreakerPermit>,
    /// Its deadline moves while a question of the call is open, so it is read at the end.
    call: ToolContext,
}

impl ToolBreaker {
    fn new(tool: &ToolSpec) -> Option<Arc<Self>> {
        let failures = Some(tool.breaker_failures).filter(|failures| *failures > 0)?;
        let rules = BreakerRules { failures: Some(failures), open_for: tool.breaker_open_for };
        let (tool, breaker) = (tool.name.clone(), Mutex::new(Breaker::new(rules)));
        Some(Arc::new(Self { tool, breaker, started: Instant::now() }))
    }

    fn state(&self) -> BreakerState {
        self.breaker.lock().state(self.started.elapsed())
    }

    fn pass(self: &Arc<Self>, call: &ToolContext) -> Result<ToolBreakerGuard, ToolError> {
        let passed = self.breaker.lock().handle_request(self.started.elapsed());
        let permit = passed.map_err(|refusal| {
            let reason = refusal.describe("call");
            let message =
                format!("{} is not available, and was not called: its {reason}", self.tool);
            ToolError::new(message).with_kind(FailureKind::NotSent)
        })?;
        Ok(ToolBreakerGuard { breaker: Arc::clone(self), permit: Some(permit), call: call.clone() })
    }

    fn handle_end(&self, permit: BreakerPermit, signal: ServiceSignal) {
        let change = self.breaker.lock().handle_end(self.started.elapsed(), permit, signal);
        let tool = &*self.tool;
        match change {
            Some(BreakerChange::Opened { failures, open_for }) => {
                tracing::warn!(tool, failures, ?open_for, "tool_breaker_opened");
            }
            Some(BreakerChange::Closed) => tracing::info!(tool, "tool_breaker_closed"),
            None => {}
        }
    }
}

impl ToolBreakerGuard {
    /// Reports the result of the call.
    pub(super) fn report(mut self, error: Option<&ToolError>) {
        self.end(match error.map(ToolError::next_attempt) {
            None | Some(NextAttempt::Useless) => ServiceSignal::Works,
            Some(NextAttempt::MayHelp) => ServiceSignal::Failed,
            Some(NextAttempt::After(_)) => ServiceSignal::Unknown,
        });
    }

    fn end(&mut self, signal: ServiceSignal) {
        if let Some(permit) = self.permit.take() {
            self.breaker.handle_end(permit, signal);
        }
    }
}

impl Drop for ToolBreakerGuard {
    fn drop(&mut self) {
        let timed_out = self.call.deadline().is_some_and(|deadline| Instant::now() >= deadline);
        self.end(if timed_out { ServiceSignal::Failed } else { ServiceSignal::Unknown });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use callsheet_tools::{ParsedSchema, Tool, ToolContext, ToolError, ToolOutput};

    struct Capped(&'static str, Option<u32>);

    #[async_trait::async_trait]
    impl Tool for Capped {
        fn spec(&self) -> ToolSpec {
            let spec = ToolSpec::with_schema(self.0, "", ParsedSchema::of::<()>());
            match self.1 {
                Some(max) => spec.max_concurrent(max),
                None => spec,
            }
        }

        async fn run(&self, _: ToolContext) -> Result<ToolOutput, ToolError> {
            Ok("".into())
        }
    }

    fn rate(text: &str) -> Arc<ToolLimiter> {
        let tool = ToolSpec::named("tool", "").rate(text.parse().unwrap());
        Arc::new(ToolLimiter::new(&tool, &Gauge::default()))
    }

    #[tokio::test(start_paused = true)]
    async fn one_call_starts_in_each_interval_and_sessions_take_turns() {
        let (limiter, began) = (rate("10/s"), Instant::now());
        let starts = Arc::new(Mutex::new(Vec::new()));
        let mut permits = Vec::new();
        for (session, calls) in [(1, 5), (2, 1)] {
            for _ in 0..calls {
                let starts = Arc::clone(&starts);
                let start = move || starts.lock().push((session, began.elapsed().as_millis()));
                let (reply, permit) =
                    limiter.request_permit(ActorId::Local(session), None, start.clone());
                if reply == PermitReply::Granted {
                    start();
                } else {
                    assert_eq!(reply, PermitReply::RateLimited);
                }
                permits.push(permit);
            }
        }
        // A call that no longer waits uses no permit.
        tokio::task::yield_now().await;
        permits.remove(3);
        tokio::task::yield_now().await;
        assert_eq!(limiter.waiting.count(), 4);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(*starts.lock(), [(1, 0), (1, 100), (1, 200), (2, 300), (1, 400)]);
        assert_eq!(limiter.waiting.count(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_needs_a_permit_and_then_a_place_in_the_rate() {
        let tool = ToolSpec::named("tool", "").rate("1/s".parse().unwrap()).max_concurrent(1);
        let limiter = ToolLimiter::new(&tool, &Gauge::default());
        let request = |notify: oneshot::Sender<()>| {
            limiter.request_permit(ActorId::Local(1), None, move || notify.send(()).unwrap())
        };
        let (reply, first) = request(oneshot::channel().0);
        assert_eq!(reply, PermitReply::Granted);
        let (grant, granted) = oneshot::channel();
        let (reply, _second) = request(grant);
        assert_eq!(reply, PermitReply::Waiting);
        let began = Instant::now();
        drop(first);
        granted.await.unwrap();
        assert_eq!(began.elapsed().as_secs(), 1);
    }

    #[test]
    fn each_tool_with_a_limit_has_its_own_permits_and_other_tools_need_none() {
        let mut tools = ToolRegistry::new();
        for tool in [Capped("one", Some(1)), Capped("other", Some(1)), Capped("free", None)] {
            tools.register(tool).unwrap();
        }
        let tool_limiters = ToolLimiters::new(&tools, &Gauge::default());
        let request = |tool| tool_limiters.request_permit(tool, ActorId::Local(1), None, || ());
        let (reply, one) = request("one");
        assert!(reply == PermitReply::Granted && one.is_some());
        assert_eq!(request("one").0, PermitReply::Waiting);
        assert_eq!(request("other").0, PermitReply::Granted);
        let (reply, none) = request("free");
        assert!(reply == PermitReply::Granted && none.is_none());
    }
}
