//! A request's address, and its body.

use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};
use serde_json::Value;

use super::schema::parameters;
use crate::wire::dialect::has_version;
use crate::wire::members::Members;
use crate::wire::{ModelRequest, ToolChoice, ToolDefinition};

/// What a model's name may begin with if it says itself what kind of resource it is.
const RESOURCES: [&str; 4] = ["tunedModels", "publishers", "endpoints", "projects"];

/// The address that takes a request.
///
/// A base without a version gets the Gemini API's. On Vertex AI a model belongs to a publisher,
/// which is Google where neither base nor model names one.
pub(super) fn url(base: &str, model: &str, stream: bool) -> String {
    let base = base.strip_suffix("/models").unwrap_or(base);
    let base = if has_version(base) { base.to_owned() } else { format!("{base}/v1beta") };
    let is_vertex = base.contains("aiplatform.googleapis.com") || base.contains("/projects/");
    let model = model.trim_matches('/');
    let model = model.strip_prefix("models/").unwrap_or(model);
    let kind =
        model.split('/').next().filter(|kind| model.contains('/') && RESOURCES.contains(kind));
    let (base, resource) = match kind {
        // What the base says of this already is not said twice.
        Some(kind) => {
            let before = base.find(&format!("/{kind}/")).and_then(|at| base.get(..at));
            (before.unwrap_or(&base), encoded(model, true))
        }
        None if is_vertex && !base.contains("/publishers/") => {
            (&*base, format!("publishers/google/models/{}", encoded(model, false)))
        }
        None => (&*base, format!("models/{}", encoded(model, false))),
    };
    let method = if stream { "streamGenerateContent?alt=sse" } else { "generateContent" };
    format!("{base}/{resource}:{method}")
}

fn encoded(name: &str, with_slashes: bool) -> String {
    let mut text = String::with_capacity(name.len());
    for byte in name.bytes() {
        let plain = byte.is_ascii_alphanumeric() || b"-._~@".contains(&byte);
        if plain || (with_slashes && byte == b'/') {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

/// Members which the host relies on, so that `extra_body` cannot replace them.
const OURS: [&str; 2] = ["contents", "tools"];

pub(super) struct Head<'a>(pub(super) &'a ModelRequest);

impl Serialize for Head<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Config {
            #[serde(rename = "maxOutputTokens", skip_serializing_if = "Option::is_none")]
            max_output_tokens: Option<u32>,
            #[serde(skip_serializing_if = "Option::is_none")]
            temperature: Option<f64>,
        }
        let request = self.0;
        let mut body = Members::new(serializer.serialize_map(None)?, request, &OURS);
        if let Some(text) = request.system.as_deref().filter(|text| !text.is_empty()) {
            body.put("systemInstruction", &System { parts: [Text { text }] })?;
        }
        if !request.tools.is_empty() {
            body.put("tools", &[Tools { declarations: Declarations(&request.tools) }])?;
            body.put("toolConfig", &Choice(&request.tool_choice))?;
        }
        let &ModelRequest { max_output_tokens, temperature, .. } = request;
        if max_output_tokens.is_some() || temperature.is_some() {
            body.put("generationConfig", &Config { max_output_tokens, temperature })?;
        }
        body.end()
    }
}

#[derive(Serialize)]
struct System<'a> {
    parts: [Text<'a>; 1],
}

#[derive(Serialize)]
struct Text<'a> {
    text: &'a str,
}

#[derive(Serialize)]
struct Tools<'a> {
    #[serde(rename = "functionDeclarations")]
    declarations: Declarations<'a>,
}

struct Declarations<'a>(&'a [ToolDefinition]);

impl Serialize for Declarations<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Declaration<'a> {
            name: &'a str,
            description: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            parameters: Option<Value>,
        }
        let mut seq = serializer.serialize_seq(Some(self.0.len()))?;
        for ToolDefinition { name, description, schema } in self.0 {
            let parameters = parameters(schema);
            seq.serialize_element(&Declaration { name, description, parameters })?;
        }
        seq.end()
    }
}

struct Choice<'a>(&'a ToolChoice);

impl Serialize for Choice<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Mode<'a> {
            mode: &'static str,
            #[serde(rename = "allowedFunctionNames", skip_serializing_if = "Option::is_none")]
            allowed: Option<[&'a str; 1]>,
        }
        let (mode, allowed) = match self.0 {
            ToolChoice::Auto => ("AUTO", None),
            ToolChoice::None => ("NONE", None),
            ToolChoice::Required => ("ANY", None),
            ToolChoice::Tool(name) => ("ANY", Some([&**name])),
        };
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry("functionCallingConfig", &Mode { mode, allowed })?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::wire::Wire;

    #[test]
    fn the_address_of_every_base_and_model() {
        let google = "https://generativelanguage.googleapis.com";
        let vertex = "https://us-central1-aiplatform.googleapis.com/v1/projects/p/locations/l";
        for (base, model, expected) in [
            (google.to_owned(), "m", format!("{google}/v1beta/models/m")),
            (format!("{google}/v1beta"), "m", format!("{google}/v1beta/models/m")),
            (format!("{google}/v1"), "models/m", format!("{google}/v1/models/m")),
            (format!("{google}/v1alpha/models"), "m", format!("{google}/v1alpha/models/m")),
            (google.to_owned(), "tunedModels/t", format!("{google}/v1beta/tunedModels/t")),
            (vertex.to_owned(), "m", format!("{vertex}/publishers/google/models/m")),
            (
                format!("{vertex}/publishers/google"),
                "m@001",
                format!("{vertex}/publishers/google/models/m@001"),
            ),
            (
                format!("{vertex}/publishers/google"),
                "publishers/google/models/m",
                format!("{vertex}/publishers/google/models/m"),
            ),
            (vertex.to_owned(), "endpoints/7", format!("{vertex}/endpoints/7")),
            (
                "https://aiplatform.googleapis.com/v1".to_owned(),
                "m",
                "https://aiplatform.googleapis.com/v1/publishers/google/models/m".to_owned(),
            ),
            (
                "http://127.0.0.1:1/gemini".to_owned(),
                "a b/c:4?",
                "http://127.0.0.1:1/gemini/v1beta/models/a%20b%2Fc%3A4%3F".to_owned(),
            ),
        ] {
            assert_eq!(url(&base, model, false), format!("{expected}:generateContent"));
            let streamed = format!("{expected}:streamGenerateContent?alt=sse");
            assert_eq!(url(&base, model, true), streamed);
        }
    }

    fn sent(request: &ModelRequest) -> Value {
        serde_json::from_slice(&Wire::GeminiGenerate.request_body(request)).unwrap()
    }

    #[test]
    fn nothing_is_said_of_what_is_not_asked() {
        assert_eq!(sent(&ModelRequest::new("m", [].into())), json!({"contents": []}));
    }

    #[test]
    fn extra_members_are_merged_but_not_with_what_the_host_relies_on() {
        let extra = json!({"generationConfig": {"thinkingConfig": {"includeThoughts": true},
            "temperature": 1}, "contents": "x", "tools": [], "safetySettings": []});
        let request = ModelRequest {
            temperature: Some(0.5),
            max_output_tokens: Some(9),
            extra_body: extra.as_object().unwrap().clone(),
            omit_body: ["systemInstruction".to_owned()].into(),
            system: Some("Be brief.".into()),
            ..ModelRequest::new("m", [].into())
        };
        assert_eq!(
            sent(&request),
            json!({"contents": [], "safetySettings": [], "generationConfig":
                {"thinkingConfig": {"includeThoughts": true}, "temperature": 1, "maxOutputTokens": 9}})
        );
    }
}
