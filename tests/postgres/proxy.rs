//! A TCP proxy between an engine and its server, which delays, cuts, and loses answers.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test fails by panicking, and its tasks end with it"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The treatment of connections and of received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Passes it on.
    Pass = 0,
    /// Passes requests on, and closes the connection instead of passing the answer on.
    LoseAnswers = 1,
    /// Passes nothing on, and keeps the connections.
    Freeze = 2,
    /// Refuses connections.
    Refuse = 3,
}

struct State {
    mode: AtomicU8,
    delay_ms: AtomicU64,
    lost_answers: AtomicUsize,
    cut: watch::Sender<u64>,
}

impl State {
    fn is(&self, mode: Mode) -> bool {
        self.mode.load(Ordering::Acquire) == mode as u8
    }
}

/// The proxy of one server. Its connections end when it is dropped.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    state: Arc<State>,
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    pub(crate) async fn start(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State {
            mode: AtomicU8::new(Mode::Pass as u8),
            delay_ms: AtomicU64::new(0),
            lost_answers: AtomicUsize::new(0),
            cut: watch::Sender::new(0),
        });
        let shared = Arc::clone(&state);
        let task = tokio::task::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                if !shared.is(Mode::Refuse)
                    && let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await
                {
                    connections.spawn(pass(client, server, Arc::clone(&shared)));
                }
            }
        });
        Self { port, state, task }
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.state.mode.store(mode as u8, Ordering::Release);
    }

    /// Delays each answer.
    pub(crate) fn delay(&self, delay: Duration) {
        self.state.delay_ms.store(delay.as_millis() as u64, Ordering::Release);
    }

    /// Closes all connections.
    pub(crate) fn cut(&self) {
        self.state.cut.send_modify(|number| *number += 1);
    }

    /// Returns the number of answers that were lost.
    pub(crate) fn lost_answers(&self) -> usize {
        self.state.lost_answers.load(Ordering::Acquire)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Passes the bytes of one connection on in both directions.
async fn pass(client: TcpStream, server: TcpStream, state: Arc<State>) {
    let mut cut = state.cut.subscribe();
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let requests = async {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let Ok(length @ 1..) = from_client.read(&mut buffer).await else { return };
            while state.is(Mode::Freeze) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            if to_server.write_all(&buffer[..length]).await.is_err() {
                return;
            }
        }
    };
    let answers = async {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let Ok(length @ 1..) = from_server.read(&mut buffer).await else { return };
            let delay = Duration::from_millis(state.delay_ms.load(Ordering::Acquire));
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            while state.is(Mode::Freeze) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            if state.is(Mode::LoseAnswers) {
                state.lost_answers.fetch_add(1, Ordering::AcqRel);
                return;
            }
            if to_client.write_all(&buffer[..length]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = requests => {}
        () = answers => {}
        _ = cut.changed() => {}
    }
}
