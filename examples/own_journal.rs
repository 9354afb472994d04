//! A journal that the program implements: `cargo run --example own_journal`.
//!
//! Each session is a text file with one record in a line. A task writes the files, because `append`
//! must not wait. A journal in a database looks the same, with statements instead of files.

#![expect(clippy::disallowed_types, reason = "the standard library's lock needs no further crate")]
#![expect(clippy::disallowed_methods, reason = "the writing task belongs to the journal")]

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use callsheet::journal::{
    AppendStatus, Batch, BatchRefusal, BatchStatus, Journal, JournalEntry, JournalError,
    JournalFuture, SessionQuery, SessionSummary,
};
use callsheet::prelude::*;
use callsheet::{Seq, SessionId};
use futures::future::BoxFuture;
use tokio::fs::{self, File};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::task::JoinHandle;

/// Maximum number of batches that wait to be written.
const QUEUE_MAX: usize = 10_000;

/// A directory with a file for each session.
#[derive(Debug)]
struct FileJournal {
    directory: PathBuf,
    /// The queue of the writing task. `None` once the journal is closed.
    queue: Mutex<Option<mpsc::Sender<Batch>>>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl FileJournal {
    async fn open(directory: &Path) -> io::Result<Self> {
        fs::create_dir_all(directory).await?;
        let (queue, mut batches) = mpsc::channel(QUEUE_MAX);
        let written = directory.to_owned();
        let writer = tokio::spawn(async move {
            while let Some(batch) = batches.recv().await {
                store(&written, batch).await;
            }
        });
        let (queue, writer) = (Mutex::new(Some(queue)), Mutex::new(Some(writer)));
        Ok(Self { directory: directory.to_owned(), queue, writer })
    }

    /// No session has a space in its id.
    fn document_path(&self, key: &str) -> PathBuf {
        self.directory.join(format!("document {key}"))
    }

    async fn ids(&self) -> io::Result<Vec<SessionId>> {
        let (mut ids, mut files) = (Vec::new(), fs::read_dir(&self.directory).await?);
        while let Some(file) = files.next_entry().await? {
            ids.extend(file.file_name().to_str().and_then(|name| SessionId::parse(name).ok()));
        }
        Ok(ids)
    }
}

/// Stores a batch and reports its status.
async fn store(directory: &Path, mut batch: Batch) {
    let line = |entry: &Arc<JournalEntry>| format!("{} {}\n", entry.time, entry.body());
    let lines: String = batch.entries.iter().map(line).collect();
    let file = directory.join(batch.session.as_str());
    let opens = batch.entries.first().is_some_and(|first| first.seq == Seq(1));
    // After a failure, later records of the session would leave a gap.
    let stored = if batch.follows_failure() {
        Err(io::Error::other("an earlier batch of the session failed"))
    } else if opens && fs::try_exists(&file).await.unwrap_or(false) {
        return batch.report(BatchStatus::Refused(BatchRefusal::Exists));
    } else {
        append(&file, &lines).await
    };
    batch.report(match stored {
        Ok(()) => BatchStatus::Durable,
        Err(error) => BatchStatus::Failed(JournalError::Write(error.to_string())),
    });
}

async fn append(file: &Path, lines: &str) -> io::Result<()> {
    let mut file = File::options().create(true).append(true).open(file).await?;
    file.write_all(lines.as_bytes()).await?;
    file.flush().await?;
    file.sync_data().await
}

fn write_error(error: io::Error) -> JournalError {
    JournalError::Write(error.to_string())
}

fn read_error(error: io::Error) -> JournalError {
    JournalError::Read(error.to_string())
}

impl Journal for FileJournal {
    fn append(&self, mut batch: Batch) -> AppendStatus {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        match &*queue {
            Some(queue) => {
                // The task runs until the queue is dropped.
                if let Err(TrySendError::Full(mut batch)) = queue.try_send(batch) {
                    batch.report(BatchStatus::Failed(JournalError::Overloaded));
                }
            }
            None => batch.report(BatchStatus::Failed(JournalError::Closed)),
        }
        AppendStatus::Queued
    }

    fn flush(&self, _: &SessionId) {}

    fn read_some<'a>(
        &'a self,
        session: &'a SessionId,
        after: Seq,
        limit: usize,
    ) -> JournalFuture<'a, Vec<JournalEntry>> {
        let path = self.directory.join(session.as_str());
        Box::pin(async move {
            let text = match fs::read_to_string(path).await {
                Ok(text) => text,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
                Err(error) => return Err(read_error(error)),
            };
            let lines = text.lines().zip(1..).filter(|(_, seq)| Seq(*seq) > after).take(limit);
            let entries = lines.map(|(line, seq)| {
                let (time, body) = line.split_once(' ').unwrap_or_default();
                let time = time.parse().unwrap_or_default();
                Ok(JournalEntry::from_body(session, Seq(seq), time, body)?)
            });
            entries.collect()
        })
    }

    fn find<'a>(&'a self, session: &'a SessionId) -> JournalFuture<'a, Option<SessionSummary>> {
        Box::pin(async move {
            let entries = self.read(session, Seq(0)).await?;
            let entries: Vec<_> = entries.into_iter().map(Arc::new).collect();
            Ok(SessionSummary::from_entries(session, &entries))
        })
    }

    fn list<'a>(&'a self, filter: &'a SessionQuery) -> JournalFuture<'a, Vec<SessionSummary>> {
        Box::pin(async move {
            let mut sessions = Vec::new();
            for id in self.ids().await.map_err(read_error)? {
                sessions.extend(self.find(&id).await?);
            }
            Ok(filter.select(sessions))
        })
    }

    fn count(&self) -> JournalFuture<'_, usize> {
        Box::pin(async { Ok(self.ids().await.map_err(read_error)?.len()) })
    }

    fn remove<'a>(&'a self, sessions: &'a [SessionId]) -> JournalFuture<'a, ()> {
        Box::pin(async move {
            for session in sessions {
                match fs::remove_file(self.directory.join(session.as_str())).await {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        return Err(write_error(error));
                    }
                    Ok(()) | Err(_) => {}
                }
            }
            Ok(())
        })
    }

    // All documents are kept, so it need not be known who uses them.
    fn put_document<'a>(
        &'a self,
        key: &'a str,
        text: &'a str,
        _: Option<&'a SessionId>,
    ) -> JournalFuture<'a, ()> {
        Box::pin(async move {
            let mut file = File::create(self.document_path(key)).await.map_err(write_error)?;
            file.write_all(text.as_bytes()).await.map_err(write_error)?;
            file.flush().await.map_err(write_error)?;
            file.sync_data().await.map_err(write_error)
        })
    }

    fn document<'a>(&'a self, key: &'a str) -> JournalFuture<'a, Option<String>> {
        Box::pin(async move {
            match fs::read_to_string(self.document_path(key)).await {
                Ok(text) => Ok(Some(text)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(read_error(error)),
            }
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        drop(self.queue.lock().unwrap_or_else(PoisonError::into_inner).take());
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        Box::pin(async {
            // The task stores what is queued, and ends.
            if let Some(writer) = writer {
                let _ = writer.await;
            }
        })
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::temp_dir().join(format!("callsheet-files-{}", std::process::id()));

    let open = async || match FileJournal::open(&directory.join("check")).await {
        Ok(journal) => Arc::new(journal) as _,
        Err(error) => panic!("{error}"),
    };
    callsheet::testing::check_journal(open).await;

    let files = directory.join("sessions");
    for prompt in ["Say hello.", "Say it again."] {
        let journal = Arc::new(FileJournal::open(&files).await?);
        let host = Host::builder().journal(journal).start().await?;
        let session = host.get_or_open_session("demo").await?;
        let report = session.run(prompt).await?;
        println!("{} (after {} messages)", report.text()?, report.context_messages().len());
        host.shutdown().await;
    }
    print!("{}", fs::read_to_string(files.join("demo")).await?);
    fs::remove_dir_all(&directory).await?;
    Ok(())
}
