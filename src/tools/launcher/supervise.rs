//! The launcher process: starts the program, reports its exit, and kills it with all descendants.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Pid, Resource, Rlimit, Signal, WaitOptions, WaitStatus};

use super::descendants;
use super::exec;
use super::protocol::{
    LaunchRequest, LauncherMessage, TERMINATE, receive_request, send_message, start_failed,
};
use callsheet_values::config::SandboxLevel;

/// Time between two counts of the descendants.
const COUNT_INTERVAL: Duration = Duration::from_millis(50);

/// Number of processes of bubblewrap beside the program.
const WRAPPER_PROCESSES: u32 = 2;

/// The exit status of a launcher that was not started by a host.
pub(super) const USAGE: i32 = 2;

/// Runs the launcher. Returns its exit status.
pub(super) fn run() -> i32 {
    let Ok(socket) = io::stdin().as_fd().try_clone_to_owned() else { return USAGE };
    let socket = UnixStream::from(socket);
    match receive_request(&socket) {
        Ok((request, streams)) => {
            if request.enables_huge_pages {
                // If this fails, the program runs without huge pages.
                let _ = rustix::thread::disable_transparent_huge_pages(false);
            }
            supervise(&socket, &request, streams);
            0
        }
        Err(_) => USAGE,
    }
}

/// Starts the program and stays until the host closes the socket. Returns if the program does not
/// start: no process is left then.
fn supervise(socket: &UnixStream, request: &LaunchRequest, streams: [OwnedFd; 3]) {
    // The direct child: the program, or bubblewrap around it.
    let program = Arc::new(OnceLock::new());
    let threads = start_threads(socket, request, &program);
    let child = match threads.and_then(|()| start(request, streams)) {
        Ok(child) => child,
        // Return, which ends the process: the thread that would end it when the host closes the socket may not
        // exist.
        Err(message) => return send_message(socket, &message),
    };
    let _ = program.set(child);
    send_message(socket, &LauncherMessage::Started);
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == child => send_message(socket, &exited(status)),
            Ok(_) | Err(Errno::INTR) => {}
            // There is no descendant any more.
            Err(_) => wait_for_host(),
        }
    }
}

/// Waits for the thread that ends the process when the host closes the socket.
fn wait_for_host() -> ! {
    loop {
        thread::park();
    }
}

/// Makes this process the reaper of all descendants, and starts the threads that serve the host and
/// count the descendants.
fn start_threads(
    socket: &UnixStream,
    request: &LaunchRequest,
    program: &Arc<OnceLock<Pid>>,
) -> Result<(), LauncherMessage> {
    if !descendants::are_listed() {
        let message = "needs /proc with lists of children (CONFIG_PROC_CHILDREN)";
        return Err(LauncherMessage::StartFailed(message.to_owned()));
    }
    // Other processes without privileges can neither trace this one nor read its memory.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(start_failed)?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(start_failed)?;
    // A session of its own has no terminal, which programs could read from and write to.
    rustix::process::setsid().map_err(start_failed)?;
    // In bubblewrap, the direct child only waits for the program. Its end would kill the program.
    let is_wrapped = request.sandbox.level == SandboxLevel::Strict;
    let (requests, program) = (socket.try_clone().map_err(start_failed)?, Arc::clone(program));
    let serve = move || serve_host(requests, &program, is_wrapped);
    thread::Builder::new().spawn(serve).map_err(start_failed)?;
    if let Some(max) = request.max_processes {
        let max = max.saturating_add(if is_wrapped { WRAPPER_PROCESSES } else { 0 });
        let messages = socket.try_clone().map_err(start_failed)?;
        let count =
            move || enforce_max_processes(&messages, usize::try_from(max).unwrap_or(usize::MAX));
        thread::Builder::new().spawn(count).map_err(start_failed)?;
    }
    Ok(())
}

/// Serves the requests of the host until it closes the socket. Then kills all descendants and ends the
/// process. A direct child that is only a wrapper of the program gets no `SIGTERM`.
fn serve_host(mut requests: UnixStream, program: &OnceLock<Pid>, is_wrapped: bool) {
    let wrapper = || program.get().copied().filter(|_| is_wrapped);
    let mut request = [0];
    loop {
        match requests.read(&mut request) {
            Ok(1) if request == [TERMINATE] => descendants::signal(Signal::TERM, wrapper()),
            Ok(1) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(_) | Err(_) => break,
        }
    }
    kill_program(program, descendants::kill_all);
    std::process::exit(0);
}

/// Kills the program with all descendants. Returns only after its start is complete: `kill_all` returns
/// as soon as there is no descendant, and the program could start after that and outlive the launcher.
/// If the start fails, the main thread ends the process.
fn kill_program(program: &OnceLock<Pid>, mut kill_all: impl FnMut()) {
    while program.get().is_none() {
        kill_all();
        thread::sleep(descendants::KILL_INTERVAL);
    }
    kill_all();
}

/// Waits until there are more descendants than allowed. Then reports this and kills them all.
fn enforce_max_processes(messages: &UnixStream, max: usize) {
    while descendants::descendants().len() <= max {
        thread::sleep(COUNT_INTERVAL);
    }
    send_message(messages, &LauncherMessage::TooManyProcesses);
    descendants::kill_all();
}

/// Starts the program. Does not restrict this process to the sandbox and the memory of the program: see
/// `exec.rs`.
fn start(request: &LaunchRequest, streams: [OwnedFd; 3]) -> Result<Pid, LauncherMessage> {
    let no_core = Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(Resource::Core, no_core).map_err(start_failed)?;
    rustix::thread::set_no_new_privs(true).map_err(start_failed)?;
    let is_restricted = request.sandbox.level != SandboxLevel::None || request.max_memory.is_some();
    let child = if is_restricted {
        exec::spawn_restricted(Path::new("/proc/self/exe"), request, streams)?
    } else {
        exec::command(request, streams).process_group(0).spawn().map_err(start_failed)?
    };
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| LauncherMessage::StartFailed("it has no process id".to_owned()))
}

fn exited(status: WaitStatus) -> LauncherMessage {
    LauncherMessage::Exited { code: status.exit_status(), signal: status.terminating_signal() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_starts_after_the_host_has_died_is_killed() {
        let program = OnceLock::new();
        let mut is_alive = false;
        kill_program(&program, || {
            // The program starts after the first attempt has found no process.
            is_alive = program.set(rustix::process::getpid()).is_ok();
        });
        assert!(!is_alive);
    }
}
