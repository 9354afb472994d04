//! An event as it is written to event streams: once, however many watch.

use std::fmt::Write as _;
use std::sync::OnceLock;

use super::PublishedEvent;

/// The text of an event for event streams, once somebody has asked for it.
#[derive(Clone, Debug, Default)]
pub struct EventStreamText(OnceLock<Box<str>>);

impl PublishedEvent {
    /// What a stream of Server-Sent Events holds of it: each public event with its type, its data
    /// and, where it has one, its id; empty for what concerns only the host. It is made once and
    /// shared by all who watch.
    pub fn stream_text(&self) -> &str {
        self.stream_text.0.get_or_init(|| {
            let mut text = String::new();
            for event in self.public() {
                // Writing to a string cannot fail.
                let _ = match self.id.filter(|_| !event.is_state()) {
                    Some(id) => writeln!(text, "event: {}\nid: {id}", event.kind),
                    None => writeln!(text, "event: {}", event.kind),
                };
                let _ = write!(text, "data: {}\n\n", event.json);
            }
            text.into_boxed_str()
        })
    }
}
