//! The parts of a model's message, and the model that wrote it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Wire;

/// The model that wrote a message.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ModelOrigin {
    /// The wire over which the message came.
    pub wire: Wire,
    /// The model's name at its service.
    pub model: String,
}

/// One part of a model's message, in the order in which the service sent them.
///
/// Parts are kept if the service wants data back with the next request that text and calls do not
/// hold: signatures of its reasoning, calls that it ran itself and their results. `members` (one
/// JSON object) and `Raw` (any JSON) are text that only the dialect that wrote it reads. They go
/// back only to the model from which they came. Cloning shares them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "part", rename_all = "snake_case")]
pub enum MessagePart {
    /// The next bytes of the message's text.
    Text {
        /// Number of bytes.
        bytes: usize,
        /// Members that go back with this text.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        members: Option<Arc<str>>,
    },
    /// The next bytes of the message's reasoning.
    Reasoning {
        /// Number of bytes.
        bytes: usize,
        /// Members that go back with this reasoning.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        members: Option<Arc<str>>,
    },
    /// The next bytes of the message's reasoning, which stood in tags in the text.
    TaggedReasoning {
        /// Number of bytes.
        bytes: usize,
        /// The opening tag with the white space around it. Empty if the prompt had it.
        open: Arc<str>,
        /// The closing tag with the white space around it. Empty if it is missing.
        close: Arc<str>,
    },
    /// The call with this index.
    Call {
        /// Its index in the response, from 0.
        index: u32,
        /// Members that go back with this call.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        members: Option<Arc<str>>,
    },
    /// A part of the service's own.
    Raw {
        /// The part as the service sent it.
        json: Arc<str>,
    },
}
