//! Which piece belongs to which call, and when a call is whole: decided here and nowhere else.
//!
//! A piece belongs to the last call with its index; a new id together with a name begins another
//! call under an index that is in use. Without an index it belongs to the call with its id, or
//! else to the call before. A missing index never means 0, because that would merge calls. The
//! first id and the first name stand.
//!
//! A call that opens seals all earlier ones (of 1,046 recorded Chat Completions streams none
//! interleaves calls), and a good ending seals all. Only those that have no arguments yet wait for
//! its first ones: several calls may be announced before the arguments of any. That text parses is
//! no proof that it is whole: some services send placeholders first.

use super::change::{CallChange, CallChanges, ResponseLimits};
use super::partial_call::PartialCall;
use crate::types::excerpt;
use crate::wire::{CallDelta, Problem};

/// The calls of one response.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct CallAssembler {
    kept: Vec<PartialCall>,
    /// The newest call, while it is none that is kept: one that lacks its name, or one too many.
    tail: Option<PendingCall>,
    excess: usize,
    /// All before this place are sealed.
    sealed_up_to: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum PendingCall {
    Nameless(PartialCall),
    Excess(PartialCall),
}

/// Where a piece belongs.
#[derive(Clone, Copy)]
enum CallSlot {
    PendingCall,
    Call(usize),
}

impl CallAssembler {
    /// The calls with a name, in the order in which they were opened.
    pub(super) fn kept(&self) -> &[PartialCall] {
        &self.kept
    }

    /// How many calls were opened beyond the limit.
    pub(super) fn excess(&self) -> usize {
        self.excess
    }

    /// Takes one piece of a call; `arrival` is for the call that it begins, if it does.
    pub(super) fn push(
        &mut self,
        piece: &CallDelta,
        arrival: usize,
        limits: &ResponseLimits,
        changes: &mut CallChanges,
    ) -> Option<Problem> {
        let inferred = self.place_of(piece).filter(|_| !piece.begins);
        let place = inferred.filter(|place| {
            self.bucket_mut(*place).is_some_and(|bucket| !bucket.is_followed_by(piece))
        });
        match place {
            None if piece.is_blank() => None,
            None => self.open(piece, arrival, limits, changes),
            Some(CallSlot::Call(at)) => self.continue_call(at, piece, limits, changes),
            Some(CallSlot::PendingCall) => {
                self.continue_tail(piece, limits, changes);
                None
            }
        }
    }

    /// The newest call with this index that is open, or else the newest with it.
    pub(super) fn at_index(&self, index: u64) -> Option<usize> {
        let with_index = |call: &PartialCall| call.wire_index == Some(index);
        let open = self.kept.iter().rposition(|call| with_index(call) && !call.sealed);
        open.or_else(|| self.kept.iter().rposition(with_index))
    }

    /// Seals a call, where the wire says so itself and perhaps says its arguments once more.
    pub(super) fn seal_said(
        &mut self,
        at: usize,
        arguments: Option<&str>,
        limits: &ResponseLimits,
        changes: &mut CallChanges,
    ) {
        let Some(call) = self.kept.get_mut(at) else { return };
        if let Some(whole) = arguments.filter(|whole| *whole != call.raw) {
            if call.sealed {
                call.changed_after_seal = true;
                changes.push(CallChange::ChangedAfterSeal(at));
            }
            call.replace(whole, limits.arguments_bytes_max);
        }
        self.seal(at, changes);
    }

    /// Seals what is open.
    pub(super) fn seal_all(&mut self, changes: &mut CallChanges) {
        self.seal_before(self.kept.len(), true, changes);
    }

    /// Seals what is open before a place; without `blank` not those that have no arguments.
    fn seal_before(&mut self, end: usize, blank: bool, changes: &mut CallChanges) {
        for at in self.sealed_up_to..end {
            if blank || self.kept.get(at).is_some_and(PartialCall::has_arguments) {
                self.seal(at, changes);
            }
        }
        let is_open = |call: &PartialCall| !call.sealed;
        let open = self.kept.iter().skip(self.sealed_up_to).position(is_open);
        self.sealed_up_to = open.map_or(self.kept.len(), |place| self.sealed_up_to + place);
    }

    /// Says that no piece will come for the newest call: without a name it is none.
    pub(super) fn end(&mut self) -> Option<Problem> {
        match self.tail.take() {
            Some(PendingCall::Nameless(bucket)) => {
                Some(Problem { code: "call_without_name", detail: excerpt(&bucket.raw, 200) })
            }
            Some(PendingCall::Excess(_)) | None => None,
        }
    }

    /// The bucket to which a piece would belong if it begins no call of its own.
    fn place_of(&self, piece: &CallDelta) -> Option<CallSlot> {
        let same_id = |bucket: &PartialCall| bucket.provider_id.as_deref() == piece.id.as_deref();
        let same_index = |bucket: &PartialCall| bucket.wire_index == piece.index;
        match (piece.index, &piece.id) {
            (Some(_), None) => self.find(same_index),
            (Some(_), Some(_)) => self
                .find(|bucket| same_index(bucket) && same_id(bucket))
                .or_else(|| self.find(same_index))
                // Without a name it cannot begin a call, so its id is worth more.
                .or_else(|| self.find(same_id).filter(|_| piece.name.is_none())),
            (None, Some(_)) => {
                self.find(same_id).or_else(|| self.find(|_| true).filter(|_| piece.name.is_none()))
            }
            (None, None) => self.find(|_| true),
        }
    }

    fn find(&self, wanted: impl Fn(&PartialCall) -> bool) -> Option<CallSlot> {
        match &self.tail {
            Some(PendingCall::Nameless(bucket) | PendingCall::Excess(bucket)) if wanted(bucket) => {
                Some(CallSlot::PendingCall)
            }
            Some(PendingCall::Nameless(_) | PendingCall::Excess(_)) | None => {
                self.kept.iter().rposition(wanted).map(CallSlot::Call)
            }
        }
    }

    fn bucket_mut(&mut self, place: CallSlot) -> Option<&mut PartialCall> {
        match place {
            CallSlot::Call(at) => self.kept.get_mut(at),
            CallSlot::PendingCall => match &mut self.tail {
                Some(PendingCall::Nameless(bucket) | PendingCall::Excess(bucket)) => Some(bucket),
                None => None,
            },
        }
    }

    fn open(
        &mut self,
        piece: &CallDelta,
        arrival: usize,
        limits: &ResponseLimits,
        changes: &mut CallChanges,
    ) -> Option<Problem> {
        let problem = self.end();
        let mut bucket = PartialCall::begin(piece, arrival);
        bucket.append(piece, limits.arguments_bytes_max);
        if bucket.name.is_empty() {
            self.tail = Some(PendingCall::Nameless(bucket));
        } else {
            self.keep(bucket, limits, changes);
        }
        problem
    }

    /// Takes a call that has its name among the calls, or counts it as one too many.
    fn keep(&mut self, bucket: PartialCall, limits: &ResponseLimits, changes: &mut CallChanges) {
        if !bucket.has_own_seal {
            // Looking at all of them again for each of a great many calls would take its time.
            let blank = bucket.has_arguments() || self.kept.len() >= limits.calls_max;
            self.seal_before(self.kept.len(), blank, changes);
        }
        if self.kept.len() < limits.calls_max {
            changes.push(CallChange::Opened(self.kept.len()));
            self.kept.push(bucket);
        } else {
            self.excess += 1;
            self.tail = Some(PendingCall::Excess(bucket));
        }
    }

    fn continue_call(
        &mut self,
        at: usize,
        piece: &CallDelta,
        limits: &ResponseLimits,
        changes: &mut CallChanges,
    ) -> Option<Problem> {
        let bucket = self.kept.get_mut(at)?;
        let renamed = piece.name.as_ref().filter(|name| ***name != *bucket.name);
        let problem = renamed.map(|name| Problem {
            code: "name_changed",
            detail: excerpt(&format!("{} -> {name}", bucket.name), 200),
        });
        bucket.fill(piece);
        if bucket.sealed && piece.has_arguments() {
            bucket.changed_after_seal = true;
            changes.push(CallChange::ChangedAfterSeal(at));
        }
        bucket.append(piece, limits.arguments_bytes_max);
        if !bucket.has_own_seal && at > self.sealed_up_to && piece.has_arguments() {
            self.seal_before(at, true, changes);
        }
        problem
    }

    fn continue_tail(
        &mut self,
        piece: &CallDelta,
        limits: &ResponseLimits,
        changes: &mut CallChanges,
    ) {
        match self.tail.take() {
            Some(PendingCall::Nameless(mut bucket)) => {
                bucket.fill(piece);
                bucket.append(piece, limits.arguments_bytes_max);
                if bucket.name.is_empty() {
                    self.tail = Some(PendingCall::Nameless(bucket));
                } else {
                    self.keep(bucket, limits, changes);
                }
            }
            Some(PendingCall::Excess(mut bucket)) => {
                bucket.fill(piece);
                bucket.append(piece, limits.arguments_bytes_max);
                self.tail = Some(PendingCall::Excess(bucket));
            }
            None => {}
        }
    }

    fn seal(&mut self, at: usize, changes: &mut CallChanges) {
        if let Some(call) = self.kept.get_mut(at).filter(|call| !call.sealed) {
            call.sealed = true;
            changes.push(CallChange::Sealed(at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::CallChange::{ChangedAfterSeal, Opened, Sealed};
    use super::*;

    const LIMITS: ResponseLimits =
        ResponseLimits { arguments_bytes_max: 64, calls_max: 3, text_bytes_max: 64 };

    /// Index (`-` for none), id, name and arguments; empty where there is none.
    type PieceSpec = (char, &'static str, &'static str, &'static str);

    fn run(pieces: &[PieceSpec]) -> (CallAssembler, CallChanges, Vec<Problem>) {
        let mut calls = CallAssembler::default();
        let mut changes = CallChanges::new();
        let mut problems = Vec::new();
        let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        for (index, id, name, arguments) in pieces {
            let piece = CallDelta {
                index: index.to_digit(10).map(u64::from),
                id: some(id),
                name: some(name),
                arguments: some(arguments),
                ..CallDelta::default()
            };
            problems.extend(calls.push(&piece, 0, &LIMITS, &mut changes));
        }
        problems.extend(calls.end());
        (calls, changes, problems)
    }

    /// The calls that the pieces make: id, name and arguments of each. No problem is met.
    #[track_caller]
    fn check(pieces: &[PieceSpec], expected: &[(&str, &str, &str)]) {
        let (calls, _, problems) = run(pieces);
        let found: Vec<_> = calls
            .kept()
            .iter()
            .map(|call| (call.provider_id.as_deref().unwrap_or(""), &*call.name, &*call.raw))
            .collect();
        assert_eq!(found, expected);
        assert_eq!(problems, []);
        assert!(calls.kept().iter().all(|call| !call.changed_after_seal));
    }

    #[track_caller]
    fn check_changes(pieces: &[PieceSpec], expected: &[CallChange]) {
        assert_eq!(run(pieces).1, expected);
    }

    #[test]
    fn pieces_with_an_index() {
        let two = [("a", "f", "{}"), ("b", "f", r#"{"x":1}"#)];
        check(
            &[
                ('0', "a", "f", ""),
                ('0', "", "", "{"),
                ('0', "", "", "}"),
                ('1', "b", "f", r#"{"x""#),
                ('1', "", "", ":1}"),
            ],
            &two,
        );
        // Gaps, and a first index that is not 0.
        check(&[('1', "a", "f", "{}"), ('4', "b", "f", r#"{"x":1}"#)], &two);
        // Id and name on every piece.
        check(&[('0', "a", "f", ""), ('0', "a", "f", "{}"), ('1', "b", "f", r#"{"x":1}"#)], &two);
        // An index in use, with a new id and a name.
        check(&[('0', "a", "f", "{"), ('0', "", "", "}"), ('0', "b", "f", r#"{"x":1}"#)], &two);
        // Another id on every piece is no new call without a name.
        check(&[('0', "a", "f", "{"), ('0', "z", "", "}"), ('1', "b", "f", r#"{"x":1}"#)], &two);
        // The same id under another index.
        check(
            &[('0', "a", "f", "{}"), ('1', "a", "f", "{}")],
            &[("a", "f", "{}"), ("a", "f", "{}")],
        );
        // The id comes late.
        check(&[('0', "", "f", ""), ('0', "a", "", "{}"), ('1', "b", "f", r#"{"x":1}"#)], &two);
    }

    #[test]
    fn pieces_without_an_index() {
        let two = [("a", "f", "{}"), ("b", "g", "{}")];
        check(&[('-', "a", "f", "{}"), ('-', "b", "g", "{}")], &two);
        check(
            &[('-', "a", "f", "{"), ('-', "", "", "}"), ('-', "b", "g", ""), ('-', "b", "", "{}")],
            &two,
        );
        // The index is lost on later pieces, or comes late.
        check(&[('0', "a", "f", "{"), ('-', "", "", "}"), ('1', "b", "g", "{}")], &two);
        check(&[('-', "a", "f", "{"), ('0', "a", "", "}"), ('1', "b", "g", "{}")], &two);
    }

    #[test]
    fn pieces_without_index_and_id() {
        check(
            &[('-', "", "f", "{"), ('-', "", "", "}"), ('-', "", "g", "{"), ('-', "", "", "}")],
            &[("", "f", "{}"), ("", "g", "{}")],
        );
        check(
            &[('-', "", "f", "{}"), ('-', "", "f", "{}"), ('-', "", "f", r#"{"x":1}"#)],
            &[("", "f", "{}"), ("", "f", "{}"), ("", "f", r#"{"x":1}"#)],
        );
        // The name on every piece.
        check(
            &[('-', "", "f", ""), ('-', "", "f", r#"{"x":"#), ('-', "", "f", r#"{}}"#)],
            &[("", "f", r#"{"x":{}}"#)],
        );
        // Whole calls under one index, or under one id.
        check(&[('0', "", "f", "{}"), ('0', "", "f", "{}")], &[("", "f", "{}"), ("", "f", "{}")]);
        check(&[('0', "", "f", "{}"), ('0', "", "g", "{}")], &[("", "f", "{}"), ("", "g", "{}")]);
        check(
            &[('-', "a", "f", "{}"), ('-', "a", "g", "{}")],
            &[("a", "f", "{}"), ("a", "g", "{}")],
        );
    }

    #[test]
    fn a_name_may_come_late_but_must_come() {
        check(&[('0', "a", "", ""), ('0', "", "", "{"), ('0', "", "f", "}")], &[("a", "f", "{}")]);
        check_changes(&[('0', "a", "", "{"), ('0', "", "f", "}")], &[Opened(0)]);
        let (calls, changes, problems) =
            run(&[('0', "a", "f", "{}"), ('1', "b", "", "{}"), ('2', "c", "g", "{}")]);
        assert_eq!(calls.kept().len(), 2);
        assert_eq!(changes, [Opened(0), Sealed(0), Opened(1)]);
        assert_eq!(problems, [Problem { code: "call_without_name", detail: "{}".into() }]);
        // A piece that says nothing is not even a problem.
        check(&[('0', "", "", ""), ('-', "", "", " ")], &[]);
    }

    #[test]
    fn the_first_name_stands() {
        let (calls, _, problems) = run(&[('0', "a", "f", ""), ('0', "a", "g", "")]);
        assert_eq!(&*calls.kept()[0].name, "f");
        assert_eq!(problems, [Problem { code: "name_changed", detail: "f -> g".into() }]);
    }

    #[test]
    fn a_call_that_opens_seals_the_one_before() {
        check_changes(
            &[('0', "a", "f", "{}"), ('1', "b", "f", ""), ('1', "", "", "{}"), ('2', "c", "f", "")],
            &[Opened(0), Sealed(0), Opened(1), Sealed(1), Opened(2)],
        );
    }

    #[test]
    fn calls_that_are_announced_together_wait_for_their_arguments() {
        let pieces =
            [('0', "a", "f", ""), ('1', "b", "g", ""), ('0', "", "", "{}"), ('1', "", "", "{}")];
        check(&pieces, &[("a", "f", "{}"), ("b", "g", "{}")]);
        check_changes(&pieces, &[Opened(0), Opened(1), Sealed(0)]);
        // One that has none to the end is sealed by those of the next.
        let pieces = [('0', "a", "f", ""), ('1', "b", "g", ""), ('1', "", "", "{}")];
        check_changes(&pieces, &[Opened(0), Opened(1), Sealed(0)]);
        check_changes(
            &[('0', "a", "f", ""), ('1', "b", "g", "{}"), ('2', "c", "h", "")],
            &[Opened(0), Sealed(0), Opened(1), Sealed(1), Opened(2)],
        );
    }

    #[test]
    fn bytes_after_the_seal_disturb_and_blanks_do_not() {
        let pieces = [('0', "a", "f", "{"), ('1', "b", "f", "{"), ('0', "", "", " ")];
        check(&pieces, &[("a", "f", "{ "), ("b", "f", "{")]);
        let pieces = [&pieces[..], &[('0', "", "", "}")]].concat();
        let (calls, changes, _) = run(&pieces);
        assert_eq!(changes, [Opened(0), Sealed(0), Opened(1), ChangedAfterSeal(0)]);
        assert!(calls.kept()[0].changed_after_seal && !calls.kept()[1].changed_after_seal);
        assert_eq!(calls.kept()[0].raw, "{ }");
    }

    #[test]
    fn one_call_too_many_is_counted_and_touches_no_other() {
        let (calls, changes, problems) = run(&[
            ('0', "a", "f", "{}"),
            ('1', "b", "f", "{}"),
            ('2', "c", "f", "{}"),
            ('-', "d", "f", "{"),
            ('-', "", "", "}"),
            ('4', "e", "f", "{}"),
        ]);
        assert_eq!((calls.kept().len(), calls.excess()), (3, 2));
        assert!(calls.kept().iter().all(|call| call.raw == "{}" && call.sealed));
        let expected = [Opened(0), Sealed(0), Opened(1), Sealed(1), Opened(2), Sealed(2)];
        assert_eq!((&changes[..], &problems[..]), (&expected[..], &[][..]));
    }

    #[test]
    fn arguments_end_at_their_limit() {
        let long = "0123456789012345678901234567890123456789";
        let (calls, _, _) = run(&[('0', "a", "f", long), ('0', "", "", long), ('0', "", "", "1")]);
        assert!(calls.kept()[0].oversize);
        assert_eq!(calls.kept()[0].raw, long);
    }
}
