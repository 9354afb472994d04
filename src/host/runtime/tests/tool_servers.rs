//! Tests of servers of tools: the frozen list, its refreshment, servers that are down.

use futures::StreamExt as _;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;

use super::engine::Engine;
use super::provider::{Reply, answer_with, calls_to};
use super::*;
use crate::journal::MemoryJournal;
use crate::telemetry::FeedItem;
use callsheet_tools::{
    ServerListing, ServerObserver, ServerState, ServerStatus, ServerToolDefinition, ToolServer,
};
use callsheet_values::config::{McpConfig, McpTransport, ServiceConfig, ToolLoading};
use callsheet_values::event::EventId;
use callsheet_values::record::{FROZEN_TOOLS, Record, StopMode, frozen_tools_key};
use callsheet_values::types::{RunEnd, ToolChoice};

/// A server of tools that answer with their own names.
pub(super) struct FakeServer {
    name: &'static str,
    status: watch::Sender<Arc<ServerStatus>>,
    runs: Mutex<u32>,
    /// The number of times that it panics.
    panics: u32,
    start_timeout: Duration,
}

impl FakeServer {
    pub(super) fn new(name: &'static str, state: ServerState, tools: &[&str]) -> Arc<Self> {
        let status = watch::Sender::new(Arc::new(status(name, state, tools)));
        let start_timeout = Duration::from_millis(200);
        Arc::new(Self { name, status, runs: Mutex::new(0), panics: 0, start_timeout })
    }

    pub(super) fn set(&self, state: ServerState, tools: &[&str]) {
        self.status.send_replace(Arc::new(status(self.name, state, tools)));
    }
}

fn status(name: &str, state: ServerState, tools: &[&str]) -> ServerStatus {
    let mut tools: Vec<_> =
        tools.iter().map(|tool| description(name, tool, "for a test")).collect();
    tools.sort_by(|one, other| one.name.cmp(&other.name));
    let is_known = !tools.is_empty();
    let listing = is_known.then(|| Arc::new(ServerListing { tools, ..ServerListing::default() }));
    ServerStatus { state, listing }
}

fn description(server: &str, tool: &str, text: &str) -> ServerToolDefinition {
    ServerToolDefinition {
        reads_resources: false,
        name: format!("{server}__{tool}"),
        server_name: tool.to_owned(),
        description: text.to_owned(),
        input_schema: json!({"type": "object", "properties": {}}),
        output_schema: None,
        annotations: None,
    }
}

#[async_trait]
impl ToolServer for FakeServer {
    fn name(&self) -> &str {
        self.name
    }

    fn start_timeout(&self) -> Duration {
        self.start_timeout
    }

    async fn run(&self, _: ServerObserver) {
        let runs = {
            let mut runs = self.runs.lock();
            *runs += 1;
            *runs
        };
        assert!(runs > self.panics, "a planned panic");
        std::future::pending().await
    }

    fn for_host(self: Arc<Self>) -> Arc<dyn ToolServer> {
        self
    }

    fn end(&self) {}

    async fn ended(&self) {}

    fn status(&self) -> watch::Receiver<Arc<ServerStatus>> {
        self.status.subscribe()
    }

    fn make_tool(&self, definition: &ServerToolDefinition) -> Result<Arc<dyn Tool>, String> {
        if definition.server_name == "broken" {
            return Err("it is broken".to_owned());
        }
        let name = definition.server_name.clone();
        let spec =
            ToolSpec { description: definition.description.clone(), ..spec(&definition.name) };
        Ok(Arc::new(tool(spec, move |_| {
            let name = name.clone();
            async move { Ok(format!("{name} answers").into()) }
        })))
    }
}

fn with_servers(servers: &[&Arc<FakeServer>]) -> ToolRegistry {
    let mut registry = registry([echo("own")]);
    for server in servers {
        registry.add_server(Arc::clone(server) as Arc<dyn ToolServer>);
    }
    registry
}

#[test]
fn a_tool_of_the_program_with_the_prefix_of_a_server_is_listed_without_a_server() {
    let mut registry = registry([echo("files__own")]);
    registry.add_server(FakeServer::new("files", ServerState::Up, &["read"]));
    let listed = callsheet_tools::list_tools(&registry, std::iter::empty(), |_| true, |_| false);
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].server, None);
}

/// Returns the names of the tools of each request, without `read_var`.
fn offered(provider: &Provider) -> Vec<Vec<String>> {
    let requests = provider.requests();
    let names = |request: &Value| -> Vec<String> {
        let tools = request["tools"].as_array().cloned().unwrap_or_default();
        let names = tools.iter().map(|tool| tool["function"]["name"].as_str().unwrap().to_owned());
        names.filter(|name| name != "read_var").collect()
    };
    requests.iter().map(names).collect()
}

fn lists(host: &Host, session: &SessionHandle) -> Vec<Arc<str>> {
    let entries = stored(host.inner.host_ref.shared.journal.read(session.id(), Seq(0)));
    let mut lists = Vec::new();
    for entry in entries {
        if let Record::ToolsFrozen { sha256 } = entry.record {
            lists.push(sha256);
        }
    }
    lists
}

/// Returns a provider that calls this tool in each run.
async fn calling(tool: &'static str) -> Provider {
    Provider::new(move |_, request| {
        let messages = request["messages"].as_array().unwrap();
        Reply::Sse(match messages.last().unwrap()["role"].as_str() {
            Some("tool") => answer_with("done"),
            _ => calls_to(&[(tool, "{}")]),
        })
    })
    .await
}

#[tokio::test]
async fn the_list_is_frozen_at_the_first_run_and_changes_only_on_request() {
    let provider = calling("files__read").await;
    let server = FakeServer::new("files", ServerState::Up, &["write", "read", "broken"]);
    let host = host(&provider, with_servers(&[&server]), |_| ()).await;
    let one = session(&host).await;
    let report = one.run("go").await.unwrap();
    assert_eq!(results(&report)["files__read"], ("success", "read answers"));
    let first = ["files__read", "files__write", "own"];
    assert_eq!(offered(&provider), [first, first]);

    server.set(ServerState::Down("it died".to_owned()), &["read", "remove"]);
    assert_eq!(one.run("again").await.unwrap().run_end, RunEnd::Answered);
    assert_eq!(offered(&provider)[2..], [first, first]);
    assert_eq!(lists(&host, &one).len(), 1);

    let other = session(&host).await;
    other.run("go").await.unwrap();
    let second = ["files__read", "files__remove", "own"];
    assert_eq!(offered(&provider)[4..], [second, second]);

    let change = one.refresh_tools().await.unwrap();
    assert_eq!(change.added, ["files__remove"]);
    assert_eq!(change.removed, ["files__broken", "files__write"]);
    assert!(change.changed.is_empty());
    assert_eq!(one.refresh_tools().await.unwrap(), ToolListChange::default());
    one.run("go").await.unwrap();
    assert_eq!(offered(&provider)[6..], [second, second]);
    assert_eq!(lists(&host, &one).len(), 2);
    assert_eq!(lists(&host, &one)[1], lists(&host, &other)[0]);
    nothing_left(&host).await;
}

#[tokio::test]
async fn a_run_waits_for_the_first_attempt_to_connect_and_can_be_stopped_meanwhile() {
    let provider = calling("files__read").await;
    let server = FakeServer::new("files", ServerState::Starting, &[]);
    let host = host(&provider, with_servers(&[&server]), |_| ()).await;
    let (waiting, stopped) = (session(&host).await, session(&host).await);
    let run = waiting.start_run("go").await.unwrap();
    let stop = stopped.start_run("go").await.unwrap();
    stopped.stop(StopMode::Now).await.unwrap();
    assert_eq!(stop.report.await.unwrap().run_end, RunEnd::Stopped);
    assert!(lists(&host, &stopped).is_empty());
    server.set(ServerState::Up, &["read"]);
    let report = run.report.await.unwrap();
    assert_eq!(results(&report)["files__read"], ("success", "read answers"));
    stopped.run("again").await.unwrap();
    assert_eq!(lists(&host, &stopped), lists(&host, &waiting));
    nothing_left(&host).await;
}

#[tokio::test]
async fn a_server_that_is_down_at_the_first_run_offers_its_last_known_tools() {
    let provider = calling("files__read").await;
    let journal: Arc<dyn Journal> = Arc::new(MemoryJournal::new());
    let up = FakeServer::new("files", ServerState::Up, &["read"]);
    let setup_with = |server: &Arc<FakeServer>| setup(&provider, with_servers(&[server]), |_| ());
    let first = start_on(setup_with(&up), Arc::clone(&journal)).await.unwrap();
    let lasting = session(&first).await;
    lasting.run("go").await.unwrap();
    let of_server = Arc::clone(&journal);
    until("the list is stored", || stored(of_server.document("server-files")).is_some()).await;
    let id = lasting.id().to_string();
    first.shutdown().await;

    let down = FakeServer::new("files", ServerState::Down("it does not start".to_owned()), &[]);
    let host = start_on(setup_with(&down), Arc::clone(&journal)).await.unwrap();
    let other = session(&host).await;
    other.run("go").await.unwrap();
    let lasting = host.get_or_open_session(&*id).await.unwrap();
    lasting.run("go").await.unwrap();
    for names in offered(&provider) {
        assert_eq!(names, ["files__read", "own"]);
    }
    assert_eq!(lists(&host, &lasting), lists(&host, &other));
    nothing_left(&host).await;
}

#[tokio::test]
async fn a_list_that_could_not_be_stored_is_stored_when_the_server_reports_it_again() {
    let provider = Provider::answering("hello").await;
    let engine = Engine::new(|inner, batch| inner.append(batch));
    engine.fail_document();
    let server = FakeServer::new("files", ServerState::Up, &["read"]);
    let setup = setup(&provider, with_servers(&[&server]), |_| ());
    let journal = Arc::clone(&engine) as Arc<dyn Journal>;
    let _host = start_on(setup, journal).await.unwrap();
    until("the list is not stored", || !engine.fails_document()).await;
    server.set(ServerState::Down("it died".to_owned()), &["read"]);
    until("the list is stored", || stored(engine.document("server-files")).is_some()).await;
}

#[tokio::test]
async fn a_run_waits_for_its_servers_at_the_same_time() {
    let provider = Provider::answering("hello").await;
    let slow = |name| {
        let server = FakeServer::new(name, ServerState::Starting, &[]);
        Arc::new(FakeServer { start_timeout: SOON, ..Arc::into_inner(server).unwrap() })
    };
    let (one, other) = (slow("one"), slow("other"));
    let host = host(&provider, with_servers(&[&one, &other]), |_| ()).await;
    let run = session(&host).await.start_run("go").await.unwrap();
    // The actor of each server reads its status too.
    until("the run waits for both", || {
        [&one, &other].iter().all(|server| server.status.receiver_count() == 2)
    })
    .await;
    one.set(ServerState::Up, &["read"]);
    other.set(ServerState::Up, &["look"]);
    run.report.await.unwrap();
    assert_eq!(offered(&provider), [["one__read", "other__look", "own"]]);
    nothing_left(&host).await;
}

#[tokio::test]
async fn a_list_is_deleted_with_the_last_session_that_uses_it() {
    let provider = calling("files__read").await;
    let server = FakeServer::new("files", ServerState::Up, &["read"]);
    let journal: Arc<dyn Journal> = Arc::new(MemoryJournal::new());
    let setup = setup(&provider, with_servers(&[&server]), |_| ());
    let host = start_on(setup, Arc::clone(&journal)).await.unwrap();
    let one = session(&host).await;
    one.run("go").await.unwrap();
    let at = one.snapshot().await.unwrap().seq;
    let fork = host.fork(&one, at, None).await.unwrap();
    let key = frozen_tools_key(&lists(&host, &one)[0]);
    // The unused lists of the last hour are kept.
    let is_kept = |before: u64| {
        stored(journal.remove_unused_documents(FROZEN_TOOLS, before));
        stored(journal.document(&key)).is_some()
    };
    let listed = Arc::clone(&journal);
    until("the list is stored", || stored(listed.document("server-files")).is_some()).await;
    assert!(is_kept(u64::MAX));
    one.delete().await.unwrap();
    assert!(is_kept(u64::MAX), "the fork uses it");
    assert_eq!(fork.run("again").await.unwrap().run_end, RunEnd::Answered);
    fork.delete().await.unwrap();
    host.inner.host_ref.shared.catalog.tool_servers.remove_unused_lists().await.unwrap();
    assert!(is_kept(0), "it was stored just now");
    assert!(!is_kept(u64::MAX));
    assert!(
        journal.document("server-files").await.unwrap().is_some(),
        "the last known list is kept"
    );
    nothing_left(&host).await;
}

#[tokio::test]
async fn a_server_that_never_starts_is_left_out_after_its_time() {
    let provider = Provider::answering("hello").await;
    let mute = FakeServer::new("mute", ServerState::Starting, &[]);
    let host = host(&provider, with_servers(&[&mute]), |_| ()).await;
    let one = session(&host).await;
    one.run("go").await.unwrap();
    assert_eq!(offered(&provider), [["own"]]);
    nothing_left(&host).await;
}

#[tokio::test]
async fn an_agent_that_names_no_server_waits_for_none() {
    let provider = Provider::answering("hello").await;
    let mute = FakeServer::new("mute", ServerState::Starting, &[]);
    let named = |config: &mut Config| {
        config.agents.get_mut("default").unwrap().tools = vec![ToolPattern::new("own")];
    };
    let host = host(&provider, with_servers(&[&mute]), named).await;
    let one = session(&host).await;
    one.run("go").await.unwrap();
    assert!(lists(&host, &one).is_empty());
    nothing_left(&host).await;
}

#[tokio::test]
async fn a_server_that_panics_runs_again() {
    let provider = Provider::answering("hello").await;
    let server = FakeServer::new("files", ServerState::Up, &["read"]);
    let server = Arc::new(FakeServer { panics: 1, ..Arc::into_inner(server).unwrap() });
    let host = host(&provider, with_servers(&[&server]), |_| ()).await;
    until("it runs again", || *server.runs.lock() == 2).await;
    session(&host).await.run("go").await.unwrap();
    nothing_left(&host).await;
}

#[tokio::test]
async fn the_overrides_of_a_run_choose_among_the_tools_of_servers() {
    let provider = Provider::answering("hello").await;
    let server = FakeServer::new("files", ServerState::Up, &["read", "write"]);
    let host = host(&provider, with_servers(&[&server]), |_| ()).await;
    let only = |names: &[&str]| {
        let mut request = RunRequest::from("go");
        request.overrides.tools = Some(names.iter().map(|name| (*name).to_owned()).collect());
        request
    };
    let one = session(&host).await;
    one.run(only(&["files__read"])).await.unwrap();
    one.run(only(&["files__w*", "own"])).await.unwrap();
    assert_eq!(offered(&provider), [vec!["files__read"], vec!["files__write", "own"]]);
    assert!(matches!(one.run(only(&["gone"])).await, Err(HostError::UnknownTool(_))));
    nothing_left(&host).await;
}

/// Returns the next event of this type, as JSON.
async fn next_of(
    events: &mut (impl futures::Stream<Item = FeedItem> + Unpin),
    kind: &str,
) -> Value {
    let found = async {
        while let Some(item) = events.next().await {
            let FeedItem::Event(event) = item else { panic!("{item:?}") };
            if let Some(event) = event.public().find(|event| event.kind == kind) {
                return serde_json::from_str(&event.json).unwrap();
            }
        }
        panic!("no {kind}")
    };
    timeout(SOON, found).await.unwrap()
}

#[tokio::test]
async fn watchers_are_told_that_a_run_waits_for_servers() {
    let provider = calling("files__read").await;
    let slow = FakeServer::new("files", ServerState::Starting, &[]);
    let quick = FakeServer::new("quick", ServerState::Up, &["look"]);
    let host = host(&provider, with_servers(&[&slow, &quick]), |_| ()).await;
    let one = session(&host).await;
    let mut early = one.watch(EventId::default()).await.unwrap();
    let run = one.start_run("go").await.unwrap();
    let told = next_of(&mut early, "run_waiting").await;
    assert_eq!((&told["waiting_for"], &told["servers"]), (&json!("server"), &json!(["files"])));
    assert_eq!(told["run_id"], json!(run.run_id));
    let waits = async || {
        let current = one.snapshot().await.unwrap().current_run;
        serde_json::to_value(current).unwrap()["waiting_for"].clone()
    };
    assert_eq!(waits().await, "server");
    // A later watcher is told, too.
    let mut late = one.watch(EventId::default()).await.unwrap();
    assert_eq!(next_of(&mut late, "run_waiting").await, told);
    slow.set(ServerState::Up, &["read"]);
    run.report.await.unwrap();
    assert_eq!(waits().await, Value::Null);
    // The session does not wait again, and a watcher who comes now reads nothing of it.
    one.run("again").await.unwrap();
    let mut after = one.watch(EventId::default()).await.unwrap();
    one.close().await.unwrap();
    while let Some(FeedItem::Event(event)) = after.next().await {
        assert!(event.public().all(|event| event.kind != "run_waiting"));
    }
    nothing_left(&host).await;
}

#[tokio::test]
async fn watchers_are_told_of_changes_of_the_tools_that_their_agent_names() {
    let provider = calling("files__read").await;
    let server = FakeServer::new("files", ServerState::Up, &["read", "write"]);
    let other = FakeServer::new("other", ServerState::Up, &["look"]);
    let host = host(&provider, with_servers(&[&server, &other]), |config| {
        naming(config, "files", &["files__*"]);
        let some = config.agents["default"].clone();
        let patterns = ["files__r*"].map(ToolPattern::new);
        let mut some = some;
        some.tools = patterns.into();
        config.agents.insert("some".to_owned(), some);
    })
    .await;
    let all = session(&host).await;
    let some = host.open_session(OpenSession::default().with_agent("some")).await.unwrap();
    let journal = Arc::clone(&host.inner.host_ref.shared.journal);
    until("the list is stored", || stored(journal.document("server-files")).is_some()).await;
    all.run("go").await.unwrap();
    let mut of_all = all.subscribe().await.unwrap();
    let mut of_some = some.subscribe().await.unwrap();
    other.set(ServerState::Up, &["look", "see"]);
    // It is also found after the server was down.
    server.set(ServerState::Down("it died".to_owned()), &["read", "write"]);
    server.set(ServerState::Up, &["read", "remove"]);
    let told = next_of(&mut of_all, "tools_changed").await;
    let change = |told: &Value| json!([told["server"], told["added"], told["removed"]]);
    assert_eq!(change(&told), json!(["files", ["files__remove"], ["files__write"]]));
    assert_eq!((&told["changed"], &told["run_id"]), (&json!([]), &Value::Null));
    let told = next_of(&mut of_some, "tools_changed").await;
    assert_eq!(change(&told), json!(["files", ["files__remove"], []]));
    // Nothing has changed in the session.
    all.run("again").await.unwrap();
    let before = ["files__read", "files__write"];
    assert_eq!(offered(&provider), [before; 4]);
    assert_eq!(lists(&host, &all).len(), 1);
    nothing_left(&host).await;
}

/// Lets the agent name these tools, some of which are of the server `name`.
fn naming(config: &mut Config, name: &str, patterns: &[&str]) {
    let service = ServiceConfig::new("http://127.0.0.1:1/mcp");
    let transport = McpTransport::Http { service, oauth: None };
    config.mcp.insert(name.to_owned(), McpConfig::new(transport));
    let patterns = patterns.iter().map(|text| ToolPattern::new(*text));
    config.agents.get_mut("default").unwrap().tools = patterns.collect();
}

/// Returns a provider that searches in its first request, then uses what it found, and answers.
async fn searching() -> Provider {
    Provider::new(move |_, request| {
        let messages = request["messages"].as_array().unwrap();
        let results = messages.iter().rev().take_while(|message| message["role"] != "user");
        let results = results.filter(|message| message["role"] == "tool");
        Reply::Sse(match results.count() {
            0 => calls_to(&[("find_tools", r#"{"query": "tool number 77"}"#)]),
            1 => calls_to(&[("use_tool", r#"{"name": "big__tool_77", "arguments": {}}"#)]),
            _ => answer_with("done"),
        })
    })
    .await
}

#[tokio::test]
async fn with_many_tools_a_request_has_only_a_search_and_its_prefix_stays() {
    let provider = searching().await;
    let names: Vec<String> = (0..500).map(|number| format!("tool_{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let server = FakeServer::new("big", ServerState::Up, &names);
    let host = host(&provider, with_servers(&[&server]), |config| {
        naming(config, "big", &["own", "big__*"]);
    })
    .await;
    let one = session(&host).await;
    for _ in 0..3 {
        let report = one.run("go").await.unwrap();
        assert_eq!(results(&report)["big__tool_77"], ("success", "tool_77 answers"));
        let found = results(&report)["find_tools"].1;
        assert!(found.lines().count() <= 5 && found.contains("\"big__tool_77\""), "{found}");
    }
    let offered = offered(&provider);
    assert_eq!(offered.len(), 9);
    assert!(offered.iter().all(|names| *names == ["find_tools", "own", "use_tool"]));
    let requests = provider.requests();
    let tools = requests[0]["tools"].to_string();
    assert!(tools.len() < 4 * 200_000 / 50, "{} bytes are more than 2 %", tools.len());
    for (before, after) in requests.iter().zip(&requests[1..]) {
        assert_eq!(before["tools"], after["tools"]);
        let (before, after) = (&before["messages"], &after["messages"]);
        let (before, after) = (before.as_array().unwrap(), after.as_array().unwrap());
        assert_eq!(before[..], after[..before.len()], "the prefix stays");
    }
    // It is decided once, and the tools of a run are found among those that it names.
    server.set(ServerState::Up, &["tool_1"]);
    let mut request = RunRequest::from("go");
    request.overrides.tools = Some(vec!["big__tool_7*".to_owned(), "own".to_owned()]);
    one.run(request).await.unwrap();
    let text = provider.requests()[9]["tools"].to_string();
    assert!(text.contains("There are 11 tools: big (11)"), "{text}");
    nothing_left(&host).await;
}

#[tokio::test]
async fn more_named_tools_than_a_request_may_have_are_searched() {
    for (count, loading, is_searched) in [
        // With `own` and `read_var` a request has 128.
        (126, ToolLoading::All, false),
        (126, ToolLoading::Auto, false),
        (127, ToolLoading::All, true),
        (127, ToolLoading::Auto, true),
    ] {
        let provider = Provider::answering("hello").await;
        let names: Vec<String> = (0..count).map(|number| format!("tool_{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let server = FakeServer::new("big", ServerState::Up, &names);
        let host = host(&provider, with_servers(&[&server]), |config| {
            let named = names.iter().map(|name| format!("big__{name}"));
            let named: Vec<_> = named.chain(["own".to_owned()]).collect();
            naming(config, "big", &named.iter().map(String::as_str).collect::<Vec<_>>());
            config.agents.get_mut("default").unwrap().tool_loading = loading;
        })
        .await;
        let session = session(&host).await;
        session.run("go").await.unwrap();
        // A run that names a few of them needs no search.
        let mut request = RunRequest::from("go");
        request.overrides.tools = Some(vec!["big__tool_7".to_owned(), "own".to_owned()]);
        session.run(request).await.unwrap();
        let offered = offered(&provider);
        match is_searched {
            true => assert_eq!(offered[0], ["find_tools", "use_tool"]),
            false => assert_eq!(offered[0].len(), count + 1),
        }
        assert_eq!(offered[1], ["big__tool_7", "own"]);
        nothing_left(&host).await;
    }
}

#[tokio::test]
async fn a_tool_that_must_be_called_is_in_the_request_beside_a_search() {
    let provider = Provider::answering("hello").await;
    let server = FakeServer::new("files", ServerState::Up, &["read", "write"]);
    let host = host(&provider, with_servers(&[&server]), |config| {
        naming(config, "files", &["own", "files__*"]);
        config.agents.get_mut("default").unwrap().tool_loading = ToolLoading::Search;
    })
    .await;
    let session = session(&host).await;
    session.run("go").await.unwrap();
    let mut request = RunRequest::from("go");
    request.overrides.tool_choice = Some(ToolChoice::Tool("files__read".into()));
    session.run(request).await.unwrap();
    let offered = offered(&provider);
    assert_eq!(offered[0], ["find_tools", "own", "use_tool"]);
    for (request, offered) in provider.requests().iter().zip(&offered).skip(1) {
        assert_eq!(*offered, ["files__read", "find_tools", "own", "use_tool"]);
        assert_eq!(request["tool_choice"]["function"]["name"], "files__read");
    }
    nothing_left(&host).await;
}

#[tokio::test]
async fn few_tools_are_all_in_the_request_unless_a_search_is_wanted() {
    for (loading, patterns, expected) in [
        (ToolLoading::Auto, vec!["own", "files__*"], vec!["files__read", "own"]),
        (ToolLoading::All, vec!["own", "files__*"], vec!["files__read", "own"]),
        (ToolLoading::Search, vec!["own", "files__*"], vec!["find_tools", "own", "use_tool"]),
        (ToolLoading::Search, vec!["own", "files__read"], vec!["files__read", "own"]),
    ] {
        let provider = Provider::answering("hello").await;
        let server = FakeServer::new("files", ServerState::Up, &["read"]);
        let host = host(&provider, with_servers(&[&server]), |config| {
            naming(config, "files", &patterns);
            config.agents.get_mut("default").unwrap().tool_loading = loading;
        })
        .await;
        session(&host).await.run("go").await.unwrap();
        assert_eq!(offered(&provider), [expected]);
        nothing_left(&host).await;
    }
}

#[tokio::test]
async fn a_search_is_offered_only_if_it_finds_a_tool_of_the_run() {
    let provider = Provider::answering("hello").await;
    let host = host(&provider, registry([echo("own")]), |config| {
        config.agents.get_mut("default").unwrap().tool_loading = ToolLoading::Search;
    })
    .await;
    let one = session(&host).await;
    for names in [vec![], vec!["own"], vec!["o*"]] {
        let mut request = RunRequest::from("go");
        request.overrides.tools = Some(names.into_iter().map(str::to_owned).collect());
        one.run(request).await.unwrap();
    }
    assert_eq!(offered(&provider), [vec![], vec!["own"], vec!["find_tools", "use_tool"]]);
    nothing_left(&host).await;
}
