//! A run that takes its host down each time it goes on is set aside, so that the other sessions live.
//!
//! The journal counts the ends of hosts that were no shutdown, while they follow each other ([`HostLives`]). From the
//! second one on, a run that has made no progress during the last life of a host is a *suspect*: suspects go on one
//! after the other, each alone until it makes progress. The one that was alone when the host ended again is
//! *quarantined*: it goes on only by a request that resumes it.
//!
//! Hosts that share the journal count their crashes together: each host that has ended without closing its journal counts
//! once, for [`STABLE_AFTER`]. A suspect is alone among the suspects of all hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::error::HostError;
use super::host_ref::HostRef;
use super::message::SessionMessage;
use super::task;
use crate::journal::{Journal, JournalEntry, JournalError, SessionSummary, restored, unix_ms};
use callsheet_machines::session::pending_approvals;
use callsheet_values::record::{Record, Seq};
use callsheet_values::types::{SessionId, SessionState, is_child_session, millis};

/// The key of the document with the [`HostLives`].
const DOCUMENT: &str = "host_lives";

/// The number of crashes in a row after which a suspect goes on alone.
const CRASHES_MAX: u32 = 2;

/// A host that has lived for this time does not crash in a row.
const STABLE_AFTER: Duration = Duration::from_secs(10 * 60);

/// The longest time for which a suspect is alone. A run that waits for a slow model may need longer.
const ALONE_MAX: Duration = Duration::from_secs(30);

/// The interval at which a host looks whether it is the turn of its suspect.
const TURN_PAUSE: Duration = Duration::from_secs(1);

/// Number of attempts to change what hosts that share the journal know.
const UPDATE_TRIES: usize = 20;

/// The interval at which the progress of a suspect is looked for.
const PROGRESS_PAUSE: Duration = Duration::from_millis(20);

/// The number of last records that are searched for progress.
const LAST_RECORDS: usize = 64;

/// How the hosts that have used the journal have ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct HostLives {
    /// The start of the last host: Unix time in milliseconds.
    started: u64,
    /// True until that host has shut down.
    is_running: bool,
    /// The number of hosts in a row, without the last one, that have ended without a shutdown.
    crashes: u32,
    /// The suspect that goes on alone.
    alone: Option<SessionId>,
    /// Of hosts that share the journal: the one at which it goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    alone_at: Option<String>,
    /// Of hosts that share the journal: those that have crashed, with the time at which another one noticed. Unix time in
    /// milliseconds.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    crashed: BTreeMap<String, u64>,
    /// The sessions whose runs are set aside.
    quarantined: BTreeSet<SessionId>,
}

/// The runs that may have taken earlier hosts down, and those that have.
#[derive(Debug)]
pub(super) struct CrashLoop {
    journal: Arc<dyn Journal>,
    /// The start of the host before this one, or the crash before the last one of hosts that share the journal: Unix time
    /// in milliseconds.
    last_started: AtomicU64,
    lives: Mutex<HostLives>,
    /// Held while the document is stored, so that an older text never replaces a newer one.
    storing: tokio::sync::Mutex<()>,
    /// Held while suspects of this host go on.
    turn: tokio::sync::Mutex<()>,
}

impl HostLives {
    /// Begins the life of another host.
    fn begin(&mut self, now: u64) {
        if self.is_running {
            self.crashes += 1;
            let alone = self.alone.take().filter(|_| self.crashes > CRASHES_MAX);
            self.quarantined.extend(alone);
        } else {
            self.end_loop();
        }
        (self.started, self.is_running) = (now, true);
    }

    /// Counts the crashes of hosts that share the journal. Returns the time of the crash before the last one.
    fn note_dead(&mut self, dead: &[String], now: u64) -> u64 {
        let since = now.saturating_sub(millis(STABLE_AFTER));
        self.crashed.retain(|_, time| *time > since);
        let known = self.crashed.len();
        for host in dead {
            self.crashed.entry(host.clone()).or_insert(now);
        }
        let mut times: Vec<u64> = self.crashed.values().copied().collect();
        times.sort_unstable();
        self.crashes = u32::try_from(times.len()).unwrap_or(u32::MAX);
        if self.alone_at.as_ref().is_some_and(|host| dead.contains(host)) {
            self.alone_at = None;
            let alone = self.alone.take();
            self.quarantined.extend(alone.filter(|_| self.crashes > CRASHES_MAX));
        }
        let last =
            if self.crashed.len() > known { now } else { times.last().copied().unwrap_or(0) };
        times.iter().rev().find(|time| **time < last).copied().unwrap_or(0)
    }

    /// Forgets the crashes: the host shuts down, or has lived for long enough.
    fn end_loop(&mut self) {
        (self.crashes, self.alone) = (0, None);
    }
}

impl CrashLoop {
    /// Reads what earlier hosts have left, and notes that another one begins.
    pub(super) async fn begin(journal: Arc<dyn Journal>) -> Result<Self, JournalError> {
        let stored = journal.document(DOCUMENT).await?;
        let stored = stored.and_then(|text| serde_json::from_str::<HostLives>(&text).ok());
        let mut lives = stored.unwrap_or_default();
        let last_started = AtomicU64::new(lives.started);
        if journal.ownership().is_some() {
            let (lives, storing, turn) =
                (Mutex::new(lives), Default::default(), Default::default());
            return Ok(Self { journal, last_started, lives, storing, turn });
        }
        // The hosts of the original say nothing of those of a copy.
        if restored::is_waiting_copy(&*journal).await? {
            lives.end_loop();
            lives.is_running = false;
        }
        lives.begin(unix_ms());
        let of_host = Self {
            journal,
            last_started,
            lives: Mutex::new(lives),
            storing: Default::default(),
            turn: Default::default(),
        };
        of_host.store_or_log().await;
        Ok(of_host)
    }

    /// Stores a change. A host with a full disk starts too, so an error is only logged.
    async fn store_or_log(&self) {
        let _storing = self.storing.lock().await;
        let text = serde_json::to_string(&*self.lives.lock()).unwrap_or_default();
        if let Err(error) = self.journal.put_document(DOCUMENT, &text, None).await {
            tracing::warn!(%error, "host_lives_not_stored");
        }
    }

    /// Changes what is known, and stores it, also if this future is dropped.
    async fn update(self: &Arc<Self>, mut change: impl FnMut(&mut HostLives)) {
        if self.journal.ownership().is_some() {
            if let Err(error) = self.update_shared(change).await {
                tracing::warn!(%error, "host_lives_not_stored");
            }
            return;
        }
        change(&mut self.lives.lock());
        let of_host = Arc::clone(self);
        let stored = async move {
            of_host.store_or_log().await;
            Ok(())
        };
        // A panic of the storage engine is ignored.
        let _ = task::to_its_end(stored).await;
    }

    /// Changes what all hosts that share the journal know.
    async fn update_shared(
        &self,
        mut change: impl FnMut(&mut HostLives),
    ) -> Result<(), JournalError> {
        let Some(ownership) = self.journal.ownership() else { return Ok(()) };
        for _ in 0..UPDATE_TRIES {
            let before = self.journal.document(DOCUMENT).await?;
            let lives = before.as_deref().and_then(|text| serde_json::from_str(text).ok());
            let mut lives: HostLives = lives.unwrap_or_default();
            change(&mut lives);
            let text = serde_json::to_string(&lives).unwrap_or_default();
            let is_stored = before.as_ref() == Some(&text)
                || ownership.replace_document(DOCUMENT, before.as_deref(), &text, None).await?;
            if is_stored {
                *self.lives.lock() = lives;
                return Ok(());
            }
        }
        Err(JournalError::Write(
            "other hosts change the document host_lives again and again".to_owned(),
        ))
    }

    /// Reads again what hosts that share the journal know.
    pub(super) async fn read_again(&self) {
        if let Err(error) = self.update_shared(|_| ()).await {
            tracing::warn!(%error, "host_lives_not_read");
        }
    }

    /// Counts the hosts that share the journal and have crashed.
    async fn note_crashes(&self) -> Result<(), JournalError> {
        let Some(ownership) = self.journal.ownership() else { return Ok(()) };
        let dead = ownership.dead_hosts(STABLE_AFTER).await?;
        let mut before_last = 0;
        self.update_shared(|lives| before_last = lives.note_dead(&dead, unix_ms())).await?;
        self.last_started.store(before_last, Ordering::Release);
        Ok(())
    }

    /// Waits until no suspect goes on alone at another host, and notes that this one does here. Returns false if the host
    /// shuts down.
    async fn begin_alone(self: &Arc<Self>, host_ref: &HostRef, session: &SessionId) -> bool {
        loop {
            // A suspect that was alone at a host that is dead by now is set aside first.
            if let Err(error) = self.note_crashes().await {
                tracing::warn!(%error, "crashes_not_counted");
            }
            let living = match self.journal.ownership() {
                None => None,
                Some(ownership) => {
                    let hosts = ownership.hosts().await.unwrap_or_default();
                    Some((ownership.host_id(), hosts))
                }
            };
            let mut is_alone = false;
            self.update(|lives| {
                is_alone = match (&living, &lives.alone_at) {
                    (Some((own, hosts)), Some(at)) => {
                        at == own || !hosts.iter().any(|host| host.id == *at)
                    }
                    (Some(_) | None, _) => true,
                };
                if is_alone {
                    lives.alone = Some(session.clone());
                    lives.alone_at = living.as_ref().map(|(own, _)| (*own).to_owned());
                }
            })
            .await;
            if is_alone || !host_ref.is_ready() {
                return is_alone;
            }
            tokio::time::sleep(TURN_PAUSE).await;
        }
    }

    /// Notes that no suspect goes on alone at this host any more.
    async fn end_alone(self: &Arc<Self>) {
        let own = self.journal.ownership().map(|ownership| ownership.host_id().to_owned());
        self.update(|lives| {
            if lives.alone_at == own {
                (lives.alone, lives.alone_at) = (None, None);
            }
        })
        .await;
    }

    /// Notes that the host shuts down.
    pub(super) async fn end(self: &Arc<Self>) {
        if self.journal.ownership().is_some() {
            return;
        }
        self.update(|lives| {
            lives.end_loop();
            lives.is_running = false;
        })
        .await;
    }

    /// Returns whether crashes are counted although the host has lived for [`STABLE_AFTER`].
    pub(super) fn is_over(&self, lived: Duration) -> bool {
        // Crashes of hosts that share the journal count for this time each.
        self.journal.ownership().is_none() && lived >= STABLE_AFTER && self.lives.lock().crashes > 0
    }

    /// Notes that the host has lived for [`STABLE_AFTER`].
    pub(super) async fn end_loop(self: &Arc<Self>) {
        self.update(HostLives::end_loop).await;
    }

    /// Returns the sessions whose runs are set aside.
    pub(super) fn quarantined(&self) -> Vec<SessionId> {
        self.lives.lock().quarantined.iter().cloned().collect()
    }

    /// Returns whether the run of a session is set aside.
    pub(super) fn is_quarantined(&self, session: &SessionId) -> bool {
        self.lives.lock().quarantined.contains(session)
    }

    /// Notes that a run that was set aside goes on or ends, or that its session is deleted.
    pub(super) async fn release(self: &Arc<Self>, session: &SessionId) {
        self.update(|lives| {
            lives.quarantined.remove(session);
        })
        .await;
    }

    /// Returns the sessions that do not go on by themselves: those whose runs are set aside, and suspects, which
    /// [`continue_suspects`] lets go on.
    pub(super) async fn held(&self, unfinished: &[SessionId]) -> Held {
        if !unfinished.is_empty()
            && let Err(error) = self.note_crashes().await
        {
            tracing::warn!(%error, "crashes_not_counted");
        }
        let lives = self.lives.lock().clone();
        let is_quarantined = |id: &&SessionId| lives.quarantined.contains(*id);
        let quarantined: BTreeSet<_> = unfinished.iter().filter(is_quarantined).cloned().collect();
        let mut suspects = BTreeSet::new();
        if lives.crashes >= CRASHES_MAX {
            for id in unfinished.iter().filter(|id| !is_quarantined(id)) {
                // If its records cannot be read, it does not go on.
                if self.is_suspect(id).await.unwrap_or(false) {
                    suspects.insert(id.clone());
                }
            }
        }
        for session in &quarantined {
            tracing::error!(
                %session,
                "run_quarantined: the host ended each time this run went on; resume or stop it"
            );
        }
        Held { quarantined, suspects }
    }

    /// Returns whether the run of a session has made no progress since the last host started.
    async fn is_suspect(&self, session: &SessionId) -> Result<bool, JournalError> {
        let Some(stored) = self.journal.find(session).await? else { return Ok(false) };
        let before = stored.seq.0.saturating_sub(LAST_RECORDS as u64);
        let last = self.journal.read(session, Seq(before)).await?;
        // A run that waits for a person does nothing when it goes on.
        let waits = !pending_approvals(&last).is_empty();
        let last_started = self.last_started.load(Ordering::Acquire);
        let since = |entry: &JournalEntry| entry.time >= last_started && is_progress(&entry.record);
        Ok(!waits && !last.iter().any(since))
    }
}

/// The sessions with unfinished runs that do not go on by themselves when the host starts.
#[derive(Debug, Default)]
pub(super) struct Held {
    pub(super) quarantined: BTreeSet<SessionId>,
    pub(super) suspects: BTreeSet<SessionId>,
}

impl Held {
    /// Returns the sessions.
    pub(super) fn all(&self) -> BTreeSet<SessionId> {
        self.quarantined.union(&self.suspects).cloned().collect()
    }
}

/// Returns whether a record shows that the run has come further. A resumed run that makes the same step again records
/// its attempt and the intent of its call again, and clients may send inputs meanwhile.
fn is_progress(record: &Record) -> bool {
    !matches!(
        record,
        Record::AttemptStarted { .. }
            | Record::AttemptFailed { host_stopped: true, .. }
            | Record::CallIntended { .. }
            | Record::InputQueued { .. }
            | Record::InputRemoved { .. }
            | Record::Steered { .. }
    )
}

/// Lets suspects go on, one after the other. The run of a child session goes on with the call of its parent.
pub(super) async fn continue_suspects(host_ref: &HostRef, suspects: BTreeSet<SessionId>) {
    if suspects.is_empty() {
        return;
    }
    let _turn = host_ref.shared.crash_loop.turn.lock().await;
    for id in suspects.into_iter().filter(|id| !is_child_session(id)) {
        if !host_ref.is_ready() {
            return;
        }
        let crash_loop = &host_ref.shared.crash_loop;
        tracing::warn!(session = %id, "run_continues_alone: the host has ended twice without a shutdown");
        if !crash_loop.begin_alone(host_ref, &id).await {
            return;
        }
        if let Err(error) = continue_alone(host_ref, &id).await {
            tracing::warn!(session = %id, %error, "run_not_continued");
        }
    }
    host_ref.shared.crash_loop.end_alone().await;
}

/// Lets the run of a session go on, and waits until it makes progress, ends, leaves memory, or its time is over.
async fn continue_alone(host_ref: &HostRef, id: &SessionId) -> Result<(), HostError> {
    let shared = &host_ref.shared;
    // A client may have stopped the run while it waited for its turn.
    let stored = shared.journal.find(id).await?;
    let Some(SessionSummary { state: SessionState::Running, seq: mut seen, .. }) = stored else {
        return Ok(());
    };
    shared.index.note_resumed(id);
    let awake_session = host_ref.get_or_wake(id).await?;
    let _ = awake_session.actor.cast(SessionMessage::ContinueRun);
    let until = tokio::time::Instant::now() + ALONE_MAX;
    while tokio::time::Instant::now() < until && host_ref.is_ready() {
        tokio::time::sleep(PROGRESS_PAUSE).await;
        if shared.index.awake(id).is_none() {
            break;
        }
        let entries = shared.journal.read(id, seen).await?;
        if entries.iter().any(|entry| is_progress(&entry.record)) {
            break;
        }
        seen = entries.last().map_or(seen, |entry| entry.seq);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> SessionId {
        SessionId::parse(text).unwrap()
    }

    #[test]
    fn only_ends_without_a_shutdown_in_a_row_are_counted() {
        let mut lives = HostLives::default();
        lives.begin(1);
        assert_eq!((lives.crashes, lives.is_running), (0, true));
        lives.begin(2);
        lives.begin(3);
        assert_eq!(lives.crashes, 2);
        lives.end_loop();
        lives.is_running = false;
        lives.begin(4);
        assert_eq!(lives.crashes, 0);
        lives.begin(5);
        lives.end_loop();
        lives.begin(6);
        assert_eq!(lives.crashes, 1, "a host that has lived for long begins anew");
    }

    #[test]
    fn the_run_that_was_alone_at_the_third_end_is_set_aside() {
        let mut lives = HostLives { is_running: true, crashes: 1, ..HostLives::default() };
        lives.alone = Some(id("a"));
        lives.begin(1);
        assert!(lives.quarantined.is_empty(), "it was not alone because of crashes");
        lives.alone = Some(id("b"));
        lives.begin(2);
        assert_eq!(lives.quarantined, BTreeSet::from([id("b")]));
        assert_eq!(lives.alone, None);
        lives.begin(3);
        assert_eq!(lives.quarantined.len(), 1, "nothing was alone");
    }

    #[test]
    fn hosts_that_share_a_journal_count_each_dead_host_once_for_a_while() {
        let mut lives = HostLives::default();
        let hosts = |names: &[&str]| -> Vec<String> { names.iter().map(|n| (*n).into()).collect() };
        assert_eq!(lives.note_dead(&hosts(&["a"]), 1_000), 0);
        assert_eq!(lives.note_dead(&hosts(&["a"]), 2_000), 0);
        assert_eq!(lives.crashes, 1);
        assert_eq!(lives.note_dead(&hosts(&["a", "b"]), 3_000), 1_000);
        assert_eq!(lives.crashes, 2);
        (lives.alone, lives.alone_at) = (Some(id("s")), Some("c".to_owned()));
        assert_eq!(lives.note_dead(&hosts(&["a", "b"]), 4_000), 1_000);
        assert!(lives.quarantined.is_empty());
        assert_eq!(lives.note_dead(&hosts(&["a", "b", "c"]), 5_000), 3_000);
        assert_eq!(lives.quarantined, BTreeSet::from([id("s")]));
        assert_eq!((&lives.alone, &lives.alone_at), (&None, &None));
        // They are no loop with later ones.
        let later = 5_000 + millis(STABLE_AFTER);
        lives.note_dead(&hosts(&[]), later);
        assert_eq!(lives.crashes, 0);
    }

    #[tokio::test]
    async fn the_crashes_of_the_original_of_a_copy_are_not_counted() {
        for (is_copy, crashes) in [(false, 3), (true, 0)] {
            let journal = Arc::new(crate::journal::MemoryJournal::new());
            let lives = HostLives { is_running: true, crashes: 2, ..HostLives::default() };
            let text = serde_json::to_string(&lives).unwrap();
            journal.put_document(DOCUMENT, &text, None).await.unwrap();
            if is_copy {
                journal.put_document("restored_copy", "waits", None).await.unwrap();
            }
            let begun = CrashLoop::begin(journal).await.unwrap();
            assert_eq!(begun.lives.lock().crashes, crashes);
        }
    }
}
