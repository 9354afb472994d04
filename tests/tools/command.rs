//! Tools that run programs, with real processes. The launcher is the `callsheet` binary.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test's helper may fail loudly")]

use std::fmt::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use callsheet::config::Config;
use callsheet::tool::ToolRegistry;
use callsheet::tool::testing::ToolTest;
use callsheet_mock_provider::{Call, MockProvider, MockProviderOptions, Response, Script};
use serde_json::{Value, json};

/// A variable of the host with a secret value: cargo sets it for tests.
const SECRET_VARIABLE: &str = "CARGO_PKG_DESCRIPTION";

/// The value of `MODEL_KEY` in configurations: the key of a model, which no tool was given.
const MODEL_KEY: &str = "sk-model-0123456789";

/// The folder of a configuration, in which its tools work.
struct Folder {
    path: PathBuf,
    /// The value of the variable `MARKER` of all processes that the tools of this folder start.
    marker: String,
}

impl Folder {
    fn new(name: &str) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("command-{name}-{}-{number}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(&name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self { path, marker: name }
    }

    /// Returns the table of a tool that runs a shell script, whose `$1` is the argument `a`.
    fn script(&self, script: &str, keys: &str) -> String {
        let (script, marker) = (script.replace('{', "{{"), &self.marker);
        let command = format!("[\"bash\", \"-c\", '''{script}''', \"bash\", \"--\", \"{{a}}\"]");
        let input = "{ a = { type = \"string\", default = \"\" } }";
        format!(
            "[tools.t]\nkind = \"command\"\ndescription = \"d\"\ninput = {input}\n\
             command = {command}\nenv = {{ MARKER = \"{marker}\" }}\n{keys}\n"
        )
    }

    fn registry(&self, text: &str) -> Result<ToolRegistry, String> {
        callsheet::launcher::use_binary(env!("CARGO_BIN_EXE_callsheet"));
        let file = self.path.join("callsheet.toml").display().to_string();
        let config = Config::parse(text, &file, &|name| match name {
            "MODEL_KEY" => Some(MODEL_KEY.to_owned()),
            name => std::env::var(name).ok(),
        });
        let config = config.map_err(|error| error.to_string())?;
        let mut registry = ToolRegistry::new();
        registry.register_configured(&config).map_err(|error| error.to_string())?;
        Ok(registry)
    }

    fn tool(&self, text: &str) -> ToolTest {
        let registry = self.registry(text).unwrap();
        ToolTest::new(Arc::clone(&registry.tool("t").unwrap().tool))
    }

    async fn run(&self, script: &str, keys: &str) -> Result<String, String> {
        let call = self.tool(&self.script(script, keys)).call(json!({})).await;
        call.result.map(|output| output.text().into_owned()).map_err(|error| error.to_string())
    }

    /// Returns the command lines of the processes that were started for this folder.
    fn processes(&self) -> Vec<String> {
        let marker = format!("MARKER={}", self.marker);
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let marked = processes.filter_map(|process| {
            let environ = std::fs::read(process.path().join("environ")).ok()?;
            let mut variables = environ.split(|byte| *byte == 0);
            variables.any(|variable| variable == marker.as_bytes()).then(|| {
                std::fs::read_to_string(process.path().join("cmdline")).unwrap_or_default()
            })
        });
        marked.collect()
    }

    /// Compiles a program of C. Rust links with the same compiler.
    fn compile(&self, name: &str, text: &str) {
        let source = self.path.join(format!("{name}.c"));
        std::fs::write(&source, text).unwrap();
        let mut compiler = Command::new("cc");
        compiler.arg("-o").arg(self.path.join(name)).arg(source);
        assert!(compiler.status().unwrap().success());
    }

    /// Returns whether this system can do a sandbox, and says so if it cannot.
    fn can_sandbox(&self, level: &str) -> bool {
        self.can_sandbox_in(".", level)
    }

    fn can_sandbox_in(&self, cwd: &str, level: &str) -> bool {
        let keys = format!("cwd = \"{cwd}\"\nsandbox = \"{level}\"");
        let checked = self.registry(&self.script("true", &keys));
        if let Err(error) = &checked {
            assert!(error.contains("this system does not support the sandbox"), "{error}");
            eprintln!("skipped: {error}");
        }
        checked.is_ok()
    }

    /// Waits until a file exists.
    async fn file(&self, name: &str) -> String {
        let path = self.path.join(name);
        let appears = async {
            loop {
                match std::fs::read_to_string(&path) {
                    Ok(text) if text.ends_with('\n') => return text,
                    _ => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(30), appears).await.unwrap()
    }

    /// Waits until no process of this folder is left.
    async fn empty(&self) {
        for _ in 0..2000 {
            if self.processes().is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("processes are left: {:?}", self.processes());
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

#[tokio::test]
async fn a_program_gets_its_arguments_and_its_input() {
    let folder = Folder::new("arguments");
    let text = "[tools.t]\nkind = \"command\"\ndescription = \"d\"\n\
        input = { a = { type = \"string\" }, l = { type = \"array\", default = [] } }\n\
        command = [\"printf\", \"<%s>\", \"--\", \"{a}\", \"{l}\"]\n";
    let mut tool = folder.tool(text);
    let call = tool.call(json!({"a": "$(id) `x` *\n", "l": ["-1", 2]})).await;
    assert_eq!(call.text(), "<--><$(id) `x` *\n><-1><2>");
    let text = text.replace("\"--\", \"{a}\"", "\"{a}\", \"x={a}\"");
    let mut tool = folder.tool(&text);
    let call = tool.call(json!({"a": "$(id) `x` *\n", "l": ["1", 2]})).await;
    assert_eq!(call.text(), "<$(id) `x` *\n><x=$(id) `x` *\n><1><2>");
    let refused = tool.call(json!({"a": "-v"})).await;
    let expected = "the argument a must not begin with \"-\": it would be an option";
    assert_eq!(refused.error().message(), expected);
    assert_eq!(folder.tool(&folder.script("cat", "")).call(json!({})).await.text(), "(no output)");
    for (stdin, expected) in [("json", "{\"a\":\"ü\"}\n"), ("text:a", "ü")] {
        let mut tool = folder.tool(&folder.script("cat", &format!("stdin = \"{stdin}\"")));
        assert_eq!(tool.call(json!({"a": "ü"})).await.text(), expected);
    }
    // A program that does not read its input does not hang.
    let mut tool = folder.tool(&folder.script("echo done", "stdin = \"text:a\""));
    assert_eq!(tool.call(json!({"a": "x".repeat(120_000)})).await.text(), "done\n");
}

#[tokio::test]
async fn the_documented_tool_works_as_written() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/tools.md"));
    let text = text.unwrap();
    let example =
        text.split("```toml\n").skip(1).find(|block| block.contains("kind = \"command\""));
    let example = example.and_then(|block| block.split("```").next()).unwrap();
    assert!(example.lines().count() <= 10);
    let folder = Folder::new("documented");
    std::fs::create_dir(folder.path.join("docs")).unwrap();
    std::fs::write(folder.path.join("docs/note.txt"), "one\ntwo\n").unwrap();
    if !folder.can_sandbox("read") {
        return;
    }
    let registry = folder.registry(example).unwrap();
    let mut tool = ToolTest::new(Arc::clone(&registry.tool("search_text").unwrap().tool));
    assert_eq!(tool.call(json!({"pattern": "tw"})).await.text(), "./note.txt:2:two\n");
    let none = tool.call(json!({"pattern": "three", "path": "note.txt"})).await;
    assert_eq!(none.text(), "(no output, exit status 1)");
}

#[tokio::test]
async fn json_output_is_a_structured_value() {
    let folder = Folder::new("json");
    let keys = "output = \"json\"\noutput_schema = \"out.json\"";
    std::fs::write(folder.path.join("out.json"), r#"{"type":"object"}"#).unwrap();
    assert_eq!(folder.run("echo '{\"n\": 1}'", keys).await.unwrap(), r#"{"n":1}"#);
    let error = folder.run("echo '[]'", keys).await.unwrap_err();
    assert!(error.starts_with("the output of the program does not fit its output_schema"));
    let error = folder.run("echo no", keys).await.unwrap_err();
    assert_eq!(error, "the output of the program is not one JSON value");
}

#[tokio::test]
async fn a_failure_names_status_and_standard_error() {
    let folder = Folder::new("failure");
    let error = folder.run("echo out; echo oops >&2; exit 3", "").await.unwrap_err();
    assert_eq!(error, "the program ended with exit status 3; stderr:\noops");
    let error = folder.run("kill -9 $$", "").await.unwrap_err();
    assert_eq!(error, "the program was ended by signal 9 (SIGKILL)");
    let output = folder.run("exit 1", "ok_exit = [0, 1]").await;
    assert_eq!(output.unwrap(), "(no output, exit status 1)");
    let output = folder.run("yes | head -c 100000", "max_output_bytes = 4").await;
    assert_eq!(output.unwrap(), "y\ny\n\n[cut: the first 4 of 100000 bytes]");
    let output = folder.run("printf 'a\\377b'", "").await.unwrap();
    assert_eq!(output, "a\u{fffd}b\n[not UTF-8: invalid bytes were replaced]");
    // The file vanishes after the check.
    let program = folder.path.join("program");
    std::fs::copy("/bin/true", &program).unwrap();
    let text = "[tools.t]\nkind = \"command\"\ndescription = \"d\"\ncommand = [\"./program\"]\n";
    let mut tool = folder.tool(text);
    assert_eq!(tool.call(json!({})).await.text(), "(no output)");
    std::fs::remove_file(program).unwrap();
    let error = tool.call(json!({})).await;
    let error = error.error().message();
    assert!(error.starts_with("the program did not start: No such file or directory"), "{error}");
}

#[tokio::test]
async fn a_program_inherits_only_named_variables() {
    let folder = Folder::new("environment");
    let keys = format!(
        "cwd = \"work\"\nenv_pass = [\"CARGO_PKG_NAME\"]\nsecret_env = {{ TOKEN = \"{SECRET_VARIABLE}\" }}"
    );
    std::fs::create_dir(folder.path.join("work")).unwrap();
    let output = folder.run("pwd; env -u _ -u SHLVL -u PWD -u OLDPWD", &keys).await.unwrap();
    let work = folder.path.canonicalize().unwrap().join("work");
    let mut lines = output.lines();
    assert_eq!(lines.next(), work.to_str());
    let inherited = ["HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER"];
    for line in lines {
        let (name, value) = line.split_once('=').unwrap();
        match name {
            "MARKER" => assert_eq!(value, folder.marker),
            "CARGO_PKG_NAME" => assert_eq!(value, "callsheet"),
            "TOKEN" => assert_eq!(value, "[redacted]"),
            other => assert!(inherited.contains(&other), "{line}"),
        }
    }
    assert!(output.contains("TOKEN=") && output.contains("CARGO_PKG_NAME="), "{output}");
    let error = folder.run("echo \"no $TOKEN\" >&2; exit 1", &keys).await.unwrap_err();
    assert_eq!(error, "the program ended with exit status 1; stderr:\nno [redacted]");
    let json = format!("{keys}\noutput = \"json\"");
    let output = folder.run("echo \"{\\\"t\\\": \\\"$TOKEN\\\"}\"", &json).await.unwrap();
    assert_eq!(output, r#"{"t":"[redacted]"}"#);
}

#[tokio::test]
async fn a_cut_output_has_no_part_of_a_secret() {
    let folder = Folder::new("cut-secret");
    let secret = std::env::var(SECRET_VARIABLE).unwrap();
    let keys = format!("secret_env = {{ TOKEN = \"{SECRET_VARIABLE}\" }}\nmax_output_bytes = 40");
    let output = folder.run("echo -n \"xxxxxxxxxx$TOKEN\"", &keys).await.unwrap();
    let written = 10 + secret.len();
    assert_eq!(output, format!("xxxxxxxxxx[redacted]\n[cut: the first 40 of {written} bytes]"));
    let script = "echo -n \"$TOKEN\" >&2; printf %02000d 0 >&2; exit 1";
    let error = folder.run(script, &keys).await.unwrap_err();
    let zeros = "0".repeat(2000);
    let expected = format!("the program ended with exit status 1; stderr:\n[redacted]{zeros}");
    assert_eq!(error, expected);
}

#[tokio::test]
async fn a_cut_output_has_no_part_of_the_key_of_a_model() {
    let folder = Folder::new("cut-key");
    let keys = "max_output_bytes = 20\n[models.m]\nbase_url = \"http://127.0.0.1:9/v1\"\n\
                model = \"m\"\napi_key_env = \"MODEL_KEY\"";
    let output = folder.run(&format!("echo -n xxxxxxxx{MODEL_KEY}"), keys).await.unwrap();
    assert_eq!(output, "xxxxxxxx[redacted]\n[cut: the first 20 of 27 bytes]");
    let script = format!("echo -n {MODEL_KEY} >&2; printf %02036d 0 >&2; exit 1");
    let error = folder.run(&script, keys).await.unwrap_err();
    let zeros = "0".repeat(2036);
    let expected = format!("the program ended with exit status 1; stderr:\n[redacted]{zeros}");
    assert_eq!(error, expected);
}

/// The allocator of the host asks for huge pages, which would cost memory for each thread. A program has the state that
/// the host inherited from this test.
#[tokio::test]
async fn a_program_may_use_huge_pages_but_its_host_does_not() {
    let own_state = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        status.lines().find(|line| line.starts_with("THP_enabled")).map(str::to_owned)
    };
    if own_state().is_none() {
        eprintln!("skipped: /proc/self/status has no line THP_enabled");
        return;
    }
    let folder = Folder::new("pages");
    let script = "host=$(awk '/^PPid/ {print $2}' /proc/$PPID/status); \
                  grep -h THP_enabled /proc/$host/status /proc/self/status";
    let file = folder.path.join("callsheet.toml");
    let agent = "[agents.default]\ntools = [\"t\"]\n";
    std::fs::write(&file, folder.script(script, "") + agent).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_callsheet"));
    command.args(["tools", "call", "t", "--config"]).arg(&file);
    for is_disabled in [true, false] {
        rustix::thread::disable_transparent_huge_pages(is_disabled).unwrap();
        let expected = ["THP_enabled:\t0".to_owned(), own_state().unwrap()];
        let output = command.output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        let states: Vec<&str> = printed.lines().filter(|line| line.starts_with("THP")).collect();
        assert_eq!(states, expected, "{output:?}");
    }
}

#[tokio::test]
async fn a_program_has_no_open_file_of_the_host() {
    let folder = Folder::new("streams");
    let _file = std::fs::File::open("/dev/null").unwrap();
    let _socket = TcpListener::bind("127.0.0.1:0").unwrap();
    // Descriptors that the test itself has inherited stay inheritable.
    let mut inherited = vec!["0".to_owned(), "1".to_owned(), "2".to_owned()];
    for entry in std::fs::read_dir("/proc/self/fdinfo").unwrap().flatten() {
        let info = std::fs::read_to_string(entry.path()).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
        if flags.is_some_and(|flags| flags & 0o2_000_000 == 0) {
            inherited.push(entry.file_name().into_string().unwrap());
        }
    }
    let script = "cd /proc/self/fd; for fd in *; do test -e $fd && echo $fd; done; true";
    let output = folder.run(script, "").await.unwrap();
    let others: Vec<&str> =
        output.lines().filter(|fd| !inherited.contains(&(*fd).into())).collect();
    assert!(others.is_empty(), "{output}");
    let error = folder.run("echo x > /dev/tty", "").await.unwrap_err();
    assert!(error.contains("No such device or address"), "{error}");
}

#[tokio::test]
async fn a_cancelled_program_can_clean_up() {
    let folder = Folder::new("cancel");
    let script = "trap 'echo bye > bye; exit 0' TERM; while :; do sleep 0.01; done";
    let tool = folder.tool(&folder.script(script, ""));
    let mut tool = tool.cancel_after(Duration::from_millis(300));
    tool.call(json!({})).await;
    assert_eq!(folder.file("bye").await, "bye\n");
    folder.empty().await;
}

#[tokio::test]
async fn a_program_that_ignores_sigterm_is_killed_with_all_descendants() {
    let folder = Folder::new("ignore");
    let script =
        "trap '' TERM; (setsid bash -c \"trap '' TERM; sleep 60\" &) ; sleep 60 & sleep 60";
    let tool = folder.tool(&folder.script(script, ""));
    let mut tool = tool.cancel_after(Duration::from_millis(300));
    assert!(tool.call(json!({})).await.error().message().contains("after its cancellation"));
    folder.empty().await;
}

#[tokio::test]
async fn descendants_do_not_outlive_the_call_nor_hang_it() {
    let folder = Folder::new("descendants");
    for script in [
        "sleep 60 & echo done",
        "setsid sleep 60 >/dev/null 2>&1 & echo done",
        "(setsid bash -c 'setsid sleep 60 & exit' &) ; echo done",
        "(trap '' TERM HUP; nohup sleep 60 2>/dev/null &) ; echo done",
    ] {
        let call = tokio::time::timeout(Duration::from_secs(30), folder.run(script, ""));
        assert_eq!(call.await.unwrap().unwrap(), "done\n", "{script}");
        assert_eq!(folder.processes(), [""; 0], "{script}");
    }
}

#[tokio::test]
async fn processes_and_memory_are_limited() {
    let folder = Folder::new("limits");
    let script = "for i in 1 2 3 4 5 6 7 8 9; do sleep 60 & done; wait";
    let error = folder.run(script, "max_processes = 5").await.unwrap_err();
    assert_eq!(error, "the program was killed: it had more than 5 processes (max_processes)");
    assert_eq!(folder.processes(), [""; 0]);
    let output = folder.run("sleep 0.2 & wait; echo ok", "max_processes = 5").await;
    assert_eq!(output.unwrap(), "ok\n");
    let script = "x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo ${#x}";
    let error = folder.run(script, "max_memory = \"64MiB\"").await.unwrap_err();
    assert!(error.starts_with("the program ended with exit status"), "{error}");
    assert_eq!(folder.run("echo ok", "max_memory = \"64MiB\"").await.unwrap(), "ok\n");
}

#[tokio::test]
async fn the_limit_of_memory_holds_before_the_program_runs() {
    let folder = Folder::new("memory");
    let source = folder.path.join("large.c");
    // The kernel reserves this array when it executes the program.
    let program = "static volatile char large[100 << 20];\nint main(void) { return large[0]; }\n";
    std::fs::write(&source, program).unwrap();
    let mut compiler = Command::new("cc");
    compiler.arg("-o").arg(folder.path.join("large")).arg(source);
    assert!(compiler.status().unwrap().success());
    for level in ["none", "read", "strict"] {
        if !folder.can_sandbox(level) {
            continue;
        }
        let tool = |max_memory: &str| {
            folder.tool(&format!(
                "[tools.t]\nkind = \"command\"\ndescription = \"d\"\ncommand = [\"./large\"]\n\
                 sandbox = \"{level}\"\nmax_memory = \"{max_memory}\"\n"
            ))
        };
        assert_eq!(tool("512MiB").call(json!({})).await.text(), "(no output)", "{level}");
        let call = tool("64MiB").call(json!({})).await;
        let error = call.error().message();
        assert!(error.starts_with("the program "), "{level}: {error}");
    }
}

/// The outcome of each attempt of a script to leave its sandbox: `yes` or `no` a line.
const ATTEMPTS: &str = r#"
try() { if "$@" >/dev/null 2>&1; then echo yes; else echo no; fi; }
try cat inside
try bash -c 'echo x > inside'
try bash -c 'echo x > new'
try rm inside
try mkdir folder
try cat ../outside
try bash -c 'echo x > ../outside'
try bash -c 'echo x > /tmp/callsheet-sandbox-$$ && rm /tmp/callsheet-sandbox-$$'
try bash -c "exec 3<>/dev/tcp/127.0.0.1/$PORT"
try bash -c 'exec 3<>/dev/udp/127.0.0.1/9'
try grep -a -q PATH= /proc/$HOST_PID/environ
try kill -0 $HOST_PID
try chmod 600 ../outside
try cat /etc/passwd
try bash -c 'echo x > /dev/null'
"#;

#[tokio::test]
async fn a_sandbox_refuses_files_and_network() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let levels = [
        ("none", "yes yes yes yes yes yes yes yes yes yes yes yes yes yes yes"),
        ("read", "yes no no no no no no no no no no - no yes yes"),
        ("write", "yes yes yes yes yes no no no no no no - - yes yes"),
        ("strict", "yes yes yes yes yes no - yes no - no no - yes yes"),
    ];
    for (level, expected) in levels {
        let folder = Folder::new(level);
        if !folder.can_sandbox(level) {
            continue;
        }
        let work = folder.path.join("work");
        std::fs::create_dir(&work).unwrap();
        std::fs::write(work.join("inside"), "x").unwrap();
        std::fs::write(folder.path.join("outside"), "x").unwrap();
        let host = std::process::id();
        let script = ATTEMPTS.replace("$PORT", &port.to_string());
        let script = script.replace("$HOST_PID", &host.to_string());
        let keys = format!("cwd = \"work\"\nsandbox = \"{level}\"");
        let output = folder.run(&script, &keys).await.unwrap();
        let output: Vec<&str> = output.split_whitespace().collect();
        let expected: Vec<&str> = expected.split(' ').collect();
        assert_eq!(output.len(), expected.len(), "{level}: {output:?}");
        for (at, (output, expected)) in output.iter().zip(&expected).enumerate() {
            // "-" depends on the kernel, or happens in a file system that the sandbox drops.
            let attempt = ATTEMPTS.lines().nth(at + 2).unwrap();
            assert!(*expected == "-" || output == expected, "{level}: {attempt}: {output}");
        }
        let text = std::fs::read_to_string(folder.path.join("outside")).unwrap();
        assert_eq!(text == "x", level != "none", "{level}");
        assert_eq!(folder.processes(), [""; 0]);
    }
}

/// Tries what no sandbox allows. Prints the user, whether a capability is left, the mode of seccomp, and the names of
/// the attempts that succeeded. Nothing that it opens is written to.
const PROBE: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <mqueue.h>
#include <stdio.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static void note(const char *name, long result) { if (result >= 0) printf(" %s", name); }
static void try_open(const char *path, int flags) { note(path, open(path, flags)); }

int main(void) {
  char line[256], caps[2] = "0", seccomp[2] = "?";
  FILE *status = fopen("/proc/self/status", "r");
  while (status && fgets(line, sizeof line, status)) {
    if (!strncmp(line, "Cap", 3) && strspn(line + 8, "0") != 16) caps[0] = '1';
    if (!strncmp(line, "Seccomp:", 8)) seccomp[0] = line[9];
  }
  printf("uid %d caps %s seccomp %s:", getuid(), caps, seccomp);
  int id = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600);
  note("shm", id), id >= 0 && shmctl(id, IPC_RMID, 0);
  id = semget(IPC_PRIVATE, 1, IPC_CREAT | 0600);
  note("sem", id), id >= 0 && semctl(id, 0, IPC_RMID);
  id = msgget(IPC_PRIVATE, IPC_CREAT | 0600);
  note("msg", id), id >= 0 && msgctl(id, IPC_RMID, 0);
  note("mq", mq_open("/callsheet-probe", O_CREAT | O_RDWR, 0600, 0)), mq_unlink("/callsheet-probe");
  note("key", syscall(SYS_add_key, "user", "callsheet-probe", "x", 1L, -2L));
  note("unix", socket(AF_UNIX, SOCK_STREAM, 0));
  note("inet", socket(AF_INET, SOCK_STREAM, 0));
  note("vsock", socket(40, SOCK_STREAM, 0));
  try_open("../outside", O_RDONLY);
  try_open("../outside", O_WRONLY);
  try_open("/etc/shadow", O_RDONLY);
  try_open("/etc/passwd", O_WRONLY);
  try_open("/usr/bin/env", O_WRONLY);
  try_open("/proc/sys/kernel/core_pattern", O_WRONLY);
  try_open("/proc/sysrq-trigger", O_WRONLY);
  puts("");
}
"#;

#[tokio::test]
async fn a_sandbox_holds_for_root_and_for_another_user() {
    const NOBODY: u32 = 65534;
    let folder = Folder::new("users");
    let work = folder.path.join("work");
    std::fs::create_dir(&work).unwrap();
    std::fs::write(folder.path.join("outside"), "x").unwrap();
    std::fs::create_dir(folder.path.join("programs")).unwrap();
    folder.compile("programs/probe", PROBE);
    let is_root = std::os::unix::fs::MetadataExt::uid(&work.metadata().unwrap()) == 0;
    let users: &[Option<u32>] = if is_root { &[None, Some(NOBODY)] } else { &[None] };
    for (level, user) in ["none", "read", "write", "strict"]
        .into_iter()
        .flat_map(|level| users.iter().map(move |user| (level, user)))
    {
        if !folder.can_sandbox_in("work", level) {
            continue;
        }
        let text = format!(
            "[host]\ndata_dir = \"data\"\n[tools.t]\nkind = \"command\"\ndescription = \"d\"\n\
             command = [\"programs/probe\"]\ncwd = \"work\"\nsandbox = \"{level}\"\n\
             [agents.default]\nmodel = \"rehearsal\"\ntools = [\"t\"]\n"
        );
        std::fs::write(folder.path.join("callsheet.toml"), text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_callsheet"));
        command.args(["tools", "call", "t"]).current_dir(&folder.path).stdin(Stdio::null());
        if let Some(user) = user {
            std::os::unix::process::CommandExt::uid(&mut command, *user);
            std::os::unix::process::CommandExt::gid(&mut command, *user);
        }
        let output = command.arg("--approve").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let report = text.lines().find(|line| line.starts_with("uid ")).unwrap_or_else(|| {
            panic!("{level} {user:?}: {text}{}", String::from_utf8_lossy(&output.stderr))
        });
        let (state, allowed) = report.split_once(':').unwrap();
        if level == "none" {
            assert!(allowed.contains(" shm sem msg mq"), "{report}");
            assert!(allowed.contains(" unix inet"), "{report}");
            assert_eq!(allowed.contains("/etc/shadow"), is_root && user.is_none(), "{report}");
            continue;
        }
        assert_eq!(allowed, "", "{level} {user:?}");
        assert!(state.ends_with(" seccomp 2"), "{level} {user:?}: {state}");
        if level == "strict" && is_root {
            assert_eq!(state, format!("uid {NOBODY} caps 0 seccomp 2"));
        }
    }
}

#[tokio::test]
async fn the_own_files_of_the_host_are_in_no_sandbox() {
    let folder = Folder::new("own");
    let path = folder.path.display();
    let head = format!("[host]\ndata_dir = \"{path}/data\"\n");
    for name in ["work", "data", "data/deep", "lib"] {
        std::fs::create_dir(folder.path.join(name)).unwrap();
    }
    std::fs::write(folder.path.join("callsheet.toml"), "").unwrap();
    for file in ["data/journal.db", "beside", "lib/beside"] {
        std::fs::write(folder.path.join(file), "x").unwrap();
    }
    for level in ["read", "write", "strict"] {
        if !folder.can_sandbox_in("work", level) {
            continue;
        }
        let sandbox = format!("sandbox = \"{level}\"");
        let refused = [
            ("cwd = \".\"", "cwd"),
            ("cwd = \"data\"", "cwd"),
            ("cwd = \"data/deep\"", "cwd"),
            ("", "cwd"),
            ("cwd = \"work\"\nread_paths = [\"work\", \"/\"]", "read_paths[1]"),
            ("cwd = \"work\"\nwrite_paths = [\"work/..\"]", "write_paths[0]"),
            ("cwd = \"work\"\nwrite_paths = [\"data/journal.db\"]", "write_paths[0]"),
        ];
        for (keys, key) in refused {
            let text = folder.script("true", &format!("{keys}\n{sandbox}"));
            let error = folder.registry(&format!("{head}{text}")).unwrap_err();
            let expected = format!("tools.t.{key}: ");
            assert!(error.contains(&expected) && error.contains("the host's own"), "{error}");
        }
        // The program is beside the files of the host.
        let program = folder.path.join("program");
        let script = "#!/bin/bash\ncd ..\nfor file in callsheet.toml data/journal.db beside lib/beside; do\n\
                      cat $file >/dev/null 2>&1 && echo $file; done\nls . data 2>/dev/null | grep -e callsheet.toml -e journal || true\n";
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        let text = format!(
            "{head}[tools.t]\nkind = \"command\"\ndescription = \"d\"\ncommand = [\"./program\"]\n\
             cwd = \"work\"\n{sandbox}\n"
        );
        let output = folder.tool(&text).call(json!({})).await;
        // Below the sandbox's own /tmp an empty file stands in the place of one of the host.
        let is_replaced = level == "strict" && folder.path.starts_with("/tmp");
        let names = if is_replaced { "callsheet.toml\n" } else { "" };
        assert_eq!(output.text(), format!("beside\nlib/beside\n{names}"), "{level}");
    }
}

#[tokio::test]
async fn further_paths_of_a_sandbox_are_read_or_written() {
    let folder = Folder::new("paths");
    for name in ["work", "lib", "cache", "other"] {
        std::fs::create_dir(folder.path.join(name)).unwrap();
        std::fs::write(folder.path.join(name).join("file"), "x").unwrap();
    }
    let keys = "cwd = \"work\"\nread_paths = [\"lib\"]\nwrite_paths = [\"cache\"]\n";
    let script = "for folder in lib cache other; do cat ../$folder/file >/dev/null 2>&1 && echo read $folder; \
                  (echo y > ../$folder/file) 2>/dev/null && echo write $folder; done; true";
    for level in ["read", "write", "strict"] {
        if folder.can_sandbox_in("work", level) {
            let keys = format!("{keys}sandbox = \"{level}\"");
            let output = folder.run(script, &keys).await.unwrap();
            assert_eq!(output, "read lib\nread cache\nwrite cache\n", "{level}");
        }
    }
    let error = folder.registry(&folder.script("true", keys)).unwrap_err();
    assert!(error.contains("tools.t.read_paths: needs a sandbox"), "{error}");
    let keys = "cwd = \"work\"\nsandbox = \"read\"\nread_paths = [\"lib\", \"nowhere\"]";
    let error = folder.registry(&folder.script("true", keys)).unwrap_err();
    assert!(error.contains("tools.t.read_paths[1]: ") && error.contains("No such file"), "{error}");
}

/// Calls that would change attributes of files, but have no attributes. Prints how many system calls and how many
/// commands of `ioctl` the sandbox refuses, and whether it refuses a command that changes nothing.
const ATTRIBUTES: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static int refused(long result) { return result < 0 && errno == EACCES; }

int main(void) {
  int file = open(".", O_RDONLY), bytes = 0;
  int calls = refused(syscall(463, AT_FDCWD, 0L, 0L, 0L, 0L, 0L));
  calls += refused(syscall(466, AT_FDCWD, 0L, 0L, 0L));
  calls += refused(syscall(469, AT_FDCWD, 0L, 0L, 0L, 0L));
  int commands = refused(ioctl(file, 0x40086602, 0L));
  commands += refused(ioctl(file, 0x40046602, 0L));
  commands += refused(ioctl(file, 0x401c5820, 0L));
  printf("%d %d %d\n", calls, commands, refused(ioctl(0, FIONREAD, &bytes)));
}
"#;

#[tokio::test]
async fn a_program_that_only_reads_cannot_change_attributes_of_files() {
    for (level, expected) in [("none", "0 0 0\n"), ("read", "3 3 0\n"), ("write", "0 0 0\n")] {
        let folder = Folder::new("attributes");
        if !folder.can_sandbox(level) {
            continue;
        }
        folder.compile("attributes", ATTRIBUTES);
        let output = folder.run("./attributes", &format!("sandbox = \"{level}\"")).await.unwrap();
        assert_eq!(output, expected, "{level}");
    }
}

/// Attacks the launcher, which is the parent process. Prints how often each attack succeeded.
const ATTACK: &str = r#"
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(void) {
  int launcher = getppid(), threads = 0, traced = 0, opened = 0, signalled = 0, limited = 0;
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/task", launcher);
  /* Many times, because a thread of the launcher may be in the sandbox for a short time. */
  for (int round = 0; round < 1000; round++) {
    DIR *tasks = opendir(path);
    if (!tasks) return 2;
    for (struct dirent *task; (task = readdir(tasks));) {
      int thread = atoi(task->d_name);
      if (!thread) continue;
      threads++;
      signalled += !syscall(SYS_tgkill, launcher, thread, 0);
      char memory[96];
      snprintf(memory, sizeof memory, "/proc/%d/task/%d/mem", launcher, thread);
      int file = open(memory, O_RDONLY);
      if (file >= 0) opened++, close(file);
      traced += !ptrace(PTRACE_SEIZE, thread, 0, 0);
    }
    closedir(tasks);
  }
  struct rlimit old, none = {0, 0};
  limited += !prlimit(launcher, RLIMIT_NOFILE, &none, &old);
  limited += !prlimit(launcher, RLIMIT_CPU, &none, &old);
  if (!threads || prlimit(launcher, RLIMIT_NOFILE, 0, &old) || prlimit(0, RLIMIT_CORE, &none, 0))
    return 3;
  printf("traced %d opened %d limited %d signalled %d\n", traced, opened, limited, signalled);
}
"#;

/// Returns whether the sandbox `read` works here and refuses signals to processes outside of it, which
/// Landlock does since Linux 6.12. Says so if not. Fails if `CI` is true.
fn refuses_signals(folder: &Folder) -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let is_new = (numbers.next(), numbers.next()) >= (Some(6), Some(12));
    let refuses = folder.can_sandbox("read") && is_new;
    if !refuses {
        let ci = std::env::var("CI").is_ok_and(|value| value == "true");
        assert!(!ci, "needs Landlock of Linux 6.12, this is {release}");
        eprintln!("skipped: needs Landlock of Linux 6.12, this is {release}");
    }
    refuses
}

#[tokio::test]
async fn a_sandboxed_program_cannot_trace_signal_or_limit_its_launcher() {
    let folder = Folder::new("attack");
    if !refuses_signals(&folder) {
        return;
    }
    folder.compile("attack", ATTACK);
    for level in ["read", "write"] {
        let output = folder.run("exec ./attack", &format!("sandbox = \"{level}\"")).await.unwrap();
        assert_eq!(output, "traced 0 opened 0 limited 0 signalled 0\n", "{level}");
        assert_eq!(folder.processes(), [""; 0]);
    }
}

#[tokio::test]
async fn a_sandboxed_program_cannot_outlive_its_call_by_killing_its_launcher() {
    let folder = Folder::new("kill-launcher");
    if !refuses_signals(&folder) {
        return;
    }
    let script = "kill -9 $PPID && echo killed; (setsid sleep 60 >/dev/null 2>&1 &); \
                  sleep 60 & echo done";
    for level in ["read", "write"] {
        let output = folder.run(script, &format!("sandbox = \"{level}\"")).await.unwrap();
        assert_eq!(output, "done\n", "{level}");
        assert_eq!(folder.processes(), [""; 0], "{level}");
    }
}

#[tokio::test]
async fn a_sandboxed_program_is_started_and_limited_as_every_other() {
    let folder = Folder::new("sandboxed");
    if !refuses_signals(&folder) {
        return;
    }
    // The program is the direct child of its launcher, and leads its process group.
    let script = "set -- $(cat /proc/$$/stat); echo $(($1 == $5)); tr '\\0' ' ' </proc/$4/cmdline";
    let output = folder.run(script, "sandbox = \"read\"").await.unwrap();
    assert_eq!(output, "1\ncallsheet callsheet-launcher ");
    let script = "ulimit -d; ulimit -c";
    let output = folder.run(script, "sandbox = \"read\"\nmax_memory = \"64MiB\"").await.unwrap();
    assert_eq!(output, "65536\n0\n");
    let program = folder.path.join("program");
    std::fs::copy("/bin/true", &program).unwrap();
    let text = "[tools.t]\nkind = \"command\"\ndescription = \"d\"\ncommand = [\"./program\"]\n\
                sandbox = \"read\"\n";
    let mut tool = folder.tool(text);
    assert_eq!(tool.call(json!({})).await.text(), "(no output)");
    std::fs::remove_file(program).unwrap();
    let error = tokio::time::timeout(Duration::from_secs(5), tool.call(json!({}))).await.unwrap();
    let error = error.error().message();
    assert!(error.starts_with("the program did not start: No such file or directory"), "{error}");
}

#[tokio::test]
async fn a_program_that_is_installed_elsewhere_finds_its_parts_in_a_sandbox() {
    let folder = Folder::new("installed");
    let prefix = folder.path.join("prefix");
    for part in ["bin", "lib", "share", "work"] {
        std::fs::create_dir_all(prefix.join(part)).unwrap();
        std::fs::write(prefix.join(part).join("data"), "x").unwrap();
    }
    let program =
        "#!/bin/bash\nfor part in bin lib share; do cat $PREFIX/$part/data || echo -; done\n";
    let path = prefix.join("bin/program");
    std::fs::write(&path, program).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&path, mode).unwrap();
    std::fs::create_dir(folder.path.join("links")).unwrap();
    let link = folder.path.join("links/program");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    for level in ["read", "write", "strict"] {
        if !folder.can_sandbox(level) {
            continue;
        }
        for program in [&path, &link] {
            let (program, prefix) = (program.display(), prefix.display());
            let text = format!(
                "[tools.t]\nkind = \"command\"\ndescription = \"d\"\ncommand = [\"{program}\"]\n\
                 cwd = \"prefix/work\"\nsandbox = \"{level}\"\nenv = {{ PREFIX = \"{prefix}\" }}\n"
            );
            assert_eq!(folder.tool(&text).call(json!({})).await.text(), "xx-\n", "{level}");
        }
    }
}

#[tokio::test]
async fn a_relative_directory_in_path_is_that_of_the_host() {
    let folder = Folder::new("relative-path");
    std::os::unix::fs::symlink("/bin/true", folder.path.join("true")).unwrap();
    let cwd = std::env::current_dir().unwrap();
    let up: PathBuf = cwd.components().skip(1).map(|_| "..").collect();
    let directory = up.join(folder.path.strip_prefix("/").unwrap());
    let directory = directory.display();
    let text = format!(
        "[tools.t]\nkind = \"command\"\ndescription = \"d\"\ncommand = [\"true\"]\n\
         env = {{ PATH = \"{directory}\" }}\n"
    );
    assert_eq!(folder.tool(&text).call(json!({})).await.text(), "(no output)");
}

#[tokio::test]
async fn a_cancelled_program_can_clean_up_in_a_strict_sandbox() {
    let folder = Folder::new("strict-cancel");
    if !folder.can_sandbox("strict") {
        return;
    }
    let script = "trap 'echo bye > bye; exit 0' TERM; while :; do sleep 0.01; done";
    let tool = folder.tool(&folder.script(script, "sandbox = \"strict\""));
    let mut tool = tool.cancel_after(Duration::from_millis(400));
    tool.call(json!({})).await;
    assert_eq!(folder.file("bye").await, "bye\n");
    folder.empty().await;
    // The processes of bubblewrap do not count.
    let keys = "sandbox = \"strict\"\nmax_processes = 1";
    let program =
        "[tools.t]\nkind = \"command\"\ndescription = \"d\"\ncommand = [\"sleep\", \"0.3\"]\n";
    let call = folder.tool(&format!("{program}{keys}\n")).call(json!({})).await;
    assert_eq!(call.text(), "(no output)");
    let script = "setsid sleep 60 >/dev/null 2>&1 & exit 4";
    let error = folder.run(script, "sandbox = \"strict\"").await.unwrap_err();
    assert_eq!(error, "the program ended with exit status 4");
    assert_eq!(folder.processes(), [""; 0]);
}

#[test]
fn wrong_configuration_is_found_before_the_start() {
    let folder = Folder::new("configuration");
    let file = folder.path.join("callsheet.toml");
    std::fs::write(folder.path.join("plain"), "text").unwrap();
    std::fs::write(folder.path.join("broken.json"), "{").unwrap();
    let head = "[tools.t]\nkind = \"command\"\ndescription = \"d\"\n";
    let plain = folder.path.join("plain").display().to_string();
    let broken = folder.path.join("broken.json").display().to_string();
    for (keys, expected) in [
        (
            "command = [\"no-such-program\"]",
            "4: tools.t.command: no program \"no-such-program\" in PATH: install it, or write its \
             path with a \"/\""
                .to_owned(),
        ),
        (
            "command = [\"./plain\"]",
            format!("4: tools.t.command: {} is not executable: run chmod +x on it", plain.replace("/plain", "/./plain")),
        ),
        (
            "command = [\"true\", \"{x}\"]",
            "4: tools.t.command[1]: {x} is not a property of the input (known: none); write \"{{\" for a literal \"{\""
                .to_owned(),
        ),
        (
            "command = [\"true\", \"{x\"]",
            "4: tools.t.command[1]: the placeholder \"{x\" has no \"}\" (write \"{{\" for a literal \"{\")"
                .to_owned(),
        ),
        (
            "input = { x = {} }\ncommand = [\"{x}\"]",
            "5: tools.t.command[0]: the program is fixed: it cannot have a placeholder".to_owned(),
        ),
        (
            "command = [\"true\"]\nstdin = \"text:x\"",
            "5: tools.t.stdin: {x} is not a property of the input (known: none)".to_owned(),
        ),
        (
            "command = [\"true\"]\ncwd = \"nowhere\"",
            format!("5: tools.t.cwd: {} is not a directory: create it", folder.path.join("nowhere").display()),
        ),
        ("command = [\"./\"]", format!("4: tools.t.command: {}/./ is not a file", folder.path.display())),
        (
            "command = [\"true\"]\ninput_schema = \"broken.json\"",
            format!("5: tools.t.input_schema: read {broken}: EOF while parsing an object at line 1 column 1"),
        ),
        (
            "command = [\"true\"]\ninput = { x = { type = \"strin\" } }",
            "5: tools.t.input: not a valid JSON schema: ".to_owned(),
        ),
        (
            "command = [\"true\"]\noutput = \"json\"\noutput_schema = \"broken.json\"",
            format!("6: tools.t.output_schema: read {broken}: EOF"),
        ),
    ] {
        let error = folder.registry(&format!("{head}{keys}\n")).unwrap_err();
        let expected = format!("{}:{expected}", file.display());
        assert!(error.starts_with(&expected) && !error.contains('\n'), "{error}\n{expected}");
    }
    // Without bubblewrap in PATH, the strict sandbox is refused.
    let bin = folder.path.join("bin");
    std::fs::create_dir_all(&bin).unwrap();
    std::os::unix::fs::symlink("/bin/true", bin.join("true")).unwrap();
    let config = folder.path.join("strict.toml");
    let keys = "command = [\"true\"]\ncwd = \"bin\"\nsandbox = \"strict\"";
    std::fs::write(&config, format!("{head}{keys}\n")).unwrap();
    let plain = folder.path.join("plain.toml");
    std::fs::write(&plain, "").unwrap();
    let mut checked = Command::new(env!("CARGO_BIN_EXE_callsheet"));
    checked.args(["--check", "--config"]).arg(&plain).env("PATH", &bin);
    let printed = String::from_utf8(checked.output().unwrap().stdout).unwrap();
    let reason = "the sandbox \"strict\": needs bubblewrap: install the program bwrap in PATH\n";
    assert!(
        printed.contains("sandboxes on this machine: ") && printed.ends_with(reason),
        "{printed}"
    );
    let mut checked = Command::new(env!("CARGO_BIN_EXE_callsheet"));
    checked.args(["--check", "--config"]).arg(&config).env("PATH", &bin);
    let checked = checked.output().unwrap();
    assert_eq!(checked.status.code(), Some(2));
    let expected = "6: tools.t.sandbox: this system does not support the sandbox \"strict\": needs bubblewrap: \
                    install the program bwrap in PATH\n";
    let expected = format!("callsheet: {}:{expected}", config.display());
    assert_eq!(String::from_utf8(checked.stderr).unwrap(), expected);
}

/// Writes the configuration of a real host with a command tool. Returns its scripted model.
async fn host(folder: &Folder, script: &str, keys: &str) -> MockProvider {
    let call = Response::calls([Call::new("t", json!({"a": "x"}))]);
    let responses = [call, Response::text("Done."), Response::text("Done again.")];
    let script_of_model = Script::new(responses);
    let options = MockProviderOptions::default().with(|options| options.script = script_of_model);
    let model = MockProvider::start(options).await.unwrap();
    let mut text = folder.script(script, keys);
    let url = model.base_url();
    std::fs::create_dir_all(folder.path.join("work")).unwrap();
    write!(
        text,
        "[models.main]\nwire = \"openai-chat\"\nbase_url = \"{url}\"\nmodel = \"m\"\n\
         [agents.default]\nmodel = \"main\"\ntools = [\"t\"]\n"
    )
    .unwrap();
    std::fs::write(folder.path.join("callsheet.toml"), text).unwrap();
    model
}

fn binary(folder: &Folder, arguments: &[&str]) -> tokio::process::Command {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_callsheet"));
    command.args(arguments).current_dir(&folder.path).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).env("CALLSHEET_LOG", "debug");
    command
}

#[tokio::test]
async fn a_killed_host_leaves_no_process() {
    for sandbox in ["none", "write"] {
        let folder = Folder::new("kill");
        if !folder.can_sandbox(sandbox) {
            continue;
        }
        let script = "trap '' TERM HUP INT; (setsid bash -c \"trap '' TERM; sleep 60\" &); \
                      echo up > up; sleep 60 & sleep 60";
        let keys = format!("cwd = \"work\"\nsandbox = \"{sandbox}\"");
        let _model = host(&folder, script, &keys).await;
        let mut run = binary(&folder, &["run", "go"]).spawn().unwrap();
        folder.file("work/up").await;
        // The last of them begin when the file is there.
        let begun = async {
            while folder.processes().len() < 3 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), begun).await.unwrap();
        run.kill().await.unwrap();
        folder.empty().await;
    }
}

#[tokio::test]
async fn a_host_that_is_killed_at_any_instant_leaves_no_process() {
    let folder = Folder::new("kill-any");
    let script = "(setsid sleep 60 &); sleep 60 & sleep 60";
    for instant in 0..20 {
        let _model = host(&folder, script, "").await;
        let mut run = binary(&folder, &["run", "go"]).spawn().unwrap();
        // A run reaches the start of the program after some ten milliseconds.
        tokio::time::sleep(Duration::from_millis(instant * 12)).await;
        run.kill().await.unwrap();
        folder.empty().await;
    }
}

#[tokio::test]
async fn an_effect_is_not_repeated_after_the_host_was_killed() {
    let folder = Folder::new("effect");
    let _model = host(&folder, "echo x >> effects; echo up > up; sleep 60", "").await;
    let arguments = |input| ["run", "--session", "s", "--data-dir", "data", input];
    let mut run = binary(&folder, &arguments("go")).spawn().unwrap();
    folder.file("up").await;
    run.kill().await.unwrap();
    folder.empty().await;
    let output = binary(&folder, &arguments("more")).output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(folder.file("effects").await, "x\n");
    let show = ["sessions", "show", "s", "--data-dir", "data", "--format", "jsonl"];
    let shown = binary(&folder, &show).output().await.unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("\"unknown\"") && shown.contains("host_stopped"), "{shown}");
}

#[tokio::test]
async fn many_calls_at_once_leave_no_process() {
    let folder = Folder::new("many");
    let registry = folder.registry(&folder.script("sleep 60 & echo $$", "")).unwrap();
    let tool = &registry.tool("t").unwrap().tool;
    let calls = (0..40).map(|at| {
        let test = ToolTest::new(Arc::clone(tool));
        async move {
            // Every second call is cancelled at some instant.
            let after = Duration::from_millis(if at % 2 == 0 { 60_000 } else { at * 5 });
            let call = test.cancel_after(after).call(json!({})).await;
            call.result.map(|output| output.text().into_owned())
        }
    });
    let results = futures::future::join_all(calls).await;
    let mut answered: Vec<String> = results.into_iter().step_by(2).map(Result::unwrap).collect();
    answered.sort();
    answered.dedup();
    assert_eq!(answered.len(), 20);
    folder.empty().await;
    // The launchers of dropped calls are waited for in the background.
    for _ in 0..1000 {
        if zombies() == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{} zombies are left", zombies());
}

/// Returns the number of ended children of this process that nobody has waited for.
fn zombies() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let children =
        tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let children = children.collect::<Vec<_>>().concat();
    let states = children.split_whitespace().filter_map(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some(stat.rsplit_once(") ")?.1.starts_with('Z'))
    });
    states.filter(|is_zombie| *is_zombie).count()
}

#[tokio::test]
async fn a_secret_appears_nowhere() {
    let folder = Folder::new("secret");
    let secret = "tok-5d1f0c77aa42";
    let script = "echo \"$TOKEN $(echo -n $TOKEN | base64)\"; echo \"$TOKEN\" >&2; exit $FAIL";
    let keys = "secret_env = { TOKEN = \"MY_TOKEN\" }\nenv_pass = [\"FAIL\"]\nok_exit = [0]";
    for fail in ["0", "1"] {
        let model = host(&folder, script, keys).await;
        let arguments =
            ["run", "--json", "--session", &format!("s{fail}"), "--data-dir", "data", "go"];
        let mut command = binary(&folder, &arguments);
        let output = command.env("MY_TOKEN", secret).env("FAIL", fail).output().await.unwrap();
        let stdout = String::from_utf8(output.stdout).unwrap();
        assert!(stdout.contains("[redacted]"), "{stdout}");
        let requests = format!("{:?}", model.requests());
        let mut left = vec![stdout, String::from_utf8(output.stderr).unwrap(), requests];
        for file in std::fs::read_dir(folder.path.join("data")).unwrap().flatten() {
            left.push(String::from_utf8_lossy(&std::fs::read(file.path()).unwrap()).into_owned());
        }
        for text in left {
            assert!(!text.contains(secret) && !text.contains("dG9rLTVkMWYwYzc3YWE0Mg"), "{text}");
        }
        assert_eq!(output.status.code(), Some(0));
        let session = format!("s{fail}");
        for arguments in [["sessions", "verify"], ["replay", &session]] {
            let mut command = binary(&folder, &arguments);
            let output = command
                .args(["--data-dir", "data"])
                .env("MY_TOKEN", secret)
                .env("FAIL", fail)
                .output();
            let output = output.await.unwrap();
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{arguments:?}: {text}");
        }
    }
}

#[tokio::test]
async fn a_failure_has_its_kind_in_the_events() {
    let folder = Folder::new("kinds");
    let _model = host(&folder, "exit 7", "").await;
    let output = binary(&folder, &["run", "--json", "go"]).output().await.unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    let result = stdout.lines().find(|line| line.contains("\"tool_result\"")).unwrap();
    let result: Value = serde_json::from_str(result).unwrap();
    assert_eq!(result["metadata"], json!({"error": true, "kind": "exit_status"}));
    assert_eq!(result["output_summary"], "Error: the program ended with exit status 7");
}

#[test]
fn a_wrong_table_is_one_line_with_status_2() {
    let folder = Folder::new("check");
    let text =
        "[tools.t]\nkind = \"command\"\ndescription = \"d\"\ncommand = [\"nothing-there\"]\n";
    std::fs::write(folder.path.join("callsheet.toml"), text).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_callsheet"))
        .args(["serve", "--check"])
        .current_dir(&folder.path)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let expected = "callsheet: callsheet.toml:4: tools.t.command: no program \"nothing-there\" in \
                    PATH: install it, or write its path with a \"/\"\n";
    assert_eq!(String::from_utf8(output.stderr).unwrap(), expected);
}

#[tokio::test]
async fn a_killed_launcher_fails_the_call() {
    let folder = Folder::new("launcher");
    let error = folder.run("sleep 0.3; kill -9 $PPID; sleep 0.1", "").await.unwrap_err();
    assert_eq!(error, "the launcher of the program was killed");
    folder.empty().await;
}

#[tokio::test]
async fn a_fork_bomb_is_killed() {
    let folder = Folder::new("bomb");
    // Bounded, so that a failure of this test does not take the machine down.
    let script =
        "f() { if [ $1 -gt 0 ]; then f $(($1 - 1)) & f $(($1 - 1)) & sleep 30; fi; }; f 9; wait";
    let error = folder.run(script, "max_processes = 10").await.unwrap_err();
    assert_eq!(error, "the program was killed: it had more than 10 processes (max_processes)");
    assert_eq!(folder.processes(), [""; 0]);
}
