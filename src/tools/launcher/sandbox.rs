//! The sandboxes of programs: Landlock and seccomp (`read`, `write`), bubblewrap (`strict`).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fs::Metadata;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, Scope, path_beneath_rules,
};
use rustix::thread::{CapabilitySet, CapabilitySets};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

use super::exec;
use super::protocol::{LaunchRequest, LauncherMessage};
use callsheet_values::config::SandboxLevel;

/// Directories of the system that programs need to run. They are readable in every sandbox, except for the files in
/// [`CONFIGURATION_DIRECTORY`] that not every user may read.
const SYSTEM_DIRECTORIES: [&str; 12] = [
    "/bin",
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

/// The directory with the configuration of the system, and with its secrets.
const CONFIGURATION_DIRECTORY: &str = "/etc";

/// Directories of a `strict` sandbox that exist in it only, and that programs may write to.
const OWN_DIRECTORIES: [&str; 2] = ["/tmp", "/dev/shm"];

/// The id of the user and the group `nobody`, which a program in a `strict` sandbox has if the host runs as root.
const NOBODY: &str = "65534";

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

/// The system calls that make or use objects which outlive their process: shared memory, semaphores and queues of
/// System V and POSIX, and keys. Shared memory of System V is not counted by a limit of memory either.
const OUTLIVING_SYSCALLS: [libc::c_long; 16] = [
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
];

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

/// Restricts the calling thread, and all processes that it starts, to the sandbox of a request. Within bubblewrap,
/// `strict` is restricted as `write` is. Level `none` changes nothing.
///
/// # Errors
/// If the kernel does not support it. The thread may then be restricted in part.
pub(super) fn restrict_thread(request: &LaunchRequest) -> Result<(), SandboxError> {
    let level = request.sandbox.level;
    let kept = match level {
        SandboxLevel::None => return Ok(()),
        SandboxLevel::Read | SandboxLevel::Write => {
            // The files of a root user's tools may belong to other users.
            CapabilitySet::DAC_OVERRIDE | CapabilitySet::FOWNER | CapabilitySet::FSETID
        }
        SandboxLevel::Strict => CapabilitySet::empty(),
    };
    rustix::thread::set_no_new_privs(true).map_err(SandboxError::new)?;
    drop_capabilities(kept)?;
    restrict_with_landlock(request)?;
    refuse_syscalls(level)
}

/// Drops the capabilities of a root user but `kept`. With others than those for file access a program can read the
/// memory and the environment of the host.
fn drop_capabilities(kept: CapabilitySet) -> Result<(), SandboxError> {
    let held = rustix::thread::capabilities(None).map_err(SandboxError::new)?;
    let kept = CapabilitySets {
        effective: held.effective & kept,
        permitted: held.permitted & kept,
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, kept).map_err(SandboxError::new)
}

fn restrict_with_landlock(request: &LaunchRequest) -> Result<(), RulesetError> {
    let (sandbox, program, cwd) = (&request.sandbox, &request.program, &request.cwd);
    let read = AccessFs::from_read(FILE_ABI);
    let read_write = AccessFs::from_file(FILE_ABI);
    let (cwd_access, own): (_, &[&str]) = match sandbox.level {
        SandboxLevel::None | SandboxLevel::Read => (read, &[]),
        SandboxLevel::Write => (AccessFs::from_all(FILE_ABI), &[]),
        SandboxLevel::Strict => (AccessFs::from_all(FILE_ABI), &OWN_DIRECTORIES),
    };
    let readable = SYSTEM_DIRECTORIES.map(PathBuf::from).into_iter();
    let readable = readable.chain(program_paths(Path::new(program)));
    let mut readable: Vec<PathBuf> =
        readable.chain(sandbox.read_paths.iter().map(PathBuf::from)).collect();
    add_public_parts(Path::new(CONFIGURATION_DIRECTORY), &mut readable);
    let readable = readable.into_iter().flat_map(|path| without(&path, &sandbox.host_files));
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
        .add_rules(path_beneath_rules(readable, read))?
        // Programs list this directory, whatever they may read in it.
        .add_rules(path_beneath_rules([CONFIGURATION_DIRECTORY], AccessFs::ReadDir))?
        .add_rules(path_beneath_rules(["/proc"], read))?
        .add_rules(path_beneath_rules(DEVICES, read_write))?
        .add_rules(path_beneath_rules(own, AccessFs::from_all(FILE_ABI)))?
        .add_rules(path_beneath_rules(&sandbox.write_paths, AccessFs::from_all(FILE_ABI)))?
        .add_rules(path_beneath_rules([cwd], cwd_access))?
        .restrict_self()?;
    Ok(())
}

/// Adds the parts of a directory that every user may read: the directory itself if that is all of it. A root user
/// could read more. Returns whether it is all.
fn add_public_parts(path: &Path, found: &mut Vec<PathBuf>) -> bool {
    let begin = found.len();
    let Ok(metadata) = path.symlink_metadata() else { return true };
    // The target of a link is another part, or no part.
    if metadata.is_symlink() {
        return true;
    }
    let is_all = if metadata.is_dir() {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        let is_readable = is_public(&metadata, 0o005);
        // Each entry is looked at, also behind one that is not public.
        let secret = entries.filter(|entry| !add_public_parts(&entry.path(), found)).count();
        is_readable && secret == 0
    } else {
        is_public(&metadata, 0o004)
    };
    if is_all {
        found.truncate(begin);
        found.push(path.to_owned());
    }
    is_all
}

fn is_public(metadata: &Metadata, mode: u32) -> bool {
    metadata.mode() & mode == mode
}

/// Returns the path, or, if some of these files are in that directory, its other entries. A program then cannot list
/// the directory.
fn without(path: &Path, files: &[OsString]) -> Vec<PathBuf> {
    let Ok(target) = path.canonicalize() else { return Vec::new() };
    if files.iter().any(|file| target.starts_with(file)) {
        return Vec::new();
    }
    if !files.iter().any(|file| Path::new(file).starts_with(&target)) {
        return vec![path.to_owned()];
    }
    let entries = std::fs::read_dir(target).into_iter().flatten().flatten();
    // A rule for a link would be one for its target.
    let entries = entries.filter(|entry| entry.file_type().is_ok_and(|kind| !kind.is_symlink()));
    entries.flat_map(|entry| without(&entry.path(), files)).collect()
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

/// Refuses new sockets ([`SOCKET_SYSCALLS`]) of every family, objects that outlive the program
/// ([`OUTLIVING_SYSCALLS`]), new limits for other processes, and for `read` changes of the attributes of files
/// ([`ATTRIBUTE_SYSCALLS`], [`ATTRIBUTE_COMMANDS`]). Landlock does not restrict these.
fn refuse_syscalls(level: SandboxLevel) -> Result<(), SandboxError> {
    let mut syscalls = [SOCKET_SYSCALLS.as_slice(), &OUTLIVING_SYSCALLS].concat();
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

/// Checks that this system supports the sandbox of a request. `binary` is the launcher.
///
/// # Errors
/// If it does not.
pub(super) fn check(request: &LaunchRequest, binary: &Path) -> Result<(), SandboxError> {
    let check = || match request.sandbox.level {
        SandboxLevel::None => Ok(()),
        SandboxLevel::Read | SandboxLevel::Write => restrict_thread(request),
        SandboxLevel::Strict => check_strict(request, binary),
    };
    // The restrictions hold for this new thread only, and end with it.
    let checked = std::thread::scope(|scope| scope.spawn(check).join());
    checked.unwrap_or_else(|_| Err(SandboxError("the check panicked".to_owned())))
}

/// Starts `true` as the program of the request would be started, and waits for its end.
fn check_strict(request: &LaunchRequest, binary: &Path) -> Result<(), SandboxError> {
    let program = find_in_path("true").unwrap_or_else(|| PathBuf::from("/usr/bin/true"));
    let request = LaunchRequest {
        program: program.into(),
        arguments: Vec::new(),
        env: BTreeMap::new(),
        max_memory: None,
        ..request.clone()
    };
    rustix::thread::set_no_new_privs(true).map_err(SandboxError::new)?;
    let null = || std::fs::File::options().read(true).write(true).open("/dev/null");
    let streams = [null(), null(), null()].map(|file| file.map(OwnedFd::from));
    let [Ok(stdin), Ok(stdout), Ok(stderr)] = streams else {
        return Err(SandboxError("/dev/null cannot be opened".to_owned()));
    };
    match exec::spawn_restricted(binary, &request, [stdin, stdout, stderr]) {
        Ok(mut child) => match child.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(SandboxError(format!("a program ended in it with {status}"))),
            Err(error) => Err(SandboxError::new(error)),
        },
        Err(LauncherMessage::SandboxFailed(message) | LauncherMessage::StartFailed(message)) => {
            Err(SandboxError(message))
        }
        Err(message) => Err(SandboxError(format!("{message:?}"))),
    }
}

/// Returns the path of `bwrap`.
fn find_bubblewrap() -> Result<PathBuf, SandboxError> {
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

/// Returns the command of bubblewrap before the process that restricts itself: namespaces and a user of its own, no
/// capabilities, new `/proc` and `/dev`, an empty `/tmp`, the directories of the system and of the program read-only,
/// the working directory, the other readable and writable paths, and nothing else.
///
/// # Errors
/// If there is no bubblewrap.
pub(super) fn bubblewrap_command(
    program: &Path,
    cwd: &Path,
    [read_paths, write_paths]: [&[OsString]; 2],
    host_files: &[PathBuf],
) -> Result<Vec<OsString>, SandboxError> {
    let mut command: Vec<OsString> = vec![find_bubblewrap()?.into()];
    let options = [
        "--unshare-all",
        "--unshare-user",
        "--die-with-parent",
        "--cap-drop",
        "ALL",
        "--proc",
        "/proc",
        "--dev",
        "/dev",
    ];
    command.extend(options.map(OsString::from));
    if rustix::process::geteuid().is_root() {
        command.extend(["--uid", NOBODY, "--gid", NOBODY].map(OsString::from));
    }
    let mut add = |option: &str, from: &Path, to: &Path| {
        command.extend([OsString::from(option), from.into(), to.into()]);
    };
    for directory in SYSTEM_DIRECTORIES.into_iter().chain([CONFIGURATION_DIRECTORY]).map(Path::new)
    {
        match std::fs::read_link(directory) {
            Ok(target) => add("--symlink", &target, directory),
            Err(_) => add("--ro-bind-try", directory, directory),
        }
    }
    command.extend(["--tmpfs", "/tmp"].map(OsString::from));
    let mut add = |option: &str, path: &Path| {
        command.extend([OsString::from(option), path.into(), path.into()]);
    };
    let program_paths = program_paths(program);
    program_paths.iter().for_each(|path| add("--ro-bind-try", path));
    read_paths.iter().for_each(|path| add("--ro-bind", Path::new(path)));
    add("--bind", cwd);
    write_paths.iter().for_each(|path| add("--bind", Path::new(path)));
    // A program may be installed beside the files of the host. Landlock refuses them, except below a directory of the
    // sandbox's own, such as /tmp.
    let is_shown = |file: &&PathBuf| program_paths.iter().any(|path| file.starts_with(path));
    for file in host_files.iter().filter(is_shown) {
        match file.is_dir() {
            true => command.extend([OsString::from("--tmpfs"), file.into()]),
            false if file.exists() => {
                command.extend(["--ro-bind", "/dev/null"].map(OsString::from));
                command.push(file.into());
            }
            false => {}
        }
    }
    command.extend([OsString::from("--chdir"), cwd.into(), "--".into()]);
    Ok(command)
}

/// The reason why a sandbox is not possible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct SandboxError(String);

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
