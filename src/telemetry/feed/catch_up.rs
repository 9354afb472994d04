//! What was shown of a session, as far as a watcher who comes in the middle has to know.

use std::sync::Arc;

use crate::event::{Event, EventId, PublishedEvent, ServiceCallStatus};
use crate::record::{DisplayedText, RunningText};
use crate::types::{CallKey, RunId, Seq, ToolCall};

/// The place that watchers have come to, the running attempt's text, and its open calls.
#[derive(Debug)]
pub(super) struct CatchUpState {
    /// Behind the last event that is the view of a record.
    pub(super) recorded: EventId,
    /// The last run's first record, and the session's turn by then.
    pub(super) run_began: Option<(Seq, u32)>,
    /// Of the last event of a record.
    last: Option<LastRecordedEvent>,
    /// The running attempt's text and thinking, in order.
    pieces: Vec<DisplayedText>,
    /// How many bytes they have.
    bytes: u64,
    /// A response still comes.
    asks: bool,
    /// The response has ended: with the next record its text stands in the journal.
    is_over: bool,
    open: Vec<DisplayedCall>,
    /// The ends of calls of a response that still comes: what they were asked stands in no record.
    ended: Vec<Arc<PublishedEvent>>,
}

#[derive(Debug)]
struct LastRecordedEvent {
    run: RunId,
    turn: u32,
    time: u64,
}

/// A call that has begun to be shown and has no outcome.
#[derive(Debug)]
struct DisplayedCall {
    id: OpenCallId,
    state: Arc<PublishedEvent>,
    progress: Option<Arc<PublishedEvent>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenCallId {
    Ours(CallKey),
    /// Of turn and attempt, by its place.
    Service(u32, u32, u32),
}

/// What an event says of an open call.
enum CallUpdate {
    FeedState(OpenCallId),
    FeedPosition(OpenCallId),
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

    /// Behind what was shown last.
    pub(super) fn place(&self) -> EventId {
        EventId { seq: self.recorded.seq, bytes: self.bytes }
    }

    /// More of the running attempt's text.
    pub(super) fn take_text(&mut self, is_thinking: bool, text: &str) {
        self.bytes = self.bytes.saturating_add(text.len() as u64);
        match self.pieces.last_mut() {
            Some(piece) if piece.is_thinking == is_thinking => piece.text.push_str(text),
            Some(_) | None => {
                self.pieces.push(DisplayedText { is_thinking, text: text.to_owned() });
            }
        }
    }

    /// Takes in what is shown next, and gives it back to be handed on, unless nobody is there
    /// (`alone`).
    pub(super) fn take(
        &mut self,
        published: PublishedEvent,
        alone: bool,
    ) -> Option<Arc<PublishedEvent>> {
        match (published.id, published.event.text()) {
            (_, Some((is_thinking, text))) => self.take_text(is_thinking, text),
            (Some(id), None) => self.take_recorded(id, &published),
            (None, None) => {
                if matches!(published.event, Event::ResponseEnded { .. }) {
                    self.is_over = true;
                    self.asks = false;
                }
            }
        }
        let told = told(&published.event);
        let ends = self.asks && matches!(published.event, Event::CallEnded { .. });
        let is_kept =
            ends || matches!(told, Some(CallUpdate::FeedState(_) | CallUpdate::FeedPosition(_)));
        let event = (is_kept || !alone).then(|| Arc::new(published));
        self.ended.extend(event.iter().filter(|_| ends).map(Arc::clone));
        match (told, &event) {
            (Some(CallUpdate::FeedState(id)), Some(event)) => self.take_state(id, event),
            (Some(CallUpdate::FeedPosition(id)), Some(event)) => {
                if let Some(call) = self.open.iter_mut().find(|call| call.id == id) {
                    call.progress = Some(Arc::clone(event));
                }
            }
            (Some(CallUpdate::Closed(id)), _) => self.open.retain(|call| call.id != id),
            (None, _) | (Some(CallUpdate::FeedState(_) | CallUpdate::FeedPosition(_)), None) => {}
        }
        event.filter(|_| !alone)
    }

    fn take_recorded(&mut self, id: EventId, published: &PublishedEvent) {
        // An attempt whose text counts no more, or stands in the journal by now.
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
        // What runs is of a turn, and of one attempt of it.
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

    fn take_state(&mut self, id: OpenCallId, event: &Arc<PublishedEvent>) {
        match self.open.iter_mut().find(|call| call.id == id) {
            Some(call) => call.state = Arc::clone(event),
            None => self.open.push(DisplayedCall { id, state: Arc::clone(event), progress: None }),
        }
    }

    /// The running attempt's text behind so many bytes; none where nothing has been shown.
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

    /// The last states of each open call, in the order in which they began.
    pub(super) fn open_calls(&self) -> Vec<Arc<PublishedEvent>> {
        let states = self.open.iter().flat_map(|call| [Some(&call.state), call.progress.as_ref()]);
        states.flatten().map(Arc::clone).collect()
    }
}

fn call(event: &Event) -> Option<ToolCall> {
    let Event::CallEnded { result, .. } = event else { return None };
    Some(result.call.clone())
}

fn told(event: &Event) -> Option<CallUpdate> {
    if let Event::CallOpened { call }
    | Event::CallWaiting { call, .. }
    | Event::CallStarted { call, .. } = event
    {
        return Some(CallUpdate::FeedState(OpenCallId::Ours(call.key)));
    }
    if let Event::CallProgressed { key, .. } = event {
        return Some(CallUpdate::FeedPosition(OpenCallId::Ours(*key)));
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
        ServiceCallStatus::Running => CallUpdate::FeedState(id),
        ServiceCallStatus::Finished | ServiceCallStatus::Discarded => CallUpdate::Closed(id),
    })
}
