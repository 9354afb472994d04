//! A model for the tests of an embedding program.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::{ModelReply, ModelRequest, ModelSource, ModelStream};
use callsheet_values::types::{ProviderError, ProviderErrorKind};

/// A model that gives prepared replies in order, without a socket, and keeps the requests. Clones
/// share replies and requests. A reply of [`ModelReply::error`] is a failed attempt.
///
/// ```
/// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use callsheet::model::ModelReply;
/// use callsheet::prelude::*;
/// use callsheet::testing::FakeModel;
/// use serde_json::json;
///
/// let model = FakeModel::replies([
///     ModelReply::call("double", json!({ "n": 21 })),
///     ModelReply::text("It is 42."),
/// ]);
///
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// struct Number { n: i64 }
/// let double = ToolSpec::named("double", "Doubles a number.")
///     .into_tool(async |number: Number, _| Ok(number.n * 2));
///
/// let host = Host::builder().model_source("fake", model.clone()).tool(double).start().await?;
/// let report = host.open_session("test").await?.run("What is twice 21?").await?;
/// assert_eq!(report.text()?, "It is 42.");
/// assert_eq!(report.calls[0].result, "42");
/// assert_eq!(model.requests().len(), 2);
/// host.shutdown().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, Default)]
pub struct FakeModel {
    state: Arc<Mutex<FakeModelState>>,
}

#[derive(Debug, Default)]
struct FakeModelState {
    replies: VecDeque<ModelReply>,
    requests: Vec<ModelRequest>,
    pause: Option<Duration>,
}

impl FakeModel {
    /// Makes a model with these replies. When none is left, requests fail and are not retried.
    #[must_use]
    pub fn replies(replies: impl IntoIterator<Item = ModelReply>) -> Self {
        let replies = replies.into_iter().collect();
        let state = FakeModelState { replies, ..FakeModelState::default() };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Makes the model stream its replies in pieces, with a pause before each: the words of a text, and the calls
    /// one by one. For tests of stops, of time limits and of tools that start before the response has ended. This
    /// holds for all clones.
    ///
    /// ```
    /// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use std::time::Duration;
    ///
    /// use callsheet::model::ModelReply;
    /// use callsheet::prelude::*;
    /// use callsheet::testing::FakeModel;
    ///
    /// let model = FakeModel::replies([ModelReply::text("It will take long.")]);
    /// let model = model.with_pauses(Duration::from_secs(60));
    /// let host = Host::builder().model_source("fake", model).start().await?;
    /// let session = host.open_session("test").await?;
    /// let run = session.start_run("How long?").await?;
    /// session.stop(StopMode::Now).await?;
    /// assert_eq!(run.report.await?.run_end, RunEnd::Stopped);
    /// host.shutdown().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    ///
    /// A tool with [`ToolSpec::start_on_seal`](callsheet_tools::ToolSpec::start_on_seal) starts before the
    /// response is over:
    ///
    /// ```
    /// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # use std::time::Duration;
    /// # use callsheet::model::ModelReply;
    /// # use callsheet::prelude::*;
    /// # use callsheet::testing::FakeModel;
    /// # use serde_json::json;
    /// # #[derive(serde::Deserialize, schemars::JsonSchema)]
    /// # struct Nothing {}
    /// let call = ModelReply::call("slow", json!({})).and_call("slow", json!({}));
    /// let model = FakeModel::replies([call, ModelReply::text("Done.")]);
    /// let slow = ToolSpec::named("slow", "Waits.").pure().start_on_seal().into_tool(
    ///     async |_: Nothing, _| {
    ///         tokio::time::sleep(Duration::from_millis(30)).await;
    ///         Ok("waited")
    ///     },
    /// );
    /// let model = model.with_pauses(Duration::from_millis(60));
    /// let host = Host::builder().model_source("fake", model).tool(slow).start().await?;
    /// let report = host.open_session("test").await?.run("Wait twice.").await?;
    /// assert!(report.stats.overlap_saved_ms > 0);
    /// # host.shutdown().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn with_pauses(self, pause: Duration) -> Self {
        self.state.lock().pause = Some(pause);
        self
    }

    /// Returns the requests so far.
    #[must_use]
    pub fn requests(&self) -> Vec<ModelRequest> {
        self.state.lock().requests.clone()
    }
}

impl ModelSource for FakeModel {
    fn respond(&self, request: ModelRequest) -> ModelStream {
        let mut state = self.state.lock();
        state.requests.push(request);
        match state.replies.pop_front() {
            Some(reply) => match state.pause {
                Some(pause) => reply.into_paused_stream(pause),
                None => reply.into_stream(),
            },
            None => {
                let message = "the fake model has no reply left";
                let mut error = ProviderError::new(ProviderErrorKind::Malformed, message);
                error.retryable = Some(false);
                Box::pin(futures::stream::once(std::future::ready(Err(error))))
            }
        }
    }
}
