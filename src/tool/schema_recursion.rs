//! The limits of JSON schemas, which may come from clients and from servers of tools: their size, and the time, memory
//! and stack that a check takes if the schema refers to itself.
//!
//! The `jsonschema` library checks a value recursively, and a list of errors has those of all alternatives of `anyOf`
//! and `oneOf`. The graph of a schema tells how much both would take, before they begin.

use std::collections::HashMap;
use std::sync::Arc;

use jsonschema::{Draft, Registry, Uri};
use serde_json::{Map, Value};

use crate::types::InvalidValue;

/// Maximum number of JSON values in a schema whose references are replaced by what they refer to. A check, and the
/// list of its errors, may visit each of them.
const PARTS_MAX: usize = 100_000;

/// Maximum depth of such a schema, and of a check. A check is recursive.
const DEPTH_MAX: usize = 2_000;

/// Maximum number of parts with which a schema that refers to itself checks one value, without the values in it.
/// The library visits them for each number, text and boolean.
const VISITS_MAX: usize = 1_000_000;

/// The keywords of references.
const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];

/// The limits of the checks of a schema that refers to itself.
pub(super) struct SchemaRecursion {
    graph: SchemaGraph,
    /// Maximum number of levels of a value. The depth of a check grows with them.
    pub(super) levels_max: usize,
}

impl SchemaRecursion {
    /// Returns the limits of a schema, or `None` if it does not refer to itself.
    ///
    /// # Errors
    /// If the schema is too large.
    pub(super) fn of(schema: &Value) -> Result<Option<Self>, InvalidValue> {
        match SchemaGraph::of(schema) {
            Some(graph) => graph.into_recursion(),
            // The compilation fails for the same reason.
            None => Ok(None),
        }
    }

    pub(super) fn has_too_many_levels(&self, value: &Value) -> bool {
        levels_of(value) > self.levels_max
    }

    /// Returns true if the errors of a value, with those of all alternatives, can be listed.
    pub(super) fn can_list_errors(&self, value: &Value) -> bool {
        self.graph.is_cheap(value)
    }
}

/// A value of a schema, the base URI of the references in it, and its meaning.
type SchemaPart = (*const Value, Arc<Uri<String>>, PartKind);

/// The meaning of a value of a schema.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum PartKind {
    /// A schema, or no part of a check.
    Schema,
    /// The value of `properties`.
    Properties,
    /// The value of `patternProperties`.
    Patterns,
    /// A list of the schemas of the first items.
    Tuple,
    /// A list or a map of schemas of the same value.
    Alternatives,
    /// The value of `$defs`.
    Definitions,
}

impl PartKind {
    /// Returns the children of a part, each with the step to it and its kind.
    fn children(self, value: &Value) -> Vec<(SchemaStep, Self, &Value)> {
        let items = value.as_array().into_iter().flatten().enumerate();
        let items = items.map(|(at, child)| (self.item(at), child));
        let members = value.as_object().into_iter().flatten();
        let members = members.map(|(name, child)| (self.member(name, child), child));
        items.chain(members).map(|((step, kind), child)| (step, kind, child)).collect()
    }

    fn item(self, at: usize) -> (SchemaStep, Self) {
        let step = match self {
            Self::Tuple => SchemaStep::Item(at),
            Self::Alternatives => SchemaStep::Same,
            Self::Schema | Self::Properties | Self::Patterns | Self::Definitions => {
                SchemaStep::Unapplied
            }
        };
        (step, Self::Schema)
    }

    fn member(self, name: &str, child: &Value) -> (SchemaStep, Self) {
        match self {
            Self::Schema => match name {
                "properties" => (SchemaStep::Same, Self::Properties),
                "patternProperties" => (SchemaStep::Same, Self::Patterns),
                "prefixItems" => (SchemaStep::Same, Self::Tuple),
                "items" if child.is_array() => (SchemaStep::Same, Self::Tuple),
                "allOf" | "anyOf" | "oneOf" | "dependentSchemas" | "dependencies" => {
                    (SchemaStep::Same, Self::Alternatives)
                }
                "not" | "if" | "then" | "else" => (SchemaStep::Same, Self::Schema),
                "items" | "additionalItems" | "unevaluatedItems" | "contains" => {
                    (SchemaStep::Items, Self::Schema)
                }
                "additionalProperties" | "unevaluatedProperties" | "propertyNames" => {
                    (SchemaStep::Members, Self::Schema)
                }
                "$defs" | "definitions" => (SchemaStep::Unapplied, Self::Definitions),
                _ => (SchemaStep::Unapplied, Self::Schema),
            },
            Self::Properties => (SchemaStep::Member(name.into()), Self::Schema),
            Self::Patterns => (SchemaStep::Members, Self::Schema),
            Self::Tuple | Self::Alternatives => (SchemaStep::Same, Self::Schema),
            Self::Definitions => (SchemaStep::Unapplied, Self::Schema),
        }
    }
}

/// The values that the next part of a schema is checked against.
#[derive(PartialEq, Eq)]
enum SchemaStep {
    /// The same value.
    Same,
    /// The member with this name.
    Member(Box<str>),
    /// All members.
    Members,
    /// The item with this index.
    Item(usize),
    /// All items.
    Items,
    /// None. The part is a definition, an example or the like.
    Unapplied,
}

/// The steps from each part of a schema to others, by the number of the part. The number of the schema is 0.
struct SchemaGraph {
    steps: Vec<Vec<(SchemaStep, usize)>>,
}

impl SchemaGraph {
    /// Returns `None` if the library cannot read the schema.
    fn of(schema: &Value) -> Option<Self> {
        let draft = Draft::default().detect(schema);
        let id = draft.create_resource_ref(schema).id().unwrap_or_default().to_owned();
        let mut base = jsonschema::uri::from_str(&id).ok()?;
        base.set_fragment(None);
        let builder = Registry::new().draft(draft).add(base.as_str(), schema).ok()?;
        let registry = builder.prepare().ok()?;
        let resolver = registry.resolver(base);
        let kind = PartKind::Schema;
        let root: SchemaPart = (std::ptr::from_ref(schema), resolver.base_uri(), kind);
        let mut numbers = HashMap::from([(root, 0)]);
        // Each stands for all parts with the same dynamic anchor.
        let mut anchors: HashMap<String, usize> = HashMap::new();
        let mut steps = vec![Vec::new()];
        let mut open = vec![(0, schema, resolver, draft, kind)];
        while let Some((part, value, resolver, draft, kind)) = open.pop() {
            let mut children = Vec::new();
            for (step, kind, child) in kind.children(value) {
                let draft = draft.detect(child);
                let within = resolver.in_subresource(draft.create_resource_ref(child));
                let within = within.unwrap_or_else(|_| resolver.clone());
                children.push((step, child, within, draft, kind));
            }
            let references = REFERENCES.iter().filter_map(|keyword| value.get(keyword)?.as_str());
            for reference in references {
                if let Ok(target) = resolver.lookup(reference) {
                    let (target, resolver, draft) = target.into_inner();
                    children.push((SchemaStep::Same, target, resolver, draft, PartKind::Schema));
                }
            }
            let mut found = Vec::new();
            for (step, child, resolver, draft, kind) in children {
                let key = (std::ptr::from_ref(child), resolver.base_uri(), kind);
                let number = *numbers.entry(key).or_insert(steps.len());
                if number == steps.len() {
                    steps.push(Vec::new());
                    open.push((number, child, resolver, draft, kind));
                }
                // The library ignores a reference of a schema to itself.
                if number != part {
                    found.push((step, number));
                }
            }
            // The target of a dynamic reference depends on the way to it, so all anchors of its name are targets.
            let mut anchor = |name: &str, steps: &mut Vec<Vec<(SchemaStep, usize)>>| {
                *anchors.entry(name.to_owned()).or_insert_with(|| {
                    steps.push(Vec::new());
                    steps.len() - 1
                })
            };
            let text = |keyword: &str| value.get(keyword).and_then(Value::as_str);
            let dynamic = [text("$dynamicRef"), text("$recursiveRef")].into_iter().flatten();
            for reference in dynamic {
                let name = reference.rsplit_once('#').map_or("", |(_, name)| name);
                found.push((SchemaStep::Same, anchor(name, &mut steps)));
            }
            let recursive = value.get("$recursiveAnchor").map(|_| "");
            for name in [text("$dynamicAnchor"), recursive].into_iter().flatten() {
                let number = anchor(name, &mut steps);
                steps[number].push((SchemaStep::Same, part));
            }
            steps[part] = found;
        }
        Some(Self { steps })
    }

    /// Returns the limits of checks, if the schema refers to itself.
    ///
    /// # Errors
    /// If the schema is too large.
    fn into_recursion(mut self) -> Result<Option<SchemaRecursion>, InvalidValue> {
        let (parts, levels, is_recursive) = self.size();
        if parts > PARTS_MAX || levels > DEPTH_MAX {
            return Err(InvalidValue::new(format!(
                "the JSON schema is too large: with its references replaced it has more than \
                 {PARTS_MAX} values or {DEPTH_MAX} levels"
            )));
        }
        if !is_recursive {
            return Ok(None);
        }
        for steps in &mut self.steps {
            steps.retain(|(step, _)| *step != SchemaStep::Unapplied);
        }
        let levels = self.levels_of_one_value().ok_or_else(|| {
            InvalidValue::new(format!(
                "the JSON schema is too large: it checks one value with more than {VISITS_MAX} of \
                 its parts or {DEPTH_MAX} levels, because its references lead back to the same value"
            ))
        })?;
        Ok(Some(SchemaRecursion { graph: self, levels_max: DEPTH_MAX / levels }))
    }

    /// Returns the number of values and levels when each reference is replaced by what it refers to, and whether a
    /// part contains itself. A reference to a value that contains it counts as one value.
    fn size(&self) -> (usize, usize, bool) {
        // The number of values and levels of each part. Those of a part that is being counted are 1.
        let mut sizes: Vec<Option<(usize, usize)>> = vec![None; self.steps.len()];
        let mut is_counting = vec![false; self.steps.len()];
        let (mut size, mut is_recursive) = ((1, 1), false);
        // A part is counted when its children are. A recursive function would overflow the stack.
        let mut open = vec![(0, false)];
        while let Some((part, are_children_counted)) = open.pop() {
            let children = self.steps[part].iter().map(|(_, child)| *child);
            if are_children_counted {
                let children = children.filter_map(|child| sizes[child]);
                let (parts, levels) = children.fold((1_usize, 0), |(parts, levels), child| {
                    (parts.saturating_add(child.0), child.1.max(levels))
                });
                size = (parts, levels + 1);
                sizes[part] = Some(size);
                is_counting[part] = false;
            } else if sizes[part].is_some() {
                is_recursive |= is_counting[part];
            } else {
                sizes[part] = Some((1, 1));
                is_counting[part] = true;
                open.push((part, true));
                open.extend(children.map(|child| (child, false)));
            }
        }
        (size.0, size.1, is_recursive)
    }

    /// Returns the maximum number of levels with which one value is checked, without the values in it. Returns `None`
    /// if they are too many, or the visited parts are.
    fn levels_of_one_value(&self) -> Option<usize> {
        let within = self.steps.iter().flatten().filter(|(step, _)| *step != SchemaStep::Same);
        let mut starts: Vec<usize> = within.map(|(_, part)| *part).chain([0]).collect();
        starts.sort_unstable();
        starts.dedup();
        let (mut visits, mut levels_max) = (0_usize, 0_usize);
        let mut is_open = vec![false; self.steps.len()];
        for start in starts {
            let mut levels = 0_usize;
            let mut open = vec![(start, false)];
            while let Some((part, is_end)) = open.pop() {
                if is_end {
                    is_open[part] = false;
                    levels -= 1;
                } else if !is_open[part] {
                    is_open[part] = true;
                    levels += 1;
                    visits += 1;
                    if visits > VISITS_MAX || levels > DEPTH_MAX {
                        return None;
                    }
                    levels_max = levels.max(levels_max);
                    open.push((part, true));
                    let steps = self.steps[part].iter();
                    let same = steps.filter(|(step, _)| *step == SchemaStep::Same);
                    open.extend(same.map(|(_, next)| (*next, false)));
                }
            }
        }
        Some(levels_max)
    }

    /// Returns true if the errors of a value, with those of all alternatives, can be listed: the list visits at most
    /// `PARTS_MAX` parts. Names of members are not matched with patterns, so the number of visits may be less.
    fn is_cheap(&self, value: &Value) -> bool {
        let mut visits = 0_usize;
        let mut open = vec![(0, value)];
        while let Some((part, value)) = open.pop() {
            visits += 1;
            for (step, next) in &self.steps[part] {
                let items = value.as_array().into_iter().flatten();
                let members = value.as_object().into_iter().flat_map(Map::values);
                match step {
                    SchemaStep::Same => open.push((*next, value)),
                    SchemaStep::Member(name) => {
                        open.extend(value.get(&**name).map(|member| (*next, member)));
                    }
                    SchemaStep::Members => open.extend(members.map(|member| (*next, member))),
                    SchemaStep::Item(at) => open.extend(value.get(*at).map(|item| (*next, item))),
                    SchemaStep::Items => open.extend(items.map(|item| (*next, item))),
                    SchemaStep::Unapplied => {}
                }
                if visits + open.len() > PARTS_MAX {
                    return false;
                }
            }
        }
        true
    }
}

/// Returns the number of levels of a value: 1 if it contains no other.
fn levels_of(value: &Value) -> usize {
    let mut levels_max = 0_usize;
    let mut open = vec![(value, 1_usize)];
    while let Some((value, levels)) = open.pop() {
        levels_max = levels.max(levels_max);
        let items = value.as_array().into_iter().flatten();
        let members = value.as_object().into_iter().flat_map(Map::values);
        open.extend(items.chain(members).map(|child| (child, levels + 1)));
    }
    levels_max
}
