//! A raw HTTP client, which sends exactly the bytes of a test, and a host to send them to.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::net::SocketAddr;

use callsheet::config::{BaseUrl, Config, JournalEngine};
use callsheet::runtime::Host;
use callsheet::server::{self, ServerHandle, ServerOptions};
use callsheet::tool::{BuiltinOptions, builtin};
use callsheet_mock_provider::{MockProvider, Script};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// A host with its HTTP API and a scripted model.
pub(crate) struct Service {
    pub(crate) host: Host,
    pub(crate) server: ServerHandle,
    pub(crate) model: MockProvider,
}

impl Service {
    /// Starts a host with a script as JSON and the default configuration.
    pub(crate) async fn start(script: Value) -> Self {
        Self::start_with(script, "", ServerOptions::default()).await
    }

    /// Starts a host with a script, the text of a configuration, and server options.
    pub(crate) async fn start_with(script: Value, config: &str, options: ServerOptions) -> Self {
        let script: Script = serde_json::from_value(script).unwrap();
        let model = MockProvider::with_script(script).await.unwrap();
        let has_data_dir = config.contains("data_dir");
        let mut config = Config::parse(config, "test.toml", &|_| None).unwrap();
        if !has_data_dir {
            config.journal.engine = JournalEngine::Memory;
        }
        config.set_rehearsal(BaseUrl::parse(&model.base_url()).unwrap());
        let http_get_allow = config.tools.get("http_get").map(|options| options.allow.clone());
        let http_get_allow = http_get_allow.unwrap_or_default();
        let builtin_options =
            BuiltinOptions::default().with(|new| new.http_get_allow = http_get_allow);
        let tools = builtin(&builtin_options).unwrap();
        let host = Host::builder().config(config).tools(tools).start().await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = server::serve(listener, host.clone(), options).unwrap();
        Self { host, server, model }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.server.addr()
    }

    pub(crate) async fn get(&self, path: &str) -> HttpResponse {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n")).await
    }

    pub(crate) async fn delete(&self, path: &str) -> HttpResponse {
        self.send(&format!("DELETE {path} HTTP/1.1\r\nhost: localhost\r\n\r\n")).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> HttpResponse {
        self.send(&post(path, "", &body.to_string())).await
    }

    /// Sends a request with `connection: close` added, and reads the whole response.
    pub(crate) async fn send(&self, request: &str) -> HttpResponse {
        let request = request.replacen("\r\n", "\r\nconnection: close\r\n", 1);
        let mut stream = HttpConnection::open(self.addr(), &request).await;
        stream.read_rest().await;
        stream.response()
    }

    /// Starts a run and opens its event stream.
    pub(crate) async fn watch(&self, session: &str, input: &str) -> HttpConnection {
        let body = serde_json::json!({"input": input}).to_string();
        let path = format!("/v1/sessions/{session}/runs");
        HttpConnection::open(self.addr(), &post(&path, "accept: text/event-stream\r\n", &body))
            .await
    }
}

/// Formats a request with a JSON body and additional header lines.
pub(crate) fn post(path: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n{headers}\r\n{body}"
    )
}

/// A connection and the bytes that it has received.
pub(crate) struct HttpConnection {
    stream: TcpStream,
    pub(crate) bytes: Vec<u8>,
}

impl HttpConnection {
    pub(crate) async fn open(addr: SocketAddr, request: &str) -> Self {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        Self { stream, bytes: Vec::new() }
    }

    /// Reads until the text has been received.
    pub(crate) async fn until(&mut self, text: &str) {
        let mut searched = 0;
        while memchr::memmem::find(&self.bytes[searched..], text.as_bytes()).is_none() {
            searched = self.bytes.len().saturating_sub(text.len());
            assert!(self.read_more().await, "{text:?} never came, but {:?}", self.text());
        }
    }

    /// Reads until the connection ends.
    pub(crate) async fn read_rest(&mut self) {
        while self.read_more().await {}
    }

    /// Parses the received bytes as a complete response.
    pub(crate) fn response(&self) -> HttpResponse {
        HttpResponse::parse(&self.bytes)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    /// Parses the complete events that have been received.
    pub(crate) fn events(&self) -> Vec<StreamEvent> {
        let head = self.bytes.windows(4).position(|four| four == b"\r\n\r\n");
        let Some(mut rest) = head.map(|end| &self.bytes[end + 4..]) else { return Vec::new() };
        let mut body = Vec::new();
        while let Some(line) = rest.windows(2).position(|two| two == b"\r\n") {
            let size = std::str::from_utf8(&rest[..line]).unwrap();
            let size = usize::from_str_radix(size, 16).unwrap();
            let Some(chunk) = rest.get(line + 2..line + 2 + size) else { break };
            body.extend_from_slice(chunk);
            rest = rest.get(line + 4 + size..).unwrap_or_default();
        }
        parse_events(&String::from_utf8(body).unwrap())
    }

    /// Reads until the received events satisfy the condition.
    pub(crate) async fn until_events(
        &mut self,
        enough: impl Fn(&[StreamEvent]) -> bool,
    ) -> Vec<StreamEvent> {
        loop {
            let events = self.events();
            if enough(&events) {
                return events;
            }
            assert!(self.read_more().await, "it ended too early: {:?}", self.text());
        }
    }

    pub(crate) async fn read_more(&mut self) -> bool {
        let mut buffer = vec![0; 16 * 1024];
        // A server that closes before it has read the whole request may reset the connection.
        let read = self.stream.read(&mut buffer).await.unwrap_or(0);
        self.bytes.extend_from_slice(&buffer[..read]);
        read > 0
    }
}

/// A complete response.
#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl HttpResponse {
    fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").expect("a response has a head");
        let head = head.to_ascii_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let chunked = head.contains("transfer-encoding: chunked");
        let body = if chunked { decode_chunks(body) } else { body.to_owned() };
        Self { status, head, body }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect("the body is JSON")
    }

    /// Returns the value of a header, in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    /// Returns status and `error.code` of an error response, and checks its form.
    pub(crate) fn error(&self) -> (u16, String) {
        let json = self.json();
        assert_eq!(self.header("content-type"), Some("application/json"), "{self:?}");
        assert_eq!(json.as_object().unwrap().len(), 1, "{self:?}");
        assert!(!json["error"]["message"].as_str().unwrap().is_empty(), "{self:?}");
        (self.status, json["error"]["code"].as_str().unwrap().to_owned())
    }

    /// Returns the types and data of an event stream.
    pub(crate) fn events(&self) -> Vec<(String, Value)> {
        parse_events(&self.body).into_iter().map(|event| (event.kind, event.data)).collect()
    }
}

/// One event of an event stream.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StreamEvent {
    pub(crate) id: Option<String>,
    pub(crate) kind: String,
    pub(crate) data: Value,
}

/// Parses the complete events of an event stream.
pub(crate) fn parse_events(body: &str) -> Vec<StreamEvent> {
    let whole = body.rfind("\n\n").map_or("", |end| &body[..end]);
    let events = whole.split("\n\n").filter(|event| event.starts_with("event: "));
    let field = |event: &str, name: &str| {
        event.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned)
    };
    events
        .map(|event| StreamEvent {
            id: field(event, "id: "),
            kind: field(event, "event: ").unwrap(),
            data: serde_json::from_str(&field(event, "data: ").unwrap()).unwrap(),
        })
        .collect()
}

fn decode_chunks(mut text: &str) -> String {
    let mut whole = String::new();
    while let Some((size, rest)) = text.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap();
        whole.push_str(&rest[..size]);
        text = rest[size..].strip_prefix("\r\n").unwrap();
    }
    whole
}

/// Returns the text of a text or thinking event.
pub(crate) fn text(event: &StreamEvent) -> Option<&str> {
    let is_text = matches!(event.kind.as_str(), "thinking" | "content_delta");
    event.data["text"].as_str().filter(|text| is_text && !text.is_empty())
}

/// Formats the events with an id. Joins texts, and drops texts that a later attempt voids.
pub(crate) fn reproducible_lines(events: &[StreamEvent]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut turn = 0;
    for event in events {
        let Some(id) = &event.id else { continue };
        if let Some(text) = text(event) {
            let begin = format!("{}: ", event.kind);
            match lines.last_mut() {
                Some(line) if line.starts_with(&begin) => line.push_str(text),
                Some(_) | None => lines.push(format!("{begin}{text}")),
            }
            continue;
        }
        if matches!(event.kind.as_str(), "thinking" | "attempt") {
            if event.kind == "attempt" {
                let is_text = |line: &String| {
                    line.starts_with("thinking: ") || line.starts_with("content_delta: ")
                };
                let void: Vec<String> = lines.drain(turn..).collect();
                lines.extend(void.into_iter().filter(|line| !is_text(line)));
            }
            turn = lines.len();
        }
        lines.push(format!("{id} {} {}", event.kind, event.data));
    }
    lines
}

/// Counts the runs that have ended.
pub(crate) fn ended_runs(events: &[StreamEvent]) -> usize {
    events.iter().filter(|event| event.kind == "stream_end").count()
}
