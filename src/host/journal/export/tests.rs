#![expect(clippy::wildcard_enum_match_arm, reason = "a test changes some kinds of records")]

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use callsheet_values::record::Record;
use callsheet_values::transcript::fixtures::{entries, sample_records, session};
use callsheet_values::types::{RequestKind, SessionId, child_run_id, child_session_id};

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
    let reopened = callsheet_machines::context::InitialHistory::parse(&messages).unwrap();
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

/// Names, messages and variables can look like others by what is invisible in them.
#[test]
fn invisible_characters_are_written_out_in_every_text() {
    let mut json = serde_json::to_string(&sample_records()).unwrap();
    let opened = r#""agent":"default""#;
    let names = ["clock", "pay", "balance", "noon", "go on", "stream broke", "half_used", "`x`"];
    for text in names.into_iter().chain(["max_turns", "What", "tomorrow", "look"]) {
        let (first, rest) = text.split_at(1);
        assert!(json.contains(text), "{text} in {json}");
        json = json.replace(text, &format!(r"{first}\u202e\u200b{rest}"));
    }
    assert!(json.contains(opened), "{json}");
    let metadata = r#""agent":"d\u202eefault","metadata":{"t\u202eeam":"s\u202eearch"}"#;
    json = json.replace(opened, metadata).replace(r#""model":"m""#, r#""model":"m\u200b""#);
    json = json.replace(r#""raw":"tool_calls""#, r#""raw":"tool\u202e_calls""#);
    let entries = entries(serde_json::from_str::<Vec<Record>>(&json).unwrap());
    let children = ChildSessions::new(&session());
    let style = TimelineStyle { columns: 120, coloured: false, turns_max: 12 };
    for (format, log) in [
        ("text", text(&entries).collect::<String>()),
        ("markdown", markdown(&session(), &entries).collect()),
        ("timeline", timeline(&entries, &children, None, 0, style).collect()),
    ] {
        assert!(!log.contains(['\u{202e}', '\u{200b}']), "{format}: {log}");
        assert!(log.contains(r"c\u{202e}\u{200b}lock"), "{format}: {log}");
        assert!(log.contains(r"m\u{200b}"), "{format}: {log}");
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
fn decisions_of_hooks_have_lines_of_text() {
    let mut records = sample_records();
    let key = json!({"turn": 1, "attempt": 2, "index": 1});
    let decided = json!({"type": "hooks_decided", "key": key, "on": "before_call",
        "decision": {"verdict": "allow", "arguments": {"eur": 4}}});
    records.insert(10, serde_json::from_value(decided).unwrap());
    let decided = json!({"type": "turn_hooks_decided", "turn": 1, "on": "before_request",
        "decision": {"verdict": "refuse", "hook": "guard", "message": "too\nmuch"}});
    records.insert(2, serde_json::from_value(decided).unwrap());
    let text: String = text(&entries(records)).collect();
    for line in [
        "before_request of turn 1: refuse by guard: too much\n",
        "before_call of t1a2c1: allow\n",
        r#"changes the arguments to {"eur":4}"#,
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    assert!(!text.contains("misplaced"), "{text}");
}

#[test]
fn the_contents_of_records_are_in_one_column() {
    let mut records = sample_records();
    let (request, text) = (RequestKind::FinalAnswer, "Give the final answer.".to_owned());
    records.insert(17, Record::Instructed { request, text });
    let text: String = super::text(&entries(records)).collect();
    let column = |part: &str| text.lines().find_map(|line| line.find(part)).unwrap();
    for part in ["Give the final answer.", "turn 1, attempt 1 of m", "run_1: answered"] {
        assert_eq!(column(part), column("agent default"), "{part} in {text}");
    }
}

#[test]
fn the_calls_of_an_abandoned_turn_precede_the_end_of_its_run() {
    let mut records = sample_records();
    records.drain(9..21);
    let Record::RunEnded { end, error, .. } = &mut records[9] else { panic!("the end of run_1") };
    *end = callsheet_values::types::RunEnd::Failed;
    let (code, message) = ("internal_error".to_owned(), "its actors died".to_owned());
    *error = Some(callsheet_values::types::RunError { code, message, transient: true });
    let log: String = markdown(&session(), &entries(records)).collect();
    let open = log.find("- This turn is not committed.").unwrap();
    let end = log.find("- Error `internal_error`: `its actors died`").unwrap();
    assert!(open < end && end < log.find("## Run `run_2`").unwrap(), "{log}");
}

/// Returns the records of a child session that makes these calls of agents.
fn child_records(parent: &SessionId, child: &SessionId, ended: bool) -> Vec<JournalEntry> {
    let run = child_run_id(child).unwrap();
    let key = json!({"turn": 1, "attempt": 1, "index": 0});
    let usage = json!({"input_tokens": 10, "output_tokens": 5, "cached_tokens": 0,
        "reasoning_tokens": 0});
    let call = json!({"key": key, "id": "c0", "provider_id": null, "name": "helper",
        "arguments": {"input": "help"}});
    let mut records = vec![
        json!({"type": "session_opened", "agent": "worker\u{1b}", "parent": {"session": parent,
            "run": "run_1", "key": key, "max_depth": 3, "max_children": 8,
            "root": {"session": parent, "run": "run_1", "seq": 2},
            "agent_path": ["default", "worker"]}}),
        json!({"type": "run_started", "run_id": run, "input": "work", "model": "m",
            "execution": "sequential"}),
        json!({"type": "attempt_started", "turn": 1, "attempt": 1, "model": "small-1",
            "streamed": true}),
        json!({"type": "response_ended", "turn": 1, "attempt": 1, "ending": "well",
            "message": {"text": "", "calls": [call]}, "finish_reason": null, "usage": usage}),
        json!({"type": "call_intended", "call": call, "lease": {},
            "idempotency_key": format!("{}/t1a1c0", run.0)}),
    ];
    if ended {
        records.push(json!({"type": "run_ended", "run_id": run, "end": "stopped", "text": "",
            "error": null, "stats": {"turns": 1, "tool_calls": 1, "input_tokens": 10,
                "output_tokens": 5, "duration_ms": 1500, "model_ms": 1, "tools_ms": 0,
                "overhead_ms": 0, "overlap_saved_ms": 0}}));
    }
    entries(serde_json::from_value::<Vec<Record>>(Value::Array(records)).unwrap())
}

/// Returns the id of the child of the only call of an agent in these records.
fn only_child(session: &SessionId, entries: &[JournalEntry]) -> SessionId {
    let ids = ChildSessions::ids(session, entries);
    let [id] = &ids[..] else { panic!("{ids:?}") };
    id.clone()
}

/// Three levels: the child of the root has ended, its own child is open, and the child of that one is missing.
#[test]
fn the_tree_of_child_sessions_stands_below_the_calls() {
    let root = session();
    let mut entries_of_root = child_records(&root, &child_session_id(&root, "x/y"), true);
    let child = only_child(&root, &entries_of_root);
    let grandchild = only_child(&child, &child_records(&root, &child, true));
    let last = only_child(&grandchild, &child_records(&child, &grandchild, false));
    let read = |id: &SessionId| {
        Ok::<_, String>(match id {
            id if *id == child => child_records(&root, id, true),
            id if *id == grandchild => child_records(&child, id, false),
            _ => Vec::new(),
        })
    };
    let children = ChildSessions::read(&root, &entries_of_root, read);
    let text: String = text_with_children(&entries_of_root, &children).collect();
    let tree = format!(
        "child {child} of agent worker: stopped after 1 turn, 1 call, 10 + 5 tokens, 1.500 s\n  \
         child {grandchild} of agent worker: has not ended, 1 turn, 1 call, 10 + 5 tokens so far\n    \
         child {last}: is not opened yet\n"
    );
    let margin = text.find("under the key").unwrap()
        - text[..text.find("under the key").unwrap()].rfind('\n').unwrap()
        - 1;
    let tree: String = tree.lines().map(|line| format!("{}{line}\n", " ".repeat(margin))).collect();
    assert!(text.contains(&tree), "{tree} in {text}");
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "a terminal would obey it");
    // Without children the lines are those of a session without children.
    let plain: String = super::text(&entries_of_root).collect();
    assert_eq!(text.replace(&tree, ""), plain);
    let log: String = markdown_with_children(&entries_of_root, &children).collect();
    let list = format!(
        "\n- Child session `{child}` of agent `worker`: stopped after 1 turn, 1 call, 10 + 5 tokens, 1.500 s\n  \
         - Child session `{grandchild}` of agent `worker`: has not ended, 1 turn, 1 call, 10 + 5 tokens so far\n    \
         - Child session `{last}`: is not opened yet\n\nArguments:"
    );
    assert!(log.contains(&list), "{list} in {log}");
    // A child that the outcome names and that is not stored was deleted; another one was never opened.
    let ended = json!({"type": "call_ended", "outcome": {"status": "error", "content": "no"},
        "call": {"key": {"turn": 1, "attempt": 1, "index": 0}, "provider_id": null,
            "name": "helper"}});
    let mut deleted = ended.clone();
    deleted["outcome"]["child"] =
        json!({"session": child, "run": child_run_id(&child), "tokens": 0, "calls": 0});
    entries_of_root.truncate(5);
    for (ended, expected) in [(deleted, "was deleted"), (ended, "was never opened")] {
        let mut records: Vec<_> = entries_of_root.iter().map(|e| e.record.clone()).collect();
        records.push(serde_json::from_value(ended).unwrap());
        let entries = entries(records);
        let none = ChildSessions::read(&root, &entries, |_| Ok::<_, String>(Vec::new()));
        let text: String = text_with_children(&entries, &none).collect();
        assert!(text.contains(&format!("child {child}: {expected}\n")), "{text}");
        let broken = ChildSessions::read(&root, &entries, |_| Err("a torn\npage"));
        let text: String = text_with_children(&entries, &broken).collect();
        assert!(text.contains(&format!("child {child}: cannot be read: a torn page\n")), "{text}");
        let log: String = markdown_with_children(&entries, &broken).collect();
        assert!(log.contains(&format!("`{child}`: cannot be read: `a torn page`\n")), "{log}");
    }
}

/// Returns the text about an open session whose open child has the first `count` of its records, and then others.
fn text_with_child(count: usize, others: &[Value]) -> String {
    let root = session();
    let entries_of_root = child_records(&root, &child_session_id(&root, "x/y"), false);
    let child = only_child(&root, &entries_of_root);
    let read = |id: &SessionId| {
        if *id != child {
            return Ok::<_, String>(Vec::new());
        }
        let mut records: Vec<_> =
            child_records(&root, id, false).into_iter().map(|entry| entry.record).collect();
        records.truncate(count);
        for record in others {
            records.push(serde_json::from_value(record.clone()).unwrap());
        }
        Ok(entries(records))
    };
    let children = ChildSessions::read(&root, &entries_of_root, read);
    text_with_children(&entries_of_root, &children).collect()
}

#[test]
fn a_pending_approval_of_a_child_waits_for_a_decision() {
    let key = json!({"turn": 1, "attempt": 1, "index": 0});
    let asked = |phase: &str| {
        let asked = json!({"call": {"key": key, "provider_id": null, "name": "helper"},
            "phase": phase, "arguments": {"input": "help"}, "arguments_sha256": "00"});
        json!({"type": "approval_asked", "asked": asked})
    };
    let text = text_with_child(4, &[asked("before")]);
    assert!(text.contains("10 + 5 tokens so far, t1a1c0 helper waits for a decision\n"), "{text}");
    // The attempt breaks before its response has ended.
    let error = json!({"kind": "transport", "status": null, "code": null, "message": "broke",
        "retry_after": null});
    let broke = json!({"type": "attempt_failed", "turn": 1, "attempt": 1, "error": error,
        "kept": false});
    let void = text_with_child(3, &[asked("before"), broke]);
    // After a crash the call runs again, and has not asked again.
    let intended = json!({"type": "call_intended", "call": {"key": key, "id": "c0",
        "provider_id": null, "name": "helper", "arguments": {"input": "help"}}, "lease": {},
        "idempotency_key": "x/t1a1c0"});
    let ran_again = text_with_child(5, &[asked("input"), intended]);
    for text in [void, ran_again] {
        assert!(text.contains("tokens so far\n") && !text.contains("waits for"), "{text}");
    }
}

#[test]
fn the_children_of_a_fork_are_those_of_the_other_session() {
    let root = session();
    let entries_of_root = child_records(&root, &child_session_id(&root, "x/y"), false);
    let child = only_child(&root, &entries_of_root);
    let mut records: Vec<_> = entries_of_root.iter().map(|e| e.record.clone()).collect();
    records.push(Record::SessionForked { from: root, at: callsheet_values::types::Seq(5) });
    let fork = SessionId::parse("fork").unwrap();
    assert_eq!(only_child(&fork, &entries(records)), child);
}
