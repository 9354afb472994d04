//! A host that a program builds: tools are offered, mistakes are errors, and no file appears unasked.
#![expect(clippy::unwrap_used, clippy::wildcard_enum_match_arm, reason = "a test")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;
use std::time::Duration;

use callsheet::config::{ApiKey, Config, JournalEngine, Limits};
use callsheet::journal::{Journal, MemoryJournal};
use callsheet::message::Message;
use callsheet::model::{ModelReply, ModelRequest, ModelSource, ModelStream};
use callsheet::prelude::*;
use callsheet::server::{ServerOptions, serve};
use callsheet::testing::FakeModel;
use callsheet::tool::{ApprovalPolicy, BuiltinOptions, ToolSource, ToolSourceContext};
use callsheet::types::{ProviderError, ProviderErrorKind};
use callsheet::wire::Delta;
use callsheet::{Seq, SessionQuery, SessionState};
use serde_json::json;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct CountWordsInput {
    text: String,
}

struct CountWords;

#[async_trait::async_trait]
impl Tool for CountWords {
    fn spec(&self) -> ToolSpec {
        ToolSpec::new::<CountWordsInput>("count_words", "Counts the words of a text.").pure()
    }

    async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let input: CountWordsInput = context.input()?;
        Ok(format!("{} words", input.text.split_whitespace().count()).into())
    }
}

const PROMPT: &str = "Count the words of \"one two three\".";

fn unreachable_model() -> ModelConfig {
    let base_url = BaseUrl::parse("http://127.0.0.1:9/v1").unwrap();
    ModelConfig::new(base_url, "m").with(|new| new.max_attempts = 1)
}

#[tokio::test]
async fn a_tool_of_the_builder_is_offered() {
    let host = Host::builder().tool(CountWords).start().await.unwrap();
    let session = host.open_session(OpenSession::default()).await.unwrap();
    let report = session.run(PROMPT).await.unwrap();
    assert_eq!(report.calls.len(), 1);
    assert_eq!(report.calls[0].result, "3 words");
    assert!(report.text().unwrap().contains("3 words"), "{}", report.text);
    host.shutdown().await;
}

#[tokio::test]
async fn configure_changes_the_agent_that_a_host_without_agents_gets() {
    let models = || {
        let model = FakeModel::replies([ModelReply::text("aye")]);
        (Host::builder().model_source("fake", model.clone()), model)
    };
    let (builder, model) = models();
    let builder = builder.configure(|config| {
        for agent in config.agents.values_mut() {
            agent.system = "You talk like a pirate.".to_owned();
        }
    });
    let host = builder.start().await.unwrap();
    assert_eq!(host.open_session("one").await.unwrap().run("hi").await.unwrap().text, "aye");
    assert_eq!(model.requests()[0].system.as_deref(), Some("You talk like a pirate."));
    host.shutdown().await;

    // An agent that is not changed is not added to those of the program.
    let (builder, model) = models();
    let builder = builder.configure(|config| config.host.max_queued_inputs = 7);
    let host = builder.agent("cook", AgentConfig::new("fake")).start().await.unwrap();
    assert_eq!(host.open_session("one").await.unwrap().run("hi").await.unwrap().text, "aye");
    assert_eq!(model.requests()[0].system, None);
    host.shutdown().await;
}

/// Runs the test above in an empty folder: the working directory is that of the whole process.
#[test]
fn a_host_without_a_journal_stores_nothing() {
    let name = format!("callsheet-stores-nothing-{}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let mut program = std::process::Command::new(std::env::current_exe().unwrap());
    program.current_dir(&folder).args(["--exact", "builder::a_tool_of_the_builder_is_offered"]);
    let output = program.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    std::fs::remove_dir(&folder).unwrap();
}

#[tokio::test]
async fn mistakes_are_errors_of_the_start() {
    let error = |builder: HostBuilder| async { builder.start().await.unwrap_err().to_string() };
    let misspelt = AgentConfig::new("rehearsal").tools(["cuont_words"]);
    let found = error(Host::builder().agent("a", misspelt).register(CountWords)).await;
    assert_eq!(
        found,
        "start the host: agents.a.tools[0]: no tool is called \"cuont_words\" (known: count_words)"
    );
    let found = error(Host::builder().tool(CountWords).tool(CountWords)).await;
    assert!(found.contains("\"count_words\": another tool has this name"), "{found}");
    let no_turns = Limits::default().with(|new| new.max_turns = Some(0));
    let found = error(Host::builder().agent("a", AgentConfig::new("rehearsal").limits(no_turns)));
    assert_eq!(found.await, "start the host: agents.a.limits.max_turns: must be at least 1");
    let models = Host::builder().model("a", unreachable_model()).model("b", unreachable_model());
    assert!(error(models).await.contains("several models but no agent"));
    let found = error(Host::builder().agent("a", AgentConfig::new("main"))).await;
    assert!(found.contains("agents.a.model: no model is called \"main\""), "{found}");
    let no_root =
        BuiltinOptions::default().with(|new| new.read_file_root = Some("/no/root".into()));
    let found = error(Host::builder().builtin_tools(&no_root)).await;
    assert!(found.starts_with("start the host: open read_file.root /no/root: "), "{found}");
    // This program is no launcher.
    let program = "[tools.t]\nkind = \"command\"\ndescription = \"d\"\ncommand = [\"true\"]\n";
    let found = error(Host::builder().config(parsed(program)).configured_tools()).await;
    assert!(found.contains("callsheet.toml:") && found.contains(" tools.t."), "{found}");
}

fn parsed(text: &str) -> Config {
    Config::parse(text, "callsheet.toml", &|_| None).unwrap()
}

#[tokio::test]
async fn built_in_and_configured_tools_are_registered() {
    let mut config = parsed(
        "[agents.default]\ntools = [\"calculator\", \"weather\"]\n[tools.weather]\nkind = \"http\"\n\
         description = \"d\"\nurl = \"https://example.com/\"\n",
    );
    config.journal.engine = JournalEngine::Memory;
    // They are registered at the start, so the configuration may follow.
    let configured = Host::builder().configured_tools().config(config.clone());
    let builtin = Host::builder().builtin_tools(&BuiltinOptions::default()).config(config);
    let error = configured.clone().start().await.unwrap_err().to_string();
    assert!(error.contains("no tool is called \"calculator\""), "{error}");
    let error = builtin.clone().start().await.unwrap_err().to_string();
    assert!(error.contains("is not registered: call HostBuilder::configured_tools"), "{error}");
    let host = builtin.configured_tools().start().await.unwrap();
    host.shutdown().await;
}

#[test]
fn built_in_tools_have_the_options_of_the_configuration() {
    let file = "[tools.read_file]\nroot = \"docs\"\n[tools.http_get]\nallow = [\"10.0.0.0/8\"]\n";
    let options = BuiltinOptions::default().with(|options| {
        options.read_file_root = Some("docs".into());
        options.http_get_allow = vec!["10.0.0.0/8".to_owned()];
    });
    assert_eq!(BuiltinOptions::from(&parsed(file)), options);
    assert_eq!(BuiltinOptions::from(&parsed("")), BuiltinOptions::default());
}

#[test]
fn methods_set_what_keys_of_the_configuration_file_set() {
    let file = parsed(
        "[console]\nenabled = false\nrequests = true\n\
         [journal]\ndurability = \"relaxed\"\nresume = \"manual\"\n\
         [models.m]\nbase_url = \"http://127.0.0.1:9/v1\"\nmodel = \"m\"\nprompt_cache = \"off\"\n\
         [agents.searches]\nmodel = \"m\"\ntool_loading = \"search\"\n\
         [agents.searches.context]\nhistory = \"compact\"\n\
         [agents.searches.limits]\non_excess = \"truncate\"\n\
         [agents.offers]\nmodel = \"m\"\ntool_loading = \"all\"\n\
         [agents.offers.limits]\non_excess = \"fail\"\n",
    );
    let config = Config::default().with(|config| {
        config.set_console(false);
        config.set_console_requests(true);
        config.journal.set_relaxed_durability(true);
        config.journal.set_manual_resume(true);
    });
    assert_eq!((config.console, config.journal), (file.console, file.journal));
    let model = unreachable_model();
    assert_ne!(model.prompt_cache, file.models["m"].prompt_cache);
    assert_eq!(model.without_prompt_cache().prompt_cache, file.models["m"].prompt_cache);
    let searches = AgentConfig::new("m")
        .search_tools(true)
        .limits(Limits::default().truncate_excess())
        .with(|agent| agent.context.set_compact_history(true));
    assert_eq!(searches, file.agents["searches"]);
    let offers = AgentConfig::new("m").search_tools(false);
    assert_eq!(offers.limits(Limits::default().fail_on_excess()), file.agents["offers"]);
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct InvalidSchema {
    #[schemars(extend("maxLength" = "long"))]
    #[expect(dead_code, reason = "only its schema matters")]
    text: String,
}

#[tokio::test]
async fn a_tool_with_an_invalid_schema_is_an_error() {
    let tool = ToolSpec::named("find", "Finds.").into_tool(async |_: InvalidSchema, _| Ok(0));
    let error = Host::builder().tool(tool).start().await.unwrap_err().to_string();
    let expected = "register tool \"find\": the schema of its input is not a valid JSON schema: ";
    assert!(error.contains(expected), "{error}");
}

/// The end of a run is visible as soon as its events end: another run may start at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_idle_and_its_place_is_free_when_its_run_ends() {
    let answering = |_: ModelRequest| ModelReply::text("done").into_stream();
    let host = Host::builder().model_source("own", answering).configure(|config| {
        config.host.max_concurrent_runs = 1;
    });
    let host = host.start().await.unwrap();
    let first = host.open_session("first").await.unwrap();
    let second = host.open_session("second").await.unwrap();
    for _ in 0..100 {
        first.run("go").await.unwrap();
        assert_eq!(first.state(), SessionState::Idle);
        let mut run = second.start_run("go").await.unwrap();
        while run.next_event().await.unwrap().is_some() {}
        assert_eq!(second.state(), SessionState::Idle);
        let listed = host.sessions(SessionQuery::default()).await.unwrap();
        assert!(listed.iter().all(|session| session.state == SessionState::Idle), "{listed:?}");
    }
    host.shutdown().await;
}

#[tokio::test]
async fn what_is_set_twice_is_an_error_of_the_start() {
    let reply = |_: ModelRequest| ModelReply::text("hi").into_stream();
    let agent = || AgentConfig::new("rehearsal");
    let memory = || Arc::new(MemoryJournal::new());
    let noop = || Arc::new(metrics::NoopRecorder);
    let new = Host::builder;
    for (builder, expected) in [
        (new().agent("a", agent()).agent("a", agent()), "agent \"a\" is set twice"),
        (
            new().model("m", unreachable_model()).model("m", unreachable_model()),
            "model \"m\" is set twice",
        ),
        (
            new().model_source("own", reply).model_source("own", reply),
            "model_source \"own\" is set twice",
        ),
        (
            new().metrics_label("host", "a").metrics_label("host", "b"),
            "metrics_label \"host\" is set twice",
        ),
        (new().recorder(noop()).recorder(noop()), "recorder is set twice"),
        (new().journal(memory()).journal(memory()), "journal is set twice"),
        (
            new().sqlite("no-such-directory").journal(memory()),
            "HostBuilder::sqlite and HostBuilder::journal: a host has one journal",
        ),
        (new().agent("a", agent()).config(parsed("")), "call HostBuilder::config before agent"),
        (new().configure(|_| ()).config(parsed("")), "call HostBuilder::config before configure"),
    ] {
        let error = builder.start().await.unwrap_err().to_string();
        assert_eq!(error, format!("start the host: {expected}"));
    }
    assert!(!Path::new("no-such-directory").exists());
    // A program may replace an agent of a file, and give a source the limits of a model.
    let file = "[journal]\nengine = \"memory\"\n[agents.default]\nmodel = \"rehearsal\"\n";
    let limits = ModelConfig::for_source("own").with(|new| new.max_attempts = 1);
    let host = Host::builder().config(parsed(file)).agent("default", AgentConfig::new("own"));
    let host = host.model_source("own", reply).model("own", limits).start().await.unwrap();
    assert_eq!(host.open_session("s").await.unwrap().run("?").await.unwrap().text, "hi");
    host.shutdown().await;
}

#[tokio::test]
async fn a_tool_without_time_is_an_error() {
    let hurried = ToolSpec::named("hurried", "").timeout(Duration::ZERO);
    let hurried = Host::builder().tool(hurried.into_tool(async |(): (), _| Ok(1))).start();
    let error = hurried.await.unwrap_err().to_string();
    assert!(error.contains("its time limits must be longer than 0"), "{error}");
}

#[tokio::test]
async fn a_dropped_host_ends_the_events_with_an_error_and_frees_its_directory() {
    let directory = std::env::temp_dir().join(format!("callsheet-drop-{}", std::process::id()));
    let silent = |_: ModelRequest| -> ModelStream { Box::pin(futures::stream::pending()) };
    let host = Host::builder().model_source("own", silent).sqlite(&directory);
    let host = host.start().await.unwrap();
    let session = host.open_session("demo").await.unwrap();
    let mut run = session.start_run("go").await.unwrap();
    assert!(session.approvals().await.unwrap().is_empty());
    drop(host);
    assert_eq!(run.next_event().await.unwrap_err(), HostError::SessionClosed);
    // The run and the session still exist, and the directory is free all the same.
    // Its start waits until the dropped host has ended.
    let answering = |_: ModelRequest| ModelReply::text("done").into_stream();
    let host = Host::builder().model_source("own", answering).sqlite(&directory).start();
    let host = host.await.unwrap();
    assert_eq!(session.run("again").await.unwrap_err(), HostError::SessionClosed);
    host.shutdown().await;
    drop((run, session));
    std::fs::remove_dir_all(&directory).unwrap();
}

#[tokio::test]
async fn one_host_at_a_time_uses_a_journal_of_the_program() {
    let journal = Arc::new(MemoryJournal::new());
    let start = async |reply: &'static str| {
        let reply = move |_: ModelRequest| ModelReply::text(reply).into_stream();
        Host::builder().model_source("own", reply).journal(journal.clone()).start().await
    };
    let host = start("one").await.unwrap();
    let session = host.open_session("demo").await.unwrap();
    assert_eq!(session.run("?").await.unwrap().text, "one");
    let error = start("two").await.unwrap_err().to_string();
    assert!(error.contains("a running host of this program uses the journal"), "{error}");
    // A dropped host ends soon, although its session still exists, and writes nothing more.
    drop(host);
    let host = start("three").await.unwrap();
    session.run("?").await.unwrap_err();
    let next = host.session(session.id());
    assert_eq!(next.run("?").await.unwrap().text, "three");
    host.shutdown().await;
    let host = start("four").await.unwrap();
    let report = host.session(session.id()).run("?").await.unwrap();
    assert_eq!((report.text.as_str(), report.all_messages().len()), ("four", 6));
    host.shutdown().await;
    let entries = journal.read(session.id(), Seq(0)).await.unwrap();
    let problems = callsheet::journal::verify(session.id(), &entries);
    assert!(problems.is_empty(), "{problems:?}");
}

#[tokio::test]
async fn hosts_with_one_recorder_have_labels_that_differ() {
    let recorder = Arc::new(metrics::NoopRecorder);
    let start = async |label: &str| {
        Host::builder().recorder(recorder.clone()).metrics_label("host", label).start().await
    };
    let (one, two) = (start("a").await.unwrap(), start("b").await.unwrap());
    let session = one.open_session("demo").await.unwrap();
    let error = start("a").await.unwrap_err().to_string();
    assert!(error.contains("tell them apart with HostBuilder::metrics_label"), "{error}");
    one.shutdown().await;
    drop(two);
    // Free again, although a session of the first host still exists.
    let (one, two) = (start("a").await.unwrap(), start("b").await.unwrap());
    one.shutdown().await;
    two.shutdown().await;
    drop(session);
}

#[test]
#[should_panic(expected = "timers are disabled")]
fn a_runtime_without_timers_is_an_error_of_the_start() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let reply = |_: ModelRequest| ModelReply::text("hi").into_stream();
    // It panics, as outside of a runtime.
    let _ = runtime.block_on(Host::builder().model_source("own", reply).start());
}

#[tokio::test]
async fn a_failed_run_has_no_text() {
    let host = Host::builder().model("main", unreachable_model()).start().await.unwrap();
    let session = host.open_session(OpenSession::default()).await.unwrap();
    let report = session.run("hello").await.unwrap();
    let failed = report.text().unwrap_err();
    assert!(failed.to_string().starts_with("the run ended as failed: "), "{failed}");
    host.shutdown().await;
}

#[tokio::test]
async fn a_session_continues_after_a_restart() {
    let directory = std::env::temp_dir().join(format!("callsheet-builder-{}", std::process::id()));
    let mut lengths = Vec::new();
    for _ in 0..2 {
        let host = Host::builder().sqlite(&directory).start().await.unwrap();
        let open = OpenSession::default().with(|new| new.id = Some("demo".to_owned()));
        let session = host.get_or_open_session(open).await.unwrap();
        let report = session.run("hello").await.unwrap();
        lengths.push((report.context_messages().len(), report.all_messages().len()));
        // A host of the library does not listen, so the error names its process alone.
        let refused = Host::builder().sqlite(&directory).start().await.unwrap_err().to_string();
        let holder = format!(": pid {} uses it", std::process::id());
        assert!(refused.contains(&holder), "{refused}");
        host.shutdown().await;
    }
    assert_eq!(lengths, [(0, 2), (2, 4)]);
    std::fs::remove_dir_all(directory).unwrap();
}

#[tokio::test]
async fn an_address_that_others_reach_needs_a_token() {
    let host = Host::builder().start().await.unwrap();
    for token in [None, Some(ApiKey::new("fifteen-letters").unwrap())] {
        let listener = tokio::net::TcpListener::bind("0.0.0.0:0").await.unwrap();
        let options = ServerOptions::default().with(|options| options.token = token);
        let refused = serve(listener, host.clone(), options).unwrap_err().to_string();
        let needed = "needs tokens (ServerOptions::token) with at least 16 characters";
        assert!(refused.ends_with(&format!("is not loopback and {needed}")), "{refused}");
    }
    host.shutdown().await;
}

/// A model that calls `report` until it has a result, and then repeats the result.
struct Reporter;

impl ModelSource for Reporter {
    fn respond(&self, request: ModelRequest) -> ModelStream {
        let answer = match request.messages.last().map(|message| &**message) {
            Some(Message::Tool { content, .. }) => ModelReply::text(&**content),
            _ => {
                let name =
                    request.tools.iter().map(|tool| &tool.name).find(|t| t.contains("report"));
                ModelReply::call(name.cloned().unwrap_or_default(), json!({}))
            }
        };
        answer.into_stream()
    }
}

/// Offers a tool that is different in each session and has a different name in each run.
#[derive(Default)]
struct Reports(AtomicU32);

impl ToolSource for Reports {
    fn tools(&self, run: &ToolSourceContext<'_>) -> Vec<Arc<dyn Tool>> {
        let text = format!("report of {} for {}", run.session, run.agent);
        let number = self.0.fetch_add(1, Ordering::Relaxed);
        let spec = ToolSpec::named(format!("report_{number}"), "Returns the report.");
        let report = spec.into_tool(move |(): (), _| {
            let text = text.clone();
            async move { Ok(text) }
        });
        let invalid = ToolSpec::named("no name", "").into_tool(async |(): (), _| Ok(1));
        vec![Arc::new(report), Arc::new(invalid)]
    }
}

#[tokio::test]
async fn models_and_tools_of_sources_are_used() {
    let sources = Host::builder().model_source("own", Reporter).tool_source(Reports::default());
    let host = sources.start().await.unwrap();
    let session = host.open_session("demo").await.unwrap();
    let mut names = Vec::new();
    for _ in 0..2 {
        let report = session.run("Report.").await.unwrap();
        assert_eq!(report.text().unwrap(), "report of demo for default");
        names.push(report.calls[0].tool_name.clone());
    }
    assert_ne!(names[0], names[1]);
    host.shutdown().await;
}

#[tokio::test]
async fn a_failing_model_source_is_retried_and_a_panic_is_not() {
    let requests = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&requests);
    let model = move |request: ModelRequest| -> ModelStream {
        let number = counted.fetch_add(1, Ordering::SeqCst);
        let input = format!("{:?}", request.messages.last());
        assert!(!input.contains("panic"), "as requested");
        match number {
            0 => {
                let error = ProviderError::new(ProviderErrorKind::Transport, "it broke");
                Box::pin(futures::stream::iter([Ok(vec![Delta::Text("a".into())]), Err(error)]))
            }
            _ => ModelReply::text("whole").into_stream(),
        }
    };
    let host = Host::builder().model_source("own", model).start().await.unwrap();
    let session = host.open_session("demo").await.unwrap();
    let mut run = session.start_run("go").await.unwrap();
    let mut seen = String::new();
    while let Some(event) = run.next_event().await.unwrap() {
        match event {
            RunEvent::Text(text) => seen.push_str(&text),
            RunEvent::AttemptVoided { reason, .. } => seen = format!("[{reason}]"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(seen, "[it broke]whole");
    assert_eq!(run.report.await.unwrap().text().unwrap(), "whole");
    let report = session.run("panic").await.unwrap();
    assert!(report.text().unwrap_err().to_string().ends_with("the model source panicked"));
    assert_eq!(requests.load(Ordering::SeqCst), 3);
    host.shutdown().await;
}

#[tokio::test]
async fn a_silent_model_source_reaches_its_time_limit() {
    let limits = unreachable_model().with(|new| {
        new.first_event_timeout = Duration::from_millis(20);
        new.max_attempts = 1;
    });
    let silent = |_: ModelRequest| -> ModelStream { Box::pin(futures::stream::pending()) };
    let host = Host::builder().model("own", limits).model_source("own", silent).start();
    let host = host.await.unwrap();
    let session = host.open_session("demo").await.unwrap();
    let report = session.run("go").await.unwrap();
    let failed = report.text().unwrap_err().to_string();
    assert_eq!(
        failed,
        "the run ended as failed: the model was silent for 20ms; raise the model's first_event_timeout if it needs longer"
    );
}

#[tokio::test]
async fn an_approval_is_answered_on_its_event_and_the_events_end_with_the_run() {
    let agent = AgentConfig::new("rehearsal");
    let count = ToolSpec::named("count_words", "Counts the words of a text.")
        .approval(ApprovalPolicy::BEFORE)
        .into_tool(async |input: CountWordsInput, _| Ok(input.text.split_whitespace().count()));
    let host = Host::builder().agent("default", agent).tool(count).start().await.unwrap();
    let session = host.open_session("demo").await.unwrap();
    for approved in [true, false] {
        let mut run = session.start_run(PROMPT).await.unwrap();
        let mut results = Vec::new();
        while let Some(event) = run.next_event().await.unwrap() {
            match event {
                RunEvent::ApprovalRequested(question) => {
                    assert_eq!(question.approval.tool_name, "count_words");
                    assert_eq!(*question.approval.input, json!({"text": "one two three"}));
                    match approved {
                        true => question.approve().await.unwrap(),
                        false => question.reject("not today").await.unwrap(),
                    }
                }
                RunEvent::CallEnded(call) => results.push(call.result),
                _ => {}
            }
        }
        assert_eq!(results.len(), 1);
        assert!(results[0].contains(if approved { "3" } else { "not today" }), "{results:?}");
        assert_eq!(run.report.await.unwrap().run_end.as_str(), "answered");
        assert!(run.events_are_complete);
    }
    // A run that was requested before: its events come from the journal.
    let request = RunRequest::from("Say hello.").with_idempotency_key("again");
    let text = session.run(request.clone()).await.unwrap().text;
    let mut again = session.start_run(request).await.unwrap();
    let mut seen = String::new();
    while let Some(event) = again.next_event().await.unwrap() {
        if let RunEvent::Text(text) = event {
            seen.push_str(&text);
        }
    }
    assert_eq!(seen, text);
    host.shutdown().await;
}

#[tokio::test]
async fn a_tool_starts_while_the_fake_model_still_streams() {
    let (started, mut starts) = tokio::sync::mpsc::channel(2);
    let tool =
        ToolSpec::named("count", "Counts.").pure().repeatable().into_tool(move |(): (), _| {
            let started = started.clone();
            async move {
                let _ = started.send(()).await;
                Ok(1)
            }
        });
    let reply = ModelReply::call("count", json!({})).and_call("count", json!({}));
    let model = FakeModel::replies([reply, ModelReply::text("Two.")]);
    let model = model.with_pauses(Duration::from_millis(300));
    let host = Host::builder().model_source("fake", model).tool(tool).start().await.unwrap();
    let session = host.open_session("test").await.unwrap();
    let run = session.start_run("Count.").await.unwrap();
    starts.recv().await.unwrap();
    let report = run.report.await.unwrap();
    // The model writes the second call 300 ms after the first.
    assert!(report.calls[0].started_ms < report.calls[1].started_ms);
    assert_eq!(report.text().unwrap(), "Two.");
    host.shutdown().await;
}
