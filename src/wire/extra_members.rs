//! The members of a request body: ours, and the extra members of the model's configuration.

use serde::Serialize;
use serde::ser::SerializeMap;
use serde_json::Value;

use super::ModelRequest;

/// Writes the members of a body.
///
/// The members of `extra_body` replace ours, except for protected ones, on which the host relies.
/// Where both are objects they are merged. The members named in `omit_body` are left out.
pub(super) struct BodyMembers<'a, M> {
    map: M,
    request: &'a ModelRequest,
    protected: &'static [&'static str],
    /// The members of `extra_body` that are merged with ours and written already.
    merged: Vec<&'static str>,
}

impl<'a, M: SerializeMap> BodyMembers<'a, M> {
    pub(super) fn new(
        map: M,
        request: &'a ModelRequest,
        protected: &'static [&'static str],
    ) -> Self {
        Self { map, request, protected, merged: Vec::new() }
    }

    /// Writes a member of ours.
    pub(super) fn write(
        &mut self,
        key: &'static str,
        value: &(impl Serialize + ?Sized),
    ) -> Result<(), M::Error> {
        if self.protected.contains(&key) {
            return self.map.serialize_entry(key, value);
        }
        if self.request.omit_body.contains(key) {
            return Ok(());
        }
        match self.request.extra_body.get(key) {
            None => self.map.serialize_entry(key, value),
            // `finish` writes it.
            Some(extra) if !extra.is_object() => Ok(()),
            Some(extra) => {
                let mut merged = serde_json::to_value(value).unwrap_or_default();
                merge(&mut merged, extra);
                self.merged.push(key);
                self.map.serialize_entry(key, &merged)
            }
        }
    }

    /// Writes the remaining members of `extra_body` and ends the object.
    pub(super) fn finish(mut self) -> Result<M::Ok, M::Error> {
        for (key, value) in &self.request.extra_body {
            let key = key.as_str();
            if !self.protected.contains(&key) && !self.merged.contains(&key) {
                self.map.serialize_entry(key, value)?;
            }
        }
        self.map.end()
    }
}

/// Merges `over` into `under`. Objects are merged recursively; any other value replaces.
fn merge(under: &mut Value, over: &Value) {
    match (under, over) {
        (Value::Object(under), Value::Object(over)) => {
            for (key, value) in over {
                merge(under.entry(key.as_str()).or_insert(Value::Null), value);
            }
        }
        (under, over) => over.clone_into(under),
    }
}
