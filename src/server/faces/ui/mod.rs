//! The face the UI message stream of the AI SDK (7), as `useChat` and its `DefaultChatTransport` speak it.
//!
//! The id of a chat is the id of its session, and the message of the assistant is a run: its id is the run's. It ends
//! where the page must act (an approval, a call that the page runs), and goes on in the answer to the page's next
//! request, which has the same message with what the page has added to it.

mod fold;
mod request;

use axum::Json;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use serde_json::json;

use super::super::error::ApiError;
use super::super::extract::EmptyBody;
use super::super::route::{READ, RUN, Route};
use super::begin::BegunRun;
use super::chats::{self, ChatBody as _, ChatPath, ChatRequest};
use super::replies::{ChatAction, Replies};
use super::retries::RunPlace;
use super::stream::{self, DONE, FaceStreamSettings};
use super::waits::KnownWaits;
use super::{session_header, with_names};
use callsheet_host::runtime::SessionHandle;
use callsheet_values::record::StopMode;
use callsheet_values::types::{Content, RunId, Seq};
use fold::UiFold;
use request::{ChatTrigger, UiRequest};

/// The header by which clients know the protocol.
const PROTOCOL: (HeaderName, HeaderValue) =
    (HeaderName::from_static("x-vercel-ai-ui-message-stream"), HeaderValue::from_static("v1"));

/// Returns the routes of the face.
pub(super) fn routes() -> Vec<Route> {
    chats::routes([
        ("POST", "/v1/ui/{agent}", RUN, post(send)),
        ("GET", "/v1/ui/{agent}/{id}/stream", READ, get(resume)),
        ("POST", "/v1/ui/{agent}/{id}/stop", RUN, post(stop)),
    ])
}

/// Starts a run with the user's last message, or goes on with the message of a run that the page has answered.
async fn send(path: ChatPath, request: Request) -> Result<Response, ApiError> {
    chats::answer(path, request, act).await
}

/// Does what the last message asks for.
async fn act(request: ChatRequest<UiRequest>) -> Result<Response, ApiError> {
    let response = match request.body.asked()? {
        ChatAction::Run(input) => run(&request, input).await?,
        ChatAction::Rest(replies) => rest(&request, replies).await?,
    };
    Ok(with_names(response, &request.id, &request.body.ignored()))
}

async fn run(request: &ChatRequest<UiRequest>, input: Content) -> Result<Response, ApiError> {
    if request.body.trigger == ChatTrigger::RegenerateMessage
        && let Some(session) = request.session().await?
        && let Some(joined) = join(&request.path, session).await?
    {
        return Ok(joined);
    }
    let begun = request.run(input, Ok(())).await?;
    Ok(answer(&request.path, begun, KnownWaits::default()))
}

/// Gives the session what the page has done, and answers with the rest of the message.
async fn rest(request: &ChatRequest<UiRequest>, replies: Replies) -> Result<Response, ApiError> {
    let Some(session) = request.session().await? else { return Err(request.no_session()) };
    let snapshot = session.snapshot().await?;
    let known = replies.known(&snapshot);
    let run = RunId(request.body.last_id().into());
    let place = match chats::current_place(&snapshot).filter(|place| place.run == run) {
        Some(place) => place,
        None if session.stored_report(&run).await?.is_some() => {
            RunPlace { session: session.id().clone(), run, seq: Seq(1) }
        }
        None => {
            let message = "no run of this session waits for an answer of this message: its id must \
                           be the one that its stream began with";
            return Err(chats::unprocessable("no_such_run", message));
        }
    };
    replies.apply(&request.path, &session, &snapshot).await?;
    let begun = request.path.join(UiRequest::FACE, session, place).await?;
    Ok(answer(&request.path, begun, known))
}

/// Answers with the message of the run in progress from its beginning, or with 204 if there is none.
async fn resume(path: ChatPath) -> Result<Response, ApiError> {
    let joined = match path.session().await? {
        Some(session) => join(&path, session).await?,
        None => None,
    };
    Ok(joined.unwrap_or_else(|| StatusCode::NO_CONTENT.into_response()))
}

async fn join(path: &ChatPath, session: SessionHandle) -> Result<Option<Response>, ApiError> {
    let snapshot = session.snapshot().await?;
    let Some(place) = chats::current_place(&snapshot) else { return Ok(None) };
    path.state.host.telemetry().metrics().faces().joined(UiRequest::FACE);
    let begun = path.join(UiRequest::FACE, session, place).await?;
    Ok(Some(answer(path, begun, KnownWaits::of(&snapshot))))
}

/// Stops the run in progress at once.
async fn stop(path: ChatPath, _: EmptyBody) -> Result<Response, ApiError> {
    let session = path.existing_session().await?;
    session.stop(StopMode::Now).await?;
    let body = json!({"id": session.id(), "mode": StopMode::Now});
    Ok((StatusCode::ACCEPTED, Json(body)).into_response())
}

fn answer(path: &ChatPath, begun: BegunRun, known: KnownWaits) -> Response {
    let BegunRun { session, place, events, answer } = begun;
    let settings = FaceStreamSettings::new(&path.state, None, DONE);
    let fold = UiFold::new(place, known);
    let mut response = stream::stream(events, fold, settings, answer.in_parts());
    let headers = [PROTOCOL, session_header(session.id())];
    response.headers_mut().extend(headers.map(|(name, value)| (Some(name), value)));
    response
}
