//! The contents that later requests of a session do not contain. `exclusion` decides about them.

use std::collections::BTreeSet;
use std::sync::Arc;

use callsheet_values::message::Message;
use callsheet_values::record::Seq;
use callsheet_values::types::Content;

/// The content that is left out, and the inputs that may be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Exclusions {
    /// The users' inputs by the positions of their records.
    inputs: Vec<(Seq, Content)>,
    pub(super) replaced: Vec<ReplacedMessage>,
}

/// A message that is left out, or whose images are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ReplacedMessage {
    /// The message that stands in the history.
    pub(super) line: Arc<Message>,
    /// The message before.
    pub(super) original: Arc<Message>,
    /// Only its images are left out.
    pub(super) images: bool,
    /// It comes back if the turn ends without a response.
    pub(super) is_tentative: bool,
}

impl Exclusions {
    /// Notes the position of an input. The message of the history shares its content.
    pub(super) fn add_input(&mut self, seq: Seq, input: &Content) {
        self.inputs.push((seq, input.clone()));
    }

    pub(super) fn find(&self, message: &Arc<Message>) -> Option<&ReplacedMessage> {
        self.replaced.iter().find(|replaced| Arc::ptr_eq(&replaced.line, message))
    }

    /// Returns whether the message is the line of one that is left out as a whole.
    pub(super) fn has_whole(&self, message: &Arc<Message>) -> bool {
        self.find(message).is_some_and(|replaced| !replaced.images)
    }

    /// Returns the message as it was before anything of it was left out.
    pub(super) fn original<'a>(&'a self, message: &'a Arc<Message>) -> &'a Arc<Message> {
        self.find(message).map_or(message, |replaced| &replaced.original)
    }

    /// Returns the position of the record of a message that is an input.
    pub(super) fn seq_of(&self, message: &Arc<Message>) -> Option<Seq> {
        let Message::User { content } = &**self.original(message) else { return None };
        let mut inputs = self.inputs.iter().rev();
        inputs.find(|(_, input)| input.is_clone_of(content)).map(|(seq, _)| *seq)
    }

    pub(super) fn replace(
        &mut self,
        before: &Arc<Message>,
        line: &Arc<Message>,
        images: bool,
        tentative: bool,
    ) {
        let original = Arc::clone(self.original(before));
        self.replaced.retain(|replaced| !Arc::ptr_eq(&replaced.line, before));
        self.replaced.push(ReplacedMessage {
            line: Arc::clone(line),
            original,
            images,
            is_tentative: tentative,
        });
    }

    /// Forgets what the history has no more.
    pub(super) fn prune(
        &mut self,
        messages: &[Arc<Message>],
        is_waiting: impl Fn(&Content) -> bool,
    ) {
        self.replaced.retain(|replaced| messages.iter().any(|it| Arc::ptr_eq(it, &replaced.line)));
        let content = |message: &Arc<Message>| match &**self.original(message) {
            Message::User { content } => Some(content.address()),
            Message::Summary { .. } | Message::Assistant(_) | Message::Tool { .. } => None,
        };
        let kept: BTreeSet<usize> = messages.iter().filter_map(content).collect();
        self.inputs.retain(|(_, input)| kept.contains(&input.address()) || is_waiting(input));
    }
}
