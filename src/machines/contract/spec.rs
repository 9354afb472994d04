//! The description of a tool: its name and schema for the model, its policy for the schedule.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use schemars::JsonSchema;
use serde_json::Value;

use super::ParsedSchema;
use callsheet_values::config::{
    AgentToolConfig, ApprovalPolicy, AskedCalls, CallRate, StartPolicy, ToolEffect,
};
use callsheet_values::types::InvalidValue;

/// Default of [`ToolSpec::approval_timeout`].
const APPROVAL_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// Default of [`ToolSpec::breaker_open_for`].
const BREAKER_OPEN_FOR: Duration = Duration::from_secs(10);

/// The longest period of [`ToolSpec::max_rate`].
const RATE_PERIOD_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Name and schema of a tool for the model, and its policy for the schedule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ToolSpec {
    /// The name: `[a-zA-Z0-9_-]{1,64}`, which every provider accepts.
    pub name: String,
    /// The description that the model reads.
    pub description: String,
    /// The JSON schema of the arguments.
    pub input: ParsedSchema,
    /// Effects of a call outside this process.
    pub effect: ToolEffect,
    /// The moment at which a sealed call may start; only used for tools with effects.
    pub start: StartPolicy,
    /// Effects of a call may destroy something; only used for tools with effects.
    pub destructive: bool,
    /// Runs alone: a barrier in call order.
    pub exclusive: bool,
    /// May run again with the same idempotency key after a crash.
    pub idempotent: bool,
    /// Identical calls of one response all run; otherwise, as a rule, only the first runs and its result is
    /// copied.
    pub repeatable: bool,
    /// Blocks or computes; runs on a thread of the host's pool for blocking tools.
    pub blocking: bool,
    /// Time limit of one call. If `None`, the agent's `tool_timeout`; a tool that runs an agent then has no limit.
    pub timeout: Option<Duration>,
    /// Phases of a call that need a person's approval.
    pub approval: ApprovalPolicy,
    /// Time limit of an approval, which then counts as rejected, of the answer to a question of the tool, and of a
    /// call that the client runs.
    pub approval_timeout: Duration,
    /// A call may have to wait until its session is connected to the tool's server.
    pub waits_for_server: bool,
    /// Number of its calls that may run at once in the whole host; unlimited if `None`.
    pub max_concurrent: Option<NonZeroU32>,
    /// Maximum number of further attempts of a failed call, if it may be sent again.
    pub retries: u32,
    /// Maximum rate of its calls in the whole host; unlimited if `None`.
    pub rate: Option<CallRate>,
    /// Number of failed attempts of calls in a row that open its circuit breaker; 0: it never opens.
    pub breaker_failures: u32,
    /// Time for which the circuit breaker stays open. Doubles with each failed probe, up to eightfold.
    pub breaker_open_for: Duration,
    /// Maximum number of bytes of a result that the model sees; the agent's `max_result_bytes` if `None`.
    pub max_result_bytes: Option<NonZeroUsize>,
    /// True if its results are never cleared from the context.
    pub keep: bool,
    /// The agent that its calls run.
    pub agent: Option<Box<AgentToolConfig>>,
    /// True if the client runs its calls: see [`ClientTool`](callsheet_values::config::ClientTool).
    pub by_client: bool,
}

callsheet_values::impl_with!(ToolSpec);

impl ToolSpec {
    /// Describes a tool with effects whose arguments are `Input`. The defaults are safe for any
    /// tool: it starts only after the response has finished, and never runs twice.
    #[must_use]
    pub fn new<Input: JsonSchema>(name: impl Into<String>, description: impl Into<String>) -> Self {
        Self::with_schema(name, description, ParsedSchema::of::<Input>())
    }

    /// Describes a typed tool or a closure as [`Self::new`] does. Its input type gives the schema.
    #[must_use]
    pub fn named(name: impl Into<String>, description: impl Into<String>) -> Self {
        Self::new::<()>(name, description)
    }

    /// Describes a tool as [`Self::new`] does, with an existing JSON schema.
    ///
    /// ```
    /// use callsheet::tool::ToolSpec;
    /// use serde_json::json;
    ///
    /// let schema = json!({ "type": "object", "properties": { "query": { "type": "string" } } });
    /// let spec = ToolSpec::with_json_schema("search", "Searches the orders.", schema)?;
    /// # let _ = spec;
    /// # Ok::<(), callsheet::InvalidValue>(())
    /// ```
    ///
    /// # Errors
    /// If it is not a valid JSON schema, refers to another document, or is too large.
    pub fn with_json_schema(
        name: impl Into<String>,
        description: impl Into<String>,
        schema: Value,
    ) -> Result<Self, InvalidValue> {
        Ok(Self::with_schema(name, description, ParsedSchema::parse(schema)?))
    }

    /// Describes a tool as [`Self::new`] does, with a compiled JSON schema.
    #[must_use]
    pub fn with_schema(
        name: impl Into<String>,
        description: impl Into<String>,
        input: ParsedSchema,
    ) -> Self {
        Self {
            name: name.into(),
            description: description.into(),
            input,
            effect: ToolEffect::Some,
            start: StartPolicy::OnFinish,
            destructive: true,
            exclusive: false,
            idempotent: false,
            repeatable: false,
            blocking: false,
            timeout: None,
            approval: ApprovalPolicy::NEVER,
            approval_timeout: APPROVAL_TIMEOUT,
            waits_for_server: false,
            max_concurrent: None,
            retries: 0,
            rate: None,
            breaker_failures: 0,
            breaker_open_for: BREAKER_OPEN_FOR,
            max_result_bytes: None,
            keep: false,
            agent: None,
            by_client: false,
        }
    }

    /// Declares that a call has no effects outside this process: it may start on its seal.
    #[must_use]
    pub fn pure(mut self) -> Self {
        self.effect = ToolEffect::None;
        self
    }

    /// Lets a call start on its own seal although it has effects.
    #[must_use]
    pub fn start_on_seal(mut self) -> Self {
        self.start = StartPolicy::OnSeal;
        self
    }

    /// Makes a call run alone, as a barrier in call order.
    #[must_use]
    pub fn exclusive(mut self) -> Self {
        self.exclusive = true;
        self
    }

    /// Lets a call run again with the same idempotency key after a crash.
    #[must_use]
    pub fn idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }

    /// Makes identical calls of one response all run.
    #[must_use]
    pub fn repeatable(mut self) -> Self {
        self.repeatable = true;
        self
    }

    /// Runs calls on the host's threads for blocking tools, because they block or compute.
    #[must_use]
    pub fn blocking(mut self) -> Self {
        self.blocking = true;
        self
    }

    /// Sets the time limit of one call.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets the time limit of an approval, of the answer to a question of the tool, and of a call that the client
    /// runs. Default: 24 hours.
    #[must_use]
    pub fn approval_timeout(mut self, timeout: Duration) -> Self {
        self.approval_timeout = timeout;
        self
    }

    /// Sets what needs a person's approval within [`Self::approval_timeout`]: calls before they run, their results,
    /// or both. Default: nothing.
    #[must_use]
    pub fn approval(mut self, approval: ApprovalPolicy) -> Self {
        self.approval = approval;
        self
    }

    /// Limits how many calls run at once in the whole host, over all sessions; 0 counts as 1.
    /// Further calls wait, and the sessions take turns.
    #[must_use]
    pub fn max_concurrent(mut self, calls: u32) -> Self {
        self.max_concurrent = NonZeroU32::new(calls).or(Some(NonZeroU32::MIN));
        self
    }

    /// Sets how many times a failed call is tried again, within its time limit. Only calls that may be sent
    /// twice are: of a tool without effects, of an idempotent one, or if the call was certainly not sent.
    /// `ToolError` says whether another attempt may help.
    #[must_use]
    pub fn retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    /// Limits the rate of calls in the whole host, over all sessions: of 10 in a second, one starts every
    /// 100 ms. Further calls wait, and the sessions take turns. 0 calls count as 1, a period above a day as a day;
    /// a period of zero is no limit.
    #[must_use]
    pub fn max_rate(mut self, calls: u32, period: Duration) -> Self {
        let calls = NonZeroU32::new(calls).unwrap_or(NonZeroU32::MIN);
        self.rate = Some(CallRate::per(calls, period.min(RATE_PERIOD_MAX)));
        self
    }

    /// Limits the rate of calls in the whole host, as [`Self::max_rate`] does.
    #[must_use]
    pub fn rate(mut self, rate: CallRate) -> Self {
        self.rate = Some(rate);
        self
    }

    /// Opens a circuit breaker after a number of failed attempts of calls in a row. While it is open, calls are
    /// answered at once. After `open_for` one call at a time tests whether the tool works again.
    #[must_use]
    pub fn breaker(mut self, failures: u32, open_for: Duration) -> Self {
        (self.breaker_failures, self.breaker_open_for) = (failures, open_for);
        self
    }

    /// Declares that its results are never cleared from the context. A summary of the context, or the short form of
    /// an ended run, still replaces them.
    #[must_use]
    pub fn keep(mut self) -> Self {
        self.keep = true;
        self
    }

    /// Limits the part of a result that the model sees, instead of the agent's `max_result_bytes`. The
    /// journal keeps the whole result, up to 16 MiB. 0 counts as 1.
    #[must_use]
    pub fn max_result_bytes(mut self, bytes: usize) -> Self {
        self.max_result_bytes = NonZeroUsize::new(bytes).or(Some(NonZeroUsize::MIN));
        self
    }

    /// Returns whether calls may have to wait for other calls of the tool.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.max_concurrent.is_some() || self.rate.is_some()
    }

    /// Declares that the effects of calls destroy nothing. [`ApprovalPolicy::DESTRUCTIVE`] then asks for
    /// no approval.
    #[must_use]
    pub fn not_destructive(mut self) -> Self {
        self.destructive = false;
        self
    }

    /// Returns whether a call needs approval before it runs.
    #[must_use]
    pub fn asks_before(&self) -> bool {
        match self.approval.before {
            AskedCalls::None => false,
            AskedCalls::Destructive => self.has_effects() && self.destructive,
            AskedCalls::Writes => self.has_effects(),
            AskedCalls::All => true,
        }
    }

    /// Returns the time limit of a call. A tool without its own has the agent's `tool_timeout`, but a tool that runs
    /// an agent has none.
    #[must_use]
    pub fn timeout_or(&self, tool_timeout: Option<Duration>) -> Option<Duration> {
        self.timeout.or(tool_timeout.filter(|_| self.agent.is_none()))
    }

    /// Returns true if a call has effects outside this process.
    #[must_use]
    pub fn has_effects(&self) -> bool {
        self.effect == ToolEffect::Some
    }

    /// Returns true if a sealed call may start before the response has ended.
    #[must_use]
    pub fn may_start_early(&self) -> bool {
        !self.has_effects() || self.start == StartPolicy::OnSeal
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_maximum_rate_is_a_number_of_calls_in_a_period() {
        let rate = |calls| ToolSpec::named("t", "").max_rate(calls, Duration::from_secs(60)).rate;
        assert_eq!(rate(100), "100/m".parse::<CallRate>().ok());
        assert_eq!(rate(0), "1/m".parse::<CallRate>().ok());
    }

    #[test]
    fn approval_policies_ask_for_more_and_more_calls() {
        let writes = ToolSpec::named("writes", "");
        let appends = writes.clone().not_destructive();
        let reads = writes.clone().pure();
        for (policy, asked) in [
            (ApprovalPolicy::NEVER, [false, false, false]),
            (ApprovalPolicy::AFTER, [false, false, false]),
            (ApprovalPolicy::DESTRUCTIVE, [true, false, false]),
            (ApprovalPolicy::WRITES, [true, true, false]),
            (ApprovalPolicy::BEFORE, [true, true, true]),
        ] {
            let asks = |spec: &ToolSpec| spec.clone().approval(policy).asks_before();
            assert_eq!([&writes, &appends, &reads].map(asks), asked, "{policy}");
        }
    }
}
