//! The first request to a server: that of the newest protocol (`server/discover`), or the handshake of earlier
//! ones (`initialize`). Servers differ in what they do with one that they do not know: they answer with an error, end,
//! or say nothing.
//!
//! With `handshake = "auto"` an attempt begins with what worked the last time, at first with `server/discover`. After an
//! attempt that failed, the next one begins with the other request.

use std::time::Duration;

use rmcp::service::ClientInitializeError;
use rmcp::transport::streamable_http_client::StreamableHttpError;

use super::http::TOO_MANY_REQUESTS;
use super::transport_error::{HttpFailure, http_error, refused_redirect};
use callsheet_values::config::McpHandshake;

/// The longest time that a server has to answer `server/discover` before it is started a second time.
const SECOND_START_DELAY_MAX: Duration = Duration::from_secs(10);

/// The first request to a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum FirstRequest {
    #[default]
    Discover,
    Initialize,
}

impl FirstRequest {
    pub(super) fn other(self) -> Self {
        match self {
            Self::Discover => Self::Initialize,
            Self::Initialize => Self::Discover,
        }
    }

    /// Returns the name under which the host stores it.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Discover => "discover",
            Self::Initialize => "initialize",
        }
    }

    /// Reads a stored name.
    pub(super) fn parse(name: &str) -> Option<Self> {
        [Self::Discover, Self::Initialize].into_iter().find(|first| first.as_str() == name)
    }
}

/// The requests with which a connection begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InitialRequests {
    /// `server/discover`. After an answer that is an error, the handshake follows on the same connection.
    DiscoverThenInitialize,
    /// Only `server/discover`.
    Discover,
    /// Only the handshake.
    Initialize,
}

/// The kind of an error of an attempt to connect: it decides whether the other request may work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The server was not reached, or refuses the host or the URL, whatever the request is.
    Unreachable,
    /// The connection ended, or the answer was no message of the protocol.
    Broken,
    /// The server answered the request, or the handshake after it, with an error.
    Refused,
}

impl Failure {
    pub(super) fn of(error: &ClientInitializeError) -> Self {
        if let ClientInitializeError::LegacyFallbackFailed { fallback, .. } = error {
            return Self::of(fallback);
        }
        if matches!(error, ClientInitializeError::TransportError { .. }) {
            return Self::of_transport(error);
        }
        match matches!(error, ClientInitializeError::ConnectionClosed(_)) {
            true => Self::Broken,
            false => Self::Refused,
        }
    }

    fn of_transport(error: &ClientInitializeError) -> Self {
        let is_unreached = matches!(
            http_error(error),
            Some(StreamableHttpError::Client(error)) if error.is_connect()
        );
        if is_unreached || refused_redirect(error).is_some() {
            return Self::Unreachable;
        }
        match HttpFailure::of(error).map(|failure| failure.status) {
            Some(401 | 403 | TOO_MANY_REQUESTS) => Self::Unreachable,
            Some(400..=499) => Self::Refused,
            Some(_) | None => Self::Broken,
        }
    }
}

/// The plan of an attempt to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Startup {
    pub(super) first: FirstRequest,
    /// True if the server may be started a second time, with the other request.
    pub(super) may_switch: bool,
    /// The time after which a server that says nothing is started a second time. `None` if it is not.
    pub(super) second_start_delay: Option<Duration>,
}

impl Startup {
    /// Returns the requests of a connection that begins with `first`.
    pub(super) fn opening(&self, first: FirstRequest) -> InitialRequests {
        match first {
            FirstRequest::Discover if self.may_switch => InitialRequests::DiscoverThenInitialize,
            FirstRequest::Discover => InitialRequests::Discover,
            FirstRequest::Initialize => InitialRequests::Initialize,
        }
    }

    /// Returns whether the server is started once more after a first connection that failed.
    pub(super) fn switches_after(&self, failure: Failure) -> bool {
        match failure {
            Failure::Unreachable => false,
            // No known server ends at the handshake because it does not know it.
            Failure::Broken => self.may_switch && self.first == FirstRequest::Discover,
            Failure::Refused => self.may_switch,
        }
    }
}

/// The first request of the next attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StartupMemory {
    first: FirstRequest,
    /// True if the last attempt began with it, or arrived at it, and was successful.
    has_worked: bool,
}

impl StartupMemory {
    /// Plans the next attempt, whose time limit is `limit`.
    pub(super) fn plan(self, handshake: McpHandshake, limit: Duration) -> Startup {
        let only = |first| Startup { first, may_switch: false, second_start_delay: None };
        match handshake {
            McpHandshake::Discover => only(FirstRequest::Discover),
            McpHandshake::Initialize => only(FirstRequest::Initialize),
            McpHandshake::Auto => {
                let may_be_ignored = self.first == FirstRequest::Discover && !self.has_worked;
                let second_start_delay =
                    may_be_ignored.then(|| (limit / 3).min(SECOND_START_DELAY_MAX));
                Startup { first: self.first, may_switch: true, second_start_delay }
            }
        }
    }

    /// Returns the request that has worked, if the last attempt was successful.
    pub(super) fn worked(self) -> Option<FirstRequest> {
        self.has_worked.then_some(self.first)
    }

    /// Handles a successful attempt, whose server accepted this request.
    pub(super) fn handle_connected(&mut self, accepted: FirstRequest) {
        *self = Self { first: accepted, has_worked: true };
    }

    /// Handles an attempt that began with `first` and failed; `None` is an attempt that took too long.
    pub(super) fn handle_failure(&mut self, first: FirstRequest, failure: Option<Failure>) {
        if failure != Some(Failure::Unreachable) {
            *self = Self { first: first.other(), has_worked: false };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_begins_with_what_worked_and_after_a_failure_with_the_other_request() {
        use FirstRequest::{Discover, Initialize};
        let limit = Duration::from_secs(60);
        let mut memory = StartupMemory::default();
        let plan = |memory: StartupMemory| memory.plan(McpHandshake::Auto, limit);
        let (first, second_start_delay) = (Discover, Some(SECOND_START_DELAY_MAX));
        assert_eq!(plan(memory), Startup { first, may_switch: true, second_start_delay });
        assert_eq!(plan(memory).opening(Discover), InitialRequests::DiscoverThenInitialize);
        memory.handle_failure(Discover, Some(Failure::Unreachable));
        assert_eq!(memory, StartupMemory::default());
        memory.handle_failure(Discover, None);
        let (first, second_start_delay) = (Initialize, None);
        assert_eq!(plan(memory), Startup { first, may_switch: true, second_start_delay });
        assert_eq!(memory.worked(), None);
        memory.handle_failure(Initialize, Some(Failure::Broken));
        assert_eq!(memory, StartupMemory::default());
        memory.handle_connected(Discover);
        // A server that knows `server/discover` is not started beside itself.
        assert_eq!((plan(memory).first, plan(memory).second_start_delay), (Discover, None));
        assert_eq!(memory.worked(), Some(Discover));
        let short = StartupMemory::default().plan(McpHandshake::Auto, Duration::from_secs(6));
        assert_eq!(short.second_start_delay, Some(Duration::from_secs(2)));
        for (handshake, opening) in [
            (McpHandshake::Discover, InitialRequests::Discover),
            (McpHandshake::Initialize, InitialRequests::Initialize),
        ] {
            let plan = memory.plan(handshake, limit);
            assert_eq!((plan.opening(plan.first), plan.second_start_delay), (opening, None));
            assert!(!plan.switches_after(Failure::Refused));
        }
    }

    #[test]
    fn the_other_request_follows_what_it_can_mend() {
        let after = |first, failure| {
            let startup = Startup { first, may_switch: true, second_start_delay: None };
            startup.switches_after(failure)
        };
        for (failure, discover, initialize) in [
            (Failure::Unreachable, false, false),
            (Failure::Broken, true, false),
            (Failure::Refused, true, true),
        ] {
            assert_eq!(after(FirstRequest::Discover, failure), discover);
            assert_eq!(after(FirstRequest::Initialize, failure), initialize);
        }
    }
}
