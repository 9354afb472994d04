//! Approvals of tool calls: phases and verdicts.

use serde::{Deserialize, Serialize};

/// The point at which a call needs approval.
///
/// [`ApprovalQuestion`](crate::ApprovalQuestion) has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalPhase {
    /// Before the call runs.
    Before,
    /// After the call ran, before the model sees its result.
    After,
}

impl ApprovalPhase {
    /// Returns the name for clients, logs and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::After => "after",
        }
    }
}

/// The verdict of an approval.
///
/// [`CallReport`](crate::CallReport) has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Approved.
    Approved,
    /// Rejected.
    Rejected,
    /// No decision arrived in time. The call is treated as rejected.
    Expired,
}

impl Verdict {
    /// Every verdict.
    pub const ALL: [Self; 3] = [Self::Approved, Self::Rejected, Self::Expired];

    /// Returns the name for clients, logs and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Approved => "approved",
            Self::Rejected => "rejected",
            Self::Expired => "expired",
        }
    }
}

/// A verdict with an optional message.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Judgement {
    /// The verdict of an approval.
    pub verdict: Verdict,
    /// The message of the person who decided. After a rejection the model receives it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub message: Option<String>,
}
