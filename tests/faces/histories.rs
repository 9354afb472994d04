//! The face OpenAI Responses: requests with a whole history, whose items may be of this host, of a session that is gone, or
//! of another host.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use serde_json::{Value, json};

use crate::client::HttpResponse;
use crate::host_directory::{HostDirectory, HostServer};
use crate::responses::{outline, start};

/// The input of a run whose session begins with results of calls of another host.
const GO_ON: &str = "user [callsheet: The calls above have their results. Go on.]";

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

fn weather() -> Value {
    json!([{"type": "function", "name": "weather", "parameters": {"type": "object"}}])
}

fn asks() -> Value {
    json!({"name": "weather", "arguments": {"city": "Ulm"}})
}

fn result(call: &Value) -> Value {
    json!({"type": "function_call_output", "call_id": call["call_id"], "output": "sun"})
}

fn without_id(item: &Value) -> Value {
    let mut item = item.clone();
    item.as_object_mut().unwrap().remove("id");
    item
}

async fn send(served: &HostServer, input: &[Value], members: Value) -> HttpResponse {
    let mut body = json!({"model": "default", "input": input, "tools": weather()});
    body.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
    served.post("/v1/responses", body).await
}

/// Returns the roles and texts of the messages of the last request to the model.
fn seen(directory: &HostDirectory) -> Vec<String> {
    let body = directory.model.requests().pop().unwrap().body;
    let messages = body["messages"].as_array().unwrap().iter();
    let text = |message: &Value| message["content"].as_str().unwrap_or_default().to_owned();
    messages.map(|it| format!("{} {}", it["role"].as_str().unwrap(), text(it))).collect()
}

#[tokio::test]
async fn a_history_says_all_when_its_session_is_gone() {
    let directory = HostDirectory::new(json!({"responses": [
        {"text": ["One."]}, {"text": ["Two."]}, {"text": ["Three."]}, {"text": ["Four."]}]}))
    .await;
    let served = start(&directory, "").await;
    let unstored = json!({"store": false});
    let first = send(&served, &[user("1")], unstored.clone()).await.json();
    let history = [user("1"), first["output"][0].clone(), user("2")];
    let second = send(&served, &history, unstored).await;
    assert_eq!((second.status, outline(&second.json())), (200, vec!["Two.".to_owned()]));
    assert_eq!(seen(&directory), ["user 1", "assistant One.", "user 2"]);
    assert_ne!(second.json()["conversation"], first["conversation"]);

    let stored = send(&served, &[user("1")], json!({})).await.json();
    let conversation = stored["conversation"]["id"].as_str().unwrap();
    let deleted = served.delete(&format!("/v1/conversations/{conversation}")).await;
    assert_eq!(deleted.status, 200);
    let item = &stored["output"][0];
    let after = send(&served, &[user("1"), item.clone(), user("4")], json!({})).await;
    assert_eq!((after.status, outline(&after.json())), (200, vec!["Four.".to_owned()]));
    assert_eq!(seen(&directory), ["user 1", "assistant Three.", "user 4"]);
    let reference = json!({"type": "item_reference", "id": item["id"]});
    let refused = send(&served, &[user("1"), reference, user("4")], json!({})).await;
    assert_eq!(refused.status, 400, "{refused:?}");
    served.shutdown().await;
}

#[tokio::test]
async fn results_that_are_sent_again_get_the_answer_again() {
    let directory = HostDirectory::new(json!({"responses": [
        {"calls": [asks()]}, {"text": ["Sunny."]}, {"text": ["Bye."]}]}))
    .await;
    let served = start(&directory, "").await;
    let first = send(&served, &[user("go")], json!({})).await.json();
    let call = first["output"][0].clone();
    let history = [user("go"), call.clone(), result(&call)];
    let named = json!({"previous_response_id": first["id"]});
    let second = send(&served, &history, json!({})).await.json();
    assert_eq!(outline(&second), ["Sunny."]);
    for (input, members) in [(&history[..], json!({})), (&history[2..], named)] {
        let again = send(&served, input, members).await;
        assert_eq!((again.status, &again.json()["id"]), (200, &second["id"]), "{again:?}");
        assert_eq!(again.json()["output"], second["output"]);
    }
    // A client that sends earlier results with each request.
    let named = json!({"previous_response_id": second["id"]});
    let third = send(&served, &[result(&call), user("thanks")], named).await;
    assert_eq!((third.status, outline(&third.json())), (200, vec!["Bye.".to_owned()]), "{third:?}");
    assert_eq!(third.json()["conversation"], first["conversation"]);
    assert_eq!(directory.model.requests().len(), 3);
    served.shutdown().await;
}

#[tokio::test]
async fn messages_without_ids_are_a_history_of_their_own() {
    let directory = HostDirectory::new(json!({"responses": [
        {"text": ["I look."], "calls": [asks()]}, {"text": ["Sunny."]}, {"text": ["Bye."]}]}))
    .await;
    let served = start(&directory, "").await;
    let first = send(&served, &[user("go")], json!({})).await.json();
    let [said, call] = [0, 1].map(|at| without_id(&first["output"][at]));
    let mut history = vec![user("go"), said, call.clone(), result(&call)];
    let second = send(&served, &history, json!({})).await.json();
    assert_eq!(second["conversation"], first["conversation"]);
    history.extend([without_id(&second["output"][0]), user("thanks")]);
    let third = send(&served, &history, json!({})).await;
    assert_eq!((third.status, outline(&third.json())), (200, vec!["Bye.".to_owned()]), "{third:?}");
    let expected = [
        "user go",
        "assistant I look.",
        "assistant ",
        "tool sun",
        "assistant Sunny.",
        "user thanks",
    ];
    assert_eq!(seen(&directory), expected);
    served.shutdown().await;
}

#[tokio::test]
async fn a_foreign_history_has_a_result_for_each_call() {
    let directory =
        HostDirectory::new(json!({"responses": [{"text": ["Hello."]}, {"text": ["Sun."]}]})).await;
    let served = start(&directory, "").await;
    let call = |id: &str, name: &str| json!({"type": "function_call", "call_id": id, "name": name, "arguments": "{\"id\": \"x\"}"});
    for name in ["weather", "quick"] {
        let refused = send(&served, &[user("go"), call("c", name), user("on")], json!({})).await;
        let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
        assert_eq!(refused.status, 400, "{refused:?}");
        assert!(message.ends_with("no tool output found for the call c"), "{message}");
    }
    let refused =
        send(&served, &[user("go"), result(&json!({"call_id": "z"})), user("on")], json!({})).await;
    assert_eq!(refused.status, 400, "{refused:?}");
    assert_eq!(directory.control.log(), [""; 0]);
    assert_eq!(served.get("/v1/sessions").await.json()["sessions"], json!([]));
    // Results belong to their calls wherever they are, and empty messages say nothing.
    let said = |text: &str| json!({"role": "assistant", "content": text});
    let [first, second] = ["a", "b"].map(|id| call(id, "weather"));
    let output = |id: &str| json!({"type": "function_call_output", "call_id": id, "output": format!("of {id}")});
    let history = [
        user("go"),
        user(""),
        first,
        second,
        said("I wait."),
        said(""),
        output("b"),
        output("a"),
        user("on"),
    ];
    let answer = send(&served, &history, json!({})).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let expected =
        ["user go", "assistant ", "tool of b", "tool of a", "assistant I wait.", "user on"];
    assert_eq!(seen(&directory), expected);
    let path = format!("/v1/responses/{}/input_items", answer.json()["id"].as_str().unwrap());
    let all = served.get(&format!("{path}?order=asc")).await.json()["data"].clone();
    let outlined = outline(&json!({"output": all}));
    let expected =
        ["go", "function_call weather ", "function_call weather ", "of b", "of a", "I wait.", "on"];
    assert_eq!(outlined, expected);
    let first = served.get(&format!("{path}?limit=4")).await.json();
    let after = first["last_id"].as_str().unwrap();
    let rest = served.get(&format!("{path}?limit=4&after={after}")).await.json();
    let pages = [&first, &rest].map(|page| page["data"].as_array().unwrap().clone()).concat();
    assert!(pages.iter().rev().eq(all.as_array().unwrap()));
    assert_eq!((&first["has_more"], &rest["has_more"]), (&true.into(), &false.into()));
    assert_eq!(served.get(&format!("{path}?limit=0")).await.status, 400);
    // A history that ends with a result goes on.
    let history = [user("go"), call("a", "weather"), output("a")];
    let answer = send(&served, &history, json!({})).await;
    assert_eq!(
        (answer.status, outline(&answer.json())),
        (200, vec!["Sun.".to_owned()]),
        "{answer:?}"
    );
    served.shutdown().await;
}

#[tokio::test]
async fn another_agent_gets_the_history_with_the_calls_of_the_host() {
    let calls = json!({"calls": [{"name": "quick", "arguments": {"id": "a"}}, asks()]});
    let directory = HostDirectory::new(json!({"responses": [
        calls, {"text": ["Sunny."]}, calls, {"text": ["Again sunny."]}]}))
    .await;
    let served = start(&directory, "[agents.default]\n[agents.other]").await;
    let first = send(&served, &[user("go")], json!({})).await.json();
    let items = first["output"].as_array().unwrap();
    assert_eq!([&items[0]["type"], &items[1]["type"]], ["mcp_call", "function_call"]);
    let mut history = vec![user("go")];
    history.extend(items.iter().cloned());
    history.push(result(&items[1]));
    let other = json!({"model": "other"});
    let second = send(&served, &history, other.clone()).await;
    assert_eq!((second.status, outline(&second.json())), (200, vec!["Sunny.".to_owned()]));
    assert_ne!(second.json()["conversation"], first["conversation"]);
    let output = items[0]["output"].as_str().unwrap();
    let seen = seen(&directory);
    let output = format!("tool {output}");
    assert_eq!(seen, ["user go", "assistant ", &output, "assistant ", "tool sun", GO_ON]);
    let named = json!({"model": "other", "previous_response_id": first["id"]});
    assert_eq!(send(&served, &[user("on")], named).await.status, 400);

    let tools = json!([{"type": "function", "function": {"name": "weather"}}]);
    let mut body = json!({"model": "default", "messages": [user("go")], "tools": tools});
    let path = "/v1/chat/completions";
    let first = served.post(path, body.clone()).await;
    let message = first.json()["choices"][0]["message"].clone();
    let id = message["tool_calls"][0]["id"].as_str().unwrap();
    assert!(id.starts_with("call_") && id.len() <= 40, "{id}");
    let result = json!({"role": "tool", "tool_call_id": id, "content": "sun"});
    body["model"] = "other".into();
    body["messages"].as_array_mut().unwrap().extend([message, result]);
    let second = served.post(path, body).await;
    assert_eq!(second.status, 200, "{second:?}");
    assert_eq!(second.json()["choices"][0]["message"]["content"], "Again sunny.");
    served.shutdown().await;
}

#[tokio::test]
async fn what_a_client_adds_to_a_run_is_among_the_items() {
    let directory = HostDirectory::new(json!({"responses": [
        {"calls": [asks()]}, {"text": ["Sunny."]}, {"text": ["Bye."]}, {"text": ["Copied."]}]}))
    .await;
    let served = start(&directory, "").await;
    let first = send(&served, &[user("go")], json!({})).await.json();
    let call = first["output"][0].clone();
    let members =
        json!({"previous_response_id": first["id"], "instructions": "Hm.", "metadata": {"a": "b"}});
    let second = send(&served, &[result(&call)], members).await;
    assert_eq!(second.header("x-callsheet-ignored"), Some("instructions, metadata"));
    let second = second.json();
    assert_eq!(second["previous_response_id"], first["id"]);
    let path = |of: &Value| of["id"].as_str().unwrap().to_owned();
    let inputs = served.get(&format!("/v1/responses/{}/input_items", path(&second))).await.json();
    let output = &inputs["data"][0];
    assert_eq!([&output["call_id"], &output["output"]], [&call["call_id"], &json!("sun")]);
    assert_eq!(inputs["data"].as_array().unwrap().len(), 1);
    let conversation = path(&first["conversation"]);
    let items = served.get(&format!("/v1/conversations/{conversation}/items?order=asc")).await;
    let mut items = items.json()["data"].as_array().unwrap().clone();
    let kinds: Vec<_> = items.iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["message", "function_call", "function_call_output", "message"]);

    // The run has gone on behind the first response.
    let named = json!({"previous_response_id": first["id"]});
    assert_eq!(send(&served, &[user("And?")], named.clone()).await.status, 400);
    let bye = send(&served, &[result(&call), user("Bye.")], named).await;
    assert_eq!((bye.status, outline(&bye.json())), (200, vec!["Bye.".to_owned()]), "{bye:?}");
    items.push(user("on"));
    let copied = send(&served, &items, json!({"store": false})).await;
    assert_eq!(copied.status, 200, "{copied:?}");
    for (member, value) in [("allowed_tools", json!(["quick"])), ("headers", json!({}))] {
        let mut tool =
            json!({"type": "mcp", "server_label": "callsheet", "require_approval": "never"});
        tool[member] = value;
        let refused = send(&served, &[user("go")], json!({"tools": [tool]})).await;
        assert_eq!(refused.json()["error"]["param"], format!("tools[0].{member}"));
    }
    served.shutdown().await;
}
