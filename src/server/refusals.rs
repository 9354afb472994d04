//! Counts and logs the requests that the server refuses: without the token (401), with a foreign host or origin (403),
//! beyond a limit (429).

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::Response;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::error::ErrorCode;
use super::listener::ConnectionAddresses;
use callsheet_host::runtime::Host;
use callsheet_values::types::excerpt;

/// Maximum number of lines that are logged in [`PERIOD`] for one status. A client can be refused at any rate.
const LINES_MAX: u32 = 5;
const PERIOD: Duration = Duration::from_secs(1);

/// Maximum number of characters of a path in a log line.
const PATH_CHARS: usize = 200;

/// Counts and logs refused requests of a host.
#[derive(Debug)]
pub(super) struct Refusals {
    host: Host,
    /// The log lines of each status that is a refusal.
    lines: [(StatusCode, Mutex<LineLimiter>); 3],
}

impl Refusals {
    pub(super) fn new(host: Host) -> Arc<Self> {
        let statuses =
            [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN, StatusCode::TOO_MANY_REQUESTS];
        Arc::new(Self { host, lines: statuses.map(|status| (status, Mutex::default())) })
    }
}

/// Limits the lines of a period.
#[derive(Debug, Default)]
struct LineLimiter {
    /// The start of the current period.
    start: Option<Instant>,
    lines: u32,
    /// Number of lines that were left out since the last one.
    left_out: u64,
}

impl LineLimiter {
    /// Admits a line, and returns how many were left out before it.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.start.is_none_or(|start| now - start >= PERIOD) {
            (self.start, self.lines) = (Some(now), 0);
        }
        if self.lines == LINES_MAX {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

/// Passes a request on, and counts and logs its answer if that is a refusal.
pub(super) async fn observe(
    State(refusals): State<Arc<Refusals>>,
    request: Request,
    next: Next,
) -> Response {
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let addresses = request.extensions().get::<ConnectInfo<ConnectionAddresses>>();
    let client = addresses.and_then(|ConnectInfo(addresses)| addresses.client);
    let answer = next.run(request).await;
    let Some((status, lines)) =
        refusals.lines.iter().find(|(status, _)| *status == answer.status())
    else {
        return answer;
    };
    let status = status.as_u16();
    refusals.host.telemetry().metrics().http_refused(status);
    let admitted = lines.lock().admit(Instant::now());
    if let Some(left_out) = admitted {
        let code = answer.extensions().get().map_or("", |ErrorCode(code)| *code);
        let path = excerpt(uri.path(), PATH_CHARS);
        let client = client.map(tracing::field::display);
        let left_out = (left_out > 0).then_some(left_out);
        tracing::warn!(status, code, %method, path, client, left_out, "http_request_refused");
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_limit_are_left_out_and_counted() {
        let (mut limiter, start) = (LineLimiter::default(), Instant::now());
        let admitted = |limiter: &mut LineLimiter, ms, count: usize| -> Vec<_> {
            let now = start + Duration::from_millis(ms);
            std::iter::repeat_with(|| limiter.admit(now)).take(count).collect()
        };
        let five = vec![Some(0); 5];
        assert_eq!(admitted(&mut limiter, 0, 5), five);
        assert_eq!(admitted(&mut limiter, 999, 7), [None; 7]);
        assert_eq!(admitted(&mut limiter, 1_000, 2), [Some(7), Some(0)]);
        assert_eq!(admitted(&mut limiter, 2_500, 5), five);
    }
}
