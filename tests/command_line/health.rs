//! `callsheet health`: what it says of hosts that are ready, that are not, and that are none.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::process::Output;

use crate::cli::{Folder, ServeProcess, serve, signal, stderr, stdout};

/// Serves this answer to one request, and returns the address and the request.
fn server(answer: &'static str) -> (SocketAddr, std::thread::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 1024];
        let read = stream.read(&mut request).unwrap();
        let length = answer.split_once("\r\n\r\n").map_or(0, |(_, body)| body.len());
        let answer = answer.replacen("\r\n", &format!("\r\ncontent-length: {length}\r\n"), 1);
        stream.write_all(answer.as_bytes()).unwrap();
        String::from_utf8_lossy(&request[..read]).into_owned()
    });
    (addr, serving)
}

/// Returns the exit status and all that was printed.
fn printed(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), stdout(output) + &stderr(output))
}

#[test]
fn a_host_that_serves_is_ready_until_it_is_stopped() {
    let folder = Folder::new("health");
    let ServeProcess { mut child, addr, .. } = serve(&folder, &[]);
    let url = format!("http://{addr}");
    let ready = (Some(0), format!("{url}: ready\n"));
    assert_eq!(printed(&folder.run(&["health", &url])), ready);
    assert_eq!(printed(&folder.run(&["health", &format!("{url}/")])), ready);
    // The host of a configuration, whose model may lack its key here.
    let model = "[models.m]\nbase_url='http://h/v1'\nmodel='x'\napi_key_env='NO_KEY'\n";
    let config = format!("[host]\nlisten='{addr}'\n{model}");
    let folder = folder.with("callsheet.toml", &config).with("other.toml", &config);
    assert_eq!(printed(&folder.run(&["health"])), ready);
    assert_eq!(printed(&folder.run(&["health", "--config", "other.toml"])), ready);
    signal(&child, "TERM");
    child.wait().unwrap();
    let stopped = format!(
        "callsheet: {url}: the host cannot be reached: Connection refused (os error 111) (start it with \
         callsheet serve, or name its URL)\n"
    );
    assert_eq!(printed(&folder.run(&["health"])), (Some(1), stopped));
}

#[test]
fn an_answer_that_does_not_say_ready_is_explained() {
    for (answer, expected) in [
        (
            "HTTP/1.1 503 S\r\n\r\n{\"error\":{\"code\":\"journal_failed\",\"message\":\"disk full\"}}",
            "not ready: disk full (journal_failed)",
        ),
        (
            "HTTP/1.1 403 F\r\n\r\n{\"error\":{\"code\":\"forbidden_host\",\"message\":\"not a name\"}}",
            "not a name (403 forbidden_host)",
        ),
        (
            "HTTP/1.1 200 OK\r\n\r\nhello",
            "the answer 200 is not one of a callsheet host; check the URL",
        ),
        (
            "HTTP/1.1 302 F\r\nlocation: /login\r\n\r\n",
            "the answer 302 is not one of a callsheet host; check the URL",
        ),
    ] {
        let (addr, serving) = server(answer);
        let url = format!("http://{addr}/agents");
        let output = Folder::new("health-answers").run(&["health", &url]);
        assert_eq!(printed(&output), (Some(1), format!("callsheet: {url}: {expected}\n")));
        let request = serving.join().unwrap();
        assert!(request.starts_with("GET /agents/readyz HTTP/1.1\r\n"), "{request}");
    }
}
