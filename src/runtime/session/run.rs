//! A run within its session: begun, turn after turn, and ended.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use ractor::{Actor, ActorCell, ActorId, ActorRef, SpawnErr};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::State;
use super::open::OpenTurn;
use crate::config::RunOverrides;
use crate::event::{Event, RunStats};
use crate::journal::{Urgency, unix_ms};
use crate::record::{Record, Seq};
use crate::runtime::accumulator::{AccumulatorActor, AccumulatorSetup};
use crate::runtime::agent::Agent;
use crate::runtime::error::HostError;
use crate::runtime::gauge::Held;
use crate::runtime::ids;
use crate::runtime::message::{
    Accumulator, AccumulatorMessage, SessionMessage, StreamMessage, SupervisorMessage, TurnStart,
};
use crate::runtime::report::{CallReport, Messages, RunReport};
use crate::runtime::stream::{StreamActor, StreamSetup};
use crate::runtime::supervisor::{SupervisorSetup, ToolSupervisor};
use crate::telemetry::Recorded;
use crate::turn::{CancelReason, LimitHit, Next, Run, RunStep, TurnPlan, TurnRecord, TurnSpec};
use crate::types::{Content, RunEnd, RunError, RunId};

/// A run that is accepted and has not begun.
pub(super) struct NewRun {
    pub(super) id: RunId,
    pub(super) input: Content,
    /// What it changes about its agent.
    pub(super) overrides: RunOverrides,
    /// The agent as the run has it.
    pub(super) agent: Arc<Agent>,
    pub(super) report: oneshot::Sender<Result<RunReport, HostError>>,
}

/// The run that goes on.
pub(super) struct ActiveRun {
    pub(super) id: RunId,
    pub(super) machine: Run,
    pub(super) actors: RunActors,
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
    first_message: usize,
    stats: RunStats,
    calls: Vec<CallReport>,
    report: oneshot::Sender<Result<RunReport, HostError>>,
    /// How long it has waited for people and for nothing else.
    pub(super) people: Duration,
    place: Held,
}

/// The three actors of a run.
pub(super) struct RunActors {
    pub(super) stream: ActorRef<StreamMessage>,
    pub(super) accumulator: Accumulator,
    pub(super) supervisor: ActorRef<SupervisorMessage>,
}

impl RunActors {
    pub(super) fn cells(&self) -> [ActorCell; 3] {
        [self.stream.get_cell(), self.accumulator.get_cell(), self.supervisor.get_cell()]
    }
}

impl State {
    /// A new set of actors for a run.
    pub(super) async fn spawn_actors(
        &mut self,
        myself: &ActorRef<SessionMessage>,
    ) -> Result<RunActors, SpawnErr> {
        self.epoch += 1;
        let gauges = &self.shared.gauges;
        let models = Arc::clone(&self.run_agent.models);
        let setup = StreamSetup { models, session: myself.get_id(), gauges: gauges.clone() };
        let (stream, _) = Actor::spawn_linked(None, StreamActor, setup, myself.get_cell()).await?;
        let setup = SupervisorSetup {
            tools: Arc::clone(&self.run_agent.tools),
            cancel_grace: self.run_agent.limits().cancel_grace,
            max_variables_bytes: self.run_agent.limits().max_variables_bytes,
            publisher: Arc::new(self.publisher.clone()),
            pool: self.shared.pool.clone(),
            gauges: gauges.clone(),
        };
        let (supervisor, _) =
            Actor::spawn_linked(None, ToolSupervisor, setup, myself.get_cell()).await?;
        let setup = AccumulatorSetup {
            epoch: self.epoch,
            session: myself.clone(),
            stream: stream.clone(),
            supervisor: supervisor.clone(),
            log: Arc::clone(&self.log),
            publisher: self.publisher.clone(),
            caps: self.shared.caps.clone(),
            gauges: gauges.clone(),
        };
        let (accumulator, _) =
            Actor::spawn_linked(None, AccumulatorActor, setup, myself.get_cell()).await?;
        Ok(RunActors { stream, accumulator, supervisor })
    }

    pub(super) fn begin_run(&mut self, run: NewRun, actors: RunActors, place: Held) -> Seq {
        let NewRun { id, input, overrides, agent: _, report } = run;
        let first_message = self.history.messages().len();
        let seeded = self.seeded_turn();
        let rules = Arc::clone(&self.run_agent.rules);
        let mut records = vec![Record::RunStarted {
            run_id: id.clone(),
            input: input.clone(),
            overrides,
            model: rules.models.first().origin.model.clone(),
            execution: rules.execution,
            request: None,
        }];
        records.extend(seeded.iter().map(|seeded| seeded.response.clone()));
        let behind = records.len() as u64 - 1;
        let time = unix_ms();
        let (last, _) = self.log.append_at(time, records, Urgency::Lazy, || ());
        let seq = Seq(last.0 - behind);
        self.history.begin_run(input);
        let began = Instant::now();
        let mut machine = Run::new(self.run_agent.limits());
        let plan = if seeded.is_some() { machine.begin_with_calls() } else { machine.begin() };
        self.run = Some(Box::new(ActiveRun {
            id: id.clone(),
            machine,
            actors,
            cancel: None,
            stops_after_turn: false,
            recoveries: 0,
            recovering: None,
            turn_after: seq,
            plan,
            open: OpenTurn::default(),
            began,
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
        let record = Recorded { seq, time, shown: 0 };
        self.publisher.publish_recorded(&id, self.turn, event, record);
        match seeded {
            Some(seeded) => self.begin_seeded_turn(plan, seeded, record),
            None => self.begin_turn(plan),
        }
        seq
    }

    fn begin_turn(&mut self, plan: TurnPlan) {
        self.turn += 1;
        let last = self.log.last();
        let Some(run) = self.run.as_mut() else { return };
        run.plan = plan;
        run.turn_after = last;
        self.hand_out_turn(None);
    }

    /// Gives the turn to the accumulator: a new one, or one that goes on from its records.
    pub(super) fn hand_out_turn(&self, resume: Option<Vec<Record>>) {
        let Some(run) = self.run.as_ref() else { return };
        let (messages, repairs) = self.history.request_messages();
        if repairs > 0 {
            self.publisher.publish(&run.id, self.turn, Event::HistoryRepaired { repairs });
        }
        let start = TurnStart {
            spec: self.turn_spec(run),
            run: run.id.clone(),
            request: Arc::new(self.run_agent.request(messages, run.plan.last_request)),
            resume,
            cancel: run.cancel,
        };
        // An accumulator that is gone is replaced, and its successor given the turn again.
        let _ = run.actors.accumulator.cast(AccumulatorMessage::BeginTurn(Box::new(start)));
    }

    pub(super) fn turn_spec(&self, run: &ActiveRun) -> TurnSpec {
        TurnSpec {
            number: self.turn,
            turns_with_calls: self.history.turns_with_calls(),
            held_ids: self.history.held_ids(),
            last_request: run.plan.last_request,
            budget: run.machine.budget(),
            began: run.began.elapsed(),
            run_time_left: self.run_agent.limits().run_timeout.map(|timeout| {
                timeout.saturating_sub(run.began.elapsed().saturating_sub(run.people))
            }),
            variables: self.variables.clone(),
            seed: ids::spread(&self.id, self.turn),
            idempotency_scope: self.id.as_str().to_owned(),
            rules: Arc::clone(&self.run_agent.rules),
        }
    }

    /// Whether this commit is the one that the session waits for.
    pub(super) fn awaits(&self, epoch: u64, record: &TurnRecord) -> bool {
        epoch == self.epoch
            && record.number == self.turn
            && self.run.as_ref().is_some_and(|run| run.recovering.is_none())
    }

    /// Writes a turn to the history, and does what comes next.
    pub(super) fn commit(&mut self, record: TurnRecord) {
        let Some(step) = self.write(record) else { return };
        step.limits.into_iter().for_each(|limit| self.tell_limit(limit));
        match step.next {
            Next::Turn(plan) => self.begin_turn(plan),
            Next::End { end, text, error } => self.end_run(end, text, error),
        }
    }

    /// Writes a turn to the history and the run's sums.
    pub(super) fn write(&mut self, record: TurnRecord) -> Option<RunStep> {
        let run = self.run.as_mut()?;
        let bytes_max = self.run_agent.limits().max_result_bytes;
        let steered = self.history.undelivered() > 0;
        self.history.commit(record.number, record.message.as_ref(), &record.results, bytes_max);
        for result in &record.results {
            self.variables.apply(&result.writes);
        }
        self.usage += record.usage;
        let (stats, times) = (&mut run.stats, &record.times);
        stats.usage += record.usage;
        stats.tool_calls += u32::try_from(record.results.len()).unwrap_or(u32::MAX);
        stats.model += times.model;
        stats.tools += times.tools;
        stats.overlap += times.overlap;
        stats.overhead += times.overhead;
        run.people += times.people;
        run.open = OpenTurn::default();
        let step = run.machine.handle_turn(&record, steered);
        // A report that nobody waits for is not made.
        if !run.report.is_closed() {
            let report = |result| CallReport::new(run.id.clone(), Some(record.usage), result);
            run.calls.extend(record.results.into_iter().map(report));
        }
        Some(step)
    }

    /// Tells the user of a limit, and the model what it is to know of it.
    pub(super) fn tell_limit(&mut self, hit: LimitHit) {
        let Some(run) = &self.run else { return };
        let LimitHit { limit, value, maximum, action, note } = hit;
        if let Some(note) = &note {
            self.history.add_note(note);
        }
        let (limit, action) = (limit.to_owned(), action.to_owned());
        let (named, done) = (limit.clone(), action.clone());
        let record = Record::LimitReached { limit: named, value, maximum, action: done, note };
        let time = unix_ms();
        let (seq, _) = self.log.append_at(time, vec![record], Urgency::Lazy, || ());
        let event = Event::LimitReached { limit, value, maximum, action };
        let record = Recorded { seq, time, shown: 0 };
        self.publisher.publish_recorded(&run.id, self.turn, event, record);
    }

    pub(super) fn end_run(&mut self, end: RunEnd, text: String, error: Option<RunError>) {
        let Some(run) = self.run.take() else { return };
        let ActiveRun { id, machine, actors, began, first_message, mut stats, calls, .. } = *run;
        let report = run.report;
        self.history.end_run();
        stats.turns = machine.turns();
        stats.duration = began.elapsed();
        let record = Record::RunEnded {
            run_id: id.clone(),
            end,
            text: text.clone(),
            error: error.clone(),
            stats: (&stats).into(),
        };
        let time = unix_ms();
        let (seq, _) = self.log.append_at(time, vec![record], Urgency::Lazy, || ());
        let event = Event::RunEnded {
            agent: self.run_agent.name.clone(),
            end,
            text: text.clone(),
            error: error.clone(),
            stats,
        };
        let record = Recorded { seq, time, shown: 0 };
        self.publisher.publish_recorded(&id, self.turn, event, record);
        actors.stream.stop(None);
        // Tools that were told to stop have their grace; the supervisor's end is heard, and then
        // the accumulator is stopped. The end of one that is gone has been heard.
        match actors.supervisor.cast(SupervisorMessage::Finish) {
            Ok(()) => {
                self.lingering.insert(actors.supervisor.get_id(), actors.accumulator);
            }
            Err(_) => actors.accumulator.stop(None),
        }
        self.hand_on(run.place);
        self.shared.show_counts();
        if !report.is_closed() {
            let all = self.history.messages().to_vec();
            // Whoever waited may be gone by now.
            let _ = report.send(Ok(RunReport {
                run_id: id,
                run_end: end,
                text,
                error,
                turns: stats.turns,
                calls,
                stats: (&stats).into(),
                messages: Messages { all, first_of_run: first_message },
            }));
        }
    }
}
