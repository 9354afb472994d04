//! A program that was checked and can be started.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::num::{NonZeroU32, NonZeroU64};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::process::{LaunchedProcess, StartError};
use super::protocol::LaunchRequest;
use super::sandbox;
use crate::config::{ProcessConfig, SandboxLevel};

/// Variables that every program inherits, if they are set.
const INHERITED_VARIABLES: [&str; 6] = ["HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER"];

/// Number of bytes that the system reads of the first line of a script.
const INTERPRETER_LINE_BYTES_MAX: usize = 256;

/// A program with its configuration, both checked by [`Self::check`].
#[derive(Clone, Debug)]
pub(crate) struct Program {
    path: PathBuf,
    config: ProcessConfig,
}

/// An error in the configuration of a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {message}")]
pub(crate) struct ProgramError {
    /// The configuration key, relative to the program's table.
    pub(crate) key: &'static str,
    /// The problem, with a remedy where there is one.
    pub(crate) message: String,
}

impl Program {
    /// Checks a program: it exists, is executable, has a working directory and a launcher, and this
    /// system supports its sandbox.
    ///
    /// # Errors
    /// Returns the first problem found.
    pub(crate) fn check(name: &str, config: &ProcessConfig) -> Result<Self, ProgramError> {
        let wrong = |key, message: String| ProgramError { key, message };
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
        let config = ProcessConfig { cwd, ..config.clone() };
        let path = find(name, &config).map_err(|message| wrong("command", message))?;
        let level = config.sandbox;
        sandbox::check(level, &path, &config.cwd).map_err(|error| {
            let level = level.as_str();
            let message = format!("this system does not support the sandbox {level:?}: {error}");
            wrong("sandbox", message)
        })?;
        Ok(Self { path, config })
    }

    /// Starts the program. Reads the values of its secret variables at this moment, not at the check.
    ///
    /// # Errors
    /// If it does not start.
    pub(crate) async fn start(
        &self,
        arguments: Vec<String>,
    ) -> Result<LaunchedProcess, StartError> {
        let binary = super::binary().ok_or(StartError::NoLauncher)?;
        let env = self.environment()?;
        let arguments = arguments.into_iter().map(OsString::from);
        let (program, arguments) = match self.config.sandbox {
            SandboxLevel::None | SandboxLevel::Read | SandboxLevel::Write => {
                (self.path.clone(), arguments.collect())
            }
            SandboxLevel::Strict => {
                let bwrap = sandbox::find_bubblewrap()
                    .map_err(|error| StartError::Sandbox(error.to_string()))?;
                let mut bwrap_arguments =
                    sandbox::bubblewrap_arguments(&self.path, &self.config.cwd);
                bwrap_arguments.push(self.path.clone().into());
                bwrap_arguments.extend(arguments);
                (bwrap, bwrap_arguments)
            }
        };
        let request = LaunchRequest {
            program: program.into(),
            arguments,
            cwd: self.config.cwd.clone().into(),
            env,
            sandbox: self.config.sandbox,
            max_memory: self.config.max_memory.map(NonZeroU64::get),
            max_processes: self.config.max_processes.map(NonZeroU32::get),
            enables_huge_pages: super::has_disabled_huge_pages(),
        };
        LaunchedProcess::start(binary, &request).await
    }

    /// Returns its absolute path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the interpreter that the first line of a script names. `None` if it cannot be read, or names none.
    pub(crate) fn interpreter(&self) -> Option<PathBuf> {
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
