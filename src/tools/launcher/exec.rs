//! Starts a program in a sandbox, or with a limit of its memory: the launcher starts a process that restricts itself
//! and then becomes the program.
//!
//! A program may trace and kill every thread that is in its sandbox, and with the thread its whole
//! process. So no thread of the launcher ever enters the sandbox. The launcher starts its own binary
//! once more, by a second hidden subcommand. That process receives the request, restricts itself, and
//! then executes the program in its own place. The program has the process id of that process, and the
//! launcher is its parent. At the level `strict`, bubblewrap starts that process within its namespaces, and is the
//! launcher's child.
//!
//! The limit of memory is set in the same way, because the launcher may need more itself. A limit that is set
//! after the start would not hold for the processes that the program has started before.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Resource, Rlimit};

use super::protocol::{
    LaunchRequest, LauncherMessage, receive_request, send_message, send_streams, start_failed,
};
use super::sandbox;
use super::supervise::USAGE;

/// The first argument of the process that restricts itself.
pub(super) const SUBCOMMAND: &str = "callsheet-sandboxed";

/// The exit status of that process if it cannot execute the program.
const NOT_EXECUTED: i32 = 1;

/// Maximum number of bytes of the error of bubblewrap that are read.
const ERROR_BYTES_MAX: u64 = 4096;

/// Returns the command that starts the program.
pub(super) fn command(request: &LaunchRequest, streams: [OwnedFd; 3]) -> Command {
    let [stdin, stdout, stderr] = streams;
    let mut command = Command::new(&request.program);
    command
        .args(&request.arguments)
        .current_dir(&request.cwd)
        .env_clear()
        .envs(&request.env)
        .stdin(Stdio::from(stdin))
        .stdout(Stdio::from(stdout))
        .stderr(Stdio::from(stderr));
    command
}

/// Starts the program in its sandbox, with its limit of memory and in a process group of its own. Returns after
/// its execution has begun. `binary` is the launcher's.
pub(super) fn spawn_restricted(
    binary: &Path,
    request: &LaunchRequest,
    streams: [OwnedFd; 3],
) -> Result<Child, LauncherMessage> {
    let (socket, child_socket) = UnixStream::pair().map_err(start_failed)?;
    let mut errors = None;
    let mut command = match request.sandbox.bubblewrap.split_first() {
        None => {
            let mut command = Command::new(binary);
            command.arg0("callsheet").stderr(Stdio::null());
            command
        }
        Some((bwrap, options)) => {
            let mut command = Command::new(bwrap);
            // The binary is not in the sandbox. It is executed by its descriptor, which does not stay open there.
            let binary = File::open(binary).map_err(start_failed)?;
            let (reader, child_errors) = io::pipe().map_err(start_failed)?;
            errors = Some(reader);
            command.args(options).arg("/proc/self/fd/1").stdout(binary).stderr(child_errors);
            command
        }
    };
    command.arg(SUBCOMMAND).env_clear().stdin(OwnedFd::from(child_socket)).process_group(0);
    let spawned = command.spawn().map_err(start_failed);
    // The command holds the other ends of the socket and of the pipe.
    drop(command);
    let mut child = spawned?;
    let failure = match send_request(&socket, request, streams) {
        Ok(Some(LauncherMessage::Started)) => return Ok(child),
        Ok(Some(message)) => message,
        Ok(None) => start_failed(io::Error::other(
            "the process that becomes the program ended without a message",
        )),
        Err(error) => start_failed(error),
    };
    // A child that has ended counts as a descendant until this process has waited for it.
    let _ = child.kill();
    let _ = child.wait();
    let is_own = matches!(failure, LauncherMessage::SandboxFailed(_));
    Err(errors.filter(|_| !is_own).and_then(bubblewrap_failure).unwrap_or(failure))
}

/// Returns the error that bubblewrap has written.
fn bubblewrap_failure(errors: PipeReader) -> Option<LauncherMessage> {
    let mut text = Vec::new();
    let _ = errors.take(ERROR_BYTES_MAX).read_to_end(&mut text);
    let text = String::from_utf8_lossy(&text);
    let text = Some(text.trim()).filter(|text| !text.is_empty())?;
    let message = format!("bubblewrap cannot make namespaces here: {text}");
    Some(LauncherMessage::SandboxFailed(message))
}

/// Sends the request to the process that restricts itself. Returns its last message. The execution of the
/// program closes the other end of the pipe.
fn send_request(
    mut socket: &UnixStream,
    request: &LaunchRequest,
    streams: [OwnedFd; 3],
) -> io::Result<Option<LauncherMessage>> {
    let body = serde_json::to_vec(request)?;
    let (mut answers, answer_end) = io::pipe()?;
    let [stdin, stdout, stderr] = streams.each_ref().map(AsFd::as_fd);
    send_streams(socket, body.len(), &[stdin, stdout, stderr, answer_end.as_fd()])?;
    // The host reads the output until no process holds the streams open.
    drop((streams, answer_end));
    socket.write_all(&body)?;
    let mut lines = Vec::new();
    answers.read_to_end(&mut lines)?;
    let messages = serde_json::Deserializer::from_slice(&lines).into_iter();
    Ok(messages.last().transpose()?)
}

/// Runs the process that restricts itself. Returns its exit status if it cannot execute the program.
pub(super) fn run() -> i32 {
    let Ok(socket) = io::stdin().as_fd().try_clone_to_owned() else { return USAGE };
    let Ok((request, [stdin, stdout, stderr, answers])) =
        receive_request(&UnixStream::from(socket))
    else {
        return USAGE;
    };
    let answers = PipeWriter::from(answers);
    if let Err(error) = sandbox::restrict_thread(&request) {
        send_message(&answers, &LauncherMessage::SandboxFailed(error.to_string()));
        return NOT_EXECUTED;
    }
    let mut command = command(&request, [stdin, stdout, stderr]);
    if let Err(error) = request.max_memory.map_or(Ok(()), limit_memory) {
        send_message(&answers, &start_failed(error));
        return NOT_EXECUTED;
    }
    // Without this message, the launcher could not tell the execution from a crash before it.
    send_message(&answers, &LauncherMessage::Started);
    let error = command.exec();
    send_message(&answers, &start_failed(error));
    NOT_EXECUTED
}

/// Limits the memory (`RLIMIT_DATA`) of this process and of all that it starts, of each by itself. A lower limit of
/// the host stays.
fn limit_memory(bytes: u64) -> rustix::io::Result<()> {
    let inherited = rustix::process::getrlimit(Resource::Data).maximum;
    let bytes = Some(inherited.map_or(bytes, |inherited| inherited.min(bytes)));
    rustix::process::setrlimit(Resource::Data, Rlimit { current: bytes, maximum: bytes })
}
