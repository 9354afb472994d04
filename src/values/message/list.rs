//! A list of messages that is shared without copying.

use std::ops::Deref;
use std::sync::Arc;

use serde::Serialize;

use super::Message;

/// Messages in order. Cloning shares the list, so a request can hold a long history at no cost.
/// Changing a shared list first copies its pointers, and of its messages at most the one that is modified.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct MessageList(Arc<Vec<Arc<Message>>>);

impl MessageList {
    /// Appends a message.
    pub fn push(&mut self, message: Message) {
        Arc::make_mut(&mut self.0).push(Arc::new(message));
    }

    /// Returns a message for modification.
    #[must_use]
    pub fn get_mut(&mut self, position: usize) -> Option<&mut Message> {
        Arc::make_mut(&mut self.0).get_mut(position).map(Arc::make_mut)
    }
}

impl Deref for MessageList {
    type Target = [Arc<Message>];

    fn deref(&self) -> &[Arc<Message>] {
        &self.0
    }
}

impl From<Vec<Arc<Message>>> for MessageList {
    fn from(messages: Vec<Arc<Message>>) -> Self {
        Self(Arc::new(messages))
    }
}

impl From<Vec<Message>> for MessageList {
    fn from(messages: Vec<Message>) -> Self {
        messages.into_iter().map(Arc::new).collect()
    }
}

impl<const N: usize> From<[Arc<Message>; N]> for MessageList {
    fn from(messages: [Arc<Message>; N]) -> Self {
        Self::from(Vec::from(messages))
    }
}

impl FromIterator<Arc<Message>> for MessageList {
    fn from_iter<I: IntoIterator<Item = Arc<Message>>>(messages: I) -> Self {
        Self::from(Vec::from_iter(messages))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(count: usize) -> MessageList {
        (0..count).map(|at| Arc::new(Message::User { content: at.to_string().into() })).collect()
    }

    #[test]
    fn a_clone_is_independent_of_later_changes() {
        let mut list = messages(2);
        let before = list.clone();
        list.push(Message::User { content: "2".into() });
        assert!(matches!(list.get_mut(0), Some(Message::User { .. })));
        assert_eq!((before, list), (messages(2), messages(3)));
    }

    #[test]
    fn the_cost_of_sharing_and_appending_does_not_depend_on_the_length() {
        let costs = [10, 1_000].map(|count| {
            let mut list = messages(count);
            // The first addition may grow the list.
            list.push(Message::User { content: "room".into() });
            allocation_counter::measure(|| {
                let shared = list.clone();
                drop(shared);
                list.push(Message::User { content: "more".into() });
            })
            .bytes_total
        });
        assert_eq!(costs[0], costs[1]);
    }
}
