//! The address of a request, and the members of the body other than the contents, as in Google's API
//! reference, <https://ai.google.dev/api/generate-content>.

use serde_json::{Map, Value, json};

use super::schema::parameters;
use super::{GeminiDialect, messages};
use crate::dialect::{KeyHeader, RequestFormat, has_version};
use crate::extra_members::present_members;
use crate::request_cache::HistoryWriter;
use crate::{Framing, ModelRequest, ToolChoice, ToolDefinition};

/// First segments of model names that are resource names of another kind than `models/..`.
const RESOURCES: [&str; 4] = ["tunedModels", "publishers", "endpoints", "projects"];

impl RequestFormat for GeminiDialect {
    const STREAM_FRAMING: Framing = Framing::Sse;
    const KEY_HEADER: KeyHeader = KeyHeader { name: "x-goog-api-key", prefix: "" };
    const HISTORY_MEMBER: &'static str = "contents";
    const PROTECTED_MEMBERS: &'static [&'static str] = &["tools"];

    /// Returns the URL of requests. A base without a version gets the version of the Gemini API.
    /// On Vertex AI the name of a model belongs to a publisher: to Google, unless the base names one or
    /// the name of the model is a resource name.
    fn url(base: &str, model: &str, stream: bool) -> String {
        let base = base.strip_suffix("/models").unwrap_or(base);
        let base = if has_version(base) { base.to_owned() } else { format!("{base}/v1beta") };
        let is_vertex = base.contains("aiplatform.googleapis.com") || base.contains("/projects/");
        let model = model.trim_matches('/');
        let model = model.strip_prefix("models/").unwrap_or(model);
        let kind =
            model.split('/').next().filter(|kind| model.contains('/') && RESOURCES.contains(kind));
        let (base, resource) = match kind {
            // The base may hold the beginning of the resource name already.
            Some(kind) => {
                let before = base.find(&format!("/{kind}/")).and_then(|at| base.get(..at));
                (before.unwrap_or(&base), percent_encode(model, true))
            }
            None if is_vertex && !base.contains("/publishers/") => {
                (&*base, format!("publishers/google/models/{}", percent_encode(model, false)))
            }
            None => (&*base, format!("models/{}", percent_encode(model, false))),
        };
        let method = if stream { "streamGenerateContent?alt=sse" } else { "generateContent" };
        format!("{base}/{resource}:{method}")
    }

    fn head(request: &ModelRequest) -> Value {
        let has_tools = !request.tools.is_empty();
        let system = request.system.as_deref().filter(|text| !text.is_empty());
        let config = present_members(json!({
            "maxOutputTokens": request.max_output_tokens,
            "temperature": request.temperature,
            "responseMimeType": request.output_schema.is_some().then_some("application/json"),
            "responseJsonSchema": request.output_schema,
        }));
        let declarations = || request.tools.iter().map(declaration).collect::<Vec<_>>();
        json!({
            "systemInstruction": system.map(|text| json!({"parts": [{"text": text}]})),
            "tools": has_tools.then(|| json!([{"functionDeclarations": declarations()}])),
            "toolConfig": has_tools.then(|| tool_config(&request.tool_choice)),
            "generationConfig": Some(config).filter(|members| !members.is_empty()),
        })
    }

    fn write_history(request: &ModelRequest, writer: &mut HistoryWriter) {
        messages::write(request, writer);
    }
}

/// Percent-encodes a model's name, except for its slashes if `keeps_slashes`.
fn percent_encode(name: &str, keeps_slashes: bool) -> String {
    let mut text = String::with_capacity(name.len());
    for byte in name.bytes() {
        let plain = byte.is_ascii_alphanumeric() || b"-._~@".contains(&byte);
        if plain || (keeps_slashes && byte == b'/') {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

fn declaration(tool: &ToolDefinition) -> Map<String, Value> {
    let ToolDefinition { name, description, schema } = tool;
    let parameters = parameters(schema);
    present_members(json!({"name": name, "description": description, "parameters": parameters}))
}

fn tool_config(choice: &ToolChoice) -> Value {
    let calling = match choice {
        ToolChoice::Auto => json!({"mode": "AUTO"}),
        ToolChoice::None => json!({"mode": "NONE"}),
        ToolChoice::Required => json!({"mode": "ANY"}),
        ToolChoice::Tool(name) => json!({"mode": "ANY", "allowedFunctionNames": [**name]}),
    };
    json!({"functionCallingConfig": calling})
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Wire;
    use crate::WireFormat as _;

    #[test]
    fn addresses_of_all_kinds_of_bases_and_models() {
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
            assert_eq!(
                GeminiDialect::url(&base, model, false),
                format!("{expected}:generateContent")
            );
            let streamed = format!("{expected}:streamGenerateContent?alt=sse");
            assert_eq!(GeminiDialect::url(&base, model, true), streamed);
        }
    }

    fn sent(request: &ModelRequest) -> Value {
        serde_json::from_slice(&Wire::GeminiGenerate.request_body(request)).unwrap()
    }

    #[test]
    fn members_without_a_value_are_not_sent() {
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
