//! Reads the records of a session in pages, so that only one page is in memory.

use callsheet_host::runtime::{HostError, SessionHandle};
use callsheet_values::record::JournalEntry;
use callsheet_values::types::Seq;

/// Number of records of one read.
pub(super) const PAGE_RECORDS: usize = 256;

/// Passes each record of a session to `read`, in order.
///
/// # Errors
/// If there is no such session, or the journal cannot be read.
pub(super) async fn for_each_record(
    session: &SessionHandle,
    mut read: impl FnMut(JournalEntry),
) -> Result<(), HostError> {
    let mut after = Seq(0);
    loop {
        let (page, has_more) = session.record_page(after, PAGE_RECORDS).await?;
        for entry in page {
            after = entry.seq;
            read(entry);
        }
        if !has_more {
            return Ok(());
        }
    }
}
