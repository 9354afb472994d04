//! A session's records as text, for people and for programs.
//!
//! Pure functions from entries to text. Long texts are returned in pieces. In the formats for people, the texts of
//! models and tools can neither break the layout nor send control characters to a terminal.

mod children;
mod markdown;
#[cfg(test)]
mod tests;
mod text;
mod timeline;

use std::borrow::Borrow;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value};

pub use children::ChildSessions;
pub(super) use children::{ChildRecords, ChildSession, child_id, run_of_call};
pub use markdown::{markdown, markdown_with_children};
pub use text::{text, text_with_children};
pub use timeline::{TimelineStyle, timeline};

use super::JournalEntry;
use callsheet_machines::context::History;
use callsheet_machines::session::{RebuildError, SessionRunRules, StoredSession};
use callsheet_values::config::Limits;
use callsheet_values::event::StatsReport;
use callsheet_values::message::{Message, ResponseMessage};
use callsheet_values::transcript::{CallTranscript, RecordedApprovalRequest};
use callsheet_values::types::{
    Content, ContentPart, ReasoningField, ReasoningMembers, Usage, WaitPhase, sanitize_text,
};

/// Formats an entry as a line with one JSON object: `seq`, `time`, `shown` if it is not 0, `type` and the record's
/// own fields.
#[must_use]
#[expect(clippy::expect_used, reason = "plain data with text keys always has a JSON form")]
pub fn jsonl(entry: &JournalEntry) -> String {
    let mut line = serde_json::to_string(entry).expect("plain data");
    line.push('\n');
    line
}

/// Formats the session's history as a JSON array of messages in the Chat Completions form, as a
/// provider accepts it, with one message per line. Results are whole, and no message is compacted, even if the
/// model received less. A turn that is not committed has no messages.
///
/// # Errors
/// If a record contradicts the ones before it.
#[expect(clippy::expect_used, reason = "messages always have a JSON form")]
pub fn openai(entries: &[JournalEntry]) -> Result<String, RebuildError> {
    let (messages, _) = whole_history(entries)?.request_messages();
    let lines = messages.iter().map(|message| {
        let mut form = serde_json::to_value(message).expect("a message");
        if let Value::Object(fields) = &mut form {
            fields.remove("metadata");
            if let Message::Assistant(message) = &**message {
                add_reasoning(message, fields);
            }
        }
        format!("  {form}")
    });
    let lines: Vec<String> = lines.collect();
    let list = lines.join(",\n");
    Ok(if list.is_empty() { "[]\n".to_owned() } else { format!("[\n{list}\n]\n") })
}

/// Adds the reasoning of a message, in the members in which it came over Chat Completions or Ollama's API.
fn add_reasoning(message: &ResponseMessage, fields: &mut Map<String, Value>) {
    let ReasoningMembers { field, reasoning_details, reasoning_opaque } =
        message.reasoning_members();
    let field = field.filter(|field| *field != ReasoningField::Content);
    if let Some(field) = field.filter(|_| !message.reasoning.is_empty()) {
        fields.insert(field.as_str().to_owned(), message.reasoning.as_str().into());
    }
    for (name, value) in
        [("reasoning_details", reasoning_details), ("reasoning_opaque", reasoning_opaque)]
    {
        let value = value.and_then(|value| serde_json::from_str(value.get()).ok());
        fields.extend(value.map(|value| (name.to_owned(), value)));
    }
}

/// Returns the history that a host rebuilds from these records, but with whole results and without compaction.
pub(super) fn whole_history(
    entries: impl IntoIterator<Item = impl Borrow<JournalEntry>>,
) -> Result<History, RebuildError> {
    let limits = Limits::default().with(|limits| limits.max_result_bytes = usize::MAX);
    let session_rules = SessionRunRules::from(limits);
    Ok(StoredSession::read_uncompacted(entries, &|_| session_rules.clone())?
        .session
        .history()
        .clone())
}

/// Formats a Unix time in milliseconds for people, in UTC.
#[must_use]
pub fn when(time: u64) -> String {
    // The format has no years after 9999.
    const YEAR_10_000: u64 = 253_402_300_800_000;
    if time >= YEAR_10_000 {
        return "at no known time".to_owned();
    }
    let time = SystemTime::UNIX_EPOCH + Duration::from_millis(time);
    humantime::format_rfc3339_millis(time).to_string().replace('T', " ")
}

fn format_duration(ms: u64) -> String {
    if ms < 1000 { format!("{ms} ms") } else { format!("{}.{:03} s", ms / 1000, ms % 1000) }
}

fn count_with_noun(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

fn image_count(input: &Content) -> usize {
    input.parts().iter().filter(|part| matches!(part, ContentPart::Image(_))).count()
}

/// Returns a text without line breaks and control characters, and with invisible characters written
/// out.
fn sanitized_line(text: &str) -> String {
    sanitize_text(text).replace(char::is_control, "")
}

/// Returns the turns, calls, tokens and time of a run.
fn run_sums(stats: &StatsReport) -> String {
    format!(
        "{}, {}, {} + {} tokens, {}",
        count_with_noun(stats.turns as usize, "turn"),
        count_with_noun(stats.tool_calls as usize, "call"),
        stats.input_tokens,
        stats.output_tokens,
        format_duration(stats.duration_ms)
    )
}

/// Formats the numbers of input and output tokens.
fn tokens(usage: Usage) -> String {
    format!("{} + {} tokens", usage.input_tokens, usage.output_tokens)
}

fn approval_question(phase: WaitPhase) -> &'static str {
    match phase {
        WaitPhase::Before => "may it run?",
        WaitPhase::After => "may its result be seen?",
        WaitPhase::Input => "its question:",
        WaitPhase::Client => "handed to the client",
    }
}

/// Returns the question that an open call asks people, if they have not answered it.
fn open_question<'t, 'a>(call: &'t CallTranscript<'a>) -> Option<&'t RecordedApprovalRequest<'a>> {
    let asked = call.requests.last().filter(|asked| !asked.is_for_client())?;
    // A call that ran again after a crash asks again.
    let ran_again = call.intents.last().is_some_and(|intent| asked.at.is_before(intent.at));
    let is_open = call.outcome().is_none() && call.decision_about(asked).is_none() && !ran_again;
    is_open.then_some(asked)
}

/// Returns the name that an enum value has in JSON.
fn word(value: impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(word)) => word,
        Ok(Value::Object(tagged)) => tagged.keys().next().cloned().unwrap_or_default(),
        Ok(_) | Err(_) => String::new(),
    }
}
