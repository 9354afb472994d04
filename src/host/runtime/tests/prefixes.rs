//! Random sessions, of which every request is kept: each begins with the prompt of the one before it, except
//! where the journal says why not, and passes the strict check of its service.
//!
//! Sessions have any wire format and a fallback model of another one. They are steered, stopped, queued and
//! hibernated; their actors are killed, and their hosts shut down, or end as in a crash; tools come and go;
//! results are large, or images, and are cleared, formatted and summarised; services fail, pause, refuse
//! requests as too large, and run tools of their own.
//!
//! The short form runs with the other tests. A long one:
//! `CALLSHEET_PREFIX_SESSIONS=10000 cargo test --lib -- runtime::tests::prefixes --nocapture`.
#![expect(clippy::wildcard_enum_match_arm, reason = "a test names the variants that it means")]

use std::collections::HashMap;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicBool, AtomicU64};

use futures::StreamExt as _;
use parking_lot::Mutex;
use serde_json::Value;

use super::engine::Engine;
use super::recovery::run_actors;
use super::*;
use crate::journal::{AppendStatus, MemoryJournal};
use callsheet_mock_provider::{Call, Finish, MockProvider, ReceivedRequest, Response, Script};
use callsheet_tools::{ToolSource, ToolSourceContext};
use callsheet_values::config::{AgentConfig, HistoryForm, RunOverrides, Share};
use callsheet_values::record::{Record, StopMode};
use callsheet_values::types::{ContentPart, Execution, Image, RunEnd, SessionState, Wire};
use callsheet_wire::PromptChange;

/// The header with the number of the host that sends a request.
const HOST_HEADER: &str = "x-test-host";
/// The beginning of the last message of a request for a summary.
const SUMMARY: &str = "Summarise this conversation";
const WIRES: [Wire; 5] = [
    Wire::OpenaiChat,
    Wire::OpenaiResponses,
    Wire::AnthropicMessages,
    Wire::GeminiGenerate,
    Wire::OllamaChat,
];

impl Random {
    fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize].clone()
    }
}

/// A record that may change the prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Change {
    Context,
    ServerTools,
    /// A run with these overrides. It reads the program's tools.
    Run(String),
    /// A host opens the journal. It reads the program's tools too.
    Host,
}

/// Returns the engine of a host on the records of a session. It notes the changes of the prompt with the number
/// of requests that the service had received by then, and stores nothing once its host is dead.
fn ledger(world: &World, is_dead: Arc<AtomicBool>) -> Arc<Engine> {
    let (changes, model) = (Arc::clone(&world.changes), Arc::clone(&world.model));
    Engine::on(Arc::clone(&world.journal), move |inner, batch| {
        if is_dead.load(Ordering::SeqCst) {
            return AppendStatus::Queued;
        }
        let received = model.received();
        for entry in &batch.entries {
            let change = match &entry.record {
                Record::Compacted { .. } => Change::Context,
                // The refused run is left out.
                Record::RunEnded { end: RunEnd::Refused, .. } => Change::Context,
                Record::ToolsFrozen { .. } => Change::ServerTools,
                Record::RunStarted { overrides, .. } => {
                    Change::Run(serde_json::to_string(overrides).unwrap())
                }
                _ => continue,
            };
            changes.lock().push((received, change));
        }
        inner.append(batch)
    })
}

/// The tools of the program that come and go, as the bits of a number.
struct Plugins(Arc<AtomicU64>);

impl ToolSource for Plugins {
    fn tools(&self, _: &ToolSourceContext<'_>) -> Vec<Arc<dyn Tool>> {
        let present = self.0.load(Ordering::SeqCst);
        let names = ["plugin_a", "plugin_b"].into_iter().enumerate();
        let present = names.filter(|(bit, _)| present >> bit & 1 == 1);
        present.map(|(_, name)| Arc::new(echo(name)) as Arc<dyn Tool>).collect()
    }
}

fn tools() -> ToolRegistry {
    let words = tool(spec("words"), |context| async move {
        let count = context.arguments()["count"].as_u64().unwrap_or(3) as usize;
        Ok("some words of a result\n".repeat(count.min(400)).into())
    });
    let fails =
        tool(spec("fails"), |_| async { Err::<ToolOutput, _>(ToolError::new("it does not work")) });
    let picture = tool(spec("picture"), |_| async {
        let image = Image::parse("data:image/png;base64,AAAA").unwrap();
        Ok(ToolOutput::from("A picture:").with_part(image))
    });
    let slow = tool(spec("slow"), |_| async {
        sleep(Duration::from_millis(15)).await;
        Ok("at last".into())
    });
    registry([words, fails, picture, slow, echo("echo")])
}

/// Returns the calls of a response.
fn calls(random: &mut Random) -> Vec<Call> {
    let count = random.below(4);
    let call = |random: &mut Random, n: u64| {
        let tool = random.pick(&["words", "words", "echo", "fails", "picture", "slow", "none"]);
        let call = match random.below(12) {
            0 => Call::raw(tool, "{\"count\": 3"),
            1 => Call::raw(tool, "[1]"),
            2 => Call::new(
                "read_var",
                json!({"id": random.pick(&["t1a1c0", "t2a1c0", "t1a1c0.arguments", "t9a9c9"])}),
            ),
            3 => Call::new(
                "echo",
                json!({"text": "of $VAR_REF{{t1a1c0}}", "n": "$VAR_REF{{t2a1c0}}"}),
            ),
            4 => Call::new(random.pick(&["plugin_a", "plugin_b"]), json!({"n": n})),
            _ => Call::new(tool, json!({"count": random.below(60), "n": random.below(1000)})),
        };
        // Missing ids, and ids that repeat within a response or between turns.
        match random.below(5) {
            0 => Call { no_id: true, ..call },
            1 => call.id(random.pick(&["0", "call-1"])),
            _ => call,
        }
    };
    (0..count).map(|n| call(random, n)).collect()
}

fn text(random: &mut Random) -> Vec<String> {
    let text = random.pick(&["", "", "So. ", "Let me see\n", "  ", "Done, as I said.", "好的。"]);
    if text.is_empty() {
        Vec::new()
    } else {
        vec![text.to_owned(), random.pick(&["", " ", "\n"]).into()]
    }
}

/// Returns a response of Anthropic's service that runs a tool itself: with its result or without, and perhaps
/// with a result for the call of another response.
fn service_call(random: &mut Random, number: u64, model: &str) -> Response {
    let mut blocks = Vec::new();
    let result =
        |id: String| json!({"type": "web_search_tool_result", "tool_use_id": id, "content": []});
    if random.one_in(2) {
        blocks.push(result(format!("srv{}", number.saturating_sub(1))));
    }
    blocks.push(json!({"type": "text", "text": random.pick(&["Well. ", "I search", "x\n"])}));
    let name = random.pick(&["web_search", "web_search", "code_execution"]);
    blocks.push(json!({
        "type": "server_tool_use", "id": format!("srv{number}"), "name": name, "input": {"query": "q"},
    }));
    if random.one_in(3) {
        blocks.push(result(format!("srv{number}")));
    }
    let mut reason = random.pick(&["pause_turn", "pause_turn", "end_turn"]);
    if random.one_in(4) {
        let id = format!("toolu_{number}");
        blocks.push(json!({"type": "tool_use", "id": id, "name": "words", "input": {"n": number}}));
        reason = "tool_use";
    }
    let usage = json!({"input_tokens": 300, "output_tokens": 20});
    let start = json!({"type": "message_start", "message": {"id": "m", "type": "message",
        "role": "assistant", "model": "m", "content": [], "stop_reason": null, "usage": usage}});
    let mut events = vec![start];
    for (index, block) in blocks.into_iter().enumerate() {
        events.push(json!({"type": "content_block_start", "index": index, "content_block": block}));
        events.push(json!({"type": "content_block_stop", "index": index}));
    }
    events.push(json!({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}));
    events.push(json!({"type": "message_stop"}));
    let event =
        |event: Value| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap());
    let mut response = Response::raw("text/event-stream", events.into_iter().map(event));
    (response.when.model, response.when.stream) = (Some(model.to_owned()), Some(true));
    response
}

/// Returns a refusal of a request that is larger than the window.
fn overflow() -> Response {
    let message =
        "This model's maximum context length is 900 tokens. However, you requested 1200 tokens.";
    // The strict checks refuse with 400.
    Response::status(422).with(|response| {
        response.error =
            Some(json!({"error": {"message": message, "code": "context_length_exceeded"}}));
    })
}

fn response(random: &mut Random, number: u64, anthropic: &[String]) -> Response {
    if !anthropic.is_empty() && random.one_in(5) {
        let model = random.pick(anthropic);
        return service_call(random, number, &model);
    }
    let mut response = Response::calls(calls(random));
    response.text = text(random);
    if random.one_in(4) {
        response.reasoning = vec!["hm ".into(), "yes".into()];
    }
    match random.below(24) {
        0 => response.cut_after_chunks = Some(random.below(6) as usize),
        1 => response.truncate = true,
        2 => response.malformed_at_chunk = Some(random.below(6) as usize),
        3 => response.finish_reason = Finish::Word("length".into()),
        4 => response.finish_reason = Finish::Word("content_filter".into()),
        5 | 6 => response.finish_reason = Finish::Word("pause_turn".into()),
        7 => response.finish_reason = Finish::Null,
        8 => return Response::status(random.pick(&[500, 503, 401])),
        9 => return overflow(),
        10 | 11 => response.chunk_delay_ms = Some(3),
        _ => {}
    }
    response
}

/// A random session, and the hosts that serve it one after the other.
struct World {
    seed: u64,
    random: Random,
    model: Arc<MockProvider>,
    journal: Arc<MemoryJournal>,
    changes: Arc<Mutex<Vec<(u64, Change)>>>,
    plugins: Arc<AtomicU64>,
    config: Config,
    server: Arc<tool_servers::FakeServer>,
    host: Option<(Host, Arc<AtomicBool>, SessionHandle)>,
    hosts: u64,
    /// For each host that has crashed: the number of requests until then.
    crashes: HashMap<u64, u64>,
    counts: Counts,
}

/// The events of random sessions.
#[derive(Clone, Debug, Default)]
struct Counts(BTreeMap<&'static str, u64>);

impl Counts {
    fn add(&mut self, what: &'static str, count: u64) {
        *self.0.entry(what).or_default() += count;
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        other.0.into_iter().for_each(|(what, count)| self.add(what, count));
    }
}

impl World {
    async fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x1234_5677));
        let wires = [random.pick(&WIRES), random.pick(&WIRES)];
        let names = ["main", "backup"].map(str::to_owned);
        let anthropic: Vec<String> = (0..2)
            .filter(|at| wires[*at] == Wire::AnthropicMessages)
            .map(|at| names[at].clone())
            .collect();
        let count = 6 + random.below(24);
        let responses: Vec<_> =
            (0..count).map(|number| response(&mut random, number, &anthropic)).collect();
        let summary = Response::text("## Goal\nas said").with(|response| {
            (response.when.last_user, response.repeat) = (Some(SUMMARY.to_owned()), true);
        });
        let script = Script::new(std::iter::once(summary).chain(responses)).then_done();
        let model = Arc::new(MockProvider::with_script(script).await.unwrap());
        let mut config = Config::default();
        config.journal.engine = JournalEngine::Memory;
        config.host.shutdown_grace = Duration::from_millis(20);
        let window = random.pick(&[None, None, Some(900), Some(2_500)]);
        for (name, wire) in names.iter().zip(wires) {
            let address = BaseUrl::parse(&model.base_url()).unwrap();
            let model = ModelConfig::new(address, name.clone()).with(|model| {
                (model.wire, model.context_window) = (wire, window);
                model.stream = !random.one_in(8);
                model.max_attempts = 1 + u32::from(random.one_in(6));
                model.breaker_failures = None;
            });
            config.models.insert(name.clone(), model);
        }
        let agent = AgentConfig::new("main").with(|agent| {
            agent.system = random.pick(&["", "Be brief."]).to_owned();
            agent.tools = vec![ToolPattern::new("*")];
            if random.one_in(2) {
                agent.fallback_models = vec!["backup".to_owned()];
            }
            agent.allow_overrides = true;
            if random.one_in(2) {
                agent.execution = Execution::Parallel { max: 3 };
            }
            agent.early_start = random.one_in(2);
            agent.limits.max_turns = random.pick(&[None, Some(2), Some(5), Some(20)]);
            agent.limits.max_result_bytes = random.pick(&[400, 1_000_000]);
            agent.limits.cancel_grace = Duration::from_millis(5);
            agent.limits.max_failed_turns = random.pick(&[None, Some(2)]);
            agent.context.history =
                random.pick(&[HistoryForm::Full, HistoryForm::Full, HistoryForm::Compact]);
            agent.context.keep_results = random.pick(&[0, 1, 8]);
            agent.context.keep_turns = random.pick(&[0, 1, 3]);
            agent.context.keep_user_tokens = random.pick(&[0, 50, 20_000]);
            agent.context.clear_at = Share::of(random.pick(&[0.0, 0.3, 0.6])).unwrap();
            agent.context.references = !random.one_in(6);
        });
        config.agents.insert("default".to_owned(), agent);
        Self {
            seed,
            model,
            journal: Arc::default(),
            changes: Arc::default(),
            plugins: Arc::new(AtomicU64::new(random.below(4))),
            config,
            server: tool_servers::FakeServer::new(
                "srv",
                callsheet_tools::ServerState::Up,
                &["one"],
            ),
            host: None,
            hosts: 0,
            crashes: HashMap::new(),
            counts: Counts::default(),
            random,
        }
    }

    /// Starts the next host, and opens the session.
    async fn start(&mut self) {
        self.hosts += 1;
        let mut config = self.config.clone();
        for model in config.models.values_mut() {
            model.headers.insert(HOST_HEADER.to_owned(), self.hosts.to_string());
        }
        let mut tools = tools();
        if self.seed.is_multiple_of(3) {
            tools.add_server(Arc::clone(&self.server) as Arc<dyn callsheet_tools::ToolServer>);
        }
        let is_dead = Arc::new(AtomicBool::new(false));
        let ledger = ledger(self, Arc::clone(&is_dead));
        let mut setup = HostSetup::new(config, tools);
        if self.seed.is_multiple_of(2) {
            setup.tool_sources = ToolSources(vec![Arc::new(Plugins(Arc::clone(&self.plugins)))]);
        }
        self.changes.lock().push((self.model.received(), Change::Host));
        let host = start_on(setup, ledger).await.unwrap();
        let session = host.get_or_open_session(OpenSession::from("s")).await.unwrap();
        self.host = Some((host, is_dead, session));
    }

    fn session(&self) -> SessionHandle {
        self.host.as_ref().unwrap().2.clone()
    }

    fn input(&mut self) -> RunRequest {
        let image = Image::parse("data:image/png;base64,AAAA").unwrap();
        let text = format!("input {} of the user", self.random.below(1000));
        let mut request = RunRequest::from(text.clone());
        if self.random.one_in(6) {
            let parts = vec![ContentPart::Text(text), ContentPart::Image(image)];
            request.input = parts.into();
        }
        if self.random.one_in(8) {
            self.counts.add("overrides", 1);
            let random = &mut self.random;
            request.overrides = RunOverrides::default().with(|overrides| match random.below(3) {
                0 => overrides.tools = Some(vec!["words".to_owned()]),
                1 => overrides.model = Some("backup".to_owned()),
                _ => overrides.stream = Some(random.one_in(2)),
            });
        }
        request
    }

    async fn pause(&mut self) {
        sleep(Duration::from_millis(self.random.below(30))).await;
    }

    /// Waits until no run is in progress.
    async fn until_idle(&self) {
        let (host, _, session) = self.host.as_ref().unwrap();
        let is_open = || open_run_id(&stored(self.journal.read(session.id(), Seq(0)))).is_some();
        let waited = timeout(3 * SOON, async {
            while session.state() == SessionState::Running || host.counts().runs > 0 || is_open() {
                sleep(Duration::from_millis(1)).await;
            }
        });
        if waited.await.is_err() {
            let entries = self.journal.read(session.id(), Seq(0)).await.unwrap();
            let last = entries.iter().rev().take(12).rev().map(|entry| entry.body());
            let last = last.map(|body| body.chars().take(300).collect::<String>());
            panic!(
                "seed {}: it does not end: {:?}, {:?}, {:?}\n{}",
                self.seed,
                session.state(),
                host.counts(),
                self.counts,
                last.collect::<Vec<_>>().join("\n")
            );
        }
    }

    async fn step(&mut self) {
        let session = self.session();
        match self.random.below(14) {
            0..3 => {
                self.counts.add("runs", 1);
                let input = self.input();
                let _ = timeout(3 * SOON, session.run(input)).await.unwrap();
            }
            3 | 4 => {
                let input = self.input();
                let _run = session.start_run(input).await;
                for _ in 0..=self.random.below(3) {
                    self.pause().await;
                    let steered = session.steer("and more").await;
                    self.counts.add("steers", u64::from(steered.is_ok()));
                }
            }
            5 => {
                for _ in 0..3 {
                    let input = self.input().queued();
                    let queued = session.start_run(input).await;
                    self.counts.add("queued", u64::from(queued.is_ok()));
                }
            }
            6 | 7 => {
                let input = self.input();
                let _run = session.start_run(input).await;
                self.pause().await;
                let mode = self.random.pick(&[StopMode::Now, StopMode::AfterTurn]);
                let stopped = session.stop(mode).await;
                self.counts.add("stops", u64::from(stopped.is_ok()));
            }
            8 | 9 => {
                let input = self.input();
                let _run = session.start_run(input).await;
                self.pause().await;
                if let Some(actors) = run_actors(&session).await {
                    actors[self.random.below(3) as usize].kill();
                    self.counts.add("killed actors", 1);
                }
            }
            10 => {
                self.until_idle().await;
                session.hibernate();
                self.counts.add("hibernations", 1);
                self.pause().await;
            }
            11 => {
                self.until_idle().await;
                let compacted = timeout(3 * SOON, session.compact()).await.unwrap();
                self.counts.add("asked to compact", u64::from(compacted.is_ok()));
            }
            12 => {
                self.plugins.store(self.random.below(4), Ordering::SeqCst);
                if self.random.one_in(2) {
                    let names = self.random.pick(&[&["one"][..], &["one", "two"], &["two"]]);
                    self.server.set(callsheet_tools::ServerState::Up, names);
                    let _ = timeout(3 * SOON, session.refresh_tools()).await.unwrap();
                }
                let _ = timeout(3 * SOON, session.run("with these tools")).await.unwrap();
                self.counts.add("tool changes", 1);
            }
            _ => self.restart().await,
        }
        if !self.random.one_in(3) {
            self.until_idle().await;
        }
    }

    async fn restart(&mut self) {
        if self.random.one_in(2) {
            let input = self.input();
            let _run = self.session().start_run(input).await;
            self.pause().await;
        }
        let (host, is_dead, _) = self.host.take().unwrap();
        if self.random.one_in(3) {
            timeout(3 * SOON, host.shutdown()).await.unwrap();
            self.counts.add("shutdowns", 1);
        } else {
            // Later requests of the host are not stored, and do not count.
            self.crashes.insert(self.hosts, self.model.received());
            is_dead.store(true, Ordering::SeqCst);
            drop(host);
            self.counts.add("crashes", 1);
        }
        self.start().await;
    }

    /// Checks all requests. Returns what happened.
    fn check(mut self) -> Counts {
        let requests: Vec<ReceivedRequest> = self
            .model
            .requests()
            .into_iter()
            .filter(|request| {
                let host: u64 = request.headers[HOST_HEADER].parse().unwrap();
                self.crashes.get(&host).is_none_or(|last| request.number <= *last)
            })
            .collect();
        let changes = self.changes.lock().clone();
        let mut last: HashMap<(Wire, String), (u64, Prompt)> = HashMap::new();
        for request in &requests {
            let place = format!("seed {}, request {}", self.seed, request.number);
            assert_ne!(request.status, 400, "{place} is refused: {}", request.body);
            self.counts.add("requests", 1);
            let prompt = Prompt::read(request.wire, &request.body);
            if prompt.is_summary() {
                self.counts.add("summaries", 1);
                continue;
            }
            let model = match request.wire {
                Wire::GeminiGenerate => {
                    let name = request.path.rsplit('/').next().unwrap().split(':').next().unwrap();
                    name.to_owned()
                }
                _ => request.body["model"].as_str().unwrap().to_owned(),
            };
            let of = (request.wire, model);
            let before = last.insert(of.clone(), (request.number, prompt.clone()));
            let Some((number, before)) = before else { continue };
            let Some(difference) = prompt.difference(&before) else { continue };
            // A request that was abandoned on its way may arrive after its successor, which the next one then
            // continues. The service may answer it before it sees that the client has left.
            if before.difference(&prompt).is_none() {
                last.insert(of, (number, before));
                self.counts.add("late requests", 1);
                continue;
            }
            // A request that was just sent may not have been received.
            let between: Vec<_> = changes
                .iter()
                .filter(|(received, _)| (number - 1..request.number).contains(received))
                .map(|(_, change)| change)
                .collect();
            let overrides = |number: u64| {
                changes.iter().rev().find_map(|(received, change)| match change {
                    Change::Run(overrides) if *received < number => Some(overrides.clone()),
                    _ => None,
                })
            };
            let reads_tools = between.iter().any(|c| matches!(c, Change::Run(_) | Change::Host));
            let reason = if between.contains(&&Change::Context) {
                "breaks: context"
            } else if between.contains(&&Change::ServerTools) {
                "breaks: tools of servers"
            } else if overrides(number) != overrides(request.number) {
                "breaks: overrides"
            } else if difference == "tools" && reads_tools {
                "breaks: tools of the program"
            } else {
                panic!(
                    "{place}: {difference} after request {number}: {between:?}\n{}\n{}",
                    before.show(),
                    prompt.show()
                )
            };
            self.counts.add(reason, 1);
        }
        self.counts.add("sessions", 1);
        self.counts
    }
}

/// The prompt of a request, in a form that is the same for all wires.
#[derive(Clone, Debug)]
struct Prompt {
    tools: Value,
    system: Value,
    /// The texts, calls, results and images of the messages in order, each with its role.
    parts: Vec<(String, Value)>,
}

impl Prompt {
    fn read(wire: Wire, body: &Value) -> Self {
        let mut body = body.clone();
        remove_breakpoints(&mut body);
        let (system, messages) = match wire {
            Wire::OpenaiChat | Wire::OllamaChat => (Value::Null, &body["messages"]),
            Wire::OpenaiResponses => (body["instructions"].clone(), &body["input"]),
            Wire::AnthropicMessages => (body["system"].clone(), &body["messages"]),
            Wire::GeminiGenerate => (body["systemInstruction"].clone(), &body["contents"]),
        };
        let mut parts: Vec<(String, Value)> = Vec::new();
        for message in messages.as_array().unwrap() {
            let role = message["role"].as_str().unwrap_or("item").to_owned();
            let mut rest = message.clone();
            for member in ["content", "parts"] {
                let content = rest.as_object_mut().unwrap().remove(member);
                let new = match content {
                    Some(Value::Array(items)) => items,
                    Some(Value::String(text)) => vec![json!({"type": "text", "text": text})],
                    Some(other) => vec![other],
                    None => Vec::new(),
                };
                for part in new {
                    // The texts of a user are one text, or several.
                    if let (Some((last_role, last)), "user", Some(text)) =
                        (parts.last_mut(), &*role, part["text"].as_str())
                        && last_role == "user"
                        && let Some(before) = last["text"].as_str()
                        && wire == Wire::OpenaiChat
                    {
                        *last = json!({"type": "text", "text": format!("{before}\n\n{text}")});
                    } else {
                        parts.push((role.clone(), part));
                    }
                }
            }
            if rest.as_object().unwrap().keys().any(|key| key != "role") {
                parts.push((role, rest));
            }
        }
        Self { tools: body["tools"].clone(), system, parts }
    }

    fn is_summary(&self) -> bool {
        let text = self.parts.iter().rev().find_map(|(_, part)| part["text"].as_str());
        text.is_some_and(|text| text.contains(SUMMARY))
    }

    /// Returns the part that does not continue another prompt.
    fn difference(&self, before: &Self) -> Option<&'static str> {
        let continues = |(before, after): (&(String, Value), &(String, Value))| {
            before == after
                || (before.0 == "user"
                    && before.0 == after.0
                    && before.1["text"]
                        .as_str()
                        .zip(after.1["text"].as_str())
                        .is_some_and(|(before, after)| after.starts_with(before)))
        };
        if self.system != before.system {
            return Some("system");
        }
        let last = before.parts.len().saturating_sub(1);
        let is_same = self.parts.get(..last) == before.parts.get(..last)
            && before.parts.len() <= self.parts.len()
            && before.parts.iter().zip(&self.parts).skip(last).all(continues);
        match (is_same, self.tools == before.tools) {
            (true, true) => None,
            (true, false) => Some("tools"),
            (false, _) => Some("messages"),
        }
    }

    fn show(&self) -> String {
        let parts = self.parts.iter().map(|(role, part)| format!("\n  {role}: {part}"));
        format!("{}{}", self.system, parts.collect::<String>())
    }
}

fn remove_breakpoints(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(remove_breakpoints),
        Value::Object(members) => {
            members.remove("cache_control");
            members.values_mut().for_each(remove_breakpoints);
        }
        _ => {}
    }
}

/// Returns the breaks that a host has counted, by reason.
fn counted_breaks(host: &Host) -> impl Iterator<Item = (&'static str, u64)> {
    let page = host.telemetry().render();
    PromptChange::ALL.into_iter().map(move |reason| {
        let reason = reason.as_str();
        let line = format!("callsheet_prompt_prefix_breaks_total{{reason=\"{reason}\"}} ");
        let value = page.lines().find_map(|found| found.strip_prefix(&line));
        (reason, value.and_then(|value| value.parse().ok()).unwrap())
    })
}

async fn random_session(seed: u64) -> Counts {
    let mut world = World::new(seed).await;
    world.start().await;
    for _ in 0..2 + world.random.below(7) {
        world.step().await;
    }
    world.until_idle().await;
    let (host, ..) = world.host.take().unwrap();
    for (reason, count) in counted_breaks(&host) {
        if reason == "unexplained" {
            assert_eq!(count, 0, "seed {seed}: unexplained breaks are counted");
        }
    }
    let page = host.telemetry().render();
    assert!(page.contains("\ncallsheet_history_repairs_total 0\n"), "seed {seed}: {page}");
    journals_are_whole(&host);
    timeout(3 * SOON, host.shutdown()).await.unwrap();
    world.check()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_prompts_of_random_sessions_only_grow_except_where_a_record_says_why() {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse().ok());
    let first: u64 = number("CALLSHEET_PREFIX_FIRST").unwrap_or(0);
    let sessions: u64 = number("CALLSHEET_PREFIX_SESSIONS").unwrap_or(150);
    let seeds = futures::stream::iter(first..first + sessions);
    let session = |seed| async move { (seed, spawn(random_session(seed)).await) };
    let mut running = seeds.map(session).buffer_unordered(8);
    let mut counts = Counts::default();
    while let Some((seed, ended)) = running.next().await {
        counts += ended.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    println!("{counts:?}");
    let expected = [
        "requests",
        "summaries",
        "steers",
        "stops",
        "killed actors",
        "hibernations",
        "crashes",
        "shutdowns",
        "asked to compact",
        "breaks: context",
        "breaks: tools of servers",
        "breaks: overrides",
    ];
    if sessions >= 150 {
        for what in expected {
            assert!(counts.0.get(what).is_some_and(|count| *count > 0), "{what}: {counts:?}");
        }
        let late = counts.0.get("late requests").copied().unwrap_or(0);
        assert!(late * 100 < counts.0["requests"], "{counts:?}");
    }
}
