//! The stream actor, which reads the model's responses. Backpressure: it awaits the delivery of each chunk
//! before it reads the next one. Under overload (thousands of responses that send at once) only some responses of a
//! model deliver at a time (`DELIVERIES_MAX`) and the others wait for a permit, so that the queue of tasks that are
//! ready stays short and the host responsive.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt as _;
use parking_lot::Mutex;
use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef};
use tokio::time::Instant;

use super::gauge::{CountGuard, Gauges};
use super::message::{
    AccumulatorMessage, AccumulatorRef, RequestSent, ResponseEnded, StreamMessage,
};
use super::model::{ExchangeCache, ModelExchange, ModelRequest};
use super::model_limiter::{Admission, BreakerPermitGuard};
use super::models::Model;
use super::sent_requests::{SentRequest, SessionRequests};
use super::supervision::call;
use super::task::OwnedTask;
use crate::journal::Journal;
use callsheet_machines::turn::AttemptPlan;
use callsheet_values::types::{ReasoningRule, TraceContext};
use callsheet_wire::Delta;
use callsheet_wire::response::ExchangeEnd;

/// The values that a stream actor needs.
pub(super) struct StreamSetup {
    pub(super) session: ActorId,
    pub(super) gauges: Gauges,
    /// Keeps what the refusals of services have taught.
    pub(super) journal: Arc<dyn Journal>,
    /// `None` unless the host keeps requests.
    pub(super) requests: Option<SessionRequests>,
}

/// Makes one exchange at a time. The read loop is a task of its own, so that the actor handles a
/// disconnect while the model is silent. The task is aborted with the actor.
pub(super) struct StreamActor {
    setup: StreamSetup,
    reading: Option<OwnedTask>,
    /// The bytes and templates that one exchange leaves for the next.
    cache: Arc<Mutex<ExchangeCache>>,
    _held: CountGuard,
}

impl StreamActor {
    fn new(setup: StreamSetup) -> Self {
        let held = setup.gauges.actors.increment();
        Self { setup, reading: None, cache: Arc::default(), _held: held }
    }
}

/// The handler of a [`StreamActor`].
pub(super) struct StreamHandler;

impl Actor for StreamHandler {
    type Msg = StreamMessage;
    type State = StreamActor;
    type Arguments = StreamSetup;

    async fn pre_start(
        &self,
        _: ActorRef<StreamMessage>,
        setup: StreamSetup,
    ) -> Result<StreamActor, ActorProcessingErr> {
        Ok(StreamActor::new(setup))
    }

    async fn handle(
        &self,
        myself: ActorRef<StreamMessage>,
        message: StreamMessage,
        stream: &mut StreamActor,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            StreamMessage::Request { turn, plan, model, request, trace, to } => {
                let read_loop = ReadLoop {
                    model,
                    session: stream.setup.session,
                    turn,
                    attempt: plan.attempt,
                    trace,
                    accumulator: to,
                    cache: Arc::clone(&stream.cache),
                    requests: stream.setup.requests.clone(),
                    journal: Arc::clone(&stream.setup.journal),
                };
                // An async block would have room for the read loop several times.
                let read = AssertUnwindSafe(read_loop.read(plan, request)).catch_unwind();
                let read = read.map(move |ended| {
                    if let Err(panic) = ended {
                        let _ = myself.cast(StreamMessage::ReadLoopPanicked(panic));
                    }
                });
                stream.reading = Some(OwnedTask::spawn(&stream.setup.gauges.tasks, read));
            }
            StreamMessage::Disconnect => stream.reading = None,
            StreamMessage::ReadLoopPanicked(panic) => std::panic::resume_unwind(panic),
        }
        Ok(())
    }
}

/// Reads one response.
struct ReadLoop {
    model: Arc<Model>,
    session: ActorId,
    turn: u32,
    attempt: u32,
    trace: Option<TraceContext>,
    accumulator: AccumulatorRef,
    cache: Arc<Mutex<ExchangeCache>>,
    requests: Option<SessionRequests>,
    journal: Arc<dyn Journal>,
}

impl ReadLoop {
    /// Waits for the time of a retry and for a permit of the model, sends the request, and delivers the response.
    async fn read(self, plan: AttemptPlan, request: Arc<ModelRequest>) {
        let began = Instant::now();
        if !plan.wait.is_zero() {
            tokio::time::sleep(plan.wait).await;
        }
        let (turn, attempt) = (self.turn, self.attempt);
        let notify = |permit| {
            // If the accumulator has ended, this task is aborted.
            let message = AccumulatorMessage::ModelPermitReplied { turn, attempt, permit };
            let _ = self.accumulator.cast(message);
        };
        let Admission { in_flight, breaker_permit } =
            match self.model.limiter.acquire(self.session, notify).await {
                Ok(admission) => admission,
                Err(error) => return self.ended(None, ExchangeEnd::Failed(error), None),
            };
        let at = Instant::now();
        let mut sent = Some(Box::new(RequestSent { at, waited: at - began }));
        let reasoning = self.model.reasoning_rule(plan.model_index > 0);
        let mut exchange = self.exchange(&plan, &request, reasoning);
        drop(request);
        let end = loop {
            let mut batch = match exchange.next().await {
                Some(Ok(batch)) => batch,
                Some(Err(mut error)) => {
                    self.model.learn_reasoning(&mut error, reasoning, &self.journal);
                    break ExchangeEnd::Failed(error);
                }
                None => break ExchangeEnd::Closed,
            };
            for delta in &mut batch {
                if let Delta::Error(error) = delta {
                    self.model.learn_reasoning(error, reasoning, &self.journal);
                }
            }
            // The semaphore is never closed.
            let _delivery = self.model.limiter.deliveries.acquire().await;
            let sent = sent.take();
            let deltas =
                |reply| AccumulatorMessage::DeltasReceived { turn, attempt, sent, batch, reply };
            // If the accumulator has ended, this task is aborted.
            let Ok(()) = call(&self.accumulator, deltas).await else { return };
        };
        self.cache.lock().keep_templates(exchange);
        // The permit is released first, so that the next request need not wait for the turn.
        drop(in_flight);
        self.ended(sent, end, Some(breaker_permit));
    }

    fn ended(
        &self,
        sent: Option<Box<RequestSent>>,
        end: ExchangeEnd,
        breaker_permit: Option<BreakerPermitGuard>,
    ) {
        let (turn, attempt) = (self.turn, self.attempt);
        let ended = ResponseEnded { turn, attempt, sent, end, breaker_permit };
        let _ = self.accumulator.cast(AccumulatorMessage::ResponseEnded(Box::new(ended)));
    }

    /// Creates the exchange of an attempt. The turn's request is for its first model and that model's
    /// configured streaming, and is adapted to any other. A request of the host itself has other members. `reasoning`
    /// is the model's current rule.
    fn exchange(
        &self,
        plan: &AttemptPlan,
        request: &Arc<ModelRequest>,
        reasoning: ReasoningRule,
    ) -> ModelExchange {
        let adapted = match plan.model_index {
            0 => (request.stream != plan.streamed || plan.output_room.is_some())
                .then(|| ModelRequest { stream: plan.streamed, ..ModelRequest::clone(request) }),
            _ => Some(self.model.adapt(ModelRequest::clone(request), plan.streamed)),
        };
        let mut adapted = match (adapted, plan.output_room) {
            (Some(request), Some(room)) => Some(request.with_output_room(room)),
            (adapted, _) => adapted,
        };
        if request.is_internal && plan.model_index == 0 {
            let request = adapted.get_or_insert_with(|| ModelRequest::clone(request));
            request.extra_body = self.model.extra_body_of(request).clone();
        }
        if adapted.as_ref().unwrap_or(request).reasoning != reasoning {
            adapted.get_or_insert_with(|| ModelRequest::clone(request)).reasoning = reasoning;
        }
        let request = adapted.as_ref().unwrap_or(request);
        let reduced = self.model.set_aside.without_refused(request, &plan.left_out_tools);
        let mut cache = self.cache.lock();
        cache.note_left_out(request, reduced.as_ref());
        let trace = self.trace.clone();
        let Model { service, secrets, .. } = &*self.model;
        let sent = reduced.as_ref().unwrap_or(request);
        let exchange = service.next_exchange(sent, &mut cache, trace, secrets);
        if let Some(reason) = cache.prompt_break() {
            self.model.prefix_breaks.increment(reason);
        }
        drop(cache);
        if let Some((requests, body)) = self.requests.as_ref().zip(exchange.request_body()) {
            let (attempt, model) = (self.attempt, self.model.name.clone());
            requests.keep(self.turn, SentRequest { attempt, model, body: body.clone() });
        }
        exchange
    }
}
