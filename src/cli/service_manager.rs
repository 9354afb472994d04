//! Notifications to the service manager that started the process (`man 3 sd_notify`): ready, stopping, and the
//! heartbeat of the watchdog. Without `NOTIFY_SOCKET` in the environment nothing is sent.

use std::convert::Infallible;
use std::ffi::OsStr;
use std::io;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The service manager, if there is one.
#[derive(Debug)]
pub(super) struct ServiceManager {
    socket: Option<UnixDatagram>,
    /// Time between two heartbeats.
    heartbeat: Option<Duration>,
}

impl ServiceManager {
    /// Reads the environment. A socket that cannot be used is logged.
    pub(super) fn from_env() -> Self {
        let socket = std::env::var_os("NOTIFY_SOCKET").and_then(|address| {
            let socket = connect(&address);
            socket.inspect_err(|error| tracing::warn!(%error, ?address, "NOTIFY_SOCKET")).ok()
        });
        let env = |name| std::env::var(name).ok();
        let heartbeat = heartbeat(env("WATCHDOG_USEC"), env("WATCHDOG_PID"), std::process::id());
        Self { socket, heartbeat }
    }

    /// Sends a notification such as `READY=1`. Does not wait.
    pub(super) fn notify(&self, state: &str) {
        let sent = self.socket.as_ref().map(|socket| socket.send(state.as_bytes()));
        if let Some(Err(error)) = sent {
            tracing::warn!(%error, state, "the service manager cannot be notified");
        }
    }

    /// Sends the heartbeat of the watchdog for ever. It stops when the async runtime does not run its tasks, so that
    /// the service manager starts the host again.
    pub(super) async fn heartbeats(&self) -> Infallible {
        let Some(period) = self.heartbeat else { return std::future::pending().await };
        loop {
            tokio::time::sleep(period).await;
            self.notify("WATCHDOG=1");
        }
    }
}

fn connect(address: &OsStr) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.connect_addr(&parse_address(address)?)?;
    Ok(socket)
}

/// Parses a path, or on Linux an abstract name that begins with `@`.
fn parse_address(address: &OsStr) -> io::Result<SocketAddr> {
    #[cfg(target_os = "linux")]
    if let Some(name) = address.as_encoded_bytes().strip_prefix(b"@") {
        use std::os::linux::net::SocketAddrExt as _;
        return SocketAddr::from_abstract_name(name);
    }
    SocketAddr::from_pathname(address)
}

/// Returns half of the watchdog's time limit, if the watchdog watches this process.
fn heartbeat(limit_us: Option<String>, watched: Option<String>, own_id: u32) -> Option<Duration> {
    if watched.is_some_and(|id| id.parse() != Ok(own_id)) {
        return None;
    }
    let limit_us: u64 = limit_us?.parse().ok()?;
    (limit_us > 0).then(|| Duration::from_micros(limit_us) / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heartbeat_is_half_of_the_limit_for_this_process() {
        let second = Some(Duration::from_secs(1));
        for (limit, watched, expected) in [
            (Some("2000000"), None, second),
            (Some("2000000"), Some("7"), second),
            (Some("2000000"), Some("8"), None),
            (Some("0"), None, None),
            (Some("soon"), None, None),
            (None, Some("7"), None),
        ] {
            let owned = |text: Option<&str>| text.map(str::to_owned);
            assert_eq!(heartbeat(owned(limit), owned(watched), 7), expected, "{limit:?}");
        }
    }
}
