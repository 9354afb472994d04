//! Messages over the standard input and output of a process: one JSON value on each line, of at most
//! `max_line_bytes`. While more than 256 KiB of requests of the server are unanswered, nothing is read, nor while the
//! [budget](super::budget) is used up. A longer line is skipped. If it does not end within `max_skipped_bytes` more or
//! 10 s, the connection ends. So does that of a server that reads nothing for 3 s while so many requests are unanswered.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rmcp::RoleClient;
use rmcp::model::{
    ClientJsonRpcMessage, ErrorCode, ErrorData, RequestId, ServerJsonRpcMessage, ServerNotification,
};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use serde::Deserializer as _;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::unix::pipe;
use tokio::sync::watch;
use tokio::time::Instant;

use super::budget::MessageBudget;
use super::incoming::{adapted_message, read_message};
use super::shared::{LogicalConnection, OpenCalls};
use callsheet_values::config::McpLimits;
use callsheet_values::types::{Secrets, excerpt};

/// Number of bytes that are kept of the end of a longer line. The id of an answer may be there.
const LINE_END_BYTES: usize = 128;

/// Time limit for the rest of a line that is skipped. The process is ended then.
const SKIPPED_TIME_MAX: Duration = Duration::from_secs(10);

/// Maximum number of bytes of the server's requests that are not answered, and of replies that wait to be written.
/// While there are more, nothing is read: a server that sends requests, and reads no replies or does not wait for
/// them, must not fill the memory.
const UNANSWERED_BYTES_MAX: usize = 256 << 10;

/// Maximum time for which a server reads no message while it has so many unanswered requests. Its process is ended then:
/// one that only writes is never able to read again.
const UNREAD_TIME_MAX: Duration = Duration::from_secs(3);

/// Number of bytes that a short request or reply counts as.
const REQUEST_BYTES_MIN: usize = 1 << 10;

/// The data of the error that stands for an answer that cannot be read.
const UNREADABLE: &str = "io.callsheet/unreadable-answer";

/// Number of lines without a message that are kept, and the characters that are kept of each.
const NOISE_LINES_KEPT: usize = 5;
const NOISE_CHARS_MAX: usize = 200;

/// Number of bytes that are kept of the beginning and of the end of the standard error.
const STDERR_BEGINNING_BYTES_MAX: usize = 1 << 10;
const STDERR_END_BYTES_MAX: usize = 2 << 10;

/// The lines of a process that were no messages, or answers that cannot be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct UnparsedLines {
    pub(super) lines: u64,
    /// The first lines.
    pub(super) first: Vec<String>,
}

impl UnparsedLines {
    fn add(&mut self, excerpt: &str) {
        self.lines += 1;
        if self.first.len() < NOISE_LINES_KEPT {
            self.first.push(excerpt.to_owned());
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
    /// The line whose rest is skipped.
    skipped: Option<SkippedLine>,
    writer: Arc<tokio::sync::Mutex<Option<pipe::Sender>>>,
    /// The number of bytes of unanswered requests of the server, and of replies that wait to be written.
    unanswered_bytes: Arc<watch::Sender<usize>>,
    /// The requests of the server that are not answered.
    unanswered: Vec<(RequestId, Unanswered)>,
    /// The number of messages that were written.
    written: Arc<AtomicU64>,
    /// While nothing is read because of unanswered requests: the time of the last message that was written, or since
    /// which nothing is read, and the number of written messages at that time.
    unread_since: Option<(Instant, u64)>,
    budget: MessageBudget,
    calls: Arc<OpenCalls>,
    shared: Arc<LogicalConnection>,
}

/// Holds the input of a process open, unless the transport was closed.
pub(super) struct StdinGuard {
    _writer: Arc<tokio::sync::Mutex<Option<pipe::Sender>>>,
}

/// A line of the process.
enum StdioLine {
    Whole(Vec<u8>),
    /// A line that is too long, with the id of the request that it answers, if it is such an answer.
    TooLong(Option<RequestId>),
}

impl StdioTransport {
    /// Makes the connection of the output and the input of a process.
    pub(super) fn new(
        (stdout, stdin): (pipe::Receiver, pipe::Sender),
        shared: Arc<LogicalConnection>,
        calls: Arc<OpenCalls>,
    ) -> Self {
        Self {
            reader: BufReader::new(stdout),
            line: Vec::new(),
            skipped: None,
            writer: Arc::new(tokio::sync::Mutex::new(Some(stdin))),
            unanswered_bytes: Arc::new(watch::Sender::new(0)),
            unanswered: Vec::new(),
            written: Arc::default(),
            unread_since: None,
            budget: MessageBudget::new(shared.limits.max_messages_per_second),
            calls,
            shared,
        }
    }

    /// Returns a guard that holds the input of the process open although the transport is dropped.
    pub(super) fn stdin_guard(&self) -> StdinGuard {
        StdinGuard { _writer: Arc::clone(&self.writer) }
    }

    /// Reads the next line. `None` at the end, after an error, or after a line that does not end. Cancel safe: keeps
    /// the bytes read so far.
    async fn next_line(&mut self) -> Option<StdioLine> {
        let McpLimits { max_line_bytes, max_skipped_bytes, .. } = self.shared.limits;
        loop {
            let limit = match &self.skipped {
                Some(skipped) if skipped.bytes > max_skipped_bytes => return self.end_line(),
                Some(skipped) => Some(skipped.began + SKIPPED_TIME_MAX),
                None => None,
            };
            let available = match limit {
                None => self.reader.fill_buf().await,
                // A line that never pauses ends at this time, too.
                Some(limit) if limit <= Instant::now() => return self.end_line(),
                Some(limit) => match tokio::time::timeout_at(limit, self.reader.fill_buf()).await {
                    Ok(available) => available,
                    Err(_) => return self.end_line(),
                },
            };
            let available = available.unwrap_or_default();
            if available.is_empty() {
                if let Some(skipped) = self.skipped.take() {
                    return Some(StdioLine::TooLong(skipped.answered_request()));
                }
                // The last line may have no line feed. A line that was cut is no JSON value.
                let line = std::mem::take(&mut self.line);
                let is_whole = serde_json::from_slice::<IgnoredAny>(&line).is_ok();
                return is_whole.then_some(StdioLine::Whole(line));
            }
            let newline = memchr::memchr(b'\n', available);
            let length = newline.map_or(available.len(), |at| at + 1);
            let part = available.get(..length).unwrap_or_default();
            match &mut self.skipped {
                Some(skipped) => skipped.add(part),
                // Before the line grows, which would double its memory.
                None if self.line.len() + part.len() > max_line_bytes => {
                    let mut skipped = SkippedLine::new(&std::mem::take(&mut self.line));
                    skipped.add(part);
                    self.skipped = Some(skipped);
                }
                None => self.line.extend_from_slice(part),
            }
            self.reader.consume(length);
            if newline.is_some() {
                return Some(match self.skipped.take() {
                    Some(skipped) => StdioLine::TooLong(skipped.answered_request()),
                    None => StdioLine::Whole(std::mem::take(&mut self.line)),
                });
            }
        }
    }

    /// Ends the connection, because a line does not end.
    fn end_line(&mut self) -> Option<StdioLine> {
        let reason = "it was ended: it sent a line of more than mcp_limits.max_line_bytes that did not end within max_skipped_bytes more or 10 s";
        self.end("line", reason);
        None
    }

    fn end(&self, limit: &'static str, reason: &'static str) {
        self.shared.limit_reached(limit);
        *self.calls.end_reason.lock() = Some(reason);
        self.calls.ended_by_host.cancel();
    }

    /// Waits until few enough requests of the server are unanswered. Returns false if it reads nothing meanwhile. Cancel
    /// safe.
    async fn wait_for_replies(&mut self) -> bool {
        let is_few = |bytes: &usize| *bytes <= UNANSWERED_BYTES_MAX;
        while !is_few(&self.unanswered_bytes.borrow()) {
            if self.unread_since.is_none() {
                self.shared.limit_reached("requests");
            }
            let written = self.written.load(Ordering::Relaxed);
            let same = self.unread_since.filter(|(_, count)| *count == written);
            let (since, _) = same.unwrap_or_else(|| (Instant::now(), written));
            self.unread_since = Some((since, written));
            let mut unanswered = self.unanswered_bytes.subscribe();
            // The sender lives as long as this.
            let few = tokio::time::timeout_at(since + UNREAD_TIME_MAX, unanswered.wait_for(is_few));
            if few.await.is_err() && written == self.written.load(Ordering::Relaxed) {
                // A message that is being written holds the writer.
                if self.writer.try_lock().is_err() {
                    self.end(
                        "replies",
                        "it was ended: it sent requests, and read no replies for 3 s",
                    );
                    return false;
                }
                self.unread_since = Some((Instant::now(), written));
            }
        }
        self.unread_since = None;
        true
    }

    /// Waits until the budget allows the next line.
    async fn wait_for_budget(&mut self) {
        if let Some(next) = self.budget.next_read() {
            self.shared.limit_reached("messages");
            tokio::time::sleep_until(next).await;
        }
    }

    /// Counts a message, of which `None` is a line that is no message.
    fn count(&mut self, message: Option<&ServerJsonRpcMessage>, bytes: usize) {
        let is_answer = match message {
            Some(ServerJsonRpcMessage::Response(_) | ServerJsonRpcMessage::Error(_)) => {
                self.budget.take_answer()
            }
            Some(ServerJsonRpcMessage::Request(request)) => {
                let unanswered = Unanswered::new(&self.unanswered_bytes, bytes);
                self.unanswered.push((request.id.clone(), unanswered));
                false
            }
            Some(ServerJsonRpcMessage::Notification(message)) => {
                // The library sends no reply to a request that the server has cancelled.
                if let ServerNotification::CancelledNotification(cancelled) = &message.notification
                {
                    self.forget_request(cancelled.params.request_id.as_ref());
                }
                false
            }
            None => false,
        };
        if !is_answer {
            self.budget.spend(bytes);
        }
    }

    /// Counts a request of the server no longer, because it is answered or gets no answer.
    fn forget_request(&mut self, id: Option<&RequestId>) {
        self.unanswered.retain(|(unanswered, _)| Some(unanswered) != id);
    }

    /// Reads a line as a message, which is repaired if it is nearly JSON. An answer that cannot be read becomes an error.
    /// `None` if the line is no message.
    fn message(&self, line: &[u8]) -> Option<ServerJsonRpcMessage> {
        if line.trim_ascii().is_empty() {
            return None;
        }
        if let Some(message) = read_message(line) {
            return Some(message);
        }
        let value = adapted_message(line).or_else(|| serde_json::from_slice(line).ok());
        if let Some(answer) = value.clone().and_then(without_null) {
            return Some(answer);
        }
        let text = String::from_utf8_lossy(line);
        let quoted = excerpt(self.shared.secrets.redact(&text).trim_end(), NOISE_CHARS_MAX);
        let id = match &value {
            Some(value) => answered_request(value),
            None => SkippedLine::new(line).answered_request(),
        };
        let Some(id) = id else {
            // A JSON value that is no known message is skipped as well: an error as the answer could make
            // a server that echoes answer without end.
            match value {
                Some(_) => tracing::debug!(line = quoted, "mcp_unknown_message"),
                None => self.shared.unparsed_lines.lock().add(&quoted),
            }
            return None;
        };
        self.shared.unparsed_lines.lock().add(&quoted);
        let error = value.as_ref().and_then(|value| value.get("error"));
        let is_refused = error.is_some_and(|error| !error.is_null());
        let data = (!is_refused).then(|| UNREADABLE.into());
        let message = format!("the answer is not valid JSON-RPC: {quoted}");
        let error = ErrorData::new(ErrorCode::PARSE_ERROR, message, data);
        Some(ServerJsonRpcMessage::error(error, Some(id)))
    }
}

/// Returns whether an error stands for an answer that cannot be read. The server may have done what was requested.
pub(super) fn is_unreadable(error: &ErrorData) -> bool {
    error.data.as_ref().and_then(Value::as_str) == Some(UNREADABLE)
}

/// Reads an answer that has both members `result` and `error`, of which one is null, as in JSON-RPC 1.0.
fn without_null(mut value: Value) -> Option<ServerJsonRpcMessage> {
    answered_request(&value)?;
    let members = value.as_object_mut()?;
    members.retain(|key, value| !(value.is_null() && matches!(key.as_str(), "result" | "error")));
    serde_json::from_value(value).ok()
}

/// Returns the id of the request that a JSON value answers. `None` if it is no answer: a line of a log in JSON may
/// have an id and an error, too.
fn answered_request(value: &Value) -> Option<RequestId> {
    let members = value.as_object()?;
    if members.contains_key("method") || !members.contains_key("jsonrpc") {
        return None;
    }
    serde_json::from_value(members.get("id")?.clone()).ok()
}

/// A line that is not parsed as a whole.
struct SkippedLine {
    beginning: AnswerBeginning,
    /// Its last bytes.
    end: Vec<u8>,
    /// The number of bytes that were skipped, and the time at which that began.
    bytes: usize,
    began: Instant,
}

impl SkippedLine {
    fn new(line: &[u8]) -> Self {
        let mut beginning = AnswerBeginning::default();
        let mut deserializer = serde_json::Deserializer::from_slice(line);
        // The error is that the rest is missing or not valid.
        let _ = deserializer.deserialize_map(&mut beginning);
        let (bytes, began) = (0, Instant::now());
        let mut skipped = Self { beginning, end: Vec::new(), bytes, began };
        skipped.add(line.get(line.len().saturating_sub(LINE_END_BYTES)..).unwrap_or_default());
        skipped
    }

    /// Adds the next part of the line.
    fn add(&mut self, part: &[u8]) {
        self.bytes += part.len();
        self.end.extend_from_slice(part);
        self.end.drain(..self.end.len().saturating_sub(LINE_END_BYTES));
    }

    /// Returns the id of the request that it answers. `None` if it is no answer, or its id is neither before the
    /// result nor at the end.
    fn answered_request(self) -> Option<RequestId> {
        if !self.beginning.is_answer {
            return None;
        }
        self.beginning.id.or_else(|| {
            // A member that is followed only by the end of the object is one of the answer itself.
            let members = self.end.trim_ascii_end().strip_suffix(b"}")?;
            let key: &[u8] = b"\"id\":";
            let at = memchr::memmem::rfind(members, key)?;
            serde_json::from_slice(members.get(at + key.len()..)?).ok()
        })
    }
}

/// The members of a message up to its result.
#[derive(Default)]
struct AnswerBeginning {
    id: Option<RequestId>,
    /// True if it has a result or an error.
    is_answer: bool,
}

impl<'de> Visitor<'de> for &mut AnswerBeginning {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        while let Some(key) = members.next_key::<String>()? {
            match key.as_str() {
                "id" => self.id = members.next_value()?,
                "result" | "error" => {
                    self.is_answer = true;
                    break;
                }
                "method" => break,
                _ => {
                    members.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

/// Counts the bytes of a request of the server until it is answered, or those of a reply until it is written.
struct Unanswered {
    total: Arc<watch::Sender<usize>>,
    bytes: usize,
}

impl Unanswered {
    fn new(total: &Arc<watch::Sender<usize>>, bytes: usize) -> Self {
        let bytes = bytes.max(REQUEST_BYTES_MIN);
        total.send_modify(|total| *total += bytes);
        Self { total: Arc::clone(total), bytes }
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        self.total.send_modify(|total| *total -= self.bytes);
    }
}

impl Transport<RoleClient> for StdioTransport {
    type Error = SendError;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), SendError>> + Send + 'static {
        let (writer, calls) = (Arc::clone(&self.writer), Arc::clone(&self.calls));
        let all_written = Arc::clone(&self.written);
        let message = serde_json::to_vec(&item);
        let bytes = message.as_ref().map_or(0, Vec::len);
        let answered = match &item {
            ClientJsonRpcMessage::Response(response) => Some(Some(&response.id)),
            ClientJsonRpcMessage::Error(error) => Some(error.id.as_ref()),
            ClientJsonRpcMessage::Request(_) => {
                self.budget.add_request();
                None
            }
            ClientJsonRpcMessage::Notification(_) => None,
        };
        let reply = answered.map(|id| {
            let reply = Unanswered::new(&self.unanswered_bytes, bytes);
            self.forget_request(id);
            reply
        });
        async move {
            let _reply = reply;
            let mut message = message?;
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
            all_written.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            if !self.wait_for_replies().await {
                return None;
            }
            self.wait_for_budget().await;
            match self.next_line().await? {
                StdioLine::Whole(line) => {
                    let message = self.message(&line);
                    self.count(message.as_ref(), line.len());
                    if message.is_some() {
                        return message;
                    }
                }
                StdioLine::TooLong(id) => {
                    let most = self.shared.limits.max_line_bytes;
                    self.budget.spend(most);
                    let line = format!("(a line of more than {most} bytes)");
                    self.shared.unparsed_lines.lock().add(&line);
                    if let Some(id) = id {
                        let message = format!("the answer has more than {most} bytes");
                        let data = Some(UNREADABLE.into());
                        let error = ErrorData::new(ErrorCode::PARSE_ERROR, message, data);
                        return Some(ServerJsonRpcMessage::error(error, Some(id)));
                    }
                }
            }
        }
    }

    async fn close(&mut self) -> Result<(), SendError> {
        // The server reads the end of its input.
        drop(self.writer.lock().await.take());
        Ok(())
    }
}

/// The standard error of a process: its beginning, where programs of the command line write the cause, and its end.
#[derive(Debug, Default)]
pub(super) struct ErrorOutput {
    beginning: Vec<u8>,
    end: Vec<u8>,
    /// Number of bytes between them that were dropped.
    dropped: usize,
}

impl ErrorOutput {
    fn add(&mut self, bytes: &[u8]) {
        let free = STDERR_BEGINNING_BYTES_MAX - self.beginning.len();
        let (beginning, rest) = bytes.split_at(free.min(bytes.len()));
        self.beginning.extend_from_slice(beginning);
        self.end.extend_from_slice(rest);
        let excess = self.end.len().saturating_sub(STDERR_END_BYTES_MAX);
        self.end.drain(..excess);
        self.dropped += excess;
    }

    /// Quotes the text without secrets, after a reason. Empty if nothing was written.
    pub(super) fn quote(&self, secrets: &Secrets) -> String {
        let text = if self.dropped == 0 {
            let whole = [&*self.beginning, &*self.end].concat();
            secrets.redact(&String::from_utf8_lossy(&whole)).into_owned()
        } else {
            // Both parts may have been cut within a character and within a secret.
            let beginning = String::from_utf8_lossy(&self.beginning);
            let beginning = beginning.trim_end_matches(char::REPLACEMENT_CHARACTER);
            let end = String::from_utf8_lossy(&self.end);
            let end = end.trim_start_matches(char::REPLACEMENT_CHARACTER);
            let (beginning, end) = (secrets.redact_head(beginning), secrets.redact_tail(end));
            let dropped = self.dropped;
            format!("{}\n[{dropped} bytes left out]\n{}", beginning.trim_end(), end.trim_start())
        };
        let text = text.trim();
        if text.is_empty() { String::new() } else { format!("; it wrote: {text}") }
    }
}

/// Reads the standard error to its end, and keeps its beginning and its end. Reads as many times a second as messages
/// are read.
pub(super) async fn keep_error_output(
    mut stderr: pipe::Receiver,
    mut budget: MessageBudget,
    output: Arc<Mutex<ErrorOutput>>,
) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = stderr.read(&mut buffer).await {
        budget.spend(length);
        if let Some(next) = budget.next_read() {
            tokio::time::sleep_until(next).await;
        }
        output.lock().add(buffer.get(..length).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_request_of_a_line_that_is_not_parsed_is_found() {
        let answered = |line: &str| SkippedLine::new(line.as_bytes()).answered_request();
        let long = "x".repeat(2 * LINE_END_BYTES);
        for line in [
            format!(r#"{{"jsonrpc":"2.0","id":3,"result":{{"text":"{long}"#),
            format!(r#"{{"id": 3, "error": NaN, "a": "{long}""#),
            format!(r#"{{"result":{{"text":"{long}"}},"jsonrpc":"2.0","id":3}}"#) + "\n",
            format!(r#"{{"jsonrpc": "2.0", "result": {{"text": "{long}"}}, "id": 3}}"#),
        ] {
            assert_eq!(answered(&line), Some(RequestId::Number(3)), "{line}");
        }
        for line in [
            format!(r#"{{"jsonrpc":"2.0","id":3,"method":"ping","params":{{"text":"{long}"#),
            format!(r#"{{"method":"ping","params":{{"text":"{long}"}},"id":3}}"#),
            // The id of something else, and a text.
            format!(r#"{{"jsonrpc":"2.0","result":{{"text":"{long}","id":3}}}}"#),
            format!(r#"{{"jsonrpc":"2.0","result":"{long} \"id\":3}}"#),
            "[1, 2".to_owned(),
            "a line of a log".to_owned(),
        ] {
            assert_eq!(answered(&line), None, "{line}");
        }
    }

    #[tokio::test]
    async fn the_last_line_may_have_no_line_feed() {
        let answer = r#"{"jsonrpc": "2.0", "id": 3, "result": {"content": []}}"#;
        for (output, count) in [
            (answer.to_owned(), 1),
            (format!("{answer}\n{answer}"), 2),
            (format!("{answer}\n"), 1),
            (format!("{answer}\n{}", answer.trim_end_matches('}')), 1),
        ] {
            let (mut server, stdout) = pipe::pipe().unwrap();
            let (stdin, _input) = pipe::pipe().unwrap();
            server.write_all(output.as_bytes()).await.unwrap();
            drop(server);
            let (shared, calls) = (Arc::default(), Arc::default());
            let mut transport = StdioTransport::new((stdout, stdin), shared, calls);
            for _ in 0..count {
                let message = transport.receive().await;
                assert!(matches!(message, Some(ServerJsonRpcMessage::Response(answer))
                    if answer.id == RequestId::Number(3)));
            }
            assert!(transport.receive().await.is_none(), "{output}");
        }
    }

    #[tokio::test]
    async fn a_request_that_the_server_cancels_is_not_waited_for() {
        let (mut server, stdout) = pipe::pipe().unwrap();
        let (stdin, _input) = pipe::pipe().unwrap();
        let mut transport = StdioTransport::new((stdout, stdin), Arc::default(), Arc::default());
        for id in 0..300 {
            let lines = [
                json!({"jsonrpc": "2.0", "id": id, "method": "ping"}),
                json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}),
            ];
            for line in lines {
                server.write_all(format!("{line}\n").as_bytes()).await.unwrap();
                assert!(transport.receive().await.is_some());
            }
        }
        assert_eq!(*transport.unanswered_bytes.borrow(), 0);
    }

    #[tokio::test]
    async fn a_line_without_end_ends_the_connection() {
        let (mut server, stdout) = pipe::pipe().unwrap();
        let (stdin, _input) = pipe::pipe().unwrap();
        let calls: Arc<OpenCalls> = Arc::default();
        let mut transport =
            StdioTransport::new((stdout, stdin), Arc::default(), Arc::clone(&calls));
        let McpLimits { max_line_bytes, max_skipped_bytes, .. } = McpLimits::default();
        let line = vec![b'x'; max_line_bytes + max_skipped_bytes + (1 << 20)];
        let (written, received) =
            tokio::join!(async move { server.write_all(&line).await }, async move {
                transport.receive().await.is_none()
            });
        assert!(received && written.is_err());
        assert!(calls.end_reason.lock().unwrap().contains("did not end"));
    }

    #[tokio::test]
    async fn a_line_that_pauses_ends_the_connection() {
        let (mut server, stdout) = pipe::pipe().unwrap();
        let (stdin, _input) = pipe::pipe().unwrap();
        let calls: Arc<OpenCalls> = Arc::default();
        let mut transport =
            StdioTransport::new((stdout, stdin), Arc::default(), Arc::clone(&calls));
        transport.skipped = Some(SkippedLine::new(b"{"));
        server.write_all(b"x").await.unwrap();
        tokio::time::pause();
        assert!(transport.receive().await.is_none());
        assert!(calls.end_reason.lock().is_some());
    }

    /// Returns whether a message is received without waiting for more than the runtime's own work.
    async fn receives(transport: &mut StdioTransport) -> bool {
        for _ in 0..100 {
            if let Some(message) = transport.receive().now_or_never() {
                return message.is_some();
            }
            tokio::task::yield_now().await;
        }
        false
    }

    #[tokio::test]
    async fn unanswered_requests_stop_the_reading() {
        let (mut server, stdout) = pipe::pipe().unwrap();
        let (stdin, _input) = pipe::pipe().unwrap();
        let mut transport = StdioTransport::new((stdout, stdin), Arc::default(), Arc::default());
        // They fit into the pipe.
        let ping = |id: usize| format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"ping\"}}\n");
        let pings: String = (0..1_000).map(ping).collect();
        server.write_all(pings.as_bytes()).await.unwrap();
        let mut read = 0;
        while receives(&mut transport).await {
            read += 1;
        }
        assert_eq!(read, UNANSWERED_BYTES_MAX / REQUEST_BYTES_MIN + 1);
        let error = ErrorData::new(ErrorCode::METHOD_NOT_FOUND, "no", None);
        let answer = ClientJsonRpcMessage::error(error, Some(RequestId::Number(1)));
        transport.send(answer).await.unwrap();
        assert!(receives(&mut transport).await && !receives(&mut transport).await);
    }

    #[tokio::test]
    async fn a_server_that_writes_requests_and_reads_nothing_is_ended() {
        let (mut server, stdout) = pipe::pipe().unwrap();
        let (stdin, _input) = pipe::pipe().unwrap();
        let calls: Arc<OpenCalls> = Arc::default();
        let mut transport =
            StdioTransport::new((stdout, stdin), Arc::default(), Arc::clone(&calls));
        tokio::time::pause();
        // The server's input is full after a few replies.
        let mut sent = tokio::task::JoinSet::new();
        for id in 0..100 {
            let ping = json!({"jsonrpc": "2.0", "id": id, "method": "ping"});
            server.write_all(format!("{ping}\n").as_bytes()).await.unwrap();
            assert!(transport.receive().await.is_some());
            let message = "x".repeat(10_000);
            let error = ErrorData::new(ErrorCode::METHOD_NOT_FOUND, message, None);
            let reply = ClientJsonRpcMessage::error(error, Some(RequestId::Number(id)));
            sent.spawn(transport.send(reply));
            tokio::task::yield_now().await;
            if *transport.unanswered_bytes.borrow() > UNANSWERED_BYTES_MAX {
                break;
            }
        }
        assert!(transport.receive().await.is_none());
        assert!(calls.end_reason.lock().unwrap().contains("read no replies"));
    }

    #[test]
    fn the_null_beside_a_result_or_an_error_is_left_out() {
        let read = |text: &str| without_null(serde_json::from_str(text).unwrap());
        let result = r#"{"jsonrpc": "2.0", "id": 3, "result": {"content": []}, "error": null}"#;
        assert!(matches!(read(result), Some(ServerJsonRpcMessage::Response(answer))
            if answer.id == RequestId::Number(3)));
        let error =
            r#"{"jsonrpc": "2.0", "id": 3, "result": null, "error": {"code": 1, "message": "no"}}"#;
        assert!(matches!(read(error), Some(ServerJsonRpcMessage::Error(error))
            if error.error.message == "no"));
        for text in [
            r#"{"jsonrpc": "2.0", "id": 3, "result": null, "error": null}"#,
            r#"{"jsonrpc": "2.0", "id": 3, "error": "text"}"#,
            r#"{"id": 3, "error": "the log"}"#,
        ] {
            assert!(read(text).is_none(), "{text}");
        }
    }
}
