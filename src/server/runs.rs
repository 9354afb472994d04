//! Runs of a session: start (and watch it, wait for it, or return at once), steer, stop, resume. Also its context and
//! its tools of servers.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::StreamExt as _;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::error::ApiError;
use super::events::EventsQuery;
use super::extract::{
    EmptyBody, JsonBody, KeyedBody, PathParameters, PathSession, StrictObject, StrictQuery,
    page_length,
};
use super::state::AppState;
use callsheet_host::runtime::{HostError, RunRequest, StartedRun};
use callsheet_host::telemetry::FeedItem;
use callsheet_machines::session::MessageName;
use callsheet_values::config::{
    ApprovalPolicy, ClientTool, LimitOverrides, OutputRequest, RunOverrides, Temperature,
};
use callsheet_values::record::StopMode;
use callsheet_values::types::{
    Content, Execution, Metadata, RunId, Seq, TRACEPARENT, TRACESTATE, ToolChoice, TraceContext,
    excerpt,
};

/// The end of the error if the report of a run is too large to be sent now.
const RUN_STORED: &str =
    "the run has ended and is stored: GET /v1/sessions/{id} shows its messages";

/// The same for a request with an idempotency key.
const RUN_STORED_WITH_KEY: &str = "the run has ended and is stored: GET /v1/sessions/{id} shows its messages, and the same \
     request with the same Idempotency-Key gets the report";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StartRunRequest {
    #[serde(deserialize_with = "input")]
    input: Content,
    #[serde(default)]
    wait: bool,
    #[serde(default)]
    queue: bool,
    execution: Option<Execution>,
    #[serde(default)]
    limits: StrictObject<LimitOverrides>,
    model: Option<String>,
    tools: Option<Vec<String>>,
    multi_tool_calls: Option<bool>,
    stream: Option<bool>,
    approval: Option<ApprovalPolicy>,
    tool_choice: Option<ToolChoice>,
    system: Option<String>,
    temperature: Option<Temperature>,
    max_output_tokens: Option<NonZeroU32>,
    output: Option<OutputRequest>,
    client_tools: Option<Arc<[ClientTool]>>,
    #[serde(default, deserialize_with = "metadata")]
    metadata: Metadata,
    into: Option<String>,
}

pub(super) async fn start(
    State(state): State<AppState>,
    PathSession(session): PathSession,
    headers: HeaderMap,
    KeyedBody(body, request_key, query): KeyedBody<StartRunRequest, EventsQuery>,
) -> Result<Response, ApiError> {
    let StartRunRequest {
        input,
        wait,
        queue,
        execution,
        limits: StrictObject(limits),
        model,
        tools,
        multi_tool_calls,
        stream,
        approval,
        tool_choice,
        system,
        temperature,
        max_output_tokens,
        output,
        client_tools,
        metadata,
        into,
    } = body;
    let overrides = RunOverrides {
        execution,
        limits,
        model,
        tools,
        multi_tool_calls,
        stream,
        approval,
        tool_choice,
        system,
        instructions: None,
        temperature,
        max_output_tokens,
        output,
        client_tools,
    };
    let trace = trace(&headers);
    let has_key = request_key.is_some();
    let run = session
        .start_run(RunRequest::default().with(|run| {
            run.input = input;
            run.overrides = overrides;
            run.request_key = request_key;
            run.trace = trace;
            run.queue = queue;
            run.metadata = metadata;
            run.into = into;
        }))
        .await
        .map_err(ApiError::of_run_start)?;
    if accepts_events(&headers) {
        let run = run.with_options(query.options());
        if run.events_are_complete {
            return Ok(state.event_stream(run).into_response());
        }
        // The request was sent before, or the session woke again meanwhile: the journal has the first events.
        let events = run.into_all_events().await?;
        return Ok(state.event_stream(events).until_run_end().into_response());
    }
    if wait {
        // A repeated request can be repeated once more, so it may be refused while memory for its report is short.
        if has_key && !run.events_are_complete {
            return repeated_report(&state, run).await;
        }
        // Nothing would read the subscription, and its queue would fill up.
        drop(run.events);
        let report = run.report.await?;
        let stored = if has_key { RUN_STORED_WITH_KEY } else { RUN_STORED };
        return state.answer_limiter.json_of_act(&report, stored).await;
    }
    run.wait_durable().await?;
    let body = json!({"run_id": run.run_id, "seq": run.seq});
    Ok((StatusCode::ACCEPTED, Json(body)).into_response())
}

/// Answers a request that repeats an earlier one with the report of its run, when the run has ended.
async fn repeated_report(state: &AppState, mut run: StartedRun) -> Result<Response, ApiError> {
    // Until the record by which the run was reopened is stored, the journal has its earlier end.
    run.wait_durable().await?;
    loop {
        let guard = state.reads.reports.lock().await;
        // A report can be large, and the client can repeat its request.
        state.answer_limiter.check_large()?;
        if let Some(report) = run.session().stored_report(&run.run_id).await? {
            return state.answer_limiter.json(&report);
        }
        drop(guard);
        loop {
            match run.events.next().await {
                Some(FeedItem::Event(published)) => {
                    let ends_run = published.event.is_last_of_run();
                    if ends_run && published.run == run.run_id {
                        break;
                    }
                }
                Some(FeedItem::Failed(error)) => return Err(HostError::Journal(error).into()),
                // Too many events were unread.
                Some(FeedItem::Lagged) => {
                    run.events = run.session().subscribe().await?;
                    break;
                }
                // The session is deleted, its actor has died, or the host shuts down.
                None => return state.answer_limiter.json(&run.report.await?),
            }
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListRunsQuery {
    after: Option<String>,
    limit: Option<usize>,
}

/// Returns a page of the session's runs, the newest first. Its `next` is the value of `after` for the next page; null
/// on the last page.
pub(super) async fn list(
    State(state): State<AppState>,
    PathSession(session): PathSession,
    StrictQuery(ListRunsQuery { after, limit }): StrictQuery<ListRunsQuery>,
) -> Result<Response, ApiError> {
    let limit = page_length(limit)?;
    let _guard = state.reads.reports.lock().await;
    let runs = session.runs().await?;
    let first = match &after {
        None => 0,
        Some(after) => {
            let position = runs.iter().position(|run| *run.run_id.0 == **after);
            1 + position.ok_or_else(|| {
                ApiError::bad_request("invalid_request", "after: the session has no such run")
            })?
        }
    };
    let page: Vec<_> = runs.iter().skip(first).take(limit).collect();
    let has_more = runs.len() > first + page.len();
    let next = page.last().filter(|_| has_more).map(|run| &run.run_id);
    state.answer_limiter.json(&json!({"runs": page, "next": next}))
}

/// Returns the report of a run that has ended, or the state of one that has not.
pub(super) async fn show(
    State(state): State<AppState>,
    PathSession(session): PathSession,
    parameters: PathParameters,
) -> Result<Response, ApiError> {
    let run = RunId(parameters.get("run_id").unwrap_or_default().into());
    {
        let _guard = state.reads.reports.lock().await;
        state.answer_limiter.check_large()?;
        if let Some(report) = session.stored_report(&run).await? {
            return state.answer_limiter.json(&report);
        }
    }
    let snapshot = session.snapshot().await?;
    if let Some(current) = snapshot.current_run.filter(|current| current.run_id == run) {
        return state.answer_limiter.json(&json!({"run_id": run, "current_run": current}));
    }
    if let Some(queued) = snapshot.queued.into_iter().find(|queued| queued.run_id == run) {
        return state.answer_limiter.json(&json!({"run_id": run, "queued": queued}));
    }
    let message = format!("session {} has no run {}", session.id(), excerpt(&run.0, 64));
    Err(ApiError::not_found("no_such_run", message))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StopRunRequest {
    mode: StopMode,
    /// True if all queued inputs are taken back, too.
    #[serde(default)]
    queue: bool,
}

pub(super) async fn stop(
    PathSession(session): PathSession,
    JsonBody(StopRunRequest { mode, queue }): JsonBody<StopRunRequest>,
) -> Result<Response, ApiError> {
    if queue {
        session.stop_with_queue(mode).await?;
    } else {
        session.stop(mode).await?;
    }
    let body = json!({"id": session.id(), "mode": mode});
    Ok((StatusCode::ACCEPTED, Json(body)).into_response())
}

/// Takes back the input of a queued run.
pub(super) async fn remove_input(
    PathSession(session): PathSession,
    parameters: PathParameters,
) -> Result<Response, ApiError> {
    let run = RunId(parameters.get("run_id").unwrap_or_default().into());
    session.remove_input(&run).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SteerRunRequest {
    #[serde(deserialize_with = "input")]
    input: Content,
}

/// Resumes an interrupted run that waits for a manual resume.
pub(super) async fn resume(
    PathSession(session): PathSession,
    _: EmptyBody,
) -> Result<Response, ApiError> {
    let seq = session.resume().await?;
    let body = json!({"id": session.id(), "seq": seq});
    Ok((StatusCode::ACCEPTED, Json(body)).into_response())
}

/// Reads the tools of servers again, for the runs from now on.
pub(super) async fn refresh_tools(
    PathSession(session): PathSession,
    _: EmptyBody,
) -> Result<Response, ApiError> {
    Ok(Json(session.refresh_tools().await?).into_response())
}

/// Makes the context smaller.
pub(super) async fn compact(
    PathSession(session): PathSession,
    _: EmptyBody,
) -> Result<Response, ApiError> {
    Ok(Json(session.compact().await?).into_response())
}

/// Leaves a message out of later requests.
pub(super) async fn exclude(
    PathSession(session): PathSession,
    JsonBody(message): JsonBody<NamedMessage>,
) -> Result<Response, ApiError> {
    Ok(Json(session.exclude(message.0).await?).into_response())
}

/// Takes back a message that is left out.
pub(super) async fn include(
    PathSession(session): PathSession,
    JsonBody(message): JsonBody<NamedMessage>,
) -> Result<Response, ApiError> {
    Ok(Json(session.include(message.0).await?).into_response())
}

/// The message that a request names, by `seq` or by `tool_id`.
#[derive(Debug, Deserialize)]
#[serde(try_from = "MessageRequest")]
pub(super) struct NamedMessage(MessageName);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MessageRequest {
    seq: Option<Seq>,
    tool_id: Option<String>,
}

impl TryFrom<MessageRequest> for NamedMessage {
    type Error = String;

    fn try_from(request: MessageRequest) -> Result<Self, String> {
        match request {
            MessageRequest { seq: Some(seq), tool_id: None } => Ok(Self(MessageName::Input(seq))),
            MessageRequest { seq: None, tool_id: Some(id) } => {
                let key = id.parse().map_err(|_| "tool_id: must be like t1a1c0")?;
                Ok(Self(MessageName::Result(key)))
            }
            MessageRequest { .. } => {
                Err("name one message: \"seq\" of an input's record, or \"tool_id\" of a result"
                    .into())
            }
        }
    }
}

/// Returns the tokens of each part of the context.
pub(super) async fn context(PathSession(session): PathSession) -> Result<Response, ApiError> {
    Ok(Json(session.context().await?).into_response())
}

pub(super) async fn steer(
    PathSession(session): PathSession,
    KeyedBody(SteerRunRequest { input }, request_key, _): KeyedBody<SteerRunRequest>,
) -> Result<Response, ApiError> {
    let seq = session.steer_by(input, request_key).await?;
    Ok((StatusCode::ACCEPTED, Json(json!({"seq": seq}))).into_response())
}

/// Deserialises the user's input: a text, or a list of texts and images. Only the size of the body
/// limits an image.
fn input<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Content, D::Error> {
    Content::parse(&Value::deserialize(deserializer)?)
        .map_err(|error| D::Error::custom(format_args!("input: {error}")))
}

/// Deserialises the client's pairs of strings. Refuses a repeated name, as in the rest of a body.
pub(super) fn metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Metadata, D::Error> {
    struct PairsVisitor;

    impl<'de> Visitor<'de> for PairsVisitor {
        type Value = BTreeMap<String, String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
            let mut pairs = BTreeMap::new();
            while let Some((name, value)) = fields.next_entry::<String, String>()? {
                if pairs.contains_key(&name) {
                    return Err(A::Error::custom(format_args!("duplicate field {name:?}")));
                }
                pairs.insert(name, value);
            }
            Ok(pairs)
        }
    }

    let invalid = |error: &dyn fmt::Display| D::Error::custom(format_args!("metadata: {error}"));
    let pairs = deserializer.deserialize_map(PairsVisitor).map_err(|error| invalid(&error))?;
    Metadata::new(pairs).map_err(|error| invalid(&error))
}

/// Reads the client's trace context. Ignores it if there is more than one `traceparent`.
fn trace(headers: &HeaderMap) -> Option<TraceContext> {
    let mut parents = headers.get_all(TRACEPARENT).iter();
    let (parent, None) = (parents.next()?, parents.next()) else { return None };
    let states = headers.get_all(TRACESTATE).iter().map(|state| state.to_str().unwrap_or("?"));
    TraceContext::parse(parent.to_str().ok()?, states)
}

/// Returns true if `Accept` names `text/event-stream`. `*/*` does not ask for events.
fn accepts_events(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT);
    values.iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',')).any(
        |media_range| {
            let name = media_range.split(';').next().unwrap_or_default();
            name.trim().eq_ignore_ascii_case("text/event-stream")
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_in_metadata_once() {
        #[derive(Debug, Deserialize)]
        struct Body {
            #[serde(deserialize_with = "metadata")]
            metadata: Metadata,
        }
        let parse = |pairs: &str| serde_json::from_str(&format!("{{\"metadata\": {pairs}}}"));
        let body: Body = parse(r#"{"user": "a", "order": "a"}"#).expect("accept");
        assert_eq!(body.metadata.iter().count(), 2);
        for pairs in [r#"{"user": "a", "user": "b"}"#, r#"{"user": "a", "us\u0065r": "a"}"#] {
            let error = parse(pairs).map(|body: Body| body.metadata).expect_err("refuse");
            assert!(error.to_string().contains("metadata: duplicate field \"user\""), "{error}");
        }
    }

    #[test]
    fn events_are_sent_only_if_accept_names_them() {
        for (value, expected) in [
            ("text/event-stream", true),
            ("application/json, Text/Event-Stream;q=0.9", true),
            ("*/*", false),
            ("application/json", false),
            ("", false),
        ] {
            let headers: HeaderMap =
                [(header::ACCEPT, value.parse().expect("parse"))].into_iter().collect();
            assert_eq!(accepts_events(&headers), expected, "{value}");
        }
    }
}
