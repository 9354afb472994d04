//! The binary in a real terminal: a pseudo-terminal whose screen is interpreted as a terminal would do it.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use callsheet_mock_provider::{Call, MockProvider, Response, Script, ScriptPosition};
use parking_lot::Mutex;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use serde_json::json;
use tokio::time::Instant;
use vt100::Parser;

const PROMPT: &str = "What time is it in Tokyo and in Beijing, and what is 17 % of 2,350?";

/// Number of rows of the terminal. Nothing scrolls out of it.
const ROWS: u16 = 200;

/// Time limit of every wait.
const PATIENCE: Duration = Duration::from_secs(30);

/// A terminal in which the binary runs.
struct Terminal {
    master: File,
    /// Keeps the terminal open when the process has ended.
    slave: File,
    child: Child,
    received: Arc<Mutex<(Parser, Vec<u8>)>>,
    reader: JoinHandle<()>,
}

impl Terminal {
    /// Starts the binary in a terminal with this width and type. `config` is its configuration.
    fn start(name: &str, args: &[&str], columns: u16, kind: &str, config: &str) -> Self {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("terminal-{name}-{columns}-{kind}"));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("callsheet.toml"), config).unwrap();
        let master: OwnedFd = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let size = Winsize { ws_row: ROWS, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&master, size).unwrap();
        let path = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let slave = OpenOptions::new().read(true).write(true).open(path).unwrap();
        // Makes it the controlling terminal of the process, so that Ctrl-C becomes a signal.
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait", env!("CARGO_BIN_EXE_callsheet")]).args(args);
        command.current_dir(folder).env("TERM", kind).env_remove("NO_COLOR").env_remove("COLUMNS");
        for name in ["CALLSHEET_TOKEN", "CALLSHEET_LOG", "RUST_LOG"] {
            command.env_remove(name);
        }
        let end = || slave.try_clone().unwrap();
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        let master = File::from(master);
        let received = Arc::new(Mutex::new((Parser::new(ROWS, columns, 0), Vec::new())));
        let (mut from, to) = (master.try_clone().unwrap(), Arc::clone(&received));
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // Reading fails when nobody has the terminal open.
            while let Ok(length @ 1..) = from.read(&mut buffer) {
                let mut to = to.lock();
                to.0.process(&buffer[..length]);
                to.1.extend_from_slice(&buffer[..length]);
            }
        });
        Self { master, slave, child, received, reader }
    }

    fn screen(&self) -> String {
        self.received.lock().0.screen().contents()
    }

    /// Waits until the screen contains a text.
    #[track_caller]
    fn wait_for(&self, text: &str) {
        let began = Instant::now();
        while !self.screen().contains(text) {
            assert!(began.elapsed() < PATIENCE, "no {text:?} on the screen:\n{}", self.screen());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Types a line and waits until the terminal has it, which it then echoes.
    #[track_caller]
    fn type_ahead(&self, line: &str) {
        self.type_in(&format!("{line}\n"));
        let (began, echo) = (Instant::now(), format!("{line}\r\n"));
        while !String::from_utf8_lossy(&self.received.lock().1).contains(&echo) {
            assert!(began.elapsed() < PATIENCE, "no echo:\n{}", self.screen());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn type_in(&self, text: &str) {
        (&self.master).write_all(text.as_bytes()).unwrap();
    }

    /// Waits for the end of the process. Returns its status, the screen and all bytes that it wrote.
    fn finish(mut self) -> (ExitStatus, vt100::Screen, String) {
        let status = self.child.wait().unwrap();
        let modes = tcgetattr(&self.slave).unwrap().local_modes;
        assert!(
            modes.contains(LocalModes::ECHO | LocalModes::ICANON),
            "the terminal is not restored"
        );
        drop((self.slave, self.master));
        self.reader.join().unwrap();
        let received = self.received.lock();
        let screen = received.0.screen().clone();
        assert!(!screen.hide_cursor(), "the cursor stays hidden");
        (status, screen, String::from_utf8(received.1.clone()).unwrap())
    }
}

/// Asserts that no line is wider than the terminal: the terminal did not wrap one. The model's answer is printed
/// as it is, so that it can be copied.
#[track_caller]
fn assert_fits(screen: &vt100::Screen) {
    let rows: Vec<String> = screen.rows(0, screen.size().1).collect();
    let row_with = |text: &str| rows.iter().position(|row| row.starts_with(text));
    let answer = row_with("(offline").zip(row_with("answered:"));
    let is_answer = |row: usize| answer.is_some_and(|(begin, end)| (begin..end).contains(&row));
    let is_wrapped = |row: &u16| screen.row_wrapped(*row) && !is_answer(usize::from(*row));
    let wrapped: Vec<u16> = (0..ROWS).filter(is_wrapped).collect();
    assert!(wrapped.is_empty(), "rows {wrapped:?} are too wide:\n{}", screen.contents());
}

fn is_block(c: char) -> bool {
    ('\u{2500}'..='\u{259f}').contains(&c)
}

#[test]
fn a_run_fits_into_narrow_and_wide_terminals() {
    for columns in [40, 100] {
        for kind in ["xterm-256color", "dumb"] {
            let terminal = Terminal::start("run", &["run", PROMPT], columns, kind, "");
            let (status, screen, written) = terminal.finish();
            let contents = screen.contents();
            assert!(status.success(), "{contents}");
            assert!(contents.contains("399.5"), "{contents}");
            assert_fits(&screen);
            // No word of the call lines is cut in its middle.
            for word in ["calculator", "clock", "Asia/Tokyo", "Asia/Shanghai"] {
                assert!(contents.contains(word), "{word} at {columns}, {kind}:\n{contents}");
            }
            assert_eq!(written.contains('\u{1b}'), kind != "dumb", "{written:?}");
            assert_eq!(written.contains(is_block), kind != "dumb", "{contents}");
        }
    }
}

#[test]
fn a_stored_session_fits_into_narrow_and_wide_terminals() {
    for columns in [40, 100] {
        let config = "[host]\ndata_dir = \"data\"\n";
        let args = ["run", "--session", "s", PROMPT];
        let (status, ..) = Terminal::start("stored", &args, columns, "dumb", config).finish();
        assert!(status.success());
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("terminal-stored-{columns}-dumb"));
        let data = folder.join("data").to_str().unwrap().to_owned();
        for kind in ["xterm-256color", "dumb"] {
            let show = ["sessions", "show", "s", "--format", "timeline", "--data-dir", &data];
            let (status, screen, written) =
                Terminal::start("show", &show, columns, kind, "").finish();
            assert!(status.success(), "{}", screen.contents());
            assert!(screen.contents().contains("turn 1"), "{}", screen.contents());
            assert_fits(&screen);
            assert_eq!(written.contains(is_block), kind != "dumb", "{written}");
        }
    }
}

#[test]
fn a_question_is_answered_at_the_terminal() {
    let config = "[tools.clock]\napproval = \"before\"\n";
    for (answer, ran, columns, kind) in [
        ("y\n", true, 40, "xterm-256color"),
        ("n\n", false, 60, "xterm-256color"),
        ("y\n", true, 40, "dumb"),
    ] {
        let name = if ran { "yes" } else { "no" };
        let args = ["run", "What time is it in Tokyo?"];
        let terminal = Terminal::start(name, &args, columns, kind, config);
        terminal.wait_for("[y/N]");
        terminal.type_in(answer);
        let (status, screen, _) = terminal.finish();
        let contents = screen.contents();
        assert!(status.success(), "{contents}");
        assert_eq!(contents.contains("rejected"), !ran, "{contents}");
        assert!(contents.contains("Asia/Tokyo"), "{contents}");
        assert_fits(&screen);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_typed_before_a_question_does_not_answer_it() {
    let clock = |zone: &str| Call::new("clock", json!({"zone": zone}));
    let calls = Response::calls([clock("Asia/Tokyo"), clock("Asia/Shanghai")]);
    let script =
        Script::new([calls.hold(ScriptPosition::Headers, "start"), Response::text("Done.")]);
    let model = MockProvider::with_script(script).await.unwrap();
    let url = model.base_url();
    let args = ["run", "--wire", "openai-chat", "--base-url", &url, "--model", "m", "hello"];
    let config = "[tools.clock]\napproval = \"before\"\n";
    let terminal = Terminal::start("ahead", &args, 100, "xterm-256color", config);
    terminal.wait_for("waiting for m");
    terminal.type_ahead("y");
    model.open_gate("start");
    terminal.wait_for("Tokyo\"}: may clock run? [y/N]");
    // The second line is typed before the second question.
    terminal.type_in("n\ny\n");
    terminal.wait_for("Shanghai\"}: may clock run? [y/N]");
    terminal.type_in("n\n");
    let (status, screen, _) = tokio::task::block_in_place(|| terminal.finish());
    let contents = screen.contents();
    assert!(status.success(), "{contents}");
    assert_eq!(contents.matches("✗ clock").count(), 2, "{contents}");
    assert!(!contents.contains('✓'), "a call has run:\n{contents}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_error_of_a_service_is_harmless_and_breaks_between_words() {
    let message = format!("bad \u{202e}\u{1b}[31m thing\n{}", "and so on ".repeat(12));
    let error = json!({"error": {"message": message}});
    let failing = Response::status(400).with(|response| response.error = Some(error));
    let model = MockProvider::with_script(Script::new([failing])).await.unwrap();
    let url = model.base_url();
    let args = ["run", "--wire", "openai-chat", "--base-url", &url, "--model", "m", "hello"];
    let terminal = Terminal::start("error", &args, 40, "xterm-256color", "");
    let (status, screen, written) = tokio::task::block_in_place(|| terminal.finish());
    assert_eq!(status.code(), Some(1), "{}", screen.contents());
    assert!(written.contains("\\u{202e}"), "{written:?}");
    assert!(!written.contains("\u{1b}[31m"), "{written:?}");
    assert_fits(&screen);
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_stops_the_run_and_restores_the_terminal() {
    let held = || Response::text("Never.").hold(ScriptPosition::Headers, "start");
    let model = MockProvider::with_script(Script::new([held(), held()])).await.unwrap();
    let url = model.base_url();
    for kind in ["xterm-256color", "dumb"] {
        let args = ["run", "--wire", "openai-chat", "--base-url", &url, "--model", "m", "hello"];
        let terminal = Terminal::start("stop", &args, 40, kind, "");
        terminal.wait_for("waiting for");
        terminal.type_in("\u{3}");
        let (status, screen, _) = tokio::task::block_in_place(|| terminal.finish());
        assert_eq!(status.code(), Some(130), "{}", screen.contents());
        assert_fits(&screen);
    }
}
