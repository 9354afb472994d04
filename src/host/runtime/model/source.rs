//! Models that a program implements itself.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt as _, Stream, StreamExt as _};
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use super::ModelRequest;
use super::deadline::{HostLagClock, Progress, ResponseDeadline, TimeLimits};
use callsheet_values::types::{FinishKind, FinishReason, ProviderError, ProviderErrorKind};
use callsheet_wire::{CallDelta, CallKind, Delta};

/// The deltas of a response, in batches that arrived together. An error is the last item. An empty batch of a stream is
/// a sign of life: it renews `idle_timeout`, but not `progress_timeout`.
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
    /// After two broken streams (not after silence), the turn's next attempts with this model ask for a response that is not
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
            is_surplus: false,
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
        let raw = if self.calls > 0 { "tool_calls" } else { "stop" };
        self.deltas.push(Delta::Finish(FinishReason::new(kind, raw)));
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

/// The subject of the error of a deadline that passes.
const MODEL: &str = "the model";

/// One response of a [`ModelSource`], with the time limits of its model. They do not count the host's own lag.
pub(super) struct SourceExchange {
    source: Arc<dyn ModelSource>,
    state: SourceExchangeState,
    streamed: bool,
    limits: TimeLimits,
    lag_clock: HostLagClock,
}

enum SourceExchangeState {
    Unsent(Box<ModelRequest>),
    Response {
        stream: ModelStream,
        deadline: Box<ResponseDeadline>,
        /// The time of the last batch. The source is not polled until the caller requests the next one.
        paused_at: Instant,
    },
    Over,
}

impl SourceExchange {
    pub(super) fn new(
        source: Arc<dyn ModelSource>,
        request: &ModelRequest,
        limits: TimeLimits,
        lag_clock: HostLagClock,
    ) -> Self {
        let state = SourceExchangeState::Unsent(Box::new(request.clone()));
        Self { source, state, streamed: request.stream, limits, lag_clock }
    }

    /// Returns the next batch that is not empty. Returns `None` after an error, and when the stream has ended. The
    /// time limits are those of a service ([`super::exchange`]): an empty batch is a sign of life of a stream. If the
    /// request asked for a plain response, `answer_timeout` limits the time to the first batch that is not empty.
    pub(super) async fn next(&mut self) -> Option<Result<Vec<Delta>, ProviderError>> {
        let (mut stream, mut deadline) =
            match std::mem::replace(&mut self.state, SourceExchangeState::Over) {
                SourceExchangeState::Unsent(request) => {
                    let (source, clock) = (Arc::clone(&self.source), self.lag_clock.clone());
                    let deadline = ResponseDeadline::new(self.limits, self.streamed, clock);
                    let deadline = Box::new(deadline);
                    match std::panic::catch_unwind(AssertUnwindSafe(|| source.respond(*request))) {
                        Ok(stream) => (stream, deadline),
                        Err(_) => return Some(Err(panicked())),
                    }
                }
                SourceExchangeState::Response { stream, mut deadline, paused_at } => {
                    deadline.skip(paused_at.elapsed());
                    (stream, deadline)
                }
                SourceExchangeState::Over => return None,
            };
        loop {
            let batch = match next_batch(&mut stream, &mut deadline).await {
                Ok(Some(Ok(batch))) => batch,
                Ok(end) => return end,
                Err(error) => return Some(Err(error)),
            };
            let now = Instant::now();
            let progress = Progress::of(&batch);
            if self.streamed || !batch.is_empty() {
                deadline.handle_bytes(now, progress);
                self.streamed = true;
            }
            if progress == Progress::None
                && let Some(error) = deadline.check(now, MODEL)
            {
                return Some(Err(error));
            }
            if !batch.is_empty() {
                let paused_at = now;
                self.state = SourceExchangeState::Response { stream, deadline, paused_at };
                return Some(Ok(batch));
            }
            // Lets other tasks run if the source makes empty batches without a pause.
            tokio::task::consume_budget().await;
        }
    }
}

/// Returns the next batch, or the outer error at the deadline or after a panic.
async fn next_batch(
    stream: &mut ModelStream,
    deadline: &mut ResponseDeadline,
) -> Result<Option<Result<Vec<Delta>, ProviderError>>, ProviderError> {
    let mut next = std::pin::pin!(AssertUnwindSafe(stream.next()).catch_unwind());
    loop {
        if let Ok(next) = timeout_at(deadline.at(), &mut next).await {
            return next.map_err(|_| panicked());
        }
        // If the host lagged, the deadline is a later one.
        if let Some(error) = deadline.check(Instant::now(), MODEL) {
            return Err(error);
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
    use callsheet_values::config::ModelConfig;

    const LIMIT: Duration = Duration::from_secs(10);

    fn exchange(
        source: impl ModelSource,
        stream: bool,
        clock: HostLagClock,
        change: impl FnOnce(&mut ModelConfig),
    ) -> SourceExchange {
        let mut config = ModelConfig::for_source("m");
        for limit in
            [&mut config.first_event_timeout, &mut config.idle_timeout, &mut config.answer_timeout]
        {
            *limit = LIMIT;
        }
        change(&mut config);
        let request = ModelRequest { stream, ..ModelRequest::new("m", [].into()) };
        SourceExchange::new(Arc::new(source), &request, TimeLimits::from(&config), clock)
    }

    /// Returns a source that sends a sign of life each second, and a text after a number of them.
    fn thinking(signs: usize) -> impl ModelSource {
        move |_: ModelRequest| -> ModelStream {
            let interval = tokio::time::interval(Duration::from_secs(1));
            let empty = futures::stream::unfold(interval, |mut interval| async move {
                interval.tick().await;
                Some((Ok(Vec::new()), interval))
            });
            let text = futures::stream::iter([Ok(vec![Delta::Text("late".to_owned())])]);
            Box::pin(empty.take(signs).chain(text))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_empty_batch_of_a_stream_is_a_sign_of_life_but_no_progress() {
        let clock = HostLagClock::default();
        let mut patient = exchange(thinking(540), true, clock.clone(), |_| ());
        let batch = patient.next().await.unwrap();
        assert_eq!(batch, Ok(vec![Delta::Text("late".to_owned())]));
        assert_eq!(patient.next().await, None);

        let change = |config: &mut ModelConfig| config.progress_timeout = 2 * LIMIT;
        let mut endless = exchange(thinking(usize::MAX), true, clock.clone(), change);
        let start = Instant::now();
        let error = endless.next().await.unwrap().unwrap_err();
        assert_eq!(error.kind, ProviderErrorKind::Timeout, "{error}");
        let expected = "the model made no progress (no text, no thinking, no call) for 20s; raise the model's \
                        progress_timeout if it needs longer";
        assert_eq!(error.message, expected);
        assert_eq!(start.elapsed(), 2 * LIMIT);
        assert_eq!(endless.next().await, None);

        // The limit of a plain response is one of the whole response.
        let mut plain = exchange(thinking(100), false, clock, |_| ());
        let error = plain.next().await.unwrap().unwrap_err();
        assert!(error.message.contains("answer_timeout"), "{error}");
    }

    #[expect(clippy::disallowed_methods, reason = "time goes on while the exchange waits")]
    #[tokio::test(start_paused = true)]
    async fn empty_batches_without_a_pause_end_too() {
        let source = |_: ModelRequest| -> ModelStream {
            Box::pin(futures::stream::repeat_with(|| Ok(Vec::new())))
        };
        let clock = HostLagClock::default();
        let mut exchange = exchange(source, true, clock, |config| config.progress_timeout = LIMIT);
        let next = tokio::spawn(async move { exchange.next().await });
        while !next.is_finished() {
            tokio::time::advance(Duration::from_millis(10)).await;
        }
        let error = next.await.unwrap().unwrap().unwrap_err();
        assert!(error.message.contains("progress_timeout"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn time_between_two_batches_in_which_nothing_is_read_does_not_count() {
        let words = |_: ModelRequest| -> ModelStream {
            ModelReply::text("one two").into_paused_stream(Duration::from_secs(9))
        };
        let change = |config: &mut ModelConfig| config.progress_timeout = LIMIT;
        let mut exchange = exchange(words, true, HostLagClock::default(), change);
        while let Some(batch) = exchange.next().await {
            batch.unwrap();
            tokio::time::sleep(3 * LIMIT).await;
        }
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
        let mut exchange = exchange(source, true, clock, |_| ());
        let batch = exchange.next().await.unwrap();
        assert_eq!(batch, Ok(vec![Delta::Text("late".to_owned())]));
    }
}
