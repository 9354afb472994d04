//! The state that a subscriber needs when it joins during a run, and that the journal does not have: the text
//! and the open calls of the running attempt, a run that waits, and the pending approvals of child sessions.

use std::sync::Arc;

use callsheet_values::event::{Event, EventId, PublishedEvent, ServiceCallStatus};
use callsheet_values::record::{DisplayedText, RunningText};
use callsheet_values::types::{
    CallKey, RunId, Seq, SessionId, ToolCall, WaitPhase, floor_char_boundary,
};

/// The state after the last delivered event.
#[derive(Debug)]
pub(super) struct CatchUpState {
    /// The position after the last event.
    pub(super) delivered: EventId,
    /// The position after the last event that is the view of a record.
    pub(super) recorded: EventId,
    /// The first record of the last run, and the session's turn before it.
    pub(super) run_start: Option<(Seq, u32)>,
    /// The last event that is the view of a record.
    last_recorded: Option<LastRecordedEvent>,
    /// The running attempt's text and thinking, in order.
    pieces: Vec<DisplayedText>,
    /// True while a response is in progress. The journal has the text of the last one otherwise, unless its attempt
    /// has failed.
    is_responding: bool,
    /// The event of a run that waits before its first turn.
    run_waiting: Option<Arc<PublishedEvent>>,
    /// The calls without an outcome.
    open: Vec<DisplayedCall>,
    /// The pending approvals of child sessions, with the calls that they are below.
    children: Vec<ChildApproval>,
    /// The ended calls of the response in progress. No record has their arguments yet.
    ended: Vec<Arc<PublishedEvent>>,
}

#[derive(Debug)]
struct LastRecordedEvent {
    run: RunId,
    turn: u32,
    time: u64,
}

/// A call that was published and has no outcome.
#[derive(Debug)]
struct DisplayedCall {
    id: OpenCallId,
    /// Its last `tool_use` event.
    state: Arc<PublishedEvent>,
    /// Its last progress, if any.
    progress: Option<Arc<PublishedEvent>>,
}

/// An open approval of a child session.
#[derive(Debug)]
struct ChildApproval {
    /// The call of this session.
    call: CallKey,
    child: SessionId,
    /// The call in the child session, and the phase.
    asked: (CallKey, WaitPhase),
    event: Arc<PublishedEvent>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenCallId {
    /// A call that the host runs.
    Host(CallKey),
    /// A call that the service runs itself: its turn, attempt and position.
    Service(u32, u32, u32),
}

/// The update of an open call by an event.
enum CallUpdate {
    State(OpenCallId),
    Progress(OpenCallId),
    Closed(OpenCallId),
}

impl CatchUpState {
    /// Creates the state of a session that has no running attempt.
    pub(super) fn new(position: EventId) -> Self {
        Self {
            delivered: position,
            recorded: position,
            run_start: None,
            last_recorded: None,
            pieces: Vec::new(),
            is_responding: false,
            run_waiting: None,
            open: Vec::new(),
            children: Vec::new(),
            ended: Vec::new(),
        }
    }

    /// Appends text of the running attempt. `position` is the position after the text.
    pub(super) fn append_text(&mut self, position: EventId, is_thinking: bool, text: &str) {
        self.delivered = position;
        match self.pieces.last_mut() {
            Some(piece) if piece.is_thinking == is_thinking => piece.text.push_str(text),
            Some(_) | None => {
                self.pieces.push(DisplayedText { is_thinking, text: text.to_owned() });
            }
        }
    }

    /// Applies an event. Returns it for the subscribers, if there are any.
    pub(super) fn apply(
        &mut self,
        published: PublishedEvent,
        has_subscribers: bool,
    ) -> Option<Arc<PublishedEvent>> {
        match (published.id, published.event.text()) {
            (Some(id), Some((is_thinking, text))) => self.append_text(id, is_thinking, text),
            (Some(id), None) => self.apply_recorded(id, &published),
            (None, _) => {}
        }
        let update = call_update(&published.event);
        let ends_a_call = matches!(published.event, Event::CallEnded { .. });
        let is_ended_early = ends_a_call && self.is_responding;
        let waits = matches!(published.event, Event::RunWaiting { .. });
        self.close_child_approvals(&published.event);
        let is_asked = child_approval(&published.event).is_some();
        let is_kept = is_ended_early
            || waits
            || is_asked
            || matches!(update, Some(CallUpdate::State(_) | CallUpdate::Progress(_)));
        let event = (is_kept || has_subscribers).then(|| Arc::new(published));
        if waits {
            self.run_waiting.clone_from(&event);
        }
        if let Some(event) = event.as_ref().filter(|_| is_asked) {
            self.add_child_approval(event);
        }
        self.ended.extend(event.iter().filter(|_| is_ended_early).map(Arc::clone));
        match (update, &event) {
            (Some(CallUpdate::State(id)), Some(event)) => self.set_state(id, event),
            (Some(CallUpdate::Progress(id)), Some(event)) => {
                if let Some(call) = self.open.iter_mut().find(|call| call.id == id) {
                    call.progress = Some(Arc::clone(event));
                }
            }
            (Some(CallUpdate::Closed(id)), _) => self.open.retain(|call| call.id != id),
            (None, _) | (Some(CallUpdate::State(_) | CallUpdate::Progress(_)), None) => {}
        }
        event.filter(|_| has_subscribers)
    }

    fn apply_recorded(&mut self, id: EventId, published: &PublishedEvent) {
        // The text is in the journal after the response has ended, and void after its attempt was
        // replaced.
        let ends_response = matches!(published.event, Event::ResponseEnded { .. });
        if ends_response || id.bytes < self.delivered.bytes {
            self.pieces = Vec::new();
            self.ended = Vec::new();
        }
        self.is_responding &= !ends_response;
        self.delivered = id;
        self.recorded = id;
        let (run, turn, time) = (published.run.clone(), published.turn, published.timestamp_ms);
        let event = &published.event;
        // The events of a run that was reopened need its first record.
        if matches!(event, Event::RunStarted { reopened: false, .. }) {
            self.run_start = Some((id.seq, turn));
        }
        // Open calls belong to one attempt of one turn.
        if matches!(
            event,
            Event::RunStarted { .. }
                | Event::TurnStarted
                | Event::AttemptStarted { .. }
                | Event::AttemptVoided { .. }
                | Event::TurnEnded { .. }
                | Event::RunEnded { .. }
        ) {
            self.run_waiting = None;
            self.open.clear();
            self.children.clear();
            self.ended.clear();
            self.is_responding = matches!(event, Event::TurnStarted | Event::AttemptStarted { .. });
        }
        self.last_recorded = Some(LastRecordedEvent { run, turn, time });
    }

    fn add_child_approval(&mut self, event: &Arc<PublishedEvent>) {
        let Some((call, child, asked)) = child_approval(&event.event) else { return };
        let (child, event) = (child.clone(), Arc::clone(event));
        self.children.retain(|open| open.child != child || open.asked != asked);
        self.children.push(ChildApproval { call, child, asked, event });
    }

    /// Removes the approvals of child sessions that the event closes.
    fn close_child_approvals(&mut self, event: &Event) {
        if self.children.is_empty() {
            return;
        }
        if let Event::CallEnded { result, .. } = event {
            self.children.retain(|open| open.call != result.call.key);
        }
        let Event::OfChild { event: child, .. } = event else { return };
        if let Event::ApprovalGiven { call, phase, .. } = &child.event {
            let given = (call.key, *phase);
            self.children.retain(|open| open.child != child.session || open.asked != given);
        } else if let Event::CallEnded { result, .. } = &child.event {
            let key = result.call.key;
            self.children.retain(|open| open.child != child.session || open.asked.0 != key);
        }
    }

    fn set_state(&mut self, id: OpenCallId, event: &Arc<PublishedEvent>) {
        match self.open.iter_mut().find(|call| call.id == id) {
            Some(call) => call.state = Arc::clone(event),
            None => self.open.push(DisplayedCall { id, state: Arc::clone(event), progress: None }),
        }
    }

    /// Returns whether there is text of the last attempt.
    pub(super) fn has_text(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// Returns the text of the running attempt after its first `skip` bytes. `None` if no event
    /// of a record was delivered.
    pub(super) fn running_text(&self, skip: u64) -> Option<RunningText> {
        let LastRecordedEvent { run, turn, time } = self.last_recorded.as_ref()?;
        let mut skip = usize::try_from(skip).unwrap_or(usize::MAX);
        let mut pieces = Vec::new();
        for DisplayedText { is_thinking, text } in &self.pieces {
            let start = floor_char_boundary(text, skip);
            skip = skip.saturating_sub(text.len());
            if let Some(text) = text.get(start..).filter(|text| !text.is_empty()) {
                pieces.push(DisplayedText { is_thinking: *is_thinking, text: text.to_owned() });
            }
        }
        let bytes: u64 = pieces.iter().map(|piece| piece.text.len() as u64).sum();
        Some(RunningText {
            run: run.clone(),
            turn: *turn,
            seq: self.recorded.seq,
            time: *time,
            from: self.delivered.bytes.saturating_sub(bytes),
            pieces,
            calls: self.ended.iter().filter_map(|ended| ended_call(&ended.event)).collect(),
        })
    }

    /// Returns the event of a run that waits, the last state and progress of each open call, in the order of
    /// detection, and the pending approvals of child sessions.
    pub(super) fn states(&self) -> Vec<Arc<PublishedEvent>> {
        let calls = self.open.iter().flat_map(|call| [Some(&call.state), call.progress.as_ref()]);
        let states = [self.run_waiting.as_ref()].into_iter().chain(calls);
        let approvals = self.children.iter().map(|open| &open.event);
        states.flatten().chain(approvals).map(Arc::clone).collect()
    }
}

/// Returns the approval that an event of a child session requests: the call of this session, the child session, and
/// the call there.
fn child_approval(event: &Event) -> Option<(CallKey, &SessionId, (CallKey, WaitPhase))> {
    let Event::OfChild { call, event } = event else { return None };
    let Event::ApprovalAsked { request } = &event.event else { return None };
    Some((*call, &event.session, (request.call.key, request.phase)))
}

fn ended_call(event: &Event) -> Option<ToolCall> {
    let Event::CallEnded { result, .. } = event else { return None };
    Some(result.call.clone())
}

fn call_update(event: &Event) -> Option<CallUpdate> {
    if let Event::CallOpened { call }
    | Event::CallWaiting { call, .. }
    | Event::CallStarted { call, .. } = event
    {
        return Some(CallUpdate::State(OpenCallId::Host(call.key)));
    }
    if let Event::CallProgressed { key, .. } = event {
        return Some(CallUpdate::Progress(OpenCallId::Host(*key)));
    }
    if let Event::CallDiscarded { call, .. } = event {
        return Some(CallUpdate::Closed(OpenCallId::Host(call.key)));
    }
    if let Event::CallEnded { result, .. } = event {
        return Some(CallUpdate::Closed(OpenCallId::Host(result.call.key)));
    }
    let Event::ServiceCallChanged { call, status } = event else { return None };
    let id = OpenCallId::Service(call.turn, call.attempt, call.position);
    Some(match status {
        ServiceCallStatus::Running => CallUpdate::State(id),
        ServiceCallStatus::Finished | ServiceCallStatus::Discarded => CallUpdate::Closed(id),
    })
}
