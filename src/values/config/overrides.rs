//! The overrides of a run: changes to its agent's configuration.
//!
//! Unless the agent has `allow_overrides`, a run may only reduce what its agent allows: lower
//! limits, fewer concurrent calls, fewer tools, more approvals, one of the agent's models. No limit counts as the
//! highest value. The system prompt and the temperature cannot be reduced, so changing them requires
//! `allow_overrides`. Every run may set `stream`, `tool_choice` and the form of its answer, and add instructions, and tools
//! that its client executes.

use std::fmt::Debug;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::client_tools::ClientTool;
use super::duration::parse_duration;
use super::limits::Limits;
use super::output::{OutputRequest, Temperature};
use super::tools::ApprovalPolicy;
use crate::types::{Execution, InvalidValue, ToolChoice};

/// The changes of one run to its agent's configuration. `None` means no change.
///
/// ```
/// use callsheet::config::{Execution, RunOverrides};
/// use callsheet::prelude::*;
///
/// let overrides = RunOverrides::default().with(|new| new.execution = Some(Execution::Parallel { max: 4 }));
/// let request = RunRequest::from("Compare both.").with(|new| new.overrides = overrides);
/// # let _ = request;
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunOverrides {
    /// The execution mode of tool calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execution: Option<Execution>,
    /// The limits.
    #[serde(skip_serializing_if = "LimitOverrides::is_none")]
    pub limits: LimitOverrides,
    /// The configured model to use first. The agent's other models follow in their order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The names or patterns of the tools that the run may call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// True if a response may have more than one tool call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multi_tool_calls: Option<bool>,
    /// True if responses are streamed, for all its models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// The approval policy of all its tools, in addition to the policies of the tools. `never` replaces them, which
    /// requires `allow_overrides` if one of them asks for an approval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalPolicy>,
    /// The rule for calling tools. A call is forced in the first turn only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_choice: Option<ToolChoice>,
    /// The system prompt, in place of the agent's. Requires `allow_overrides`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// A text behind the system prompt. Every run may add one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// The sampling temperature. Requires `allow_overrides`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<Temperature>,
    /// The maximum length of a response in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<NonZeroU32>,
    /// The form of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<OutputRequest>,
    /// Tools whose calls the client executes, in addition to those of the session and of the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_tools: Option<Arc<[ClientTool]>>,
}

/// The limits of one run, by configuration key. 0 means no limit.
///
/// ```
/// use callsheet::config::{LimitOverrides, RunOverrides};
///
/// let limits = LimitOverrides::default().with(|new| new.max_turns = Some(3));
/// let overrides = RunOverrides::default().with(|new| new.limits = limits);
/// # let _ = overrides;
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct LimitOverrides {
    /// See [`Limits::max_turns`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_turns: Option<u32>,
    /// See [`Limits::max_failed_turns`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_failed_turns: Option<u32>,
    /// See [`Limits::max_tokens_per_run`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens_per_run: Option<u64>,
    /// See [`Limits::max_tool_calls_per_run`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tool_calls_per_run: Option<u32>,
    /// See [`Limits::repeat_limit`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repeat_limit: Option<u32>,
    /// See [`Limits::max_tool_calls_per_turn`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tool_calls_per_turn: Option<u32>,
    /// See [`Limits::tool_timeout`]. A string such as `"30s"`.
    #[serde(with = "duration_text", skip_serializing_if = "Option::is_none")]
    pub tool_timeout: Option<Duration>,
    /// See [`Limits::run_timeout`]. A string such as `"10m"`.
    #[serde(with = "duration_text", skip_serializing_if = "Option::is_none")]
    pub run_timeout: Option<Duration>,
    /// See [`Limits::max_arguments_bytes`]. It cannot be unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_arguments_bytes: Option<NonZeroUsize>,
    /// See [`Limits::max_result_bytes`]. It cannot be unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_result_bytes: Option<NonZeroUsize>,
    /// See [`Limits::max_variables_bytes`]. It cannot be unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_variables_bytes: Option<NonZeroUsize>,
}

/// A run has an override that its agent does not allow, or that is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {requested} is {problem} ({allowed})")]
pub struct InvalidOverride {
    /// The configuration key.
    pub key: &'static str,
    /// The requested value.
    pub requested: String,
    /// The value, names or range that the agent allows.
    pub allowed: String,
    /// The relation of the requested value to `allowed`.
    problem: &'static str,
}

impl InvalidOverride {
    /// Creates the error of a value that exceeds the agent's.
    pub fn new(key: &'static str, requested: impl ToString, allowed: impl ToString) -> Self {
        let (requested, allowed) = (requested.to_string(), allowed.to_string());
        Self { key, requested, allowed, problem: "more than the agent allows" }
    }
}

impl RunOverrides {
    /// Sets the sampling temperature. Requires `allow_overrides`.
    ///
    /// # Errors
    /// If it is not a number from 0 to 2.
    pub fn with_temperature(self, temperature: f64) -> Result<Self, InvalidValue> {
        Ok(Self { temperature: Some(Temperature::new(temperature)?), ..self })
    }

    /// Asks for an answer that matches a JSON schema: `RunReport::output`.
    /// `SessionHandle::run_typed` does so for a type.
    ///
    /// ```
    /// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # use callsheet::model::ModelReply;
    /// # use callsheet::testing::FakeModel;
    /// use callsheet::config::RunOverrides;
    /// use callsheet::prelude::*;
    /// use serde_json::json;
    ///
    /// # let model = FakeModel::replies([ModelReply::text("Five."), ModelReply::text(r#"{"sum": 5}"#)]);
    /// # let host = Host::builder().model_source("fake", model).start().await?;
    /// # let session = host.open_session("demo").await?;
    /// let schema = json!({"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]});
    /// let overrides = RunOverrides::default().with_output_schema(schema);
    /// let request = RunRequest::from("What is 2 + 3?").with(|new| new.overrides = overrides);
    /// let report = session.run(request).await?;
    /// assert_eq!(report.output.as_deref(), Some(&json!({"sum": 5})));
    /// # host.shutdown().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn with_output_schema(self, schema: Value) -> Self {
        Self { output: Some(OutputRequest::new(schema)), ..self }
    }

    /// Returns whether there are no changes.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Returns whether the client tools are the only difference.
    pub fn differ_only_in_client_tools(&self, other: &Self) -> bool {
        let without = |overrides: &Self| Self { client_tools: None, ..overrides.clone() };
        self.client_tools != other.client_tools && without(self) == without(other)
    }

    /// Returns the execution mode of the run.
    ///
    /// # Errors
    /// If it allows no call, or more than [`Execution::PARALLEL_MAX`] concurrent ones, or if `may_raise` is false and
    /// it allows more than the agent's.
    pub fn execution(
        &self,
        configured: Execution,
        may_raise: bool,
    ) -> Result<Execution, InvalidOverride> {
        let permits = |execution| match execution {
            Execution::Sequential => 1,
            Execution::Parallel { max } => max,
        };
        let is_valid = |execution| (1..=Execution::PARALLEL_MAX).contains(&permits(execution));
        match self.execution {
            Some(requested) if !is_valid(requested) => {
                let range = format!("parallel:1 to parallel:{}", Execution::PARALLEL_MAX);
                let problem = "outside the valid range";
                Err(InvalidOverride {
                    problem,
                    ..InvalidOverride::new("execution", requested, range)
                })
            }
            Some(requested) if !may_raise && permits(requested) > permits(configured) => {
                Err(InvalidOverride::new("execution", requested, configured))
            }
            Some(requested) => Ok(requested),
            None => Ok(configured),
        }
    }

    /// Returns whether the run allows multiple tool calls per response.
    ///
    /// # Errors
    /// If the run enables it, the agent does not, and `may_raise` is false.
    pub fn multi_tool_calls(
        &self,
        configured: bool,
        may_raise: bool,
    ) -> Result<bool, InvalidOverride> {
        match self.multi_tool_calls {
            Some(true) if !configured && !may_raise => {
                Err(InvalidOverride::new("multi_tool_calls", true, configured))
            }
            Some(requested) => Ok(requested),
            None => Ok(configured),
        }
    }

    /// Returns the approval policy of a tool with the policy `configured`.
    ///
    /// # Errors
    /// If the run disables approvals that the tool requires, and `may_raise` is false.
    pub fn approval(
        &self,
        tool: &str,
        configured: ApprovalPolicy,
        may_raise: bool,
    ) -> Result<ApprovalPolicy, InvalidOverride> {
        match self.approval {
            Some(ApprovalPolicy::NEVER) if configured.is_asked() && !may_raise => {
                let allowed = format!("{tool}: {configured}");
                Err(InvalidOverride::new("approval", ApprovalPolicy::NEVER, allowed))
            }
            Some(ApprovalPolicy::NEVER) => Ok(ApprovalPolicy::NEVER),
            Some(requested) => Ok(configured.union(requested)),
            None => Ok(configured),
        }
    }
}

impl RunOverrides {
    /// Returns the maximum length of a response, in tokens, of a model with the maximum `configured`.
    ///
    /// # Errors
    /// If it exceeds the model's, and `may_raise` is false.
    pub fn max_output_tokens(
        &self,
        configured: Option<u32>,
        may_raise: bool,
    ) -> Result<Option<u32>, InvalidOverride> {
        match (self.max_output_tokens.map(NonZeroU32::get), configured) {
            (Some(requested), Some(configured)) if requested > configured && !may_raise => {
                Err(InvalidOverride::new("max_output_tokens", requested, configured))
            }
            (requested, configured) => Ok(requested.or(configured)),
        }
    }
}

impl LimitOverrides {
    /// Returns whether no limit changes.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// Implements the overrides of the limits that may be `None`, and of the sizes, which may not.
macro_rules! limit_overrides {
    (limits: $($limit:ident),+; sizes: $($size:ident),+) => {
        impl LimitOverrides {
            /// Returns the limits of an agent with these overrides.
            ///
            /// # Errors
            /// If a limit exceeds the agent's and `may_raise` is false. Names the first one.
            pub fn apply(&self, limits: &Limits, may_raise: bool) -> Result<Limits, InvalidOverride> {
                let Self { $($limit,)+ $($size),+ } = *self;
                let mut new = limits.clone();
                $(
                    let key = concat!("limits.", stringify!($limit));
                    new.$limit = apply_limit(key, $limit, limits.$limit, may_raise)?;
                )+
                $(
                    let (key, own) = (concat!("limits.", stringify!($size)), limits.$size);
                    let size = apply_limit(key, $size.map(NonZeroUsize::get), Some(own), may_raise)?;
                    new.$size = size.unwrap_or(own);
                )+
                Ok(new)
            }
        }

        impl Limits {
            /// The configuration keys of the limits that can be reached.
            pub const NAMES: [&str; 11] = [$(stringify!($limit),)+ $(stringify!($size)),+];
        }
    };
}

limit_overrides! {
    limits: max_turns, max_failed_turns, max_tokens_per_run, max_tool_calls_per_run, repeat_limit,
        max_tool_calls_per_turn, tool_timeout, run_timeout;
    sizes: max_arguments_bytes, max_result_bytes, max_variables_bytes
}

/// Applies one limit. A `requested` of `None` means no change, and zero no limit. A `configured` of `None` means no
/// limit. No limit is the highest value.
fn apply_limit<T: Copy + Debug + Default + PartialOrd>(
    key: &'static str,
    requested: Option<T>,
    configured: Option<T>,
    may_raise: bool,
) -> Result<Option<T>, InvalidOverride> {
    let Some(requested) = requested else { return Ok(configured) };
    let requested = Some(requested).filter(|requested| *requested != T::default());
    let fits = match (requested, configured) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(requested), Some(configured)) => requested <= configured,
    };
    if fits || may_raise {
        return Ok(requested);
    }
    let format =
        |limit: Option<T>| limit.map_or("0 (no limit)".to_owned(), |limit| format!("{limit:?}"));
    Err(InvalidOverride::new(key, format(requested), format(configured)))
}

/// Serialises time limits as strings that can be read back: in milliseconds, rounded up, because 0 means no limit,
/// and at most `LONGEST`.
pub(super) mod duration_text {
    use super::super::duration::LONGEST;
    use super::{Deserialize, Deserializer, Duration, Serializer, parse_duration};

    pub(in crate::config) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
        let invalid = |reason| serde::de::Error::custom(format!("this limit {reason}"));
        parse_duration(&text).map(Some).map_err(invalid)
    }

    pub(in crate::config) fn serialize<S: Serializer>(
        time: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => {
                let milliseconds = (*time).min(LONGEST).as_nanos().div_ceil(1_000_000);
                serializer.collect_str(&format_args!("{milliseconds}ms"))
            }
            None => serializer.serialize_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::AskedCalls;
    use crate::config::duration::LONGEST;

    fn parsed(json: &str) -> Result<RunOverrides, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn methods_set_the_temperature_and_the_form_of_the_answer() {
        let overrides = RunOverrides::default().with_temperature(0.5).unwrap();
        let schema = serde_json::json!({"type": "object"});
        let json = r#"{"temperature": 0.5, "output": {"schema": {"type": "object"}}}"#;
        assert_eq!(Ok(overrides.with_output_schema(schema)), parsed(json));
        assert!(RunOverrides::default().with_temperature(2.5).is_err());
    }

    #[track_caller]
    fn check(json: &str, may_raise: bool, expect: Result<Limits, &str>) {
        let own = Limits { max_failed_turns: None, ..Limits::default() };
        let applied = parsed(json).unwrap().limits.apply(&own, may_raise);
        assert_eq!(applied.map_err(|error| error.to_string()), expect.map_err(str::to_owned));
    }

    #[test]
    fn limits_may_be_lowered_and_no_limit_is_the_highest() {
        let own = Limits { max_failed_turns: None, ..Limits::default() };
        check("{}", false, Ok(own.clone()));
        let lower = Limits {
            max_turns: Some(2),
            max_failed_turns: Some(1),
            tool_timeout: Some(Duration::from_millis(50)),
            ..own
        };
        let json = r#"{"limits": {"max_turns": 2, "max_failed_turns": 1, "tool_timeout": "50ms"}}"#;
        check(json, false, Ok(lower));
        let more = r#"{"limits": {"max_turns": 11}}"#;
        check(more, false, Err("limits.max_turns: 11 is more than the agent allows (10)"));
        check(more, true, Ok(Limits { max_turns: Some(11), ..own }));
        let none = r#"{"limits": {"run_timeout": "0s"}}"#;
        let error = "limits.run_timeout: 0 (no limit) is more than the agent allows (1800s)";
        check(none, false, Err(error));
        check(none, true, Ok(Limits { run_timeout: None, ..own }));
    }

    #[test]
    fn budgets_and_sizes_may_be_lowered_and_sizes_have_no_zero() {
        let own = Limits { max_failed_turns: None, ..Limits::default() };
        let budgets = r#"{"limits": {"max_tokens_per_run": 5000000000, "repeat_limit": 2,
            "max_tool_calls_per_run": 7, "max_arguments_bytes": 10, "max_result_bytes": 20}}"#;
        let lower = Limits {
            max_tokens_per_run: Some(5_000_000_000),
            max_tool_calls_per_run: Some(7),
            repeat_limit: Some(2),
            max_arguments_bytes: 10,
            max_result_bytes: 20,
            ..own
        };
        check(budgets, false, Ok(lower));
        let never = r#"{"limits": {"repeat_limit": 0}}"#;
        let error = "limits.repeat_limit: 0 (no limit) is more than the agent allows (3)";
        check(never, false, Err(error));
        let more = r#"{"limits": {"max_result_bytes": 65537}}"#;
        let error = "limits.max_result_bytes: 65537 is more than the agent allows (65536)";
        check(more, false, Err(error));
        let raised =
            Limits { max_result_bytes: 65537, max_failed_turns: None, ..Limits::default() };
        check(more, true, Ok(raised));
    }

    #[test]
    fn concurrency_and_switches_may_only_be_reduced() {
        let own = Execution::Parallel { max: 4 };
        let requested = |text: &str| parsed(&format!(r#"{{"execution": "{text}"}}"#)).unwrap();
        assert_eq!(requested("sequential").execution(own, false), Ok(Execution::Sequential));
        assert_eq!(requested("parallel:4").execution(own, false), Ok(own));
        let error = requested("parallel:5").execution(own, false).unwrap_err();
        assert_eq!(
            error.to_string(),
            "execution: parallel:5 is more than the agent allows (parallel:4)"
        );
        assert!(requested("parallel").execution(Execution::Sequential, true).is_ok());
        let on = parsed(r#"{"multi_tool_calls": true}"#).unwrap();
        assert!(on.multi_tool_calls(false, false).is_err());
        assert_eq!(on.multi_tool_calls(false, true), Ok(true));
    }

    #[test]
    fn approvals_may_only_be_added() {
        let requested = |text: &str| parsed(&format!(r#"{{"approval": "{text}"}}"#)).unwrap();
        let both = ApprovalPolicy { before: AskedCalls::All, after: true };
        for (word, own, may_raise, expect) in [
            ("before", ApprovalPolicy::NEVER, false, Ok(ApprovalPolicy::BEFORE)),
            ("before", ApprovalPolicy::WRITES, false, Ok(ApprovalPolicy::BEFORE)),
            ("destructive", ApprovalPolicy::WRITES, false, Ok(ApprovalPolicy::WRITES)),
            ("writes", ApprovalPolicy::DESTRUCTIVE, true, Ok(ApprovalPolicy::WRITES)),
            ("before", ApprovalPolicy::AFTER, false, Ok(both)),
            ("after", ApprovalPolicy::AFTER, true, Ok(ApprovalPolicy::AFTER)),
            ("never", ApprovalPolicy::NEVER, false, Ok(ApprovalPolicy::NEVER)),
            ("never", both, true, Ok(ApprovalPolicy::NEVER)),
            (
                "never",
                ApprovalPolicy::DESTRUCTIVE,
                false,
                Err("approval: never is more than the agent allows (pay: destructive)"),
            ),
            (
                "never",
                both,
                false,
                Err("approval: never is more than the agent allows (pay: before and after)"),
            ),
        ] {
            let found = requested(word).approval("pay", own, may_raise);
            let found = found.map_err(|error| error.to_string());
            assert_eq!(found, expect.map_err(str::to_owned), "{word} {own}");
        }
        assert_eq!(RunOverrides::default().approval("pay", both, false), Ok(both));
    }

    #[test]
    fn overrides_that_were_set_in_code_are_recorded_so_that_they_can_be_read() {
        for (time, expected) in [
            (Duration::from_micros(500), Duration::from_millis(1)),
            (Duration::from_micros(1500), Duration::from_millis(2)),
            (Duration::from_secs(3), Duration::from_secs(3)),
            (Duration::MAX, LONGEST),
            (Duration::ZERO, Duration::ZERO),
        ] {
            let overrides = RunOverrides::default().with(|new| new.limits.run_timeout = Some(time));
            let read = parsed(&serde_json::to_string(&overrides).unwrap()).unwrap();
            assert_eq!(read.limits.run_timeout, Some(expected), "{time:?}");
        }
        for before in
            [AskedCalls::None, AskedCalls::Destructive, AskedCalls::Writes, AskedCalls::All]
        {
            for after in [false, true] {
                let approval = Some(ApprovalPolicy { before, after });
                let overrides = RunOverrides::default().with(|new| new.approval = approval);
                let text = serde_json::to_string(&overrides).unwrap();
                assert_eq!(parsed(&text).map(|read| read.approval), Ok(approval), "{text}");
            }
        }
        for text in ["never and after", "after and after", "before and before"] {
            assert!(parsed(&format!(r#"{{"approval": "{text}"}}"#)).is_err(), "{text}");
        }
        for max in [0, 1025] {
            let execution = Some(Execution::Parallel { max });
            let overrides = RunOverrides::default().with(|new| new.execution = execution);
            let error = overrides.execution(Execution::Sequential, true).unwrap_err();
            let reason = "is outside the valid range (parallel:1 to parallel:1024)";
            assert_eq!(error.to_string(), format!("execution: parallel:{max} {reason}"));
        }
    }

    #[test]
    fn an_execution_may_have_the_form_of_the_configuration() {
        let object = parsed(r#"{"execution": {"parallel": 4}}"#).unwrap();
        assert_eq!(object.execution, Some(Execution::Parallel { max: 4 }));
        assert_eq!(object, parsed(r#"{"execution": "parallel:4"}"#).unwrap());
    }

    #[test]
    fn invalid_values_are_reported_by_key() {
        for (json, part) in [
            (r#"{"executoin": "sequential"}"#, "unknown field `executoin`"),
            (r#"{"execution": "fast"}"#, "execution must be \"sequential\""),
            (r#"{"execution": {"parallel": 0}}"#, "with N from 1 to 1024"),
            (r#"{"execution": 7}"#, "execution must be \"sequential\""),
            (r#"{"limits": {"max_turn": 1}}"#, "unknown field `max_turn`"),
            (r#"{"limits": {"tool_timeout": "soon"}}"#, "soon"),
            (r#"{"limits": {"max_result_bytes": 0}}"#, "expected a nonzero"),
            (r#"{"approval": "often"}"#, "or \"before and after\", not \"often\""),
        ] {
            let error = parsed(json).unwrap_err();
            assert!(error.contains(part), "{json}: {error}");
        }
    }
}
