//! Faces: protocols of other systems, by which their clients drive sessions of this host.
//!
//! Each face is a pure fold from the events of a run to the parts of its protocol ([`stream::Fold`]), and handlers that
//! turn requests into what the API does with them: open a session, start a run, decide about a call, stop. A face knows
//! nothing of the runtime, and keeps nothing that the journal has. A closed connection never stops a run: the client
//! joins it again, at the position of the last part that it has seen ([`position::PartPosition`]), or by sending its request
//! once more ([`retries::Retries`]).

mod agui;
mod answer;
mod begin;
mod chats;
mod earlier;
pub(super) mod memory;
mod openai_chat;
mod openai_error;
mod openai_parameters;
mod openai_responses;
mod position;
mod records;
mod replies;
mod retries;
mod stream;
mod ui;
mod waits;

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::Response;
use serde_json::Value;

use super::access::Caller;
use super::error::ApiError;
use super::mount::MountPath;
use super::route::Route;
use super::state::{ApiState, AppState};
use begin::ReceivedRequest;
use callsheet_host::runtime::{HostError, SessionHandle};
use callsheet_host::telemetry::FaceKind;
use callsheet_values::config::FacesConfig;
use callsheet_values::types::SessionId;

/// The input of a run whose session begins with results of calls that were made elsewhere.
const GO_ON: &str = "[callsheet: The calls above have their results. Go on.]";

/// The header with the id of the session: in a request the one to use, in an answer the one that was used.
const SESSION_HEADER: HeaderName = HeaderName::from_static("x-callsheet-session");

/// Returns the routes of the faces that are on.
pub(super) fn routes(config: &FacesConfig) -> Vec<Route> {
    let is_on = |enabled: Option<bool>| enabled == Some(true);
    let mut routes = Vec::new();
    if is_on(config.openai.enabled) {
        routes.extend(openai_chat::routes());
        routes.extend(openai_responses::routes());
    }
    if is_on(config.ui.enabled) {
        routes.extend(ui::routes());
    }
    if is_on(config.agui.enabled) {
        routes.extend(agui::routes());
    }
    routes
}

/// Begins what the faces do without a request.
pub(super) fn begin(state: &ApiState) {
    if state.options.faces.openai.enabled == Some(true) {
        openai_responses::delete_old(state);
    }
}

/// Returns whether requests to a route can concern a session, so that the host answers which has it.
pub(super) fn is_about_session(path: &str) -> bool {
    let starts = ["/v1/responses", "/v1/chat/", "/v1/conversations", "/v1/ui/{agent}", "/v1/agui/"];
    starts.iter().any(|start| path.starts_with(start))
}

/// Returns what gives an answer of this path, if it is an error of the API, the form of the path's protocol.
pub(super) fn error_form(path: &str) -> fn(Response) -> Response {
    if openai_error::is_path(path) { openai_error::in_form } else { |response| response }
}

/// Returns the session that a request concerns, as far as its path, headers and body tell. `None`: a new one, or one of
/// a wrong name, which any host refuses.
pub(super) async fn named_session_of(
    state: &AppState,
    caller: &Caller,
    request: &Parts,
    body: &[u8],
) -> Option<SessionId> {
    if let Ok(Some(session)) = named_session(&request.headers) {
        return Some(session);
    }
    let mut segments = request.uri.path().split('/').skip_while(|segment| *segment != "v1").skip(1);
    match (segments.next()?, segments.next(), segments.next()) {
        ("responses" | "conversations", Some(id), _) => session_of_id(id),
        ("ui" | "agui", Some(_), Some(id)) => chats::session_id(id).ok(),
        (first, ..) => {
            let (bytes, is_chat) = (body, first == "chat");
            let body: Value = serde_json::from_slice(bytes).ok()?;
            let text = |names: &[&str]| {
                let found = names.iter().try_fold(&body, |value, name| value.get(name));
                found.and_then(Value::as_str)
            };
            let of_id = [&["previous_response_id"][..], &["conversation"], &["conversation", "id"]];
            let of_name = [&["metadata", "session_id"][..], &["threadId"], &["id"]];
            let named = of_id.into_iter().find_map(text).and_then(session_of_id);
            let named = named.or_else(|| openai_responses::session_of_items(&body)).or_else(|| {
                of_name.into_iter().find_map(text).and_then(|id| chats::session_id(id).ok())
            });
            let named = match (named, is_chat) {
                (None, true) => openai_chat::session_of(state, caller, request, bytes).await,
                (named, _) => named,
            };
            if named.is_some() {
                return named;
            }
            let face = if is_chat { FaceKind::Chat } else { FaceKind::Responses };
            let (headers, path) = (&request.headers, request.uri.path());
            let received = ReceivedRequest { face, caller, headers, path, body: bytes };
            earlier::session_of_repeated(state, received).await
        }
    }
}

/// Returns the session of the id of a response, `resp_{SEQ}_{session}`, or of a conversation, `conv_{session}`.
fn session_of_id(id: &str) -> Option<SessionId> {
    let session = match id.strip_prefix("resp_") {
        Some(rest) => rest.split_once('_')?.1,
        None => id.strip_prefix("conv_")?,
    };
    SessionId::parse(session).ok()
}

/// The agent of a request, and the model that it asks for instead of the agent's own.
#[derive(Clone, Debug, PartialEq, Eq)]
struct AskedAgent {
    agent: String,
    model: Option<String>,
}

impl AskedAgent {
    /// Finds the agent that a client names as its model: `agent`, or `agent/model`. `None`: there is none, and no agent
    /// answers for unknown names.
    fn find(state: &ApiState, named: &str, default: Option<&str>) -> Option<Self> {
        let agents = state.host.agents();
        let is_agent = |name: &str| agents.iter().any(|agent| agent == name);
        if is_agent(named) {
            return Some(Self { agent: named.to_owned(), model: None });
        }
        match named.split_once('/') {
            Some((agent, model)) if is_agent(agent) => {
                Some(Self { agent: agent.to_owned(), model: Some(model.to_owned()) })
            }
            Some(_) | None => Some(Self { agent: default?.to_owned(), model: None }),
        }
    }
}

/// Returns the session that a request names in its header.
fn named_session(headers: &HeaderMap) -> Result<Option<SessionId>, ApiError> {
    let Some(value) = headers.get(SESSION_HEADER) else { return Ok(None) };
    let id = value.to_str().ok().and_then(|text| SessionId::parse(text).ok());
    let id = id.ok_or_else(|| {
        let message =
            "X-Callsheet-Session: a session id has 1 to 64 characters of A-Z, a-z, 0-9, _ and -";
        ApiError::bad_request("invalid_request", message)
    })?;
    Ok(Some(id))
}

/// Returns the header that names a session.
fn session_header(session: &SessionId) -> (HeaderName, HeaderValue) {
    // An id has only characters that a header can have.
    let value = HeaderValue::try_from(session.as_str());
    (SESSION_HEADER, value.unwrap_or(HeaderValue::from_static("-")))
}

/// The header of an answer that names the parameters of the request that had no effect.
const IGNORED_HEADER: HeaderName = HeaderName::from_static("x-callsheet-ignored");

/// Adds the headers that name the session and the ignored parameters to an answer.
fn with_names(mut response: Response, session: &SessionId, ignored: &[&str]) -> Response {
    let (name, value) = session_header(session);
    response.headers_mut().insert(name, value);
    let ignored = HeaderValue::try_from(ignored.join(", ")).ok();
    if let Some(value) = ignored.filter(|value| !value.is_empty()) {
        response.headers_mut().insert(IGNORED_HEADER, value);
    }
    response
}

/// The address at which people decide about calls, as the client knows this host, up to the id of the session.
struct DecisionAddress(String);

impl FromRequestParts<AppState> for DecisionAddress {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, Infallible> {
        let Ok(mount) = MountPath::from_request_parts(parts, state).await;
        let host = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let host = host.unwrap_or("localhost");
        let scheme = super::scheme(state.options.tls.is_some());
        let path = if state.host.console().enabled { "console/#/s" } else { "v1/sessions" };
        Ok(Self(format!("{scheme}://{host}{mount}/{path}/")))
    }
}

/// Returns a session that the caller may reach, with the caller as author.
async fn session_of(
    state: &ApiState,
    caller: &Caller,
    id: &SessionId,
) -> Result<SessionHandle, ApiError> {
    let session = state.host.session(id);
    if !session.exists().await? {
        return Err(HostError::NoSuchSession(id.clone()).into());
    }
    caller.check_session(&session).await?;
    Ok(caller.with_author(session))
}
