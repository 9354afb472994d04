//! The secrets of a host, which are replaced wherever a service or a tool repeats them.
#![expect(clippy::disallowed_types, reason = "values name no crate of the shells")]

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aho_corasick::{AhoCorasick, AhoCorasickKind, Input, MatchKind};
use arc_swap::{ArcSwapOption, Guard};
use serde_json::{Map, Value};

use super::secret_forms::forms;

/// The text that replaces a secret.
pub const REDACTED: &str = "[redacted]";

/// The end of a text that [`excerpt`](super::excerpt) has cut.
pub const CUT_MARK: &str = "\u{2026}";

/// The size of all forms above which the search takes less memory and more time.
const FAST_FORMS_BYTES_MAX: usize = 64 * 1024;

/// The minimum length of a secret in bytes. A shorter text may occur by accident.
const SECRET_BYTES_MIN: usize = 8;

/// Number of values of a source that are replaced: the present ones, and those before them, which a service may still
/// repeat.
const VALUES_OF_SOURCE_MAX: usize = 8;

/// The secrets of a host, such as the keys of its models, and a search for them. Cloning is cheap. All clones share the
/// secrets, also those that are added later.
///
/// A secret is found in these forms, whole, without white space at its ends, and with one space for white space:
/// - plain
/// - escaped as in a JSON string, as the libraries of common languages do it
/// - percent-encoded: every byte, or those that common libraries encode, with digits in upper or lower case
/// - percent-encoded twice, with digits in upper case
/// - part of a text in base64: both alphabets, each of the three alignments
#[derive(Clone, Default)]
pub struct Secrets {
    shared: Arc<SharedSecrets>,
}

/// The values of the secrets, and the search for them, which is read without a lock.
#[derive(Default)]
struct SharedSecrets {
    /// Replaced while `values` is locked. `None` if there is no secret.
    search: ArcSwapOption<SecretSearch>,
    values: Mutex<SecretValues>,
}

#[derive(Default)]
struct SecretValues {
    /// Those that do not change.
    lasting: BTreeSet<String>,
    /// The last values of each source whose value changes, the newest last.
    changing: BTreeMap<String, VecDeque<String>>,
}

struct SecretSearch {
    /// In ascending order.
    forms: Vec<String>,
    /// `None` if the forms are too large for an automaton. Then each form is searched for separately.
    automaton: Option<AhoCorasick>,
    /// For each byte: true if a form begins with it.
    first_bytes: [bool; 256],
    /// The length of the longest form in bytes.
    longest: usize,
}

impl Secrets {
    /// Prepares the search. Secrets shorter than 8 bytes are not replaced.
    #[must_use]
    pub fn new<'s>(secrets: impl IntoIterator<Item = &'s str>) -> Self {
        let new = Self::default();
        new.add(secrets);
        new
    }

    /// Adds secrets that do not change.
    pub fn add<'s>(&self, secrets: impl IntoIterator<Item = &'s str>) {
        let mut values = self.values();
        let before = values.lasting.len();
        values.lasting.extend(secrets.into_iter().map(str::to_owned));
        if values.lasting.len() != before {
            self.shared.search.store(values.new_search());
        }
    }

    /// Adds the present value of a source whose value changes, such as a file or a token that is renewed. Its last eight
    /// values are replaced.
    pub fn add_value_of(&self, source: &str, value: &str) {
        let mut values = self.values();
        let of_source = values.changing.entry(source.to_owned()).or_default();
        if of_source.iter().any(|known| known == value) {
            return;
        }
        if of_source.len() == VALUES_OF_SOURCE_MAX {
            of_source.pop_front();
        }
        of_source.push_back(value.to_owned());
        self.shared.search.store(values.new_search());
    }

    fn search(&self) -> Guard<Option<Arc<SecretSearch>>> {
        self.shared.search.load()
    }

    fn values(&self) -> MutexGuard<'_, SecretValues> {
        self.shared.values.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if there is nothing to replace.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.search().is_none()
    }

    /// Returns the text with [`REDACTED`] in place of each secret.
    #[must_use]
    pub fn redact<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match self.search().as_ref().is_some_and(|search| search.matches(text)) {
            true => Cow::Owned(self.redact_and_trim(text, 0, text.len())),
            false => Cow::Borrowed(text),
        }
    }

    /// Replaces each secret in the text.
    pub fn redact_in_place(&self, text: &mut String) {
        if let Cow::Owned(redacted) = self.redact(text) {
            *text = redacted;
        }
    }

    /// Redacts the beginning of a longer text. If it ends within a secret, also removes that part of the secret.
    #[must_use]
    pub fn redact_head(&self, text: &str) -> String {
        self.redact_and_trim(text, 0, text.len() - self.begun_at_end(text))
    }

    /// Redacts a text that holds excerpts. Also removes the beginning of a secret where an excerpt was
    /// cut, which [`CUT_MARK`] shows.
    #[must_use]
    pub fn redact_excerpts(&self, text: &str) -> String {
        let redact_cut = |part: &str| match part.strip_suffix(CUT_MARK) {
            Some(head) => self.redact_head(head) + CUT_MARK,
            None => self.redact(part).into_owned(),
        };
        let mut redacted = text.split_inclusive(CUT_MARK).map(redact_cut).collect();
        // A secret may hold the mark.
        self.redact_in_place(&mut redacted);
        redacted
    }

    /// Returns the position from which on a text is undecided: a secret may begin there that goes on after the text.
    #[must_use]
    pub fn undecided_from(&self, text: &str) -> usize {
        let begun = text.len() - self.begun_at_end(text);
        if begun == text.len() {
            return begun;
        }
        let search = self.search();
        let mut secrets = search.iter().flat_map(|search| search.find_iter(text));
        // A secret that ends there is decided, if it begins earlier.
        let decided = secrets.find(|secret| secret.end > begun).filter(|it| it.start < begun);
        decided.map_or(begun, |secret| secret.end)
    }

    /// Redacts a text that may go on, but not soon. Also removes a secret at the end of which at least half is there.
    #[must_use]
    pub fn redact_begun<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let begun = text.len() - self.begun_at_end(text);
        let suffix = text.get(begun..).unwrap_or_default();
        let search = self.search();
        let shortest = search.iter().flat_map(|search| search.continuing(suffix.as_bytes()));
        match shortest.map(String::len).min() {
            Some(length) if suffix.len() >= SECRET_BYTES_MIN && suffix.len() * 2 >= length => {
                Cow::Owned(self.redact_and_trim(text, 0, begun))
            }
            _ => self.redact(text),
        }
    }

    /// Redacts the end of a longer text. If it starts within a secret, also removes that part of the secret.
    #[must_use]
    pub fn redact_tail(&self, text: &str) -> String {
        self.redact_and_trim(text, self.ended_at_start(text), text.len())
    }

    /// Replaces each secret in a text, and removes the text before `start` and from `end` on, which are parts of cut
    /// secrets. [`REDACTED`] marks a removed part only if it has at least [`SECRET_BYTES_MIN`] bytes. A shorter
    /// one is mostly ordinary text that looks like the end or the beginning of a secret.
    fn redact_and_trim(&self, text: &str, start: usize, end: usize) -> String {
        let search = self.search();
        let matches = search.iter().flat_map(|search| search.find_iter(text));
        let secrets = matches.take_while(|secret| secret.start < end);
        let mut redacted = String::with_capacity(text.len());
        let mut removed = 0..start;
        for next in secrets.chain(std::iter::once(end..text.len())) {
            if next.start < removed.end {
                removed.end = removed.end.max(next.end);
                continue;
            }
            if removed.len() >= SECRET_BYTES_MIN {
                redacted.push_str(REDACTED);
            }
            redacted.push_str(text.get(removed.end..next.start).unwrap_or_default());
            removed = next;
        }
        if removed.len() >= SECRET_BYTES_MIN {
            redacted.push_str(REDACTED);
        }
        redacted
    }

    /// Replaces each secret in the strings, keys and numbers of a JSON value; a number with a secret becomes a string.
    /// If a key then equals an earlier one of its object, a number is appended to it. Returns `None` if the value
    /// contains no secret.
    #[must_use]
    pub fn redact_json(&self, value: &Value) -> Option<Value> {
        let search = self.search();
        let search = search.as_ref()?;
        search.matches_json(value).then(|| self.redact_json_value(value))
    }

    fn redact_json_value(&self, value: &Value) -> Value {
        match value {
            Value::Null | Value::Bool(_) => value.clone(),
            Value::Number(number) => match self.redact(&number.to_string()) {
                Cow::Borrowed(_) => value.clone(),
                Cow::Owned(redacted) => redacted.into(),
            },
            Value::String(text) => self.redact(text).into(),
            Value::Array(items) => items.iter().map(|item| self.redact_json_value(item)).collect(),
            Value::Object(members) => {
                let (mut redacted, mut number) = (Map::new(), 1);
                for (name, member) in members {
                    let name = self.redact(name);
                    let mut unique = name.to_string();
                    while redacted.contains_key(&unique) {
                        number += 1;
                        unique = format!("{name} {number}");
                    }
                    redacted.insert(unique, self.redact_json_value(member));
                }
                redacted.into()
            }
        }
    }

    /// Returns the maximum number of bytes at the end of a text that may begin a secret which goes on after the text.
    #[must_use]
    pub fn begun_at_end(&self, text: &str) -> usize {
        let search = self.search();
        let Some(search) = search.as_ref() else { return 0 };
        let bytes = text.as_bytes();
        let earliest = bytes.len().saturating_sub(search.longest - 1);
        let begins_secret = |at: &usize| {
            let suffix = bytes.get(*at..).unwrap_or_default();
            let first = suffix.first().copied().map(usize::from).unwrap_or_default();
            search.first_bytes.get(first).copied().unwrap_or_default()
                && search.continuing(suffix).next().is_some()
        };
        (earliest..bytes.len()).find(begins_secret).map_or(0, |at| bytes.len() - at)
    }

    /// Returns the maximum number of bytes at the start of a text that may end a secret which begins before the text.
    fn ended_at_start(&self, text: &str) -> usize {
        let search = self.search();
        let forms = search.iter().flat_map(|search| &search.forms);
        let lengths = forms.filter_map(|form| {
            let mut suffixes = form.char_indices().skip(1).filter_map(|(at, _)| form.get(at..));
            suffixes.find(|suffix| text.starts_with(suffix)).map(str::len)
        });
        lengths.max().unwrap_or_default()
    }
}

impl SecretValues {
    /// Returns the search for the secrets of at least [`SECRET_BYTES_MIN`] bytes. `None` if there is none.
    fn new_search(&self) -> Option<Arc<SecretSearch>> {
        let secrets = self.lasting.iter().chain(self.changing.values().flatten());
        let secrets = secrets.filter(|secret| secret.trim().len() >= SECRET_BYTES_MIN);
        let mut forms: Vec<String> = secrets.flat_map(|secret| forms(secret)).collect();
        forms.sort_unstable();
        forms.dedup();
        let mut automaton = AhoCorasick::builder();
        automaton.match_kind(MatchKind::LeftmostLongest);
        if forms.iter().map(String::len).sum::<usize>() > FAST_FORMS_BYTES_MAX {
            automaton.kind(Some(AhoCorasickKind::ContiguousNFA));
        }
        let automaton = automaton.build(&forms);
        SecretSearch::new(forms, automaton.ok()).map(Arc::new)
    }
}

impl SecretSearch {
    /// Makes a search for forms in ascending order. `None` if there is none.
    fn new(forms: Vec<String>, automaton: Option<AhoCorasick>) -> Option<Self> {
        let longest = forms.iter().map(String::len).max()?;
        let mut first_bytes = [false; 256];
        for first in forms.iter().filter_map(|form| form.bytes().next()) {
            if let Some(is_first) = first_bytes.get_mut(usize::from(first)) {
                *is_first = true;
            }
        }
        Some(Self { forms, automaton, first_bytes, longest })
    }

    /// Returns the forms that begin with these bytes and are longer.
    fn continuing<'s>(&'s self, beginning: &'s [u8]) -> impl Iterator<Item = &'s String> + 's {
        let first = self.forms.partition_point(|form| form.as_bytes() < beginning);
        let forms = self.forms.iter().skip(first);
        let continuing = forms.take_while(move |form| form.as_bytes().starts_with(beginning));
        continuing.filter(move |form| form.len() > beginning.len())
    }

    fn matches(&self, text: &str) -> bool {
        match &self.automaton {
            Some(automaton) => automaton.is_match(text),
            None => self.forms.iter().any(|form| text.contains(form.as_str())),
        }
    }

    /// Returns the positions of the secrets in a text, in order. They do not overlap.
    fn find_iter<'s>(&'s self, text: &'s str) -> impl Iterator<Item = Range<usize>> + 's {
        std::iter::successors(self.find(text, 0), move |last| self.find(text, last.end))
    }

    /// Returns the position of the first secret from `start` on, the longest one if several begin there.
    fn find(&self, text: &str, start: usize) -> Option<Range<usize>> {
        if let Some(automaton) = &self.automaton {
            return Some(automaton.find(Input::new(text).range(start..))?.range());
        }
        let rest = text.get(start..)?;
        let found = self.forms.iter().filter_map(|form| {
            let at = start + rest.find(form.as_str())?;
            Some(at..at + form.len())
        });
        found.min_by_key(|secret| (secret.start, Reverse(secret.end)))
    }

    /// Returns whether a string, key or number of a JSON value contains a secret.
    fn matches_json(&self, value: &Value) -> bool {
        match value {
            Value::Null | Value::Bool(_) => false,
            // Most numbers have fewer digits than a secret and need no text.
            Value::Number(number) if number.as_u64().is_some_and(|it| it < 10_000_000) => false,
            Value::Number(number) => self.matches(&number.to_string()),
            Value::String(text) => self.matches(text),
            Value::Array(items) => items.iter().any(|item| self.matches_json(item)),
            Value::Object(members) => {
                members.iter().any(|(name, member)| self.matches(name) || self.matches_json(member))
            }
        }
    }
}

impl PartialEq for Secrets {
    /// Compares the secrets that do not change.
    fn eq(&self, other: &Self) -> bool {
        let lasting = |secrets: &Self| secrets.values().lasting.clone();
        lasting(self) == lasting(other)
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets")
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD_NO_PAD;

    use super::*;

    const KEY: &str = "sk-test+key/with 'odd\" \u{e9}";

    #[test]
    fn every_form_of_a_secret_is_replaced() {
        let secrets = Secrets::new([KEY, "short"]);
        let percent = "sk-test%2Bkey%2Fwith%20%27odd%22%20%C3%A9";
        let json = serde_json::to_string(KEY).unwrap();
        let encoded = |is_lower| {
            let digits: String = KEY.bytes().map(|byte| format!("%{byte:02X}")).collect();
            if is_lower { digits.to_lowercase() } else { digits }
        };
        for (text, expected) in [
            (format!("key {KEY}!"), "key [redacted]!"),
            (format!("{{\"a\":{json}}}"), "{\"a\":\"[redacted]\"}"),
            (format!("?key={percent}&b"), "?key=[redacted]&b"),
            (format!("?key={}&b", encoded(false)), "?key=[redacted]&b"),
            (format!("?key={}&b", encoded(true)), "?key=[redacted]&b"),
            (format!("{KEY}{KEY}"), "[redacted][redacted]"),
            ("a short one".to_owned(), "a short one"),
        ] {
            assert_eq!(secrets.redact(&text), expected);
        }
        for before in ["", "a", "ab", "abc", "user:"] {
            for after in ["", "x", "xy"] {
                let text = STANDARD_NO_PAD.encode(format!("{before}{KEY}{after}"));
                let redacted = secrets.redact(&text);
                assert!(redacted.contains(REDACTED), "{before:?} {after:?}: {redacted}");
                let rest = redacted.len() - REDACTED.len();
                assert!(rest <= (before.len() + after.len()) * 4 / 3 + 6, "{redacted}");
            }
        }
        let value = serde_json::json!({"a": [format!("x{KEY}")], "b": 1});
        let redacted = serde_json::json!({"a": ["x[redacted]"], "b": 1});
        assert_eq!(secrets.redact_json(&value), Some(redacted));
        assert_eq!(secrets.redact_json(&serde_json::json!({"b": 1})), None);
    }

    #[test]
    fn a_secret_in_json_text_within_json_is_replaced() {
        let secrets = Secrets::new(["ab\"cdefgh"]);
        let text = serde_json::json!({"key": "ab\"cdefgh"}).to_string();
        let redacted = r#"{"key":"[redacted]"}"#;
        assert_eq!(
            secrets.redact_json(&serde_json::json!({"a": [text]})),
            Some(serde_json::json!({"a": [redacted]}))
        );
        assert_eq!(
            secrets.redact_json(&serde_json::json!({text: 1})),
            Some(serde_json::json!({redacted: 1}))
        );
    }

    #[test]
    fn all_clones_replace_the_last_values_of_a_source_that_changes() {
        let secrets = Secrets::new(["lasting-secret"]);
        let clone = secrets.clone();
        for number in 0..10 {
            clone.add_value_of("token", &format!("token-{number}-x"));
        }
        let text = "lasting-secret token-0-x token-1-x token-2-x token-9-x";
        let expected = "[redacted] token-0-x token-1-x [redacted] [redacted]";
        assert_eq!(secrets.redact(text), expected);
    }

    #[test]
    fn secrets_are_also_replaced_without_an_automaton() {
        let texts = ["and-more-keys", "secret-keys", "secret-keys-and-more"].map(str::to_owned);
        let secrets = Secrets::default();
        secrets.shared.search.store(SecretSearch::new(texts.into(), None).map(Arc::new));
        for (text, expected) in [
            ("nothing", "nothing"),
            ("a secret-keys b", "a [redacted] b"),
            ("a secret-keys-and-more-keys", "a [redacted]-keys"),
            ("secret-keyssecret-keys and-more-keys", "[redacted][redacted] [redacted]"),
        ] {
            assert_eq!(secrets.redact(text), expected, "{text}");
        }
        assert_eq!(secrets.redact_head("a secret-keys b secret-k"), "a [redacted] b [redacted]");
    }

    #[test]
    fn names_that_become_equal_are_numbered() {
        let secrets = Secrets::new(["secret-1", "secret-2", "secret-3"]);
        let value = serde_json::json!({"secret-1": 1, "secret-2": 2, "secret-3": 3, "x": 4});
        let redacted =
            serde_json::json!({"[redacted]": 1, "[redacted] 2": 2, "[redacted] 3": 3, "x": 4});
        assert_eq!(secrets.redact_json(&value), Some(redacted));
    }

    #[test]
    fn a_secret_of_digits_is_replaced_in_numbers_too() {
        let secrets = Secrets::new(["12345678"]);
        let value =
            serde_json::json!({"pin": 12_345_678, "12345678": ["a 12345678", -912_345_678, 7]});
        let redacted = serde_json::json!(
            {"pin": "[redacted]", "[redacted]": ["a [redacted]", "-9[redacted]", 7]}
        );
        assert_eq!(secrets.redact_json(&value), Some(redacted));
    }

    #[test]
    fn the_beginning_of_a_secret_at_the_end_is_found() {
        let secrets = Secrets::new(["secret-key-1"]);
        for (text, expected) in [
            ("", 0),
            ("nothing", 0),
            ("a s", 1),
            ("a secret-key-", 11),
            ("secret-secret-", 7),
            ("a secret-key-1", 0),
            ("sss", 1),
        ] {
            assert_eq!(secrets.begun_at_end(text), expected, "{text}");
        }
        assert!(Secrets::new([]).is_empty() && Secrets::new(["1234567"]).is_empty());
    }

    #[test]
    fn the_beginning_of_a_secret_at_the_end_of_a_head_is_removed() {
        let secrets = Secrets::new(["secret-keys", "secret-keys-and-more", "\u{e9}t\u{e9}-secret"]);
        for (text, expected) in [
            ("", ""),
            ("nothing", "nothing"),
            // A short beginning is removed without a mark.
            ("a s", "a "),
            ("a secret-", "a "),
            ("a secret-k", "a [redacted]"),
            ("a secret-key", "a [redacted]"),
            // The last letter of the secret also begins one.
            ("a secret-keys", "a [redacted]"),
            ("a secret-keys-and", "a [redacted]"),
            ("a secret-keys b secret-k", "a [redacted] b [redacted]"),
            ("secret-keys, secret-keys", "[redacted], [redacted]"),
            ("a \u{e9}t\u{e9}-secre", "a [redacted]"),
            ("a secret-keys b", "a [redacted] b"),
        ] {
            assert_eq!(secrets.redact_head(text), expected, "{text}");
        }
        let long = Secrets::new([KEY]);
        let json = Value::from(KEY).to_string();
        assert_eq!(long.redact_head(&json[..json.len() - 4]), "\"[redacted]");
        assert_eq!(Secrets::default().redact_head("secret-key"), "secret-key");
    }

    #[test]
    fn the_beginning_of_a_secret_that_an_excerpt_cuts_is_removed() {
        let secrets = Secrets::new(["secret-keys"]);
        for (text, expected) in [
            ("nothing", "nothing"),
            ("a secret-k\u{2026}", "a [redacted]\u{2026}"),
            ("to \"a secret-k\u{2026}\" (see b)", "to \"a [redacted]\u{2026}\" (see b)"),
            ("secret-keys\u{2026} secret-key\u{2026} s", "[redacted]\u{2026} [redacted]\u{2026} s"),
        ] {
            assert_eq!(secrets.redact_excerpts(text), expected, "{text}");
        }
        let long = crate::types::excerpt("a secret-keys", 11);
        assert_eq!(secrets.redact_excerpts(&long), "a [redacted]\u{2026}");
    }

    #[test]
    fn the_end_of_a_secret_at_the_start_of_a_tail_is_removed() {
        let secrets = Secrets::new(["secret-keys", "the-secret-keys", "\u{e9}t\u{e9}-key-\u{e9}"]);
        for (text, expected) in [
            ("", ""),
            ("nothing", "nothing"),
            ("s is it", " is it"),
            ("ecret-keys b", "[redacted] b"),
            ("-secret-keys b", "[redacted] b"),
            ("secret-keys b", "[redacted] b"),
            ("a secret-keys b", "a [redacted] b"),
            ("keys secret-keyssecret-keys", " [redacted][redacted]"),
            ("t\u{e9}-key-\u{e9}!", "[redacted]!"),
            ("b secret-key", "b secret-key"),
        ] {
            assert_eq!(secrets.redact_tail(text), expected, "{text}");
        }
        // The end of the secret that is cut also begins a whole one.
        let overlapping = Secrets::new(["first-key-abc", "abcdefgh"]);
        assert_eq!(overlapping.redact_tail("-key-abcdefgh b"), "[redacted] b");
        assert_eq!(Secrets::default().redact_tail("ecret-keys"), "ecret-keys");
    }

    #[test]
    fn the_debug_form_shows_nothing() {
        assert_eq!(format!("{:?}", Secrets::new([KEY])), "Secrets");
    }
}
