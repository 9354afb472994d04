//! The baseline: a hand-written loop without a host.
//!
//! It uses one thread, `reqwest`, lines by memchr, events as borrowed structs, and the history as
//! JSON values. Tools run inline. It has no actors, events, metrics, limits or retries.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use callsheet::load::{cpu_time, memory};
use callsheet::types::Wire;
use callsheet::wire::WireFormat as _;
use parking_lot::Mutex;
use reqwest::Client;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use crate::Row;

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow)]
    choices: Vec<Choice<'a>>,
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow)]
    delta: Delta<'a>,
    #[serde(borrow)]
    finish_reason: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(borrow)]
    content: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    tool_calls: Vec<CallDelta<'a>>,
}

#[derive(Deserialize)]
struct CallDelta<'a> {
    index: usize,
    #[serde(borrow)]
    id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    function: Function<'a>,
}

#[derive(Deserialize)]
struct Function<'a> {
    #[serde(borrow)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    arguments: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Usage {
    total_tokens: u64,
}

#[derive(Deserialize)]
struct Input {
    i: u64,
}

#[derive(Default)]
struct Answer {
    text: String,
    calls: Vec<Call>,
    finish: String,
    tokens: u64,
    is_done: bool,
}

#[derive(Default)]
struct Call {
    id: String,
    name: String,
    arguments: String,
}

impl Answer {
    fn line(&mut self, line: &[u8]) {
        let Some(data) = line.strip_prefix(b"data: ") else { return };
        if data == b"[DONE]" {
            self.is_done = true;
            return;
        }
        let event: Event<'_> = serde_json::from_slice(data).unwrap();
        self.tokens += event.usage.map_or(0, |usage| usage.total_tokens);
        for Choice { delta, finish_reason } in event.choices {
            self.text.push_str(delta.content.as_deref().unwrap_or_default());
            for CallDelta { index, id, function } in delta.tool_calls {
                if index == self.calls.len() {
                    self.calls.push(Call::default());
                }
                let call = &mut self.calls[index];
                call.id.push_str(id.as_deref().unwrap_or_default());
                call.name.push_str(function.name.as_deref().unwrap_or_default());
                call.arguments.push_str(function.arguments.as_deref().unwrap_or_default());
            }
            if let Some(finish) = finish_reason {
                self.finish = finish.into_owned();
            }
        }
    }
}

async fn ask(client: &Client, url: &str, tools: &Value, messages: &[Value]) -> Answer {
    let body = json!({"model": "m", "messages": messages, "tools": tools, "stream": true,
        "stream_options": {"include_usage": true}});
    let request = client.post(url).header("content-type", "application/json");
    let body = serde_json::to_vec(&body).unwrap();
    let mut response = request.body(body).send().await.unwrap().error_for_status().unwrap();
    let mut answer = Answer::default();
    let mut rest: Vec<u8> = Vec::new();
    while let Some(bytes) = response.chunk().await.unwrap() {
        let mut bytes = &bytes[..];
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            if rest.is_empty() {
                answer.line(&bytes[..end]);
            } else {
                rest.extend_from_slice(&bytes[..end]);
                answer.line(&rest);
                rest.clear();
            }
            bytes = &bytes[end + 1..];
        }
        rest.extend_from_slice(bytes);
    }
    assert!(answer.is_done);
    answer
}

fn tools() -> Value {
    let parameters = json!({"type": "object", "required": ["i"], "properties": {
        "ms": {"type": "integer", "description": "How long to work, in milliseconds."},
        "i": {"type": "integer", "description": "The number to answer."},
        "pad": {"type": "string", "description": "Makes the arguments longer."}}});
    let function = json!({"name": "work", "parameters": parameters,
        "description": "Works for a while and answers with a number."});
    json!([{"type": "function", "function": function}])
}

/// Runs a conversation from the user's input to the final text.
async fn run(client: &Client, url: &str, tools: &Value) -> usize {
    let mut messages = vec![json!({"role": "user", "content": "Do the work."})];
    let mut called = 0;
    loop {
        let answer = ask(client, url, tools, &messages).await;
        assert!(answer.tokens > 0);
        if answer.finish == "stop" {
            assert!(!answer.text.is_empty());
            return called;
        }
        let calls: Vec<Value> = answer
            .calls
            .iter()
            .map(|call| {
                json!({"id": call.id, "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments}})
            })
            .collect();
        messages.push(json!({"role": "assistant", "content": answer.text, "tool_calls": calls}));
        for call in &answer.calls {
            assert_eq!(call.name, "work");
            let input: Input = serde_json::from_str(&call.arguments).unwrap();
            let content = format!("r{}", input.i);
            messages.push(json!({"role": "tool", "tool_call_id": call.id, "content": content}));
            called += 1;
        }
    }
}

/// Runs `runs` conversations in each of `sessions` concurrent loops.
pub(crate) async fn measure(base_url: &str, calls: usize, sessions: u32, runs: u32) -> Row {
    callsheet::load::raise_open_files(sessions).unwrap();
    let client = callsheet::tls::client(Client::builder().no_proxy().tcp_nodelay(true)).unwrap();
    let shared = Arc::new((client, Wire::OpenaiChat.url(base_url, "m", true), tools()));
    // A task for each session, as a server has.
    let round = async |sessions: u32, runs: u32| {
        let mut tasks = JoinSet::new();
        for _ in 0..sessions {
            let shared = Arc::clone(&shared);
            tasks.spawn(async move {
                let (client, url, tools) = &*shared;
                for _ in 0..runs {
                    assert_eq!(run(client, url, tools).await, calls);
                }
            });
        }
        tasks.join_all().await;
    };
    // Opens the connections, as the warm-up of `callsheet load` does.
    round(sessions.min(256), 1).await;
    let before = memory();
    let lags = Arc::new(Mutex::new(Vec::new()));
    let mut lag_task = JoinSet::new();
    lag_task.spawn(watch_lag(Arc::clone(&lags)));
    let (cpu, began) = (cpu_time(), Instant::now());
    round(sessions, runs).await;
    let (cpu, time) = (cpu_time() - cpu, began.elapsed());
    lag_task.abort_all();
    let mut lags = std::mem::take(&mut *lags.lock());
    lags.sort_unstable();
    let lag = lags.get(lags.len() * 99 / 100);
    let count = f64::from(sessions) * f64::from(runs);
    Row {
        cpu_us: cpu.as_secs_f64() * 1e6 / count,
        runs_per_s: count / time.as_secs_f64(),
        rss_kb: before.zip(memory()).map(|(before, after)| {
            after.peak_kb.saturating_sub(before.now_kb) as f64 / f64::from(sessions)
        }),
        lag_ms: lag.map(|lag| lag.as_secs_f64() * 1e3),
    }
}

/// Measures how late the loop reaches a timer, as `callsheet load` does. It never ends.
async fn watch_lag(lags: Arc<Mutex<Vec<Duration>>>) {
    let mut ticks = tokio::time::interval(Duration::from_millis(10));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let due = ticks.tick().await;
        lags.lock().push(due.elapsed());
    }
}
