//! Summaries of the context: the request to the model, and the clients that asked for one. Also what the host learns
//! of the windows of models, and the timer of a run that waits before its turn.

use std::sync::Arc;
use std::time::Duration;

use ractor::{ActorId, ActorRef};
use tokio::time::Instant;

use super::SessionActor;
use crate::journal::Journal;
use crate::runtime::agent::Agent;
use crate::runtime::error::HostError;
use crate::runtime::ids;
use crate::runtime::message::{AccumulatorMessage, CompactReply, SessionMessage};
use crate::runtime::model::{ExchangeCache, ModelRequest};
use crate::runtime::models::Model;
use crate::runtime::publish::Publisher;
use crate::runtime::report::CompactionReport;
use crate::runtime::task::OwnedTask;
use callsheet_machines::session::{MessageName, SessionRefusal, SummaryReply, SummaryRequest};
use callsheet_machines::turn::{AttemptPlan, CommittedTurn, RetryPolicy};
use callsheet_values::config::RunOverrides;
use callsheet_values::event::Event;
use callsheet_values::message::Message;
use callsheet_values::record::{Record, ResponseEnding};
use callsheet_values::types::{
    CompactionKind, ContextOverflow, ProviderError, ProviderErrorKind, ReasoningRule, RunId,
    SummaryFailure, Usage,
};
use callsheet_wire::response::{ExchangeEnd, ResponseAssembler, ResponseLimits, classify_ending};

/// The least maximum length of a summary, in tokens, if the window has room for it. The model's own maximum counts if
/// it is larger.
const SUMMARY_OUTPUT_TOKENS: u32 = 4_096;

/// The summary that a session waits for.
#[derive(Default)]
pub(super) struct AwaitedSummary {
    /// Asks a model for it.
    task: Option<OwnedTask>,
    /// The number of requests for summaries so far.
    requests: u64,
    /// The clients that asked for a smaller context, or to leave a message out.
    callers: Vec<CompactReply>,
    /// The deadline, on the machine's clock, of the run that waits for the summary or for the tools of servers, and
    /// the timer of it.
    timer: Option<(Duration, OwnedTask)>,
}

impl SessionActor {
    /// Makes the context smaller, on request of a client.
    pub(super) fn compact(&mut self, reply: CompactReply) {
        let agents = &self.agents;
        let rules_of = |overrides: &RunOverrides| agents.rules(overrides);
        match self.session.handle_compact_request(&rules_of) {
            Ok(()) => self.summary.callers.push(reply),
            Err(refusal) => {
                let _ = reply.send(Err(refusal.into()));
            }
        }
    }

    /// Leaves a message out of later requests on request of a client, or takes it back.
    pub(super) fn exclude(&mut self, name: MessageName, include: bool, reply: CompactReply) {
        let agents = &self.agents;
        let rules_of = |overrides: &RunOverrides| agents.rules(overrides);
        let last = self.log.last_seq();
        let refused = match self.session.handle_exclude_request(name, include, &rules_of) {
            Ok(true) => return self.summary.callers.push(reply),
            Ok(false) => {
                let rules = rules_of(&self.session.current_overrides());
                let tokens = self.session.request_tokens(&rules);
                let kind = match include {
                    true => CompactionKind::Included,
                    false => CompactionKind::Excluded,
                };
                let (kind, tokens_before, tokens_after) = (kind.as_str(), tokens, tokens);
                let _ = reply.send(Ok(CompactionReport { kind, tokens_before, tokens_after }));
                return;
            }
            Err(SessionRefusal::NoSuchMessage) => match name {
                MessageName::Input(seq) if (1..=last.0).contains(&seq.0) => {
                    HostError::NotAnInput(seq)
                }
                MessageName::Input(seq) => HostError::NoSuchMessage(Some(seq)),
                MessageName::Result(_) => HostError::NoSuchMessage(None),
            },
            Err(refusal) => refusal.into(),
        };
        let _ = reply.send(Err(refused));
    }

    /// Asks a model for a summary. The session receives it as [`SessionMessage::SummaryMade`].
    pub(super) fn request_summary(
        &mut self,
        request: SummaryRequest,
        myself: &ActorRef<SessionMessage>,
    ) {
        let SummaryRequest { run_id, overrides, messages, output_room } = request;
        self.agents.use_for(&overrides);
        let agent = Arc::clone(self.agents.current());
        let summariser = Summariser {
            request: ModelRequest {
                prompt_cache_key: Some(Arc::clone(&self.prompt_cache_key)),
                ..agent.summary_request(messages)
            },
            agent,
            session: myself.get_id(),
            run: run_id,
            turn: self.session.turn(),
            seed: ids::turn_seed(&self.id, self.session.turn()),
            output_room,
            publisher: self.publisher.clone(),
            journal: Arc::clone(&self.host_ref.shared.journal),
        };
        let myself = myself.clone();
        self.summary.requests += 1;
        let request = self.summary.requests;
        self.summary.task =
            Some(OwnedTask::spawn(&self.host_ref.shared.gauges.tasks, async move {
                let reply = summariser.summarise().await;
                // A session that has ended needs no summary.
                let _ = myself.cast(SessionMessage::SummaryMade { request, reply });
            }));
    }

    /// Gives the session the summary that it waits for. The answer to an earlier request is ignored.
    pub(super) fn summary_made(&mut self, request: u64, reply: SummaryReply) {
        if request != self.summary.requests {
            return;
        }
        let agents = &self.agents;
        let rules_of = |overrides: &RunOverrides| agents.rules(overrides);
        let failure = self.session.handle_summary(reply, &rules_of);
        self.summary.task = None;
        if let Some(reason) = failure {
            self.fail_compact_callers(|| HostError::SummaryFailed(reason));
        }
    }

    /// Drops a summary that is not awaited any more, and notifies the clients that asked for one.
    pub(super) fn drop_unneeded_summary(&mut self) {
        if self.session.waits_for_summary() {
            return;
        }
        self.summary.task = None;
        // A run has begun before the summary was made.
        self.fail_compact_callers(|| HostError::NothingToCompact);
    }

    /// Sets the timer of a run that waits for a summary, or for the tools of servers, before its next turn.
    pub(super) fn set_run_timer(&mut self, myself: &ActorRef<SessionMessage>) {
        let deadline = self.session.deadline_before_turn();
        if self.summary.timer.as_ref().map(|(deadline, _)| *deadline) == deadline {
            return;
        }
        self.summary.timer = deadline.and_then(|deadline| {
            let (myself, at) = (myself.clone(), self.started.checked_add(deadline)?);
            let timer = OwnedTask::spawn(&self.host_ref.shared.gauges.tasks, async move {
                tokio::time::sleep_until(at).await;
                // The machine looks at its clock after each message. This one changes nothing else in a run that goes
                // on. A session that has ended needs no timer.
                let _ = myself.cast(SessionMessage::ContinueRun);
            });
            Some((deadline, timer))
        });
    }

    /// Sends the result to the clients that asked for a smaller context.
    pub(super) fn context_compacted(&mut self, record: &Record) {
        let Record::Compacted { change, tokens_before, tokens_after, .. } = record else { return };
        let report = CompactionReport {
            kind: change.kind().as_str(),
            tokens_before: *tokens_before,
            tokens_after: *tokens_after,
        };
        for reply in self.summary.callers.drain(..) {
            let _ = reply.send(Ok(report));
        }
    }

    /// Gives the session what the host has learnt of the first model of the next request.
    pub(super) fn give_model_tokens(&mut self) {
        let agent = match self.session.run() {
            Some(_) => self.agents.current(),
            None => self.agents.own(),
        };
        self.session.handle_model_tokens(agent.models.first().learnt.get());
    }

    /// Learns from the service's count of the request of a turn. `estimated` is the estimate of the same request.
    pub(super) fn learn_usage(&self, record: &CommittedTurn, estimated: u64) {
        let Some(origin) = record.message.as_ref().and_then(|message| message.origin.as_ref())
        else {
            return;
        };
        let mut models = self.agents.current().models.iter();
        if let Some(model) = models.find(|model| model.has_origin(origin)) {
            model.learnt.update(|tokens| tokens.handle_usage(estimated, record.request_tokens));
        }
    }

    /// Leaves out the content that a model's service has refused, or makes the context smaller.
    pub(super) fn context_refused(&mut self, model: usize, error: &ProviderError) {
        let Some(refusal) = error.content.filter(|_| !error.is_context_overflow()) else {
            return self.context_overflowed(model, error);
        };
        let agents = &self.agents;
        let rules_of = |overrides: &RunOverrides| agents.rules(overrides);
        self.session.handle_content_refused(refusal, &rules_of);
    }

    /// Learns the window of a model whose request was too large, and makes the context smaller.
    fn context_overflowed(&mut self, model: usize, error: &ProviderError) {
        let agent = Arc::clone(self.agents.current());
        let model = agent.models.at(model);
        let tokens = self.session.request_tokens(&agent.rules);
        let counted = self.session.counted_tokens().filter(|_| self.is_answered_by(model));
        // Nothing is to be guessed where the configuration names the window.
        let is_of_use =
            |overflow: &ContextOverflow| overflow.window.is_some() || !model.has_window();
        if let Some(overflow) = error.overflow.filter(is_of_use) {
            model.learnt.update(|learnt| learnt.handle_overflow(overflow, tokens, counted));
            model.learnt.store_soon(&self.host_ref.shared.journal);
        }
        let window = model.window();
        self.give_model_tokens();
        let input =
            error.overflow.and_then(|overflow| match (overflow.window, overflow.output_room) {
                // The service's count has the length of the answer too.
                (Some(window), Some(room)) => window.checked_sub(room.into()),
                (_, _) => overflow.request_tokens,
            });
        let agents = &self.agents;
        let rules_of = |overrides: &RunOverrides| agents.rules(overrides);
        self.session.handle_overflow(window, input, &rules_of);
    }

    /// Returns whether the newest response of the history is of this model, so that the last count is its count too.
    fn is_answered_by(&self, model: &Model) -> bool {
        let origin =
            self.session.history().messages().iter().rev().find_map(|message| match &**message {
                Message::Assistant(response) => Some(response.origin.as_ref()),
                Message::User { .. } | Message::Summary { .. } | Message::Tool { .. } => None,
            });
        origin.flatten().is_some_and(|origin| model.has_origin(origin))
    }

    /// Sends a new request to the turn whose request was too large, or notifies it that there is none.
    pub(super) fn context_reduced(&mut self, reduced: bool) {
        let Some(spec) = self.turn_spec().filter(|_| reduced) else {
            self.send_to_accumulator(AccumulatorMessage::ContextReduced { request: None });
            return;
        };
        let (messages, _) = self.session.history().request_messages();
        let request = Some(self.next_request(messages, spec.request_kind));
        self.send_to_accumulator(AccumulatorMessage::ContextReduced { request });
    }

    fn fail_compact_callers(&mut self, error: impl Fn() -> HostError) {
        for reply in self.summary.callers.drain(..) {
            let _ = reply.send(Err(error()));
        }
    }
}

/// Asks the models of an agent for a summary, with the retries and fallbacks of a turn.
struct Summariser {
    agent: Arc<Agent>,
    request: ModelRequest,
    session: ActorId,
    run: Option<RunId>,
    turn: u32,
    seed: u64,
    /// The tokens that the window of the first model has room for behind the request.
    output_room: Option<u64>,
    publisher: Publisher,
    journal: Arc<dyn Journal>,
}

impl Summariser {
    async fn summarise(self) -> SummaryReply {
        let mut retry = RetryPolicy::new(Arc::clone(&self.agent.rules.models), self.seed);
        let mut plan = retry.plan_first_attempt();
        let mut usage = Usage::default();
        loop {
            if !plan.wait.is_zero() {
                tokio::time::sleep(plan.wait).await;
            }
            match self.attempt(&plan, &mut usage).await {
                Ok(Ok(text)) => return SummaryReply::Text { text, usage },
                Ok(Err(reason)) => return SummaryReply::Failed { usage, reason },
                Err(error) => {
                    let next = retry.with_shorter_answer(&error);
                    match next.or_else(|| retry.after_error(&error, plan.streamed)) {
                        Some(next) => plan = next,
                        None => {
                            let reason = SummaryFailure::Failed;
                            return SummaryReply::Failed { usage, reason };
                        }
                    }
                }
            }
        }
    }

    /// Returns the summary, or the reason why the response is none.
    async fn attempt(
        &self,
        plan: &AttemptPlan,
        usage: &mut Usage,
    ) -> Result<Result<String, SummaryFailure>, ProviderError> {
        let model = self.agent.models.at(plan.model_index);
        let admission = model.limiter.acquire(self.session, |_| ()).await?;
        let (began, mut first_chunk) = (Instant::now(), None);
        let mut response = ResponseAssembler::new(ResponseLimits::default());
        let reasoning = model.reasoning_rule(plan.model_index > 0);
        let mut exchange = self.exchange(model, plan, reasoning);
        let end = loop {
            match exchange.next().await {
                Some(Ok(batch)) => {
                    first_chunk.get_or_insert_with(|| began.elapsed());
                    for delta in &batch {
                        response.push(delta);
                    }
                    // The rest of a response with too much text is not read, as in a turn.
                    let is_too_large =
                        |error: &ProviderError| error.kind == ProviderErrorKind::TooLarge;
                    if response.error().is_some_and(is_too_large) {
                        break ExchangeEnd::Closed;
                    }
                }
                Some(Err(error)) => break ExchangeEnd::Failed(error),
                None => break ExchangeEnd::Closed,
            }
        };
        response.drop_nameless_call();
        let mut ended = classify_ending(&response, end);
        if let Err(error) = &mut ended {
            model.learn_reasoning(error, reasoning, &self.journal);
        }
        let error = ended.as_ref().err();
        admission.breaker_permit.report_result(error);
        *usage += response.usage();
        if let Some(run) = &self.run {
            let event = Event::AttemptEnded {
                model: model.name.clone(),
                streamed: plan.streamed,
                duration: began.elapsed(),
                first_chunk,
                usage: response.usage(),
                finish_reason: response.finish_reason().cloned(),
                error: error.cloned().map(Box::new),
            };
            self.publisher.publish(run, self.turn, event);
        }
        ended.map(|ending| match ending {
            ResponseEnding::Complete => {
                let text = Some(response.text().trim().to_owned()).filter(|text| !text.is_empty());
                text.ok_or(SummaryFailure::Failed)
            }
            // A part of a summary would replace more than it says.
            ResponseEnding::Length => Err(SummaryFailure::CutOff),
            ResponseEnding::Refused => Err(SummaryFailure::Refused),
            ResponseEnding::BrokenKept
            | ResponseEnding::TooManyCalls
            | ResponseEnding::Cancelled => Err(SummaryFailure::Failed),
        })
    }

    fn exchange(
        &self,
        model: &Arc<Model>,
        plan: &AttemptPlan,
        reasoning: ReasoningRule,
    ) -> crate::runtime::model::ModelExchange {
        let mut request = model.adapt(self.request.clone(), plan.streamed);
        request.reasoning = reasoning;
        // A summary is longer than the answers that a small maximum is for.
        let own = request.max_output_tokens.map(|maximum| maximum.max(SUMMARY_OUTPUT_TOKENS));
        let room = self.output_room.filter(|_| plan.model_index == 0);
        let room = room.map(|room| u32::try_from(room.max(1)).unwrap_or(u32::MAX));
        request.max_output_tokens = match (own, room) {
            (Some(own), Some(room)) => Some(own.min(room)),
            // In a small window a model that does not end is stopped. A larger one has room for thinking.
            (None, Some(room)) => Some(room).filter(|room| *room <= SUMMARY_OUTPUT_TOKENS),
            (own, None) => own,
        };
        let request = match plan.output_room {
            Some(room) => request.with_output_room(room),
            None => request,
        };
        let reduced = model.set_aside.without_refused(&request, &[]);
        let request = reduced.as_ref().unwrap_or(&request);
        model.service.next_exchange(request, &mut ExchangeCache::default(), None, &model.secrets)
    }
}
