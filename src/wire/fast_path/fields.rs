//! The fields of a payload with their values. Together with the payload they make a template.

use std::borrow::Cow;

use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::ChangeKind;
use crate::lenient::{JsonText, Number, Scalar, TextContent};

/// Maximum bytes of a payload, with its event's name, that becomes a template. Most longer payloads hold more than
/// one change.
pub(super) const TEMPLATE_BYTES_MAX: usize = 2048;

/// Maximum number of fields of a template.
pub(super) const FIELDS_MAX: usize = 8;

/// The fields of a payload that holds a single change, each with the value that was read.
///
/// The methods that add a field return `None` if the value needs a full parse: no template can be
/// made of the payload then.
#[derive(Clone, Debug)]
pub(crate) struct TemplateFields<'p> {
    pub(super) kind: ChangeKind,
    /// A value without escapes is a slice of the payload, so its address gives its position.
    fields: [Option<(FieldRole, Cow<'p, str>)>; FIELDS_MAX],
}

/// The meaning of a field that may differ between payloads of one template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldRole {
    Text,
    Index,
    PartIndex,
    Id,
    Name,
    /// A member that does not affect the deltas and that is the same in all payloads of a response.
    IgnoredConstant,
    /// A member that does not affect the deltas and that changes with every payload.
    IgnoredVarying,
}

impl<'p> TemplateFields<'p> {
    /// Starts a list of fields for a payload that holds a change of this kind.
    pub(crate) fn new(kind: ChangeKind) -> Self {
        Self { kind, fields: Default::default() }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &(FieldRole, Cow<'p, str>)> {
        self.fields.iter().flatten()
    }

    /// Adds a text. An absent text adds nothing; a number needs a full parse.
    pub(crate) fn scalar(self, role: FieldRole, value: &Scalar<'p>) -> Option<Self> {
        match value {
            Scalar::Absent => Some(self),
            Scalar::Text(text) => self.text(role, text),
            Scalar::Number(_) => None,
        }
    }

    /// Adds a content that is one text. A content in parts needs a full parse.
    pub(crate) fn content(self, role: FieldRole, value: &TextContent<'p>) -> Option<Self> {
        match value {
            TextContent::Absent => Some(self),
            TextContent::Text(text) => self.text(role, text),
            TextContent::Part(_) | TextContent::List(_) => None,
        }
    }

    /// Adds arguments that are a JSON string. Other arguments need a full parse.
    pub(crate) fn json_text(self, role: FieldRole, value: &JsonText<'p>) -> Option<Self> {
        match &value.0 {
            None => Some(self),
            // An owned text that is JSON itself may come from a value that is not a string.
            Some(Cow::Owned(text)) if is_short(text) && is_json(text) => None,
            Some(text) => self.text(role, text),
        }
    }

    /// Adds a number that is written in digits. Any other value needs a full parse.
    pub(crate) fn number(self, role: FieldRole, value: Number<'p>) -> Option<Self> {
        match value.raw() {
            None => Some(self),
            Some(raw) if is_digits(raw) => self.add(role, raw.into()),
            Some(_) => None,
        }
    }

    /// Adds a member that does not affect the deltas. If it is neither a plain string nor digits, it stays
    /// part of the template's fixed bytes.
    pub(crate) fn ignored(self, role: FieldRole, value: Option<&'p RawValue>) -> Option<Self> {
        let raw = value.map(RawValue::get).unwrap_or_default();
        let inside = raw.strip_prefix('"').and_then(|raw| raw.strip_suffix('"'));
        match inside {
            Some(text) if !text.contains('\\') => self.add(role, text.into()),
            None if !raw.is_empty() && is_digits(raw) => self.add(role, raw.into()),
            Some(_) | None => Some(self),
        }
    }

    /// As [`Self::ignored`], for a member that was read as a scalar. Digits stay part of the fixed bytes.
    pub(crate) fn ignored_text(self, role: FieldRole, value: &Scalar<'p>) -> Option<Self> {
        match value {
            Scalar::Text(Cow::Borrowed(text)) => self.add(role, Cow::Borrowed(text)),
            Scalar::Text(Cow::Owned(_)) | Scalar::Number(_) | Scalar::Absent => Some(self),
        }
    }

    fn text(self, role: FieldRole, text: &Cow<'p, str>) -> Option<Self> {
        is_short(text).then(|| self.add(role, text.clone())).flatten()
    }

    fn add(mut self, role: FieldRole, text: Cow<'p, str>) -> Option<Self> {
        *self.fields.iter_mut().find(|field| field.is_none())? = Some((role, text));
        Some(self)
    }
}

fn is_short(text: &str) -> bool {
    text.len() <= TEMPLATE_BYTES_MAX
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}

fn is_digits(raw: &str) -> bool {
    raw.bytes().all(|byte| byte.is_ascii_digit())
}
