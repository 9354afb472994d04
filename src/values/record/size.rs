//! The approximate size of records, for the limit on a session's size.

use super::{JournalEntry, Record};
use crate::config::ClientTool;
use crate::message::{content_bytes, json_bytes};
use crate::types::{HookDecision, Question, QuestionKind, ResultPart, ToolOutcome};

/// Bytes of a record besides its texts: names, numbers and times.
const FRAME_BYTES: usize = 160;

impl JournalEntry {
    /// Returns about the number of bytes that the entry takes in the journal: its large texts, data and
    /// arguments, and a fixed number for the rest.
    #[must_use]
    pub fn approximate_bytes(&self) -> u64 {
        let content = match &self.record {
            Record::SessionOpened { messages, client_tools, .. } => {
                messages.iter().map(json_bytes).sum::<usize>()
                    + tools_bytes(client_tools.as_deref())
            }
            Record::InputQueued { input, overrides, .. }
            | Record::RunStarted { input, overrides, .. } => {
                content_bytes(input) + tools_bytes(overrides.client_tools.as_deref())
            }
            Record::Steered { input, .. } => content_bytes(input),
            Record::AttemptFailed { voided, .. } => {
                voided.as_deref().map_or(0, |voided| voided.text.len() + voided.thinking.len())
            }
            Record::ResponseEnded { message, .. } => message.approximate_bytes(),
            Record::CallIntended { call, so_far, .. } => {
                let partial =
                    so_far.as_ref().map_or(0, |so_far| so_far.message.approximate_bytes());
                json_bytes(&call.arguments) + partial
            }
            Record::CallReported { outcome, writes, .. }
            | Record::CallEnded { outcome, writes, .. } => {
                let written = writes.0.values().map(|value| json_bytes(value));
                outcome_bytes(outcome) + written.sum::<usize>()
            }
            Record::ApprovalAsked { request } => {
                let question = request.question.as_deref().map_or(0, question_bytes);
                json_bytes(&request.arguments) + question
            }
            Record::ApprovalGiven { content, .. } => {
                content.as_ref().map_or(0, |content| json_bytes(content))
            }
            Record::HooksDecided { decision, .. } | Record::TurnHooksDecided { decision, .. } => {
                let HookDecision { arguments, result, messages, parameters, .. } = &**decision;
                let values = [arguments, result, messages, parameters].into_iter().flatten();
                let message = decision.message.as_ref().map_or(0, |message| message.len());
                values.map(|value| json_bytes(value)).sum::<usize>() + message
            }
            Record::RunEnded { text, output, .. } => {
                text.len() + output.as_ref().map_or(0, |output| json_bytes(output))
            }
            Record::Instructed { text, .. } => text.len(),
            Record::Compacted { change, .. } => change.approximate_bytes(),
            Record::SessionForked { .. }
            | Record::AttemptStarted { .. }
            | Record::TurnCommitted { .. }
            | Record::StopAsked { .. }
            | Record::InputRemoved { .. }
            | Record::RunReopened { .. }
            | Record::LimitReached { .. }
            | Record::ToolsFrozen { .. }
            | Record::SessionClosed => 0,
        };
        (FRAME_BYTES + content) as u64
    }
}

fn tools_bytes(tools: Option<&[ClientTool]>) -> usize {
    let tools = tools.unwrap_or_default().iter();
    tools.map(|tool| tool.description.len() + json_bytes(&tool.input_schema)).sum()
}

fn outcome_bytes(outcome: &ToolOutcome) -> usize {
    let full = outcome.full.as_ref().map_or(0, |full| {
        let structured = full.structured.as_ref().map_or(0, json_bytes);
        full.content.iter().map(ResultPart::bytes).sum::<usize>() + structured
    });
    outcome.content.len() + full
}

fn question_bytes(question: &Question) -> usize {
    let kind = match &question.kind {
        QuestionKind::Form(form) => json_bytes(form),
        QuestionKind::Url(url) => url.len(),
    };
    question.message.len() + kind
}
