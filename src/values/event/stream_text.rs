//! The text of an event in event streams. It is made once for all watchers.

use std::fmt::Write as _;
use std::sync::OnceLock;

use super::PublishedEvent;

/// Bytes of an event's type and id, at most, with the names of the fields.
const FRAME_BYTES_MAX: usize = 128;

/// The text of an event for event streams, made on first use.
#[derive(Clone, Debug, Default)]
pub struct EventStreamText(OnceLock<Box<str>>);

impl PublishedEvent {
    /// Returns the text for a stream of Server-Sent Events: each public event with its type, its
    /// data and its id, if it has one. Empty for events that clients do not receive. All watchers
    /// share the text.
    pub fn stream_text(&self) -> &str {
        self.stream_text.0.get_or_init(|| {
            let events = self.views();
            let bytes =
                events.iter().flatten().map(|event| event.json.len() + FRAME_BYTES_MAX).sum();
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
        })
    }
}
