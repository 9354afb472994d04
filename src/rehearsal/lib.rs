//! The offline rehearsal model: a loopback server that speaks Chat Completions.
//!
//! It is not a language model, and its answers say so: by the header `x-callsheet-rehearsal`, by the model name
//! `rehearsal`, and improvised ones by a phrase in the final text, unless it must be JSON. A function of the request
//! makes each answer: [`improvise`] calls tools that fit the prompt, and the load test has one of its own. A request is
//! not checked.
//!
//! It sees only what a provider sees, and knows nothing about sessions and turns of this crate. Of the host the
//! improviser knows two things: the tool `read_var`, which it never calls, and the notes in tool results.
//!
//! | file | what it does |
//! | --- | --- |
//! | `http` | the server, and the pace of a stream |
//! | `openai_chat` | answers as the chunks of a stream, or as one plain body |
//! | `improviser` | the answers to people |
//! | `text` | reading and splitting of texts |

mod http;
mod improviser;
mod openai_chat;
pub mod text;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use axum::serve::ListenerExt as _;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

pub use improviser::improvise;

/// An answer to a request: a text, and calls of tools.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RehearsedAnswer {
    /// The pieces of the text, one chunk each.
    pub text: Vec<String>,
    /// The calls, in order.
    pub calls: Vec<Call>,
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The name of the tool.
    pub name: String,
    /// The arguments, an object.
    pub arguments: Value,
}

/// A running rehearsal server. Dropping it closes the port; answers that have begun go on to their end.
#[derive(Debug)]
pub struct Rehearsal {
    address: SocketAddr,
    _stop: DropGuard,
}

impl Rehearsal {
    /// Starts a server on a free port of 127.0.0.1. `answer` answers the body of each request, and `pace` is the pause
    /// between the chunks of a stream.
    ///
    /// # Errors
    /// If no port can be bound.
    pub async fn start(
        answer: impl Fn(&Value) -> RehearsedAnswer + Send + Sync + 'static,
        pace: Duration,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        // Small chunks are sent at once. If this fails they are only delayed.
        let listener = listener.tap_io(|stream| {
            let _ = stream.set_nodelay(true);
        });
        let stop = CancellationToken::new();
        let server = axum::serve(listener, http::router(answer, pace))
            .with_graceful_shutdown(stop.clone().cancelled_owned());
        #[expect(clippy::disallowed_methods, reason = "the server; it ends with the handle")]
        tokio::spawn(server.into_future());
        Ok(Self { address, _stop: stop.drop_guard() })
    }

    /// Returns the `base_url` for a model's configuration, such as `http://127.0.0.1:8080/v1`.
    #[must_use]
    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }
}
