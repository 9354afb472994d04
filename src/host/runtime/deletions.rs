//! The list of the sessions that clients have deleted: which, when, and by whom, without contents. The newest 10,000 to
//! 10,100 are kept, in documents of the journal.

use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::journal::{Journal, JournalError};
use callsheet_values::types::{Author, SessionId};

/// Number of deletions of a document.
const PAGE_LENGTH: usize = 100;

/// Number of documents. The oldest one is replaced.
const PAGES_MAX: u64 = 101;

/// A session that a client has deleted.
///
/// [`deletions`] returns them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Deletion {
    /// The session.
    pub session: SessionId,
    /// Its agent, if its records could be read.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub agent: Option<String>,
    /// The time: Unix time in milliseconds.
    pub time: u64,
    /// The author of the request.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub authored_by: Option<Author>,
}

impl Deletion {
    pub(super) fn new(
        session: SessionId,
        agent: Option<String>,
        time: u64,
        authored_by: Option<Author>,
    ) -> Self {
        Self { session, agent, time, authored_by }
    }
}

/// A document with deletions. Pages are numbered from 0, and page N is in the document N modulo [`PAGES_MAX`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct DeletionPage {
    number: u64,
    deletions: Vec<Deletion>,
}

/// Adds to the list.
#[derive(Debug, Default)]
pub(super) struct DeletionList {
    waiting: Mutex<Vec<Deletion>>,
    /// The newest page. Read for the first deletion; locked while deletions are stored.
    page: tokio::sync::Mutex<Option<DeletionPage>>,
}

impl DeletionList {
    /// Stores a deletion, with others that wait.
    pub(super) async fn add(&self, journal: &Arc<dyn Journal>, deletion: Deletion) {
        self.waiting.lock().push(deletion);
        let mut newest = self.page.lock().await;
        let added = std::mem::take(&mut *self.waiting.lock());
        if added.is_empty() {
            // Another one has stored it.
            return;
        }
        let stored = async {
            let page = match newest.take() {
                Some(page) => page,
                None => read_pages(&**journal).await?.pop().unwrap_or_default(),
            };
            store(&**journal, page, added).await
        };
        match stored.await {
            Ok(page) => *newest = Some(page),
            Err::<_, JournalError>(error) => tracing::warn!(%error, "deletions_not_listed"),
        }
    }
}

/// Adds deletions to a page, and to further pages when it is full. Returns the newest one.
async fn store(
    journal: &dyn Journal,
    mut page: DeletionPage,
    mut added: Vec<Deletion>,
) -> Result<DeletionPage, JournalError> {
    while !added.is_empty() {
        let (is_full, before) = (page.deletions.len() >= PAGE_LENGTH, page.text());
        let is_new = is_full || page.deletions.is_empty();
        if is_full {
            page = DeletionPage { number: page.number + 1, deletions: Vec::new() };
        }
        let key = key(page.number % PAGES_MAX);
        let rest = added.split_off(added.len().min(PAGE_LENGTH - page.deletions.len()));
        page.deletions.extend(added.iter().cloned());
        let is_stored = match journal.ownership() {
            None => journal.put_document(&key, &page.text(), None).await.map(|()| true)?,
            Some(ownership) => {
                let old = if is_new { journal.document(&key).await? } else { Some(before) };
                let begun = pages(old.as_slice()).pop();
                let is_begun = is_new && begun.is_some_and(|begun| begun.number >= page.number);
                let text = page.text();
                !is_begun && ownership.replace_document(&key, old.as_deref(), &text, None).await?
            }
        };
        if is_stored {
            added = rest;
        } else {
            // Another host has added to the list.
            page = read_pages(journal).await?.pop().unwrap_or_default();
            added.retain(|deletion| !page.deletions.contains(deletion));
            added.extend(rest);
        }
    }
    Ok(page)
}

impl DeletionPage {
    fn text(&self) -> String {
        // Cannot fail: all its keys are texts.
        serde_json::to_string(self).unwrap_or_default()
    }
}

fn key(document: u64) -> String {
    format!("deletions-{document}")
}

/// Reads the pages, the oldest first.
async fn read_pages(journal: &dyn Journal) -> Result<Vec<DeletionPage>, JournalError> {
    let mut documents = Vec::new();
    for key in deletion_keys() {
        let Some(text) = journal.document(&key).await? else { break };
        documents.push(text);
    }
    Ok(pages(&documents))
}

/// Returns the pages in documents, the oldest first. A document that is not one is left out.
fn pages(documents: &[String]) -> Vec<DeletionPage> {
    let pages = documents.iter().flat_map(|text| serde_json::from_str::<DeletionPage>(text));
    let mut pages: Vec<_> = pages.collect();
    pages.sort_by_key(|page| page.number);
    pages
}

/// Returns the keys of the journal's documents with [`deletions`]. The first that does not exist is the last.
pub fn deletion_keys() -> impl Iterator<Item = String> {
    (0..PAGES_MAX).map(key)
}

/// Returns the sessions that clients have deleted, the oldest first, from the documents with these
/// [keys](deletion_keys).
#[must_use]
pub fn deletions(documents: &[String]) -> Vec<Deletion> {
    pages(documents).into_iter().flat_map(|page| page.deletions).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::MemoryJournal;

    #[tokio::test]
    async fn hosts_that_share_the_journal_add_to_one_list() {
        let store = Arc::default();
        let id = SessionId::parse("s").unwrap();
        let hosts: Vec<_> = (0..3_u64)
            .map(|host| {
                let journal: Arc<dyn Journal> = crate::journal::shared::SharedJournal::new(&store);
                (host, journal, DeletionList::default())
            })
            .collect();
        let add = hosts.iter().map(async |(host, journal, list)| {
            for at in 0..90 {
                let deletion = Deletion::new(id.clone(), None, host * 1_000 + at, None);
                list.add(journal, deletion).await;
                tokio::task::yield_now().await;
            }
        });
        futures::future::join_all(add).await;
        let pages = read_pages(&*hosts[0].1).await.unwrap();
        let mut times: Vec<u64> =
            pages.iter().flat_map(|page| &page.deletions).map(|deletion| deletion.time).collect();
        times.sort_unstable();
        let expected = (0..3).flat_map(|host| (0..90).map(move |at| host * 1_000 + at));
        assert_eq!(times, expected.collect::<Vec<_>>());
        assert_eq!(pages.len(), 3);
    }

    #[tokio::test]
    async fn the_newest_deletions_are_kept() {
        let journal: Arc<dyn Journal> = Arc::new(MemoryJournal::new());
        let (list, id) = (DeletionList::default(), SessionId::parse("s").unwrap());
        let deletion = |time| Deletion::new(id.clone(), None, time, Some(Author::new("ada")));
        let add = async |list: &DeletionList, times: std::ops::Range<u64>| {
            for time in times {
                list.add(&journal, deletion(time)).await;
            }
        };
        let listed = async || {
            let pages = read_pages(&*journal).await.unwrap();
            pages.into_iter().flat_map(|page| page.deletions).collect::<Vec<_>>()
        };
        add(&list, 0..150).await;
        assert_eq!(listed().await, (0..150).map(deletion).collect::<Vec<_>>());
        // The next host goes on with the last page.
        let list = DeletionList::default();
        add(&list, 150..10_150).await;
        assert_eq!(listed().await, (100..10_150).map(deletion).collect::<Vec<_>>());
        assert_eq!(
            journal.document("deletions-1").await.unwrap().unwrap().matches("ada").count(),
            100
        );
    }
}
