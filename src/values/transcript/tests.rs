use serde_json::json;

use super::fixtures::{entries, sample_records};
use super::*;
use crate::record::{JournalEntry, Record, ResponseEnding};
use crate::types::{ApprovalVerdict, ToolStatus, WaitPhase};

/// Returns the numbers of the turns of each run, and of the attempts of each turn.
fn shape(transcript: &Transcript<'_>) -> Vec<Vec<(u32, Vec<u32>)>> {
    let attempts = |turn: &TurnTranscript<'_>| turn.attempts.iter().map(|a| a.number).collect();
    let turns = |run: &RunTranscript<'_>| {
        run.turns.iter().map(|turn| (turn.number, attempts(turn))).collect()
    };
    transcript.runs.iter().map(turns).collect()
}

fn breaches(transcript: &Transcript<'_>) -> Vec<(u64, Invariant)> {
    transcript.breaches.iter().map(|breach| (breach.seq.0, breach.invariant)).collect()
}

fn changed(records: &mut [Record], index: usize, change: serde_json::Value) {
    let mut record = serde_json::to_value(&records[index]).unwrap();
    for (name, value) in change.as_object().unwrap() {
        record[name] = value.clone();
    }
    records[index] = serde_json::from_value(record).unwrap();
}

#[test]
fn records_are_read_as_runs_turns_attempts_and_calls() {
    let entries = entries(sample_records());
    let transcript = Transcript::read(&entries);
    assert_eq!(transcript.breaches, []);
    assert_eq!(
        shape(&transcript),
        [vec![(1, vec![1, 2]), (2, vec![1])], vec![(3, vec![1])]],
        "two runs"
    );
    assert_eq!(transcript.opening.unwrap().agent, "default");
    assert_eq!(transcript.queued[0].run.0.as_ref(), "run_2");
    assert!(transcript.open_run().is_none() && transcript.closed.is_none());
    let [first, second] = &transcript.runs[..] else { panic!("two runs") };
    let (start, end) = (first.start.unwrap(), first.end.unwrap());
    assert_eq!((start.at.seq, start.at.time), (Seq(2), entries[1].time));
    assert_eq!((end.end, end.waiting, end.is_given_up()), (RunEnd::Answered, 1, false));
    assert_eq!(first.steers[0].follows_turn, 1);
    assert_eq!(first.limits[0].note, Some("[callsheet: 1 of 2 turns is left]"));
    assert_eq!(second.stops[0].mode, StopMode::Now);
    let turn = &first.turns[0];
    assert!(turn.attempts[0].is_void() && !turn.attempts[1].is_void());
    assert_eq!(turn.attempts[1].start.unwrap().wait_ms, 500);
    assert_eq!(turn.response().unwrap().ending, ResponseEnding::Complete);
    assert_eq!((turn.usage().input_tokens, turn.usage().output_tokens), (13, 5));
    assert_eq!(turn.usage(), turn.commit.unwrap().summary.usage);
    let pay = turn.call(turn.kept_calls()[1].key).unwrap();
    assert_eq!((pay.intents.len(), pay.reports.len(), pay.requests.len()), (1, 1, 1));
    assert_eq!(pay.decision(WaitPhase::Before).unwrap().verdict, ApprovalVerdict::Approved);
    assert!(pay.decision(WaitPhase::After).is_none());
    let outcome = pay.outcome().unwrap();
    assert_eq!((outcome.outcome.status, outcome.duration_ms), (ToolStatus::Ok, 1_500));
    assert!(pay.intents[0].at.is_before(outcome.at));
}

#[test]
fn texts_are_borrowed() {
    let entries = entries(sample_records());
    let transcript = Transcript::read(&entries);
    let Record::ResponseEnded { message, .. } = &entries[6].record else { panic!("a response") };
    let read = transcript.runs[0].turns[0].response().unwrap();
    assert!(std::ptr::eq(read.message, message));
}

#[test]
fn entries_can_be_read_one_after_the_other() {
    let entries = entries(sample_records());
    let mut transcript = Transcript::default();
    for (read, entry) in entries.iter().enumerate() {
        transcript.push(entry);
        let whole = Transcript::read(&entries[..=read]);
        assert_eq!(format!("{transcript:?}"), format!("{whole:?}"), "{read}");
        assert_eq!(transcript.last().unwrap().seq, entry.seq);
    }
}

#[test]
fn the_records_of_one_turn_can_be_read_alone() {
    let entries = entries(sample_records());
    let transcript = Transcript::read(&entries[2..17]);
    assert_eq!(shape(&transcript), [vec![(1, vec![1, 2])]]);
    let run = &transcript.runs[0];
    assert!(run.start.is_none() && run.turns[0].commit.is_some());
    assert_eq!(run.turns[0].kept_calls().len(), 4);
    assert_eq!(run.steers.len(), 1);
}

#[test]
fn a_run_and_its_turn_are_open_until_they_end() {
    let entries = entries(sample_records());
    let open = |length: usize| {
        let transcript = Transcript::read(&entries[..length]);
        let turn = transcript.open_turn().map(|turn| turn.number);
        (transcript.open_run().is_some(), turn)
    };
    for (length, expected) in [
        (1, (false, None)),
        (2, (true, None)),
        (3, (true, Some(1))),
        (17, (true, None)),
        (19, (true, Some(2))),
        (21, (true, None)),
        (22, (false, None)),
    ] {
        assert_eq!(open(length), expected, "{length}");
    }
}

#[test]
fn a_record_that_does_not_fit_is_listed_and_the_rest_is_read() {
    // The outcome of a call that the response does not hold.
    let mut records = sample_records();
    let key = json!({"turn": 1, "attempt": 2, "index": 9});
    changed(&mut records, 7, json!({"call": {"key": key, "name": "x"}}));
    let stray = entries(records);
    let transcript = Transcript::read(&stray);
    assert_eq!(breaches(&transcript), [(8, Invariant::Outcome)]);
    let turn = &transcript.runs[0].turns[0];
    assert!(turn.call(turn.kept_calls()[0].key).is_none());
    assert_eq!(shape(&transcript).concat().len(), 3);

    // A turn without its first attempt, without its commit, and with two responses.
    for (index, doubled, expected) in [
        (2, false, vec![(3, Invariant::Turn), (4, Invariant::Turn)]),
        (16, false, vec![(18, Invariant::Turn)]),
        (6, true, vec![(8, Invariant::Response)]),
    ] {
        let mut records = sample_records();
        if doubled {
            records.insert(index, records[index].clone());
        } else {
            records.remove(index);
        }
        let broken = entries(records);
        let transcript = Transcript::read(&broken);
        assert_eq!(breaches(&transcript), expected, "{index}");
        let turns = shape(&transcript).concat();
        assert_eq!(turns.iter().map(|turn| turn.0).collect::<Vec<_>>(), [1, 2, 3], "{index}");
    }

    // Two runs that overlap, and the end of a run that is not open.
    let mut records = sample_records();
    let end = records.remove(21);
    records.push(end);
    let overlapping = entries(records);
    let transcript = Transcript::read(&overlapping);
    assert_eq!(breaches(&transcript), [(22, Invariant::Run), (28, Invariant::Run)]);
    let ends: Vec<_> = transcript.runs.iter().map(|run| run.end.is_some()).collect();
    assert_eq!(ends, [false, true]);
}

#[test]
fn numbers_and_times_are_checked() {
    let read = |change: &dyn Fn(&mut Vec<JournalEntry>)| {
        let mut entries = entries(sample_records());
        change(&mut entries);
        let transcript = Transcript::read(&entries);
        breaches(&transcript)
    };
    assert_eq!(read(&|entries| entries[4].seq = Seq(9)), [(9, Invariant::Numbering)]);
    assert_eq!(read(&|entries| entries[4].time -= CLOCK_SETBACK_MAX_MS), []);
    assert_eq!(
        read(&|entries| entries[4].time -= CLOCK_SETBACK_MAX_MS + 2_000),
        [(5, Invariant::Time)]
    );
    assert_eq!(read(&|entries| entries[0].displayed_bytes = 7), [(1, Invariant::Run)]);
}

#[test]
fn a_turn_that_was_given_up_may_have_left_no_record() {
    let given_up = json!({"end": "failed", "error": {"code": "internal_error", "message": "x"}});
    let mut records = sample_records();
    changed(&mut records, 21, given_up);
    for record in &mut records[22..] {
        let json = serde_json::to_string(record).unwrap();
        let later = json.replace(r#""turn":3"#, r#""turn":4"#);
        *record = serde_json::from_str(&later).unwrap();
    }
    let skipped = entries(records.clone());
    assert_eq!(breaches(&Transcript::read(&skipped)), []);
    changed(&mut records, 21, json!({"end": "answered", "error": null}));
    let skipped = entries(records);
    assert_eq!(breaches(&Transcript::read(&skipped)), [(24, Invariant::Turn)]);
}
