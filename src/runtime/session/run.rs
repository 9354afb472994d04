//! A run within its session: begun, turn after turn, and ended.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ractor::{Actor, ActorId, ActorRef, SpawnErr};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::State;
use super::open::OpenTurn;
use crate::config::RunOverrides;
use crate::event::{Event, RunStats};
use crate::journal::{Urgency, unix_ms};
use crate::record::{JournalEntry, Record, RequestKey, Seq, StopMode};
use crate::runtime::accumulator::{AccumulatorActor, AccumulatorSetup};
use crate::runtime::agent::Agent;
use crate::runtime::gauge::CountGuard;
use crate::runtime::ids;
use crate::runtime::message::{AccumulatorMessage, ReportResult, SessionMessage, TurnStart};
use crate::runtime::report::CallReport;
use crate::runtime::run_actors::RunActors;
use crate::runtime::stream::{StreamActor, StreamSetup};
use crate::session::{Continue, OpenRun, Run, TurnPlan};
use crate::telemetry::{RecordPosition, TracedRun};
use crate::turn::{CancelReason, TurnSpec};
use crate::types::{Content, RunId, RunTrace, TraceContext};

/// A run that is accepted and has not begun.
pub(super) struct NewRun {
    pub(super) id: RunId,
    pub(super) input: Content,
    /// What it changes about its agent.
    pub(super) overrides: RunOverrides,
    /// The agent as the run has it.
    pub(super) agent: Arc<Agent>,
    /// Which request brought it.
    pub(super) request: Option<RequestKey>,
    /// Where it stands in somebody's trace.
    pub(super) trace: Option<TraceContext>,
    /// Who is told of its end, if anybody waits.
    pub(super) report: Option<oneshot::Sender<ReportResult>>,
}

impl NewRun {
    /// It is not begun; whoever waits for it is told why.
    pub(super) fn tell(self, told: ReportResult) {
        if let Some(report) = self.report {
            // Whoever waited may be gone.
            let _ = report.send(told);
        }
    }
}

/// The run that goes on.
pub(super) struct ActiveRun {
    pub(super) id: RunId,
    /// What its requests and calls bring along.
    pub(super) trace: Option<Arc<RunTrace>>,
    pub(super) machine: Run,
    /// Why it is to end; given to each turn that begins.
    pub(super) cancel: Option<CancelReason>,
    pub(super) stops_after_turn: bool,
    /// How often its actors had to be replaced.
    pub(super) recoveries: u32,
    /// Actors that have to be gone before others take their place; none while all is well.
    pub(super) recovering: Option<HashSet<ActorId>>,
    /// The last record before the running turn.
    pub(super) turn_after: Seq,
    pub(super) plan: TurnPlan,
    pub(super) open: OpenTurn,
    began: Instant,
    /// How long its turns had taken when it was resumed.
    before: Duration,
    pub(super) first_message: usize,
    pub(super) stats: RunStats,
    pub(super) calls: Vec<CallReport>,
    pub(super) report: Option<oneshot::Sender<ReportResult>>,
    /// How long it has waited for people and for nothing else.
    pub(super) people: Duration,
    pub(super) place: CountGuard,
}

impl ActiveRun {
    /// How long it has gone on; while no host ran, no time passed.
    pub(super) fn elapsed(&self) -> Duration {
        self.before + self.began.elapsed()
    }

    /// Whether anybody waits for its report.
    pub(super) fn is_awaited(&self) -> bool {
        self.report.as_ref().is_some_and(|report| !report.is_closed())
    }

    /// Whether nothing of it is lost when it leaves memory: people are all that it waits for.
    pub(super) fn may_sleep(&self) -> bool {
        self.open.is_resting()
            && self.recovering.is_none()
            && self.cancel.is_none()
            && !self.is_awaited()
    }

    /// Tells whoever waits for its end.
    pub(super) fn tell(self, told: ReportResult) {
        if let Some(report) = self.report {
            // Whoever waited may be gone.
            let _ = report.send(told);
        }
    }
}

impl State {
    /// Spawns the actors that runs need, where there are none.
    pub(super) async fn spawn_actors(
        &mut self,
        myself: &ActorRef<SessionMessage>,
    ) -> Result<(), SpawnErr> {
        if self.actors.is_some() {
            return Ok(());
        }
        self.epoch += 1;
        let gauges = &self.shared.gauges;
        let setup = StreamSetup { session: myself.get_id(), gauges: gauges.clone() };
        let (stream, _) = Actor::spawn_linked(None, StreamActor, setup, myself.get_cell()).await?;
        let setup = AccumulatorSetup {
            epoch: self.epoch,
            session: myself.clone(),
            stream: stream.clone(),
            log: Arc::clone(&self.log),
            publisher: self.publisher.clone(),
            pool: self.shared.pool.clone(),
            caps: self.shared.caps.clone(),
            gauges: gauges.clone(),
        };
        let (accumulator, _) =
            Actor::spawn_linked(None, AccumulatorActor, setup, myself.get_cell()).await?;
        self.actors = Some(RunActors { stream, accumulator });
        self.live.has_actors.store(true, Ordering::Release);
        Ok(())
    }

    /// Ends the actors that runs need. Tools that still run are told to stop and have their grace;
    /// the accumulator ends with the last of them, which is heard.
    pub(super) fn let_actors_go(&mut self) {
        let Some(RunActors { stream, accumulator }) = self.forget_actors() else { return };
        stream.stop(None);
        if accumulator.cast(AccumulatorMessage::Finish).is_ok() {
            self.lingering.insert(accumulator.get_id());
        }
    }

    /// The next run has others.
    pub(super) fn forget_actors(&mut self) -> Option<RunActors> {
        self.live.has_actors.store(false, Ordering::Release);
        self.actors.take()
    }

    pub(super) fn begin_run(&mut self, run: NewRun, place: CountGuard) -> Seq {
        let NewRun { id, input, overrides, request, trace, agent: _, report } = run;
        let first_message = self.history.messages().len();
        let seeded = self.seeded_turn();
        let rules = Arc::clone(&self.run_agent.rules);
        let mut records = vec![Record::RunStarted {
            run_id: id.clone(),
            input: input.clone(),
            overrides: Box::new(overrides),
            model: rules.models.first().origin.model.clone(),
            execution: rules.execution,
            request,
            trace: trace.clone(),
        }];
        records.extend(seeded.iter().map(|seeded| seeded.response.clone()));
        let behind = records.len() as u64 - 1;
        let time = unix_ms();
        let (last, _) = self.log.append_at(time, records, Urgency::Lazy, || ());
        let seq = Seq(last.0 - behind);
        let trace = self.trace(&id, trace, time, Duration::ZERO, Some(&input));
        self.history.begin_run(input);
        let mut machine = Run::new(self.run_agent.limits());
        let plan = if seeded.is_some() { machine.begin_with_calls() } else { machine.begin() };
        self.run = Some(Box::new(ActiveRun {
            id: id.clone(),
            trace,
            machine,
            cancel: None,
            stops_after_turn: false,
            recoveries: 0,
            recovering: None,
            turn_after: seq,
            plan,
            open: OpenTurn::default(),
            began: Instant::now(),
            before: Duration::ZERO,
            first_message,
            stats: RunStats::default(),
            calls: Vec::new(),
            report,
            people: Duration::ZERO,
            place,
        }));
        let event = Event::RunStarted {
            agent: self.run_agent.name.clone(),
            model: rules.models.first().origin.model.clone(),
            execution: rules.execution,
        };
        let record = RecordPosition { seq, time, shown: 0 };
        self.publisher.publish_recorded(&id, self.turn, event, record);
        match seeded {
            Some(seeded) => self.begin_seeded_turn(plan, seeded, record),
            None => self.begin_turn(plan),
        }
        seq
    }

    /// What the requests and calls of a run bring along, where it has gone on for so long.
    fn trace(
        &self,
        id: &RunId,
        given: Option<TraceContext>,
        began: u64,
        elapsed: Duration,
        input: Option<&Content>,
    ) -> Option<Arc<RunTrace>> {
        let rules = &self.run_agent.rules;
        self.shared.telemetry.traces().begin(TracedRun {
            session: &self.id,
            run: id,
            agent: &self.run_agent.name,
            model: &rules.models.first().origin.model,
            given,
            began,
            elapsed,
            input,
        })
    }

    /// Goes on with a run that the journal knows.
    pub(super) async fn resume_run(
        &mut self,
        myself: &ActorRef<SessionMessage>,
        run: OpenRun,
        place: CountGuard,
    ) {
        let OpenRun { id, overrides, trace, machine, stats, results, next, stops, .. } = run;
        self.run_agent = self.agent.as_it_was(&overrides);
        if self.spawn_actors(myself).await.is_err() {
            return;
        }
        let report = |(usage, result)| CallReport::new(id.clone(), Some(usage), result);
        let plan = match &next {
            Continue::Turn { plan, .. } => *plan,
            Continue::Step(_) => TurnPlan { last_request: false },
        };
        let trace = self.trace(&id, trace, run.began, run.elapsed, None);
        let was_failed = self.shared.unwritten.lock().remove(&id).is_some();
        self.run = Some(Box::new(ActiveRun {
            calls: results.into_iter().map(report).collect(),
            id,
            trace,
            machine,
            cancel: (stops == Some(StopMode::Now)).then_some(CancelReason::Stop),
            stops_after_turn: stops == Some(StopMode::AfterTurn),
            recoveries: 0,
            recovering: None,
            turn_after: run.turn_after,
            plan,
            open: OpenTurn::default(),
            began: Instant::now(),
            before: run.elapsed,
            first_message: run.first_message,
            stats,
            report: None,
            people: run.people,
            place,
        }));
        self.live.running.store(true, Ordering::Release);
        self.shared.show_counts();
        if was_failed {
            self.give_up("journal_failed", "the journal could not be written");
            return;
        }
        match next {
            Continue::Turn { plan, entries } if entries.is_empty() => match self.seeded_turn() {
                Some(seeded) => self.record_seeded_turn(plan, seeded),
                None => self.begin_turn(plan),
            },
            Continue::Turn { entries, .. } => {
                if let Some(run) = self.run.as_mut() {
                    run.open.is_unknown = true;
                }
                self.hand_out_turn(Some(entries.into_iter().map(Arc::new).collect()));
            }
            Continue::Step(step) => self.follow(step),
        }
    }

    pub(super) fn begin_turn(&mut self, plan: TurnPlan) {
        self.turn += 1;
        let last = self.log.last();
        self.log.forget_until(last);
        let Some(run) = self.run.as_mut() else { return };
        run.plan = plan;
        run.turn_after = last;
        self.hand_out_turn(None);
    }

    /// Gives the turn to the accumulator: a new one, or one that goes on from its records.
    pub(super) fn hand_out_turn(&self, resume: Option<Vec<Arc<JournalEntry>>>) {
        let Some(run) = self.run.as_ref() else { return };
        let (messages, repairs) = self.history.request_messages();
        if repairs > 0 {
            self.publisher.publish(&run.id, self.turn, Event::HistoryRepaired { repairs });
        }
        let start = TurnStart {
            spec: self.turn_spec(run),
            run: run.id.clone(),
            agent: Arc::clone(&self.run_agent),
            trace: run.trace.clone(),
            request: Arc::new(self.run_agent.request(messages, run.plan.last_request)),
            resume,
            cancel: run.cancel,
        };
        self.shared.telemetry.traces().asks(&self.id, &start.request);
        self.tell_accumulator(AccumulatorMessage::BeginTurn(Box::new(start)));
    }

    /// An accumulator that is gone is replaced, and its successor given the turn as it is then.
    pub(super) fn tell_accumulator(&self, message: AccumulatorMessage) {
        if let Some(actors) = &self.actors {
            let _ = actors.accumulator.cast(message);
        }
    }

    pub(super) fn turn_spec(&self, run: &ActiveRun) -> TurnSpec {
        TurnSpec {
            number: self.turn,
            turns_with_calls: self.history.turns_with_calls(),
            held_ids: self.history.held_ids(),
            last_request: run.plan.last_request,
            budget: run.machine.budget(),
            began: run.elapsed(),
            run_time_left: self
                .run_agent
                .limits()
                .run_timeout
                .map(|timeout| timeout.saturating_sub(run.elapsed().saturating_sub(run.people))),
            variables: self.variables.clone(),
            seed: ids::spread(&self.id, self.turn),
            idempotency_scope: self.id.as_str().to_owned(),
            rules: Arc::clone(&self.run_agent.rules),
        }
    }
}
