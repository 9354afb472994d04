//! The binary: its output on stdout and stderr, and its exit status.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use callsheet_mock_provider::{MockProvider, Script};
use serde_json::{Value, json};

const PROMPT: &str = "What time is it in Tokyo and in Beijing, and what is 17 % of 2,350?";

/// A temporary directory, so that no `callsheet.toml` is found.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("cli-{name}"));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn with(self, file: &str, text: &str) -> Self {
        std::fs::write(self.0.join(file), text).unwrap();
        self
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_callsheet"));
        command.args(args).current_dir(&self.0).stdin(Stdio::null());
        for name in ["CALLSHEET_TOKEN", "CALLSHEET_STREAM", "CALLSHEET_MULTI_TOOL_CALLS"] {
            command.env_remove(name);
        }
        command.env_remove("CALLSHEET_LOG").env_remove("RUST_LOG");
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    pub(crate) fn start(&self, args: &[&str]) -> Child {
        self.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn events(output: &Output) -> Vec<Value> {
    stdout(output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub(crate) fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status();
    assert!(sent.unwrap().success());
}

#[test]
fn run_prints_only_the_answer_on_stdout() {
    let output = Folder::new("answer").run(&["run", PROMPT]);
    let (out, err) = (stdout(&output), stderr(&output));
    assert_eq!(output.status.code(), Some(0), "{err}");
    assert!(out.contains("399.5") && out.ends_with('\n'), "{out}");
    assert!(!out.contains('✓') && !err.contains('\x1b'), "{out}{err}");
    assert!(err.starts_with("callsheet: the offline rehearsal model answers"), "{err}");
    let calls: Vec<&str> = err.lines().filter(|line| line.starts_with('✓')).collect();
    assert_eq!(calls.len(), 3, "{err}");
    assert!(calls[0].starts_with("✓ clock {\"zone\":\"Asia/Tokyo\"}"), "{err}");
    assert!(calls[2].contains("399.5"), "{err}");
}

#[test]
fn run_json_prints_one_event_per_line() {
    let folder = Folder::new("json");
    let output = folder.run(&["run", "--json", "--execution", "parallel", PROMPT]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let events = events(&output);
    let (first, last) = (events.first().unwrap(), events.last().unwrap());
    assert_eq!(
        (&first["type"], &first["execution"]),
        (&json!("stream_start"), &json!("parallel:16"))
    );
    assert_eq!((&last["type"], &last["run_end"]), (&json!("stream_end"), &json!("answered")));
    assert_eq!(events.iter().filter(|event| event["type"] == "tool_result").count(), 3);
}

#[test]
fn flags_and_environment_change_the_run() {
    let folder = Folder::new("flags");
    // Returns the number of calls of the first response that ran.
    let results = |args: &[&str], env: Option<(&str, &str)>| {
        let mut command = folder.command(&[&["run", "--json"], args, &[PROMPT]].concat());
        command.envs(env);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let events = events(&output);
        let first = |event: &&Value| event["type"] == "tool_result" && event["turn"] == 1;
        events.iter().filter(first).count()
    };
    assert_eq!(results(&["--stream", "false"], None), 3);
    assert_eq!(results(&["--multi-tool-calls", "false"], None), 1);
    assert_eq!(results(&[], Some(("CALLSHEET_MULTI_TOOL_CALLS", "false"))), 1);
    assert_eq!(results(&["--tools", "calc*"], None), 1);
    assert_eq!(results(&["--tools", ""], None), 0);
}

#[test]
fn wrong_usage_and_configuration_print_one_line_and_exit_2() {
    let folder = Folder::new("usage")
        .with("key.toml", "[models.m]\nbase_url='http://h/v1'\nmodel='x'\napi_key_env='NO_KEY'\n")
        .with("root.toml", "[tools.read_file]\nroot = 'no-such-folder'\n")
        .with("typo.toml", "\n[agents.default.limits]\nmax_turn = 3\n")
        .with("agent.toml", "[tools.x]\nkind='agent'\ndescription='d'\nagent='nope'\n")
        .with("schema.toml", "[agents.default]\noutput_schema = 'list.json'\n")
        .with("list.json", "{\"type\": \"array\", \"items\": {\"$ref\": \"#/x\"}}");
    let one_wire = "--wire ollama-chat: the rehearsal model speaks openai-chat only";
    let no_agent = "agent.toml:4: tools.x.agent: no agent is called \"nope\" (known: default)";
    std::fs::write(folder.0.join("latin.toml"), b"# \xe9\n").unwrap();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let used = other.local_addr().unwrap().to_string();
    for (args, part) in [
        (vec!["--nothing"], "unexpected argument '--nothing'"),
        (vec!["nothing"], "unrecognized subcommand 'nothing'"),
        (vec!["run"], "<PROMPT>"),
        (vec!["run", " "], "the prompt is empty"),
        (vec!["run", "--execution", "both", "x"], "execution must be \"sequential\""),
        (vec!["run", "--stream", "maybe", "x"], "invalid value 'maybe'"),
        (vec!["run", "--agent", "nobody", "x"], "no agent is called \"nobody\" (known: default)"),
        (vec!["run", "--model", "nobody", "x"], "no model is called \"nobody\""),
        (vec!["run", "--tools", "clok", "x"], "--tools: no tool is called \"clok\" (known: calc"),
        (
            vec!["run", "--base-url", "h", "--model", "m", "x"],
            "--base-url: \"h\" is not a base URL",
        ),
        (vec!["run", "--rehearsal", "--model", "m", "x"], "cannot be used with"),
        (vec!["run", "--config", "none.toml", "x"], "read none.toml: No such file"),
        (vec!["serve", "--config", "."], "read .: "),
        (vec!["--config", "latin.toml", "--check"], "read latin.toml: it is not UTF-8 text"),
        (
            vec!["--config", "typo.toml", "--check"],
            "typo.toml:3: agents.default.limits.max_turn: unknown key (did you mean max_turns?)",
        ),
        (
            vec!["run", "--config", "key.toml", "x"],
            "key.toml:4: models.m.api_key_env: the environment variable NO_KEY is not set",
        ),
        (
            vec!["--config", "root.toml", "--check"],
            "root.toml:2: tools.read_file.root: open no-such-folder: No such file",
        ),
        (vec!["serve", "--config", "agent.toml", "--check"], no_agent),
        (vec!["serve", "--config", "agent.toml"], no_agent),
        (vec!["run", "--config", "agent.toml", "x"], no_agent),
        (
            vec!["serve", "--config", "schema.toml", "--check"],
            "schema.toml:2: agents.default.output_schema: not a valid JSON schema: ",
        ),
        (vec!["--listen", "0.0.0.0:0"], "is not loopback and needs a token"),
        (vec!["--listen", "nowhere"], "must be an address with a port"),
        (vec!["--listen", &used], "another program uses this address"),
        (vec!["--log-format", "xml"], "a log format is \"text\" or \"json\""),
        (vec!["decode", "--wire", "smoke"], "invalid value 'smoke' for '--wire <WIRE>'"),
        (vec!["run", "--wire", "openai-chat", "x"], "--wire needs --base-url: "),
        (vec!["run", "--rehearsal", "--wire", "ollama-chat", "x"], one_wire),
        (vec!["serve", "--rehearsal", "--wire", "ollama-chat"], one_wire),
        (vec!["run", "--model", "rehearsal", "--wire", "ollama-chat", "x"], one_wire),
        (vec!["sessions", "list"], "name the data directory of a host"),
        (vec!["sessions", "list", "--data-dir", "none"], "name the data directory of a host"),
        (vec!["replay", "s", "--data-dir", "none"], "name the data directory of a host"),
        (
            vec!["serve", "--listen", "127.0.0.1:0", "--data-dir", "typo.toml"],
            "use another data directory",
        ),
        (vec!["replay", "a b"], "'<ID>': a session id has 1 to 64 characters"),
        (vec!["decode", "--wire", "openai-chat", "none.sse"], "none.sse"),
        (
            vec!["health", "localhost:7700"],
            "must be the URL of a host such as http://127.0.0.1:7700",
        ),
        (vec!["health", "http://127.0.0.1:1", "--config", "key.toml"], "cannot be used with"),
    ] {
        let output = folder.run(&args);
        let err = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {err}");
        assert_eq!(err.lines().count(), 1, "{args:?}: {err}");
        assert!(err.starts_with("callsheet: ") && err.contains(part), "{args:?}: {err}");
        assert_eq!(stdout(&output), "", "{args:?}");
    }
    drop(other);
}

#[test]
fn a_wrong_number_of_a_flag_is_named_with_the_numbers_that_are_allowed() {
    let folder = Folder::new("numbers");
    for (command, flag, allowed) in [
        (&["run", "x"][..], "--max-output-tokens", "a whole number from 1 to 4294967295"),
        (&["run", "x"], "--temperature", "a number from 0 to 2"),
        (&["sessions", "list"], "--limit", "a whole number from 0 to "),
        (&["load", "--rehearsal"], "--sessions", "a whole number from 1 to "),
        (&["load", "--rehearsal"], "--runs", "a whole number from 1 to "),
        (&["load", "--rehearsal"], "--renew-after", "a whole number from 0 to 4294967295"),
        (&["load", "--rehearsal"], "--threads", "a whole number from 1 to 1024"),
        (&["load", "--rehearsal"], "--calls", "a whole number from 0 to 64"),
        (&["load", "--rehearsal"], "--texts", "a whole number from 1 to 100000"),
        (&["load", "--base-url", "h"], "--expect-calls", "a whole number from 0 to "),
    ] {
        for value in ["abc", "-1", "99999999999999999999"] {
            let output = folder.run(&[command, &[flag, value]].concat());
            let err = stderr(&output);
            assert_eq!((output.status.code(), err.lines().count()), (Some(2), 1), "{err}");
            let start = format!("callsheet: invalid value '{value}' for '{flag} <");
            assert!(err.starts_with(&start) && err.contains(allowed), "{err}");
        }
    }
}

#[test]
fn the_default_configuration_file_is_read_and_checked() {
    let text = "[agents.writer]\nmodel = 'rehearsal'\ntools = ['clock']\n";
    let folder = Folder::new("check").with("callsheet.toml", text);
    let output = folder.run(&["serve", "--check"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let printed = stdout(&output);
    let expected = "callsheet.toml: valid (models: 1, agents: 1)\nsandboxes on this machine: ";
    assert!(printed.starts_with(expected), "{printed}");
    let output = folder.run(&["run", "--json", PROMPT]);
    assert_eq!(events(&output)[0]["agent"], "writer");
}

#[test]
fn help_exits_with_success() {
    let folder = Folder::new("help");
    for (args, part) in [
        (vec!["--help"], "Commands:"),
        (vec!["serve", "--help"], "--log-format"),
        (vec!["run", "--help"], "--multi-tool-calls"),
        (vec!["run", "--help"], "--approve"),
        (vec!["load", "--help"], "callsheet-load-*"),
        (vec!["load", "--help"], "which is deleted"),
        (vec!["decode", "--help"], "--framing"),
        (vec!["health", "--help"], "--config"),
    ] {
        let output = folder.run(&args);
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert!(stdout(&output).contains(part), "{args:?}: {}", stdout(&output));
        assert_eq!(stderr(&output), "", "{args:?}");
    }
}

#[test]
fn a_command_without_its_subcommand_prints_its_help() {
    let folder = Folder::new("bare");
    for (name, subcommand) in [("sessions", "verify"), ("tools", "import")] {
        let output = folder.run(&[name]);
        let err = stderr(&output);
        assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(2), ""), "{err}");
        assert!(err.contains("Usage: callsheet") && err.contains(subcommand), "{err}");
    }
}

#[test]
fn failed_and_limited_runs_have_their_own_exit_status() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let model = format!("[models.m]\nbase_url='http://{closed}/v1'\nmodel='x'\nmax_attempts=1\n");
    let folder = Folder::new("ends")
        .with("failed.toml", &model)
        .with("turns.toml", "[agents.a]\ntools=['*']\n[agents.a.limits]\nmax_turns=1\n");
    let failed = folder.run(&["run", "--config", "failed.toml", "x"]);
    assert_eq!(failed.status.code(), Some(1), "{}", stderr(&failed));
    assert!(stderr(&failed).lines().any(|line| line.starts_with("callsheet: ")));
    let turns = folder.run(&["run", "--config", "turns.toml", PROMPT]);
    assert_eq!(turns.status.code(), Some(3), "{}", stderr(&turns));
    let printed = stderr(&turns);
    assert!(printed.contains("! turns used: 1 of 1 (max_turns): the model is asked"), "{printed}");
    assert!(printed.contains("ended (max_turns): 1 turn, 3 calls, "), "{printed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_without_the_call_that_was_asked_for_has_the_exit_status_of_a_limit() {
    for (choice, status) in [("required", 3), ("clock", 3), ("auto", 0)] {
        let script: Script =
            serde_json::from_value(json!({ "responses": [{"text": ["No."], "repeat": true}] }))
                .unwrap();
        let model = MockProvider::with_script(script).await.unwrap();
        let folder = Folder::new("choice").with("c.toml", "[agents.a]\ntools=['clock']\n");
        let url = model.base_url();
        let flags =
            ["--config", "c.toml", "--base-url", &url, "--model", "m", "--tool-choice", choice];
        for last in [&["x"][..], &["--json", "x"]] {
            let output = folder.run(&[&["run"], &flags[..], last].concat());
            assert_eq!(output.status.code(), Some(status), "{choice}: {}", stderr(&output));
            assert!(stdout(&output).contains("No."));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_chosen_model_needs_its_key() {
    let script: Script =
        serde_json::from_value(json!({ "responses": [{"text": ["Hi."], "repeat": true}] }))
            .unwrap();
    let model = MockProvider::with_script(script).await.unwrap();
    let url = model.base_url();
    let file = format!(
        "[models.free]\nbase_url='{url}'\nmodel='x'\n\
         [models.paid]\nbase_url='http://127.0.0.1:9/v1'\nmodel='y'\napi_key_env='CALLSHEET_TEST_NO_KEY'\n\
         [agents.a]\nmodel='paid'\nfallback_models=['free']\n"
    );
    let folder = Folder::new("keys").with("c.toml", &file);
    let missing = "c.toml:7: models.paid.api_key_env: the environment variable CALLSHEET_TEST_NO_KEY is not set";
    for (flags, error) in [
        (&["--model", "free"][..], None),
        (&["--base-url", &url, "--model", "z"], None),
        (&["--rehearsal"], None),
        (&["--model", "paid"], Some(missing)),
        (&[], Some(missing)),
    ] {
        let output = folder.run(&[&["run", "--config", "c.toml"], flags, &["hello"]].concat());
        let status = if error.is_some() { 2 } else { 0 };
        assert_eq!(output.status.code(), Some(status), "{flags:?}: {}", stderr(&output));
        assert!(
            stderr(&output).contains(error.unwrap_or_default()),
            "{flags:?}: {}",
            stderr(&output)
        );
    }
}

/// Runs a prompt with a model that answers by a script. Returns the output of `callsheet run`.
async fn run_with(name: &str, responses: Value) -> Output {
    run_with_flags(name, responses, &[]).await
}

async fn run_with_flags(name: &str, responses: Value, flags: &[&str]) -> Output {
    let script: Script = serde_json::from_value(json!({ "responses": responses })).unwrap();
    let model = MockProvider::with_script(script).await.unwrap();
    let url = model.base_url();
    let args = ["run", "--base-url", &url, "--model", "m"];
    Folder::new(name).run(&[&args[..], flags, &["x"]].concat())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_error_of_a_service_is_printed_as_one_harmless_line() {
    let message = "bad \u{202e}\u{200b}\u{1b}[31m thing\nline two";
    let error = json!([{"status": 400, "error": {"error": {"message": message}}}]);
    let output = run_with("hostile", error).await;
    let printed = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    let line = printed.lines().find(|line| line.starts_with("callsheet: ")).unwrap();
    assert!(line.ends_with("bad \\u{202e}\\u{200b} [31m thing line two"), "{printed}");
    assert!(!printed.contains(['\u{1b}', '\u{202e}']), "{printed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_key_is_named_with_its_variable() {
    let refused = json!({"status": 401, "error": {"error": {"message": "boom"}}});
    let script = json!({"responses": [refused, refused]});
    let script: Script = serde_json::from_value(script).unwrap();
    let model = MockProvider::with_script(script).await.unwrap();
    let (folder, url) = (Folder::new("refused-key"), model.base_url());
    for (flags, hint) in [
        (&["--api-key-env", "A_KEY"][..], "the key in A_KEY was sent"),
        (&[], "no key was sent; name its variable with --api-key-env"),
    ] {
        let args = ["run", "--base-url", &url, "--model", "m"];
        let mut command = folder.command(&[&args[..], flags, &["x"]].concat());
        let output = command.env("A_KEY", "secret-1").output().unwrap();
        let printed = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{printed}");
        assert!(printed.ends_with(&format!(": boom ({hint})\n")), "{printed}");
        assert!(!printed.contains(&url), "the path of a URL may hold a key: {printed}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_not_complete_is_named_as_such() {
    for (finish, status, note, end) in [
        ("length", 3, "! the answer was cut off at its maximum length", "answered: 1 turn, "),
        ("content_filter", 1, "refused: 1 turn, ", "callsheet: the model or its service refused"),
    ] {
        let response = json!([{"text": ["It ", "is"], "finish_reason": finish}]);
        let output = run_with(finish, response).await;
        let printed = stderr(&output);
        assert_eq!(output.status.code(), Some(status), "{printed}");
        let mut lines = printed.lines();
        assert!(lines.next().is_some_and(|line| line.starts_with(note)), "{printed}");
        assert!(lines.next().is_some_and(|line| line.starts_with(end)), "{printed}");
    }
    let response = json!([{"text": ["It ", "is"], "finish_reason": "length"}]);
    let output = run_with_flags("allowed", response, &["--allow-truncated"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fallback_is_named_as_the_configuration_names_it() {
    let script: Script = serde_json::from_value(json!({"responses": [
        {"status": 401, "error": {"error": {"message": "boom"}}},
        {"text": ["Here."]},
    ]}))
    .unwrap();
    let model = MockProvider::with_script(script).await.unwrap();
    let url = model.base_url();
    let config = format!(
        "[models.main]\nbase_url = \"{url}\"\nmodel = \"m\"\n\
         [models.backup]\nbase_url = \"{url}\"\nmodel = \"m\"\n\
         [agents.default]\nmodel = \"main\"\nfallback_models = [\"backup\"]\n"
    );
    let output = Folder::new("fallback").with("callsheet.toml", &config).run(&["run", "x"]);
    let printed = stderr(&output);
    assert_eq!(stdout(&output), "Here.\n", "{printed}");
    let line = printed.lines().next().unwrap();
    assert!(line.starts_with("! attempt 1 with main failed: "), "{printed}");
    assert!(line.contains(": boom (see "), "{printed}");
    assert!(line.ends_with("; attempt 2 asks the fallback model backup"), "{printed}");
}

#[test]
fn without_a_terminal_calls_are_rejected_unless_approve_is_given() {
    let config = "[tools.calculator]\napproval = 'before'\n";
    let folder = Folder::new("approve").with("callsheet.toml", config);
    let reason = "nobody could be asked: there is no terminal (allow calls with --approve, or set \
                  tools.calculator.approval)";
    let output = folder.run(&["run", PROMPT]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains(reason), "{}", stdout(&output));
    let printed = stderr(&output);
    let lines: Vec<&str> = printed.lines().filter(|line| line.contains("calculator")).collect();
    assert_eq!(lines.len(), 1, "{printed}");
    assert!(lines[0].starts_with('✗') && lines[0].ends_with(reason), "{printed}");
    let output = folder.run(&["run", "--approve", PROMPT]);
    assert!(stdout(&output).contains("399.5"), "{}", stdout(&output));
    for (args, status) in [(&["--json"][..], "refused"), (&["--json", "--approve"], "success")] {
        let output = folder.run(&[&["run"], args, &[PROMPT]].concat());
        let events = events(&output);
        let approval = events.iter().find(|event| event["type"] == "tool_approval").unwrap();
        let is_result = |event: &&Value| {
            event["type"] == "tool_result" && event["tool_id"] == approval["tool_id"]
        };
        assert_eq!(events.iter().find(is_result).unwrap()["status"], status, "{args:?}");
    }
}

/// Starts a model that streams the beginning of an answer and then waits.
async fn model_that_pauses() -> MockProvider {
    let script = json!({"responses": [
        {"text": ["Now ", "then."], "holds": [{"at": {"chunk": 2}, "name": "middle"}]}
    ]});
    let script: Script = serde_json::from_value(script).unwrap();
    MockProvider::with_script(script).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupt_stops_the_run_and_reports_its_end() {
    let model = model_that_pauses().await;
    let folder = Folder::new("interrupt");
    let url = model.base_url();
    let mut child = folder.start(&["run", "--json", "--base-url", &url, "--model", "m", "x"]);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first_text = lines.find(|line| line.as_ref().unwrap().contains("content_delta"));
    assert!(first_text.is_some(), "the answer has started");
    signal(&child, "INT");
    let last: Value = serde_json::from_str(&lines.last().unwrap().unwrap()).unwrap();
    assert_eq!((&last["type"], &last["run_end"]), (&json!("stream_end"), &json!("stopped")));
    assert_eq!(last["text"], "Now ", "the text before the interrupt is kept");
    assert_eq!(child.wait().unwrap().code(), Some(130));

    // The same without --json.
    let model = model_that_pauses().await;
    let url = model.base_url();
    let child = folder.start(&["run", "--base-url", &url, "--model", "m", "x"]);
    model.wait_for_gate("middle").await;
    signal(&child, "INT");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    assert!(stderr(&output).contains("stopped: "), "{}", stderr(&output));
}

#[test]
fn an_interrupt_ends_a_run_whose_host_has_not_started() {
    let folder = Folder::new("interrupt-start");
    let data_dir = folder.0.join("callsheet-data");
    std::fs::create_dir(&data_dir).unwrap();
    // The start of the host waits for the name of the lock's holder, which never comes through the pipe.
    let path = data_dir.join("callsheet.lock");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    let lock = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    lock.lock().unwrap();
    let mut child = folder.start(&["run", "--session", "s", PROMPT]);
    let mut announced = String::new();
    BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut announced).unwrap();
    assert!(announced.contains("the offline rehearsal model answers"), "{announced}");
    signal(&child, "INT");
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &*stderr(&output)), (Some(130), ""));
    drop(lock);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_stdout_ends_the_run_without_a_panic() {
    let model = model_that_pauses().await;
    let folder = Folder::new("pipe");
    let url = model.base_url();
    let mut child = folder.start(&["run", "--json", "--base-url", &url, "--model", "m", "x"]);
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stderr(&output), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_of_json_gets_everything_and_approvals_wait_for_it() {
    // More than a pipe and the queue of a subscriber hold.
    let words: Vec<String> = (0..4000).map(|number| format!("{number} ")).collect();
    let script = json!({"responses": [
        {"text": words, "calls": [{"name": "clock", "arguments": {"zone": "Asia/Tokyo"}}]},
        {"calls": [{"name": "calculator", "arguments": {"expression": "2 + 3"}}]},
        {"text": ["It is ", "5."]},
    ]});
    let script: Script = serde_json::from_value(script).unwrap();
    let model = MockProvider::with_script(script).await.unwrap();
    let config = "[tools.calculator]\napproval = 'before'\n";
    let folder = Folder::new("slow").with("callsheet.toml", config);
    let url = model.base_url();
    let args = ["run", "--json", "--approve", "--base-url", &url, "--model", "m", "x"];
    let child = folder.start(&args);
    // The second request follows the events of the whole first response. The answer to it asks for approval.
    model.wait_until_ended(2).await;
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    let events = events(&output);
    let of =
        |kind: &str| events.iter().filter(|event| event["type"] == kind).collect::<Vec<&Value>>();
    let text = |turn: u32| {
        let deltas = of("content_delta").into_iter().filter(|event| event["turn"] == turn);
        deltas.filter_map(|event| event["text"].as_str()).collect::<String>()
    };
    assert!(text(1) == words.concat(), "the text of the first turn is printed once: {}", text(1));
    assert_eq!(text(3), "It is 5.");
    for (kind, count) in [
        ("stream_start", 1),
        ("tool_approval", 1),
        ("tool_result", 2),
        ("turn_end", 3),
        ("stream_end", 1),
        ("resync", 0),
    ] {
        assert_eq!(of(kind).len(), count, "{kind}");
    }
    assert!(of("tool_result").into_iter().all(|event| event["status"] == "success"));
    let last = events.last().unwrap();
    assert_eq!((&last["type"], &last["run_end"]), (&json!("stream_end"), &json!("answered")));
}

/// A `callsheet serve` process, its address and its stderr.
pub(crate) struct ServeProcess {
    pub(crate) child: Child,
    pub(crate) addr: SocketAddr,
    pub(crate) err: BufReader<std::process::ChildStderr>,
    pub(crate) banner: String,
}

pub(crate) fn serve(folder: &Folder, args: &[&str]) -> ServeProcess {
    let mut child = folder.start(&[&["serve", "--listen", "127.0.0.1:0"], args].concat());
    let mut err = BufReader::new(child.stderr.take().unwrap());
    let mut banner = String::new();
    while !banner.contains("Ctrl-C") {
        assert!(err.read_line(&mut banner).unwrap() > 0, "the banner broke off: {banner}");
    }
    let rest = banner.split("listening on http://").nth(1).expect("the banner names its address");
    let addr = rest.split_whitespace().next().unwrap().parse().unwrap();
    ServeProcess { child, addr, err, banner }
}

pub(crate) fn send(addr: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

pub(crate) fn post(path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

#[test]
fn serve_runs_until_a_signal() {
    for name in ["TERM", "INT", "QUIT"] {
        let folder = Folder::new(&format!("serve-{name}"));
        let ServeProcess { mut child, addr, mut err, banner } = serve(&folder, &[]);
        assert!(banner.contains("the offline rehearsal model"), "{banner}");
        assert!(banner.contains("callsheet run ") && banner.contains("curl "), "{banner}");
        for harmless in ["HUP", "USR1", "USR2", "ALRM", "VTALRM", "PROF", "XFSZ", "IO", "HUP"] {
            signal(&child, harmless);
        }
        let opened = send(addr, &post("/v1/sessions", "{\"id\":\"s\"}"));
        assert!(opened.starts_with("HTTP/1.1 201 "), "{opened}");
        let body = format!("{{\"input\":{PROMPT:?},\"wait\":true}}");
        let answered = send(addr, &post("/v1/sessions/s/runs", &body));
        assert!(answered.contains("399.5"), "{answered}");
        signal(&child, name);
        let mut rest = String::new();
        err.read_to_string(&mut rest).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0), "{rest}");
        assert_eq!(rest.matches("secrets_read_again").count(), 2, "{rest}");
        assert!(TcpStream::connect(addr).is_err(), "the host no longer listens");
    }
}

#[test]
fn serve_reads_the_files_of_tokens_again_at_a_hangup() {
    let tokens = "[[tokens]]\nname = \"ops\"\nfile = \"ops.token\"\nscope = [\"read\"]\n";
    let config = format!("[host]\ntoken_file = \"host.token\"\n{tokens}");
    let folder = Folder::new("serve-token-files")
        .with("callsheet.toml", &config)
        .with("host.token", "token-of-the-host\n")
        .with("ops.token", "token-of-ops\n");
    let ServeProcess { mut child, addr, mut err, banner } =
        serve(&folder, &["--config", "callsheet.toml"]);
    assert!(banner.contains("requests need the bearer token in host.token\n"), "{banner}");
    assert!(banner.contains("requests may carry the tokens ops\n"), "{banner}");
    assert!(banner.contains("Bearer $(cat host.token)\""), "{banner}");
    let status = |token: &str| {
        let request = format!(
            "GET /v1/sessions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             authorization: Bearer {token}\r\n\r\n"
        );
        send(addr, &request).split(' ').nth(1).unwrap().to_owned()
    };
    assert_eq!(["token-of-the-host", "token-of-ops", "other"].map(status), ["200", "200", "401"]);
    std::fs::write(folder.0.join("ops.token"), "other").unwrap();
    signal(&child, "HUP");
    while status("other") != "200" {}
    assert_eq!(["token-of-the-host", "token-of-ops"].map(status), ["200", "401"]);
    signal(&child, "TERM");
    let mut rest = String::new();
    err.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{rest}");
}

#[test]
fn serve_does_not_start_without_the_token_that_its_configuration_names() {
    let folder = Folder::new("serve-token")
        .with("callsheet.toml", "[host]\nlisten = \"127.0.0.1:0\"\ntoken_env = \"HOUSE_TOKEN\"\n");
    for token in [None, Some(""), Some(" \n")] {
        let mut command = folder.command(&["serve"]);
        command.env_remove("HOUSE_TOKEN").envs(token.map(|token| ("HOUSE_TOKEN", token)));
        let output = command.output().unwrap();
        let error = stderr(&output);
        assert_eq!((output.status.code(), error.lines().count()), (Some(2), 1), "{error}");
        assert!(error.contains("callsheet.toml:3: host.token_env: "), "{error}");
        assert!(error.contains("HOUSE_TOKEN") && error.contains("set it to the token"), "{error}");
        assert!(!folder.0.join("callsheet-data").exists());
    }
}

#[test]
fn serve_continues_after_its_stderr_is_closed() {
    let folder = Folder::new("serve-closed");
    let ServeProcess { mut child, addr, err, .. } = serve(&folder, &[]);
    drop(err);
    send(addr, &post("/v1/sessions", "{\"id\":\"s\"}"));
    for _ in 0..2 {
        let body = format!("{{\"input\":{PROMPT:?},\"wait\":true}}");
        let answered = send(addr, &post("/v1/sessions/s/runs", &body));
        assert!(answered.contains("\"run_end\":\"answered\""), "{answered}");
    }
    signal(&child, "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_host_reports_its_interrupted_runs() {
    let model = model_that_pauses().await;
    let folder = Folder::new("serve-run")
        .with("c.toml", "[host]\nshutdown_grace = '0s'\non_shutdown = 'interrupt'\n");
    let url = model.base_url();
    let args = ["--config", "c.toml", "--base-url", &url, "--model", "m"];
    let ServeProcess { mut child, addr, mut err, .. } = serve(&folder, &args);
    let report = tokio::task::spawn_blocking(move || {
        send(addr, &post("/v1/sessions", "{\"id\":\"s\"}"));
        send(addr, &post("/v1/sessions/s/runs", "{\"input\":\"x\",\"wait\":true}"))
    });
    model.wait_for_gate("middle").await;
    signal(&child, "TERM");
    let report = report.await.unwrap();
    assert!(report.contains("\"run_end\":\"interrupted\""), "{report}");
    let mut rest = String::new();
    err.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{rest}");
}

#[test]
fn each_line_of_a_host_can_be_json() {
    let folder = Folder::new("logs");
    let mut child = folder.start(&["serve", "--listen", "127.0.0.1:0", "--log-format", "json"]);
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(|line| {
        let line = line.unwrap();
        serde_json::from_str::<Value>(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    });
    let mut start = Vec::new();
    while start.last().is_none_or(|line: &Value| line["message"] != "listening") {
        start.push(lines.next().unwrap());
    }
    let says_rehearsal =
        |line: &Value| line["message"] == "agent_uses_model" && line["is_rehearsal"] == true;
    assert!(start.iter().any(says_rehearsal), "{start:?}");
    let addr = start.last().unwrap()["address"].as_str().unwrap().parse().unwrap();
    send(addr, &post("/v1/sessions", "{\"id\":\"s\"}"));
    let metadata = r#"{"user":"u-17"}"#;
    let body = format!("{{\"input\":{PROMPT:?},\"metadata\":{metadata},\"wait\":true}}");
    send(addr, &post("/v1/sessions/s/runs", &body));
    let delete = "DELETE /v1/sessions/s HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    assert!(send(addr, delete).starts_with("HTTP/1.1 204 "));
    signal(&child, "TERM");
    let rest: Vec<Value> = lines.collect();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let line = |message: &str| {
        let line = rest.iter().find(|line| line["message"] == message);
        line.unwrap_or_else(|| panic!("{message}: {rest:?}"))
    };
    line("tool_calls_detected");
    line("stopping");
    assert_eq!(line("streaming_tool_executed")["status"], "success");
    assert_eq!(line("session_deleted")["session"], "s");
    let ended = line("run_ended");
    assert_eq!(ended["metadata"], metadata);
    assert!(ended["model_ms"].as_u64().is_some_and(|ms| ms > 0), "{ended}");
}

#[test]
fn refused_requests_are_counted_and_a_few_are_logged() {
    let folder = Folder::new("refused");
    let args = ["serve", "--listen", "127.0.0.1:0", "--log-format", "json"];
    let mut command = folder.command(&args);
    command.env("CALLSHEET_TOKEN", "token-1").stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap())
        .lines()
        .map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let listening = lines.find(|line| line["message"] == "listening").unwrap();
    let addr = listening["address"].as_str().unwrap().parse().unwrap();
    let get = |path: &str, headers: &str| {
        send(addr, &format!("GET {path} HTTP/1.1\r\nconnection: close\r\n{headers}\r\n"))
    };
    let start = tokio::time::Instant::now();
    for _ in 0..30 {
        let answer = get("/v1/sessions?after=private", "host: localhost\r\n");
        assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
    }
    let seconds = start.elapsed().as_secs();
    assert!(get("/healthz", "host: evil.example\r\n").starts_with("HTTP/1.1 403 "));
    let page = get("/metrics", "host: localhost\r\nauthorization: Bearer token-1\r\n");
    for (status, count) in [(401, 30), (403, 1), (429, 0)] {
        let series = format!("\ncallsheet_http_refused_total{{status=\"{status}\"}} {count}\n");
        assert!(page.contains(&series), "{page}");
    }
    signal(&child, "TERM");
    let refused: Vec<Value> =
        lines.filter(|line| line["message"] == "http_request_refused").collect();
    assert!(child.wait().unwrap().success());
    let field = |line: &Value, name: &str| line[name].clone();
    let fields = |line: &Value| ["status", "code", "path"].map(|name| field(line, name));
    let is = |status: u16| refused.iter().filter(move |line| line["status"] == status);
    for line in is(401) {
        assert_eq!(fields(line), [json!(401), json!("unauthorized"), json!("/v1/sessions")]);
        assert!(line["client"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
    }
    let most = 5 * (seconds as usize + 2);
    assert!((5..=most).contains(&is(401).count()), "{refused:?}");
    let foreign: Vec<_> = is(403).map(fields).collect();
    assert_eq!(foreign, [[json!(403), json!("forbidden_host"), json!("/healthz")]]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn images_are_sent_with_the_prompt() {
    let script = json!({"responses": [{"text": ["A pixel."]}]});
    let script: Script = serde_json::from_value(script).unwrap();
    let model = MockProvider::with_script(script).await.unwrap();
    let folder = Folder::new("image").with("a.gif", "GIF89a");
    let url = model.base_url();
    let args = ["run", "--base-url", &url, "--model", "m", "--image", "a.gif"];
    let args = [&args[..], &["--image", "https://example.com/b.png", "What is this?"]].concat();
    let output = folder.run(&args);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stdout(&output), "A pixel.\n");
    let messages = model.requests()[0].body["messages"].clone();
    let image = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
    let content = json!([
        {"type": "text", "text": "What is this?"},
        image("data:image/gif;base64,R0lGODlh"),
        image("https://example.com/b.png"),
    ]);
    assert_eq!(messages.as_array().unwrap().last().unwrap()["content"], content);
}

#[test]
fn invalid_images_are_reported_before_the_run() {
    let folder = Folder::new("no-image").with("a.txt", "hello");
    let large = std::fs::File::create(folder.0.join("large.png")).unwrap();
    large.set_len((20 << 20) + 1).unwrap();
    for (image, reason) in [
        ("a.txt", "--image: \"a.txt\" is not a png, jpeg, gif or webp image"),
        ("none.png", "--image: read \"none.png\": "),
        (".", "--image: read \".\": "),
        ("large.png", "--image: \"large.png\" has more than 20 MiB"),
        ("data:image/png,x", "must be a data URL such as data:image/png;base64,.."),
    ] {
        let output = folder.run(&["run", "--image", image, "look"]);
        let err = stderr(&output);
        assert_eq!((output.status.code(), err.lines().count()), (Some(2), 1), "{err}");
        assert!(err.contains(reason), "{err}");
    }
}

#[test]
fn decode_prints_a_recording_as_json() {
    let folder = Folder::new("decode").with(
        "r.sse",
        "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"},\"finish_reason\":\"stop\"}]}\n\n\
         data: [DONE]\n\n",
    );
    let output = folder.run(&["decode", "--wire", "openai-chat", "r.sse"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let decoded: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(decoded["text"], "hi");
}

#[test]
fn decode_reads_calls_in_the_text() {
    let call = "Look. <tool_call>{'name': 'clock'}</tool_call>";
    let line =
        serde_json::json!({"message": {"content": call}, "done": true, "done_reason": "stop"});
    let folder = Folder::new("prompted").with("r.ndjson", &format!("{line}\n"));
    let args = ["decode", "--wire", "ollama-chat", "--tool-protocol", "hermes", "r.ndjson"];
    let output = folder.run(&args);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let decoded: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(
        (&decoded["text"], &decoded["tool_calls"][0]["name"]),
        (&"Look. ".into(), &"clock".into())
    );
    let wrong = folder.run(&["decode", "--wire", "ollama-chat", "--tool-protocol", "json"]);
    assert!(stderr(&wrong).contains("unknown tool protocol; it is one of: native,"), "{wrong:?}");
}

#[test]
fn tools_are_listed_with_the_reason_why_others_are_left_out() {
    let config = "[tools.today]\nkind = \"http\"\ndescription = \"d\"\nurl = \"http://127.0.0.1:9/\"\n\
                  approval = \"before\"\n[agents.default]\ntools = [\"today\", \"clo*\"]\n";
    let folder = Folder::new("tools").with("callsheet.toml", config);
    let output = folder.run(&["tools", "list"]);
    let text = stdout(&output);
    let lines: Vec<Vec<&str>> =
        text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NAME", "KIND", "EFFECT", "START", "IDEMPOTENT", "APPROVAL", "TOKENS"]);
    assert_eq!(lines[1][..6], ["clock", "native", "none", "on_seal", "no", "never"]);
    assert_eq!(lines[2][..6], ["today", "http", "some", "on_finish", "no", "before"]);
    assert_eq!(lines[3][..6], ["read_var", "host", "none", "on_seal", "no", "never"]);
    let tokens: u64 = lines[1..4].iter().map(|line| line[6].parse::<u64>().unwrap()).sum();
    assert!(
        text.contains("left out: calculator, get_variable, http_get, set_variable ("),
        "{text}"
    );
    let sum = format!("\nagent default offers 3 tools, about {tokens} tokens in each request\n");
    assert!(text.contains(&sum), "{text}");
    let listed: Value =
        serde_json::from_str(&stdout(&folder.run(&["tools", "list", "--json"]))).unwrap();
    assert_eq!(
        (&listed["agent"], &listed["tools"][1]["kind"]),
        (&json!("default"), &json!("http"))
    );
    assert!(
        listed["tools"][3]["left_out"].is_string() && listed["tools"][2].get("left_out").is_none()
    );
    let wrong = folder.run(&["tools", "list", "--agent", "x"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert_eq!(stderr(&wrong), "callsheet: --agent: no agent is called \"x\" (known: default)\n");
}

#[test]
fn a_tool_is_called_as_a_session_would_call_it() {
    let config = "[tools.http_get]\napproval = \"destructive\"\n\
                  [tools.calculator]\napproval = \"writes\"\n";
    let folder = Folder::new("tools-call").with("callsheet.toml", config);
    let call = |args: &[&str]| {
        let output = folder.run(&[&["tools", "call"], args].concat());
        (output.status.code().unwrap(), stdout(&output), stderr(&output))
    };
    let (status, text, error) = call(&["calculator", "expression=2 + 3"]);
    assert_eq!((status, text.as_str()), (0, "5\n"));
    // No model is asked, so no answer is reported.
    assert!(error.contains("calculator") && !error.contains("answered"), "{error}");
    let (status, text, _) = call(&["calculator", "--input", r#"{"expression": "7 * 6"}"#]);
    assert_eq!((status, text.as_str()), (0, "42\n"));
    let (status, text, _) = call(&["calculator", "expression=2 +"]);
    assert!(status == 1 && text.starts_with("Error: "), "{text}");
    let (status, text, _) = call(&["calculator", "x=1"]);
    assert!(status == 1 && text.starts_with("Error: not run: invalid arguments"), "{text}");
    let (status, text, _) = call(&["http_get", "url=http://127.0.0.1:9/"]);
    assert!(status == 1 && text.contains("set tools.http_get.approval)"), "{text}");
    let (status, text, _) = call(&["--approve", "http_get", "url=http://127.0.0.1:9/"]);
    assert!(status == 1 && text.contains("127.0.0.1 is a loopback address"), "{text}");
    for (args, expected) in [
        (&["nothing"][..], "no tool is called \"nothing\" (known: calculator, "),
        (&["calculator", "x"], "\"x\" is not KEY=VALUE; use --input for a JSON object"),
        (&["calculator", "--input", "{"], "--input: it is not JSON: EOF while parsing"),
        (&["calculator", "--input", "[]"], "--input: must be a JSON object such as"),
        (&["calculator", "--agent", "x"], "--agent: no agent is called \"x\" (known: default)"),
    ] {
        let (status, _, error) = call(args);
        assert_eq!(status, 2, "{args:?}");
        assert!(error.starts_with(&format!("callsheet: {expected}")), "{error}");
    }
    assert!(!folder.0.join("callsheet-data").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_prints_a_typed_answer_and_sends_what_its_flags_ask_for() {
    let script = json!({"responses": [
        {"text": ["It is 5."]},
        {"text": ["Here:\n```json\n{\"sum\": 5}\n```"]},
    ]});
    let script: Script = serde_json::from_value(script).unwrap();
    let model = MockProvider::with_script(script).await.unwrap();
    let schema =
        r#"{"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}"#;
    let folder = Folder::new("typed").with("sum.json", schema);
    let url = model.base_url();
    let flags = "--session s --data-dir d --output-schema sum.json --into sum --system Brief. --temperature 0.5 \
        --max-output-tokens 50 --tool-choice none --metadata user=u-1";
    let args = ["run", "--base-url", &url, "--model", "m"];
    let args = args.into_iter().chain(flags.split_whitespace()).chain(["Add."]);
    let output = folder.run(&args.collect::<Vec<_>>());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stdout(&output), "{\"sum\":5}\n");
    let body = model.requests()[1].body.clone();
    assert_eq!(body["messages"][0], json!({"role": "system", "content": "Brief."}));
    assert_eq!((&body["temperature"], &body["max_tokens"]), (&json!(0.5), &json!(50)));
    assert_eq!(body["tool_choice"], "none");
    let shown = stdout(&folder.run(&["sessions", "show", "s", "--data-dir", "d"]));
    assert!(shown.contains("output {\"sum\":5}") && shown.contains("u-1"), "{shown}");
    let verified = folder.run(&["sessions", "verify", "s", "--data-dir", "d"]);
    assert_eq!(verified.status.code(), Some(0), "{}", stderr(&verified));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_may_raise_the_maximum_length_of_a_response() {
    let script = json!({"responses": [{"text": ["Yes."]}]});
    let model = MockProvider::with_script(serde_json::from_value(script).unwrap()).await.unwrap();
    let url = model.base_url();
    let config = format!(
        "[models.main]\nbase_url = \"{url}\"\nmodel = \"m\"\nmax_output_tokens = 100\n\
         [agents.default]\nmodel = \"main\"\n"
    );
    let folder = Folder::new("raise").with("callsheet.toml", &config);
    let output = folder.run(&["run", "--max-output-tokens", "200", "x"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(model.requests()[0].body["max_tokens"], 200);
}

#[test]
fn what_a_run_cannot_ask_for_is_wrong_usage() {
    let folder = Folder::new("asks").with("bad.json", "{").with("type.json", "{\"type\": 7}");
    let child = format!("--session sub_{}", "0".repeat(32));
    for (args, part) in [
        ("--tool-choice nope", "--tool-choice: the run offers no tool \"nope\" (offered: calc"),
        ("--temperature 3", "temperature must be a number from 0 to 2, not 3"),
        ("--temperature warm", "must be a number from 0 to 2"),
        ("--max-output-tokens 0", "must be a whole number from 1 to 4294967295"),
        ("--metadata user", "--metadata: must have the form NAME=VALUE"),
        ("--metadata =u", "--metadata: a name in metadata has 1 to 64 bytes, not 0"),
        ("--output-schema none.json", "--output-schema: none.json: No such file"),
        ("--output-schema bad.json", "--output-schema: bad.json: it is not JSON: EOF while"),
        ("--output-schema type.json", "--output-schema: not a valid JSON schema"),
        ("--into=", "--into: a variable's name has 1 to 128 bytes, not 0"),
        (child.as_str(), "--session: sub_ and 32 hexadecimal digits are the id of a child session"),
    ] {
        let args = ["run"].into_iter().chain(args.split_whitespace()).chain(["x"]);
        let output = folder.run(&args.collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(2), "{part}: {}", stderr(&output));
        assert!(stderr(&output).contains(part), "{part}: {}", stderr(&output));
    }
}
