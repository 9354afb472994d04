//! What was rebuilt is what lives, and goes on as it does.

use super::*;

impl Live {
    /// A session that goes on from what was rebuilt.
    pub(super) fn going_on(&self, rebuilt: &Rebuilt) -> Self {
        let mut live = Self {
            seed: self.seed,
            entries: self.entries.clone(),
            time: self.time + 5000,
            history: rebuilt.history.clone(),
            variables: rebuilt.variables.clone(),
            usage: rebuilt.usage,
            turn: rebuilt.turn,
            queue: rebuilt.queue.clone().into(),
            requests: rebuilt.requests.clone(),
            run: None,
            past: Vec::new(),
            runs: self.runs,
            quiet: true,
        };
        let Some(open) = rebuilt.run.clone() else {
            live.begin_next();
            return live;
        };
        let next = open.next.clone();
        match next {
            Continue::Turn { plan, entries } if entries.is_empty() => live.go_on_with(open, plan),
            Continue::Turn { plan, entries } => {
                live.turn -= 1;
                live.go_on_with(open, plan);
                live.resume(live.entries.len() - entries.len());
            }
            Continue::Step(step) => {
                live.go_on_with(open, TurnPlan { last_request: false });
                live.turn -= 1;
                live.follow(step);
            }
        }
        live
    }

    pub(super) fn check(&self) {
        if self.quiet {
            return;
        }
        let rebuilt = Rebuilt::fold(&self.entries, &limits).unwrap();
        let mut live = self.clone();
        let step = live.hear();
        assert_eq!(rebuilt.history, live.history);
        assert_eq!(rebuilt.variables, live.variables);
        assert_eq!(rebuilt.usage, live.usage);
        assert_eq!(rebuilt.requests, live.requests);
        assert_eq!(rebuilt.queue, Vec::from(live.queue));
        let Some(LiveRun { mut open, plan, turn, first, stopped_between, .. }) = live.run else {
            assert_eq!((rebuilt.run, rebuilt.turn), (None, live.turn));
            return self.check_going_on(&Rebuilt::fold(&self.entries, &limits).unwrap());
        };
        // It may be taken for one that came before the turn was decided on.
        if !stopped_between {
            assert_eq!(rebuilt.turn, if turn.is_some() { live.turn } else { live.turn - 1 });
            open.next = match step {
                Some(FollowUp { limits, next: RunNext::Turn(plan) }) if limits.is_empty() => {
                    Continue::Turn { plan, entries: Vec::new() }
                }
                Some(step) => Continue::Step(step),
                None if turn.is_none() => Continue::Turn { plan, entries: Vec::new() },
                None => Continue::Turn { plan, entries: self.entries[first..].to_vec() },
            };
            open.turn_after = rebuilt.run.as_ref().unwrap().turn_after;
            assert_eq!(rebuilt.run.as_ref(), Some(&open));
        }
        // Each session at other places.
        if (self.entries.len() as u64 + self.seed).is_multiple_of(3) {
            self.check_going_on(&rebuilt);
        }
    }

    /// What goes on from here ends as what was not cut, unless something was lost.
    pub(super) fn check_going_on(&self, rebuilt: &Rebuilt) {
        let mut cut = self.going_on(rebuilt);
        cut.finish();
        let mut whole = self.clone();
        whole.quiet = true;
        match &self.run {
            None => whole.begin_next(),
            Some(LiveRun { turn: Some(_), now, records, .. }) => {
                whole.turn_mut().handle_recorded(*now, *records);
                whole.pump();
            }
            Some(_) => {}
        }
        whole.finish();
        Rebuilt::fold(&cut.entries, &limits).unwrap();
        if !self.is_something_lost() {
            let messages = |live: &Self| serde_json::to_value(live.history.messages()).unwrap();
            assert_eq!(messages(&cut), messages(&whole));
            assert_eq!(cut.variables, whole.variables);
            assert_eq!(cut.turn, whole.turn);
        }
    }

    pub(super) fn is_something_lost(&self) -> bool {
        let Some(run) = &self.run else { return false };
        let of_turn = &self.entries[run.first.min(self.entries.len())..];
        let has = |wanted: &dyn Fn(&Record) -> bool| of_turn.iter().any(|e| wanted(&e.record));
        let judged = has(&|record| matches!(record, Record::ResponseEnded { .. }));
        let open_effect = of_turn.iter().any(|entry| match &entry.record {
            Record::CallIntended { call, .. } => {
                let answered = has(&|record| match record {
                    Record::CallEnded { call: of, .. } => of.key == call.key,
                    Record::CallReported { key, .. } => *key == call.key,
                    _ => false,
                });
                !judged || (!answered && &*call.name != "idempotent")
            }
            _ => false,
        });
        run.stopped_between
            || run.open.stops == Some(StopMode::Now)
            || has(&|record| matches!(record, Record::AttemptFailed { .. }))
            || open_effect
    }
}
