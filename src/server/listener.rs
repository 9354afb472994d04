//! Accepts TCP connections and serves HTTP/1.1 on each, with time limits for clients that do not send
//! or do not read.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::extract::connect_info::ConnectInfo;
use axum::http::Request;
use axum::response::Response;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_io_timeout::TimeoutWriter;
use tokio_util::sync::CancellationToken;
use tower_service::Service as _;

use super::connections::{ConnectionSlot, Connections, IncompleteRequest};
use super::state::ServerOptions;

/// The bytes of a connection that wait for its client. Also the maximal size of a request's header.
const BUFFER_BYTES_MAX: usize = 32 * 1024;

/// The unsent bytes of a connection from which the system accepts no more.
const UNSENT_BYTES_MAX: u32 = 8 * 1024;

/// The pause after a failed `accept`, if nothing can be closed to make room.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The body of the answer on a connection that is refused.
const REFUSED: &str = "{\"error\":{\"code\":\"too_many_connections\",\"message\":\"the host has \
                       max_connections open connections: try again later\"}}";

/// The server's address of a connection. Requests may use it as their host name, even if the server
/// listens on all addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalAddress(pub(super) Option<SocketAddr>);

/// The time limits of a connection.
#[derive(Clone, Copy, Debug)]
struct ConnectionTimeouts {
    header_read: Duration,
    write: Duration,
}

/// The body of a request. Its reader drops it when it has arrived.
struct RequestBody {
    body: Incoming,
    /// `None` if the body is empty.
    _incomplete: Option<IncompleteRequest>,
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Serves the router on a listener until `closing` is cancelled and all connections have ended.
/// Dropping the future ends them.
pub(super) async fn serve(
    listener: TcpListener,
    router: Router,
    connections: Arc<Connections>,
    options: ServerOptions,
    closing: CancellationToken,
) {
    let timeouts = ConnectionTimeouts {
        header_read: options.header_read_timeout,
        write: options.write_timeout,
    };
    let refusal = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{REFUSED}",
        REFUSED.len()
    );
    let mut tasks = JoinSet::new();
    loop {
        let stream = tokio::select! {
            () = closing.cancelled() => break,
            Some(_) = tasks.join_next() => continue,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) if concerns_one_connection(&error) => continue,
                Err(error) => {
                    // The process has no descriptor or no memory left.
                    tracing::debug!(%error, "no connection can be accepted");
                    if !connections.free_descriptor() {
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                    continue;
                }
            },
        };
        match connections.admit() {
            Some(slot) => {
                tasks.spawn(serve_connection(
                    stream,
                    router.clone(),
                    slot,
                    timeouts,
                    closing.clone(),
                ));
            }
            // Written only if that is possible at once: a refused client must cost nothing.
            None => drop(stream.try_write(refusal.as_bytes())),
        }
    }
    drop(listener);
    while tasks.join_next().await.is_some() {}
}

fn concerns_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

async fn serve_connection(
    stream: TcpStream,
    router: Router,
    slot: ConnectionSlot,
    timeouts: ConnectionTimeouts,
    closing: CancellationToken,
) {
    // Small writes are sent at once, so that events are not delayed.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY cannot be set for a connection");
    }
    limit_unsent(&stream);
    let local = ConnectInfo(LocalAddress(stream.local_addr().ok()));
    let mut stream = TimeoutWriter::new(stream);
    stream.set_timeout(Some(timeouts.write));
    let service = service_fn(|request: Request<Incoming>| {
        let incomplete = slot.begin_request();
        let mut request = request.map(|body| RequestBody {
            _incomplete: (!body.is_end_stream()).then_some(incomplete),
            body,
        });
        request.extensions_mut().insert(local);
        let answer = router.clone().call(request);
        async { Ok::<Response, Infallible>(answer.await.unwrap_or_else(|never| match never {})) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(timeouts.header_read)
        .max_buf_size(BUFFER_BYTES_MAX)
        .serve_connection(TokioIo::new(Box::pin(stream)), service);
    let mut connection = pin!(connection);
    let mut is_closing = false;
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection ended with an error");
                }
                return;
            }
            () = slot.evicted() => return,
            () = closing.cancelled(), if !is_closing => {
                is_closing = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// Limits the bytes that the system holds for a client that does not read (`man 7 tcp`, `TCP_NOTSENT_LOWAT`).
/// Otherwise thousands of such clients fill its memory for TCP, and all connections become slow.
fn limit_unsent(stream: &TcpStream) {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    if let Err(error) = socket2::SockRef::from(stream).set_tcp_notsent_lowat(UNSENT_BYTES_MAX) {
        tracing::debug!(%error, "TCP_NOTSENT_LOWAT cannot be set for a connection");
    }
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let _ = stream;
}
