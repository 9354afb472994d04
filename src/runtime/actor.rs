//! Actors: a task with a mailbox and a supervisor, as in Erlang.
//!
//! - An actor handles one message at a time. Its mailbox has no limit, so a sender that must not run ahead awaits
//!   a [`ActorRef::call`]; everything else is an [`ActorRef::cast`].
//! - The supervisor of an actor receives its end ([`ChildEnd`]) before all messages that wait, also before the
//!   last ones of that actor.
//! - A stop takes effect after the current message: what waits in the mailbox is dropped. A kill takes effect at the
//!   next await that has to wait, also within a message.
//! - A panic ends only the actor itself. The end of an actor kills its children.
//!
//! An actor is one allocation for its task and one for its mailbox, besides what waits in it and the index of its
//! children. Most of the memory and time that a general actor library takes goes into separate channels for messages,
//! supervision, stop and kill.

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};

use futures::FutureExt as _;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;

/// An empty mailbox gives its memory back if it had room for more messages than this.
const KEPT_CAPACITY: usize = 32;

/// The state of an actor, and how it handles what it receives.
pub(super) trait Actor: Send + 'static {
    type Message: Send + 'static;

    /// Called first. Nothing is received before it has returned.
    fn start(&mut self, _: &ActorRef<Self::Message>) -> impl Future<Output = ()> + Send {
        async {}
    }

    fn handle(
        &mut self,
        myself: &ActorRef<Self::Message>,
        message: Self::Message,
    ) -> impl Future<Output = ()> + Send;

    /// Handles the end of a child.
    fn handle_child_end(
        &mut self,
        _: &ActorRef<Self::Message>,
        _: ChildEnd,
    ) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Called last, when the actor was stopped; not after a kill or a panic.
    fn stopped(&mut self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// The identity of an actor, unique in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ActorId(pub(super) u64);

/// A reference to an actor. The actor lives on when all are dropped.
pub(super) struct ActorRef<M> {
    mailbox: Arc<Mailbox<M>>,
}

/// A reference to an actor with messages of any type.
#[derive(Clone)]
pub(super) struct AnyActorRef(Arc<dyn AnyMailbox>);

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

/// The receiver of the message of a [`ActorRef::call`] replies here.
pub(super) type ReplyPort<T> = oneshot::Sender<T>;

/// The reason why a message was not delivered, or a call has no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MailboxError {
    /// The actor had ended, and has not received the message.
    Ended,
    /// The reply port was dropped.
    NoReply,
}

struct Mailbox<M> {
    id: ActorId,
    inbox: Mutex<Inbox<M>>,
    ended: Notify,
}

struct Inbox<M> {
    messages: VecDeque<M>,
    child_ends: VecDeque<ChildEnd>,
    children: BTreeMap<ActorId, AnyActorRef>,
    phase: ActorPhase,
    /// Kills the task. `None` until it is spawned, and after its end.
    task: Option<AbortHandle>,
    /// Set while the actor waits for a message or the end of a child.
    waker: Option<Waker>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ActorPhase {
    Running,
    Stopping,
    Killed,
    Ended,
}

/// The next item that an actor handles.
enum NextItem<M> {
    Message(M),
    ChildEnd(ChildEnd),
    Stop,
}

/// A mailbox with messages of any type.
trait AnyMailbox: Send + Sync {
    fn id(&self) -> ActorId;
    fn kill(&self);
    /// Adds a child. Returns false if the actor has ended.
    fn adopt(&self, child: AnyActorRef) -> bool;
    fn child_ended(&self, end: ChildEnd);
    #[cfg(test)]
    fn children(&self) -> Vec<AnyActorRef>;
}

/// Ends the actor when it is dropped, which happens after the actor's state was dropped.
struct EndGuard<M: Send + 'static> {
    mailbox: Arc<Mailbox<M>>,
    supervisor: Option<AnyActorRef>,
    cause: EndCause,
}

/// An actor with the guard of its end. The fields are dropped in this order, so that the state is dropped before the
/// supervisor receives the end, also if the task is aborted before it has run.
struct ActorTask<A: Actor> {
    actor: A,
    myself: ActorRef<A::Message>,
    end: EndGuard<A::Message>,
}

/// Spawns an actor without a supervisor. It may keep a reference to itself.
pub(super) fn spawn_root<A: Actor>(
    actor: impl FnOnce(&ActorRef<A::Message>) -> A,
) -> ActorRef<A::Message> {
    let myself = ActorRef::new();
    let actor = actor(&myself);
    spawn(actor, myself, None)
}

/// Spawns an actor as a child of its supervisor. If that has ended, the actor ends at once and does not start.
pub(super) fn spawn_child<P: Send + 'static, A: Actor>(
    supervisor: &ActorRef<P>,
    actor: A,
) -> ActorRef<A::Message> {
    spawn(actor, ActorRef::new(), Some(supervisor.any_ref()))
}

#[expect(clippy::disallowed_methods, reason = "the task of an actor ends with it")]
fn spawn<A: Actor>(
    actor: A,
    myself: ActorRef<A::Message>,
    supervisor: Option<AnyActorRef>,
) -> ActorRef<A::Message> {
    let child = myself.any_ref();
    let is_orphan = supervisor.as_ref().is_some_and(|supervisor| !supervisor.0.adopt(child));
    let mailbox = Arc::clone(&myself.mailbox);
    let end = EndGuard { mailbox, supervisor, cause: EndCause::Killed };
    let task = ActorTask { actor, myself: myself.clone(), end };
    if is_orphan {
        drop(task);
    } else {
        myself.mailbox.set_task(tokio::spawn(run(task)).abort_handle());
    }
    myself
}

/// Runs an actor to its end.
#[expect(clippy::manual_async_fn, reason = "it would keep a second copy of its argument")]
fn run<A: Actor>(mut task: ActorTask<A>) -> impl Future<Output = ()> + Send {
    async move {
        let task = &mut task;
        let ran = AssertUnwindSafe(handle_all(&mut task.actor, &task.myself)).catch_unwind().await;
        task.end.cause = match ran {
            Ok(()) => EndCause::Stopped,
            Err(panic) => EndCause::Panicked(panic_message(&*panic)),
        };
    }
}

async fn handle_all<A: Actor>(actor: &mut A, myself: &ActorRef<A::Message>) {
    actor.start(myself).await;
    loop {
        // Lets other tasks run even if the mailbox never becomes empty.
        tokio::task::coop::consume_budget().await;
        match myself.mailbox.next().await {
            NextItem::Message(message) => actor.handle(myself, message).await,
            NextItem::ChildEnd(end) => actor.handle_child_end(myself, end).await,
            NextItem::Stop => break,
        }
    }
    actor.stopped().await;
}

/// Removes the first item. An empty queue gives its memory back if it had room for more than [`KEPT_CAPACITY`].
fn pop<T>(queue: &mut VecDeque<T>) -> Option<T> {
    let first = queue.pop_front();
    if queue.is_empty() && queue.capacity() > KEPT_CAPACITY {
        *queue = VecDeque::new();
    }
    first
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// Returns the message of a panic.
fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a message").to_owned()
}

impl<M: Send + 'static> ActorRef<M> {
    fn new() -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let inbox = Inbox {
            messages: VecDeque::new(),
            child_ends: VecDeque::new(),
            children: BTreeMap::new(),
            phase: ActorPhase::Running,
            task: None,
            waker: None,
        };
        let id = ActorId(NEXT_ID.fetch_add(1, Ordering::Relaxed));
        let mailbox = Mailbox { id, inbox: Mutex::new(inbox), ended: Notify::new() };
        Self { mailbox: Arc::new(mailbox) }
    }

    pub(super) fn id(&self) -> ActorId {
        self.mailbox.id
    }

    pub(super) fn any_ref(&self) -> AnyActorRef {
        AnyActorRef(Arc::clone(&self.mailbox) as Arc<dyn AnyMailbox>)
    }

    /// Sends a message. An actor that is about to end drops it.
    ///
    /// # Errors
    /// If the actor has ended.
    pub(super) fn cast(&self, message: M) -> Result<(), MailboxError> {
        let waker = {
            let mut inbox = self.mailbox.inbox.lock();
            if inbox.phase == ActorPhase::Ended {
                return Err(MailboxError::Ended);
            }
            inbox.messages.push_back(message);
            inbox.waker.take()
        };
        wake(waker);
        Ok(())
    }

    /// Sends a message, and waits for the reply.
    ///
    /// # Errors
    /// If the actor has ended, or drops the reply port.
    pub(super) async fn call<T>(
        &self,
        message: impl FnOnce(ReplyPort<T>) -> M,
    ) -> Result<T, MailboxError> {
        let (port, reply) = oneshot::channel();
        self.cast(message(port))?;
        reply.await.map_err(|_| MailboxError::NoReply)
    }

    /// Ends the actor after its current message.
    pub(super) fn stop(&self) {
        let waker = {
            let mut inbox = self.mailbox.inbox.lock();
            if inbox.phase == ActorPhase::Running {
                inbox.phase = ActorPhase::Stopping;
            }
            inbox.waker.take()
        };
        wake(waker);
    }

    /// Ends the actor at its next await that has to wait.
    pub(super) fn kill(&self) {
        self.mailbox.kill();
    }

    /// Waits until the actor has ended. Its children may still be ending.
    pub(super) async fn wait_for_end(&self) {
        let ended = self.mailbox.ended.notified();
        if self.has_ended() {
            return;
        }
        ended.await;
    }

    pub(super) fn has_ended(&self) -> bool {
        self.mailbox.inbox.lock().phase == ActorPhase::Ended
    }

    pub(super) fn has_children(&self) -> bool {
        !self.mailbox.inbox.lock().children.is_empty()
    }
}

impl AnyActorRef {
    pub(super) fn id(&self) -> ActorId {
        self.0.id()
    }

    /// Ends the actor at its next await that has to wait. Its supervisor receives the end.
    pub(super) fn kill(&self) {
        self.0.kill();
    }

    /// Returns the living children.
    #[cfg(test)]
    pub(super) fn children(&self) -> Vec<Self> {
        self.0.children()
    }
}

#[cfg(test)]
impl PartialEq for AnyActorRef {
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

impl<M> Mailbox<M> {
    fn set_task(&self, task: AbortHandle) {
        let mut inbox = self.inbox.lock();
        match inbox.phase {
            ActorPhase::Running | ActorPhase::Stopping => {}
            ActorPhase::Killed => task.abort(),
            // The handle would keep the memory of the task.
            ActorPhase::Ended => return,
        }
        inbox.task = Some(task);
    }

    async fn next(&self) -> NextItem<M> {
        poll_fn(|context| {
            let mut inbox = self.inbox.lock();
            match inbox.phase {
                ActorPhase::Running => {}
                ActorPhase::Stopping => return Poll::Ready(NextItem::Stop),
                // The task is about to be dropped.
                ActorPhase::Killed | ActorPhase::Ended => return Poll::Pending,
            }
            if let Some(end) = pop(&mut inbox.child_ends) {
                return Poll::Ready(NextItem::ChildEnd(end));
            }
            if let Some(message) = pop(&mut inbox.messages) {
                return Poll::Ready(NextItem::Message(message));
            }
            inbox.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl<M: Send> AnyMailbox for Mailbox<M> {
    fn id(&self) -> ActorId {
        self.id
    }

    fn kill(&self) {
        let mut inbox = self.inbox.lock();
        if inbox.phase == ActorPhase::Ended {
            return;
        }
        inbox.phase = ActorPhase::Killed;
        if let Some(task) = &inbox.task {
            task.abort();
        }
    }

    fn adopt(&self, child: AnyActorRef) -> bool {
        let mut inbox = self.inbox.lock();
        let is_alive = inbox.phase != ActorPhase::Ended;
        if is_alive {
            inbox.children.insert(child.id(), child);
        }
        is_alive
    }

    fn child_ended(&self, end: ChildEnd) {
        let (child, waker) = {
            let mut inbox = self.inbox.lock();
            let child = inbox.children.remove(&end.actor);
            if inbox.phase == ActorPhase::Ended {
                return;
            }
            inbox.child_ends.push_back(end);
            (child, inbox.waker.take())
        };
        drop(child);
        wake(waker);
    }

    #[cfg(test)]
    fn children(&self) -> Vec<AnyActorRef> {
        self.inbox.lock().children.values().cloned().collect()
    }
}

impl<M: Send + 'static> Drop for EndGuard<M> {
    fn drop(&mut self) {
        let (messages, child_ends, children) = {
            let mut inbox = self.mailbox.inbox.lock();
            inbox.phase = ActorPhase::Ended;
            inbox.task = None;
            inbox.waker = None;
            (
                std::mem::take(&mut inbox.messages),
                std::mem::take(&mut inbox.child_ends),
                std::mem::take(&mut inbox.children),
            )
        };
        // Dropped without the lock, because a message may hold the last reference of something that uses it.
        // A panic of a value of the program must not keep the end from the supervisor.
        for message in messages {
            let _ = catch_unwind(AssertUnwindSafe(|| drop(message)));
        }
        drop(child_ends);
        children.values().for_each(AnyActorRef::kill);
        if let Some(supervisor) = &self.supervisor {
            let cause = std::mem::replace(&mut self.cause, EndCause::Stopped);
            supervisor.0.child_ended(ChildEnd { actor: self.mailbox.id, cause });
        }
        self.mailbox.ended.notify_waiters();
    }
}

impl<M> Clone for ActorRef<M> {
    fn clone(&self) -> Self {
        Self { mailbox: Arc::clone(&self.mailbox) }
    }
}

impl<M> fmt::Debug for ActorRef<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ActorRef").field(&self.mailbox.id.0).finish()
    }
}

impl fmt::Debug for AnyActorRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AnyActorRef").field(&self.id().0).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const SOON: Duration = Duration::from_secs(30);

    /// The notes of an [`Observer`], in order.
    type Seen = Arc<Mutex<Vec<String>>>;

    enum Order {
        Note(&'static str),
        Reply(ReplyPort<u8>),
        DropPort(ReplyPort<u8>),
        /// Reply, then handle no other message until the receiver has a value or its sender is dropped.
        Wait(oneshot::Receiver<()>, ReplyPort<()>),
        Spawn(ReplyPort<ActorRef<Self>>),
        Panic,
    }

    struct Observer(Seen);

    impl Actor for Observer {
        type Message = Order;

        async fn handle(&mut self, myself: &ActorRef<Order>, message: Order) {
            match message {
                Order::Note(text) => self.0.lock().push(text.to_owned()),
                Order::Reply(port) => port.send(7).expect("the caller waits"),
                Order::DropPort(port) => drop(port),
                Order::Wait(wait, begun) => {
                    begun.send(()).expect("the caller waits");
                    drop(wait.await);
                    self.0.lock().push("waited".to_owned());
                }
                Order::Spawn(port) => {
                    let child = spawn_child(myself, Self(Arc::clone(&self.0)));
                    port.send(child).expect("the caller waits");
                }
                Order::Panic => panic!("a panic in a test"),
            }
        }

        async fn handle_child_end(&mut self, _: &ActorRef<Order>, end: ChildEnd) {
            self.0.lock().push(format!("{:?}", end.cause));
        }

        async fn stopped(&mut self) {
            self.0.lock().push("stopped".to_owned());
        }
    }

    /// Spawns an actor with one child. Returns the notes of both, the actor and the child.
    async fn family() -> (Seen, ActorRef<Order>, ActorRef<Order>) {
        let seen = Seen::default();
        let parent = spawn_root(|_| Observer(Arc::clone(&seen)));
        let child = parent.call(Order::Spawn).await.expect("it is alive");
        (seen, parent, child)
    }

    async fn end_of(actor: &ActorRef<Order>) {
        timeout(SOON, actor.wait_for_end()).await.expect("the actor ends");
    }

    /// Makes an actor wait within a message. Returns what ends the wait.
    async fn hold(actor: &ActorRef<Order>) -> oneshot::Sender<()> {
        let (release, wait) = oneshot::channel();
        actor.call(|begun| Order::Wait(wait, begun)).await.expect("it is alive");
        release
    }

    #[tokio::test]
    async fn messages_are_handled_in_order_and_calls_have_replies() {
        let (seen, parent, _) = family().await;
        parent.cast(Order::Note("first")).expect("it is alive");
        parent.cast(Order::Note("second")).expect("it is alive");
        assert_eq!(parent.call(Order::Reply).await, Ok(7));
        assert_eq!(parent.call(Order::DropPort).await, Err(MailboxError::NoReply));
        assert_eq!(*seen.lock(), ["first", "second"]);
    }

    #[tokio::test]
    async fn a_stop_ends_the_current_message_and_drops_the_waiting_ones() {
        let (seen, parent, child) = family().await;
        let release = hold(&child).await;
        child.cast(Order::Note("dropped")).expect("it is alive");
        child.stop();
        assert!(!child.has_ended());
        release.send(()).expect("it waits");
        end_of(&child).await;
        assert_eq!(parent.call(Order::Reply).await, Ok(7));
        assert_eq!(*seen.lock(), ["waited", "stopped", "Stopped"]);
        assert!(!parent.has_children());
        assert_eq!(child.cast(Order::Note("late")), Err(MailboxError::Ended));
        assert_eq!(child.call(Order::Reply).await, Err(MailboxError::Ended));
    }

    #[tokio::test]
    async fn a_kill_ends_a_message_that_waits() {
        let (seen, parent, child) = family().await;
        let _release = hold(&child).await;
        let (port, reply) = oneshot::channel();
        child.cast(Order::Reply(port)).expect("it is alive");
        child.kill();
        let reply = timeout(SOON, reply).await.expect("the message that waits is dropped");
        assert!(reply.is_err());
        end_of(&child).await;
        assert_eq!(parent.call(Order::Reply).await, Ok(7));
        assert_eq!(*seen.lock(), ["Killed"]);
    }

    #[tokio::test]
    async fn a_panic_reaches_the_supervisor_before_its_waiting_messages() {
        let (seen, parent, child) = family().await;
        let release = hold(&parent).await;
        parent.cast(Order::Note("message")).expect("it is alive");
        child.cast(Order::Panic).expect("it is alive");
        end_of(&child).await;
        release.send(()).expect("it waits");
        assert_eq!(parent.call(Order::Reply).await, Ok(7));
        assert_eq!(*seen.lock(), ["waited", r#"Panicked("a panic in a test")"#, "message"]);
    }

    #[tokio::test]
    async fn the_end_of_an_actor_kills_its_children() {
        for ends in [
            (|parent| parent.stop()) as fn(&ActorRef<Order>),
            |parent| parent.kill(),
            |parent| parent.cast(Order::Panic).expect("it is alive"),
        ] {
            let (seen, parent, child) = family().await;
            let grandchild = child.call(Order::Spawn).await.expect("it is alive");
            let _release = hold(&grandchild).await;
            ends(&parent);
            end_of(&grandchild).await;
            end_of(&child).await;
            let is_own = |note: &String| note == "stopped";
            assert!(seen.lock().iter().all(is_own), "nobody receives the ends");
        }
    }

    #[tokio::test]
    async fn a_child_of_an_ended_supervisor_is_killed() {
        let (seen, parent, _) = family().await;
        parent.stop();
        end_of(&parent).await;
        let orphan = spawn_child(&parent, Observer(Arc::clone(&seen)));
        end_of(&orphan).await;
        assert_eq!(*seen.lock(), ["stopped"], "an orphan handles nothing");
    }

    #[tokio::test]
    async fn messages_without_end_leave_time_for_others() {
        /// Sends itself this number of messages.
        struct Endless(u32);
        impl Actor for Endless {
            type Message = ();
            async fn handle(&mut self, myself: &ActorRef<()>, (): ()) {
                self.0 -= 1;
                if self.0 > 0 {
                    myself.cast(()).expect("it is alive");
                }
            }
        }
        let endless = spawn_root(|_| Endless(1_000_000));
        endless.cast(()).expect("it is alive");
        // On this runtime of one thread, the actor would handle all messages here.
        tokio::task::yield_now().await;
        assert_eq!(endless.mailbox.inbox.lock().messages.len(), 1, "it has more to do");
        endless.kill();
        timeout(SOON, endless.wait_for_end()).await.expect("the actor ends");
    }

    #[tokio::test]
    async fn a_burst_of_messages_leaves_no_memory_behind() {
        let (_, parent, _) = family().await;
        let release = hold(&parent).await;
        for _ in 0..1000 {
            parent.cast(Order::Note("one of many")).expect("it is alive");
        }
        release.send(()).expect("it waits");
        assert_eq!(parent.call(Order::Reply).await, Ok(7));
        assert!(parent.mailbox.inbox.lock().messages.capacity() <= KEPT_CAPACITY);
    }

    /// A value that notes when it is dropped, and may panic then.
    struct Dropped {
        seen: Seen,
        of: Option<ActorRef<Self>>,
        panics: bool,
    }

    impl Drop for Dropped {
        fn drop(&mut self) {
            let has_ended = self.of.as_ref().is_some_and(ActorRef::has_ended);
            self.seen.lock().push(format!("dropped, ended: {has_ended}"));
            assert!(!self.panics, "a panic in a test");
        }
    }

    /// An actor that notes its start, and whose message handler never returns.
    struct Holder {
        seen: Seen,
        _held: Option<Dropped>,
    }

    impl Actor for Holder {
        type Message = Dropped;

        async fn start(&mut self, _: &ActorRef<Dropped>) {
            self.seen.lock().push("started".to_owned());
        }

        async fn handle(&mut self, _: &ActorRef<Dropped>, _: Dropped) {
            std::future::pending().await
        }
    }

    #[tokio::test]
    async fn the_state_is_dropped_before_the_end() {
        for has_run in [false, true] {
            let seen = Seen::default();
            let holder = spawn_root(|myself: &ActorRef<Dropped>| {
                let held =
                    Dropped { seen: Arc::clone(&seen), of: Some(myself.clone()), panics: false };
                Holder { seen: Seen::default(), _held: Some(held) }
            });
            if has_run {
                tokio::task::yield_now().await;
            }
            holder.kill();
            timeout(SOON, holder.wait_for_end()).await.expect("the actor ends");
            assert_eq!(*seen.lock(), ["dropped, ended: false"], "{has_run}");
        }
    }

    #[tokio::test]
    async fn a_panic_while_a_message_is_dropped_does_not_hide_the_end() {
        let seen = Seen::default();
        let holder = spawn_root(|_| Holder { seen: Seen::default(), _held: None });
        for _ in 0..3 {
            let bomb = Dropped { seen: Arc::clone(&seen), of: None, panics: true };
            holder.cast(bomb).map_err(drop).expect("it is alive");
        }
        holder.kill();
        timeout(SOON, holder.wait_for_end()).await.expect("the actor ends");
        assert_eq!(seen.lock().len(), 3);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn a_child_of_an_ended_supervisor_does_not_start() {
        let (_, parent, _) = family().await;
        parent.stop();
        end_of(&parent).await;
        for _ in 0..200 {
            let seen = Seen::default();
            let orphan = spawn_child(&parent, Holder { seen: Arc::clone(&seen), _held: None });
            assert!(orphan.has_ended());
            tokio::task::yield_now().await;
            assert!(seen.lock().is_empty());
        }
    }
}
