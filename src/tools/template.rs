//! Templates of tools from configuration: texts with `{name}` placeholders for arguments.
//!
//! `{{` is a literal `{`; a `}` outside a placeholder is literal. A text value is inserted as it is,
//! other values as JSON; in a list of texts, an array alone gives one text for each item. An argument that is missing
//! or null is absent.

use serde_json::{Map, Value};

/// A parsed template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    parts: Vec<TemplatePart>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum TemplatePart {
    Literal(String),
    /// The name of the argument that is inserted.
    Placeholder(String),
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// If a placeholder has no end, or its name is empty or contains `{`.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('{') {
            let (before, from_brace) = rest.split_at(at);
            literal.push_str(before);
            if let Some(after) = from_brace.strip_prefix("{{") {
                literal.push('{');
                rest = after;
                continue;
            }
            let inside = from_brace.strip_prefix('{').unwrap_or_default();
            let Some((name, after)) = inside.split_once('}') else {
                return Err(TemplateError::Unclosed(from_brace.to_owned()));
            };
            if name.is_empty() || name.contains('{') {
                return Err(TemplateError::InvalidName(name.to_owned()));
            }
            if !literal.is_empty() {
                parts.push(TemplatePart::Literal(std::mem::take(&mut literal)));
            }
            parts.push(TemplatePart::Placeholder(name.to_owned()));
            rest = after;
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            parts.push(TemplatePart::Literal(literal));
        }
        Ok(Self { parts })
    }

    /// Iterates over the names of the placeholders, in order, with repetitions.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            TemplatePart::Placeholder(name) => Some(name.as_str()),
            TemplatePart::Literal(_) => None,
        })
    }

    /// Returns the text before the first placeholder.
    pub fn literal_prefix(&self) -> &str {
        match self.parts.first() {
            Some(TemplatePart::Literal(text)) => text,
            Some(TemplatePart::Placeholder(_)) | None => "",
        }
    }

    /// Returns the text of a template without placeholders, and `None` for others.
    pub fn as_literal(&self) -> Option<&str> {
        match self.parts.as_slice() {
            [] => Some(""),
            [TemplatePart::Literal(text)] => Some(text),
            _ => None,
        }
    }

    /// Returns the text with the arguments inserted. `None` if one of them is absent.
    pub fn render(&self, arguments: &Map<String, Value>) -> Option<String> {
        self.render_with(arguments, |text| text)
    }

    /// Returns the texts with the arguments inserted: one text; one for each item of an array that
    /// stands alone in the template; or none if an argument is absent.
    pub fn render_list(&self, arguments: &Map<String, Value>) -> Vec<String> {
        if let [TemplatePart::Placeholder(name)] = self.parts.as_slice()
            && let Some(Value::Array(items)) = arguments.get(name)
        {
            return items.iter().map(value_text).collect();
        }
        self.render(arguments).into_iter().collect()
    }

    /// Returns the text with the arguments percent-encoded, for the path of a URL. Each argument
    /// stays within its path segment. `None` if an argument is absent.
    ///
    /// # Errors
    /// If an argument makes a path segment `.` or `..`, or leaves it empty: such a segment changes
    /// the path that the template names.
    pub fn render_encoded(
        &self,
        arguments: &Map<String, Value>,
    ) -> Result<Option<String>, TemplateError> {
        let Some(text) = self.render_with(arguments, |text| percent_encode(&text)) else {
            return Ok(None);
        };
        // The path with a letter for each placeholder has the same segments.
        let literal: String = self
            .parts
            .iter()
            .map(|part| match part {
                TemplatePart::Literal(text) => text.as_str(),
                TemplatePart::Placeholder(_) => "x",
            })
            .collect();
        let changed = path(&text)
            .split('/')
            .zip(path(&literal).split('/'))
            .find(|(segment, literal)| matches!(*segment, "" | "." | "..") && segment != literal);
        if let Some((segment, _)) = changed {
            return Err(TemplateError::PathSegment(segment.to_owned()));
        }
        Ok(Some(text))
    }

    fn render_with(
        &self,
        arguments: &Map<String, Value>,
        encode: impl Fn(String) -> String,
    ) -> Option<String> {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                TemplatePart::Literal(literal) => text.push_str(literal),
                TemplatePart::Placeholder(name) => {
                    let value = arguments.get(name).filter(|value| !value.is_null())?;
                    text.push_str(&encode(value_text(value)));
                }
            }
        }
        Some(text)
    }
}

/// Returns host and path of a URL.
fn path(url: &str) -> &str {
    let end = url.find(['?', '#']).unwrap_or(url.len());
    let url = url.get(..end).unwrap_or(url);
    url.split_once("://").map_or(url, |(_, rest)| rest)
}

/// Encodes every byte that is not unreserved in a URL (RFC 3986, section 2.3).
fn percent_encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                encoded.push(char::from(byte));
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

fn value_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The reason why a template is invalid or cannot take an argument.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// A placeholder has no `}`.
    #[error("the placeholder {0:?} has no \"}}\" (write \"{{{{\" for a literal \"{{\")")]
    Unclosed(String),
    /// The name of a placeholder is empty or has a `{`.
    #[error("{{{0}}} is not a placeholder (write \"{{{{\" for a literal \"{{\")")]
    InvalidName(String),
    /// An argument would change the path of a URL.
    #[error("an argument makes {0:?} of a path segment, which would change the path")]
    PathSegment(String),
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn arguments() -> Map<String, Value> {
        let value = json!({
            "text": "a b/ü", "n": 3, "on": true, "list": ["x", 1], "none": null,
            "object": {"k": 1}, "empty": [], "dots": "..", "blank": "",
        });
        value.as_object().unwrap().clone()
    }

    #[test]
    fn arguments_replace_placeholders() {
        for (template, expected) in [
            ("", Some("")),
            ("plain }", Some("plain }")),
            ("{text}", Some("a b/ü")),
            ("--n={n}", Some("--n=3")),
            ("{on}{n}", Some("true3")),
            ("{{text}", Some("{text}")),
            ("{{{{{n}", Some("{{3")),
            ("{{\"a\":{n}}", Some("{\"a\":3}")),
            ("{object}", Some("{\"k\":1}")),
            ("x{list}", Some("x[\"x\",1]")),
            ("{missing}", None),
            ("--opt={none}", None),
        ] {
            let parsed = Template::parse(template).unwrap();
            assert_eq!(parsed.render(&arguments()).as_deref(), expected, "{template}");
        }
    }

    #[test]
    fn an_array_alone_gives_one_text_per_item() {
        let list = |template| Template::parse(template).unwrap().render_list(&arguments());
        assert_eq!(list("{list}"), ["x", "1"]);
        assert_eq!(list("-{list}"), ["-[\"x\",1]"]);
        assert_eq!(list("{text}"), ["a b/ü"]);
        for nothing in ["{empty}", "{none}", "--a={missing}"] {
            assert_eq!(list(nothing), [""; 0], "{nothing}");
        }
    }

    #[test]
    fn an_encoded_argument_stays_in_its_path_segment() {
        let encoded = |template| Template::parse(template).unwrap().render_encoded(&arguments());
        let url = "https://h.example/a/{text}/b";
        assert_eq!(encoded(url), Ok(Some("https://h.example/a/a%20b%2F%C3%BC/b".to_owned())));
        assert_eq!(encoded("/v/{n}.json"), Ok(Some("/v/3.json".to_owned())));
        assert_eq!(encoded("/v/{missing}"), Ok(None));
        for refused in ["/v/{dots}/x", "/v/.{blank}", "/v/{blank}/x", "https://h.example/{dots}"] {
            assert!(matches!(encoded(refused), Err(TemplateError::PathSegment(_))), "{refused}");
        }
        assert_eq!(
            encoded("https://h.example/a/../b/"),
            Ok(Some("https://h.example/a/../b/".into()))
        );
        assert_eq!(percent_encode("a&b=c d"), "a%26b%3Dc%20d");
    }

    #[test]
    fn broken_placeholders_are_refused() {
        for (template, expected) in [
            ("a {b", "the placeholder \"{b\" has no \"}\" (write \"{{\" for a literal \"{\")"),
            ("{}", "{} is not a placeholder (write \"{{\" for a literal \"{\")"),
            ("{a{b}", "{a{b} is not a placeholder (write \"{{\" for a literal \"{\")"),
        ] {
            assert_eq!(Template::parse(template).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn names_and_literals_are_found() {
        let template = Template::parse("--{a}-{b}{a}").unwrap();
        assert_eq!(template.names().collect::<Vec<_>>(), ["a", "b", "a"]);
        assert_eq!((template.literal_prefix(), template.as_literal()), ("--", None));
        assert_eq!(Template::parse("--").unwrap().as_literal(), Some("--"));
        assert_eq!(Template::parse("{a}").unwrap().literal_prefix(), "");
    }
}
