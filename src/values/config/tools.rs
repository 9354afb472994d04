//! The changes of the configuration to a tool (`[tools.NAME]`): effects, approvals, limits.

use std::fmt;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::error::quoted_names;
use super::key_table::{self, key_table, named_values};
use super::{ConfiguredTool, Proxy};
use crate::types::excerpt;

/// The effects of a tool's calls outside the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolEffect {
    /// Calls have no effect outside the process. They may start early and may be repeated.
    None,
    /// Calls may have effects outside the process. They wait for the response to complete, unless [`StartPolicy`]
    /// says otherwise. A retry repeats only calls that are idempotent or were certainly not sent.
    #[default]
    Some,
}

/// The time at which a sealed call of a tool with effects may start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartPolicy {
    /// After the response has completed.
    #[default]
    OnFinish,
    /// As soon as the call is sealed, even if the response breaks later.
    OnSeal,
}

/// The approval policy of a tool.
///
/// ```
/// use callsheet::prelude::*;
///
/// let pay = ToolSpec::named("pay", "Pays a bill.").approval(ApprovalPolicy::BEFORE);
/// let pay = pay.into_tool(async |(): (), _| Ok("paid"));
/// # let _ = pay;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ApprovalPolicy {
    /// The calls that need approval before they run.
    pub before: AskedCalls,
    /// Approval is needed before the model sees the result.
    pub after: bool,
}

/// The calls that need approval before they run, from none to all.
///
/// ```
/// use callsheet::config::AskedCalls;
/// use callsheet::prelude::*;
///
/// assert_eq!(ApprovalPolicy::WRITES.before, AskedCalls::Writes);
/// let tool = ToolSpec::named("read", "Reads.").pure().approval(ApprovalPolicy::WRITES);
/// assert!(!tool.asks_before());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AskedCalls {
    /// None.
    #[default]
    None,
    /// Those of tools whose effects destroy something.
    Destructive,
    /// Those of tools with effects.
    Writes,
    /// All.
    All,
}

impl ApprovalPolicy {
    /// No approval is needed.
    pub const NEVER: Self = Self { before: AskedCalls::None, after: false };
    /// Approval is needed before a call of a destructive tool runs.
    pub const DESTRUCTIVE: Self = Self { before: AskedCalls::Destructive, after: false };
    /// Approval is needed before a call of a tool with effects runs.
    pub const WRITES: Self = Self { before: AskedCalls::Writes, after: false };
    /// Approval is needed before a call runs.
    pub const BEFORE: Self = Self { before: AskedCalls::All, after: false };
    /// Approval is needed before the model sees the result.
    pub const AFTER: Self = Self { before: AskedCalls::None, after: true };

    /// The values in the configuration and in requests.
    const NAMES: [(&'static str, Self); 8] = [
        ("never", Self::NEVER),
        ("destructive", Self::DESTRUCTIVE),
        ("writes", Self::WRITES),
        ("before", Self::BEFORE),
        ("after", Self::AFTER),
        ("destructive and after", Self { after: true, ..Self::DESTRUCTIVE }),
        ("writes and after", Self { after: true, ..Self::WRITES }),
        ("before and after", Self { after: true, ..Self::BEFORE }),
    ];

    /// Returns whether any approval is needed.
    #[must_use]
    pub fn is_asked(self) -> bool {
        self != Self::NEVER
    }

    /// Returns the union of both policies.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self { before: self.before.max(other.before), after: self.after || other.after }
    }
}

impl fmt::Display for ApprovalPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = Self::NAMES.into_iter().find(|(_, policy)| policy == self);
        f.write_str(found.map_or("", |(name, _)| name))
    }
}

impl Serialize for ApprovalPolicy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ApprovalPolicy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let found = Self::NAMES.into_iter().find(|(name, _)| *name == text);
        found.map(|(_, policy)| policy).ok_or_else(|| {
            let (names, text) = (quoted_names(&Self::NAMES), excerpt(&text, 64));
            serde::de::Error::custom(format!("approval is {names}, not {text:?}"))
        })
    }
}

/// A maximum rate of calls, such as `10/s`, `100/m` or `5000/h`.
///
/// ```
/// use std::time::Duration;
/// use callsheet::config::CallRate;
///
/// let rate: CallRate = "10/s".parse()?;
/// assert_eq!(rate.interval(), Duration::from_millis(100));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallRate {
    calls: NonZeroU32,
    period: Duration,
}

impl CallRate {
    /// Makes a rate of a number of calls in a period.
    pub fn per(calls: NonZeroU32, period: Duration) -> Self {
        Self { calls, period }
    }

    /// Returns the minimum time between the starts of two calls.
    #[must_use]
    pub fn interval(self) -> Duration {
        self.period / self.calls.get()
    }
}

impl FromStr for CallRate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let periods = [("s", 1), ("m", 60), ("h", 3600)];
        let parsed = text.split_once('/').and_then(|(calls, unit)| {
            let (_, seconds) = periods.iter().find(|(name, _)| *name == unit)?;
            Some(Self { calls: calls.parse().ok()?, period: Duration::from_secs(*seconds) })
        });
        let expected = "must be a number of calls per second, minute or hour, such as \"10/s\", \
                        \"100/m\" or \"5000/h\"";
        parsed.ok_or_else(|| format!("{expected}, not {text:?}"))
    }
}

key_table! {
    /// The changes of the configuration to one tool, or the definition of a tool. `None` means no change.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ToolOverride {
        /// The effects of calls outside the process.
        effect: Option<ToolEffect> = None, Any;
        /// True if effects of calls destroy something. Only for `approval = "destructive"`.
        destructive: Option<bool> = None, Any;
        /// The time at which a sealed call may start.
        start: Option<StartPolicy> = None, Any;
        /// True if no other call of the turn runs while a call of this tool runs.
        exclusive: Option<bool> = None, Any;
        /// True if a call may run again with the same idempotency key.
        idempotent: Option<bool> = None, Any;
        /// True if identical calls of one response each run.
        repeatable: Option<bool> = None, Any;
        /// True if its results are never cleared from the context.
        keep: Option<bool> = None, Any;
        /// True if calls run on a thread of the blocking pool.
        blocking: Option<bool> = None => "true or false";
        /// The time limit of a call.
        timeout: Option<Duration> = None => "time above 0";
        /// The approvals that its calls need.
        approval: Option<ApprovalPolicy> = None, Any;
        /// The time limit of an approval, and of the answer to a question. After it, the call, or its result, is
        /// refused.
        approval_timeout: Option<Duration> = None, Positive;
        /// Maximum number of concurrent calls in the host.
        max_concurrent: Option<NonZeroU32> = None, Any;
        /// Maximum rate of calls in the host.
        rate: Option<CallRate> = None, Any;
        /// Maximum number of further attempts of a failed call, if they can do no harm.
        retries: Option<u32> = None, Any;
        /// The number of failed calls in a row that open its circuit breaker; 0: it never opens.
        breaker_failures: Option<u32> = None, Any;
        /// The time for which the circuit breaker stays open. It doubles after each failed probe, up to eight times this
        /// value.
        breaker_open_for: Option<Duration> = None, Positive;
        /// Maximum number of bytes of a result that the model sees, instead of the limit of the agent.
        max_result_bytes: Option<NonZeroUsize> = None, Any;
        /// The definition of a tool that is not registered otherwise: `kind` and its keys.
        definition: Option<ConfiguredTool> = None;
        /// For `read_file`: the root directory.
        root: Option<PathBuf> = None => "path";
        /// For `http_get`: allowed addresses that would be refused by default. Each is `host`, `host:port`, an IP address
        /// or a network such as `10.0.0.0/8`.
        allow: Vec<String> = Vec::new() => "list of texts";
        /// For `http_get`: the proxy through which requests are sent.
        proxy: Proxy = Proxy::None => "\"none\", \"env\" or a URL";
    }
}

named_values!(ToolEffect, [("none", Self::None), ("some", Self::Some)]);
named_values!(StartPolicy, [("on_finish", Self::OnFinish), ("on_seal", Self::OnSeal)]);
named_values!(ApprovalPolicy, Self::NAMES);

impl key_table::Value for CallRate {
    fn form() -> String {
        "rate such as \"10/s\", \"100/m\" or \"5000/h\"".to_owned()
    }

    #[cfg(feature = "toml")]
    fn parse(value: &toml::de::DeValue<'_>) -> Result<Self, String> {
        super::file::values::string(value)?.parse()
    }
}
