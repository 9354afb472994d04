//! The offline rehearsal model: a loopback server that speaks every wire format.
//!
//! It is not a language model, and its answers say so: all by the header `x-callsheet-rehearsal`, responses also
//! by the model name `rehearsal`, and improvised ones by a phrase in the final text. With a [`Script`] it does
//! exactly what the script says, faults included. Without one it improvises: it calls tools that fit the prompt.
//! Like a strict provider it refuses a history whose calls are not each answered once, and other faulty
//! requests: mostly with HTTP 400, and with the provider's message.
//!
//! It sees only what a provider sees, and knows nothing about sessions and turns of this crate. Of the host the
//! improviser knows two things: the tool `read_var`, which it never calls, and the notes in tool results.
//!
//! | file | what it does |
//! | --- | --- |
//! | `http` | the server: paths, connections |
//! | `requests` | the received requests, and the gates at which streams wait |
//! | `script` | the script: responses, pauses, gates, faults |
//! | `fault` | sends a body with the pauses and faults of its script |
//! | `improviser` | the answers without a script |
//! | `service`, `dispatch` | the interface of the provider services, and their selection |
//! | `request_schema` | checks requests by the `request.schema.json` of each service |
//! | `encoded`, `text` | encoded bodies; reading, splitting and hashing of texts |
//! | `openai_chat`, `openai_responses`, `anthropic`, `gemini`, `ollama` | one service each: its strict request check and its encoding |
// The package `tests/doc_examples` runs the examples, which use the package `callsheet`.
#![cfg(not(doctest))]

mod anthropic;
mod dispatch;
mod encoded;
mod fault;
mod gemini;
mod http;
mod improviser;
mod ollama;
mod openai_chat;
mod openai_responses;
mod request_schema;
mod requests;
mod script;
mod service;
mod text;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;

pub use http::REHEARSAL_HEADER;
pub use improviser::improvise;
pub use requests::AnswerState;
pub use requests::ReceivedRequest;
pub use script::{Call, Finish, InvalidScript, Response, Script};
pub use script::{Delay, Hold, RawChunk, SCRIPT_NAMES, ScriptPosition, Then, When};
pub use service::MODEL;

use requests::RehearsalState;

/// The options of a rehearsal server.
#[derive(Clone, Debug, PartialEq)]
pub struct RehearsalOptions {
    /// The address to listen on; port 0 selects a free port.
    pub listen: SocketAddr,
    /// The script. The default has no responses, so that the server improvises.
    pub script: Script,
    /// The pause between chunks of responses that set none.
    pub chunk_delay: Duration,
    /// The number of requests that are kept for [`Rehearsal::requests`].
    pub keep_requests: usize,
}

impl Default for RehearsalOptions {
    /// Returns options with a free port of 127.0.0.1, without script and pauses. The last 1,000 requests
    /// are kept.
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            script: Script::default(),
            chunk_delay: Duration::ZERO,
            keep_requests: 1000,
        }
    }
}

impl RehearsalOptions {
    /// Returns options for interactive use: a free port of 127.0.0.1, a readable pace, and no kept
    /// requests, so that memory does not grow.
    #[must_use]
    pub fn watchable() -> Self {
        Self { chunk_delay: Duration::from_millis(15), keep_requests: 0, ..Self::default() }
    }
}

/// A running rehearsal server. Dropping it stops it.
///
/// ```
/// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use callsheet::config::{BaseUrl, ModelConfig};
/// use callsheet::prelude::Host;
/// use callsheet::rehearsal::{Call, Rehearsal, Response, Script};
/// use serde_json::json;
///
/// let script = Script::new([
///     Response::calls([Call::new("clock", json!({}))]),
///     Response::text("It is late."),
/// ]);
/// let model = Rehearsal::with_script(script).await?;
/// let config = ModelConfig::new(BaseUrl::parse(&model.base_url())?, "any");
/// let host = Host::builder().model("main", config).start().await?;
/// let report = host.open_session("demo").await?.run("What time is it?").await?;
/// assert_eq!(report.text()?, "It is late.");
/// assert_eq!(model.requests().len(), 2);
/// # host.shutdown().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Debug)]
pub struct Rehearsal {
    address: SocketAddr,
    state: Arc<RehearsalState>,
    tasks: TaskTracker,
}

impl Rehearsal {
    /// Starts a server.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub async fn start(options: RehearsalOptions) -> io::Result<Self> {
        let listener = TcpListener::bind(options.listen).await?;
        let address = listener.local_addr()?;
        let state = Arc::new(RehearsalState::new(
            options.script,
            options.chunk_delay,
            options.keep_requests,
        ));
        let tasks = TaskTracker::new();
        let stop = state.stop.clone();
        let counted = http::CountedListener { listener, stop: stop.clone(), tasks: tasks.clone() };
        let router = http::router(Arc::clone(&state));
        let accepting = tasks.track_future(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                _ = async { axum::serve(counted, router).await } => {}
            }
        });
        #[expect(clippy::disallowed_methods, reason = "the accept loop; it ends with the handle")]
        tokio::spawn(accepting);
        Ok(Self { address, state, tasks })
    }

    /// Starts a server with a script on a free port, without pauses.
    ///
    /// # Errors
    /// If no port can be bound.
    pub async fn with_script(script: Script) -> io::Result<Self> {
        Self::start(RehearsalOptions { script, ..RehearsalOptions::default() }).await
    }

    /// Returns the address on which it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the `base_url` for a model's configuration, for every wire format, such as
    /// `http://127.0.0.1:8080/v1`.
    #[must_use]
    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// Returns the received requests in order, at most the last `keep_requests`.
    #[must_use]
    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.state.requests()
    }

    /// Returns the number of received requests.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.state.received()
    }

    /// Waits until `count` requests were received.
    pub async fn wait_for_requests(&self, count: u64) {
        self.state.wait_for_received(count).await;
    }

    /// Waits until the answer to a request (numbered from 1) has ended, and returns the request. Returns
    /// `None`, without waiting for the end, once a received request is not kept.
    pub async fn wait_until_ended(&self, number: u64) -> Option<ReceivedRequest> {
        self.state.wait_until_ended(number).await
    }

    /// Waits until a stream has reached the gate with this name ([`Hold`]).
    pub async fn wait_for_gate(&self, name: &str) {
        self.state.wait_for_gate(name).await;
    }

    /// Opens a gate permanently, for all streams.
    pub fn open_gate(&self, name: &str) {
        self.state.open_gate(name);
    }

    /// Adds a response to the end of the script.
    pub fn push(&self, response: Response) {
        self.state.script.lock().responses.push(response);
    }

    /// Returns the number of responses in the script: the unused ones, and all with `repeat`.
    #[must_use]
    pub fn responses_left(&self) -> usize {
        self.state.script.lock().responses.len()
    }

    /// Stops the server and waits for the end of its last connection. Open streams break off.
    pub async fn shutdown(self) {
        self.state.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Drop for Rehearsal {
    fn drop(&mut self) {
        self.state.stop.cancel();
    }
}

callsheet_values::impl_with!(RehearsalOptions);
