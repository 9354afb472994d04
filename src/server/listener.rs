//! The TCP listener, and the local address of a connection.

use std::net::SocketAddr;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io;
use tokio::net::{TcpListener, TcpStream};

/// A listener whose connections send small writes at once (`TCP_NODELAY`), so that events are not
/// delayed.
#[derive(Debug)]
pub(super) struct NoDelayListener(pub(super) TcpListener);

impl Listener for NoDelayListener {
    type Io = TcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        // axum's `Listener::accept` waits and retries when the process is out of file descriptors.
        let (stream, peer) = <TcpListener as Listener>::accept(&mut self.0).await;
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY cannot be set for a connection");
        }
        (stream, peer)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

/// The server's address of a connection. Requests may use it as their host name, even if the server
/// listens on all addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalAddress(pub(super) Option<SocketAddr>);

impl Connected<IncomingStream<'_, NoDelayListener>> for LocalAddress {
    fn connect_info(stream: IncomingStream<'_, NoDelayListener>) -> Self {
        Self(stream.io().local_addr().ok())
    }
}
