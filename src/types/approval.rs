//! What people are asked about a call, and what they say.

use serde::{Deserialize, Serialize};

/// What people are asked about a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalPhase {
    /// May it run?
    Before,
    /// May the model see its result?
    After,
}

impl ApprovalPhase {
    /// The word for clients, logs and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::After => "after",
        }
    }
}

/// What was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It may.
    Approved,
    /// It may not.
    Rejected,
    /// Nobody said anything in time, so it may not.
    Expired,
}

impl Verdict {
    /// Every verdict.
    pub const ALL: [Self; 3] = [Self::Approved, Self::Rejected, Self::Expired];

    /// The word for clients, logs and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Approved => "approved",
            Self::Rejected => "rejected",
            Self::Expired => "expired",
        }
    }
}

/// A verdict, and what was said with it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Judgement {
    /// What was decided.
    pub verdict: Verdict,
    /// What whoever decided has to say; after a rejection the model is told.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub message: Option<String>,
}
