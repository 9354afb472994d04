//! The ownership of sessions by hosts that share a journal.

use std::fmt;
use std::time::Duration;

use futures::future::BoxFuture;

use super::JournalFuture;
use callsheet_values::types::SessionId;

/// The ownership of sessions, of an engine that several hosts use at the same time. Each host has a [`Journal`] of its
/// own, and all of them have the same records.
///
/// The unit is the *tree*: a session that a client has opened, and all its child sessions, which calls of agents open,
/// have one owner. A fork is a tree of its own. A host owns a tree from the batch that opens it, or from
/// [`take`](Self::take), until it has [given](Self::give) each session of the tree that it has opened or taken, until
/// the journal is closed, or until it has [lost](Self::lost) the tree. Batches of another host are refused as
/// [`Fenced`](super::BatchRefusal::Fenced) then, in the statement that would store them.
///
/// [`check_journal`](super::check_journal) tests it.
///
/// ```
/// use callsheet::SessionId;
/// use callsheet::journal::{Journal, JournalError, Owner};
///
/// /// Returns the host that has a session.
/// async fn owner(journal: &dyn Journal, session: &SessionId) -> Result<String, JournalError> {
///     let Some(ownership) = journal.ownership() else { return Ok("this host".to_owned()) };
///     Ok(match ownership.take(session).await? {
///         Owner::This => {
///             ownership.give(session).await?;
///             "this host".to_owned()
///         }
///         Owner::Other(other) => other.address.unwrap_or(other.id),
///     })
/// }
/// ```
///
/// [`Journal`]: super::Journal
pub trait Ownership: Send + Sync + fmt::Debug {
    /// Returns the id of this host, by which the others know it.
    fn host_id(&self) -> &str;

    /// Takes the tree of a session, unless another host that lives owns it, and counts one more use of the session.
    /// Returns the owner. A session that is not stored counts as taken.
    ///
    /// # Errors
    /// If the owner cannot be read or changed. [`Fenced`](super::BatchRefusal::Fenced): this host has not shown in time that
    /// it lives, so that another one may have the session.
    fn take<'a>(&'a self, session: &'a SessionId) -> JournalFuture<'a, Owner>;

    /// Returns whether what this host has in memory of a session that it has opened or taken still counts: it uses the
    /// session, has not lost it, and has shown in time that it lives. Answers at once, from memory. A host that stood
    /// still knows by it that another one may have gone on.
    fn is_in_use(&self, session: &SessionId) -> bool;

    /// Ends one use of a session that this host has opened or taken. With the last use of the tree, and if no session of
    /// the tree has a run that has not ended, no host owns it. Ignores other sessions.
    ///
    /// # Errors
    /// If the owner cannot be changed. This host may stay the owner.
    fn give<'a>(&'a self, session: &'a SessionId) -> JournalFuture<'a, ()>;

    /// Ends one use of a session, as [`give`](Self::give) does, because this host shuts down: with the last use, another
    /// host can have the tree, also if a run has not ended.
    ///
    /// # Errors
    /// If the owner cannot be changed. Another host takes the tree when the journal is closed.
    fn hand_over<'a>(&'a self, session: &'a SessionId) -> JournalFuture<'a, ()>;

    /// Takes at most `limit` trees that no living host owns, or that this host has [lost](Self::lost) and no other one has
    /// taken, and in which there is something to do: a run that has not
    /// ended, an input that waits, or a deletion that has to be finished. Returns the sessions of these trees with that.
    /// Does not count uses. Returns none if there is nothing to take.
    ///
    /// # Errors
    /// If they cannot be taken. Some may have been.
    fn take_abandoned(&self, limit: usize) -> JournalFuture<'_, Vec<SessionId>>;

    /// Returns the owners of sessions, in their order, and changes nothing. `None`: no host that lives owns the session, or
    /// it is not stored.
    ///
    /// # Errors
    /// If the owners cannot be read.
    fn owners<'a>(&'a self, sessions: &'a [SessionId]) -> JournalFuture<'a, Vec<Option<Owner>>>;

    /// Returns the hosts that live, this one among them, the one that started first before the others.
    ///
    /// # Errors
    /// If the hosts cannot be read.
    fn hosts(&self) -> JournalFuture<'_, Vec<HostInfo>>;

    /// Returns the ids of hosts that have ended within this time without closing their journal.
    ///
    /// # Errors
    /// If the hosts cannot be read.
    fn dead_hosts(&self, within: Duration) -> JournalFuture<'_, Vec<String>>;

    /// Stores a [document](super::Journal::put_document) if it still has the text `before`; `None`: if it is not stored. Returns
    /// whether it was.
    ///
    /// # Errors
    /// If it cannot be stored. It may have been.
    fn replace_document<'a>(
        &'a self,
        key: &'a str,
        before: Option<&'a str>,
        text: &'a str,
        used_by: Option<&'a SessionId>,
    ) -> JournalFuture<'a, bool>;

    /// Waits until this host has lost trees, because another host has taken them, or because this host has not shown in
    /// time that it lives. Returns the sessions of these trees that it has opened or taken. Never ends while it has lost
    /// none.
    fn lost(&self) -> BoxFuture<'_, Vec<SessionId>>;
}

/// The owner of a session. [`Ownership`] shows its use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// This host.
    This,
    /// Another host, which lives.
    Other(OtherHost),
}

/// Another host with the same journal. [`Ownership`] shows its use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherHost {
    /// Its id, which each start of a host has anew.
    pub id: String,
    /// The URL at which other hosts reach it, if it has one.
    pub address: Option<String>,
}

/// A host that lives, and has the same journal as others.
///
/// [`Ownership::hosts`] returns them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostInfo {
    /// Its id: another one at each start.
    pub id: String,
    /// The URL at which other hosts reach it.
    pub address: Option<String>,
    /// Its version of Callsheet.
    pub version: String,
    /// Number of trees of sessions that it owns, as it last said.
    pub sessions: u64,
    /// The time since its last heartbeat.
    pub beat_age: Duration,
    /// True if it is this host.
    pub is_this: bool,
}

impl HostInfo {
    /// Returns a host that lives alone, with what only it knows.
    #[must_use]
    pub fn this(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            address: None,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            sessions: 0,
            beat_age: Duration::ZERO,
            is_this: true,
        }
    }
}
