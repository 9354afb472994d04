//! The face OpenAI Chat Completions: each agent is a model, and the session is recognised by the history that clients
//! send with each request, unless they name it.

mod answer;
mod fold;
mod messages;
mod request;
mod results;
mod start;

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::response::Response;
use axum::routing::{get, post};
use serde_json::{Value, json};

use super::super::access::Caller;
use super::super::answer_limiter::json_response;
use super::super::extract::{NoQuery, PathParameters};
use super::super::route::{READ, RUN, Route};
use super::super::state::{ApiState, AppState};
use super::answer::FaceAnswer;
use super::begin::{self, BegunRun, ReceivedRequest, WholeRequest};
use super::openai_error::OpenAiError;
use super::retries::RunPlace;
use super::stream::{self, DONE, FaceStreamSettings, Fold as _, RunEvents};
use super::{AskedAgent, DecisionAddress, with_names};
use answer::{AnswerContext, NotedFold, fold_to_end};
use callsheet_host::journal::unix_ms;
use callsheet_host::runtime::{HistoryPoint, HostError, SessionHandle};
use callsheet_host::telemetry::FaceKind;
use callsheet_values::config::UnprovenText;
use callsheet_values::types::{RunId, Seq, SessionId};
use fold::{AnswerSettings, ChatFold};
use messages::ChatInput;
use request::CompletionRequest;
use start::{CompletionStart, NotStarted, SessionTarget, WaitingRun, waiting_tool};

/// Returns the routes of the face.
pub(super) fn routes() -> Vec<Route> {
    vec![
        ("GET", "/v1/models", READ, get(models)),
        ("GET", "/v1/models/{model}", READ, get(model)),
        ("POST", "/v1/chat/completions", RUN, post(create)),
    ]
}

async fn models(State(state): State<AppState>, caller: Caller, _: NoQuery) -> Json<Value> {
    let agents = reached_agents(&state, &caller);
    let models: Vec<Value> = agents.iter().map(|agent| model_object(agent)).collect();
    Json(json!({"object": "list", "data": models}))
}

async fn model(
    State(state): State<AppState>,
    caller: Caller,
    parameters: PathParameters,
    _: NoQuery,
) -> Result<Json<Value>, OpenAiError> {
    let named = parameters.get("model").unwrap_or_default();
    let agents = reached_agents(&state, &caller);
    let found = AskedAgent::find(&state, named, None);
    match found.filter(|asked| agents.contains(&asked.agent)) {
        Some(_) => Ok(Json(model_object(named))),
        None => Err(OpenAiError::no_such_model(named, &agents)),
    }
}

fn reached_agents(state: &ApiState, caller: &Caller) -> Vec<String> {
    state.host.agents().into_iter().filter(|agent| caller.reaches(agent)).collect()
}

fn model_object(name: &str) -> Value {
    json!({"id": name, "object": "model", "created": 0, "owned_by": "callsheet"})
}

async fn create(
    State(state): State<AppState>,
    caller: Caller,
    DecisionAddress(approve_at): DecisionAddress,
    request: Request,
) -> Result<Response, OpenAiError> {
    let whole = WholeRequest::read(&state, request).await?;
    let received = whole.received(FaceKind::Chat, &caller);
    let request = CompletionRequest::parse(whole.bytes())?;
    let agent = asked_agent(&state, &caller, &request)?;
    let asked = CompletionStart {
        state: &state,
        caller: &caller,
        received,
        request: &request,
        agent: &agent,
    };
    let target = asked.target().await?;
    let point = match &target {
        SessionTarget::Known(_, point) => point.clone(),
        SessionTarget::New(_) | SessionTarget::Fork(_) => None,
    };
    let mut ignored = request.ignored.clone();
    let of_start = target.clone();
    let start = Box::pin(asked.start(of_start, &mut ignored));
    let begun = begin::begin(&state, received, || asked.continued(&target), start).await;
    let settings = |session: &SessionHandle, place: &RunPlace, rest: String| AnswerSettings {
        id: format!("chatcmpl-{}-{}", place.run.0, place.seq),
        model: request.model.clone(),
        session: session.id().clone(),
        client_tools: client_tools(&request),
        is_typed: request.overrides.output.is_some(),
        // Of a plain answer nothing was sent yet.
        holds_text: !request.streamed
            || state.options.faces.openai.unproven_text == UnprovenText::Hold,
        streamed: request.streamed,
        include_usage: request.include_usage,
        approve_at: format!("{approve_at}{}", session.id()),
        rest,
        waiting_tool: None,
    };
    let context = |session: SessionHandle, place: RunPlace, rest: String| AnswerContext {
        settings: settings(&session, &place, rest),
        state: state.clone(),
        history: asked.history().with_input(&request.messages.input),
        session,
        place,
    };
    let (session, response) = match begun {
        Ok(BegunRun { session, place, events, answer }) => {
            // The run has begun: without the rest of the one before, its answer is still whole.
            let rest = unseen_text(&session, point.as_ref(), &place.run, &settings).await;
            let rest = rest.unwrap_or_default();
            let mut context = context(session.clone(), place, rest);
            if let ChatInput::Results(..) = request.messages.input {
                let snapshot = session.snapshot().await.ok();
                context.settings.waiting_tool = snapshot.as_ref().and_then(waiting_tool);
            }
            let fold = NotedFold::new(context);
            (session, respond(&state, &request, events, fold, answer).await)
        }
        Err(NotStarted::Waits(WaitingRun { session, run, seq, tool })) => {
            let place = RunPlace { session: session.id().clone(), run, seq };
            let context = context(session.clone(), place, String::new());
            (session, respond_with_notice(&request, context, &tool).await?)
        }
        Err(NotStarted::Refused(error)) => return Err(error),
    };
    Ok(with_names(response, session.id(), &ignored))
}

/// Returns the session that a request goes on with because of its history.
pub(super) async fn session_of(
    state: &AppState,
    caller: &Caller,
    parts: &Parts,
    body: &[u8],
) -> Option<SessionId> {
    let request = CompletionRequest::parse(body).ok()?;
    let agent = asked_agent(state, caller, &request).ok()?;
    let (headers, path) = (&parts.headers, parts.uri.path());
    let received = ReceivedRequest { face: FaceKind::Chat, caller, headers, path, body };
    let asked = CompletionStart { state, caller, received, request: &request, agent: &agent };
    match asked.target().await.ok()? {
        SessionTarget::Known(session, _) => Some(session.id().clone()),
        // Any host can open a session, and fork one.
        SessionTarget::New(_) | SessionTarget::Fork(_) => None,
    }
}

fn asked_agent(
    state: &ApiState,
    caller: &Caller,
    request: &CompletionRequest,
) -> Result<AskedAgent, OpenAiError> {
    let default = state.options.faces.openai.default_agent.as_deref();
    let asked = AskedAgent::find(state, &request.model, default);
    let reached = || reached_agents(state, caller);
    let asked = asked.ok_or_else(|| OpenAiError::no_such_model(&request.model, &reached()))?;
    caller.check_agent(&asked.agent)?;
    Ok(asked)
}

fn client_tools(request: &CompletionRequest) -> std::collections::BTreeSet<String> {
    let tools = request.overrides.client_tools.iter().flat_map(|tools| tools.iter());
    tools.map(|tool| tool.name.clone()).collect()
}

/// Returns the rest of the run that waited for a person when the client was answered last, if another run follows it.
async fn unseen_text(
    session: &SessionHandle,
    point: Option<&HistoryPoint>,
    run: &RunId,
    settings: &impl Fn(&SessionHandle, &RunPlace, String) -> AnswerSettings,
) -> Result<String, HostError> {
    let Some(point) = point.filter(|point| point.session == *session.id()) else {
        return Ok(String::new());
    };
    let Some(waited) = point.waiting_run.clone().filter(|waited| waited != run) else {
        return Ok(String::new());
    };
    let place = RunPlace { session: session.id().clone(), run: waited, seq: Seq(point.seq.0 + 1) };
    let fold = ChatFold::new(settings(session, &place, String::new()));
    let events = RunEvents::join(session.clone(), place).await?;
    Ok(fold_to_end(events, fold).await?.into_text())
}

async fn respond(
    state: &ApiState,
    request: &CompletionRequest,
    events: RunEvents,
    fold: NotedFold,
    answer: FaceAnswer,
) -> Response {
    if !request.streamed {
        return stream::plain(whole(events, fold), state.options.keep_alive, answer).await;
    }
    let settings = FaceStreamSettings::new(state, None, DONE);
    stream::stream(events, fold, settings, answer.in_parts())
}

async fn whole(events: RunEvents, fold: NotedFold) -> Result<Response, OpenAiError> {
    let mut fold = fold_to_end(events, fold).await?;
    if let Some(work) = fold.before_end() {
        work.await;
    }
    Ok(json_response(Body::from(fold.fold().completion()?.to_string())))
}

/// Answers that the session's run waits for a person.
async fn respond_with_notice(
    request: &CompletionRequest,
    context: AnswerContext,
    tool: &str,
) -> Result<Response, OpenAiError> {
    let (mut fold, mut parts) = (ChatFold::new(context.settings.clone()), Vec::new());
    fold.push_notice(tool, context.place.seq, unix_ms(), &mut parts);
    if let Some(note) = context.note(&fold) {
        note.await;
    }
    match request.streamed {
        true => Ok(stream::parts(&parts, DONE)),
        false => Ok(json_response(Body::from(fold.completion()?.to_string()))),
    }
}
