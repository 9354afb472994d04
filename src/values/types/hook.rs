//! Hooks: the points at which they are asked, and their decisions.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A point of a run at which hooks are asked.
///
/// A field of [`HookRule`](crate::config::HookRule).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HookPoint {
    /// A turn is about to request a response from the model.
    BeforeRequest,
    /// A call is complete and has not started.
    BeforeCall,
    /// A tool has answered, and its result is not final yet.
    AfterCall,
    /// A turn has all its results, and is not committed.
    AfterTurn,
    /// A run has ended. Hooks are only notified.
    RunEnd,
}

impl HookPoint {
    /// Every point, with its name in the configuration.
    pub const WORDS: [(&'static str, Self); 5] = [
        ("before_request", Self::BeforeRequest),
        ("before_call", Self::BeforeCall),
        ("after_call", Self::AfterCall),
        ("after_turn", Self::AfterTurn),
        ("run_end", Self::RunEnd),
    ];

    /// Returns the name in the configuration.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BeforeRequest => "before_request",
            Self::BeforeCall => "before_call",
            Self::AfterCall => "after_call",
            Self::AfterTurn => "after_turn",
            Self::RunEnd => "run_end",
        }
    }

    /// Returns whether hooks are asked about a call.
    #[must_use]
    pub fn concerns_call(self) -> bool {
        match self {
            Self::BeforeCall | Self::AfterCall => true,
            Self::BeforeRequest | Self::AfterTurn | Self::RunEnd => false,
        }
    }
}

impl fmt::Display for HookPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The verdict of a hook, from weak to strict. The strictest of several applies.
///
/// A field of `HookAnswer`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum HookVerdict {
    /// The hook has no objection. Approvals that the tool needs are still requested.
    #[default]
    Allow,
    /// A person has to approve.
    Ask,
    /// The call does not run, its result is withheld, or the run ends.
    Refuse,
}

impl HookVerdict {
    /// Returns the name in answers and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Ask => "ask",
            Self::Refuse => "refuse",
        }
    }
}

/// The decision of all hooks that were asked at a point.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HookDecision {
    /// The strictest verdict.
    pub verdict: HookVerdict,
    /// The name of the hook with this verdict, unless all allow.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub hook: Option<Arc<str>>,
    /// The message of that hook, or the description of its failure.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub message: Option<Arc<str>>,
    /// The arguments of the call, if a hook has changed them.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub arguments: Option<Arc<Value>>,
    /// The result of the call, if a hook has changed it: a text, or a value for programs.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub result: Option<Arc<Value>>,
    /// The messages of the request, if a hook has changed them.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub messages: Option<Arc<Value>>,
    /// The parameters of the request, if a hook has changed them.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub parameters: Option<Arc<Value>>,
}
