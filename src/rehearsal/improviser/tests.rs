//! Prompts and the calls that follow from them.

use serde_json::{Value, json};

use super::improvise;
use super::prompt::{Prompt, ValueKind};
use callsheet_machines::contract::CompiledSchema;

fn tool(name: &str, properties: Value) -> Value {
    let required: Vec<&String> = properties.as_object().unwrap().keys().collect();
    json!({"type": "function", "function": {"name": name, "description": "",
        "parameters": {"type": "object", "properties": properties, "required": required}}})
}

fn text() -> Value {
    json!({"type": "string"})
}

fn tools() -> Value {
    json!([
        tool("clock", json!({"zone": text()})),
        tool("calculator", json!({"expression": text()})),
        tool("write_file", json!({"path": text(), "content": text()})),
        tool("read_file", json!({"path": text()})),
        tool("http_get", json!({"url": text()})),
        tool("get_weather", json!({"city": text()})),
        tool("count_words", json!({"text": text()})),
        tool("work", json!({"ms": {"type": "integer"}, "i": {"type": "integer", "maximum": 3}})),
        tool(
            "convert",
            json!({"amount": {"type": "number"}, "to": {"enum": ["EUR", "USD"]},
                "options": {"type": "object", "required": ["tags"], "properties":
                    {"tags": {"type": "array", "minItems": 2, "items": {"type": "string", "maxLength": 2}}}}})
        ),
    ])
}

fn request(prompt: &str) -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": prompt}], "tools": tools()})
}

/// Returns the calls as text: `clock {"zone":"UTC"}`.
fn calls(request: &Value) -> Vec<String> {
    let call = |call: super::Call| format!("{} {}", call.name, call.arguments);
    improvise(request).calls.into_iter().map(call).collect()
}

/// Appends the calls that the model makes to the history, with these results.
fn answer(request: &mut Value, results: &[&str]) {
    let made = improvise(request).calls;
    assert_eq!(made.len(), results.len());
    let messages = request["messages"].as_array_mut().unwrap();
    let round = messages.len();
    let calls: Vec<Value> = made
        .iter()
        .enumerate()
        .map(|(n, call)| {
            json!({"id": format!("c{round}_{n}"), "type": "function",
                "function": {"name": call.name, "arguments": call.arguments.to_string()}})
        })
        .collect();
    messages.push(json!({"role": "assistant", "content": null, "tool_calls": calls}));
    for (n, result) in results.iter().enumerate() {
        let id = format!("c{round}_{n}");
        messages.push(json!({"role": "tool", "tool_call_id": id, "content": result}));
    }
}

const PROMPT: &str = "What time is it in Tokyo and in Beijing, and what is 17 % of 2,350?";

const THREE: [&str; 3] = [
    r#"clock {"zone":"Asia/Tokyo"}"#,
    r#"clock {"zone":"Asia/Shanghai"}"#,
    r#"calculator {"expression":"17% of 2350"}"#,
];

#[test]
fn a_prompt_is_answered_with_the_calls_that_it_asks_for() {
    for (prompt, expected) in [
        (PROMPT, &THREE[..]),
        ("东京和北京现在几点？2350 的 17% 是多少？", &THREE),
        ("read notes.txt", &[r#"read_file {"path":"notes.txt"}"#]),
        (
            "Read ./notes.txt and (../a/b).",
            &[r#"read_file {"path":"./notes.txt"}"#, r#"read_file {"path":"../a/b"}"#],
        ),
        (
            "Fetch https://example.com/a.json.",
            &[r#"http_get {"url":"https://example.com/a.json"}"#],
        ),
        (
            "What's in a.txt and b.txt?",
            &[r#"read_file {"path":"a.txt"}"#, r#"read_file {"path":"b.txt"}"#],
        ),
        ("2+2?", &[r#"calculator {"expression":"2+2"}"#]),
        ("what is 6 * (7 - 2)?", &[r#"calculator {"expression":"6 * (7 - 2)"}"#]),
        ("what time is it?", &[r#"clock {"zone":"UTC"}"#]),
        ("time in Europe/Oslo please", &[r#"clock {"zone":"Europe/Oslo"}"#]),
        (
            "Weather in Paris, and what time is it in Berlin?",
            &[r#"get_weather {"city":"Paris"}"#, r#"clock {"zone":"Europe/Berlin"}"#],
        ),
        ("巴黎的天气怎么样", &[r#"get_weather {"city":"Paris"}"#]),
        ("Count the words of \"one two three\".", &[r#"count_words {"text":"one two three"}"#]),
        ("call work with ms=20, i=9", &[r#"work {"i":3,"ms":20}"#]),
        (
            r#"work {"i":0,"ms":5} and work {"i":1,"ms":5}"#,
            &[r#"work {"i":0,"ms":5}"#, r#"work {"i":1,"ms":5}"#],
        ),
        (
            "convert 100 to USD",
            &[r#"convert {"amount":100,"options":{"tags":["co","co"]},"to":"USD"}"#],
        ),
        ("Hello, who are you?", &[]),
        ("On 2024-05-01 at 12:30 I have 10 items.", &[]),
        ("I like to read books about Tokyo.", &[]),
        ("", &[]),
    ] {
        assert_eq!(calls(&request(prompt)), expected, "{prompt}");
    }
}

#[test]
fn the_final_answer_quotes_every_result_without_the_notes_of_the_host() {
    let mut request = request(PROMPT);
    let note = "[callsheet: 1 of 2 turns is left]";
    answer(&mut request, &["10:00", "09:00", &format!("399.5\n\n{note}\n{note}")]);
    let response = improvise(&request);
    assert!(response.calls.is_empty());
    assert_eq!(
        response.text.concat(),
        "(offline rehearsal model) The tools answered:\n- clock: 10:00\n- clock: 09:00\n- calculator: 399.5"
    );
    let mut chinese = self::request("东京现在几点？");
    answer(&mut chinese, &["10:00"]);
    assert_eq!(improvise(&chinese).text.concat(), "（离线排练模型）工具的回答：\n- clock: 10:00");
}

#[test]
fn a_later_question_is_answered_anew() {
    let mut request = request("What time is it in Tokyo?");
    answer(&mut request, &["10:00"]);
    let more = [
        json!({"role": "assistant", "content": "10:00"}),
        json!({"role": "user", "content": [{"type": "text", "text": "And the time in Rome?"}]}),
    ];
    request["messages"].as_array_mut().unwrap().extend(more);
    assert_eq!(calls(&request), [r#"clock {"zone":"Europe/Rome"}"#]);
}

#[test]
fn a_full_width_sign_does_not_shift_the_position_of_later_values() {
    let prompt = "涨 5％，2+2";
    let found = Prompt::read(prompt).values(ValueKind::Expression);
    assert_eq!(found.first().map(|value| value.at), prompt.find("2+2"));
}

#[test]
fn without_parallel_calls_one_call_is_made_at_a_time() {
    let mut request = request(PROMPT);
    request["parallel_tool_calls"] = false.into();
    for expected in THREE {
        assert_eq!(calls(&request), [expected]);
        answer(&mut request, &["done"]);
    }
    assert_eq!(improvise(&request).text.concat().matches(": done").count(), 3);
}

#[test]
fn the_tool_choice_is_obeyed() {
    let mut request_with_choice = request("What time is it in Tokyo?");
    request_with_choice["tool_choice"] = "none".into();
    assert!(calls(&request_with_choice).is_empty());
    let mut request_with_choice = request("Hello");
    request_with_choice["tool_choice"] = "required".into();
    assert_eq!(calls(&request_with_choice), [r#"clock {"zone":"UTC"}"#]);
    request_with_choice["tool_choice"] =
        json!({"type": "function", "function": {"name": "get_weather"}});
    assert_eq!(calls(&request_with_choice), [r#"get_weather {"city":"London"}"#]);
    let bare = json!({"model": "m", "messages": [{"role": "user", "content": "time in Rome?"}]});
    let text = improvise(&bare).text.concat();
    assert!(text.contains("offline rehearsal model") && text.contains("time in Rome?"), "{text}");
}

#[test]
fn a_number_fits_its_schema() {
    for (schema, number, expected) in [
        (json!({"type": "integer", "maximum": 10, "multipleOf": 4}), "10", json!(8)),
        (json!({"type": "integer", "maximum": 12, "multipleOf": 4}), "10", json!(12)),
        (json!({"type": "number"}), "1e300", json!(1e300)),
    ] {
        let mut request = request(&format!("call scale with n={number}"));
        request["tools"] = json!([tool("scale", json!({"n": schema}))]);
        let calls = improvise(&request).calls;
        assert_eq!(calls[0].arguments, json!({"n": expected}));
    }
}

#[test]
fn a_malformed_request_gets_no_calls() {
    for odd in [
        json!(null),
        json!({}),
        json!({"messages": 3}),
        json!({"messages": [{"role": "user"}], "tools": [{}]}),
    ] {
        assert!(improvise(&odd).calls.is_empty());
    }
}

proptest::proptest! {
    /// No prompt causes a panic, and every call fits the schema of its tool.
    #[test]
    fn every_call_fits_its_schema(
        prompt in "([a-z ]{0,8}|[-+*/%^(), .0-9]{0,8}|read|time|weather|东京|几点|的|İ|é|\"|https?://|work|convert|Paris|_|\\{|:|=|ms){0,14}"
    ) {
        let request = request(&prompt);
        let tools = request["tools"].as_array().unwrap();
        for call in improvise(&request).calls {
            let tool = tools.iter().find(|tool| tool["function"]["name"] == call.name.as_str());
            let schema = &tool.unwrap()["function"]["parameters"];
            let schema = CompiledSchema::compile(schema, &[]).unwrap();
            assert!(schema.is_valid(&call.arguments), "{prompt}: {}", call.arguments);
        }
    }
}

#[test]
fn a_typed_answer_fits_its_schema() {
    let node = json!({
        "type": "object", "required": ["name", "next", "children"], "additionalProperties": false,
        "properties": {
            "name": {"type": "string"},
            "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
        },
    });
    let required = ["city", "grade", "day", "tags", "tree"];
    let schema = json!({
        "type": "object", "required": required, "additionalProperties": false,
        "properties": {
            "city": {"type": "string"},
            "grade": {"type": "integer", "minimum": 3, "maximum": 5},
            "day": {"type": "string", "format": "date"},
            "tags": {"type": "array", "minItems": 2, "items": {"enum": ["a", "b"]}},
            "tree": {"$ref": "#/$defs/node"},
        },
        "$defs": {"node": node},
    });
    let list = json!({"type": "array", "items": {"type": "number"}, "minItems": 3});
    for (schema, part) in [(schema, "Paris"), (list, "1000"), (json!({"type": "object"}), "Paris")]
    {
        let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
        let mut request = request("Which of Paris, grade 1000, is it?");
        let instruction = "[callsheet: Give the final answer as one JSON value.]";
        let host = json!({"role": "user", "content": instruction});
        request["messages"].as_array_mut().unwrap().push(host);
        request["tool_choice"] = "none".into();
        request["response_format"] = format;
        let text = improvise(&request).text.concat();
        let value: Value = serde_json::from_str(&text).unwrap();
        let compiled = CompiledSchema::compile(&schema, &[]).unwrap();
        assert!(compiled.is_valid(&value), "{text}");
        assert!(text.contains(part) && !text.contains("callsheet"), "{text}");
    }
    let mut request = request("Which?");
    request["response_format"] = json!({"type": "json_object"});
    assert_eq!(improvise(&request).text.concat(), "{\"text\":\"Which\"}");
}
