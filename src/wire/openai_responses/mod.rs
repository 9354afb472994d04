//! OpenAI's Responses, and the dialects of services that follow it.
//!
//! Format: OpenAI's API reference,
//! <https://platform.openai.com/docs/api-reference/responses-streaming>. The `type` of a payload
//! decides, whatever its event is named. A response is a list of items. The service sends nearly
//! everything several times: in pieces, as a whole, with its item, and with the response. The first
//! time counts and repetitions are ignored, except that the complete arguments of a call replace its
//! pieces. A plain body is the response that the last event of a stream holds.
//!
//! Reasoning items and items of tools that the service ran are kept whole, because the service
//! wants them back unchanged, each before the item that it led to. An item that the service first
//! mentions after a later one is not kept.

mod decode;
mod decode_items;
mod messages;
mod metadata;
mod payload;
mod request;
mod stream;

use stream::ItemTracker;

/// The dialect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OpenaiResponsesDialect {
    items: ItemTracker,
    /// A reasoning item was kept, so the item that it led to must go back as an item too.
    has_reasoning: bool,
    /// A reasoning item was lost, so nothing that it led to may go back as an item.
    lost_reasoning: bool,
    /// The maximum number of output tokens that the request asked for.
    output_tokens_max: Option<u64>,
}

impl OpenaiResponsesDialect {
    /// Creates the dialect of the response to a request for at most this number of output tokens.
    pub(super) fn new(output_tokens_max: Option<u64>) -> Self {
        Self { output_tokens_max, ..Self::default() }
    }
}

#[cfg(test)]
mod tests;
