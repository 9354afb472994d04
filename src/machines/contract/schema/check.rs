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
        matches!(SchemaCheck::new(self, STEPS_MAX).check(0, value), Ok(true))
    }

    /// Returns the first violation of the schema in a value. A check with too many steps or levels is one.
    pub fn first_violation(&self, value: &Value) -> Option<Violation> {
        let mut check = SchemaCheck::new(self, STEPS_MAX);
        match check.check(0, value) {
            Ok(true) => return None,
            Ok(false) => {}
            Err(TooExpensive) => return Some(Violation::unlocated(TOO_EXPENSIVE)),
        }
        let mut description = SchemaCheck::new(self, STEPS_TO_DESCRIBE_MAX);
        description.is_described = true;
        description.known = check.known;
        let described = description.check(0, value);
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
        match check.check(0, value) {
            Ok(_) => STEPS_MAX - check.steps.left(),
            Err(TooExpensive) => STEPS_MAX,
        }
    }
}

/// True if a value matches.
type Checked = Result<bool, TooExpensive>;

/// A running check.
struct SchemaCheck<'c> {
    schema: &'c CompiledSchema,
    steps: Steps,
    levels: usize,
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
            open: Vec::new(),
            known: HashMap::new(),
            supposed: usize::MAX,
            is_described: false,
            violation: None,
            violated: (0, ""),
        }
    }

    /// Checks a value against a schema.
    fn check(&mut self, number: usize, value: &Value) -> Checked {
        self.steps.spend(1)?;
        let schema = self.schema;
        let node = &schema.nodes[number];
        if !node.is_target {
            return self.check_keywords(number, value);
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
        // The address of a string may be that of a temporary one (`property_names`), so only objects and arrays have
        // remembered results.
        let is_cacheable = value.is_object() || value.is_array();
        if is_cacheable && let Some(known) = self.known.get(&key) {
            // The place of a violation is not remembered.
            if *known || !self.is_described {
                return Ok(*known);
            }
        }
        let supposed_before = mem::replace(&mut self.supposed, usize::MAX);
        self.open.push(key);
        let checked = self.check_keywords(number, value)?;
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

    fn check_keywords(&mut self, number: usize, value: &Value) -> Checked {
        self.levels += 1;
        if self.levels > LEVELS_MAX {
            return Err(TooExpensive);
        }
        let schema = self.schema;
        let mut is_valid = true;
        for keyword in &schema.nodes[number].keywords {
            is_valid = self.keyword(number, keyword, value)?;
            if !is_valid {
                break;
            }
        }
        self.levels -= 1;
        Ok(is_valid)
    }

    /// Checks a keyword. Those with schemas have methods of their own, which keeps the frames on the stack small.
    fn keyword(&mut self, number: usize, keyword: &'c Keyword, value: &Value) -> Checked {
        match keyword {
            Keyword::Reference(target) => self.check(*target, value),
            Keyword::AllOf(schemas) => self.all_of(schemas, value),
            Keyword::AnyOf(schemas) => self.any_of(number, schemas, value),
            Keyword::OneOf(schemas) => self.one_of(number, schemas, value),
            Keyword::Not(schema) => self.not(number, *schema, value),
            Keyword::If { condition, then, otherwise } => {
                self.condition(*condition, (*then, *otherwise), value)
            }
            Keyword::Properties(schemas) => self.properties(number, schemas, value),
            Keyword::PropertyNames(schema) => self.property_names(*schema, value),
            Keyword::Items { first, others } => self.items(first, *others, value),
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
                for name in names {
                    self.steps.spend_text(name)?;
                    if !members.contains_key(name) {
                        return self.fail(number, assertion, Some(name), value);
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
        let is_valid = self.check(number, part)?;
        if !is_valid && let Some(violation) = &mut self.violation {
            // The innermost segment is added first, and each one around it is put before it.
            violation.path.insert(0, segment());
        }
        Ok(is_valid)
    }

    /// Checks a value that may fail: records no violation.
    fn check_quietly(&mut self, number: usize, value: &Value) -> Checked {
        let is_described = mem::replace(&mut self.is_described, false);
        let checked = self.check(number, value)?;
        self.is_described = is_described;
        Ok(checked)
    }

    fn all_of(&mut self, schemas: &[usize], value: &Value) -> Checked {
        for schema in schemas {
            if !self.check(*schema, value)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Checks an alternative. Adds its violation to `reasons`, up to [`REASONS_MAX`], if violations are described.
    fn alternative(&mut self, schema: usize, value: &Value, reasons: &mut Vec<String>) -> Checked {
        let is_valid = match reasons.len() < REASONS_MAX {
            true => self.check(schema, value)?,
            false => self.check_quietly(schema, value)?,
        };
        reasons.extend(self.violation.take().as_ref().map(reason));
        Ok(is_valid)
    }

    fn any_of(&mut self, number: usize, schemas: &[usize], value: &Value) -> Checked {
        let mut reasons = Vec::new();
        for schema in schemas {
            if self.alternative(*schema, value, &mut reasons)? {
                return Ok(true);
            }
        }
        self.fail_because(number, "anyOf", None, || {
            no_alternative(value, "anyOf", schemas.len(), &reasons)
        })
    }

    fn one_of(&mut self, number: usize, schemas: &[usize], value: &Value) -> Checked {
        let mut reasons = Vec::new();
        let mut valid = 0;
        for schema in schemas {
            valid += usize::from(self.alternative(*schema, value, &mut reasons)?);
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
        if self.check_quietly(schema, value)? {
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
    ) -> Checked {
        let is_valid = self.check_quietly(condition, value)?;
        match if is_valid { then } else { otherwise } {
            Some(schema) => self.check(schema, value),
            None => Ok(true),
        }
    }

    fn properties(&mut self, number: usize, schemas: &PropertySchemas, value: &Value) -> Checked {
        let Value::Object(members) = value else { return Ok(true) };
        for (name, member) in members {
            self.steps.spend_text(name)?;
            let named = schemas.named.get(name);
            let mut is_known = named.is_some();
            if let Some(schema) = named
                && !self.check_part(*schema, member, || PathSegment::Member(name.clone()))?
            {
                return Ok(false);
            }
            for (pattern, schema) in &schemas.by_pattern {
                if pattern.is_match(name, &mut self.steps)? {
                    is_known = true;
                    if !self.check_part(*schema, member, || PathSegment::Member(name.clone()))? {
                        return Ok(false);
                    }
                }
            }
            if !is_known && let Some(others) = schemas.others {
                if self.is_never(others) {
                    return self.fail_because(number, "additionalProperties", Some(name), || {
                        unknown_property(name)
                    });
                }
                if !self.check_part(others, member, || PathSegment::Member(name.clone()))? {
                    return Ok(false);
                }
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
            if !self.check(schema, &Value::from(name.as_str()))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn items(&mut self, first: &[usize], others: Option<usize>, value: &Value) -> Checked {
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
