//! The members of a request's body: ours, and those of a model's configuration.

use serde::Serialize;
use serde::ser::SerializeMap;
use serde_json::Value;

use super::ModelRequest;

/// A body that is being written. `extra_body` wins over our members, apart from those that the
/// host relies on; where both are objects they are merged. What `omit_body` names is left out.
pub(super) struct Members<'a, M> {
    map: M,
    request: &'a ModelRequest,
    /// What the host relies on.
    relied_on: &'static [&'static str],
    /// What the configuration says of these is written already.
    merged: Vec<&'static str>,
}

impl<'a, M: SerializeMap> Members<'a, M> {
    pub(super) fn new(
        map: M,
        request: &'a ModelRequest,
        relied_on: &'static [&'static str],
    ) -> Self {
        Self { map, request, relied_on, merged: Vec::new() }
    }

    /// Writes a member of ours.
    pub(super) fn put(
        &mut self,
        key: &'static str,
        value: &(impl Serialize + ?Sized),
    ) -> Result<(), M::Error> {
        if self.relied_on.contains(&key) {
            return self.map.serialize_entry(key, value);
        }
        if self.request.omit_body.contains(key) {
            return Ok(());
        }
        match self.request.extra_body.get(key) {
            None => self.map.serialize_entry(key, value),
            // It is written with the others, at the end.
            Some(extra) if !extra.is_object() => Ok(()),
            Some(extra) => {
                let mut merged = serde_json::to_value(value).unwrap_or_default();
                merge(&mut merged, extra);
                self.merged.push(key);
                self.map.serialize_entry(key, &merged)
            }
        }
    }

    /// Writes what is left of the configuration's members.
    pub(super) fn end(mut self) -> Result<M::Ok, M::Error> {
        for (key, value) in &self.request.extra_body {
            let key = key.as_str();
            if !self.relied_on.contains(&key) && !self.merged.contains(&key) {
                self.map.serialize_entry(key, value)?;
            }
        }
        self.map.end()
    }
}

/// Lays one value over another; objects are merged, all the way down.
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
