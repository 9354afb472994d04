//! Starts the programs of tools, hooks and MCP servers through a launcher process. Linux only.
//!
//! The host does not start a program itself. It starts its own binary once more as a launcher, by a
//! hidden subcommand; the launcher starts the program and stays its parent. It holds one end of a
//! socket to the host. When the host closes the other end, or dies in any way, the launcher kills the
//! program with all its descendants and ends. As a child subreaper it also finds the descendants that
//! left the process group or the session.
//!
//! The program runs with `no_new_privs`. For a sandbox, and for a limit of memory, the launcher starts its own
//! binary once more. That process restricts itself (Landlock, seccomp, `RLIMIT_DATA`), and then becomes the program.
//! The launcher is never restricted itself: a program can trace and kill what is in its own sandbox. At the level
//! `strict` bubblewrap starts that process in namespaces of its own, as a user without capabilities.
//!
//! Limits: a program without a sandbox can kill its launcher by `SIGKILL`. Its descendants then stay.
//! Before Linux 6.12, Landlock does not restrict signals: a program in `read` or `write` can then do the
//! same.
//!
//! | file | what it holds |
//! | --- | --- |
//! | `mod.rs` | the entry of the launcher process, and the path of its binary |
//! | `protocol.rs` | the messages between host and launcher |
//! | `program.rs` | host: a program that was checked and can be started |
//! | `process.rs` | host: a started program, with its pipes |
//! | `supervise.rs` | launcher: starts the program, limits its processes, reports its exit, kills it |
//! | `exec.rs` | launcher: starts the program; the process that restricts itself and then becomes the program |
//! | `descendants.rs` | launcher: finds and signals all descendants |
//! | `sandbox.rs` | the sandboxes (Landlock, seccomp, bubblewrap), and the check that the kernel supports them |

#[cfg(target_os = "linux")]
mod descendants;
#[cfg(target_os = "linux")]
mod exec;
#[cfg(target_os = "linux")]
mod process;
#[cfg(target_os = "linux")]
mod program;
#[cfg(target_os = "linux")]
mod protocol;
#[cfg(target_os = "linux")]
mod sandbox;
#[cfg(target_os = "linux")]
mod supervise;

use std::path::PathBuf;
#[cfg(target_os = "linux")]
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

#[cfg(target_os = "linux")]
pub use process::{LaunchedProcess, ProcessControl, ProcessEnd, StartError};
#[cfg(target_os = "linux")]
pub use program::Program;
pub use program::sandbox_support;

/// The first argument of a launcher process.
const SUBCOMMAND: &str = "callsheet-launcher";

/// The binary that is started as a launcher.
static BINARY: Mutex<Option<PathBuf>> = Mutex::new(None);

/// True if this process has disabled huge pages for itself. Its programs would inherit that.
#[cfg(target_os = "linux")]
static HAS_DISABLED_HUGE_PAGES: AtomicBool = AtomicBool::new(false);

/// Runs the launcher if this process was started as one, and ends the process then. Otherwise makes
/// this program its own launcher and returns.
///
/// A program that embeds Callsheet and has tools that run programs calls it first in `main`: before
/// it starts an async runtime, a thread or a server. Without this call, and without [`use_binary`],
/// the start of such a tool is refused; the program is never started a second time by accident.
///
/// ```
/// // First in `main`:
/// callsheet::launcher::run_if_launched();
/// ```
pub fn run_if_launched() {
    let subcommand = std::env::args_os().nth(1);
    if subcommand.as_ref().is_some_and(|subcommand| subcommand == SUBCOMMAND) {
        #[cfg(target_os = "linux")]
        std::process::exit(supervise::run());
        #[cfg(not(target_os = "linux"))]
        std::process::exit(2);
    }
    #[cfg(target_os = "linux")]
    if subcommand.is_some_and(|subcommand| subcommand == exec::SUBCOMMAND) {
        std::process::exit(exec::run());
    }
    // This path stays that of the running program when its file is replaced.
    use_binary("/proc/self/exe");
}

/// Makes another binary the launcher: the `callsheet` binary of the same version, or a program that
/// calls [`run_if_launched`] first.
///
/// [`run_if_launched`] makes the running program its own launcher instead.
pub fn use_binary(path: impl Into<PathBuf>) {
    let path = path.into();
    // The launcher has another working directory.
    *BINARY.lock() = Some(std::path::absolute(&path).unwrap_or(path));
}

/// Disables transparent huge pages for this process, unless it inherited that they are disabled. The launchers enable
/// them again for the programs.
///
/// The allocator asks for huge pages, of which each new thread would touch two: 4 MB. Runs are not slower without.
pub fn disable_huge_pages() {
    if rustix::thread::transparent_huge_pages_are_disabled() == Ok(false)
        && rustix::thread::disable_transparent_huge_pages(true).is_ok()
    {
        HAS_DISABLED_HUGE_PAGES.store(true, Ordering::Relaxed);
    }
}

/// Returns whether this process has disabled huge pages for itself.
#[cfg(target_os = "linux")]
fn has_disabled_huge_pages() -> bool {
    HAS_DISABLED_HUGE_PAGES.load(Ordering::Relaxed)
}

/// Returns the launcher's binary. `None` if the program has named none.
#[cfg(target_os = "linux")]
fn binary() -> Option<PathBuf> {
    BINARY.lock().clone()
}
