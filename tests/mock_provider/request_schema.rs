//! Checks requests against the JSON Schema of their wire format, and formats refusals as the provider
//! does.
//!
//! The rules are the keywords of `request.schema.json` in the folder of the wire format. The member `refusals`
//! of a schema maps keywords to refusals; `*` stands for all keywords without one of their own, and `body` for the
//! `type` of the whole request. The refusal of a fault is that of the innermost schema around it in the text of the
//! document that has one for the keyword; a schema that refers to it by `$ref` does not count. For a
//! missing member the search begins at the schema of that member. A fault without a refusal gets a general message.
//!
//! A refusal is a message, or an object with a `message`, a `code`, and a `param` that replaces the
//! path (`null`: none is sent). `message` and `param` can contain these placeholders:
//!
//! | placeholder | value |
//! | --- | --- |
//! | `{path}`, `{parent}` | the path of the faulty value, and of the object or list that contains it |
//! | `{dotted path}` | the path as in `messages.[0].content` |
//! | `{name}` | the member `name` of the innermost object around the value that has one |
//! | `{member}` | the key of the value |
//! | `{title}` | the `title` of the schema; without one the value of the keyword |
//! | `{rule}` | the value of the keyword, such as the list of an `enum` |
//! | `{found}`, `{a found}` | the type of the value: `bool`, or `a boolean` |
//! | `{length}` | the length of a string, in characters |
//! | `{reason}` | the reason for which the check of a `format` fails |
//! | `{value}` | the value |

use std::iter;

use serde_json::Value;

use super::text::items;
use callsheet_machines::contract::{CompiledSchema, FormatCheck, PathSegment, Violation};

/// The refusal of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// The HTTP status of the answer.
    pub(super) status: u16,
    /// The provider's message.
    pub(super) message: String,
    /// The path of the faulty part of the request, for providers that send one.
    pub(super) param: Option<String>,
    /// The provider's error code, if it has one.
    pub(super) code: Option<String>,
}

impl Refusal {
    pub(super) fn new(message: impl Into<String>, param: impl Into<String>) -> Self {
        Self { status: 400, message: message.into(), param: Some(param.into()), code: None }
    }
}

/// Appends a segment to the path of a value, as the provider writes it. `parent` contains the value.
type AppendSegment = fn(path: &mut String, parent: &Value, segment: &str);

/// The formats of a schema: their names, and their checks, which fail with the reason.
type Formats = &'static [(&'static str, FormatCheck)];

/// The placeholders of a refusal, and their values.
type Placeholders = [(&'static str, String); 12];

/// The compiled schema of the requests of a wire format.
pub(super) struct RequestSchema {
    document: Value,
    schema: CompiledSchema,
    append_segment: AppendSegment,
    formats: Formats,
}

impl RequestSchema {
    /// Compiles a schema of this crate.
    #[expect(clippy::expect_used, reason = "the schemas are part of the crate and have tests")]
    pub(super) fn new(text: &str, append_segment: AppendSegment, formats: Formats) -> Self {
        let document = serde_json::from_str(text).expect("a request schema is JSON");
        let schema = CompiledSchema::compile(&document, formats);
        let schema = schema.expect("a request schema is a JSON Schema");
        assert_eq!(schema.unchecked(), [""; 0], "a request schema is checked as a whole");
        Self { document, schema, append_segment, formats }
    }

    /// Checks a request.
    ///
    /// # Errors
    /// The provider's refusal of the first fault.
    pub(super) fn check(&self, request: &Value) -> Result<(), Refusal> {
        match self.schema.first_violation(request) {
            Some(violation) => Err(self.refusal(request, &violation)),
            None => Ok(()),
        }
    }

    fn refusal(&self, request: &Value, violation: &Violation) -> Refusal {
        let member = violation.member.as_deref();
        let fault = self.locate(request, &violation.path, member);

        let rule_at = violation.rule.as_str();
        let rule = self.document.pointer(rule_at).unwrap_or(&Value::Null);
        let (schema_at, keyword) = rule_at.rsplit_once('/').unwrap_or_default();
        let member_at = member.map(|key| format!("{schema_at}/properties/{key}"));
        let is_body = fault.path.is_empty() && keyword == "type";
        let keyword = if is_body { "body" } else { keyword };
        let template = self.template(member_at.as_deref().unwrap_or(schema_at), keyword);
        let Some(template) = template else {
            return Refusal::new(violation.to_string(), fault.path);
        };

        let title = self.document.pointer(&format!("{schema_at}/title")).unwrap_or(rule);
        let placeholders = self.placeholders(&fault, rule, title);
        let fill = |template: &Value| {
            let template = template.as_str()?.to_owned();
            Some(
                placeholders.iter().fold(template, |text, (name, value)| text.replace(name, value)),
            )
        };
        Refusal {
            status: 400,
            message: fill(template.get("message").unwrap_or(template)).unwrap_or_default(),
            param: template.get("param").map_or(Some(fault.path), fill),
            code: template["code"].as_str().map(str::to_owned),
        }
    }

    /// Finds the value at a location, or its member.
    fn locate<'a>(
        &self,
        request: &'a Value,
        path: &[PathSegment],
        member: Option<&str>,
    ) -> Fault<'a> {
        let mut fault = Fault { value: request, ..Fault::default() };
        let member = member.map(|name| PathSegment::Member(name.to_owned()));
        for segment in path.iter().chain(&member) {
            fault.name = fault.value["name"].as_str().unwrap_or(fault.name);
            fault.parent.clone_from(&fault.path);
            let value = fault.value;
            (fault.key, fault.value) = match segment {
                PathSegment::Member(name) => (name.clone(), &value[name]),
                PathSegment::Item(at) => (at.to_string(), &value[at]),
            };
            (self.append_segment)(&mut fault.path, value, &fault.key);
        }
        fault
    }

    fn placeholders(&self, fault: &Fault<'_>, rule: &Value, title: &Value) -> Placeholders {
        let text = fault.value.as_str().unwrap_or_default();
        let format = self.formats.iter().find(|(format, _)| rule == format);
        let reason = format.and_then(|(_, check)| check(text).err());
        let (found, a_found) = type_names(fault.value);
        [
            ("{path}", fault.path.clone()),
            ("{dotted path}", fault.path.replace('[', ".[")),
            ("{parent}", fault.parent.clone()),
            ("{name}", fault.name.to_owned()),
            ("{member}", fault.key.clone()),
            ("{title}", text_of(title)),
            ("{rule}", words(rule)),
            ("{found}", found.to_owned()),
            ("{a found}", a_found.to_owned()),
            ("{length}", text.chars().count().to_string()),
            ("{reason}", reason.unwrap_or_default()),
            ("{value}", text_of(fault.value)),
        ]
    }

    /// Finds the refusal for a keyword in the schema at a pointer, or in the innermost one around it.
    fn template(&self, schema_at: &str, keyword: &str) -> Option<&Value> {
        iter::successors(Some(schema_at), |inner| Some(inner.rsplit_once('/')?.0))
            .filter_map(|at| self.document.pointer(at)?.get("refusals"))
            .find_map(|refusals| refusals.get(keyword).or_else(|| refusals.get("*")))
    }
}

/// A value that breaks a rule, or a missing member.
#[derive(Default)]
struct Fault<'a> {
    value: &'a Value,
    path: String,
    /// The path of what contains the value.
    parent: String,
    /// The last segment of the path.
    key: String,
    /// The member `name` of the innermost value around the fault that has one.
    name: &'a str,
}

/// Appends a segment as in `messages[0].content`.
pub(super) fn append_bracketed(path: &mut String, parent: &Value, segment: &str) {
    let dot = if path.is_empty() { "" } else { "." };
    *path += &if parent.is_array() { format!("[{segment}]") } else { format!("{dot}{segment}") };
}

/// Returns a string without quotes, and any other value as JSON.
fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Returns a list of strings as in `'a', 'b', and 'c'`, and any other value as its text.
fn words(rule: &Value) -> String {
    let words: Vec<String> =
        items(rule).iter().map(|word| format!("'{}'", text_of(word))).collect();
    match words.as_slice() {
        [] => text_of(rule),
        [word] => word.clone(),
        [first, second] => format!("{first} and {second}"),
        [first @ .., last] => format!("{}, and {last}", first.join(", ")),
    }
}

/// Returns the type of a value, as Go names it and in words.
fn type_names(value: &Value) -> (&'static str, &'static str) {
    match value {
        Value::Null => ("null", "null"),
        Value::Bool(_) => ("bool", "a boolean"),
        Value::Number(_) => ("number", "a number"),
        Value::String(_) => ("string", "a string"),
        Value::Array(_) => ("array", "an array"),
        Value::Object(_) => ("object", "an object"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refusal(request: &Value) -> Refusal {
        let schema = json!({
            "type": "object",
            "additionalProperties": {"type": ["number", "string"], "title": "number"},
            "refusals": {
                "body": {"message": "no body", "param": null},
                "type": "{path} is {a found}, not {title}",
                "enum": {"message": "{value} is none of {rule}", "param": "{parent}", "code": "odd"},
            },
            "properties": {
                "list": {"items": {"required": ["kind"], "properties": {
                    "kind": {"enum": ["a", "b", "c"], "refusals": {"required": "{parent} of {name}: {member}"}},
                    "text": {"title": "text", "type": "string", "format": "never", "maxLength": 3, "refusals": {
                        "format": "{dotted path}: {reason}",
                        "*": "{length} of {rule}",
                    }},
                }}},
            },
        });
        let formats: Formats = &[("never", |text| Err(format!("{text} is wrong")))];
        let schema = RequestSchema::new(&schema.to_string(), append_bracketed, formats);
        schema.check(request).unwrap_err()
    }

    #[test]
    fn the_refusal_is_that_of_the_innermost_schema() {
        let item = |item: Value| json!({"name": "n", "list": [item]});
        for (request, message, param) in [
            (json!([]), "no body", None),
            (json!({"x": true}), "x is a boolean, not number", Some("x")),
            (item(json!({})), "list[0] of n: kind", Some("list[0].kind")),
            (item(json!({"kind": "d"})), "d is none of 'a', 'b', and 'c'", Some("list[0]")),
            (
                item(json!({"kind": "a", "text": "x"})),
                "list.[0].text: x is wrong",
                Some("list[0].text"),
            ),
            (item(json!({"kind": "a", "text": "wxyz"})), "4 of 3", Some("list[0].text")),
            (item(json!({"kind": "a", "text": 1})), "0 of string", Some("list[0].text")),
        ] {
            let refusal = refusal(&request);
            assert_eq!(
                (&*refusal.message, refusal.param.as_deref()),
                (message, param),
                "{request}"
            );
            assert_eq!(refusal.code.is_some(), message.contains("none of"));
        }
    }
}
