//! References: names of the values of a session that a model can read again or pass to a tool.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde_json::Value;

use super::{CallKey, RunId, VariableName};

/// The name of the tool that reads the value of a reference.
pub const READ_VAR: &str = "read_var";

/// The text before the name of a value in the written form of a reference.
pub const REFERENCE_START: &str = "$VAR_REF{{";

/// The text after the name of a value in the written form of a reference.
pub const REFERENCE_END: &str = "}}";

/// The largest number of bytes of an id in a run's reference, and of the name in a variable's.
const NAME_BYTES_MAX: usize = 128;

/// A reference to a value of a session. Its written form is `$VAR_REF{{ID}}`, which
/// [`Display`](fmt::Display) writes. [`FromStr`] reads both `ID` and the written form.
///
/// The value of a result, of arguments and of an answer never changes. In the arguments of a call, that of a variable
/// is the one at the start of the turn; `read_var` reads the one in the snapshot of its own call.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reference {
    /// The result of a call: `t3a1c0`.
    Result(CallKey),
    /// The structured value of a call's result, if the result has one: `t3a1c0.structured`.
    Structured(CallKey),
    /// The arguments of a call as the model made it: `t3a1c0.arguments`.
    Arguments(CallKey),
    /// The answer of a run: `run_ID`.
    Answer(RunId),
    /// A variable: `var:NAME`.
    Variable(VariableName),
}

impl Reference {
    /// Returns the name of the value, without `$VAR_REF{{` and `}}`.
    #[must_use]
    pub fn id(&self) -> ReferenceId<'_> {
        ReferenceId(self)
    }
}

/// The name of a value, as it stands in a reference.
#[derive(Clone, Copy, Debug)]
pub struct ReferenceId<'a>(&'a Reference);

impl fmt::Display for ReferenceId<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Reference::Result(key) => write!(f, "{key}"),
            Reference::Structured(key) => write!(f, "{key}.structured"),
            Reference::Arguments(key) => write!(f, "{key}.arguments"),
            Reference::Answer(run) => write!(f, "{run}"),
            Reference::Variable(name) => write!(f, "var:{name}"),
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{REFERENCE_START}{}{REFERENCE_END}", self.id())
    }
}

impl FromStr for Reference {
    type Err = InvalidReference;

    fn from_str(text: &str) -> Result<Self, InvalidReference> {
        let written = text.strip_prefix(REFERENCE_START);
        let id = written.and_then(|rest| rest.strip_suffix(REFERENCE_END)).unwrap_or(text);
        if let Some(name) = id.strip_prefix("var:") {
            // A name with the end mark could not be written.
            let fits = (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.contains(REFERENCE_END);
            return if fits { Ok(Self::Variable(name.into())) } else { Err(InvalidReference) };
        }
        if let Some(rest) = id.strip_prefix("run_") {
            let is_id = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
            let fits = (1..=NAME_BYTES_MAX).contains(&rest.len()) && rest.bytes().all(is_id);
            return if fits { Ok(Self::Answer(RunId(id.into()))) } else { Err(InvalidReference) };
        }
        let key = |text: &str| text.parse::<CallKey>().map_err(|_| InvalidReference);
        match id.split_once('.') {
            Some((call, "arguments")) => key(call).map(Self::Arguments),
            Some((call, "structured")) => key(call).map(Self::Structured),
            Some(_) => Err(InvalidReference),
            None => key(id).map(Self::Result),
        }
    }
}

/// The text is not a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "an id is t3a1c0 (a result), t3a1c0.structured, t3a1c0.arguments, run_ID (the answer of a run) or var:NAME"
)]
pub struct InvalidReference;

/// The value of a reference.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReferencedValue {
    /// The value as a text.
    pub text: Arc<str>,
    /// The value, unless it is the text.
    pub json: Option<Arc<Value>>,
}

impl ReferencedValue {
    /// Makes a value that is a text.
    #[must_use]
    pub fn text(text: impl Into<Arc<str>>) -> Self {
        Self { text: text.into(), json: None }
    }

    /// Makes a value of JSON. Its text is compact JSON, or the string itself.
    #[must_use]
    pub fn json(value: Arc<Value>) -> Self {
        match &*value {
            Value::String(text) => Self::text(text.as_str()),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::Array(_)
            | Value::Object(_) => {
                let text = serde_json::to_string(&*value).unwrap_or_default();
                Self { text: text.into(), json: Some(value) }
            }
        }
    }

    /// Returns the smallest number of bytes that the value has inside a JSON text.
    #[must_use]
    pub fn inserted_bytes(&self) -> usize {
        match &self.json {
            // The text of a result may be longer than its value for programs.
            Some(json) => json_bytes(json),
            None => self.text.len(),
        }
    }
}

/// Returns a lower bound of the number of bytes of a value's compact JSON.
fn json_bytes(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 1,
        Value::String(text) => 2 + text.len(),
        Value::Array(items) => 1 + items.iter().map(|item| 1 + json_bytes(item)).sum::<usize>(),
        Value::Object(members) => {
            1 + members.iter().map(|(name, item)| 4 + name.len() + json_bytes(item)).sum::<usize>()
        }
    }
}

/// The reason why a reference has no value.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ReferenceError {
    /// No call of the session has this id, or its attempt was void.
    #[error("{0}: the session has no such result")]
    NoSuchResult(Reference),
    /// The result of the call has no structured value.
    #[error("{0}: the result has no structured value")]
    NoStructuredValue(Reference),
    /// The call is one of the current turn.
    #[error("{0}: it belongs to this response; it can be read from the next response on")]
    SameTurn(Reference),
    /// The session has no run of this id that has ended.
    #[error("{0}: the session has no run of this id that has ended")]
    NoSuchRun(Reference),
    /// The session has no variable of this name.
    #[error("{0}: the session has no variable of this name")]
    NoSuchVariable(Reference),
    /// The values are too large.
    #[error(
        "with the values of their references they have more than {maximum} bytes (max_arguments_bytes)"
    )]
    TooLarge {
        /// The maximum number of bytes.
        maximum: usize,
    },
    /// The journal could not be read.
    #[error("the journal could not be read: {0}")]
    Unreadable(String),
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_kind_has_one_written_form() {
        let key = CallKey { turn: 3, attempt: 1, index: 0 };
        for (reference, id) in [
            (Reference::Result(key), "t3a1c0"),
            (Reference::Structured(key), "t3a1c0.structured"),
            (Reference::Arguments(key), "t3a1c0.arguments"),
            (Reference::Answer(RunId("run_00ff".into())), "run_00ff"),
            (Reference::Variable("a name: {x}".into()), "var:a name: {x}"),
        ] {
            assert_eq!(reference.id().to_string(), id);
            assert_eq!(reference.to_string(), ["$VAR_REF{{", id, "}}"].concat());
            assert_eq!(id.parse(), Ok(reference.clone()));
            assert_eq!(reference.to_string().parse(), Ok(reference));
        }
    }

    #[test]
    fn other_texts_are_not_references() {
        let long = format!("var:{}", "n".repeat(129));
        for text in [
            "",
            "t3a1",
            "t3a1c0.result",
            "t03a1c0",
            " t3a1c0",
            "run_",
            "run_a b",
            "run",
            "var:",
            "var:a}}b",
            "var",
            "$VAR_REF{{t3a1c0",
            "$VAR_REF{{}}",
            "t3a1c0}}",
            &long,
        ] {
            assert_eq!(text.parse::<Reference>(), Err(InvalidReference), "{text}");
        }
    }

    #[test]
    fn a_string_is_a_text_and_other_json_is_compact() {
        let value = |json| ReferencedValue::json(Arc::new(json));
        assert_eq!(value(json!("a \"b\"")), ReferencedValue::text("a \"b\""));
        let object = value(json!({"b": [1, 2], "a": null}));
        assert_eq!(&*object.text, r#"{"a":null,"b":[1,2]}"#);
        assert!(object.json.is_some());
    }
}
