//! Assembles calls from their pieces: decides which piece belongs to which call, and when the
//! arguments of a call are complete. Also defines a call while its pieces arrive, the limits of a
//! response, and the changes that a delta makes to its calls.
//!
//! A piece belongs to the newest call with its index. A new id together with a name begins another
//! call under the same index. A piece without a name whose id is that of another call belongs to that call,
//! because some services count the index up with every piece. A piece without an index belongs to the call with
//! its id, or else to the newest call. A missing index never means 0, because that would merge calls. If several
//! ids or names arrive for a call, the first one is used. A piece with the id of a call that is already
//! complete may begin another call ([`PartialCall::is_followed_by`]).
//!
//! A piece with arguments and without a name, under an index that no call has, is a stray piece: the name may still
//! come (`UnlistedCall::Nameless`), or the service has the wrong index. If the name does not come, the arguments go
//! to the call that they must belong to (`owner_of_stray`): the only call whose arguments are incomplete, if the
//! stray piece came directly after a piece of it. Otherwise the arguments are lost, and the response counts as
//! broken ([`finish_reason`](super::finish_reason)), because one of its calls lacks them.
//!
//! A piece of a later call seals the earlier calls whose arguments are a whole JSON object. Other calls stay open, so
//! that calls may be announced together, and their pieces may interleave. If the response ends well, all calls are
//! sealed. Bytes for a sealed call open it again ([`CallChange::ChangedAfterSeal`]).
//!
//! A wire that marks the beginning of a call (`CallDelta::is_marked_start`) also marks the end of its arguments.
//! Such a call seals no other, and its own mark seals it (`seal_explicitly`).

use std::sync::Arc;

use crate::{CallDelta, CallKind, Problem};
use callsheet_values::types::{CALLS_MAX, excerpt};

/// The limits of one response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ResponseLimits {
    /// Maximum bytes of one call's arguments. The piece that exceeds it and all further pieces are dropped.
    pub arguments_bytes_max: usize,
    /// Maximum number of calls, [`CALLS_MAX`] by default. Further calls are only counted.
    pub calls_max: usize,
    /// Maximum bytes of text, of reasoning, of refusal and of metadata, each. More is an error of the
    /// response.
    pub text_bytes_max: usize,
}

impl Default for ResponseLimits {
    fn default() -> Self {
        Self { arguments_bytes_max: 1 << 20, calls_max: CALLS_MAX, text_bytes_max: 16 << 20 }
    }
}

/// A change to a call. The numbers are indexes into
/// [`ResponseAssembler::calls`](super::ResponseAssembler::calls), unless the variant says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallChange {
    /// A call with a name was opened.
    Opened(usize),
    /// The arguments of a call are complete.
    Sealed(usize),
    /// Bytes other than white space, or other complete arguments, arrived for a call that is sealed. The call is
    /// open again; with complete arguments it is sealed again at once.
    ChangedAfterSeal(usize),
    /// A call that the service runs itself was opened: an index into
    /// [`ResponseAssembler::service_calls`](super::ResponseAssembler::service_calls).
    ServiceOpened(usize),
    /// A call that the service runs itself is complete: an index as in `ServiceOpened`.
    ServiceSealed(usize),
}

/// Changes in the order in which they happened. Most deltas make none, so most lists allocate
/// nothing.
pub type CallChanges = Vec<CallChange>;

/// The calls of one response.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct CallAssembler {
    calls: Vec<PartialCall>,
    /// The newest call, if it is not in `calls`.
    pending: Option<UnlistedCall>,
    /// Number of calls beyond the limit.
    excess: usize,
    /// All calls before this position are sealed.
    sealed_up_to: usize,
    /// The call to which the last piece went, if it is in `calls`.
    last: Option<usize>,
    /// True if arguments arrived that belong to no call.
    has_lost: bool,
}

/// A call that is not in the list.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum UnlistedCall {
    /// Its name has not arrived yet.
    Nameless {
        call: PartialCall,
        /// The call that gets the arguments if no name arrives: its position and the length of its arguments.
        owner: Option<(usize, usize)>,
    },
    /// It exceeds the limit. Its pieces are collected so that they do not go to another call.
    Excess(PartialCall),
}

/// The call to which a piece belongs.
#[derive(Clone, Copy)]
enum CallSlot {
    Pending,
    /// The call at this position.
    Listed(usize),
}

impl CallAssembler {
    /// Returns the calls with a name, in the order in which they were opened.
    pub(super) fn as_slice(&self) -> &[PartialCall] {
        &self.calls
    }

    /// Returns the number of calls that were opened beyond the limit.
    pub(super) fn excess(&self) -> usize {
        self.excess
    }

    /// Adds one piece of a call. `arrival` is for the call that the piece begins, if it begins one.
    pub(super) fn push(
        &mut self,
        piece: &CallDelta,
        arrival: usize,
        limits: &ResponseLimits,
        changes: &mut CallChanges,
    ) -> Option<Problem> {
        let slot = self.find_slot(piece).filter(|_| !piece.is_marked_start);
        let slot = slot
            .filter(|slot| self.call_mut(*slot).is_some_and(|call| !call.is_followed_by(piece)))
            .filter(|slot| !matches!(slot, CallSlot::Pending) || !self.is_stray_before(piece));
        match slot {
            None if piece.is_blank() => None,
            // It belongs to one of the calls beyond the limit.
            None if piece.name.is_none() && self.excess > 0 => None,
            None => self.open(piece, arrival, limits, changes),
            Some(CallSlot::Listed(at)) => self.continue_listed(at, piece, limits, changes),
            Some(CallSlot::Pending) => {
                self.continue_pending(piece, limits, changes);
                None
            }
        }
    }

    /// Returns the position of the newest open call with this index, or of the newest call with it
    /// if none is open.
    pub(super) fn at_index(&self, index: u64) -> Option<usize> {
        let has_index = |call: &PartialCall| call.wire_index == Some(index);
        let open = self.calls.iter().rposition(|call| has_index(call) && !call.sealed);
        open.or_else(|| self.calls.iter().rposition(has_index))
    }

    /// Seals a call on the wire's own mark, which may hold the complete arguments. Returns a problem if stray
    /// arguments go to the call.
    pub(super) fn seal_explicitly(
        &mut self,
        index: usize,
        arguments: Option<&str>,
        limits: &ResponseLimits,
        changes: &mut CallChanges,
    ) -> Option<Problem> {
        let owns_stray = arguments.is_none() && self.owner_of_pending() == Some(index);
        let problem = if owns_stray { self.end(limits) } else { None };
        let call = self.calls.get_mut(index)?;
        if arguments.is_none() && call.is_cut_off() {
            // Some relays mark the end of a call when the next one begins, and then send the rest of its arguments.
            return problem;
        }
        // Of arguments above the limit only the beginning is held, so that they cannot be compared.
        let is_cut = |complete: &&str| call.oversize && complete.len() > limits.arguments_bytes_max;
        let changed = arguments.filter(|complete| *complete != call.raw && !is_cut(complete));
        if let Some(complete) = changed {
            if std::mem::take(&mut call.sealed) {
                changes.push(CallChange::ChangedAfterSeal(index));
            }
            call.replace(complete, limits.arguments_bytes_max);
        }
        self.seal(index, changes);
        problem
    }

    /// Seals all open calls.
    pub(super) fn seal_all(&mut self, changes: &mut CallChanges) {
        self.seal_before(self.calls.len(), false, changes);
    }

    /// Seals the open calls before a position. With `only_whole`, only those whose arguments are a whole object.
    fn seal_before(&mut self, end: usize, only_whole: bool, changes: &mut CallChanges) {
        for index in self.sealed_up_to..end {
            if !only_whole || self.calls.get_mut(index).is_some_and(PartialCall::is_whole) {
                self.seal(index, changes);
            }
        }
        let is_open = |call: &PartialCall| !call.sealed;
        let open = self.calls.iter().skip(self.sealed_up_to).position(is_open);
        self.sealed_up_to = open.map_or(self.calls.len(), |ahead| self.sealed_up_to + ahead);
    }

    /// Drops the call that is not in the list, if there is one. Arguments without a name go to their owner, or are
    /// lost. Returns a problem if there was no name.
    pub(super) fn end(&mut self, limits: &ResponseLimits) -> Option<Problem> {
        let (stray, owner) = match self.pending.take()? {
            UnlistedCall::Nameless { call, owner } => (call, owner),
            UnlistedCall::Excess(_) => return None,
        };
        let problem = |code, text: &str| Some(Problem { code, detail: excerpt(text, 200) });
        // A wire that also sends the arguments whole may repeat those of a call under a wrong index.
        let is_repeated = stray.has_own_seal && self.calls.iter().any(|call| call.raw == stray.raw);
        let owner = owner.and_then(|(at, bytes)| Some((at, bytes, self.calls.get_mut(at)?)));
        match owner {
            Some((at, bytes, owner)) if !owner.sealed && owner.raw.len() == bytes => {
                owner.append(Some(&stray.raw), limits.arguments_bytes_max);
                owner.oversize |= stray.oversize;
                self.last = Some(at);
                problem("arguments_under_another_index", &format!("{}: {}", owner.name, stray.raw))
            }
            // The complete arguments of the call came meanwhile, and are the same.
            Some((_, _, owner)) if owner.raw == stray.raw => {
                problem("arguments_under_another_index", &format!("{}: {}", owner.name, stray.raw))
            }
            Some(_) | None => {
                self.has_lost |= stray.has_arguments() && !is_repeated;
                problem("call_without_name", &stray.raw)
            }
        }
    }

    /// Returns whether arguments arrived that belong to no call, as far as it is known.
    pub(super) fn has_lost_arguments(&self) -> bool {
        self.has_lost || self.has_stray_arguments() && self.owner_of_pending().is_none()
    }

    /// Returns whether arguments arrived that belong to no call so far.
    pub(super) fn has_stray_arguments(&self) -> bool {
        match &self.pending {
            Some(UnlistedCall::Nameless { call, .. }) => self.has_lost || call.has_arguments(),
            Some(UnlistedCall::Excess(_)) | None => self.has_lost,
        }
    }

    fn owner_of_pending(&self) -> Option<usize> {
        match &self.pending {
            Some(UnlistedCall::Nameless { owner, .. }) => owner.map(|(at, _)| at),
            Some(UnlistedCall::Excess(_)) | None => None,
        }
    }

    /// Returns the call to which a stray piece must belong if no name arrives for it: the last piece went to this
    /// call, only its arguments are incomplete, and the piece has no other id. Returns its position and the length of
    /// its arguments.
    fn owner_of_stray(&mut self, piece: &CallDelta) -> Option<(usize, usize)> {
        let last = self.last?;
        for (at, call) in self.calls.iter_mut().enumerate().skip(self.sealed_up_to) {
            if at != last && !call.sealed && !call.is_whole() {
                return None;
            }
        }
        let call = self.calls.get_mut(last)?;
        let is_incomplete = !call.sealed && (!call.has_arguments() || call.is_cut_off());
        (is_incomplete && piece.id.is_none()).then_some((last, call.raw.len()))
    }

    /// Returns whether the pending call is a stray piece that has an owner, and `piece` begins a call: services whose
    /// index is one too large for arguments use the same index for the next call.
    fn is_stray_before(&self, piece: &CallDelta) -> bool {
        match &self.pending {
            Some(UnlistedCall::Nameless { call, owner: Some(_) }) => {
                piece.name.is_some() && !call.has_own_seal
            }
            Some(UnlistedCall::Nameless { owner: None, .. } | UnlistedCall::Excess(_)) | None => {
                false
            }
        }
    }

    /// Returns the call to which a piece belongs unless it begins a call of its own.
    fn find_slot(&self, piece: &CallDelta) -> Option<CallSlot> {
        let same_id = |call: &PartialCall| call.provider_id.as_deref() == piece.id.as_deref();
        let same_index = |call: &PartialCall| call.wire_index == piece.index;
        match (piece.index, &piece.id) {
            (Some(_), None) => self.find(same_index),
            (Some(_), Some(_)) => self
                .find(|call| same_index(call) && same_id(call))
                // Without a name it cannot begin a call, so the call with its id is meant.
                .or_else(|| self.find(same_id).filter(|_| piece.name.is_none()))
                .or_else(|| self.find(same_index)),
            (None, Some(_)) => {
                self.find(same_id).or_else(|| self.find(|_| true).filter(|_| piece.name.is_none()))
            }
            (None, None) => self.find(|_| true),
        }
    }

    /// Returns the newest call that matches.
    fn find(&self, matches: impl Fn(&PartialCall) -> bool) -> Option<CallSlot> {
        match &self.pending {
            Some(UnlistedCall::Nameless { call, .. } | UnlistedCall::Excess(call))
                if matches(call) =>
            {
                Some(CallSlot::Pending)
            }
            Some(UnlistedCall::Nameless { .. } | UnlistedCall::Excess(_)) | None => {
                self.calls.iter().rposition(matches).map(CallSlot::Listed)
            }
        }
    }

    fn call_mut(&mut self, slot: CallSlot) -> Option<&mut PartialCall> {
        match slot {
            CallSlot::Listed(at) => self.calls.get_mut(at),
            CallSlot::Pending => match &mut self.pending {
                Some(UnlistedCall::Nameless { call, .. } | UnlistedCall::Excess(call)) => {
                    Some(call)
                }
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
        let problem = self.end(limits);
        let is_stray = piece.name.is_none() && piece.has_arguments();
        let owner = if is_stray { self.owner_of_stray(piece) } else { None };
        self.pending =
            Some(UnlistedCall::Nameless { call: PartialCall::begin(piece, arrival), owner });
        self.continue_pending(piece, limits, changes);
        problem
    }

    /// Adds a call with a name to the list, or counts it if the list is full.
    fn add(&mut self, call: PartialCall, limits: &ResponseLimits, changes: &mut CallChanges) {
        let is_full = self.calls.len() >= limits.calls_max;
        // Only the first call beyond the limit seals others, so that many calls take linear time.
        if !call.has_own_seal && self.excess == 0 {
            self.seal_before(self.calls.len(), true, changes);
        }
        if is_full {
            self.excess += 1;
            self.last = None;
            self.pending = Some(UnlistedCall::Excess(call));
        } else {
            self.last = Some(self.calls.len());
            changes.push(CallChange::Opened(self.calls.len()));
            self.calls.push(call);
        }
    }

    fn continue_listed(
        &mut self,
        index: usize,
        piece: &CallDelta,
        limits: &ResponseLimits,
        changes: &mut CallChanges,
    ) -> Option<Problem> {
        let call = self.calls.get_mut(index)?;
        let new_name = piece.name.as_ref().filter(|name| ***name != *call.name);
        let problem = new_name.map(|name| Problem {
            code: "name_changed",
            detail: excerpt(&format!("{} -> {name}", call.name), 200),
        });
        call.fill(piece);
        if call.sealed && piece.has_arguments() && call.kind != CallKind::ServerToolUse {
            call.sealed = false;
            self.sealed_up_to = self.sealed_up_to.min(index);
            changes.push(CallChange::ChangedAfterSeal(index));
        }
        call.append(piece.arguments.as_deref(), limits.arguments_bytes_max);
        let is_next = self.last.replace(index) != Some(index);
        if is_next && !call.has_own_seal && index > self.sealed_up_to && piece.has_arguments() {
            self.seal_before(index, true, changes);
        }
        problem
    }

    fn continue_pending(
        &mut self,
        piece: &CallDelta,
        limits: &ResponseLimits,
        changes: &mut CallChanges,
    ) {
        let Some(call) = self.call_mut(CallSlot::Pending) else { return };
        call.fill(piece);
        call.append(piece.arguments.as_deref(), limits.arguments_bytes_max);
        match self.pending.take() {
            Some(UnlistedCall::Nameless { call, .. }) if !call.name.is_empty() => {
                self.add(call, limits, changes);
            }
            pending => self.pending = pending,
        }
    }

    fn seal(&mut self, index: usize, changes: &mut CallChanges) {
        if let Some(call) = self.calls.get_mut(index).filter(|call| !call.sealed) {
            call.sealed = true;
            changes.push(CallChange::Sealed(index));
        }
    }
}

/// One call while its pieces arrive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PartialCall {
    /// The wire's own index, if it sent one.
    pub wire_index: Option<u64>,
    /// The first id that the provider sent.
    pub provider_id: Option<Arc<str>>,
    /// The first name of the tool that the provider sent.
    pub name: Arc<str>,
    /// The text of the arguments so far.
    pub raw: String,
    /// The kind of the call.
    pub kind: CallKind,
    /// True if the arguments are complete.
    pub sealed: bool,
    /// True if the arguments were repaired.
    pub is_repaired: bool,
    /// True if the protocol allows no such call: it is not kept.
    pub is_surplus: bool,
    /// True if the arguments exceed the limit. `raw` holds only their beginning.
    pub oversize: bool,
    /// Number of calls with a name, of any kind, that were opened before its first piece.
    pub arrival: usize,
    /// True if the wire itself marks the end of the arguments.
    has_own_seal: bool,
    end_scanner: JsonEndScanner,
}

impl PartialCall {
    /// Creates the call that a piece begins, without the arguments of the piece.
    fn begin(piece: &CallDelta, arrival: usize) -> Self {
        let mut call = Self { arrival, has_own_seal: piece.is_marked_start, ..Self::default() };
        call.fill(piece);
        call
    }

    /// Sets the members that are still missing.
    fn fill(&mut self, piece: &CallDelta) {
        if self.provider_id.is_none() {
            self.provider_id = piece.id.as_deref().map(Arc::from);
        }
        if let (true, Some(name)) = (self.name.is_empty(), &piece.name) {
            self.name = name.as_str().into();
        }
        if self.wire_index.is_none() {
            self.wire_index = piece.index;
        }
        self.is_repaired |= piece.is_repaired;
        self.is_surplus |= piece.is_surplus;
        if piece.kind != CallKind::Function {
            self.kind = piece.kind;
        }
    }

    /// Appends arguments, unless they exceed the limit.
    fn append(&mut self, arguments: Option<&str>, bytes_max: usize) {
        let Some(text) = arguments else { return };
        if self.oversize || self.raw.len() + text.len() > bytes_max {
            self.oversize = true;
        } else {
            self.raw.push_str(text);
        }
    }

    /// Replaces the arguments by the complete ones, unless these exceed the limit.
    fn replace(&mut self, complete: &str, bytes_max: usize) {
        self.oversize = complete.len() > bytes_max;
        if !self.oversize {
            complete.clone_into(&mut self.raw);
            self.end_scanner = JsonEndScanner::default();
        }
    }

    /// Returns whether a piece that would belong to this call begins another call instead.
    ///
    /// A new id together with a name begins another call. If the arguments so far are a complete
    /// value, no text continues them. Another name then begins a call too. So does the beginning of
    /// an object or a string, together with the same name, or with a new id and without an index.
    /// Another name with such a beginning also begins a call if this one has no arguments. Services
    /// that send calls without index and id, or all calls under the same index, need these rules.
    fn is_followed_by(&mut self, piece: &CallDelta) -> bool {
        let has_other_id = match (&piece.id, &self.provider_id) {
            (Some(new), Some(old)) => **new != **old,
            (Some(_) | None, None) | (None, Some(_)) => false,
        };
        let Some(name) = &piece.name else {
            return has_other_id
                && piece.index.is_none()
                && begins_value(piece)
                && self.is_closed();
        };
        if has_other_id || self.name.is_empty() {
            return has_other_id;
        }
        if **name != *self.name {
            return self.is_closed() || (begins_value(piece) && !self.has_arguments());
        }
        match (&piece.id, &self.provider_id) {
            // The id may come late, but not after the arguments.
            (Some(_), None) => self.has_arguments(),
            // A piece with the same index, id and name belongs to the same call.
            (Some(_), Some(_)) if piece.index.is_some() => false,
            (Some(_) | None, Some(_)) | (None, None) => begins_value(piece) && self.is_closed(),
        }
    }

    /// Returns whether arguments other than white space have arrived.
    pub(super) fn has_arguments(&self) -> bool {
        !self.raw.trim_ascii().is_empty()
    }

    /// Returns whether the arguments so far are a complete JSON object, array or string.
    fn is_closed(&mut self) -> bool {
        self.end_scanner.scan(&self.raw);
        self.end_scanner.is_closed()
    }

    /// Returns whether the arguments so far are a whole JSON object, after which only white space can follow.
    fn is_whole(&mut self) -> bool {
        self.is_function() && self.begins_object() && self.is_closed()
    }

    /// Returns whether the arguments so far are the beginning of a JSON object, and more of it has to follow.
    fn is_cut_off(&mut self) -> bool {
        self.is_function() && self.begins_object() && !self.oversize && !self.is_closed()
    }

    fn begins_object(&self) -> bool {
        self.raw.trim_ascii_start().starts_with('{')
    }

    /// Returns whether the arguments are JSON that the host reads.
    fn is_function(&self) -> bool {
        match self.kind {
            CallKind::Function => true,
            CallKind::Custom | CallKind::ServerToolUse => false,
        }
    }
}

/// Returns whether the arguments of a piece begin like an object or a string.
fn begins_value(piece: &CallDelta) -> bool {
    piece.arguments.as_deref().is_some_and(|text| text.trim_ascii_start().starts_with(['{', '"']))
}

/// Finds the end of a JSON object, array or string in a text that grows, without scanning any byte twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct JsonEndScanner {
    /// Number of bytes that were scanned.
    scanned: usize,
    /// Number of open brackets.
    depth: usize,
    begun: bool,
    in_string: bool,
    escaped: bool,
}

impl JsonEndScanner {
    fn scan(&mut self, text: &str) {
        for byte in text.as_bytes().iter().skip(self.scanned) {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => {
                    self.in_string = !self.in_string;
                    self.begun = true;
                }
                _ if self.in_string => {}
                b'{' | b'[' => {
                    self.depth += 1;
                    self.begun = true;
                }
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
        self.scanned = text.len();
    }

    fn is_closed(self) -> bool {
        self.begun && self.depth == 0 && !self.in_string
    }
}

#[cfg(test)]
mod tests {
    use super::CallChange::{ChangedAfterSeal, Opened, Sealed};
    use super::*;

    const LIMITS: ResponseLimits =
        ResponseLimits { arguments_bytes_max: 64, calls_max: 3, text_bytes_max: 64 };

    /// Index (`-` for none), id, name and arguments. An empty text is an absent member.
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
        problems.extend(calls.end(&LIMITS));
        (calls, changes, problems)
    }

    /// Checks id, name and arguments of each call, and that there are no problems.
    #[track_caller]
    fn check(pieces: &[PieceSpec], expected: &[(&str, &str, &str)]) {
        let (calls, _, problems) = run(pieces);
        let found: Vec<_> = calls
            .as_slice()
            .iter()
            .map(|call| (call.provider_id.as_deref().unwrap_or(""), &*call.name, &*call.raw))
            .collect();
        assert_eq!(found, expected);
        assert_eq!(problems, []);
        assert!(!calls.has_lost_arguments());
    }

    /// Checks name and arguments of each call, and the codes of the problems.
    #[track_caller]
    fn check_strays(pieces: &[PieceSpec], expected: &[(&str, &str)], codes: &[&str], lost: bool) {
        let (calls, _, problems) = run(pieces);
        let found: Vec<_> = calls.as_slice().iter().map(|call| (&*call.name, &*call.raw)).collect();
        assert_eq!(found, expected);
        let found: Vec<_> = problems.iter().map(|problem| problem.code).collect();
        assert_eq!(found, codes);
        assert_eq!(calls.has_lost_arguments(), lost);
    }

    #[track_caller]
    fn check_changes(pieces: &[PieceSpec], expected: &[CallChange]) {
        assert_eq!(run(pieces).1, expected);
    }

    #[test]
    fn seals_may_repeat_arguments_above_the_limit() {
        let (mut calls, mut changes) = (CallAssembler::default(), CallChanges::new());
        let arguments = "x".repeat(80);
        let (begin, rest) = arguments.split_at(40);
        for (name, arguments) in [(Some("f"), begin), (None, rest)] {
            let piece = CallDelta {
                index: Some(0),
                name: name.map(str::to_owned),
                arguments: Some(arguments.to_owned()),
                is_marked_start: name.is_some(),
                ..CallDelta::default()
            };
            assert_eq!(calls.push(&piece, 0, &LIMITS, &mut changes), None);
        }
        for _ in 0..2 {
            calls.seal_explicitly(0, Some(&arguments), &LIMITS, &mut changes);
        }
        assert_eq!(changes, [Opened(0), Sealed(0)]);
        assert!(calls.as_slice()[0].oversize);
        // Other arguments within the limit are a change.
        calls.seal_explicitly(0, Some("{}"), &LIMITS, &mut changes);
        assert_eq!(changes[2..], [ChangedAfterSeal(0), Sealed(0)]);
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
        // Another id on every piece is not a new call without a name.
        check(&[('0', "a", "f", "{"), ('0', "z", "", "}"), ('1', "b", "f", r#"{"x":1}"#)], &two);
        // The index counts up with every piece, and the id is right.
        let drifting = [
            ('0', "a", "f", ""),
            ('1', "b", "f", ""),
            ('1', "a", "", "{"),
            ('2', "a", "", "}"),
            ('3', "b", "", r#"{"x""#),
            ('4', "b", "", ":1}"),
        ];
        check(&drifting, &two);
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
    fn after_complete_arguments_another_name_begins_a_call() {
        let two = [("", "f", "{}"), ("", "g", r#"{"x":1}"#)];
        for index in ['0', '-'] {
            let pieces = [
                (index, "", "f", ""),
                (index, "", "", "{}"),
                (index, "", "g", ""),
                (index, "", "", r#"{"x""#),
                (index, "", "", ":1}"),
            ];
            check(&pieces, &two);
            check_changes(&pieces, &[Opened(0), Sealed(0), Opened(1)]);
        }
        // The arguments are not complete.
        let (calls, _, problems) =
            run(&[('0', "", "f", "{"), ('0', "", "g", ""), ('0', "", "", "}")]);
        let raw: Vec<_> = calls.as_slice().iter().map(|call| &*call.raw).collect();
        assert_eq!(raw, ["{}"]);
        assert_eq!(problems, [Problem { code: "name_changed", detail: "f -> g".into() }]);
    }

    #[test]
    fn a_call_may_get_its_name_late_but_needs_one() {
        check(&[('0', "a", "", ""), ('0', "", "", "{"), ('0', "", "f", "}")], &[("a", "f", "{}")]);
        check_changes(&[('0', "a", "", "{"), ('0', "", "f", "}")], &[Opened(0)]);
        let (calls, changes, problems) =
            run(&[('0', "a", "f", "{}"), ('1', "b", "", "{}"), ('2', "c", "g", "{}")]);
        assert_eq!(calls.as_slice().len(), 2);
        assert_eq!(changes, [Opened(0), Sealed(0), Opened(1)]);
        assert_eq!(problems, [Problem { code: "call_without_name", detail: "{}".into() }]);
        // A piece without content is ignored.
        check(&[('0', "", "", ""), ('-', "", "", " ")], &[]);
    }

    #[test]
    fn the_first_name_counts() {
        let (calls, _, problems) = run(&[('0', "a", "f", ""), ('0', "a", "g", "")]);
        assert_eq!(&*calls.as_slice()[0].name, "f");
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
        // A call without arguments stays open: they may still come.
        let pieces = [('0', "a", "f", ""), ('1', "b", "g", ""), ('1', "", "", "{}")];
        check_changes(&pieces, &[Opened(0), Opened(1)]);
        check_changes(
            &[('0', "a", "f", ""), ('1', "b", "g", "{}"), ('2', "c", "h", "")],
            &[Opened(0), Opened(1), Sealed(1), Opened(2)],
        );
    }

    #[test]
    fn calls_whose_pieces_interleave_are_whole() {
        let pieces = [
            ('0', "a", "f", ""),
            ('0', "", "", r#"{"x":"#),
            ('1', "b", "g", r#"{"y":"#),
            ('0', "", "", r#"{"z""#),
            ('1', "", "", "2"),
            ('0', "", "", ":1}}"),
            ('1', "", "", "}"),
        ];
        check(&pieces, &[("a", "f", r#"{"x":{"z":1}}"#), ("b", "g", r#"{"y":2}"#)]);
        check_changes(&pieces, &[Opened(0), Opened(1), Sealed(0)]);
    }

    #[test]
    fn bytes_after_the_seal_open_the_call_again_and_blanks_do_not() {
        let pieces = [('0', "a", "f", "{}"), ('1', "b", "f", "{"), ('0', "", "", " ")];
        check_changes(&pieces, &[Opened(0), Sealed(0), Opened(1)]);
        let pieces = [&pieces[..], &[('0', "", "", "}"), ('2', "c", "f", "")]].concat();
        let (calls, changes, _) = run(&pieces);
        assert_eq!(
            changes,
            [Opened(0), Sealed(0), Opened(1), ChangedAfterSeal(0), Sealed(0), Opened(2)]
        );
        assert_eq!(calls.as_slice()[0].raw, "{} }");
    }

    #[test]
    fn a_mark_seals_no_call_whose_object_is_cut_off() {
        let (mut calls, mut changes) = (CallAssembler::default(), CallChanges::new());
        let mut push = |calls: &mut CallAssembler, index, name: &str, arguments: &str| {
            let piece = CallDelta {
                index: Some(index),
                name: Some(name.to_owned()).filter(|name| !name.is_empty()),
                arguments: Some(arguments.to_owned()),
                is_marked_start: !name.is_empty(),
                ..CallDelta::default()
            };
            assert_eq!(calls.push(&piece, 0, &LIMITS, &mut changes), None);
            assert_eq!(calls.seal_explicitly(0, None, &LIMITS, &mut changes), None);
        };
        push(&mut calls, 0, "f", r#"{"x":"#);
        push(&mut calls, 1, "g", "");
        push(&mut calls, 0, "", "1}");
        assert_eq!(changes, [Opened(0), Opened(1), Sealed(0)]);
        assert_eq!(calls.as_slice()[0].raw, r#"{"x":1}"#);
    }

    #[test]
    fn arguments_under_an_index_without_a_call_go_to_the_only_incomplete_call() {
        let moved = "arguments_under_another_index";
        for pieces in [
            &[('0', "a", "f", ""), ('1', "", "", r#"{"x":1}"#)][..],
            // In pieces, each with another index.
            &[('0', "a", "f", ""), ('1', "", "", "{\"x\""), ('1', "", "", ":1}")],
            // Only the last piece has another index.
            &[('0', "a", "f", ""), ('0', "", "", "{\"x\""), ('1', "", "", ":1}")],
        ] {
            check_strays(pieces, &[("f", r#"{"x":1}"#)], &[moved], false);
        }
        let pieces =
            [('0', "a", "f", ""), ('1', "", "", "{"), ('2', "", "", "\"x\":1"), ('3', "", "", "}")];
        check_strays(&pieces, &[("f", r#"{"x":1}"#)], &[moved; 3], false);
        // The index is one too large for arguments, so that the next call has it too.
        let pieces = [
            ('0', "a", "f", ""),
            ('1', "", "", r#"{"x":1}"#),
            ('1', "b", "g", ""),
            ('2', "", "", "{}"),
        ];
        check_strays(&pieces, &[("f", r#"{"x":1}"#), ("g", "{}")], &[moved; 2], false);
        let pieces = [
            ('0', "a", "f", ""),
            ('0', "", "", "{\"x\""),
            ('1', "", "", ":1}"),
            ('1', "b", "g", ""),
            ('1', "", "", "{"),
            ('2', "", "", "}"),
        ];
        check_strays(&pieces, &[("f", r#"{"x":1}"#), ("g", "{}")], &[moved; 2], false);
    }

    #[test]
    fn other_arguments_under_an_index_without_a_call_are_lost() {
        let nameless = "call_without_name";
        let two = [('0', "a", "f", ""), ('1', "b", "g", "")];
        // Two calls have no arguments.
        let pieces = [&two[..], &[('2', "", "", "{}")]].concat();
        check_strays(&pieces, &[("f", ""), ("g", "")], &[nameless], true);
        // The call is whole, or another piece came in between, or there is no call.
        let pieces = [('0', "a", "f", "{}"), ('1', "", "", "{}")];
        check_strays(&pieces, &[("f", "{}")], &[nameless], true);
        let pieces = [('0', "a", "f", ""), ('1', "", "", "{}"), ('0', "", "", "{}")];
        check_strays(&pieces, &[("f", "{}")], &["arguments_under_another_index"], false);
        let pieces = [('0', "a", "f", ""), ('1', "", "", "{}"), ('0', "", "", "{ }")];
        check_strays(&pieces, &[("f", "{ }")], &[nameless], true);
        check_strays(&[('0', "", "", "{}")], &[], &[nameless], true);
        check_strays(&[('0', "a", "f", ""), ('1', "b", "", "")], &[("f", "")], &[nameless], false);
    }

    #[test]
    fn excess_calls_are_counted_and_change_no_other_call() {
        let (calls, changes, problems) = run(&[
            ('0', "a", "f", "{}"),
            ('1', "b", "f", "{}"),
            ('2', "c", "f", "{}"),
            ('-', "d", "f", "{"),
            ('-', "", "", "}"),
            ('4', "e", "f", "{}"),
        ]);
        assert_eq!((calls.as_slice().len(), calls.excess()), (3, 2));
        assert!(calls.as_slice().iter().all(|call| call.raw == "{}" && call.sealed));
        let expected = [Opened(0), Sealed(0), Opened(1), Sealed(1), Opened(2), Sealed(2)];
        assert_eq!((&changes[..], &problems[..]), (&expected[..], &[][..]));
    }

    #[test]
    fn arguments_are_limited() {
        let long = "0123456789012345678901234567890123456789";
        let (calls, _, _) = run(&[('0', "a", "f", long), ('0', "", "", long), ('0', "", "", "1")]);
        assert!(calls.as_slice()[0].oversize);
        assert_eq!(calls.as_slice()[0].raw, long);
    }

    #[test]
    fn the_scanner_finds_the_end_of_a_value_in_any_pieces() {
        for (text, closed) in [
            ("", false),
            ("{", false),
            ("{}", true),
            (r#"{"a":"}"#, false),
            (r#"{"a":"}\""}"#, true),
            (r#"{"a":{"b":[]}"#, false),
            (r#""{}""#, true),
            (r#""{}"#, false),
        ] {
            for cut in 0..=text.len() {
                let mut end_scanner = JsonEndScanner::default();
                end_scanner.scan(&text[..cut]);
                end_scanner.scan(text);
                assert_eq!(end_scanner.is_closed(), closed, "{text} cut at {cut}");
            }
        }
    }
}
