//! What comes of a turn that is over: written to the history, told, and followed by the next one
//! or by the end of the run.

use std::sync::atomic::Ordering;

use super::State;
use super::open::OpenTurn;
use super::run::ActiveRun;
use crate::event::Event;
use crate::journal::{Urgency, unix_ms};
use crate::record::{Record, Seq};
use crate::runtime::report::{CallReport, Messages, RunReport};
use crate::session::{FollowUp, RunNext};
use crate::telemetry::RecordPosition;
use crate::turn::{LimitHit, TurnRecord};
use crate::types::{RunEnd, RunError};

/// A record, and the event that is its view.
pub(super) type ToldRecord = (Record, Event);

impl State {
    /// Whether this commit is the one that the session waits for.
    pub(super) fn awaits(&self, epoch: u64, record: &TurnRecord) -> bool {
        epoch == self.epoch
            && record.number == self.turn
            && self.run.as_ref().is_some_and(|run| run.recovering.is_none())
    }

    /// Writes a turn to the history, and does what comes next.
    pub(super) fn commit(&mut self, record: TurnRecord) {
        if let Some(step) = self.write(record) {
            self.follow(step);
        }
    }

    /// Writes a turn to the history and the run's sums.
    pub(super) fn write(&mut self, record: TurnRecord) -> Option<FollowUp> {
        let run = self.run.as_mut()?;
        let bytes_max = self.run_agent.limits().max_result_bytes;
        let steered = self.history.undelivered() > 0;
        self.history.commit(record.number, record.message.as_ref(), &record.results, bytes_max);
        for result in &record.results {
            self.variables.apply(&result.writes);
        }
        self.usage += record.usage;
        run.stats.add(record.usage, record.results.len(), &record.times);
        run.people += record.times.people;
        run.open = OpenTurn::default();
        let step = run.machine.handle_turn(&record, steered);
        // A report that nobody waits for is not made.
        if run.is_awaited() {
            let report = |result| CallReport::new(run.id.clone(), Some(record.usage), result);
            run.calls.extend(record.results.into_iter().map(report));
        }
        Some(step)
    }

    /// Does what follows from a turn. All that is recorded of that is one batch.
    pub(super) fn follow(&mut self, step: FollowUp) {
        let limits = step.limits.into_iter().map(|hit| self.take_limit(hit)).collect();
        match step.next {
            RunNext::Turn(plan) => {
                self.tell(limits);
                self.begin_turn(plan);
            }
            RunNext::End { end, text, error } => self.end_run(limits, end, text, error),
        }
    }

    /// The model is to know of a limit what its note says; the user is told of it.
    pub(super) fn take_limit(&mut self, hit: LimitHit) -> ToldRecord {
        let LimitHit { limit, value, maximum, action, note } = hit;
        if let Some(note) = &note {
            self.history.add_note(note);
        }
        let (limit, action) = (limit.to_owned(), action.to_owned());
        let (named, done) = (limit.clone(), action.clone());
        let record = Record::LimitReached { limit: named, value, maximum, action: done, note };
        (record, Event::LimitReached { limit, value, maximum, action })
    }

    /// Appends records of the run as one batch and tells everybody of them. Returns the place of
    /// the last one.
    pub(super) fn tell(&self, told: Vec<ToldRecord>) -> Seq {
        let (records, events): (Vec<_>, Vec<_>) = told.into_iter().unzip();
        let count = records.len() as u64;
        let time = unix_ms();
        let (last, _) = self.log.append_at(time, records, Urgency::Lazy, || ());
        if let Some(run) = &self.run {
            for (event, behind) in events.into_iter().zip(1..) {
                let seq = Seq(last.0.saturating_sub(count) + behind);
                let record = RecordPosition { seq, time, shown: 0 };
                self.publisher.publish_recorded(&run.id, self.turn, event, record);
            }
        }
        last
    }

    /// Ends the run; `told` is what is recorded before its end.
    pub(super) fn end_run(
        &mut self,
        mut told: Vec<ToldRecord>,
        end: RunEnd,
        text: String,
        error: Option<RunError>,
    ) {
        let Some(run) = self.run.as_mut() else { return };
        run.stats.turns = run.machine.turns();
        run.stats.duration = run.elapsed();
        let stats = run.stats;
        self.history.end_run();
        told.push((
            Record::RunEnded {
                run_id: run.id.clone(),
                end,
                text: text.clone(),
                error: error.clone(),
                stats: (&stats).into(),
                waiting: self.queue.len() as u64,
            },
            Event::RunEnded {
                agent: self.run_agent.name.clone(),
                end,
                text: text.clone(),
                error: error.clone(),
                stats: Box::new(stats),
            },
        ));
        let last = self.tell(told);
        // Nothing goes on from the last turn's records any more.
        self.log.forget_until(last);
        let Some(run) = self.run.take() else { return };
        let is_awaited = run.is_awaited();
        let ActiveRun { id, first_message, calls, report, place, .. } = *run;
        self.live.running.store(!self.queue.is_empty(), Ordering::Release);
        self.hand_on(place);
        self.shared.show_counts();
        if let Some(report) = report.filter(|_| is_awaited) {
            let all = self.history.messages().clone();
            let report_of_run = RunReport {
                run_id: id,
                run_end: end,
                text,
                error,
                turns: stats.turns,
                calls,
                stats: (&stats).into(),
                exact: stats,
                messages: Messages { all, first_of_run: first_message },
            };
            // Whoever waited may be gone.
            let _ = report.send(Ok((report_of_run, last)));
        }
    }
}
