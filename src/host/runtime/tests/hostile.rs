//! Tests with services that send invalid responses, and with stops during these responses.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::provider::text;
use super::*;
use crate::runtime::model::{ModelClient, ModelRequest};
use callsheet_values::message::Message;
use callsheet_values::record::StopMode;
use callsheet_values::types::{ProviderError, ProviderErrorKind, RunEnd};

/// A service that writes raw bytes to each connection. It sends a notification when the client
/// disconnects.
struct Service {
    url: String,
    connected: mpsc::Receiver<()>,
    left: mpsc::Receiver<()>,
}

/// Starts a service that sends `head`, and then `more` every few milliseconds.
async fn service(head: impl Into<Vec<u8>>, more: &'static str) -> Service {
    let head = head.into();
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let (connecting, connected) = mpsc::channel(8);
    let (leaving, left) = mpsc::channel(8);
    spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let (head, leaving) = (head.clone(), leaving.clone());
            let _ = connecting.try_send(());
            spawn(async move {
                answer(socket, &head, more).await;
                let _ = leaving.try_send(());
            });
        }
    });
    Service { url, connected, left }
}

/// Answers one connection. Returns when the client has disconnected.
async fn answer(mut socket: TcpStream, head: &[u8], more: &str) {
    let mut buffer = vec![0; 65536];
    if socket.read(&mut buffer).await.unwrap_or(0) == 0 || socket.write_all(head).await.is_err() {
        return;
    }
    let (mut reader, mut writer) = socket.split();
    let gone = async { while reader.read(&mut buffer).await.is_ok_and(|n| n > 0) {} };
    let trickle = async {
        while more.is_empty() || writer.write_all(more.as_bytes()).await.is_ok() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! { () = gone => {}, () = trickle => {} }
}

fn asking(url: &str) -> ModelConfig {
    ModelConfig::new(BaseUrl::parse(url).unwrap(), "test-model")
}

async fn ask(service: &Service) -> Result<String, ProviderError> {
    let hello = Arc::new(Message::User { content: "hello".into() });
    let request = ModelRequest::new("test-model", [hello].into());
    let client = ModelClient::new(&asking(&service.url)).unwrap();
    let answer = timeout(SOON / 4, client.complete(&request)).await.expect("it goes on");
    answer.map(|response| response.text)
}

fn head(rest: &str) -> String {
    format!("HTTP/1.1 200 OK\r\n{rest}\r\n\r\n")
}

const SSE: &str = "content-type: text/event-stream\r\nconnection: close";

#[tokio::test]
async fn data_after_the_end_does_not_keep_the_response_open() {
    let response = format!("{}data: {}\n\ndata: [DONE]\n\n", head(SSE), text("fine"));
    for more in [
        ": a comment\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\"\"}}]}\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\"more\"}}]}\n\n",
        "data: [DONE]\n\n",
    ] {
        let mut service = service(response.clone(), more).await;
        let received = ask(&service).await.unwrap();
        assert!(received.starts_with("fine"), "{more}: {received}");
        timeout(SOON, service.left.recv()).await.expect("the connection is closed").unwrap();
    }
}

#[tokio::test]
async fn an_error_with_an_endless_body_is_reported() {
    let head =
        "HTTP/1.1 429 Too Many Requests\r\ncontent-length: 1000000\r\nretry-after: 3\r\n\r\n";
    let answers = ["", "."].map(|more| async move { ask(&service(head, more).await).await });
    for answer in futures::future::join_all(answers).await {
        let error = answer.unwrap_err();
        assert_eq!((error.kind, error.status), (ProviderErrorKind::Status, Some(429)), "{error}");
        assert_eq!(error.retry_after, Some(Duration::from_secs(3)));
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let mut other = service(head(SSE), "").await;
    for status in [301, 302, 303, 307, 308] {
        let head = format!(
            "HTTP/1.1 {status} Elsewhere\r\nlocation: {}/chat/completions\r\ncontent-length: 0\r\n\r\n",
            other.url
        );
        let error = ask(&service(head, "").await).await.unwrap_err();
        assert_eq!((error.kind, error.status), (ProviderErrorKind::Status, Some(status)));
        assert!(!error.is_transient());
    }
    other.connected.try_recv().unwrap_err();
}

#[tokio::test]
async fn bodies_that_are_not_responses_are_reported() {
    let html = "<!doctype html><html><body>Log in to the network</body></html>";
    for kind in ["content-type: text/html; charset=utf-8\r\n", ""] {
        let page = head(&format!("{kind}content-length: {}", html.len())) + html;
        let error = ask(&service(page, "").await).await.unwrap_err();
        assert_eq!(error.kind, ProviderErrorKind::Malformed);
        assert!(error.message.contains("<!doctype html>"), "{error}");
    }
    let mut zipped =
        head("content-type: text/event-stream\r\ncontent-encoding: gzip\r\nconnection: close")
            .into_bytes();
    zipped.extend([0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 1, 2, 3]);
    let service = service(zipped, "").await;
    let error = ask(&service).await.unwrap_err();
    assert_eq!(error.kind, ProviderErrorKind::Malformed);
    assert!(error.message.contains("gzip"), "{error}");
}

async fn stopped_in_time(url: &str, service: &mut Service) {
    let mut config = Config::default();
    config.journal.engine = JournalEngine::Memory;
    config.use_model("test", asking(url));
    config.agents.values_mut().for_each(|agent| agent.tools.clear());
    let host = Host::start(HostSetup::new(config, ToolRegistry::new())).await.unwrap();
    let session = session(&host).await;
    let run = session.start_run("go").await.unwrap();
    timeout(SOON, service.connected.recv()).await.expect("it connects").unwrap();
    sleep(Duration::from_millis(20)).await;
    let began = Instant::now();
    session.stop(StopMode::Now).await.unwrap();
    let report = timeout(SOON, run.report).await.expect("the run ends").unwrap();
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!(report.run_end, RunEnd::Stopped);
    timeout(SOON, service.left.recv()).await.expect("the connection is closed").unwrap();
    nothing_left(&host).await;
}

#[tokio::test]
async fn a_stop_takes_effect_during_the_handshake() {
    let mut service = service("", "").await;
    let url = service.url.replace("http://", "https://");
    stopped_in_time(&url, &mut service).await;
}

#[tokio::test]
async fn a_stop_takes_effect_while_the_head_arrives() {
    let mut service = service("HTTP/1.1 200 OK\r\nx-slow: ", "a").await;
    let url = service.url.clone();
    stopped_in_time(&url, &mut service).await;
}

#[tokio::test]
async fn a_stop_takes_effect_while_the_body_arrives_slowly() {
    for head in [head(SSE), head("content-type: application/json\r\nconnection: close")] {
        let mut service = service(head, " ").await;
        let url = service.url.clone();
        stopped_in_time(&url, &mut service).await;
    }
}
