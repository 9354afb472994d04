//! The face the UI message stream of the AI SDK (7), as `useChat` and its `DefaultChatTransport` speak it.
//!
//! The id of a chat is the id of its session, and the message of the assistant is a run: its id is the run's. It ends
//! where the page must act (an approval, a call that the page runs), and goes on in the answer to the page's next
//! request, which has the same message with what the page has added to it.

mod fold;
mod request;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use serde_json::json;

use super::super::access::Caller;
use super::super::extract::{EmptyBody, PathParameters};
use super::super::route::{READ, RUN, Route};
use super::super::state::AppState;
use super::answer::FaceAnswer;
use super::begin::{self, BegunRun};
use super::chats::{self, ChatError, ChatRequest};
use super::replies::Replies;
use super::retries::RunPlace;
use super::stream::{self, DONE, FaceStreamSettings, RunEvents};
use super::waits::KnownWaits;
use super::{session_header, with_names};
use callsheet_host::runtime::{RunRequest, SessionHandle};
use callsheet_host::telemetry::FaceKind;
use callsheet_values::record::StopMode;
use callsheet_values::types::{Content, RunId, Seq, SessionId};
use fold::UiFold;
use request::{ChatTrigger, UiAction, UiRequest};

const FACE: FaceKind = FaceKind::Ui;

/// The name of the pair of a run's metadata that holds the id of the page's message.
const ID_PAIR: &str = "ui";

/// The header by which clients know the protocol.
const PROTOCOL: (HeaderName, HeaderValue) =
    (HeaderName::from_static("x-vercel-ai-ui-message-stream"), HeaderValue::from_static("v1"));

/// Returns the routes of the face.
pub(super) fn routes() -> Vec<Route> {
    vec![
        ("POST", "/v1/ui/{agent}", RUN, post(send)),
        ("GET", "/v1/ui/{agent}/{id}/stream", READ, get(resume)),
        ("POST", "/v1/ui/{agent}/{id}/stop", RUN, post(stop)),
    ]
}

/// Starts a run with the user's last message, or goes on with the message of a run that the page has answered.
async fn send(
    State(state): State<AppState>,
    parameters: PathParameters,
    caller: Caller,
    request: Request,
) -> Result<Response, ChatError> {
    let agent = parameters.get("agent").unwrap_or_default().to_owned();
    chats::check_agent(&state, &caller, &agent)?;
    let request = ChatRequest::<UiRequest>::read(&state, request).await?;
    chats::to_its_end(async move { act(&state, &caller, &agent, &request).await }).await
}

/// Does what the last message asks for.
async fn act(
    state: &AppState,
    caller: &Caller,
    agent: &str,
    request: &ChatRequest<UiRequest>,
) -> Result<Response, ChatError> {
    let id = chats::asked_session(&request.whole.headers, &request.body.id)?;
    let response = match request.body.asked()? {
        UiAction::Run(input) => run(state, caller, agent, &id, input, request).await?,
        UiAction::Rest { run, replies, known } => {
            let Some(session) = chats::find(state, caller, agent, &id).await? else {
                let message = format!("there is no session {id}, so nothing waits for an answer");
                return Err(ChatError::unprocessable("no_such_session", message));
            };
            rest(state, caller, session, run, replies, known).await?
        }
    };
    Ok(with_names(response, &id, &request.body.ignored()))
}

async fn run(
    state: &AppState,
    caller: &Caller,
    agent: &str,
    id: &SessionId,
    input: Content,
    request: &ChatRequest<UiRequest>,
) -> Result<Response, ChatError> {
    if request.body.trigger == ChatTrigger::RegenerateMessage
        && let Some(session) = chats::find(state, caller, agent, id).await?
        && let Some(joined) = join(state, session).await?
    {
        return Ok(joined);
    }
    let received = request.whole.received(FACE, caller);
    let run = RunRequest::from(input).with(|run| {
        run.overrides = request.body.overrides();
        let id = request.body.last_id();
        run.metadata = chats::with_message_id(&request.body.metadata, ID_PAIR, id);
        run.idempotency_key = received.key().map(str::to_owned);
    });
    let start = chats::start(state, caller, agent, id, (run, ID_PAIR));
    let begun = begin::begin(state, received, || None, start).await?;
    Ok(answer(state, begun, KnownWaits::default()))
}

/// Gives the session what the page has done, and answers with the rest of the message.
async fn rest(
    state: &AppState,
    caller: &Caller,
    session: SessionHandle,
    run: RunId,
    replies: Replies,
    answered: KnownWaits,
) -> Result<Response, ChatError> {
    let snapshot = session.snapshot().await?;
    let place = match chats::current_place(&snapshot).filter(|place| place.run == run) {
        Some(place) => place,
        None if session.stored_report(&run).await?.is_some() => {
            RunPlace { session: session.id().clone(), run, seq: Seq(1) }
        }
        None => {
            let message = "no run of this session waits for an answer of this message: its id must \
                           be the one that its stream began with";
            return Err(ChatError::unprocessable("no_such_run", message));
        }
    };
    let known = KnownWaits::of_run(snapshot.current_run.as_ref(), snapshot.seq).with(answered);
    replies.apply(state, caller, &session, &snapshot).await?;
    let events = RunEvents::join(session.clone(), place.clone()).await?;
    let answer_end = FaceAnswer::new(FACE, state.host.telemetry(), None);
    Ok(answer(state, BegunRun { session, place, events, answer: answer_end }, known))
}

/// Answers with the message of the run in progress from its beginning, or with 204 if there is none.
async fn resume(
    State(state): State<AppState>,
    parameters: PathParameters,
    caller: Caller,
) -> Result<Response, ChatError> {
    let joined = match path_session(&state, &parameters, &caller).await? {
        Some(session) => join(&state, session).await?,
        None => None,
    };
    Ok(joined.unwrap_or_else(|| StatusCode::NO_CONTENT.into_response()))
}

async fn join(state: &AppState, session: SessionHandle) -> Result<Option<Response>, ChatError> {
    let snapshot = session.snapshot().await?;
    let Some(place) = chats::current_place(&snapshot) else { return Ok(None) };
    let known = KnownWaits::of_run(snapshot.current_run.as_ref(), snapshot.seq);
    state.host.telemetry().metrics().faces().joined(FACE);
    let events = RunEvents::join(session.clone(), place.clone()).await?;
    let answer_end = FaceAnswer::new(FACE, state.host.telemetry(), None);
    Ok(Some(answer(state, BegunRun { session, place, events, answer: answer_end }, known)))
}

/// Stops the run in progress at once.
async fn stop(
    State(state): State<AppState>,
    parameters: PathParameters,
    caller: Caller,
    _: EmptyBody,
) -> Result<Response, ChatError> {
    let Some(session) = path_session(&state, &parameters, &caller).await? else {
        let id = parameters.get("id").unwrap_or_default();
        return Err(super::super::error::ApiError::no_such_session(id).into());
    };
    session.stop(StopMode::Now).await?;
    let body = json!({"id": session.id(), "mode": StopMode::Now});
    Ok((StatusCode::ACCEPTED, Json(body)).into_response())
}

async fn path_session(
    state: &AppState,
    parameters: &PathParameters,
    caller: &Caller,
) -> Result<Option<SessionHandle>, ChatError> {
    let agent = parameters.get("agent").unwrap_or_default();
    chats::check_agent(state, caller, agent)?;
    let id = chats::session_id(parameters.get("id").unwrap_or_default())?;
    chats::find(state, caller, agent, &id).await
}

fn answer(state: &AppState, begun: BegunRun, known: KnownWaits) -> Response {
    let BegunRun { session, place, events, answer } = begun;
    let settings = FaceStreamSettings::new(state, None, DONE);
    let fold = UiFold::new(place, known);
    let mut response = stream::stream(events, fold, settings, answer.in_parts());
    response
        .headers_mut()
        .extend([PROTOCOL, session_header(session.id())].map(|(name, value)| (Some(name), value)));
    response
}
