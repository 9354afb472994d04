//! What a run waits for that its client must do: decide about a call, answer a question, run a call itself. An answer
//! ends there, and the next request of the client goes on behind it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use callsheet_host::runtime::{CurrentRun, PendingApproval};
use callsheet_values::event::{ApprovalRequest, ChildEvent, Event, PublishedEvent, WaitingFor};
use callsheet_values::types::{CallKey, Seq, SessionId, WaitPhase};

/// The id of an approval or a question for clients: `t1a1c0.SHA`, with `.after` behind it if the result waits, and with
/// the session before it if the call is one of a child session. The hash makes a decision about other arguments an error.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WaitId {
    pub(super) child: Option<SessionId>,
    pub(super) key: CallKey,
    pub(super) is_after: bool,
    pub(super) arguments_sha256: String,
}

impl WaitId {
    pub(super) fn of_request(request: &ApprovalRequest, child: Option<&SessionId>) -> Self {
        Self {
            child: child.cloned(),
            key: request.call.key,
            is_after: request.phase == WaitPhase::After,
            arguments_sha256: request.arguments_sha256.clone(),
        }
    }

    fn of_pending(pending: &PendingApproval) -> Option<Self> {
        Some(Self {
            child: None,
            key: pending.tool_id.parse().ok()?,
            is_after: pending.phase == WaitPhase::After,
            arguments_sha256: pending.arguments_sha256.clone(),
        })
    }

    /// Returns the id of the call: of a child session with the session before it.
    pub(super) fn call_id(&self) -> String {
        match &self.child {
            Some(child) => format!("{child}.{}", self.key),
            None => self.key.to_string(),
        }
    }

    /// Returns the phase that a decision names, if it must.
    pub(super) fn phase(&self) -> Option<WaitPhase> {
        self.is_after.then_some(WaitPhase::After)
    }
}

impl fmt::Display for WaitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let after = if self.is_after { ".after" } else { "" };
        write!(f, "{}.{}{after}", self.call_id(), self.arguments_sha256)
    }
}

impl FromStr for WaitId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (text, is_after) = match text.strip_suffix(".after") {
            Some(text) => (text, true),
            None => (text, false),
        };
        let mut parts = text.rsplit('.');
        let (Some(sha), Some(key)) = (parts.next(), parts.next()) else { return Err(()) };
        let child = parts.next().map(SessionId::parse).transpose().map_err(|_| ())?;
        let key = key.parse().map_err(|_| ())?;
        let is_whole = !sha.is_empty() && parts.next().is_none();
        let id = Self { child, key, is_after, arguments_sha256: sha.to_owned() };
        is_whole.then_some(id).ok_or(())
    }
}

/// What is known about the waits of a run before its events are read.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownWaits {
    /// The approvals and questions that the client has answered in this message, now or before.
    pub(super) answered: BTreeSet<WaitId>,
    /// The calls of child sessions about which the client has decided now.
    pub(super) decided_children: Vec<String>,
    /// The calls that the client has run in this message.
    pub(super) answered_calls: BTreeSet<CallKey>,
    /// Those that were asked up to `upto` and are open.
    open: BTreeSet<WaitId>,
    /// The last record of the session.
    pub(super) upto: Seq,
}

impl KnownWaits {
    /// Returns what the state of a run tells.
    pub(super) fn of_run(run: Option<&CurrentRun>, upto: Seq) -> Self {
        let approvals = run.iter().flat_map(|run| &run.approvals);
        let open = approvals.filter_map(WaitId::of_pending).collect();
        Self { open, upto, ..Self::default() }
    }

    /// Adds the answers of the client.
    pub(super) fn with(self, answers: Self) -> Self {
        let Self { open, upto, .. } = self;
        Self { open, upto, ..answers }
    }

    /// Returns the approvals and questions that are open.
    pub(super) fn open(&self) -> impl Iterator<Item = &WaitId> {
        self.open.iter()
    }

    /// Returns whether it waits.
    pub(super) fn is_open(&self, id: &WaitId) -> bool {
        self.open.contains(id)
    }

    fn state(&self, id: &WaitId, seq: Option<Seq>) -> CallState {
        if self.answered.contains(id) {
            return CallState::Answered;
        }
        let is_past = seq.is_some_and(|seq| seq <= self.upto);
        if is_past && !self.open.contains(id) { CallState::Runs } else { CallState::Waits }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallState {
    Runs,
    /// The client has to run it.
    ByClient,
    /// An earlier call must go on first.
    Blocked,
    /// The client has to act.
    Waits,
    /// The client has acted.
    Answered,
}

impl CallState {
    fn is_waiting(self) -> bool {
        matches!(self, Self::ByClient | Self::Waits)
    }
}

/// The calls of a turn that have not ended, and what they wait for.
#[derive(Debug)]
pub(super) struct WaitingCalls {
    known: KnownWaits,
    has_response_ended: bool,
    calls: BTreeMap<CallKey, CallState>,
    ended: BTreeSet<CallKey>,
    /// The approvals of child sessions that are open, with the calls that they are below.
    of_children: BTreeMap<(SessionId, CallKey), CallKey>,
    /// Number of the client's answers whose calls have not been seen. `None`: it has given none to the run's own calls.
    unseen_answers: Option<usize>,
}

impl WaitingCalls {
    pub(super) fn new(known: KnownWaits) -> Self {
        let own = known.answered.iter().filter(|id| id.child.is_none()).count();
        let answers = own + known.answered_calls.len();
        Self {
            known,
            has_response_ended: false,
            calls: BTreeMap::new(),
            ended: BTreeSet::new(),
            of_children: BTreeMap::new(),
            unseen_answers: Some(answers).filter(|answers| *answers > 0),
        }
    }

    /// Returns whether the run goes on only when its client has acted.
    pub(super) fn wait_for_client(&self) -> bool {
        let has_child = |call: &CallKey| self.of_children.values().any(|parent| parent == call);
        let waits = |(call, state): (&CallKey, &CallState)| state.is_waiting() || has_child(call);
        self.has_response_ended
            && self.calls.iter().any(waits)
            && self.calls.iter().all(|call| waits(call) || *call.1 == CallState::Blocked)
    }

    /// Returns the calls that the client has to run.
    pub(super) fn of_client(&self) -> impl Iterator<Item = CallKey> {
        let by_client = self.calls.iter().filter(|(_, state)| **state == CallState::ByClient);
        by_client.map(|(call, _)| *call)
    }

    /// Returns whether the events have come to the place where the client has given its answers: all of them have been
    /// asked for.
    pub(super) fn are_at_answers(&self) -> bool {
        self.has_response_ended && self.unseen_answers == Some(0)
    }

    /// Applies an event of the run.
    pub(super) fn push(&mut self, published: &PublishedEvent) {
        let starts_anew = matches!(
            published.event,
            Event::TurnStarted
                | Event::AttemptStarted { .. }
                | Event::AttemptVoided { .. }
                | Event::TurnEnded { .. }
        );
        if starts_anew {
            self.has_response_ended = false;
            self.calls.clear();
            self.ended.clear();
            self.of_children.clear();
        } else if let Event::ResponseEnded { response } = &published.event {
            self.has_response_ended = true;
            for call in &response.calls {
                self.add(call.key);
            }
        } else if let Event::ApprovalAsked { request } = &published.event {
            let id = WaitId::of_request(request, None);
            let state = self.known.state(&id, published.id.map(|id| id.seq));
            self.set(id.key, state);
        } else if let Event::CallWaiting { call, by_client, waiting_for, .. } = &published.event {
            self.set_waiting(call.key, *by_client, *waiting_for);
        } else if let Event::CallStarted { call, .. } = &published.event {
            // The state of a call that asks a question is sent again to those that join.
            let state = self.calls.get_mut(&call.key);
            if let Some(state) = state.filter(|state| **state == CallState::Blocked) {
                *state = CallState::Runs;
            }
        } else if let Event::ApprovalGiven { call, .. } = &published.event {
            self.calls.entry(call.key).and_modify(|state| *state = CallState::Runs);
        } else if let Event::CallEnded { result, .. } = &published.event {
            self.end(result.call.key);
        } else if let Event::CallDiscarded { call, .. } = &published.event {
            self.end(call.key);
        } else if let Event::OfChild { call, event } = &published.event {
            self.push_child(*call, event);
        }
    }

    fn set_waiting(&mut self, call: CallKey, by_client: bool, waiting_for: WaitingFor) {
        let is_blocked = matches!(waiting_for, WaitingFor::Ticket | WaitingFor::Exclusive);
        if by_client && !self.known.answered_calls.contains(&call) {
            self.calls.insert(call, CallState::ByClient);
        } else if is_blocked && !self.calls.get(&call).is_some_and(|state| state.is_waiting()) {
            self.calls.insert(call, CallState::Blocked);
        }
    }

    fn push_child(&mut self, parent: CallKey, child: &ChildEvent) {
        if let Event::ApprovalAsked { request } = &child.event {
            let id = WaitId::of_request(request, Some(&child.session));
            if self.known.state(&id, None) == CallState::Waits {
                self.of_children.insert((child.session.clone(), id.key), parent);
            }
        } else if let Event::ApprovalGiven { call, .. } = &child.event {
            self.of_children.remove(&(child.session.clone(), call.key));
        } else if let Event::CallEnded { result, .. } = &child.event {
            self.of_children.remove(&(child.session.clone(), result.call.key));
        }
    }

    fn add(&mut self, key: CallKey) {
        if self.ended.contains(&key) || self.calls.contains_key(&key) {
            return;
        }
        let is_answered = self.known.answered_calls.contains(&key);
        self.set(key, if is_answered { CallState::Answered } else { CallState::Runs });
    }

    fn set(&mut self, key: CallKey, state: CallState) {
        if state == CallState::Answered {
            self.unseen_answers = self.unseen_answers.map(|answers| answers.saturating_sub(1));
        }
        self.calls.insert(key, state);
    }

    fn end(&mut self, key: CallKey) {
        self.calls.remove(&key);
        self.ended.insert(key);
        self.of_children.retain(|_, parent| *parent != key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_back() {
        for text in ["t1a1c0.ab", "t2a1c3.ab.after", "sub_1.t1a1c0.ab", "sub_1.t1a1c0.ab.after"] {
            let id: WaitId = text.parse().unwrap();
            assert_eq!(id.to_string(), text);
        }
        for text in ["", "t1a1c0", "t1a1c0.", "a.b.t1a1c0.ab", "s/.t1a1c0.ab", "x.ab"] {
            assert_eq!(text.parse::<WaitId>(), Err(()), "{text}");
        }
    }
}
