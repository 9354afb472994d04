//! Shortens the history when it is too long for the context window.
//!
//! The history is not truncated or trimmed at a fixed length. It is compacted by four changes
//! ([`Compaction`]), with the keys of `[agents.NAME.context]`:
//!
//! | change | when | what it replaces | what it keeps |
//! | --- | --- | --- | --- |
//! | clear old results (`Cleared`) | before a turn whose request is above `clear_at` (0.6) of the window, if that saves `clear_at_least` (0.1) or makes a summary unnecessary | results of tools, each by one line, with its reference if the model can read references | the newest `keep_results` (8) results, at most three tenths of the window; fresh results; errors, results of tools with `keep`, results as short as the line, results of initial messages |
//! | cut fresh results (`Cleared`, `cut`) | a request that would leave less than a tenth of the window for an answer, if a fourth of the window is left for the results | the middle of the largest results that no accepted request had | their beginnings and ends |
//! | summarise (`Summarised`) | before a turn whose request is above `compact_at` (0.85), if it can save a third; on request of a client | the first messages, by a text that a model writes | the last `keep_turns` (3) turns, at most a fourth of the window; users' messages up to `keep_user_tokens` (20,000), at most a sixth, but always the newest; the references of the newest 20 results; the turn of fresh results |
//! | drop (`Dropped`), the last resort | a request that would leave less than a tenth of the window for an answer (a twentieth after a failed summary), if nothing else helps and the window is no guess | the oldest messages, by one line with references | as many of the newest messages as half of the window holds; the newest user's message |
//! | format compactly (`Formatted`) | once, when a run with calls or with several responses has ended, with `history = "compact"` | the messages of the run, by one with a log of its calls | the inputs of the run, summaries |
//!
//! Steps are decided in `step_before_turn`, `shrink_idle` (formatting, and summaries on request) and
//! `step_after_overflow`. The last one follows, once in a turn, when the turn has found out that its request was too
//! large for its model (`turn::attempt`). It clears results, all but the fresh ones if necessary, cuts these, asks for a
//! summary and takes the last resort. If only the requested length of the answer was too large, the turn asks for a
//! shorter one instead (`turn::retry`). While no window is known, the context becomes smaller only
//! after an overflow, and by a summary for a client. A single result is cut to
//! `max_result_bytes` before all this (`context::result_cut`).
//!
//! A summary ends only before a response or after the last message, so that no call is separated from its results.
//! If no model writes one, or if it saves neither a third of the request nor as much as a request needs that is too
//! large, the history stays as it is, and [`Record::LimitReached`] says so (`summary_failed`, with a reason). A turn
//! that waited for it goes on. After two of these the session asks for none by itself until the next input, or until one
//! for a client succeeds (`FAILED_SUMMARIES_MAX`).
//!
//! The word "compact": in `compact_at` and in the request of a client it means the summary, in `history = "compact"`
//! the formatting, and in [`Record::Compacted`] and the event `context_compacted` any of the three.
//!
//! Each decision is a [`Record::Compacted`], which says exactly what is replaced by what. A session that
//! wakes up applies the records and decides nothing again.

use super::context_state::EndedRun;
use super::machine::{Session, SessionEffect, SessionRefusal, SummaryReply, SummaryRequest};
use super::open_run::{Overflow, RunStage};
use crate::context::compaction::{
    self, AppliedChange, DROPPED_REFERENCES_MAX, KeptResults, SUMMARY_REQUEST, SummaryLimits,
    SummaryPlan,
};
use crate::context::exclusion::accepted_len;
use crate::context::tokens::{ModelTokens, TokenMeter, estimate_message, estimate_text};
use crate::turn::RunRules;
use callsheet_values::config::{ContextPolicy, HistoryForm, Share};
use callsheet_values::message::{Message, MessageList};
use callsheet_values::record::{Compaction, Record};
use callsheet_values::types::{
    COMPACT_AT, CompactionKind, ContextPart, PartTokens, RunId, SummaryFailure, Usage,
};
use callsheet_wire::PromptChange;

/// Number of summaries that failed or had no effect after which the session asks for none by itself until the next
/// input.
const FAILED_SUMMARIES_MAX: u32 = 2;
/// The turns behind a summary may have one fourth of the window, and the users' messages that stay one sixth. So the
/// smaller context has room for more than a few turns.
const KEPT_TURNS_DIVISOR: u64 = 4;
const KEPT_INPUTS_DIVISOR: u64 = 6;
/// The results that stay when others are cleared may have three tenths of the window.
const KEPT_RESULTS_TENTHS: u64 = 3;
/// One sixth of the window is left free for a summary, but not more than this number of tokens. Half of that is enough
/// if the request can have all messages then.
const SUMMARY_ROOM_DIVISOR: u64 = 6;
const SUMMARY_ROOM_MAX: u64 = 4_096;
/// One tenth of the window is left free for an answer, but not more than this number of tokens. A request that leaves
/// less room is not sent if it can be made smaller.
const ANSWER_ROOM_DIVISOR: u64 = 10;
const ANSWER_ROOM_MAX: u64 = 4_096;
/// After a failed summary one twentieth of the window is enough for an answer, and this number of tokens at most, before
/// messages are dropped.
const LEAST_ROOM_DIVISOR: u64 = 20;
const LEAST_ROOM_MAX: u64 = 1_024;
/// Maximum number of sizes to which fresh results are cut, until the request is small enough.
const CUT_TRIES: u32 = 16;
/// A fresh result is cut, instead of other messages being summarised, if one fourth of the window is left for it.
const FRESH_DIVISOR: u64 = 4;

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
            let changes_messages = |of: &PromptChange| {
                matches!(of, PromptChange::Compacted(_) | PromptChange::Excluded)
            };
            return change.filter(changes_messages);
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

    /// Handles the answer to a request for a summary. Ignored if none is pending any more. Returns the reason if the
    /// summary is not used.
    pub fn handle_summary(
        &mut self,
        reply: SummaryReply,
        rules_of: super::RulesOf<'_>,
    ) -> Option<SummaryFailure> {
        let plan = self.context.pending_summary.take()?;
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
                // A summary must save a third, or it does not count. If the request is too large, it must only
                // become small enough.
                let most = self.size_basis(&rules).map(largest_request);
                let is_needed = most.is_some_and(|most| before > most && after <= most);
                if after <= before / 3 * 2 || is_needed {
                    self.record_applied(&rules, change, applied, usage);
                    return None;
                }
                (SummaryFailure::NoSaving, usage)
            }
            SummaryReply::Failed { usage, reason } => (reason, usage),
        };
        self.record_failed_summary(&rules, before, failure, usage);
        Some(failure)
    }

    /// Handles that the current turn's request was larger than the window of its model. `window` is that window,
    /// if it is known, and `counted` are the tokens of the input, if the service has named them.
    pub fn handle_overflow(
        &mut self,
        window: Option<u64>,
        counted: Option<u64>,
        rules_of: super::RulesOf<'_>,
    ) {
        let Some(run) = self.run.as_deref() else { return };
        let rules = rules_of(&run.overrides);
        let tokens = self.request_tokens(&rules);
        if let Some(RunStage::Turn(turn)) = self.run.as_deref_mut().map(|run| &mut run.stage) {
            turn.overflow = Some(Overflow { tokens, counted, window, ..Overflow::default() });
        }
    }

    /// Returns the size that a context is compared with, in tokens of the session's own count: the window. It is
    /// smaller if the service has just counted more tokens than the session. If it has refused a request and no window
    /// is known, it is less than that request.
    fn size_basis(&self, rules: &RunRules) -> Option<u64> {
        let overflow = match self.run.as_deref().map(|run| &run.stage) {
            Some(RunStage::Turn(turn)) => turn.overflow,
            Some(RunStage::Ready(_) | RunStage::FollowUp(_)) | None => None,
        };
        let Some(overflow) = overflow else { return self.window(rules) };
        let Some(window) = overflow.window else { return Some(overflow.tokens / 4 * 3) };
        let counted = overflow.counted.unwrap_or_default().max(overflow.tokens).max(1);
        let scaled = u128::from(window) * u128::from(overflow.tokens) / u128::from(counted);
        Some(u64::try_from(scaled).unwrap_or(window).min(overflow.tokens))
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
        let most = largest_request(window);
        let goal = if policy.compact_at.is_zero() { most } else { goal(policy, window) };
        let least = policy.clear_at_least.part_of(window);
        if is_above(policy.clear_at) || tokens > most {
            // Above the goal a clearing counts that makes a summary unnecessary.
            let suffices = |saved: u64| tokens > goal && tokens.saturating_sub(saved) <= goal;
            let counts = |saved, keeps_some| match keeps_some {
                true => saved >= least || suffices(saved),
                false => saved >= least && suffices(saved),
            };
            if let Some(change) = self.clear(rules, window, counts) {
                return Step::Change(change);
            }
        }
        if tokens > most
            && let Some(change) = self.cut_fresh(rules, tokens, goal, window / FRESH_DIVISOR)
        {
            return Step::Change(change);
        }
        let may_ask = self.context.failed_summaries < FAILED_SUMMARIES_MAX
            && self.context.summary_requested_after != Some(self.turn);
        if is_above(policy.compact_at)
            && may_ask
            && let Some(plan) = self.useful_summary_plan(rules, tokens)
        {
            return Step::Summarise(plan);
        }
        // A request that fits is sent after a failed summary, though it leaves less room for an answer.
        let largest = match self.context.failed_summaries {
            0 => most,
            _ => window - (window / LEAST_ROOM_DIVISOR).min(LEAST_ROOM_MAX),
        };
        let is_guess =
            rules.models.first().context_window.is_none() && !self.context.model.is_window_named();
        // A guess may be too small. The service has to refuse the request before messages are dropped.
        if tokens <= largest || is_guess {
            return Step::Done;
        }
        // Nothing is dropped if the request would not fit then either.
        let change = self.last_resort(rules, tokens, window).filter(|change| {
            let applied = self.applied(change);
            self.sizes(rules, &applied).1 <= window
        });
        change.map_or(Step::Done, Step::Change)
    }

    /// Clears old results: all but the newest that may stay, or else all that are not fresh. `counts` says whether
    /// the number of saved tokens is enough; its second argument is true if the newest results stay.
    fn clear(
        &mut self,
        rules: &RunRules,
        window: u64,
        counts: impl Fn(u64, bool) -> bool,
    ) -> Option<Compaction> {
        let references = rules.context.references;
        [true, false].into_iter().find_map(|keeps_some| {
            let plan = self.clearing(rules, window, keeps_some);
            let saved = self.token_meter().part(plan.saved_tokens);
            let calls = plan.calls;
            (saved > 0 && counts(saved, keeps_some)).then_some(Compaction::Cleared {
                calls,
                cut: Vec::new(),
                references,
            })
        })
    }

    /// Cuts the fresh results to the space that the other messages leave of `goal`. Returns `None` if that is less
    /// than `space_min`, or if nothing is to be cut.
    fn cut_fresh(
        &mut self,
        rules: &RunRules,
        tokens: u64,
        goal: u64,
        space_min: u64,
    ) -> Option<Compaction> {
        let meter = self.token_meter();
        let fresh = meter.part(compaction::fresh_tokens(self.history.messages()));
        let space = goal.saturating_sub(tokens.saturating_sub(fresh));
        if fresh == 0 || space < space_min {
            return None;
        }
        let references = rules.context.references;
        let mut fresh_max = meter.estimate_of(space);
        for _ in 0..CUT_TRIES {
            let cut = compaction::plan_cut(self.history.messages(), fresh_max, references);
            if cut.is_empty() {
                return None;
            }
            let change = Compaction::Cleared { calls: Vec::new(), cut, references };
            let applied = self.applied(&change);
            let after = self.sizes(rules, &applied).1;
            // The removed tokens are only an estimate, so the first cut may not be enough.
            if after <= goal || fresh_max == 0 {
                return (after < tokens).then_some(change);
            }
            let excess = meter.estimate_of(after - goal).max(fresh_max / 16).max(1);
            fresh_max = fresh_max.saturating_sub(excess);
        }
        None
    }

    /// Makes the context smaller without a model: cuts the fresh results if they fill half of the window, or else
    /// drops the first messages so that half of the window is used. Returns `None` if nothing can be done.
    fn last_resort(&mut self, rules: &RunRules, tokens: u64, window: u64) -> Option<Compaction> {
        let meter = self.token_meter();
        let half = window / 2;
        let fresh = meter.part(compaction::fresh_tokens(self.history.messages()));
        // The turn of smaller results stays whole.
        if fresh > half / 4 * 3 {
            let others = tokens.saturating_sub(fresh);
            let goal = others.saturating_add(window / FRESH_DIVISOR);
            if let Some(change) = self.cut_fresh(rules, tokens, goal, 1) {
                return Some(change);
            }
        }
        let left = meter.estimate_of(half).saturating_sub(rules.fixed_tokens);
        let inputs = rules.context.keep_user_tokens.min(half / KEPT_INPUTS_DIVISOR);
        let plan = compaction::plan_drop(self.history.messages(), left, meter.estimate_of(inputs))?;
        let SummaryPlan { replaced_messages, kept_user_messages } = plan;
        let dropped = self.history.messages().get(..replaced_messages).unwrap_or_default();
        let (mut results, mut runs) = (Vec::new(), Vec::new());
        if rules.context.references && !rules.tools.is_empty() {
            results = compaction::uncleared_results(dropped);
            results.drain(..results.len().saturating_sub(DROPPED_REFERENCES_MAX));
            runs = self.references.newest_runs(DROPPED_REFERENCES_MAX);
        }
        let change = Compaction::Dropped {
            messages: replaced_messages,
            user_messages: kept_user_messages,
            results,
            runs,
        };
        let applied = self.applied(&change);
        (self.sizes(rules, &applied).1 < tokens).then_some(change)
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
        let basis = self.size_basis(rules).unwrap_or(overflow.tokens);
        // The largest number of tokens that is small enough.
        let goal = match overflow.window {
            Some(_) => goal(policy, basis).min(overflow.tokens / 10 * 9),
            None => overflow.tokens / 3 * 2,
        };
        let tokens = self.request_tokens(rules);
        if tokens <= goal {
            return (Step::Done, None);
        }
        if !overflow.clearing_tried {
            next.clearing_tried = true;
            let counts =
                |saved, keeps_some: bool| !keeps_some || tokens.saturating_sub(saved) <= goal;
            if let Some(change) = self.clear(rules, basis, counts) {
                return (Step::Change(change), Some(next));
            }
        }
        if let Some(change) = self.cut_fresh(rules, tokens, goal, basis / FRESH_DIVISOR) {
            return (Step::Change(change), Some(next));
        }
        if !overflow.summary_tried {
            next.summary_tried = true;
            let may_ask = self.context.failed_summaries < FAILED_SUMMARIES_MAX;
            let plan = may_ask.then(|| self.useful_summary_plan(rules, tokens)).flatten();
            if let Some(plan) = plan {
                return (Step::Summarise(plan), Some(next));
            }
        }
        // A summary that brought the request below the window is enough.
        if tokens > largest_request(basis).min(overflow.tokens / 10 * 9)
            && let Some(change) = self.last_resort(rules, tokens, basis)
        {
            return (Step::Change(change), Some(next));
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
        // A run that was interrupted may go on and then needs its messages.
        let unformatted = self.context.ended_run.as_mut().filter(|run| !run.is_formatted);
        let unformatted = unformatted.filter(|_| self.interrupted.is_none());
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
        let before = self.history.messages().clone();
        self.history.replace(messages.into(), tokens);
        self.apply_exclusion(change, &before);
        self.context.token_meter.handle_removal(estimated.saturating_sub(tokens.total()));
        if self.run.is_none()
            && let Some(run) = &mut self.context.ended_run
        {
            run.first_message = run_start;
        }
        if let Some(run) = self.run.as_mut().or(self.interrupted.as_mut()) {
            run.first_message = run_start;
            run.is_compacted = true;
        }
        self.context.prompt_change = Some(match change.kind() {
            CompactionKind::Excluded | CompactionKind::Included => PromptChange::Excluded,
            kind @ (CompactionKind::Cleared
            | CompactionKind::Formatted
            | CompactionKind::Summarised
            | CompactionKind::Dropped) => PromptChange::Compacted(kind),
        });
        match change {
            Compaction::Formatted { .. } => {
                if let Some(run) = &mut self.context.ended_run {
                    run.is_formatted = true;
                }
                // An earlier version formats a run that was interrupted. The model could not go on with its log.
                self.interrupted = None;
            }
            Compaction::Summarised { .. } => self.context.failed_summaries = 0,
            Compaction::Cleared { .. }
            | Compaction::Dropped { .. }
            | Compaction::Excluded { .. }
            | Compaction::Included { .. } => {}
        }
    }

    /// Leaves the run in progress, whose last response is refused, out of later requests. The last
    /// `unanswered_inputs` messages arrived after the request and stay. The records hold what is left out.
    pub(super) fn exclude_refused_run(&mut self, unanswered_inputs: usize) {
        let Some(run) = self.run.as_deref_mut().filter(|_| !self.context.keeps_all_messages) else {
            return;
        };
        run.is_compacted = true;
        let first = run.first_message;
        let estimated = self.history.estimated_tokens();
        let messages = self.history.messages();
        let (messages, tokens) = compaction::without_refused_run(
            messages,
            first,
            messages.len() - unanswered_inputs.min(messages.len()),
        );
        self.history.replace(messages.into(), tokens);
        self.prune_exclusions();
        self.context.token_meter.handle_removal(estimated.saturating_sub(tokens.total()));
        self.context.prompt_change = Some(PromptChange::Excluded);
    }

    /// Leaves the last response out of later requests: it was cut off, and the request for it is sent again. The
    /// records hold it.
    pub(super) fn drop_cut_off_answer(&mut self) {
        if !self.context.keeps_all_messages {
            self.history.drop_last_answer();
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

    fn clearing(
        &self,
        rules: &RunRules,
        window: u64,
        keeps_some: bool,
    ) -> compaction::ClearingPlan {
        let keep = |name: &str| rules.tools.get(name).is_some_and(|tool| tool.keep);
        let policy = &rules.context;
        let count_max = if keeps_some { policy.keep_results } else { 0 };
        let kept = KeptResults {
            count_max: usize::try_from(count_max).unwrap_or(usize::MAX),
            tokens_max: self.token_meter().estimate_of(window / 10 * KEPT_RESULTS_TENTHS),
        };
        compaction::plan_clearing(self.history.messages(), kept, policy.references, keep)
    }

    fn summary_plan(&mut self, rules: &RunRules) -> Option<SummaryPlan> {
        let ContextPolicy { keep_turns, keep_user_tokens, .. } = &rules.context;
        let (meter, basis) = (self.token_meter(), self.size_basis(rules).unwrap_or(u64::MAX));
        let replaced_tokens_max = match self.can_send_all(rules) {
            true => u64::MAX,
            false => {
                let sent = basis.saturating_sub(self.summary_request_tokens(basis));
                meter.estimate_of(sent).saturating_sub(rules.fixed_tokens)
            }
        };
        let limits = SummaryLimits {
            turns_max: usize::try_from(*keep_turns).unwrap_or(usize::MAX),
            turn_tokens_max: meter.estimate_of(basis / KEPT_TURNS_DIVISOR),
            input_tokens_max: meter
                .estimate_of((*keep_user_tokens).min(basis / KEPT_INPUTS_DIVISOR)),
            replaced_tokens_max,
        };
        compaction::plan_summary(self.history.messages(), limits)
    }

    /// Returns the plan of a summary if it can count: if it can save a third of the request, or make a request small
    /// enough that is too large.
    fn useful_summary_plan(&mut self, rules: &RunRules, tokens: u64) -> Option<SummaryPlan> {
        let plan = self.summary_plan(rules)?;
        let replaced = self.history.messages().get(..plan.replaced_messages).unwrap_or_default();
        let inputs =
            replaced.iter().rev().filter(|message| matches!(***message, Message::User { .. }));
        let kept: u64 = inputs.take(plan.kept_user_messages).map(|m| estimate_message(m)).sum();
        let size: u64 = replaced.iter().map(|message| estimate_message(message)).sum();
        let saved = self.token_meter().part(size.saturating_sub(kept));
        let after = tokens.saturating_sub(saved);
        let most = self.size_basis(rules).map(largest_request);
        let is_needed = most.is_some_and(|most| tokens > most && after <= most);
        (after <= tokens / 3 * 2 || is_needed).then_some(plan)
    }

    /// Returns about the number of tokens of the question for a summary and of its answer.
    fn summary_request_tokens(&self, window: u64) -> u64 {
        let question = self.token_meter().part(estimate_text(SUMMARY_REQUEST));
        question.saturating_add((window / SUMMARY_ROOM_DIVISOR).min(SUMMARY_ROOM_MAX))
    }

    /// Returns true if the request for a summary may have all messages: the service has not refused them in this
    /// turn, and they fit into the window, if it is known.
    fn can_send_all(&mut self, rules: &RunRules) -> bool {
        let tokens = self.request_tokens(rules);
        let is_overflow = self.run.as_ref().is_some_and(|run| run.turn().is_some());
        !is_overflow
            && self.window(rules).is_none_or(|window| {
                tokens.saturating_add(self.summary_request_tokens(window / 2)) <= window
            })
    }

    /// Asks for a summary. The request has all messages, so that the service reads most of them from its cache. If
    /// they are too many, it has only those that the summary replaces.
    fn request_summary(&mut self, rules: &RunRules, plan: SummaryPlan) {
        let meter = self.token_meter();
        let (messages, sent): (MessageList, _) = match self.can_send_all(rules) {
            true if self.run.is_some() => {
                (self.history.messages().clone(), self.request_tokens(rules))
            }
            // No request had the messages behind the newest response. A service may refuse them.
            true => {
                let all = self.history.messages();
                let mut accepted = accepted_len(all);
                // A response with calls needs their results, which follow it.
                let newest = accepted.checked_sub(1).and_then(|at| all.get(at));
                if let Some(Message::Assistant(response)) = newest.map(|newest| &**newest)
                    && !response.calls.is_empty()
                {
                    accepted -= 1;
                }
                let messages = all.iter().take(accepted.max(plan.replaced_messages));
                (messages.cloned().collect(), self.request_tokens(rules))
            }
            false => {
                let messages = self.history.messages().iter().take(plan.replaced_messages);
                let size: u64 = messages.clone().map(|message| estimate_message(message)).sum();
                (messages.cloned().collect(), meter.part(rules.fixed_tokens + size))
            }
        };
        let question = meter.part(estimate_text(SUMMARY_REQUEST));
        let output_room = self
            .size_basis(rules)
            .map(|window| window.saturating_sub(sent.saturating_add(question)));
        self.context.pending_summary = Some(plan);
        self.context.summary_requested_after = Some(self.turn);
        let overrides = self.current_overrides();
        let ended = self.context.ended_run.as_ref().map(|run| &run.id);
        let run_id = self.run.as_ref().map(|run| &run.id).or(ended).cloned();
        let request = SummaryRequest { run_id, overrides, messages, output_room };
        self.outbox.push_back(SessionEffect::RequestSummary(Box::new(request)));
    }

    /// Returns the messages that a change leaves.
    fn applied(&self, change: &Compaction) -> AppliedChange {
        let applied = compaction::apply(change, self.history.messages(), self.first_of_last_run());
        match change {
            Compaction::Included { messages } => self.with_included(messages, applied),
            Compaction::Cleared { .. }
            | Compaction::Formatted { .. }
            | Compaction::Summarised { .. }
            | Compaction::Dropped { .. }
            | Compaction::Excluded { .. } => applied,
        }
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
    pub(super) fn first_of_last_run(&self) -> usize {
        let ended = self.context.ended_run.as_ref().map(|run| run.first_message);
        let first = self.run.as_ref().map(|run| run.first_message).or(ended);
        first.unwrap_or_else(|| self.history.messages().len())
    }

    pub(super) fn record_change(&mut self, rules: &RunRules, change: Compaction) {
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
            Compaction::Cleared { calls, cut, .. } => {
                let last = calls.last().max(cut.last().map(|cut| &cut.call));
                last.map_or(self.turn, |key| key.turn)
            }
            Compaction::Formatted { .. }
            | Compaction::Excluded { .. }
            | Compaction::Included { .. } => self.turn,
            Compaction::Summarised { messages, .. } | Compaction::Dropped { messages, .. } => {
                let kept = self.history.messages().get(*messages..).unwrap_or_default();
                let turns = kept.iter().filter(|m| matches!(***m, Message::Assistant(_)));
                self.turn.saturating_sub(u32::try_from(turns.count()).unwrap_or(u32::MAX))
            }
        };
        let change = Box::new(change);
        let record = Record::Compacted { change, upto, tokens_before, tokens_after, usage };
        self.record(vec![record]);
    }

    /// Records that a summary is not used, with the reason and the tokens that it used.
    fn record_failed_summary(
        &mut self,
        rules: &RunRules,
        tokens: u64,
        reason: SummaryFailure,
        usage: Usage,
    ) {
        let (limit, action) = (COMPACT_AT.to_owned(), "summary_failed".to_owned());
        let window = self.window(rules).unwrap_or_default();
        let (value, maximum) = (tokens, rules.context.compact_at.part_of(window));
        let reason = Some(reason);
        let record =
            Record::LimitReached { limit, value, maximum, action, reason, note: None, usage };
        self.record(vec![record]);
    }
}

/// Returns the largest request that leaves room for an answer in the window.
fn largest_request(window: u64) -> u64 {
    window - (window / ANSWER_ROOM_DIVISOR).min(ANSWER_ROOM_MAX)
}

/// Returns the largest request that needs no smaller context: the share of the window at which a summary is asked
/// for, or else results are cleared.
fn goal(policy: &ContextPolicy, window: u64) -> u64 {
    let share = if policy.compact_at.is_zero() { policy.clear_at } else { policy.compact_at };
    let most = largest_request(window);
    if share.is_zero() { most } else { share.part_of(window).min(most) }
}
