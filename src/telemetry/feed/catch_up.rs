//! The state that a subscriber needs when it joins during an attempt.

use std::sync::Arc;

use crate::event::{Event, EventId, PublishedEvent, ServiceCallStatus};
use crate::record::{DisplayedText, RunningText};
use crate::types::{CallKey, RunId, Seq, ToolCall};

/// The current position, the text of the running attempt, and its open calls.
#[derive(Debug)]
pub(super) struct CatchUpState {
    /// The position after the last event that is the view of a record.
    pub(super) recorded: EventId,
    /// The first record of the last run, and the session's turn at that time.
    pub(super) run_began: Option<(Seq, u32)>,
    /// The last event that is the view of a record.
    last: Option<LastRecordedEvent>,
    /// The running attempt's text and thinking, in order.
    pieces: Vec<DisplayedText>,
    /// The size of the text in bytes.
    bytes: u64,
    /// True while a response is in progress.
    asks: bool,
    /// True if the response has ended. The next record then contains its text.
    is_over: bool,
    open: Vec<DisplayedCall>,
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
    state: Arc<PublishedEvent>,
    progress: Option<Arc<PublishedEvent>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenCallId {
    Ours(CallKey),
    /// Turn, attempt and position of a call of the service.
    Service(u32, u32, u32),
}

/// The update of an open call by an event.
enum CallUpdate {
    State(OpenCallId),
    Progress(OpenCallId),
    Closed(OpenCallId),
}

impl CatchUpState {
    pub(super) fn at(at: EventId) -> Self {
        Self {
            recorded: at,
            run_began: None,
            last: None,
            pieces: Vec::new(),
            bytes: at.bytes,
            asks: false,
            is_over: false,
            open: Vec::new(),
            ended: Vec::new(),
        }
    }

    /// Returns the position after the last event.
    pub(super) fn position(&self) -> EventId {
        EventId { seq: self.recorded.seq, bytes: self.bytes }
    }

    /// Appends text of the running attempt.
    pub(super) fn append_text(&mut self, is_thinking: bool, text: &str) {
        self.bytes = self.bytes.saturating_add(text.len() as u64);
        match self.pieces.last_mut() {
            Some(piece) if piece.is_thinking == is_thinking => piece.text.push_str(text),
            Some(_) | None => {
                self.pieces.push(DisplayedText { is_thinking, text: text.to_owned() });
            }
        }
    }

    /// Applies an event and returns it for the subscribers, unless there are none (`alone`).
    pub(super) fn apply(
        &mut self,
        published: PublishedEvent,
        alone: bool,
    ) -> Option<Arc<PublishedEvent>> {
        match (published.id, published.event.text()) {
            (_, Some((is_thinking, text))) => self.append_text(is_thinking, text),
            (Some(id), None) => self.apply_recorded(id, &published),
            (None, None) => {
                if matches!(published.event, Event::ResponseEnded { .. }) {
                    self.is_over = true;
                    self.asks = false;
                }
            }
        }
        let update = call_update(&published.event);
        let ends = self.asks && matches!(published.event, Event::CallEnded { .. });
        let is_kept =
            ends || matches!(update, Some(CallUpdate::State(_) | CallUpdate::Progress(_)));
        let event = (is_kept || !alone).then(|| Arc::new(published));
        self.ended.extend(event.iter().filter(|_| ends).map(Arc::clone));
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
        event.filter(|_| !alone)
    }

    fn apply_recorded(&mut self, id: EventId, published: &PublishedEvent) {
        // The text is void, or the journal has it.
        if self.is_over || id.bytes < self.bytes {
            self.pieces = Vec::new();
            self.ended = Vec::new();
            self.is_over = false;
        }
        self.bytes = id.bytes;
        self.recorded = id;
        let (run, turn, time) = (published.run.clone(), published.turn, published.timestamp_ms);
        let event = &published.event;
        if matches!(event, Event::RunStarted { .. }) {
            self.run_began = Some((id.seq, turn));
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
            self.open.clear();
            self.ended.clear();
            self.asks = matches!(event, Event::TurnStarted | Event::AttemptStarted { .. });
        }
        self.last = Some(LastRecordedEvent { run, turn, time });
    }

    fn set_state(&mut self, id: OpenCallId, event: &Arc<PublishedEvent>) {
        match self.open.iter_mut().find(|call| call.id == id) {
            Some(call) => call.state = Arc::clone(event),
            None => self.open.push(DisplayedCall { id, state: Arc::clone(event), progress: None }),
        }
    }

    /// Returns the text of the running attempt after `from` bytes. `None` if no event was
    /// published.
    pub(super) fn running(&self, from: u64) -> Option<RunningText> {
        let LastRecordedEvent { run, turn, time } = self.last.as_ref()?;
        let mut skip = usize::try_from(from).unwrap_or(usize::MAX);
        let mut pieces = Vec::new();
        for DisplayedText { is_thinking, text } in &self.pieces {
            let cut = text.floor_char_boundary(skip);
            skip = skip.saturating_sub(text.len());
            if let Some(rest) = text.get(cut..).filter(|rest| !rest.is_empty()) {
                pieces.push(DisplayedText { is_thinking: *is_thinking, text: rest.to_owned() });
            }
        }
        let left: u64 = pieces.iter().map(|piece| piece.text.len() as u64).sum();
        Some(RunningText {
            run: run.clone(),
            turn: *turn,
            seq: self.recorded.seq,
            time: *time,
            from: self.bytes.saturating_sub(left),
            pieces,
            calls: self.ended.iter().filter_map(|ended| call(&ended.event)).collect(),
        })
    }

    /// Returns the last states of each open call, in the order of their start.
    pub(super) fn open_calls(&self) -> Vec<Arc<PublishedEvent>> {
        let states = self.open.iter().flat_map(|call| [Some(&call.state), call.progress.as_ref()]);
        states.flatten().map(Arc::clone).collect()
    }
}

fn call(event: &Event) -> Option<ToolCall> {
    let Event::CallEnded { result, .. } = event else { return None };
    Some(result.call.clone())
}

fn call_update(event: &Event) -> Option<CallUpdate> {
    if let Event::CallOpened { call }
    | Event::CallWaiting { call, .. }
    | Event::CallStarted { call, .. } = event
    {
        return Some(CallUpdate::State(OpenCallId::Ours(call.key)));
    }
    if let Event::CallProgressed { key, .. } = event {
        return Some(CallUpdate::Progress(OpenCallId::Ours(*key)));
    }
    if let Event::CallDiscarded { call, .. } = event {
        return Some(CallUpdate::Closed(OpenCallId::Ours(call.key)));
    }
    if let Event::CallEnded { result, .. } = event {
        return Some(CallUpdate::Closed(OpenCallId::Ours(result.call.key)));
    }
    let Event::ServiceCallChanged { call, status } = event else { return None };
    let id = OpenCallId::Service(call.turn, call.attempt, call.place);
    Some(match status {
        ServiceCallStatus::Running => CallUpdate::State(id),
        ServiceCallStatus::Finished | ServiceCallStatus::Discarded => CallUpdate::Closed(id),
    })
}
