//! Tests of a tool without a host.
//!
//! ```
//! use callsheet::testing::ToolTest;
//! use callsheet::tool::{ToolContext, ToolError, ToolSpec, TypedTool};
//! use serde_json::json;
//!
//! #[derive(serde::Deserialize, schemars::JsonSchema)]
//! struct Query { table: String }
//!
//! struct Tenant(&'static str);
//!
//! struct CountRows;
//!
//! impl TypedTool for CountRows {
//!     type Input = Query;
//!     type Output = u64;
//!
//!     fn spec(&self) -> ToolSpec {
//!         ToolSpec::named("count_rows", "Counts the rows of a table.").pure()
//!     }
//!
//!     async fn call(&self, input: Query, context: ToolContext) -> Result<u64, ToolError> {
//!         let Tenant(tenant) = context.extension()?;
//!         context.progress(format!("{tenant}: {}", input.table));
//!         let queries = context.get::<u64>("queries")?.unwrap_or(0) + 1;
//!         context.set("queries", queries)?;
//!         Ok(42)
//!     }
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
//! let mut test = ToolTest::new(CountRows).variable("queries", 1).extension(Tenant("acme"));
//! let call = test.call(json!({ "table": "users" })).await;
//! assert_eq!(call.output::<u64>(), 42);
//! assert_eq!(call.progress, ["acme: users"]);
//! assert_eq!(call.written["queries"], 2);
//!
//! let call = test.call(json!({ "tabel": "users" })).await;
//! assert!(call.error().message().contains("\"table\" is a required property"));
//! # });
//! # Ok::<(), std::io::Error>(())
//! ```

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;

use super::{Extensions, Tool, ToolContext, ToolContextParts, ToolError, ToolOutput, ToolSpec};
use callsheet_machines::context::Variables;
use callsheet_machines::context::VariablesTransaction;
use callsheet_values::config::Limits;
use callsheet_values::types::{Answer, CallKey, RunId, SessionId, WriteSet};

/// Runs calls of a tool as a host does: the arguments pass the tool's schema, the variables that a
/// call has written are there for the next one, and a call is cancelled at its deadline. The
/// session, the run and the agent are called `test`. Unlike in a host, panics of the tool are not caught, a failed
/// call is not tried again, and a result that comes within `cancel_grace` after the cancellation counts.
///
/// ```
/// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use callsheet::prelude::*;
/// use callsheet::testing::ToolTest;
/// use serde_json::json;
///
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// struct Number { n: i64 }
/// let double = ToolSpec::named("double", "Doubles a number.")
///     .into_tool(async |number: Number, _| Ok(number.n * 2));
/// let tested = ToolTest::new(double).call(json!({ "n": 21 })).await;
/// assert_eq!(tested.output::<i64>(), 42);
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
pub struct ToolTest {
    tool: Arc<dyn Tool>,
    spec: ToolSpec,
    variables: Variables,
    extensions: Extensions,
    cancel_after: Option<Duration>,
    answers: Arc<Mutex<VecDeque<Answer>>>,
    calls: u32,
}

/// A call that [`ToolTest::call`] has made.
///
/// Returned by [`ToolTest::call`]; [`ToolTest`] shows its use.
#[derive(Debug)]
#[non_exhaustive]
pub struct TestedCall {
    /// The output, or the error for the model.
    pub result: Result<ToolOutput, ToolError>,
    /// The progress texts.
    pub progress: Vec<String>,
    /// The variables that the call has written. A call that failed writes none.
    pub written: BTreeMap<String, Value>,
}

impl ToolTest {
    /// Prepares calls of this tool.
    #[must_use]
    pub fn new(tool: impl Tool) -> Self {
        Self {
            spec: tool.spec(),
            tool: Arc::new(tool),
            variables: Variables::default(),
            extensions: Extensions::new(),
            cancel_after: None,
            answers: Arc::default(),
            calls: 0,
        }
    }

    /// Changes the spec, as the `[tools.NAME]` section of a configuration can.
    #[must_use]
    pub fn update_spec(mut self, update: impl FnOnce(&mut ToolSpec)) -> Self {
        update(&mut self.spec);
        self
    }

    /// Sets a variable of the session.
    ///
    /// # Panics
    /// If the value cannot be serialised.
    #[must_use]
    #[track_caller]
    pub fn variable(mut self, name: &str, value: impl Serialize) -> Self {
        match serde_json::to_value(value) {
            Ok(value) => self.variables.apply(&WriteSet([(name.into(), Arc::new(value))].into())),
            Err(error) => panic!("the variable {name:?} cannot be serialised: {error}"),
        }
        self
    }

    /// Gives the calls a value of the embedding program.
    #[must_use]
    pub fn extension<T: Send + Sync + 'static>(mut self, value: T) -> Self {
        self.extensions.insert(value);
        self
    }

    /// Cancels each call after this time; with zero it is cancelled when it starts.
    #[must_use]
    pub fn cancel_after(self, time: Duration) -> Self {
        Self { cancel_after: Some(time), ..self }
    }

    /// Adds an answer to a question of the tool. They are given in their order; a question without one is
    /// declined.
    #[must_use]
    pub fn answer(self, answer: Answer) -> Self {
        self.answers.lock().push_back(answer);
        self
    }

    /// Runs one call. A tool that does not return within the default `cancel_grace` after its
    /// cancellation is dropped, and the call fails.
    pub async fn call(&mut self, arguments: impl Serialize) -> TestedCall {
        self.calls += 1;
        let progress = Arc::new(Mutex::new(Vec::new()));
        let (result, writes) = match self.arguments(arguments) {
            Ok(arguments) => self.run(arguments, &progress).await,
            Err(error) => (Err(error), WriteSet::default()),
        };
        let committed = if result.is_ok() { writes } else { WriteSet::default() };
        self.variables.apply(&committed);
        let written = committed.0.iter().map(|(name, value)| (name.to_string(), (**value).clone()));
        let written = written.collect();
        let progress = std::mem::take(&mut *progress.lock());
        TestedCall { result, progress, written }
    }

    /// Returns the arguments as JSON if they fit the tool's schema.
    fn arguments(&self, arguments: impl Serialize) -> Result<Value, ToolError> {
        let arguments = serde_json::to_value(arguments)?;
        match self.spec.input.first_violation(&arguments) {
            None => Ok(arguments),
            Some(violation) => Err(ToolError::new(format!("invalid arguments: {violation}"))),
        }
    }

    /// Runs the tool. Returns its result and the variables that it has written.
    async fn run(
        &self,
        arguments: Value,
        progress: &Arc<Mutex<Vec<String>>>,
    ) -> (Result<ToolOutput, ToolError>, WriteSet) {
        let limits = Limits::default();
        let transaction =
            VariablesTransaction::new(self.variables.clone(), limits.max_variables_bytes);
        let variables = Arc::new(Mutex::new(transaction));
        let cancellation = CancellationToken::new();
        // Tasks that the tool has spawned are notified of the end of the call.
        let _over = cancellation.clone().drop_guard();
        let (now, texts) = (Instant::now(), Arc::clone(progress));
        let answers = Arc::clone(&self.answers);
        let timeout = self.spec.timeout.or(limits.tool_timeout);
        let deadline = timeout.and_then(|timeout| now.checked_add(timeout));
        let name: Arc<str> = self.spec.name.as_str().into();
        let key = CallKey { turn: self.calls, attempt: 1, index: 0 };
        let context = ToolContext::new(ToolContextParts {
            effect: self.spec.effect,
            deadline,
            extensions: self.extensions.clone(),
            cancellation: cancellation.clone(),
            progress: Box::new(move |text| texts.lock().push(text)),
            ask: Box::new(move |_| {
                let answer = answers.lock().pop_front().unwrap_or(Answer::Declined(None));
                Box::pin(std::future::ready(answer))
            }),
            variables: Arc::clone(&variables),
            max_result_bytes: limits.max_result_bytes,
            ..test_parts(name, key, Arc::new(arguments))
        });
        let cancel_at = self.cancel_after.and_then(|time| now.checked_add(time));
        let cancel_at = [deadline, cancel_at].into_iter().flatten().min();
        if cancel_at == Some(now) {
            cancellation.cancel();
        }
        let cancelled = async {
            let Some(at) = cancel_at else { return std::future::pending().await };
            sleep_until(at).await;
            cancellation.cancel();
            tokio::time::sleep(limits.cancel_grace).await;
        };
        let result = tokio::select! {
            biased;
            result = self.tool.run(context) => result,
            () = cancelled => {
                let grace = limits.cancel_grace;
                Err(ToolError::new(format!("the tool still ran {grace:?} after its cancellation")))
            }
        };
        let used = variables.lock().take();
        (result, used.writes)
    }
}

impl fmt::Debug for ToolTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolTest").field("spec", &self.spec).finish_non_exhaustive()
    }
}

impl TestedCall {
    /// Returns the text that the model reads.
    ///
    /// # Panics
    /// If the call failed.
    #[must_use]
    #[track_caller]
    pub fn text(&self) -> Cow<'_, str> {
        match &self.result {
            Ok(output) => output.text(),
            Err(error) => panic!("the call failed: {error:?}"),
        }
    }

    /// Returns the output as a value, deserialised from the text that the model reads. A text that is not JSON of
    /// this type is read as a string.
    ///
    /// # Panics
    /// If the call failed, or the output has another type.
    #[must_use]
    #[track_caller]
    pub fn output<T: DeserializeOwned>(&self) -> T {
        let text = self.text();
        let parsed = serde_json::from_str(&text).or_else(|error| {
            // A `String` is plain text.
            serde_json::from_value(Value::String(text.clone().into_owned())).map_err(|_| error)
        });
        match parsed {
            Ok(output) => output,
            Err(error) => panic!("the output {text:?} has another type: {error}"),
        }
    }

    /// Returns the error for the model.
    ///
    /// # Panics
    /// If the call succeeded.
    #[must_use]
    #[track_caller]
    pub fn error(&self) -> &ToolError {
        match &self.result {
            Ok(output) => panic!("the call succeeded: {}", output.text()),
            Err(error) => error,
        }
    }
}

/// Returns a context for a test that calls [`Tool::run`] itself. It has no time limit, can write no
/// variables, drops progress texts, and its questions are declined.
#[must_use]
pub fn tool_context(arguments: impl Into<Arc<Value>>) -> ToolContext {
    let key = CallKey { turn: 1, attempt: 1, index: 0 };
    ToolContext::new(test_parts("test".into(), key, arguments.into()))
}

fn test_parts(tool: Arc<str>, key: CallKey, arguments: Arc<Value>) -> ToolContextParts {
    #[expect(clippy::expect_used, reason = "the id is valid by its characters")]
    let session = SessionId::parse("test").expect("`test` is a session id");
    ToolContextParts {
        agents: None,
        session,
        run: RunId("test".into()),
        agent: "test".into(),
        tool,
        key,
        arguments,
        effect: callsheet_values::config::ToolEffect::default(),
        deadline: None,
        trace: None,
        extensions: Extensions::new(),
        cancellation: CancellationToken::new(),
        progress: Box::new(|_| {}),
        ask: Box::new(|_| Box::pin(std::future::ready(Answer::Declined(None)))),
        variables: Arc::default(),
        max_result_bytes: Limits::default().max_result_bytes,
        offered: None,
        references: None,
    }
}

#[cfg(test)]
mod tests {
    use schemars::JsonSchema;
    use serde::Deserialize;
    use serde_json::json;

    use super::*;
    use crate::IntoTool as _;
    use crate::RegistryError;
    use crate::ToolRegistry;
    use crate::TypedTool;
    use callsheet_values::config::ToolEffect;

    #[derive(Deserialize, JsonSchema)]
    struct Step {
        /// The number to add.
        by: u32,
    }

    #[derive(Debug, PartialEq, Deserialize, Serialize)]
    struct Sum {
        total: u32,
    }

    struct Limit(u32);

    #[derive(Debug, thiserror::Error)]
    #[error("{0} is above the limit")]
    struct AboveLimit(u32);

    /// Adds to the variable `total`.
    struct Add;

    impl TypedTool for Add {
        type Input = Step;
        type Output = Sum;

        fn spec(&self) -> ToolSpec {
            ToolSpec::named("add", "Adds.").pure().timeout(Duration::from_secs(3))
        }

        async fn call(&self, input: Step, context: ToolContext) -> Result<Sum, ToolError> {
            let total = context.get("total")?.unwrap_or(0) + input.by;
            context.set("total", total)?;
            context.progress(format!("{total}"));
            if total > context.extension::<Limit>()?.0 {
                Err(AboveLimit(total))?;
            }
            Ok(Sum { total })
        }
    }

    #[tokio::test]
    async fn a_typed_tool_reads_and_writes_typed_values() {
        let mut test = ToolTest::new(Add).variable("total", 1).extension(Limit(10));
        let call = test.call(json!({ "by": 4 })).await;
        assert_eq!(call.text(), "{\"total\":5}");
        assert_eq!(call.output::<Sum>(), Sum { total: 5 });
        assert_eq!(
            (call.progress, call.written),
            (vec!["5".to_owned()], [("total".into(), json!(5))].into())
        );
        let call = test.call(json!({ "by": 5 })).await;
        assert_eq!(call.output::<Sum>(), Sum { total: 10 });
    }

    #[tokio::test]
    async fn a_failed_call_writes_nothing_and_keeps_its_source() {
        let mut test = ToolTest::new(Add).variable("total", 8).extension(Limit(10));
        let call = test.call(json!({ "by": 3 })).await;
        assert_eq!(call.error().message(), "11 is above the limit");
        assert!(call.error().source().is_some_and(<dyn std::error::Error>::is::<AboveLimit>));
        assert!(call.written.is_empty());
        assert_eq!(test.call(json!({ "by": 2 })).await.output::<Sum>(), Sum { total: 10 });
    }

    #[tokio::test]
    async fn arguments_that_violate_the_schema_do_not_reach_the_tool() {
        let mut test = ToolTest::new(Add).extension(Limit(10));
        for (arguments, violation) in [
            (json!({}), "\"by\" is a required property"),
            (json!({ "by": "x" }), "/by: \"x\" is not of type \"integer\""),
            (json!([]), "[] is not of type \"object\""),
        ] {
            let call = test.call(arguments).await;
            assert_eq!(call.error().message(), format!("invalid arguments: {violation}"));
            assert!(call.progress.is_empty());
        }
    }

    #[tokio::test]
    async fn values_of_another_type_are_errors_of_the_call() {
        let call = ToolTest::new(Add).call(json!({ "by": 1 })).await;
        let message = call.error().message();
        assert!(
            message.starts_with("no value of the type ") && message.contains("Limit"),
            "{message}"
        );
        let call = ToolTest::new(Add).variable("total", "many").call(json!({ "by": 1 })).await;
        let message = call.error().message();
        assert!(message.starts_with("the variable \"total\" cannot be read: "), "{message}");
    }

    #[tokio::test]
    async fn a_closure_is_a_tool() {
        let tool =
            ToolSpec::named("double", "Doubles.").idempotent().into_tool(async |input: Step, _| {
                Ok(input.by.checked_mul(2).ok_or(AboveLimit(input.by))?)
            });
        let mut test = ToolTest::new(tool);
        assert_eq!(test.spec.input.as_value()["required"], json!(["by"]));
        assert!(test.spec.idempotent);
        assert_eq!(test.call(json!({ "by": 4 })).await.text(), "8");
        let call = test.call(json!({ "by": u32::MAX })).await;
        assert_eq!(call.error().message(), "4294967295 is above the limit");
    }

    #[tokio::test]
    async fn a_tool_without_arguments_has_the_input_unit() {
        let spec = ToolSpec::named("greet", "Greets.");
        let tool = spec.into_tool(async |(): (), _| Ok("\"hello\"".to_owned()));
        let mut test = ToolTest::new(tool);
        let schema = json!({ "type": "object", "properties": {} });
        assert_eq!(*test.spec.input.as_value(), schema);
        let call = test.call(json!({})).await;
        assert_eq!((&*call.text(), call.output::<String>()), ("\"hello\"", "hello".to_owned()));
    }

    #[test]
    fn an_input_that_is_no_object_is_not_registered() {
        let tool = ToolSpec::named("text", "Reads.").into_tool(async |text: String, _| Ok(text));
        let refused = ToolRegistry::new().register(tool);
        assert_eq!(refused, Err(RegistryError::InputNotAnObject("text".to_owned())));
    }

    #[tokio::test]
    async fn the_context_identifies_the_call() {
        let tool = ToolSpec::named("who", "Describes the call.").pure().into_tool(
            async |(): (), context: ToolContext| {
                assert_eq!(context.effect(), ToolEffect::None);
                let (session, run) = (context.session(), context.run());
                let (agent, tool) = (context.agent(), context.tool());
                Ok(format!("{session} {run} {agent} {tool} {}", context.idempotency_key()))
            },
        );
        let call = ToolTest::new(tool).call(json!({})).await;
        assert_eq!(call.text(), "test test test who test/t1a1c0");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_is_cancelled_on_request_and_at_its_deadline() {
        let wait = || {
            ToolSpec::named("wait", "Waits.").timeout(Duration::from_secs(3)).into_tool(
                async |(): (), context: ToolContext| {
                    let started = Instant::now();
                    assert_eq!(context.deadline(), Some(started + Duration::from_secs(3)));
                    let early = context.is_cancelled();
                    context.cancelled().await;
                    Ok((early, started.elapsed().as_secs()))
                },
            )
        };
        let test = |tool| ToolTest::new(tool);
        assert_eq!(test(wait()).call(json!({})).await.text(), "[false,3]");
        let mut cancelled = test(wait()).cancel_after(Duration::from_secs(2));
        assert_eq!(cancelled.call(json!({})).await.text(), "[false,2]");
        let mut cancelled = test(wait()).cancel_after(Duration::ZERO);
        assert_eq!(cancelled.call(json!({})).await.text(), "[true,0]");
    }

    #[tokio::test(start_paused = true)]
    async fn a_tool_that_ignores_its_cancellation_is_dropped() {
        let tool = ToolSpec::named("hang", "Hangs.").into_tool(async |(): (), _| {
            std::future::pending::<()>().await;
            Ok(())
        });
        let call = ToolTest::new(tool).cancel_after(Duration::ZERO).call(json!({})).await;
        assert_eq!(call.error().message(), "the tool still ran 1s after its cancellation");
    }
}
