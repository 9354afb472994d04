//! `callsheet sessions`: lists, shows and verifies the sessions of a journal. `audit` is in a module of its own.

use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::audit::audit;
use super::copy::{self, CopyArgs};
use super::error::CommandError;
use super::output::{self, format_count};
use super::screen::{ascii_signs, is_coloured, is_dumb, terminal_columns};
use super::setup;
use super::stored_journal::{JournalLocation, StoredJournal};
use callsheet_host::journal::export::{self, ChildSessions, TimelineStyle};
use callsheet_host::journal::{
    JournalError, SessionQuery, SessionSummary, open_run_id, state_after, unix_ms, verify,
    verify_children,
};
use callsheet_values::record::Record;
use callsheet_values::types::{SessionId, SessionState, sanitize_text};

/// Number of sessions that are read at once.
const PAGE_LENGTH: usize = 1_000;

/// The advice for a damaged database.
const RESTORE_HINT: &str = "restore the data directory from a backup";

/// The subcommands of `callsheet sessions`.
#[derive(Debug, clap::Subcommand)]
pub(super) enum SessionsCommand {
    /// Lists the stored sessions.
    List {
        #[command(flatten)]
        location: JournalLocation,
        /// Maximum number of sessions; 0 means no limit.
        #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true,
            value_parser = setup::number_in(0..=usize::MAX))]
        limit: usize,
        /// Only sessions in this state: idle or running.
        #[arg(long, value_name = "STATE", value_parser = state_parser())]
        state: Option<SessionState>,
        /// Also list child sessions, which calls of agents have opened.
        #[arg(long)]
        children: bool,
        /// Print one JSON object per line.
        #[arg(long)]
        json: bool,
    },
    /// Shows the records of a session, and the tree of its child sessions.
    Show {
        /// Id of the session.
        #[arg(value_name = "ID", value_parser = SessionId::parse)]
        id: SessionId,
        #[command(flatten)]
        location: JournalLocation,
        /// The format: text for a terminal, jsonl (one record per line), openai (the messages),
        /// markdown, or timeline (turns and calls on a time axis).
        #[arg(long, value_name = "FORMAT", default_value = "text")]
        format: RecordFormat,
    },
    /// Verifies that the records of sessions are complete and consistent.
    Verify {
        /// Only this session [default: the database and all sessions]
        #[arg(value_name = "ID", value_parser = SessionId::parse)]
        id: Option<SessionId>,
        #[command(flatten)]
        location: JournalLocation,
    },
    /// Copies all sessions from one journal to another: from a data directory to a PostgreSQL database, or back.
    Copy(CopyArgs),
    /// Lists who requested what and when, in all sessions and of deleted ones, without contents.
    Audit {
        #[command(flatten)]
        location: JournalLocation,
        /// Print one JSON object per line.
        #[arg(long)]
        json: bool,
    },
}

/// The output format of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum RecordFormat {
    /// One or more lines for each record.
    Text,
    /// One JSON object per record and line.
    Jsonl,
    /// The history as messages of OpenAI's Chat Completions API.
    Openai,
    /// A conversation in Markdown.
    Markdown,
    /// The turns of each run on a time axis.
    Timeline,
}

/// Runs a subcommand.
pub(super) fn run(command: &SessionsCommand) -> Result<ExitCode, CommandError> {
    match command {
        SessionsCommand::List { location, limit, state, children, json } => {
            list(&location.open()?, (*limit, *state, *children), *json)?;
            Ok(ExitCode::SUCCESS)
        }
        SessionsCommand::Show { id, location, format } => {
            show(&location.open()?, id, *format)?;
            Ok(ExitCode::SUCCESS)
        }
        SessionsCommand::Verify { id, location } => verify_journal(&location.open()?, id.as_ref()),
        SessionsCommand::Copy(args) => copy::run(args),
        SessionsCommand::Audit { location, json } => {
            audit(&location.open()?, *json)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

impl StoredJournal {
    fn session(&self, id: &SessionId) -> Result<SessionSummary, CommandError> {
        let found = self.find(id).map_err(CommandError::usage)?;
        found.ok_or_else(|| unknown_session(&self.place(), id))
    }

    /// Iterates over pages of sessions, up to `limit` sessions (0: all). Ends after an error.
    pub(super) fn pages(
        &self,
        limit: usize,
        state: Option<SessionState>,
        children: bool,
    ) -> impl Iterator<Item = Result<Vec<SessionSummary>, JournalError>> {
        let mut after = None;
        let mut remaining = if limit == 0 { usize::MAX } else { limit };
        std::iter::from_fn(move || {
            let limit = remaining.min(PAGE_LENGTH);
            if limit == 0 {
                return None;
            }
            let (from, touched_before) = (after.take(), None);
            let listing = SessionQuery::default().with(|query| {
                query.after = from;
                query.limit = limit;
                query.state = state;
                query.touched_before = touched_before;
                query.children = children;
            });
            let page = self.list(&listing);
            match &page {
                Ok(page) => {
                    remaining -= page.len();
                    after = Some(page.last()?.id.clone());
                }
                Err(_) => remaining = 0,
            }
            Some(page)
        })
    }
}

/// Returns the error about a session that a journal does not have.
pub(super) fn unknown_session(place: &str, id: &SessionId) -> CommandError {
    let hint = "callsheet sessions list lists them";
    CommandError::usage(format!("{place} has no session {id} ({hint})"))
}

fn list(
    journal: &StoredJournal,
    (limit, state, children): (usize, Option<SessionState>, bool),
    json: bool,
) -> Result<(), CommandError> {
    let mut stdout = buffered_stdout();
    let (mut count, mut id_columns, mut agent_columns) = (0, 2, 5);
    for page in journal.pages(limit, state, children) {
        let page = page.map_err(CommandError::usage)?;
        if json {
            for session in &page {
                let line = serde_json::to_string(session).map_err(CommandError::failed)?;
                write(&mut stdout, &format!("{line}\n"))?;
            }
            continue;
        }
        // A later page may have wider columns than the rows that are printed already.
        for session in &page {
            id_columns = id_columns.max(session.id.as_str().len());
            agent_columns = agent_columns.max(sanitize_text(&session.agent).chars().count());
        }
        let mut row = |id: &str, agent: &str, state: &str, records: &str, touched: &str| {
            let row = format!(
                "{id:<id_columns$}  {agent:<agent_columns$}  {state:<7}  {records:>8}  {touched}\n"
            );
            write(&mut stdout, &row)
        };
        if count == 0 {
            row("ID", "AGENT", "STATE", "RECORDS", "LAST CHANGE")?;
        }
        for SessionSummary { id, agent, state, seq, touched, .. } in &page {
            let (records, touched) = (seq.to_string(), export::when(*touched));
            row(id.as_str(), &sanitize_text(agent), state.as_str(), &records, &touched)?;
        }
        count += page.len();
    }
    if !json {
        let (bytes, place) = (journal.bytes(), journal.place());
        let sessions = format_count(count as u64, "session");
        write(&mut stdout, &format!("{sessions}; the journal in {place} has {bytes} bytes\n"))?;
    }
    flush(stdout)
}

fn show(journal: &StoredJournal, id: &SessionId, format: RecordFormat) -> Result<(), CommandError> {
    journal.session(id)?;
    let entries = journal.read(id).map_err(CommandError::usage)?;
    let children = || ChildSessions::read(id, &entries, |child| journal.read(child));
    let mut stdout = buffered_stdout();
    match format {
        RecordFormat::Text => {
            export::text_with_children(&entries, &children())
                .try_for_each(|lines| write(&mut stdout, &lines))?;
        }
        RecordFormat::Jsonl => {
            entries.iter().try_for_each(|entry| write(&mut stdout, &export::jsonl(entry)))?;
        }
        RecordFormat::Openai => {
            if let Some(run) = open_run_id(&entries) {
                let note = "only committed turns are shown";
                output::error(&format!("session {id} has an open run, {run}: {note}"));
            }
            let messages = export::openai(&entries);
            let messages =
                messages.map_err(|error| CommandError::usage(format!("session {id}: {error}")))?;
            write(&mut stdout, &messages)?;
        }
        RecordFormat::Markdown => {
            export::markdown_with_children(&entries, &children())
                .try_for_each(|part| write(&mut stdout, &part))?;
        }
        RecordFormat::Timeline => {
            let coloured = is_coloured(io::stdout().is_terminal());
            let columns = terminal_columns(io::stdout());
            let style = TimelineStyle { columns, coloured, turns_max: usize::MAX };
            let is_plain = io::stdout().is_terminal() && is_dumb();
            export::timeline(&entries, &children(), None, unix_ms(), style).try_for_each(
                |run| match is_plain {
                    true => write(&mut stdout, &ascii_signs(&run)),
                    false => write(&mut stdout, &run),
                },
            )?;
        }
    }
    flush(stdout)
}

/// Counts of a verification.
#[derive(Default)]
struct VerifySummary {
    sessions: usize,
    records: usize,
    problems: usize,
    unfinished: usize,
}

/// Verifies a session, or the database and all sessions, and prints the problems and a summary.
pub(super) fn verify_journal(
    journal: &StoredJournal,
    id: Option<&SessionId>,
) -> Result<ExitCode, CommandError> {
    let mut stdout = buffered_stdout();
    let mut summary = VerifySummary::default();
    match id {
        Some(id) => {
            let session = journal.session(id)?;
            verify_session(journal, &session, &mut summary, &mut stdout)?;
        }
        None => {
            let findings = journal.check().unwrap_or_else(|error| vec![error.to_string()]);
            for finding in findings {
                let line = format!("{finding}: {RESTORE_HINT}");
                report_problem(&mut summary, &mut stdout, &line)?;
            }
            for page in journal.pages(0, None, true) {
                match page {
                    Ok(page) => page.iter().try_for_each(|session| {
                        verify_session(journal, session, &mut summary, &mut stdout)
                    })?,
                    Err(error) => report_problem(&mut summary, &mut stdout, &error.to_string())?,
                }
            }
        }
    }
    let VerifySummary { sessions, records, problems, unfinished } = summary;
    let (sessions, records) =
        (format_count(sessions as u64, "session"), format_count(records as u64, "record"));
    let result = match problems {
        0 => "nothing is broken".to_owned(),
        count => format_count(count as u64, "problem"),
    };
    let open = match unfinished {
        0 => String::new(),
        1 => ", 1 run has not ended".to_owned(),
        many => format!(", {many} runs have not ended"),
    };
    write(&mut stdout, &format!("{sessions}, {records}: {result}{open}\n"))?;
    flush(stdout)?;
    Ok(if problems == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Verifies one session. Only one session and the children of its calls are in memory at a time.
fn verify_session(
    journal: &StoredJournal,
    session: &SessionSummary,
    summary: &mut VerifySummary,
    output: &mut impl Write,
) -> Result<(), CommandError> {
    summary.sessions += 1;
    let id = &session.id;
    let entries = match journal.read(id) {
        Ok(entries) => entries,
        Err(error) => return report_problem(summary, output, &format!("session {id}: {error}")),
    };
    if entries.is_empty() && journal.find(id).map_err(CommandError::usage)?.is_none() {
        // A running host has deleted it since the sessions were listed.
        summary.sessions -= 1;
        return Ok(());
    }
    summary.records += entries.len();
    summary.unfinished += usize::from(open_run_id(&entries).is_some());
    // A running host may have stored more since the session was listed.
    let listed = entries.iter().filter(|entry| entry.seq <= session.seq);
    let state = state_after(listed).unwrap_or(SessionState::Idle);
    // Earlier versions stored a fork as running if its origin had a queue, until its first run ended.
    let ends_with_fork =
        entries.last().is_some_and(|last| matches!(last.record, Record::SessionForked { .. }));
    let is_of_earlier_version = ends_with_fork && session.state == SessionState::Running;
    if state != session.state && !is_of_earlier_version {
        let what = format!(
            "session {id}: the database has the state {}, but its records end {}: \
             {RESTORE_HINT}",
            session.state.as_str(),
            state.as_str()
        );
        report_problem(summary, output, &what)?;
    }
    let mut children = ChildSessions::new(id);
    for child in ChildSessions::ids(id, &entries) {
        let records = journal.read(&child).map_err(|error| error.to_string());
        children.add(child, records);
    }
    let of_children = verify_children(id, &entries, &children);
    for problem in verify(id, &entries).into_iter().chain(of_children) {
        report_problem(summary, output, &format!("session {id}: {problem}"))?;
    }
    Ok(())
}

fn report_problem(
    summary: &mut VerifySummary,
    output: &mut impl Write,
    problem: &str,
) -> Result<(), CommandError> {
    summary.problems += 1;
    let line = sanitize_text(problem).replace(char::is_control, "");
    write(output, &format!("{line}\n"))
}

pub(super) fn buffered_stdout() -> BufWriter<io::StdoutLock<'static>> {
    BufWriter::new(io::stdout().lock())
}

pub(super) fn write(output: &mut impl Write, text: &str) -> Result<(), CommandError> {
    output.write_all(text.as_bytes()).map_err(|error| output::write_error(&error))
}

pub(super) fn flush(mut output: impl Write) -> Result<(), CommandError> {
    output.flush().map_err(|error| output::write_error(&error))
}

/// Returns a parser of the states of stored sessions. Help and errors list them.
fn state_parser() -> impl TypedValueParser<Value = SessionState> {
    let states = [SessionState::Idle, SessionState::Running];
    let words = PossibleValuesParser::new(states.map(SessionState::as_str));
    words.map(move |word| {
        let state = states.into_iter().find(|state| state.as_str() == word);
        state.unwrap_or(SessionState::Idle)
    })
}
