//! Members of JSON objects in a request: the merge of a body with the extra members of the model's
//! configuration, members without a value, and members that go back as they came.

use std::borrow::Cow;

use serde::ser::SerializeMap;
use serde_json::{Map, Value};

use super::ModelRequest;
use super::dialect::RequestFormat;
use callsheet_values::types::ToolCall;

/// Returns the members of a body other than the history.
///
/// The members named in `omit_body` are left out. The members of `extra_body` replace ours, or are
/// merged with them where both are objects. Neither concerns the protected members.
pub(super) fn body_members<F: RequestFormat>(request: &ModelRequest) -> Map<String, Value> {
    let is_protected = |key: &str| key == F::HISTORY_MEMBER || F::PROTECTED_MEMBERS.contains(&key);
    let mut members = present_members(F::head(request));
    members.retain(|key, _| is_protected(key) || !request.omit_body.contains(key));
    for (key, value) in request.extra_body.iter().filter(|(key, _)| !is_protected(key)) {
        merge(members.entry(key.as_str()).or_insert(Value::Null), value);
    }
    members
}

/// Returns the members of an object that are not null.
pub(super) fn present_members(object: Value) -> Map<String, Value> {
    let Value::Object(mut members) = object else { return Map::new() };
    members.retain(|_, value| !value.is_null());
    members
}

/// Writes members that go back as they came, given as the text of a JSON object.
pub(super) fn write_members<M: SerializeMap>(
    map: &mut M,
    members: Option<&str>,
) -> Result<(), M::Error> {
    let members = members.and_then(|text| serde_json::from_str::<Map<String, Value>>(text).ok());
    members.iter().flatten().try_for_each(|(key, value)| map.serialize_entry(key, value))
}

/// Returns the arguments of a call as an object. Arguments that are not an object are sent as an empty
/// one, because the services refuse anything else.
pub(super) fn arguments_object(call: &ToolCall) -> Cow<'_, Map<String, Value>> {
    call.arguments.as_object().map_or_else(Cow::default, Cow::Borrowed)
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
