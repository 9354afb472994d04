//! What a run waits for that its client must do: decide about a call, answer a question, run a call itself. An answer
//! ends there, and the next request of the client goes on behind it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use callsheet_host::runtime::{PendingApproval, SessionSnapshot};
use callsheet_values::event::{ApprovalRequest, ChildEvent, Event, PublishedEvent, WaitingFor};
use callsheet_values::types::{CallKey, Execution, Seq, SessionId, WaitPhase};

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
        call_id(self.child.as_ref(), self.key)
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
        let after = text.strip_suffix(".after");
        let (call, sha) = after.unwrap_or(text).rsplit_once('.').ok_or(())?;
        let (child, key) = match call.rsplit_once('.') {
            Some((child, key)) => (Some(SessionId::parse(child).map_err(|_| ())?), key),
            None => (None, call),
        };
        let (key, arguments_sha256) = (key.parse().map_err(|_| ())?, sha.to_owned());
        let id = Self { child, key, is_after: after.is_some(), arguments_sha256 };
        (!sha.is_empty()).then_some(id).ok_or(())
    }
}

/// Returns the id of a call for clients. `child`: its session, if it is one of a child session.
pub(super) fn call_id(child: Option<&SessionId>, key: CallKey) -> String {
    child.map_or_else(|| key.to_string(), |child| format!("{child}.{key}"))
}

/// What is known about the waits of a run before its events are read.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownWaits {
    /// The approvals and questions that the client has answered in this message: of this session now or before, of child
    /// sessions now.
    pub(super) answered: BTreeSet<WaitId>,
    /// The calls that the client has run in this message.
    pub(super) answered_calls: BTreeSet<CallKey>,
    /// Those that were asked up to `upto` and are open.
    pub(super) open: BTreeSet<WaitId>,
    /// The last record of the session.
    pub(super) upto: Seq,
}

impl KnownWaits {
    /// Returns what the state of a session tells about its run in progress.
    pub(super) fn of(snapshot: &SessionSnapshot) -> Self {
        let approvals = snapshot.current_run.iter().flat_map(|run| &run.approvals);
        let open = approvals.filter_map(WaitId::of_pending).collect();
        Self { open, upto: snapshot.seq, ..Self::default() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallState {
    /// It runs, or waits for the client's decision.
    Open,
    /// The client has to run it.
    ByClient,
    /// An earlier call must go on first.
    Blocked,
}

/// An approval or a question that waits for the client.
#[derive(Debug)]
struct OpenRequest {
    id: WaitId,
    request: ApprovalRequest,
    /// The run's own call: the one that waits, or the one that the child session is below.
    call: CallKey,
}

/// The calls of a turn that have not ended, and what they wait for.
#[derive(Debug)]
pub(super) struct WaitingCalls {
    known: KnownWaits,
    /// Calls of a response run concurrently: each one gets its ticket without the end of another one.
    is_parallel: bool,
    has_response_ended: bool,
    calls: BTreeMap<CallKey, CallState>,
    ended: BTreeSet<CallKey>,
    /// The approvals and questions that are open, by the ids of their calls.
    requests: BTreeMap<String, OpenRequest>,
    /// Number of the client's answers whose calls have not been seen. `None`: it has given none to the run's own calls.
    unseen_answers: Option<usize>,
}

impl WaitingCalls {
    pub(super) fn new(known: KnownWaits) -> Self {
        let own = known.answered.iter().filter(|id| id.child.is_none()).count();
        let answers = own + known.answered_calls.len();
        Self {
            known,
            is_parallel: false,
            has_response_ended: false,
            calls: BTreeMap::new(),
            ended: BTreeSet::new(),
            requests: BTreeMap::new(),
            unseen_answers: Some(answers).filter(|answers| *answers > 0),
        }
    }

    /// Returns whether the run goes on only when its client has acted.
    pub(super) fn wait_for_client(&self) -> bool {
        let waits = |(call, state): (&CallKey, &CallState)| {
            *state == CallState::ByClient
                || self.requests.values().any(|request| request.call == *call)
        };
        self.has_response_ended
            && self.calls.iter().any(waits)
            && self.calls.iter().all(|call| waits(call) || *call.1 == CallState::Blocked)
    }

    /// Returns the calls that the client has to run.
    pub(super) fn of_client(&self) -> impl Iterator<Item = CallKey> {
        let by_client = self.calls.iter().filter(|(_, state)| **state == CallState::ByClient);
        by_client.map(|(call, _)| *call)
    }

    /// Returns the approvals and questions that are open, of the calls of this session and of its children.
    pub(super) fn requests(&self) -> impl Iterator<Item = (&WaitId, &ApprovalRequest)> {
        self.requests.values().map(|OpenRequest { id, request, .. }| (id, request))
    }

    /// Returns whether the events have come to the place where the client has given its answers: all of them have been
    /// asked for.
    pub(super) fn are_at_answers(&self) -> bool {
        self.has_response_ended && self.unseen_answers == Some(0)
    }

    /// Applies an event of the run.
    pub(super) fn push(&mut self, published: &PublishedEvent) {
        let event = &published.event;
        let starts_anew = matches!(
            event,
            Event::TurnStarted
                | Event::AttemptStarted { .. }
                | Event::AttemptVoided { .. }
                | Event::TurnEnded { .. }
        );
        if starts_anew {
            self.has_response_ended = false;
            self.calls.clear();
            self.ended.clear();
            self.requests.clear();
        } else if let Event::RunStarted { execution, .. } = event {
            self.is_parallel = *execution != Execution::Sequential;
        } else if let Event::ResponseEnded { response } = event {
            self.has_response_ended = true;
            response.calls.iter().for_each(|call| self.add(call.key));
        } else if let Event::ApprovalAsked { request } = event {
            self.calls.insert(request.call.key, CallState::Open);
            self.ask(request, published.id.map(|id| id.seq), None);
        } else if let Event::CallWaiting { call, by_client, waiting_for, .. } = event {
            self.set_waiting(call.key, *by_client, *waiting_for);
        } else if let Event::CallStarted { call, .. } = event {
            if let Some(state) = self.calls.get_mut(&call.key)
                && *state == CallState::Blocked
            {
                *state = CallState::Open;
            }
        } else if let Event::ApprovalGiven { call, .. } = event {
            self.requests.remove(&call.key.to_string());
            self.calls.entry(call.key).and_modify(|state| *state = CallState::Open);
        } else if let Event::CallEnded { result, .. } = event {
            self.end(result.call.key);
        } else if let Event::CallDiscarded { call, .. } = event {
            self.end(call.key);
        } else if let Event::OfChild { call, event } = event {
            self.push_child(*call, event);
        }
    }

    fn add(&mut self, key: CallKey) {
        if !self.ended.contains(&key) && !self.calls.contains_key(&key) {
            self.calls.insert(key, CallState::Open);
            self.see_answer(self.known.answered_calls.contains(&key));
        }
    }

    fn see_answer(&mut self, is_answer: bool) {
        let unseen = |answers: usize| answers.saturating_sub(is_answer.into());
        self.unseen_answers = self.unseen_answers.map(unseen);
    }

    /// Adds an approval or a question. `seq`: the record that has asked. `child`: the session of the call, and the call
    /// that it is below, unless it is one of this session.
    fn ask(
        &mut self,
        request: &ApprovalRequest,
        seq: Option<Seq>,
        child: Option<(&SessionId, CallKey)>,
    ) {
        let id = WaitId::of_request(request, child.map(|(session, _)| session));
        let is_past = seq.is_some_and(|seq| seq <= self.known.upto);
        self.requests.remove(&id.call_id());
        if self.known.answered.contains(&id) {
            self.see_answer(child.is_none());
        } else if !is_past || self.known.open.contains(&id) {
            let call = child.map_or(id.key, |(_, parent)| parent);
            let request = OpenRequest { id: id.clone(), request: request.clone(), call };
            self.requests.insert(id.call_id(), request);
        }
    }

    fn set_waiting(&mut self, call: CallKey, by_client: bool, waiting_for: WaitingFor) {
        if by_client && !self.known.answered_calls.contains(&call) {
            self.requests.remove(&call.to_string());
            self.calls.insert(call, CallState::ByClient);
        } else if self.calls.get(&call) != Some(&CallState::ByClient)
            && (waiting_for == WaitingFor::Exclusive
                || waiting_for == WaitingFor::Ticket && !self.is_parallel)
        {
            self.calls.insert(call, CallState::Blocked);
        }
    }

    fn push_child(&mut self, parent: CallKey, child: &ChildEvent) {
        if let Event::ApprovalAsked { request } = &child.event {
            self.ask(request, None, Some((&child.session, parent)));
        } else if let Event::ApprovalGiven { call, .. } = &child.event {
            self.requests.remove(&call_id(Some(&child.session), call.key));
        } else if let Event::CallEnded { result, .. } = &child.event {
            self.requests.remove(&call_id(Some(&child.session), result.call.key));
        }
    }

    fn end(&mut self, key: CallKey) {
        self.calls.remove(&key);
        self.ended.insert(key);
        self.requests.retain(|_, request| request.call != key);
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
