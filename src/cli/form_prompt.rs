//! A form that a person fills in on the terminal, one field after the other.

use serde_json::{Map, Value};

use super::output::clean;

/// The form of a question, and what was entered.
#[derive(Debug)]
pub(super) struct FormPrompt {
    /// The fields that are not entered yet, with their schemas.
    fields: std::vec::IntoIter<(String, Value)>,
    required: Vec<String>,
    content: Map<String, Value>,
}

impl FormPrompt {
    pub(super) fn new(form: &Value) -> Self {
        let properties = form["properties"].as_object();
        let fields = properties.into_iter().flatten();
        let fields: Vec<_> = fields.map(|(name, schema)| (name.clone(), schema.clone())).collect();
        let required = form["required"].as_array().into_iter().flatten();
        Self {
            fields: fields.into_iter(),
            required: required.filter_map(|name| name.as_str().map(str::to_owned)).collect(),
            content: Map::new(),
        }
    }

    /// Returns the prompt for the next field: its title, its choices or its type, and its
    /// default. Returns `None` after the last field.
    pub(super) fn prompt(&self) -> Option<String> {
        let (name, schema) = self.fields.as_slice().first()?;
        let title = schema["title"].as_str().unwrap_or(name);
        let list = || {
            // A list is entered as JSON.
            let choices = choices(&schema["items"], ToString::to_string)?;
            Some(format!("JSON array of {choices}"))
        };
        let kind = choices(schema, value_text).or_else(list);
        let kind = kind.or_else(|| schema["type"].as_str().map(str::to_owned));
        let kind = kind.map(|kind| format!(" ({kind})")).unwrap_or_default();
        let default = match schema.get("default") {
            Some(default) => format!(" [{}]", value_text(default)),
            None if self.required.contains(name) => String::new(),
            None => " [leave out]".to_owned(),
        };
        Some(clean(&format!("  {title}{kind}{default}: ")))
    }

    /// Enters the next field. An empty line leaves it out. The host then fills in its default, if it has one
    /// (`turn/question.rs`).
    pub(super) fn enter(&mut self, line: &str) {
        let Some((name, schema)) = self.fields.next() else { return };
        let line = line.trim();
        if !line.is_empty() {
            self.content.insert(name, value(&schema, line));
        }
    }

    /// Returns what was entered.
    pub(super) fn content(&self) -> Value {
        Value::Object(self.content.clone())
    }
}

fn value_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Returns the choices of a schema: each value, and its title if it has one. Returns `None` if the schema does not
/// list its values.
fn choices(schema: &Value, text: fn(&Value) -> String) -> Option<String> {
    let choice = |value: &Value, title: &Value| match title.as_str() {
        Some(title) => format!("{} ({title})", text(value)),
        None => text(value),
    };
    let choices: Vec<String> = if let Some(values) = schema["enum"].as_array() {
        let names = &schema["enumNames"];
        values.iter().enumerate().map(|(index, value)| choice(value, &names[index])).collect()
    } else {
        let options = schema["oneOf"].as_array().or(schema["anyOf"].as_array())?;
        let choice_of = |option: &Value| Some(choice(option.get("const")?, &option["title"]));
        options.iter().map(choice_of).collect::<Option<_>>()?
    };
    Some(choices.join(" | "))
}

/// Reads the value of a field: a string as it is, a boolean as yes or no (or true or false), any other value as
/// JSON. Any other line becomes a string; the check of the whole answer refuses a value of a wrong type.
fn value(schema: &Value, line: &str) -> Value {
    let text = || Value::from(line);
    match schema["type"].as_str() {
        Some("string") => text(),
        Some("boolean") => match line.to_ascii_lowercase().as_str() {
            "y" | "yes" | "true" => true.into(),
            "n" | "no" | "false" => false.into(),
            _ => text(),
        },
        Some(_) | None => serde_json::from_str(line).unwrap_or_else(|_| text()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_are_entered_one_by_one_with_the_types_of_their_schemas() {
        let mut form = FormPrompt::new(&json!({
            "properties": {
                "a_name": {"type": "string", "title": "Na\u{7}me"},
                "b_seats": {"type": "integer", "default": 2},
                "c_class": {"type": "string", "enum": ["first", "second"]},
                "d_window": {"type": "boolean"},
                "e_tags": {"type": "array"},
                "f_pets": {"type": "integer"},
            },
            "required": ["a_name"],
        }));
        let lines = ["7\n", "\n", "first\n", "Y\n", "[\"x\"]\n", "none\n"];
        let mut prompts = Vec::new();
        for line in lines {
            prompts.extend(form.prompt());
            form.enter(line);
        }
        let expected = [
            "  Na me (string): ",
            "  b_seats (integer) [2]: ",
            "  c_class (first | second) [leave out]: ",
            "  d_window (boolean) [leave out]: ",
            "  e_tags (array) [leave out]: ",
            "  f_pets (integer) [leave out]: ",
        ];
        assert_eq!(prompts, expected);
        assert_eq!(form.prompt(), None);
        let content = json!({
            "a_name": "7", "c_class": "first", "d_window": true, "e_tags": ["x"], "f_pets": "none",
        });
        assert_eq!(form.content(), content);
    }

    #[test]
    fn the_choices_of_a_field_are_shown_with_their_titles() {
        let titled = json!([{"const": "#f00", "title": "Red"}, {"const": "#0f0"}]);
        for (schema, kind) in [
            (json!({"type": "string", "oneOf": titled}), "#f00 (Red) | #0f0"),
            (
                json!({"type": "string", "enum": ["f", "s"], "enumNames": ["First"]}),
                "f (First) | s",
            ),
            (
                json!({"type": "array", "items": {"type": "string", "anyOf": titled}}),
                "JSON array of \"#f00\" (Red) | \"#0f0\"",
            ),
            (
                json!({"type": "array", "items": {"enum": ["f", "s"]}}),
                "JSON array of \"f\" | \"s\"",
            ),
            (json!({"type": "string", "anyOf": [{"const": "a"}, {"minLength": 9}]}), "string"),
        ] {
            let form = FormPrompt::new(&json!({"properties": {"x": schema}, "required": ["x"]}));
            assert_eq!(form.prompt(), Some(format!("  x ({kind}): ")));
        }
    }
}
