//! The parts of a model's message.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Wire;

/// The model that produced a message.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ModelOrigin {
    /// The wire over which it came.
    pub wire: Wire,
    /// The model's name at its service.
    pub model: String,
}

/// One part of a model's message, in the order in which the service sent them.
///
/// Parts are kept where the service wants something back with the next request that text and
/// calls do not hold: signatures of its thinking, calls that it ran itself and their results.
/// `members` (one JSON object) and `Raw` (any JSON) are text that only the dialect which wrote it
/// reads, and they go back only to the model that they came from. Cloning shares them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "part", rename_all = "snake_case")]
pub enum MessagePart {
    /// The next so many bytes of the message's text.
    Text {
        /// The number of bytes.
        bytes: usize,
        /// The provider data of this text.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        members: Option<Arc<str>>,
    },
    /// The next so many bytes of the message's reasoning.
    Reasoning {
        /// The number of bytes.
        bytes: usize,
        /// The provider data of this reasoning.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        members: Option<Arc<str>>,
    },
    /// The call with this index.
    Call {
        /// Its place in the response, from 0.
        index: u32,
        /// The provider data of this call.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        members: Option<Arc<str>>,
    },
    /// A part that is the service's own.
    Raw {
        /// The part as it was.
        json: Arc<str>,
    },
}
