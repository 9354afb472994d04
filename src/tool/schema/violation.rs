//! Describes how a value violates a schema.

use std::fmt::{self, Write};

use serde_json::Value;

use super::compile::{Assertion, JsonType, NumberLimit};

/// Number of characters after which a value is cut in an error.
const SHOWN_CHARS_MAX: usize = 200;

/// Maximum number of options of `enum` in an error.
const OPTIONS_SHOWN_MAX: usize = 20;

/// Number of alternatives of which an error tells the violations.
pub(super) const REASONS_MAX: usize = 3;

pub(super) const TOO_EXPENSIVE: &str =
    "the value has too many parts, or the schema too many alternatives, to be checked";

/// The violation of a value of which the place is not known.
pub(super) const NOT_LOCATED: &str =
    "the value does not match the schema; it has too many parts or alternatives to say where";

/// A value that does not match a schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    /// The way to the value, or to the object that lacks a member or has an unexpected one.
    pub(crate) path: Vec<PathSegment>,
    /// The JSON pointer to the violated keyword in the schema.
    pub(crate) rule: String,
    /// The name of the missing or unexpected member.
    pub(crate) member: Option<String>,
    /// The description of the violation, without the path.
    pub(crate) message: String,
}

impl Violation {
    pub(super) fn unlocated(message: &str) -> Self {
        Self { path: Vec::new(), rule: String::new(), member: None, message: message.to_owned() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for segment in &self.path {
            write!(f, "/{segment}")?;
        }
        if !self.path.is_empty() {
            f.write_str(": ")?;
        }
        f.write_str(&self.message)
    }
}

/// A step from a value to one in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PathSegment {
    /// The member of this name.
    Member(String),
    /// The item with this index.
    Item(usize),
}

impl fmt::Display for PathSegment {
    /// Writes a segment as in a JSON pointer, RFC 6901.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Member(name) => f.write_str(&name.replace('~', "~0").replace('/', "~1")),
            Self::Item(at) => write!(f, "{at}"),
        }
    }
}

/// Describes a violation. `member` is the member that is missing.
pub(super) fn describe(assertion: &Assertion, member: Option<&str>, value: &Value) -> String {
    let shown = Shown(value);
    if let Some(name) = member {
        return format!("{} is a required property", Value::from(name));
    }
    match assertion {
        Assertion::Type(types) => wrong_type(value, types),
        Assertion::Const(expected) => format!("{} was expected", Shown(expected)),
        Assertion::Enum(options) => none_of(value, &options.values),
        Assertion::Limit(limit, bound) => {
            let wrong = match limit {
                NumberLimit::Minimum => "less than the minimum of",
                NumberLimit::Maximum => "greater than the maximum of",
                NumberLimit::ExclusiveMinimum => "less than or equal to the minimum of",
                NumberLimit::ExclusiveMaximum => "greater than or equal to the maximum of",
            };
            format!("{shown} is {wrong} {bound}")
        }
        Assertion::MultipleOf(of) => format!("{shown} is not a multiple of {of}"),
        Assertion::Size(limit, count) => {
            let wrong = if limit.is_minimum() { "less" } else { "more" };
            let count = usize::try_from(*count).unwrap_or(usize::MAX);
            format!("{shown} has {wrong} than {}", Count(count, limit.unit()))
        }
        Assertion::Pattern(pattern) => format!("{shown} does not match {:?}", pattern.text),
        Assertion::Format(format, _) => format!("{shown} is not a {format:?}"),
        Assertion::UniqueItems => format!("{shown} has equal items"),
        Assertion::Never => "no value is allowed here".to_owned(),
        // The violation has a member.
        Assertion::Required(_) | Assertion::DependentRequired(_) => String::new(),
    }
}

/// Describes a member that the schema does not allow.
pub(super) fn unknown_property(name: &str) -> String {
    format!("{} is not a known property", Value::from(name))
}

fn wrong_type(value: &Value, types: &[JsonType]) -> String {
    let names: Vec<String> = types.iter().map(|of| format!("{:?}", of.name())).collect();
    let types = if names.len() == 1 { "type" } else { "types" };
    format!("{} is not of {types} {}", Shown(value), names.join(", "))
}

fn none_of(value: &Value, options: &[Value]) -> String {
    let mut text = format!("{} is not one of ", Shown(value));
    for (at, option) in options.iter().take(OPTIONS_SHOWN_MAX).enumerate() {
        let separator = match at {
            0 => "",
            _ if at + 1 == options.len() => " or ",
            _ => ", ",
        };
        let _ = write!(text, "{separator}{}", Shown(option));
    }
    if options.len() > OPTIONS_SHOWN_MAX {
        let _ = write!(text, " or {} others", options.len() - OPTIONS_SHOWN_MAX);
    }
    text
}

/// Describes a value that none of the schemas of `anyOf` or `oneOf` accepts, with some of their reasons.
pub(super) fn no_alternative(
    value: &Value,
    keyword: &str,
    schemas: usize,
    reasons: &[String],
) -> String {
    let others = if schemas > reasons.len() { "; …" } else { "" };
    let reasons = reasons.join("; ");
    format!("{} matches none of the schemas of {keyword} ({reasons}{others})", Shown(value))
}

/// A number of things.
pub(super) struct Count(pub(super) usize, pub(super) &'static str);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self(1, unit) => write!(f, "1 {unit}"),
            Self(count, "property") => write!(f, "{count} properties"),
            Self(count, unit) => write!(f, "{count} {unit}s"),
        }
    }
}

/// A value as JSON, cut if it is long.
pub(super) struct Shown<'v>(pub(super) &'v Value);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cut = CutText { text: String::new(), chars_left: SHOWN_CHARS_MAX };
        // Fails when the text is full.
        let is_whole = write!(cut, "{}", self.0).is_ok();
        f.write_str(&cut.text)?;
        if is_whole { Ok(()) } else { f.write_str("…") }
    }
}

/// A text that takes a number of characters.
struct CutText {
    text: String,
    chars_left: usize,
}

impl Write for CutText {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        for character in more.chars() {
            self.chars_left = self.chars_left.checked_sub(1).ok_or(fmt::Error)?;
            self.text.push(character);
        }
        Ok(())
    }
}
