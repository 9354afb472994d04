//! Arguments that fit a JSON schema, filled from a prompt.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::concepts;
use super::prompt::{Kind, Prompt};
use super::schema::{DEPTH_MAX, direction_of, is_nullable, kind_of, resolve, type_of};

/// One call's arguments hold no more values than this: schemas may refer to themselves.
const VALUES_MAX: usize = 200;

/// Texts made of the prompt as a whole are no longer than this.
const WHOLE_CHARS_MAX: usize = 500;

/// What one call's arguments are filled from. Values are used up in order; the last one of a kind
/// is used again when more are needed.
pub(super) struct Filler<'a> {
    prompt: &'a Prompt,
    /// The whole schema, for `$ref`.
    root: &'a Value,
    /// The tool calculates: its texts are expressions.
    calculates: bool,
    queues: BTreeMap<Kind, Vec<String>>,
    numbers: Vec<f64>,
    quoted: Vec<String>,
    /// Which of several equal calls this is.
    iteration: Option<usize>,
    values_left: usize,
}

impl<'a> Filler<'a> {
    pub(super) fn new(prompt: &'a Prompt, root: &'a Value, calculates: bool) -> Self {
        let kinds = [
            Kind::Zone,
            Kind::City,
            Kind::Expression,
            Kind::Url,
            Kind::Path,
            Kind::Email,
            Kind::Date,
            Kind::DateTime,
            Kind::Symbol,
        ];
        let texts = |kind| prompt.values(kind).into_iter().map(|found| found.text).collect();
        Self {
            prompt,
            root,
            calculates,
            queues: kinds.into_iter().map(|kind| (kind, texts(kind))).collect(),
            numbers: prompt.numbers.clone(),
            quoted: prompt.quoted.clone(),
            iteration: None,
            values_left: VALUES_MAX,
        }
    }

    /// Fills from this value first (and, of its kind, from nothing else).
    pub(super) fn with_value(mut self, kind: Kind, value: &str) -> Self {
        self.queues.insert(kind, vec![value.to_owned()]);
        self
    }

    /// Counts a call among equal ones.
    pub(super) fn with_iteration(mut self, iteration: usize) -> Self {
        self.iteration = Some(iteration);
        self
    }

    /// The arguments: always an object.
    pub(super) fn arguments(&mut self) -> Value {
        match self.value("", self.root, 0) {
            Value::Object(fields) => Value::Object(fields),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_) => {
                json!({})
            }
        }
    }

    fn value(&mut self, name: &str, schema: &'a Value, depth: usize) -> Value {
        if depth > DEPTH_MAX || self.values_left == 0 {
            return Value::Null;
        }
        self.values_left -= 1;
        let schema = resolve(self.root, schema);
        if let Some(constant) = schema.get("const") {
            return constant.clone();
        }
        if let Some(choices) = schema["enum"].as_array() {
            return self.choose(name, schema, choices);
        }
        for key in ["anyOf", "oneOf"] {
            let Some(options) = schema[key].as_array() else { continue };
            let nullable = options.iter().any(|option| option["type"] == "null");
            let first = options.iter().find(|option| option["type"] != "null");
            let Some(first) = first else { return Value::Null };
            if nullable && !self.is_sure(name, first) {
                return Value::Null;
            }
            return self.value(name, first, depth + 1);
        }
        if let Some(parts) = schema["allOf"].as_array()
            && schema["properties"].is_null()
        {
            return self.all_of(name, parts, depth);
        }
        match type_of(schema) {
            "object" => self.object(schema, depth),
            "array" => self.array(name, schema, depth),
            "integer" => self.number(name, schema, true),
            "number" => self.number(name, schema, false),
            "boolean" => self.boolean(name, schema),
            "null" => Value::Null,
            _ if is_nullable(schema) && !self.is_sure(name, schema) => Value::Null,
            _ => self.string(name, schema),
        }
    }

    fn all_of(&mut self, name: &str, parts: &'a [Value], depth: usize) -> Value {
        let mut whole = Map::new();
        for part in parts {
            let value = self.value(name, part, depth + 1);
            let Value::Object(fields) = value else { return value };
            whole.extend(fields);
        }
        Value::Object(whole)
    }

    /// The required properties, the first if none is, and those that the prompt surely speaks of.
    fn object(&mut self, schema: &'a Value, depth: usize) -> Value {
        let mut fields = Map::new();
        let Some(properties) = schema["properties"].as_object() else {
            return Value::Object(fields);
        };
        let required = schema["required"].as_array();
        let is_required =
            |name: &String| required.is_some_and(|r| r.iter().any(|r| r == name.as_str()));
        let none_required = !properties.keys().any(is_required);
        for (at, (name, property)) in properties.iter().enumerate() {
            let only = none_required && at == 0 && depth == 0;
            if is_required(name) || only || self.is_sure(name, property) {
                let value = self.value(name, property, depth + 1);
                fields.insert(name.clone(), value);
            }
        }
        Value::Object(fields)
    }

    /// Whether the prompt holds a value that can only be meant for this property.
    fn is_sure(&self, name: &str, schema: &Value) -> bool {
        let schema = resolve(self.root, schema);
        if let Some(choices) = schema["enum"].as_array() {
            return choices.iter().any(|choice| self.speaks_of(choice));
        }
        if self.named_value(name).is_some() {
            return true;
        }
        let scalar = type_of(schema) == "string";
        let queue = self.queues.get(&kind_of(name, schema, self.calculates));
        scalar && queue.is_some_and(|values| !values.is_empty())
    }

    fn speaks_of(&self, choice: &Value) -> bool {
        choice.as_str().is_some_and(|word| !word.is_empty() && self.prompt.mentions(word).is_some())
    }

    /// The choice that the prompt names, or one that means the same, or the default or first.
    fn choose(&self, name: &str, schema: &Value, choices: &[Value]) -> Value {
        let place =
            |choice: &Value| self.prompt.mentions(choice.as_str().filter(|c| !c.is_empty())?);
        let mut places: Vec<usize> = choices.iter().filter_map(place).collect();
        places.sort_unstable();
        let meant = direction_of(name).and_then(|way| self.prompt.directed(way, &places));
        let spoken = choices
            .iter()
            .find(|choice| place(choice).is_some_and(|at| meant.is_none_or(|meant| meant == at)));
        let alike = || {
            choices.iter().find(|choice| {
                let meant =
                    concepts::of_text(&choice.as_str().unwrap_or_default().to_ascii_lowercase());
                meant.iter().any(|(c, _)| self.prompt.concepts.iter().any(|(own, _)| own == c))
            })
        };
        let default = || schema.get("default").filter(|default| choices.contains(default));
        spoken.or_else(alike).or_else(default).or(choices.first()).cloned().unwrap_or(Value::Null)
    }

    fn array(&mut self, name: &str, schema: &'a Value, depth: usize) -> Value {
        let items = &schema["items"];
        let least = schema["minItems"].as_u64().unwrap_or(0) as usize;
        let most = schema["maxItems"].as_u64().map_or(16, |most| most as usize);
        let item_type = type_of(resolve(self.root, items));
        let here = match item_type {
            "string" => {
                let kind = kind_of(name, resolve(self.root, items), self.calculates);
                self.queues.get(&kind).map_or(self.quoted.len(), Vec::len)
            }
            "integer" | "number" => self.numbers.len(),
            _ => 1,
        };
        let count = here.max(1).max(least).min(most.min(16));
        (0..count).map(|_| self.value(name, items, depth + 1)).collect()
    }

    fn number(&mut self, name: &str, schema: &Value, whole: bool) -> Value {
        let counts = ["i", "index", "n", "number", "id"].contains(&name);
        let named = self.named_value(name).and_then(|text| text.parse::<f64>().ok());
        let iterated = self.iteration.filter(|_| counts).map(|i| i as f64);
        let fits = |n: &f64| !whole || n.fract() == 0.0;
        let spoken = named.or(iterated).or_else(|| {
            if schema.get("default").is_some() {
                return None;
            }
            let at = self.numbers.iter().position(fits)?;
            let number = self.numbers.get(at).copied();
            if self.numbers.len() > 1 {
                self.numbers.remove(at);
            }
            number
        });
        let default = schema["default"].as_f64().unwrap_or(1.0);
        let step = if whole { 1.0 } else { f64::EPSILON };
        let mut number = spoken.filter(fits).unwrap_or(default);
        let bound = |key: &str| schema[key].as_f64();
        if let Some(most) = bound("maximum").or(bound("exclusiveMaximum").map(|m| m - step)) {
            number = number.min(most);
        }
        if let Some(least) = bound("minimum").or(bound("exclusiveMinimum").map(|m| m + step)) {
            number = number.max(least);
        }
        if let Some(multiple) = bound("multipleOf").filter(|m| *m > 0.0) {
            number = (number / multiple).ceil() * multiple;
        }
        // `as` saturates, and integers of JSON must not be written with a fraction.
        if number.fract() == 0.0 { json!(number as i64) } else { json!(number) }
    }

    fn boolean(&self, name: &str, schema: &Value) -> Value {
        if let Some(said) = self.named_value(name).and_then(|text| text.parse::<bool>().ok()) {
            return said.into();
        }
        let default = schema["default"].as_bool().unwrap_or(false);
        (default || self.prompt.mentions(name).is_some()).into()
    }

    fn string(&mut self, name: &str, schema: &Value) -> Value {
        let kind = kind_of(name, schema, self.calculates);
        let named = self.named_value(name);
        let text =
            named.or_else(|| self.take(name, kind)).unwrap_or_else(|| self.made_up(kind, schema));
        let mut text = text;
        if let Some(most) = schema["maxLength"].as_u64() {
            text = text.chars().take(usize::try_from(most).unwrap_or(usize::MAX)).collect();
        }
        let least =
            usize::try_from(schema["minLength"].as_u64().unwrap_or(0)).unwrap_or(0).min(4096);
        let missing = least.saturating_sub(text.chars().count());
        text.extend(std::iter::repeat_n('x', missing));
        text.into()
    }

    fn take(&mut self, name: &str, kind: Kind) -> Option<String> {
        let queue = self.queues.get_mut(&kind)?;
        if queue.len() < 2 {
            return queue.first().cloned();
        }
        let Some(way) = direction_of(name) else { return Some(queue.remove(0)) };
        let values = self.prompt.values(kind);
        let places: Vec<usize> = values.iter().map(|found| found.at).collect();
        let meant = self.prompt.directed(way, &places)?;
        values.into_iter().find(|found| found.at == meant).map(|found| found.text)
    }

    /// A text where the prompt holds no value of the kind.
    fn made_up(&mut self, kind: Kind, schema: &Value) -> String {
        if let Some(default) = schema["default"].as_str() {
            return default.to_owned();
        }
        let prompt = self.prompt;
        let quote = if self.quoted.len() > 1 {
            Some(self.quoted.remove(0))
        } else {
            self.quoted.first().cloned()
        };
        let whole = || {
            let text = prompt.text.trim().trim_end_matches(['?', '.', '!', '？', '。', '！']);
            text.chars().take(WHOLE_CHARS_MAX).collect()
        };
        match kind {
            Kind::Zone => "UTC".to_owned(),
            Kind::City => "London".to_owned(),
            Kind::Expression => quote.unwrap_or_else(|| "1 + 1".to_owned()),
            Kind::Url => "https://example.com/".to_owned(),
            Kind::Path => quote.unwrap_or_else(|| "README.md".to_owned()),
            Kind::Email => "someone@example.com".to_owned(),
            Kind::Date => "2025-01-01".to_owned(),
            Kind::DateTime => "2025-01-01T00:00:00Z".to_owned(),
            Kind::Symbol => quote.unwrap_or_else(|| "ACME".to_owned()),
            Kind::Query => quote
                .or_else(|| {
                    prompt.after(&["search", "look up", "google", "find", "搜索", "搜一下", "查找"])
                })
                .unwrap_or_else(whole),
            Kind::Topic => quote
                .or_else(|| prompt.after(&["about", "on", "regarding", "关于"]))
                .unwrap_or_else(whole),
            Kind::Text => quote.unwrap_or_else(whole),
        }
    }

    /// What the prompt gives this property by its name: `ms=100`, `ms: 100`, `ms 100`.
    fn named_value(&self, name: &str) -> Option<String> {
        if name.is_empty() {
            return None;
        }
        let lower = &self.prompt.lower;
        let key = name.to_ascii_lowercase();
        lower.match_indices(&key).find_map(|(at, _)| {
            if !super::places::stands_alone(lower, at, key.len()) {
                return None;
            }
            let rest = self.prompt.text.get(at + key.len()..)?;
            let said = rest.trim_start_matches(['"', ' ']);
            let (said, marked) = match said.strip_prefix(['=', ':']) {
                Some(after) => (after.trim_start(), true),
                None => (said, false),
            };
            let word = match said.strip_prefix('"') {
                Some(inner) => inner.split('"').next()?,
                None => said.split([' ', ',', ';', '\n', '}', ')']).next()?,
            };
            let word = word.trim_end_matches(['.', '?', '!']);
            // Without a sign only a number is surely meant as the value.
            let meant = marked || word.parse::<f64>().is_ok();
            (meant && !word.is_empty()).then(|| word.to_owned())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(prompt: &str, schema: &Value) -> Value {
        let prompt = Prompt::read(prompt);
        let arguments = Filler::new(&prompt, schema, false).arguments();
        let validator = jsonschema::validator_for(schema).unwrap();
        assert!(validator.is_valid(&arguments), "{arguments} does not fit {schema}");
        arguments
    }

    #[test]
    fn fills_what_the_prompt_holds() {
        let schema = json!({"type": "object", "required": ["city", "days", "units", "detailed"],
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "maximum": 7},
                "units": {"enum": ["metric", "imperial"]}, "detailed": {"type": "boolean"},
                "note": {"type": "string"}}});
        assert_eq!(
            filled("detailed weather in Paris for 3 days, imperial please", &schema),
            json!({"city": "Paris", "days": 3, "units": "imperial", "detailed": true})
        );
        assert_eq!(
            filled("weather in Rome for 30 days", &schema),
            json!({"city": "Rome", "days": 7, "units": "metric", "detailed": false})
        );
    }

    #[test]
    fn fits_schemas_of_every_shape() {
        for (prompt, schema, expect) in [
            (
                "work with ms=100, i = 3 and pad 8",
                json!({"type": "object", "required": ["ms", "i", "pad"], "properties":
                {"ms": {"type": "integer"}, "i": {"type": "integer"}, "pad": {"type": "integer"}}}),
                json!({"ms": 100, "i": 3, "pad": 8}),
            ),
            (
                "compare Tokyo, Paris and Rome",
                json!({"type": "object", "required": ["cities"], "properties": {"cities":
                {"type": "array", "items": {"type": "string"}, "maxItems": 2}}}),
                json!({"cities": ["Tokyo", "Paris"]}),
            ),
            (
                "a trip from Tokyo to Paris on 2024-05-01",
                json!({"type": "object", "required": ["trip"], "properties": {"trip": {"$ref": "#/$defs/Trip"}},
                "$defs": {"Trip": {"type": "object", "required": ["date", "destination", "origin"], "properties":
                {"origin": {"type": "string"}, "destination": {"type": "string"},
                 "date": {"type": "string", "format": "date"}}}}}),
                json!({"trip": {"date": "2024-05-01", "destination": "Paris", "origin": "Tokyo"}}),
            ),
            (
                "hello",
                json!({"type": "object", "required": ["a", "b", "c", "d"], "properties": {
                "a": {"type": ["string", "null"]}, "b": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                "c": {"const": 7}, "d": {"type": "string", "maxLength": 3}}}),
                json!({"a": null, "b": null, "c": 7, "d": "hel"}),
            ),
            (
                "hello",
                json!({"type": "object", "required": ["n", "x", "s", "l"], "properties": {
                "n": {"type": "integer", "exclusiveMinimum": 4, "multipleOf": 3}, "x": {"type": "number", "default": 0.5},
                "s": {"type": "string", "minLength": 7},
                "l": {"type": "array", "minItems": 2, "items": {"type": "object", "required": ["ok"],
                      "properties": {"ok": {"type": "boolean"}}}}}}),
                json!({"n": 6, "x": 0.5, "s": "helloxx", "l": [{"ok": false}, {"ok": false}]}),
            ),
            ("hello", json!({"type": "object"}), json!({})),
            ("hello", json!({}), json!({})),
        ] {
            assert_eq!(filled(prompt, &schema), expect, "{prompt}");
        }
    }

    #[test]
    fn a_schema_that_refers_to_itself_ends() {
        let names: Vec<String> = (0..30).map(|n| format!("p{n}")).collect();
        let itself: Value = names
            .iter()
            .map(|name| (name.clone(), json!({"$ref": "#"})))
            .collect::<Map<_, _>>()
            .into();
        let schema = json!({"type": "object", "required": names, "properties": itself});
        let prompt = Prompt::read("hello");
        let text = Filler::new(&prompt, &schema, false).arguments().to_string();
        assert!(text.len() < 100_000, "{}", text.len());
    }
}
