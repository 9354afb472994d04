//! The body of a request: which parameters are supported, ignored or refused.

use std::num::NonZeroU32;

use serde_json::{Map, Value, json};

use super::super::openai_error::{OpenAiError, ParameterNames};
use super::super::tool_choice;
use super::messages::ChatMessages;
use callsheet_values::config::{ClientTool, OutputRequest, RunOverrides, Temperature};
use callsheet_values::types::{Metadata, SessionId, ToolChoice};

/// Parameters that change nothing that a client relies on. They are ignored, and named in a header of the answer.
const IGNORED: [&str; 17] = [
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "logit_bias",
    "seed",
    "reasoning_effort",
    "verbosity",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prediction",
    "reasoning",
];

/// Tells whether a value is the one that is supported.
type IsSupported = fn(&Value) -> bool;

/// Maximum number of texts of `stop`.
const STOP_MAX: usize = 4;

/// Parameters with the only value that is supported, which is that of a request without them.
const FIXED: [(&str, IsSupported); 5] = [
    ("n", |value| value == 1),
    ("logprobs", |value| value == false),
    ("top_logprobs", |value| value == 0),
    ("modalities", |value| *value == json!(["text"])),
    ("functions", |value| value.as_array().is_some_and(Vec::is_empty)),
];

/// The names of parameters in errors of the host.
pub(super) const PARAMETER_NAMES: ParameterNames = ParameterNames {
    function: ".function",
    schema: "parameters",
    output: "response_format.json_schema.schema",
};

/// A request of Chat Completions.
#[derive(Clone, Debug)]
pub(super) struct CompletionRequest {
    pub(super) model: String,
    pub(super) messages: ChatMessages,
    /// The session that the metadata names.
    pub(super) session: Option<SessionId>,
    pub(super) streamed: bool,
    pub(super) include_usage: bool,
    pub(super) overrides: RunOverrides,
    pub(super) metadata: Metadata,
    /// The names of parameters that have no effect.
    pub(super) ignored: Vec<&'static str>,
}

impl CompletionRequest {
    /// Parses a body.
    ///
    /// # Errors
    /// If a parameter is not valid, not known or not supported. The error names it.
    pub(super) fn parse(body: &[u8]) -> Result<Self, OpenAiError> {
        let mut body = match serde_json::from_slice(body) {
            Ok(Value::Object(body)) => Parameters(body),
            Ok(_) => return Err(invalid_body("the body must be a JSON object")),
            Err(error) => return Err(invalid_body(&format!("the body is not JSON: {error}"))),
        };
        body.0.retain(|_, value| !value.is_null());
        let messages = body.0.remove("messages").unwrap_or_default();
        let messages = ChatMessages::parse(&messages)?;
        let model = body.text("model")?;
        let model = model.ok_or_else(|| OpenAiError::parameter("model", "model is missing"))?;
        let streamed = body.flag("stream")?.unwrap_or_default();
        let include_usage = include_usage(&mut body)?;
        let (session, metadata) = metadata(&mut body)?;
        let has_strict = has_strict_tools(&body);
        let mut overrides = overrides(&mut body)?;
        overrides.instructions.clone_from(&messages.instructions);
        for (name, is_default) in FIXED {
            if body.0.remove(name).is_some_and(|value| !is_default(&value)) {
                let problem = format!("{name} is not supported; leave it out");
                return Err(OpenAiError::parameter(name, problem));
            }
        }
        let mut ignored: Vec<&'static str> =
            IGNORED.into_iter().filter(|name| body.0.remove(*name).is_some()).collect();
        if has_stop(&mut body)? {
            ignored.push("stop");
        }
        if has_strict {
            ignored.push("tools[].function.strict");
        }
        ignored.extend(messages.ignored.iter().copied());
        if let Some(name) = body.0.keys().next() {
            let name = callsheet_values::types::excerpt(name, 64);
            let problem = format!("{name} is not supported; leave it out");
            return Err(OpenAiError::parameter(name, problem));
        }
        let request = Self {
            model,
            messages,
            session,
            streamed,
            include_usage,
            overrides,
            metadata,
            ignored,
        };
        Ok(request)
    }
}

fn invalid_body(message: &str) -> OpenAiError {
    OpenAiError::new(axum::http::StatusCode::BAD_REQUEST, "invalid_json", message)
}

/// The parameters that were not read yet.
struct Parameters(Map<String, Value>);

impl Parameters {
    fn text(&mut self, name: &'static str) -> Result<Option<String>, OpenAiError> {
        match self.0.remove(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(OpenAiError::parameter(name, format!("{name}: must be a string"))),
        }
    }

    fn flag(&mut self, name: &'static str) -> Result<Option<bool>, OpenAiError> {
        match self.0.remove(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(_) => Err(OpenAiError::parameter(name, format!("{name}: must be true or false"))),
        }
    }

    fn object(&mut self, name: &'static str) -> Result<Option<Map<String, Value>>, OpenAiError> {
        match self.0.remove(name) {
            None => Ok(None),
            Some(Value::Object(object)) => Ok(Some(object)),
            Some(_) => Err(OpenAiError::parameter(name, format!("{name}: must be an object"))),
        }
    }
}

fn include_usage(body: &mut Parameters) -> Result<bool, OpenAiError> {
    let Some(options) = body.object("stream_options")? else { return Ok(false) };
    let known = ["include_usage", "include_obfuscation"];
    if let Some(name) = options.keys().find(|name| !known.contains(&name.as_str())) {
        let name = format!("stream_options.{}", callsheet_values::types::excerpt(name, 64));
        let problem = format!("{name} is not supported; leave it out");
        return Err(OpenAiError::parameter(name, problem));
    }
    match options.get("include_usage") {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(_) => {
            let name = "stream_options.include_usage";
            Err(OpenAiError::parameter(name, format!("{name}: must be true or false")))
        }
    }
}

/// Removes `stop`, and returns whether it has texts.
fn has_stop(body: &mut Parameters) -> Result<bool, OpenAiError> {
    match body.0.remove("stop") {
        None => Ok(false),
        Some(Value::String(_)) => Ok(true),
        Some(Value::Array(texts))
            if texts.len() <= STOP_MAX && texts.iter().all(Value::is_string) =>
        {
            Ok(!texts.is_empty())
        }
        Some(_) => {
            let problem =
                format!("stop: must be a string, or a list of at most {STOP_MAX} strings");
            Err(OpenAiError::parameter("stop", problem))
        }
    }
}

/// Returns whether a tool asks for arguments that always fit its schema.
fn has_strict_tools(body: &Parameters) -> bool {
    let mut tools = body.0.get("tools").and_then(Value::as_array).into_iter().flatten();
    tools.any(|tool| tool["function"]["strict"] == true)
}

/// Returns the session that `metadata.session_id` names, and the pairs of the run: those of `metadata`, and `user`.
fn metadata(body: &mut Parameters) -> Result<(Option<SessionId>, Metadata), OpenAiError> {
    let invalid =
        |name: &str, problem: String| OpenAiError::parameter(name, format!("{name}: {problem}"));
    let (mut session, mut pairs) = (None, Vec::new());
    for (name, value) in body.object("metadata")?.unwrap_or_default() {
        let Value::String(value) = value else {
            let name = format!("metadata.{}", callsheet_values::types::excerpt(&name, 64));
            return Err(invalid(&name, "must be a string".to_owned()));
        };
        if name == "session_id" {
            let id = SessionId::parse(&value);
            let id = id.map_err(|error| invalid("metadata.session_id", error.to_string()))?;
            session = Some(id);
        } else {
            pairs.push((name, value));
        }
    }
    let user = body.text("user")?;
    if let Some(user) = user.filter(|_| pairs.iter().all(|(name, _)| name != "user")) {
        pairs.push(("user".to_owned(), user));
    }
    let pairs = Metadata::new(pairs).map_err(|error| invalid("metadata", error.to_string()))?;
    Ok((session, pairs))
}

fn overrides(body: &mut Parameters) -> Result<RunOverrides, OpenAiError> {
    let temperature = match body.0.remove("temperature") {
        None => None,
        Some(value) => {
            let temperature = value.as_f64().map(Temperature::new);
            let problem = "temperature must be a number from 0 to 2";
            let temperature = temperature.and_then(Result::ok);
            Some(temperature.ok_or_else(|| OpenAiError::parameter("temperature", problem))?)
        }
    };
    let mut maximum = None;
    for name in ["max_tokens", "max_completion_tokens"] {
        if let Some(value) = body.0.remove(name) {
            let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
            let problem = format!("{name} must be a whole number from 1 to {}", u32::MAX);
            let number = number.and_then(NonZeroU32::new);
            maximum = Some(number.ok_or_else(|| OpenAiError::parameter(name, problem))?);
        }
    }
    // More than one call is the agent's own rule, so only the opposite is an override.
    let multi_tool_calls = body.flag("parallel_tool_calls")?.filter(|multi| !multi);
    let client_tools = client_tools(body)?;
    let tool_choice = tool_choice(body)?;
    Ok(RunOverrides {
        multi_tool_calls,
        tool_choice: tool_choice.map(|choice| tool_choice::of_request(choice, &client_tools)),
        temperature,
        max_output_tokens: maximum,
        output: output(body)?,
        client_tools: Some(client_tools).filter(|tools| !tools.is_empty()).map(Into::into),
        ..RunOverrides::default()
    })
}

fn client_tools(body: &mut Parameters) -> Result<Vec<ClientTool>, OpenAiError> {
    let tools = match body.0.remove("tools") {
        None => return Ok(Vec::new()),
        Some(Value::Array(tools)) => tools,
        Some(_) => return Err(OpenAiError::parameter("tools", "tools: must be a list")),
    };
    let tool = |(at, tool): (usize, &Value)| {
        let invalid = |member: &str, problem: &str| {
            let path = format!("tools[{at}]{member}");
            OpenAiError::parameter(&path, format!("{path}: {problem}"))
        };
        if tool["type"] != "function" {
            return Err(invalid("", "its type must be \"function\""));
        }
        let function = &tool["function"];
        let name = function["name"].as_str().filter(|name| !name.is_empty());
        let name =
            name.ok_or_else(|| invalid(".function.name", "must be a string that is not empty"))?;
        let description = function["description"].as_str().unwrap_or_default();
        let schema = match &function["parameters"] {
            Value::Null => json!({"type": "object", "properties": {}}),
            Value::Object(schema) if schema.is_empty() => {
                json!({"type": "object", "properties": {}})
            }
            schema @ Value::Object(_) => schema.clone(),
            Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                return Err(invalid(".function.parameters", "must be an object"));
            }
        };
        Ok(ClientTool::new(name, description, schema))
    };
    tools.iter().enumerate().map(tool).collect()
}

fn tool_choice(body: &mut Parameters) -> Result<Option<ToolChoice>, OpenAiError> {
    let Some(choice) = body.0.remove("tool_choice") else { return Ok(None) };
    let named = &choice["function"]["name"];
    match (choice.as_str(), named.as_str()) {
        (Some("auto"), _) => Ok(Some(ToolChoice::Auto)),
        (Some("none"), _) => Ok(Some(ToolChoice::None)),
        (Some("required"), _) => Ok(Some(ToolChoice::Required)),
        (None, Some(name)) if choice["type"] == "function" => {
            Ok(Some(ToolChoice::Tool(name.into())))
        }
        _ => {
            let problem =
                "tool_choice must be auto, none, required, or an object that names a function";
            Err(OpenAiError::parameter("tool_choice", problem))
        }
    }
}

fn output(body: &mut Parameters) -> Result<Option<OutputRequest>, OpenAiError> {
    let Some(format) = body.object("response_format")? else { return Ok(None) };
    let schema = format.get("json_schema").and_then(|named| named.get("schema"));
    match (format.get("type").and_then(Value::as_str), schema) {
        (Some("text"), _) => Ok(None),
        (Some("json_object"), _) => Ok(Some(OutputRequest::new(json!({"type": "object"})))),
        (Some("json_schema"), Some(schema @ Value::Object(_))) => {
            Ok(Some(OutputRequest::new(schema.clone())))
        }
        _ => {
            let problem = "response_format: its type must be text, json_object, or json_schema with json_schema.schema";
            Err(OpenAiError::parameter("response_format", problem))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(members: Value) -> Result<CompletionRequest, OpenAiError> {
        let mut body = json!({"model": "default", "messages": [{"role": "user", "content": "a"}]});
        let all = members.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(all);
        CompletionRequest::parse(body.to_string().as_bytes())
    }

    #[test]
    fn parameters_become_overrides() {
        let function = json!({"name": "open", "description": "Opens.", "strict": true});
        let request = parse(json!({
            "stream": true,
            "stream_options": {"include_usage": true},
            "n": 1, "logprobs": false, "seed": null, "top_p": 0.5, "presence_penalty": 0,
            "temperature": 0.5, "max_tokens": 5, "max_completion_tokens": 7,
            "tools": [{"type": "function", "function": function}],
            "tool_choice": {"type": "function", "function": {"name": "open"}},
            "parallel_tool_calls": false,
            "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
            "metadata": {"session_id": "s", "tenant": "t"},
            "user": "u",
        }));
        let request = request.unwrap();
        assert!(request.streamed && request.include_usage);
        assert_eq!(request.ignored, ["top_p", "presence_penalty", "tools[].function.strict"]);
        assert_eq!(request.session, SessionId::parse("s").ok());
        let pairs = Metadata::new([("tenant", "t"), ("user", "u")]).unwrap();
        assert_eq!(request.metadata, pairs);
        let schema = json!({"type": "object", "properties": {}});
        let expected = RunOverrides {
            multi_tool_calls: Some(false),
            tool_choice: Some(ToolChoice::Tool("open".into())),
            temperature: Temperature::new(0.5).ok(),
            max_output_tokens: NonZeroU32::new(7),
            output: Some(OutputRequest::new(json!({"type": "object"}))),
            client_tools: Some([ClientTool::new("open", "Opens.", schema)].into()),
            ..RunOverrides::default()
        };
        assert_eq!(request.overrides, expected);
    }

    #[test]
    fn parameters_without_effect_are_named() {
        let image = json!({"url": "https://a/b", "detail": "low"});
        for (members, expected) in [
            (json!({"stop": "x", "seed": 1}), &["seed", "stop"][..]),
            (json!({"stop": ["a", "b", "c", "d"]}), &["stop"]),
            (json!({"stop": []}), &[]),
            (
                json!({"messages": [{"role": "user", "content": "a", "name": "ada"}]}),
                &["messages[].name"],
            ),
            (
                json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": image}]}]}),
                &["messages[].content[].image_url.detail"],
            ),
        ] {
            assert_eq!(parse(members).unwrap().ignored, expected);
        }
    }

    #[test]
    fn parameters_that_are_not_supported_are_named() {
        for (members, param) in [
            (json!({"n": 2}), "n"),
            (json!({"logprobs": true}), "logprobs"),
            (json!({"stop": 5}), "stop"),
            (json!({"stop": ["a", "b", "c", "d", "e"]}), "stop"),
            (json!({"stop": ["a", 1]}), "stop"),
            (json!({"stream_options": {"include_usage": "yes"}}), "stream_options.include_usage"),
            (json!({"modalities": ["text", "audio"]}), "modalities"),
            (json!({"audio": {"voice": "x"}}), "audio"),
            (json!({"web_search_options": {}}), "web_search_options"),
            (json!({"stream_options": {"x": 1}}), "stream_options.x"),
            (json!({"temperature": 3}), "temperature"),
            (json!({"max_tokens": 0}), "max_tokens"),
            (json!({"tools": [{"type": "custom"}]}), "tools[0]"),
            (json!({"tool_choice": {"type": "allowed_tools"}}), "tool_choice"),
            (json!({"response_format": {"type": "xml"}}), "response_format"),
            (json!({"metadata": {"a": 1}}), "metadata.a"),
            (json!({"metadata": {"session_id": "a b"}}), "metadata.session_id"),
            (json!({"model": 5}), "model"),
            (json!({"messages": []}), "messages"),
        ] {
            let error = parse(members).unwrap_err().to_json();
            assert_eq!(error["error"]["param"], param, "{error}");
            assert_eq!(error["error"]["type"], "invalid_request_error");
        }
        for body in ["", "[]", "{"] {
            let error = CompletionRequest::parse(body.as_bytes()).unwrap_err().to_json();
            assert_eq!(error["error"]["code"], "invalid_json");
        }
    }
}
