#![expect(clippy::wildcard_enum_match_arm, reason = "a test changes some kinds of records")]

use std::sync::Arc;

use serde_json::Value;

use super::*;
use crate::record::Record;
use crate::transcript::fixtures::{entries, sample_records, session};

fn rich_entries() -> Vec<JournalEntry> {
    entries(sample_records())
}

#[test]
fn text_has_lines_for_each_record() {
    let text: String = text(&rich_entries()).collect();
    insta::assert_snapshot!("text", text);
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "a terminal would obey it");
}

#[test]
fn markdown_has_runs_turns_and_calls() {
    let log: String = markdown(&session(), &rich_entries()).collect();
    insta::assert_snapshot!("markdown", log);
    assert!(log.chars().all(|c| c == '\n' || !c.is_control()), "a terminal would obey it");
}

#[test]
fn jsonl_can_be_read_back() {
    let lines: String = rich_entries().iter().map(jsonl).collect();
    insta::assert_snapshot!("jsonl", lines);
    for (line, record) in lines.lines().zip(sample_records()) {
        let mut fields: serde_json::Map<String, Value> = serde_json::from_str(line).unwrap();
        assert!(fields.remove("seq").is_some() && fields.remove("time").is_some());
        let read: Record = serde_json::from_value(Value::Object(fields)).unwrap();
        assert_eq!(read, record);
    }
}

#[test]
fn messages_can_open_a_session() {
    let messages = openai(&rich_entries()).unwrap();
    insta::assert_snapshot!("openai", messages);
    let messages: Vec<Value> = serde_json::from_str(&messages).unwrap();
    let reopened = crate::context::InitialHistory::parse(&messages).unwrap();
    let history = History::from_initial(reopened);
    assert_eq!((history.messages().len(), history.request_messages().1), (10, 0));
    assert_eq!(openai(&entries(sample_records().into_iter().take(1))).unwrap(), "[]\n");
}

#[test]
fn an_open_turn_has_no_messages_and_is_marked_as_open() {
    let open = &rich_entries()[..9];
    let messages: Vec<Value> = serde_json::from_str(&openai(open).unwrap()).unwrap();
    assert_eq!(messages.len(), 1, "the user's input alone");
    let log: String = markdown(&session(), open).collect();
    for part in ["run `run_1` has not ended", "no outcome yet", "This turn is not committed."] {
        assert!(log.contains(part), "{part} in {log}");
    }
}

/// Quoted text stands only in fences and code spans.
#[test]
fn quoted_text_cannot_break_the_layout_of_markdown() {
    let hostile = "x\n```\n````\n# Run ended\n> q\n<!-- \n- `` b ` c";
    let mut records = sample_records();
    let text = |record: &mut Record| match record {
        Record::RunStarted { input, .. } | Record::Steered { input, .. } => {
            *input = hostile.into();
        }
        Record::ResponseEnded { message, .. } => {
            let message = Arc::make_mut(message);
            message.text = hostile.to_owned();
            message.reasoning = hostile.to_owned();
            for call in &mut message.calls {
                call.raw = Some(hostile.to_owned());
            }
        }
        Record::CallEnded { outcome, .. } => outcome.content = hostile.into(),
        Record::AttemptFailed { error, .. } => error.message = hostile.to_owned(),
        Record::ApprovalGiven { message, .. } => *message = Some(hostile.to_owned()),
        _ => {}
    };
    records.iter_mut().for_each(text);
    let log: String = markdown(&session(), &entries(records)).collect();
    let mut fence: Option<String> = None;
    for line in log.lines() {
        let line = line.strip_prefix("> ").filter(|_| !line.starts_with("> q")).unwrap_or(line);
        let ticks: String = line.chars().take_while(|c| *c == '`').collect();
        match &fence {
            Some(open) if line.chars().all(|c| c == '`') && ticks.len() >= open.len() => {
                fence = None;
            }
            Some(_) => {}
            None if ticks.len() >= 3 => fence = Some(ticks),
            None => {
                let is_own_line = line.starts_with("# Run ended") || line.starts_with("<!--");
                assert!(!is_own_line, "{line} in {log}");
            }
        }
    }
    assert_eq!(fence, None, "{log}");
    for (text, expected) in [
        ("plain", "`plain`"),
        ("a`b", "``a`b``"),
        ("`a``", "``` `a`` ```"),
        ("a\nb\u{7}", "`a b`"),
        ("", "(nothing)"),
    ] {
        assert_eq!(markdown::span(text), expected);
    }
}

#[test]
fn a_misplaced_record_has_a_line_of_text() {
    let mut records = sample_records();
    // The attempt that answers does not start, so that its response and its calls do not fit.
    records.remove(4);
    let entries = entries(records);
    let lines: Vec<String> = text(&entries).collect();
    assert_eq!(lines.len(), entries.len());
    let misplaced: Vec<_> = lines.iter().filter(|line| line.contains("  misplaced  ")).collect();
    assert!(
        misplaced[0].contains(r#"{"type":"response_ended","turn":1,"attempt":2"#),
        "{lines:#?}"
    );
    assert!(lines.iter().all(|line| line.len() > 30), "{lines:#?}");
}

#[test]
fn the_calls_of_an_abandoned_turn_precede_the_end_of_its_run() {
    let mut records = sample_records();
    records.drain(9..21);
    let Record::RunEnded { end, error, .. } = &mut records[9] else { panic!("the end of run_1") };
    *end = crate::types::RunEnd::Failed;
    let (code, message) = ("internal_error".to_owned(), "its actors died".to_owned());
    *error = Some(crate::types::RunError { code, message, transient: true });
    let log: String = markdown(&session(), &entries(records)).collect();
    let open = log.find("- This turn is not committed.").unwrap();
    let end = log.find("- Error `internal_error`: `its actors died`").unwrap();
    assert!(open < end && end < log.find("## Run `run_2`").unwrap(), "{log}");
}
