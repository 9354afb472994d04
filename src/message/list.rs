//! A shared list of messages.

use std::ops::Deref;
use std::sync::Arc;

use serde::Serialize;

use super::Message;

/// A list of messages. Cloning shares it: a request holds the history's list at no cost. Changing a
/// shared list first copies its pointers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MessageList(Arc<Vec<Arc<Message>>>);

impl MessageList {
    /// Appends a message.
    pub fn push(&mut self, message: Message) {
        Arc::make_mut(&mut self.0).push(Arc::new(message));
    }

    /// Returns a message for changes, or `None` if the index is out of range.
    #[must_use]
    pub fn get_mut(&mut self, place: usize) -> Option<&mut Message> {
        Arc::make_mut(&mut self.0).get_mut(place).map(Arc::make_mut)
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

    fn said(count: usize) -> MessageList {
        (0..count).map(|at| Arc::new(Message::User { content: at.to_string().into() })).collect()
    }

    #[test]
    fn a_copy_does_not_change_with_the_original() {
        let mut list = said(2);
        let before = list.clone();
        list.push(Message::User { content: "2".into() });
        assert!(matches!(list.get_mut(0), Some(Message::User { .. })));
        assert_eq!((before, list), (said(2), said(3)));
    }

    #[test]
    fn sharing_and_appending_cost_the_same_for_long_lists() {
        let costs = [10, 1_000].map(|count| {
            let mut list = said(count);
            // Room for the next ones is made now and then.
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
