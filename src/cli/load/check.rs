//! Decides whether a run's answer is correct. Pure.

use std::sync::Arc;

use super::options::ExpectedRun;
use super::work;
use callsheet_host::runtime::{CallReport, RunReport};
use callsheet_values::message::Message;
use callsheet_values::types::{RunEnd, ToolCall, ToolStatus};

/// The fault of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AnswerFault {
    /// The kind of the fault: one word.
    pub(super) kind: String,
    /// The faulty part of this answer.
    pub(super) example: String,
}

fn fault(kind: &str, example: impl Into<String>) -> AnswerFault {
    AnswerFault { kind: kind.to_owned(), example: example.into() }
}

/// Checks a run's end, calls and messages.
///
/// # Errors
/// The first fault.
pub(super) fn check(report: &RunReport, expected: &ExpectedRun) -> Result<(), AnswerFault> {
    check_end(report)?;
    check_calls(&report.calls)?;
    let called = check_messages(report.run_messages(), &report.text)?;
    if called != report.calls.len() {
        let example = format!("{} calls are reported, {called} are answered", report.calls.len());
        return Err(fault("call_unanswered", example));
    }
    if let Some(calls) = expected.calls.filter(|calls| *calls != called) {
        return Err(fault("wrong_number_of_calls", format!("{called} calls instead of {calls}")));
    }
    match &expected.text {
        Some(text) if *text != report.text => {
            Err(fault("wrong_text", format!("{:?} instead of {text:?}", report.text)))
        }
        Some(_) | None => Ok(()),
    }
}

fn check_end(report: &RunReport) -> Result<(), AnswerFault> {
    if report.run_end != RunEnd::Answered {
        let error = report.error.as_ref();
        let kind = error.map_or(report.run_end.as_str(), |error| &error.code);
        let example = error.map_or("the run has no error", |error| &error.message);
        return Err(fault(kind, format!("{}: {example}", report.run_end.as_str())));
    }
    Ok(())
}

/// Checks that each call succeeded with the answer to its own arguments, and that calls are in call order.
fn check_calls(calls: &[CallReport]) -> Result<(), AnswerFault> {
    // The turn of the last call, and the call index after it.
    let mut due = (0, 0);
    for call in calls {
        let CallReport { tool_id, tool_name, status, result, arguments, .. } = call;
        if *status != ToolStatus::Ok {
            let example = format!("{tool_id} of {tool_name}: {result}");
            return Err(fault(&format!("tool_{}", status.as_str()), example));
        }
        let expected = work::answer(arguments);
        if *result != expected {
            let example = format!("{tool_id} answered {result:?} instead of {expected:?}");
            return Err(fault("wrong_result", example));
        }
        let is_next = call.call_index == due.1 && call.turn == due.0;
        let is_first = call.call_index == 0 && call.turn > due.0;
        if !is_next && !is_first {
            let example = format!("{tool_id} stands where call {} is due", due.1);
            return Err(fault("wrong_order", example));
        }
        due = (call.turn, call.call_index + 1);
    }
    Ok(())
}

/// Checks that the calls of each message are answered directly after it, each once and in order, and that the last
/// message is the final text. Returns the number of calls.
fn check_messages(messages: &[Arc<Message>], text: &str) -> Result<usize, AnswerFault> {
    let (mut called, mut open) = (0, [].iter());
    for message in messages {
        match &**message {
            Message::User { .. } | Message::Summary { .. } => check_none_open(open.next())?,
            Message::Assistant(response) => {
                check_none_open(open.next())?;
                called += response.calls.len();
                open = response.calls.iter();
            }
            Message::Tool { call_id, content, .. } => check_answer(open.next(), call_id, content)?,
        }
    }
    check_none_open(open.next())?;
    match messages.last().map(|message| &**message) {
        Some(Message::Assistant(response)) if response.text == text => Ok(called),
        Some(_) | None => {
            Err(fault("history_without_answer", "the history does not end with the final text"))
        }
    }
}

fn check_none_open(open: Option<&ToolCall>) -> Result<(), AnswerFault> {
    match open {
        None => Ok(()),
        Some(call) => {
            Err(fault("call_unanswered", format!("{} has no answer in the history", call.key)))
        }
    }
}

fn check_answer(open: Option<&ToolCall>, call_id: &str, content: &str) -> Result<(), AnswerFault> {
    let Some(call) = open else {
        return Err(fault("answer_without_call", format!("{call_id} is answered once too often")));
    };
    if &*call.id != call_id {
        return Err(fault("wrong_order", format!("{call_id} is answered instead of {}", call.id)));
    }
    let expected = work::answer(&call.arguments);
    if content != expected {
        let example = format!("{call_id} has {content:?} instead of {expected:?} in the history");
        return Err(fault("wrong_result", example));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use callsheet_values::message::ResponseMessage;
    use callsheet_values::types::{CallKey, RunId};

    /// A change that introduces a fault, and the kind of the fault.
    type Case<'a, T> = (&'a dyn Fn(&mut Vec<T>), &'a str);

    fn reported(turn: u32, call_index: u32, i: i64) -> CallReport {
        CallReport {
            content: Vec::new(),
            run_id: RunId("r".into()),
            turn,
            call_index,
            tool_id: format!("t{turn}a1c{call_index}"),
            provider_id: None,
            tool_name: "work".into(),
            arguments: json!({"i": i}).into(),
            status: ToolStatus::Ok,
            result: format!("r{i}"),
            metadata: Value::Null,
            approval: None,
            result_rejected: false,
            reject_reason: None,
            started_ms: None,
            wait_ms: 0,
            duration_ms: 0,
            usage: None,
            child: None,
        }
    }

    #[test]
    fn every_call_has_the_answer_to_its_own_arguments_in_call_order() {
        let right = || vec![reported(2, 0, 7), reported(2, 1, 8), reported(4, 0, 7)];
        assert_eq!(check_calls(&right()), Ok(()));
        let check = |change: &dyn Fn(&mut Vec<CallReport>)| {
            let mut calls = right();
            change(&mut calls);
            check_calls(&calls).map_err(|wrong| wrong.kind)
        };
        let cases: [Case<'_, CallReport>; 6] = [
            (&|calls| calls[1].result = "r7".into(), "wrong_result"),
            (&|calls| calls[1].status = ToolStatus::TimedOut, "tool_timeout"),
            (&|calls| calls.swap(0, 1), "wrong_order"),
            (&|calls| drop(calls.remove(0)), "wrong_order"),
            (&|calls| calls.push(reported(2, 2, 1)), "wrong_order"),
            (&|calls| calls.push(reported(4, 2, 1)), "wrong_order"),
        ];
        for (change, kind) in cases {
            assert_eq!(check(change), Err(kind.to_owned()));
        }
    }

    fn response(text: &str, calls: &[i64]) -> Message {
        let call = |(index, i): (u32, &i64)| ToolCall {
            key: CallKey { turn: 1, attempt: 1, index },
            id: format!("c{index}").into(),
            provider_id: None,
            name: "work".into(),
            arguments: json!({"i": i}).into(),
            raw: None,
            indirect: false,
        };
        let calls = (0..).zip(calls).map(call).collect();
        Message::Assistant(
            ResponseMessage { text: text.into(), calls, ..Default::default() }.into(),
        )
    }

    fn answered(id: &str, content: &str) -> Message {
        Message::Tool {
            call_id: id.into(),
            name: "work".into(),
            content: content.into(),
            metadata: json!({}),
        }
    }

    #[test]
    fn every_call_of_a_message_is_answered_directly_after_it() {
        let right = || {
            vec![
                Message::User { content: "go".into() },
                response("so", &[5, 6]),
                answered("c0", "r5"),
                answered("c1", "r6"),
                response("done", &[]),
            ]
        };
        let check = |change: &dyn Fn(&mut Vec<Message>)| {
            let mut messages = right();
            change(&mut messages);
            let messages: Vec<_> = messages.into_iter().map(Arc::new).collect();
            check_messages(&messages, "done").map_err(|wrong| wrong.kind)
        };
        assert_eq!(check(&|_| ()), Ok(2));
        let cases: [Case<'_, Message>; 8] = [
            (&|all| drop(all.remove(3)), "call_unanswered"),
            (&|all| all.truncate(3), "call_unanswered"),
            (&|all| all.insert(3, answered("c0", "r5")), "wrong_order"),
            (&|all| all.insert(4, answered("c1", "r6")), "answer_without_call"),
            (&|all| all.swap(2, 3), "wrong_order"),
            (&|all| all[3] = answered("c1", "r5"), "wrong_result"),
            (&|all| all[4] = response("other", &[]), "history_without_answer"),
            (&|all| drop(all.pop()), "history_without_answer"),
        ];
        for (change, kind) in cases {
            assert_eq!(check(change), Err(kind.to_owned()));
        }
    }
}
