//! A journal that the program implements: `cargo run --example own_journal`.
//!
//! Each session is a text file with one record in a line. A thread writes the files, because `append`
//! must not block. A journal in a database looks the same, with statements instead of files.

#![expect(clippy::disallowed_types, reason = "the standard library's lock needs no further crate")]

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use callsheet::journal::{
    AppendStatus, Batch, BatchStatus, Journal, JournalEntry, JournalError, SessionQuery,
    SessionSummary,
};
use callsheet::prelude::*;
use callsheet::{Seq, SessionId};

/// A directory with a file for each session.
#[derive(Debug)]
struct FileJournal {
    directory: PathBuf,
    /// The queue of the writing thread. `None` once the journal is closed.
    queue: Mutex<Option<mpsc::Sender<Batch>>>,
    writer: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl FileJournal {
    fn open(directory: &Path) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        let (queue, batches) = mpsc::channel();
        let written = directory.to_owned();
        let writer = std::thread::spawn(move || {
            for batch in batches {
                store(&written, batch);
            }
        });
        let (queue, writer) = (Mutex::new(Some(queue)), Mutex::new(Some(writer)));
        Ok(Self { directory: directory.to_owned(), queue, writer })
    }

    /// No session has a space in its id.
    fn document_path(&self, key: &str) -> PathBuf {
        self.directory.join(format!("document {key}"))
    }

    fn ids(&self) -> io::Result<Vec<SessionId>> {
        let mut ids = Vec::new();
        for file in fs::read_dir(&self.directory)? {
            ids.extend(file?.file_name().to_str().and_then(|name| SessionId::parse(name).ok()));
        }
        Ok(ids)
    }
}

/// Stores a batch and reports its status.
fn store(directory: &Path, mut batch: Batch) {
    // After a failure, later records of the session would leave a gap.
    let stored = if batch.follows_failure() {
        Err(io::Error::other("an earlier batch of the session failed"))
    } else {
        append_lines(directory, &batch)
    };
    batch.report(match stored {
        Ok(()) => BatchStatus::Durable,
        Err(error) => BatchStatus::Failed(JournalError::Write(error.to_string())),
    });
}

fn append_lines(directory: &Path, batch: &Batch) -> io::Result<()> {
    let path = directory.join(batch.session.as_str());
    let mut file = File::options().create(true).append(true).open(path)?;
    let line = |entry: &Arc<JournalEntry>| format!("{} {}\n", entry.time, entry.body());
    file.write_all(batch.entries.iter().map(line).collect::<String>().as_bytes())?;
    file.sync_data()
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
            // The thread runs until the queue is dropped.
            Some(queue) => drop(queue.send(batch)),
            None => batch.report(BatchStatus::Failed(JournalError::Closed)),
        }
        AppendStatus::Queued
    }

    fn flush(&self, _: &SessionId) {}

    fn read_some(
        &self,
        session: &SessionId,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<JournalEntry>, JournalError> {
        let text = match fs::read_to_string(self.directory.join(session.as_str())) {
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
    }

    fn find(&self, session: &SessionId) -> Result<Option<SessionSummary>, JournalError> {
        let entries = self.read(session, Seq(0))?.into_iter().map(Arc::new).collect::<Vec<_>>();
        Ok(SessionSummary::from_entries(session, &entries))
    }

    fn list(&self, filter: &SessionQuery) -> Result<Vec<SessionSummary>, JournalError> {
        let mut sessions = Vec::new();
        for id in self.ids().map_err(read_error)? {
            sessions.extend(self.find(&id)?);
        }
        Ok(filter.select(sessions))
    }

    fn count(&self) -> Result<usize, JournalError> {
        Ok(self.ids().map_err(read_error)?.len())
    }

    fn remove(&self, sessions: &[SessionId]) -> Result<(), JournalError> {
        for session in sessions {
            match fs::remove_file(self.directory.join(session.as_str())) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(write_error(error));
                }
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    fn put_document(&self, key: &str, text: &str) -> Result<(), JournalError> {
        let mut file = File::create(self.document_path(key)).map_err(write_error)?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_data()).map_err(write_error)
    }

    fn document(&self, key: &str) -> Result<Option<String>, JournalError> {
        match fs::read_to_string(self.document_path(key)) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(read_error(error)),
        }
    }

    fn close(&self) {
        drop(self.queue.lock().unwrap_or_else(PoisonError::into_inner).take());
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The thread stores what is queued, and ends.
        writer.map(std::thread::JoinHandle::join);
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::temp_dir().join(format!("callsheet-files-{}", std::process::id()));

    callsheet::testing::check_journal(|| match FileJournal::open(&directory.join("check")) {
        Ok(journal) => Arc::new(journal),
        Err(error) => panic!("{error}"),
    });

    let files = directory.join("sessions");
    for prompt in ["Say hello.", "Say it again."] {
        let journal = Arc::new(FileJournal::open(&files)?);
        let host = Host::builder().journal(journal).start().await?;
        let session = host.get_or_open_session("demo").await?;
        let report = session.run(prompt).await?;
        println!("{} (after {} messages)", report.text()?, report.context_messages().len());
        host.shutdown().await;
    }
    print!("{}", fs::read_to_string(files.join("demo"))?);
    fs::remove_dir_all(&directory)?;
    Ok(())
}
