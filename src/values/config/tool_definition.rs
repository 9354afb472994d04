//! Tools that the configuration defines: `[tools.NAME]` with `kind`.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::num::NonZeroU64;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::key_table::{key_table, named_values};
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

key_table! {
    /// A tool that runs a program.
    #[derive(Clone, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct CommandConfig(
        /// The program and its arguments, as templates. There is no shell.
        command: Vec<String>,
    ) {
        /// The standard input of the program: none (the default), the arguments as a JSON object, or the text of one
        /// argument.
        stdin: CommandStdin = CommandStdin::None => "\"none\", \"json\" or \"text:NAME\"";
        /// The form of the program's standard output. With `json`, it must be one JSON value, and fit `output_schema` if
        /// there is one.
        output: CommandOutput = CommandOutput::Text, Any;
        /// With JSON output: a file with its JSON schema.
        output_schema: Option<PathBuf> = None => "path";
        /// The exit statuses of success.
        ok_exit: Vec<i32> = vec![0] => "list of numbers";
        /// Maximum size of the standard output in bytes. The rest is read and dropped: a longer text is cut, and the
        /// result says so; longer JSON is an error.
        max_output_bytes: usize = 1 << 20, Positive;
        /// The environment of the program.
        process: ProcessConfig = ProcessConfig::default();
    }
}

impl CommandConfig {
    /// Runs this program with these arguments, in the working directory of the host, without a sandbox.
    pub fn new(command: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self::with_defaults(command.into_iter().map(Into::into).collect())
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

key_table! {
    /// A tool that sends an HTTP request.
    #[derive(Clone, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct HttpConfig(
        /// The method.
        method: HttpMethod,
        /// The URL, as a template. Arguments are percent-encoded.
        url: String,
        /// The body of the request.
        body: HttpBody,
    ) {
        /// Parameters that are added to the query of the URL: their names, and their values as templates. One is left out
        /// if its argument is absent, and there is one for each item of an array that stands alone.
        query: BTreeMap<String, String> = BTreeMap::new() => "table of texts";
        /// Headers and their values.
        headers: BTreeMap<String, String> = BTreeMap::new() => "table of texts";
        /// Headers with secret values, and the places of these.
        secret_headers: BTreeMap<String, SecretSource> = BTreeMap::new();
        /// Targets besides the host of the URL that may be reached although they are not public: `host`, `host:port` or a
        /// network, as for `http_get`. A host that comes from a placeholder is checked like any other.
        allow: Vec<String> = Vec::new() => "list of texts";
        /// The proxy through which requests are sent.
        proxy: Proxy = Proxy::None;
        /// The part of the answer that is the result, as a JSON pointer (RFC 6901). The answer then must be JSON of at
        /// most 1 MiB. Without it the result is the text of the answer.
        pick: Option<String> = None, Any;
        /// The statuses of success. Empty: all from 200 to 299. Another one fails with the kind `http_status`; the error
        /// has the status and the first 2,000 characters.
        ok_status: Vec<u16> = Vec::new() => "list of numbers";
        /// The header with the idempotency key of a call that has effects, the same after a restart. It replaces one of
        /// `headers` with this name.
        idempotency_header: String = "Idempotency-Key".to_owned(), Filled;
    }
}

impl HttpConfig {
    /// Sends a request with this method to this URL. The arguments that URL and query do not use are the
    /// JSON body, except with GET and DELETE.
    pub fn new(method: HttpMethod, url: impl Into<String>) -> Self {
        let body = match method {
            HttpMethod::Get | HttpMethod::Delete => HttpBody::None,
            HttpMethod::Post | HttpMethod::Put | HttpMethod::Patch => HttpBody::Json,
        };
        Self::with_defaults(method, url.into(), body)
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

key_table! {
    /// The environment of a process that the host starts for a tool, a hook or an MCP server.
    #[derive(Clone, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct ProcessConfig {
        /// The working directory. Empty: that of the host. A file without this key means its own folder.
        cwd: PathBuf = PathBuf::new() => "path";
        /// Variables and their values.
        env: BTreeMap<String, String> = BTreeMap::new() => "table of texts";
        /// Names of the host's variables that the process inherits, besides `HOME`, `LOGNAME`, `PATH`, `SHELL`, `TERM`
        /// and `USER`.
        env_pass: Vec<String> = Vec::new() => "list of names";
        /// Variables, each with the name of the host's variable that holds its secret value.
        secret_env: BTreeMap<String, String> = BTreeMap::new() => "table of names";
        /// The sandbox.
        sandbox: SandboxLevel = SandboxLevel::None, Any;
        /// Files and directories that the process may read in its sandbox, besides the working directory.
        read_paths: Vec<PathBuf> = Vec::new() => "list of paths";
        /// Files and directories that the process may also write to in its sandbox, at every level.
        write_paths: Vec<PathBuf> = Vec::new() => "list of paths";
        /// The host's own files and directories, which are in no sandbox. Set when the process is registered.
        host_files: Vec<PathBuf> = Vec::new();
        /// Maximum size of the private memory of each process in bytes (`RLIMIT_DATA`): heap, stacks of threads and
        /// private writable mappings.
        max_memory: Option<NonZeroU64> = None => "size such as \"512MiB\"";
        /// Maximum number of processes and threads of the process and its descendants, counted 20 times a second. With
        /// more, all are killed.
        max_processes: Option<NonZeroU32> = None, Any;
    }
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
    const NAMES: [(&'static str, Self); 4] = [
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

named_values!(CommandOutput, [("text", Self::Text), ("json", Self::Json)]);
named_values!(SandboxLevel, Self::NAMES);
named_values!(
    HttpMethod,
    [
        ("GET", Self::Get),
        ("POST", Self::Post),
        ("PUT", Self::Put),
        ("PATCH", Self::Patch),
        ("DELETE", Self::Delete),
    ]
);

crate::types::impl_with!(CommandConfig, HttpConfig, ProcessConfig, ConfiguredTool);
