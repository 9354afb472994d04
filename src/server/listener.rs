//! Connections as they come in.

use std::net::SocketAddr;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io;
use tokio::net::{TcpListener, TcpStream};

/// A listener whose connections send small writes at once: an event is worth its own packet.
#[derive(Debug)]
pub(super) struct NoDelayListener(pub(super) TcpListener);

impl Listener for NoDelayListener {
    type Io = TcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        // The trait's own method waits and tries again when the process has no more descriptors.
        let (stream, from) = <TcpListener as Listener>::accept(&mut self.0).await;
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection keeps Nagle's delay");
        }
        (stream, from)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

/// Our end of a connection: what a client may call us, also when we listen on all addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalAddress(pub(super) Option<SocketAddr>);

impl Connected<IncomingStream<'_, NoDelayListener>> for LocalAddress {
    fn connect_info(stream: IncomingStream<'_, NoDelayListener>) -> Self {
        Self(stream.io().local_addr().ok())
    }
}
