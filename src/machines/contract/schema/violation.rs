//! Describes how a value violates a schema.

use std::fmt::{self, Write};

use serde_json::Value;

use super::compile::{Assertion, JsonType, NumberLimit};
use super::json_excerpt::{CutText, JsonExcerpt, TEXT_CHARS_MAX, cut, json_excerpt};

/// Number of characters after which a value is cut in an error that also has the reasons why no alternative accepts
/// it. A reason can itself be such an error.
const SHOWN_BEFORE_REASONS_CHARS_MAX: usize = 40;

/// Number of characters after which such a reason is cut.
const REASON_CHARS_MAX: usize = 600;

/// Number of characters after which the path of a value is cut in an error.
const PATH_CHARS_MAX: usize = 1_000;

/// Maximum number of options of `enum` in an error.
const OPTIONS_SHOWN_MAX: usize = 20;

/// Maximum number of alternatives whose violations are in an error.
pub(super) const REASONS_MAX: usize = 3;

pub(super) const TOO_EXPENSIVE: &str =
    "the value has too many parts, or the schema too many alternatives, to be checked";

/// The violation of a value of which the place is not known.
pub(super) const NOT_LOCATED: &str =
    "the value does not match the schema; it has too many parts or alternatives to say where";

/// A value that does not match a schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The way to the value, or to the object that lacks a member or has an unexpected one.
    pub path: Vec<PathSegment>,
    /// The JSON pointer to the violated keyword in the schema, or to the schema `false`. Empty if it is not known.
    pub rule: String,
    /// The name of the missing or unexpected member.
    pub member: Option<String>,
    /// The description of the violation, without the path.
    pub message: String,
}

impl Violation {
    pub(super) fn unlocated(message: &str) -> Self {
        Self { path: Vec::new(), rule: String::new(), member: None, message: message.to_owned() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            let mut path = CutText::new(PATH_CHARS_MAX);
            // Fails when the text is full.
            let is_whole = self.path.iter().try_for_each(|segment| write!(path, "/{segment}"));
            write!(f, "{}{}: ", path.text, if is_whole.is_ok() { "" } else { "…" })?;
        }
        f.write_str(&self.message)
    }
}

/// A step from a value to one in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathSegment {
    /// The member of this name.
    Member(String),
    /// The item with this index.
    Item(usize),
}

impl fmt::Display for PathSegment {
    /// Writes a segment as in a JSON pointer, RFC 6901.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Member(name) => {
                let name = cut(name, TEXT_CHARS_MAX);
                f.write_str(&name.replace('~', "~0").replace('/', "~1"))
            }
            Self::Item(at) => write!(f, "{at}"),
        }
    }
}

/// Describes a violation. `member` is the member that is missing.
pub(super) fn describe(assertion: &Assertion, member: Option<&str>, value: &Value) -> String {
    let shown = JsonExcerpt(value);
    if let Some(name) = member {
        return format!("{} is a required property", Value::from(cut(name, TEXT_CHARS_MAX)));
    }
    match assertion {
        Assertion::Type(types) => wrong_type(value, types),
        Assertion::Const(options) => {
            format!("{} was expected", options.values.first().map_or(shown, JsonExcerpt))
        }
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
        Assertion::Pattern(pattern) => {
            format!("{shown} does not match {:?}", cut(&pattern.text, TEXT_CHARS_MAX))
        }
        Assertion::Format(format, _) => format!("{shown} is not a {format:?}"),
        Assertion::UniqueItems => format!("{shown} has equal items"),
        Assertion::Never => "no value is allowed here".to_owned(),
        // This violation has a member, which is described above.
        Assertion::Required(_) => String::new(),
    }
}

/// Describes a member that the schema does not allow.
pub(super) fn unknown_property(name: &str) -> String {
    format!("{} is not a known property", Value::from(cut(name, TEXT_CHARS_MAX)))
}

fn wrong_type(value: &Value, types: &[JsonType]) -> String {
    let names: Vec<String> = types.iter().map(|of| format!("{:?}", of.name())).collect();
    let types = if names.len() == 1 { "type" } else { "types" };
    format!("{} is not of {types} {}", JsonExcerpt(value), names.join(", "))
}

fn none_of(value: &Value, options: &[Value]) -> String {
    let mut text = format!("{} is not one of ", JsonExcerpt(value));
    for (at, option) in options.iter().take(OPTIONS_SHOWN_MAX).enumerate() {
        let separator = match at {
            0 => "",
            _ if at + 1 == options.len() => " or ",
            _ => ", ",
        };
        let _ = write!(text, "{separator}{}", JsonExcerpt(option));
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
    let shown = json_excerpt(value, SHOWN_BEFORE_REASONS_CHARS_MAX);
    format!("{shown} matches none of the schemas of {keyword} ({reasons}{others})")
}

/// Returns the violation of an alternative as a reason.
pub(super) fn reason(violation: &Violation) -> String {
    cut(violation, REASON_CHARS_MAX)
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
