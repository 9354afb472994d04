//! Messages over the standard input and output of a process: one JSON value on each line.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use rmcp::RoleClient;
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use serde::de::IgnoredAny;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::unix::pipe;

use super::shared::OpenCalls;
use crate::types::excerpt;

/// Maximum size of a line. Longer ones are skipped.
const LINE_BYTES_MAX: usize = 16 << 20;

/// Number of lines without a message that are kept, and the characters that are kept of each.
const NOISE_LINES_KEPT: usize = 5;
const NOISE_CHARS_MAX: usize = 200;

/// Number of bytes that are kept of the end of the standard error.
const STDERR_BYTES_MAX: usize = 2 << 10;

/// The lines of a process that were no messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Noise {
    pub(super) lines: u64,
    /// The first lines.
    pub(super) first: Vec<String>,
}

impl Noise {
    fn add(&mut self, line: &str) {
        self.lines += 1;
        if self.first.len() < NOISE_LINES_KEPT {
            self.first.push(excerpt(line.trim_end(), NOISE_CHARS_MAX));
        }
    }
}

/// The error of a message that could not be written.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    /// No byte of the message was written.
    #[error("the server does not read any more")]
    NotSent,
    /// A part of the message was written.
    #[error(transparent)]
    Broken(#[from] io::Error),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// The connection to a process.
pub(super) struct StdioTransport {
    reader: BufReader<pipe::Receiver>,
    /// The beginning of a line that has not arrived whole.
    line: Vec<u8>,
    /// The rest of the line is skipped.
    skips: bool,
    writer: Arc<tokio::sync::Mutex<Option<pipe::Sender>>>,
    noise: Arc<Mutex<Noise>>,
    calls: Arc<OpenCalls>,
}

impl StdioTransport {
    pub(super) fn new(
        stdout: pipe::Receiver,
        stdin: pipe::Sender,
        noise: Arc<Mutex<Noise>>,
        calls: Arc<OpenCalls>,
    ) -> Self {
        let writer = Arc::new(tokio::sync::Mutex::new(Some(stdin)));
        let reader = BufReader::new(stdout);
        Self { reader, line: Vec::new(), skips: false, writer, noise, calls }
    }

    /// Reads the next line. `None` at the end. May be dropped and called again: what has arrived of a line
    /// is kept.
    async fn next_line(&mut self) -> Option<Vec<u8>> {
        loop {
            let available = self.reader.fill_buf().await.ok().filter(|bytes| !bytes.is_empty())?;
            let newline = memchr::memchr(b'\n', available);
            let length = newline.map_or(available.len(), |at| at + 1);
            if !self.skips {
                self.line.extend(available.iter().take(length));
            }
            self.reader.consume(length);
            if self.line.len() > LINE_BYTES_MAX {
                self.line = Vec::new();
                self.skips = true;
                self.noise.lock().add("(a line of more than 16 MiB)");
            }
            if newline.is_some() && !std::mem::take(&mut self.skips) {
                return Some(std::mem::take(&mut self.line));
            }
        }
    }
}

impl Transport<RoleClient> for StdioTransport {
    type Error = SendError;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), SendError>> + Send + 'static {
        let (writer, calls) = (Arc::clone(&self.writer), Arc::clone(&self.calls));
        async move {
            let mut message = serde_json::to_vec(&item)?;
            message.push(b'\n');
            let mut writer = writer.lock().await;
            let Some(pipe) = writer.as_mut() else { return Err(SendError::NotSent) };
            // A call can be withdrawn until the pipe has accepted a byte of it.
            let written = loop {
                let writable = pipe.writable().await;
                if writable.is_err() || !calls.begin_write(&item) {
                    return Err(SendError::NotSent);
                }
                match pipe.try_write(&message) {
                    Ok(written @ 1..) => break written,
                    result => {
                        calls.fail_write(&item);
                        if !result.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
                            return Err(SendError::NotSent);
                        }
                    }
                }
            };
            pipe.write_all(message.get(written..).unwrap_or_default()).await?;
            Ok(())
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            let line = self.next_line().await?;
            if line.trim_ascii().is_empty() {
                continue;
            }
            if let Ok(message) = serde_json::from_slice(&line) {
                return Some(message);
            }
            // A JSON value that is no known message is skipped as well: an error as the answer could make
            // a server that echoes answer without end.
            let text = String::from_utf8_lossy(&line);
            match serde_json::from_slice::<IgnoredAny>(&line) {
                Ok(_) => {
                    tracing::debug!(line = excerpt(&text, NOISE_CHARS_MAX), "mcp_unknown_message")
                }
                Err(_) => self.noise.lock().add(&text),
            }
        }
    }

    async fn close(&mut self) -> Result<(), SendError> {
        // The server reads the end of its input.
        drop(self.writer.lock().await.take());
        Ok(())
    }
}

/// Reads the standard error to its end, and keeps its last bytes.
pub(super) async fn keep_tail(mut stderr: pipe::Receiver, tail: Arc<Mutex<Vec<u8>>>) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = stderr.read(&mut buffer).await {
        let mut tail = tail.lock();
        tail.extend(buffer.iter().take(length));
        let excess = tail.len().saturating_sub(STDERR_BYTES_MAX);
        tail.drain(..excess);
    }
}
