//! Anthropic's Messages.
//!
//! Format: Anthropic's API reference, <https://docs.anthropic.com/en/api/messages-streaming>. A
//! message is a list of content blocks. Each has an index, a start, pieces and a stop, which seals a
//! call. The `type` of a payload decides; the event's name counts only without it, except for `error`
//! (see `decoder`). The token counts of `message_delta` update those of `message_start`.

mod decode;
mod messages;
mod metadata;
mod payload;
mod request;
mod stream;
mod usage;

use callsheet_values::types::FinishKind;

use stream::BlockTracker;
use usage::UsageCounts;

/// The dialect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AnthropicDialect {
    blocks: BlockTracker,
    counts: UsageCounts,
    /// The kind of the last finish reason.
    finish: Option<FinishKind>,
    /// The finish reason of `message_start`. It counts if `message_stop` comes and no other reason came before.
    initial_finish_reason: Option<String>,
}

#[cfg(test)]
mod tests;
