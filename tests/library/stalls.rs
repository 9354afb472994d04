//! Time in which the host itself handles nothing does not count as silence of the service.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use callsheet::prelude::*;

/// Starts a service on a thread of its own, so that it runs while the host's runtime is stalled. It
/// sends the beginning of a response, and the rest after 300 ms.
fn service() -> (SocketAddr, Arc<AtomicU32>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let requests = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&requests);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            counted.fetch_add(1, Ordering::SeqCst);
            // The whole request is small and arrives with few reads.
            stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            let mut buffer = [0; 16 * 1024];
            while stream.read(&mut buffer).is_ok_and(|read| read > 0) {}
            let delta = |text: &str| {
                format!(
                    "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n"
                )
            };
            let head =
                "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
            write!(stream, "{head}{}", delta("one ")).unwrap();
            std::thread::sleep(Duration::from_millis(300));
            let finish = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
            write!(stream, "{}{finish}data: [DONE]\n\n", delta("two")).unwrap();
        }
    });
    (address, requests)
}

#[tokio::test]
async fn a_stall_of_the_host_is_not_silence_of_the_service() {
    let (address, requests) = service();
    let base_url = BaseUrl::parse(&format!("http://{address}/v1")).unwrap();
    let model = ModelConfig::new(base_url, "m").with(|model| {
        model.idle_timeout = Duration::from_millis(600);
        model.max_attempts = 1;
    });
    let host = Host::builder().model("main", model).start().await.unwrap();
    let session = host.open_session("demo").await.unwrap();
    let mut run = session.start_run("go").await.unwrap();
    let first = run.next_event().await.unwrap();
    assert!(matches!(&first, Some(RunEvent::Text(text)) if text == "one "), "{first:?}");
    // Nothing of the host runs meanwhile, as if the process had been stopped.
    std::thread::sleep(Duration::from_secs(2));
    let report = run.report.await.unwrap();
    assert_eq!(report.text(), Ok("one two"));
    assert_eq!(requests.load(Ordering::SeqCst), 1);
    host.shutdown().await;
}
