//! Payload templates: compares payloads with templates, and makes templates.
//!
//! A template is a payload that was parsed in full and held a single change ([`ChangeKind`]), with the
//! positions of its fields. Another payload with the same bytes around these positions parses to the same
//! kind of change with its own values. For example, `{"choices":[{"index":0,"delta":{"content":"Hel"}}]}` is
//! a template whose fields are the index (stable: mostly the same) and the inside of `"Hel"` (text: different
//! in each payload). A template says nothing about the state of the response: the dialect applies the match to
//! its current state. So a template stays valid after other payloads, and in the next response. A payload that
//! does not certainly match is parsed in full.

use std::borrow::Cow;
use std::ops::Range;

use memchr::memchr;

use super::fields::{FIELDS_MAX, FieldRole, TEMPLATE_BYTES_MAX, TemplateFields};
use super::scan::{number_bytes, string_bytes};
use super::{ChangeKind, TemplateMatch};

/// Maximum number of templates. A response mostly needs one each for text, reasoning and calls.
pub(super) const TEMPLATES_MAX: usize = 6;

/// Maximum number of templates of one kind. The first payload of a kind often has a different form. More
/// forms than this mean that templates do not help.
pub(super) const TEMPLATES_PER_KIND_MAX: usize = 2;

/// The templates of one wire, the one that matched or was added last first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TemplateSet {
    pub(super) templates: Vec<PayloadTemplate>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PayloadTemplate {
    kind: ChangeKind,
    event: String,
    /// The payload that updated the template last.
    payload: String,
    /// The fields at which other payloads may differ, by position.
    fields: Vec<TemplateField>,
    stable: StableValues,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TemplateField {
    begin: usize,
    end: usize,
    role: FieldRole,
    /// The field is the inside of a JSON string; otherwise it is digits.
    is_string: bool,
}

/// The values of the template's fields that seldom change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct StableValues {
    index: Option<u64>,
    part_index: Option<u64>,
    id: Option<Range<usize>>,
    name: Option<Range<usize>>,
}

/// The position of a field in a payload: the inside of a string, or digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FieldSpan {
    begin: usize,
    end: usize,
    has_escapes: bool,
}

impl TemplateSet {
    /// Returns the change that a payload holds if it matches a template.
    ///
    /// Most payloads match the same template as the one before, with the same stable values. These
    /// are found by comparing bytes alone. Otherwise the first template that fits takes over the
    /// stable values of the payload.
    pub(crate) fn match_payload<'p>(
        &'p mut self,
        event: &str,
        payload: &'p str,
    ) -> Option<TemplateMatch<'p>> {
        let mut templates = self.templates.iter().enumerate();
        let found =
            templates.find_map(|(at, template)| Some((at, template.compare(event, payload)?)));
        let (at, text) = match found {
            Some(found) => found,
            None => {
                let update =
                    |template: &mut PayloadTemplate| template.update_if_match(event, payload);
                let at = self.templates.iter_mut().position(update)?;
                (at, self.templates.get(at)?.compare(event, payload)?)
            }
        };
        if at > 0 {
            self.templates.get_mut(..=at)?.rotate_right(1);
        }
        self.templates.first()?.matched(payload, text)
    }

    /// Makes a template of a payload that was parsed in full and has these fields.
    pub(crate) fn add(&mut self, event: &str, payload: &str, fields: &TemplateFields<'_>) {
        let Some(template) = PayloadTemplate::new(event, payload, fields) else { return };
        // The new one is the first of its kind.
        let mut of_kind = 1;
        self.templates.retain(|other| {
            of_kind += usize::from(other.kind == template.kind);
            other.kind != template.kind || of_kind <= TEMPLATES_PER_KIND_MAX
        });
        self.templates.truncate(TEMPLATES_MAX - 1);
        self.templates.insert(0, template);
    }
}

impl PayloadTemplate {
    fn new(event: &str, payload: &str, fields: &TemplateFields<'_>) -> Option<Self> {
        if !is_short(event, payload) {
            return None;
        }
        let mut positions = Vec::with_capacity(FIELDS_MAX);
        for field in fields.iter() {
            positions.push(TemplateField::locate(payload, field)?);
        }
        positions.sort_unstable_by_key(|field| field.begin);
        positions.shrink_to_fit();
        let mut template = Self {
            kind: fields.kind,
            event: event.to_owned(),
            payload: payload.to_owned(),
            fields: positions,
            stable: StableValues::default(),
        };
        // A template that does not match its own payload is not certain, so it is dropped.
        template.update_if_match(event, payload).then_some(template)
    }

    /// Returns the position of the text, or `Some(None)` for a template without a text, if the payload equals the
    /// template's in everything but the fields that change with every payload. Stable fields, and all bytes between
    /// fields, are compared as bytes.
    fn compare(&self, event: &str, payload: &str) -> Option<Option<FieldSpan>> {
        let mut text = None;
        let mut comparison = self.comparison(event, payload)?;
        for field in self.fields.iter().filter(|field| !field.role.is_stable()) {
            let span = comparison.next(field)?;
            if field.role == FieldRole::Text {
                text = Some(span);
            } else if span.has_escapes {
                // The escape may be invalid, which only a full parse finds out.
                return None;
            }
        }
        comparison.end().map(|()| text)
    }

    /// Returns the change of a payload that [`Self::compare`] accepted. Returns `None` if an escape is invalid.
    fn matched<'p>(
        &'p self,
        payload: &'p str,
        text: Option<FieldSpan>,
    ) -> Option<TemplateMatch<'p>> {
        let StableValues { index, part_index, id, name } = &self.stable;
        let inside = |span: &Option<Range<usize>>| self.payload.get(span.clone()?);
        let text = match text {
            Some(span) => Some(span.text(payload)?),
            None => None,
        };
        let (kind, index, part_index) = (self.kind, *index, *part_index);
        Some(TemplateMatch { kind, text, index, part_index, id: inside(id), name: inside(name) })
    }

    /// If the payload matches apart from its stable values, replaces the template's payload, positions and stable
    /// values by its own. Returns whether it matches.
    fn update_if_match(&mut self, event: &str, payload: &str) -> bool {
        let found = is_short(event, payload).then(|| self.spans(event, payload)).flatten();
        let Some((spans, stable)) = found else { return false };
        for (field, FieldSpan { begin, end, .. }) in self.fields.iter_mut().zip(spans) {
            (field.begin, field.end) = (begin, end);
        }
        payload.clone_into(&mut self.payload);
        self.stable = stable;
        true
    }

    /// Returns the positions of the fields in a payload that fits, and its stable values.
    fn spans(&self, event: &str, payload: &str) -> Option<([FieldSpan; FIELDS_MAX], StableValues)> {
        let mut spans = [FieldSpan::default(); FIELDS_MAX];
        let mut stable = StableValues::default();
        let mut comparison = self.comparison(event, payload)?;
        for (field, found) in self.fields.iter().zip(&mut spans) {
            let span = comparison.next(field)?;
            // Only the text is unescaped when it is read.
            if span.has_escapes && field.role != FieldRole::Text {
                return None;
            }
            *found = span;
            let range = span.begin..span.end;
            match field.role {
                FieldRole::Index => stable.index = Some(payload.get(range)?.parse().ok()?),
                FieldRole::PartIndex => {
                    stable.part_index = Some(payload.get(range)?.parse().ok()?);
                }
                FieldRole::Id => stable.id = Some(range),
                FieldRole::Name => stable.name = Some(range),
                FieldRole::Text | FieldRole::IgnoredConstant | FieldRole::IgnoredVarying => {}
            }
        }
        comparison.end().map(|()| (spans, stable))
    }

    fn comparison<'s>(&'s self, event: &str, payload: &'s str) -> Option<Comparison<'s>> {
        let (template, payload) = (self.payload.as_bytes(), payload.as_bytes());
        event_names_equal(event, &self.event).then_some(Comparison {
            template,
            payload,
            template_at: 0,
            payload_at: 0,
        })
    }
}

impl TemplateField {
    /// Locates a value that was read from a payload, if the payload has it as a string or as digits.
    fn locate(payload: &str, (role, text): &(FieldRole, Cow<'_, str>)) -> Option<Self> {
        let role = *role;
        let Range { start: begin, end } = match text {
            Cow::Borrowed(text) => slice_position(payload, text)?,
            Cow::Owned(text) => escaped_position(payload, text)?,
        };
        let byte_at = |at: usize| payload.as_bytes().get(at).copied();
        let is_string = byte_at(begin.checked_sub(1)?) == Some(b'"') && byte_at(end) == Some(b'"');
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        let fits = match role {
            FieldRole::Text | FieldRole::Id | FieldRole::Name => is_string,
            FieldRole::Index | FieldRole::PartIndex => is_number && !is_string,
            FieldRole::IgnoredConstant | FieldRole::IgnoredVarying => is_string || is_number,
        };
        fits.then_some(Self { begin, end, role, is_string })
    }
}

impl FieldRole {
    /// Returns whether the field mostly has the same value as in the payload before. Comparing it
    /// as fixed bytes is faster than reading it.
    fn is_stable(self) -> bool {
        match self {
            Self::Index | Self::PartIndex | Self::Id | Self::Name | Self::IgnoredConstant => true,
            Self::Text | Self::IgnoredVarying => false,
        }
    }
}

/// A comparison of a payload with the template's, from the beginning.
struct Comparison<'s> {
    template: &'s [u8],
    payload: &'s [u8],
    /// The number of bytes of each that are compared already.
    template_at: usize,
    payload_at: usize,
}

impl Comparison<'_> {
    /// Compares the bytes before a field and returns the field's position in the payload.
    fn next(&mut self, field: &TemplateField) -> Option<FieldSpan> {
        let before = self.template.get(self.template_at..field.begin)?;
        let remaining = self.payload.get(self.payload_at..)?.strip_prefix(before)?;
        let begin = self.payload_at + before.len();
        let (length, has_escapes) = if field.is_string {
            string_bytes(remaining)?
        } else {
            (number_bytes(remaining)?, false)
        };
        (self.template_at, self.payload_at) = (field.end, begin + length);
        Some(FieldSpan { begin, end: begin + length, has_escapes })
    }

    /// Compares the remaining bytes.
    fn end(&self) -> Option<()> {
        (self.payload.get(self.payload_at..)? == self.template.get(self.template_at..)?)
            .then_some(())
    }
}

/// Returns the position of a slice of the payload, computed from the addresses of both.
fn slice_position(payload: &str, part: &str) -> Option<Range<usize>> {
    let begin = (part.as_ptr() as usize).checked_sub(payload.as_ptr() as usize)?;
    let end = begin.checked_add(part.len())?;
    (end < payload.len()).then_some(begin..end)
}

/// Returns the position of the only string with escapes that stands for this text. Returns `None`
/// if there is none, or several.
fn escaped_position(payload: &str, text: &str) -> Option<Range<usize>> {
    let (mut at, mut found) = (0, None);
    while let Some(quote) = memchr(b'"', payload.as_bytes().get(at..)?) {
        let begin = at + quote + 1;
        let (length, has_escapes) = string_bytes(payload.as_bytes().get(begin..)?)?;
        let span = FieldSpan { begin, end: begin + length, has_escapes };
        if has_escapes
            && span.text(payload).as_deref() == Some(text)
            && found.replace(begin..span.end).is_some()
        {
            return None;
        }
        at = span.end + 1;
    }
    found
}

/// Returns whether a payload is short enough to become a template.
fn is_short(event: &str, payload: &str) -> bool {
    event.len() + payload.len() <= TEMPLATE_BYTES_MAX
}

/// Returns whether two event names are equal. Most wires have no event names, and comparing two
/// empty texts byte by byte is slow: some versions of the C library read the address of an empty
/// text with a mask, and the processor has to suppress the fault.
fn event_names_equal(one: &str, other: &str) -> bool {
    one.len() == other.len() && (one.is_empty() || one == other)
}

impl FieldSpan {
    /// Returns the text of a string, or `None` if an escape is invalid.
    fn text(self, payload: &str) -> Option<Cow<'_, str>> {
        if self.has_escapes {
            let quoted = payload.get(self.begin.checked_sub(1)?..self.end.checked_add(1)?)?;
            return unescaped(quoted).map(Cow::Owned);
        }
        payload.get(self.begin..self.end).map(Cow::Borrowed)
    }
}

/// Returns the text of a JSON string, given with its quotes.
fn unescaped(quoted: &str) -> Option<String> {
    let mut rest = quoted.strip_prefix('"')?.strip_suffix('"')?;
    let mut text = String::with_capacity(rest.len());
    while let Some(at) = memchr(b'\\', rest.as_bytes()) {
        text.push_str(rest.get(..at)?);
        text.push(match rest.as_bytes().get(at + 1)? {
            b'"' => '"',
            b'\\' => '\\',
            b'/' => '/',
            b'n' => '\n',
            b't' => '\t',
            // The other escapes are rare, so serde_json reads the whole string.
            _ => return serde_json::from_str(quoted).ok(),
        });
        rest = rest.get(at + 2..)?;
    }
    text.push_str(rest);
    Some(text)
}
