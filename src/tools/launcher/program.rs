//! A program that was checked and can be started.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::num::{NonZeroU32, NonZeroU64};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::process::{LaunchedProcess, StartError};
use super::protocol::{LaunchRequest, Sandbox};
use super::sandbox::{self, SandboxError};
use callsheet_values::config::{ProcessConfig, SandboxLevel};

/// Variables that every program inherits, if they are set.
const INHERITED_VARIABLES: [&str; 6] = ["HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER"];

/// Number of bytes that the system reads of the first line of a script.
const INTERPRETER_LINE_BYTES_MAX: usize = 256;

/// A program with its configuration, both checked by [`Self::check`].
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    config: ProcessConfig,
    sandbox: Sandbox,
}

/// An error in the configuration of a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {message}")]
pub struct ProgramError {
    /// The configuration key, relative to the program's table.
    pub key: String,
    /// The problem, with a remedy where there is one.
    pub message: String,
}

impl Program {
    /// Checks a program: it exists, is executable, has a working directory and a launcher, and this
    /// system supports its sandbox.
    ///
    /// # Errors
    /// Returns the first problem found.
    pub fn check(name: &str, config: &ProcessConfig) -> Result<Self, ProgramError> {
        let wrong = |key: &str, message: String| ProgramError { key: key.to_owned(), message };
        let Some(binary) = super::binary() else {
            return Err(wrong("command", StartError::NoLauncher.to_string()));
        };
        if !binary.is_file() {
            let message = format!("the launcher {} is not a file", binary.display());
            return Err(wrong("command", message));
        }
        let cwd = if config.cwd.as_os_str().is_empty() { Path::new(".") } else { &config.cwd };
        let cwd =
            cwd.canonicalize().ok().filter(|directory| directory.is_dir()).ok_or_else(|| {
                wrong("cwd", format!("{} is not a directory: create it", cwd.display()))
            })?;
        let config = config.clone().with(|process| process.cwd = cwd);
        let path = find(name, &config).map_err(|message| wrong("command", message))?;
        let level = config.sandbox;
        let unsupported = |error: SandboxError| {
            let level = level.as_str();
            let message = format!("this system does not support the sandbox {level:?}: {error}");
            wrong("sandbox", message)
        };
        let mut program = Self { path, config, sandbox: Sandbox::default() };
        if level != SandboxLevel::None {
            program.sandbox = program.checked_sandbox(&unsupported)?;
            let request = program.request(Vec::new(), BTreeMap::new());
            sandbox::check(&request, &binary).map_err(unsupported)?;
        }
        Ok(program)
    }

    /// Returns the sandbox, whose paths exist and hold no file of the host.
    fn checked_sandbox(
        &self,
        unsupported: &dyn Fn(SandboxError) -> ProgramError,
    ) -> Result<Sandbox, ProgramError> {
        let config = &self.config;
        let host_files: Vec<PathBuf> = config.host_files.iter().map(|file| resolve(file)).collect();
        let check = |key: String, path: &Path| {
            let path = path.canonicalize().map_err(|error| ProgramError {
                key: key.clone(),
                message: format!("{}: {error}", path.display()),
            })?;
            match host_files.iter().find(|file| file.starts_with(&path) || path.starts_with(file)) {
                None => Ok(()),
                Some(file) => Err(ProgramError {
                    key,
                    message: format!(
                        "{} would show the program the host's own {}: name another folder, such as \"./work\"",
                        path.display(),
                        file.display(),
                    ),
                }),
            }
        };
        check("cwd".to_owned(), &config.cwd)?;
        let mut paths = [Vec::new(), Vec::new()];
        let lists = [("read_paths", &config.read_paths), ("write_paths", &config.write_paths)];
        for ((key, configured), paths) in lists.into_iter().zip(&mut paths) {
            for (at, path) in configured.iter().enumerate() {
                check(format!("{key}[{at}]"), path)?;
                // The working directory of the program is another one.
                paths.push(std::path::absolute(path).unwrap_or_else(|_| path.clone()).into());
            }
        }
        let [read_paths, write_paths] = paths;
        let bubblewrap = match config.sandbox {
            SandboxLevel::None | SandboxLevel::Read | SandboxLevel::Write => Vec::new(),
            SandboxLevel::Strict => {
                let paths = [&read_paths, &write_paths].map(Vec::as_slice);
                sandbox::bubblewrap_command(&self.path, &config.cwd, paths, &host_files)
                    .map_err(unsupported)?
            }
        };
        let host_files = host_files.into_iter().map(OsString::from).collect();
        Ok(Sandbox { level: config.sandbox, read_paths, write_paths, host_files, bubblewrap })
    }

    /// Returns the request of a start.
    fn request(&self, arguments: Vec<OsString>, env: BTreeMap<String, String>) -> LaunchRequest {
        LaunchRequest {
            program: self.path.clone().into(),
            arguments,
            cwd: self.config.cwd.clone().into(),
            env,
            sandbox: self.sandbox.clone(),
            max_memory: self.config.max_memory.map(NonZeroU64::get),
            max_processes: self.config.max_processes.map(NonZeroU32::get),
            enables_huge_pages: super::has_disabled_huge_pages(),
        }
    }

    /// Starts the program. Reads the values of its secret variables at this moment, not at the check.
    ///
    /// # Errors
    /// If it does not start.
    pub async fn start(&self, arguments: Vec<String>) -> Result<LaunchedProcess, StartError> {
        let binary = super::binary().ok_or(StartError::NoLauncher)?;
        let env = self.environment()?;
        let arguments = arguments.into_iter().map(OsString::from).collect();
        let request = self.request(arguments, env);
        LaunchedProcess::start(binary, &request).await
    }

    /// Returns its absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the interpreter that the first line of a script names. `None` if it cannot be read, or names none.
    pub fn interpreter(&self) -> Option<PathBuf> {
        let mut beginning = [0; INTERPRETER_LINE_BYTES_MAX];
        let length = std::fs::File::open(&self.path).ok()?.read(&mut beginning).ok()?;
        let line =
            beginning.get(..length)?.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
        let words = line.split(u8::is_ascii_whitespace);
        let path = words.into_iter().find(|word| !word.is_empty())?;
        Some(Path::new(OsStr::from_bytes(path)).to_owned())
    }

    /// Returns the variables of the program.
    fn environment(&self) -> Result<BTreeMap<String, String>, StartError> {
        let config = &self.config;
        let inherited = INHERITED_VARIABLES.into_iter();
        let inherited = inherited.chain(config.env_pass.iter().map(String::as_str));
        let mut env: BTreeMap<String, String> = inherited
            .filter_map(|name| Some((name.to_owned(), std::env::var(name).ok()?)))
            .collect();
        env.extend(config.env.clone());
        for (name, source) in &config.secret_env {
            let value = std::env::var(source);
            let value = value.map_err(|_| StartError::MissingSecret(source.clone()))?;
            env.insert(name.clone(), value);
        }
        Ok(env)
    }
}

/// Returns for each sandbox whether this system supports it, or the reason why it does not.
pub fn sandbox_support() -> Vec<(SandboxLevel, Result<(), String>)> {
    let levels = [SandboxLevel::Read, SandboxLevel::Write, SandboxLevel::Strict];
    let support = levels.map(|sandbox| {
        let process = ProcessConfig::default().with(|process| {
            process.cwd = std::env::temp_dir();
            process.sandbox = sandbox;
        });
        let checked = Program::check("true", &process);
        (sandbox, checked.map(drop).map_err(|error| error.message))
    });
    support.into()
}

/// Returns the path without links. What does not exist yet is resolved as far as it exists.
fn resolve(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    path.canonicalize().unwrap_or_else(|_| match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => resolve(parent).join(name),
        (None, _) | (_, None) => path.clone(),
    })
}

/// Returns the absolute path of a program.
fn find(name: &str, config: &ProcessConfig) -> Result<PathBuf, String> {
    if name.contains('/') {
        let path = Path::new(name);
        let metadata = path.metadata().map_err(|error| format!("{name}: {error}"))?;
        if !metadata.is_file() {
            return Err(format!("{name} is not a file"));
        }
        if metadata.permissions().mode() & 0o111 == 0 {
            return Err(format!("{name} is not executable: run chmod +x on it"));
        }
        return std::path::absolute(path).map_err(|error| format!("{name}: {error}"));
    }
    let path = config.env.get("PATH").cloned().or_else(|| std::env::var("PATH").ok());
    let path = path.unwrap_or_default();
    let mut files = std::env::split_paths(&path).map(|directory| directory.join(name));
    let is_executable = |file: &PathBuf| {
        file.metadata()
            .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    };
    let file = files.find(is_executable).ok_or_else(|| {
        format!("no program {name:?} in PATH: install it, or write its path with a \"/\"")
    })?;
    // A relative path would be looked for in the working directory of the program.
    std::path::absolute(file).map_err(|error| format!("{name}: {error}"))
}
