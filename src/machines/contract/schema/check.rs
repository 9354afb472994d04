//! Checks a value against a compiled schema, with a limited number of steps.
//!
//! Schemas and values come from clients, models and servers of tools, and a small schema can ask for more work than
//! any machine can do. So each schema that a value is checked against takes a step. Texts, constants, regular
//! expressions and lists of names take further steps by their size. A check with too many steps ends.

use std::collections::{HashMap, HashSet};
use std::mem;
use std::ptr;

use serde_json::{Map, Value};

use super::compile::{Assertion, CompiledSchema, JsonType, Keyword, NumberLimit, PropertySchemas};
use super::json_excerpt::JsonExcerpt;
use super::numbers::{JsonValue, compare, is_integer, is_multiple};
use super::steps::{Steps, TooExpensive, comparison_steps};
use super::violation::{
    Count, NOT_LOCATED, PathSegment, REASONS_MAX, TOO_EXPENSIVE, Violation, describe,
    no_alternative, reason, unknown_property,
};

/// Maximum number of steps of a check. They take less than half a second, and about 0.6 seconds if most of them are
/// spent by regular expressions that were made to be slow.
const STEPS_MAX: usize = 5_000_000;

/// Maximum number of steps to find the place of a violation.
const STEPS_TO_DESCRIBE_MAX: usize = 200_000;

/// Maximum number of nested schemas in a check, which is recursive.
const LEVELS_MAX: usize = 500;

/// Number of steps to write the description of a violation.
const DESCRIPTION_STEPS: usize = 20;

/// Number of steps of the arithmetic of `multipleOf`.
const MULTIPLE_STEPS: usize = 8;

/// Maximum number of results that a check remembers.
const KNOWN_MAX: usize = 500_000;

impl CompiledSchema {
    /// Returns true if a value matches the schema. Returns false if the check takes too many steps or levels.
    pub fn is_valid(&self, value: &Value) -> bool {
        matches!(SchemaCheck::new(self, STEPS_MAX).check(0, value, None), Ok(true))
    }

    /// Returns the first violation of the schema in a value. A check with too many steps or levels is one.
    pub fn first_violation(&self, value: &Value) -> Option<Violation> {
        let mut check = SchemaCheck::new(self, STEPS_MAX);
        match check.check(0, value, None) {
            Ok(true) => return None,
            Ok(false) => {}
            Err(TooExpensive) => return Some(Violation::unlocated(TOO_EXPENSIVE)),
        }
        let mut description = SchemaCheck::new(self, STEPS_TO_DESCRIBE_MAX);
        description.is_described = true;
        description.known = check.known;
        let described = description.check(0, value, None);
        let Some(mut violation) = description.violation.filter(|_| described.is_ok()) else {
            return Some(Violation::unlocated(NOT_LOCATED));
        };
        let (number, keyword) = description.violated;
        violation.rule = self.location(number);
        if !keyword.is_empty() {
            violation.rule.push('/');
            violation.rule.push_str(keyword);
        }
        Some(violation)
    }

    /// Returns the number of steps that a check takes, or the maximum.
    #[cfg(test)]
    pub(super) fn steps(&self, value: &Value) -> usize {
        let mut check = SchemaCheck::new(self, STEPS_MAX);
        match check.check(0, value, None) {
            Ok(_) => STEPS_MAX - check.steps.left(),
            Err(TooExpensive) => STEPS_MAX,
        }
    }
}

/// True if a value matches.
type Checked = Result<bool, TooExpensive>;

/// The members or items of a value that a schema has checked, for `unevaluatedProperties` and `unevaluatedItems`.
#[derive(Debug, Default)]
struct Evaluated {
    /// True if all of them have been checked. `parts` need not contain them then.
    has_all: bool,
    /// The addresses of those that have been checked.
    parts: HashSet<*const Value>,
}

/// A running check.
struct SchemaCheck<'c> {
    schema: &'c CompiledSchema,
    steps: Steps,
    levels: usize,
    /// The resources of the schemas that are being checked, from the outermost.
    scope: Vec<usize>,
    /// The targets of references that are being checked, with their values.
    open: Vec<(usize, *const Value)>,
    /// The remembered results, by the target of a reference and the address of the value.
    known: HashMap<(usize, *const Value), bool>,
    /// The lowest index in `open` whose result the current target supposes, because of a reference back to it;
    /// `usize::MAX` if there is none.
    supposed: usize,
    /// True if the first violation is to be described. False in schemas that may fail, such as that of `not`.
    is_described: bool,
    /// The violation, without its rule.
    violation: Option<Violation>,
    /// The number of the schema and the keyword that the violation is of.
    violated: (usize, &'static str),
}

impl<'c> SchemaCheck<'c> {
    fn new(schema: &'c CompiledSchema, steps: usize) -> Self {
        Self {
            schema,
            steps: Steps::new(steps),
            levels: 0,
            scope: Vec::new(),
            open: Vec::new(),
            known: HashMap::new(),
            supposed: usize::MAX,
            is_described: false,
            violation: None,
            violated: (0, ""),
        }
    }

    /// Checks a value against a schema. Adds what it has checked to `seen`, which has no meaning if the value does
    /// not match.
    fn check(&mut self, number: usize, value: &Value, seen: Option<&mut Evaluated>) -> Checked {
        self.steps.spend(1)?;
        let schema = self.schema;
        let node = &schema.nodes[number];
        if !node.is_target {
            return self.check_keywords(number, value, seen);
        }
        let key = (number, ptr::from_ref(value));
        // A reference that leads back to a target with the same value adds no condition. So the value is supposed to
        // match.
        let of_this_value = self.open.iter().rev().take_while(|(_, open)| *open == key.1);
        let mut visited = 0;
        let found = of_this_value.inspect(|_| visited += 1).any(|open| *open == key);
        self.steps.spend(visited)?;
        if found {
            self.supposed = self.supposed.min(self.open.len() - visited);
            return Ok(true);
        }
        // A remembered result has no `seen`. The address of a string may be that of a temporary one
        // (`property_names`), so only objects and arrays have remembered results.
        let is_cacheable = seen.is_none()
            && !schema.has_dynamic_references
            && (value.is_object() || value.is_array());
        if is_cacheable && let Some(known) = self.known.get(&key) {
            // The place of a violation is not remembered.
            if *known || !self.is_described {
                return Ok(*known);
            }
        }
        let supposed_before = mem::replace(&mut self.supposed, usize::MAX);
        self.open.push(key);
        let checked = self.check_keywords(number, value, seen)?;
        self.open.pop();
        // A result that supposes that of a target around it holds only there.
        if self.supposed >= self.open.len() {
            if is_cacheable && self.known.len() < KNOWN_MAX {
                self.known.insert(key, checked);
            }
            self.supposed = supposed_before;
        } else {
            self.supposed = self.supposed.min(supposed_before);
        }
        Ok(checked)
    }

    fn check_keywords(
        &mut self,
        number: usize,
        value: &Value,
        seen: Option<&mut Evaluated>,
    ) -> Checked {
        let schema = self.schema;
        let node = &schema.nodes[number];
        self.levels += 1;
        if self.levels > LEVELS_MAX {
            return Err(TooExpensive);
        }
        let enters_resource = self.scope.last() != Some(&node.resource);
        if enters_resource {
            self.scope.push(node.resource);
        }
        let checked = if node.has_unevaluated {
            let mut own = Evaluated::default();
            let checked = self.check_each(number, &node.keywords, value, Some(&mut own))?;
            if let Some(seen) = seen {
                self.add(seen, own)?;
            }
            checked
        } else {
            self.check_each(number, &node.keywords, value, seen)?
        };
        if enters_resource {
            self.scope.pop();
        }
        self.levels -= 1;
        Ok(checked)
    }

    fn check_each(
        &mut self,
        number: usize,
        keywords: &'c [Keyword],
        value: &Value,
        mut seen: Option<&mut Evaluated>,
    ) -> Checked {
        for keyword in keywords {
            if !self.keyword(number, keyword, value, seen.as_deref_mut())? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Checks a keyword. Those with schemas have methods of their own, which keeps the frames on the stack small.
    fn keyword(
        &mut self,
        number: usize,
        keyword: &'c Keyword,
        value: &Value,
        seen: Option<&mut Evaluated>,
    ) -> Checked {
        match keyword {
            Keyword::Reference(target) => self.check(*target, value, seen),
            Keyword::DynamicReference(target, name) => {
                let target = self.dynamic_target(*target, name)?;
                self.check(target, value, seen)
            }
            Keyword::AllOf(schemas) => self.all_of(schemas, value, seen),
            Keyword::AnyOf(schemas) => self.any_of(number, schemas, value, seen),
            Keyword::OneOf(schemas) => self.one_of(number, schemas, value, seen),
            Keyword::Not(schema) => self.not(number, *schema, value),
            Keyword::If { condition, then, otherwise } => {
                self.condition(*condition, (*then, *otherwise), value, seen)
            }
            Keyword::Properties(schemas) => self.properties(number, schemas, value, seen),
            Keyword::PropertyNames(schema) => self.property_names(*schema, value),
            Keyword::DependentSchemas(schemas) => self.dependent_schemas(schemas, value, seen),
            Keyword::Items { first, others } => self.items(first, *others, value, seen),
            Keyword::Contains { schema, min, max } => {
                self.contains(number, *schema, (*min, *max), value, seen)
            }
            Keyword::UnevaluatedProperties(schema) => {
                self.unevaluated_properties(number, *schema, value, seen)
            }
            Keyword::UnevaluatedItems(schema) => {
                self.unevaluated_items(number, *schema, value, seen)
            }
            Keyword::Assertion(assertion) => self.assertion(number, assertion, value),
        }
    }

    /// Checks a keyword that contains no schemas.
    fn assertion(&mut self, number: usize, assertion: &Assertion, value: &Value) -> Checked {
        let is_valid = match (assertion, value) {
            (Assertion::Never, _) => false,
            (Assertion::Type(types), _) => types.iter().any(|of| has_type(value, *of)),
            (Assertion::Const(options) | Assertion::Enum(options), _) => {
                // A comparison reads no more than the smaller of the two values.
                let size =
                    comparison_steps(value, options.size).saturating_mul(options.values.len());
                self.steps.spend(size.min(options.size))?;
                options.values.iter().any(|option| JsonValue(option) == JsonValue(value))
            }
            (Assertion::Limit(limit, bound), Value::Number(given)) => {
                let order = compare(given, bound);
                match limit {
                    NumberLimit::Minimum => order.is_ge(),
                    NumberLimit::Maximum => order.is_le(),
                    NumberLimit::ExclusiveMinimum => order.is_gt(),
                    NumberLimit::ExclusiveMaximum => order.is_lt(),
                }
            }
            (Assertion::MultipleOf(of), Value::Number(given)) => {
                self.steps.spend(MULTIPLE_STEPS)?;
                is_multiple(given, of)
            }
            (Assertion::Size(limit, count), _) => {
                self.steps.spend_text(value.as_str().unwrap_or_default())?;
                limit.allows(value, *count)
            }
            (Assertion::Required(names), Value::Object(members)) => {
                return self.required(number, assertion, names, (members, value));
            }
            (Assertion::DependentRequired(_, dependent), Value::Object(members)) => {
                for (name, names) in dependent {
                    self.steps.spend_text(name)?;
                    if members.contains_key(name)
                        && !self.required(number, assertion, names, (members, value))?
                    {
                        return Ok(false);
                    }
                }
                true
            }
            (Assertion::Pattern(pattern), Value::String(text)) => {
                pattern.is_match(text, &mut self.steps)?
            }
            (Assertion::Format(_, check), Value::String(text)) => {
                self.steps.spend_text(text)?;
                check(text).is_ok()
            }
            (Assertion::UniqueItems, Value::Array(items)) => {
                // A size of more than is left must not be cut to what is left.
                let max = self.steps.left().saturating_add(1);
                self.steps.spend(comparison_steps(value, max))?;
                let mut unique = HashSet::with_capacity(items.len());
                items.iter().all(|item| unique.insert(JsonValue(item)))
            }
            // The value has another type.
            (_, _) => true,
        };
        if is_valid { Ok(true) } else { self.fail(number, assertion, None, value) }
    }

    fn required(
        &mut self,
        number: usize,
        assertion: &Assertion,
        names: &[String],
        (members, value): (&Map<String, Value>, &Value),
    ) -> Checked {
        for name in names {
            self.steps.spend_text(name)?;
            if !members.contains_key(name) {
                return self.fail(number, assertion, Some(name), value);
            }
        }
        Ok(true)
    }

    /// Returns false. Records the violation if it is the first and is to be described. `member` is the missing one.
    fn fail(
        &mut self,
        number: usize,
        assertion: &Assertion,
        member: Option<&str>,
        value: &Value,
    ) -> Checked {
        self.fail_because(number, assertion.name(), member, || describe(assertion, member, value))
    }

    /// Like [`Self::fail`], with this keyword and message. `member` is missing or not expected.
    fn fail_because(
        &mut self,
        number: usize,
        keyword: &'static str,
        member: Option<&str>,
        message: impl FnOnce() -> String,
    ) -> Checked {
        if self.is_described && self.violation.is_none() {
            self.steps.spend(DESCRIPTION_STEPS)?;
            let member = member.map(str::to_owned);
            let rule = String::new();
            self.violation = Some(Violation { path: Vec::new(), rule, member, message: message() });
            self.violated = (number, keyword);
        }
        Ok(false)
    }

    /// Checks a member or an item, whose place is `segment`.
    fn check_part(
        &mut self,
        number: usize,
        part: &Value,
        segment: impl FnOnce() -> PathSegment,
    ) -> Checked {
        let is_valid = self.check(number, part, None)?;
        if !is_valid && let Some(violation) = &mut self.violation {
            // The innermost segment is added first, and each one around it is put before it.
            violation.path.insert(0, segment());
        }
        Ok(is_valid)
    }

    /// Checks a value that may fail: records no violation.
    fn check_quietly(
        &mut self,
        number: usize,
        value: &Value,
        seen: Option<&mut Evaluated>,
    ) -> Checked {
        let is_described = mem::replace(&mut self.is_described, false);
        let checked = self.check(number, value, seen)?;
        self.is_described = is_described;
        Ok(checked)
    }

    /// Returns the schema with the outermost dynamic anchor of a name, or `target` if there is none.
    fn dynamic_target(&mut self, target: usize, name: &str) -> Result<usize, TooExpensive> {
        self.steps.spend_text(name)?;
        self.steps.spend(self.scope.len())?;
        let anchors = self.schema.dynamic_anchors.get(name);
        let mut of_scope = self.scope.iter().filter_map(|resource| anchors?.get(resource));
        Ok(of_scope.next().copied().unwrap_or(target))
    }

    /// Adds the parts that a subschema has checked to those that its schema has checked.
    fn add(&mut self, seen: &mut Evaluated, own: Evaluated) -> Result<(), TooExpensive> {
        self.steps.spend(own.parts.len())?;
        seen.has_all |= own.has_all;
        seen.parts.extend(own.parts);
        Ok(())
    }

    fn all_of(
        &mut self,
        schemas: &[usize],
        value: &Value,
        mut seen: Option<&mut Evaluated>,
    ) -> Checked {
        for schema in schemas {
            if !self.check(*schema, value, seen.as_deref_mut())? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Checks an alternative. Adds its violation to `reasons`, up to [`REASONS_MAX`], if violations are described.
    fn alternative(
        &mut self,
        schema: usize,
        value: &Value,
        seen: Option<&mut Evaluated>,
        reasons: &mut Vec<String>,
    ) -> Checked {
        let mut own = seen.is_some().then(Evaluated::default);
        let is_valid = match reasons.len() < REASONS_MAX {
            true => self.check(schema, value, own.as_mut())?,
            false => self.check_quietly(schema, value, own.as_mut())?,
        };
        if let (true, Some(seen), Some(own)) = (is_valid, seen, own) {
            self.add(seen, own)?;
        }
        reasons.extend(self.violation.take().as_ref().map(reason));
        Ok(is_valid)
    }

    fn any_of(
        &mut self,
        number: usize,
        schemas: &[usize],
        value: &Value,
        mut seen: Option<&mut Evaluated>,
    ) -> Checked {
        let mut reasons = Vec::new();
        let mut is_valid = false;
        for schema in schemas {
            is_valid |= self.alternative(*schema, value, seen.as_deref_mut(), &mut reasons)?;
            // The others may evaluate more.
            if is_valid && seen.is_none() {
                break;
            }
        }
        if is_valid {
            return Ok(true);
        }
        self.fail_because(number, "anyOf", None, || {
            no_alternative(value, "anyOf", schemas.len(), &reasons)
        })
    }

    fn one_of(
        &mut self,
        number: usize,
        schemas: &[usize],
        value: &Value,
        mut seen: Option<&mut Evaluated>,
    ) -> Checked {
        let mut reasons = Vec::new();
        let mut valid = 0;
        for schema in schemas {
            let is_valid = self.alternative(*schema, value, seen.as_deref_mut(), &mut reasons)?;
            valid += usize::from(is_valid);
            if valid > 1 {
                return self.fail_because(number, "oneOf", None, || {
                    format!("{} matches more than one of the schemas of oneOf", JsonExcerpt(value))
                });
            }
        }
        if valid == 1 {
            return Ok(true);
        }
        self.fail_because(number, "oneOf", None, || {
            no_alternative(value, "oneOf", schemas.len(), &reasons)
        })
    }

    fn not(&mut self, number: usize, schema: usize, value: &Value) -> Checked {
        if self.check_quietly(schema, value, None)? {
            return self.fail_because(number, "not", None, || {
                format!("{} matches the schema of not", JsonExcerpt(value))
            });
        }
        Ok(true)
    }

    fn condition(
        &mut self,
        condition: usize,
        (then, otherwise): (Option<usize>, Option<usize>),
        value: &Value,
        mut seen: Option<&mut Evaluated>,
    ) -> Checked {
        let mut own = seen.is_some().then(Evaluated::default);
        let is_valid = self.check_quietly(condition, value, own.as_mut())?;
        if let (true, Some(seen), Some(own)) = (is_valid, seen.as_deref_mut(), own) {
            self.add(seen, own)?;
        }
        match if is_valid { then } else { otherwise } {
            Some(schema) => self.check(schema, value, seen),
            None => Ok(true),
        }
    }

    fn properties(
        &mut self,
        number: usize,
        schemas: &PropertySchemas,
        value: &Value,
        mut seen: Option<&mut Evaluated>,
    ) -> Checked {
        let Value::Object(members) = value else { return Ok(true) };
        for (name, member) in members {
            self.steps.spend_text(name)?;
            let named = schemas.named.get(name);
            let mut is_evaluated = named.is_some();
            if let Some(schema) = named
                && !self.check_part(*schema, member, || PathSegment::Member(name.clone()))?
            {
                return Ok(false);
            }
            for (pattern, schema) in &schemas.by_pattern {
                if pattern.is_match(name, &mut self.steps)? {
                    is_evaluated = true;
                    if !self.check_part(*schema, member, || PathSegment::Member(name.clone()))? {
                        return Ok(false);
                    }
                }
            }
            if !is_evaluated && let Some(others) = schemas.others {
                is_evaluated = true;
                if self.is_never(others) {
                    return self.fail_because(number, "additionalProperties", Some(name), || {
                        unknown_property(name)
                    });
                }
                if !self.check_part(others, member, || PathSegment::Member(name.clone()))? {
                    return Ok(false);
                }
            }
            if is_evaluated && let Some(seen) = seen.as_deref_mut() {
                self.steps.spend(1)?;
                seen.parts.insert(ptr::from_ref(member));
            }
        }
        Ok(true)
    }

    /// Returns true for the schema `false`.
    fn is_never(&self, schema: usize) -> bool {
        matches!(
            self.schema.nodes[schema].keywords.as_slice(),
            [Keyword::Assertion(Assertion::Never)]
        )
    }

    fn property_names(&mut self, schema: usize, value: &Value) -> Checked {
        for name in value.as_object().into_iter().flat_map(Map::keys) {
            self.steps.spend_text(name)?;
            if !self.check(schema, &Value::from(name.as_str()), None)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn dependent_schemas(
        &mut self,
        schemas: &[(String, usize)],
        value: &Value,
        mut seen: Option<&mut Evaluated>,
    ) -> Checked {
        let Value::Object(members) = value else { return Ok(true) };
        for (name, schema) in schemas {
            self.steps.spend_text(name)?;
            if members.contains_key(name) && !self.check(*schema, value, seen.as_deref_mut())? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn items(
        &mut self,
        first: &[usize],
        others: Option<usize>,
        value: &Value,
        seen: Option<&mut Evaluated>,
    ) -> Checked {
        let Value::Array(items) = value else { return Ok(true) };
        for (at, item) in items.iter().enumerate() {
            let Some(schema) = first.get(at).copied().or(others) else { break };
            if at >= first.len() && self.is_never(schema) {
                // The rule is the schema `false`, which is `items` or `additionalItems`.
                return self.fail_because(schema, "", None, || {
                    format!("{} has more than {}", JsonExcerpt(value), Count(first.len(), "item"))
                });
            }
            if !self.check_part(schema, item, || PathSegment::Item(at))? {
                return Ok(false);
            }
        }
        if let Some(seen) = seen {
            seen.has_all |= others.is_some();
            self.steps.spend(first.len().min(items.len()))?;
            seen.parts.extend(items.iter().take(first.len()).map(ptr::from_ref));
        }
        Ok(true)
    }

    fn contains(
        &mut self,
        number: usize,
        schema: usize,
        (min, max): (u64, Option<u64>),
        value: &Value,
        mut seen: Option<&mut Evaluated>,
    ) -> Checked {
        let Value::Array(items) = value else { return Ok(true) };
        let mut found = 0;
        for item in items {
            if self.check_quietly(schema, item, None)? {
                found += 1;
                if let Some(seen) = seen.as_deref_mut() {
                    self.steps.spend(1)?;
                    seen.parts.insert(ptr::from_ref(item));
                }
            }
        }
        if found >= min && max.is_none_or(|max| found <= max) {
            return Ok(true);
        }
        let (keyword, less, bound) = match max {
            Some(max) if found >= min => ("maxContains", "more", max),
            Some(_) | None => (if min == 1 { "contains" } else { "minContains" }, "less", min),
        };
        self.fail_because(number, keyword, None, || {
            format!("{} has {less} than {bound} items that match contains", JsonExcerpt(value))
        })
    }

    fn unevaluated_properties(
        &mut self,
        number: usize,
        schema: usize,
        value: &Value,
        seen: Option<&mut Evaluated>,
    ) -> Checked {
        let (Value::Object(members), Some(seen)) = (value, seen) else { return Ok(true) };
        if seen.has_all {
            return Ok(true);
        }
        for (name, member) in members {
            self.steps.spend_text(name)?;
            if seen.parts.contains(&ptr::from_ref(member)) {
                continue;
            }
            if self.is_never(schema) {
                return self.fail_because(number, "unevaluatedProperties", Some(name), || {
                    unknown_property(name)
                });
            }
            if !self.check_part(schema, member, || PathSegment::Member(name.clone()))? {
                return Ok(false);
            }
        }
        seen.has_all = true;
        Ok(true)
    }

    fn unevaluated_items(
        &mut self,
        number: usize,
        schema: usize,
        value: &Value,
        seen: Option<&mut Evaluated>,
    ) -> Checked {
        let (Value::Array(items), Some(seen)) = (value, seen) else { return Ok(true) };
        if seen.has_all {
            return Ok(true);
        }
        for (at, item) in items.iter().enumerate() {
            self.steps.spend(1)?;
            if seen.parts.contains(&ptr::from_ref(item)) {
                continue;
            }
            if self.is_never(schema) {
                return self.fail_because(number, "unevaluatedItems", None, || {
                    format!("{} is not an allowed item", JsonExcerpt(item))
                });
            }
            if !self.check_part(schema, item, || PathSegment::Item(at))? {
                return Ok(false);
            }
        }
        seen.has_all = true;
        Ok(true)
    }
}

fn has_type(value: &Value, of: JsonType) -> bool {
    match (value, of) {
        (Value::Null, JsonType::Null)
        | (Value::Bool(_), JsonType::Boolean)
        | (Value::Number(_), JsonType::Number)
        | (Value::String(_), JsonType::String)
        | (Value::Array(_), JsonType::Array)
        | (Value::Object(_), JsonType::Object) => true,
        (Value::Number(number), JsonType::Integer) => is_integer(number),
        (_, _) => false,
    }
}
