//! The use of ractor's actors: how a child is spawned, how its supervisor receives its end, and calls.
//!
//! - An actor handles one message at a time. Its mailbox has no limit, so a sender that must not run ahead awaits a
//!   [`call`]; everything else is a `cast`. A message to an actor that has ended is an error.
//! - The supervisor of an actor receives its end ([`ChildEnd`]) before all messages that wait, also before the last
//!   ones of that actor.
//! - A stop takes effect after the current message: what waits in the mailbox is dropped. A kill takes effect at the
//!   next await that has to wait, also within a message.
//! - A panic ends only the actor itself. The end of an actor kills its children.
//! - The future of the current message and the messages that wait are dropped before the supervisor receives the end.
//!   The state of an actor is dropped by its supervisor then ([`ChildEnd::from_event`]), after a panic at about the same
//!   time. So a value that must be gone by then, such as the permit of a call, belongs to the message.
//!
//! The handlers of messages never return an error, because a failure that is expected is a value. Actors have no names,
//! because names are common to the process. Each actor has a tracing span at the level `info`.

use std::panic::{AssertUnwindSafe, catch_unwind};

use futures::FutureExt as _;
use ractor::{
    Actor, ActorCell, ActorId, ActorRef, ActorStatus, Message, SpawnErr, SupervisionEvent,
};
use tokio::sync::oneshot;
use tokio::task::coop::unconstrained;

/// The reason with which ractor reports the end of an actor that was killed.
const KILLED: &str = "killed";

/// The receiver of the message of a [`call`] replies here.
pub(super) type ReplyPort<T> = oneshot::Sender<T>;

/// The end of a child.
#[derive(Debug)]
pub(super) struct ChildEnd {
    pub(super) actor: ActorId,
    pub(super) cause: EndCause,
}

/// The cause of an actor's end.
#[derive(Debug)]
pub(super) enum EndCause {
    Stopped,
    Killed,
    /// It panicked with this message.
    Panicked(String),
}

/// The reason why a [`call`] has no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallError {
    /// The actor had ended, and has not received the message.
    Ended,
    /// The reply port was dropped.
    NoReply,
}

impl ChildEnd {
    /// Returns the end that an event reports. Returns `None` for a start. Drops the child's state.
    pub(super) fn from_event(event: SupervisionEvent) -> Option<Self> {
        match event {
            SupervisionEvent::ActorTerminated(actor, state, reason) => {
                // A value of the program in it may panic, which must not end the supervisor.
                let _ = catch_unwind(AssertUnwindSafe(|| drop(state)));
                let cause = match reason.as_deref() {
                    Some(KILLED) => EndCause::Killed,
                    _ => EndCause::Stopped,
                };
                Some(Self { actor: actor.get_id(), cause })
            }
            SupervisionEvent::ActorFailed(actor, panic) => {
                Some(Self { actor: actor.get_id(), cause: EndCause::Panicked(panic.to_string()) })
            }
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => None,
        }
    }
}

/// Spawns an actor as a child of its supervisor. Its `pre_start` must not wait.
///
/// The child is linked when this returns, so its supervisor receives every end of it, and it ends with its supervisor.
/// The actors of [`ractor::ActorRuntime::spawn_linked_instant`] are linked only when a further task has run: if one dies
/// before, its supervisor does not learn it, and the end of the supervisor does not kill it.
///
/// # Errors
/// If `pre_start` fails or panics, or if the supervisor is ending.
pub(super) fn spawn_linked<A: Actor>(
    supervisor: &ActorCell,
    handler: A,
    arguments: A::Arguments,
) -> Result<ActorRef<A::Msg>, SpawnErr> {
    let start = A::spawn_linked(None, handler, arguments, supervisor.clone());
    // Nothing in the start waits, unless the task has used up its budget.
    let started = unconstrained(start).now_or_never();
    let waits = || Err(SpawnErr::StartupFailed("its pre_start waits".into()));
    started.unwrap_or_else(waits).map(|(actor, _)| actor)
}

/// Sends a message, and waits for the reply.
///
/// # Errors
/// If the actor has ended, or drops the reply port.
pub(super) async fn call<M: Message, T>(
    actor: &ActorRef<M>,
    message: impl FnOnce(ReplyPort<T>) -> M,
) -> Result<T, CallError> {
    let (port, reply) = oneshot::channel();
    actor.cast(message(port)).map_err(|_| CallError::Ended)?;
    reply.await.map_err(|_| CallError::NoReply)
}

/// Returns whether the actor receives no more messages.
pub(super) fn has_ended(actor: &ActorCell) -> bool {
    actor.get_status() >= ActorStatus::Stopping
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use parking_lot::Mutex;
    use ractor::ActorProcessingErr;
    use tokio::time::timeout;

    use super::*;

    const SOON: Duration = Duration::from_secs(30);

    /// What has happened, in order.
    type Seen = Arc<Mutex<Vec<String>>>;

    /// A value that notes when it is dropped, and may panic then.
    struct Dropped {
        seen: Seen,
        panics: bool,
    }

    impl Drop for Dropped {
        fn drop(&mut self) {
            self.seen.lock().push("dropped".to_owned());
            assert!(!self.panics, "a panic in a test");
        }
    }

    enum Order {
        Note(&'static str),
        Reply(ReplyPort<u8>),
        DropPort(ReplyPort<u8>),
        /// Reply, then handle no other message until the receiver has a value or its sender is dropped.
        Wait(oneshot::Receiver<()>, ReplyPort<()>),
        Hold(Dropped, ReplyPort<()>),
        Spawn(ReplyPort<ActorRef<Self>>),
        SpawnKilled(ReplyPort<()>),
        SpawnPanicking(ReplyPort<bool>),
        Panic(Option<Dropped>),
    }

    /// Notes what it handles. With [`Start::Panic`] it panics in `pre_start`.
    struct Observer;

    enum Start {
        Note(Seen),
        Keep(Seen, Dropped),
        Panic,
    }

    struct Notes {
        seen: Seen,
        _kept: Option<Dropped>,
    }

    impl Actor for Observer {
        type Msg = Order;
        type State = Notes;
        type Arguments = Start;

        async fn pre_start(
            &self,
            _: ActorRef<Order>,
            start: Start,
        ) -> Result<Notes, ActorProcessingErr> {
            match start {
                Start::Note(seen) => Ok(Notes { seen, _kept: None }),
                Start::Keep(seen, kept) => Ok(Notes { seen, _kept: Some(kept) }),
                Start::Panic => panic!("a panic in a test"),
            }
        }

        async fn handle(
            &self,
            myself: ActorRef<Order>,
            message: Order,
            notes: &mut Notes,
        ) -> Result<(), ActorProcessingErr> {
            let seen = Arc::clone(&notes.seen);
            let spawn = |start| spawn_linked(&myself, Self, start);
            match message {
                Order::Note(text) => seen.lock().push(text.to_owned()),
                Order::Reply(port) => port.send(7).expect("the caller waits"),
                Order::DropPort(port) => drop(port),
                Order::Wait(wait, begun) => {
                    begun.send(()).expect("the caller waits");
                    drop(wait.await);
                    seen.lock().push("waited".to_owned());
                }
                Order::Hold(_held, begun) => {
                    begun.send(()).expect("the caller waits");
                    std::future::pending().await
                }
                Order::Spawn(port) => {
                    let child = spawn(Start::Note(seen)).expect("the supervisor is alive");
                    port.send(child).expect("the caller waits");
                }
                Order::SpawnKilled(port) => {
                    spawn(Start::Note(seen)).expect("the supervisor is alive").kill();
                    port.send(()).expect("the caller waits");
                }
                Order::SpawnPanicking(port) => {
                    port.send(spawn(Start::Panic).is_err()).expect("the caller waits");
                }
                Order::Panic(_held) => panic!("a panic in a test"),
            }
            Ok(())
        }

        async fn handle_supervisor_evt(
            &self,
            _: ActorRef<Order>,
            event: SupervisionEvent,
            notes: &mut Notes,
        ) -> Result<(), ActorProcessingErr> {
            if let Some(end) = ChildEnd::from_event(event) {
                notes.seen.lock().push(format!("{:?}", end.cause));
            }
            Ok(())
        }

        async fn post_stop(
            &self,
            _: ActorRef<Order>,
            notes: &mut Notes,
        ) -> Result<(), ActorProcessingErr> {
            notes.seen.lock().push("stopped".to_owned());
            Ok(())
        }
    }

    /// Spawns an actor with one child. Returns the notes of both, the actor and the child.
    async fn family() -> (Seen, ActorRef<Order>, ActorRef<Order>) {
        let seen = Seen::default();
        let parent = Observer::spawn(None, Observer, Start::Note(Arc::clone(&seen))).await;
        let (parent, _) = parent.expect("it starts");
        let child = call(&parent, Order::Spawn).await.expect("it is alive");
        (seen, parent, child)
    }

    async fn end_of(actor: &ActorRef<Order>) {
        timeout(SOON, actor.wait(None)).await.expect("the actor ends").expect("no time limit");
    }

    /// Makes an actor wait within a message. Returns what ends the wait.
    async fn hold(actor: &ActorRef<Order>) -> oneshot::Sender<()> {
        let (release, wait) = oneshot::channel();
        call(actor, |begun| Order::Wait(wait, begun)).await.expect("it is alive");
        release
    }

    /// Waits until an actor has handled everything that it has received.
    async fn settled(actor: &ActorRef<Order>) {
        assert_eq!(call(actor, Order::Reply).await, Ok(7));
    }

    #[tokio::test]
    async fn messages_are_handled_in_order_and_calls_have_replies() {
        let (seen, parent, _) = family().await;
        parent.cast(Order::Note("first")).expect("it is alive");
        parent.cast(Order::Note("second")).expect("it is alive");
        settled(&parent).await;
        assert_eq!(call(&parent, Order::DropPort).await, Err(CallError::NoReply));
        assert_eq!(*seen.lock(), ["first", "second"]);
    }

    #[tokio::test]
    async fn a_stop_ends_the_current_message_and_drops_the_waiting_ones() {
        let (seen, parent, child) = family().await;
        let release = hold(&child).await;
        child.cast(Order::Note("dropped")).expect("it is alive");
        child.stop(None);
        assert!(!has_ended(&child));
        release.send(()).expect("it waits");
        end_of(&child).await;
        settled(&parent).await;
        assert_eq!(*seen.lock(), ["waited", "stopped", "Stopped"]);
        assert!(parent.get_children().is_empty() && has_ended(&child));
        assert!(child.cast(Order::Note("late")).is_err());
        assert_eq!(call(&child, Order::Reply).await, Err(CallError::Ended));
    }

    #[tokio::test]
    async fn a_kill_drops_the_current_message_and_the_waiting_ones_before_the_end_is_reported() {
        let (seen, parent, child) = family().await;
        let held = Dropped { seen: Arc::clone(&seen), panics: false };
        call(&child, |begun| Order::Hold(held, begun)).await.expect("it is alive");
        let (port, reply) = oneshot::channel();
        child.cast(Order::Reply(port)).expect("it is alive");
        child.kill();
        let reply = timeout(SOON, reply).await.expect("the message that waits is dropped");
        assert!(reply.is_err());
        end_of(&child).await;
        settled(&parent).await;
        assert_eq!(*seen.lock(), ["dropped", "Killed"]);
    }

    #[tokio::test]
    async fn a_panic_drops_its_message_and_is_reported_before_the_messages_that_wait() {
        let (seen, parent, child) = family().await;
        let release = hold(&parent).await;
        parent.cast(Order::Note("message")).expect("it is alive");
        let held = Dropped { seen: Arc::clone(&seen), panics: false };
        child.cast(Order::Panic(Some(held))).expect("it is alive");
        end_of(&child).await;
        release.send(()).expect("it waits");
        settled(&parent).await;
        let panic = r#"Panicked("a panic in a test")"#;
        assert_eq!(*seen.lock(), ["dropped", "waited", panic, "message"]);
    }

    #[tokio::test]
    async fn a_child_that_is_killed_before_it_has_run_has_an_end() {
        let (seen, parent, _) = family().await;
        call(&parent, Order::SpawnKilled).await.expect("it is alive");
        while seen.lock().is_empty() {
            settled(&parent).await;
        }
        assert_eq!(*seen.lock(), ["Killed"]);
    }

    #[tokio::test]
    async fn a_panic_in_a_start_is_an_error_for_the_supervisor_and_no_end() {
        let (seen, parent, child) = family().await;
        assert_eq!(call(&parent, Order::SpawnPanicking).await, Ok(true));
        settled(&parent).await;
        assert!(seen.lock().is_empty());
        assert_eq!(parent.get_children(), [child.get_cell()]);
    }

    #[tokio::test]
    async fn the_end_of_an_actor_kills_its_children() {
        for ends in [
            (|parent| parent.stop(None)) as fn(&ActorRef<Order>),
            |parent| parent.kill(),
            |parent| parent.cast(Order::Panic(None)).expect("it is alive"),
        ] {
            let (seen, parent, child) = family().await;
            let grandchild = call(&child, Order::Spawn).await.expect("it is alive");
            let _release = hold(&grandchild).await;
            ends(&parent);
            end_of(&grandchild).await;
            end_of(&child).await;
            let is_own = |note: &String| note == "stopped";
            assert!(seen.lock().iter().all(is_own), "nobody receives the ends");
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn a_child_of_an_ended_supervisor_does_not_start() {
        let (seen, parent, _) = family().await;
        parent.stop(None);
        end_of(&parent).await;
        for _ in 0..200 {
            let start =
                Start::Keep(Arc::clone(&seen), Dropped { seen: Arc::clone(&seen), panics: false });
            seen.lock().clear();
            assert!(spawn_linked(&parent, Observer, start).is_err());
            assert_eq!(*seen.lock(), ["dropped"]);
        }
    }

    #[tokio::test]
    async fn a_state_that_panics_when_it_is_dropped_does_not_end_the_supervisor() {
        let (seen, parent, _) = family().await;
        let kept = Dropped { seen: Arc::clone(&seen), panics: true };
        let start = Start::Keep(Arc::clone(&seen), kept);
        let child = spawn_linked(&parent, Observer, start).expect("the supervisor is alive");
        child.stop(None);
        end_of(&child).await;
        settled(&parent).await;
        assert_eq!(*seen.lock(), ["stopped", "dropped", "Stopped"]);
    }

    #[tokio::test]
    async fn a_start_is_complete_although_the_budget_of_the_task_is_used_up() {
        let (_, parent, _) = family().await;
        // On this runtime of one thread, all of this is one poll of one task.
        for _ in 0..1_000 {
            let start = Start::Note(Seen::default());
            let child = spawn_linked(&parent, Observer, start).expect("the supervisor is alive");
            let _ = tokio::task::coop::consume_budget().now_or_never();
            child.stop(None);
        }
    }

    #[tokio::test]
    async fn messages_without_end_leave_time_for_others() {
        /// Sends itself this number of messages.
        struct Endless;
        impl Actor for Endless {
            type Msg = ();
            type State = u32;
            type Arguments = u32;

            async fn pre_start(
                &self,
                _: ActorRef<()>,
                left: u32,
            ) -> Result<u32, ActorProcessingErr> {
                Ok(left)
            }

            async fn handle(
                &self,
                myself: ActorRef<()>,
                (): (),
                left: &mut u32,
            ) -> Result<(), ActorProcessingErr> {
                *left -= 1;
                match *left {
                    0 => panic!("it has handled all"),
                    _ => myself.cast(()).map_err(Into::into),
                }
            }
        }
        let (endless, _) = Endless::spawn(None, Endless, 1_000_000).await.expect("it starts");
        endless.cast(()).expect("it is alive");
        // On this runtime of one thread, the actor would handle all messages here.
        tokio::task::yield_now().await;
        assert!(!has_ended(&endless), "it has more to do");
        endless.kill();
        timeout(SOON, endless.wait(None)).await.expect("the actor ends").expect("no time limit");
    }
}
