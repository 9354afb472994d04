//! `/v1/sessions`: open, list, show, delete and fork sessions.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use futures::StreamExt as _;
use serde::Deserialize;
use serde_json::{Value, json};

use super::access::Caller;
use super::error::ApiError;
use super::extract::{FilterQuery, JsonBody, PathSession, StrictQuery, page_length};
use super::mount::MountPath;
use super::peers;
use super::session_page::SessionPage;
use super::state::AppState;
use callsheet_host::journal::{JournalError, SessionOrder, SessionQuery, SessionSummary};
use callsheet_host::runtime::{HostError, OpenSession, SessionHandle, SessionState};
use callsheet_values::config::ClientTool;
use callsheet_values::types::{Metadata, Seq, SessionId};

/// Number of sessions of a page that are read first. Each further part of the page has twice as many, so that an
/// answer that gets no permit (`answer_limiter`) is refused before many sessions are read.
const FIRST_PART_LENGTH: usize = 4;

/// Maximum number of sessions that are read at once.
const PART_LENGTH_MAX: usize = 128;

/// Number of sessions that a request with a filter reads at once, and of those that it deletes at once.
const PAGE_LENGTH_MAX: usize = 1000;
const DELETIONS_MAX: usize = 8;

/// The `limit` from which a list is long. Long lists are made one at a time.
const LONG_LENGTH: usize = 16;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OpenSessionRequest {
    agent: Option<String>,
    id: Option<String>,
    #[serde(default)]
    messages: Vec<Value>,
    #[serde(default, deserialize_with = "super::runs::metadata")]
    metadata: Metadata,
    #[serde(default)]
    client_tools: Vec<ClientTool>,
}

pub(super) async fn open(
    State(state): State<AppState>,
    mount: MountPath,
    caller: Caller,
    JsonBody(request): JsonBody<OpenSessionRequest>,
) -> Result<Response, ApiError> {
    let OpenSessionRequest { agent, id, messages, metadata, client_tools } = request;
    caller.check_asked_agent(&state.host, &agent)?;
    let open = OpenSession::default().with(|open| {
        open.agent = agent;
        open.id = id;
        open.messages = messages;
        open.metadata = metadata;
        open.client_tools = client_tools;
    });
    let session = state.host.open_session(open).await?;
    created(&session, &mount).await
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListSessionsQuery {
    state: Option<SessionState>,
    #[serde(default)]
    order: SessionOrder,
    limit: Option<usize>,
    after: Option<String>,
    #[serde(default)]
    children: bool,
}

/// Returns a page of sessions. Its `next` is the value of `after` for the next page; null on the last page.
pub(super) async fn list(
    State(shared): State<AppState>,
    caller: Caller,
    headers: HeaderMap,
    uri: Uri,
    StrictQuery(query): StrictQuery<ListSessionsQuery>,
) -> Result<Response, ApiError> {
    let ListSessionsQuery { state, order, limit, after, children } = query;
    let limit = page_length(limit)?;
    let (of_others, others_have_more) = match state {
        // Only the host that has a session knows these states.
        Some(state @ (SessionState::Waiting | SessionState::Idle)) => {
            let (ids, have_more) = peers::listed(&shared, &caller, &uri, &headers).await;
            (shared.host.sessions_elsewhere(ids, state).await?, have_more)
        }
        Some(SessionState::Running | SessionState::Hibernated) | None => (Vec::new(), false),
    };
    let mut query = SessionQuery::default().with(|query| {
        query.order = order;
        query.state = state;
        query.children = children;
    });
    if let Some(after) = after {
        set_position(&mut query, &after).map_err(|problem| {
            ApiError::bad_request("invalid_request", format!("after: {problem}"))
        })?;
    }
    let _guard = if limit >= LONG_LENGTH { Some(shared.reads.lists.lock().await) } else { None };
    let elsewhere = peers::open_approvals(&shared, &caller, &headers).await;
    let mut answer = shared.answer_limiter.writer();
    answer.append("{\"sessions\":[")?;
    let (mut count, mut has_more, mut next) = (0, true, None);
    let mut part = FIRST_PART_LENGTH;
    while has_more && count < limit {
        part = part.min(limit - count);
        // One more session than the part has, to detect a further page.
        query.limit = part + 1;
        let mut sessions = shared.host.sessions(query.clone()).await?;
        if !of_others.is_empty() {
            // One that has moved meanwhile is listed by both hosts.
            let is_own = |other: &SessionSummary| sessions.iter().any(|own| own.id == other.id);
            let others: Vec<_> = of_others.iter().filter(|other| !is_own(other)).cloned().collect();
            sessions = query.select(sessions.into_iter().chain(others));
        }
        has_more = sessions.len() > part;
        for mut session in sessions.into_iter().take(part) {
            query.continue_after(&session);
            if let Some(count) = elsewhere.get(session.id.as_str()) {
                session.approvals_open = *count;
                if session.state == SessionState::Running {
                    session.state = SessionState::Waiting;
                }
            }
            if !caller.reaches_summary(&shared.host, &session).await? {
                continue;
            }
            answer.append(if count == 0 { "" } else { "," })?;
            answer.append_json(&session)?;
            count += 1;
            if count == limit {
                next = position(&query);
            }
        }
        part = PART_LENGTH_MAX.min(part * 2);
    }
    answer.append("],\"next\":")?;
    answer.append_json(&next.filter(|_| has_more || others_have_more))?;
    answer.append("}")?;
    Ok(answer.into_response())
}

/// Returns the value of `after` for the page that the query asks for: an id, or with the newest first the number and
/// the id of a session, so that the next page is found although the session is deleted meanwhile.
fn position(query: &SessionQuery) -> Option<String> {
    let id = query.after.as_ref()?;
    match query.order {
        SessionOrder::Id => Some(id.to_string()),
        SessionOrder::Newest => Some(format!("{}:{id}", query.after_number?)),
    }
}

/// Lets a query begin at a [`position`].
fn set_position(query: &mut SessionQuery, position: &str) -> Result<(), String> {
    let id = match query.order {
        SessionOrder::Id => position,
        SessionOrder::Newest => {
            let parts = position.split_once(':');
            let number = parts.and_then(|(number, _)| number.parse().ok());
            query.after_number = number;
            let problem =
                || format!("must be the next of a page with order=newest, not {position:?}");
            parts.filter(|_| number.is_some()).ok_or_else(problem)?.1
        }
    };
    query.after = Some(SessionId::parse(id).map_err(|error| error.to_string())?);
    Ok(())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SnapshotQuery {
    after: Option<usize>,
    limit: Option<usize>,
}

pub(super) async fn snapshot(
    State(state): State<AppState>,
    PathSession(session): PathSession,
    StrictQuery(SnapshotQuery { after, limit }): StrictQuery<SnapshotQuery>,
) -> Result<Response, ApiError> {
    if limit == Some(0) {
        let message = "limit: must be at least 1; without it the answer has all messages";
        return Err(ApiError::bad_request("invalid_request", message));
    }
    let page = SessionPage::new(session.stored_snapshot().await?, after, limit);
    let (size, bytes_in_memory) = page.approximate_bytes();
    let permit = state.answer_limiter.try_acquire(size, bytes_in_memory)?;
    Ok(page.into_response(permit))
}

/// Closes and deletes the session. 202 if it is deleted, and erased from the disk later.
pub(super) async fn delete(PathSession(session): PathSession) -> Result<Response, ApiError> {
    match session.delete().await {
        Err(HostError::Journal(error @ JournalError::NotErased)) => {
            let body = json!({"deleted": true, "erased": false, "message": error.to_string()});
            Ok((StatusCode::ACCEPTED, Json(body)).into_response())
        }
        deleted => Ok(deleted.map(|()| StatusCode::NO_CONTENT.into_response())?),
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeleteSessionsQuery {
    agent: Option<String>,
    #[serde(default)]
    dry_run: bool,
}

/// Closes and deletes all sessions of an agent, or with some metadata. With `dry_run` only counts them. The sessions
/// are deleted while the request lasts: if its client leaves, the rest stays.
pub(super) async fn delete_many(
    State(state): State<AppState>,
    caller: Caller,
    FilterQuery(query, metadata): FilterQuery<DeleteSessionsQuery>,
) -> Result<Response, ApiError> {
    let DeleteSessionsQuery { agent, dry_run } = query;
    if agent.is_none() && metadata.is_empty() {
        let message =
            "select the sessions: metadata.KEY=VALUE, agent=NAME; dry_run=true only counts them";
        return Err(ApiError::bad_request("invalid_request", message));
    }
    let selected = |session: &SessionSummary| {
        agent.as_ref().is_none_or(|agent| session.agent == *agent)
            && session.metadata.includes(&metadata)
            && caller.reaches(&session.agent)
    };
    let handle = |session: &SessionSummary| caller.with_author(state.host.session(&session.id));
    let mut query = SessionQuery::default().with(|query| query.limit = PAGE_LENGTH_MAX);
    let mut count = 0;
    loop {
        let page = state.host.sessions(query.clone()).await?;
        let Some(last) = page.last() else { break };
        query.continue_after(last);
        let selected = page.iter().filter(|session| selected(session));
        if dry_run {
            count += selected.count();
            continue;
        }
        let sessions: Vec<_> = selected.map(handle).collect();
        let deletions = futures::stream::iter(sessions);
        let deletions = deletions.map(|session: SessionHandle| {
            let (state, caller) = (&state, &caller);
            async move {
                match session.delete().await {
                    Err(HostError::SessionMoved) => {
                        peers::delete(state, caller, session.id()).await.map(Ok)
                    }
                    deleted => Ok(deleted),
                }
            }
        });
        let mut deletions = deletions.buffer_unordered(DELETIONS_MAX);
        while let Some(deleted) = deletions.next().await {
            match deleted? {
                // The journal erases the rest by itself.
                Ok(()) | Err(HostError::Journal(JournalError::NotErased)) => count += 1,
                // Another request has deleted it.
                Err(HostError::NoSuchSession(_) | HostError::SessionClosed) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(Json(json!({"count": count})).into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ForkSessionRequest {
    at: Seq,
    id: Option<String>,
}

/// Opens a new session with the first records of this one.
pub(super) async fn fork(
    State(state): State<AppState>,
    mount: MountPath,
    PathSession(from): PathSession,
    JsonBody(ForkSessionRequest { at, id }): JsonBody<ForkSessionRequest>,
) -> Result<Response, ApiError> {
    let session = state.host.fork(&from, at, id).await?;
    created(&session, &mount).await
}

async fn created(session: &SessionHandle, mount: &MountPath) -> Result<Response, ApiError> {
    let id = session.id().as_str();
    let agent = session.agent().await?;
    let body = json!({"id": id, "agent": agent, "state": SessionState::Idle});
    let mut response = (StatusCode::CREATED, Json(body)).into_response();
    // All characters of an id and of a path are valid in a header, so this cannot fail.
    if let Ok(location) = HeaderValue::try_from(format!("{mount}/v1/sessions/{id}")) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}
