//! The effects of tools: a server that records each request with its `Idempotency-Key`.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

/// An effect of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Effect {
    pub(crate) url: String,
    pub(crate) key: String,
}

/// The server. It stops when dropped.
pub(crate) struct Effects {
    pub(crate) port: u16,
    log: Arc<EffectLog>,
    _stop: DropGuard,
}

struct EffectLog {
    port: u16,
    file: Mutex<File>,
    done: watch::Sender<Vec<Effect>>,
}

impl Effects {
    /// Starts the server. Writes every effect to the file before it responds.
    pub(crate) async fn start(file: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let file = Mutex::new(File::create(file).unwrap());
        let log = Arc::new(EffectLog { port, file, done: watch::Sender::new(Vec::new()) });
        let routes = Router::new().fallback(record_effect).with_state(Arc::clone(&log));
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        #[expect(clippy::disallowed_methods, reason = "the server's accept loop")]
        tokio::spawn(async move {
            tokio::select! {
                () = stopped => {}
                served = axum::serve(listener, routes) => served.unwrap(),
            }
        });
        Self { port, log, _stop: stop.drop_guard() }
    }

    pub(crate) fn done(&self) -> Vec<Effect> {
        self.log.done.borrow().clone()
    }

    /// Waits for `count` more effects.
    pub(crate) async fn more(&self, count: usize) {
        let mut done = self.log.done.subscribe();
        let enough = done.borrow().len() + count;
        done.wait_for(|done| done.len() >= enough).await.unwrap();
    }
}

/// Records an effect and responds: at once, after a delay (`/slow/`), or never (`/never/`).
async fn record_effect(State(log): State<Arc<EffectLog>>, uri: Uri, headers: HeaderMap) -> String {
    let key = headers.get("idempotency-key").map_or("", |key| key.to_str().unwrap());
    let url = format!("http://127.0.0.1:{}{}", log.port, uri.path());
    let effect = Effect { url, key: key.to_owned() };
    writeln!(log.file.lock(), "{} {}", effect.key, effect.url).unwrap();
    log.done.send_modify(|done| done.push(effect));
    match uri.path().split('/').nth(1) {
        Some("slow") => tokio::time::sleep(Duration::from_millis(20)).await,
        Some("never") => std::future::pending().await,
        Some(_) | None => {}
    }
    "done".to_owned()
}
