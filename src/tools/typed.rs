//! Typed tools: a type or a closure whose input and output types give the schema, the arguments and
//! the result.

use std::marker::PhantomData;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{ParsedSchema, Tool, ToolContext, ToolError, ToolOutput, ToolSpec};

/// A tool whose input and output are Rust types. Each typed tool is a [`Tool`].
///
/// ```
/// use callsheet::tool::{ToolContext, ToolError, ToolSpec, TypedTool};
///
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// struct Query {
///     /// The name of the table.
///     table: String,
/// }
///
/// #[derive(serde::Serialize)]
/// struct Rows { count: usize }
///
/// /// A tool with state: the tables of a database.
/// struct CountRows { tables: std::collections::HashMap<String, usize> }
///
/// impl TypedTool for CountRows {
///     type Input = Query;
///     type Output = Rows;
///
///     fn spec(&self) -> ToolSpec {
///         ToolSpec::named("count_rows", "Counts the rows of a table.").pure()
///     }
///
///     async fn call(&self, input: Query, _context: ToolContext) -> Result<Rows, ToolError> {
///         let missing = || ToolError::new(format!("there is no table {:?}", input.table));
///         Ok(Rows { count: *self.tables.get(&input.table).ok_or_else(missing)? })
///     }
/// }
/// # let mut tools = callsheet::tool::ToolRegistry::new();
/// # tools.register(CountRows { tables: Default::default() })?;
/// # assert!(tools.tool("count_rows").is_some_and(|tool| tool.spec.input.as_value()["required"][0] == "table"));
/// # Ok::<(), callsheet::tool::RegistryError>(())
/// ```
pub trait TypedTool: Send + Sync + 'static {
    /// The type of the arguments. The tool's schema is derived from it, with the comments of its
    /// fields as their descriptions. A struct, because arguments are a JSON object, or `()` if there
    /// are none. The compiler demands that it is as public as the tool.
    type Input: DeserializeOwned + JsonSchema + Send;

    /// The type of the result. The model reads it as compact JSON, and a string as plain text. A [`ToolOutput`] is
    /// not changed.
    type Output: Serialize + Send + 'static;

    /// Returns the tool's name, description and scheduling policy, made with [`ToolSpec::named`].
    /// The schema is always that of `Input`. Called at registration.
    fn spec(&self) -> ToolSpec;

    /// Runs one call. [`Tool::run`] describes cancellation.
    ///
    /// # Errors
    /// If the call fails; the model reads the message of the [`ToolError`].
    fn call(
        &self,
        input: Self::Input,
        context: ToolContext,
    ) -> impl Future<Output = Result<Self::Output, ToolError>> + Send;
}

#[async_trait]
impl<T: TypedTool> Tool for T {
    fn spec(&self) -> ToolSpec {
        TypedTool::spec(self).with(|spec| spec.input = ParsedSchema::of::<T::Input>())
    }

    async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let input = context.input()?;
        ToolOutput::from_value(self.call(input, context).await?)
    }
}

/// A closure as a tool.
struct FunctionTool<Input, F> {
    spec: ToolSpec,
    function: F,
    _input: PhantomData<fn(Input)>,
}

impl<Input, Output, F, Ran> TypedTool for FunctionTool<Input, F>
where
    Input: DeserializeOwned + JsonSchema + Send + 'static,
    Output: Serialize + Send + 'static,
    F: Fn(Input, ToolContext) -> Ran + Send + Sync + 'static,
    Ran: Future<Output = Result<Output, ToolError>> + Send + 'static,
{
    type Input = Input;
    type Output = Output;

    fn spec(&self) -> ToolSpec {
        self.spec.clone()
    }

    fn call(
        &self,
        input: Input,
        context: ToolContext,
    ) -> impl Future<Output = Result<Output, ToolError>> + Send {
        (self.function)(input, context)
    }
}

/// Closures as tools: [`ToolSpec`] with a closure is a tool. The prelude has this trait.
pub trait IntoTool {
    /// Makes a tool of a closure. The types of the closure give the schema and the result, as those
    /// of a [`TypedTool`] do.
    ///
    /// ```
    /// use callsheet::tool::{IntoTool, ToolRegistry, ToolSpec};
    ///
    /// #[derive(serde::Deserialize, schemars::JsonSchema)]
    /// struct Text { text: String }
    ///
    /// let count_words = ToolSpec::named("count_words", "Counts the words of a text.")
    ///     .pure()
    ///     .into_tool(async |input: Text, _| Ok(input.text.split_whitespace().count()));
    /// # let mut tools = ToolRegistry::new();
    /// # tools.register(count_words)?;
    /// # Ok::<(), callsheet::tool::RegistryError>(())
    /// ```
    ///
    /// A closure that uses a value of its environment clones it for each call:
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use std::sync::atomic::AtomicU64;
    /// # use std::sync::atomic::Ordering;
    /// # use callsheet::tool::{IntoTool, ToolSpec};
    /// let calls = Arc::new(AtomicU64::new(0));
    /// let number = ToolSpec::named("number", "Numbers its calls.").into_tool(move |(): (), _| {
    ///     let calls = Arc::clone(&calls);
    ///     async move { Ok(calls.fetch_add(1, Ordering::Relaxed)) }
    /// });
    /// # let _ = number;
    /// ```
    fn into_tool<Input, Output, F, Ran>(self, function: F) -> impl Tool
    where
        Input: DeserializeOwned + JsonSchema + Send + 'static,
        Output: Serialize + Send + 'static,
        F: Fn(Input, ToolContext) -> Ran + Send + Sync + 'static,
        Ran: Future<Output = Result<Output, ToolError>> + Send + 'static;
}

impl IntoTool for ToolSpec {
    fn into_tool<Input, Output, F, Ran>(self, function: F) -> impl Tool
    where
        Input: DeserializeOwned + JsonSchema + Send + 'static,
        Output: Serialize + Send + 'static,
        F: Fn(Input, ToolContext) -> Ran + Send + Sync + 'static,
        Ran: Future<Output = Result<Output, ToolError>> + Send + 'static,
    {
        FunctionTool { spec: self, function, _input: PhantomData }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::NextAttempt;
    use crate::testing::tool_context;

    #[tokio::test]
    async fn arguments_that_do_not_parse_are_a_permanent_error() {
        let tool = ToolSpec::named("count", "Counts the numbers.")
            .into_tool(async |numbers: BTreeMap<String, u8>, _| Ok(numbers.len()));
        let error = tool.run(tool_context(json!({ "n": "x" }))).await.unwrap_err();
        assert!(error.message().starts_with("the arguments do not fit: "), "{error}");
        assert_eq!(error.next_attempt(), NextAttempt::Useless);
    }

    #[tokio::test]
    async fn unknown_arguments_are_accepted_also_by_a_tool_without_arguments() {
        let tool =
            ToolSpec::named("now", "Returns the time.").into_tool(async |(): (), _| Ok("noon"));
        for arguments in [json!({}), json!({"zone": "Asia/Tokyo"})] {
            assert_eq!(tool.run(tool_context(arguments)).await.unwrap().text(), "noon");
        }
        // An optional input is not lost.
        let tool = ToolSpec::named("count", "Counts the numbers.")
            .into_tool(async |numbers: Option<BTreeMap<String, u8>>, _| Ok(numbers.is_some()));
        assert!(tool.run(tool_context(json!({ "n": "x" }))).await.is_err());
    }
}
