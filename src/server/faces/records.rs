//! Reads the records of a session in pages, so that only one page is in memory.

use std::ops::ControlFlow;
use std::sync::Arc;

use callsheet_host::runtime::{HostError, SessionHandle};
use callsheet_values::config::RunOverrides;
use callsheet_values::record::{JournalEntry, Record};
use callsheet_values::types::Seq;

/// Number of records of one read.
pub(super) const PAGE_RECORDS: usize = 256;

/// Returns how a run differs from its agent. `run` is its first record.
///
/// # Errors
/// If there is no such session, or the journal cannot be read.
pub(super) async fn overrides_of_run(
    session: &SessionHandle,
    run: Seq,
) -> Result<Arc<RunOverrides>, HostError> {
    let (page, _) = session.record_page(Seq(run.0.saturating_sub(1)), 1).await?;
    Ok(match page.into_iter().next().map(|entry| entry.record) {
        Some(Record::RunStarted { overrides, .. }) => overrides,
        Some(_) | None => Arc::default(),
    })
}

/// Passes each record of a session to `read`, in order.
///
/// # Errors
/// If there is no such session, or the journal cannot be read.
pub(super) async fn for_each_record(
    session: &SessionHandle,
    mut read: impl FnMut(JournalEntry),
) -> Result<(), HostError> {
    for_each_record_after(session, Seq(0), |entry| {
        read(entry);
        ControlFlow::Continue(())
    })
    .await
}

/// Passes each record behind `after` to `read`, in order, until it breaks.
///
/// # Errors
/// As [`for_each_record`].
pub(super) async fn for_each_record_after(
    session: &SessionHandle,
    mut after: Seq,
    mut read: impl FnMut(JournalEntry) -> ControlFlow<()>,
) -> Result<(), HostError> {
    loop {
        let (page, has_more) = session.record_page(after, PAGE_RECORDS).await?;
        for entry in page {
            after = entry.seq;
            if read(entry).is_break() {
                return Ok(());
            }
        }
        if !has_more {
            return Ok(());
        }
    }
}
