//! The built-in tools.
//!
//! | file | tool |
//! | --- | --- |
//! | `calculator/` | `calculator`: evaluates an arithmetic expression with fend |
//! | `clock.rs` | `clock`: the current time in a time zone |
//! | `http_get.rs` | `http_get`: fetches a text document from the public internet |
//! | `read_file.rs` | `read_file`: reads a text file below a configured directory |
//! | `variables.rs` | `get_variable`, `set_variable`: variables of the session |

mod calculator;
mod clock;
mod http_get;
mod read_file;
mod variables;

use std::io;
use std::path::PathBuf;

use super::http::{HttpClientError, InvalidAllowRule};
use super::{RegistryError, ToolRegistry};
pub use calculator::Calculator;
use callsheet_values::config::{Config, Proxy};
pub use clock::Clock;
pub use http_get::{HttpGet, HttpGetOptions};
pub use read_file::{READ_BYTES_MAX, ReadFile};
pub use variables::{GetVariable, SetVariable};

/// Configuration of the built-in tools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BuiltinOptions {
    /// `read_file.root`: the directory whose files can be read. Without it `read_file` is not
    /// registered.
    pub read_file_root: Option<PathBuf>,
    /// `http_get.allow`: hosts, hosts with ports and networks that may be reached although they are
    /// not public.
    pub http_get_allow: Vec<String>,
    /// `http_get.proxy`: the proxy through which it sends its requests.
    pub http_get_proxy: Proxy,
}

impl From<&Config> for BuiltinOptions {
    /// Returns the options that the tables `[tools.read_file]` and `[tools.http_get]` set.
    fn from(config: &Config) -> Self {
        let http_get = config.tools.get("http_get");
        Self {
            read_file_root: config.tools.get("read_file").and_then(|tool| tool.root.clone()),
            http_get_allow: http_get.map(|tool| tool.allow.clone()).unwrap_or_default(),
            http_get_proxy: http_get.map(|tool| tool.proxy.clone()).unwrap_or_default(),
        }
    }
}

/// Makes a registry with the built-in tools.
///
/// # Errors
/// If the directory of `read_file` cannot be opened, an allow rule is invalid, or the HTTP client cannot
/// be built.
pub fn builtin(options: &BuiltinOptions) -> Result<ToolRegistry, BuiltinError> {
    let mut registry = ToolRegistry::new();
    registry.register_builtin(options)?;
    Ok(registry)
}

impl ToolRegistry {
    /// Registers the built-in tools.
    pub fn register_builtin(&mut self, options: &BuiltinOptions) -> Result<(), BuiltinError> {
        self.register(Calculator)?;
        self.register(Clock::new())?;
        self.register(GetVariable)?;
        self.register(SetVariable)?;
        let allow = options.http_get_allow.iter().map(|rule| rule.parse());
        let allow = allow.collect::<Result<_, _>>()?;
        let proxy = options.http_get_proxy.clone();
        self.register(HttpGet::new(HttpGetOptions { allow, proxy, ..HttpGetOptions::default() })?)?;
        if let Some(root) = &options.read_file_root {
            let tool = ReadFile::new(root, READ_BYTES_MAX)
                .map_err(|source| BuiltinError::ReadFileRoot { root: root.clone(), source })?;
            self.register(tool)?;
        }
        Ok(())
    }
}

/// The reason why the built-in tools cannot be made as configured.
///
/// Returned by [`builtin`].
#[derive(Debug, thiserror::Error)]
pub enum BuiltinError {
    /// `read_file.root` cannot be opened as a directory.
    #[error("open read_file.root {}: {source}", .root.display())]
    ReadFileRoot {
        /// The directory as configured.
        root: PathBuf,
        /// The error of opening it.
        source: io::Error,
    },
    /// An entry of `http_get.allow` is invalid.
    #[error("read http_get.allow: {0}")]
    HttpGetAllow(#[from] InvalidAllowRule),
    /// The HTTP client of `http_get` cannot be built.
    #[error("build the HTTP client of http_get: {0}")]
    HttpGetClient(#[from] HttpClientError),
    /// A tool cannot be registered.
    #[error(transparent)]
    Register(#[from] RegistryError),
}

callsheet_values::impl_with!(BuiltinOptions, HttpGetOptions);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::NextAttempt;
    use crate::testing::ToolTest;
    use callsheet_values::types::FailureKind;

    fn names(options: &BuiltinOptions) -> Vec<String> {
        builtin(options).unwrap().iter().map(|(name, _)| name.to_owned()).collect()
    }

    #[test]
    fn read_file_is_registered_only_with_a_root() {
        let mut options = BuiltinOptions::default();
        let all = ["calculator", "clock", "get_variable", "http_get", "read_file", "set_variable"];
        let without: Vec<&str> = all.into_iter().filter(|name| *name != "read_file").collect();
        assert_eq!(names(&options), without);
        options.read_file_root = Some(std::env::temp_dir());
        assert_eq!(names(&options), all);
    }

    #[test]
    fn built_in_tools_have_the_expected_specs() {
        let read_file_root = Some(std::env::temp_dir());
        let options = BuiltinOptions { read_file_root, ..BuiltinOptions::default() };
        let registry = builtin(&options).unwrap();
        // Name, argument, effects, blocking, idempotent.
        for (name, argument, effects, blocking, idempotent) in [
            ("calculator", "expression", false, true, false),
            ("clock", "zone", false, false, false),
            ("http_get", "url", true, false, true),
            ("read_file", "path", false, true, false),
        ] {
            let spec = &registry.tool(name).unwrap().spec;
            assert_eq!(spec.has_effects(), effects, "{name}");
            assert_eq!(spec.blocking, blocking, "{name}");
            assert_eq!(spec.idempotent, idempotent, "{name}");
            assert!(!spec.exclusive && !spec.repeatable, "{name}");
            assert_eq!(spec.input.as_value()["required"], json!([argument]));
            assert!(spec.input.first_violation(&json!({ argument: "x" })).is_none());
            assert!(spec.input.first_violation(&json!({})).is_some());
            assert!(spec.input.first_violation(&json!({ argument: 1 })).is_some());
        }
    }

    #[tokio::test]
    async fn built_in_tools_run_with_their_arguments() {
        let root = std::env::temp_dir().join(format!("callsheet-builtin-{}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        std::fs::write(root.join("note.txt"), "a note").unwrap();
        let options =
            BuiltinOptions { read_file_root: Some(root.clone()), ..BuiltinOptions::default() };
        let registry = builtin(&options).unwrap();
        let run = async |name: &str, arguments: serde_json::Value| {
            let tool = Arc::clone(&registry.tool(name).unwrap().tool);
            ToolTest::new(tool).call(arguments).await
        };
        let sum = run("calculator", json!({ "expression": "17 % of 2,350" })).await;
        assert_eq!(sum.text(), "399.5");
        assert_eq!(run("read_file", json!({ "path": "note.txt" })).await.text(), "a note");
        let missing = run("read_file", json!({ "path": "other" })).await;
        assert_eq!(missing.error().message(), "cannot read \"other\": no such file");
        let time = run("clock", json!({ "zone": "Tokyo" })).await;
        let time = time.text();
        assert!(time.contains("+09:00 (Asia/Tokyo, ") && time.ends_with("day)"), "{time}");
        let refused = run("http_get", json!({ "url": "http://127.0.0.1:1/" })).await;
        let refused = refused.error().message();
        assert!(refused.starts_with("refused: 127.0.0.1 is a loopback"), "{refused}");
        std::fs::remove_dir_all(root).unwrap();
    }

    #[tokio::test]
    async fn refused_arguments_are_permanent_errors() {
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = closed.local_addr().unwrap().to_string();
        drop(closed);
        let options = BuiltinOptions {
            read_file_root: Some(std::env::temp_dir()),
            http_get_allow: vec![address.clone()],
            ..BuiltinOptions::default()
        };
        let registry = builtin(&options).unwrap();
        let run = async |name: &str, arguments: serde_json::Value| {
            let tool = Arc::clone(&registry.tool(name).unwrap().tool);
            let call = ToolTest::new(tool).call(arguments).await;
            let error = call.error();
            (error.kind(), error.next_attempt())
        };
        for (name, arguments) in [
            ("calculator", json!({ "expression": "1,5 + 1" })),
            ("calculator", json!({ "expression": "1/0" })),
            ("clock", json!({ "zone": "Atlantis" })),
            ("http_get", json!({ "url": "example.com" })),
            ("http_get", json!({ "url": "http://10.0.0.1/" })),
            ("read_file", json!({ "path": "callsheet-no-such-file" })),
            ("set_variable", json!({ "name": "", "value": 1 })),
        ] {
            let expected = (FailureKind::ToolError, NextAttempt::Useless);
            assert_eq!(run(name, arguments.clone()).await, expected, "{name} {arguments}");
        }
        let unreachable = run("http_get", json!({ "url": format!("http://{address}/") })).await;
        assert_eq!(unreachable, (FailureKind::NotSent, NextAttempt::MayHelp));
    }

    #[test]
    fn errors_name_the_invalid_option() {
        let missing = PathBuf::from("/nowhere/at/all");
        let options = BuiltinOptions { read_file_root: Some(missing), ..Default::default() };
        let error = builtin(&options).unwrap_err().to_string();
        assert!(error.starts_with("open read_file.root /nowhere/at/all: "), "{error}");
        let options = BuiltinOptions { http_get_allow: vec!["*".to_owned()], ..Default::default() };
        let error = builtin(&options).unwrap_err().to_string();
        assert!(error.starts_with("read http_get.allow: \"*\" is not a "), "{error}");
    }
}
