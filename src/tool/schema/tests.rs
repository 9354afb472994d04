//! Errors of values, and hostile schemas and values.

use serde_json::{Map, Value, json};

use super::InputSchema;
use super::violation::{NOT_LOCATED, TOO_EXPENSIVE};

fn parse(schema: Value) -> InputSchema {
    InputSchema::parse(schema).unwrap()
}

/// Returns a schema whose definition `n` refers to itself.
fn recursive(node: &Value) -> InputSchema {
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
        (
            json!({"dependentRequired": {"a": ["b"]}}),
            json!({"a": 1}),
            "\"b\" is a required property",
        ),
        (json!({"pattern": "^a"}), json!("b"), "\"b\" does not match \"^a\""),
        (json!({"uniqueItems": true}), json!([1, 1.0]), "[1,1.0] has equal items"),
        (json!({"additionalProperties": false}), json!({"a": 1}), "\"a\" is not a known property"),
        (json!({"unevaluatedProperties": false}), json!({"a": 1}), "\"a\" is not a known property"),
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
        (
            json!({"contains": {"type": "null"}}),
            json!([1]),
            "[1] has less than 1 items that match contains",
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
        (json!({"pattern": "("}), "/pattern: \"(\" is not a regular expression"),
        (json!({"$ref": "#/$defs/a"}), "/$ref: refers to \"#/$defs/a\", which does not exist"),
        (
            json!({"$ref": "https://a.example/b"}),
            "/$ref: refers to \"https://a.example/b\", which is not in the schema",
        ),
        (json!([]), "a schema is an object, true or false"),
    ] {
        let error = InputSchema::parse(schema).unwrap_err().to_string();
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
    let by_anchor = |nth: usize| {
        let before = json!({"$ref": format!("#d{}", nth - 1)});
        json!({"$anchor": format!("d{nth}"), "not": {"anyOf": [{"not": before}, {"not": before}]}})
    };
    let by_id = |nth: usize| {
        let before = json!({"$ref": format!("d{}", nth - 1)});
        json!({"$id": format!("http://a/d{nth}"), "allOf": [before, before]})
    };
    for schema in [
        bomb(json!({"type": "integer"}), by_pointer),
        bomb(json!({"$anchor": "d0"}), by_anchor),
        bomb(json!({"$id": "http://a/d0"}), by_id),
    ] {
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
    // Documents that refer to each other are compiled once.
    let document = |nth: usize| {
        let other = |other: usize| (format!("p{other}"), json!({"$ref": format!("d{other}")}));
        let others: Map<String, Value> = (0..10).filter(|o| *o != nth).map(other).collect();
        (format!("d{nth}"), json!({"$id": format!("http://a/d{nth}"), "properties": others}))
    };
    let documents: Map<String, Value> = (0..10).map(document).collect();
    let schema = parse(json!({"$defs": documents, "$ref": "http://a/d0"}));
    assert_eq!(schema.first_violation(&json!({"p1": {"p2": {}}})), None);
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
    for keyword in ["not", "items", "if", "contains", "additionalProperties", "unevaluatedItems"] {
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
fn regular_expressions_that_need_much_memory_are_refused() {
    let text = |pattern: String| json!({"type": "string", "pattern": pattern});
    assert!(InputSchema::parse(text(r"^[\w.-]{1,64}$".to_owned())).is_ok());
    assert!(InputSchema::parse(text(r"\p{L}{400}7".to_owned())).is_err());
    let member = |nth: usize| (format!("m{nth}"), text(format!("a{nth}")));
    let members: Map<String, Value> = (0..201).map(member).collect();
    let error = InputSchema::parse(json!({"properties": members})).unwrap_err().to_string();
    assert!(error.contains("more than 200 regular expressions"), "{error}");
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
    let error = InputSchema::parse(too_long).unwrap_err().to_string();
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
    let violation = binary.first_violation(&nested("left", 40, json!(7))).unwrap();
    assert!(violation.contains("7 is not of type \"object\""), "{violation}");
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
