//! The mark of a copy of a journal: a host that starts on it does not continue its runs, because the original may
//! continue them too.

use super::{Journal, JournalError};

/// The key of the document that marks a copy.
const DOCUMENT: &str = "restored_copy";

/// The text of the document until a host may continue the runs of the copy, and after that.
const WAITS: &str = "waits";
const GOES_ON: &str = "goes_on";

/// The document that marks a copy whose runs wait: its key and its text.
pub(super) const MARK: (&str, &str) = (DOCUMENT, WAITS);

/// Returns whether the journal is a restored copy whose runs wait.
///
/// # Errors
/// If it cannot be read.
pub(crate) async fn is_waiting_copy(journal: &dyn Journal) -> Result<bool, JournalError> {
    Ok(journal.document(DOCUMENT).await?.is_some_and(|text| text == WAITS))
}

/// Lets the hosts of a restored copy continue its runs.
///
/// # Errors
/// If it cannot be stored.
pub(crate) async fn let_copy_go_on(journal: &dyn Journal) -> Result<(), JournalError> {
    journal.put_document(DOCUMENT, GOES_ON, None).await
}
