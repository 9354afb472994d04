//! The sandboxes of programs: Landlock and seccomp (`read`, `write`), bubblewrap (`strict`).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::process::Stdio;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, Scope, path_beneath_rules,
};
use rustix::thread::{CapabilitySet, CapabilitySets};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

use crate::config::SandboxLevel;

/// Directories of the system that programs need to run. They are readable in every sandbox.
const SYSTEM_DIRECTORIES: [&str; 13] = [
    "/bin",
    "/etc",
    "/gnu/store",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix/store",
    "/opt",
    "/run/current-system",
    "/sbin",
    "/sys/devices/system/cpu",
    "/usr",
];

/// Names of directories in which installations keep their programs.
const PROGRAM_DIRECTORIES: [&str; 3] = ["bin", "sbin", "shims"];

/// Names of the other files and directories of an installation that its programs read.
const INSTALLED_PARTS: [&str; 7] =
    ["bin", "lib", "lib32", "lib64", "libexec", "version", "versions"];

/// Devices that programs in the sandboxes `read` and `write` may read and write.
const DEVICES: [&str; 5] = ["/dev/full", "/dev/null", "/dev/random", "/dev/urandom", "/dev/zero"];

/// The system calls that create sockets, except `socketpair`, whose sockets are connected only to each other.
/// io_uring is refused because it opens sockets without the `socket` system call.
const SOCKET_SYSCALLS: [libc::c_long; 2] = [libc::SYS_socket, libc::SYS_io_uring_setup];

/// The numbers of `fchmodat2`, `setxattrat`, `removexattrat` and `file_setattr`, equal on all processors.
/// The crate `libc` lacks them on some.
const NEW_ATTRIBUTE_SYSCALLS: [libc::c_long; 4] = [452, 463, 466, 469];

/// System calls that change mode, owner, times and extended attributes of files.
const ATTRIBUTE_SYSCALLS: [libc::c_long; 11] = [
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
];

/// The older system calls with the same effects.
#[cfg(target_arch = "x86_64")]
const OLD_ATTRIBUTE_SYSCALLS: [libc::c_long; 6] = [
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
];

/// The commands of `ioctl` that change flags of a file, which need not be open for writing: `FS_IOC_SETFLAGS`, its
/// 32-bit form, and `FS_IOC_FSSETXATTR`. Commands that only some file systems have are not among them.
const ATTRIBUTE_COMMANDS: [u64; 3] = [0x4008_6602, 0x4004_6602, 0x401c_5820];

/// The bit that marks the numbers of system calls of the x32 interface of x86-64.
#[cfg(target_arch = "x86_64")]
const X32_BIT: libc::c_long = 0x4000_0000;

/// The number of `ioctl` in the x32 interface, without the bit.
#[cfg(target_arch = "x86_64")]
const X32_IOCTL: libc::c_long = 514;

/// The first Landlock version that can refuse every way to write to a file (Linux 6.2).
const FILE_ABI: ABI = ABI::V3;

/// Restricts the calling thread, and all processes that it starts, to the level `read` or `write`.
/// Other levels change nothing.
///
/// # Errors
/// If the kernel does not support it. The thread may then be restricted in part.
pub(super) fn restrict_thread(
    level: SandboxLevel,
    program: &Path,
    cwd: &Path,
) -> Result<(), SandboxError> {
    let cwd_access = match level {
        SandboxLevel::None | SandboxLevel::Strict => return Ok(()),
        SandboxLevel::Read => AccessFs::from_read(FILE_ABI),
        SandboxLevel::Write => AccessFs::from_all(FILE_ABI),
    };
    rustix::thread::set_no_new_privs(true).map_err(SandboxError::new)?;
    drop_capabilities()?;
    restrict_with_landlock(program, cwd, cwd_access)?;
    refuse_syscalls(level)
}

/// Drops the capabilities of a root user except those for file access. With the others a program can
/// read the memory and the environment of the host.
fn drop_capabilities() -> Result<(), SandboxError> {
    let kept = CapabilitySet::DAC_OVERRIDE | CapabilitySet::FOWNER | CapabilitySet::FSETID;
    let held = rustix::thread::capabilities(None).map_err(SandboxError::new)?;
    let kept = CapabilitySets {
        effective: held.effective & kept,
        permitted: held.permitted & kept,
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, kept).map_err(SandboxError::new)
}

fn restrict_with_landlock(
    program: &Path,
    cwd: &Path,
    cwd_access: landlock::BitFlags<AccessFs>,
) -> Result<(), RulesetError> {
    let read = AccessFs::from_read(FILE_ABI);
    let read_write = AccessFs::from_file(FILE_ABI);
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(FILE_ABI))?
        // Newer kernels also refuse `ioctl` on devices, TCP (which seccomp refuses on all kernels), and
        // signals and abstract sockets to processes outside the sandbox.
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ABI::V5))?
        .handle_access(AccessNet::from_all(ABI::V4))?
        .scope(Scope::from_all(ABI::V6))?
        .create()?
        .add_rules(path_beneath_rules(SYSTEM_DIRECTORIES, read))?
        .add_rules(path_beneath_rules(["/proc"], read))?
        .add_rules(path_beneath_rules(DEVICES, read_write))?
        .add_rules(path_beneath_rules(program_paths(program), read))?
        .add_rules(path_beneath_rules([cwd], cwd_access))?
        .restrict_self()?;
    Ok(())
}

/// Returns the paths that a program needs to run: its directory, the directory of the file to which its
/// links lead, and the other parts of an installation such as `~/.pyenv/shims` or `/srv/node/bin`.
fn program_paths(program: &Path) -> Vec<PathBuf> {
    let target = program.canonicalize().ok();
    let files = [Some(program), target.as_deref()].into_iter().flatten();
    let mut paths = Vec::new();
    for directory in files.filter_map(Path::parent) {
        paths.push(directory.to_owned());
        let is_installed = PROGRAM_DIRECTORIES.iter().any(|name| directory.ends_with(name));
        if let Some(prefix) = directory.parent().filter(|_| is_installed) {
            paths.extend(INSTALLED_PARTS.map(|part| prefix.join(part)));
        }
    }
    paths
}

/// Refuses new sockets ([`SOCKET_SYSCALLS`]) of every family, new limits for other processes, and for `read` changes
/// of the attributes of files ([`ATTRIBUTE_SYSCALLS`], [`ATTRIBUTE_COMMANDS`]). Landlock does not restrict these.
fn refuse_syscalls(level: SandboxLevel) -> Result<(), SandboxError> {
    let mut syscalls = SOCKET_SYSCALLS.to_vec();
    if level == SandboxLevel::Read {
        syscalls.extend(ATTRIBUTE_SYSCALLS);
        syscalls.extend(NEW_ATTRIBUTE_SYSCALLS);
        #[cfg(target_arch = "x86_64")]
        syscalls.extend(OLD_ATTRIBUTE_SYSCALLS);
    }
    // A system call with an empty list of conditions is always refused.
    let mut rules: BTreeMap<i64, Vec<_>> =
        syscalls.into_iter().map(|syscall| (syscall, Vec::new())).collect();
    rules.insert(libc::SYS_prlimit64, vec![foreign_prlimit_rule()?]);
    if level == SandboxLevel::Read {
        rules.insert(libc::SYS_ioctl, attribute_command_rules()?);
        #[cfg(target_arch = "x86_64")]
        rules.insert(X32_IOCTL, attribute_command_rules()?);
    }
    #[cfg(target_arch = "x86_64")]
    rules.extend(rules.clone().into_iter().map(|(syscall, rule)| (syscall | X32_BIT, rule)));
    let error = u32::try_from(libc::EACCES).unwrap_or_default();
    let arch = std::env::consts::ARCH.try_into().map_err(SandboxError::new)?;
    let refused = SeccompAction::Errno(error);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch);
    let filter: BpfProgram = filter.and_then(TryInto::try_into).map_err(SandboxError::new)?;
    seccompiler::apply_filter(&filter).map_err(SandboxError::new)
}

/// Returns the rule for calls of `prlimit64` that set a limit of a process by its id. By such calls a program could
/// lower the limits of its launcher and of the host, such as those of open files and of processor time.
fn foreign_prlimit_rule() -> Result<SeccompRule, SandboxError> {
    let is_set = |argument, length| {
        SeccompCondition::new(argument, length, SeccompCmpOp::Ne, 0).map_err(SandboxError::new)
    };
    let process_id = is_set(0, SeccompCmpArgLen::Dword)?;
    let new_limit = is_set(2, SeccompCmpArgLen::Qword)?;
    SeccompRule::new(vec![process_id, new_limit]).map_err(SandboxError::new)
}

/// Returns the rules for calls of `ioctl` with one of [`ATTRIBUTE_COMMANDS`].
fn attribute_command_rules() -> Result<Vec<SeccompRule>, SandboxError> {
    let rule = |command| {
        SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, command)
            .and_then(|is_command| SeccompRule::new(vec![is_command]))
            .map_err(SandboxError::new)
    };
    ATTRIBUTE_COMMANDS.into_iter().map(rule).collect()
}

/// Checks that this system supports a level.
///
/// # Errors
/// If it does not.
pub(super) fn check(level: SandboxLevel, program: &Path, cwd: &Path) -> Result<(), SandboxError> {
    match level {
        SandboxLevel::None => Ok(()),
        // Landlock and seccomp restrict threads. This one ends after the check.
        SandboxLevel::Read | SandboxLevel::Write => std::thread::scope(|scope| {
            scope
                .spawn(|| restrict_thread(level, program, cwd))
                .join()
                .unwrap_or_else(|_| Err(SandboxError("the check panicked".to_owned())))
        }),
        SandboxLevel::Strict => check_bubblewrap(cwd),
    }
}

fn check_bubblewrap(cwd: &Path) -> Result<(), SandboxError> {
    let bwrap = find_bubblewrap()?;
    let program = find_in_path("true").unwrap_or_else(|| PathBuf::from("/usr/bin/true"));
    let mut command = Command::new(bwrap);
    command.args(bubblewrap_arguments(&program, cwd)).arg(&program);
    let output = command.stdin(Stdio::null()).output().map_err(SandboxError::new)?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    Err(SandboxError(format!("bubblewrap cannot make namespaces here: {}", message.trim())))
}

/// Returns the path of `bwrap`.
pub(super) fn find_bubblewrap() -> Result<PathBuf, SandboxError> {
    find_in_path("bwrap").ok_or_else(|| {
        SandboxError("needs bubblewrap: install the program bwrap in PATH".to_owned())
    })
}

/// Returns the absolute path of the first file of this name in `PATH`.
fn find_in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut files = std::env::split_paths(&path).map(|directory| directory.join(name));
    // A relative path would be looked for in the working directory of the program.
    files.find(|file| file.is_file()).and_then(|file| std::path::absolute(file).ok())
}

/// Returns the arguments of `bwrap` before the program: namespaces of its own, new `/proc` and `/dev`, an empty
/// `/tmp`, the directories of the system and of the program read-only, the working directory, and nothing else.
pub(super) fn bubblewrap_arguments(program: &Path, cwd: &Path) -> Vec<OsString> {
    let mut arguments: Vec<OsString> =
        ["--unshare-all", "--die-with-parent", "--proc", "/proc", "--dev", "/dev"]
            .map(OsString::from)
            .into();
    let mut add = |option: &str, from: &Path, to: &Path| {
        arguments.extend([OsString::from(option), from.into(), to.into()]);
    };
    for directory in SYSTEM_DIRECTORIES.map(Path::new) {
        match std::fs::read_link(directory) {
            Ok(target) => add("--symlink", &target, directory),
            Err(_) => add("--ro-bind-try", directory, directory),
        }
    }
    arguments.extend(["--tmpfs", "/tmp"].map(OsString::from));
    let mut add = |option: &str, path: &Path| {
        arguments.extend([OsString::from(option), path.into(), path.into()]);
    };
    for path in program_paths(program) {
        add("--ro-bind-try", &path);
    }
    add("--bind", cwd);
    arguments.extend([OsString::from("--chdir"), cwd.into(), "--".into()]);
    arguments
}

/// The reason why a sandbox is not possible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct SandboxError(String);

impl SandboxError {
    fn new(error: impl fmt::Display) -> Self {
        Self(error.to_string())
    }
}

impl From<RulesetError> for SandboxError {
    fn from(error: RulesetError) -> Self {
        Self(format!("needs Landlock of Linux 6.2 or later: {error}"))
    }
}
