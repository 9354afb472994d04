//! Leaves content out of later requests: after a refusal of a service, or on request of a client.
//!
//! - A service refuses a request because of its content, or does not say why ([`ContentRefusal`]): the turn asks for a
//!   request without the images, results and earlier inputs that no accepted request has had
//!   (`context::exclusion`), once, and sends it. If the error did not name the content, the content is left out
//!   tentatively: it comes back if the turn ends without a response.
//! - The text of the input that the run has to answer stays. If a service refuses that, the run ends as refused, and
//!   its input is left out (`exclude_refused_run` in `context`).
//! - A client leaves out an input, by the position of its record, or a result, by its call, and takes either back.
//!
//! Each change is a [`Record::Compacted`] of the kind `excluded` or `included`. The content that lines stand for stays
//! in memory, so that it can come back.

use std::sync::Arc;

use super::machine::{Session, SessionEffect, SessionRefusal};
use crate::context::compaction::AppliedChange;
use crate::context::exclusion::{Excludable, excludable, find_result, name_calls, plan_exclusion};
use crate::context::tokens::add_messages;
use crate::turn::RunRules;
use callsheet_values::message::Message;
use callsheet_values::record::{Compaction, ExcludedMessage, Seq};
use callsheet_values::types::{CallKey, ContentRefusal, PartTokens};
use callsheet_wire::PromptChange;

/// A message of the context that a client names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MessageName {
    /// The user's input of this record.
    Input(Seq),
    /// The result of this call.
    Result(CallKey),
}

impl Session {
    /// Returns the kinds of content that the next request may lose after a refusal.
    pub(super) fn excludable(&self) -> Excludable {
        let run_start = self.first_of_last_run();
        excludable(self.history.messages(), run_start, |it| self.exclusions.has_whole(it))
    }

    /// Handles that the service refused the request of the current turn because of its content, or may have. The turn
    /// sends a request without that content, or handles the error.
    pub fn handle_content_refused(
        &mut self,
        refusal: ContentRefusal,
        rules_of: super::RulesOf<'_>,
    ) {
        let Some(run) = self.run.as_deref().filter(|run| run.turn().is_some()) else { return };
        let rules = rules_of(&run.overrides);
        let run_start = self.first_of_last_run();
        let is_excluded = |message: &Arc<Message>| self.exclusions.has_whole(message);
        let plan = plan_exclusion(self.history.messages(), run_start, refusal, is_excluded);
        let reduced = !plan.messages.is_empty();
        if reduced {
            self.record_exclusion(&rules, plan.messages, plan.tentative);
        }
        self.outbox.push_back(SessionEffect::ContextReduced { reduced });
    }

    /// Leaves a message out of later requests, or takes it back with `include`. Returns false if that is so already,
    /// and nothing is recorded.
    ///
    /// # Errors
    /// If a run is in progress or queued, the session is closing or closed, or the context has no such message.
    pub fn handle_exclude_request(
        &mut self,
        name: MessageName,
        include: bool,
        rules_of: super::RulesOf<'_>,
    ) -> Result<bool, SessionRefusal> {
        self.check_idle()?;
        // The summary that is awaited replaces messages as they are now.
        if self.waits_for_summary() {
            return Err(SessionRefusal::RunInProgress);
        }
        let messages = self.history.messages();
        let index = match name {
            MessageName::Result(key) => find_result(messages, key),
            MessageName::Input(seq) => {
                messages.iter().position(|it| self.exclusions.seq_of(it) == Some(seq))
            }
        };
        let found = index.and_then(|index| Some((index, messages.get(index)?)));
        let (index, message) = found.ok_or(SessionRefusal::NoSuchMessage)?;
        let is_done = match include {
            true => self.exclusions.find(message).is_none(),
            false => self.exclusions.has_whole(message),
        };
        if is_done {
            return Ok(false);
        }
        let message = ExcludedMessage { index, seq: None, call: None, images: false };
        let rules = rules_of(&self.current_overrides());
        match include {
            true => {
                let messages = self.named(vec![message]);
                self.record_change(&rules, Compaction::Included { messages });
            }
            false => self.record_exclusion(&rules, vec![message], false),
        }
        Ok(true)
    }

    fn record_exclusion(
        &mut self,
        rules: &RunRules,
        messages: Vec<ExcludedMessage>,
        tentative: bool,
    ) {
        let (messages, references) = (self.named(messages), rules.context.references);
        self.record_change(rules, Compaction::Excluded { messages, references, tentative });
    }

    /// Sets the positions of the inputs and the calls of the results.
    fn named(&self, mut excluded: Vec<ExcludedMessage>) -> Vec<ExcludedMessage> {
        let messages = self.history.messages();
        name_calls(messages, &mut excluded);
        for named in &mut excluded {
            let message = messages.get(named.index);
            named.seq = message.and_then(|message| self.exclusions.seq_of(message));
        }
        excluded
    }

    /// Returns the messages with the content that was left out of these.
    pub(super) fn with_included(
        &self,
        included: &[ExcludedMessage],
        applied: AppliedChange,
    ) -> AppliedChange {
        let mut messages = applied.messages;
        for ExcludedMessage { index, .. } in included {
            if let Some(message) = messages.get_mut(*index) {
                *message = Arc::clone(self.exclusions.original(message));
            }
        }
        let mut tokens = PartTokens::default();
        add_messages(&mut tokens, &messages);
        AppliedChange { messages, tokens, ..applied }
    }

    /// Remembers what a change has left out, and forgets what the history has no more. `before` are the messages before
    /// the change.
    pub(super) fn apply_exclusion(&mut self, change: &Compaction, before: &[Arc<Message>]) {
        match change {
            Compaction::Excluded { messages, tentative, .. } => {
                for ExcludedMessage { index, images, .. } in messages {
                    let after = self.history.messages().get(*index);
                    if let (Some(before), Some(line)) = (before.get(*index), after) {
                        self.exclusions.replace(before, line, *images, *tentative);
                    }
                }
            }
            Compaction::Cleared { .. } => {}
            Compaction::Formatted { .. }
            | Compaction::Summarised { .. }
            | Compaction::Dropped { .. }
            | Compaction::Included { .. } => self.prune_exclusions(),
        }
    }

    pub(super) fn prune_exclusions(&mut self) {
        let history = &self.history;
        self.exclusions.prune(history.messages(), |input| history.is_pending(input));
    }

    /// Decides about the content that was left out tentatively, because a turn has ended. With a response, it was
    /// refused, and stays out. Otherwise it comes back.
    pub(super) fn settle_exclusions(&mut self, has_response: bool) {
        let tentative = self.exclusions.replaced.iter_mut().filter(|it| it.is_tentative);
        if has_response {
            tentative.for_each(|replaced| replaced.is_tentative = false);
            return;
        }
        if tentative.count() == 0 {
            return;
        }
        let original = |message: &Arc<Message>| match self.exclusions.find(message) {
            Some(replaced) if replaced.is_tentative => Arc::clone(&replaced.original),
            Some(_) | None => Arc::clone(message),
        };
        let messages: Vec<_> = self.history.messages().iter().map(original).collect();
        let mut tokens = PartTokens::default();
        add_messages(&mut tokens, &messages);
        self.history.replace(messages.into(), tokens);
        self.exclusions.replaced.retain(|replaced| !replaced.is_tentative);
        self.context.prompt_change = Some(PromptChange::Excluded);
    }
}
