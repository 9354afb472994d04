//! Tests of the import as a whole.

use serde_json::{Value, json};

use super::*;

/// Imports a document with one operation, `POST /a/{id}`.
fn import_one(operation: &Value, document: &Value) -> String {
    let mut root = json!({
        "openapi": "3.1.0", "info": {"title": "T"}, "servers": [{"url": "https://a.example/v1/"}],
        "paths": {"/a/{id}": {
            "parameters": [{"in": "path", "name": "id", "required": true, "schema": {"type": "string"}}],
            "post": operation,
        }},
    });
    for (key, value) in document.as_object().unwrap() {
        root[key] = value.clone();
    }
    import(&root.to_string(), &OperationFilter::default()).unwrap()
}

#[test]
fn the_table_of_an_operation() {
    let operation = json!({
        "operationId": "change", "summary": " Changes\n\u{202e}it. ", "tags": ["a"],
        "requestBody": {"content": {"application/json": {"schema": {
            "type": "object", "required": ["name"],
            "properties": {"name": {"type": "string"}, "size": {"type": "integer", "default": 1}},
        }}}},
        "responses": {"200": {}, "201": {}, "default": {}, "404": {}},
    });
    let expected = r##"# Tools of "T", written by `callsheet tools import`.
# Read them, and delete what the agent does not need: each tool costs tokens in every request.

# POST /a/{id}
[tools.change]
kind = "http"
description = "Changes \\u{202e}it."
method = "POST"
url = "https://a.example/v1/a/{id}"
ok_status = [200, 201]

[tools.change.input_schema]
type = "object"
required = ["id", "name"]
additionalProperties = false
properties.id = { type = "string" }
properties.name = { type = "string" }
properties.size = { type = "integer", description = "Default: 1." }

# 1 tool written, 0 left out
"##;
    assert_eq!(import_one(&operation, &json!({})), expected);
}

#[test]
fn bodies_are_arguments_of_their_own_or_one_argument() {
    let body = |media: &str, schema: Value| {
        import_one(
            &json!({"requestBody": {"required": true, "content": {media: {"schema": schema}}}}),
            &json!({}),
        )
    };
    let json = "application/json";
    let object =
        |name: &str| json!({"type": "object", "properties": {name: {}}, "required": [name]});
    let whole = "headers = { content-type = \"application/json\" }\nbody = \"text:body\"\n";
    assert!(
        body(json, object("name"))
            .contains("\nproperties.id = { type = \"string\" }\nproperties.name = {}\n")
    );
    // A property has the name of a parameter, or one that not all providers accept.
    for schema in [object("id"), object("a b"), json!({"type": "array"}), json!({})] {
        let text = body(json, schema.clone());
        assert!(
            text.contains(whole) && text.contains("\nproperties.body = { type = "),
            "{schema}: {text}"
        );
    }
    assert!(
        body("application/vnd.x+json; v=1", object("name"))
            .contains("{ content-type = \"application/vnd.x+json\" }")
    );
    assert!(
        body("text/csv", json!({}))
            .contains("{ content-type = \"text/csv\" }\nbody = \"text:body\"\n")
    );
    for (media, schema, reason) in [
        (json, json!({"type": "string"}), "its body is JSON that can be a single text"),
        ("text/xml", json!({}), "its body is text/xml, which kind = \"http\" cannot send"),
        (
            "application/x-www-form-urlencoded",
            json!({}),
            "its body is application/x-www-form-urlencoded, which",
        ),
    ] {
        let text = body(media, schema);
        assert!(
            text.contains(&format!("# left out: post_a_id (POST /a/{{id}}): {reason}")),
            "{text}"
        );
    }
}

#[test]
fn parameters_have_the_forms_that_a_query_can_send() {
    let parameter = |extra: Value| {
        let mut parameter =
            json!({"in": "query", "name": "a", "required": true, "schema": {"type": "array"}});
        for (key, value) in extra.as_object().unwrap() {
            parameter[key] = value.clone();
        }
        import_one(&json!({"parameters": [parameter]}), &json!({}))
    };
    let list = "properties.a = { type = \"array\" }";
    let text = "properties.a = { type = \"string\", description = \"Several values are separated by \\\",\\\".\" }";
    let object = json!({"type": "object", "required": ["x"], "properties": {"x": {}, "y": {}}});
    let style = "# left out: post_a_id (POST /a/{id}): the query parameter \"a\" has a style that kind = \"http\" does not write";
    for (extra, expected) in [
        (json!({}), list),
        (json!({"style": "form", "explode": false}), text),
        (json!({"style": "pipeDelimited"}), style),
        (
            json!({"schema": object}),
            "# left out: post_a_id (POST /a/{id}): the query parameter \"a\" is an object, or has",
        ),
        (
            json!({"schema": object, "required": false, "style": "deepObject"}),
            "# without the query parameter \"a\": it is an object, or has",
        ),
        (
            json!({"schema": null, "content": {"application/json": {"schema": object}}}),
            "query = { a = \"{a}\" }",
        ),
        (
            json!({"schema": null, "content": {"application/json; charset=utf-8": {"schema": {"properties": {"x": {}}}}}}),
            "query = { a = \"{a}\" }",
        ),
        (
            json!({"schema": null, "content": {"application/json": {"schema": {"type": "integer"}}}}),
            "properties.a = { type = \"integer\" }",
        ),
        (
            json!({"schema": null, "content": {"application/json": {"schema": {"type": "string"}}}}),
            "the query parameter \"a\" is an object, or has the form of a media type",
        ),
        (
            json!({"schema": null, "content": {"application/xml": {"schema": object}}}),
            "the query parameter \"a\" has a media type other than JSON",
        ),
        (json!({"in": "cookie"}), "the cookie parameter \"a\" cannot be sent by kind = \"http\""),
        (
            json!({"$ref": "other.json"}),
            "a parameter refers to \"other.json\", and other documents are not read",
        ),
        (
            json!({"in": "header", "name": "Authorization"}),
            "additionalProperties = false\nproperties.id = ",
        ),
        (json!({"in": "header", "schema": {"enum": [2]}}), "headers = { a = \"2\" }"),
        (
            json!({"in": "header", "required": false}),
            "# the header a is optional; no argument can fill it",
        ),
        (
            json!({"in": "header", "name": "X-Idempotency"}),
            "idempotency_header = \"X-Idempotency\"",
        ),
    ] {
        let printed = parameter(extra.clone());
        assert!(printed.contains(expected), "{extra}: {printed}");
    }
}

#[test]
fn servers_become_the_beginning_of_the_url() {
    let variables = json!({"r": {"default": "eu"}});
    for (operation, document, expected) in [
        (
            json!({}),
            json!({"servers": []}),
            "# the document has no server: replace server.invalid\n",
        ),
        (json!({}), json!({"servers": []}), "url = \"https://server.invalid/a/{id}\""),
        (
            json!({}),
            json!({"servers": [{"url": "v2/"}]}),
            "url = \"https://server.invalid/v2/a/{id}\"",
        ),
        (
            json!({}),
            json!({"servers": [{"url": "http://{r}.example", "variables": variables}]}),
            "url = \"http://eu.example/a/{id}\"",
        ),
        (
            json!({"servers": [{"url": "https://b.example/{x}"}]}),
            json!({}),
            "# fill in the variables of the server\n",
        ),
        (
            json!({"servers": [{"url": "/{x}/v1"}]}),
            json!({}),
            ": replace server.invalid, and fill in the variables of the server\n",
        ),
        (
            json!({"servers": [{"url": "https://u:p@b.example"}]}),
            json!({}),
            "url: must not contain a user name or password: use secret_headers",
        ),
    ] {
        let printed = import_one(&operation, &document);
        assert!(printed.contains(expected), "{expected}: {printed}");
    }
}

#[test]
fn at_most_16_references_are_followed_one_after_another() {
    let reference = |to: usize| json!({"$ref": format!("#/chain/{to}")});
    for (references, is_followed) in [(16, true), (17, false)] {
        let mut chain: Vec<Value> = (1..references).map(reference).collect();
        chain.push(json!("end"));
        let text = json!({"openapi": "3.1.0", "chain": chain}).to_string();
        let document = OpenApiDocument::parse(&text).unwrap();
        assert_eq!(document.resolve(&reference(0)).is_ok(), is_followed, "{references}");
    }
}

#[test]
fn security_schemes_become_secret_headers() {
    let with = |security: Value, schemes: Value| {
        let document = json!({"security": security, "components": {"securitySchemes": schemes}});
        import_one(&json!({}), &document)
    };
    let key = json!({"type": "apiKey", "in": "header", "name": "X-Key"});
    let query = json!({"type": "apiKey", "in": "query", "name": "k"});
    let bearer = json!({"type": "http", "scheme": "Bearer"});
    for (security, schemes, expected) in [
        (
            json!([{"k": []}]),
            json!({"k": key}),
            "\nsecret_headers = { X-Key = \"T_TOKEN\" }  # T_TOKEN: the key\n",
        ),
        (
            json!([{"q": []}, {"k": []}]),
            json!({"k": key, "q": query}),
            "\nsecret_headers = { X-Key = \"T_K_TOKEN\" }  # T_K_TOKEN: the key\n",
        ),
        (
            json!([{"k": [], "K": []}]),
            json!({"k": {"type": "apiKey", "in": "header", "name": "X-Other"}, "K": key}),
            "\nsecret_headers = { X-Key = \"T_K_TOKEN\", X-Other = \"T_K_2_TOKEN\" }",
        ),
        (
            json!([{"k_token": []}]),
            json!({"k": query, "k_token": key}),
            "\nsecret_headers = { X-Key = \"T_K_TOKEN_2_TOKEN\" }",
        ),
        (
            json!([{"b": []}, {}]),
            json!({"b": bearer}),
            "\nsecret_headers = { authorization = \"T_TOKEN\" }  # T_TOKEN: the whole value, \"Bearer \" included\n",
        ),
        (json!([{}, {"b": []}]), json!({"b": bearer}), "\nbody = \"none\"\n\n["),
        (
            json!([{"o": []}]),
            json!({"o": {"type": "oauth2"}}),
            "\nsecret_headers = { authorization = \"T_TOKEN\" }  # T_TOKEN: \"Bearer \" and a token of your own",
        ),
        (
            json!([{"q": []}]),
            json!({"q": query}),
            "# the security scheme q is none that a header can express\n",
        ),
        (
            json!([{"x": []}]),
            json!({}),
            "# the security scheme x is none that a header can express\n",
        ),
        (
            json!([{"a": [], "b": []}]),
            json!({"a": bearer, "b": bearer}),
            "# left out: post_a_id (POST /a/{id}): ",
        ),
    ] {
        let printed = with(security.clone(), schemes);
        assert!(printed.contains(expected), "{security}: {printed}");
    }
    // The host's own variables are not offered.
    let document = json!({
        "info": {"title": "Callsheet"}, "security": [{"b": []}],
        "components": {"securitySchemes": {"b": bearer}},
    });
    assert!(import_one(&json!({}), &document).contains("authorization = \"API_TOKEN\""));
}

#[test]
fn texts_of_the_document_stay_in_their_strings_and_comments() {
    let attack = "\"\"\"\n[tools.evil]\nkind = \"command\"\ncommand = [\"rm\"]\n\u{1b}[2J";
    let operation = json!({
        "operationId": attack, "summary": attack, "tags": [attack],
        "parameters": [
            {"in": "query", "name": attack, "description": attack, "schema": {"type": "string", "default": attack}},
            {"in": "header", "name": attack, "required": true},
            {"in": "header", "name": "h", "required": true, "schema": {"const": "fixed"}},
        ],
        "requestBody": {"content": {(format!("text/plain; {attack}")): {}}}, "security": [{attack: []}],
    });
    let printed = import_one(&operation, &json!({"info": {"title": attack}}));
    assert!(!printed.contains('\u{1b}'), "{printed}");
    let table: toml::Table = printed.parse().unwrap();
    assert_eq!(table["tools"].as_table().unwrap().len(), 1, "{printed}");
    assert!(
        table["tools"]
            .as_table()
            .unwrap()
            .values()
            .all(|tool| tool["kind"].as_str() == Some("http"))
    );
}
