//! `/v1/sessions/{id}/events`: a session's events, from where a client has read to.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Deserialize;

use super::AppState;
use super::body::StrictQuery;
use super::error::ApiError;
use super::sessions::PathSession;
use super::stream;
use crate::event::EventId;
use crate::types::excerpt;

/// Which event a client has seen last; browsers send it when they connect again.
const LAST_EVENT_ID: &str = "last-event-id";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WatchQuery {
    after: Option<String>,
}

/// The events behind `Last-Event-ID` or, where there is none, `?after=`; without either those that
/// come from now on. A client that connects again with the address it began with means the first.
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
    Ok(stream::session(events, &state))
}

fn event_id(of: &str, text: &str) -> Result<EventId, ApiError> {
    text.trim().parse().map_err(|error| {
        let message = format!("{of}: {error}, and not {:?}", excerpt(text, 40));
        ApiError::bad_request("invalid_event_id", message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Seq;

    #[test]
    fn a_place_is_a_record_and_how_much_of_what_came_behind_it() {
        for (text, seq, bytes) in [("0", 0, 0), ("12", 12, 0), ("12.340", 12, 340), (" 7.0 ", 7, 0)]
        {
            let expect = EventId { seq: Seq(seq), bytes };
            assert_eq!(event_id("after", text), Ok(expect), "{text}");
            assert_eq!(event_id("after", &expect.to_string()), Ok(expect));
        }
        for text in ["", " ", ".", "1.", ".1", "1.2.3", "-1", "+1", "1e3", "18446744073709551616"] {
            let error = event_id("after", text).expect_err(text);
            assert_eq!(error.shown(), (400, "invalid_event_id"), "{text}");
        }
    }
}
