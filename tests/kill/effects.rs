//! What tools do outside: a server that counts each request by its `Idempotency-Key`.

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

/// Something that a tool has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Effect {
    pub(crate) url: String,
    pub(crate) key: String,
}

/// The server; it stops when it is dropped.
pub(crate) struct Effects {
    pub(crate) port: u16,
    desk: Arc<Desk>,
    _stop: DropGuard,
}

struct Desk {
    port: u16,
    file: Mutex<File>,
    done: watch::Sender<Vec<Effect>>,
}

impl Effects {
    /// Every effect becomes a line of the file before it is answered.
    pub(crate) async fn start(file: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let file = Mutex::new(File::create(file).unwrap());
        let desk = Arc::new(Desk { port, file, done: watch::Sender::new(Vec::new()) });
        let routes = Router::new().fallback(take).with_state(Arc::clone(&desk));
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        #[expect(clippy::disallowed_methods, reason = "the server's accept loop")]
        tokio::spawn(async move {
            tokio::select! {
                () = stopped => {}
                served = axum::serve(listener, routes) => served.unwrap(),
            }
        });
        Self { port, desk, _stop: stop.drop_guard() }
    }

    pub(crate) fn done(&self) -> Vec<Effect> {
        self.desk.done.borrow().clone()
    }

    /// Waits for so many more effects.
    pub(crate) async fn more(&self, count: usize) {
        let mut done = self.desk.done.subscribe();
        let enough = done.borrow().len() + count;
        done.wait_for(|done| done.len() >= enough).await.unwrap();
    }
}

/// The effect happens, and is answered: at once, a little later (`/slow/`), never (`/never/`).
async fn take(State(desk): State<Arc<Desk>>, uri: Uri, headers: HeaderMap) -> String {
    let key = headers.get("idempotency-key").map_or("", |key| key.to_str().unwrap());
    let url = format!("http://127.0.0.1:{}{}", desk.port, uri.path());
    let effect = Effect { url, key: key.to_owned() };
    writeln!(desk.file.lock(), "{} {}", effect.key, effect.url).unwrap();
    desk.done.send_modify(|done| done.push(effect));
    match uri.path().split('/').nth(1) {
        Some("slow") => tokio::time::sleep(Duration::from_millis(20)).await,
        Some("never") => std::future::pending().await,
        Some(_) | None => {}
    }
    "done".to_owned()
}
