//! The common code of the UI stream and AG-UI: finds the session of a chat, starts its runs, and makes errors.
//!
//! An error is the object of our own API, `{"error": {"code", "message"}}`, before any part is sent. A conflict is 422
//! here, because clients repeat a request after a 409.

use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use sha2::{Digest as _, Sha256};

use super::super::access::Caller;
use super::super::error::ApiError;
use super::super::extract::parse;
use super::super::state::ApiState;
use super::begin::{ActedRun, WholeRequest};
use super::records::for_each_record;
use super::retries::RunPlace;
use super::stream::{RunEvents, STORED_CHECK_INTERVAL, STORED_CHECKS_MAX};
use super::{named_session, session_of};
use axum::extract::Request;
use callsheet_host::runtime::{HostError, OpenSession, RunRequest, SessionHandle};
use callsheet_host::runtime::{SessionSnapshot, WatchOptions};
use callsheet_values::message::Message;
use callsheet_values::record::Record;
use callsheet_values::types::{Content, Metadata, SessionId, excerpt};
use serde::de::DeserializeOwned;

/// An error response of the faces for pages.
#[derive(Debug)]
pub(super) struct ChatError(ApiError);

impl ChatError {
    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self(ApiError::bad_request("invalid_request", message))
    }

    pub(super) fn unprocessable(code: &'static str, message: impl Into<String>) -> Self {
        Self(ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, code, message))
    }
}

impl From<ApiError> for ChatError {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl From<HostError> for ChatError {
    fn from(error: HostError) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for ChatError {
    fn into_response(self) -> Response {
        let mut response = self.0.into_response();
        if response.status() == StatusCode::CONFLICT {
            *response.status_mut() = StatusCode::UNPROCESSABLE_ENTITY;
        }
        response
    }
}

/// A request whose body was parsed.
pub(super) struct ChatRequest<T> {
    pub(super) body: T,
    pub(super) whole: WholeRequest,
}

impl<T: DeserializeOwned> ChatRequest<T> {
    pub(super) async fn read(state: &ApiState, request: Request) -> Result<Self, ChatError> {
        let whole = WholeRequest::read(state, request).await?;
        Ok(Self { body: parse(whole.bytes())?, whole })
    }
}

/// Runs a future to its end, also if this one is dropped, because the client has closed its connection: else a session
/// could stay that was opened for a run which never starts.
///
/// # Errors
/// If the future has an error or panics.
pub(super) async fn to_its_end(
    future: impl Future<Output = Result<Response, ChatError>> + Send + 'static,
) -> Result<Response, ChatError> {
    #[expect(clippy::disallowed_methods, reason = "the task ends when the run has started")]
    let task = tokio::spawn(future);
    task.await.map_err(|_| HostError::ShuttingDown)?
}

/// Checks that there is such an agent, and that the caller may reach it.
pub(super) fn check_agent(state: &ApiState, caller: &Caller, agent: &str) -> Result<(), ChatError> {
    caller.check_agent(agent)?;
    let agents = state.host.agents();
    if agents.iter().any(|name| name == agent) {
        return Ok(());
    }
    let (agent, agents) = (excerpt(agent, 64), agents.join(", "));
    let message = format!("there is no agent {agent:?}; the agents are: {agents}");
    Err(ChatError(ApiError::not_found("unknown_agent", message)))
}

/// Returns the id of the session of a chat: the chat's own id, or one that follows from it if no session can have it.
pub(super) fn session_id(chat: &str) -> Result<SessionId, ChatError> {
    if let Ok(id) = SessionId::parse(chat) {
        return Ok(id);
    }
    let digest = Sha256::digest(chat);
    let digits: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    SessionId::parse(&format!("chat_{digits}"))
        .map_err(|error| ChatError::bad_request(error.to_string()))
}

/// Returns the id of the session that a request names in its body, and perhaps in its header.
pub(super) fn asked_session(headers: &HeaderMap, chat: &str) -> Result<SessionId, ChatError> {
    let id = session_id(chat)?;
    match named_session(headers)? {
        Some(named) if named != id => {
            let message = format!("the body names the session {id}, X-Callsheet-Session {named}");
            Err(ChatError::bad_request(message))
        }
        Some(_) | None => Ok(id),
    }
}

/// Returns the session of a chat, if there is one.
///
/// # Errors
/// If the caller must not reach it, or it is one of another agent.
pub(super) async fn find(
    state: &ApiState,
    caller: &Caller,
    agent: &str,
    id: &SessionId,
) -> Result<Option<SessionHandle>, ChatError> {
    let session = match session_of(state, caller, id).await {
        Ok(session) => session,
        Err(error) if error.is_no_such_session() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let own = session.agent().await?;
    if own == agent {
        return Ok(Some(session));
    }
    let message = format!("the session {id} is one of the agent {own}, not of {agent}");
    Err(ChatError::unprocessable("other_agent", message))
}

/// Returns the metadata of a run, with a pair that keeps the id of the client's message, unless the id is too long for
/// it. `name`: that of the pair.
pub(super) fn with_message_id(metadata: &Metadata, name: &str, id: &str) -> Metadata {
    let pair = (!id.is_empty()).then_some((name, id));
    Metadata::new(pair).unwrap_or_default().over(metadata)
}

/// Starts a run in the session of a chat, and opens the session if there is none. `id_pair`: the name of the pair of its
/// metadata with the id of the client's message. If the run in progress began with the same message, joins it: the
/// client has repeated its request before this host has seen that its connection is closed.
pub(super) async fn start(
    state: &ApiState,
    caller: &Caller,
    agent: &str,
    id: &SessionId,
    (run, id_pair): (RunRequest, &str),
) -> Result<ActedRun, ChatError> {
    let (session, is_new) = match find(state, caller, agent, id).await? {
        Some(session) => (session, false),
        None => open(state, caller, agent, id).await?,
    };
    let (input, metadata) = (run.input.clone(), run.metadata.clone());
    let error = match session.start_run(run).await {
        Ok(run) => {
            let options = WatchOptions::default().with(|options| options.arguments = true);
            return Ok(run.with_options(options).into());
        }
        Err(error) => error,
    };
    if error == HostError::RunInProgress {
        let snapshot = session.snapshot().await?;
        let place = match (metadata.get(id_pair), &snapshot.current_run) {
            (None, _) => None,
            (Some(id), Some(_)) => {
                current_place(&snapshot).filter(|_| began_with(&snapshot, (id_pair, id), &input))
            }
            // It has ended meanwhile.
            (Some(id), None) => ended_run(&session, (id_pair, id), &input).await?,
        };
        if let Some(place) = place {
            let events = RunEvents::join(session.clone(), place.clone()).await?;
            return Ok(ActedRun { session, place, events });
        }
    } else if is_new && session.snapshot().await.is_ok_and(|snapshot| is_empty(&snapshot)) {
        // The refused request leaves nothing. If this fails, an empty session stays.
        session.delete().await.unwrap_or_default();
    }
    Err(run_error(error))
}

/// Returns whether the run in progress began with the message with this id.
fn began_with(snapshot: &SessionSnapshot, (name, id): (&str, &str), input: &Content) -> bool {
    let Some(run) = &snapshot.current_run else { return false };
    let first = snapshot.history.get(run.first_message);
    let is_input = first
        .is_some_and(|first| matches!(&**first, Message::User { content } if content == input));
    run.metadata.get(name) == Some(id) && is_input
}

/// Returns the session's last run, if it began with the message with this id. Its records may not be durable yet.
async fn ended_run(
    session: &SessionHandle,
    (name, id): (&str, &str),
    content: &Content,
) -> Result<Option<RunPlace>, HostError> {
    for _ in 0..STORED_CHECKS_MAX {
        let (mut place, mut is_same) = (None, false);
        for_each_record(session, |entry| {
            if let Record::RunStarted { run_id: run, input, metadata, .. } = entry.record {
                is_same = metadata.get(name) == Some(id) && input == *content;
                place = Some(RunPlace { session: session.id().clone(), run, seq: entry.seq });
            }
        })
        .await?;
        if is_same {
            return Ok(place);
        }
        tokio::time::sleep(STORED_CHECK_INTERVAL).await;
    }
    Ok(None)
}

/// Returns whether nothing has happened in a session. Another request may have started a run in it.
fn is_empty(snapshot: &SessionSnapshot) -> bool {
    let SessionSnapshot { history, current_run, queued, .. } = snapshot;
    history.is_empty() && current_run.is_none() && queued.is_empty()
}

/// Opens the session of a chat. Returns whether it is new: another request may have opened it meanwhile.
async fn open(
    state: &ApiState,
    caller: &Caller,
    agent: &str,
    id: &SessionId,
) -> Result<(SessionHandle, bool), ChatError> {
    let open = OpenSession::from(id.as_str()).with_agent(agent);
    match state.host.open_session(open).await {
        Ok(session) => return Ok((caller.with_author(session), true)),
        Err(HostError::SessionExists) => {}
        Err(error) => return Err(error.into()),
    }
    // The session can be found when the other request has stored it.
    for _ in 0..STORED_CHECKS_MAX {
        if let Some(session) = find(state, caller, agent, id).await? {
            return Ok((session, false));
        }
        tokio::time::sleep(STORED_CHECK_INTERVAL).await;
    }
    Err(HostError::SessionExists.into())
}

fn run_error(error: HostError) -> ChatError {
    if error != HostError::RunInProgress {
        return error.into();
    }
    let message = "run in progress: join its stream, answer what it waits for, or stop it first";
    ChatError::unprocessable("run_in_progress", message)
}

/// Returns the place of the run in progress.
pub(super) fn current_place(snapshot: &SessionSnapshot) -> Option<RunPlace> {
    let run = snapshot.current_run.as_ref()?;
    Some(RunPlace { session: snapshot.id.clone(), run: run.run_id.clone(), seq: run.seq })
}
