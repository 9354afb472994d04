//! Compares the checker with the `jsonschema` library: on generated schemas and values, and on examples of references.
//! Checks regular expressions on examples of JavaScript's.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::CompiledSchema;

/// Choices that a generated list of bytes makes.
struct Choices<'b>(&'b [u8]);

impl Choices<'_> {
    /// Returns a number below `count`, and 0 when the bytes are used up.
    fn pick(&mut self, count: usize) -> usize {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        usize::from(*first) % count
    }

    fn one_of(&mut self, options: &[Value]) -> Value {
        let at = self.pick(options.len());
        options[at].clone()
    }

    fn value(&mut self, depth: usize) -> Value {
        let scalars = json!([
            null, true, false, 0, 1, 2, 1.0, 1.5, -3, 0.3, 1e20, "", "a", "ab", "b1", "é", "12"
        ]);
        match self.pick(if depth == 0 { 1 } else { 4 }) {
            0 | 1 => self.one_of(scalars.as_array().unwrap()),
            2 => (0..self.pick(4)).map(|_| self.value(depth - 1)).collect(),
            _ => {
                let names = ["a", "b", "ab", "b1"];
                let member = |_| (names[self.pick(4)].to_owned(), self.value(depth - 1));
                Value::Object((0..4).map(member).collect::<Map<_, _>>())
            }
        }
    }

    fn schema(&mut self, depth: usize) -> Value {
        if depth == 0 || self.pick(12) == 0 {
            let leaves = json!([true, false, {}, {"type": "integer"}, {"type": "string"}, {"$ref": "#/$defs/d"}, {"$ref": "#/$defs/e"}]);
            return self.one_of(leaves.as_array().unwrap());
        }
        let mut schema = Map::new();
        for _ in 0..=self.pick(3) {
            let (keyword, value) = self.keyword(depth - 1);
            schema.insert(keyword.to_owned(), value);
        }
        Value::Object(schema)
    }

    fn schemas(&mut self, depth: usize) -> Value {
        (0..=self.pick(2)).map(|_| self.schema(depth)).collect()
    }

    fn schemas_by(&mut self, names: &[&str], depth: usize) -> Value {
        let mut schemas = Map::new();
        for name in names {
            if self.pick(2) == 0 {
                schemas.insert((*name).to_owned(), self.schema(depth));
            }
        }
        Value::Object(schemas)
    }

    fn keyword(&mut self, depth: usize) -> (&'static str, Value) {
        match self.pick(26) {
            0 => {
                ("type", self.one_of(&[json!("object"), json!("array"), json!(["string", "null"])]))
            }
            1 => ("type", self.one_of(&[json!("number"), json!("integer"), json!(["boolean"])])),
            2 => ("const", self.value(2)),
            3 => ("enum", json!([self.value(1), self.value(1), self.value(0)])),
            4 => ("minimum", self.one_of(&[json!(0), json!(1.5), json!(2)])),
            5 => ("exclusiveMaximum", self.one_of(&[json!(1), json!(1.5), json!(1e20)])),
            6 => ("multipleOf", self.one_of(&[json!(1), json!(0.1), json!(1.5), json!(2)])),
            7 => ("maxLength", json!(1)),
            8 => ("minItems", json!(1)),
            9 => ("maxItems", json!(2)),
            10 => ("minProperties", json!(2)),
            11 => ("required", self.one_of(&[json!(["a"]), json!(["a", "b"]), json!([])])),
            12 => (
                "pattern",
                self.one_of(&[json!("^a"), json!("b$"), json!(r"^\d+$"), json!("(?=a)")]),
            ),
            13 => ("uniqueItems", json!(true)),
            14 => ("properties", self.schemas_by(&["a", "b"], depth)),
            15 => ("patternProperties", self.schemas_by(&["^a", "1$"], depth)),
            16 => ("additionalProperties", self.schema(depth)),
            17 => ("propertyNames", self.schema(depth)),
            18 => ("items", self.schema(depth)),
            19 => ("prefixItems", self.schemas(depth)),
            20 => ("allOf", self.schemas(depth)),
            21 => ("anyOf", self.schemas(depth)),
            22 => ("oneOf", self.schemas(depth)),
            23 => ("not", self.schema(depth)),
            24 => (["if", "then", "else"][self.pick(3)], self.schema(depth)),
            _ => (
                "$ref",
                self.one_of(&[json!("#/$defs/d"), json!("#/$defs/e"), json!("#/$defs/d/not")]),
            ),
        }
    }
}

fn assert_same(schema: &Value, value: &Value) {
    let expected = jsonschema::validator_for(schema).map(|validator| validator.is_valid(value));
    let found = CompiledSchema::compile(schema, &[]);
    let found = found.map(|schema| (schema.is_valid(value), schema.first_violation(value)));
    match (expected, found) {
        (Ok(expected), Ok((is_valid, violation))) => {
            assert_eq!(is_valid, expected, "{schema} {value}");
            assert_eq!(violation.is_none(), expected, "{schema} {value}");
        }
        (Err(_), Err(_)) => {}
        (expected, found) => panic!("{schema}: {expected:?} {found:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_library_says_the_same(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut choices = Choices(&bytes);
        let mut schema = choices.schema(3);
        if let Some(object) = schema.as_object_mut() {
            let mut other = json!({});
            for _ in 0..choices.pick(3) {
                let (keyword, value) = choices.keyword(1);
                // A schema that refers to itself for the same value has no meaning.
                if !value.to_string().contains("$ref") && keyword != "$ref" {
                    other[keyword] = value;
                }
            }
            let leaf = json!({"type": ["object", "array"], "not": {"maxProperties": 0}});
            object.insert("$defs".to_owned(), json!({"d": leaf, "e": other}));
        }
        if schema.is_object() {
            for _ in 0..8 {
                assert_same(&schema, &choices.value(3));
            }
        }
    }
}

#[test]
fn references_lead_where_the_library_says() {
    let schemas = [
        json!({"$defs": {"a/b": {"type": "array"}, "c~d": {"items": {"type": "string"}}, "e f": {"maxItems": 1}},
            "allOf": [{"$ref": "#/$defs/a~1b"}, {"$ref": "#/$defs/c~0d"}, {"$ref": "#/$defs/e%20f"}]}),
        json!({"properties": {"a": {"$ref": "#"}}, "additionalProperties": false}),
        json!({"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"a": {"$ref": "#/definitions/s"}},
            "items": [{"type": "integer"}], "additionalItems": {"type": "string"}, "definitions": {"s": {"type": "string"}}}),
        json!({"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1, "exclusiveMinimum": true}),
        json!({"$id": "urn:uuid:deadbeef-1234-0000-0000-4321feebdaed", "properties": {"a": {"$ref": "#/$defs/s"}}, "$defs": {"s": {"minLength": 3}}}),
        json!({"$ref": "#/x/0/y", "x": [{"y": {"type": "string"}}]}),
        json!({"$ref": "#/missing"}),
        json!({"type": "text"}),
        json!({"properties": []}),
        json!({"anyOf": [1]}),
        json!({"minLength": -1}),
        json!({"multipleOf": 0}),
        json!({"multipleOf": 0.01, "maximum": 1e20}),
        json!({"multipleOf": 1e-8, "type": "integer"}),
    ];
    let values = json!([
        null, 1, 1.0, 2, 0.07, 19.99, 1e308, 12_391_239_123_u64, "", "ab", "abc", [], ["a"], [1], [1, "a"], [1, 2], ["a", "b"],
        {}, {"a": 1}, {"a": "a"}, {"a": {}}, {"a": {"a": {"b": 1}}}, {"b": {"a": 1, "b": {}}}, {"b": {"c": 1}}, {"a": "abcd", "b": 1},
        {"a": "a", "b": 1, "c": 1}, {"b": 1, "c": 1, "d": 1}
    ]);
    for schema in &schemas {
        for value in values.as_array().unwrap() {
            assert_same(schema, value);
        }
    }
}

#[test]
fn regular_expressions_are_those_of_javascript() {
    for (pattern, matching, others) in [
        (r"^\d$", "7", "٣"),
        (r"^\w$", "_", "é"),
        (r"^\W$", "é", "a"),
        (r"^\s$", "\u{feff}", "a"),
        (r"^\S$", "a", "\u{2029}"),
        (r"^[^\d\s]$", "a", "7"),
        (r"^[\w.-]+$", "a.b-c", "a b"),
        (r"^[\w-\.]+@([\w-]+\.)+[\w-]{2,4}$", "a-b.c@d-e.org", "a b@c.org"),
        (r"^[\s-a]+$", "- a", "b"),
        (r"^[a-\d]+$", "a-7", "b"),
        (r"^\<b\>\h$", "<b>h", "b"),
        (r"^[^\ud800-\udfff]$", "-", ""),
        (r"^[a\ud800-\udfff]$", "a", "\u{10fffe}"),
        (r"^[\u0080-\udfff]$", "\u{d7ff}", "\u{e000}"),
        (r"^[\ud800-\uffff]$", "\u{e000}", "\u{d7ff}"),
        (r"^(?!x)[^a\ud7ff-\udfff]$", "\u{e000}", "\u{d7ff}"),
        (r"^[\udfff-\d]+$", "-7", "a"),
        (r"^\u12g$", "u12g", "ug"),
        (r"^[\ud83]+$", "u38d", "e"),
        (r"^(\ud83d[\ude00-\ude02]|a)$", "a", "b"),
        (r"^[[]$", "[", "a"),
        (r"^[a&&b]+$", "a&b", "-"),
        (r"^[^]$", "\n", ""),
        (r"^\u00e9\u{e8}$", "éè", "e"),
        (r"^\ud83d\ude00$", "😀", "a"),
        (r"^\cJ$", "\n", "J"),
        (r"^a\/b\-c$", "a/b-c", "a"),
        (r"^(?!x)", "a", "x"),
        (r"^(.)\1$", "aa", "ab"),
        (r"^\p{L}+$", "é", "7"),
        (r"^(?<year>\d{4})$", "1984", "84"),
        (r"^(?<$>\d)$", "7", "$"),
        (r"^(?<a$b>.)(?<a_b>.)\k<a$b>$", "xyx", "xyy"),
        (r"^(?<a$>b\k<a$>)$", "b", "bb"),
        (r"^a\b", "aé", "ab"),
        (r"^é\b", "éa", "éé"),
        (r"^(?=a)a\b", "aé", "ab"),
        (r"^a\B", "ab", "aé"),
        (r"^é\B", "éé", "éa"),
        (r"\s|\B|é.$", "céb", "b"),
        (r"^(?=a)a\B", "ab", "aé"),
        (r"^.$", "é", "\r"),
        (r"^.$", "\u{85}", "\n"),
        (r"^.$", "😀", "\u{2028}"),
        (r"^(?!x).$", "é", "\u{2029}"),
        (r"^[.]$", ".", "a"),
        (r"^(?s).$", "\n", ""),
        (r"^(?:(?s:.)|b.)$", "\n", "b\r"),
        (r"^(?:(a)|b)\1$", "b", "a"),
        (r"^(?:(?<n>a)|b)\k<n>$", "aa", "a"),
        (r"^(?:(?<n>a)|b)\k<n>$", "b", "ba"),
        (r"^\1(a)$", "a", "aa"),
        (r"^(a\1)$", "a", "aa"),
        (r"^(?<n>a(b)\k<n>)$", "ab", "abab"),
        (r"^(?:(a)|b)(c)\2$", "bcc", "bc"),
        (r"^[--a]+$", "9-", "b"),
        (r"^[+--]$", ",", "."),
        (r"^[a-b-c]+$", "a-c", "d"),
        (r"^[a-]+[-a]$", "a-", "b-"),
        (r"^[\w-a-z]+$", "b-", "~"),
        (r"^a[]*$", "a", "ab"),
        (r"^[^]*a$", "\na", "b"),
        (r"^(?:[]|a)$", "a", ""),
    ] {
        let schema = CompiledSchema::compile(&json!({"pattern": pattern}), &[]).unwrap();
        assert!(schema.unchecked().is_empty(), "{pattern}");
        assert!(schema.is_valid(&json!(matching)), "{pattern} {matching}");
        assert!(!schema.is_valid(&json!(others)), "{pattern} {others}");
    }
}

#[test]
fn groups_that_javascript_does_not_have_are_not_checked() {
    let is_checked = |pattern: &str| {
        CompiledSchema::compile(&json!({"pattern": pattern}), &[]).unwrap().unchecked().is_empty()
    };
    for pattern in [
        r"(a)(?P>1)",
        "(?R)",
        "(?1)",
        "(?&a)",
        "(?(1)a|b)",
        "(?>a)",
        "(?#a)",
        "(?x)a",
        "(?P<y>a)(?P=y)",
        "(*FAIL)",
        "(?=a)*",
        r"(a)\2",
        r"(a\99999999999999999999)",
        r"\k<y>",
        r"(?<y>a)\k<y)|(?!>",
    ] {
        assert!(!is_checked(pattern), "{pattern}");
    }
    for pattern in [r"\(?R", "[(?&]", "(?P<y>a)", "(?<y>a)(?:b)(?=c)(?i)", "(?i-s:a)"] {
        assert!(is_checked(pattern), "{pattern}");
    }
}
