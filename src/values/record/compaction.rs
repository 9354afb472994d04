//! The changes that replace messages of a context.

use serde::{Deserialize, Serialize};

use crate::types::{CallKey, CompactionKind, RunId, Seq};

/// A replacement of messages in the context of a session. The records before it still hold what is
/// replaced.
///
/// It names the replaced messages and holds the new texts, so that a host with another configuration makes the same
/// context of the same records. Only the lines about results, and the words before a summary, are written by the host
/// that reads it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Compaction {
    /// The result of each of these calls becomes one line, or is cut.
    Cleared {
        /// The calls whose results become lines, in the order of their results.
        calls: Vec<CallKey>,
        /// The results that are cut, because no request with all of them would fit into the window.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        cut: Vec<CutResult>,
        /// True if the lines name the references of the results.
        references: bool,
    },
    /// The messages of the last run, without its inputs and summaries, become one message of the model after these.
    Formatted {
        /// The text of the message.
        text: String,
        /// Number of bytes at its beginning that are a hint for the model, not for users.
        hint_bytes: usize,
    },
    /// The first messages become the last of the users' messages among them, and a summary.
    Summarised {
        /// The summary.
        text: String,
        /// Number of messages that it replaces.
        messages: usize,
        /// Number of the last users' messages among them that stay.
        user_messages: usize,
        /// The newest calls (at most 20) among them whose results are neither cleared nor errors. The references of
        /// these results follow the summary.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        results: Vec<CallKey>,
    },
    /// The first messages become the last of the users' messages among them, and one line of the host. No model has
    /// summarised them.
    Dropped {
        /// Number of messages that are dropped.
        messages: usize,
        /// Number of the last users' messages among them that stay.
        user_messages: usize,
        /// The newest calls (at most 20) among them whose results are neither cleared nor errors. Their references
        /// are in the line.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        results: Vec<CallKey>,
        /// The newest runs (at most 20) that had ended before. The references of their answers are in the line.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        runs: Vec<RunId>,
    },
    /// Each of these messages becomes one line, or its images do, because a service refused the content or a client
    /// asked for it.
    Excluded {
        /// The messages, in their order.
        messages: Vec<ExcludedMessage>,
        /// True if the lines name the references of the results.
        references: bool,
        /// True if the service's error did not name the content. Then it comes back if the turn ends without an
        /// accepted request.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        tentative: bool,
    },
    /// These messages have the content again that was left out.
    Included {
        /// The messages, in their order.
        messages: Vec<ExcludedMessage>,
    },
}

/// A message whose content is left out, or comes back.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ExcludedMessage {
    /// Its index in the context at this record.
    pub index: usize,
    /// The record of the input, if it is a user's message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<Seq>,
    /// The call, if it is a result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<CallKey>,
    /// True if only its images are left out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub images: bool,
}

impl ExcludedMessage {
    /// Returns the name of the message and of the part, for people: `t1a1c0`, `record 7 (images)`. A message with which
    /// the session was opened has only its index, from 0.
    #[must_use]
    pub fn name(&self) -> String {
        let message = match (self.call, self.seq) {
            (Some(call), _) => call.to_string(),
            (None, Some(seq)) => format!("record {}", seq.0),
            (None, None) => format!("message {}", self.index),
        };
        if self.images { format!("{message} (images)") } else { message }
    }
}

/// A result that is cut.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CutResult {
    /// The call.
    pub call: CallKey,
    /// Maximum number of bytes of the result that stay.
    pub bytes_max: usize,
}

/// About the number of bytes of a call's key as JSON.
const CALL_KEY_BYTES: usize = 34;
/// About the number of bytes of an [`ExcludedMessage`] as JSON.
const EXCLUDED_BYTES: usize = 64;

impl Compaction {
    /// Returns about the number of bytes of the change as JSON.
    #[must_use]
    pub fn approximate_bytes(&self) -> usize {
        match self {
            Self::Cleared { calls, cut, .. } => (calls.len() + cut.len()) * CALL_KEY_BYTES,
            Self::Formatted { text, .. } => text.len(),
            Self::Summarised { text, results, .. } => text.len() + results.len() * CALL_KEY_BYTES,
            Self::Dropped { results, runs, .. } => (results.len() + runs.len()) * CALL_KEY_BYTES,
            Self::Excluded { messages, .. } | Self::Included { messages } => {
                messages.len() * EXCLUDED_BYTES
            }
        }
    }

    /// Returns its kind.
    #[must_use]
    pub fn kind(&self) -> CompactionKind {
        match self {
            Self::Cleared { .. } => CompactionKind::Cleared,
            Self::Formatted { .. } => CompactionKind::Formatted,
            Self::Summarised { .. } => CompactionKind::Summarised,
            Self::Dropped { .. } => CompactionKind::Dropped,
            Self::Excluded { .. } => CompactionKind::Excluded,
            Self::Included { .. } => CompactionKind::Included,
        }
    }

    /// Returns the messages whose content it leaves out or brings back.
    #[must_use]
    pub fn excluded_messages(&self) -> &[ExcludedMessage] {
        match self {
            Self::Excluded { messages, .. } | Self::Included { messages } => messages,
            Self::Cleared { .. }
            | Self::Formatted { .. }
            | Self::Summarised { .. }
            | Self::Dropped { .. } => &[],
        }
    }
}
