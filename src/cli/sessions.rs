//! What a journal holds: its sessions, the records of one, and whether they are whole.

use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::screen::{is_coloured, terminal_columns};
use super::{CommandError, output, setup};
use crate::journal::export::{self, TimelineStyle};
use crate::journal::{
    JournalError, JournalReader, StoredSession, StoredSessionFilter, unfinished, verify,
};
use crate::record::Seq;
use crate::types::{SessionId, SessionState, harmless};

/// Sessions that are asked for at once.
const PAGE: usize = 1_000;

/// What is asked of a journal.
#[derive(Debug, clap::Subcommand)]
pub(super) enum SessionsCommand {
    /// Lists the stored sessions.
    List {
        #[command(flatten)]
        place: JournalLocation,
        /// At most so many; 0 is no limit.
        #[arg(long, value_name = "N", default_value_t = 0)]
        limit: usize,
        /// Those in this state: idle or running.
        #[arg(long, value_name = "STATE", value_parser = states())]
        state: Option<SessionState>,
        /// Print one JSON object a line.
        #[arg(long)]
        json: bool,
    },
    /// Shows the records of a session.
    ScreenItem {
        /// The session.
        #[arg(value_name = "ID", value_parser = SessionId::parse)]
        id: SessionId,
        #[command(flatten)]
        place: JournalLocation,
        /// How: text for a terminal, jsonl (every record), openai (the messages), markdown, or
        /// timeline (a picture of when what went on).
        #[arg(long, value_name = "FORMAT", default_value = "text")]
        format: RecordFormat,
    },
    /// Checks that every record is there and that they agree with each other.
    Verify {
        /// Only this session; all of them and the database without one.
        #[arg(value_name = "ID", value_parser = SessionId::parse)]
        id: Option<SessionId>,
        #[command(flatten)]
        place: JournalLocation,
    },
}

/// Where the journal is.
#[derive(Debug, clap::Args)]
pub(super) struct JournalLocation {
    /// The data directory; else that of the configuration.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// The configuration; ./callsheet.toml if that is there.
    #[arg(long, value_name = "FILE", conflicts_with = "data_dir")]
    config: Option<PathBuf>,
}

/// How records are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum RecordFormat {
    /// A line or a few for each record.
    Text,
    /// Each record as a JSON object in a line.
    Jsonl,
    /// The history as messages of the Chat Completions form.
    Openai,
    /// A log to be read.
    Markdown,
    /// The turns of each run on a time axis.
    Timeline,
}

/// A journal, and the directory that it is in.
struct OpenJournal {
    reader: JournalReader,
    dir: PathBuf,
}

/// Does what is asked of a journal.
pub(super) fn main(command: &SessionsCommand) -> Result<ExitCode, CommandError> {
    match command {
        SessionsCommand::List { place, limit, state, json } => {
            list(&place.open()?, *limit, *state, *json)?;
            Ok(ExitCode::SUCCESS)
        }
        SessionsCommand::ScreenItem { id, place, format } => {
            show(&place.open()?, id, *format)?;
            Ok(ExitCode::SUCCESS)
        }
        SessionsCommand::Verify { id, place } => check(&place.open()?, id.as_ref()),
    }
}

impl JournalLocation {
    fn open(&self) -> Result<OpenJournal, CommandError> {
        let dir = match &self.data_dir {
            Some(dir) => dir.clone(),
            None => setup::load(self.config.as_deref())?.config.host.data_dir,
        };
        let reader = JournalReader::open(&dir).map_err(CommandError::usage)?;
        Ok(OpenJournal { reader, dir })
    }
}

impl OpenJournal {
    fn session(&self, id: &SessionId) -> Result<StoredSession, CommandError> {
        let found = self.reader.find(id).map_err(CommandError::usage)?;
        found.ok_or_else(|| {
            let dir = self.dir.display();
            let hint = "callsheet sessions list says which there are";
            CommandError::usage(format!("{dir} holds no session {id} ({hint})"))
        })
    }

    /// Pages of sessions, all of them or the first so many.
    fn pages(
        &self,
        limit: usize,
        state: Option<SessionState>,
    ) -> impl Iterator<Item = Result<Vec<StoredSession>, JournalError>> {
        let mut after = None;
        let mut left = if limit == 0 { usize::MAX } else { limit };
        std::iter::from_fn(move || {
            let limit = left.min(PAGE);
            if limit == 0 {
                return None;
            }
            let listing =
                StoredSessionFilter { after: after.take(), limit, state, touched_before: None };
            let page = self.reader.list(&listing);
            match &page {
                Ok(page) => {
                    left -= page.len();
                    after = Some(page.last()?.id.clone());
                }
                Err(_) => left = 0,
            }
            Some(page)
        })
    }
}

fn list(
    opened: &OpenJournal,
    limit: usize,
    state: Option<SessionState>,
    json: bool,
) -> Result<(), CommandError> {
    let mut written = stdout();
    let (mut count, mut id_columns, mut agent_columns) = (0, 2, 5);
    for page in opened.pages(limit, state) {
        let page = page.map_err(CommandError::usage)?;
        if json {
            for session in &page {
                let line = serde_json::to_string(session).map_err(CommandError::failed)?;
                say(&mut written, &format!("{line}\n"))?;
            }
            continue;
        }
        for session in &page {
            id_columns = id_columns.max(session.id.as_str().len());
            agent_columns = agent_columns.max(harmless(&session.agent).chars().count());
        }
        let mut row = |id: &str, agent: &str, state: &str, records: &str, touched: &str| {
            let row = format!(
                "{id:<id_columns$}  {agent:<agent_columns$}  {state:<7}  {records:>8}  {touched}\n"
            );
            say(&mut written, &row)
        };
        if count == 0 {
            row("ID", "AGENT", "STATE", "RECORDS", "LAST CHANGE")?;
        }
        for StoredSession { id, agent, state, seq, opened: _, touched } in &page {
            let (records, touched) = (seq.to_string(), export::when(*touched));
            row(id.as_str(), &harmless(agent), state.as_str(), &records, &touched)?;
        }
        count += page.len();
    }
    if !json {
        let bytes = size(opened.reader.file());
        let (sessions, dir) = (counted(count, "session"), opened.dir.display());
        say(&mut written, &format!("{sessions}; the journal in {dir} takes {bytes} bytes\n"))?;
    }
    end(written)
}

fn show(opened: &OpenJournal, id: &SessionId, format: RecordFormat) -> Result<(), CommandError> {
    opened.session(id)?;
    let entries = opened.reader.read(id, Seq(0)).map_err(CommandError::usage)?;
    let mut written = stdout();
    match format {
        RecordFormat::Text => {
            export::text(&entries).try_for_each(|rows| say(&mut written, &rows))?;
        }
        RecordFormat::Jsonl => {
            entries.iter().try_for_each(|entry| say(&mut written, &export::jsonl(entry)))?;
        }
        RecordFormat::Openai => {
            if let Some(run) = unfinished(&entries) {
                let only = "only what is committed is shown";
                output::error(&format!("session {id} has an open run, {run}: {only}"));
            }
            let messages = export::openai(&entries);
            let messages =
                messages.map_err(|error| CommandError::usage(format!("session {id}: {error}")))?;
            say(&mut written, &messages)?;
        }
        RecordFormat::Markdown => {
            export::markdown(id, &entries).try_for_each(|piece| say(&mut written, &piece))?;
        }
        RecordFormat::Timeline => {
            let coloured = is_coloured(io::stdout().is_terminal());
            let columns = terminal_columns(io::stdout());
            let style = TimelineStyle { columns, coloured, turns_max: usize::MAX };
            export::timeline(&entries, None, style).try_for_each(|run| say(&mut written, &run))?;
        }
    }
    end(written)
}

/// What a check has seen so far.
#[derive(Default)]
struct VerifySummary {
    sessions: usize,
    records: usize,
    breaches: usize,
    unfinished: usize,
}

fn check(opened: &OpenJournal, id: Option<&SessionId>) -> Result<ExitCode, CommandError> {
    let mut written = stdout();
    let mut seen = VerifySummary::default();
    match id {
        Some(id) => {
            opened.session(id)?;
            check_session(opened, id, &mut seen, &mut written)?;
        }
        None => {
            let findings = opened.reader.check().unwrap_or_else(|error| vec![error.to_string()]);
            for finding in findings {
                breach(&mut seen, &mut written, &format!("the database: {finding}"))?;
            }
            for page in opened.pages(0, None) {
                match page {
                    Ok(page) => page.iter().try_for_each(|session| {
                        check_session(opened, &session.id, &mut seen, &mut written)
                    })?,
                    Err(error) => breach(&mut seen, &mut written, &error.to_string())?,
                }
            }
        }
    }
    let VerifySummary { sessions, records, breaches, unfinished } = seen;
    let (sessions, records) = (counted(sessions, "session"), counted(records, "record"));
    let found = match breaches {
        0 => "nothing is broken".to_owned(),
        1 => "1 breach".to_owned(),
        many => format!("{many} breaches"),
    };
    let open = match unfinished {
        0 => String::new(),
        1 => ", 1 run has not ended".to_owned(),
        many => format!(", {many} runs have not ended"),
    };
    say(&mut written, &format!("{sessions}, {records}: {found}{open}\n"))?;
    end(written)?;
    Ok(if breaches == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// One session in memory at a time.
fn check_session(
    opened: &OpenJournal,
    id: &SessionId,
    seen: &mut VerifySummary,
    written: &mut impl Write,
) -> Result<(), CommandError> {
    seen.sessions += 1;
    let entries = match opened.reader.read(id, Seq(0)) {
        Ok(entries) => entries,
        Err(error) => return breach(seen, written, &format!("session {id}: {error}")),
    };
    seen.records += entries.len();
    seen.unfinished += usize::from(unfinished(&entries).is_some());
    for found in verify(id, &entries) {
        breach(seen, written, &format!("session {id}: {found}"))?;
    }
    Ok(())
}

fn breach(
    seen: &mut VerifySummary,
    written: &mut impl Write,
    what: &str,
) -> Result<(), CommandError> {
    seen.breaches += 1;
    let line: String = what.chars().filter(|c| !c.is_control()).collect();
    say(written, &format!("{line}\n"))
}

fn stdout() -> BufWriter<io::StdoutLock<'static>> {
    BufWriter::new(io::stdout().lock())
}

fn say(written: &mut impl Write, text: &str) -> Result<(), CommandError> {
    written.write_all(text.as_bytes()).map_err(|error| output::broken(&error))
}

fn end(mut written: impl Write) -> Result<(), CommandError> {
    written.flush().map_err(|error| output::broken(&error))
}

/// How many bytes the database and its write-ahead log take.
fn size(file: &Path) -> u64 {
    let mut log = file.as_os_str().to_owned();
    log.push("-wal");
    let size = |path: &Path| std::fs::metadata(path).map_or(0, |found| found.len());
    size(file) + size(Path::new(&log))
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// The states by their words, which help and errors list.
fn states() -> impl TypedValueParser<Value = SessionState> {
    let words = PossibleValuesParser::new(SessionState::ALL.map(SessionState::as_str));
    words.map(|word| {
        let known = SessionState::ALL.into_iter().find(|state| state.as_str() == word);
        known.unwrap_or(SessionState::Idle)
    })
}
