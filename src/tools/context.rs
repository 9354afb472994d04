//! The context of one tool call: its arguments, identity, deadline, cancellation, progress, questions,
//! variables and the values of the embedding program.

use std::any::type_name;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::extensions::MissingExtension;
use super::{AgentCaller, Extensions, ParsedSchema, RegisteredTool, ToolError};
use callsheet_machines::context::VariablesTransaction;
use callsheet_values::config::ToolEffect;
use callsheet_values::types::{
    Answer, CallKey, Question, QuestionKind, Reference, ReferenceError, ReferencedValue, RunId,
    SessionId, TraceContext,
};

/// Receives the progress texts of a call. The caller that provides it bounds their number and size.
pub type ProgressCallback = Box<dyn Fn(String) + Send + Sync>;

/// Asks the people who watch the run of a call, and returns their answer. One question at a time is asked.
pub type AskCallback = Box<dyn Fn(Question) -> BoxFuture<'static, Answer> + Send + Sync>;

/// The largest size of a question, in bytes of JSON.
const QUESTION_BYTES_MAX: usize = 64 << 10;

/// A call's view of the session's variables. The runtime keeps the other reference and collects
/// the call's reads and writes from it.
pub type SharedVariableView = Arc<Mutex<VariablesTransaction>>;

/// Reads the values of a session's references. Knows no variables.
#[async_trait]
pub trait ReferenceReader: Send + Sync {
    /// Returns the value of a reference to a result, to arguments or to an answer.
    async fn read(&self, reference: &Reference) -> Result<ReferencedValue, ReferenceError>;
}

/// The values of a [`ToolContext`].
#[expect(missing_debug_implementations, reason = "it holds functions")]
pub struct ToolContextParts {
    /// The session.
    pub session: SessionId,
    /// The run.
    pub run: RunId,
    /// The name of the agent.
    pub agent: Arc<str>,
    /// The name of the tool.
    pub tool: Arc<str>,
    /// The identity of the call.
    pub key: CallKey,
    /// The arguments.
    pub arguments: Arc<Value>,
    /// The effect of the tool.
    pub effect: ToolEffect,
    /// The time at which the call is killed. `None`: no limit.
    pub deadline: Option<Instant>,
    /// The span of the call, if the run has a trace.
    pub trace: Option<TraceContext>,
    /// Values of the embedding program.
    pub extensions: Extensions,
    /// Fires when the call is cancelled.
    pub cancellation: CancellationToken,
    /// Shows progress.
    pub progress: ProgressCallback,
    /// Asks a person.
    pub ask: AskCallback,
    /// The variables of the session that the call sees.
    pub variables: SharedVariableView,
    /// The agent's maximum number of bytes of a result that the model sees.
    pub max_result_bytes: usize,
    /// The tools that the agent may call, by name, for a tool of a server. `None` for other tools.
    pub offered: Option<Arc<BTreeMap<String, RegisteredTool>>>,
    /// Runs the child of a call of an agent. `None` for other tools.
    pub agents: Option<Arc<dyn AgentCaller>>,
    /// Reads earlier results of the session, for the tool `read_var`. `None` for other tools.
    pub references: Option<Arc<dyn ReferenceReader>>,
}

/// The context of one call. A host makes it for each call; [`ToolTest`](super::testing::ToolTest)
/// makes it in the tests of a tool. Cloning is cheap.
#[derive(Clone)]
pub struct ToolContext(Arc<SharedContext>);

/// The values that all clones of a context share.
struct SharedContext {
    parts: ToolContextParts,
    questions: Questions,
    /// Computed at its first use.
    idempotency_key: OnceLock<String>,
}

/// The questions of a call: one is open at a time.
#[derive(Default)]
struct Questions {
    /// Locked while a question is open.
    open: tokio::sync::Mutex<()>,
    wait: Mutex<QuestionWait>,
}

/// The time for which a call has waited for answers.
#[derive(Default)]
struct QuestionWait {
    /// The time of the questions that have ended.
    ended: Duration,
    /// The time at which the open question was asked.
    open_since: Option<Instant>,
}

impl QuestionWait {
    fn total(&self) -> Duration {
        self.ended + self.open_since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

/// Counts the time of a question, also if the tool does not wait for the answer.
struct QuestionTimer<'a>(&'a Mutex<QuestionWait>);

impl<'a> QuestionTimer<'a> {
    fn start(wait: &'a Mutex<QuestionWait>) -> Self {
        wait.lock().open_since = Some(Instant::now());
        Self(wait)
    }
}

impl Drop for QuestionTimer<'_> {
    fn drop(&mut self) {
        let mut wait = self.0.lock();
        *wait = QuestionWait { ended: wait.total(), open_since: None };
    }
}

impl ToolContext {
    /// Makes the context of a call.
    pub fn new(parts: ToolContextParts) -> Self {
        let (questions, idempotency_key) = Default::default();
        Self(Arc::new(SharedContext { parts, questions, idempotency_key }))
    }

    /// Returns the id of the session.
    #[must_use]
    pub fn session(&self) -> &SessionId {
        &self.0.parts.session
    }

    /// Returns the id of the run.
    #[must_use]
    pub fn run(&self) -> &RunId {
        &self.0.parts.run
    }

    /// Returns the name of the agent that offers the tool.
    #[must_use]
    pub fn agent(&self) -> &str {
        &self.0.parts.agent
    }

    /// Returns the name under which the model has called the tool.
    #[must_use]
    pub fn tool(&self) -> &str {
        &self.0.parts.tool
    }

    /// Returns the turn, the attempt and the call index.
    #[must_use]
    pub fn key(&self) -> CallKey {
        self.0.parts.key
    }

    /// Returns the arguments: a JSON object that is valid for the tool's schema.
    #[must_use]
    pub fn arguments(&self) -> &Value {
        &self.0.parts.arguments
    }

    /// Deserialises the arguments. A [typed tool](super::TypedTool) receives them already
    /// deserialised.
    ///
    /// # Errors
    /// If they do not fit `Input`; the error is [permanent](ToolError::permanent). This cannot happen if
    /// the tool's schema was derived from `Input`, because arguments are checked against the schema before
    /// the call.
    pub fn input<Input: DeserializeOwned>(&self) -> Result<Input, ToolError> {
        let arguments = self.arguments();
        Input::deserialize(arguments).or_else(|error| {
            // An input without fields, such as `()`, may be deserialised from null alone. Arguments of a type that
            // holds no value may be ignored.
            let loses_nothing = arguments.as_object().is_some_and(serde_json::Map::is_empty)
                || size_of::<Input>() == 0;
            let unit = loses_nothing.then(|| Input::deserialize(Value::Null).ok()).flatten();
            let message = || format!("the arguments do not fit: {error}");
            unit.ok_or_else(|| ToolError::new(message()).permanent())
        })
    }

    /// Returns the time at which the call times out: after its tool's `timeout`, or else the agent's
    /// `tool_timeout`, which does not apply to a tool that runs an agent. `None` if the call has no time limit.
    /// The call can be cancelled earlier, for example at the end of its run. The time of [questions](Self::ask)
    /// does not count: while one is open, the deadline moves, so a task that waits for it must read it again.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.0.parts.deadline?.checked_add(self.question_wait())
    }

    /// Returns the runner of the child session, if the tool is an agent.
    pub fn agent_caller(&self) -> Option<&Arc<dyn AgentCaller>> {
        self.0.parts.agents.as_ref()
    }

    /// Returns the values for the tools of a child.
    pub fn extensions(&self) -> &Extensions {
        &self.0.parts.extensions
    }

    /// Returns the time for which the call has waited for answers to its questions.
    pub fn question_wait(&self) -> Duration {
        self.0.questions.wait.lock().total()
    }

    /// Returns a value that the embedding program gave with the run or the session, by its type. A
    /// value of the run precedes one of the session. Values are never stored: after a restart of
    /// the host, only those that were given since are there.
    ///
    /// # Errors
    /// If no value of this type was given.
    ///
    /// ```
    /// use callsheet::tool::{ToolContext, ToolError};
    ///
    /// struct Tenant { name: String }
    ///
    /// async fn run(context: ToolContext) -> Result<String, ToolError> {
    ///     let tenant = context.extension::<Tenant>()?;
    ///     Ok(format!("the tenant is {}", tenant.name))
    /// }
    /// ```
    pub fn extension<T: Send + Sync + 'static>(&self) -> Result<&T, ToolError> {
        let found = self.0.parts.extensions.get();
        Ok(found.ok_or_else(|| MissingExtension(type_name::<T>()))?)
    }

    /// Returns a variable of the session: the value that this call wrote, or else the value at the
    /// call's start, which includes the writes of earlier calls of the turn that had taken effect by then.
    ///
    /// If an earlier call of the turn writes the variable, and this call has started without that write, the
    /// host detects the conflict: a call of a pure tool runs again, if it may still start; any other call keeps
    /// its result, and its writes are discarded.
    ///
    /// # Errors
    /// If the value is no `T`.
    ///
    /// ```
    /// # use callsheet::tool::{ToolContext, ToolError};
    /// fn count_query(context: &ToolContext) -> Result<u64, ToolError> {
    ///     let queries = context.get("queries")?.unwrap_or(0) + 1;
    ///     context.set("queries", queries)?;
    ///     Ok(queries)
    /// }
    /// ```
    pub fn get<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, ToolError> {
        let Some(value) = self.0.parts.variables.lock().get(name) else { return Ok(None) };
        serde_json::from_value(value).map(Some).map_err(|error| {
            let message = format!("the variable {name:?} cannot be read: {error}");
            ToolError::from(error).with_message(message)
        })
    }

    /// Writes a variable. All writes of a call take effect together, once the call has succeeded
    /// and every earlier call of the turn has its outcome. Until then no other call sees them. They are discarded
    /// after a conflict ([`get`](Self::get)), and if all variables together would exceed `max_variables_bytes`.
    ///
    /// # Errors
    /// If the name does not have 1 to 128 bytes, the value cannot be serialised, the call writes
    /// more than `max_variables_bytes`, or the call has ended. Nothing is written then.
    pub fn set(&self, name: &str, value: impl Serialize) -> Result<(), ToolError> {
        let value = serde_json::to_value(value)?;
        self.0.parts.variables.lock().set(name, value).map_err(ToolError::new)
    }

    /// Returns the call's idempotency key: the ids of the run and of the call. It is the same when the call
    /// runs again after a crash, and no other call has it. A pure call that started early, and whose response had not
    /// ended, may be made anew, with another key.
    #[must_use]
    pub fn idempotency_key(&self) -> &str {
        let ToolContextParts { key, run, .. } = &self.0.parts;
        self.0.idempotency_key.get_or_init(|| key.idempotency_key(run))
    }

    /// Returns the tool's effect as its author or the configuration declares it.
    #[must_use]
    pub fn effect(&self) -> ToolEffect {
        self.0.parts.effect
    }

    /// Returns the call's position in a distributed trace, if the run has one. A tool that sends
    /// HTTP requests propagates it in the headers [`TRACEPARENT`](callsheet_values::types::TRACEPARENT) and
    /// [`TRACESTATE`](callsheet_values::types::TRACESTATE).
    #[must_use]
    pub fn trace(&self) -> Option<&TraceContext> {
        self.0.parts.trace.as_ref()
    }

    /// Asks the people who watch the run, and waits for their answer. They receive the question like an
    /// approval, with the phase `input`. Where no person can be asked, it is declined at once.
    ///
    /// The call's timeout stands still while its question is open, and the tool's `approval_timeout`
    /// counts instead. A tool that drops the future withdraws the question. A call asks one question at a
    /// time; another one waits for its turn. After 100 questions of a call, further ones are declined.
    ///
    /// The host keeps the question and the answer in its journal: do not ask for secrets.
    ///
    /// # Errors
    /// If the form is not a JSON schema, or the question is too large.
    ///
    /// ```
    /// use callsheet::tool::{Answer, Question, ToolContext, ToolError};
    /// use serde_json::json;
    ///
    /// async fn run(context: ToolContext) -> Result<String, ToolError> {
    ///     let form = json!({ "type": "object", "properties": { "seats": { "type": "integer" } } });
    ///     match context.ask(Question::form("How many seats?", form)).await? {
    ///         Answer::Accepted(answer) => Ok(format!("booked {}", answer["seats"])),
    ///         _ => Err(ToolError::new("not booked: no answer")),
    ///     }
    /// }
    /// ```
    pub async fn ask(&self, question: Question) -> Result<Answer, ToolError> {
        let bytes = serde_json::to_string(&question)?.len();
        if bytes > QUESTION_BYTES_MAX {
            let message =
                format!("the question has {bytes} bytes; at most {QUESTION_BYTES_MAX} are allowed");
            return Err(ToolError::new(message));
        }
        if let QuestionKind::Form(form) = &question.kind {
            ParsedSchema::parse((**form).clone()).map_err(|invalid| {
                ToolError::new(format!("the form of the question: {invalid}"))
            })?;
        }
        let asked = async {
            let _open = self.0.questions.open.lock().await;
            let _timer = QuestionTimer::start(&self.0.questions.wait);
            (self.0.parts.ask)(question).await
        };
        tokio::select! {
            biased;
            () = self.cancelled() => Ok(Answer::Cancelled),
            answer = asked => Ok(answer),
        }
    }

    /// Waits until the call is cancelled: because its deadline has passed, its run was stopped or has reached
    /// a limit, or the response with the call was discarded. The call's outcome is decided by then, unless the
    /// tool runs an agent; the tool has `cancel_grace` left to clean up. Also returns when the call has ended, so
    /// that tasks which the tool spawned can stop.
    pub async fn cancelled(&self) {
        self.0.parts.cancellation.cancelled().await;
    }

    /// Returns true if the call is cancelled. Tools that compute poll this.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.parts.cancellation.is_cancelled()
    }

    /// Returns the value of a reference. Results and arguments of the current turn cannot be read.
    pub async fn read_reference(
        &self,
        reference: &Reference,
    ) -> Result<ReferencedValue, ReferenceError> {
        match reference {
            Reference::Variable(name) => {
                let value = self.0.parts.variables.lock().get(name);
                let value = value.map(|value| ReferencedValue::json(Arc::new(value)));
                value.ok_or_else(|| ReferenceError::NoSuchVariable(reference.clone()))
            }
            Reference::Result(key) | Reference::Structured(key) | Reference::Arguments(key)
                if key.turn == self.key().turn =>
            {
                Err(ReferenceError::SameTurn(reference.clone()))
            }
            Reference::Result(_)
            | Reference::Structured(_)
            | Reference::Arguments(_)
            | Reference::Answer(_) => match &self.0.parts.references {
                Some(reader) => reader.read(reference).await,
                None => Err(ReferenceError::NoSuchResult(reference.clone())),
            },
        }
    }

    /// Returns the reference of the call's structured value, if the model can read it.
    #[cfg(all(feature = "mcp", target_os = "linux"))]
    pub fn structured_reference(&self) -> Option<Reference> {
        self.offers(callsheet_values::types::READ_VAR).then(|| Reference::Structured(self.key()))
    }

    /// Returns whether the agent may call a tool of this name.
    #[cfg(all(feature = "mcp", target_os = "linux"))]
    pub fn offers(&self, name: &str) -> bool {
        self.0.parts.offered.as_ref().is_some_and(|tools| tools.contains_key(name))
    }

    /// Returns the agent's maximum number of bytes of a result that the model sees.
    pub fn max_result_bytes(&self) -> usize {
        self.0.parts.max_result_bytes
    }

    /// Discards the variables that the call has read and written, because it begins again.
    pub fn begin_again(&self) {
        self.0.parts.variables.lock().begin_again();
    }

    /// Publishes a progress text to live watchers. It is cut at 500 characters and never journaled. After 1,000
    /// texts of a call, further ones are dropped.
    pub fn progress(&self, text: impl Into<String>) {
        (self.0.parts.progress)(text.into());
    }
}

impl fmt::Debug for ToolContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ToolContextParts { session, run, tool, key, .. } = &self.0.parts;
        f.debug_struct("ToolContext")
            .field("session", session)
            .field("run", run)
            .field("tool", tool)
            .field("key", key)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_time_of_a_question_counts_while_it_is_open() {
        let second = Duration::from_secs(1);
        let wait = Mutex::new(QuestionWait::default());
        let total = || wait.lock().total();
        for asked in 0..2 {
            let timer = QuestionTimer::start(&wait);
            tokio::time::advance(second).await;
            assert_eq!(total(), second * (asked + 1));
            drop(timer);
            tokio::time::advance(second).await;
            assert_eq!(total(), second * (asked + 1));
        }
    }
}
