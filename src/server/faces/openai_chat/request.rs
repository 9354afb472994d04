//! The body of a request: which parameters are supported, ignored or refused.

use serde_json::{Value, json};

use super::super::openai_error::{OpenAiError, ParameterNames, wrong};
use super::super::openai_parameters::{
    IgnoredParameter, Parameters, client_tool, output, tool_choice,
};
use super::messages::ChatMessages;
use callsheet_values::config::{RunOverrides, Temperature};
use callsheet_values::types::{Metadata, SessionId, excerpt};

/// Parameters without effect, beside those of all faces of OpenAI.
const IGNORED: [IgnoredParameter; 10] = [
    ("top_k", is_any, ""),
    ("min_p", is_any, ""),
    ("repetition_penalty", is_any, ""),
    ("logit_bias", is_any, ""),
    ("seed", is_any, ""),
    ("reasoning_effort", is_any, ""),
    ("verbosity", is_any, ""),
    ("store", is_any, ""),
    ("prediction", is_any, ""),
    ("stop", is_stop, "must be a string, or a list of at most 4 strings"),
];

fn is_any(_: &Value) -> bool {
    true
}

fn is_stop(value: &Value) -> bool {
    let is_list = |list: &Vec<Value>| list.len() <= 4 && list.iter().all(Value::is_string);
    value.is_string() || value.as_array().is_some_and(is_list)
}

/// Tells whether a value is the one that is supported.
type IsSupported = fn(&Value) -> bool;

/// Parameters with the only value that is supported, which is that of a request without them.
const FIXED: [(&str, IsSupported); 5] = [
    ("n", |value| *value == 1),
    ("logprobs", |value| *value == false),
    ("top_logprobs", |value| *value == 0),
    ("modalities", |value| *value == json!(["text"])),
    ("functions", |value| value.as_array().is_some_and(Vec::is_empty)),
];

/// The names of parameters in errors of the host.
pub(super) const PARAMETER_NAMES: ParameterNames = ParameterNames {
    function: ".function",
    schema: "parameters",
    format: "response_format",
    output: "response_format.json_schema.schema",
    instructions: "messages[].role=system",
    max_output: "max_tokens",
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
        let mut body = Parameters::parse(body)?;
        let messages = ChatMessages::parse(&body.take("messages").unwrap_or_default())?;
        let model = body.text("model")?.ok_or_else(|| wrong("model", "is missing"))?;
        let streamed = body.flag("stream")?.unwrap_or_default();
        let include_usage = include_usage(&mut body)?;
        let (session, metadata) = metadata(&mut body)?;
        for (name, is_supported) in FIXED {
            if body.take(name).is_some_and(|value| !is_supported(&value)) {
                return Err(wrong(name, "is not supported; leave it out"));
            }
        }
        let mut ignored = body.ignored(&IGNORED)?;
        let mut overrides = overrides(&mut body, &mut ignored)?;
        overrides.instructions.clone_from(&messages.instructions);
        ignored.extend(messages.ignored.iter().copied());
        body.finish()?;
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

fn include_usage(body: &mut Parameters) -> Result<bool, OpenAiError> {
    let Some(options) = body.object("stream_options")? else { return Ok(false) };
    let known = ["include_usage", "include_obfuscation"];
    if let Some(name) = options.keys().find(|name| !known.contains(&name.as_str())) {
        let name = format!("stream_options.{}", excerpt(name, 64));
        return Err(wrong(name, "is not supported; leave it out"));
    }
    match options.get("include_usage") {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(_) => Err(wrong("stream_options.include_usage", "must be true or false")),
    }
}

/// Returns the session that `metadata.session_id` names, and the pairs of the run: those of `metadata`, and `user`.
fn metadata(body: &mut Parameters) -> Result<(Option<SessionId>, Metadata), OpenAiError> {
    let mut pairs = body.pairs()?;
    let session = pairs.iter().position(|(name, _)| name == "session_id");
    let session = session.map(|at| SessionId::parse(&pairs.remove(at).1)).transpose();
    let session = session.map_err(|error| wrong("metadata.session_id", error))?;
    let user = body.text("user")?;
    if let Some(user) = user.filter(|_| pairs.iter().all(|(name, _)| name != "user")) {
        pairs.push(("user".to_owned(), user));
    }
    let pairs = Metadata::new(pairs).map_err(|error| wrong("metadata", error))?;
    Ok((session, pairs))
}

fn overrides(
    body: &mut Parameters,
    ignored: &mut Vec<&'static str>,
) -> Result<RunOverrides, OpenAiError> {
    let temperature = body.take("temperature").map(|value| {
        let temperature = value.as_f64().and_then(|number| Temperature::new(number).ok());
        temperature.ok_or_else(|| wrong("temperature", "must be a number from 0 to 2"))
    });
    let temperature = temperature.transpose()?;
    let maximum = body.count("max_tokens")?;
    let maximum = body.count("max_completion_tokens")?.or(maximum);
    // More than one call is the agent's own rule, so only the opposite is an override.
    let multi_tool_calls = body.flag("parallel_tool_calls")?.filter(|multi| !multi);
    let tools = body.list("tools")?.unwrap_or_default();
    if tools.iter().any(|tool| tool["function"]["strict"] == true) {
        ignored.push("tools[].function.strict");
    }
    let client_tools =
        tools.iter().enumerate().map(|(at, tool)| match tool["type"] == "function" {
            true => client_tool(&tool["function"], &format!("tools[{at}].function")),
            false => Err(wrong(format!("tools[{at}]"), "its type must be \"function\"")),
        });
    let client_tools = client_tools.collect::<Result<Vec<_>, _>>()?;
    let choice = body.take("tool_choice");
    let named: fn(&Value) -> &Value = |choice| &choice["function"]["name"];
    let tool_choice = tool_choice(choice.as_ref(), named, &client_tools)?;
    let format = body.object("response_format")?.map(Value::Object);
    let output =
        format.map(|format| output(&format, &format["json_schema"]["schema"], "response_format"));
    Ok(RunOverrides {
        multi_tool_calls,
        tool_choice,
        temperature,
        max_output_tokens: maximum,
        output: output.transpose()?.flatten(),
        client_tools: Some(client_tools).filter(|tools| !tools.is_empty()).map(Into::into),
        ..RunOverrides::default()
    })
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use callsheet_values::config::{ClientTool, OutputRequest};
    use callsheet_values::types::ToolChoice;

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
