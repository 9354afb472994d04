//! Tools that the configuration defines: `[tools.NAME]` with `kind`.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::num::NonZeroU64;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{AgentToolConfig, Proxy, SecretSource};

/// The definition of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConfiguredTool {
    /// The description that the model reads.
    pub description: String,
    /// The arguments.
    pub input: ToolInput,
    /// The way in which a call runs.
    pub kind: ToolKind,
}

impl ConfiguredTool {
    /// Defines a tool without arguments.
    pub fn new(description: impl Into<String>, kind: ToolKind) -> Self {
        Self { description: description.into(), input: ToolInput::default(), kind }
    }
}

/// The arguments of a defined tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolInput {
    /// The JSON schemas of the properties, by name. A property without `default` is required.
    Properties(Map<String, Value>),
    /// The JSON schema of the arguments.
    Schema(Value),
    /// A file with the JSON schema of the arguments.
    File(PathBuf),
}

impl Default for ToolInput {
    fn default() -> Self {
        Self::Properties(Map::new())
    }
}

/// The way in which a call of a defined tool runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolKind {
    /// Runs a program.
    Command(Box<CommandConfig>),
    /// Sends an HTTP request.
    Http(Box<HttpConfig>),
    /// Runs an agent in a child session.
    Agent(AgentToolConfig),
}

/// A tool that runs a program.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CommandConfig {
    /// The program and its arguments, as templates. There is no shell.
    pub command: Vec<String>,
    /// The standard input of the program.
    pub stdin: CommandStdin,
    /// The form of the program's standard output.
    pub output: CommandOutput,
    /// With JSON output: a file with its JSON schema.
    pub output_schema: Option<PathBuf>,
    /// The exit statuses of success.
    pub ok_exit: Vec<i32>,
    /// Maximum size of the standard output in bytes. A longer text is cut, and the result says so. Longer JSON is an
    /// error.
    pub max_output_bytes: usize,
    /// The environment of the program.
    pub process: ProcessConfig,
}

impl CommandConfig {
    /// Runs this program with these arguments, in the working directory of the host, without a sandbox.
    pub fn new(command: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            command: command.into_iter().map(Into::into).collect(),
            stdin: CommandStdin::None,
            output: CommandOutput::Text,
            output_schema: None,
            ok_exit: vec![0],
            max_output_bytes: 1024 * 1024,
            process: ProcessConfig::default(),
        }
    }
}

/// The standard input of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CommandStdin {
    /// Empty.
    #[default]
    None,
    /// The arguments as a JSON object.
    Json,
    /// The text of one argument.
    Text(String),
}

/// The form of a program's standard output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommandOutput {
    /// Text.
    #[default]
    Text,
    /// One JSON value.
    Json,
}

/// A tool that sends an HTTP request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HttpConfig {
    /// The method.
    pub method: HttpMethod,
    /// The URL, as a template. Arguments are percent-encoded.
    pub url: String,
    /// Parameters that are added to the query of the URL: their names, and their values as templates.
    pub query: BTreeMap<String, String>,
    /// Headers and their values.
    pub headers: BTreeMap<String, String>,
    /// Headers with secret values, and the places of these.
    pub secret_headers: BTreeMap<String, SecretSource>,
    /// Targets besides the host of the URL that may be reached although they are not public.
    pub allow: Vec<String>,
    /// The proxy through which requests are sent.
    pub proxy: Proxy,
    /// The body of the request.
    pub body: HttpBody,
    /// The part of a JSON answer that is the result, as a JSON pointer (RFC 6901).
    pub pick: Option<String>,
    /// The statuses of success. Empty: all from 200 to 299.
    pub ok_status: Vec<u16>,
    /// The header with the idempotency key of a call that has effects.
    pub idempotency_header: String,
}

impl HttpConfig {
    /// Sends a request with this method to this URL. The arguments that URL and query do not use are the
    /// JSON body, except with GET and DELETE.
    pub fn new(method: HttpMethod, url: impl Into<String>) -> Self {
        let body = match method {
            HttpMethod::Get | HttpMethod::Delete => HttpBody::None,
            HttpMethod::Post | HttpMethod::Put | HttpMethod::Patch => HttpBody::Json,
        };
        Self {
            method,
            url: url.into(),
            query: BTreeMap::new(),
            headers: BTreeMap::new(),
            secret_headers: BTreeMap::new(),
            allow: Vec::new(),
            proxy: Proxy::None,
            body,
            pick: None,
            ok_status: Vec::new(),
            idempotency_header: "Idempotency-Key".to_owned(),
        }
    }
}

/// The method of an HTTP request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HttpMethod {
    /// GET.
    #[default]
    Get,
    /// POST.
    Post,
    /// PUT.
    Put,
    /// PATCH.
    Patch,
    /// DELETE.
    Delete,
}

/// The body of an HTTP request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HttpBody {
    /// Empty.
    None,
    /// The arguments that URL and query do not use, as a JSON object.
    Json,
    /// The text of one argument.
    Text(String),
}

/// The environment of a process that the host starts for a tool, a hook or an MCP server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProcessConfig {
    /// The working directory. Empty: that of the host.
    pub cwd: PathBuf,
    /// Variables and their values.
    pub env: BTreeMap<String, String>,
    /// Names of the host's variables that the process inherits, besides `HOME`, `LOGNAME`, `PATH`,
    /// `SHELL`, `TERM` and `USER`.
    pub env_pass: Vec<String>,
    /// Variables, each with the name of the host's variable that holds its secret value.
    pub secret_env: BTreeMap<String, String>,
    /// The sandbox.
    pub sandbox: SandboxLevel,
    /// Files and directories that the process may read in its sandbox, besides the working directory.
    pub read_paths: Vec<PathBuf>,
    /// Files and directories that the process may also write to in its sandbox, at every level.
    pub write_paths: Vec<PathBuf>,
    /// The host's own files and directories, which are in no sandbox. Set when the process is registered.
    pub host_files: Vec<PathBuf>,
    /// Maximum size of the private memory of each process, in bytes.
    pub max_memory: Option<NonZeroU64>,
    /// Maximum number of processes and threads of the process and its descendants.
    pub max_processes: Option<NonZeroU32>,
}

/// The restrictions of a process, from weak to strong.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum SandboxLevel {
    /// No restrictions.
    #[default]
    None,
    /// Reads the working directory and the system's directories, writes no file, has no network.
    Read,
    /// As `Read`, and writes below the working directory.
    Write,
    /// As `Write`, in separate namespaces that bubblewrap creates.
    Strict,
}

impl SandboxLevel {
    /// The values in the configuration.
    pub(super) const NAMES: [(&'static str, Self); 4] = [
        ("none", Self::None),
        ("read", Self::Read),
        ("write", Self::Write),
        ("strict", Self::Strict),
    ];

    /// Returns the name in the configuration.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        Self::NAMES.into_iter().find(|(_, level)| *level == self).map_or("", |(name, _)| name)
    }
}

crate::types::impl_with!(CommandConfig, HttpConfig, ProcessConfig, ConfiguredTool);
