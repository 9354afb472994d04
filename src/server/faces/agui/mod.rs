//! The face AG-UI 1.0, as `HttpAgent` speaks it.
//!
//! The thread is the session. A run of the client is a part of a run of the session: where the client must act, its run
//! ends with interrupts or with calls that are pending, and its next run, which answers them, goes on with ours.

mod fold;
mod messages;
mod request;

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use serde_json::{Map, Value};

use super::super::access::Caller;
use super::super::error::ApiError;
use super::super::extract::PathParameters;
use super::super::route::{READ, RUN, Route};
use super::super::state::AppState;
use super::answer::FaceAnswer;
use super::begin;
use super::chats::{self, ChatError, ChatRequest};
use super::records::for_each_record;
use super::replies::Replies;
use super::retries::RunPlace;
use super::session_header;
use super::stream::{self, FaceStreamSettings, RunEvents};
use super::waits::KnownWaits;
use callsheet_host::runtime::{RunRequest, SessionHandle, SessionSnapshot};
use callsheet_host::telemetry::FaceKind;
use callsheet_values::message::Message;
use callsheet_values::types::{Content, Metadata, Seq, SessionId};
use fold::{AguiFold, Beginning};
use messages::{ID_PAIR, MessageIds, ThreadIds};
use request::{AguiAction, AguiMessage, RunAgentInput};

const FACE: FaceKind = FaceKind::Agui;

/// Returns the routes of the face.
pub(super) fn routes() -> Vec<Route> {
    vec![
        ("POST", "/v1/agui/{agent}", RUN, post(run_agent)),
        ("GET", "/v1/agui/{agent}/{id}/stream", READ, get(join)),
    ]
}

/// Starts a run with the user's last message, or goes on with the run that waits.
async fn run_agent(
    State(state): State<AppState>,
    parameters: PathParameters,
    caller: Caller,
    request: Request,
) -> Result<Response, ChatError> {
    let agent = parameters.get("agent").unwrap_or_default().to_owned();
    chats::check_agent(&state, &caller, &agent)?;
    let request = ChatRequest::<RunAgentInput>::read(&state, request).await?;
    chats::to_its_end(async move { act(&state, &caller, &agent, &request).await }).await
}

/// Does what the client's input asks for.
async fn act(
    state: &AppState,
    caller: &Caller,
    agent: &str,
    request: &ChatRequest<RunAgentInput>,
) -> Result<Response, ChatError> {
    let id = chats::asked_session(&request.whole.headers, &request.body.thread_id)?;
    let mut asked = request.body.asked()?;
    let session = chats::find(state, caller, agent, &id).await?;
    // A client cannot send a message without answers to what has expired meanwhile.
    if let (AguiAction::Rest(_), Some(session), true) =
        (&asked, &session, request.body.ends_with_user())
        && session.snapshot().await?.current_run.is_none()
    {
        asked = AguiAction::Run(request.body.input()?);
    }
    match (asked, session) {
        (AguiAction::Run(input), session) => {
            run(state, caller, agent, (&id, session), input, request).await
        }
        (AguiAction::Rest(replies), Some(session)) => {
            rest(state, caller, session, replies, &request.body).await
        }
        (AguiAction::Rest(_), None) => {
            let message = format!("there is no session {id}, so nothing waits for an answer");
            Err(ChatError::unprocessable("no_such_session", message))
        }
    }
}

async fn run(
    state: &AppState,
    caller: &Caller,
    agent: &str,
    (id, session): (&SessionId, Option<SessionHandle>),
    input: Content,
    request: &ChatRequest<RunAgentInput>,
) -> Result<Response, ChatError> {
    let received = request.whole.received(FACE, caller);
    let body = &request.body;
    let (mut before, mut ids) = (Vec::new(), MessageIds::default());
    let (mut variables, mut check, mut known) = (Map::new(), Ok(()), None);
    if let Some(session) = session {
        let snapshot = session.snapshot().await?;
        check = request::check_answered(&snapshot, &Replies::default());
        // A repeated request joins the run that it has started.
        (before, ids) = messages_before_run(state, &session, &snapshot, body.earlier()).await?;
        variables = variables_of(&snapshot);
        known = Some((session, snapshot));
    }
    ids.add_of_client(body.messages.last());
    let run = RunRequest::from(input).with(|run| {
        run.overrides = body.overrides();
        run.metadata = chats::with_message_id(&Metadata::default(), ID_PAIR, body.last_id());
        run.idempotency_key = received.key().map(str::to_owned);
    });
    let start = async {
        check?;
        chats::start(state, caller, agent, id, (run, ID_PAIR)).await
    };
    let begun = begin::begin(state, received, || None, start).await?;
    if let Some((session, snapshot)) = known
        && has_ended_before(&snapshot, &begun.place)
    {
        before = messages_before_past_run(state, &session, &snapshot, begun.place.seq).await?;
    }
    let beginning = Beginning {
        run_id: body.run_id.clone(),
        place: begun.place,
        messages: before,
        ids,
        state: variables,
        known: KnownWaits::default(),
        joins: false,
    };
    Ok(answer(state, begun.events, beginning, begun.answer))
}

/// Gives the session what the client has done, and answers with the rest of the run.
async fn rest(
    state: &AppState,
    caller: &Caller,
    session: SessionHandle,
    replies: Replies,
    body: &RunAgentInput,
) -> Result<Response, ChatError> {
    let snapshot = session.snapshot().await?;
    let Some(place) = chats::current_place(&snapshot) else {
        let message = "no run of this thread waits for an answer";
        return Err(ChatError::unprocessable("no_run", message));
    };
    request::check_answered(&snapshot, &replies)?;
    let mut known = KnownWaits::of_run(snapshot.current_run.as_ref(), snapshot.seq);
    known.answered.extend(replies.decisions.iter().map(|decision| decision.id.clone()));
    known.answered_calls.extend(replies.results.iter().map(|(key, _)| *key));
    replies.apply(state, caller, &session, &snapshot).await?;
    let run_id = body.run_id.clone();
    joined(state, session, &snapshot, (place, run_id, known), &body.messages).await
}

/// Answers with the run in progress: what there is as a snapshot, then the rest as it happens. Without one it is the
/// thread as it is: a client cannot take an empty answer.
async fn join(
    State(state): State<AppState>,
    parameters: PathParameters,
    caller: Caller,
) -> Result<Response, ChatError> {
    let agent = parameters.get("agent").unwrap_or_default();
    chats::check_agent(&state, &caller, agent)?;
    let id = chats::session_id(parameters.get("id").unwrap_or_default())?;
    let Some(session) = chats::find(&state, &caller, agent, &id).await? else {
        return Err(ApiError::no_such_session(id.as_str()).into());
    };
    let snapshot = session.snapshot().await?;
    let Some(place) = chats::current_place(&snapshot) else {
        let (messages, _) = messages_before_run(&state, &session, &snapshot, &[]).await?;
        let text = fold::at_rest(&id, &messages, &variables_of(&snapshot));
        let headers = [
            (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
            (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
            session_header(&id),
        ];
        return Ok((headers, text).into_response());
    };
    let known = KnownWaits::of_run(snapshot.current_run.as_ref(), snapshot.seq);
    state.host.telemetry().metrics().faces().joined(FACE);
    let run_id = place.run.to_string();
    joined(&state, session, &snapshot, (place, run_id, known), &[]).await
}

/// Answers with a run in progress. `sent`: the messages that the client has sent.
async fn joined(
    state: &AppState,
    session: SessionHandle,
    snapshot: &SessionSnapshot,
    (place, run_id, known): (RunPlace, String, KnownWaits),
    sent: &[AguiMessage],
) -> Result<Response, ChatError> {
    let (messages, ids) = messages_before_run(state, &session, snapshot, sent).await?;
    let variables = variables_of(snapshot);
    let beginning =
        Beginning { run_id, place, messages, ids, state: variables, known, joins: true };
    let events = RunEvents::join(session.clone(), beginning.place.clone()).await?;
    let answer_end = FaceAnswer::new(FACE, state.host.telemetry(), None);
    Ok(answer(state, events, beginning, answer_end))
}

fn answer(
    state: &AppState,
    events: RunEvents,
    beginning: Beginning,
    answer: FaceAnswer,
) -> Response {
    let settings = FaceStreamSettings::new(state, None, "");
    let (name, value) = session_header(&beginning.place.session);
    let mut response =
        stream::stream(events, AguiFold::new(beginning), settings, answer.in_parts());
    response.headers_mut().insert(name, value);
    response
}

/// Returns the messages before those of the run in progress, and the ids of the client's messages that are not among
/// them. `sent`: the messages that the client has sent.
async fn messages_before_run(
    state: &AppState,
    session: &SessionHandle,
    snapshot: &SessionSnapshot,
    sent: &[AguiMessage],
) -> Result<(Vec<Value>, MessageIds), ChatError> {
    let history = history_before_run(snapshot);
    let mut ids = ThreadIds::new(sent, MessageIds::default());
    let mut found = messages::of_history(history, &mut ids);
    // Most clients send all messages.
    if found.lacks_ids {
        ids = ThreadIds::new(sent, recorded_ids(state, session).await?);
        found = messages::of_history(history, &mut ids);
    }
    Ok((found.messages, ids.client))
}

/// Returns whether a run has ended before a snapshot was made, so that the snapshot's history has its messages.
fn has_ended_before(snapshot: &SessionSnapshot, place: &RunPlace) -> bool {
    let is_current = snapshot.current_run.as_ref().is_some_and(|run| run.run_id == place.run);
    place.seq <= snapshot.seq && !is_current
}

/// Returns the messages before those of a run that has ended. `seq`: its first record.
async fn messages_before_past_run(
    state: &AppState,
    session: &SessionHandle,
    snapshot: &SessionSnapshot,
    seq: Seq,
) -> Result<Vec<Value>, ChatError> {
    let recorded = recorded_ids(state, session).await?;
    let input = recorded.of_record(seq);
    let mut ids = ThreadIds::new(&[], recorded);
    let mut messages = messages::of_history(&snapshot.history, &mut ids).messages;
    let is_input = |message: &Value| message["id"].as_str() == input.as_deref();
    messages.truncate(messages.iter().position(is_input).unwrap_or(messages.len()));
    Ok(messages)
}

/// Returns the ids that the messages of a session had in its runs.
async fn recorded_ids(state: &AppState, session: &SessionHandle) -> Result<MessageIds, ChatError> {
    let _guard = state.reads.pages.lock().await;
    let (mut ids, mut taken) = (MessageIds::default(), BTreeSet::new());
    for_each_record(session, |entry| ids.add(&entry, &mut taken)).await?;
    Ok(ids)
}

/// Returns the messages before those of the run in progress.
fn history_before_run(snapshot: &SessionSnapshot) -> &[Arc<Message>] {
    let first = snapshot.current_run.as_ref().map(|run| run.first_message);
    let end = first.unwrap_or(snapshot.history.len());
    snapshot.history.get(..end).unwrap_or(&snapshot.history)
}

fn variables_of(snapshot: &SessionSnapshot) -> Map<String, Value> {
    snapshot.variables().map(|(name, value)| (name.to_owned(), value.clone())).collect()
}
