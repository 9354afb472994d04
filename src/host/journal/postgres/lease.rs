//! The lease of this host: its row in the table `hosts`, which it renews. A host whose lease is over is dead for the
//! others, which may take its trees.
//!
//! The ends of leases are times of the database's clock. Whether its own lease was renewed in time, a host measures by a
//! clock that also runs while the machine is suspended.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_postgres::types::Type;

use super::super::{CLOCK_OFFSET_MS, JournalError, machine_unix_ms};
use super::connection::{Database, DatabaseConnection, Purpose};
use super::encoding::signed;
use super::errors::{self, StatementFailure};
use super::schema;
use super::trees::OwnedTrees;

/// Number of renewals in the time of a lease.
const RENEWALS: u32 = 4;

/// The trees count as lost this long before the lease is over: the others' statements and this host's stop need time.
const MARGIN_MAX: Duration = Duration::from_secs(2);

/// The longest pause before the host looks at its clock again: a suspended machine goes on at any time.
const CHECK_PERIOD: Duration = Duration::from_millis(500);

/// A host that shares the database keeps its difference to the database's clock until it has changed by more than this.
const CLOCK_CHANGE_MIN_MS: u64 = 500;

/// The longest wait of a request for the renewal of a lease that is over.
const RENEWAL_WAIT_MAX: Duration = Duration::from_millis(500);
const RENEWAL_POLL: Duration = Duration::from_millis(20);

/// The pause before a start looks again for a host that uses the database.
const START_PAUSE: Duration = Duration::from_millis(200);

/// The rows of hosts that are dead for this long are deleted.
const FORGET_DEAD: &str = "DELETE FROM hosts WHERE lease_end < now() - interval '1 day'";

/// The hosts whose leases run and beside which this one cannot start: they, or this one, do not say how they are reached,
/// or both are reached at the same address.
const CONFLICTS: &str = "
    SELECT address, version, to_char(started, 'YYYY-MM-DD HH24:MI:SSOF'),
        (extract(epoch FROM lease_end - now()) * 1000)::bigint
    FROM hosts WHERE lease_end > now() AND ($1::text IS NULL OR address IS NULL OR address = $1)
    ORDER BY lease_end DESC LIMIT 1";

const REGISTER: &str = "
    INSERT INTO hosts (id, address, version, started, beat, lease_end)
    VALUES (gen_random_uuid(), $1, $2, now(), now(), now() + $3 * interval '1 millisecond')
    RETURNING id::text";

/// Renews the lease. The row is missing if the lease was over for very long.
const RENEW: &str = "
    INSERT INTO hosts (id, address, version, sessions, started, beat, lease_end)
    VALUES ($1::text::uuid, $2, $3, $4, now(), now(), now() + $5 * interval '1 millisecond')
    ON CONFLICT (id) DO UPDATE
    SET beat = excluded.beat, lease_end = excluded.lease_end, sessions = excluded.sessions
    RETURNING (extract(epoch FROM clock_timestamp()) * 1000)::bigint";

const RETURN: &str = "DELETE FROM hosts WHERE id = $1::text::uuid";

/// A host as it registers.
#[derive(Clone, Debug)]
pub(super) struct LeaseTerms {
    /// The address at which other hosts reach it. Without one it is alone.
    pub(super) address: Option<String>,
    pub(super) version: String,
    pub(super) length: Duration,
}

/// A host beside which this one cannot start.
struct Conflict {
    name: String,
    lease_left: Duration,
}

async fn try_register(
    connection: &mut DatabaseConnection,
    terms: &LeaseTerms,
) -> Result<Result<String, Conflict>, tokio_postgres::Error> {
    let transaction = connection.client().transaction().await?;
    // Two hosts that start at the same time see each other.
    let lock = "SELECT pg_advisory_xact_lock($1)";
    transaction.query_typed(lock, &[(&schema::LOCK, Type::INT8)]).await?;
    let address = (&terms.address as _, Type::TEXT);
    let conflicts = transaction.query_typed(CONFLICTS, std::slice::from_ref(&address)).await?;
    if let Some(row) = conflicts.first() {
        let (address, version): (Option<&str>, &str) = (row.get(0), row.get(1));
        let at = address.map_or(String::new(), |address| format!(" at {address}"));
        let started: &str = row.get(2);
        return Ok(Err(Conflict {
            name: format!("another host{at} (callsheet {version}, started {started})"),
            lease_left: Duration::from_millis(u64::try_from(row.get::<_, i64>(3)).unwrap_or(0)),
        }));
    }
    transaction.query_typed(FORGET_DEAD, &[]).await?;
    let length = lease_ms(terms.length);
    let parameters = [address, (&terms.version as _, Type::TEXT), (&length as _, Type::INT8)];
    let row = transaction.query_typed_one(REGISTER, &parameters).await?;
    transaction.commit().await?;
    Ok(Ok(row.get(0)))
}

fn lease_ms(length: Duration) -> i64 {
    i64::try_from(length.as_millis()).unwrap_or(i64::MAX)
}

/// The state of the lease, shared with the engine.
#[derive(Debug)]
pub(super) struct Lease {
    id: String,
    terms: LeaseTerms,
    /// The time at which the last renewal that succeeded began, by [`boot_time`].
    renewed: Mutex<Duration>,
    /// The database's clock less this host's, in milliseconds.
    clock_offset_ms: AtomicI64,
    /// The error of the last renewal.
    failure: Mutex<Option<JournalError>>,
}

impl Lease {
    /// Registers this host. Waits for at most one lease of a host beside which it cannot start.
    ///
    /// # Errors
    /// If that host renews its lease, or the database cannot be written.
    pub(super) async fn begin(
        connection: &mut DatabaseConnection,
        database: &Database,
        terms: LeaseTerms,
    ) -> Result<Self, JournalError> {
        let mut wait_until = None;
        loop {
            let began = boot_time();
            let registered = try_register(connection, &terms).await;
            let conflict = match registered.map_err(|e| errors::open_error(database.name(), &e))? {
                Ok(id) => return Ok(Self::new(id, terms, began)),
                Err(conflict) => conflict,
            };
            let now = Instant::now();
            let until = *wait_until.get_or_insert_with(|| {
                tracing::info!(
                    host = conflict.name,
                    "journal_in_use: waits for the end of its lease"
                );
                now + conflict.lease_left + START_PAUSE
            });
            if now >= until {
                let advice = "stop it, use another database, or give each host an address of its own, at which the \
                              others reach it ([host] advertise, PostgresOptions::advertise)";
                let reason = format!("{} uses the database: {advice}", conflict.name);
                return Err(errors::opening(database.name(), reason));
            }
            tokio::time::sleep(START_PAUSE.min(until - now)).await;
        }
    }

    /// Creates the state of a host that has just registered. `began` is the time before that, by [`boot_time`].
    fn new(id: String, terms: LeaseTerms, began: Duration) -> Self {
        let (clock_offset_ms, failure) = (AtomicI64::new(0), Mutex::default());
        Self { id, terms, renewed: Mutex::new(began), clock_offset_ms, failure }
    }

    /// Returns the id of this host.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Returns a time of [`unix_ms`](super::super::unix_ms) as one of the database's clock.
    pub(super) fn database_time(&self, unix_ms: u64) -> u64 {
        let used = CLOCK_OFFSET_MS.load(Ordering::Relaxed);
        unix_ms.saturating_add_signed(self.clock_offset_ms.load(Ordering::Relaxed) - used)
    }

    /// Notes the time of the database's clock at a time of this machine's.
    pub(super) fn note_clock(&self, database_ms: i64, machine_ms: i64) {
        let offset = database_ms.saturating_sub(machine_ms);
        self.clock_offset_ms.store(offset, Ordering::Relaxed);
        let used = CLOCK_OFFSET_MS.load(Ordering::Relaxed);
        // Otherwise times would go back again and again, by as much as statements take.
        if self.terms.address.is_some() && used.abs_diff(offset) > CLOCK_CHANGE_MIN_MS {
            CLOCK_OFFSET_MS.store(offset, Ordering::Relaxed);
        }
    }

    /// Returns the error of the last renewal.
    pub(super) fn failure(&self) -> Option<JournalError> {
        self.failure.lock().clone()
    }

    /// Returns the age of the lease.
    pub(super) fn age(&self) -> Duration {
        boot_time().saturating_sub(*self.renewed.lock())
    }

    /// Returns the time after which the other hosts may soon take this host's trees, if the lease is not renewed.
    fn time_left(&self) -> Duration {
        let length = self.terms.length;
        (length - MARGIN_MAX.min(length / 5)).saturating_sub(self.age())
    }

    /// Renews the lease again and again, and gives up all trees if that does not succeed in time.
    pub(super) async fn keep(
        self: Arc<Self>,
        database: Arc<Database>,
        trees: Arc<OwnedTrees>,
        limit: Duration,
    ) {
        let renews = async {
            let period = self.terms.length / RENEWALS;
            let mut connection = None;
            loop {
                let next = Instant::now() + period;
                let renewed = self.renew(&mut connection, &database, &trees, limit).await;
                // A failed renewal is tried again soon.
                let next = if renewed.is_ok() { next } else { Instant::now() + START_PAUSE };
                self.note(renewed);
                tokio::time::sleep_until(next).await;
            }
        };
        // Also while a renewal waits for an answer.
        let watches = async {
            loop {
                self.lose_if_over(&trees);
                let left = self.time_left();
                let left = if left.is_zero() { CHECK_PERIOD } else { left };
                tokio::time::sleep(left.min(CHECK_PERIOD)).await;
            }
        };
        tokio::select! {
            () = renews => {}
            () = watches => {}
        }
    }

    /// Returns true if other hosts may soon take this host's trees, or may already.
    pub(super) fn is_over(&self) -> bool {
        self.time_left().is_zero()
    }

    /// Waits for a while until the lease is renewed, if it is over. Returns whether it runs.
    pub(super) async fn wait_renewed(&self) -> bool {
        let until = Instant::now() + RENEWAL_WAIT_MAX;
        while self.is_over() {
            if Instant::now() >= until {
                return false;
            }
            tokio::time::sleep(RENEWAL_POLL).await;
        }
        true
    }

    /// Gives up all trees if the lease was not renewed in time.
    fn lose_if_over(&self, trees: &OwnedTrees) {
        if self.is_over() {
            let lost = trees.lose_all();
            if lost > 0 {
                tracing::warn!(lost, age = ?self.age(), "lease_over: other hosts may take the sessions");
            }
        }
    }

    async fn renew(
        &self,
        connection: &mut Option<DatabaseConnection>,
        database: &Database,
        trees: &OwnedTrees,
        limit: Duration,
    ) -> Result<(), StatementFailure> {
        let open = match connection.take().filter(|open| !open.is_closed()) {
            Some(open) => open,
            None => database.connect(Purpose::Other).await?,
        };
        let (began, began_ms) = (boot_time(), machine_unix_ms());
        let sessions = signed(trees.len() as u64);
        let length = lease_ms(self.terms.length);
        let parameters = [
            (&self.id as _, Type::TEXT),
            (&self.terms.address as _, Type::TEXT),
            (&self.terms.version as _, Type::TEXT),
            (&sessions as _, Type::INT8),
            (&length as _, Type::INT8),
        ];
        let rows = open.query(limit, RENEW, &parameters).await?;
        let database_ms = rows.first().map_or(0, |row| row.get::<_, i64>(0));
        // In the middle of the request.
        self.note_clock(database_ms, signed(began_ms / 2 + machine_unix_ms() / 2));
        // A lease that was over is not renewed for the trees of then.
        self.lose_if_over(trees);
        *self.renewed.lock() = began;
        *connection = Some(open);
        Ok(())
    }

    fn note(&self, renewed: Result<(), StatementFailure>) {
        let failure = renewed.err().map(|failure| failure.write_error());
        let before = std::mem::replace(&mut *self.failure.lock(), failure.clone());
        match (before, failure) {
            (None, Some(error)) => tracing::warn!(%error, "lease_not_renewed: it is tried again"),
            (Some(_), None) => tracing::info!("lease_renewed"),
            (Some(_), Some(_)) | (None, None) => {}
        }
    }

    /// Ends the lease, so that other hosts need not wait for its end.
    pub(super) async fn end(&self, database: &Database, limit: Duration) {
        let ended = async {
            let connection = database.connect(Purpose::Other).await?;
            connection.query(limit, RETURN, &[(&self.id, Type::TEXT)]).await
        };
        if let Err(StatementFailure { reason, .. }) = ended.await {
            tracing::warn!(reason, "lease_not_ended: other hosts wait for its end");
        }
    }
}

/// Returns the time since the machine was started, with the time for which it was suspended.
pub(super) fn boot_time() -> Duration {
    #[cfg(target_os = "linux")]
    let clock = rustix::time::ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    let clock = rustix::time::ClockId::Monotonic;
    let time = rustix::time::clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}
