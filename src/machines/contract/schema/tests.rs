//! Errors of values, and hostile schemas and values.

use serde_json::{Map, Value, json};

use super::violation::{NOT_LOCATED, TOO_EXPENSIVE};
use super::{CompiledSchema, ParsedSchema};

fn parse(schema: Value) -> ParsedSchema {
    ParsedSchema::parse(schema).unwrap()
}

/// Returns the number of steps that a check takes.
fn steps(schema: &Value, value: &Value) -> usize {
    CompiledSchema::compile(schema, &[]).unwrap().steps(value)
}

/// Returns the reason why a schema is invalid.
fn problem(schema: Value) -> String {
    ParsedSchema::parse(schema).unwrap_err().to_string()
}

/// Returns the parts of a schema that are not checked.
fn unchecked(schema: Value) -> String {
    parse(schema).unchecked().join("; ")
}

/// Returns a schema whose definition `n` refers to itself.
fn recursive(node: &Value) -> ParsedSchema {
    parse(json!({"$defs": {"n": node}, "$ref": "#/$defs/n"}))
}

/// Returns a value of this number of objects within each other, with `inner` in the last one.
fn nested(name: &str, levels: usize, inner: Value) -> Value {
    (0..levels).fold(inner, |inner, _| json!({name: inner}))
}

/// Returns a schema that refers to the last of 27 definitions, each of which refers twice to the one before.
fn bomb(first: Value, definition: impl Fn(usize) -> Value) -> Value {
    let definitions = (1..=26).map(|nth| (format!("d{nth}"), definition(nth)));
    let mut definitions: Map<String, Value> = definitions.collect();
    definitions.insert("d0".to_owned(), first);
    json!({"$ref": "#/$defs/d26", "$defs": definitions})
}

#[test]
fn a_violation_names_the_place_and_the_rule() {
    for (schema, value, expected) in [
        (json!({"type": "string"}), json!(7), "7 is not of type \"string\""),
        (json!({"type": ["string", "null"]}), json!(7), "7 is not of types \"string\", \"null\""),
        (json!({"const": "a"}), json!("b"), "\"a\" was expected"),
        (json!({"enum": ["a", "b", 1]}), json!("c"), "\"c\" is not one of \"a\", \"b\" or 1"),
        (json!({"minimum": 1}), json!(0.5), "0.5 is less than the minimum of 1"),
        (
            json!({"exclusiveMaximum": 1}),
            json!(1),
            "1 is greater than or equal to the maximum of 1",
        ),
        (json!({"multipleOf": 0.1}), json!(0.25), "0.25 is not a multiple of 0.1"),
        (json!({"maxLength": 1}), json!("ab"), "\"ab\" has more than 1 character"),
        (json!({"minItems": 2}), json!([1]), "[1] has less than 2 items"),
        (json!({"maxProperties": 0}), json!({"a": 1}), "{\"a\":1} has more than 0 properties"),
        (json!({"required": ["a"]}), json!({}), "\"a\" is a required property"),
        (json!({"pattern": "^a"}), json!("b"), "\"b\" does not match \"^a\""),
        (json!({"uniqueItems": true}), json!([1, 1.0]), "[1,1.0] has equal items"),
        (json!({"additionalProperties": false}), json!({"a": 1}), "\"a\" is not a known property"),
        (
            json!({"propertyNames": {"maxLength": 1}}),
            json!({"ab": 1}),
            "\"ab\" has more than 1 character",
        ),
        (
            json!({"items": {"properties": {"a/b": {"type": "null"}}}}),
            json!([{}, {"a/b": 1}]),
            "/1/a~1b: 1 is not of type \"null\"",
        ),
        (
            json!({"prefixItems": [true], "items": false}),
            json!([1, 2]),
            "[1,2] has more than 1 item",
        ),
        (json!({"not": {"type": "null"}}), json!(null), "null matches the schema of not"),
        (
            json!({"oneOf": [true, true]}),
            json!(1),
            "1 matches more than one of the schemas of oneOf",
        ),
        (
            json!({"properties": {"n": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}}),
            json!({"n": "x"}),
            "/n: \"x\" matches none of the schemas of anyOf (\"x\" is not of type \"integer\"; \"x\" is not of type \"null\")",
        ),
        (json!({"properties": {"a": false}}), json!({"a": 1}), "/a: no value is allowed here"),
    ] {
        let violation = parse(schema.clone()).first_violation(&value);
        assert_eq!(violation.as_deref(), Some(expected), "{schema}");
    }
}

#[test]
fn long_values_are_cut_in_a_violation() {
    let violation = parse(json!({"type": "object"})).first_violation(&json!("é".repeat(9_999)));
    let expected = format!("\"{}… is not of type \"object\"", "é".repeat(199));
    assert_eq!(violation, Some(expected));
}

#[test]
fn an_invalid_schema_is_refused_with_the_place() {
    for (schema, expected) in [
        (
            json!({"properties": {"a": {"type": "text"}}}),
            "/properties/a/type: \"text\" is not a type",
        ),
        (json!({"items": 7}), "/items: must be a schema: an object, true or false"),
        (json!({"anyOf": {}}), "/anyOf: must be a list"),
        (json!({"required": "a"}), "/required: \"a\" is not a list of names"),
        (json!({"minLength": 0.5}), "/minLength: must be a whole number, 0 or more"),
        (json!({"$ref": "#/$defs/a"}), "/$ref: refers to \"#/$defs/a\", which does not exist"),
        (
            json!({"$ref": "https://a.example/b"}),
            "/$ref: refers to \"https://a.example/b\", which is not in the schema",
        ),
        (json!([]), "a schema is an object, true or false"),
    ] {
        let error = ParsedSchema::parse(schema).unwrap_err().to_string();
        assert!(error.starts_with(&format!("not a valid JSON schema: {expected}")), "{error}");
    }
}

#[test]
fn a_schema_can_refer_to_that_of_json_schema() {
    for version in
        ["http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"]
    {
        let schema = parse(json!({"properties": {"schema": {"$ref": version}}}));
        assert_eq!(schema.first_violation(&json!({"schema": {"type": "object"}})), None);
        assert!(schema.first_violation(&json!({"schema": 7})).is_some());
    }
}

#[test]
fn a_check_ends_though_its_references_multiply() {
    let by_pointer = |nth: usize| {
        let before = json!({"$ref": format!("#/$defs/d{}", nth - 1)});
        json!({"allOf": [before, before]})
    };
    let by_not = |nth: usize| {
        let before = json!({"$ref": format!("#/$defs/d{}", nth - 1)});
        json!({"not": {"anyOf": [{"not": before}, {"not": before}]}})
    };
    for schema in [bomb(json!({"type": "integer"}), by_pointer), bomb(json!({}), by_not)] {
        let schema = parse(schema);
        assert_eq!(schema.first_violation(&json!(7)).as_deref(), Some(TOO_EXPENSIVE));
        // The results for objects and lists are remembered.
        assert_ne!(schema.first_violation(&json!([])).as_deref(), Some(TOO_EXPENSIVE));
    }
    // References back to the same value say nothing about it, so that each order of them is tried.
    let all_but = |nth: usize| {
        let others = (0..12).filter(|other| *other != nth);
        let others = others.map(|other| json!({"$ref": format!("#/$defs/d{other}")}));
        (format!("d{nth}"), json!({"allOf": others.collect::<Vec<_>>()}))
    };
    let definitions: Map<String, Value> = (0..12).map(all_but).collect();
    let schema = parse(json!({"$defs": definitions, "$ref": "#/$defs/d0"}));
    assert_eq!(schema.first_violation(&json!({})).as_deref(), Some(TOO_EXPENSIVE));
}

#[test]
fn a_check_ends_though_values_and_schemas_multiply() {
    let texts = vec!["a".repeat(60_000); 100];
    for (keywords, value) in [
        (json!({"items": {"type": "integer"}}), json!(vec![7; 10_000])),
        (json!({"uniqueItems": true}), json!((0..10_000).collect::<Vec<_>>())),
        (json!({"items": {"minLength": 1}}), json!(texts)),
        (json!({"items": {"pattern": "^a*$"}}), json!(texts)),
        (json!({"items": {"enum": vec![json!(1); 100]}}), json!(vec![1; 1_000])),
    ] {
        let schema = parse(json!({"allOf": vec![keywords.clone(); 1_000]}));
        let violation = schema.first_violation(&value);
        assert_eq!(violation.as_deref(), Some(TOO_EXPENSIVE), "{keywords}");
        assert_eq!(parse(keywords).first_violation(&json!([])), None);
    }
    // The first 499 leave fewer steps than the last one takes.
    let schema = parse(json!({"allOf": vec![json!({"uniqueItems": true}); 500]}));
    let violation = schema.first_violation(&json!((0..10_000).collect::<Vec<_>>()));
    assert_eq!(violation.as_deref(), Some(TOO_EXPENSIVE));
    // A match of this expression takes steps that grow with the power of the length.
    let schema = parse(json!({"pattern": r"^(?=(a+)+b)"}));
    assert_eq!(schema.first_violation(&json!("aab")), None);
    let violation =
        parse(json!({"pattern": r"(x+x+)+(?=y)\1"})).first_violation(&json!("x".repeat(50)));
    assert_eq!(violation.as_deref(), Some(TOO_EXPENSIVE));
}

#[test]
fn the_deepest_check_leaves_room_on_the_stack() {
    let deep = |levels: usize, keyword: &str| {
        (0..levels).fold(json!({"type": "string"}), |inner, _| json!({keyword: inner}))
    };
    for keyword in ["not", "items", "if", "additionalProperties"] {
        let schema = parse(deep(498, keyword));
        let nested_lists = (0..600).fold(json!([]), |inner, _| json!([inner]));
        let nested_objects = nested("a", 600, json!({}));
        for value in [json!("a"), json!(7), nested_lists, nested_objects] {
            assert_ne!(schema.first_violation(&value).as_deref(), Some(TOO_EXPENSIVE), "{keyword}");
        }
    }
    let schema = parse(deep(1_000, "not"));
    assert_eq!(schema.first_violation(&json!(7)).as_deref(), Some(TOO_EXPENSIVE));
    let child = json!({"$ref": "#/$defs/n"});
    for keyword in ["anyOf", "oneOf", "allOf", "prefixItems"] {
        let schema = recursive(&json!({keyword: [{"items": child, "properties": {"a": child}}]}));
        for name in ["a", "b"] {
            let violation = schema.first_violation(&nested(name, 120, json!(7)));
            assert_eq!(violation, None, "{keyword}");
        }
    }
    let link = |nth: usize| (format!("d{nth}"), json!({"$ref": format!("#/$defs/d{}", nth + 1)}));
    let mut links: Map<String, Value> = (0..3_000).map(link).collect();
    links.insert("d3000".to_owned(), json!({}));
    let chain = parse(json!({"$defs": links, "$ref": "#/$defs/d0"}));
    assert_eq!(chain.first_violation(&json!({})).as_deref(), Some(TOO_EXPENSIVE));
}

#[test]
fn the_place_is_not_searched_for_too_long() {
    let alternatives = vec![json!({"type": "string"}); 1_000];
    let schema = parse(json!({"anyOf": [{"items": {"anyOf": alternatives}}]}));
    let mut values = vec![json!("a"); 1_000_000];
    values.push(json!(7));
    assert_eq!(schema.first_violation(&json!(values)).as_deref(), Some(NOT_LOCATED));
    let violation = schema.first_violation(&json!(["a", 7])).unwrap();
    assert!(violation.contains("/1: 7 matches none of the schemas of anyOf"), "{violation}");
}

#[test]
fn regular_expressions_that_need_much_memory_are_not_checked() {
    let text = |pattern: String| json!({"type": "string", "pattern": pattern});
    for accepted in [r"^[\w.-]{1,64}$", "^[\t\n\r -~]{1,4096}$", r"^\p{L}{1,64}$"] {
        assert_eq!(unchecked(text(accepted.to_owned())), "", "{accepted}");
    }
    assert!(unchecked(text(r"\p{L}{4000}7".to_owned())).contains("needs too much memory"));
    let member = |nth: usize| (format!("m{nth}"), text(format!("a{nth}")));
    let members: Map<String, Value> = (0..201).map(member).collect();
    let error = unchecked(json!({"properties": members}));
    assert!(error.contains("more than 200 regular expressions"), "{error}");
    // Together they need too much, though each of them is small enough.
    for pattern in [r"\p{L}{16}".to_owned(), "(?=a)".repeat(300), "(?i)[\\W\\S]".repeat(200)] {
        let member = |nth: usize| (format!("m{nth}"), text(format!("{nth}{pattern}")));
        let members: Map<String, Value> = (0..100).map(member).collect();
        let error = unchecked(json!({"properties": members}));
        assert!(error.contains("need too much memory"), "{error}");
    }
    // One with look-around has many parts, each of which is compiled. Escapes and classes are none.
    assert!(unchecked(text(r"(?=\p{L}x)".repeat(350))).contains("needs too much memory"));
    let tag = r"^(?!aws:)[\p{L}\p{Z}\p{N}_.:/=+\-@(|)]{1,40}x$".to_owned();
    assert_eq!(unchecked(text(tag)), "");
    assert!(unchecked(text("a".repeat(4_097))).contains("more than 4096 bytes"));
    assert_eq!(unchecked(text("a".repeat(4_096))), "");
}

#[test]
fn a_count_of_one_class_takes_no_memory() {
    for (pattern, character, least, most) in [
        ("^.{1,65535}$", "😀", 1, 65_535),
        (r"^[\s\S]{2,100000}$", "\n", 2, 100_000),
        (r"^[\p{L}\p{N} _-]{1,255}$", "é", 1, 255),
        (r"^\w{300}$", "a", 300, 300),
        (r"^\u00e9{3,7}$", "é", 3, 7),
        (r"^(?!aws:)[\p{L}\p{Z}\p{N}_.:/=+\-@]{1,128}$", "é", 1, 128),
        (r"^(?!aws:).{1,128}$", "é", 1, 128),
    ] {
        let schema = parse(json!({"pattern": pattern}));
        let matches =
            |length: usize| schema.first_violation(&json!(character.repeat(length))).is_none();
        assert!(matches(least) && matches(most), "{pattern}");
        assert!(!matches(least - 1) && !matches(most + 1), "{pattern}");
    }
    // Other characters than that of the class, and expressions without one of the anchors.
    for (pattern, matching, others) in [
        (r"^[\d-]{1,70000}$", "1-2", "1a2"),
        (r"^\d{2,}$", "123", "1"),
        (r"^\d{2,70000}", "12a", "1a2"),
        (r"\d{2,70000}$", "a12", "1a2"),
        (r"\d{2,70000}", "a12a", "1a2"),
        (r"^(?!12)\d{2,70000}$", "13", "12"),
        (r"^(?=(\d))\1\d{1,2}$", "111", "1111"),
        (r"^\d{1,2}$|^a{1,2}$", "aa", "aaa"),
    ] {
        let schema = parse(json!({"pattern": pattern}));
        assert_eq!(schema.first_violation(&json!(matching)), None, "{pattern}");
        assert!(schema.first_violation(&json!(others)).is_some(), "{pattern}");
    }
}

#[test]
fn regular_expressions_that_repeat_too_much_are_not_checked() {
    for pattern in [
        "((?=a)){9999999999999}",
        "((?=a)){99999999999999999999999999999}",
        "(((?=a)){1000}){1000}",
        "((?!a)|){9,100001}",
        r"(a)((?=\1)){10001}",
        "(?:){4294967295}",
        "a{100001}",
        "((a{1000}){1000}){1000}",
    ] {
        let error = unchecked(json!({"pattern": pattern}));
        assert!(error.contains("repeat"), "{error}");
    }
    let many_groups = format!(r"{}\1", "(a)".repeat(51));
    assert!(unchecked(json!({"pattern": many_groups})).contains("too many groups"));
    assert_eq!(unchecked(json!({"pattern": "(a)".repeat(500)})), "");
    // Those in classes and escapes are no counts.
    for pattern in [r"^[{9999999}]$", r"\{9999999}", r"\x{2028}\p{L}", "(?=a)a{1,253}"] {
        assert_eq!(unchecked(json!({"pattern": pattern})), "", "{pattern}");
    }
    assert_ne!(unchecked(json!({"pattern": "(".repeat(2_000)})), "");
    assert_ne!(unchecked(json!({"pattern": "(?:".repeat(1_000) + &")".repeat(1_000)})), "");
}

#[test]
fn variable_look_behind_is_not_checked_or_right() {
    // The library has a feature for it, which other crates can switch on.
    for (pattern, matching, other) in
        [(r"(?<=a+)b", "aab", "b"), (r"(?<=^|a)b", "b", "cb"), ("(?<=ab|c)d", "abd", "bd")]
    {
        let schema = parse(json!({"pattern": pattern}));
        if schema.unchecked().is_empty() {
            assert_eq!(schema.first_violation(&json!(matching)), None, "{pattern}");
            assert!(schema.first_violation(&json!(other)).is_some(), "{pattern}");
        }
    }
}

#[test]
fn a_match_costs_the_text_times_the_expression() {
    let matched = |pattern: &str, length: usize| {
        steps(&json!({"pattern": pattern}), &json!("a".repeat(length)))
    };
    assert!(matched("^a+$", 1_000_000) < 500_000);
    assert!(matched(r"^[\w.-]{1,64}$", 64) < 200);
    assert!(matched("^(?!b)[a-z]{1,63}(?<!b)$", 63) < 2_000);
    assert!(matched(r"^(?=.*a)(?!.*\d).{8,}$", 100_000) < 500_000);
    assert!(matched("a.{2000}b", 10_000) > 100 * matched("a.{2}b", 10_000));
    // The library may build a state for each byte, which takes as long as several steps of other work.
    assert!(matched("[ab]*a[ab]{13}c", 10_000) > 7 * matched("[ab]*a[ab]{5}c", 10_000));
    // Also at the beginning of a text, before what is repeated without a limit.
    assert!(matched("^(?:a?){2000}x*", 2_000) > 3 * matched("^(?:a?){2000}x*", 500));
    assert!(matched("^(?:a?){2000}x*", 2_000) > 500_000);
    // Optional characters have more states.
    assert!(matched("a.{9,2000}b", 10_000) > matched("a.{2000}b", 10_000) * 3 / 2);
    // Each read by the backtracking engine is paid for, and a match ends when no steps are left.
    let nested = "^(?:(?=[ab]*a[ab]{13}c|)[ab])*$";
    assert!(matched(nested, 400) > 3 * matched(nested, 200));
    for (pattern, length) in [
        ("a.{2000}b", 30_000),
        ("^(?=[ab]*a[ab]{20}c)", 3_000_000),
        (nested, 100_000),
        (r"^(?:(?=.*b)|a)*$", 1_000_000),
        (r"(a+a+)+(?=y)\1", 1_000),
    ] {
        let schema = parse(json!({"pattern": pattern}));
        let violation = schema.first_violation(&json!("a".repeat(length)));
        assert_eq!(violation.as_deref(), Some(TOO_EXPENSIVE), "{pattern}");
    }
    let schema = parse(json!({"pattern": nested}));
    for (length, ends) in [(100_000, true), (10, false), (100_000, true), (10, false)] {
        let violation = schema.first_violation(&json!("a".repeat(length)));
        assert_eq!(violation.is_some(), ends);
    }
    // A search can go to the end of the text, from each place.
    let bits: String =
        (0..3_000_u32).map(|nth| if nth.count_ones() % 2 == 0 { 'a' } else { 'b' }).collect();
    let schema = parse(json!({"pattern": "^(?:(?=[ab]*a[ab]{20}c|)[ab])*$"}));
    assert_eq!(schema.first_violation(&json!(bits)).as_deref(), Some(TOO_EXPENSIVE));
    // A read costs more if the engine executes more instructions, or saves more positions, before the next read.
    let spins = |between: &str| matched(&format!("^(?:{between}(?:(?=)|){{8}}(?!)|(?=a)a)"), 1);
    assert!(spins("((?=)){900}") > 3 * spins(""));
    assert!(spins(&"(?=)".repeat(200)) > 20 * spins(""));
    // Each step back is paid for, also of what fails before it looks at the text.
    for fails in ["(?!)", "(?<=x)", "(?!|a)", "(?<!)", r"(?:(b)|[])\1", "[]", "(?!(?:))", "xx"] {
        let pattern = format!("^(?:(?:(?=)|){{11}}{fails}|(?=a)a)");
        assert!((2_048..50_000).contains(&matched(&pattern, 1)), "{pattern}");
    }
}

#[test]
fn ordinary_values_are_not_too_expensive() {
    let hosts: Vec<_> =
        (0..2_000).map(|nth| format!("host-{nth}.some-region.example.org")).collect();
    for (pattern, value) in [
        (
            r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
            json!(["A".repeat(1 << 20)]),
        ),
        (
            r"^data:image/(?:png|jpe?g|gif|webp|svg\+xml);base64,[A-Za-z0-9+/]+={0,2}$",
            json!([format!("data:image/svg+xml;base64,{}", "A".repeat(1 << 20))]),
        ),
        (r"^(?!-)[A-Za-z0-9-]{1,63}(?<!-)(\.[A-Za-z0-9-]{1,63})*$", json!(hosts)),
        (
            r"^(?=.{1,253}$)(?!-)[A-Za-z0-9-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*$",
            json!(hosts),
        ),
        (r"^[\s\S]{1,4096}$", json!(vec!["a".repeat(1_000); 100])),
        (r"^[\w.-]{1,64}$", json!(vec!["some-tag.name"; 50_000])),
        (r"^(?!aws:).{1,128}$", json!(vec!["a".repeat(128); 2_000])),
        (r"^(?:(?!<script)[\s\S])*$", json!(["a".repeat(8_000)])),
        (r"foo(?!bar)|a$", json!(["a".repeat(8_000)])),
        (r#"^(["'])[^"']*\1$"#, json!(vec!["'some text'"; 20_000])),
        (r"^(?=.*[a-z])(?=.*[A-Z])(?=.*\d)[a-zA-Z\d]{8,}$", json!(vec!["abcDEF123"; 20_000])),
    ] {
        let schema = parse(json!({"items": {"pattern": pattern}}));
        assert_eq!(schema.first_violation(&value), None, "{pattern}");
    }
}

#[test]
fn names_and_constants_cost_their_bytes() {
    let long = "n".repeat(64_000);
    let object = json!({long.clone(): 1});
    for schema in [
        json!({"properties": {"a": true}}),
        json!({"required": [long]}),
        json!({"propertyNames": true}),
        json!({"const": object}),
        json!({"enum": [object]}),
        json!({"uniqueItems": true, "items": true}),
    ] {
        let value = if schema["uniqueItems"] == true { json!([object]) } else { object.clone() };
        let steps = steps(&schema, &value);
        assert!((1_000..10_000).contains(&steps), "{steps} {schema}");
    }
    // A comparison ends with the smaller of the two.
    assert!(steps(&json!({"enum": [object, "a", long]}), &json!("b")) < 10);
}

#[test]
fn repeated_types_and_names_are_checked_once() {
    let schema = parse(json!({"type": vec!["integer"; 100_000]}));
    let violation = schema.first_violation(&json!("a"));
    assert_eq!(violation.as_deref(), Some("\"a\" is not of type \"integer\""));
    let once = steps(&json!({"required": ["a"]}), &json!({"a": 1}));
    assert_eq!(steps(&json!({"required": vec!["a"; 1_000]}), &json!({"a": 1})), once);
}

#[test]
fn multiples_of_numbers_with_large_exponents() {
    for (number, of, expected) in [
        (json!(1e300), json!(3e-300), false),
        (json!(3e300), json!(3e-300), true),
        (json!(-6e300), json!(4), true),
        (json!(1e300), json!(7), false),
        (json!(1e-300), json!(1e300), false),
        (json!(0), json!(1e300), true),
        (json!(0.0), json!(7e-300), true),
        (json!(u64::MAX), json!(5), true),
        (json!(1e308), json!(u64::MAX), false),
        (json!(-7.5), json!(2.5), true),
        (json!(1e20), json!(1e18), true),
        (json!(100), json!(1e20), false),
    ] {
        let violation = parse(json!({"multipleOf": of})).first_violation(&number);
        assert_eq!(violation.is_none(), expected, "{number} {of}");
    }
}

#[test]
fn unequal_values_have_different_hashes() {
    use std::collections::HashSet;
    use std::hash::{DefaultHasher, Hash, Hasher};

    use super::numbers::JsonValue;

    let parts = [json!(null), json!([]), json!({}), json!(0), json!(false), json!("")];
    let pairs = |first: &Value| parts.iter().map(|second| json!([first, second])).collect();
    let values: Vec<Value> =
        parts.iter().flat_map(|first| -> Vec<Value> { pairs(first) }).collect();
    let hash = |value: &Value| {
        let mut hasher = DefaultHasher::new();
        JsonValue(value).hash(&mut hasher);
        hasher.finish()
    };
    assert_eq!(values.iter().map(hash).collect::<HashSet<_>>().len(), values.len());
    assert_eq!(hash(&json!([1, -0.0])), hash(&json!([1.0, 0])));
}

#[test]
fn descriptions_are_short() {
    let long = "n".repeat(100_000);
    for (schema, value) in [
        (json!({"type": "object"}), json!([[long], {long.clone(): 1}])),
        (json!({"required": [long]}), json!({})),
        (json!({"additionalProperties": false}), json!({long.clone(): 1})),
        (json!({"properties": {long.clone(): false}}), json!({long.clone(): 1})),
        (json!({"pattern": "a".repeat(4_000)}), json!("b")),
        (json!({"const": long}), json!(1)),
        (json!({"anyOf": [{"const": {long.clone(): 1}}]}), json!({long.clone(): 2})),
    ] {
        let violation = parse(schema).first_violation(&value).unwrap();
        assert!(violation.chars().count() < 700, "{violation}");
    }
    let texts = json!([["a", "b"], {"c": [1, null, true, 1.5]}, "\"", "", [], {}]).to_string();
    let schema = parse(json!({"type": "null"}));
    let violation = schema.first_violation(&serde_json::from_str(&texts).unwrap()).unwrap();
    assert!(violation.starts_with(&format!("{texts} is not of type")), "{violation}");
    for schema in [
        json!({"type": long}),
        json!({"required": [1, long]}),
        json!({"$ref": long}),
        json!({"$ref": format!("#/{long}")}),
        json!({"properties": {long: {"type": "text"}}}),
    ] {
        assert!(problem(schema).chars().count() < 1_500);
    }
    // Reasons in reasons, three at each level.
    let child = json!({"properties": {"a": {"$ref": "#/$defs/n"}}, "type": "object"});
    let node = json!({"anyOf": [child, {"allOf": [child]}, {"allOf": [child, true]}, child]});
    for levels in [1, 6, 60] {
        let violation = recursive(&node).first_violation(&nested("a", levels, json!(7))).unwrap();
        assert!(violation.chars().count() < 2_500, "{violation}");
    }
}

#[test]
fn the_rule_of_a_violation_is_the_violated_keyword() {
    for (schema, value, rule) in [
        (
            json!({"properties": {"a/b": {"maximum": 1}}}),
            json!({"a/b": 2}),
            "/properties/a~1b/maximum",
        ),
        (json!({"required": ["a"]}), json!({}), "/required"),
        (json!({"prefixItems": [true], "items": false}), json!([1, 2]), "/items"),
        (json!({"items": [true], "additionalItems": false}), json!([1, 2]), "/additionalItems"),
    ] {
        let compiled = CompiledSchema::compile(&schema, &[]).unwrap();
        assert_eq!(compiled.first_violation(&value).unwrap().rule, rule, "{schema}");
    }
}

#[test]
fn only_as_many_alternatives_are_described_as_are_shown() {
    let schema = parse(json!({"anyOf": vec![json!({"const": "a"}); 50_000]}));
    let violation = schema.first_violation(&json!("b")).unwrap();
    assert!(violation.ends_with("\"a\" was expected; …)"), "{violation}");
}

#[test]
fn a_part_of_the_schema_of_json_schema_accepts_every_value() {
    for reference in [
        "http://json-schema.org/draft-07/schema#/definitions/nonNegativeInteger",
        "https://json-schema.org/draft/2020-12/meta/validation#/$defs/stringArray",
    ] {
        let schema = parse(json!({"items": {"$ref": reference}}));
        assert_eq!(schema.first_violation(&json!([1, ["a"], {}])), None, "{reference}");
    }
}

#[test]
fn counts_that_do_not_fit_are_the_largest() {
    for keyword in ["maxLength", "maxItems", "maxProperties"] {
        let schema = parse(json!({keyword: 1e30}));
        for value in [json!("a"), json!([1]), json!({"a": 1})] {
            assert_eq!(schema.first_violation(&value), None, "{keyword}");
        }
    }
    for count in [json!(1e30), json!(1e300), json!(18_446_744_073_709_551_616_f64)] {
        assert!(parse(json!({"minLength": count})).first_violation(&json!("a")).is_some());
    }
    assert!(problem(json!({"maxLength": -1e30})).contains("whole number, 0 or more"));
    assert!(problem(json!({"maxLength": -1e300})).contains("whole number, 0 or more"));
}

#[test]
fn long_schemas_are_accepted() {
    let reference = json!({"$ref": "#/$defs/text"});
    let members = (0..5_000).map(|nth| (format!("m{nth}"), reference.clone()));
    let members: Map<String, Value> = members.collect();
    let long = parse(json!({"properties": members, "$defs": {"text": {"type": "string"}}}));
    let violation = long.first_violation(&json!({"m1": "a", "m7": 7, "m8": 8}));
    assert_eq!(violation.as_deref(), Some("/m7: 7 is not of type \"string\""));
    let too_long = json!({"anyOf": vec![json!({}); 100_000]});
    let error = ParsedSchema::parse(too_long).unwrap_err().to_string();
    assert!(error.contains("more than 100000 schemas"), "{error}");
}

#[test]
fn ordinary_recursive_schemas_are_checked_to_the_end() {
    let child = json!({"$ref": "#/$defs/n"});
    let children = json!({"type": "array", "items": child});
    let text = json!({"type": "string"});
    let tree = json!({"type": "object", "properties": {"name": text, "children": children}});
    let value = (0..20).fold(json!({"name": 7}), |inner, _| json!({"children": [{}, inner]}));
    let violation = recursive(&tree).first_violation(&value).unwrap();
    assert!(violation.ends_with("/1/name: 7 is not of type \"string\""), "{violation}");
    // `Option<Box<T>>` as `schemars` derives it.
    let child = json!({"anyOf": [child, {"type": "null"}]});
    let properties = json!({"left": child, "right": child});
    let binary = recursive(&json!({"type": "object", "properties": properties}));
    let full = (0..8).fold(json!({}), |inner, _| json!({"left": inner, "right": inner}));
    assert_eq!(binary.first_violation(&full), None);
    let violation = binary.first_violation(&json!({"left": full, "right": 7})).unwrap();
    assert!(violation.starts_with("/right: 7 matches none of the schemas of anyOf"), "{violation}");
    let violation = binary.first_violation(&nested("left", 4, json!(7))).unwrap();
    assert!(violation.contains("7 is not of type \"object\""), "{violation}");
    let violation = binary.first_violation(&nested("left", 40, json!(7))).unwrap();
    assert!(violation.chars().count() < 1_000, "{violation}");
    // An enumeration with variants of one and of two values.
    let variant = |name: &str, content: Value| {
        json!({
            "type": "object", "properties": {name: content}, "required": [name],
            "additionalProperties": false,
        })
    };
    let child = json!({"$ref": "#/$defs/n"});
    let two = json!({"type": "array", "prefixItems": [child, child], "minItems": 2});
    let number = variant("Number", json!({"type": "number"}));
    let node = json!({"oneOf": [number, variant("Not", child), variant("And", two)]});
    let expression = recursive(&node);
    let value = (0..8).fold(json!({"Number": 1}), |inner, _| json!({"And": [inner, inner]}));
    assert_eq!(expression.first_violation(&value), None);
    assert_eq!(expression.first_violation(&nested("Not", 40, value)), None);
    let violation = expression.first_violation(&nested("Not", 40, json!(7))).unwrap();
    assert!(violation.starts_with("{\"Not\":"), "{violation}");
}

#[test]
fn the_results_of_recursive_alternatives_are_remembered() {
    // Without that, each level would take eight times as long: every alternative checks `left` first.
    let child = json!({"$ref": "#/$defs/n"});
    let operation = |nth: usize| {
        let properties = json!({"left": child, "op": {"const": nth}});
        json!({"type": "object", "properties": properties, "required": ["op"]})
    };
    let operations: Vec<Value> = (0..8).map(operation).collect();
    let schema = recursive(&json!({"oneOf": operations}));
    let nested = |last: usize| {
        let first = json!({"op": last});
        (0..40).fold(first, |inner, _| json!({"left": inner, "op": 7}))
    };
    assert_eq!(schema.first_violation(&nested(3)), None);
    let violation = schema.first_violation(&nested(9)).unwrap();
    assert_ne!(violation, TOO_EXPENSIVE);
}

#[test]
fn results_beside_references_back_are_remembered() {
    // Each node refers back to itself for the same value, which says nothing about other values.
    let child = json!({"$ref": "#/$defs/n"});
    let left = json!({"properties": {"left": child}});
    let node = json!({"allOf": [child, left, left], "type": "object"});
    let schema = json!({"$defs": {"n": node}, "$ref": "#/$defs/n"});
    let short = steps(&schema, &nested("left", 20, json!({})));
    let long = steps(&schema, &nested("left", 40, json!({})));
    assert!(long < 3 * short, "{short} {long}");
    // Results that depend on a reference back are not remembered.
    let schema = parse(json!({
        "$defs": {
            "a": {"anyOf": [{"$ref": "#/$defs/b"}, {"required": ["a"]}]},
            "b": {"allOf": [{"$ref": "#/$defs/a"}, {"required": ["b"]}]},
        },
        "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
    }));
    assert_eq!(schema.first_violation(&json!({"a": 1, "b": 1})), None);
    assert!(schema.first_violation(&json!({"a": 1})).is_some());
    assert!(schema.first_violation(&json!({})).is_some());
}

#[test]
fn a_schema_can_refer_to_itself_for_the_same_value() {
    // A base that lists its subtypes, each of which refers to the base.
    let subtype = |name: &str| {
        let own = json!({"properties": {"kind": {"const": name}}, "required": ["kind"]});
        json!({"allOf": [{"$ref": "#/$defs/n"}, own]})
    };
    let pets = recursive(&json!({"oneOf": [subtype("cat"), subtype("dog")]}));
    assert_eq!(pets.first_violation(&json!({"kind": "cat"})), None);
    assert!(pets.first_violation(&json!({"kind": "cow"})).is_some());
    let own = parse(json!({"type": "object", "$ref": "#"}));
    assert_eq!(own.first_violation(&json!({})), None);
    let violation = own.first_violation(&json!(7));
    assert_eq!(violation.as_deref(), Some("7 is not of type \"object\""));
}

#[test]
fn what_is_not_checked_is_named_and_refuses_no_value() {
    let by_keyword = |keyword: &str| unchecked(json!({"items": {keyword: {"a": []}}}));
    for keyword in ["contains", "dependentRequired", "unevaluatedProperties", "$dynamicRef"] {
        let expected = format!("/items/{keyword}: the host does not check this keyword");
        assert_eq!(by_keyword(keyword), expected);
    }
    assert_eq!(
        unchecked(json!({"unevaluatedProperties": true, "properties": {"contains": {}}})),
        ""
    );
    let anchor = json!({"$ref": "#a", "type": "integer", "$defs": {"a": {"$anchor": "a"}}});
    assert_eq!(unchecked(anchor.clone()), "/$ref: the host does not follow references to anchors");
    assert!(parse(anchor).first_violation(&json!("a")).is_some());
    assert!(
        unchecked(json!({"pattern": "("})).starts_with("/pattern: \"(\" is not a regular expr")
    );
    let many = json!({"anyOf": vec![json!({"contains": {}}); 1_000]});
    assert_eq!(parse(many).unchecked().len(), 10);
    // Each of these would refuse more if a part of it allowed more.
    let part = json!({"pattern": "("});
    for schema in [
        json!({"not": part}),
        json!({"oneOf": [part, {"minLength": 1}]}),
        json!({"if": part, "then": false}),
        json!({"patternProperties": {"(": {}}, "additionalProperties": false}),
    ] {
        for value in [json!("a"), json!({"a": 1})] {
            assert_eq!(parse(schema.clone()).first_violation(&value), None, "{schema}");
        }
    }
}

#[test]
fn a_reference_can_begin_with_the_identifier_of_the_document() {
    let text = json!({"type": "string"});
    for id in ["http://a/b", "http://a/b#", "urn:example:a"] {
        let reference = format!("{}#/$defs/text", id.trim_end_matches('#'));
        let schema = parse(json!({"$id": id, "$ref": reference, "$defs": {"text": text}}));
        assert_eq!(schema.first_violation(&json!("a")), None);
        assert!(schema.first_violation(&json!(1)).is_some());
    }
}
