//! The offline rehearsal model: a loopback server that speaks every wire.
//!
//! It is no model, and says so in every answer: the header `x-callsheet-rehearsal`, the model
//! name `rehearsal`, and a phrase in the final text. With a [`Script`] it does exactly what the
//! script says, faults included; without one it behaves plausibly for any prompt and any tools.
//! Like a strict provider it refuses, with HTTP 400 and in the provider's words, a history whose
//! tool calls are not each answered once, and what else the services of a wire refuse.
//!
//! Knows nothing of sessions, turns or tools of this crate: it sees what a provider sees.

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
pub use openai_chat::{Refusal, check};
pub use requests::{Ended, ReceivedRequest};
pub use script::{
    At, Call, Delay, Finish, Hold, InvalidScript, RawChunk, Response, SCRIPT_NAMES, Script, Then,
    When,
};
pub use service::MODEL;

use requests::ServerState;

/// How a rehearsal server is started.
#[derive(Clone, Debug, PartialEq)]
pub struct RehearsalOptions {
    /// Where it listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// What it answers before it improvises.
    pub script: Script,
    /// The pause between chunks of responses that name none.
    pub chunk_delay: Duration,
    /// How many of the last requests are kept for [`Rehearsal::requests`].
    pub keep_requests: usize,
}

impl Default for RehearsalOptions {
    /// A free port of 127.0.0.1, no script, no pauses, the last 1,000 requests kept.
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
    /// For people who watch: a free port of 127.0.0.1, a pace that can be followed, and no
    /// request kept, so that it may run for ever.
    #[must_use]
    pub fn watchable() -> Self {
        Self { chunk_delay: Duration::from_millis(15), keep_requests: 0, ..Self::default() }
    }
}

/// A running rehearsal server. Dropping it stops it.
#[derive(Debug)]
pub struct Rehearsal {
    address: SocketAddr,
    desk: Arc<ServerState>,
    tasks: TaskTracker,
}

impl Rehearsal {
    /// Starts a server.
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub async fn start(options: RehearsalOptions) -> io::Result<Self> {
        let listener = TcpListener::bind(options.listen).await?;
        let address = listener.local_addr()?;
        let desk =
            Arc::new(ServerState::new(options.script, options.chunk_delay, options.keep_requests));
        let tasks = TaskTracker::new();
        let stop = desk.stop.clone();
        let counted = http::CountedListener { listener, stop: stop.clone(), tasks: tasks.clone() };
        let router = http::router(Arc::clone(&desk));
        let accepting = tasks.track_future(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                _ = async { axum::serve(counted, router).await } => {}
            }
        });
        #[expect(clippy::disallowed_methods, reason = "the accept loop; it ends with the handle")]
        tokio::spawn(accepting);
        Ok(Self { address, desk, tasks })
    }

    /// Starts a server with a script on a free port, without pauses.
    ///
    /// # Errors
    /// No port can be listened on.
    pub async fn with_script(script: Script) -> io::Result<Self> {
        Self::start(RehearsalOptions { script, ..RehearsalOptions::default() }).await
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The base URL as a model's configuration names it, for every wire: `http://127.0.0.1:PORT/v1`,
    /// to which the wire's own path is appended.
    #[must_use]
    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// The requests received so far, in order; only the last ones if there were very many.
    #[must_use]
    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.desk.kept()
    }

    /// How many requests were received so far.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.desk.received()
    }

    /// Waits until so many requests were received.
    pub async fn wait_for_requests(&self, count: u64) {
        self.desk.wait_for_received(count).await;
    }

    /// Waits until the answer to a request (numbered from 1) has ended, and says how; none if the
    /// request was not kept.
    pub async fn wait_until_ended(&self, number: u64) -> Option<ReceivedRequest> {
        self.desk.wait_until_ended(number).await
    }

    /// Waits until a stream has come to the gate of this name ([`Hold`]).
    pub async fn gate_reached(&self, name: &str) {
        self.desk.gate_reached(name).await;
    }

    /// Opens a gate, for all streams and for ever.
    pub fn release(&self, name: &str) {
        self.desk.release(name);
    }

    /// Adds a response to the end of the script.
    pub fn push(&self, response: Response) {
        self.desk.script.lock().responses.push(response);
    }

    /// How many responses of the script are left.
    #[must_use]
    pub fn responses_left(&self) -> usize {
        self.desk.script.lock().responses.len()
    }

    /// Stops the server and waits until its last connection has ended. Streams break off.
    pub async fn shutdown(self) {
        self.desk.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Drop for Rehearsal {
    fn drop(&mut self) {
        self.desk.stop.cancel();
    }
}
