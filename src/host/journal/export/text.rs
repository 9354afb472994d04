//! Text for a terminal: one line for each record, and more for its contents.

use std::collections::BTreeMap;

use super::children::ChildLine;
use super::{
    ChildSessions, approval_question, count_with_noun, format_duration, image_count, run_sums,
    sanitized_line, tokens, when, word,
};
use crate::journal::JournalEntry;
use callsheet_values::record::{Compaction, ExcludedMessage, ResponseMessage};
use callsheet_values::transcript::{
    AttemptResponse, AttemptStart, AttemptTranscript, CallTranscript, RecordLocation,
    RecordedCompaction, RecordedHooks, RecordedOutcome, RecordedRunEnd, RunReopening,
    RunTranscript, Transcript, TurnTranscript,
};
use callsheet_values::types::{
    Content, HookDecision, Metadata, ParentCall, RunError, ToolCall, ToolOutcome, WriteSet,
    metadata, one_line, sanitize_text,
};

/// Maximum number of characters printed of one text. A longer one is cut, and its length is appended.
const BRIEF_CHARS_MAX: usize = 200;

/// The label and the lines of a record, printed after its number and time.
struct RecordDescription {
    /// The kind of the record, in ASCII.
    label: &'static str,
    /// The lines about its contents. The first one follows the label.
    lines: Vec<String>,
}

/// Formats the records. Each piece is the lines of one record.
pub fn text(entries: &[JournalEntry]) -> impl Iterator<Item = String> + '_ {
    log_of(entries, None)
}

/// Formats the records. Below the intent of an agent call are lines about its child session and the children
/// of that session.
pub fn text_with_children<'a>(
    entries: &'a [JournalEntry],
    children: &ChildSessions,
) -> impl Iterator<Item = String> + use<'a> {
    log_of(entries, Some(children))
}

fn log_of<'a>(
    entries: &'a [JournalEntry],
    children: Option<&ChildSessions>,
) -> impl Iterator<Item = String> + use<'a> {
    let mut log = TextLog::default();
    let transcript = Transcript::read(entries);
    log.describe(&transcript);
    if let Some(children) = children {
        log.add_children(&transcript, children);
    }
    for (index, entry) in entries.iter().enumerate() {
        log.descriptions.entry(index).or_insert_with(|| describe_misplaced(entry));
    }
    let seq_columns = entries.last().map_or(1, |entry| entry.seq.to_string().len());
    let labels = log.descriptions.values().map(|description| description.label.len());
    let label_columns = labels.max().unwrap_or_default();
    entries.iter().zip(log.descriptions.into_values()).map(move |(entry, description)| {
        let RecordDescription { label, lines } = description;
        let (seq, time) = (entry.seq.to_string(), when(entry.time));
        let head = format!("{seq:>seq_columns$}  {time}  {label:<label_columns$}  ");
        let margin = " ".repeat(head.len());
        let mut rows = String::new();
        for (row, line) in lines.iter().enumerate() {
            let line = format!("{}{line}", if row == 0 { &head } else { &margin });
            // A name or text in the line must neither break it nor imitate another line.
            rows.push_str(&sanitized_line(line.trim_end()));
            rows.push('\n');
        }
        rows
    })
}

/// Describes a record that contradicts earlier ones.
fn describe_misplaced(entry: &JournalEntry) -> RecordDescription {
    let json = serde_json::to_string(&entry.record).unwrap_or_default();
    RecordDescription { label: "misplaced", lines: vec![brief(&json)] }
}

/// Returns the names of messages, separated by commas.
fn message_names(messages: &[ExcludedMessage]) -> String {
    messages.iter().map(ExcludedMessage::name).collect::<Vec<_>>().join(", ")
}

fn compaction_lines(compaction: &RecordedCompaction<'_>) -> Vec<String> {
    let RecordedCompaction { change, tokens_before, tokens_after, .. } = compaction;
    let (what, text) = match change {
        Compaction::Cleared { calls, cut, .. } => {
            let cleared = format!("{} cleared", count_with_noun(calls.len(), "result"));
            let cut = format!("{} cut", count_with_noun(cut.len(), "result"));
            match (calls.is_empty(), cut.starts_with('0')) {
                (_, true) => (cleared, None),
                (true, false) => (cut, None),
                (false, false) => (format!("{cleared}, {cut}"), None),
            }
        }
        Compaction::Dropped { messages, .. } => {
            (format!("{} dropped", count_with_noun(*messages, "message")), None)
        }
        Compaction::Formatted { text, .. } => ("the run is one message".to_owned(), Some(text)),
        Compaction::Summarised { text, messages, .. } => {
            (format!("{} summarised", count_with_noun(*messages, "message")), Some(text))
        }
        Compaction::Excluded { messages, .. } => {
            (format!("{} left out", message_names(messages)), None)
        }
        Compaction::Included { messages } => {
            (format!("{} taken back", message_names(messages)), None)
        }
    };
    let head = format!("{what}, {tokens_before} tokens before, {tokens_after} after, by estimate");
    [head].into_iter().chain(text.map(|text| brief(text))).collect()
}

/// The descriptions of records, by their index.
#[derive(Default)]
struct TextLog {
    descriptions: BTreeMap<usize, RecordDescription>,
}

impl TextLog {
    fn add(&mut self, at: RecordLocation, label: &'static str, lines: Vec<String>) {
        self.descriptions.insert(at.index, RecordDescription { label, lines });
    }

    /// Adds lines about the child session of each agent call to the call's last intent.
    fn add_children(&mut self, transcript: &Transcript<'_>, children: &ChildSessions) {
        let turns = transcript.runs.iter().flat_map(|run| &run.turns);
        let attempts = turns.flat_map(|turn| &turn.attempts);
        for call in attempts.flat_map(|attempt| attempt.calls.values()) {
            let Some(intent) = call.intents.last() else { continue };
            if let Some(description) = self.descriptions.get_mut(&intent.at.index) {
                description.lines.extend(children.lines(transcript, call).iter().map(child_line));
            }
        }
    }

    fn describe(&mut self, transcript: &Transcript<'_>) {
        if let Some(opening) = transcript.opening {
            let history = match opening.messages.len() {
                0 => String::new(),
                count => format!(" with {}", count_with_noun(count, "message")),
            };
            let mut lines = vec![format!("agent {}{history}", opening.agent)];
            lines.extend(metadata_line(opening.metadata));
            lines.extend(opening.parent.map(|parent| parent_line(parent)));
            self.add(opening.at, "opened", lines);
        }
        for (at, sha256) in &transcript.tool_lists {
            let list = sha256.get(..12).unwrap_or(sha256);
            self.add(*at, "tools", vec![format!("of servers are frozen, list {list}")]);
        }
        for compaction in &transcript.compactions {
            self.add(compaction.at, "compacted", compaction_lines(compaction));
        }
        for fork in &transcript.forks {
            let line = format!("from session {}, at its record {}", fork.from, fork.last_copied);
            self.add(fork.at, "forked", vec![line]);
        }
        for queued in &transcript.queued {
            self.add(
                queued.at,
                "queued",
                vec![format!("{}: {}", queued.run, content(queued.input))],
            );
            if let Some(removed) = queued.removed {
                self.add(removed, "removed", vec![format!("{} from the queue", queued.run)]);
            }
        }
        transcript.runs.iter().for_each(|run| self.add_run(run));
        if let Some(closed) = transcript.closed {
            self.add(closed, "closed", vec![String::new()]);
        }
    }

    fn add_run(&mut self, run: &RunTranscript<'_>) {
        if let Some(start) = run.start {
            let head = format!("{} with {}, {}", start.id, start.model, start.execution);
            let mut lines = vec![head, content(start.input)];
            if !start.overrides.is_none() {
                let overrides = serde_json::to_string(start.overrides).unwrap_or_default();
                lines.push(format!("changes {overrides}"));
            }
            lines.extend(metadata_line(start.metadata));
            self.add(start.at, "run", lines);
        }
        run.turns.iter().for_each(|turn| self.add_turn(turn));
        for steer in &run.steers {
            let line = format!("after turn {}: {}", steer.follows_turn, content(steer.input));
            self.add(steer.at, "steered", vec![line]);
        }
        for instruction in &run.instructions {
            self.add(instruction.at, "instructed", vec![brief(instruction.text)]);
        }
        for stop in &run.stops {
            self.add(stop.at, "stop", vec![word(stop.mode)]);
        }
        for hit in &run.limits {
            let head = format!("{}: {} of {}, {}", hit.limit, hit.value, hit.maximum, hit.action);
            let note = hit.note.map(|note| format!("the model receives the note {}", brief(note)));
            self.add(hit.at, "limit", Vec::from_iter([head].into_iter().chain(note)));
        }
        for end in run.ends() {
            self.add(end.at, "run ended", run_end_lines(&end));
        }
        for RunReopening { at, interrupted } in &run.reopenings {
            self.add(*at, "reopened", vec![interrupted.id.to_string()]);
        }
    }

    fn add_turn(&mut self, turn: &TurnTranscript<'_>) {
        for attempt in &turn.attempts {
            let position = format!("turn {}, attempt {}", turn.number, attempt.number);
            self.add_attempt(&position, attempt);
        }
        for hooks in &turn.hooks {
            self.add(hooks.at, "hooks", hooks_lines(&format!("turn {}", turn.number), hooks));
        }
        if let Some(commit) = turn.commit {
            let calls = count_with_noun(commit.summary.tool_names.len(), "call");
            let (end, tokens) = (word(commit.end), tokens(commit.summary.usage));
            let line = format!("turn {}: {end}, {calls}, {tokens}", turn.number);
            self.add(commit.at, "committed", vec![line]);
        }
    }

    fn add_attempt(&mut self, position: &str, attempt: &AttemptTranscript<'_>) {
        if let Some(start) = &attempt.start {
            self.add(start.at, "requested", start_lines(position, start));
        }
        if let Some(failure) = &attempt.failure {
            let received = if failure.kept {
                "the received part is kept"
            } else {
                "the received part is void"
            };
            let head = format!("{position}: {received}, {}", tokens(failure.usage));
            let mut lines = vec![head, brief(&failure.error.message)];
            if let Some(voided) = failure.voided.filter(|voided| !voided.text.is_empty()) {
                lines.push(format!("shown: {}", brief(&voided.text)));
            }
            self.add(failure.at, "broke", lines);
        }
        if let Some(response) = &attempt.response {
            self.add(response.at, "response", response_lines(position, response));
        }
        for (key, call) in &attempt.calls {
            self.add_call(&key.to_string(), call);
        }
    }

    fn add_call(&mut self, key: &str, call: &CallTranscript<'_>) {
        for intent in &call.intents {
            let key_line = format!("under the key {}", intent.idempotency_key);
            self.add(intent.at, "intent", vec![call_line(intent.call), key_line]);
        }
        for report in &call.reports {
            let mut lines = vec![format!("{key} {}", outcome_line(report.outcome))];
            if !report.reads.0.is_empty() {
                lines.push(format!("has read {}", names(report.reads.0.keys())));
            }
            lines.extend(writes_line("would write", report.writes));
            self.add(report.at, "reported", lines);
        }
        for requested in &call.requests {
            let request = &requested.request;
            let (text, name) = (approval_question(request.phase), &request.call.name);
            let subject = match &request.question {
                Some(question) => brief(&question.message),
                None => brief(&request.arguments.to_string()),
            };
            self.add(requested.at, "approval", vec![format!("{text} {key} {name} {subject}")]);
        }
        for decision in &call.decisions {
            let content = decision.content.map(|content| content.to_string());
            let answer = decision.message.or(content.as_deref());
            let answer = answer.map(|answer| format!(": {}", brief(answer))).unwrap_or_default();
            let verdict = decision.verdict.as_str();
            let line = format!("{} {key} {verdict}{answer}", approval_question(decision.phase));
            self.add(decision.at, "decided", vec![line]);
        }
        for hooks in &call.hooks {
            self.add(hooks.at, "hooks", hooks_lines(key, hooks));
        }
        for ended in &call.outcomes {
            self.add(ended.at, "ended", outcome_lines(ended));
        }
    }
}

fn start_lines(position: &str, start: &AttemptStart<'_>) -> Vec<String> {
    let streaming = if start.streamed { "" } else { ", not streamed" };
    let head = format!("{position} of {}{streaming}", start.model);
    let reason = start.reason.map(|reason| {
        format!("after {}, because {}", format_duration(start.wait_ms), brief(reason))
    });
    Vec::from_iter([head].into_iter().chain(reason))
}

fn response_lines(position: &str, response: &AttemptResponse<'_>) -> Vec<String> {
    let reason = response.finish_reason.map(|reason| format!(" ({})", reason.raw));
    let (ending, reason) = (word(response.ending), reason.unwrap_or_default());
    let mut lines = vec![format!("{position}: {ending}{reason}, {}", tokens(response.usage))];
    let ResponseMessage { text, reasoning, calls, .. } = &**response.message;
    if !reasoning.is_empty() {
        lines.push(format!("thinks {}", brief(reasoning)));
    }
    if !text.is_empty() {
        lines.push(format!("says {}", brief(text)));
    }
    lines.extend(calls.iter().map(|call| format!("calls {}", call_line(call))));
    if !response.dropped_calls.is_empty() {
        lines.push(format!("not kept: {}", names(response.dropped_calls)));
    }
    lines
}

/// Describes a decision of hooks about a call or a turn.
fn hooks_lines(subject: &str, hooks: &RecordedHooks<'_>) -> Vec<String> {
    let HookDecision { verdict, hook, message, arguments, result, messages, parameters } =
        &**hooks.decision;
    let mut head = format!("{} of {subject}: {}", hooks.on, verdict.as_str());
    if let Some(hook) = hook {
        head.push_str(&format!(" by {}", brief(hook)));
    }
    if let Some(message) = message {
        head.push_str(&format!(": {}", brief(message)));
    }
    let mut lines = vec![head];
    for (name, value) in [
        ("arguments", arguments),
        ("result", result),
        ("messages", messages),
        ("parameters", parameters),
    ] {
        let change = value.as_ref().map(|value| brief(&value.to_string()));
        lines.extend(change.map(|value| format!("changes the {name} to {value}")));
    }
    lines
}

fn outcome_lines(ended: &RecordedOutcome<'_>) -> Vec<String> {
    let duration = match ended.started_ms {
        Some(_) => format!("in {}", format_duration(ended.duration_ms)),
        None => "without a start".to_owned(),
    };
    let amendment = if ended.amended { " (with new notes)" } else { "" };
    let (key, name, outcome) = (ended.label.key, &ended.label.name, outcome_line(ended.outcome));
    let mut lines = vec![format!("{key} {name} {duration}{amendment}: {outcome}")];
    let result_metadata = metadata(ended.outcome, ended.notes);
    let is_empty = result_metadata.as_object().is_none_or(serde_json::Map::is_empty);
    lines.extend((!is_empty).then(|| result_metadata.to_string()));
    lines.extend(writes_line("writes", ended.writes));
    lines
}

/// Describes the call that opened a child session.
fn parent_line(parent: &ParentCall) -> String {
    let ParentCall { session, key, agent_path, .. } = parent;
    format!("by the call {key} of session {session}; agents {}", agent_path.join(" > "))
}

/// Describes the child session of a call.
fn child_line(child: &ChildLine) -> String {
    let ChildLine { depth, id, agent, state, error } = child;
    let agent = agent.as_ref().map(|agent| format!(" of agent {agent}")).unwrap_or_default();
    let error = error.as_ref().map(|error| format!(": {}", brief(error))).unwrap_or_default();
    format!("{}child {id}{agent}: {}{error}", "  ".repeat(*depth), brief(state))
}

fn metadata_line(metadata: &Metadata) -> Option<String> {
    let json = || serde_json::to_string(metadata).unwrap_or_default();
    (!metadata.is_empty()).then(|| format!("metadata {}", brief(&json())))
}

fn run_end_lines(ended: &RecordedRunEnd<'_>) -> Vec<String> {
    let mut lines =
        vec![format!("{}: {} after {}", ended.id, ended.end.as_str(), run_sums(ended.stats))];
    if !ended.text.is_empty() {
        lines.push(brief(ended.text));
    }
    lines.extend(ended.output.map(|output| format!("output {}", brief(&output.to_string()))));
    if let Some(RunError { code, message, .. }) = ended.error {
        lines.push(format!("{code}: {}", brief(message)));
    }
    if ended.waiting > 0 {
        let waiting = usize::try_from(ended.waiting).unwrap_or(usize::MAX);
        lines.push(format!("{} queued", count_with_noun(waiting, "input")));
    }
    lines
}

fn call_line(call: &ToolCall) -> String {
    let ToolCall { key, name, arguments, raw, .. } = call;
    let raw = raw.as_ref().map(|raw| format!(", received as {}", brief(raw)));
    format!("{key} {name} {}{}", brief(&arguments.to_string()), raw.unwrap_or_default())
}

fn outcome_line(outcome: &ToolOutcome) -> String {
    format!("{} {}", outcome.status.as_str(), brief(&outcome.content))
}

fn writes_line(verb: &str, writes: &WriteSet) -> Option<String> {
    (!writes.is_empty()).then(|| format!("{verb} {}", names(writes.0.keys())))
}

fn names(names: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let names: Vec<String> = names.into_iter().map(|name| brief(name.as_ref())).collect();
    names.join(", ")
}

fn content(input: &Content) -> String {
    let images = match image_count(input) {
        0 => String::new(),
        count => format!(" with {}", count_with_noun(count, "image")),
    };
    format!("{}{images}", brief(&input.text()))
}

/// Returns the beginning of a text in one line, with the length of the text if it is longer.
fn brief(text: &str) -> String {
    let text = sanitize_text(text);
    let line = one_line(&text, BRIEF_CHARS_MAX);
    let is_cut = line.chars().count() > BRIEF_CHARS_MAX;
    if is_cut { format!("{line} [{} characters]", text.chars().count()) } else { line }
}
