//! A model provider for tests: a loopback server that speaks every wire format.
//!
//! With a [`Script`] it does exactly what the script says, faults included. Without one it answers as the rehearsal
//! model does. Like a strict provider it refuses a history whose calls are not each answered once, and other faulty
//! requests: mostly with HTTP 400, and with the provider's message.
//!
//! It sees only what a provider sees, and knows nothing about sessions and turns.
//!
//! ```no_run
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! use callsheet_mock_provider::{Call, MockProvider, Response, Script};
//! use serde_json::json;
//!
//! let script = Script::new([
//!     Response::calls([Call::new("clock", json!({}))]),
//!     Response::text("It is late."),
//! ]);
//! let provider = MockProvider::with_script(script).await?;
//! println!("{}", provider.base_url());
//! # Ok::<(), std::io::Error>(()) }).unwrap();
//! ```
//!
//! | file | what it does |
//! | --- | --- |
//! | `http` | the server: paths, connections |
//! | `requests` | the received requests, and the gates at which streams wait |
//! | `script` | the script: responses, pauses, gates, faults |
//! | `fault` | sends a body with the pauses and faults of its script |
//! | `service`, `dispatch` | the interface of the services, and their selection |
//! | `request_schema` | checks requests by the `request.schema.json` of each service |
//! | `encoded`, `text` | encoded bodies; reading, splitting and hashing of texts |
//! | `openai_chat`, `openai_responses`, `anthropic`, `gemini`, `ollama` | one service each: its strict request check and its encoding |

mod anthropic;
mod dispatch;
mod encoded;
mod fault;
mod gemini;
mod http;
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

pub use requests::AnswerState;
pub use requests::ReceivedRequest;
pub use script::{
    Call, Delay, Finish, Hold, RawChunk, Response, Script, ScriptPosition, Then, When,
};

use requests::ProviderState;

/// The options of a provider.
#[derive(Clone, Debug, PartialEq)]
pub struct MockProviderOptions {
    /// The script. The default has no responses, so that the server improvises.
    pub script: Script,
    /// The pause between chunks of responses that set none.
    pub chunk_delay: Duration,
    /// The number of requests that are kept for [`MockProvider::requests`].
    pub keep_requests: usize,
}

impl Default for MockProviderOptions {
    /// Returns options without script and pauses. The last 1,000 requests are kept.
    fn default() -> Self {
        Self { script: Script::default(), chunk_delay: Duration::ZERO, keep_requests: 1000 }
    }
}

/// A running provider. Dropping it stops it.
#[derive(Debug)]
pub struct MockProvider {
    address: SocketAddr,
    state: Arc<ProviderState>,
    tasks: TaskTracker,
}

impl MockProvider {
    /// Starts a server on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// If no port can be bound.
    pub async fn start(options: MockProviderOptions) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let state = Arc::new(ProviderState::new(
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
        Self::start(MockProviderOptions { script, ..MockProviderOptions::default() }).await
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

impl Drop for MockProvider {
    fn drop(&mut self) {
        self.state.stop.cancel();
    }
}

callsheet_values::impl_with!(MockProviderOptions);
