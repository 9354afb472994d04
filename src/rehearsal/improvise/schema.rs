//! What a JSON schema asks for.

use serde_json::Value;

use super::concepts;
use super::prompt::{Direction, Kind};

/// Schemas nest no deeper than this here; what is deeper becomes null.
pub(super) const DEPTH_MAX: usize = 8;

/// Follows `$ref` within the schema.
pub(super) fn resolve<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    let mut schema = schema;
    for _ in 0..DEPTH_MAX {
        let Some(target) = schema["$ref"].as_str() else { return schema };
        let Some(found) = target.strip_prefix('#').and_then(|path| root.pointer(path)) else {
            return schema;
        };
        schema = found;
    }
    schema
}

/// The schema's type; of several the first that is not null.
pub(super) fn type_of(schema: &Value) -> &str {
    let named = match &schema["type"] {
        Value::String(name) => Some(name.as_str()),
        Value::Array(names) => names.iter().filter_map(Value::as_str).find(|name| *name != "null"),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
    };
    named.unwrap_or(if schema["properties"].is_object() {
        "object"
    } else if schema["items"].is_object() {
        "array"
    } else {
        "string"
    })
}

/// Whether null is among the schema's types.
pub(super) fn is_nullable(schema: &Value) -> bool {
    schema["type"].as_array().is_some_and(|names| names.iter().any(|name| name == "null"))
}

/// What kind of text a property is, by its format, its name and its description.
pub(super) fn kind_of(name: &str, schema: &Value, calculates: bool) -> Kind {
    match schema["format"].as_str() {
        Some("uri" | "url" | "iri") => return Kind::Url,
        Some("email") => return Kind::Email,
        Some("date") => return Kind::Date,
        Some("date-time") => return Kind::DateTime,
        Some(_) | None => {}
    }
    let words = concepts::name_words(name);
    let has = |names: &[&str]| words.iter().any(|word| names.contains(&word.as_str()));
    let ends = |names: &[&str]| words.last().is_some_and(|word| names.contains(&word.as_str()));
    let description = schema["description"].as_str().unwrap_or_default().to_ascii_lowercase();
    if has(&["zone", "zones", "timezone", "timezones", "tz"]) || description.contains("iana") {
        return Kind::Zone;
    }
    if has(&["expression", "expressions", "expr", "formula", "equation", "calculation", "math"]) {
        return Kind::Expression;
    }
    if ends(&["url", "urls", "uri", "link", "links", "href"]) {
        return Kind::Url;
    }
    if ends(&["path", "paths", "file", "files", "filename", "filepath"]) {
        return Kind::Path;
    }
    if has(&[
        "city",
        "cities",
        "location",
        "locations",
        "place",
        "places",
        "town",
        "destination",
        "origin",
    ]) {
        return Kind::City;
    }
    if has(&["email", "emails", "recipient", "recipients"]) {
        return Kind::Email;
    }
    if ends(&["date", "day"]) {
        return Kind::Date;
    }
    if ends(&["symbol", "symbols", "ticker", "tickers"]) {
        return Kind::Symbol;
    }
    if ends(&["query", "queries", "q", "question", "keyword", "keywords", "search", "term"]) {
        return Kind::Query;
    }
    if ends(&["topic", "topics", "subject", "category"]) {
        return Kind::Topic;
    }
    if calculates { Kind::Expression } else { Kind::Text }
}

/// Which end of something a property is, by its name.
pub(super) fn direction_of(name: &str) -> Option<Direction> {
    concepts::name_words(name).iter().find_map(|word| match word.as_str() {
        "from" | "origin" | "source" | "departure" => Some(Direction::From),
        "to" | "destination" | "target" | "arrival" => Some(Direction::To),
        _ => None,
    })
}
