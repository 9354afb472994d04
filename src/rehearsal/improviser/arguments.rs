//! Makes arguments for a tool's JSON schema, and typed answers, from the values of a prompt.
//!
//! Keywords that are not read here, such as `pattern`, are ignored, so the arguments may break their rules.

use serde_json::{Map, Value, json};

use super::prompt::{Prompt, ValueKind};
use super::tool_selection::kind_of_property;

/// The depth below which every value is null. Schemas may refer to themselves.
const DEPTH_MAX: usize = 12;

/// The depth below which lists are as short as possible, and what may be null is null.
const DEEP: usize = 6;

/// The largest length of a text that is made of the whole prompt, in characters.
const TEXT_CHARS_MAX: usize = 500;

/// Makes the arguments of one call.
pub(super) struct ArgumentFiller<'a> {
    prompt: &'a Prompt,
    /// The tool's whole schema, for `$ref`.
    root: &'a Value,
    /// A text property whose value is decided already, and the value.
    decided: Option<(&'a str, &'a str)>,
}

impl<'a> ArgumentFiller<'a> {
    pub(super) fn new(prompt: &'a Prompt, root: &'a Value) -> Self {
        Self { prompt, root, decided: None }
    }

    /// Gives a property this value.
    pub(super) fn with(self, property: &'a str, value: &'a str) -> Self {
        Self { decided: Some((property, value)), ..self }
    }

    /// Returns the arguments: always an object.
    pub(super) fn fill(&self) -> Value {
        let filled = self.value("", self.root, 0);
        if filled.is_object() { filled } else { json!({}) }
    }

    /// Returns a value of any type. An object without properties gets one with the prompt.
    pub(super) fn fill_any(&self) -> Value {
        let is_closed = self.root["additionalProperties"] == false;
        let filled = self.value("", self.root, 0);
        match filled.as_object() {
            Some(fields) if fields.is_empty() && !is_closed => {
                json!({"text": self.text("text", &Value::Null)})
            }
            Some(_) | None => filled,
        }
    }

    fn value(&self, name: &str, schema: &Value, depth: usize) -> Value {
        if depth > DEPTH_MAX {
            return Value::Null;
        }
        if let Some(target) = schema["$ref"].as_str() {
            let found = target.strip_prefix('#').and_then(|path| self.root.pointer(path));
            return found.map_or(Value::Null, |found| self.value(name, found, depth + 1));
        }
        if let Some(constant) = schema.get("const") {
            return constant.clone();
        }
        if let Some(choices) = schema["enum"].as_array() {
            let is_named = |choice: &&Value| {
                choice.as_str().is_some_and(|word| self.prompt.position_of(word).is_some())
            };
            let chosen = choices.iter().find(is_named).or_else(|| schema.get("default"));
            return chosen.or(choices.first()).cloned().unwrap_or(Value::Null);
        }
        if let Some(options) = schema["anyOf"].as_array().or(schema["oneOf"].as_array()) {
            let is_null = |option: &&Value| option["type"] == "null";
            let option = match depth > DEEP {
                true => options.iter().find(is_null).or(options.first()),
                false => options.iter().find(|option| !is_null(option)),
            };
            return option.map_or(Value::Null, |option| self.value(name, option, depth + 1));
        }
        if let Some(parts) = schema["allOf"].as_array().filter(|_| schema["properties"].is_null()) {
            let parts = parts.iter().map(|part| self.value(name, part, depth + 1));
            let fields = parts.filter_map(|part| part.as_object().cloned()).flatten();
            return Value::Object(fields.collect());
        }
        match schema_type(schema) {
            "object" => self.object(schema, depth),
            "array" => {
                let shortest = u64::from(depth <= DEEP);
                let least = schema["minItems"].as_u64().unwrap_or(0).clamp(shortest, 16);
                (0..least).map(|_| self.value(name, &schema["items"], depth + 1)).collect()
            }
            "integer" => self.number(name, schema, true),
            "number" => self.number(name, schema, false),
            "boolean" => {
                let named = self.prompt.named_value(name).and_then(|text| text.parse().ok());
                named.or(schema["default"].as_bool()).unwrap_or(false).into()
            }
            "null" => Value::Null,
            _ => self.text(name, schema).into(),
        }
    }

    /// Fills the required properties, the decided one, and those to which the prompt gives a value by name.
    fn object(&self, schema: &Value, depth: usize) -> Value {
        let mut fields = Map::new();
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let required = schema["required"].as_array().into_iter().flatten();
            let is_wanted = required.into_iter().any(|required| required == name.as_str())
                || self.decided.is_some_and(|(decided, _)| decided == name)
                || self.prompt.named_value(name).is_some();
            if is_wanted {
                fields.insert(name.clone(), self.value(name, property, depth + 1));
            }
        }
        Value::Object(fields)
    }

    fn number(&self, name: &str, schema: &Value, whole: bool) -> Value {
        let named = self.prompt.named_value(name).and_then(|text| text.parse::<f64>().ok());
        let default = schema["default"].as_f64();
        let found = || self.prompt.numbers().into_iter().find(|n| !whole || n.fract() == 0.0);
        let mut number = named.or(default).or_else(found).unwrap_or(1.0);
        if whole {
            number = number.trunc();
        }
        let step = if whole { 1.0 } else { 0.001 };
        let bound = |inclusive: &str, exclusive: &str, step: f64| {
            schema[inclusive].as_f64().or_else(|| Some(schema[exclusive].as_f64()? + step))
        };
        let most = bound("maximum", "exclusiveMaximum", -step);
        if let Some(most) = most {
            number = number.min(most);
        }
        if let Some(least) = bound("minimum", "exclusiveMinimum", step) {
            number = number.max(least);
        }
        if let Some(multiple) = schema["multipleOf"].as_f64().filter(|m| *m > 0.0) {
            number = (number / multiple).ceil() * multiple;
            if most.is_some_and(|most| number > most) {
                number -= multiple;
            }
        }
        // A JSON integer has no fraction. A number that does not fit an `i64` stays as it is.
        let is_integer = number.fract() == 0.0 && number.abs() < i64::MAX as f64;
        if is_integer { json!(number as i64) } else { json!(number) }
    }

    fn text(&self, name: &str, schema: &Value) -> String {
        let kind = kind_of_property(name);
        let decided = self.decided.filter(|(decided, _)| *decided == name).map(|(_, text)| text);
        let named = decided.or_else(|| self.prompt.named_value(name)).map(str::to_owned);
        let found = || self.prompt.values(kind).into_iter().next().map(|value| value.text);
        let default = || schema["default"].as_str().map(str::to_owned);
        let made_up = || match (schema["format"].as_str(), kind) {
            (Some("date"), _) => "2025-01-01".to_owned(),
            (Some("date-time"), _) => "2025-01-01T00:00:00Z".to_owned(),
            (Some("time"), _) => "00:00:00Z".to_owned(),
            (Some("uuid"), _) => "00000000-0000-4000-8000-000000000000".to_owned(),
            (Some("email"), _) => "someone@example.com".to_owned(),
            (Some("uri" | "url"), _) | (_, ValueKind::Url) => "https://example.com/".to_owned(),
            (_, ValueKind::TimeZone) => "UTC".to_owned(),
            (_, ValueKind::City) => "London".to_owned(),
            (_, ValueKind::Expression) => "1 + 1".to_owned(),
            (_, ValueKind::Path) => "README.md".to_owned(),
            (_, ValueKind::Text) => {
                let text = self.prompt.text.trim().trim_end_matches(['?', '.', '!']);
                text.chars().take(TEXT_CHARS_MAX).collect()
            }
        };
        let has_format = schema["format"].is_string();
        let found = named.or_else(|| found().filter(|_| !has_format));
        let text = found.or_else(default).unwrap_or_else(made_up);
        let length = |key: &str| schema[key].as_u64().map(|n| usize::try_from(n).unwrap_or(4096));
        let mut text: String = match length("maxLength") {
            Some(most) => text.chars().take(most).collect(),
            None => text,
        };
        let missing = length("minLength").unwrap_or(0).min(4096);
        text.extend(std::iter::repeat_n('x', missing.saturating_sub(text.chars().count())));
        text
    }
}

/// Returns the schema's type; of several, the first that is not null. Without one: object if it has properties,
/// else string.
fn schema_type(schema: &Value) -> &str {
    let kind = &schema["type"];
    let first = || kind.as_array()?.iter().filter_map(Value::as_str).find(|name| *name != "null");
    let implied = if schema["properties"].is_object() { "object" } else { "string" };
    kind.as_str().or_else(first).unwrap_or(implied)
}
