//! The policy of a server's tool from its annotations, if the configuration trusts them (`trust = "annotations"`).
//!
//! The annotations and their defaults are those of the specification's type `ToolAnnotations`
//! (<https://modelcontextprotocol.io/specification/2026-07-28/schema#toolannotations>).

use serde_json::Value;

use crate::ToolSpec;
use callsheet_values::config::{StartPolicy, ToolEffect};

/// Applies the annotations of a trusted server. A tool that only reads (`readOnlyHint` without `destructiveHint`)
/// has no effects if `openWorldHint` is false. Else it has an effect, because its arguments leave the machine, but is
/// idempotent and not destructive. Of all other tools `idempotentHint` and `destructiveHint` count.
pub(super) fn apply_annotations(spec: &mut ToolSpec, annotations: Option<&Value>) {
    let claim = |key: &str| annotations.and_then(|claims| claims.get(key)).and_then(Value::as_bool);
    let reads_only = claim("readOnlyHint") == Some(true) && claim("destructiveHint") != Some(true);
    if reads_only && claim("openWorldHint") == Some(false) {
        (spec.effect, spec.start) = (ToolEffect::None, StartPolicy::OnSeal);
    } else if reads_only {
        (spec.idempotent, spec.destructive) = (true, false);
    } else {
        spec.idempotent = claim("idempotentHint") == Some(true);
        spec.destructive = claim("destructiveHint") != Some(false);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ParsedSchema;

    /// Returns effect, start, idempotent and destructive.
    fn policy(annotations: Value) -> (ToolEffect, StartPolicy, bool, bool) {
        let mut spec = ToolSpec::with_schema("a", "", ParsedSchema::of::<()>());
        apply_annotations(&mut spec, Some(&annotations));
        (spec.effect, spec.start, spec.idempotent, spec.destructive)
    }

    #[test]
    fn annotations_become_a_policy() {
        let (some, finish) = (ToolEffect::Some, StartPolicy::OnFinish);
        for (annotations, expected) in [
            (json!({}), (some, finish, false, true)),
            (json!({"readOnlyHint": true}), (some, finish, true, false)),
            (json!({"readOnlyHint": true, "openWorldHint": true}), (some, finish, true, false)),
            (json!({"readOnlyHint": true, "destructiveHint": true}), (some, finish, false, true)),
            (json!({"idempotentHint": true}), (some, finish, true, true)),
            (json!({"destructiveHint": false}), (some, finish, false, false)),
            (json!({"readOnlyHint": "yes"}), (some, finish, false, true)),
        ] {
            assert_eq!(policy(annotations.clone()), expected, "{annotations}");
        }
        let (effect, start, ..) = policy(json!({"readOnlyHint": true, "openWorldHint": false}));
        assert_eq!((effect, start), (ToolEffect::None, StartPolicy::OnSeal));
    }
}
