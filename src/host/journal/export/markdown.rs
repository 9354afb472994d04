//! A log in Markdown: the runs, their messages, and the calls of tools.
//!
//! Text of a user, a model or a tool is put into a code block or code span whose delimiters are longer
//! than any in the text.

use super::children::ChildLine;
use super::{
    ChildSessions, approval_question, count_with_noun, format_duration, image_count, run_sums,
    tokens, when, word,
};
use crate::journal::JournalEntry;
use callsheet_values::transcript::{
    AttemptResponse, AttemptTranscript, CallTranscript, RecordLocation, RecordedOutcome,
    RecordedRunEnd, RunTranscript, Transcript, TurnTranscript,
};
use callsheet_values::types::{
    Content, Metadata, RunEnd, RunError, SessionId, ToolCall, excerpt, one_line, sanitize_text,
};

/// Maximum number of characters of a result that are printed. A longer one is cut, and its heading has its length.
const RESULT_CHARS: usize = 200;

/// Maximum number of characters of a text within a line.
const SPAN_CHARS: usize = 500;

/// Formats the session's log, piece by piece.
pub fn markdown(
    session: &SessionId,
    entries: &[JournalEntry],
) -> impl Iterator<Item = String> + use<> {
    log_of(session, entries, None)
}

/// Formats the session's log, piece by piece. The call of an agent has a list of its child session and the children
/// of that session.
pub fn markdown_with_children(
    entries: &[JournalEntry],
    children: &ChildSessions,
) -> impl Iterator<Item = String> {
    log_of(children.session(), entries, Some(children))
}

fn log_of(
    session: &SessionId,
    entries: &[JournalEntry],
    children: Option<&ChildSessions>,
) -> impl Iterator<Item = String> + use<> {
    let transcript = Transcript::read(entries);
    let mut log = MarkdownLog { children, pieces: Vec::new() };
    log.add_transcript(&transcript);
    log.pieces.sort_by_key(|(index, _)| *index);
    let title = title(session, entries, &transcript);
    std::iter::once(title).chain(log.pieces.into_iter().map(|(_, piece)| piece))
}

fn title(session: &SessionId, entries: &[JournalEntry], transcript: &Transcript<'_>) -> String {
    let mut title = format!("# Session {}\n\n", span(session.as_str()));
    if let (Some(first), Some(last)) = (entries.first(), entries.last()) {
        if let Some(opening) = transcript.opening {
            title.push_str(&format!("- agent: {}\n", span(opening.agent)));
        }
        let metadata = transcript.opening.map(|opening| opening.metadata);
        if let Some(metadata) = metadata.filter(|metadata| !metadata.is_empty()) {
            title.push_str(&format!("- metadata: {}\n", metadata_span(metadata)));
        }
        title.push_str(&format!("- opened: {}\n", when(first.time)));
        title.push_str(&format!("- last change: {}\n", when(last.time)));
        title.push_str(&format!("- {}\n", count_with_noun(entries.len(), "record")));
    }
    if let Some(run) = transcript.open_run().and_then(RunTranscript::id) {
        title.push_str(&format!("- run {} has not ended\n", span(&run.0)));
    }
    title
}

/// Pieces of text. Each has the index of the record at which it is printed, or `usize::MAX` for the end.
struct MarkdownLog<'c> {
    /// The child sessions, if they are shown.
    children: Option<&'c ChildSessions>,
    pieces: Vec<(usize, String)>,
}

impl MarkdownLog<'_> {
    fn add(&mut self, at: RecordLocation, piece: String) {
        self.pieces.push((at.index, piece));
    }

    fn add_transcript(&mut self, transcript: &Transcript<'_>) {
        if let Some(opening) = transcript.opening.filter(|opening| !opening.messages.is_empty()) {
            let lines: Vec<_> = opening.messages.iter().map(ToString::to_string).collect();
            let messages = fence("json", &lines.join("\n"));
            self.add(opening.at, format!("\nOpened with these messages:\n\n{messages}"));
        }
        for fork in &transcript.forks {
            let (from, last) = (span(fork.from.as_str()), fork.last_copied);
            self.add(fork.at, format!("\nForked from session {from} at its record {last}.\n"));
        }
        for queued in &transcript.queued {
            let (run, input) = (span(&queued.run.0), content(queued.input));
            self.add(queued.at, format!("\n**User**, queued for run {run}\n\n{input}"));
            if let Some(removed) = queued.removed {
                self.add(removed, format!("\nThe input for run {run} was taken back.\n"));
            }
        }
        transcript.runs.iter().for_each(|run| self.add_run(transcript, run));
        if let Some(closed) = transcript.closed {
            self.add(closed, "\nThe session was closed.\n".to_owned());
        }
    }

    fn add_run(&mut self, transcript: &Transcript<'_>, run: &RunTranscript<'_>) {
        if let Some(start) = run.start {
            let (id, model) = (span(&start.id.0), span(start.model));
            let mut head = format!("{}, with {model}, {}", when(start.at.time), start.execution);
            if !start.metadata.is_empty() {
                head.push_str(&format!(", metadata {}", metadata_span(start.metadata)));
            }
            let input = content(start.input);
            self.add(start.at, format!("\n## Run {id}\n\n{head}\n\n**User**\n\n{input}"));
        }
        for turn in &run.turns {
            self.add_turn(turn);
            let children = |call: &CallTranscript<'_>| {
                let lines = self.children.map(|children| children.lines(transcript, call));
                child_list(&lines.unwrap_or_default())
            };
            let calls = calls(turn, children);
            if let Some(commit) = turn.commit {
                let (end, tokens) = (word(commit.end), tokens(commit.summary.usage));
                let line = format!("\n- Turn {}: {end}, {tokens}\n", turn.number);
                self.add(commit.at, calls + &line);
            } else if !calls.is_empty() {
                let index = run.end.map_or(usize::MAX, |end| end.at.index);
                self.pieces.push((index, calls + "\n- This turn is not committed.\n"));
            }
        }
        for steer in &run.steers {
            let input = content(steer.input);
            self.add(steer.at, format!("\n**User**, to the current run\n\n{input}"));
        }
        for instruction in &run.instructions {
            let text = span(instruction.text);
            self.add(instruction.at, format!("\n- The model is told: {text}\n"));
        }
        for stop in &run.stops {
            self.add(stop.at, format!("\n- A stop was requested: {}\n", word(stop.mode)));
        }
        for hit in &run.limits {
            let note = hit.note.map(|note| format!(". The model receives the note {}", span(note)));
            let (limit, action) = (span(hit.limit), span(hit.action));
            let (values, note) =
                (format!("{} of {}", hit.value, hit.maximum), note.unwrap_or_default());
            self.add(hit.at, format!("\n- Limit {limit} reached: {values}, {action}{note}\n"));
        }
        for end in run.ends() {
            self.add(end.at, run_end(&end));
        }
        for reopening in &run.reopenings {
            self.add(reopening.at, "\n- The run goes on.\n".to_owned());
        }
    }

    fn add_turn(&mut self, turn: &TurnTranscript<'_>) {
        for AttemptTranscript { number, failure, response, calls, .. } in &turn.attempts {
            if let Some(failure) = failure {
                let kept = if failure.kept { "is kept" } else { "is void" };
                let (turn, error) = (turn.number, span(&failure.error.message));
                let line = format!(
                    "\n- Attempt {number} of turn {turn} failed: {error}. The received part {kept}.\n"
                );
                self.add(failure.at, line);
            }
            if let Some(response) = response {
                self.add(response.at, message(response));
            }
            for (key, call) in calls {
                self.add_approvals(&span(&key.to_string()), call);
            }
        }
    }

    fn add_approvals(&mut self, key: &str, call: &CallTranscript<'_>) {
        for question in &call.requests {
            let name = span(&question.request.call.name);
            let text = approval_question(question.request.phase);
            let line = match &question.request.question {
                Some(question) => {
                    let message = span(&question.message);
                    format!("\n- Input requested: {name} ({key}) asks {message}\n")
                }
                None => format!("\n- Approval requested: {text} {name} ({key})\n"),
            };
            self.add(question.at, line);
        }
        for decision in &call.decisions {
            let content = decision.content.map(|content| content.to_string());
            let with = decision.message.or(content.as_deref());
            let with = with.map(|with| format!(": {}", span(with)));
            let (verdict, with) = (decision.verdict.as_str(), with.unwrap_or_default());
            let line =
                format!("\n- {} ({key}) {verdict}{with}\n", approval_question(decision.phase));
            self.add(decision.at, line);
        }
    }
}

fn message(response: &AttemptResponse<'_>) -> String {
    let (text, reasoning) = (&response.message.text, &response.message.reasoning);
    let mut log = String::new();
    if !reasoning.is_empty() {
        log.push_str("\n> **Thinking**\n>\n");
        for line in fence("text", reasoning).lines() {
            log.push_str(&format!("> {line}\n"));
        }
    }
    if !text.is_empty() {
        log.push_str(&format!("\n**Assistant**\n\n{}", fence("text", text)));
    }
    log
}

/// Formats the calls of a turn with their outcomes so far.
fn calls(turn: &TurnTranscript<'_>, children_of: impl Fn(&CallTranscript<'_>) -> String) -> String {
    let mut log = String::new();
    for (call, number) in turn.kept_calls().iter().zip(1..) {
        if number == 1 {
            log.push_str("\n**[Tool Execution Log]**\n");
        }
        let ToolCall { key, name, arguments, raw, .. } = call;
        let records = turn.call(*key);
        let outcome = records.and_then(CallTranscript::outcome);
        let status = outcome.map_or_else(|| "no outcome yet".to_owned(), status);
        let (name, key) = (span(name), span(&key.to_string()));
        log.push_str(&format!("\n{number}. {name} ({key}): {status}\n\n"));
        log.push_str(&records.map(&children_of).unwrap_or_default());
        let arguments = raw.clone().unwrap_or_else(|| arguments.to_string());
        log.push_str(&format!("Arguments:\n\n{}", fence("json", &arguments)));
        if let Some(recorded) = outcome {
            log.push_str(&result(&recorded.outcome.content));
        }
    }
    log
}

/// Formats the child session of a call and its descendants as a list.
fn child_list(children: &[ChildLine]) -> String {
    let mut list = String::new();
    for ChildLine { depth, id, agent, state, error } in children {
        let agent = agent.as_ref().map(|agent| format!(" of agent {}", span(agent)));
        let error = error.as_ref().map(|error| format!(": {}", span(error)));
        let (indent, id) = ("  ".repeat(*depth), span(id.as_str()));
        let (agent, error) = (agent.unwrap_or_default(), error.unwrap_or_default());
        let state = one_line(&sanitize_text(state), SPAN_CHARS);
        list.push_str(&format!("{indent}- Child session {id}{agent}: {state}{error}\n"));
    }
    if list.is_empty() { list } else { list + "\n" }
}

fn status(recorded: &RecordedOutcome<'_>) -> String {
    let took = match (recorded.notes.duplicate_of, recorded.started_ms) {
        (Some(of), _) => format!("a copy of {}", span(&of.to_string())),
        (None, _) if recorded.notes.reused => "from the previous attempt".to_owned(),
        (None, Some(_)) => format_duration(recorded.duration_ms),
        (None, None) => "never started".to_owned(),
    };
    format!("{}, {took}", recorded.outcome.status.as_str())
}

fn result(content: &str) -> String {
    let quoted = excerpt(content, RESULT_CHARS);
    let of = match content.chars().count() {
        ..=RESULT_CHARS => String::new(),
        count => format!(", the first {RESULT_CHARS} of {count} characters"),
    };
    format!("\nResult{of}:\n\n{}", fence("text", &quoted))
}

fn metadata_span(metadata: &Metadata) -> String {
    span(&serde_json::to_string(metadata).unwrap_or_default())
}

fn run_end(ended: &RecordedRunEnd<'_>) -> String {
    let error = ended.error.map(|RunError { code, message, .. }| {
        format!("\n- Error {}: {}\n", span(code), span(message))
    });
    // All other texts of a run's end are those of a response.
    let has_own_text = !ended.text.is_empty() && ended.end == RunEnd::AllToolsFailed;
    let text =
        if has_own_text { format!("\n{}", fence("text", ended.text)) } else { String::new() };
    let output = ended.output.map(|output| format!("\n- Output: {}\n", span(&output.to_string())));
    format!(
        "{text}{}{}\n**Run ended**: {}, {}\n",
        output.unwrap_or_default(),
        error.unwrap_or_default(),
        ended.end.as_str(),
        run_sums(ended.stats)
    )
}

fn content(input: &Content) -> String {
    let with = match image_count(input) {
        0 => String::new(),
        images => format!("\n(with {})\n", count_with_noun(images, "image")),
    };
    format!("{}{with}", fence("text", &input.text()))
}

/// Formats a code block that no text within it can end.
fn fence(language: &str, text: &str) -> String {
    let text = sanitize_text(text);
    let fence = "`".repeat(longest_ticks(&text).max(2) + 1);
    let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    format!("{fence}{language}\n{text}{end}{fence}\n")
}

/// Formats a code span that no text within it can end.
pub(super) fn span(text: &str) -> String {
    let text = one_line(&sanitize_text(text), SPAN_CHARS);
    if text.is_empty() {
        return "(nothing)".to_owned();
    }
    let ticks = "`".repeat(longest_ticks(&text) + 1);
    // Blanks separate the ticks of the span from those of the text.
    let blank = if text.starts_with('`') || text.ends_with('`') { " " } else { "" };
    format!("{ticks}{blank}{text}{blank}{ticks}")
}

fn longest_ticks(text: &str) -> usize {
    text.split(|c| c != '`').map(str::len).max().unwrap_or_default()
}
