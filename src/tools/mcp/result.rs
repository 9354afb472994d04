//! The result of `tools/call` as the output of a tool.
//!
//! The fields are those of the specification's type `CallToolResult`
//! (<https://modelcontextprotocol.io/specification/2026-07-28/server/tools#tool-result>).

use serde_json::Value;

use super::incoming::repair_note;
use super::value_in_text::holds;
use crate::{ParsedSchema, ToolError, ToolOutput};
use callsheet_values::types::{Image, Reference, ResultResource, excerpt};

/// Maximum number of characters of a violation of the schema in the note about it.
const VIOLATION_CHARS_MAX: usize = 200;

/// Maximum number of bytes of a structured value that the model reads beside the content. Of a longer one it reads the
/// reference. It is what `read_var` reads by default.
const VALUE_BYTES_MAX: usize = 8_192;

/// Converts a result. Content and structured value are both kept. The model reads the content, and behind it a
/// structured value that the content does not hold: the value itself, or if it is long, its `reference`. Without
/// content it reads only the value. Of a successful call it also reads a note if that value does not match the tool's
/// output schema. Without `reference` a long value is read whole.
///
/// # Errors
/// If it is not a complete result, or has neither content nor a structured value.
pub(super) fn output(
    result: &Value,
    schema: Option<&ParsedSchema>,
    reference: Option<&Reference>,
) -> Result<ToolOutput, ToolError> {
    complete(result)?;
    let content = result.get("content").and_then(Value::as_array).map(Vec::as_slice);
    let structured = result.get("structuredContent");
    if content.is_none() && structured.is_none() {
        return Err(ToolError::new("the server's result has no content"));
    }
    let content = content.unwrap_or_default();
    let mut output = match content {
        [block] if block["type"] == "text" => ToolOutput::from(text(block, "text")),
        blocks => blocks.iter().fold(ToolOutput::default(), with_block),
    };
    let is_error = result.get("isError").and_then(Value::as_bool).unwrap_or(false);
    if let Some(value) = structured {
        if output.has_content() && !holds(&output.text(), content, value) {
            output = with_value(output, value, reference);
        }
        output = output.with_structured(value.clone());
        let violation =
            schema.filter(|_| !is_error).and_then(|schema| schema.first_violation(value));
        if let Some(violation) = violation {
            let violation = excerpt(&violation, VIOLATION_CHARS_MAX);
            let note = format!("[the result does not match the tool's output schema: {violation}]");
            output = output.with_note(note);
        }
    }
    if let Some(note) = repair_note(result) {
        output = output.with_note(note);
    }
    Ok(if is_error { output.into_error() } else { output })
}

/// Checks that a result is complete.
///
/// # Errors
/// If it is of another kind.
pub(super) fn complete(result: &Value) -> Result<(), ToolError> {
    match result.get("resultType").and_then(Value::as_str) {
        None | Some("complete") => Ok(()),
        Some(other) => {
            let message = format!(
                "the server's result is of the kind {other:?}, which this host does not know"
            );
            Err(ToolError::new(message))
        }
    }
}

/// Returns whether a result links a resource.
pub(super) fn has_link(result: &Value) -> bool {
    let content = result.get("content").and_then(Value::as_array);
    content.into_iter().flatten().any(|block| block["type"] == "resource_link")
}

/// Adds the content of a resource: an image, or a resource.
pub(super) fn with_resource(output: ToolOutput, content: &Value) -> ToolOutput {
    let media_type = text(content, "mimeType");
    let image = content["blob"].as_str().filter(|_| media_type.starts_with("image/"));
    let image =
        image.and_then(|data| Image::parse(&format!("data:{media_type};base64,{data}")).ok());
    match image {
        Some(image) => output.with_part(image),
        None => output.with_part(resource(content)),
    }
}

/// Adds a structured value to the content: the value as JSON, or its reference if it is long.
fn with_value(output: ToolOutput, value: &Value, reference: Option<&Reference>) -> ToolOutput {
    let json = value.to_string();
    match reference.filter(|_| json.len() > VALUE_BYTES_MAX) {
        None => output.with_part(json),
        Some(reference) => {
            let bytes = json.len();
            output.with_part(format!("[more as JSON, {bytes} bytes: {reference}]"))
        }
    }
}

fn with_block(output: ToolOutput, block: &Value) -> ToolOutput {
    match block["type"].as_str().unwrap_or_default() {
        "text" => output.with_part(&*text(block, "text")),
        "image" => {
            let url = format!("data:{};base64,{}", text(block, "mimeType"), text(block, "data"));
            match Image::parse(&url) {
                Ok(image) => output.with_part(image),
                Err(_) => output.with_part(media("image", block)),
            }
        }
        "audio" => output.with_part(media("audio", block)),
        "resource" => output.with_part(resource(&block["resource"])),
        "resource_link" => output.with_part(resource(block)),
        other => output.with_part(&*format!("[content of the unknown kind {other:?}]")),
    }
}

fn media(name: &str, block: &Value) -> ResultResource {
    ResultResource::new(name, text(block, "mimeType")).with_data(text(block, "data"))
}

/// Returns an embedded or a linked resource.
fn resource(resource: &Value) -> ResultResource {
    let (uri, given) = (text(resource, "uri"), text(resource, "name"));
    let last = uri.rsplit('/').next().unwrap_or_default();
    let name = if given.is_empty() { last } else { &given };
    let mut made = ResultResource::new(name, text(resource, "mimeType"));
    if let Some(text) = resource["text"].as_str() {
        made = made.with_text(text);
    } else if let Some(blob) = resource["blob"].as_str() {
        made = made.with_data(blob);
    } else {
        made.bytes = resource["size"].as_u64();
    }
    made.uri = (!uri.is_empty()).then_some(uri.clone());
    made
}

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(result: Value) -> ToolOutput {
        output(&result, None, None).unwrap()
    }

    #[test]
    fn text_is_plain_and_errors_are_errors() {
        let result = json!({"content": [{"type": "text", "text": "hello"}]});
        assert_eq!(read(result), ToolOutput::from("hello"));
        let failed = json!({"content": [{"type": "text", "text": "no"}], "isError": true});
        assert!(read(failed).is_error());
        assert!(output(&json!({}), None, None).is_err());
        assert!(output(&json!({"resultType": "input_required"}), None, None).is_err());
        let complete = json!({"resultType": "complete", "content": []});
        assert_eq!(read(complete).text(), "");
    }

    #[test]
    fn the_model_reads_the_content_or_else_the_structured_value() {
        let both = json!({"content": [{"type": "text", "text": "7 degrees"}], "structuredContent": {"t": 7}});
        assert_eq!(read(both).text(), "7 degrees");
        let only = json!({"content": [], "structuredContent": {"t": 7}});
        assert_eq!(read(only).text(), "{\"t\":7}");
    }

    #[test]
    fn the_model_reads_a_value_that_the_content_does_not_hold_or_its_reference() {
        let rows = |count: usize| {
            let row = |at| json!({"name": format!("row {at}")});
            json!({"rows": (0..count).map(row).collect::<Vec<_>>()})
        };
        let content = json!([{"type": "text", "text": "Search executed (2 results)."}]);
        let result = |count| json!({"content": content, "structuredContent": rows(count)});
        let reference: Reference = "t1a1c0.structured".parse().unwrap();
        let text =
            |count, reference| output(&result(count), None, reference).unwrap().text().into_owned();
        let both = |count| format!("Search executed (2 results).\n{}", rows(count));
        assert_eq!(text(2, Some(&reference)), both(2));
        let noted = "Search executed (2 results).\n\
                     [more as JSON, 18900 bytes: $VAR_REF{{t1a1c0.structured}}]";
        assert_eq!(text(1_000, Some(&reference)), noted);
        assert_eq!(text(1_000, None), both(1_000));
        let parts = output(&result(1_000), None, Some(&reference)).unwrap().into_parts();
        assert_eq!(parts.1.unwrap().structured, Some(rows(1_000)));
    }

    #[test]
    fn media_and_resources_are_parts() {
        let result = json!({"content": [
            {"type": "text", "text": "see"},
            {"type": "image", "mimeType": "image/png", "data": "iVBORw=="},
            {"type": "audio", "mimeType": "audio/wav", "data": "AAAA"},
            {"type": "resource", "resource": {"uri": "file:///a/notes.txt", "mimeType": "text/plain", "text": "note"}},
            {"type": "resource_link", "uri": "file:///b.bin", "name": "b", "size": 9},
            {"type": "new_kind"},
        ]});
        let expected = "see\n[image image/png, 4 bytes]\n[resource audio, audio/wav, 3 bytes]\n\
                        [resource notes.txt, text/plain, 4 bytes, file:///a/notes.txt]\nnote\n\
                        [resource b, 9 bytes, file:///b.bin]\n[content of the unknown kind \"new_kind\"]";
        assert_eq!(read(result).text(), expected);
    }

    #[test]
    fn a_structured_value_that_does_not_match_its_schema_gets_a_note() {
        let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
        let schema = ParsedSchema::parse(schema).unwrap();
        let text =
            |result: Value| output(&result, Some(&schema), None).unwrap().text().into_owned();
        let note = "[the result does not match the tool's output schema: /n: \"x\" is not of type \"integer\"]";
        assert_eq!(text(json!({"structuredContent": {"n": 1}})), "{\"n\":1}");
        let wrong = json!({"structuredContent": {"n": "x"}});
        assert_eq!(text(wrong), format!("{{\"n\":\"x\"}}\n{note}"));
        let blank = json!([{"type": "text", "text": " "}]);
        let wrong = json!({"content": blank, "structuredContent": {"n": "x"}});
        assert_eq!(text(wrong), format!("{{\"n\":\"x\"}}\n{note}"));
        let content = json!([{"type": "text", "text": "seven"}]);
        let wrong = json!({"content": content, "structuredContent": {"n": "x"}});
        assert_eq!(text(wrong), format!("seven\n{{\"n\":\"x\"}}\n{note}"));
        let failed = json!({"isError": true, "content": content, "structuredContent": {"n": "x"}});
        assert_eq!(text(failed), "seven\n{\"n\":\"x\"}");
    }
}
