//! The limits of JSON schemas, which may come from clients and from servers of tools: their size, and the time, memory
//! and stack that their compilation and checks take.
//!
//! The `jsonschema` library checks a value recursively, and a list of errors has those of all alternatives of `anyOf`
//! and `oneOf`. The graph of a schema tells how much both would take, before they begin.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use jsonschema::{Draft, Registry, Uri};
use serde_json::{Map, Value};

use crate::types::InvalidValue;

/// Maximum number of JSON values in a schema whose references are replaced by what they refer to. A check, and the
/// list of its errors, may visit each of them.
const PARTS_MAX: usize = 100_000;

/// Maximum depth of such a schema, and of a check. A check is recursive.
const DEPTH_MAX: usize = 1_000;

/// Maximum number of parts with which a schema that refers to itself checks one value, without the values in it.
/// The library visits them for each number, text and boolean.
const VISITS_MAX: usize = 1_000_000;

/// Maximum number of ways through the documents (`$id`) of a schema. The library compiles each part once for each way.
const WAYS_MAX: usize = 5_000;

/// Maximum depth of a schema with `unevaluatedProperties` or `unevaluatedItems`, whose compilation is recursive too.
const UNEVALUATED_DEPTH_MAX: usize = 200;

/// Number of levels that a value may have at least if its schema refers to itself.
const VALUE_LEVELS_MIN: usize = 8;

/// Maximum number of different regular expressions. The library compiles each.
const PATTERNS_MAX: usize = 200;

/// The keywords of which the library checks everything in place a second time.
const UNEVALUATED: [&str; 2] = ["unevaluatedProperties", "unevaluatedItems"];

/// The keywords of references.
const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];

/// The limits of the checks of a schema that refers to itself, or has alternatives.
pub(super) struct CheckLimits {
    graph: SchemaGraph,
    /// Maximum number of levels of a value, if the schema refers to itself. The depth of a check grows with them.
    pub(super) levels_max: usize,
}

impl CheckLimits {
    /// Returns the limits of a schema, or `None` if it neither refers to itself nor has alternatives.
    ///
    /// # Errors
    /// If the schema is too large.
    pub(super) fn of(schema: &Value) -> Result<Option<Self>, InvalidValue> {
        match SchemaGraph::of(schema) {
            Some(graph) => graph.into_limits(),
            // The compilation fails for the same reason.
            None => Ok(None),
        }
    }

    pub(super) fn has_too_many_levels(&self, value: &Value) -> bool {
        self.levels_max < usize::MAX && levels_of(value) > self.levels_max
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
#[derive(Clone, PartialEq, Eq)]
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
    /// The documents that each document refers to. That of the schema is 0.
    documents: Vec<BTreeSet<usize>>,
    has_unevaluated: bool,
    has_alternatives: bool,
    /// The number of different regular expressions.
    patterns: usize,
}

/// All ways from a number on which no number occurs twice.
struct Ways {
    visits: usize,
    levels: usize,
    /// The numbers that a way leads back to.
    heads: HashSet<usize>,
}

impl Ways {
    /// Returns `None` if there are more than `visits_max` visits.
    fn of(start: usize, visits_max: usize, next: impl Fn(usize) -> Vec<usize>) -> Option<Self> {
        let mut ways = Self { visits: 0, levels: 0, heads: HashSet::new() };
        let mut way = HashSet::new();
        let mut open = vec![(start, false)];
        while let Some((at, is_end)) = open.pop() {
            if is_end {
                way.remove(&at);
            } else if way.insert(at) {
                ways.visits += 1;
                ways.levels = ways.levels.max(way.len());
                if ways.visits > visits_max {
                    return None;
                }
                open.push((at, true));
                open.extend(next(at).into_iter().map(|next| (next, false)));
            } else {
                ways.heads.insert(at);
            }
        }
        Some(ways)
    }
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
        let (mut has_unevaluated, mut has_alternatives) = (false, false);
        let mut patterns = HashSet::new();
        let mut document_numbers = HashMap::from([(resolver.base_uri(), 0)]);
        let mut documents = vec![BTreeSet::new()];
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
            let is_twice = kind == PartKind::Schema
                && UNEVALUATED.iter().any(|name| value.get(name).is_some_and(|it| *it != true));
            has_unevaluated |= is_twice;
            has_alternatives |= ["anyOf", "oneOf"].iter().any(|name| value.get(name).is_some());
            if kind == PartKind::Patterns {
                patterns
                    .extend(value.as_object().into_iter().flat_map(Map::keys).map(String::as_str));
            }
            patterns.extend(value.get("pattern").and_then(Value::as_str));
            let document = document_numbers.get(&resolver.base_uri()).copied().unwrap_or_default();
            let mut found = Vec::new();
            for (step, child, resolver, draft, kind) in children {
                let next = documents.len();
                let child_document = *document_numbers.entry(resolver.base_uri()).or_insert(next);
                if child_document == next {
                    documents.push(BTreeSet::new());
                }
                if child_document != document && step != SchemaStep::Unapplied {
                    documents[document].insert(child_document);
                }
                let key = (std::ptr::from_ref(child), resolver.base_uri(), kind);
                let number = *numbers.entry(key).or_insert(steps.len());
                if number == steps.len() {
                    steps.push(Vec::new());
                    open.push((number, child, resolver, draft, kind));
                }
                // The library ignores a reference of a schema to itself.
                if number != part {
                    let is_by_name =
                        matches!(kind, PartKind::Properties | PartKind::Patterns | PartKind::Tuple);
                    if is_twice && !is_by_name && step != SchemaStep::Unapplied {
                        found.push((step.clone(), number));
                    }
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
        let patterns = patterns.len();
        Some(Self { steps, documents, has_unevaluated, has_alternatives, patterns })
    }

    /// Returns the limits of checks, if the schema refers to itself or has alternatives.
    ///
    /// # Errors
    /// If the schema is too large.
    fn into_limits(mut self) -> Result<Option<CheckLimits>, InvalidValue> {
        let (parts, levels, is_recursive) = self.size();
        let levels_max = if self.has_unevaluated { UNEVALUATED_DEPTH_MAX } else { DEPTH_MAX };
        if parts > PARTS_MAX || levels > levels_max {
            return Err(InvalidValue::new(format!(
                "the JSON schema is too large: with its references replaced it has more than \
                 {PARTS_MAX} values or {levels_max} levels"
            )));
        }
        if self.patterns > PATTERNS_MAX {
            return Err(InvalidValue::new(format!(
                "the JSON schema is too large: it has more than {PATTERNS_MAX} regular expressions"
            )));
        }
        let of_document = |document: usize| self.documents[document].iter().copied().collect();
        if Ways::of(0, WAYS_MAX, of_document).is_none() {
            return Err(InvalidValue::new(
                "the JSON schema is too large: its documents ($id) refer to each other in too many ways",
            ));
        }
        if !is_recursive && !self.has_alternatives {
            return Ok(None);
        }
        for steps in &mut self.steps {
            steps.retain(|(step, _)| *step != SchemaStep::Unapplied);
        }
        if !is_recursive {
            return Ok(Some(CheckLimits { graph: self, levels_max: usize::MAX }));
        }
        let levels = self.levels_of_one_value().ok_or_else(|| {
            InvalidValue::new(format!(
                "the JSON schema is too large: it checks one value with more than {VISITS_MAX} of \
                 its parts or {} levels, because its references lead back to the same value",
                DEPTH_MAX / VALUE_LEVELS_MIN
            ))
        })?;
        Ok(Some(CheckLimits { graph: self, levels_max: DEPTH_MAX / levels }))
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
        let same = |part: usize| {
            let steps = self.steps[part].iter().filter(|(step, _)| *step == SchemaStep::Same);
            steps.map(|(_, next)| *next).collect()
        };
        let (mut visits, mut levels_max) = (0_usize, 1_usize);
        for start in starts {
            let ways = Ways::of(start, VISITS_MAX, same)?;
            // The library stops only at a part that was entered by a reference back. So it goes all ways again for each
            // part that they lead back to.
            let rounds = ways.heads.len() + 1;
            let power = u32::try_from(rounds).unwrap_or(u32::MAX);
            visits = visits.saturating_add(ways.visits.saturating_pow(power));
            levels_max = levels_max.max(ways.levels.saturating_mul(rounds));
            if visits > VISITS_MAX || levels_max > DEPTH_MAX / VALUE_LEVELS_MIN {
                return None;
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
