//! The text of an event in event streams. It is made once for all watchers.

use std::fmt::Write as _;
use std::sync::OnceLock;

use super::{EventForm, PublishedEvent};

/// Bytes of an event's type and id, at most, with the names of the fields.
const FRAME_BYTES_MAX: usize = 128;

/// The text of an event for event streams, made on first use in each form.
#[derive(Clone, Debug, Default)]
pub struct EventStreamText {
    short: OnceLock<Box<str>>,
    /// Boxed, because few streams and few events have a text of their own in this form.
    full: OnceLock<Box<Box<str>>>,
}

impl PublishedEvent {
    /// Returns the text for a stream of Server-Sent Events: each public event with its type, its
    /// data and its id, if it has one. Empty for events that clients do not receive. All watchers
    /// share the text. Both forms share it, too, if they are equal.
    pub fn stream_text(&self, form: EventForm) -> &str {
        let texts = &self.stream_text;
        match form {
            EventForm::Full if self.event.differs_in_full() => {
                texts.full.get_or_init(|| Box::new(self.make_stream_text(form)))
            }
            EventForm::Full | EventForm::Short => {
                texts.short.get_or_init(|| self.make_stream_text(EventForm::Short))
            }
        }
    }

    fn make_stream_text(&self, form: EventForm) -> Box<str> {
        let events = self.views(form);
        let bytes = events.iter().flatten().map(|event| event.json.len() + FRAME_BYTES_MAX).sum();
        let mut text = String::with_capacity(bytes);
        for event in events.into_iter().flatten() {
            // Writing to a string cannot fail.
            let _ = match self.id.filter(|_| event.has_id()) {
                Some(id) => writeln!(text, "event: {}\nid: {id}", event.kind),
                None => writeln!(text, "event: {}", event.kind),
            };
            let _ = write!(text, "data: {}\n\n", event.json);
        }
        text.into_boxed_str()
    }
}
