//! Assembles one response from its deltas. Text, reasoning, refusal and metadata may have 16 MiB each by default
//! (`ResponseLimits` of `call_assembler`). Later token counts and finish reasons replace earlier ones; the first
//! error stays.

use std::sync::Arc;

use super::call_assembler::{CallAssembler, CallChange, CallChanges, PartialCall, ResponseLimits};
use super::content_parts::ContentParts;
use crate::{CallDelta, CallKind, Delta, Problem};
use callsheet_values::types::{
    FinishKind, FinishReason, MessagePart, ProviderError, ProviderErrorKind, RefusalDetails, Usage,
    excerpt,
};

/// Maximum number of problems of one response that are kept.
const PROBLEMS_MAX: usize = 64;

/// Maximum length of a tool's name in bytes. A longer one is cut to as many characters: no tool has such a name.
const NAME_MAX: usize = 200;

/// Maximum length of a provider's id of a call in bytes. A longer one counts as missing.
const ID_BYTES_MAX: usize = 4096;

/// Maximum plausible number of tokens of one response. The largest context windows have some millions.
const TOKENS_MAX: u64 = 1 << 32;

/// One response, as far as it has arrived.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
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
    /// True if the error came after the finish reason and the wire's end mark.
    is_error_late: bool,
    problems: Vec<Problem>,
    done: bool,
}

impl ResponseAssembler {
    /// Creates an empty response.
    #[must_use]
    pub fn new(limits: ResponseLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Adds one delta. Returns the changes to the calls.
    pub fn push(&mut self, delta: &Delta) -> CallChanges {
        // No text is added after the limit is exceeded, because it would have a gap.
        let full = self.error.as_ref().is_some_and(|e| e.kind == ProviderErrorKind::TooLarge);
        let bytes_max = if full { 0 } else { self.limits.text_bytes_max };
        let mut changes = CallChanges::new();
        let mut fits = true;
        match delta {
            Delta::Text(piece) => {
                fits = append(&mut self.text, piece, bytes_max);
                self.parts.add_text(if fits { piece.len() } else { 0 });
            }
            Delta::Reasoning(piece) => {
                fits = append(&mut self.reasoning, piece, bytes_max);
                self.parts.add_reasoning(if fits { piece.len() } else { 0 });
            }
            Delta::Refusal(piece) => fits = append(&mut self.refusal, piece, bytes_max),
            Delta::Call(piece) if has_plausible_labels(piece) => {
                self.push_call(piece, &mut changes);
            }
            Delta::Call(piece) => {
                let detail = excerpt(piece.name.as_deref().unwrap_or_default(), 100);
                self.add_problem(Problem { code: "long_name_or_id", detail });
                self.push_call(&with_plausible_labels(piece), &mut changes);
            }
            Delta::Seal { index, arguments } => {
                self.seal(*index, arguments.as_deref(), &mut changes);
            }
            Delta::Metadata(metadata) => {
                let call_at = |index| self.calls.at_index(index);
                fits = self.parts.add_metadata(metadata, call_at, bytes_max);
            }
            Delta::Finish(reason) => self.finish = Some(reason.clone()),
            Delta::Usage { usage, raw } if !is_plausible(usage) => {
                self.add_problem(Problem { code: "implausible_usage", detail: excerpt(raw, 200) });
            }
            Delta::Usage { usage, raw } => {
                self.usage = *usage;
                self.usage_raw = Some(raw.clone());
            }
            Delta::Error(error) => {
                if self.error.is_none() {
                    self.is_error_late = self.done && self.finish.is_some();
                    self.error = Some(error.clone());
                }
            }
            Delta::Problem(problem) => self.add_problem(problem.clone()),
            Delta::Done => self.done = true,
        }
        if !fits {
            self.error.get_or_insert_with(|| {
                let bytes_max = self.limits.text_bytes_max;
                let message =
                    format!("the response holds more than {bytes_max} bytes of text or metadata");
                ProviderError::new(ProviderErrorKind::TooLarge, message)
            });
        }
        changes
    }

    /// Handles the end of the response: a last call that has no name is dropped. Its arguments go to the call that
    /// they must belong to, or are lost ([`Self::has_lost_arguments`]). Open calls stay open.
    pub fn drop_nameless_call(&mut self) {
        if let Some(problem) = self.calls.end(&self.limits) {
            self.add_problem(problem);
        }
    }

    /// Handles a good end of the response: drops a last call that has no name, and seals the open calls.
    pub fn seal_all(&mut self) -> CallChanges {
        self.drop_nameless_call();
        let mut changes = CallChanges::new();
        self.calls.seal_all(&mut changes);
        collect_service_changes(&mut changes, |changes| self.service_calls.seal_all(changes));
        changes
    }

    /// Returns the calls with a name, in the order in which they were opened.
    #[must_use]
    pub fn calls(&self) -> &[PartialCall] {
        self.calls.as_slice()
    }

    /// Returns whether arguments arrived that belong to no call, so that a call may lack them.
    #[must_use]
    pub fn has_lost_arguments(&self) -> bool {
        self.calls.has_lost_arguments()
    }

    /// Returns whether arguments arrived that belong to no call so far.
    pub fn has_stray_arguments(&self) -> bool {
        self.calls.has_stray_arguments()
    }

    /// Returns the number of calls that were opened beyond `calls_max`.
    #[must_use]
    pub fn excess(&self) -> usize {
        self.calls.excess()
    }

    /// Returns the calls that the service runs itself, in the order in which they were opened.
    #[must_use]
    pub fn service_calls(&self) -> &[PartialCall] {
        self.service_calls.as_slice()
    }

    /// Returns the parts in their order, with the metadata that the service wants back. Empty if it
    /// wants none. The index of a call is its position in [`Self::calls`].
    #[must_use]
    pub fn parts(&self) -> &[MessagePart] {
        self.parts.with_metadata()
    }

    /// Returns the answer's text so far.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the model's reasoning so far.
    #[must_use]
    pub fn reasoning(&self) -> &str {
        &self.reasoning
    }

    /// Returns the refusal so far.
    #[must_use]
    pub fn refusal(&self) -> &str {
        &self.refusal
    }

    /// Returns the last finish reason, if one came.
    #[must_use]
    pub fn finish_reason(&self) -> Option<&FinishReason> {
        self.finish.as_ref()
    }

    /// Returns the finish reason of a refused response, with the details of the refusal. `None` if there is neither a
    /// finish reason nor a refusal.
    #[must_use]
    pub fn refusal_reason(&self) -> Option<FinishReason> {
        if self.finish.is_none() && self.refusal.is_empty() {
            return None;
        }
        let unnamed = || FinishReason::new(FinishKind::ContentFilter, "");
        let mut reason = self.finish.clone().unwrap_or_else(unnamed);
        let named = reason.refusal.as_deref().cloned().unwrap_or_default();
        let explanation = named.explanation.or_else(|| Some(self.refusal.clone()));
        reason.refusal = Some(Arc::new(RefusalDetails::new(named.category, explanation)));
        Some(reason)
    }

    /// Returns the last token counts, or zeros if none came.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// Returns the last token counts as the wire sent them: JSON text.
    #[must_use]
    pub fn usage_raw(&self) -> Option<&str> {
        self.usage_raw.as_deref()
    }

    /// Returns the first error, reported by the service or caused by a limit.
    #[must_use]
    pub fn error(&self) -> Option<&ProviderError> {
        self.error.as_ref()
    }

    /// Returns the error that makes the response unusable. An error that comes after the finish
    /// reason and the wire's end mark does not, because the response is complete then.
    #[must_use]
    pub fn fatal_error(&self) -> Option<&ProviderError> {
        self.error.as_ref().filter(|_| !self.is_error_late)
    }

    /// Returns the first problems that were ignored, at most `PROBLEMS_MAX`.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Returns whether the wire's end mark came.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Returns whether the response has no text, reasoning, refusal, call or metadata.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
            && self.reasoning.is_empty()
            && self.refusal.is_empty()
            && self.calls().is_empty()
            && self.service_calls().is_empty()
            && self.parts().is_empty()
            && self.calls.excess() == 0
    }

    fn push_call(&mut self, piece: &CallDelta, changes: &mut CallChanges) {
        let before = self.calls().len();
        let arrival = before + self.service_calls().len();
        let limits = &self.limits;
        let problem = match piece.kind {
            CallKind::Function | CallKind::Custom => {
                self.calls.push(piece, arrival, limits, changes)
            }
            CallKind::ServerToolUse => {
                let calls = &mut self.service_calls;
                collect_service_changes(changes, |changes| {
                    calls.push(piece, arrival, limits, changes)
                })
            }
        };
        if self.calls().len() > before {
            self.parts.add_call(before);
        }
        problem.into_iter().for_each(|problem| self.add_problem(problem));
    }

    /// Seals the newest call with this index, which the host or the service runs.
    fn seal(&mut self, index: u64, arguments: Option<&str>, changes: &mut CallChanges) {
        let newest = |calls: &CallAssembler| {
            let at = calls.at_index(index)?;
            Some((calls.as_slice().get(at)?.arrival, at))
        };
        let limits = &self.limits;
        let problem = match (newest(&self.calls), newest(&self.service_calls)) {
            (Some((_, at)), None) => self.calls.seal_explicitly(at, arguments, limits, changes),
            (Some((ours, at)), Some((theirs, _))) if ours >= theirs => {
                self.calls.seal_explicitly(at, arguments, limits, changes)
            }
            (_, Some((_, at))) => collect_service_changes(changes, |changes| {
                self.service_calls.seal_explicitly(at, arguments, limits, changes)
            }),
            (None, None) => None,
        };
        problem.into_iter().for_each(|problem| self.add_problem(problem));
    }

    fn add_problem(&mut self, problem: Problem) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(problem);
        }
    }
}

/// Makes changes to calls that the service runs itself, and adds them to `changes` as changes to such
/// calls. Bytes after the seal of such a call do not matter.
fn collect_service_changes<T>(
    changes: &mut CallChanges,
    change: impl FnOnce(&mut CallChanges) -> T,
) -> T {
    let mut found = CallChanges::new();
    let result = change(&mut found);
    changes.extend(found.into_iter().filter_map(|change| match change {
        CallChange::Opened(at) => Some(CallChange::ServiceOpened(at)),
        CallChange::Sealed(at) => Some(CallChange::ServiceSealed(at)),
        CallChange::ChangedAfterSeal(_)
        | CallChange::ServiceOpened(_)
        | CallChange::ServiceSealed(_) => None,
    }));
    result
}

fn has_plausible_labels(piece: &CallDelta) -> bool {
    piece.name.as_ref().is_none_or(|name| name.len() <= NAME_MAX)
        && piece.id.as_ref().is_none_or(|id| id.len() <= ID_BYTES_MAX)
}

/// Returns the piece with a cut name, and without an id that is too long.
fn with_plausible_labels(piece: &CallDelta) -> CallDelta {
    let name = piece.name.as_deref().map(|name| excerpt(name, NAME_MAX));
    let id = piece.id.clone().filter(|id| id.len() <= ID_BYTES_MAX);
    CallDelta { name, id, ..piece.clone() }
}

fn is_plausible(usage: &Usage) -> bool {
    let Usage { input_tokens, output_tokens, cached_tokens, reasoning_tokens } = *usage;
    let counts = [input_tokens, output_tokens, cached_tokens, reasoning_tokens];
    counts.into_iter().all(|count| count <= TOKENS_MAX)
}

/// Appends a piece of text unless it exceeds the limit. Returns whether it fits.
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
    use crate::{CallDelta, ProviderMetadata};
    use callsheet_values::types::FinishKind;

    fn response(deltas: &[Delta]) -> ResponseAssembler {
        let limits = ResponseLimits { text_bytes_max: 4, ..ResponseLimits::default() };
        let mut response = ResponseAssembler::new(limits);
        deltas.iter().for_each(|delta| drop(response.push(delta)));
        response
    }

    fn finish(kind: FinishKind) -> Delta {
        Delta::Finish(FinishReason::new(kind, format!("{kind:?}")))
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
    fn only_a_good_end_seals_open_calls() {
        let whole = Delta::Call(CallDelta {
            index: Some(0),
            name: Some("f".into()),
            arguments: Some("{}".into()),
            ..CallDelta::default()
        });
        let mut ended = response(&[whole, call(1)]);
        ended.drop_nameless_call();
        assert_eq!(ended.calls().iter().map(|c| c.sealed).collect::<Vec<_>>(), [true, false]);
        assert_eq!(ended.seal_all(), [CallChange::Sealed(1)]);
        assert_eq!(ended.seal_all(), []);
    }

    #[test]
    fn the_wire_may_seal_a_call_explicitly() {
        let mut sealed = response(&[call(7)]);
        assert_eq!(
            sealed.push(&Delta::Seal { index: 7, arguments: None }),
            [CallChange::Sealed(0)]
        );
        assert_eq!(sealed.push(&Delta::Seal { index: 7, arguments: None }), []);
        assert_eq!(sealed.push(&Delta::Seal { index: 8, arguments: None }), []);
    }

    #[test]
    fn calls_of_the_service_have_changes_of_their_own() {
        let piece = |index, begins: bool, arguments: &str| {
            let name = begins.then(|| "search".to_owned());
            let (kind, arguments) = (CallKind::ServerToolUse, Some(arguments.to_owned()));
            let index = Some(index);
            Delta::Call(CallDelta {
                index,
                name,
                arguments,
                kind,
                is_marked_start: begins,
                ..CallDelta::default()
            })
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
        response.drop_nameless_call();
        assert_eq!(response.seal_all(), [CallChange::Sealed(0), CallChange::ServiceSealed(1)]);
        assert_eq!((response.calls().len(), response.service_calls().len()), (1, 2));
    }

    #[test]
    fn the_last_reason_and_usage_and_the_first_error_count() {
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
        assert_eq!(response.finish_reason().map(|finish| finish.kind), Some(FinishKind::Stop));
        assert_eq!((response.usage().input_tokens, response.usage_raw()), (2, Some("{2}")));
        assert_eq!(response.error().map(|error| &*error.message), Some("first"));
        assert!(response.is_empty() && !response.is_done());
    }

    #[test]
    fn long_names_are_cut_and_long_ids_are_dropped() {
        let long = CallDelta {
            index: Some(0),
            id: Some("i".repeat(5_000)),
            name: Some("n".repeat(1_000_000)),
            is_marked_start: true,
            ..CallDelta::default()
        };
        let response = response(&[Delta::Call(long.clone()), Delta::Call(long)]);
        for call in response.calls() {
            assert_eq!((call.name.chars().count(), call.provider_id.as_deref()), (201, None));
        }
        let problems = response.problems();
        assert!(problems.iter().all(|problem| problem.code == "long_name_or_id"), "{problems:?}");
        assert_eq!((response.calls().len(), problems.len()), (2, 2));
    }

    #[test]
    fn implausible_token_counts_are_a_problem_and_not_a_sum() {
        let usage = |input_tokens| Delta::Usage {
            usage: Usage { input_tokens, ..Usage::default() },
            raw: format!("{{\"prompt_tokens\":{input_tokens}}}").into(),
        };
        let response = response(&[usage(7), usage(u64::MAX)]);
        assert_eq!(response.usage().input_tokens, 7);
        let problem = Problem {
            code: "implausible_usage",
            detail: "{\"prompt_tokens\":18446744073709551615}".into(),
        };
        assert_eq!(response.problems(), [problem]);
    }

    #[test]
    fn too_much_text_is_an_error_of_the_response() {
        let text = |text: &str| Delta::Text(text.into());
        let fits = response(&[text("ab"), text("cd"), Delta::Reasoning("abcd".into())]);
        assert_eq!((fits.text(), fits.reasoning(), fits.error()), ("abcd", "abcd", None));
        let over = response(&[text("abc"), text("de"), text("f"), finish(FinishKind::Stop)]);
        assert_eq!(over.text(), "abc");
        assert_eq!(over.error().map(|error| error.kind), Some(ProviderErrorKind::TooLarge));
        let part = Delta::Metadata(ProviderMetadata::RawPart("{\"a\":1}".into()));
        let message = response(&[part]).error().map(|error| error.message.clone());
        let expected = "the response holds more than 4 bytes of text or metadata";
        assert_eq!(message.as_deref(), Some(expected));
    }

    #[test]
    fn problems_are_kept_up_to_a_number() {
        let problem = Delta::Problem(Problem { code: "not_json", detail: "x".into() });
        assert_eq!(response(&vec![problem; 1000]).problems().len(), PROBLEMS_MAX);
    }
}
