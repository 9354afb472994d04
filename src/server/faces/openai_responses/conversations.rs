//! `/v1/conversations`: a conversation is a session.

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::super::access::Caller;
use super::super::super::extract::{PathParameters, StrictQuery};
use super::super::super::state::{ApiState, AppState};
use super::super::DecisionAddress;
use super::super::begin::WholeRequest;
use super::super::openai_error::{OpenAiError, wrong};
use super::super::openai_parameters::Parameters;
use super::super::session_of;
use super::super::stream::Fold as _;
use super::ids::{ItemId, ResponseId, conversation_id, session_of_conversation};
use super::object::{FacePair, text_content};
use super::request::{self, history, metadata, no_such_conversation};
use super::stored::{StoredRun, runs_of};
use super::{FaceKind, fold_options};
use callsheet_host::runtime::{HostError, OpenSession, SessionHandle};
use callsheet_values::record::Record;
use callsheet_values::types::{Metadata, Seq, Usage};

/// The pair of metadata that names the agent of a new conversation.
const AGENT_PAIR: &str = "agent";

/// In the ids of the items with which a session was opened: its first record.
const OPENING: Seq = Seq(1);

/// The number of items of a page, and its maximum.
const PAGE_ITEMS: usize = 20;
const PAGE_ITEMS_MAX: usize = 100;

/// Opens a conversation. Its agent is the one that `metadata.agent` names, or the default one.
pub(super) async fn open(
    State(state): State<AppState>,
    caller: Caller,
    request: Request,
) -> Result<Response, OpenAiError> {
    let mut body = match request.headers().contains_key("content-type") {
        false => Parameters::default(),
        true => Parameters::parse(WholeRequest::read(&state, request).await?.bytes())?,
    };
    let metadata = metadata(&mut body, &FacePair::default())?;
    let mut instructions = Vec::new();
    let items = body.list("items")?.map(Value::Array);
    let items = request::items(items.as_ref(), &mut instructions)?;
    body.finish()?;
    if !instructions.is_empty() {
        return Err(wrong("items", "a conversation has no system message: send instructions"));
    }
    let named = metadata.get(AGENT_PAIR).map(str::to_owned);
    let agent = named.or_else(|| state.options.faces.openai.default_agent.clone());
    let agent = state.host.agent_name(agent)?;
    caller.check_agent(&agent)?;
    let messages = history(&items)?;
    let open = OpenSession::default().with(|open| {
        open.agent = Some(agent.to_string());
        open.metadata = metadata;
        open.messages = messages;
    });
    let session = state.host.open_session(open).await?;
    Ok(Json(object(&session).await?).into_response())
}

async fn object(session: &SessionHandle) -> Result<Value, OpenAiError> {
    let (first, _) = session.record_page(Seq(0), 1).await?;
    let first = first.into_iter().next();
    let created = first.as_ref().map_or(0, |entry| entry.time / 1000);
    let metadata = match first.map(|entry| entry.record) {
        Some(Record::SessionOpened { metadata, .. }) => metadata,
        Some(_) | None => Metadata::default(),
    };
    let id = conversation_id(session.id());
    let body =
        json!({"id": id, "object": "conversation", "created_at": created, "metadata": metadata});
    Ok(body)
}

async fn named(
    state: &ApiState,
    caller: &Caller,
    parameters: &PathParameters,
) -> Result<SessionHandle, OpenAiError> {
    let text = parameters.get("id").unwrap_or_default();
    let id = session_of_conversation(text).ok_or_else(|| no_such_conversation(text))?;
    session_of(state, caller, &id).await.map_err(|error| {
        let error = OpenAiError::from(error);
        if error.is_not_found() { no_such_conversation(text) } else { error }
    })
}

pub(super) async fn retrieve(
    State(state): State<AppState>,
    caller: Caller,
    parameters: PathParameters,
) -> Result<Response, OpenAiError> {
    let session = named(&state, &caller, &parameters).await?;
    Ok(Json(object(&session).await?).into_response())
}

pub(super) async fn delete(
    State(state): State<AppState>,
    caller: Caller,
    parameters: PathParameters,
) -> Result<Response, OpenAiError> {
    let session = named(&state, &caller, &parameters).await?;
    session.close().await?;
    let id = conversation_id(session.id());
    let body = json!({"id": id, "object": "conversation.deleted", "deleted": true});
    Ok(Json(body).into_response())
}

/// A page of a list of items.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ItemsQuery {
    after: Option<String>,
    limit: Option<usize>,
    order: Option<String>,
    /// Without effect, as in requests.
    #[serde(rename = "include", alias = "include[]")]
    _include: Option<String>,
}

impl ItemsQuery {
    fn limit(&self) -> Result<usize, OpenAiError> {
        let limit = self.limit.unwrap_or(PAGE_ITEMS);
        match (1..=PAGE_ITEMS_MAX).contains(&limit) {
            true => Ok(limit),
            false => Err(wrong("limit", "must be a number from 1 to 100")),
        }
    }

    /// Returns a page of items, which are the oldest first: the newest first unless `order=asc`.
    pub(super) fn page(&self, mut items: Vec<Value>) -> Result<Value, OpenAiError> {
        match self.order.as_deref() {
            None | Some("desc") => items.reverse(),
            Some("asc") => {}
            Some(_) => return Err(wrong("order", "must be asc or desc")),
        }
        let first = match &self.after {
            None => 0,
            Some(after) => {
                let at = items.iter().position(|item| item["id"] == **after);
                1 + at.ok_or_else(|| wrong("after", "the list has no such item"))?
            }
        };
        let page: Vec<&Value> = items.iter().skip(first).take(self.limit()?).collect();
        let has_more = items.len() > first + page.len();
        let [first, last] = [page.first(), page.last()].map(|item| item.map(|item| &item["id"]));
        let body = json!({
            "object": "list", "data": page, "first_id": first, "last_id": last, "has_more": has_more,
        });
        Ok(body)
    }
}

/// Returns a page of the inputs and the outputs of all responses, the newest first unless `order=asc`.
pub(super) async fn items(
    State(state): State<AppState>,
    caller: Caller,
    parameters: PathParameters,
    DecisionAddress(console): DecisionAddress,
    StrictQuery(query): StrictQuery<ItemsQuery>,
) -> Result<Response, OpenAiError> {
    let session = named(&state, &caller, &parameters).await?;
    query.limit()?;
    let _guard = state.reads.reports.lock().await;
    let mut items = opening_items(&session).await?;
    for run in runs_of(&session).await? {
        let Some(run) = StoredRun::find(&state, &caller, session.id(), run).await? else {
            continue;
        };
        let mut inputs = run.inputs().await?.into_iter().peekable();
        let (session, begins) = (run.place.session.clone(), run.place.seq);
        let id = ResponseId { session, run: begins, begins };
        for fold in run.responses(fold_options(&state, id, &run, None, &console)).await? {
            let is_of_response =
                |(seq, _): &(Seq, Value)| !fold.has_ended() || *seq <= fold.ended_at();
            while let Some((_, item)) = inputs.next_if(is_of_response) {
                items.push(item);
            }
            items.extend(fold.response().into_iter().flat_map(|it| it.output()).cloned());
        }
        items.extend(inputs.map(|(_, item)| item));
    }
    state.answer_limiter.json(&query.page(items)?).map_err(OpenAiError::from)
}

/// Returns the messages with which a session was opened, as items.
pub(super) async fn opening_items(session: &SessionHandle) -> Result<Vec<Value>, OpenAiError> {
    let (first, _) = session.record_page(Seq(0), 1).await?;
    let Some(Record::SessionOpened { messages, .. }) = first.into_iter().next().map(|it| it.record)
    else {
        return Ok(Vec::new());
    };
    let mut items = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let id = |kind: &str, part: usize| {
            let (of, session) = (format!("{at}.{part}"), session.id().clone());
            ItemId { kind, run: OPENING, of: &of, session }.to_string()
        };
        let role = message["role"].as_str().unwrap_or_default();
        let content = |kind: &str| -> Vec<Value> {
            let of_text = |text: &Value| match kind {
                "output_text" => text_content(text.as_str().unwrap_or_default()),
                _ => json!({"type": kind, "text": text}),
            };
            let part = |part: &Value| match part["image_url"].get("url") {
                Some(url) => json!({"type": "input_image", "image_url": url, "detail": "auto"}),
                None => of_text(&part["text"]),
            };
            let content = &message["content"];
            match content.as_array() {
                Some(parts) => parts.iter().map(part).collect(),
                None if content.is_null() => Vec::new(),
                None => vec![of_text(content)],
            }
        };
        if role == "tool" {
            items.push(json!({
                "type": "function_call_output", "id": id("fco", 0), "status": "completed",
                "call_id": message["tool_call_id"], "output": message["content"],
            }));
            continue;
        }
        let parts = content(if role == "user" { "input_text" } else { "output_text" });
        if !parts.is_empty() {
            items.push(json!({
                "type": "message", "id": id("msg", 0), "status": "completed", "role": role,
                "content": parts,
            }));
        }
        for (part, call) in message["tool_calls"].as_array().into_iter().flatten().enumerate() {
            items.push(json!({
                "type": "function_call", "id": id("fc", part), "status": "completed",
                "call_id": call["id"], "name": call["function"]["name"],
                "arguments": call["function"]["arguments"],
            }));
        }
    }
    Ok(items)
}

/// Makes the context of a conversation smaller, and returns an item that stands for it in the input of later requests.
pub(super) async fn compact(
    State(state): State<AppState>,
    caller: Caller,
    DecisionAddress(console): DecisionAddress,
    request: Request,
) -> Result<Response, OpenAiError> {
    let whole = WholeRequest::read(&state, request).await?;
    let parameters = Parameters::parse(whole.bytes())?;
    let known = ["model", "input", "previous_response_id", "instructions", "prompt_cache_key"];
    parameters.check_names(&known)?;
    let mut request = request::CreateRequest::read(parameters)?;
    if request.model.is_empty() {
        return Err(wrong("model", "is required"));
    }
    let received = whole.received(FaceKind::Responses, &caller);
    let asked = super::create::agent_of(&state, &caller, &request)?;
    let plan = super::create::plan(&state, received, &mut request, &asked, &console).await?;
    let session = super::create::copy(&state, &caller, &request, &asked, plan).await?;
    let before = session.snapshot().await?.usage;
    match session.compact().await {
        // The whole history is short.
        Ok(_) | Err(HostError::NothingToCompact) => {}
        Err(error) => {
            drop(session.close().await);
            return Err(error.into());
        }
    }
    let after = session.snapshot().await?.usage;
    let usage = Usage {
        input_tokens: after.input_tokens.saturating_sub(before.input_tokens),
        output_tokens: after.output_tokens.saturating_sub(before.output_tokens),
        cached_tokens: after.cached_tokens.saturating_sub(before.cached_tokens),
        reasoning_tokens: after.reasoning_tokens.saturating_sub(before.reasoning_tokens),
    };
    let conversation = object(&session).await?;
    let content = conversation_id(session.id());
    let id = format!("cmp_{}", session.id());
    let item = json!({"type": "compaction", "id": id, "encrypted_content": content});
    let body = json!({
        "id": format!("resp_{content}"),
        "object": "response.compaction",
        "output": [item],
        "created_at": conversation["created_at"],
        "usage": super::object::usage(usage),
    });
    Ok(Json(body).into_response())
}
