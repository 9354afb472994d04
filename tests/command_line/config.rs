//! Parses `callsheet.toml`: the meaning of each key, and the error messages.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use callsheet::config::{
    AgentConfig, ApiKey, ApprovalPolicy, BaseUrl, Config, Durability, JournalConfig, JournalEngine,
    Limits, ModelConfig, OnExcess, REHEARSAL, Resume, StartPolicy, TOKEN_ENV, TokenScope,
    ToolEffect, ToolOverride, ToolPattern, Wire,
};
use callsheet::runtime::AgentRules;
use callsheet::tool::ToolRegistry;
use callsheet::types::Execution;
use serde_json::json;

fn environment(name: &str) -> Option<String> {
    match name {
        "KEY" => Some("secret-1".to_owned()),
        "EMPTY" => Some(String::new()),
        "BLANK" => Some(" ".to_owned()),
        "TOKEN" => Some("token-1-of-the-host".to_owned()),
        "SPACED" => Some("token 1".to_owned()),
        _ => None,
    }
}

fn parse(text: &str) -> Config {
    Config::parse(text, "callsheet.toml", &environment).unwrap()
}

/// Returns the errors of a file, without the file's name.
fn complaints(text: &str) -> Vec<String> {
    let errors = Config::parse(text, "callsheet.toml", &environment).expect_err("refuse");
    let printed = errors.iter().map(ToString::to_string);
    printed.map(|line| line.strip_prefix("callsheet.toml:").unwrap_or(&line).to_owned()).collect()
}

#[test]
fn an_empty_file_configures_the_offline_host() {
    let config = Config::default();
    assert_eq!(parse("").agents, config.agents);
    assert_eq!(parse("").models, config.models);
    assert_eq!(parse("").host, config.host);
    assert_eq!(parse("").journal, config.journal);
    assert_eq!((config.console.enabled, config.console.requests), (true, false));
    assert_eq!(parse("").console, config.console);
    assert_eq!(config.journal.durability, Durability::Strict);
    assert_eq!(config.host.data_dir, PathBuf::from("./callsheet-data"));
    assert_eq!(config.host.idle_after, Some(Duration::from_secs(300)));
    assert!(config.needs_rehearsal());
    assert_eq!(config.host.listen.to_string(), "127.0.0.1:7700");
    let agent = &config.agents["default"];
    assert_eq!(agent.model, REHEARSAL);
    assert_eq!(agent.execution, Execution::Sequential);
    let tools = ["clock", "calculator", "http_get"].map(ToolPattern::new).to_vec();
    assert_eq!(agent.tools, tools);
}

#[test]
fn host_and_model_keys_are_read() {
    let config = parse(
        r#"
[host]
listen = "0.0.0.0:80"
allowed_hosts = ["Host.Example", "other.example:8080"]
allowed_origins = ["http://localhost:5173", "https://App.Example:443", "tauri://localhost"]
token_env = "TOKEN"
shutdown_grace = "0s"
max_sessions = 7
max_concurrent_runs = 3
max_queued_inputs = 5
data_dir = "/var/lib/callsheet"
idle_after = "90s"

[console]
enabled = false
requests = true

[journal]
engine = "memory"
durability = "relaxed"
resume = "manual"
keep_idle = "24h"

[models.main]
wire = "openai-chat"
base_url = "https://api.example.com/v1/"
model = "some-model"
api_key_env = "KEY"
stream = false
connect_timeout = "1s"
first_event_timeout = "2m"
idle_timeout = "250ms"
progress_timeout = "20m"
answer_timeout = "10m"
max_attempts = 1
max_concurrent_requests = 8
breaker_failures = 2
breaker_open_for = "5s"
max_output_tokens = 100
temperature = 1
headers = { X-Team = "one two" }
extra_body = { seed = 4, nested = { on = true } }
"#,
    );
    assert_eq!(config.host.listen.to_string(), "0.0.0.0:80");
    assert_eq!(config.host.allowed_hosts, ["host.example", "other.example:8080"]);
    let origins = ["http://localhost:5173", "https://app.example", "tauri://localhost"];
    assert_eq!(config.host.allowed_origins, origins);
    assert_eq!(config.host.token.as_ref().unwrap().reveal(), "token-1-of-the-host");
    assert_eq!(config.host.shutdown_grace, Duration::ZERO);
    assert_eq!((config.host.max_sessions, config.host.max_concurrent_runs), (7, 3));
    assert_eq!(config.host.max_queued_inputs, 5);
    assert_eq!(config.host.data_dir, PathBuf::from("/var/lib/callsheet"));
    assert_eq!(config.host.idle_after, Some(Duration::from_secs(90)));
    let journal = JournalConfig::default().with(|new| {
        new.engine = JournalEngine::Memory;
        new.durability = Durability::Relaxed;
        new.resume = Resume::Manual;
        new.keep_idle = Some(Duration::from_secs(86_400));
    });
    assert_eq!(config.journal, journal);
    assert_eq!((config.console.enabled, config.console.requests), (false, true));

    let model = &config.models["main"];
    assert_eq!(model.api_key.as_ref().unwrap().reveal(), "secret-1");
    let extra = serde_json::json!({"seed": 4, "nested": {"on": true}});
    let expected =
        ModelConfig::new(BaseUrl::parse("https://api.example.com/v1").unwrap(), "some-model").with(
            |new| {
                new.wire = Wire::OpenaiChat;
                new.api_key = model.api_key.clone();
                new.stream = false;
                new.connect_timeout = Duration::from_secs(1);
                new.first_event_timeout = Duration::from_secs(120);
                new.idle_timeout = Duration::from_millis(250);
                new.progress_timeout = Duration::from_secs(1_200);
                new.answer_timeout = Duration::from_secs(600);
                new.max_attempts = 1;
                new.max_concurrent_requests = NonZeroU32::new(8);
                new.breaker_failures = Some(2);
                new.breaker_open_for = Duration::from_secs(5);
                new.max_output_tokens = Some(100);
                new.temperature = Some(1.0);
                new.headers = [("x-team".to_owned(), "one two".to_owned())].into();
                new.extra_body = extra.as_object().unwrap().clone();
            },
        );
    assert_eq!(*model, expected);
    assert!(!config.needs_rehearsal());
    assert_eq!(
        config.agents["default"].model, "main",
        "an agent without a model uses the only one"
    );
}

#[test]
fn a_model_may_have_no_request_limit_and_no_breaker() {
    let text = "[models.main]\nmodel = 'x'\nbase_url = 'http://h'\n";
    let usual = &parse(text).models["main"];
    assert_eq!(usual.max_concurrent_requests, NonZeroU32::new(256));
    assert_eq!(usual.breaker_failures, Some(10));
    assert_eq!(usual.breaker_open_for, Duration::from_secs(10));
    let without = format!("{text}max_concurrent_requests = 0\nbreaker_failures = 0\n");
    let without = &parse(&without).models["main"];
    assert_eq!((without.max_concurrent_requests, without.breaker_failures), (None, None));
}

#[test]
fn agent_and_tool_keys_are_read() {
    let config = parse(
        r#"
[agents.writer]
model = "rehearsal"
system = "You write."
tools = ["clock", "http_*"]
multi_tool_calls = false
execution = { parallel = 8 }
early_start = false

[agents.writer.limits]
max_turns = 0
max_failed_turns = 1
max_tokens_per_run = 5_000_000_000
max_tool_calls_per_run = 30
repeat_limit = 0
max_tool_calls_per_turn = 2
on_excess = "fail"
tool_timeout = "0s"
cancel_grace = "5ms"
run_timeout = "24h"
max_arguments_bytes = 10
max_result_bytes = 20
max_variables_bytes = 30

[tools.read_file]
effect = "some"
start = "on_seal"
exclusive = true
idempotent = true
repeatable = true
blocking = false
max_concurrent = 4
timeout = "5s"
approval = "before"
approval_timeout = "1h"
root = "docs"

[tools.http_get]
allow = ["localhost:8080", "10.0.0.0/8", "fd00::/8", "::1", "intranet"]
"#,
    );
    let expected = AgentConfig::new(REHEARSAL).with(|new| {
        new.system = "You write.".to_owned();
        new.tools = vec![ToolPattern::new("clock"), ToolPattern::new("http_*")];
        new.multi_tool_calls = false;
        new.execution = Execution::Parallel { max: 8 };
        new.early_start = false;
        new.limits = Limits::default().with(|new| {
            new.max_turns = None;
            new.max_failed_turns = Some(1);
            new.max_tokens_per_run = Some(5_000_000_000);
            new.max_tool_calls_per_run = Some(30);
            new.repeat_limit = None;
            new.max_tool_calls_per_turn = Some(2);
            new.on_excess = OnExcess::Fail;
            new.tool_timeout = None;
            new.cancel_grace = Duration::from_millis(5);
            new.run_timeout = Some(Duration::from_secs(86_400));
            new.max_arguments_bytes = 10;
            new.max_result_bytes = 20;
            new.max_variables_bytes = 30;
        });
    });
    assert_eq!(config.agents["writer"], expected);
    assert_eq!(config.agents.len(), 1);

    let expected = ToolOverride::default().with(|new| {
        new.effect = Some(ToolEffect::Some);
        new.start = Some(StartPolicy::OnSeal);
        new.exclusive = Some(true);
        new.idempotent = Some(true);
        new.repeatable = Some(true);
        new.blocking = Some(false);
        new.max_concurrent = NonZeroU32::new(4);
        new.timeout = Some(Duration::from_secs(5));
        new.approval = Some(ApprovalPolicy::BEFORE);
        new.approval_timeout = Some(Duration::from_secs(3600));
        new.root = Some(PathBuf::from("docs"));
        new.allow = Vec::new();
    });
    assert_eq!(config.tools["read_file"], expected);
    let allow = ["localhost:8080", "10.0.0.0/8", "fd00::/8", "::1", "intranet"];
    assert_eq!(config.tools["http_get"].allow, allow);
}

#[test]
fn an_approval_may_be_asked_before_and_after_a_call() {
    let text = |value: &str| format!("[tools.clock]\napproval = \"{value}\"\n");
    for (value, before) in [
        ("before and after", ApprovalPolicy::BEFORE),
        ("writes and after", ApprovalPolicy::WRITES),
        ("destructive and after", ApprovalPolicy::DESTRUCTIVE),
    ] {
        let expected = before.union(ApprovalPolicy::AFTER);
        assert_eq!(parse(&text(value)).tools["clock"].approval, Some(expected), "{value}");
    }
    let words = "\"never\", \"destructive\", \"writes\", \"before\", \"after\", \
                 \"destructive and after\", \"writes and after\" or \"before and after\"";
    for value in ["never and after", "after and after"] {
        let expected = format!("2: tools.clock.approval: must be {words}, not {value:?}");
        assert_eq!(complaints(&text(value)), [expected]);
        let error = serde_json::from_value::<ApprovalPolicy>(value.into()).unwrap_err();
        assert_eq!(error.to_string(), format!("approval is {words}, not {value:?}"));
    }
}

#[test]
fn secrets_are_never_printed() {
    let model = "[models.m]\nbase_url = 'http://h/v1'\nmodel = 'x'\napi_key_env = 'KEY'\n";
    let config = parse(&format!("{model}[host]\ntoken_env = 'TOKEN'\n"));
    assert!(config.host.token.is_some());
    let printed = format!("{config:?}");
    assert!(!printed.contains("secret-1") && !printed.contains("token-1"), "{printed}");
}

fn check(text: &str, expected: &[&str]) {
    assert_eq!(complaints(text), expected, "of\n{text}");
}

#[test]
fn unknown_keys_are_named_by_file_line_and_key() {
    let text = "\n[agents.default.limits]\nmax_turn = 3\n";
    let errors = Config::parse(text, "dir/callsheet.toml", &environment).expect_err("refuse");
    assert_eq!(
        errors.to_string(),
        "dir/callsheet.toml:3: agents.default.limits.max_turn: unknown key (did you mean max_turns?)"
    );
    check("colour = 1\n", &["1: colour: unknown key"]);
    check("[hosts]\n", &["1: hosts: unknown key (did you mean host?)"]);
    check(
        "listen = '127.0.0.1:1'\nengine = 'memory'\nrequests = true\n",
        &[
            "1: listen: unknown key (did you mean host.listen?)",
            "2: engine: unknown key (did you mean journal.engine?)",
            "3: requests: unknown key (did you mean console.requests?)",
        ],
    );
    check("[host]\n\nlog_dir = 'x'\n", &["3: host.log_dir: unknown key"]);
    check("[tools.clock]\nroot = 'x'\n", &["2: tools.clock.root: unknown key"]);
    check(
        "models = 3\nagents = []\n",
        &["1: models: must be a table, not 3", "2: agents: must be a table, not a list"],
    );
}

#[test]
fn broken_toml_names_its_line() {
    let errors = complaints("[host]\nlisten = '127.0.0.1:1'\nlisten = 'x'\n");
    assert_eq!(errors, ["3: duplicate key listen"]);
    assert_eq!(complaints("[host]\n[host]\n"), ["2: duplicate key host"]);
    let errors = complaints("\n[host\n");
    assert!(errors[0].starts_with("2: "), "{errors:?}");
    for (value, problem) in [
        ("127.0.0.1:1", "invalid float"),
        ("30s", "string values must be quoted"),
        ("True", "invalid boolean"),
        ("localhost", "string values must be quoted"),
    ] {
        let errors = complaints(&format!("[host]\nlisten = {value}\n"));
        assert!(errors[0].starts_with(&format!("2: {problem}")), "{errors:?}");
        assert!(errors[0].contains("quote") && !errors[0].contains("nothing"), "{errors:?}");
    }
}

#[test]
fn errors_of_the_journal_section() {
    check(
        "[journal]\nengine = 'sqlite3'\ndurability = 1\nresume = 'always'\nkeep_idle = 'x'\n",
        &[
            "2: journal.engine: must be \"sqlite\", \"memory\" or \"postgres\", not \"sqlite3\"",
            "3: journal.durability: must be \"strict\" or \"relaxed\", not 1",
            "4: journal.resume: must be \"auto\" or \"manual\", not \"always\"",
            "5: journal.keep_idle: must be a time such as \"30s\", \"5m\", \"250ms\" or \"24h\", not \"x\"",
        ],
    );
    check("[journal]\npath = 'x'\n", &["2: journal.path: unknown key"]);
    check(
        "[host]\ndata_dir = ''\nidle_after = 5\n",
        &[
            "2: host.data_dir: must not be empty",
            "3: host.idle_after: must be a time such as \"30s\", not 5",
        ],
    );
    assert_eq!(parse("[host]\nidle_after = '0s'\n").host.idle_after, None);
    assert_eq!(parse("[journal]\nkeep_idle = '0s'\n").journal.keep_idle, None);
}

#[test]
fn errors_of_the_host_section() {
    check(
        "[host]\nlisten = 7700\nmax_sessions = 0\n",
        &["2: host.listen: must be a string, not 7700", "3: host.max_sessions: must be at least 1"],
    );
    check(
        "[host]\nlisten = 'here'\nallowed_hosts = ['a', 'http://b', 3]\n",
        &[
            "2: host.listen: must be an address with a port such as \"127.0.0.1:7700\", not \"here\"",
            "3: host.allowed_hosts[1]: must be a name or \"name:port\" without scheme or path, not \"http://b\"",
            "3: host.allowed_hosts[2]: must be a string, not 3",
        ],
    );
    let not_origin = |at: usize, text: &str| {
        format!(
            "2: host.allowed_origins[{at}]: must be an origin such as \"http://localhost:5173\", not {text:?}"
        )
    };
    let texts = ["*", "null", "localhost:5173", "http://a/", "http://a:x", "http://b@a"];
    let errors: Vec<_> = texts.iter().enumerate().map(|(at, text)| not_origin(at, text)).collect();
    check(
        &format!("[host]\nallowed_origins = {texts:?}\n"),
        &errors.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    check(
        "[host]\n\nlisten = '0.0.0.0:7700'\n",
        &[
            "3: host.listen: 0.0.0.0:7700 is not loopback and needs a token, but CALLSHEET_TOKEN is not set",
        ],
    );
}

#[test]
fn a_named_token_variable_must_hold_a_token() {
    let advice = "set it to the token, or remove token_env to accept requests without a token";
    for (name, problem) in [
        ("MISSING", "is not set"),
        ("EMPTY", "is blank"),
        ("BLANK", "is blank"),
        ("SPACED", "contains white space or other characters that are not visible ASCII"),
        ("CALLSHEET_TOKEN", "is not set"),
    ] {
        let error =
            format!("2: host.token_env: the environment variable {name} {problem}: {advice}");
        check(&format!("[host]\ntoken_env = '{name}'\n"), &[&error]);
    }
    check(
        "[host]\nlisten = '[::]:7700'\ntoken_env = 'MISSING'\n",
        &["3: host.token_env: the environment variable MISSING is not set: set it to the token"],
    );
}

#[test]
fn the_default_token_variable_may_be_unset_or_blank() {
    for token in [None, Some(""), Some(" ")] {
        let env = |name: &str| token.filter(|_| name == TOKEN_ENV).map(str::to_owned);
        let config = Config::parse("[host]\n", "callsheet.toml", &env).unwrap();
        assert_eq!(config.host.token, None, "{token:?}");
    }
    let parse = |token: &'static str| {
        let env = move |name: &str| (name == TOKEN_ENV).then(|| token.to_owned());
        Config::parse("", "callsheet.toml", &env)
    };
    assert_eq!(parse("token-1").unwrap().host.token.unwrap().reveal(), "token-1");
    let unusable = parse("token 1");
    assert_eq!(
        unusable.expect_err("refuse").to_string(),
        "callsheet.toml: host.token_env: the environment variable CALLSHEET_TOKEN contains white \
         space or other characters that are not visible ASCII: set it to the token, or unset it to \
         accept requests without a token"
    );
}

#[test]
fn errors_of_a_model_section() {
    let model =
        |rest: &str| format!("[models.main]\nbase_url = 'http://h/v1'\nmodel = 'x'\n{rest}");
    check(
        "[models.main]\nwire = 'smoke'\n",
        &[
            "1: models.main.base_url: is missing",
            "1: models.main.model: is missing",
            "2: models.main.wire: must be \"openai-chat\", \"openai-responses\", \"anthropic-messages\", \
             \"gemini-generate\" or \"ollama-chat\", not \"smoke\"",
        ],
    );
    check(
        "[models.main]\nmodel = 'x'\nbase_url = 'ftp://h'\n",
        &[
            "3: models.main.base_url: \"ftp://h\" is not a base URL such as \"https://api.example.com/v1\": it does not begin with http:// or https://",
        ],
    );
    check(
        &model("api_key_env = 'ABSENT'\n"),
        &["4: models.main.api_key_env: the environment variable ABSENT is not set"],
    );
    check(
        &model("api_key_env = 'EMPTY'\n"),
        &["4: models.main.api_key_env: the environment variable EMPTY is blank"],
    );
    check(
        &model("api_key = 'sk-1'\n"),
        &[
            "4: models.main.api_key: a key is never in this file: name a variable with api_key_env, or another file with api_key_file",
        ],
    );
    check(
        &model("headers = { Authorization = 'x' }\nextra_body = { model = 'y' }\n"),
        &[
            "4: models.main.headers: authorization is set by the host itself (keys come from api_key_env or api_key_file)",
            "5: models.main.extra_body: model is set by the host itself",
        ],
    );
    check(
        &model("idle_timeout = '0s'\nmax_attempts = -1\ntemperature = 3\nstream = 'no'\n"),
        &[
            "4: models.main.idle_timeout: must be longer than 0",
            "5: models.main.max_attempts: must not be negative, and is -1",
            "6: models.main.temperature: must be a number from 0 to 2, not 3",
            "7: models.main.stream: must be true or false, not \"no\"",
        ],
    );
    check(
        &model("max_concurrent_requests = -1\nbreaker_failures = '5'\nbreaker_open_for = '0s'\n"),
        &[
            "4: models.main.max_concurrent_requests: must not be negative, and is -1",
            "5: models.main.breaker_failures: must be a whole number, not \"5\"",
            "6: models.main.breaker_open_for: must be longer than 0",
        ],
    );
    check(
        &model("max_output_tokens = 5000000000\nconnect_timeout = '9 days'\n"),
        &[
            "4: models.main.max_output_tokens: 5000000000 is too large",
            "5: models.main.connect_timeout: must be a time such as \"30s\", \"5m\", \"250ms\" or \"24h\", not \"9 days\"",
        ],
    );
    check(
        "[models.rehearsal]\nbase_url = 'http://h/v1'\nmodel = 'x'\n",
        &["1: models.rehearsal: is the name of the built-in offline model"],
    );
}

#[test]
fn errors_of_an_agent_section() {
    let one = "[models.main]\nbase_url = 'http://h/v1'\nmodel = 'x'\n";
    let two = format!("{one}[models.second]\nbase_url = 'http://h/v1'\nmodel = 'x'\n");
    check(
        &format!("{one}[agents.a]\nmodel = 'none'\n"),
        &["5: agents.a.model: no model is called \"none\""],
    );
    check(
        &format!("{one}[agents.a]\nmodel = 'mai'\n"),
        &["5: agents.a.model: no model is called \"mai\" (did you mean main?)"],
    );
    check(
        &format!("{one}[agents.a]\nmodel = 'maim'\nfallback_models = ['main']\n"),
        &["5: agents.a.model: no model is called \"maim\" (did you mean main?)"],
    );
    check(
        &format!(
            "{two}[agents.a]\nmodel = 'main'\nfallback_models = [\n'second',\n'main', 'secnd',\n'second', 7]\n"
        ),
        &[
            "11: agents.a.fallback_models[1]: \"main\" is the agent's own model",
            "11: agents.a.fallback_models[2]: no model is called \"secnd\" (did you mean second?)",
            "12: agents.a.fallback_models[3]: \"second\" is listed twice",
            "12: agents.a.fallback_models[4]: must be a string, not 7",
        ],
    );
    check(
        &format!("{one}[agents.a]\nfallback_models = 'main'\n"),
        &["5: agents.a.fallback_models: must be a list, not \"main\""],
    );
    check(
        &format!("{one}[agents.a]\nfallback_models = ['main']\n"),
        &["5: agents.a.fallback_models[0]: \"main\" is the agent's own model"],
    );
    check(
        &two,
        &[
            " agents: several models but no agent: choose one, as in [agents.default] model = \"NAME\"",
        ],
    );
    check(&format!("{two}[agents.a]\n"), &["7: agents.a.model: is missing"]);
    check(
        "[agents.a]\nexecution = { parallel = 0 }\n[agents.b]\nexecution = 'both'\n",
        &[
            "2: agents.a.execution: parallel is a number from 1 to 1024, not 0",
            "4: agents.b.execution: must be \"sequential\" or { parallel = N } with N from 1 to 1024, not \"both\"",
        ],
    );
    check(
        "[agents.\"a b\"]\ntools = ['x', 'y z']\n",
        &[
            "1: agents.a b: a name has 1 to 64 characters of A-Z, a-z, 0-9, _ and -",
            "2: agents.a b.tools[1]: must be a tool's name, in which * and ? stand for other characters, not \"y z\"",
        ],
    );
    check(
        "[agents.a.limits]\ncancel_grace = '0s'\nmax_result_bytes = 0\non_excess = 'drop'\n",
        &[
            "2: agents.a.limits.cancel_grace: must be longer than 0",
            "3: agents.a.limits.max_result_bytes: must be at least 1",
            "4: agents.a.limits.on_excess: must be \"answer\", \"truncate\" or \"fail\", not \"drop\"",
        ],
    );
}

#[test]
fn errors_of_a_tool_section() {
    check(
        "[tools.clock]\neffect = 'all'\n[tools.http_get]\nallow = ['10.0.0.0/33']\nmax_concurrent = 0\n",
        &[
            "2: tools.clock.effect: must be \"none\" or \"some\", not \"all\"",
            "4: tools.http_get.allow[0]: must be a host, \"host:port\" or a network such as \"10.0.0.0/8\", not \"10.0.0.0/33\"",
            "5: tools.http_get.max_concurrent: must be at least 1",
        ],
    );
}

#[test]
fn read_file_needs_its_root() {
    check("\n[tools.read_file]\nexclusive = true\n", &["2: tools.read_file.root: is missing"]);
    let config = parse("[agents.a]\ntools = ['read_file']\n");
    assert_eq!(
        config.check_tools(&["clock"]).expect_err("refuse").to_string(),
        "callsheet.toml:2: agents.a.tools[0]: there is no read_file without [tools.read_file] root = \"DIR\""
    );
}

#[test]
fn the_environment_overrides_two_switches() {
    let text = "[models.m]\nbase_url = 'http://h/v1'\nmodel = 'x'\nstream = true\n";
    let with = |stream: &'static str, multi: &'static str| {
        Config::parse(text, "f", &move |name| match name {
            "CALLSHEET_STREAM" => Some(stream.to_owned()),
            "CALLSHEET_MULTI_TOOL_CALLS" => Some(multi.to_owned()),
            _ => None,
        })
    };
    let mut config = with("false", "false").unwrap();
    assert!(!config.models["m"].stream);
    assert!(!config.agents["default"].multi_tool_calls);
    config.use_model("other", ModelConfig::new(BaseUrl::parse("http://h/v2").unwrap(), "y"));
    assert!(!config.models["other"].stream, "a model that is added later is overridden too");
    assert_eq!(config.agents["default"].model, "other");
    assert!(with("true", "true").unwrap().models["m"].stream);
    let errors = with("no", "1").expect_err("refuse");
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        errors,
        [
            "CALLSHEET_MULTI_TOOL_CALLS: must be true or false, not \"1\"",
            "CALLSHEET_STREAM: must be true or false, not \"no\""
        ]
    );
}

#[test]
fn fallback_models_keep_their_order_and_a_given_model_replaces_them() {
    let models =
        ["a", "b"].map(|name| format!("[models.{name}]\nbase_url = 'http://h/v1'\nmodel = 'x'\n"));
    let agent = "[agents.default]\nmodel = 'b'\nfallback_models = ['a', 'rehearsal']\n";
    let mut config = parse(&(models.concat() + agent));
    let models = |config: &Config| config.agents["default"].models().collect::<Vec<_>>().join(" ");
    assert_eq!(models(&config), "b a rehearsal");
    assert!(config.needs_rehearsal() && config.models.contains_key(REHEARSAL));
    let chosen = config.models["a"].clone();
    config.use_model("a", chosen);
    assert_eq!(models(&config), "a");
    assert!(!config.needs_rehearsal());
}

#[test]
fn tools_are_checked_against_the_registered_tools() {
    let agent = "[agents.a]\ntools = ['clock', 'http_*',\n 'clok']\n";
    let config = parse(&format!("{agent}[tools.clok]\nexclusive = true\n"));
    let errors = config.check_tools(&["clock", "http_get"]).expect_err("refuse");
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        errors,
        [
            "callsheet.toml:3: agents.a.tools[2]: no tool is called \"clok\" (known: clock, http_get)",
            "callsheet.toml:4: tools.clok: no tool is called \"clok\" (did you mean clock?)",
        ]
    );
    config.check_tools(&["clock", "http_get", "clok"]).unwrap();
}

#[test]
fn agents_as_tools_are_checked_before_the_start() {
    let tool = |keys: &str| {
        let tool = "[tools.helper]\nkind = 'agent'\ndescription = 'd'\n";
        parse(&format!("[agents.a]\n[agents.b]\n{tool}{keys}")).check_tools(&["helper"])
    };
    tool("agent = 'b'\n").unwrap();
    for (keys, expected) in [
        ("agent = 'c'\n", "6: tools.helper.agent: no agent is called \"c\" (known: a, b)"),
        (
            "agent = 'b'\nidempotent = false\n",
            "7: tools.helper.idempotent: must be true: a call that is sent again finds the run of its \
             child",
        ),
    ] {
        let error = tool(keys).expect_err("refuse").to_string();
        assert_eq!(error, format!("callsheet.toml:{expected}"));
    }
}

#[tokio::test]
async fn an_output_schema_is_checked_before_the_start() {
    let folder = format!("config-schema-{}", std::process::id());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("callsheet.toml").display().to_string();
    for (schema, problem) in [
        (json!({"type": 7}), "not a valid JSON schema: "),
        (json!({"$ref": "https://example.com/schema.json"}), "not a valid JSON schema: "),
        (json!({"anyOf": vec![json!({}); 100_000]}), "not a valid JSON schema: it contains more"),
    ] {
        std::fs::write(folder.join("answer.json"), schema.to_string()).unwrap();
        let text = "[agents.a]\n\noutput_schema = 'answer.json'\n";
        let config = Config::parse(text, &file, &environment).unwrap();
        let error = AgentRules::new(&config, ToolRegistry::new()).expect_err("refuse");
        let expected = format!("{file}:3: agents.a.output_schema: {problem}");
        assert!(error.to_string().contains(&expected), "{error}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn another_listen_address_needs_a_token_that_is_hard_to_guess() {
    let mut config = Config::default();
    config.set_listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let error = config.set_listen("0.0.0.0:0".parse().unwrap()).expect_err("refuse");
    assert_eq!(
        error.to_string(),
        "--listen: 0.0.0.0:0 is not loopback and needs a token, but CALLSHEET_TOKEN is not set"
    );
    config.host.token = Some(ApiKey::new("fifteen-letters").unwrap());
    let error = config.set_listen("0.0.0.0:0".parse().unwrap()).expect_err("refuse");
    assert_eq!(
        error.to_string(),
        "--listen: 0.0.0.0:0 is not loopback and needs a token of at least 16 characters; that in \
         CALLSHEET_TOKEN has fewer"
    );
    assert_eq!(config.host.listen.to_string(), "127.0.0.1:0", "a refused address is not stored");
    config.host.token = Some(ApiKey::new("sixteen--letters").unwrap());
    config.set_listen("0.0.0.0:0".parse().unwrap()).unwrap();
}

#[test]
fn addresses_of_services() {
    for (text, expected) in [
        ("http://127.0.0.1:8080/v1", Some("http://127.0.0.1:8080/v1")),
        ("https://h/v1/", Some("https://h/v1")),
        ("https://h", Some("https://h")),
        ("h/v1", None),
        ("HTTP://h/v1", Some("http://h/v1")),
        ("https://", None),
        ("https://user:secret@h/v1", None),
        ("https://h/v1?key=x", None),
        ("https://h/v1/chat/completions", None),
    ] {
        let parsed = BaseUrl::parse(text).ok().map(|url| url.to_string());
        assert_eq!(parsed.as_deref(), expected, "{text}");
    }
    for text in [
        "https://user:secret@h",
        "https://user:secret@host:99999/v1",
        "ftp://user:secret@h",
        "user:secret@h/v1",
        "https://h/v1?key=secret",
    ] {
        let error = BaseUrl::parse(text).expect_err("refuse").to_string();
        assert!(!error.contains("secret"), "{error}");
    }
    for (text, reason) in [
        ("h/v1", "it does not begin with http:// or https://"),
        ("127.0.0.1:8080/v1", "it does not begin with http:// or https://"),
        ("http://h:x/v1", "invalid port number"),
    ] {
        let error = BaseUrl::parse(text).expect_err("refuse").to_string();
        let example = "is not a base URL such as \"https://api.example.com/v1\"";
        assert_eq!(error, format!("{text:?} {example}: {reason}"));
    }
}

#[test]
fn a_value_that_may_be_a_key_is_not_printed() {
    let config = parse(
        "[models.main]\nwire = 'openai-chat'\nbase_url = 'http://localhost:1/v1'\nmodel = 'm'\n\
         api_key_env = 'KEY'\nheaders = { X-Api-Key = 'secret-2' }\n",
    );
    let printed = format!("{config:?}");
    assert!(printed.contains("x-api-key") && !printed.contains("secret-"), "{printed}");
}

#[test]
fn a_token_may_be_in_a_file() {
    let folder = std::env::temp_dir().join(format!("callsheet-token-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("token"), "token-of-a-file\n").unwrap();
    let file = folder.join("callsheet.toml").display().to_string();
    let read = |text: &str| {
        let env = |name: &str| (name == TOKEN_ENV).then(|| "token-of-a-variable".to_owned());
        Config::parse(text, &file, &env)
    };
    let config = read("[host]\ntoken_file = 'token'\n").unwrap();
    assert_eq!(config.host.token.unwrap().reveal(), "token-of-a-file");
    assert_eq!(config.host.token_file.unwrap(), folder.join("token"));
    let both = read("[host]\ntoken_env = 'CALLSHEET_TOKEN'\ntoken_file = 'token'\n").unwrap_err();
    let exclude = "host.token_file: token_env and token_file exclude each other";
    assert_eq!(both.to_string(), format!("{file}:3: {exclude}"));
    let short = read("[host]\nlisten = '0.0.0.0:0'\ntoken_file = 'token'\n").unwrap_err();
    let needs = "0.0.0.0:0 is not loopback and needs a token of at least 16 characters";
    let of_file = folder.join("token").display().to_string();
    let expected = format!("{file}:2: host.listen: {needs}; that in {of_file} has fewer");
    assert_eq!(short.to_string(), expected);
    let missing = read("[host]\nlisten = '0.0.0.0:0'\ntoken_file = 'nowhere'\n").unwrap_err();
    let path = folder.join("nowhere").display().to_string();
    let cannot = format!("the file {path} cannot be read: No such file or directory (os error 2)");
    assert_eq!(missing.to_string(), format!("{file}:3: host.token_file: {cannot}"));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn named_tokens_have_a_scope_and_may_be_limited_to_agents() {
    let text = "[[tokens]]\nname = 'ops'\nenv = 'TOKEN'\nscope = ['read', 'approve']\n\
                agents = ['default']\n";
    let config = parse(text);
    let [token] = &config.tokens[..] else { panic!("one token") };
    assert_eq!((token.name.as_str(), token.token.reveal()), ("ops", "token-1-of-the-host"));
    assert_eq!(token.agents.as_deref(), Some(&["default".to_owned()][..]));
    let scopes = [TokenScope::Read, TokenScope::Run, TokenScope::Approve, TokenScope::Admin];
    assert_eq!(scopes.map(|scope| token.allows(scope)), [true, false, true, false]);
    assert_eq!(config.secrets().redact("token-1-of-the-host"), "[redacted]");
    // It is enough for another address.
    let open = parse(&format!("[host]\nlisten = '0.0.0.0:1'\n{text}"));
    assert_eq!(open.host.token, None);
}

#[test]
fn wrong_named_tokens_name_line_and_remedy() {
    let scope = "scope = ['read']\n";
    let is_not_set = "the environment variable MISSING is not set";
    for (text, expected) in [
        ("env = 'TOKEN'\nscope = ['read']\n", "1: tokens[0].name: is missing"),
        (
            "name = 'a b'\nenv = 'TOKEN'\nscope = ['read']\n",
            "2: tokens[0].name: a name has 1 to 64 characters of A-Z, a-z, 0-9, _ and -",
        ),
        (
            &format!("name = 'a'\n{scope}"),
            "1: tokens[0].env: is missing: name the variable of the token with env, or its file with file",
        ),
        (
            &format!("name = 'a'\nenv = 'TOKEN'\nfile = 'x'\n{scope}"),
            "4: tokens[0].file: env and file exclude each other",
        ),
        (
            &format!("name = 'a'\nenv = 'MISSING'\n{scope}"),
            &format!("3: tokens[0].env: {is_not_set}"),
        ),
        (
            &format!("name = 'a'\nfile = '/nowhere/x'\n{scope}"),
            "3: tokens[0].file: the file /nowhere/x cannot be read: No such file or directory (os error 2)",
        ),
        (
            &format!("name = 'a'\nenv = 'TOKEN'\ntoken = 'x'\n{scope}"),
            "4: tokens[0].token: a token is never in this file: name a variable with env, or another file with file",
        ),
        ("name = 'a'\nenv = 'TOKEN'\n", "1: tokens[0].scope: is missing"),
        (
            "name = 'a'\nenv = 'TOKEN'\nscope = []\n",
            "4: tokens[0].scope: must not be empty: name what the token may do",
        ),
        (
            "name = 'a'\nenv = 'TOKEN'\nscope = ['raed']\n",
            "4: tokens[0].scope[0]: must be \"read\", \"run\", \"approve\" or \"admin\", not \"raed\"",
        ),
        (
            "name = 'a'\nenv = 'TOKEN'\nscope = ['read']\nagents = []\n",
            "5: tokens[0].agents: must not be empty: leave it out for all",
        ),
        (
            "name = 'a'\nenv = 'TOKEN'\nscope = ['read']\ncolour = 1\n",
            "5: tokens[0].colour: unknown key",
        ),
    ] {
        check(&format!("[[tokens]]\n{text}"), &[expected]);
    }
    check("[tokens]\n", &["1: tokens: must be a list of tables ([[tokens]]), not a table"]);
}

#[test]
fn named_tokens_are_checked_against_each_other_and_the_agents() {
    let ops = "[[tokens]]\nname = 'ops'\nenv = 'TOKEN'\nscope = ['read']\n";
    for (text, expected) in [
        (ops.replace("TOKEN", "KEY"), "6: tokens[1].name: another token is called \"ops\""),
        (ops.replace("'ops'", "'ci'"), "6: tokens[1].name: \"ci\" and \"ops\" are the same token"),
        (
            "[host]\ntoken_env = 'TOKEN'\n".to_owned(),
            "2: tokens[0].name: \"ops\" and the token of [host] are the same token",
        ),
        (
            "[[tokens]]\nname = 'ci'\nenv = 'KEY'\nscope = ['run']\nagents = ['sales']\n"
                .to_owned(),
            "9: tokens[1].agents: no agent is called \"sales\" (known: default)",
        ),
    ] {
        let mut config = parse(&format!("{ops}{text}"));
        config.set_rehearsal(BaseUrl::parse("http://127.0.0.1:1").unwrap());
        let errors = config.check(&["clock", "calculator", "http_get"]).unwrap_err();
        assert_eq!(config.check_tokens().as_ref(), Err(&errors));
        assert_eq!(errors.to_string(), format!("callsheet.toml:{expected}"));
    }
    let short =
        "[host]\nlisten = '0.0.0.0:1'\n[[tokens]]\nname = 'ci'\nenv = 'KEY'\nscope = ['run']\n";
    let needs = "2: host.listen: 0.0.0.0:1 is not loopback and needs a token of at least 16 \
                 characters; that in \"ci\" has fewer";
    check(short, &[needs]);
}
