//! A semaphore that is fair between sessions.
//!
//! While all permits are taken, requests wait. Sessions are served in turn, and the requests of one
//! session in the order in which they came. A session with many waiting requests therefore does not
//! delay the first request of another one.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use parking_lot::Mutex;
use ractor::ActorId;

use super::gauge::{CountGuard, Gauge};
use crate::turn::PermitReply;

/// A number of permits of one kind.
#[derive(Debug)]
pub(super) struct FairSemaphore {
    max: NonZeroU32,
    /// Locked for short sections: never across an await, and never while a callback runs.
    queue: Mutex<PermitQueue>,
    waiting: Gauge,
}

impl FairSemaphore {
    /// Creates a semaphore with all permits free. `waiting` counts the waiting requests.
    pub(super) fn new(max: NonZeroU32, waiting: Gauge) -> Arc<Self> {
        Arc::new(Self { max, queue: Mutex::default(), waiting })
    }

    /// Requests a permit for a session. If the request has to wait, `granted` is called when its turn has
    /// come, by the task that released the permit: it must be quick.
    pub(super) fn reserve(
        self: &Arc<Self>,
        session: ActorId,
        granted: impl FnOnce() + Send + 'static,
    ) -> (PermitReply, PermitRequest) {
        let mut queue = self.queue.lock();
        let number = queue.next_number();
        let place = if queue.taken < self.max.get() {
            queue.taken += 1;
            PermitReply::Granted
        } else {
            let waiting =
                WaitingRequest { granted: Box::new(granted), _held: self.waiting.increment() };
            queue.enter(session, number, waiting);
            PermitReply::Waiting
        };
        (place, PermitRequest { places: Arc::clone(self), session, number })
    }
}

/// A permit, or a waiting request for one. Dropping it releases the permit or cancels the request.
#[derive(Debug)]
pub(super) struct PermitRequest {
    places: Arc<FairSemaphore>,
    session: ActorId,
    number: u64,
}

impl Drop for PermitRequest {
    fn drop(&mut self) {
        let mut queue = self.places.queue.lock();
        let own = queue.leave(self.session, self.number);
        let next = if own.is_none() { queue.hand_on() } else { None };
        drop(queue);
        if let Some(WaitingRequest { granted, _held }) = next {
            granted();
        }
    }
}

/// The taken permits and the waiting requests. While a request waits, all permits are taken.
#[derive(Debug, Default)]
struct PermitQueue {
    taken: u32,
    numbers: u64,
    lines: HashMap<ActorId, SessionQueue>,
    /// The sessions with waiting requests, in the order in which they are served.
    turns: BTreeMap<u64, ActorId>,
}

/// The waiting requests of one session by number; never empty.
#[derive(Debug)]
struct SessionQueue {
    turn: u64,
    waiting: BTreeMap<u64, WaitingRequest>,
}

struct WaitingRequest {
    granted: Box<dyn FnOnce() + Send>,
    _held: CountGuard,
}

impl PermitQueue {
    fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn enter(&mut self, session: ActorId, number: u64, waiting: WaitingRequest) {
        let turns = &mut self.turns;
        let line = self.lines.entry(session).or_insert_with(|| {
            turns.insert(number, session);
            SessionQueue { turn: number, waiting: BTreeMap::new() }
        });
        line.waiting.insert(number, waiting);
    }

    /// Removes a waiting request.
    fn leave(&mut self, session: ActorId, number: u64) -> Option<WaitingRequest> {
        let line = self.lines.get_mut(&session)?;
        let waiting = line.waiting.remove(&number)?;
        if line.waiting.is_empty() {
            self.turns.remove(&line.turn);
            self.lines.remove(&session);
        }
        Some(waiting)
    }

    /// Passes a released permit to the first request of the next session, which then moves behind the
    /// other sessions. Without a waiting request the permit is free.
    fn hand_on(&mut self) -> Option<WaitingRequest> {
        let turn = self.next_number();
        let first = self.turns.pop_first().and_then(|(_, session)| {
            let line = self.lines.get_mut(&session)?;
            let (_, waiting) = line.waiting.pop_first()?;
            if line.waiting.is_empty() {
                self.lines.remove(&session);
            } else {
                line.turn = turn;
                self.turns.insert(turn, session);
            }
            Some(waiting)
        });
        if first.is_none() {
            self.taken = self.taken.saturating_sub(1);
        }
        first
    }
}

impl fmt::Debug for WaitingRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitingRequest").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn places(max: u32) -> Arc<FairSemaphore> {
        FairSemaphore::new(NonZeroU32::new(max).unwrap(), Gauge::default())
    }

    /// Calls by name, and in which order they were granted their places.
    struct Calls {
        places: Arc<FairSemaphore>,
        granted: Arc<Mutex<Vec<&'static str>>>,
        held: HashMap<&'static str, PermitRequest>,
    }

    impl Calls {
        fn new(max: u32) -> Self {
            Self { places: places(max), granted: Arc::default(), held: HashMap::new() }
        }

        /// The first letter of a call says whose it is.
        fn ask(&mut self, calls: &[&'static str]) {
            for &call in calls {
                let granted = Arc::clone(&self.granted);
                let session = ActorId::Local(u64::from(call.as_bytes()[0]));
                let (place, reservation) =
                    self.places.reserve(session, move || granted.lock().push(call));
                if place == PermitReply::Granted {
                    self.granted.lock().push(call);
                }
                self.held.insert(call, reservation);
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
            let queue = self.places.queue.lock();
            assert!(queue.lines.is_empty() && queue.turns.is_empty() && queue.taken == 0);
            assert_eq!(self.places.waiting.count(), 0);
        }
    }

    #[test]
    fn sessions_take_turns_and_calls_of_one_come_in_their_order() {
        let mut calls = Calls::new(1);
        calls.ask(&["a1", "a2", "a3", "a4", "b1", "b2", "c1"]);
        assert_eq!(calls.places.waiting.count(), 6);
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
    fn a_thousand_sessions_that_come_and_go_leave_an_empty_queue() {
        let places = places(3);
        for round in 0..3 {
            let mut held: Vec<_> = (0..1000)
                .flat_map(|n| [n, n])
                .map(|n| places.reserve(ActorId::Local(n), || ()).1)
                .collect();
            assert_eq!(places.waiting.count(), 1997);
            // In another order each time.
            held.rotate_left(round * 700);
            drop(held);
            assert_eq!(places.waiting.count(), 0);
            let queue = places.queue.lock();
            assert!(queue.lines.is_empty() && queue.turns.is_empty() && queue.taken == 0);
        }
    }

    #[test]
    fn no_turn_is_lost_between_threads() {
        let places = places(2);
        let running = Arc::new(std::sync::atomic::AtomicU32::new(0));
        std::thread::scope(|scope| {
            for session in 0..4 {
                let (places, running) = (Arc::clone(&places), Arc::clone(&running));
                scope.spawn(move || {
                    for round in 0..2000 {
                        let (tell, told) = std::sync::mpsc::channel();
                        let session = ActorId::Local(session);
                        let (place, reservation) =
                            places.reserve(session, move || tell.send(()).unwrap_or(()));
                        // Some go before their turn has come.
                        if place == PermitReply::Waiting && round % 3 > 0 {
                            told.recv_timeout(Duration::from_secs(20)).unwrap();
                        } else if place == PermitReply::Waiting {
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
        assert_eq!((places.waiting.count(), places.queue.lock().taken), (0, 0));
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
            let (places, granted) = (places(max), Arc::new(Mutex::new(Vec::new())));
            let (mut model, mut held) = (Model::default(), Vec::new());
            for (call, (session, which, asks)) in steps.into_iter().enumerate() {
                if asks || held.is_empty() {
                    let order = Arc::clone(&granted);
                    let tell = move || order.lock().push(call);
                    let (place, own) = places.reserve(ActorId::Local(session), tell);
                    if place == PermitReply::Granted {
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
                prop_assert_eq!(places.waiting.count(), waiting);
            }
        }
    }
}
