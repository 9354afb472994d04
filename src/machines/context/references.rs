//! The grammar of references in the arguments of a call, and the substitution of their values.
//!
//! - `$VAR_REF{{ID}}` is a [`Reference`] if `ID` names a result, arguments, an answer or a variable.
//! - `$VAR_REF{{{{` writes `$VAR_REF{{`.
//! - Any other text stays as it is. So do the names of members.
//! - A string that is exactly one reference becomes the value with its JSON type. Inside a longer string the
//!   value is inserted as text: strings as they are, other values as compact JSON.
//!
//! A value that is inserted is not searched for references.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use memchr::memmem;
use serde_json::Value;

use callsheet_values::record::{JournalEntry, Record};
use callsheet_values::transcript::{Transcript, TurnTranscript};
use callsheet_values::types::{
    CallKey, REFERENCE_END, REFERENCE_START, Reference, ReferenceError, ReferencedValue, ToolCall,
    ToolOutcome, floor_char_boundary,
};

/// Number of bytes after the start mark in which the end mark is searched. Every valid reference ends in them.
const END_SEARCH_BYTES: usize = 160;

/// The text that follows [`REFERENCE_START`] if that is literal text.
const ESCAPE: &str = "{{";

/// Searches for [`REFERENCE_START`].
static START_FINDER: LazyLock<memmem::Finder<'_>> =
    LazyLock::new(|| memmem::Finder::new(REFERENCE_START));

/// The values of references.
pub type ReferenceValues = BTreeMap<Reference, ReferencedValue>;

/// A piece of a string.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ReferencePart<'a> {
    Text(&'a str),
    Reference(Reference),
}

/// Returns whether a JSON value may hold references, so that [`substitute_references`] may change it.
#[must_use]
pub fn has_references(value: &Value) -> bool {
    match value {
        Value::String(text) => START_FINDER.find(text.as_bytes()).is_some(),
        Value::Array(items) => items.iter().any(has_references),
        Value::Object(members) => members.values().any(has_references),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Returns the references in a JSON value.
#[must_use]
pub fn references_in(value: &Value) -> BTreeSet<Reference> {
    let mut found = BTreeSet::new();
    add_references(value, &mut found);
    found
}

fn add_references(value: &Value, found: &mut BTreeSet<Reference>) {
    match value {
        Value::String(text) => {
            found.extend(ReferenceParts { rest: text }.filter_map(|part| match part {
                ReferencePart::Reference(reference) => Some(reference),
                ReferencePart::Text(_) => None,
            }));
        }
        Value::Array(items) => items.iter().for_each(|item| add_references(item, found)),
        Value::Object(members) => members.values().for_each(|item| add_references(item, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Returns the JSON value with the values of its references. A reference without a value stays as it is.
///
/// # Errors
/// If the result has more than `bytes_max` bytes as compact JSON.
pub fn substitute_references(
    value: &Value,
    values: &ReferenceValues,
    bytes_max: usize,
) -> Result<Value, ReferenceError> {
    let mut substitution = ReferenceSubstitution { bytes_left: bytes_max };
    let too_large = ReferenceError::TooLarge { maximum: bytes_max };
    let filled = substitution.fill(value, values).ok_or_else(|| too_large.clone())?;
    let bytes = serde_json::to_string(&filled).map_or(0, |json| json.len());
    if bytes > bytes_max { Err(too_large) } else { Ok(filled) }
}

/// A substitution in progress. Counts the bytes of the inserted values, so that many references to a large value
/// use no more memory than is allowed.
struct ReferenceSubstitution {
    bytes_left: usize,
}

impl ReferenceSubstitution {
    /// Returns the value with the values of its references, or `None` if they are too large.
    fn fill(&mut self, value: &Value, values: &ReferenceValues) -> Option<Value> {
        Some(match value {
            Value::String(text) if text.contains(REFERENCE_START) => {
                self.fill_text(text, values)?
            }
            Value::Array(items) => {
                let items = items.iter().map(|item| self.fill(item, values));
                Value::Array(items.collect::<Option<_>>()?)
            }
            Value::Object(members) => {
                let members = members
                    .iter()
                    .map(|(name, item)| Some((name.clone(), self.fill(item, values)?)));
                Value::Object(members.collect::<Option<_>>()?)
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
        })
    }

    fn fill_text(&mut self, text: &str, values: &ReferenceValues) -> Option<Value> {
        let mut parts = ReferenceParts { rest: text };
        let first = parts.next();
        if let (Some(ReferencePart::Reference(only)), "") = (&first, parts.rest)
            && let Some(value) = values.get(only)
        {
            self.count(value)?;
            let json = value.json.as_deref().cloned();
            return Some(json.unwrap_or_else(|| Value::String(value.text.to_string())));
        }
        let mut filled = String::with_capacity(text.len());
        for part in first.into_iter().chain(parts) {
            match part {
                ReferencePart::Text(text) => filled.push_str(text),
                ReferencePart::Reference(reference) => match values.get(&reference) {
                    None => filled.push_str(&reference.to_string()),
                    Some(value) => {
                        self.count(value)?;
                        match &value.json {
                            Some(json) => filled.push_str(&json.to_string()),
                            None => filled.push_str(&value.text),
                        }
                    }
                },
            }
        }
        Some(Value::String(filled))
    }

    fn count(&mut self, value: &ReferencedValue) -> Option<()> {
        self.bytes_left = self.bytes_left.checked_sub(value.inserted_bytes())?;
        Some(())
    }
}

/// Adds a value of another reference. `bytes` is the sum of the bytes of the values.
///
/// # Errors
/// If the values then have more than `bytes_max` bytes. Arguments that hold them all would have more too.
pub fn add_value(
    values: &mut ReferenceValues,
    bytes: &mut usize,
    (reference, value): (Reference, ReferencedValue),
    bytes_max: usize,
) -> Result<(), ReferenceError> {
    *bytes = bytes.saturating_add(value.inserted_bytes());
    values.insert(reference, value);
    if *bytes > bytes_max { Err(ReferenceError::TooLarge { maximum: bytes_max }) } else { Ok(()) }
}

/// Splits a string into texts and references. An escape becomes [`REFERENCE_START`].
struct ReferenceParts<'a> {
    rest: &'a str,
}

impl<'a> Iterator for ReferenceParts<'a> {
    type Item = ReferencePart<'a>;

    fn next(&mut self) -> Option<ReferencePart<'a>> {
        if self.rest.is_empty() {
            return None;
        }
        let Some(behind) = self.rest.strip_prefix(REFERENCE_START) else {
            let start = START_FINDER.find(self.rest.as_bytes());
            let (text, rest) = self.rest.split_at(start.unwrap_or(self.rest.len()));
            self.rest = rest;
            return Some(ReferencePart::Text(text));
        };
        let (start, _) = self.rest.split_at(REFERENCE_START.len());
        if let Some(rest) = behind.strip_prefix(ESCAPE) {
            self.rest = rest;
            return Some(ReferencePart::Text(start));
        }
        let (near, _) = behind.split_at(floor_char_boundary(behind, END_SEARCH_BYTES));
        if let Some((id, _)) = near.split_once(REFERENCE_END)
            && let Ok(reference) = id.parse()
        {
            self.rest = behind.get(id.len() + REFERENCE_END.len()..).unwrap_or_default();
            return Some(ReferencePart::Reference(reference));
        }
        self.rest = behind;
        Some(ReferencePart::Text(start))
    }
}

/// Returns the value of a reference to a result, to its structured value, to arguments or to an answer, from the records of a session.
///
/// # Errors
/// If the records do not hold it.
pub fn recorded_value(
    records: &Transcript<'_>,
    reference: &Reference,
) -> Result<ReferencedValue, ReferenceError> {
    match reference {
        Reference::Result(key) => {
            let result = recorded_result(records, *key);
            let (_, outcome) =
                result.ok_or_else(|| ReferenceError::NoSuchResult(reference.clone()))?;
            let structured = outcome.full.as_ref().and_then(|full| full.structured.as_ref());
            // A string is a text, whose form for the model is the content.
            let structured = structured.filter(|value| !value.is_string());
            let json = structured.map(|value| value.clone().into());
            Ok(ReferencedValue { text: outcome.content.clone(), json })
        }
        Reference::Structured(key) => {
            let result = recorded_result(records, *key);
            let (_, outcome) =
                result.ok_or_else(|| ReferenceError::NoSuchResult(reference.clone()))?;
            let structured = outcome.full.as_ref().and_then(|full| full.structured.as_ref());
            let value =
                structured.ok_or_else(|| ReferenceError::NoStructuredValue(reference.clone()))?;
            Ok(ReferencedValue::json(value.clone().into()))
        }
        Reference::Arguments(key) => {
            let call = recorded_call(records, *key);
            let call = call.ok_or_else(|| ReferenceError::NoSuchResult(reference.clone()))?;
            Ok(ReferencedValue::json(call.arguments.clone()))
        }
        Reference::Answer(id) => {
            let mut ends = records.runs.iter().filter_map(|run| run.end);
            let end = ends.find(|end| end.id == id);
            let end = end.ok_or_else(|| ReferenceError::NoSuchRun(reference.clone()))?;
            Ok(ReferencedValue::text(end.text))
        }
        Reference::Variable(_) => Err(ReferenceError::NoSuchVariable(reference.clone())),
    }
}

/// Returns whether the value of a reference may depend on a record of its turn. Outcomes of other calls, intents,
/// reports, approvals and decisions of hooks are not needed for a result or for arguments.
#[must_use]
pub fn may_affect_reference(record: &Record, reference: &Reference) -> bool {
    let key = match reference {
        Reference::Result(key) | Reference::Structured(key) | Reference::Arguments(key) => *key,
        Reference::Answer(_) | Reference::Variable(_) => return true,
    };
    let is_unused = matches!(
        record,
        Record::CallIntended { .. }
            | Record::CallReported { .. }
            | Record::ApprovalAsked { .. }
            | Record::ApprovalGiven { .. }
            | Record::HooksDecided { .. }
    );
    !is_unused && !matches!(record, Record::CallEnded { call, .. } if call.key != key)
}

/// Returns the value of a reference from the entries of its turn, or from the one that ended its run.
///
/// # Errors
/// If the entries do not hold it.
pub fn stored_value(
    entries: &[JournalEntry],
    reference: &Reference,
) -> Result<ReferencedValue, ReferenceError> {
    let answer = |entry: &JournalEntry| {
        let (Reference::Answer(id), Record::RunEnded { run_id, text, .. }) =
            (reference, &entry.record)
        else {
            return None;
        };
        (id == run_id).then(|| ReferencedValue::text(text.as_str()))
    };
    match entries.iter().find_map(answer) {
        Some(answer) => Ok(answer),
        None => recorded_value(&Transcript::read(entries), reference),
    }
}

/// Returns a call of a response that was kept.
fn recorded_call<'a>(records: &Transcript<'a>, key: CallKey) -> Option<&'a ToolCall> {
    turn_of(records, key)?.kept_calls().iter().find(|call| call.key == key)
}

/// Returns a call of a response that was kept, with its outcome.
#[must_use]
pub fn recorded_result<'a>(
    records: &Transcript<'a>,
    key: CallKey,
) -> Option<(&'a ToolCall, &'a ToolOutcome)> {
    let call = recorded_call(records, key)?;
    Some((call, turn_of(records, key)?.call(key)?.outcome()?.outcome))
}

fn turn_of<'t, 'a>(records: &'t Transcript<'a>, key: CallKey) -> Option<&'t TurnTranscript<'a>> {
    let mut turns = records.runs.iter().rev().flat_map(|run| run.turns.iter().rev());
    turns.find(|turn| turn.number == key.turn)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use callsheet_values::types::RunId;

    fn values() -> ReferenceValues {
        let value = |id: &str, value| (id.parse::<Reference>().unwrap(), value);
        let json = |json: Value| ReferencedValue::json(json.into());
        [
            value("t1a1c0", ReferencedValue::text("one \"$VAR_REF{{t1a1c1}}\"")),
            value("t1a1c1", json(json!({"b": [1, "x"]}))),
            value("t1a1c0.arguments", json(json!({}))),
            value("run_7", ReferencedValue::text("")),
            value("var:a b", json(json!(7))),
        ]
        .into()
    }

    fn filled(value: Value) -> Value {
        substitute_references(&value, &values(), 10_000).unwrap()
    }

    #[test]
    fn a_string_that_is_one_reference_keeps_the_type_of_its_value() {
        let arguments = json!({
            "text": "$VAR_REF{{t1a1c0}}",
            "object": ["$VAR_REF{{t1a1c1}}", "$VAR_REF{{t1a1c0.arguments}}"],
            "empty": "$VAR_REF{{run_7}}",
            "number": {"$VAR_REF{{t1a1c0}}": "$VAR_REF{{var:a b}}"},
        });
        let expected = json!({
            "text": "one \"$VAR_REF{{t1a1c1}}\"",
            "object": [{"b": [1, "x"]}, {}],
            "empty": "",
            "number": {"$VAR_REF{{t1a1c0}}": 7},
        });
        assert!(has_references(&arguments));
        assert_eq!(references_in(&arguments).len(), 5);
        assert_eq!(filled(arguments), expected);
    }

    #[test]
    fn values_inside_a_longer_string_are_text() {
        let text = "a $VAR_REF{{t1a1c1}} b$VAR_REF{{var:a b}}$VAR_REF{{run_7}}";
        assert_eq!(filled(json!(text)), json!(r#"a {"b":[1,"x"]} b7"#));
        assert_eq!(filled(json!("$VAR_REF{{t1a1c1}} ")), json!(r#"{"b":[1,"x"]} "#));
    }

    #[test]
    fn other_text_stays_and_the_escape_writes_the_start() {
        for text in [
            "",
            "$VAR_REF{{",
            "$VAR_REF{{}}",
            "$VAR_REF{{t1a1}}",
            "$VAR_REF{{ t1a1c0 }}",
            "$VAR_REF{t1a1c0}",
            "$var_ref{{t1a1c0}}",
            "{{t1a1c0}}",
            "$VAR_REF{{t1a1c0}",
        ] {
            assert_eq!(filled(json!(text)), json!(text));
            assert!(references_in(&json!(text)).is_empty(), "{text}");
        }
        assert_eq!(filled(json!("$VAR_REF{{{{t1a1c0}}")), json!("$VAR_REF{{t1a1c0}}"));
        assert_eq!(filled(json!("$VAR_REF{{$VAR_REF{{var:a b}}")), json!("$VAR_REF{{7"));
        // No value is known.
        assert_eq!(filled(json!("$VAR_REF{{t9a1c0}} x")), json!("$VAR_REF{{t9a1c0}} x"));
    }

    #[test]
    fn the_size_is_limited() {
        let value = json!(["$VAR_REF{{t1a1c0}}", "$VAR_REF{{t1a1c0}}"]);
        let bytes = filled(value.clone()).to_string().len();
        assert!(substitute_references(&value, &values(), bytes).is_ok());
        let maximum = bytes - 1;
        let error = substitute_references(&value, &values(), maximum).unwrap_err();
        assert_eq!(error, ReferenceError::TooLarge { maximum });
    }

    fn reference() -> impl Strategy<Value = Reference> {
        let key = (0..3_u32, 1..3_u32, 0..3_u32).prop_map(|(turn, attempt, index)| CallKey {
            turn,
            attempt,
            index,
        });
        prop_oneof![
            key.clone().prop_map(Reference::Result),
            key.clone().prop_map(Reference::Structured),
            key.prop_map(Reference::Arguments),
            "run_[a-z0-9]{1,6}".prop_map(|id| Reference::Answer(RunId(id.into()))),
            "[a-z{} .:é]{1,6}"
                .prop_filter("a name that can be written", |name| !format!("{name}}}")
                    .contains("}}"))
                .prop_map(|name| Reference::Variable(name.as_str().into())),
        ]
    }

    fn text() -> impl Strategy<Value = String> {
        prop::collection::vec(
            prop_oneof![
                reference().prop_map(|reference| reference.to_string()),
                Just("$VAR_REF{{{{".to_owned()),
                Just("$VAR_REF{{".to_owned()),
                Just("}}".to_owned()),
                "[a-z{}$é ]{0,4}",
            ],
            0..6,
        )
        .prop_map(|parts| parts.concat())
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::Bool),
            any::<i32>().prop_map(|n| json!(n)),
            text().prop_map(Value::String),
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
                prop::collection::btree_map("[a-c$]{1,2}", inner, 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_written_reference_is_found_in_any_text(reference in reference(), before in "[a-z ]{0,5}", behind in "[a-z ]{0,5}") {
            let text = json!(format!("{before}{reference}{behind}"));
            prop_assert_eq!(references_in(&text), [reference.clone()].into());
            let values = [(reference, ReferencedValue::text("V"))].into();
            prop_assert_eq!(substitute_references(&text, &values, 100).unwrap(), json!(format!("{before}V{behind}")));
        }

        #[test]
        fn the_texts_of_the_parts_make_the_string(text in text()) {
            let parts: Vec<_> = ReferenceParts { rest: &text }.collect();
            let escaped = text.matches("$VAR_REF{{{{").count();
            let bytes: usize = parts.iter().map(|part| match part {
                ReferencePart::Text(text) => text.len(),
                ReferencePart::Reference(reference) => reference.to_string().len(),
            }).sum();
            prop_assert_eq!(bytes + escaped * ESCAPE.len(), text.len());
        }

        #[test]
        fn any_text_can_be_escaped(text in text()) {
            let escaped = text.replace(REFERENCE_START, "$VAR_REF{{{{");
            prop_assert!(references_in(&json!(escaped)).is_empty());
            let filled = substitute_references(&json!(escaped), &values(), 10_000).unwrap();
            prop_assert_eq!(filled, json!(text));
        }

        #[test]
        fn only_a_value_with_the_start_mark_changes(value in value()) {
            let filled = substitute_references(&value, &values(), 100_000).unwrap();
            if !has_references(&value) {
                prop_assert_eq!(&filled, &value);
                prop_assert!(references_in(&value).is_empty());
            }
        }

        #[test]
        fn every_reference_is_replaced_once(value in value()) {
            let found = references_in(&value);
            let values: ReferenceValues =
                found.iter().map(|of| (of.clone(), ReferencedValue::text("V"))).collect();
            let filled = substitute_references(&value, &values, 100_000).unwrap().to_string();
            let count = |text: &str| text.matches("V").count() - text.matches("VAR_REF").count();
            let mut pieces = 0;
            count_references(&value, &mut pieces);
            prop_assert_eq!(count(&filled), pieces);
        }
    }

    fn count_references(value: &Value, count: &mut usize) {
        match value {
            Value::String(text) => {
                let is_reference =
                    |part: &ReferencePart<'_>| matches!(part, ReferencePart::Reference(_));
                *count += ReferenceParts { rest: text }.filter(is_reference).count();
            }
            Value::Array(items) => items.iter().for_each(|item| count_references(item, count)),
            Value::Object(items) => items.values().for_each(|item| count_references(item, count)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}
