//! Several hosts with one journal: any of them takes any request, and passes it on to the one that has the session.
//!
//! A request takes one hop at most: the other host answers it, or says that it has not got the session either. Then the
//! owner is looked up again, until the session has one. A request whose answer is lost is repeated if it has an
//! `Idempotency-Key`, which inputs without one get here, or if it can be repeated anyway.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, request::Parts};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::StreamExt as _;
use serde_json::Value;
use tokio::time::Instant;

use super::access::Caller;
use super::error::{ApiError, ErrorCode};
use super::extract::{IsReceived, PathParameters, ReceivedBody, read_in_time};
use super::state::{ApiState, AppState};
use callsheet_host::journal::OtherHost;
use callsheet_host::runtime::{
    CALLER_HEADER, HOST_HEADER, Host, HostError, PeerRequest, REFUSAL_HEADER, SessionPlace,
};
use callsheet_values::types::{SessionId, TRACEPARENT, TRACESTATE};

/// The key that makes a request one that can be repeated.
const KEY_HEADER: &str = "idempotency-key";

/// The headers of a client that are passed on.
const PASSED_ON: [&str; 8] = [
    "accept",
    "content-type",
    KEY_HEADER,
    "last-event-id",
    "x-callsheet-session",
    "x-stainless-retry-count",
    TRACEPARENT,
    TRACESTATE,
];

/// The headers of an answer that concern a connection, or hosts only.
const NOT_PASSED_BACK: [&str; 6] =
    ["connection", "date", "keep-alive", "transfer-encoding", HOST_HEADER, REFUSAL_HEADER];

/// The routes about a session that every host answers from the journal.
const ANSWERED_ANYWHERE: [(&str, &str); 3] = [
    ("GET", "/v1/sessions/{id}/records"),
    ("POST", "/v1/sessions/{id}/verify"),
    ("POST", "/v1/sessions/{id}/fork"),
];

/// The first and the longest pause before the owner is looked up again.
const PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(500)];

/// An attempt that has taken this long was worked on.
const WORK_MIN: Duration = Duration::from_secs(1);

/// The interval at which it is checked that the host which has not answered yet lives.
const LIFE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Time limit for the page of another host.
const PAGE_TIMEOUT: Duration = Duration::from_secs(1);

/// An event stream of another host is dead if it is silent for this many keep-alive intervals.
const KEEP_ALIVES_MISSED: u32 = 3;

/// Returns whether the owner of the session answers a route.
pub(super) fn is_for_owner(method: &str, path: &str) -> bool {
    path.starts_with("/v1/sessions/{id}") && !ANSWERED_ANYWHERE.contains(&(method, path))
}

/// Checks that a request of another host is for this one, and says in its answer who answers it.
pub(super) async fn answer_peer(
    State(state): State<AppState>,
    request: Request,
    next: Next,
) -> Response {
    let Some(target) = request.headers().get(HOST_HEADER) else { return next.run(request).await };
    let own = state.host.id();
    let mut answer = match target == own {
        true => next.run(request).await,
        false => {
            let message = format!("this is the host {own}");
            ApiError::new(StatusCode::MISDIRECTED_REQUEST, "wrong_host", message).into_response()
        }
    };
    let refusal = answer.extensions().get().map(|ErrorCode(code)| HeaderValue::from_static(code));
    let headers = answer.headers_mut();
    headers.extend(
        HeaderValue::try_from(own).ok().map(|own| (HeaderName::from_static(HOST_HEADER), own)),
    );
    headers.extend(refusal.map(|code| (HeaderName::from_static(REFUSAL_HEADER), code)));
    answer
}

/// Lets the host answer that has the session of the path.
pub(super) async fn to_owner(
    State(state): State<AppState>,
    parameters: PathParameters,
    caller: Caller,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    // A text that is not an id cannot name a session.
    match parameters.get("id").and_then(|id| SessionId::parse(id).ok()) {
        Some(id) => answer(&state, Subject::Session(id), &caller, request, next).await,
        None => Ok(next.run(request).await),
    }
}

/// Lets the host answer that has the session which a request of a face concerns.
#[cfg(feature = "faces")]
pub(super) async fn to_owner_of_named(
    State(state): State<AppState>,
    caller: Caller,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let body = read_in_time(Request::new(body), &state).await?.with_share_of_length();
    let session = super::faces::named_session_of(&state, &caller, &parts, &body.bytes).await;
    let subject = session.map_or(Subject::New, Subject::Session);
    // The body keeps its share of the memory until the request is answered.
    let mut request = Request::from_parts(parts, Body::from(body.bytes.clone()));
    request.extensions_mut().insert(IsReceived);
    request.extensions_mut().insert(EndsWhole);
    answer(&state, subject, &caller, request, next).await
}

/// Lets another host answer while this one shuts down.
pub(super) async fn to_living(
    State(state): State<AppState>,
    caller: Caller,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    answer(&state, Subject::New, &caller, request, next).await
}

/// Returns the number of open approvals of each session that another host has, with those of its sub-agents.
pub(super) async fn open_approvals(
    state: &ApiState,
    caller: &Caller,
    headers: &HeaderMap,
) -> HashMap<String, usize> {
    let path = Uri::from_static("/v1/approvals?limit=1000");
    let mut counts = HashMap::new();
    for page in pages(state, caller, &path, headers).await {
        for open in page["approvals"].as_array().into_iter().flatten() {
            let [session, root] = ["session_id", "root_session_id"].map(|name| open[name].as_str());
            for id in session.into_iter().chain(root.filter(|root| Some(*root) != session)) {
                *counts.entry(id.to_owned()).or_default() += 1;
            }
        }
    }
    counts
}

/// Returns the sessions that other hosts list for the same request, and whether one of them has more.
pub(super) async fn listed(
    state: &ApiState,
    caller: &Caller,
    uri: &Uri,
    headers: &HeaderMap,
) -> (Vec<SessionId>, bool) {
    let (mut listed, mut has_more) = (Vec::new(), false);
    for page in pages(state, caller, uri, headers).await {
        let sessions = page["sessions"].as_array().into_iter().flatten();
        let ids = sessions.filter_map(|session| session["id"].as_str());
        listed.extend(ids.filter_map(|id| SessionId::parse(id).ok()));
        has_more |= page["next"].is_string();
    }
    (listed, has_more)
}

/// Returns the pages with which the other hosts answer the same request about what they have. A host that does not answer
/// is left out: its sessions are soon those of another one.
pub(super) async fn pages(
    state: &ApiState,
    caller: &Caller,
    uri: &Uri,
    headers: &HeaderMap,
) -> Vec<Value> {
    let Some(peers) = state.host.peers().filter(|_| !headers.contains_key(HOST_HEADER)) else {
        return Vec::new();
    };
    let others = state.host.other_hosts().await;
    let asked = others.iter().map(async |other| {
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let mut request = PeerRequest::get(path.to_owned());
        request.headers.extend(caller_header(caller));
        let answer = peers.send(other, request).await.ok()?;
        answer.json().await.ok()
    });
    let asked = asked.map(|page| tokio::time::timeout(PAGE_TIMEOUT, page));
    let pages = futures::future::join_all(asked).await;
    pages.into_iter().filter_map(|page| page.ok().flatten()).collect()
}

/// Deletes a session that another host has.
pub(super) async fn delete(
    state: &ApiState,
    caller: &Caller,
    session: &SessionId,
) -> Result<(), ApiError> {
    let mut request = PeerRequest::get(format!("/v1/sessions/{session}"));
    request.method = Method::DELETE;
    request.headers.extend(caller_header(caller));
    let moved = || ApiError::from(HostError::SessionMoved);
    let SessionPlace::At(other) = state.host.session_place(session, 0).await else {
        return Err(moved());
    };
    let peers = state.host.peers().ok_or_else(moved)?;
    let answer = peers.send(&other, request).await.map_err(|_| moved())?;
    // Another request may have deleted it.
    match answer.status().is_success() || answer.status() == StatusCode::NOT_FOUND {
        true => Ok(()),
        false => Err(moved()),
    }
}

fn caller_header(caller: &Caller) -> Option<(HeaderName, HeaderValue)> {
    Some((HeaderName::from_static(CALLER_HEADER), caller.to_header()?))
}

/// The session that a request concerns, which decides which host answers it.
enum Subject {
    Session(SessionId),
    /// A new session.
    New,
}

impl Subject {
    async fn place(&self, host: &Host, attempt: usize) -> SessionPlace {
        match self {
            Self::Session(id) => host.session_place(id, attempt).await,
            Self::New => host.place_of_new(attempt).await,
        }
    }
}

/// Waits until a host that has not answered is dead: its lease is over. One that lives says by itself that it has lost
/// the session.
async fn wait_until_dead(state: &ApiState, host: &OtherHost) {
    loop {
        tokio::time::sleep(LIFE_CHECK_INTERVAL).await;
        if !state.host.is_living(host).await {
            return;
        }
    }
}

async fn answer(
    state: &AppState,
    subject: Subject,
    caller: &Caller,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let Some(peers) = state.host.peers() else { return Ok(next.run(request).await) };
    // One hop at most.
    if request.headers().contains_key(HOST_HEADER) {
        return Ok(answer_here(state, &subject, request, next).await);
    }
    let request = KeptRequest::read(state, request).await?;
    let mut until = Instant::now() + peers.patience();
    let (mut attempt, [mut pause, pause_max]) = (0, PAUSES);
    loop {
        let began = Instant::now();
        let tried = match subject.place(&state.host, attempt).await {
            SessionPlace::Here => {
                let answer = answer_here(state, &subject, request.to_request(), next.clone()).await;
                let code = answer.extensions().get().map(|ErrorCode(code)| *code);
                // While this host shuts down, another try helps only if another host lives.
                let is_left = code.is_some_and(is_of_other_host)
                    && !is_call_by_hand(&request.parts.uri)
                    && (state.host.is_ready() || !state.host.other_hosts().await.is_empty());
                if is_left { Tried::AgainAfterWork(answer) } else { Tried::Answered(answer) }
            }
            SessionPlace::At(other) => {
                state.host.telemetry().metrics().sharing().request_passed_on();
                let sent = peers.send(&other, request.to_peer(caller));
                tokio::select! {
                    sent = sent => match sent {
                        Ok(answer) => match passed_back(state, &request, &other, answer) {
                            // The tool may have run.
                            Tried::AgainAfterWork(answer) if is_call_by_hand(&request.parts.uri) => {
                                Tried::Answered(answer)
                            }
                            tried @ (Tried::Answered(_) | Tried::Again(_) | Tried::AgainAfterWork(_)) => tried,
                        },
                        Err(error) => request.unanswered(error.to_string(), error.was_sent()),
                    },
                    () = wait_until_dead(state, &other) => {
                        let reason = format!("the host {} is dead, and has not answered", other.id);
                        request.unanswered(reason, true)
                    }
                }
            }
        };
        match tried {
            Tried::Answered(answer) => return Ok(answer),
            Tried::AgainAfterWork(_) if began.elapsed() >= WORK_MIN => {
                until = Instant::now() + peers.patience();
            }
            Tried::Again(answer) | Tried::AgainAfterWork(answer) if Instant::now() >= until => {
                return Ok(answer);
            }
            Tried::Again(_) | Tried::AgainAfterWork(_) => {}
        }
        tokio::time::sleep(pause).await;
        (attempt, pause) = (attempt + 1, pause_max.min(pause * 2));
    }
}

/// Answers a request at this host. After a standstill what it has in memory may be old: an answer that only reads, or
/// refuses, is not one then.
async fn answer_here(
    state: &AppState,
    subject: &Subject,
    request: Request,
    next: Next,
) -> Response {
    let awake = match subject {
        Subject::Session(id) => Some(id).zip(state.host.session_actor(id)),
        Subject::New => None,
    };
    let (is_read, is_call) = (request.method().is_safe(), is_call_by_hand(request.uri()));
    let answer = next.run(request).await;
    let is_from_memory = is_read || (answer.status().is_client_error() && !is_call);
    match awake.is_some_and(|(id, actor)| is_from_memory && state.host.may_have_lost(id, actor)) {
        true => ApiError::from(HostError::SessionMoved).into_response(),
        false => answer,
    }
}

/// Returns whether an error says that another host has the session.
fn is_of_other_host(code: &str) -> bool {
    let errors = [HostError::SessionMoved, HostError::ShuttingDown];
    errors.iter().any(|error| error.code() == code)
}

/// The result of an attempt.
enum Tried {
    Answered(Response),
    /// The owner is looked up again. The answer is for a client that has waited for too long.
    Again(Response),
    /// The same, because the other host has ended while it worked on the request.
    AgainAfterWork(Response),
}

/// Returns the answer of another host as that of this one.
fn passed_back(
    state: &ApiState,
    request: &KeptRequest,
    from: &OtherHost,
    answer: reqwest::Response,
) -> Tried {
    let header = |name| answer.headers().get(name).and_then(|value| value.to_str().ok());
    let status = answer.status();
    if header(HOST_HEADER) != Some(&from.id) || status == StatusCode::MISDIRECTED_REQUEST {
        let address = from.address.as_deref().unwrap_or_default();
        let message = format!(
            "at {address}, the address of the session's host, something else answers (status {}): check host.advertise \
             of that host, and that all hosts have the same peer token",
            status.as_u16()
        );
        tracing::warn!(address, status = status.as_u16(), host = from.id, "peer_not_reached");
        return Tried::Again(
            ApiError::new(StatusCode::BAD_GATEWAY, "peer_not_reached", message).into_response(),
        );
    }
    let is_left = header(REFUSAL_HEADER).is_some_and(is_of_other_host);
    let is_stream =
        header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"));
    let mut headers = answer.headers().clone();
    for name in NOT_PASSED_BACK {
        headers.remove(name);
    }
    let body = match is_stream {
        true => events(state, answer, request.parts.extensions.get::<EndsWhole>().is_some()),
        false => Body::from_stream(answer.bytes_stream()),
    };
    let mut response = Response::new(body);
    (*response.status_mut(), *response.headers_mut()) = (status, headers);
    if is_left { Tried::AgainAfterWork(response) } else { Tried::Answered(response) }
}

/// Returns an event stream of another host, which ends when this server shuts down, or the other host is silent. With
/// `ends_whole` it is aborted then.
fn events(state: &ApiState, answer: reqwest::Response, ends_whole: bool) -> Body {
    let silence_max = state.options.keep_alive * KEEP_ALIVES_MISSED;
    let first = Some((answer.bytes_stream().boxed(), state.closing.clone()));
    let chunks = futures::stream::unfold(first, move |chunks| async move {
        let (mut chunks, closing) = chunks?;
        let next = tokio::select! {
            next = tokio::time::timeout(silence_max, chunks.next()) => {
                next.map_err(|_| "the other host is silent")
            }
            () = closing.cancelled() => Err("this host shuts down"),
        };
        match next {
            Ok(chunk) => Some((chunk?.map_err(io::Error::other), Some((chunks, closing)))),
            Err(reason) if ends_whole => Some((Err(io::Error::other(reason)), None)),
            Err(_) => None,
        }
    });
    Body::from_stream(chunks)
}

/// A request that is kept until it is answered, to be sent again.
struct KeptRequest {
    parts: Parts,
    body: ReceivedBody,
}

impl KeptRequest {
    async fn read(state: &ApiState, request: Request) -> Result<Self, ApiError> {
        let (mut parts, body) = request.into_parts();
        let body = read_in_time(Request::new(body), state).await?.with_share_of_length();
        if takes_key(&parts) && !parts.headers.contains_key(KEY_HEADER) {
            // Made of visible characters, so this cannot fail.
            let key = HeaderValue::try_from(state.host.request_key()).ok();
            parts.headers.extend(key.map(|key| (HeaderName::from_static(KEY_HEADER), key)));
        }
        Ok(Self { parts, body })
    }

    fn to_request(&self) -> Request {
        let mut request =
            Request::from_parts(self.parts.clone(), Body::from(self.body.bytes.clone()));
        request.extensions_mut().insert(IsReceived);
        request
    }

    fn to_peer(&self, caller: &Caller) -> PeerRequest {
        let mut headers = HeaderMap::new();
        for name in PASSED_ON {
            let values = self.parts.headers.get_all(name).iter().cloned();
            headers.extend(values.map(|value| (HeaderName::from_static(name), value)));
        }
        headers.extend(caller_header(caller));
        let path = self.parts.uri.path_and_query().map_or("/", |path| path.as_str());
        PeerRequest {
            method: self.parts.method.clone(),
            path: path.to_owned(),
            headers,
            body: self.body.bytes.clone(),
        }
    }

    /// Returns what follows if another host has not answered.
    fn unanswered(&self, reason: String, was_sent: bool) -> Tried {
        if !was_sent || self.can_be_repeated() {
            let message = format!("{reason}; another host will have its sessions soon");
            let error =
                ApiError::retry_later(StatusCode::SERVICE_UNAVAILABLE, "host_unreachable", message);
            return match was_sent {
                true => Tried::AgainAfterWork(error.into_response()),
                false => Tried::Again(error.into_response()),
            };
        }
        let message = format!("{reason}: look at the session before you send the request again");
        Tried::Answered(
            ApiError::new(StatusCode::BAD_GATEWAY, "answer_lost", message).into_response(),
        )
    }

    /// Returns whether the request, sent twice, does what it does when it is sent once, and gets the same answer.
    fn can_be_repeated(&self) -> bool {
        let Parts { method, uri, headers, .. } = &self.parts;
        method.is_safe()
            || *method == Method::DELETE
            || (takes_key(&self.parts) && headers.contains_key(KEY_HEADER))
            || uri.path().contains("/approvals/")
    }
}

/// Returns whether a request calls a tool.
fn is_call_by_hand(uri: &Uri) -> bool {
    uri.path().ends_with("/call")
}

/// Returns whether a request can have an `Idempotency-Key`.
fn takes_key(request: &Parts) -> bool {
    let path = request.uri.path();
    request.method == Method::POST && (path.ends_with("/runs") || path.ends_with("/steer"))
}

/// A request whose client takes the end of a body for the end of its answer: an answer that is not whole is aborted.
#[derive(Clone, Copy, Debug)]
struct EndsWhole;
