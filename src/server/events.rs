//! `GET /v1/sessions/{id}/events`: a session's events from the position that a client has reached.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::error::ApiError;
use super::extract::StrictQuery;
use super::sessions::PathSession;
use super::state::AppState;
use crate::event::EventId;
use crate::types::excerpt;

/// The header with the id of the last event that a client received. Browsers send it when they
/// reconnect.
const LAST_EVENT_ID: &str = "last-event-id";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WatchQuery {
    after: Option<String>,
}

/// Streams the events after `Last-Event-ID`, or else after `?after=`, or else from now on. The header
/// wins because a browser that reconnects repeats the URL with its first `after`.
pub(super) async fn watch(
    State(state): State<AppState>,
    PathSession(session): PathSession,
    headers: HeaderMap,
    StrictQuery(WatchQuery { after }): StrictQuery<WatchQuery>,
) -> Result<Response, ApiError> {
    let after = match headers.get(LAST_EVENT_ID) {
        Some(value) => Some(event_id("Last-Event-ID", &String::from_utf8_lossy(value.as_bytes()))?),
        None => after.map(|text| event_id("after", &text)).transpose()?,
    };
    let events = match after {
        Some(after) => session.watch(after).await?,
        None => session.watch_from_now().await?,
    };
    Ok(state.event_stream(events).into_response())
}

fn event_id(source: &str, text: &str) -> Result<EventId, ApiError> {
    text.trim().parse().map_err(|error| {
        let message = format!("{source}: {error}, not {:?}", excerpt(text, 40));
        ApiError::bad_request("invalid_event_id", message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Seq;

    #[test]
    fn event_ids_are_a_record_and_a_byte_offset() {
        for (text, seq, bytes) in [("0", 0, 0), ("12", 12, 0), ("12.340", 12, 340), (" 7.0 ", 7, 0)]
        {
            let expect = EventId { seq: Seq(seq), bytes };
            assert_eq!(event_id("after", text), Ok(expect), "{text}");
            assert_eq!(event_id("after", &expect.to_string()), Ok(expect));
        }
        for text in ["", " ", ".", "1.", ".1", "1.2.3", "-1", "+1", "1e3", "18446744073709551616"] {
            let error = event_id("after", text).expect_err(text);
            assert_eq!(error.status_and_code(), (400, "invalid_event_id"), "{text}");
        }
    }
}
