//! TLS to the database, with the CA certificates of the machine.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use callsheet_tools::tls;
use futures::future::BoxFuture;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;

/// The ALPN protocol of PostgreSQL, which a server asks for if TLS begins at once (`sslnegotiation=direct`).
const ALPN: &[u8] = b"postgresql";

/// Makes TLS connections. `None` on a machine without CA certificates: then no server is trusted.
#[derive(Clone)]
pub(super) struct DatabaseTls(Option<Arc<ClientConfig>>);

impl DatabaseTls {
    pub(super) fn new() -> Self {
        let config = tls::client_config().inspect_err(|error| {
            tracing::warn!(%error, "no CA certificates: TLS to the database will fail");
        });
        Self(config.ok().map(|config| {
            let mut config = ClientConfig::clone(&config);
            config.alpn_protocols = vec![ALPN.to_vec()];
            Arc::new(config)
        }))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for DatabaseTls {
    type Stream = DatabaseStream<S>;
    type TlsConnect = ServerConnector;
    type Error = io::Error;

    fn make_tls_connect(&mut self, domain: &str) -> io::Result<ServerConnector> {
        let name = ServerName::try_from(domain.to_owned()).map_err(io::Error::other)?;
        Ok(ServerConnector { config: self.0.clone(), name })
    }
}

/// Begins TLS with one server.
pub(super) struct ServerConnector {
    config: Option<Arc<ClientConfig>>,
    name: ServerName<'static>,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for ServerConnector {
    type Stream = DatabaseStream<S>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<DatabaseStream<S>>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            let missing = || io::Error::other("this machine has no CA certificates");
            let config = self.config.ok_or_else(missing)?;
            let encrypted = TlsConnector::from(config).connect(self.name, stream).await?;
            Ok(DatabaseStream(Box::new(encrypted)))
        })
    }
}

/// An encrypted stream. Without channel binding: the certificate is verified.
pub(super) struct DatabaseStream<S>(Box<tokio_rustls::client::TlsStream<S>>);

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for DatabaseStream<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for DatabaseStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for DatabaseStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
