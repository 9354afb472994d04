//! The face OpenAI Responses, with state: a session is a conversation, and a run is a response. A run that waits for its
//! client has several responses, one after the other.
//!
//! A request goes on from the response or the conversation that it names, or else from the last item of its input that
//! this host has sent: clients that send their whole history drive the same session. The specification is that of Open
//! Responses (2026-04-24), but for the items `mcp_*`, which it does not have and clients of OpenAI take.

mod conversations;
mod create;
mod fold;
mod ids;
mod object;
mod request;
mod socket;
mod stored;
mod unstored;

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use serde_json::json;

use super::super::access::Caller;
use super::super::extract::{PathParameters, StrictQuery};
use super::super::route::{READ, RUN, Route};
use super::super::state::{ApiState, AppState};
use super::answer::FaceAnswer;
use super::begin::WholeRequest;
use super::openai_error::{OpenAiError, wrong};
use super::openai_parameters::Parameters;
use super::position::PartPosition;
use super::stream::{self, DONE, FaceStreamSettings, Fold as _, RunEvents};
use super::{DecisionAddress, with_names};
use callsheet_host::runtime::HostError;
use callsheet_host::telemetry::FaceKind;
use callsheet_values::record::StopMode;
use callsheet_values::types::Seq;
use conversations::ItemsQuery;
use create::{BegunResponse, Plan};
use fold::{FoldOptions, ResponseFold, ResponseStatus};
use ids::ResponseId;
pub(super) use request::session_of_items;
use request::{CreateRequest, no_such_response};
use stored::{StoredRun, runs_of};
pub(super) use unstored::delete_old;

/// Returns the routes of the face.
pub(super) fn routes() -> Vec<Route> {
    vec![
        ("POST", "/v1/responses", RUN, post(create)),
        ("GET", "/v1/responses", RUN, get(socket::upgrade)),
        ("POST", "/v1/responses/compact", RUN, post(conversations::compact)),
        ("GET", "/v1/responses/{id}", READ, get(retrieve)),
        ("DELETE", "/v1/responses/{id}", RUN, axum::routing::delete(delete)),
        ("POST", "/v1/responses/{id}/cancel", RUN, post(cancel)),
        ("GET", "/v1/responses/{id}/input_items", READ, get(input_items)),
        ("POST", "/v1/conversations", RUN, post(conversations::open)),
        ("GET", "/v1/conversations/{id}", READ, get(conversations::retrieve)),
        ("DELETE", "/v1/conversations/{id}", RUN, axum::routing::delete(conversations::delete)),
        ("GET", "/v1/conversations/{id}/items", READ, get(conversations::items)),
    ]
}

async fn create(
    State(state): State<AppState>,
    caller: Caller,
    DecisionAddress(console): DecisionAddress,
    request: Request,
) -> Result<Response, OpenAiError> {
    let whole = WholeRequest::read(&state, request).await?;
    let received = whole.received(FaceKind::Responses, &caller);
    unstored::delete_old(&state);
    let mut request = CreateRequest::read(Parameters::parse(whole.bytes())?)?;
    let asked = create::agent_of(&state, &caller, &request)?;
    let plan = create::plan(&state, received, &mut request, &asked, &console).await?;
    if let Plan::Repeat(fold) = plan {
        return Ok(repeat(&state, &request, *fold));
    }
    let begun = create::carry_out(&state, received, &request, &asked, plan, &console).await?;
    Ok(answer(&state, &request, begun).await)
}

/// Answers with the response of a run that has begun.
async fn answer(state: &ApiState, request: &CreateRequest, begun: BegunResponse) -> Response {
    let BegunResponse { begun, fold, ignored } = begun;
    let (events, answer) = (begun.events, begun.answer);
    let (session, place) = (begun.session, begun.place);
    let is_unstored = fold.settings.pair.unstored && unstored::is_unstored(session.id());
    let fold = ResponseFold::new(fold);
    let mut response = match (request.stream, request.pair.background) {
        (true, _) => stream::stream(events, fold, settings(state, None), answer.in_parts()),
        (false, is_background) => {
            let work = whole(events, fold, is_background);
            stream::plain(work, state.options.keep_alive, answer).await
        }
    };
    let id = session.id().clone();
    if is_unstored {
        response = unstored::delete_after(state, session, place, response);
    }
    let ignored: Vec<&str> = request.ignored.iter().chain(&ignored).copied().collect();
    with_names(response, &id, &ignored)
}

fn settings(state: &ApiState, after: Option<PartPosition>) -> FaceStreamSettings {
    FaceStreamSettings::new(state, after, DONE)
}

/// Returns the object of a response when it has ended, or when it has begun.
async fn whole(
    mut events: RunEvents,
    mut fold: ResponseFold,
    is_background: bool,
) -> Result<Response, OpenAiError> {
    let mut parts = Vec::new();
    while !(fold.has_ended() || is_background && fold.response().is_some()) {
        match events.next().await? {
            Some(event) => fold.push(&event, &mut parts),
            // It was interrupted, and goes on when the session is read again.
            None => return Err(HostError::ShuttingDown.into()),
        }
        parts.clear();
    }
    Ok(Json(fold.object().unwrap_or_default()).into_response())
}

/// Answers a message that does not decide what the run waits for: the text says where a person can.
fn repeat(state: &ApiState, request: &CreateRequest, fold: ResponseFold) -> Response {
    let mut parts = Vec::new();
    let object = fold.repeated(&mut parts);
    let answer = FaceAnswer::new(FaceKind::Responses, state.host.telemetry(), None);
    let response = match request.stream {
        false => Json(object).into_response(),
        true => stream::parts(&parts, "data: [DONE]\n\n"),
    };
    answer.end_delivered();
    response
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RetrieveQuery {
    #[serde(default)]
    stream: bool,
    starting_after: Option<u64>,
    /// Without effect: nothing is obfuscated.
    #[serde(rename = "include_obfuscation")]
    _include_obfuscation: Option<bool>,
    /// Without effect, as in requests.
    #[serde(rename = "include", alias = "include[]")]
    _include: Option<String>,
}

async fn retrieve(
    State(state): State<AppState>,
    caller: Caller,
    parameters: PathParameters,
    DecisionAddress(console): DecisionAddress,
    StrictQuery(query): StrictQuery<RetrieveQuery>,
) -> Result<Response, OpenAiError> {
    let RetrieveQuery { stream, starting_after, .. } = query;
    let after = match starting_after {
        None => None,
        Some(_) if !stream => {
            return Err(wrong("starting_after", "needs stream=true"));
        }
        Some(number) => {
            let beyond = || wrong("starting_after", "is beyond the end of the response");
            Some(PartPosition::from_number(number).ok_or_else(beyond)?)
        }
    };
    let (id, run) = named_response(&state, &caller, &parameters).await?;
    let options = fold_options(&state, id.clone(), &run, after, &console);
    let stored = run.fold(options.clone()).await?;
    let stored = stored.ok_or_else(|| no_such_response("id", &id.to_string()))?;
    if !stream {
        return Ok(Json(stored.object().unwrap_or_default()).into_response());
    }
    if after > stored.last_position() && stored.has_ended() {
        return Err(wrong("starting_after", "is beyond the end of the response"));
    }
    state.host.telemetry().metrics().faces().joined(FaceKind::Responses);
    let events = RunEvents::join(run.session, run.place).await?;
    let answer = FaceAnswer::new(FaceKind::Responses, state.host.telemetry(), None).in_parts();
    let fold = ResponseFold::new(options);
    let response = stream::stream(events, fold, settings(&state, after), answer);
    Ok(with_names(response, &id.session, &[]))
}

/// Stops the run of a response, and returns the response when it has ended.
async fn cancel(
    State(state): State<AppState>,
    caller: Caller,
    parameters: PathParameters,
    DecisionAddress(console): DecisionAddress,
) -> Result<Response, OpenAiError> {
    let (id, run) = named_response(&state, &caller, &parameters).await?;
    let options = fold_options(&state, id.clone(), &run, None, &console);
    let stored = run.fold(options.clone()).await?;
    let stored = stored.ok_or_else(|| no_such_response("id", &id.to_string()))?;
    let status = stored.response().map(|response| response.status);
    let current = run.session.snapshot().await?.current_run;
    let is_current = current.is_some_and(|current| current.run_id == run.place.run);
    match status {
        Some(ResponseStatus::Cancelled) => {
            return Ok(Json(stored.object().unwrap_or_default()).into_response());
        }
        Some(ResponseStatus::InProgress) => {}
        // Its run waits for the client.
        Some(ResponseStatus::Completed) if is_current && stored.run_end().is_none() => {}
        Some(_) | None => {
            let message = "the response has ended, and cannot be cancelled";
            return Err(OpenAiError::new(StatusCode::BAD_REQUEST, "response_ended", message));
        }
    }
    if is_current {
        run.session.stop(StopMode::Now).await?;
    }
    let events = RunEvents::join(run.session, run.place).await?;
    let answer = FaceAnswer::new(FaceKind::Responses, state.host.telemetry(), None);
    let work = whole(events, ResponseFold::new(options), false);
    Ok(stream::plain(work, state.options.keep_alive, answer).await)
}

/// Deletes a response, which is the last one of its session, with the session.
async fn delete(
    State(state): State<AppState>,
    caller: Caller,
    parameters: PathParameters,
) -> Result<Response, OpenAiError> {
    let (id, run) = named_response(&state, &caller, &parameters).await?;
    if !run.is_last(id.run).await? {
        let conversation = ids::conversation_id(&id.session);
        let message = format!(
            "later responses go on from it; DELETE /v1/conversations/{conversation} deletes all"
        );
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        return Err(OpenAiError::new(status, "has_later_responses", message));
    }
    run.session.close().await?;
    let body = json!({"id": id.to_string(), "object": "response", "deleted": true});
    Ok(Json(body).into_response())
}

async fn input_items(
    State(state): State<AppState>,
    caller: Caller,
    parameters: PathParameters,
    DecisionAddress(console): DecisionAddress,
    StrictQuery(query): StrictQuery<ItemsQuery>,
) -> Result<Response, OpenAiError> {
    let (id, run) = named_response(&state, &caller, &parameters).await?;
    let options = fold_options(&state, id.clone(), &run, None, &console);
    let response = run.fold(options).await?;
    let response = response.ok_or_else(|| no_such_response("id", &id.to_string()))?;
    let mut items = Vec::new();
    if id.begins == id.run && runs_of(&run.session).await?.first() == Some(&id.run) {
        items = conversations::opening_items(&run.session).await?;
    }
    let is_of_response =
        |seq: &Seq| *seq >= id.begins && (!response.has_ended() || *seq <= response.ended_at());
    let inputs = run.inputs().await?.into_iter();
    items.extend(inputs.filter(|(seq, _)| is_of_response(seq)).map(|(_, item)| item));
    Ok(Json(query.page(items)?).into_response())
}

async fn named_response(
    state: &ApiState,
    caller: &Caller,
    parameters: &PathParameters,
) -> Result<(ResponseId, StoredRun), OpenAiError> {
    let text = parameters.get("id").unwrap_or_default();
    let id = ResponseId::parse(text).ok_or_else(|| no_such_response("id", text))?;
    let run = StoredRun::of_response(state, caller, &id, "id").await?;
    Ok((id, run))
}

fn fold_options(
    state: &ApiState,
    id: ResponseId,
    run: &StoredRun,
    after: Option<PartPosition>,
    console: &str,
) -> FoldOptions {
    let openai = &state.options.faces.openai;
    FoldOptions {
        id,
        after,
        show_tools: openai.show_tools,
        unproven_text: openai.unproven_text,
        console: console.to_owned(),
        settings: Arc::clone(&run.settings),
    }
}
