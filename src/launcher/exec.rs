//! Starts a program in the sandbox `read` or `write`, or with a limit of its memory: the launcher starts a process
//! that restricts itself and then becomes the program.
//!
//! A program may trace and kill every thread that is in its sandbox, and with the thread its whole
//! process. So no thread of the launcher ever enters the sandbox. The launcher starts its own binary
//! once more, by a second hidden subcommand. That process receives the request, restricts itself, and
//! then executes the program in its own place. The program has the process id of that process, and the
//! launcher is its parent.
//!
//! The limit of memory is set in the same way, because the launcher may need more itself. A limit that is set
//! after the start would not hold for the processes that the program has started before.

use std::io::{self, Read, Write};
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
/// its execution has begun.
pub(super) fn spawn_restricted(
    request: &LaunchRequest,
    streams: [OwnedFd; 3],
) -> Result<Child, LauncherMessage> {
    let (socket, child_socket) = UnixStream::pair().map_err(start_failed)?;
    let mut child = Command::new("/proc/self/exe")
        .arg0("callsheet")
        .arg(SUBCOMMAND)
        .env_clear()
        .stdin(Stdio::from(OwnedFd::from(child_socket)))
        .process_group(0)
        .spawn()
        .map_err(start_failed)?;
    let answer = send_request(&socket, request, streams).unwrap_or_else(start_failed);
    if matches!(answer, LauncherMessage::Started) {
        return Ok(child);
    }
    // A child that has ended counts as a descendant until this process has waited for it.
    let _ = child.kill();
    let _ = child.wait();
    Err(answer)
}

/// Sends the request to the process that restricts itself. Returns its last message. The execution of the
/// program closes the other end of the socket.
fn send_request(
    mut socket: &UnixStream,
    request: &LaunchRequest,
    streams: [OwnedFd; 3],
) -> io::Result<LauncherMessage> {
    let body = serde_json::to_vec(request)?;
    send_streams(socket, body.len(), &streams.each_ref().map(AsFd::as_fd))?;
    // The host reads the output until no process holds the streams open.
    drop(streams);
    socket.write_all(&body)?;
    let mut lines = Vec::new();
    socket.read_to_end(&mut lines)?;
    let messages = serde_json::Deserializer::from_slice(&lines).into_iter();
    let last = messages.last().ok_or_else(|| {
        io::Error::other("the process that becomes the program ended without a message")
    })?;
    Ok(last?)
}

/// Runs the process that restricts itself. Returns its exit status if it cannot execute the program.
pub(super) fn run() -> i32 {
    let Ok(socket) = io::stdin().as_fd().try_clone_to_owned() else { return USAGE };
    let socket = UnixStream::from(socket);
    let Ok((request, streams)) = receive_request(&socket) else { return USAGE };
    let (program, cwd) = (Path::new(&request.program), Path::new(&request.cwd));
    let restricted = sandbox::restrict_thread(request.sandbox, program, cwd);
    if let Err(error) = restricted {
        send_message(&socket, &LauncherMessage::SandboxFailed(error.to_string()));
        return NOT_EXECUTED;
    }
    let mut command = command(&request, streams);
    if let Err(error) = request.max_memory.map_or(Ok(()), limit_memory) {
        send_message(&socket, &start_failed(error));
        return NOT_EXECUTED;
    }
    // Without this message, the launcher could not tell the execution from a crash before it.
    send_message(&socket, &LauncherMessage::Started);
    let error = command.exec();
    send_message(&socket, &start_failed(error));
    NOT_EXECUTED
}

/// Limits the memory (`RLIMIT_DATA`) of this process and of all that it starts, of each by itself. A lower limit of
/// the host stays.
fn limit_memory(bytes: u64) -> rustix::io::Result<()> {
    let inherited = rustix::process::getrlimit(Resource::Data).maximum;
    let bytes = Some(inherited.map_or(bytes, |inherited| inherited.min(bytes)));
    rustix::process::setrlimit(Resource::Data, Rlimit { current: bytes, maximum: bytes })
}
