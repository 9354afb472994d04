//! The deltas of one response, put together.

use super::call_assembler::CallAssembler;
use super::change::{CallChange, CallChanges, ResponseLimits};
use super::content_parts::ContentParts;
use super::partial_call::PartialCall;
use crate::types::{FinishReason, MessagePart, ProviderError, ProviderErrorKind, Usage};
use crate::wire::{CallDelta, CallKind, Delta, Problem};

/// One response, as far as it has come.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ResponseAssembler {
    limits: ResponseLimits,
    calls: CallAssembler,
    /// Calls that the service runs itself.
    service_calls: CallAssembler,
    parts: ContentParts,
    text: String,
    reasoning: String,
    refusal: String,
    finish: Option<FinishReason>,
    usage: Usage,
    usage_raw: Option<Box<str>>,
    error: Option<ProviderError>,
    /// The error came when the response was whole.
    is_error_late: bool,
    problems: Vec<Problem>,
    done: bool,
}

/// Problems of one response that are kept.
const PROBLEMS_MAX: usize = 64;

impl ResponseAssembler {
    /// An empty response.
    #[must_use]
    pub fn new(limits: ResponseLimits) -> Self {
        Self {
            limits,
            calls: CallAssembler::default(),
            service_calls: CallAssembler::default(),
            parts: ContentParts::default(),
            text: String::new(),
            reasoning: String::new(),
            refusal: String::new(),
            finish: None,
            usage: Usage::default(),
            usage_raw: None,
            error: None,
            is_error_late: false,
            problems: Vec::new(),
            done: false,
        }
    }

    /// Adds one delta, and says what it did to the calls.
    pub fn push(&mut self, delta: &Delta) -> CallChanges {
        // After the limit nothing more is taken, or the text would have a gap.
        let full = self.error.as_ref().is_some_and(|e| e.kind == ProviderErrorKind::TooLarge);
        let bytes_max = if full { 0 } else { self.limits.text_bytes_max };
        let mut changes = CallChanges::new();
        let fits = match delta {
            Delta::Text(piece) => {
                let fits = append(&mut self.text, piece, bytes_max);
                self.parts.text(if fits { piece.len() } else { 0 });
                fits
            }
            Delta::Reasoning(piece) => {
                let fits = append(&mut self.reasoning, piece, bytes_max);
                self.parts.reasoning(if fits { piece.len() } else { 0 });
                fits
            }
            Delta::Refusal(piece) => append(&mut self.refusal, piece, bytes_max),
            Delta::Call(piece) => {
                self.push_call(piece, &mut changes);
                true
            }
            Delta::Seal { index, arguments } => {
                self.seal(*index, arguments.as_deref(), &mut changes);
                true
            }
            Delta::Metadata(keep) => {
                let call = |index| self.calls.at_index(index);
                self.parts.keep(keep, call, bytes_max)
            }
            Delta::Finish(reason) => {
                self.finish = Some(reason.clone());
                true
            }
            Delta::Usage { usage, raw } => {
                self.usage = *usage;
                self.usage_raw = Some(raw.clone());
                true
            }
            Delta::Error(error) => {
                if self.error.is_none() {
                    self.is_error_late = self.done && self.finish.is_some();
                    self.error = Some(error.clone());
                }
                true
            }
            Delta::Problem(problem) => {
                self.note(problem.clone());
                true
            }
            Delta::Done => {
                self.done = true;
                true
            }
        };
        if !fits {
            self.error.get_or_insert_with(|| {
                let bytes_max = self.limits.text_bytes_max;
                let message = format!("the response holds more than {bytes_max} bytes of text");
                ProviderError::new(ProviderErrorKind::TooLarge, message)
            });
        }
        changes
    }

    /// Says that nothing more will come. What is open is sealed if the response ended well, and
    /// stays open otherwise.
    pub fn end(&mut self, well: bool) -> CallChanges {
        let mut changes = CallChanges::new();
        if let Some(problem) = self.calls.end() {
            self.note(problem);
        }
        if well {
            self.calls.seal_all(&mut changes);
            of_service(&mut changes, |changes| self.service_calls.seal_all(changes));
        }
        changes
    }

    /// The calls with a name, in the order in which they were opened.
    #[must_use]
    pub fn calls(&self) -> &[PartialCall] {
        self.calls.kept()
    }

    /// How many calls were opened beyond `calls_max`.
    #[must_use]
    pub fn excess(&self) -> usize {
        self.calls.excess()
    }

    /// The calls that the service runs itself, in the order in which they were opened.
    #[must_use]
    pub fn service_calls(&self) -> &[PartialCall] {
        self.service_calls.kept()
    }

    /// The order of what has come, and what the service wants back with it; empty where it wants
    /// nothing back. A call's index is its place in [`Self::calls`].
    #[must_use]
    pub fn parts(&self) -> &[MessagePart] {
        self.parts.wanted()
    }

    /// The answer's text so far.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The model's thinking so far.
    #[must_use]
    pub fn reasoning(&self) -> &str {
        &self.reasoning
    }

    /// The refusal so far.
    #[must_use]
    pub fn refusal(&self) -> &str {
        &self.refusal
    }

    /// Why the response ended, if it said so.
    #[must_use]
    pub fn finish(&self) -> Option<&FinishReason> {
        self.finish.as_ref()
    }

    /// The last token counts that came; zeros if none came.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// The last token counts that came, as JSON text of the wire's own.
    #[must_use]
    pub fn usage_raw(&self) -> Option<&str> {
        self.usage_raw.as_deref()
    }

    /// The first error that the service reported, or that a limit made.
    #[must_use]
    pub fn error(&self) -> Option<&ProviderError> {
        self.error.as_ref()
    }

    /// The error that spoils the response: one that came before the response was whole, which is
    /// when it has its finish and the wire's own sign of the end.
    #[must_use]
    pub fn spoiled_by(&self) -> Option<&ProviderError> {
        self.error.as_ref().filter(|_| !self.is_error_late)
    }

    /// What was odd and was passed over; the first 64.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Returns whether the wire's own sign of the end was seen.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Returns whether the response holds neither text, nor thinking, nor a refusal, nor a call, nor
    /// anything that its service wants back.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
            && self.reasoning.is_empty()
            && self.refusal.is_empty()
            && self.calls.kept().is_empty()
            && self.service_calls.kept().is_empty()
            && self.parts.wanted().is_empty()
            && self.calls.excess() == 0
    }

    fn push_call(&mut self, piece: &CallDelta, changes: &mut CallChanges) {
        let arrival = self.calls.kept().len() + self.service_calls.kept().len();
        let limits = &self.limits;
        let problem = match piece.kind {
            CallKind::Function | CallKind::Custom => {
                let before = self.calls.kept().len();
                let problem = self.calls.push(piece, arrival, limits, changes);
                if self.calls.kept().len() > before {
                    self.parts.call(before);
                }
                problem
            }
            CallKind::ServerToolUse => {
                let calls = &mut self.service_calls;
                of_service(changes, |changes| calls.push(piece, arrival, limits, changes))
            }
        };
        problem.into_iter().for_each(|problem| self.note(problem));
    }

    /// One index is one call's at a time, so the newest of ours and of the service's is meant.
    fn seal(&mut self, index: u64, arguments: Option<&str>, changes: &mut CallChanges) {
        let arrival =
            |calls: &CallAssembler, at: usize| calls.kept().get(at).map(|call| call.arrival);
        let ours = self.calls.at_index(index);
        let theirs = self.service_calls.at_index(index);
        let newest_is_ours = ours.and_then(|at| arrival(&self.calls, at))
            >= theirs.and_then(|at| arrival(&self.service_calls, at));
        match (ours, theirs) {
            (Some(at), _) if newest_is_ours => {
                self.calls.seal_said(at, arguments, &self.limits, changes);
            }
            (_, Some(at)) => {
                let limits = &self.limits;
                of_service(changes, |changes| {
                    self.service_calls.seal_said(at, arguments, limits, changes);
                });
            }
            (Some(_) | None, None) => {}
        }
    }

    fn note(&mut self, problem: Problem) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(problem);
        }
    }
}

/// Adds what is done to the service's calls to the changes, under names of their own. What comes
/// after the seal of such a call is nothing to us.
fn of_service<T>(changes: &mut CallChanges, change: impl FnOnce(&mut CallChanges) -> T) -> T {
    let mut found = CallChanges::new();
    let done = change(&mut found);
    changes.extend(found.into_iter().filter_map(|change| match change {
        CallChange::Opened(at) => Some(CallChange::ServiceOpened(at)),
        CallChange::Sealed(at) => Some(CallChange::ServiceSealed(at)),
        CallChange::ChangedAfterSeal(_)
        | CallChange::ServiceOpened(_)
        | CallChange::ServiceSealed(_) => None,
    }));
    done
}

fn append(text: &mut String, piece: &str, bytes_max: usize) -> bool {
    let fits = text.len() + piece.len() <= bytes_max;
    if fits {
        text.push_str(piece);
    }
    fits
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::FinishKind;
    use crate::wire::CallDelta;

    fn response(deltas: &[Delta]) -> ResponseAssembler {
        let limits = ResponseLimits { text_bytes_max: 4, ..ResponseLimits::default() };
        let mut response = ResponseAssembler::new(limits);
        deltas.iter().for_each(|delta| drop(response.push(delta)));
        response
    }

    fn finish(kind: FinishKind) -> Delta {
        Delta::Finish(FinishReason { kind, raw: format!("{kind:?}").into() })
    }

    fn call(index: u64) -> Delta {
        Delta::Call(CallDelta {
            index: Some(index),
            name: Some("f".into()),
            ..CallDelta::default()
        })
    }

    fn error(message: &str) -> Delta {
        Delta::Error(ProviderError::new(ProviderErrorKind::InStream, message))
    }

    #[test]
    fn only_a_good_end_seals_what_is_open() {
        let whole = Delta::Call(CallDelta {
            index: Some(0),
            name: Some("f".into()),
            arguments: Some("{}".into()),
            ..CallDelta::default()
        });
        let mut ended = response(&[whole, call(1)]);
        assert_eq!(ended.end(false), []);
        assert_eq!(ended.calls().iter().map(|c| c.sealed).collect::<Vec<_>>(), [true, false]);
        assert_eq!(ended.end(true), [CallChange::Sealed(1)]);
        assert_eq!(ended.end(true), []);
    }

    #[test]
    fn the_wire_may_seal_a_call_itself() {
        let mut sealed = response(&[call(7)]);
        assert_eq!(
            sealed.push(&Delta::Seal { index: 7, arguments: None }),
            [CallChange::Sealed(0)]
        );
        assert_eq!(sealed.push(&Delta::Seal { index: 7, arguments: None }), []);
        assert_eq!(sealed.push(&Delta::Seal { index: 8, arguments: None }), []);
    }

    #[test]
    fn calls_of_the_service_change_under_names_of_their_own() {
        let piece = |index, begins: bool, arguments: &str| {
            let name = begins.then(|| "search".to_owned());
            let (kind, arguments) = (CallKind::ServerToolUse, Some(arguments.to_owned()));
            let index = Some(index);
            Delta::Call(CallDelta { index, name, arguments, kind, begins, ..CallDelta::default() })
        };
        let seal = |index| Delta::Seal { index, arguments: None };
        let mut response = ResponseAssembler::new(ResponseLimits::default());
        for (delta, changes) in [
            (piece(0, true, ""), vec![CallChange::ServiceOpened(0)]),
            (piece(0, false, "{}"), vec![]),
            (seal(0), vec![CallChange::ServiceSealed(0)]),
            (piece(0, false, "x"), vec![]),
            (call(1), vec![CallChange::Opened(0)]),
            (piece(2, true, ""), vec![CallChange::ServiceOpened(1)]),
        ] {
            assert_eq!(response.push(&delta), changes, "{delta:?}");
        }
        assert_eq!(response.end(false), []);
        assert_eq!(response.end(true), [CallChange::Sealed(0), CallChange::ServiceSealed(1)]);
        assert_eq!((response.calls().len(), response.service_calls().len()), (1, 2));
    }

    #[test]
    fn the_last_reason_and_usage_and_the_first_error_stand() {
        let usage = |input_tokens, raw: &str| Delta::Usage {
            usage: Usage { input_tokens, ..Usage::default() },
            raw: raw.into(),
        };
        let response = response(&[
            finish(FinishKind::ToolCalls),
            usage(1, "{1}"),
            error("first"),
            finish(FinishKind::Stop),
            usage(2, "{2}"),
            error("second"),
        ]);
        assert_eq!(response.finish().map(|finish| finish.kind), Some(FinishKind::Stop));
        assert_eq!((response.usage().input_tokens, response.usage_raw()), (2, Some("{2}")));
        assert_eq!(response.error().map(|error| &*error.message), Some("first"));
        assert!(response.is_empty() && !response.is_done());
    }

    #[test]
    fn too_much_text_is_an_error_of_the_response() {
        let text = |text: &str| Delta::Text(text.into());
        let fits = response(&[text("ab"), text("cd"), Delta::Reasoning("abcd".into())]);
        assert_eq!((fits.text(), fits.reasoning(), fits.error()), ("abcd", "abcd", None));
        let over = response(&[text("abc"), text("de"), text("f"), finish(FinishKind::Stop)]);
        assert_eq!(over.text(), "abc");
        assert_eq!(over.error().map(|error| error.kind), Some(ProviderErrorKind::TooLarge));
    }

    #[test]
    fn problems_are_kept_up_to_a_number() {
        let problem = Delta::Problem(Problem { code: "not_json", detail: "x".into() });
        assert_eq!(response(&vec![problem; 1000]).problems().len(), PROBLEMS_MAX);
    }
}
