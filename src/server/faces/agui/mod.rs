//! The face AG-UI 1.0, as `HttpAgent` speaks it.
//!
//! The thread is the session. A run of the client is a part of a run of the session: where the client must act, its run
//! ends with interrupts or with calls that are pending, and its next run, which answers them, goes on with ours.

mod fold;
mod messages;
mod request;

use std::collections::BTreeSet;

use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use serde_json::Value;

use super::super::error::ApiError;
use super::super::route::{READ, RUN, Route};
use super::super::state::ApiState;
use super::begin::BegunRun;
use super::chats::{self, ChatBody as _, ChatPath, ChatRequest};
use super::records::for_each_record;
use super::replies::{ChatAction, Replies};
use super::retries::RunPlace;
use super::session_header;
use super::stream::{self, FaceStreamSettings};
use super::waits::KnownWaits;
use callsheet_host::runtime::{SessionHandle, SessionSnapshot};
use callsheet_values::types::{Content, Seq};
use fold::AguiFold;
use messages::{MessageIds, ThreadIds, ThreadSnapshot};
use request::{AguiMessage, RunAgentInput};

/// Returns the routes of the face.
pub(super) fn routes() -> Vec<Route> {
    chats::routes([
        ("POST", "/v1/agui/{agent}", RUN, post(run_agent)),
        ("GET", "/v1/agui/{agent}/{id}/stream", READ, get(join)),
    ])
}

/// Starts a run with the user's last message, or goes on with the run that waits.
async fn run_agent(path: ChatPath, request: Request) -> Result<Response, ApiError> {
    chats::answer(path, request, act).await
}

/// Does what the client's input asks for.
async fn act(request: ChatRequest<RunAgentInput>) -> Result<Response, ApiError> {
    let mut asked = request.body.asked()?;
    let session = request.session().await?;
    // A client cannot send a message without answers to what has expired meanwhile.
    if let (ChatAction::Rest(_), Some(session), true) =
        (&asked, &session, request.body.ends_with_user())
        && session.snapshot().await?.current_run.is_none()
    {
        asked = ChatAction::Run(request.body.input()?);
    }
    match (asked, session) {
        (ChatAction::Run(input), session) => run(&request, session, input).await,
        (ChatAction::Rest(replies), Some(session)) => rest(&request, session, replies).await,
        (ChatAction::Rest(_), None) => Err(request.no_session()),
    }
}

async fn run(
    request: &ChatRequest<RunAgentInput>,
    session: Option<SessionHandle>,
    input: Content,
) -> Result<Response, ApiError> {
    let (state, body) = (&request.path.state, &request.body);
    let (mut thread, mut check, mut before) = (ThreadSnapshot::default(), Ok(()), None);
    let is_new = session.is_none();
    if let Some(session) = session {
        let snapshot = session.snapshot().await?;
        check = request::check_answered(&snapshot, &Replies::default());
        thread = thread_before_run(state, &session, &snapshot, body.earlier()).await?;
        before = Some((session, snapshot));
    }
    let begun = request.run(input, check).await?;
    let given = if is_new { body.history()?.len() } else { 0 };
    if given > 0 {
        let snapshot = begun.session.snapshot().await?;
        let history = snapshot.history.get(..given).unwrap_or_default();
        let mut ids = ThreadIds::new(body.earlier(), MessageIds::default());
        (thread.messages, _) = messages::of_history(history, &mut ids);
        thread.ids = ids.client;
    }
    thread.ids.add_of_client(body.messages.last());
    // A repeated request joins the run that it has started.
    if let Some((session, snapshot)) = before
        && has_ended_before(&snapshot, &begun.place)
    {
        thread.messages =
            messages_before_past_run(state, &session, &snapshot, begun.place.seq).await?;
    }
    Ok(answer(state, begun, &body.run_id, thread, KnownWaits::default()))
}

/// Gives the session what the client has done, and answers with the rest of the run.
async fn rest(
    request: &ChatRequest<RunAgentInput>,
    session: SessionHandle,
    replies: Replies,
) -> Result<Response, ApiError> {
    let (path, body) = (&request.path, &request.body);
    let snapshot = session.snapshot().await?;
    let Some(place) = chats::current_place(&snapshot) else {
        let message = "no run of this thread waits for an answer";
        return Err(chats::unprocessable("no_run", message));
    };
    request::check_answered(&snapshot, &replies)?;
    let known = replies.known(&snapshot);
    replies.apply(&request.path, &session, &snapshot).await?;
    let thread = thread_before_run(&path.state, &session, &snapshot, &body.messages).await?;
    let begun = path.join(RunAgentInput::FACE, session, place).await?;
    Ok(answer(&path.state, begun, &body.run_id, thread, known))
}

/// Answers with the run in progress: what there is as a snapshot, then the rest as it happens. Without one it is the
/// thread as it is: a client cannot take an empty answer.
async fn join(path: ChatPath) -> Result<Response, ApiError> {
    let session = path.existing_session().await?;
    let snapshot = session.snapshot().await?;
    let thread = thread_before_run(&path.state, &session, &snapshot, &[]).await?;
    let Some(place) = chats::current_place(&snapshot) else {
        let headers = [
            (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
            (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
            session_header(session.id()),
        ];
        return Ok((headers, fold::at_rest(session.id(), &thread)).into_response());
    };
    path.state.host.telemetry().metrics().faces().joined(RunAgentInput::FACE);
    let begun = path.join(RunAgentInput::FACE, session, place).await?;
    let run_id = begun.place.run.to_string();
    Ok(answer(&path.state, begun, &run_id, thread, KnownWaits::of(&snapshot)))
}

fn answer(
    state: &ApiState,
    begun: BegunRun,
    run_id: &str,
    thread: ThreadSnapshot,
    known: KnownWaits,
) -> Response {
    let BegunRun { session, place, events, answer } = begun;
    let settings = FaceStreamSettings::new(state, None, "");
    let fold = AguiFold::new(run_id.to_owned(), place, thread, known);
    let mut response = stream::stream(events, fold, settings, answer.in_parts());
    let (name, value) = session_header(session.id());
    response.headers_mut().insert(name, value);
    response
}

/// Returns the thread before the run in progress. `sent`: the messages that the client has sent.
async fn thread_before_run(
    state: &ApiState,
    session: &SessionHandle,
    snapshot: &SessionSnapshot,
    sent: &[AguiMessage],
) -> Result<ThreadSnapshot, ApiError> {
    let first = snapshot.current_run.as_ref().map(|run| run.first_message);
    let history = first.and_then(|first| snapshot.history.get(..first));
    let history = history.unwrap_or(&snapshot.history);
    let mut ids = ThreadIds::new(sent, MessageIds::default());
    let (mut messages, has_all_ids) = messages::of_history(history, &mut ids);
    // Most clients send all messages.
    if !has_all_ids {
        ids = ThreadIds::new(sent, recorded_ids(state, session).await?);
        (messages, _) = messages::of_history(history, &mut ids);
    }
    let variables = snapshot.variables().map(|(name, value)| (name.to_owned(), value.clone()));
    Ok(ThreadSnapshot { messages, ids: ids.client, variables: variables.collect() })
}

/// Returns whether a run has ended before a snapshot was made, so that the snapshot's history has its messages.
fn has_ended_before(snapshot: &SessionSnapshot, place: &RunPlace) -> bool {
    let is_current = snapshot.current_run.as_ref().is_some_and(|run| run.run_id == place.run);
    place.seq <= snapshot.seq && !is_current
}

/// Returns the messages before those of a run that has ended. `seq`: its first record.
async fn messages_before_past_run(
    state: &ApiState,
    session: &SessionHandle,
    snapshot: &SessionSnapshot,
    seq: Seq,
) -> Result<Vec<Value>, ApiError> {
    let recorded = recorded_ids(state, session).await?;
    let input = recorded.of_record(seq);
    let mut ids = ThreadIds::new(&[], recorded);
    let (mut messages, _) = messages::of_history(&snapshot.history, &mut ids);
    let is_input = |message: &Value| message["id"].as_str() == input.as_deref();
    messages.truncate(messages.iter().position(is_input).unwrap_or(messages.len()));
    Ok(messages)
}

/// Returns the ids that the messages of a session had in its runs.
async fn recorded_ids(state: &ApiState, session: &SessionHandle) -> Result<MessageIds, ApiError> {
    let _guard = state.reads.pages.lock().await;
    let (mut ids, mut taken) = (MessageIds::default(), BTreeSet::new());
    for_each_record(session, |entry| ids.add(&entry, &mut taken)).await?;
    Ok(ids)
}
