//! Compiles a JSON Schema: each of its schemas becomes a list of keywords, and each reference the number of a schema.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::mem;
use std::sync::Arc;

use serde_json::{Map, Number, Value};

use super::document::{SchemaDocument, location};
use super::json_excerpt::{JsonExcerpt, cut};
use super::numbers::{integer, is_integer};
use super::pattern::{PATTERN_MEMORY_MAX, Pattern};
use super::steps::comparison_steps;

/// Maximum number of different regular expressions.
const PATTERNS_MAX: usize = 200;

/// The keywords that have a meaning, but are not checked, because tools rarely have them.
const UNCHECKED_KEYWORDS: [&str; 8] = [
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$recursiveRef",
];

/// Maximum number of notes on parts that are not checked.
const UNCHECKED_MAX: usize = 10;

/// Number of characters after which the place of an invalid schema is cut in an error.
const LOCATION_CHARS_MAX: usize = 1_000;

/// Checks a text. The error is the reason why it does not have the format.
pub type FormatCheck = fn(&str) -> Result<(), String>;

/// A compiled JSON Schema.
#[derive(Debug)]
pub struct CompiledSchema {
    /// The schemas by their numbers. That of the whole document is 0.
    pub(super) nodes: Vec<SchemaNode>,
    unchecked: Vec<String>,
}

/// A compiled schema.
#[derive(Debug)]
pub(super) struct SchemaNode {
    parent: Option<usize>,
    path: String,
    /// True if a reference refers to it.
    pub(super) is_target: bool,
    /// Its keywords in the order of the checks: assertions first.
    pub(super) keywords: Vec<Keyword>,
}

/// A keyword of a schema.
#[derive(Debug)]
pub(super) enum Keyword {
    Assertion(Assertion),
    Properties(Box<PropertySchemas>),
    PropertyNames(usize),
    Items {
        /// The schemas of the first items.
        first: Vec<usize>,
        /// The schema of the items after them.
        others: Option<usize>,
    },
    AllOf(Vec<usize>),
    AnyOf(Vec<usize>),
    OneOf(Vec<usize>),
    Not(usize),
    If {
        condition: usize,
        then: Option<usize>,
        otherwise: Option<usize>,
    },
    Reference(usize),
}

/// A keyword that contains no schemas.
#[derive(Debug)]
pub(super) enum Assertion {
    /// The schema `false`.
    Never,
    Type(Vec<JsonType>),
    Const(EnumOptions),
    Enum(EnumOptions),
    Limit(NumberLimit, Number),
    MultipleOf(Number),
    Size(SizeLimit, u64),
    Required(Vec<String>),
    Pattern(Arc<Pattern>),
    Format(String, FormatCheck),
    UniqueItems,
}

/// The values of `enum`, or the one of `const`.
#[derive(Debug)]
pub(super) struct EnumOptions {
    pub(super) values: Vec<Value>,
    /// The most steps that a comparison with all of them can take.
    pub(super) size: usize,
}

impl EnumOptions {
    fn new(values: Vec<Value>) -> Self {
        let size = values.iter().map(|value| comparison_steps(value, usize::MAX)).sum();
        Self { values, size }
    }
}

/// `properties`, `patternProperties` and `additionalProperties`.
#[derive(Debug)]
pub(super) struct PropertySchemas {
    pub(super) named: HashMap<String, usize>,
    pub(super) by_pattern: Vec<(Arc<Pattern>, usize)>,
    pub(super) others: Option<usize>,
}

/// A type of JSON values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum JsonType {
    Null,
    Boolean,
    Integer,
    Number,
    String,
    Array,
    Object,
}

impl JsonType {
    fn of_name(name: &str) -> Option<Self> {
        Some(match name {
            "null" => Self::Null,
            "boolean" => Self::Boolean,
            "integer" => Self::Integer,
            "number" => Self::Number,
            "string" => Self::String,
            "array" => Self::Array,
            "object" => Self::Object,
            _ => return None,
        })
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Boolean => "boolean",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::String => "string",
            Self::Array => "array",
            Self::Object => "object",
        }
    }
}

/// A limit of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NumberLimit {
    Minimum,
    Maximum,
    ExclusiveMinimum,
    ExclusiveMaximum,
}

impl NumberLimit {
    const ALL: [Self; 4] =
        [Self::Minimum, Self::Maximum, Self::ExclusiveMinimum, Self::ExclusiveMaximum];

    pub(super) fn keyword(self) -> &'static str {
        match self {
            Self::Minimum => "minimum",
            Self::Maximum => "maximum",
            Self::ExclusiveMinimum => "exclusiveMinimum",
            Self::ExclusiveMaximum => "exclusiveMaximum",
        }
    }
}

/// A limit of the size of a text, a list or an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SizeLimit {
    MinLength,
    MaxLength,
    MinItems,
    MaxItems,
    MinProperties,
    MaxProperties,
}

impl SizeLimit {
    const ALL: [Self; 6] = [
        Self::MinLength,
        Self::MaxLength,
        Self::MinItems,
        Self::MaxItems,
        Self::MinProperties,
        Self::MaxProperties,
    ];

    pub(super) fn keyword(self) -> &'static str {
        match self {
            Self::MinLength => "minLength",
            Self::MaxLength => "maxLength",
            Self::MinItems => "minItems",
            Self::MaxItems => "maxItems",
            Self::MinProperties => "minProperties",
            Self::MaxProperties => "maxProperties",
        }
    }

    pub(super) fn is_minimum(self) -> bool {
        matches!(self, Self::MinLength | Self::MinItems | Self::MinProperties)
    }

    /// Returns the name of what it counts.
    pub(super) fn unit(self) -> &'static str {
        match self {
            Self::MinLength | Self::MaxLength => "character",
            Self::MinItems | Self::MaxItems => "item",
            Self::MinProperties | Self::MaxProperties => "property",
        }
    }

    /// Returns true if a value is within the limit, or of another type.
    pub(super) fn allows(self, value: &Value, limit: u64) -> bool {
        let size = match (self, value) {
            (Self::MinLength | Self::MaxLength, Value::String(text)) => text.chars().count(),
            (Self::MinItems | Self::MaxItems, Value::Array(items)) => items.len(),
            (Self::MinProperties | Self::MaxProperties, Value::Object(members)) => members.len(),
            (_, _) => return true,
        };
        let size = u64::try_from(size).unwrap_or(u64::MAX);
        if self.is_minimum() { size >= limit } else { size <= limit }
    }
}

impl Assertion {
    /// Returns the name of the keyword, which is empty for the schema `false`.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Type(_) => "type",
            Self::Const(_) => "const",
            Self::Enum(_) => "enum",
            Self::Limit(limit, _) => limit.keyword(),
            Self::MultipleOf(_) => "multipleOf",
            Self::Size(limit, _) => limit.keyword(),
            Self::Required(_) => "required",
            Self::Pattern(_) => "pattern",
            Self::Format(..) => "format",
            Self::UniqueItems => "uniqueItems",
            Self::Never => "",
        }
    }
}

impl CompiledSchema {
    /// Compiles a schema. `formats` are the checks of the keyword `format`, by name. Other formats are not checked.
    ///
    /// # Errors
    /// The reason why it is not a valid schema, with the place if it is a keyword.
    pub fn compile(schema: &Value, formats: &[(&str, FormatCheck)]) -> Result<Self, String> {
        let document = SchemaDocument::read(schema)?;
        let mut compiler = SchemaCompiler {
            document,
            formats,
            targets: HashSet::new(),
            patterns: HashMap::new(),
            pattern_memory_left: PATTERN_MEMORY_MAX,
            unchecked: Vec::new(),
        };
        let mut keywords = Vec::new();
        // A reference can add schemas.
        while keywords.len() < compiler.document.positions.len() {
            keywords.push(compiler.keywords(keywords.len())?);
        }
        let SchemaCompiler { document, targets, unchecked, .. } = compiler;
        if !unchecked.is_empty() {
            keywords.iter_mut().for_each(allow_more);
        }
        let nodes = document.positions.into_iter().zip(keywords).enumerate();
        let nodes = nodes.map(|(number, (position, keywords))| SchemaNode {
            parent: position.parent,
            path: position.path,
            is_target: targets.contains(&number),
            keywords,
        });
        Ok(Self { nodes: nodes.collect(), unchecked })
    }

    /// Returns the parts that are not checked, as [`ParsedSchema::unchecked`](super::ParsedSchema::unchecked) does.
    pub fn unchecked(&self) -> &[String] {
        &self.unchecked
    }

    /// Returns the JSON pointer to a schema.
    pub(super) fn location(&self, number: usize) -> String {
        location(number, |number| (self.nodes[number].parent, &self.nodes[number].path))
    }
}

/// Compiles the schemas of a document.
struct SchemaCompiler<'s, 'f> {
    document: SchemaDocument<'s>,
    formats: &'f [(&'f str, FormatCheck)],
    /// The schemas that references refer to.
    targets: HashSet<usize>,
    /// The regular expressions, and `None` for those that cannot be checked.
    patterns: HashMap<&'s str, Option<Arc<Pattern>>>,
    /// The memory that further regular expressions may take.
    pattern_memory_left: usize,
    unchecked: Vec<String>,
}

/// The members of a schema, with its number.
#[derive(Clone, Copy)]
struct SchemaMembers<'s> {
    members: &'s Map<String, Value>,
    number: usize,
}

impl<'s> SchemaMembers<'s> {
    fn get(self, keyword: &str) -> Option<&'s Value> {
        self.members.get(keyword)
    }
}

impl<'s> SchemaCompiler<'s, '_> {
    fn error<T>(&self, schema: usize, keyword: &str, problem: &str) -> Result<T, String> {
        let location = self.document.location(schema);
        Err(format!("{}/{keyword}: {problem}", cut(&location, LOCATION_CHARS_MAX)))
    }

    /// Notes a part that is not checked.
    fn skip(&mut self, schema: usize, keyword: &str, reason: &str) {
        if self.unchecked.len() < UNCHECKED_MAX {
            let location = self.document.location(schema);
            self.unchecked
                .push(format!("{}/{keyword}: {reason}", cut(&location, LOCATION_CHARS_MAX)));
        }
    }

    fn keywords(&mut self, number: usize) -> Result<Vec<Keyword>, String> {
        let members = match self.document.positions[number].value {
            Value::Bool(true) => return Ok(Vec::new()),
            Value::Bool(false) => return Ok(vec![Keyword::Assertion(Assertion::Never)]),
            Value::Object(members) => members,
            Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                return Err("a schema is an object, true or false".to_owned());
            }
        };
        let schema = SchemaMembers { members, number };
        for keyword in UNCHECKED_KEYWORDS {
            if members.get(keyword).is_some_and(|value| *value != true) {
                self.skip(number, keyword, "the host does not check this keyword");
            }
        }
        let assertions = self.assertions(schema)?;
        let mut keywords: Vec<_> = assertions.into_iter().map(Keyword::Assertion).collect();
        self.read_objects(schema, &mut keywords)?;
        self.read_lists(schema, &mut keywords)?;
        self.read_combinations(schema, &mut keywords)?;
        keywords.extend(self.reference(schema)?.map(Keyword::Reference));
        Ok(keywords)
    }

    /// Reads the keywords that contain no schemas.
    fn assertions(&mut self, schema: SchemaMembers<'s>) -> Result<Vec<Assertion>, String> {
        let mut assertions = Vec::new();
        assertions.extend(self.types(schema)?.map(Assertion::Type));
        let constant = schema.get("const");
        assertions
            .extend(constant.map(|value| Assertion::Const(EnumOptions::new(vec![value.clone()]))));
        if let Some(options) = self.list(schema, "enum")? {
            assertions.push(Assertion::Enum(EnumOptions::new(options.clone())));
        }
        for limit in NumberLimit::ALL {
            assertions.extend(self.number_limit(schema, limit)?);
        }
        if let Some(of) = self.number(schema, "multipleOf")? {
            if of.as_f64().is_none_or(|of| of <= 0.0) {
                return self.error(schema.number, "multipleOf", "must be greater than 0");
            }
            assertions.push(Assertion::MultipleOf(of.clone()));
        }
        for limit in SizeLimit::ALL {
            let count = self.count(schema, limit.keyword())?;
            assertions.extend(count.map(|count| Assertion::Size(limit, count)));
        }
        assertions.extend(self.required(schema)?.map(Assertion::Required));
        if let Some(pattern) = self.text(schema, "pattern")? {
            let pattern = self.pattern(schema.number, "pattern", pattern);
            assertions.extend(pattern.map(Assertion::Pattern));
        }
        if let Some(name) = self.text(schema, "format")?
            && let Some((_, check)) = self.formats.iter().find(|(format, _)| *format == name)
        {
            assertions.push(Assertion::Format(name.to_owned(), *check));
        }
        match schema.get("uniqueItems") {
            Some(Value::Bool(true)) => assertions.push(Assertion::UniqueItems),
            None | Some(Value::Bool(false)) => {}
            Some(_) => return self.error(schema.number, "uniqueItems", "must be true or false"),
        }
        Ok(assertions)
    }

    /// Reads the keywords with the schemas of members.
    fn read_objects(
        &mut self,
        schema: SchemaMembers<'s>,
        keywords: &mut Vec<Keyword>,
    ) -> Result<(), String> {
        let named = self.schemas_by_name(schema, "properties")?;
        let mut by_pattern = Vec::new();
        let mut others = self.schema(schema, "additionalProperties")?;
        for (pattern, number) in self.schemas_by_name(schema, "patternProperties")? {
            match self.pattern(schema.number, "patternProperties", pattern) {
                Some(pattern) => by_pattern.push((pattern, number)),
                // The pattern may allow any of the other properties.
                None => others = None,
            }
        }
        if !named.is_empty() || !by_pattern.is_empty() || others.is_some() {
            let named = named.into_iter().map(|(name, number)| (name.clone(), number)).collect();
            let properties = PropertySchemas { named, by_pattern, others };
            keywords.push(Keyword::Properties(Box::new(properties)));
        }
        keywords.extend(self.schema(schema, "propertyNames")?.map(Keyword::PropertyNames));
        Ok(())
    }

    /// Reads the keywords with the schemas of items.
    fn read_lists(
        &self,
        schema: SchemaMembers<'s>,
        keywords: &mut Vec<Keyword>,
    ) -> Result<(), String> {
        let is_tuple = schema.get("items").is_some_and(Value::is_array);
        let (first, others) = match is_tuple {
            true => ("items", "additionalItems"),
            false => ("prefixItems", "items"),
        };
        let first = self.schemas(schema, first)?.unwrap_or_default();
        let others = self.schema(schema, others)?;
        if !first.is_empty() || others.is_some() {
            keywords.push(Keyword::Items { first, others });
        }
        Ok(())
    }

    /// Reads the keywords with further schemas of the same value.
    fn read_combinations(
        &self,
        schema: SchemaMembers<'s>,
        keywords: &mut Vec<Keyword>,
    ) -> Result<(), String> {
        keywords.extend(self.schemas(schema, "allOf")?.map(Keyword::AllOf));
        keywords.extend(self.schemas(schema, "anyOf")?.map(Keyword::AnyOf));
        keywords.extend(self.schemas(schema, "oneOf")?.map(Keyword::OneOf));
        keywords.extend(self.schema(schema, "not")?.map(Keyword::Not));
        let then = self.schema(schema, "then")?;
        let otherwise = self.schema(schema, "else")?;
        let condition = self.schema(schema, "if")?;
        keywords.extend(condition.map(|condition| Keyword::If { condition, then, otherwise }));
        Ok(())
    }

    fn reference(&mut self, schema: SchemaMembers<'s>) -> Result<Option<usize>, String> {
        let Some(reference) = self.text(schema, "$ref")? else { return Ok(None) };
        match self.document.resolve(reference) {
            Ok(Some(target)) => {
                self.targets.insert(target);
                Ok(Some(target))
            }
            Ok(None) => {
                self.skip(schema.number, "$ref", "the host does not follow references to anchors");
                Ok(None)
            }
            Err(problem) => self.error(schema.number, "$ref", &problem),
        }
    }

    fn types(&self, schema: SchemaMembers<'s>) -> Result<Option<Vec<JsonType>>, String> {
        let Some(value) = schema.get("type") else { return Ok(None) };
        let names = match value {
            Value::String(name) => Some(vec![name.as_str()]),
            Value::Array(names) => names.iter().map(Value::as_str).collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
        };
        let types = names
            .and_then(|names| names.into_iter().map(JsonType::of_name).collect::<Option<Vec<_>>>());
        let Some(types) = types else {
            let problem = format!("{} is not a type or a list of types", JsonExcerpt(value));
            return self.error(schema.number, "type", &problem);
        };
        Ok(Some(without_duplicates(types)))
    }

    fn number_limit(
        &self,
        schema: SchemaMembers<'s>,
        limit: NumberLimit,
    ) -> Result<Option<Assertion>, String> {
        // In draft 4, `exclusiveMinimum` is a boolean, which says whether `minimum` is exclusive.
        let (other, is_exclusive) = match limit {
            NumberLimit::Minimum => (NumberLimit::ExclusiveMinimum, false),
            NumberLimit::Maximum => (NumberLimit::ExclusiveMaximum, false),
            NumberLimit::ExclusiveMinimum => (NumberLimit::Minimum, true),
            NumberLimit::ExclusiveMaximum => (NumberLimit::Maximum, true),
        };
        let exclusive = if is_exclusive { limit } else { other };
        let own = match schema.get(exclusive.keyword()) {
            Some(Value::Bool(says_exclusive)) if *says_exclusive == is_exclusive => {
                if is_exclusive { other } else { limit }
            }
            Some(Value::Bool(_)) => return Ok(None),
            None | Some(_) => limit,
        };
        let number = self.number(schema, own.keyword())?;
        Ok(number.map(|number| Assertion::Limit(limit, number.clone())))
    }

    fn required(&self, schema: SchemaMembers<'s>) -> Result<Option<Vec<String>>, String> {
        match schema.get("required") {
            // Draft 3 has a boolean in the schema of the member.
            None | Some(Value::Bool(_)) => Ok(None),
            Some(names) => self.names(schema.number, "required", names).map(Some),
        }
    }

    fn names(&self, schema: usize, keyword: &str, value: &Value) -> Result<Vec<String>, String> {
        let names = value.as_array().and_then(|names| {
            names.iter().map(|name| name.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()
        });
        match names {
            Some(names) => Ok(without_duplicates(names)),
            None => {
                let problem = format!("{} is not a list of names", JsonExcerpt(value));
                self.error(schema, keyword, &problem)
            }
        }
    }

    /// Compiles a regular expression, unless the schema has an equal one. Notes one that cannot be checked.
    fn pattern(&mut self, schema: usize, keyword: &str, text: &'s str) -> Option<Arc<Pattern>> {
        if let Some(known) = self.patterns.get(text) {
            return known.clone();
        }
        let pattern = match self.patterns.len() < PATTERNS_MAX {
            true => Pattern::compile(text, &mut self.pattern_memory_left),
            false => Err(format!("the schema has more than {PATTERNS_MAX} regular expressions")),
        };
        let pattern = pattern.map_err(|problem| self.skip(schema, keyword, &problem));
        let pattern = pattern.ok().map(Arc::new);
        self.patterns.insert(text, pattern.clone());
        pattern
    }

    fn schema(&self, schema: SchemaMembers<'s>, keyword: &str) -> Result<Option<usize>, String> {
        let Some(value) = schema.get(keyword) else { return Ok(None) };
        match self.document.number(value) {
            Some(number) => Ok(Some(number)),
            None => {
                self.error(schema.number, keyword, "must be a schema: an object, true or false")
            }
        }
    }

    fn schemas(
        &self,
        schema: SchemaMembers<'s>,
        keyword: &str,
    ) -> Result<Option<Vec<usize>>, String> {
        let Some(list) = self.list(schema, keyword)? else { return Ok(None) };
        let numbers = list.iter().map(|value| self.document.number(value)).collect();
        match numbers {
            Some(numbers) => Ok(Some(numbers)),
            None => self.error(schema.number, keyword, "must be a list of schemas"),
        }
    }

    fn schemas_by_name(
        &self,
        schema: SchemaMembers<'s>,
        keyword: &str,
    ) -> Result<Vec<(&'s String, usize)>, String> {
        let mut found = Vec::new();
        for (name, value) in self.object(schema, keyword)?.into_iter().flatten() {
            match self.document.number(value) {
                Some(number) => found.push((name, number)),
                None => return self.error(schema.number, keyword, "must contain schemas"),
            }
        }
        Ok(found)
    }

    fn object(
        &self,
        schema: SchemaMembers<'s>,
        keyword: &str,
    ) -> Result<Option<&'s Map<String, Value>>, String> {
        self.member(schema, keyword, Value::as_object, "must be an object")
    }

    fn list(
        &self,
        schema: SchemaMembers<'s>,
        keyword: &str,
    ) -> Result<Option<&'s Vec<Value>>, String> {
        self.member(schema, keyword, Value::as_array, "must be a list")
    }

    fn text(&self, schema: SchemaMembers<'s>, keyword: &str) -> Result<Option<&'s str>, String> {
        self.member(schema, keyword, Value::as_str, "must be a string")
    }

    fn number(
        &self,
        schema: SchemaMembers<'s>,
        keyword: &str,
    ) -> Result<Option<&'s Number>, String> {
        self.member(schema, keyword, Value::as_number, "must be a number")
    }

    fn member<T>(
        &self,
        schema: SchemaMembers<'s>,
        keyword: &str,
        read: impl FnOnce(&'s Value) -> Option<T>,
        problem: &str,
    ) -> Result<Option<T>, String> {
        let Some(value) = schema.get(keyword) else { return Ok(None) };
        match read(value) {
            Some(read) => Ok(Some(read)),
            None => self.error(schema.number, keyword, problem),
        }
    }

    fn count(&self, schema: SchemaMembers<'s>, keyword: &str) -> Result<Option<u64>, String> {
        let Some(number) = self.number(schema, keyword)? else { return Ok(None) };
        // A count that does not fit becomes the largest one, which no value has.
        match integer(number) {
            Some(count) if count >= 0 => Ok(Some(u64::try_from(count).unwrap_or(u64::MAX))),
            None if is_integer(number) && number.as_f64() > Some(0.0) => Ok(Some(u64::MAX)),
            Some(_) | None => {
                self.error(schema.number, keyword, "must be a whole number, 0 or more")
            }
        }
    }
}

/// Leaves out the keywords by which a subschema that allows more makes its schema allow less, because some part of the
/// schema is not checked.
fn allow_more(keywords: &mut Vec<Keyword>) {
    keywords.retain(|keyword| !matches!(keyword, Keyword::Not(_) | Keyword::If { .. }));
    for keyword in keywords {
        if let Keyword::OneOf(schemas) = keyword {
            *keyword = Keyword::AnyOf(mem::take(schemas));
        }
    }
}

/// Removes equal elements, each of which would be looked at again for each value.
fn without_duplicates<T: Clone + Eq + Hash>(list: Vec<T>) -> Vec<T> {
    let mut found = HashSet::with_capacity(list.len());
    list.into_iter().filter(|element| found.insert(element.clone())).collect()
}
