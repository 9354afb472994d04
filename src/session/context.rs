//! Shortens the history when it is too long for the context window.
//!
//! The history is not truncated or trimmed at a fixed length. It is compacted by three changes
//! ([`Compaction`]), with the keys of `[agents.NAME.context]`:
//!
//! | change | when | what it replaces | what it keeps |
//! | --- | --- | --- | --- |
//! | clear old results (`Cleared`) | before a turn whose request is above `clear_at` (0.6) of the window, if that saves `clear_at_least` (0.1) | results of tools, each by one line, with its reference if the model can read references | the newest `keep_results` (8) results, errors, results of tools with `keep`, results as short as the line, results of initial messages |
//! | summarise (`Summarised`) | before a turn whose request is above `compact_at` (0.85); on request of a client | the first messages, by a text that a model writes | the last `keep_turns` (3) turns, at most a third of the window; users' messages up to `keep_user_tokens` (20,000), at most a third too, but always the newest; the references of the newest 20 results |
//! | format compactly (`Formatted`) | once, when a run with calls or with several responses has ended, with `history = "compact"` | the messages of the run, by one with a log of its calls | the inputs of the run, summaries |
//!
//! Steps are decided in `step_before_turn`, `shrink_idle` (formatting, and summaries on request) and
//! `step_after_overflow`. The last one follows, once in a turn, when the turn has found out that its request was too
//! large for its model (`turn::attempt`). It clears results, also the newest ones if necessary, and then asks for a
//! summary. `context::compaction` plans and applies the changes. While no window is known, results are cleared only
//! after an overflow, and a summary is asked for only after an overflow or for a client. A single result is cut to
//! `max_result_bytes` before all this (`context::result_cut`).
//!
//! A summary ends only before a response or after the last message, so that no call is separated from its results.
//! If no model writes one, or if it does not save a third of the request, the history stays as it is, and
//! [`Record::LimitReached`] says so (`summary_failed`, `summary_has_no_effect`). A turn that waited for it goes on.
//! After two of these the session asks for none by itself until the next input, or until one for a client succeeds
//! (`FAILED_SUMMARIES_MAX`).
//!
//! The word "compact": in `compact_at` and in the request of a client it means the summary, in `history = "compact"`
//! the formatting, and in [`Record::Compacted`] and the event `context_compacted` any of the three.
//!
//! Each decision is a [`Record::Compacted`], which says exactly what is replaced by what. A session that
//! wakes up applies the records and decides nothing again.

use super::context_state::EndedRun;
use super::machine::{
    Session, SessionEffect, SessionRecord, SessionRefusal, SummaryReply, SummaryRequest,
};
use super::open_run::{Overflow, RunStage};
use crate::config::{ContextPolicy, HistoryForm, Share};
use crate::context::compaction::{self, AppliedChange, SummaryLimits, SummaryPlan};
use crate::context::tokens::{ModelTokens, TokenMeter};
use crate::event::Event;
use crate::message::Message;
use crate::record::{Compaction, Record};
use crate::turn::RunRules;
use crate::types::{COMPACT_AT, ContextPart, PartTokens, RunId, Usage};
use crate::wire::PromptChange;

/// Number of summaries that failed or had no effect after which the session asks for none by itself until the next
/// input.
const FAILED_SUMMARIES_MAX: u32 = 2;
/// The turns behind a summary may have one third of the window, and so may the users' messages that stay.
const KEPT_TURNS_DIVISOR: u64 = 3;
/// One tenth of the window is left free for the question for a summary and its answer.
const SUMMARY_DIVISOR: u64 = 10;

/// The next step towards a smaller context.
#[derive(Debug)]
enum Step {
    /// A record follows.
    Change(Compaction),
    /// A summary is needed.
    Summarise(SummaryPlan),
    /// Nothing is to be done.
    Done,
}

impl Session {
    /// Returns about the number of tokens of the next request with these rules.
    pub fn request_tokens(&mut self, rules: &RunRules) -> u64 {
        self.token_meter().tokens(self.estimated_request(rules))
    }

    /// Returns the tokens of the next request, by estimate alone.
    pub fn estimated_request(&mut self, rules: &RunRules) -> u64 {
        rules.fixed_tokens + self.history.estimated_tokens()
    }

    /// Returns about the number of tokens of each part of the next request.
    pub fn part_tokens(&mut self, rules: &RunRules) -> PartTokens {
        let used = self.request_tokens(rules);
        let mut sizes = self.history.estimated_parts();
        let tools = rules.fixed_tokens.saturating_sub(rules.system_tokens);
        sizes.add(ContextPart::Tools, tools);
        sizes.add(ContextPart::System, rules.system_tokens);
        // The service's own counts correct the sum, so they correct the parts alike.
        sizes.scaled_to(used)
    }

    /// Returns the service's count of the last request that it counted, minus an estimate of what was removed since.
    #[must_use]
    pub fn counted_tokens(&self) -> Option<u64> {
        self.context.token_meter.counted()
    }

    /// Handles what the host has learnt of the first model of the next request. Only decisions that follow
    /// depend on it, and these are in records.
    pub fn handle_model_tokens(&mut self, model: ModelTokens) {
        self.context.model = model;
    }

    /// Returns the window of the model, in tokens: the configured one, or the one that its service has shown.
    #[must_use]
    pub fn window(&self, rules: &RunRules) -> Option<u64> {
        rules.models.first().context_window.or(self.context.model.window())
    }

    fn token_meter(&self) -> TokenMeter {
        self.context.token_meter.with_ratio_of(&self.context.model)
    }

    /// Returns true if the session waits for a summary.
    #[must_use]
    pub fn waits_for_summary(&self) -> bool {
        self.context.pending_summary.is_some()
    }

    /// Notes a client's request for a summary, which [`poll`](Self::poll) then asks for.
    ///
    /// # Errors
    /// If a run is in progress or queued, the session is closing or closed, no run has ended yet, or there is nothing
    /// to replace.
    pub fn handle_compact_request(
        &mut self,
        rules_of: super::RulesOf<'_>,
    ) -> Result<(), SessionRefusal> {
        self.check_idle()?;
        let rules = rules_of(&self.current_overrides());
        if self.summary_plan(&rules).is_none() || self.context.ended_run.is_none() {
            return Err(SessionRefusal::NothingToCompact);
        }
        // A summary that is already awaited answers this request too.
        self.context.compact_requested = self.context.pending_summary.is_none();
        Ok(())
    }

    /// Returns the hash of what preceded the messages in the last request.
    #[must_use]
    pub fn requested_prompt(&self) -> Option<u64> {
        self.context.requested.hash
    }

    /// Notes the next request. `hash` is that of what precedes its messages. Returns the reason if it does not begin
    /// like the session's request before, or if that one did not and may not have been sent. `has_sources` is true
    /// if the program may offer other tools in each run.
    pub fn handle_request(&mut self, hash: u64, has_sources: bool) -> Option<PromptChange> {
        let change = self.find_prompt_change(hash, has_sources).or(self.context.unsent_change);
        self.set_requested_prompt(Some(hash));
        self.context.unsent_change = change;
        change
    }

    fn find_prompt_change(&self, hash: u64, has_sources: bool) -> Option<PromptChange> {
        let change = self.context.prompt_change;
        let before = self.context.requested.hash?;
        let requested = &self.context.requested.overrides;
        let overrides = self.run.as_ref().map(|run| &run.overrides);
        let overridden = (overrides != Some(requested)).then(|| match overrides {
            Some(overrides) if overrides.differ_only_in_client_tools(requested) => {
                PromptChange::ClientTools
            }
            Some(_) | None => PromptChange::RunOverride,
        });
        if before == hash {
            return change.filter(|change| matches!(change, PromptChange::Compacted(_)));
        }
        if overridden.is_some() {
            return overridden;
        }
        let refreshed = has_sources.then_some(PromptChange::ToolsRefreshed);
        change.or(refreshed).or(Some(PromptChange::Config))
    }

    /// Remembers what preceded the messages in a request of the current run.
    pub(super) fn set_requested_prompt(&mut self, hash: Option<u64>) {
        self.context.prompt_change = None;
        self.context.requested.hash = hash;
        let requested = &mut self.context.requested.overrides;
        if let Some(run) = &self.run {
            requested.clone_from(&run.overrides);
        }
    }

    /// Handles the answer to a request for a summary. Ignored if none is pending any more.
    pub fn handle_summary(&mut self, reply: SummaryReply, rules_of: super::RulesOf<'_>) {
        let Some(plan) = self.context.pending_summary.take() else { return };
        let overrides = self.current_overrides();
        let rules = rules_of(&overrides);
        let SummaryPlan { replaced_messages, kept_user_messages } = plan;
        let before = self.request_tokens(&rules);
        let (failure, usage) = match reply {
            SummaryReply::Text { text, usage } => {
                let replaced = self.history.messages().get(..replaced_messages);
                let replaced = replaced.unwrap_or_default();
                let results = match rules.context.references {
                    true => compaction::uncleared_results(replaced),
                    false => Vec::new(),
                };
                let change = Compaction::Summarised {
                    text,
                    messages: replaced_messages,
                    user_messages: kept_user_messages,
                    results,
                };
                let applied = self.applied(&change);
                let (_, after) = self.sizes(&rules, &applied);
                // A summary must save a third, or it does not count.
                if after <= before / 3 * 2 {
                    self.record_applied(&rules, change, applied, usage);
                    return;
                }
                ("summary_has_no_effect", usage)
            }
            SummaryReply::Failed { usage } => ("summary_failed", usage),
        };
        self.record_failed_summary(&rules, before, failure, usage);
    }

    /// Handles that the current turn's request was larger than the window of its model.
    pub fn handle_overflow(&mut self, rules_of: super::RulesOf<'_>) {
        let Some(run) = self.run.as_deref() else { return };
        let rules = rules_of(&run.overrides);
        let tokens = self.request_tokens(&rules);
        if let Some(RunStage::Turn(turn)) = self.run.as_deref_mut().map(|run| &mut run.stage) {
            turn.overflow = Some(Overflow { tokens, ..Overflow::default() });
        }
    }

    /// Makes the context smaller before the next turn, if it is too large. Returns false if the turn may
    /// begin.
    pub(super) fn shrink_before_turn(&mut self, rules: &RunRules) -> bool {
        if self.context.is_replayed {
            return false;
        }
        if self.context.pending_summary.is_some() {
            return true;
        }
        match self.step_before_turn(rules) {
            Step::Done => return false,
            Step::Change(change) => self.record_change(rules, change),
            Step::Summarise(plan) => self.request_summary(rules, plan),
        }
        true
    }

    fn step_before_turn(&mut self, rules: &RunRules) -> Step {
        let Some(window) = self.window(rules) else { return Step::Done };
        let policy = &rules.context;
        let tokens = self.request_tokens(rules);
        let is_above = |share: Share| !share.is_zero() && tokens > share.part_of(window);
        if is_above(policy.clear_at) {
            let plan = self.clearing(rules, policy.keep_results);
            let saved = self.token_meter().part(plan.saved_tokens);
            if saved > 0 && saved >= policy.clear_at_least.part_of(window) {
                let references = policy.references;
                return Step::Change(Compaction::Cleared { calls: plan.calls, references });
            }
        }
        let may_ask = self.context.failed_summaries < FAILED_SUMMARIES_MAX
            && self.context.summary_requested_after != Some(self.turn);
        if is_above(policy.compact_at) && may_ask {
            return self.summary_plan(rules).map_or(Step::Done, Step::Summarise);
        }
        Step::Done
    }

    /// Takes one step towards a smaller context for a turn whose request was too large. After the last step the turn
    /// sends a new request if that is smaller. Otherwise it handles the error: another attempt or model, or it fails.
    pub(super) fn shrink_overflow(&mut self, rules: &RunRules) {
        let Some(RunStage::Turn(turn)) = self.run.as_deref().map(|run| &run.stage) else { return };
        let Some(overflow) = turn.overflow.filter(|_| self.context.pending_summary.is_none())
        else {
            return;
        };
        let (step, next) = self.step_after_overflow(rules, overflow);
        if let Some(RunStage::Turn(turn)) = self.run.as_deref_mut().map(|run| &mut run.stage) {
            turn.overflow = next;
        }
        match step {
            Step::Change(change) => self.record_change(rules, change),
            Step::Summarise(plan) => self.request_summary(rules, plan),
            Step::Done => {
                let reduced = self.request_tokens(rules) < overflow.tokens;
                self.outbox.push_back(SessionEffect::ContextReduced { reduced });
            }
        }
    }

    /// Returns the next step after an overflow, and the overflow with that step noted; `None` if no step is left.
    fn step_after_overflow(
        &mut self,
        rules: &RunRules,
        overflow: Overflow,
    ) -> (Step, Option<Overflow>) {
        let (mut next, policy) = (overflow, &rules.context);
        // The largest number of tokens that is small enough.
        let goal = match self.window(rules) {
            Some(window) => {
                let share =
                    if policy.compact_at.is_zero() { policy.clear_at } else { policy.compact_at };
                let share = if share.is_zero() { window / 10 * 9 } else { share.part_of(window) };
                share.min(overflow.tokens / 10 * 9)
            }
            None => overflow.tokens / 3 * 2,
        };
        let is_small = self.request_tokens(rules) <= goal;
        if !is_small && !overflow.clearing_tried {
            next.clearing_tried = true;
            for keep_results in [policy.keep_results, 0] {
                let plan = self.clearing(rules, keep_results);
                let saved = self.token_meter().part(plan.saved_tokens);
                let is_enough = overflow.tokens.saturating_sub(saved) <= goal;
                if saved > 0 && (is_enough || keep_results == 0) {
                    let (calls, references) = (plan.calls, policy.references);
                    return (Step::Change(Compaction::Cleared { calls, references }), Some(next));
                }
            }
        }
        if !is_small && !overflow.summary_tried {
            next.summary_tried = true;
            let may_ask = self.context.failed_summaries < FAILED_SUMMARIES_MAX;
            if let Some(plan) = self.summary_plan(rules).filter(|_| may_ask) {
                return (Step::Summarise(plan), Some(next));
            }
        }
        (Step::Done, None)
    }

    /// Formats the last run, or asks for the summary that a client has requested. Returns false if an idle
    /// session has nothing to do for its context.
    pub(super) fn shrink_idle(&mut self, rules_of: super::RulesOf<'_>) -> bool {
        if self.context.is_replayed {
            return false;
        }
        if self.context.pending_summary.is_some() {
            return true;
        }
        let unformatted = self.context.ended_run.as_mut().filter(|run| !run.is_formatted);
        if let Some(run) = unformatted {
            run.is_formatted = true;
            let first = run.first_message;
            let rules = rules_of(&self.current_overrides());
            let policy = &rules.context;
            let messages = self.history.messages().get(first..).unwrap_or_default();
            if policy.history == HistoryForm::Compact
                && let Some(change) = compaction::plan_formatting(messages, policy.references)
            {
                self.record_change(&rules, change);
                return true;
            }
        }
        if std::mem::take(&mut self.context.compact_requested) {
            let rules = rules_of(&self.current_overrides());
            if let Some(plan) = self.summary_plan(&rules) {
                self.request_summary(&rules, plan);
                return true;
            }
        }
        false
    }

    /// Forgets a summary that was asked for or requested, because it is not needed any more.
    pub(super) fn forget_summary(&mut self) {
        self.context.pending_summary = None;
        self.context.compact_requested = false;
    }

    /// Corrects the estimates by the service's count of the request of a turn that is about to be committed.
    pub(super) fn update_token_meter(&mut self, input_tokens: u64) {
        let Some(fixed) = self.run.as_ref().map(|run| run.rules.fixed_tokens) else { return };
        if input_tokens > 0 {
            let estimated = fixed + self.history.estimated_tokens();
            self.context.token_meter.handle_usage(estimated, input_tokens);
        }
    }

    /// Remembers the run that has ended: its messages may be formatted, and later records about the context name it.
    pub(super) fn set_ended_run(&mut self, id: RunId, first_message: usize) {
        self.context.ended_run = Some(EndedRun { id, first_message, is_formatted: false });
        self.context.pending_summary = None;
    }

    /// From now on the context changes only by records, for a replay: the decisions depended on what the services
    /// counted then.
    pub(super) fn replay_changes(&mut self) {
        self.context.is_replayed = true;
    }

    /// Lets summaries be asked for again because a user has sent an input, also before a turn for which one was asked
    /// for already.
    pub(super) fn forget_failed_summaries(&mut self) {
        self.context.failed_summaries = 0;
        self.context.summary_requested_after = None;
    }

    /// Counts a failed summary, if the recorded limit reports one.
    pub(super) fn count_failed_summary(&mut self, limit: &str) {
        self.context.failed_summaries += u32::from(limit == COMPACT_AT);
    }

    /// Replaces messages by a recorded change.
    pub(super) fn apply_change(&mut self, change: &Compaction) {
        let estimated = self.history.estimated_tokens();
        let prepared = self.context.prepared.take().filter(|prepared| prepared.0 == *change);
        let applied = prepared.map_or_else(|| self.applied(change), |prepared| prepared.1);
        let AppliedChange { messages, run_start, tokens } = applied;
        self.history.replace(messages.into(), tokens);
        self.context.token_meter.handle_removal(estimated.saturating_sub(tokens.total()));
        match (&mut self.run, &mut self.context.ended_run) {
            (Some(run), _) => {
                run.first_message = run_start;
                run.is_compacted = true;
            }
            (None, Some(run)) => run.first_message = run_start,
            (None, None) => {}
        }
        self.context.prompt_change = Some(PromptChange::Compacted(change.kind()));
        match change {
            Compaction::Formatted { .. } => {
                if let Some(run) = &mut self.context.ended_run {
                    run.is_formatted = true;
                }
            }
            Compaction::Summarised { .. } => self.context.failed_summaries = 0,
            Compaction::Cleared { .. } => {}
        }
    }

    /// Returns the state that records hold.
    #[cfg(test)]
    pub(super) fn durable_context(&self) -> super::context_state::ContextState {
        let mut state = self.context.clone();
        (state.pending_summary, state.compact_requested, state.summary_requested_after) =
            (None, false, None);
        (state.model, state.prepared) = (ModelTokens::default(), None);
        state.requested = super::context_state::RequestedPrompt::default();
        (state.prompt_change, state.unsent_change) = (None, None);
        if let Some(run) = &mut state.ended_run {
            run.is_formatted = false;
        }
        state
    }

    fn clearing(&self, rules: &RunRules, keep_results: u32) -> compaction::ClearingPlan {
        let keep = |name: &str| rules.tools.get(name).is_some_and(|tool| tool.keep);
        let keep_results = usize::try_from(keep_results).unwrap_or(usize::MAX);
        let references = rules.context.references;
        compaction::plan_clearing(self.history.messages(), keep_results, references, keep)
    }

    fn summary_plan(&mut self, rules: &RunRules) -> Option<SummaryPlan> {
        let ContextPolicy { keep_turns, keep_user_tokens, .. } = &rules.context;
        let (meter, window) = (self.token_meter(), self.window(rules).unwrap_or(u64::MAX));
        let replaced_tokens_max = match self.can_send_all(rules) {
            true => u64::MAX,
            false => {
                let sent = meter.estimate_of(window - window / SUMMARY_DIVISOR);
                sent.saturating_sub(rules.fixed_tokens)
            }
        };
        let limits = SummaryLimits {
            turns_max: usize::try_from(*keep_turns).unwrap_or(usize::MAX),
            turn_tokens_max: meter.estimate_of(window / KEPT_TURNS_DIVISOR),
            input_tokens_max: meter
                .estimate_of((*keep_user_tokens).min(window / KEPT_TURNS_DIVISOR)),
            replaced_tokens_max,
        };
        compaction::plan_summary(self.history.messages(), limits)
    }

    /// Returns true if the request for a summary may have all messages: the service has not refused them in this
    /// turn, and they fit into the window, if it is known.
    fn can_send_all(&mut self, rules: &RunRules) -> bool {
        let tokens = self.request_tokens(rules);
        let is_overflow = self.run.as_ref().is_some_and(|run| run.turn().is_some());
        !is_overflow
            && self.window(rules).is_none_or(|window| tokens + window / SUMMARY_DIVISOR <= window)
    }

    /// Asks for a summary. The request has all messages, so that the service reads most of them from its cache. If
    /// they are too many, it has only those that the summary replaces.
    fn request_summary(&mut self, rules: &RunRules, plan: SummaryPlan) {
        let messages = match self.can_send_all(rules) {
            true => self.history.messages().clone(),
            false => self.history.messages().iter().take(plan.replaced_messages).cloned().collect(),
        };
        self.context.pending_summary = Some(plan);
        self.context.summary_requested_after = Some(self.turn);
        let overrides = self.current_overrides();
        let run_id = self.run_of_context();
        let request = SummaryRequest { run_id, overrides, messages };
        self.outbox.push_back(SessionEffect::RequestSummary(Box::new(request)));
    }

    /// Returns the messages that a change leaves.
    fn applied(&self, change: &Compaction) -> AppliedChange {
        compaction::apply(change, self.history.messages(), self.first_of_last_run())
    }

    /// Returns the sizes of the next request in tokens before and after a change, by estimate. The size after it is
    /// the one that [`request_tokens`](Self::request_tokens) returns once the change is applied.
    fn sizes(&mut self, rules: &RunRules, applied: &AppliedChange) -> (u64, u64) {
        let (before, estimated) = (self.request_tokens(rules), self.history.estimated_tokens());
        let left = applied.tokens.total();
        let mut meter = self.context.token_meter;
        meter.handle_removal(estimated.saturating_sub(left));
        let meter = meter.with_ratio_of(&self.context.model);
        (before, meter.tokens(rules.fixed_tokens + left))
    }

    /// Returns the index of the first message of the run in progress, or of the last one.
    fn first_of_last_run(&self) -> usize {
        let ended = self.context.ended_run.as_ref().map(|run| run.first_message);
        let first = self.run.as_ref().map(|run| run.first_message).or(ended);
        first.unwrap_or_else(|| self.history.messages().len())
    }

    fn record_change(&mut self, rules: &RunRules, change: Compaction) {
        let applied = self.applied(&change);
        self.record_applied(rules, change, applied, Usage::default());
    }

    /// Records a change. Keeps what it leaves until its record is applied.
    fn record_applied(
        &mut self,
        rules: &RunRules,
        change: Compaction,
        applied: AppliedChange,
        usage: Usage,
    ) {
        let (tokens_before, tokens_after) = self.sizes(rules, &applied);
        self.context.prepared = Some(Box::new((change.clone(), applied)));
        let upto = match &change {
            Compaction::Cleared { calls, .. } => calls.last().map_or(self.turn, |key| key.turn),
            Compaction::Formatted { .. } => self.turn,
            Compaction::Summarised { messages, .. } => {
                let kept = self.history.messages().get(*messages..).unwrap_or_default();
                let turns = kept.iter().filter(|m| matches!(***m, Message::Assistant(_)));
                self.turn.saturating_sub(u32::try_from(turns.count()).unwrap_or(u32::MAX))
            }
        };
        let kind = change.kind();
        let event = Event::ContextCompacted { kind, tokens_before, tokens_after, upto };
        let change = Box::new(change);
        let record = Record::Compacted { change, upto, tokens_before, tokens_after, usage };
        let (run_id, turn) = (self.run_of_context(), self.turn);
        self.record(vec![SessionRecord { record, run_id, turn, events: vec![event] }]);
    }

    /// Records that a summary failed or saves too little, with the tokens that it used.
    fn record_failed_summary(&mut self, rules: &RunRules, tokens: u64, action: &str, usage: Usage) {
        let (limit, action) = (COMPACT_AT.to_owned(), action.to_owned());
        let window = self.window(rules).unwrap_or_default();
        let (value, maximum) = (tokens, rules.context.compact_at.part_of(window));
        let event =
            Event::LimitReached { limit: limit.clone(), value, maximum, action: action.clone() };
        let record = Record::LimitReached { limit, value, maximum, action, note: None, usage };
        let (run_id, turn) = (self.run_of_context(), self.turn);
        self.record(vec![SessionRecord { record, run_id, turn, events: vec![event] }]);
    }

    /// Returns the run that events about the context belong to.
    fn run_of_context(&self) -> Option<RunId> {
        let ended = self.context.ended_run.as_ref().map(|run| &run.id);
        self.run.as_ref().map(|run| &run.id).or(ended).cloned()
    }
}
