//! `GET /v1/sessions/{id}/events` and `GET /v1/events`: the events of one or several sessions from the
//! positions that a client has reached.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use serde::Deserialize;

use super::access::Caller;
use super::error::ApiError;
use super::event_stream::EventStream;
use super::extract::{PathSession, StrictQuery};
use super::state::{AppState, WATCHED_SESSIONS_MAX};
use callsheet_host::runtime::{HOST_HEADER, HostError, WatchOptions};
use callsheet_values::event::{EventForm, EventId};
use callsheet_values::types::{SessionId, excerpt};

/// Maximum number of sessions of one stream.
const SESSIONS_MAX: usize = 256;

/// The header with the id of the last event that a client received. Browsers send it when they
/// reconnect.
const LAST_EVENT_ID: &str = "last-event-id";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WatchQuery {
    after: Option<String>,
    #[serde(default)]
    full: bool,
    #[serde(default)]
    arguments: bool,
}

/// The options of a stream of a run's events.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EventsQuery {
    #[serde(default)]
    full: bool,
    #[serde(default)]
    arguments: bool,
}

impl EventsQuery {
    pub(super) fn options(&self) -> WatchOptions {
        watch_options(self.full, self.arguments)
    }
}

fn watch_options(full: bool, arguments: bool) -> WatchOptions {
    WatchOptions::default().with(|options| {
        options.form = if full { EventForm::Full } else { EventForm::Short };
        options.arguments = arguments;
    })
}

/// Streams the events after `Last-Event-ID`, or else after `?after=`, or else from now on. The header
/// wins because a browser that reconnects repeats the URL with its first `after`.
pub(super) async fn watch(
    State(state): State<AppState>,
    PathSession(session): PathSession,
    headers: HeaderMap,
    StrictQuery(query): StrictQuery<WatchQuery>,
) -> Result<Response, ApiError> {
    let WatchQuery { after, full, arguments } = query;
    let after = match headers.get(LAST_EVENT_ID) {
        Some(value) => Some(event_id("Last-Event-ID", &String::from_utf8_lossy(value.as_bytes()))?),
        None => after.map(|text| event_id("after", &text)).transpose()?,
    };
    let events = session.watch_with(after, watch_options(full, arguments)).await?;
    Ok(state.event_stream(events).into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WatchManyQuery {
    sessions: String,
    after: Option<String>,
    #[serde(default)]
    full: bool,
    #[serde(default)]
    arguments: bool,
}

/// Streams the events of several sessions. `Last-Event-ID` is ignored, because an event's id is a position
/// in its session.
pub(super) async fn watch_many(
    State(state): State<AppState>,
    caller: Caller,
    headers: HeaderMap,
    StrictQuery(query): StrictQuery<WatchManyQuery>,
) -> Result<Response, ApiError> {
    let options = watch_options(query.full, query.arguments);
    let (sessions, all_states) = watched(&query.sessions, query.after.as_deref())?;
    for (session, _) in &sessions {
        caller.check_session(&state.host.session(session)).await?;
    }
    let count = u32::try_from(sessions.len()).unwrap_or(u32::MAX);
    let permit = Arc::clone(&state.watched_sessions).try_acquire_many_owned(count);
    let permit = permit.map_err(|_| {
        let message = format!(
            "the streams of several sessions can watch at most {WATCHED_SESSIONS_MAX} sessions together, and \
             too few are free: try again later, or watch fewer sessions"
        );
        ApiError::retry_later(StatusCode::SERVICE_UNAVAILABLE, "too_many_watched_sessions", message)
    })?;
    // Another host joins the streams of all hosts.
    let events = match headers.contains_key(HOST_HEADER) {
        true => {
            state.host.watch_own_sessions(sessions, all_states, options).await.map(StreamExt::boxed)
        }
        false => state
            .host
            .watch_sessions_with(sessions, all_states, options)
            .await
            .map(StreamExt::boxed),
    };
    let events = events.map_err(|(session, error)| {
        // Of the errors that occur here, only this one names the session.
        let is_named = matches!(error, HostError::NoSuchSession(_));
        let error = ApiError::from(error);
        if is_named { error } else { error.of_session(&session) }
    })?;
    // Held until the stream ends.
    let events = events.inspect(move |_| _ = &permit);
    if caller.is_limited() {
        let host = state.host.clone();
        let events = events.filter_map(move |event| {
            let (caller, host) = (caller.clone(), host.clone());
            async move { caller.may_see(&host, &event).await.then_some(event) }
        });
        return Ok(state.event_stream(EventStream::of_host(events, options.form)).into_response());
    }
    Ok(state.event_stream(EventStream::of_host(events, options.form)).into_response())
}

/// The sessions of a stream, each with the position after which its events are wanted. `None`: from now on.
type WatchedSessions = Vec<(SessionId, Option<EventId>)>;

/// Parses the sessions of a stream and their positions. The second value is true if `*` is among them:
/// the states of all sessions are wanted too. Neither `,` nor `:` can be in the id of a session.
fn watched(sessions: &str, after: Option<&str>) -> Result<(WatchedSessions, bool), ApiError> {
    let invalid = |message: String| ApiError::bad_request("invalid_request", message);
    let (mut watched, mut all_states) = (WatchedSessions::new(), false);
    for text in sessions.split(',').map(str::trim) {
        if text == "*" {
            all_states = true;
            continue;
        }
        let session =
            SessionId::parse(text).map_err(|_| ApiError::no_such_session(&excerpt(text, 64)))?;
        if watched.iter().any(|(other, _)| *other == session) {
            return Err(invalid(format!("sessions: {session} is named twice")));
        }
        watched.push((session, None));
        if watched.len() > SESSIONS_MAX {
            return Err(invalid(format!(
                "sessions: at most {SESSIONS_MAX} can be watched at once"
            )));
        }
    }
    let positions = after.into_iter().flat_map(|text| text.split(',')).map(str::trim);
    for text in positions.filter(|text| !text.is_empty()) {
        let Some((session, position)) = text.split_once(':') else {
            let message = format!("after: must be SESSION:SEQ.N, not {:?}", excerpt(text, 100));
            return Err(ApiError::bad_request("invalid_event_id", message));
        };
        let entry = watched.iter_mut().find(|(id, _)| id.as_str() == session);
        let Some((session, after)) = entry else {
            let session = excerpt(session, 64);
            return Err(invalid(format!("after: {session:?} is not one of the sessions")));
        };
        let position = event_id(&format!("after: {session}"), position)?;
        if after.replace(position).is_some() {
            return Err(invalid(format!("after: {session} is named twice")));
        }
    }
    Ok((watched, all_states))
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
    use callsheet_values::types::Seq;

    #[test]
    fn several_sessions_have_a_position_each() {
        let id = |text: &str| SessionId::parse(text).expect("an id");
        let at = |seq, bytes| Some(EventId { seq: Seq(seq), bytes });
        let sessions = vec![(id("a-1"), at(12, 340)), (id("b_2"), None), (id("c"), at(0, 0))];
        let parsed = watched("a-1,b_2, c", Some("c:0,a-1:12.340"));
        assert_eq!(parsed, Ok((sessions, false)));
        assert_eq!(watched("*", None), Ok((vec![], true)));
        assert_eq!(watched("a,*", Some("")), Ok((vec![(id("a"), None)], true)));
        let many =
            |count: usize| (0..count).map(|at| format!("s{at}")).collect::<Vec<_>>().join(",");
        assert!(watched(&many(256), None).is_ok());
        for (sessions, after, code) in [
            ("", None, (404, "no_such_session")),
            ("a,", None, (404, "no_such_session")),
            ("a b", None, (404, "no_such_session")),
            ("a:1", None, (404, "no_such_session")),
            ("a,b,a", None, (400, "invalid_request")),
            (many(257).as_str(), None, (400, "invalid_request")),
            ("a", Some("b:1"), (400, "invalid_request")),
            ("a", Some("*:1"), (400, "invalid_request")),
            ("a", Some("a:1,a:1"), (400, "invalid_request")),
            ("a", Some("1.0"), (400, "invalid_event_id")),
            ("a", Some("a:1:2"), (400, "invalid_event_id")),
            ("a", Some("a:"), (400, "invalid_event_id")),
        ] {
            let error = watched(sessions, after).expect_err(sessions);
            assert_eq!(error.status_and_code(), code, "{sessions} {after:?}");
        }
    }

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
