//! Accepts TCP connections and serves HTTP/1.1 on each, with time limits for clients that do not send
//! (slowloris), do not read, or read very slowly (slow readers). `connections` limits their number.
//!
//! A header has at most 32 KiB and `header_read_timeout` (10 s). A client that the server waits for must read within
//! `write_timeout` (30 s), and 16 KiB per second on average.

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
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_io_timeout::TimeoutWriter;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower_service::Service as _;

use super::connections::{ConnectionSlot, Connections, IncompleteRequest};
use super::state::ServerOptions;
use super::tls::ServerTls;

/// Maximum number of bytes that are buffered for a connection in each direction, and so of a request's header.
const BUFFER_BYTES_MAX: usize = 32 * 1024;

/// On Linux and Android, the system accepts no more bytes for a connection that has this many unsent ones.
const UNSENT_BYTES_MAX: u32 = 8 * 1024;

/// Bytes per second that a client must read on average while the server waits for it.
const BYTES_PER_SECOND_MIN: u64 = 16 * 1024;

/// Maximum pause after a failed `accept`. It ends when a connection ends.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The body of the answer on a connection that is refused.
const REFUSED: &str = "{\"error\":{\"code\":\"too_many_connections\",\"message\":\"the host has \
                       max_connections open connections: try again later\"}}";

/// The addresses of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionAddresses {
    /// The server's address. Requests may use it as their host name, even if the server listens on all addresses.
    pub(super) local: Option<SocketAddr>,
    /// The address of the client, or of the last proxy.
    pub(super) client: Option<SocketAddr>,
}

/// The time limits of a connection.
#[derive(Clone, Copy, Debug)]
struct ConnectionTimeouts {
    header_read: Duration,
    write: Duration,
}

/// Fails a write if the client reads too slowly for too long. A client that reads a few bytes from time to time does
/// not exceed the time limit of one write, and could keep the memory of a large answer or event for hours.
#[derive(Debug)]
struct MinimumRateWriter<S> {
    stream: S,
    /// The start of the current wait for the client. `None` if no write waits.
    waits_since: Option<Instant>,
    /// The end of the last write; before the first write, the start of the connection.
    last_write: Instant,
    /// The time by which the client is behind. A write that waits adds its wait. A write that succeeds subtracts the
    /// time that its bytes take at the minimum rate, and the idle time between the end of the previous write and the
    /// start of this one. Never below zero, so that a client cannot save time for later.
    lag: Duration,
    lag_max: Duration,
}

impl<S> MinimumRateWriter<S> {
    fn new(stream: S, lag_max: Duration) -> Self {
        let (lag, last_write) = (Duration::ZERO, Instant::now());
        Self { stream, waits_since: None, last_write, lag, lag_max }
    }

    /// Updates the lag after a write. Returns an error if the lag is too long, else the result of the write.
    fn check(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let now = Instant::now();
        if self.waits_since.is_none() {
            self.lag = self.lag.saturating_sub(now - self.last_write);
        }
        match &written {
            Poll::Pending => {
                self.waits_since.get_or_insert(now);
            }
            Poll::Ready(Ok(bytes)) => {
                let waited = self.waits_since.take().map(|since| now - since);
                let time = Duration::from_micros(*bytes as u64 * 1_000_000 / BYTES_PER_SECOND_MIN);
                self.lag = (self.lag + waited.unwrap_or_default()).saturating_sub(time);
                self.last_write = now;
                if self.lag > self.lag_max {
                    return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                }
            }
            Poll::Ready(Err(_)) => {}
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for MinimumRateWriter<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for MinimumRateWriter<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.check(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.check(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// The body of a request. Its handler drops it once the whole body has been read or is not needed, which marks the
/// request as complete (`connections`).
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
    let tls = options.tls;
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
                    connections.free_descriptor();
                    // The closed connection gives its descriptor back when its task runs.
                    tokio::select! {
                        Some(_) = tasks.join_next() => {}
                        () = tokio::time::sleep(ACCEPT_PAUSE) => {}
                    }
                    continue;
                }
            },
        };
        match connections.admit() {
            Some(slot) => {
                let (router, closing) = (router.clone(), closing.clone());
                let connection = (stream, router, slot, timeouts, closing);
                match tls.as_ref().map(ServerTls::acceptor) {
                    Some(acceptor) => tasks.spawn(serve_tls_connection(acceptor, connection)),
                    None => tasks.spawn(serve_tcp_connection(connection)),
                };
            }
            // A handshake would cost time.
            None if tls.is_some() => {}
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

/// An accepted connection, and what it needs.
type Accepted = (TcpStream, Router, ConnectionSlot, ConnectionTimeouts, CancellationToken);

async fn serve_tcp_connection((stream, router, slot, timeouts, closing): Accepted) {
    let addresses = prepare(&stream);
    serve_connection(stream, addresses, router, slot, timeouts, closing).await;
}

/// Serves a connection after the handshake of TLS, which has the time limit of a header.
async fn serve_tls_connection(acceptor: TlsAcceptor, accepted: Accepted) {
    let (stream, router, slot, timeouts, closing) = accepted;
    let addresses = prepare(&stream);
    let handshake = tokio::time::timeout(timeouts.header_read, acceptor.accept(stream));
    let stream = tokio::select! {
        handshake = handshake => match handshake {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return tracing::debug!(%error, "a TLS handshake failed"),
            Err(_) => return,
        },
        () = slot.evicted() => return,
        () = closing.cancelled() => return,
    };
    // Boxed: the state of TLS is large.
    serve_connection(Box::new(stream), addresses, router, slot, timeouts, closing).await;
}

/// Sets the options of a connection. Returns its addresses.
fn prepare(stream: &TcpStream) -> ConnectInfo<ConnectionAddresses> {
    // Small writes are sent at once, so that events are not delayed.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY cannot be set for a connection");
    }
    limit_unsent(stream);
    let (local, client) = (stream.local_addr().ok(), stream.peer_addr().ok());
    ConnectInfo(ConnectionAddresses { local, client })
}

async fn serve_connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    addresses: ConnectInfo<ConnectionAddresses>,
    router: Router,
    slot: ConnectionSlot,
    timeouts: ConnectionTimeouts,
    closing: CancellationToken,
) {
    // `TimeoutWriter` limits one write that does not go on, `MinimumRateWriter` all writes together.
    let mut stream = TimeoutWriter::new(MinimumRateWriter::new(stream, timeouts.write));
    stream.set_timeout(Some(timeouts.write));
    let service = service_fn(|request: Request<Incoming>| {
        let incomplete = slot.begin_request();
        let mut request = request.map(|body| RequestBody {
            _incomplete: (!body.is_end_stream()).then_some(incomplete),
            body,
        });
        request.extensions_mut().insert(addresses);
        let answer = router.clone().call(request);
        async { Ok::<Response, Infallible>(answer.await.unwrap_or_else(|never| match never {})) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(timeouts.header_read)
        .max_buf_size(BUFFER_BYTES_MAX)
        .serve_connection(TokioIo::new(Box::pin(stream)), service);
    // For WebSockets.
    #[cfg(feature = "faces")]
    let connection = connection.with_upgrades();
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio::time::{interval, interval_at};

    use super::*;

    /// Writes 1 MiB to a client that reads a number of bytes and then waits for a time.
    async fn write_to_client(bytes: usize, pause: Duration) -> Result<(), io::ErrorKind> {
        let (stream, mut client) = duplex(1024);
        let read = async {
            let mut buffer = vec![0; bytes];
            while client.read_exact(&mut buffer).await.is_ok() {
                tokio::time::sleep(pause).await;
            }
        };
        let write = async {
            let mut writer = MinimumRateWriter::new(stream, Duration::from_secs(30));
            let text = vec![b'x'; 1 << 20];
            writer.write_all(&text).await.map_err(|error| error.kind())
        };
        tokio::join!(read, write).1
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_too_slowly_fails_the_write() {
        let second = Duration::from_secs(1);
        let too_slow: Result<(), _> = Err(io::ErrorKind::TimedOut);
        assert_eq!(write_to_client(64, 29 * second).await, too_slow);
        assert_eq!(write_to_client(8 * 1024, second).await, too_slow);
        assert_eq!(write_to_client(32 * 1024, second).await, Ok(()));
        assert_eq!(write_to_client(512 * 1024, 29 * second).await, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_stalls_now_and_then_in_a_quiet_stream_is_not_too_slow() {
        let (stream, mut client) = duplex(1024);
        let second = Duration::from_secs(1);
        let read = async {
            let mut buffer = vec![0; 2048];
            let mut stalls = interval_at(Instant::now() + 20 * second, 60 * second);
            loop {
                stalls.tick().await;
                if client.read_exact(&mut buffer).await.is_err() {
                    return;
                }
            }
        };
        let write = async {
            let mut writer = MinimumRateWriter::new(stream, 30 * second);
            let mut events = interval(60 * second);
            for _ in 0..10 {
                events.tick().await;
                let began = Instant::now();
                writer.write_all(&[b'x'; 2048]).await.unwrap();
                assert_eq!(began.elapsed(), 20 * second);
            }
        };
        tokio::join!(read, write);
    }
}
