//! Reads values from the tables of the file, and records errors with their lines.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::values::{self, Parsed};
use crate::config::error::{ConfigError, ConfigErrors, KeyLocations, did_you_mean};

/// A file that is being read.
#[derive(Debug)]
pub(super) struct ConfigSource<'t> {
    text: &'t str,
    table: Option<Spanned<DeTable<'t>>>,
    key_locations: RefCell<KeyLocations>,
    errors: RefCell<Vec<ConfigError>>,
}

impl<'t> ConfigSource<'t> {
    pub(super) fn new(text: &'t str, file: &str) -> Self {
        let (table, errors) = match DeTable::parse(text) {
            Ok(table) => (Some(table), Vec::new()),
            Err(error) => {
                let line = error.span().map(|span| line_number(text, span.start));
                let message = syntax_message(text, &error);
                let file = Some(file.to_owned());
                (None, vec![ConfigError { file, line, key: String::new(), message }])
            }
        };
        let key_locations = KeyLocations { file: Some(file.to_owned()), lines: BTreeMap::new() };
        Self {
            text,
            table,
            key_locations: RefCell::new(key_locations),
            errors: RefCell::new(errors),
        }
    }

    /// Returns the file's root table. `None` if the file is not TOML.
    pub(super) fn root(&self) -> Option<Section<'_, 't>> {
        let table = self.table.as_ref()?;
        Some(Section::new(self, String::new(), Some(table.get_ref())))
    }

    pub(super) fn add_error(&self, offset: Option<usize>, key: &str, message: impl Into<String>) {
        let file = self.key_locations.borrow().file.clone();
        let line = offset.map(|offset| line_number(self.text, offset));
        let error = ConfigError { file, line, key: key.to_owned(), message: message.into() };
        self.errors.borrow_mut().push(error);
    }

    pub(super) fn add_env_error(&self, name: &str, message: String) {
        let error = ConfigError { file: None, line: None, key: name.to_owned(), message };
        self.errors.borrow_mut().push(error);
    }

    /// Returns the positions of the keys, or the recorded errors if there are any.
    pub(super) fn into_result(self) -> Result<KeyLocations, ConfigErrors> {
        if self.errors.borrow().is_empty() {
            Ok(self.key_locations.into_inner())
        } else {
            Err(self.into_errors())
        }
    }

    pub(super) fn into_errors(self) -> ConfigErrors {
        ConfigErrors::new(self.errors.into_inner())
    }

    fn record_line(&self, key: &str, offset: usize) {
        self.key_locations
            .borrow_mut()
            .lines
            .insert(key.to_owned(), line_number(self.text, offset));
    }
}

/// A table that is being read. [`Section::report_unknown_keys`] records an error for each key that was neither read
/// nor forbidden before.
#[derive(Debug)]
pub(in crate::config) struct Section<'s, 't> {
    source: &'s ConfigSource<'t>,
    key_path: String,
    table: Option<&'s DeTable<'t>>,
    /// The keys that were read or forbidden. Every other key of the table is unknown.
    known: RefCell<BTreeSet<&'static str>>,
}

impl<'s, 't> Section<'s, 't> {
    fn new(source: &'s ConfigSource<'t>, key_path: String, table: Option<&'s DeTable<'t>>) -> Self {
        Self { source, key_path, table, known: RefCell::default() }
    }

    /// Parses the value of a key. Returns `None` if the key is missing, or if the value is wrong. Records an error
    /// for a wrong value.
    pub(in crate::config) fn read<T>(
        &self,
        key: &'static str,
        parse: impl FnOnce(&DeValue<'t>) -> Parsed<T>,
    ) -> Option<T> {
        let value = self.value(key)?;
        self.source.record_line(&self.key(key), value.span().start);
        match parse(value.get_ref()) {
            Ok(parsed) => Some(parsed),
            Err(message) => {
                self.source.add_error(Some(value.span().start), &self.key(key), message);
                None
            }
        }
    }

    /// Parses the items of a list. Returns `None` if the key is missing or is no list. Records an error for another
    /// value and for each wrong item, and leaves wrong items out.
    pub(super) fn list<T>(
        &self,
        key: &'static str,
        mut parse: impl FnMut(&DeValue<'t>) -> Parsed<T>,
    ) -> Option<Vec<T>> {
        let value = self.value(key)?;
        self.source.record_line(&self.key(key), value.span().start);
        let Some(items) = value.get_ref().as_array() else {
            let message = values::wrong_type("a list", value.get_ref());
            self.source.add_error(Some(value.span().start), &self.key(key), message);
            return None;
        };
        let mut parsed = Vec::new();
        for (at, item) in items.iter().enumerate() {
            let key_path = format!("{}[{at}]", self.key(key));
            self.source.record_line(&key_path, item.span().start);
            match parse(item.get_ref()) {
                Ok(item) => parsed.push(item),
                Err(message) => self.source.add_error(Some(item.span().start), &key_path, message),
            }
        }
        Some(parsed)
    }

    /// As [`Self::list`]. Records an error with this message for an empty list.
    pub(super) fn non_empty_list<T>(
        &self,
        key: &'static str,
        message: &str,
        mut parse: impl FnMut(&DeValue<'t>) -> Parsed<T>,
    ) -> Option<Vec<T>> {
        let mut is_empty = true;
        let list = self.list(key, |value| {
            is_empty = false;
            parse(value)
        });
        if list.is_some() && is_empty {
            self.add_error(key, message);
        }
        list
    }

    /// Reads a path, and resolves it against the folder of the configuration file.
    pub(super) fn path(&self, key: &'static str) -> Option<PathBuf> {
        self.read(key, values::non_empty_string).map(|path| self.resolve_path(&path))
    }

    /// Returns this path, resolved against the folder of the configuration file.
    pub(super) fn resolve_path(&self, path: &str) -> PathBuf {
        let key_locations = self.source.key_locations.borrow();
        let folder = key_locations.file.as_deref().and_then(|file| Path::new(file).parent());
        folder.unwrap_or(Path::new("")).join(path)
    }

    /// Parses every value of a table whose keys the user chooses. Does not mark the keys as known, so
    /// [`Self::report_unknown_keys`] must not be called on such a table.
    pub(super) fn entries<T>(
        &self,
        mut parse: impl FnMut(&DeValue<'t>) -> Parsed<T>,
    ) -> BTreeMap<String, T> {
        let mut parsed = BTreeMap::new();
        for (key, value) in self.table.into_iter().flat_map(DeTable::iter) {
            let (key_path, offset) = (self.key(key.get_ref()), value.span().start);
            self.source.record_line(&key_path, offset);
            match parse(value.get_ref()) {
                Ok(value) => {
                    parsed.insert(key.get_ref().to_string(), value);
                }
                Err(message) => self.source.add_error(Some(offset), &key_path, message),
            }
        }
        parsed
    }

    /// Returns the table of a key, or an empty one if the key is missing or its value is no table. Records an error
    /// for another value.
    pub(super) fn table(&self, key: &'static str) -> Self {
        let table = self.value(key).and_then(|value| {
            self.source.record_line(&self.key(key), value.span().start);
            let table = value.get_ref().as_table();
            if table.is_none() {
                let message = values::wrong_type("a table", value.get_ref());
                self.source.add_error(Some(value.span().start), &self.key(key), message);
            }
            table
        });
        Section::new(self.source, self.key(key), table)
    }

    /// Returns the tables below a key with their names, such as `[models.NAME]`. Records an error for each value that
    /// is no table, which is left out, and for each wrong name.
    pub(super) fn tables(&self, key: &'static str) -> Vec<(String, Self)> {
        let group = self.table(key);
        let mut found = Vec::new();
        for (name, value) in group.table.into_iter().flat_map(DeTable::iter) {
            let key_path = group.key(name.get_ref());
            self.source.record_line(&key_path, name.span().start);
            let Some(table) = value.get_ref().as_table() else {
                let message = values::wrong_type("a table", value.get_ref());
                self.source.add_error(Some(value.span().start), &key_path, message);
                continue;
            };
            if let Err(message) = values::check_name(name.get_ref()) {
                self.source.add_error(Some(name.span().start), &key_path, message);
            }
            let section = Section::new(self.source, key_path, Some(table));
            found.push((name.get_ref().to_string(), section));
        }
        found
    }

    /// Returns the tables of a list, such as `[[hooks]]`. Records an error for each item that is no table, which is
    /// left out.
    pub(super) fn table_list(&self, key: &'static str) -> Vec<Self> {
        let Some(value) = self.value(key) else { return Vec::new() };
        let key_path = self.key(key);
        self.source.record_line(&key_path, value.span().start);
        let Some(items) = value.get_ref().as_array() else {
            let form = format!("a list of tables ([[{key}]])");
            let message = values::wrong_type(&form, value.get_ref());
            self.source.add_error(Some(value.span().start), &key_path, message);
            return Vec::new();
        };
        let mut found = Vec::new();
        for (at, item) in items.iter().enumerate() {
            let key_path = format!("{key_path}[{at}]");
            self.source.record_line(&key_path, item.span().start);
            match item.get_ref().as_table() {
                Some(table) => found.push(Section::new(self.source, key_path, Some(table))),
                None => {
                    let message = values::wrong_type("a table", item.get_ref());
                    self.source.add_error(Some(item.span().start), &key_path, message);
                }
            }
        }
        found
    }

    /// Records an error about a key. If the key is missing, the error has the line of the table, if that is known.
    pub(super) fn add_error(&self, key: &str, message: impl Into<String>) {
        let entry = self.table.and_then(|table| table.get_key_value(key));
        let offset = entry.map(|(key, _)| key.span().start);
        let line_of_table =
            || self.source.key_locations.borrow().lines.get(&self.key_path).copied();
        let line = offset.map(|offset| line_number(self.source.text, offset));
        let line = line.or_else(line_of_table);
        let file = self.source.key_locations.borrow().file.clone();
        let error = ConfigError { file, line, key: self.key(key), message: message.into() };
        self.source.errors.borrow_mut().push(error);
    }

    /// Records an error if a required key is missing and has no default. `value` is the parsed value or the default.
    /// A key with a wrong value has its error already.
    pub(super) fn require<T>(&self, key: &str, value: &Option<T>) {
        if value.is_none() && !self.has(key) {
            self.add_error(key, "is missing");
        }
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.table.is_some_and(|table| table.contains_key(key))
    }

    /// Returns whether an error about the key is recorded.
    pub(super) fn is_wrong(&self, key: &str) -> bool {
        let key = self.key(key);
        self.source.errors.borrow().iter().any(|error| error.key == key)
    }

    /// Records this error if the key is present, and marks the key as known.
    pub(super) fn forbid(&self, key: &'static str, message: &str) {
        if self.value(key).is_some() {
            self.add_error(key, message);
        }
    }

    /// Records an error for every key that was neither read nor forbidden.
    pub(in crate::config) fn report_unknown_keys(&self) {
        self.report_unknown_keys_with_hints(&[]);
    }

    /// As [`Self::report_unknown_keys`]. If one of `others` knows the key, the error suggests that table.
    pub(super) fn report_unknown_keys_with_hints(&self, others: &[&Self]) {
        let known = self.known.borrow();
        for (key, _) in self.table.into_iter().flat_map(DeTable::iter) {
            let name: &str = key.get_ref();
            if !known.contains(name) {
                let other = others.iter().find(|other| other.known.borrow().contains(name));
                let hint = match other {
                    Some(other) => format!(" (did you mean {}?)", other.key(name)),
                    None => did_you_mean(name, known.iter().copied()),
                };
                let message = format!("unknown key{hint}");
                self.source.add_error(Some(key.span().start), &self.key(name), message);
            }
        }
    }

    fn value(&self, key: &'static str) -> Option<&'s Spanned<DeValue<'t>>> {
        self.known.borrow_mut().insert(key);
        self.table?.get(key)
    }

    fn key(&self, key: &str) -> String {
        if self.key_path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.key_path) }
    }
}

/// Returns the message of a syntax error, on one line. Adds the name of a duplicate key, and a hint if quotes may be
/// missing.
fn syntax_message(text: &str, error: &toml::de::Error) -> String {
    let message = error.message().replace('\n', ", ");
    let message = message.trim_end_matches(", expected nothing");
    let found = error.span().and_then(|span| text.get(span)).unwrap_or_default();
    if message == "duplicate key" {
        return format!("duplicate key {found}");
    }
    let is_bad_value = ["boolean", "date-time", "float", "integer"]
        .iter()
        .any(|kind| message.starts_with(&format!("invalid {kind}")));
    let hint = if is_bad_value { "; a text needs quotes, as in key = \"text\"" } else { "" };
    format!("{message}{hint}")
}

fn line_number(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
}
