//! The request for a run.

use serde_json::json;

use crate::config::{ClientTool, RunOverrides};
use crate::record::RequestKey;
use crate::tool::Extensions;
use crate::types::{Content, Metadata, TraceContext};

/// A user's input, and the overrides of the run.
///
/// A string converts to a request without overrides.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct RunRequest {
    /// The user's text and images.
    pub input: Content,
    /// The overrides of the agent for this run.
    pub overrides: RunOverrides,
    /// The client's pairs of strings. The pairs of the session count too.
    pub metadata: Metadata,
    /// The variable that gets the answer: its typed value, or else its text. A run that ends without an
    /// answer leaves the variable as it is.
    pub into: Option<String>,
    /// The idempotency key of the client's request: the same request again has no second effect.
    #[doc(hidden)]
    pub request: Option<RequestKey>,
    /// The trace context of the client, passed on to the run's requests and calls.
    pub trace: Option<TraceContext>,
    /// True if the input waits for an open run to end. Otherwise it is refused.
    pub queue: bool,
    /// Values for the tools of this run, such as a tenant. A tool reads them with
    /// [`ToolContext::extension`](crate::tool::ToolContext::extension). They are never stored: a run
    /// that continues after a restart of the host has none. The values of a repeated request are
    /// ignored.
    #[doc(hidden)]
    pub extensions: Extensions,
}

impl RunRequest {
    /// Lets the input wait for the run in progress, and start when that run has ended. Without this, a
    /// request during a run is refused. At most `max_queued_inputs` inputs of a session wait (16 by
    /// default).
    ///
    /// ```
    /// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use callsheet::prelude::*;
    ///
    /// let host = Host::builder().start().await?;
    /// let session = host.open_session("demo").await?;
    /// let first = session.start_run("Say hello.").await?;
    /// let second = session.start_run(RunRequest::from("Say goodbye.").queued()).await?;
    /// first.report.await?.text()?;
    /// second.report.await?.text()?;
    /// # host.shutdown().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn queued(mut self) -> Self {
        self.queue = true;
        self
    }

    /// Gives the request an idempotency key. A later request of the session with the same key starts
    /// no second run: it returns the run that the first one started, also after a restart of the
    /// host. The same key with another input or other overrides is an error.
    ///
    /// ```
    /// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use callsheet::prelude::*;
    ///
    /// let host = Host::builder().start().await?;
    /// let session = host.open_session("demo").await?;
    /// let request = RunRequest::from("Say hello.").with_idempotency_key("greeting-1");
    /// let first = session.run(request.clone()).await?;
    /// let second = session.run(request).await?;
    /// assert_eq!(first.run_id, second.run_id);
    /// # host.shutdown().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn with_idempotency_key(mut self, key: impl Into<String>) -> Self {
        let mut request = serde_json::json!({ "input": self.input, "overrides": self.overrides });
        if let Some(members) = request.as_object_mut() {
            let metadata = Some(&self.metadata).filter(|metadata| !metadata.is_empty());
            members.extend(metadata.map(|metadata| ("metadata".to_owned(), json!(metadata))));
            members.extend(self.into.as_ref().map(|into| ("into".to_owned(), json!(into))));
        }
        self.request = Some(RequestKey::new(key, &request.to_string()));
        self
    }

    /// Attaches pairs of strings to the run: see [`Metadata`].
    #[must_use]
    pub fn with_metadata(mut self, metadata: Metadata) -> Self {
        self.metadata = metadata;
        self
    }

    /// Declares tools that the client runs, in addition to those of the session: see [`ClientTool`].
    #[must_use]
    pub fn with_client_tools(mut self, tools: impl IntoIterator<Item = ClientTool>) -> Self {
        let own = self.overrides.client_tools.take();
        let own = own.iter().flat_map(|own| own.iter().cloned());
        self.overrides.client_tools = Some(own.chain(tools).collect());
        self
    }

    /// Stores the answer in a variable of the session. The name has 1 to 128 bytes.
    ///
    /// ```
    /// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # use callsheet::model::ModelReply;
    /// # use callsheet::testing::FakeModel;
    /// use callsheet::prelude::*;
    ///
    /// # let model = FakeModel::replies([ModelReply::text("Hello.")]);
    /// # let host = Host::builder().model_source("fake", model).start().await?;
    /// let session = host.open_session("demo").await?;
    /// session.run(RunRequest::from("Say hello.").into_variable("greeting")).await?;
    /// assert_eq!(session.snapshot().await?.variables.get("greeting"), Some(&"Hello.".into()));
    /// # host.shutdown().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn into_variable(mut self, name: impl Into<String>) -> Self {
        self.into = Some(name.into());
        self
    }

    /// Gives the tools of this run a value, which replaces one of the same type.
    ///
    /// ```
    /// # struct Tenant(&'static str);
    /// use callsheet::RunRequest;
    ///
    /// let request = RunRequest::from("How many orders are open?").with_extension(Tenant("acme"));
    /// assert_eq!(request.extensions.get::<Tenant>().map(|tenant| tenant.0), Some("acme"));
    /// ```
    #[must_use]
    pub fn with_extension<T: Send + Sync + 'static>(mut self, value: T) -> Self {
        self.extensions.insert(value);
        self
    }
}

impl<T: Into<Content>> From<T> for RunRequest {
    fn from(input: T) -> Self {
        Self { input: input.into(), ..Self::default() }
    }
}
