//! Prompts, and what the rehearsal model asks for.

use serde_json::{Value, json};

use super::improvise;

fn tool(name: &str, description: &str, properties: Value) -> Value {
    let required: Vec<&String> = properties.as_object().unwrap().keys().collect();
    json!({"type": "function", "function": {"name": name, "description": description,
        "parameters": {"type": "object", "properties": properties, "required": required}}})
}

fn text() -> Value {
    json!({"type": "string"})
}

fn tools() -> Value {
    json!([
        tool("clock", "The time of day in a named time zone.", json!({"zone": text()})),
        tool("calculator", "Evaluates an arithmetic expression.", json!({"expression": text()})),
        tool("read_file", "Reads a text file.", json!({"path": text()})),
        tool("http_get", "Fetches a page within a time limit.", json!({"url": text()})),
        tool("write_file", "Writes a file.", json!({"path": text(), "content": text()})),
        tool("get_weather", "Weather of a city.", json!({"city": text()})),
        tool("get_news", "Latest news.", json!({"topic": text()})),
        tool("web_search", "Searches the web.", json!({"query": text()})),
        tool("send_email", "Sends a mail.", json!({"recipient": text(), "body": text()})),
        tool("ticker_7", "Prices of shares on the stock market.", json!({"symbol": text()})),
        tool(
            "convert_currency",
            "",
            json!({"amount": {"type": "number"},
            "from": {"enum": ["EUR", "JPY", "USD"]}, "to": {"enum": ["EUR", "JPY", "USD"]}})
        ),
        tool("plan_trip", "", json!({"origin": text(), "destination": text()})),
        tool("echo", "", json!({"text": text()})),
        tool("work", "Sleeps.", json!({"ms": {"type": "integer"}, "i": {"type": "integer"}})),
    ])
}

fn request(prompt: &str) -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": prompt}], "tools": tools()})
}

/// The calls as text: `clock {"zone":"UTC"}`.
fn calls(request: &Value) -> Vec<String> {
    let call =
        |call: super::Call| format!("{} {}", call.name.clone().unwrap(), call.arguments_text());
    improvise(request).calls.into_iter().map(call).collect()
}

fn answer(request: &mut Value, results: &[&str]) {
    let made = improvise(request).calls;
    assert_eq!(made.len(), results.len());
    let id = request["messages"].as_array().unwrap().len();
    let messages = request["messages"].as_array_mut().unwrap();
    let asked: Vec<Value> = made
        .iter()
        .enumerate()
        .map(|(n, call)| {
            json!({"id": format!("c{id}_{n}"), "type": "function",
            "function": {"name": call.name, "arguments": call.arguments_text()}})
        })
        .collect();
    messages.push(json!({"role": "assistant", "content": null, "tool_calls": asked}));
    for (n, result) in results.iter().enumerate() {
        messages
            .push(json!({"role": "tool", "tool_call_id": format!("c{id}_{n}"), "content": result}));
    }
}

const THREE: [&str; 3] = [
    r#"clock {"zone":"Asia/Tokyo"}"#,
    r#"clock {"zone":"Asia/Shanghai"}"#,
    r#"calculator {"expression":"17% of 2350"}"#,
];

#[test]
fn asks_for_what_the_prompt_speaks_of() {
    for (prompt, expect) in [
        ("What time is it in Tokyo and in Beijing, and what is 17 % of 2,350?", &THREE[..]),
        ("东京和北京现在几点？2350 的 17% 是多少？", &THREE),
        ("read notes.txt", &[r#"read_file {"path":"notes.txt"}"#]),
        (
            "Please fetch https://example.com/data.json.",
            &[r#"http_get {"url":"https://example.com/data.json"}"#],
        ),
        ("summarise https://example.com/", &[r#"http_get {"url":"https://example.com/"}"#]),
        (
            "What's in a.txt and b.txt?",
            &[r#"read_file {"path":"a.txt"}"#, r#"read_file {"path":"b.txt"}"#],
        ),
        ("2+2?", &[r#"calculator {"expression":"2 + 2"}"#]),
        ("what time is it?", &[r#"clock {"zone":"UTC"}"#]),
        ("time in Europe/Oslo please", &[r#"clock {"zone":"Europe/Oslo"}"#]),
        (
            "Weather in Paris and Rome?",
            &[r#"get_weather {"city":"Paris"}"#, r#"get_weather {"city":"Rome"}"#],
        ),
        ("巴黎的天气怎么样", &[r#"get_weather {"city":"Paris"}"#]),
        (
            "What is the weather in Paris, and what time is it in Berlin?",
            &[r#"get_weather {"city":"Paris"}"#, r#"clock {"zone":"Europe/Berlin"}"#],
        ),
        (
            "time and weather in Tokyo",
            &[r#"clock {"zone":"Asia/Tokyo"}"#, r#"get_weather {"city":"Tokyo"}"#],
        ),
        (
            "Weather in London and the news about AI chips",
            &[r#"get_weather {"city":"London"}"#, r#"get_news {"topic":"AI chips"}"#],
        ),
        ("search for rust actors", &[r#"web_search {"query":"rust actors"}"#]),
        (
            "What is the stock price of ACME and \"HAL\"?",
            &[r#"ticker_7 {"symbol":"ACME"}"#, r#"ticker_7 {"symbol":"HAL"}"#],
        ),
        (
            "email joe@example.com: \"see you\"",
            &[r#"send_email {"body":"see you","recipient":"joe@example.com"}"#],
        ),
        (
            r#"work {"i":0,"ms":5} and work {"i":1,"ms":5}"#,
            &[r#"work {"i":0,"ms":5}"#, r#"work {"i":1,"ms":5}"#],
        ),
        (
            "call work three times with ms=20",
            &[r#"work {"i":0,"ms":20}"#, r#"work {"i":1,"ms":20}"#, r#"work {"i":2,"ms":20}"#],
        ),
        (
            "帮我查一下北京和上海的天气，以及东京的时间",
            &[
                r#"get_weather {"city":"Beijing"}"#,
                r#"get_weather {"city":"Shanghai"}"#,
                r#"clock {"zone":"Asia/Tokyo"}"#,
            ],
        ),
        ("convert 100 USD to EUR", &[r#"convert_currency {"amount":100,"from":"USD","to":"EUR"}"#]),
        ("fly from London to New York", &[]),
        (
            "plan_trip from London to Cairo",
            &[r#"plan_trip {"destination":"Cairo","origin":"London"}"#],
        ),
        ("echo \"a b\" and echo \"c\"", &[r#"echo {"text":"a b"}"#, r#"echo {"text":"c"}"#]),
        ("Hello, who are you?", &[]),
        ("What is the capital of France?", &[]),
        ("I like to read books about Tokyo.", &[]),
        ("", &[]),
    ] {
        assert_eq!(calls(&request(prompt)), expect, "{prompt}");
    }
}

#[test]
fn quotes_every_result() {
    let mut request =
        request("What time is it in Tokyo and in Beijing, and what is 17 % of 2,350?");
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
fn calls_one_at_a_time_where_it_must() {
    let mut request =
        request("What time is it in Tokyo and in Beijing, and what is 17 % of 2,350?");
    request["parallel_tool_calls"] = false.into();
    for expect in THREE {
        assert_eq!(calls(&request), [expect]);
        answer(&mut request, &["done"]);
    }
    assert_eq!(improvise(&request).text.concat().matches(": done").count(), 3);
}

#[test]
fn obeys_the_choice_of_tools() {
    let mut asked = request("What time is it in Tokyo?");
    asked["tool_choice"] = "none".into();
    assert!(calls(&asked).is_empty());
    let mut asked = request("Hello");
    asked["tool_choice"] = "required".into();
    assert_eq!(calls(&asked), [r#"clock {"zone":"UTC"}"#]);
    asked["tool_choice"] = json!({"type": "function", "function": {"name": "get_news"}});
    assert_eq!(calls(&asked), [r#"get_news {"topic":"Hello"}"#]);
    let bare = json!({"model": "m", "messages": [{"role": "user", "content": "time in Rome?"}]});
    let text = improvise(&bare).text.concat();
    assert!(text.contains("offline rehearsal model") && text.contains("time in Rome?"), "{text}");
}

#[test]
fn never_panics_on_odd_requests() {
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
    /// Whatever is said, nothing panics, and every call fits its tool's schema.
    #[test]
    fn calls_fit_their_schemas(
        prompt in "([a-z ]{0,8}|[-+*/%^(), .0-9]{0,8}|read|time|weather|东京|几点|的|İ|é|\"|                   https?://|work|send_email|times|Paris|_|\\{|:|=|ms){0,14}"
    ) {
        let request = request(&prompt);
        let tools = request["tools"].as_array().unwrap();
        for call in improvise(&request).calls {
            let name = call.name.unwrap();
            let tool = tools.iter().find(|tool| tool["function"]["name"] == name.as_str());
            let schema = &tool.unwrap()["function"]["parameters"];
            let arguments = call.arguments.unwrap();
            assert!(jsonschema::is_valid(schema, &arguments), "{prompt}: {arguments}");
        }
    }
}
