//! How many calls of a tool may run at once in the whole host, and whose turn it is.
//!
//! A tool with a cap has so many places. While all are taken, calls wait: the sessions take turns,
//! and the calls of one session come in the order in which they asked. So a session with many
//! waiting calls does not hold up another's first.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use parking_lot::Mutex;
use ractor::ActorId;

use super::gauge::{Gauge, Held};
use crate::tool::Registry;
use crate::turn::Place;

/// The tools of a host that have a cap. Clones have the same places.
#[derive(Clone, Debug)]
pub(super) struct Caps {
    tools: Arc<BTreeMap<String, Arc<Cap>>>,
    waiting: Gauge,
}

impl Caps {
    /// The caps of these tools; `waiting` counts the calls that wait.
    pub(super) fn new(tools: &Registry, waiting: Gauge) -> Self {
        let caps = tools.iter().filter_map(|(name, tool)| {
            let max = tool.spec.max_concurrent?;
            Some((name.to_owned(), Arc::new(Cap { max, queue: Mutex::default() })))
        });
        Self { tools: Arc::new(caps.collect()), waiting }
    }

    /// Takes a place of a tool for a call of a session, or one in the session's line. When the
    /// turn of a call that waits has come, `granted` is called, by whoever has made room: it must
    /// be quick. Nothing is reserved of a tool without a cap.
    pub(super) fn reserve(
        &self,
        tool: &str,
        session: ActorId,
        granted: impl FnOnce() + Send + 'static,
    ) -> (Place, Option<Reservation>) {
        let Some(cap) = self.tools.get(tool) else { return (Place::Granted, None) };
        let mut queue = cap.queue.lock();
        let number = queue.next_number();
        let place = if queue.taken < cap.max.get() {
            queue.taken += 1;
            Place::Granted
        } else {
            let call = Waiting { granted: Box::new(granted), _held: self.waiting.hold() };
            queue.enter(session, number, call);
            Place::Waiting
        };
        (place, Some(Reservation { cap: Arc::clone(cap), session, number }))
    }
}

/// A call's place of its tool, or its place in the line. Dropped, it is given up.
#[derive(Debug)]
pub(super) struct Reservation {
    cap: Arc<Cap>,
    session: ActorId,
    number: u64,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut queue = self.cap.queue.lock();
        let own = queue.leave(self.session, self.number);
        let next = if own.is_none() { queue.hand_on() } else { None };
        drop(queue);
        if let Some(Waiting { granted, _held }) = next {
            granted();
        }
    }
}

#[derive(Debug)]
struct Cap {
    max: NonZeroU32,
    /// Held for short sections, never over an await, and not while anybody is told.
    queue: Mutex<Queue>,
}

/// Who has a place of one tool, and who waits. While somebody waits, all places are taken.
#[derive(Debug, Default)]
struct Queue {
    taken: u32,
    numbers: u64,
    lines: HashMap<ActorId, Line>,
    /// The sessions with waiting calls, in the order in which they are served.
    turns: BTreeMap<u64, ActorId>,
}

/// The waiting calls of a session, by number; never empty.
#[derive(Debug)]
struct Line {
    turn: u64,
    calls: BTreeMap<u64, Waiting>,
}

struct Waiting {
    granted: Box<dyn FnOnce() + Send>,
    _held: Held,
}

impl Queue {
    fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn enter(&mut self, session: ActorId, number: u64, call: Waiting) {
        let turns = &mut self.turns;
        let line = self.lines.entry(session).or_insert_with(|| {
            turns.insert(number, session);
            Line { turn: number, calls: BTreeMap::new() }
        });
        line.calls.insert(number, call);
    }

    /// Takes a call out of its line, if it waits.
    fn leave(&mut self, session: ActorId, number: u64) -> Option<Waiting> {
        let line = self.lines.get_mut(&session)?;
        let call = line.calls.remove(&number)?;
        if line.calls.is_empty() {
            self.turns.remove(&line.turn);
            self.lines.remove(&session);
        }
        Some(call)
    }

    /// Gives the place of a call that is over to the first of the session whose turn it is, which
    /// then stands behind the others; nobody's, it is free.
    fn hand_on(&mut self) -> Option<Waiting> {
        let turn = self.next_number();
        let first = self.turns.pop_first().and_then(|(_, session)| {
            let line = self.lines.get_mut(&session)?;
            let (_, call) = line.calls.pop_first()?;
            if line.calls.is_empty() {
                self.lines.remove(&session);
            } else {
                line.turn = turn;
                self.turns.insert(turn, session);
            }
            Some(call)
        });
        if first.is_none() {
            self.taken = self.taken.saturating_sub(1);
        }
        first
    }
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiting").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::tool::{InputSchema, Tool, ToolContext, ToolError, ToolOutput, ToolSpec};

    struct Capped(u32);

    #[async_trait::async_trait]
    impl Tool for Capped {
        fn spec(&self) -> ToolSpec {
            ToolSpec::with_schema("capped", "", InputSchema::of::<()>()).max_concurrent(self.0)
        }

        async fn run(&self, _: ToolContext) -> Result<ToolOutput, ToolError> {
            Ok("".into())
        }
    }

    fn caps(max: u32) -> Caps {
        let mut tools = Registry::new();
        tools.register(Capped(max)).unwrap();
        Caps::new(&tools, Gauge::default())
    }

    /// Calls by name, and in which order they were granted their places.
    struct Calls {
        caps: Caps,
        granted: Arc<Mutex<Vec<&'static str>>>,
        held: HashMap<&'static str, Reservation>,
    }

    impl Calls {
        fn new(max: u32) -> Self {
            Self { caps: caps(max), granted: Arc::default(), held: HashMap::new() }
        }

        /// The first letter of a call says whose it is.
        fn ask(&mut self, calls: &[&'static str]) {
            for &call in calls {
                let granted = Arc::clone(&self.granted);
                let session = ActorId::Local(u64::from(call.as_bytes()[0]));
                let (place, reservation) =
                    self.caps.reserve("capped", session, move || granted.lock().push(call));
                if place == Place::Granted {
                    self.granted.lock().push(call);
                }
                self.held.insert(call, reservation.unwrap());
            }
        }

        /// Ends calls, or ends their waiting.
        fn end(&mut self, calls: &[&'static str]) {
            calls.iter().for_each(|call| drop(self.held.remove(call).unwrap()));
        }

        #[track_caller]
        fn granted(&self, expected: &[&str]) {
            assert_eq!(*self.granted.lock(), expected);
        }

        #[track_caller]
        fn is_empty(&self) {
            let queue = self.caps.tools["capped"].queue.lock();
            assert!(queue.lines.is_empty() && queue.turns.is_empty() && queue.taken == 0);
            assert_eq!(self.caps.waiting.count(), 0);
        }
    }

    #[test]
    fn sessions_take_turns_and_calls_of_one_come_in_their_order() {
        let mut calls = Calls::new(1);
        calls.ask(&["a1", "a2", "a3", "a4", "b1", "b2", "c1"]);
        assert_eq!(calls.caps.waiting.count(), 6);
        let order = ["a1", "a2", "b1", "c1", "a3", "b2", "a4"];
        for (ended, call) in order.iter().enumerate() {
            calls.granted(&order[..=ended]);
            calls.end(&[call]);
        }
        calls.is_empty();
    }

    #[test]
    fn whoever_gives_up_is_passed_over_and_leaves_nothing_behind() {
        let mut calls = Calls::new(2);
        calls.ask(&["a1", "b1", "a2", "a3", "b2", "c1"]);
        calls.granted(&["a1", "b1"]);
        calls.end(&["a2", "c1", "a3"]);
        // It comes back, and stands behind the one that stayed.
        calls.ask(&["a4"]);
        calls.end(&["b1"]);
        calls.granted(&["a1", "b1", "b2"]);
        calls.end(&["a4", "b2", "a1"]);
        calls.is_empty();
    }

    #[test]
    fn a_tool_without_a_cap_reserves_nothing() {
        let (place, reservation) = caps(1).reserve("other", ActorId::Local(1), || ());
        assert!(place == Place::Granted && reservation.is_none());
    }

    #[test]
    fn a_thousand_sessions_that_come_and_go_leave_an_empty_queue() {
        let caps = caps(3);
        for round in 0..3 {
            let mut held: Vec<_> = (0..1000)
                .flat_map(|n| [n, n])
                .map(|n| caps.reserve("capped", ActorId::Local(n), || ()).1)
                .collect();
            assert_eq!(caps.waiting.count(), 1997);
            // In another order each time.
            held.rotate_left(round * 700);
            drop(held);
            assert_eq!(caps.waiting.count(), 0);
            let queue = caps.tools["capped"].queue.lock();
            assert!(queue.lines.is_empty() && queue.turns.is_empty() && queue.taken == 0);
        }
    }

    #[test]
    fn no_turn_is_lost_between_threads() {
        let caps = caps(2);
        let running = Arc::new(std::sync::atomic::AtomicU32::new(0));
        std::thread::scope(|scope| {
            for session in 0..4 {
                let (caps, running) = (caps.clone(), Arc::clone(&running));
                scope.spawn(move || {
                    for round in 0..2000 {
                        let (tell, told) = std::sync::mpsc::channel();
                        let session = ActorId::Local(session);
                        let (place, reservation) =
                            caps.reserve("capped", session, move || tell.send(()).unwrap_or(()));
                        // Some go before their turn has come.
                        if place == Place::Waiting && round % 3 > 0 {
                            told.recv_timeout(Duration::from_secs(20)).unwrap();
                        } else if place == Place::Waiting {
                            continue;
                        }
                        use std::sync::atomic::Ordering::SeqCst;
                        assert!(running.fetch_add(1, SeqCst) < 2);
                        running.fetch_sub(1, SeqCst);
                        drop(reservation);
                    }
                });
            }
        });
        assert_eq!((caps.waiting.count(), caps.tools["capped"].queue.lock().taken), (0, 0));
    }

    /// The rule as one would write it down: a line for each session, in the order of their turns.
    #[derive(Default)]
    struct Model {
        running: Vec<usize>,
        lines: VecDeque<(u64, VecDeque<usize>)>,
        granted: Vec<usize>,
    }

    impl Model {
        fn ask(&mut self, max: usize, session: u64, call: usize) {
            if self.running.len() < max {
                self.running.push(call);
                self.granted.push(call);
            } else if let Some((_, line)) = self.lines.iter_mut().find(|(of, _)| *of == session) {
                line.push_back(call);
            } else {
                self.lines.push_back((session, VecDeque::from([call])));
            }
        }

        fn end(&mut self, call: usize) {
            self.lines.iter_mut().for_each(|(_, line)| line.retain(|waiting| *waiting != call));
            self.lines.retain(|(_, line)| !line.is_empty());
            let before = self.running.len();
            self.running.retain(|running| *running != call);
            if self.running.len() == before {
                return;
            }
            let Some((session, mut line)) = self.lines.pop_front() else { return };
            self.running.extend(line.front());
            self.granted.extend(line.pop_front());
            if !line.is_empty() {
                self.lines.push_back((session, line));
            }
        }
    }

    proptest! {
        #[test]
        fn the_queue_does_as_its_rule_says(
            max in 1_u32..4,
            // A session asks, or any call that is there ends.
            steps in prop::collection::vec((0_u64..4, any::<prop::sample::Index>(), any::<bool>()), 0..80),
        ) {
            let (caps, granted) = (caps(max), Arc::new(Mutex::new(Vec::new())));
            let (mut model, mut held) = (Model::default(), Vec::new());
            for (call, (session, which, asks)) in steps.into_iter().enumerate() {
                if asks || held.is_empty() {
                    let order = Arc::clone(&granted);
                    let tell = move || order.lock().push(call);
                    let (place, own) = caps.reserve("capped", ActorId::Local(session), tell);
                    if place == Place::Granted {
                        granted.lock().push(call);
                    }
                    held.push((call, own));
                    model.ask(max as usize, session, call);
                } else {
                    let (call, own) = held.swap_remove(which.index(held.len()));
                    drop(own);
                    model.end(call);
                }
                prop_assert_eq!(&*granted.lock(), &model.granted);
                let waiting: usize = model.lines.iter().map(|(_, line)| line.len()).sum();
                prop_assert_eq!(caps.waiting.count(), waiting);
            }
        }
    }
}
