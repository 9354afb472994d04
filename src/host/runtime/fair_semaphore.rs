//! A semaphore that is fair between sessions.
//!
//! While all permits are in use, requests wait. Sessions are served in turn, and the requests of one
//! session in the order in which they came. However many requests a session has waiting, only one of
//! them is served before another session's turn comes, so no session starves.
//!
//! A child session counts as a session of its own. There are no weights, priorities or tenants: each session with
//! waiting requests gets the same share.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use parking_lot::Mutex;
use ractor::ActorId;

use super::gauge::{CountGuard, Gauge};
use callsheet_machines::turn::PermitReply;

/// A semaphore whose waiting requests are served session by session in turn.
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

    /// Requests a permit for a session. Only if the request has to wait, `granted` is called when it gets
    /// its permit, by the task that released that permit. It must be quick.
    pub(super) fn request(
        self: &Arc<Self>,
        session: ActorId,
        granted: impl FnOnce() + Send + 'static,
    ) -> (PermitReply, PermitRequest) {
        let mut queue = self.queue.lock();
        let number = queue.next_number();
        let reply = if queue.in_use < self.max.get() {
            queue.in_use += 1;
            PermitReply::Granted
        } else {
            let waiting =
                WaitingRequest { granted: Box::new(granted), _held: self.waiting.increment() };
            queue.insert(session, number, waiting);
            PermitReply::Waiting
        };
        (reply, PermitRequest { semaphore: Arc::clone(self), session, number })
    }
}

/// A permit, or a waiting request for one. Dropping it releases the permit or cancels the request.
#[derive(Debug)]
pub(super) struct PermitRequest {
    semaphore: Arc<FairSemaphore>,
    session: ActorId,
    number: u64,
}

impl Drop for PermitRequest {
    fn drop(&mut self) {
        let mut queue = self.semaphore.queue.lock();
        let cancelled = queue.remove(self.session, self.number);
        let next = if cancelled.is_none() { queue.release() } else { None };
        drop(queue);
        if let Some(WaitingRequest { granted, _held }) = next {
            granted();
        }
    }
}

/// The permits in use and the waiting requests. While a request waits, all permits are in use.
#[derive(Debug, Default)]
struct PermitQueue {
    in_use: u32,
    last_number: u64,
    /// The sessions with waiting requests.
    sessions: HashMap<ActorId, SessionQueue>,
    /// The same sessions in the order in which they are served.
    order: BTreeMap<u64, ActorId>,
}

/// The waiting requests of one session by number; never empty.
#[derive(Debug)]
struct SessionQueue {
    /// The session's key in [`PermitQueue::order`].
    position: u64,
    waiting: BTreeMap<u64, WaitingRequest>,
}

struct WaitingRequest {
    granted: Box<dyn FnOnce() + Send>,
    _held: CountGuard,
}

impl PermitQueue {
    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    fn insert(&mut self, session: ActorId, number: u64, waiting: WaitingRequest) {
        let order = &mut self.order;
        let of_session = self.sessions.entry(session).or_insert_with(|| {
            order.insert(number, session);
            SessionQueue { position: number, waiting: BTreeMap::new() }
        });
        of_session.waiting.insert(number, waiting);
    }

    /// Removes a waiting request.
    fn remove(&mut self, session: ActorId, number: u64) -> Option<WaitingRequest> {
        let of_session = self.sessions.get_mut(&session)?;
        let waiting = of_session.waiting.remove(&number)?;
        if of_session.waiting.is_empty() {
            self.order.remove(&of_session.position);
            self.sessions.remove(&session);
        }
        Some(waiting)
    }

    /// Passes a released permit to the first request of the next session, which then moves behind the
    /// other sessions. Without a waiting request the permit is free.
    fn release(&mut self) -> Option<WaitingRequest> {
        let position = self.next_number();
        let first = self.order.pop_first().and_then(|(_, session)| {
            let of_session = self.sessions.get_mut(&session)?;
            let (_, waiting) = of_session.waiting.pop_first()?;
            if of_session.waiting.is_empty() {
                self.sessions.remove(&session);
            } else {
                of_session.position = position;
                self.order.insert(position, session);
            }
            Some(waiting)
        });
        if first.is_none() {
            self.in_use = self.in_use.saturating_sub(1);
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

    fn semaphore(max: u32) -> Arc<FairSemaphore> {
        FairSemaphore::new(NonZeroU32::new(max).unwrap(), Gauge::default())
    }

    /// Calls by name, and the order in which they were granted permits.
    struct Calls {
        semaphore: Arc<FairSemaphore>,
        granted: Arc<Mutex<Vec<&'static str>>>,
        held: HashMap<&'static str, PermitRequest>,
    }

    impl Calls {
        fn new(max: u32) -> Self {
            Self { semaphore: semaphore(max), granted: Arc::default(), held: HashMap::new() }
        }

        /// Requests permits. The first letter of a name is the session.
        fn request(&mut self, calls: &[&'static str]) {
            for &call in calls {
                let granted = Arc::clone(&self.granted);
                let session = ActorId::Local(u64::from(call.as_bytes()[0]));
                let (reply, request) =
                    self.semaphore.request(session, move || granted.lock().push(call));
                if reply == PermitReply::Granted {
                    self.granted.lock().push(call);
                }
                self.held.insert(call, request);
            }
        }

        /// Drops requests: releases the permit, or stops waiting.
        fn end(&mut self, calls: &[&'static str]) {
            calls.iter().for_each(|call| drop(self.held.remove(call).unwrap()));
        }

        #[track_caller]
        fn assert_granted(&self, expected: &[&str]) {
            assert_eq!(*self.granted.lock(), expected);
        }

        #[track_caller]
        fn assert_empty(&self) {
            let queue = self.semaphore.queue.lock();
            assert!(queue.sessions.is_empty() && queue.order.is_empty() && queue.in_use == 0);
            assert_eq!(self.semaphore.waiting.count(), 0);
        }
    }

    #[test]
    fn sessions_are_served_in_turn_and_requests_of_a_session_in_order() {
        let mut calls = Calls::new(1);
        calls.request(&["a1", "a2", "a3", "a4", "b1", "b2", "c1"]);
        assert_eq!(calls.semaphore.waiting.count(), 6);
        let order = ["a1", "a2", "b1", "c1", "a3", "b2", "a4"];
        for (ended, call) in order.iter().enumerate() {
            calls.assert_granted(&order[..=ended]);
            calls.end(&[call]);
        }
        calls.assert_empty();
    }

    #[test]
    fn a_dropped_request_is_removed_from_the_queue() {
        let mut calls = Calls::new(2);
        calls.request(&["a1", "b1", "a2", "a3", "b2", "c1"]);
        calls.assert_granted(&["a1", "b1"]);
        calls.end(&["a2", "c1", "a3"]);
        // A session that requests again is served after the waiting one.
        calls.request(&["a4"]);
        calls.end(&["b1"]);
        calls.assert_granted(&["a1", "b1", "b2"]);
        calls.end(&["a4", "b2", "a1"]);
        calls.assert_empty();
    }

    #[test]
    fn a_thousand_sessions_that_come_and_go_leave_an_empty_queue() {
        let semaphore = semaphore(3);
        for round in 0..3 {
            let mut held: Vec<_> = (0..1000)
                .flat_map(|n| [n, n])
                .map(|n| semaphore.request(ActorId::Local(n), || ()).1)
                .collect();
            assert_eq!(semaphore.waiting.count(), 1997);
            // The requests are dropped in a different order in each round.
            held.rotate_left(round * 700);
            drop(held);
            assert_eq!(semaphore.waiting.count(), 0);
            let queue = semaphore.queue.lock();
            assert!(queue.sessions.is_empty() && queue.order.is_empty() && queue.in_use == 0);
        }
    }

    #[test]
    fn concurrent_requests_are_all_granted() {
        let semaphore = semaphore(2);
        let running = Arc::new(std::sync::atomic::AtomicU32::new(0));
        std::thread::scope(|scope| {
            for session in 0..4 {
                let (semaphore, running) = (Arc::clone(&semaphore), Arc::clone(&running));
                scope.spawn(move || {
                    for round in 0..2000 {
                        let (grant, granted) = std::sync::mpsc::channel();
                        let session = ActorId::Local(session);
                        let (reply, request) =
                            semaphore.request(session, move || grant.send(()).unwrap_or(()));
                        // Some requests are dropped while they wait.
                        if reply == PermitReply::Waiting && round % 3 > 0 {
                            granted.recv_timeout(Duration::from_secs(20)).unwrap();
                        } else if reply == PermitReply::Waiting {
                            continue;
                        }
                        use std::sync::atomic::Ordering::SeqCst;
                        assert!(running.fetch_add(1, SeqCst) < 2);
                        running.fetch_sub(1, SeqCst);
                        drop(request);
                    }
                });
            }
        });
        assert_eq!((semaphore.waiting.count(), semaphore.queue.lock().in_use), (0, 0));
    }

    /// A simple model of the semaphore: a queue for each session, in the order of service.
    #[derive(Default)]
    struct Model {
        running: Vec<usize>,
        sessions: VecDeque<(u64, VecDeque<usize>)>,
        granted: Vec<usize>,
    }

    impl Model {
        fn request(&mut self, max: usize, session: u64, call: usize) {
            if self.running.len() < max {
                self.running.push(call);
                self.granted.push(call);
            } else if let Some((_, queue)) = self.sessions.iter_mut().find(|(of, _)| *of == session)
            {
                queue.push_back(call);
            } else {
                self.sessions.push_back((session, VecDeque::from([call])));
            }
        }

        fn end(&mut self, call: usize) {
            self.sessions
                .iter_mut()
                .for_each(|(_, queue)| queue.retain(|waiting| *waiting != call));
            self.sessions.retain(|(_, queue)| !queue.is_empty());
            let before = self.running.len();
            self.running.retain(|running| *running != call);
            if self.running.len() == before {
                return;
            }
            let Some((session, mut queue)) = self.sessions.pop_front() else { return };
            self.running.extend(queue.front());
            self.granted.extend(queue.pop_front());
            if !queue.is_empty() {
                self.sessions.push_back((session, queue));
            }
        }
    }

    proptest! {
        #[test]
        fn the_semaphore_behaves_like_its_model(
            max in 1_u32..4,
            // Each step requests a permit for a session, or drops one of the requests.
            steps in prop::collection::vec((0_u64..4, any::<prop::sample::Index>(), any::<bool>()), 0..80),
        ) {
            let (semaphore, granted) = (semaphore(max), Arc::new(Mutex::new(Vec::new())));
            let (mut model, mut held) = (Model::default(), Vec::new());
            for (call, (session, which, asks)) in steps.into_iter().enumerate() {
                if asks || held.is_empty() {
                    let order = Arc::clone(&granted);
                    let grant = move || order.lock().push(call);
                    let (reply, request) = semaphore.request(ActorId::Local(session), grant);
                    if reply == PermitReply::Granted {
                        granted.lock().push(call);
                    }
                    held.push((call, request));
                    model.request(max as usize, session, call);
                } else {
                    let (call, request) = held.swap_remove(which.index(held.len()));
                    drop(request);
                    model.end(call);
                }
                prop_assert_eq!(&*granted.lock(), &model.granted);
                let waiting: usize = model.sessions.iter().map(|(_, queue)| queue.len()).sum();
                prop_assert_eq!(semaphore.waiting.count(), waiting);
            }
        }
    }
}
