//! Models that a program implements itself.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt as _, Stream, StreamExt as _};
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use super::deadline::{
    ANSWER_TIMEOUT, DeltaDeadline, FIRST_EVENT_TIMEOUT, HostLagClock, IDLE_TIMEOUT,
};
use super::{ModelRequest, error};
use crate::types::{FinishKind, FinishReason, ProviderError, ProviderErrorKind};
use crate::wire::{CallDelta, CallKind, Delta};

/// The deltas of a response, in batches that arrived together. An error is the last item. An empty batch does not
/// extend the time limit of the next delta.
///
/// Returned by a [`ModelSource`].
pub type ModelStream = Pin<Box<dyn Stream<Item = Result<Vec<Delta>, ProviderError>> + Send>>;

/// A model that a program implements itself: a local model, a service with a protocol of its own, or a
/// test. Retries, time limits, permits and circuit breaker are the host's, as for every model.
///
/// ```
/// use callsheet::model::{ModelReply, ModelRequest, ModelSource, ModelStream};
/// use callsheet::prelude::*;
///
/// struct Parrot;
///
/// impl ModelSource for Parrot {
///     fn respond(&self, request: ModelRequest) -> ModelStream {
///         ModelReply::text(format!("I was sent {} messages.", request.messages.len())).into_stream()
///     }
/// }
///
/// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let host = Host::builder().model_source("parrot", Parrot).start().await?;
/// let session = host.open_session("demo").await?;
/// assert_eq!(session.run("Hello.").await?.text()?, "I was sent 1 messages.");
/// host.shutdown().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
pub trait ModelSource: Send + Sync + 'static {
    /// Returns the response to a request. The stream is dropped when the response is not needed any
    /// more.
    ///
    /// A response ends with a [`Delta::Finish`]. Without one it is accepted only if [`Delta::Done`] came, it is
    /// not empty, and the arguments of all calls parse. Otherwise it counts as broken, and is retried as after
    /// a transient error.
    ///
    /// A model that streams returns its deltas as they come:
    ///
    /// ```
    /// use callsheet::model::{Delta, FinishKind, FinishReason, ModelRequest, ModelStream};
    ///
    /// fn respond(_: ModelRequest) -> ModelStream {
    ///     let words = ["It ", "is ", "42."].map(|word| Ok(vec![Delta::Text(word.to_owned())]));
    ///     let finish = FinishReason::new(FinishKind::Stop, "stop");
    ///     let last = Ok(vec![Delta::Finish(finish)]);
    ///     Box::pin(futures::stream::iter(words.into_iter().chain([last])))
    /// }
    /// ```
    ///
    /// After two broken streams, the turn's next attempts with this model ask for a response that is not
    /// streamed (`request.stream` is false).
    fn respond(&self, request: ModelRequest) -> ModelStream;
}

impl<F> ModelSource for F
where
    F: Fn(ModelRequest) -> ModelStream + Send + Sync + 'static,
{
    fn respond(&self, request: ModelRequest) -> ModelStream {
        self(request)
    }
}

impl<T: ModelSource + ?Sized> ModelSource for Arc<T> {
    fn respond(&self, request: ModelRequest) -> ModelStream {
        (**self).respond(request)
    }
}

/// A whole response of a [`ModelSource`]: a text, tool calls or both, or an error.
///
/// ```
/// use callsheet::model::ModelReply;
/// use callsheet::testing::FakeModel;
/// use serde_json::json;
///
/// let calls = ModelReply::call("double", json!({ "n": 1 })).and_call("double", json!({ "n": 2 }));
/// let model = FakeModel::replies([calls, ModelReply::text("2 and 4.")]);
/// # let _ = model;
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ModelReply {
    deltas: Vec<Delta>,
    calls: u64,
    error: Option<ProviderError>,
}

impl ModelReply {
    /// Makes a response with a text.
    pub fn text(text: impl Into<String>) -> Self {
        Self { deltas: vec![Delta::Text(text.into())], calls: 0, error: None }
    }

    /// Makes a response with a tool call. `arguments` is a JSON object.
    pub fn call(name: impl Into<String>, arguments: Value) -> Self {
        Self { deltas: Vec::new(), calls: 0, error: None }.and_call(name, arguments)
    }

    /// Makes a response that fails. It is retried if its error is transient
    /// ([`ProviderError::is_transient`]): a request that was too large is not retried, then the error's own
    /// `retryable` decides, then an error status (400 or more), then its kind. The kinds `Connect`, `Timeout`,
    /// `Transport`, `InStream` and `Malformed` are retried, `Status` and `TooLarge` are not.
    #[must_use]
    pub fn error(error: ProviderError) -> Self {
        Self { deltas: Vec::new(), calls: 0, error: Some(error) }
    }

    /// Adds a tool call. `arguments` is a JSON object.
    #[must_use]
    pub fn and_call(mut self, name: impl Into<String>, arguments: Value) -> Self {
        self.deltas.push(Delta::Call(CallDelta {
            index: Some(self.calls),
            id: None,
            name: Some(name.into()),
            arguments: Some(arguments.to_string()),
            kind: CallKind::Function,
            is_marked_start: true,
            is_repaired: false,
        }));
        self.calls += 1;
        self
    }

    /// Returns the response as a stream of one batch.
    #[must_use]
    pub fn into_stream(self) -> ModelStream {
        Box::pin(futures::stream::once(std::future::ready(self.into_deltas())))
    }

    /// Returns the response as a stream of pieces, with a pause before each: the words of a text, and the calls one
    /// by one.
    #[must_use]
    pub fn into_paused_stream(self, pause: Duration) -> ModelStream {
        let pieces = match self.into_deltas() {
            Ok(deltas) => {
                deltas.into_iter().flat_map(words).map(|delta| Ok(sealed(delta))).collect()
            }
            Err(error) => vec![Err(error)],
        };
        Box::pin(futures::stream::iter(pieces).then(move |piece| async move {
            tokio::time::sleep(pause).await;
            piece
        }))
    }

    fn into_deltas(mut self) -> Result<Vec<Delta>, ProviderError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let kind = if self.calls > 0 { FinishKind::ToolCalls } else { FinishKind::Stop };
        self.deltas.push(Delta::Finish(FinishReason {
            kind,
            raw: if self.calls > 0 { "tool_calls" } else { "stop" }.into(),
        }));
        Ok(self.deltas)
    }
}

/// Returns a whole call with its seal, so that it can start before the next piece. Other deltas stay as they are.
fn sealed(delta: Delta) -> Vec<Delta> {
    if let Delta::Call(CallDelta { index: Some(index), .. }) = delta {
        return vec![delta, Delta::Seal { index, arguments: None }];
    }
    vec![delta]
}

/// Splits a text into its words. Other deltas stay whole.
fn words(delta: Delta) -> Vec<Delta> {
    if let Delta::Text(text) = &delta {
        return text.split_inclusive(' ').map(|word| Delta::Text(word.to_owned())).collect();
    }
    vec![delta]
}

/// One response of a [`ModelSource`], with the time limits of its model. They do not count the host's own lag.
pub(super) struct SourceExchange {
    source: Arc<dyn ModelSource>,
    state: SourceExchangeState,
    /// The time limit of the next batch.
    time_limit: Duration,
    /// The configuration key of that limit.
    time_limit_key: &'static str,
    idle_timeout: Duration,
    lag_clock: HostLagClock,
}

enum SourceExchangeState {
    Unsent(Box<ModelRequest>),
    Response(ModelStream),
    Over,
}

impl SourceExchange {
    pub(super) fn new(
        source: Arc<dyn ModelSource>,
        request: &ModelRequest,
        first_limit: Duration,
        idle_timeout: Duration,
        lag_clock: HostLagClock,
    ) -> Self {
        let state = SourceExchangeState::Unsent(Box::new(request.clone()));
        let time_limit_key = if request.stream { FIRST_EVENT_TIMEOUT } else { ANSWER_TIMEOUT };
        Self { source, state, time_limit: first_limit, time_limit_key, idle_timeout, lag_clock }
    }

    /// Returns the next batch that is not empty. Returns `None` after an error, and when the stream has ended. Empty
    /// batches do not extend the time limit, as keep-alive comments of a service do not. A batch does, also if the
    /// request asked for a plain response: then `answer_timeout` limits the time to the first batch.
    pub(super) async fn next(&mut self) -> Option<Result<Vec<Delta>, ProviderError>> {
        let source = Arc::clone(&self.source);
        let mut stream = match std::mem::replace(&mut self.state, SourceExchangeState::Over) {
            SourceExchangeState::Unsent(request) => {
                match std::panic::catch_unwind(AssertUnwindSafe(|| source.respond(*request))) {
                    Ok(stream) => stream,
                    Err(_) => return Some(Err(panicked())),
                }
            }
            SourceExchangeState::Response(stream) => stream,
            SourceExchangeState::Over => return None,
        };
        let next = async {
            loop {
                let batch = stream.next().await;
                if !matches!(&batch, Some(Ok(deltas)) if deltas.is_empty()) {
                    return batch;
                }
            }
        };
        let next = {
            let mut next = std::pin::pin!(AssertUnwindSafe(next).catch_unwind());
            let mut deadline = DeltaDeadline::new(self.time_limit, self.lag_clock.clone());
            loop {
                match timeout_at(deadline.at(), &mut next).await {
                    Ok(next) => break Some(next),
                    Err(_) if deadline.is_over(Instant::now()) => break None,
                    // The host lagged, so that the deadline is a later one.
                    Err(_) => {}
                }
            }
        };
        match next {
            None => Some(Err(error::silence_timeout(
                "the model was silent",
                self.time_limit,
                self.time_limit_key,
            ))),
            Some(Err(_)) => Some(Err(panicked())),
            Some(Ok(Some(Ok(batch)))) => {
                (self.time_limit, self.time_limit_key) = (self.idle_timeout, IDLE_TIMEOUT);
                self.state = SourceExchangeState::Response(stream);
                Some(Ok(batch))
            }
            Some(Ok(end)) => end,
        }
    }
}

impl fmt::Debug for SourceExchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceExchange").finish_non_exhaustive()
    }
}

fn panicked() -> ProviderError {
    // No kind fits a panic; the flag below forbids the retry.
    let mut error = ProviderError::new(ProviderErrorKind::Malformed, "the model source panicked");
    error.retryable = Some(false);
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn empty_batches_do_not_extend_the_time_limit() {
        let source = |_: ModelRequest| -> ModelStream {
            let interval = tokio::time::interval(Duration::from_secs(1));
            let empty = futures::stream::unfold(interval, |mut interval| async move {
                interval.tick().await;
                Some((Ok(Vec::new()), interval))
            });
            let text = futures::stream::iter([Ok(vec![Delta::Text("late".to_owned())])]);
            Box::pin(empty.take(100).chain(text))
        };
        let (request, limit) = (ModelRequest::new("m", [].into()), Duration::from_secs(10));
        let clock = HostLagClock::default();
        let mut exchange = SourceExchange::new(Arc::new(source), &request, limit, limit, clock);
        let error = exchange.next().await.unwrap().unwrap_err();
        assert_eq!(error.kind, ProviderErrorKind::Timeout, "{error}");
        assert_eq!(exchange.next().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_hosts_own_lag_does_not_count() {
        let clock = HostLagClock::default();
        let lagging = clock.clone();
        let source = move |_: ModelRequest| -> ModelStream {
            let clock = lagging.clone();
            Box::pin(futures::stream::once(async move {
                clock.add_delay(Duration::from_secs(6));
                tokio::time::sleep(Duration::from_secs(15)).await;
                Ok(vec![Delta::Text("late".to_owned())])
            }))
        };
        let (request, limit) = (ModelRequest::new("m", [].into()), Duration::from_secs(10));
        let mut exchange = SourceExchange::new(Arc::new(source), &request, limit, limit, clock);
        let batch = exchange.next().await.unwrap();
        assert_eq!(batch, Ok(vec![Delta::Text("late".to_owned())]));
    }
}
