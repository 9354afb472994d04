//! The body of a request for a response: what a run needs of it. What this host does not support is an error that names
//! the parameter.

use std::num::NonZeroU32;
use std::sync::Arc;

use axum::http::StatusCode;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

use super::super::GO_ON;
use super::super::openai_error::{OpenAiError, wrong};
use super::super::openai_parameters::{
    IgnoredParameter, Parameters, client_tool, is_from, output, tool_choice,
};
use super::fold::SERVER_LABEL;
use super::ids::{ItemId, ResponseId, session_of_conversation};
use super::object::{FacePair, ResponseSettings};
use callsheet_tools::ToolOutput;
use callsheet_values::config::{ClientTool, OutputRequest, RunOverrides};
use callsheet_values::types::{
    Content, ContentPart, Image, Metadata, ResultPart, Seq, SessionId, excerpt,
};

/// Parameters without effect, beside those of all faces of OpenAI.
const IGNORED: [IgnoredParameter; 6] = [
    ("temperature", |value| is_from(value, 0.0, 2.0), "must be a number from 0 to 2"),
    (
        "truncation",
        |value| matches!(value.as_str(), Some("auto" | "disabled")),
        "must be auto or disabled",
    ),
    ("user", Value::is_string, "must be a string"),
    ("stream_options", Value::is_object, "must be an object"),
    ("include", is_include, "must be a list of strings, without logprobs"),
    ("top_logprobs", |value| *value == 0, "must be 0: logprobs are not supported"),
];

fn is_include(value: &Value) -> bool {
    let is_supported =
        |name: &Value| name.as_str().is_some_and(|name| name != "message.output_text.logprobs");
    value.as_array().is_some_and(|list| list.iter().all(is_supported))
}

/// The member of a tool that has no effect: schemas are not enforced while the model writes.
const STRICT: &str = "tools.strict";

/// A request for a response.
#[derive(Clone, Debug, Default)]
pub(super) struct CreateRequest {
    pub(super) model: String,
    pub(super) stream: bool,
    pub(super) overrides: RunOverrides,
    pub(super) metadata: Metadata,
    pub(super) pair: FacePair,
    /// The response or the conversation that the request names.
    pub(super) names: Option<Named>,
    pub(super) items: Vec<InputItem>,
    /// The names of parameters that are ignored.
    pub(super) ignored: Vec<&'static str>,
}

/// What a request goes on from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Named {
    Response(ResponseId),
    Conversation(SessionId),
}

/// An item of the input.
#[derive(Clone, Debug)]
pub(super) enum InputItem {
    User(Content),
    Assistant {
        text: String,
        place: Option<ItemPlace>,
    },
    /// A call of a client's tool, in the form of Chat Completions.
    Call {
        call: Value,
        place: Option<ItemPlace>,
    },
    /// An item that an earlier response of this host had. Of a call of the agent's tools, also what it says: the call in
    /// the form of Chat Completions, and its result.
    Own {
        place: ItemPlace,
        call: Option<(Value, String)>,
    },
    /// A reference to one.
    Reference(ItemPlace),
    /// The result of a call.
    Output {
        call: String,
        output: ToolOutput,
    },
    /// The decision about an approval.
    Decision {
        request: String,
        approve: bool,
        reason: Option<String>,
    },
}

/// The place of an item that an earlier response of this host had. `run`: the first record of its run, unless the item
/// stands for a whole session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ItemPlace {
    pub(super) session: SessionId,
    pub(super) run: Option<Seq>,
}

impl InputItem {
    fn place(&self) -> Option<&ItemPlace> {
        match self {
            Self::Assistant { place, .. } | Self::Call { place, .. } => place.as_ref(),
            Self::Own { place, .. } | Self::Reference(place) => Some(place),
            Self::User(_) | Self::Output { .. } | Self::Decision { .. } => None,
        }
    }

    /// Returns whether the item answers what a run waits for.
    pub(super) fn is_answer(&self) -> bool {
        matches!(self, Self::Output { .. } | Self::Decision { .. })
    }
}

impl CreateRequest {
    /// Reads the parameters of a body.
    pub(super) fn read(mut parameters: Parameters) -> Result<Self, OpenAiError> {
        let mut ignored = parameters.ignored(&IGNORED)?;
        let mut request = Self {
            model: parameters.text("model")?.unwrap_or_default(),
            stream: parameters.flag("stream")?.unwrap_or(false),
            ..Self::default()
        };
        let pair = &mut request.pair;
        pair.previous = parameters.text("previous_response_id")?;
        request.names = named(pair.previous.as_deref(), parameters.take("conversation").as_ref())?;
        pair.conversation = matches!(request.names, Some(Named::Conversation(_)));
        pair.background = parameters.flag("background")?.unwrap_or(false);
        pair.unstored = !parameters.flag("store")?.unwrap_or(true);
        if pair.unstored && pair.background {
            let problem = "must not be false with background: nobody could read the response";
            return Err(wrong("store", problem));
        }
        let overrides = &mut request.overrides;
        // Only less than the agent allows can be asked for.
        overrides.multi_tool_calls =
            parameters.flag("parallel_tool_calls")?.filter(|parallel| !parallel);
        overrides.max_output_tokens = parameters.count("max_output_tokens")?;
        overrides.limits.max_tool_calls_per_run =
            parameters.count("max_tool_calls")?.map(NonZeroU32::get);
        let tools = parameters.list("tools")?.unwrap_or_default();
        if tools.iter().any(|tool| tool["strict"] == true) {
            ignored.push(STRICT);
        }
        if tools.iter().any(|tool| !tool["require_approval"].is_null()) {
            ignored.push("tools.require_approval");
        }
        let tools = client_tools(&tools)?;
        let choice = parameters.take("tool_choice");
        overrides.tool_choice = tool_choice(choice.as_ref(), |choice| &choice["name"], &tools)?;
        overrides.client_tools = Some(tools).filter(|tools| !tools.is_empty()).map(Into::into);
        let text = parameters.object("text")?;
        (overrides.output, pair.format) = format(text.unwrap_or_default(), &mut ignored)?;
        let mut instructions: Vec<String> = parameters.text("instructions")?.into_iter().collect();
        request.items = items(parameters.take("input").as_ref(), &mut instructions)?;
        instructions.retain(|text| !text.trim().is_empty());
        overrides.instructions = Some(instructions.join("\n\n")).filter(|text| !text.is_empty());
        request.metadata = metadata(&mut parameters, pair)?;
        request.ignored = ignored;
        parameters.finish()?;
        Ok(request)
    }

    /// Returns the settings of the run that the request starts.
    pub(super) fn settings(&self) -> ResponseSettings {
        ResponseSettings {
            overrides: Arc::new(self.overrides.clone()),
            metadata: self.metadata.clone(),
            pair: self.pair.clone(),
            session_tools: None,
        }
    }

    /// Splits the items behind the last one that this host has sent: the place of that one, and the new items.
    pub(super) fn new_items(&self) -> (Option<&ItemPlace>, &[InputItem]) {
        let last = self.items.iter().rposition(|item| item.place().is_some());
        let Some(at) = last else { return (None, &self.items) };
        let (before, new) = self.items.split_at(at + 1);
        (before.last().and_then(InputItem::place), new)
    }

    /// Returns whether the history goes on, behind the last item of this host, with answers that do not say that they are of
    /// it. Then all that it says is in the items.
    pub(super) fn goes_on_elsewhere(&self) -> bool {
        let (_, items) = self.new_items();
        let is_foreign = |item: &InputItem| match item {
            InputItem::Assistant { text, .. } => !text.is_empty(),
            InputItem::Call { .. } => true,
            InputItem::User(_)
            | InputItem::Own { .. }
            | InputItem::Reference(_)
            | InputItem::Output { .. }
            | InputItem::Decision { .. } => false,
        };
        let has_reference = self.items.iter().any(|item| matches!(item, InputItem::Reference(_)));
        items.iter().any(is_foreign) && !has_reference
    }

    /// Takes the items as the history of another host: those of this one are not there any more. Each has what it says in
    /// itself, but for references.
    pub(super) fn forget_places(&mut self) -> Result<(), OpenAiError> {
        let mut items = Vec::with_capacity(self.items.len());
        for item in self.items.drain(..) {
            match item {
                InputItem::Assistant { text, .. } => {
                    items.push(InputItem::Assistant { text, place: None });
                }
                InputItem::Call { call, .. } => items.push(InputItem::Call { call, place: None }),
                InputItem::Own { call: Some((call, output)), .. } => {
                    let id = call["id"].as_str().unwrap_or_default().to_owned();
                    items.push(InputItem::Call { call, place: None });
                    items.push(InputItem::Output { call: id, output: output.into() });
                }
                InputItem::Own { call: None, .. } => {}
                InputItem::Reference(_) => {
                    let problem = "refers to an item of a session that does not exist";
                    return Err(wrong("input", problem));
                }
                InputItem::User(_) | InputItem::Output { .. } | InputItem::Decision { .. } => {
                    items.push(item);
                }
            }
        }
        self.items = items;
        Ok(())
    }

    /// Leaves the results out of calls of a session that have their results: clients send them once more. Returns the
    /// calls.
    pub(super) fn drop_answered(&mut self, session: &SessionId, waits: &[String]) -> Vec<String> {
        let mut answered = Vec::new();
        self.items.retain(|item| {
            let InputItem::Output { call, .. } = item else { return true };
            let is_of_session = ItemId::parse(call).is_some_and(|id| id.session == *session);
            if is_of_session && !waits.contains(call) {
                answered.push(call.clone());
            }
            !is_of_session || waits.contains(call)
        });
        answered
    }
}

fn named(
    previous: Option<&str>,
    conversation: Option<&Value>,
) -> Result<Option<Named>, OpenAiError> {
    let conversation = conversation.map(|value| {
        let id = value.as_str().or_else(|| value["id"].as_str());
        id.ok_or_else(|| wrong("conversation", "must be an id, or an object with it"))
    });
    match (previous, conversation.transpose()?) {
        (None, None) => Ok(None),
        (Some(_), Some(_)) => {
            Err(wrong("conversation", "must not be sent together with previous_response_id"))
        }
        (Some(id), None) => match ResponseId::parse(id) {
            Some(id) => Ok(Some(Named::Response(id))),
            None => Err(no_such_response("previous_response_id", id)),
        },
        (None, Some(id)) => match session_of_conversation(id) {
            Some(session) => Ok(Some(Named::Conversation(session))),
            None => Err(no_such_conversation(id)),
        },
    }
}

/// Returns the error of an id that no response has.
pub(super) fn no_such_response(param: &str, id: &str) -> OpenAiError {
    let message = format!("response {:?} not found", excerpt(id, 160));
    let code =
        if param == "previous_response_id" { "previous_response_not_found" } else { "not_found" };
    OpenAiError::new(StatusCode::NOT_FOUND, code, message).of_param(param)
}

pub(super) fn no_such_conversation(id: &str) -> OpenAiError {
    let message = format!("conversation {:?} not found", excerpt(id, 160));
    OpenAiError::new(StatusCode::NOT_FOUND, "not_found", message).of_param("conversation")
}

/// Takes the metadata, and adds the pair of this face.
pub(super) fn metadata(
    parameters: &mut Parameters,
    pair: &FacePair,
) -> Result<Metadata, OpenAiError> {
    let mut pairs = parameters.pairs()?;
    pairs.extend(ResponseSettings::pair(pair));
    Metadata::new(pairs).map_err(|error| wrong("metadata", error.to_string()))
}

fn client_tools(tools: &[Value]) -> Result<Vec<ClientTool>, OpenAiError> {
    let mut own = Vec::new();
    for (at, tool) in tools.iter().enumerate() {
        let path = format!("tools[{at}]");
        match (tool["type"].as_str(), tool["server_label"].as_str()) {
            (Some("function"), _) => own.push(client_tool(tool, &path)?),
            // The agent's own tools, as a client that has been shown their calls names them.
            (Some("mcp"), Some(SERVER_LABEL)) => check_own_server(tool, &path)?,
            (Some(kind), _) => {
                let problem = format!(
                    "type {:?} is not supported: the client's own tools are of type function, those of the agent are configured at the host",
                    excerpt(kind, 64)
                );
                return Err(wrong(path, problem));
            }
            (None, _) => return Err(wrong(path, "must be an object with a type")),
        }
    }
    Ok(own)
}

/// Checks the description of the agent's own tools. What a client may call is a matter of the host.
fn check_own_server(tool: &Value, path: &str) -> Result<(), OpenAiError> {
    let known = ["type", "server_label", "server_url", "server_description", "require_approval"];
    let mut members = tool.as_object().into_iter().flatten();
    match members.find(|(name, value)| !known.contains(&name.as_str()) && !value.is_null()) {
        None => Ok(()),
        Some((name, _)) => {
            let problem = "is not supported: the tools of the agent are configured at the host";
            Err(wrong(format!("{path}.{}", excerpt(name, 64)), problem))
        }
    }
}

/// Returns the form of the answer, and its name.
fn format(
    mut text: Map<String, Value>,
    ignored: &mut Vec<&'static str>,
) -> Result<(Option<OutputRequest>, Option<String>), OpenAiError> {
    text.retain(|_, value| !value.is_null());
    if text.remove("verbosity").is_some() {
        ignored.push("text.verbosity");
    }
    let format = text.remove("format");
    if let Some(other) = text.keys().next() {
        return Err(wrong(format!("text.{}", excerpt(other, 64)), "is not supported"));
    }
    let Some(format) = format else { return Ok((None, None)) };
    let output = output(&format, &format["schema"], "text.format")?;
    let name = format["name"].as_str().or_else(|| format["type"].as_str());
    let name = name.filter(|_| output.is_some()).map(|name| excerpt(name, 64));
    Ok((output, name))
}

/// Reads the input. System messages are added to the instructions.
pub(super) fn items(
    input: Option<&Value>,
    instructions: &mut Vec<String>,
) -> Result<Vec<InputItem>, OpenAiError> {
    let list = match input {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => return Ok(vec![InputItem::User(text.as_str().into())]),
        Some(Value::Array(list)) => list,
        Some(_) => return Err(wrong("input", "must be a string or a list of items")),
    };
    let mut items = Vec::new();
    for (at, value) in list.iter().enumerate() {
        let param = format!("input[{at}]");
        items.extend(item(value, &param, instructions)?);
    }
    Ok(items)
}

fn item(
    value: &Value,
    param: &str,
    instructions: &mut Vec<String>,
) -> Result<Option<InputItem>, OpenAiError> {
    let field = |name: &str| value.get(name).and_then(Value::as_str);
    let needed = |name: &str| {
        field(name).ok_or_else(|| wrong(format!("{param}.{name}"), "must be a string"))
    };
    let place = |id: Option<&str>| {
        let ItemId { run, session, .. } = ItemId::parse(id?)?;
        Some(ItemPlace { run: Some(run), session })
    };
    Ok(match field("type").or(field("role").map(|_| "message")) {
        Some("message") => message(value, param, instructions, place(field("id")))?,
        Some("item_reference") => {
            let id = needed("id")?;
            let place = place(Some(id));
            let place = place.ok_or_else(|| wrong(param, "refers to no item of this host"))?;
            Some(InputItem::Reference(place))
        }
        // Thinking of another service cannot be passed on.
        Some("reasoning") => place(field("id")).map(|place| InputItem::Own { place, call: None }),
        Some("function_call") => {
            let (id, name, arguments) = (needed("call_id")?, needed("name")?, needed("arguments")?);
            if serde_json::from_str::<IgnoredAny>(arguments).is_err() {
                return Err(wrong(format!("{param}.arguments"), "must be JSON"));
            }
            let place = place(field("id")).or_else(|| place(Some(id)));
            Some(InputItem::Call { call: chat_call(id, name, arguments), place })
        }
        Some("mcp_call" | "mcp_approval_request") => {
            let id = field("id");
            let place = place(id).ok_or_else(|| wrong(param, "is a call of another server"))?;
            let output = field("output").or_else(|| value["error"]["content"][0]["text"].as_str());
            let call = (id.zip(field("name")).zip(field("arguments")).zip(output)).map(
                |(((id, name), arguments), output)| {
                    (chat_call(id, name, arguments), output.to_owned())
                },
            );
            Some(InputItem::Own { place, call })
        }
        Some("function_call_output") => {
            let call = needed("call_id")?.to_owned();
            let output = value.get("output").unwrap_or(&Value::Null);
            Some(InputItem::Output { call, output: tool_output(output, param)? })
        }
        Some("mcp_approval_response") => {
            let approve = value.get("approve").and_then(Value::as_bool);
            Some(InputItem::Decision {
                request: needed("approval_request_id")?.to_owned(),
                approve: approve
                    .ok_or_else(|| wrong(format!("{param}.approve"), "must be true or false"))?,
                reason: field("reason").map(str::to_owned),
            })
        }
        Some("compaction") => {
            let session = session_of_conversation(needed("encrypted_content")?);
            let session = session.ok_or_else(|| wrong(param, "is of another host"))?;
            Some(InputItem::Own { place: ItemPlace { run: None, session }, call: None })
        }
        Some(other) => {
            let message = format!("items of type {:?} are not supported", excerpt(other, 64));
            return Err(wrong(param, message));
        }
        None => return Err(wrong(param, "must be an object with a type")),
    })
}

/// Returns a call in the form of Chat Completions.
fn chat_call(id: &str, name: &str, arguments: &str) -> Value {
    let function = json!({"name": name, "arguments": arguments});
    json!({"id": id, "type": "function", "function": function})
}

fn message(
    value: &Value,
    param: &str,
    instructions: &mut Vec<String>,
    place: Option<ItemPlace>,
) -> Result<Option<InputItem>, OpenAiError> {
    let role = value.get("role").and_then(Value::as_str);
    let content = content(value.get("content").unwrap_or(&Value::Null), param);
    Ok(match role {
        Some("user") => Some(InputItem::User(content?)),
        Some("assistant") => {
            let text = content?.text().into_owned();
            Some(InputItem::Assistant { text, place })
        }
        Some("system" | "developer") => {
            instructions.push(content?.text().into_owned());
            None
        }
        Some(_) | None => {
            let message = "must be user, assistant, system or developer";
            return Err(wrong(format!("{param}.role"), message));
        }
    })
}

/// Reads text and images. An error names the part.
fn content(value: &Value, param: &str) -> Result<Content, OpenAiError> {
    let parts = match value {
        Value::String(text) => return Ok(text.as_str().into()),
        Value::Array(parts) => parts,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
            return Err(wrong(format!("{param}.content"), "must be a string or a list of parts"));
        }
    };
    let mut own = Vec::new();
    for (at, part) in parts.iter().enumerate() {
        let param = format!("{param}.content[{at}]");
        own.push(content_part(part, &param)?);
    }
    Ok(Content::from(own))
}

fn content_part(part: &Value, param: &str) -> Result<ContentPart, OpenAiError> {
    let field = |name: &str| {
        let value = part.get(name).and_then(Value::as_str);
        value.ok_or_else(|| wrong(format!("{param}.{name}"), "must be a string"))
    };
    match field("type")? {
        "input_text" | "output_text" | "text" => Ok(ContentPart::Text(field("text")?.to_owned())),
        "refusal" => Ok(ContentPart::Text(field("refusal")?.to_owned())),
        "input_image" => {
            let image = Image::parse(field("image_url")?);
            let image =
                image.map_err(|error| wrong(format!("{param}.image_url"), error.to_string()))?;
            Ok(ContentPart::Image(image))
        }
        other => {
            let message = format!("parts of type {:?} are not supported", excerpt(other, 64));
            Err(wrong(param, message))
        }
    }
}

fn tool_output(value: &Value, param: &str) -> Result<ToolOutput, OpenAiError> {
    let mut output = ToolOutput::default();
    match value {
        Value::String(text) => return Ok(ToolOutput::from(text.clone())),
        Value::Array(parts) => {
            for (at, part) in parts.iter().enumerate() {
                output =
                    output.with_part(match content_part(part, &format!("{param}.output[{at}]"))? {
                        ContentPart::Text(text) => ResultPart::Text { text },
                        ContentPart::Image(image) => ResultPart::Image(image),
                    });
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
            return Err(wrong(format!("{param}.output"), "must be a string or a list of parts"));
        }
    }
    Ok(output)
}

/// Returns the history and the input of a new session: the messages of the user behind the last other item are the
/// input. A history that ends with results of calls goes on.
pub(super) fn history_and_input(items: &[InputItem]) -> Result<(Vec<Value>, Content), OpenAiError> {
    let of_user = |item: &InputItem| matches!(item, InputItem::User(_));
    let inputs = items.iter().rev().take_while(|item| of_user(item)).count();
    let (before, inputs) = items.split_at(items.len() - inputs);
    match before.last() {
        Some(InputItem::Output { .. }) if inputs.is_empty() => {
            Ok((history(before)?, Content::from(GO_ON)))
        }
        Some(_) | None => Ok((history(before)?, input(inputs)?)),
    }
}

/// Returns items as a history, in the form of Chat Completions. A result may be anywhere behind its call. Messages without
/// content are left out.
pub(super) fn history(items: &[InputItem]) -> Result<Vec<Value>, OpenAiError> {
    let mut messages: Vec<Value> = Vec::new();
    // The calls without a result, with the place behind their message and the results that it has.
    let mut open: Vec<(&str, usize)> = Vec::new();
    for item in items {
        match item {
            InputItem::User(content) if content.is_blank() => {}
            InputItem::User(content) => {
                messages.push(json!({"role": "user", "content": content}));
            }
            InputItem::Assistant { text, .. } if text.is_empty() => {}
            InputItem::Assistant { text, .. } => {
                messages.push(json!({"role": "assistant", "content": text}));
            }
            InputItem::Call { call, .. } => {
                let calls = messages.last_mut().and_then(|last| last.get_mut("tool_calls"));
                match calls.and_then(Value::as_array_mut) {
                    Some(calls) => calls.push(call.clone()),
                    None => messages
                        .push(json!({"role": "assistant", "content": null, "tool_calls": [call]})),
                }
                open.push((call["id"].as_str().unwrap_or_default(), messages.len()));
            }
            InputItem::Output { call, output } => {
                let Some(at) = open.iter().position(|(id, _)| id == call) else {
                    let id = excerpt(call, 160);
                    let problem = format!("no tool call found for the output with call_id {id}");
                    return Err(wrong("input", problem));
                };
                let (_, place) = open.remove(at);
                let text = output.text();
                let message = json!({"role": "tool", "tool_call_id": call, "content": text});
                messages.insert(place, message);
                for (_, other) in open.iter_mut().filter(|(_, other)| *other >= place) {
                    *other += 1;
                }
            }
            InputItem::Decision { request, .. } => {
                let message = format!("no response waits for {:?}", excerpt(request, 160));
                return Err(wrong("input", message));
            }
            InputItem::Own { .. } | InputItem::Reference(_) => {
                return Err(wrong("items", "must not be items of this host"));
            }
        }
    }
    match open.first() {
        Some((id, _)) => {
            let id = excerpt(id, 160);
            Err(wrong("input", format!("no tool output found for the call {id}")))
        }
        None => Ok(messages),
    }
}

/// Returns the session of the items of a body, for a host that does not have it.
pub(in super::super) fn session_of_items(body: &Value) -> Option<SessionId> {
    let session = |item: &Value| {
        let names = ["approval_request_id", "call_id", "id"];
        let id = names.into_iter().find_map(|name| item.get(name)?.as_str());
        let of_history = || session_of_conversation(item.get("encrypted_content")?.as_str()?);
        id.and_then(ItemId::parse).map(|id| id.session).or_else(of_history)
    };
    body.get("input")?.as_array()?.iter().rev().find_map(session)
}

/// Returns the messages of the user as one input.
pub(super) fn input(items: &[InputItem]) -> Result<Content, OpenAiError> {
    let mut parts = Vec::new();
    for item in items {
        if let InputItem::User(content) = item {
            parts.extend(content.parts().iter().cloned());
        }
    }
    let content = Content::from(parts);
    if content.is_blank() {
        return Err(wrong(
            "input",
            "the last item must be a message of the user with text or an image, or the result of a call",
        ));
    }
    Ok(content)
}
