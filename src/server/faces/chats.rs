//! The common code of the UI stream and AG-UI: reads requests, finds the session of a chat, starts its runs, and makes
//! values that both protocols have.
//!
//! An error is the object of our own API, `{"error": {"code", "message"}}`, before any part is sent. A conflict is 422
//! here, because clients repeat a request after a 409.

use axum::extract::{FromRequestParts, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::middleware::map_response;
use axum::response::Response;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::super::access::Caller;
use super::super::error::ApiError;
use super::super::extract::{PathParameters, parse};
use super::super::route::Route;
use super::super::state::AppState;
use super::answer::FaceAnswer;
use super::begin::{self, ActedRun, BegunRun, WholeRequest};
use super::records::for_each_record;
use super::retries::RunPlace;
use super::stream::{FacePart, RunEvents, STORED_CHECK_INTERVAL, STORED_CHECKS_MAX};
use super::{named_session, session_of};
use callsheet_host::runtime::{
    HostError, OpenSession, RunRequest, SessionHandle, SessionSnapshot, WatchOptions,
};
use callsheet_host::telemetry::FaceKind;
use callsheet_values::config::{ClientTool, RunOverrides};
use callsheet_values::event::EventId;
use callsheet_values::message::Message;
use callsheet_values::record::Record;
use callsheet_values::types::{Content, ContentPart, Metadata, SessionId, Usage, excerpt};

/// Returns the routes of a face whose answers are 422 instead of 409.
pub(super) fn routes(routes: impl IntoIterator<Item = Route>) -> Vec<Route> {
    let in_form = async |mut response: Response| {
        if response.status() == StatusCode::CONFLICT {
            *response.status_mut() = StatusCode::UNPROCESSABLE_ENTITY;
        }
        response
    };
    let routes = routes.into_iter().map(|(method, path, access, handler)| {
        (method, path, access, handler.route_layer(map_response(in_form)))
    });
    routes.collect()
}

pub(super) fn bad_request(message: impl Into<String>) -> ApiError {
    ApiError::bad_request("invalid_request", message)
}

pub(super) fn unprocessable(code: &'static str, message: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, code, message)
}

/// The agent and the session that the path of a request names, and its caller.
pub(super) struct ChatPath {
    pub(super) state: AppState,
    pub(super) caller: Caller,
    agent: String,
    id: String,
}

impl FromRequestParts<AppState> for ChatPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let parameters = PathParameters::from_request_parts(parts, state).await?;
        let Ok(caller) = Caller::from_request_parts(parts, state).await;
        let parameter = |name| parameters.get(name).unwrap_or_default().to_owned();
        Ok(Self { state: state.clone(), caller, agent: parameter("agent"), id: parameter("id") })
    }
}

impl ChatPath {
    /// Checks that there is such an agent, and that the caller may reach it.
    fn check_agent(&self) -> Result<(), ApiError> {
        self.caller.check_agent(&self.agent)?;
        let agents = self.state.host.agents();
        if agents.contains(&self.agent) {
            return Ok(());
        }
        let (agent, agents) = (excerpt(&self.agent, 64), agents.join(", "));
        let message = format!("there is no agent {agent:?}; the agents are: {agents}");
        Err(ApiError::not_found("unknown_agent", message))
    }

    /// Returns the session that the path names, if there is one.
    ///
    /// # Errors
    /// If the caller must not reach it or the agent, or it is one of another agent.
    pub(super) async fn session(&self) -> Result<Option<SessionHandle>, ApiError> {
        self.check_agent()?;
        self.find(&session_id(&self.id)?).await
    }

    /// Returns the session that the path names.
    ///
    /// # Errors
    /// As [`Self::session`], and if there is none.
    pub(super) async fn existing_session(&self) -> Result<SessionHandle, ApiError> {
        let session = self.session().await?;
        session.ok_or_else(|| ApiError::no_such_session(&self.id))
    }

    async fn find(&self, id: &SessionId) -> Result<Option<SessionHandle>, ApiError> {
        let session = match session_of(&self.state, &self.caller, id).await {
            Ok(session) => session,
            Err(error) if error.is_no_such_session() => return Ok(None),
            Err(error) => return Err(error),
        };
        let (own, agent) = (session.agent().await?, &self.agent);
        if own == *agent {
            return Ok(Some(session));
        }
        let message = format!("the session {id} is one of the agent {own}, not of {agent}");
        Err(unprocessable("other_agent", message))
    }

    /// Returns the session with this id, and whether it was opened, with this history. Another request may open it
    /// meanwhile.
    async fn find_or_open(
        &self,
        id: &SessionId,
        history: Vec<Value>,
    ) -> Result<(SessionHandle, bool), ApiError> {
        if let Some(session) = self.find(id).await? {
            return Ok((session, false));
        }
        let mut open = OpenSession::from(id.as_str()).with_agent(&self.agent);
        open.messages = history;
        match self.state.host.open_session(open).await {
            Ok(session) => return Ok((self.caller.with_author(session), true)),
            Err(HostError::SessionExists) => {}
            Err(error) => return Err(error.into()),
        }
        // The session can be found when the other request has stored it.
        for _ in 0..STORED_CHECKS_MAX {
            if let Some(session) = self.find(id).await? {
                return Ok((session, false));
            }
            tokio::time::sleep(STORED_CHECK_INTERVAL).await;
        }
        Err(HostError::SessionExists.into())
    }

    /// Begins an answer with a run that another request has started.
    pub(super) async fn join(
        &self,
        face: FaceKind,
        session: SessionHandle,
        place: RunPlace,
    ) -> Result<BegunRun, HostError> {
        let events = RunEvents::join(session.clone(), place.clone()).await?;
        let answer = FaceAnswer::new(face, self.state.host.telemetry(), None);
        Ok(BegunRun { session, place, events, answer })
    }
}

/// The body of a request of a chat.
pub(super) trait ChatBody: DeserializeOwned {
    const FACE: FaceKind;

    /// The name of the pair of a run's metadata that holds the id of the client's message.
    const ID_PAIR: &'static str;

    /// Returns the id of the chat.
    fn chat(&self) -> &str;

    /// Returns the id of the last message.
    fn last_id(&self) -> &str;

    /// Returns what the request changes of the agent.
    fn overrides(&self) -> RunOverrides;

    /// Returns what was said before the last message, for a chat whose session does not exist.
    fn history(&self) -> Result<Vec<Value>, ApiError> {
        Ok(Vec::new())
    }

    /// Returns the pairs that the client gives the run.
    fn metadata(&self) -> Metadata {
        Metadata::default()
    }
}

/// A request of a chat.
pub(super) struct ChatRequest<T> {
    pub(super) path: ChatPath,
    /// The id of the chat's session.
    pub(super) id: SessionId,
    pub(super) body: T,
    whole: WholeRequest,
}

impl<T: ChatBody> ChatRequest<T> {
    /// Reads a request.
    pub(super) async fn read(path: ChatPath, request: Request) -> Result<Self, ApiError> {
        path.check_agent()?;
        let whole = WholeRequest::read(&path.state, request).await?;
        let body: T = parse(whole.bytes())?;
        let id = session_id(body.chat())?;
        match named_session(&whole.headers)? {
            Some(named) if named != id => Err(bad_request(format!(
                "the body names the session {id}, X-Callsheet-Session {named}"
            ))),
            Some(_) | None => Ok(Self { path, id, body, whole }),
        }
    }

    /// Returns the chat's session, if there is one.
    pub(super) async fn session(&self) -> Result<Option<SessionHandle>, ApiError> {
        self.path.find(&self.id).await
    }

    /// Returns the error of a request that answers what a session waits for that does not exist.
    pub(super) fn no_session(&self) -> ApiError {
        let message = format!("there is no session {}, so nothing waits for an answer", self.id);
        unprocessable("no_such_session", message)
    }

    /// Starts a run with the client's message, or joins the run that the same request has started before.
    ///
    /// # Errors
    /// If no run can be started: also that of `check`, which does not concern a repeated request.
    pub(super) async fn run(
        &self,
        input: Content,
        check: Result<(), ApiError>,
    ) -> Result<BegunRun, ApiError> {
        let received = self.whole.received(T::FACE, &self.path.caller);
        let run = RunRequest::from(input).with(|run| {
            run.overrides = self.body.overrides();
            // An id that is too long for a pair is left out.
            let pair = Some((T::ID_PAIR, self.body.last_id())).filter(|(_, id)| !id.is_empty());
            run.metadata = Metadata::new(pair).unwrap_or_default().over(&self.body.metadata());
            run.idempotency_key = received.key().map(str::to_owned);
        });
        let start = async {
            check?;
            self.start(run).await
        };
        begin::begin(&self.path.state, received, || None, start).await
    }

    /// Starts a run in the session, and opens the session if there is none. If the run in progress began with the same
    /// message, joins it: the client has repeated its request before this host has seen that its connection is closed.
    async fn start(&self, run: RunRequest) -> Result<ActedRun, ApiError> {
        let (session, is_new) = self.path.find_or_open(&self.id, self.body.history()?).await?;
        let (input, metadata) = (run.input.clone(), run.metadata.clone());
        let error = match session.start_run(run).await {
            Ok(run) => {
                let options = WatchOptions::default().with(|options| options.arguments = true);
                return Ok(run.with_options(options).into());
            }
            Err(error) => error,
        };
        if error != HostError::RunInProgress {
            if is_new && session.snapshot().await.is_ok_and(|snapshot| is_empty(&snapshot)) {
                // The refused request leaves nothing. If this fails, an empty session stays.
                session.delete().await.unwrap_or_default();
            }
            return Err(error.into());
        }
        if let Some(id) = metadata.get(T::ID_PAIR)
            && let Some(place) = same_run(&session, (T::ID_PAIR, id), &input).await?
        {
            let events = RunEvents::join(session.clone(), place.clone()).await?;
            return Ok(ActedRun { session, place, events });
        }
        let message =
            "run in progress: join its stream, answer what it waits for, or stop it first";
        Err(unprocessable("run_in_progress", message))
    }
}

/// Answers a request with `act`, which goes on to its end also if the client closes its connection: else a session could
/// stay that was opened for a run which never starts.
pub(super) async fn answer<T: ChatBody, F>(
    path: ChatPath,
    request: Request,
    act: impl FnOnce(ChatRequest<T>) -> F,
) -> Result<Response, ApiError>
where
    F: Future<Output = Result<Response, ApiError>> + Send + 'static,
{
    let request = ChatRequest::read(path, request).await?;
    #[expect(clippy::disallowed_methods, reason = "the task ends when the run has started")]
    let task = tokio::spawn(act(request));
    task.await.map_err(|_| HostError::ShuttingDown)?
}

/// Returns the id of the session of a chat: the chat's own id, or one that follows from it if no session can have it.
pub(super) fn session_id(chat: &str) -> Result<SessionId, ApiError> {
    if let Ok(id) = SessionId::parse(chat) {
        return Ok(id);
    }
    let digest = Sha256::digest(chat);
    let digits: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    SessionId::parse(&format!("chat_{digits}")).map_err(|error| bad_request(error.to_string()))
}

/// Returns the session's run in progress, or the last one if that has ended meanwhile, if it began with the message with
/// this id. `name`: that of the pair with the id.
async fn same_run(
    session: &SessionHandle,
    (name, id): (&str, &str),
    input: &Content,
) -> Result<Option<RunPlace>, HostError> {
    let snapshot = session.snapshot().await?;
    if let Some(run) = &snapshot.current_run {
        let is_input = snapshot
            .history
            .get(run.first_message)
            .is_some_and(|first| matches!(&**first, Message::User { content } if content == input));
        let is_same = run.metadata.get(name) == Some(id) && is_input;
        return Ok(current_place(&snapshot).filter(|_| is_same));
    }
    // The records of the last run may not be durable yet.
    for _ in 0..STORED_CHECKS_MAX {
        let mut place = None;
        for_each_record(session, |entry| {
            if let Record::RunStarted { run_id: run, input: first, metadata, .. } = entry.record {
                let is_same = metadata.get(name) == Some(id) && first == *input;
                let session = session.id().clone();
                place = is_same.then_some(RunPlace { session, run, seq: entry.seq });
            }
        })
        .await?;
        if place.is_some() {
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

/// Returns the place of the run in progress.
pub(super) fn current_place(snapshot: &SessionSnapshot) -> Option<RunPlace> {
    let run = snapshot.current_run.as_ref()?;
    Some(RunPlace { session: snapshot.id.clone(), run: run.run_id.clone(), seq: run.seq })
}

/// Reads the parts of a user's message. `path`: that of the list of parts in the body. `kinds`: what a part may be.
pub(super) fn read_parts<T: DeserializeOwned>(
    parts: &[Value],
    path: &str,
    kinds: &str,
    read: impl Fn(T) -> Result<ContentPart, String>,
) -> Result<Content, ApiError> {
    let parts = parts.iter().enumerate().map(|(at, value)| {
        let part = T::deserialize(value).map_err(|error| format!("must be {kinds}: {error}"));
        part.and_then(&read).map_err(|reason| bad_request(format!("{path}[{at}]: {reason}")))
    });
    Ok(Content::from(parts.collect::<Result<Vec<_>, _>>()?))
}

/// Returns a tool that the client runs. Without a schema it has any parameters.
pub(super) fn client_tool(name: &str, description: &str, schema: Option<&Value>) -> ClientTool {
    ClientTool::new(name, description, schema.cloned().unwrap_or(json!({"type": "object"})))
}

/// Returns a part of an answer. `id`: that of the event, if the protocol has one.
pub(super) fn part(id: Option<EventId>, data: &Value) -> FacePart {
    FacePart { position: None, id, name: None, data: data.to_string() }
}

/// Returns the metadata that names a run.
pub(super) fn run_names(place: &RunPlace) -> Value {
    json!({"session_id": place.session, "run_id": place.run})
}

/// Returns the id of a message that steers a run, from that of its event.
pub(super) fn steer_id(event: Option<EventId>) -> String {
    format!("steer_{}", event.unwrap_or_default().seq)
}

/// Returns the tokens of a run.
pub(super) fn usage(usage: Usage) -> Value {
    json!({
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "cachedInputTokens": usage.cached_tokens,
        "reasoningTokens": usage.reasoning_tokens,
    })
}
