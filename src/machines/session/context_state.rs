//! The state of a session that concerns the size of its context.

use std::sync::Arc;

use crate::context::compaction::{AppliedChange, SummaryPlan};
use crate::context::tokens::{ModelTokens, TokenMeter};
use callsheet_values::config::RunOverrides;
use callsheet_values::record::Compaction;
use callsheet_values::types::RunId;
use callsheet_wire::PromptChange;

/// The measurements and pending changes of the context.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct ContextState {
    pub(super) token_meter: TokenMeter,
    /// The window and ratio of the first model, learnt by the host from all sessions. The host sets them, so they
    /// are not durable.
    pub(super) model: ModelTokens,
    /// Number of summaries that failed or had no effect since the last input or the last successful summary.
    pub(super) failed_summaries: u32,
    /// The last run that has ended.
    pub(super) ended_run: Option<EndedRun>,
    /// The summary that was asked for. Not durable: after a crash it is asked for again if a turn needs it.
    pub(super) pending_summary: Option<SummaryPlan>,
    /// The last turn that had begun when a summary was asked for last. Before the turn after it, the session asks for
    /// no second one by itself. Not durable.
    pub(super) summary_requested_after: Option<u32>,
    /// Changes come from records, and none is decided.
    pub(super) is_replayed: bool,
    /// The history keeps the messages that are left out of requests, so that it has everything that was said.
    pub(super) keeps_all_messages: bool,
    /// A client asked for a smaller context, and nothing has been done yet. Not durable.
    pub(super) compact_requested: bool,
    /// The last request that was made.
    pub(super) requested: RequestedPrompt,
    /// A change since that request, after which the next one may begin with other bytes.
    pub(super) prompt_change: Option<PromptChange>,
    /// The change that the last request was made with. The request may be stopped before it is sent, so the next
    /// one is made with it too, until a response proves that one was sent. Not durable.
    pub(super) unsent_change: Option<PromptChange>,
    /// The change whose record follows, with the messages that it leaves. Not durable.
    pub(super) prepared: Option<Box<(Compaction, AppliedChange)>>,
}

/// The part of a request before its messages that is compared with that of the next request.
///
/// It is read from records, but a living session knows of a request before it is recorded. Decides nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct RequestedPrompt {
    /// The hash of model, system text and tools.
    pub(super) hash: Option<u64>,
    /// The overrides of its run.
    pub(super) overrides: Arc<RunOverrides>,
}

/// A run that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct EndedRun {
    pub(super) id: RunId,
    /// The index of its first message.
    pub(super) first_message: usize,
    /// True once it is decided whether its messages become one.
    pub(super) is_formatted: bool,
}
