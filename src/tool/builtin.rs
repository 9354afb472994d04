//! The tools that every host has.

use std::io;
use std::path::PathBuf;

use super::{
    Calculator, Clock, GetVariable, HttpGet, HttpGetOptions, InvalidAllowRule, READ_BYTES_MAX,
    ReadFile, RegistryError, SetVariable, ToolRegistry,
};

/// What the configuration says of the built-in tools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BuiltinOptions {
    /// `read_file.root`: the directory beneath which files are read; without it there is no
    /// `read_file`.
    pub read_file_root: Option<PathBuf>,
    /// `http_get.allow`: hosts, hosts with ports and networks that are allowed although they are
    /// not public.
    pub http_get_allow: Vec<String>,
}

/// A registry with `calculator`, `clock`, `get_variable`, `http_get`, `set_variable` and, where it
/// has a root, `read_file`.
///
/// # Errors
/// When the directory cannot be opened, a rule is none, or no HTTP client can be made.
pub fn builtin(options: &BuiltinOptions) -> Result<ToolRegistry, BuiltinError> {
    let mut registry = ToolRegistry::new();
    registry.register(Calculator)?;
    registry.register(Clock::new())?;
    registry.register(GetVariable)?;
    registry.register(SetVariable)?;
    let allow = options.http_get_allow.iter().map(|rule| rule.parse());
    let allow = allow.collect::<Result<_, _>>()?;
    registry.register(HttpGet::new(HttpGetOptions { allow, ..HttpGetOptions::default() })?)?;
    if let Some(root) = &options.read_file_root {
        let tool = ReadFile::new(root, READ_BYTES_MAX)
            .map_err(|source| BuiltinError::ReadFileRoot { root: root.clone(), source })?;
        registry.register(tool)?;
    }
    Ok(registry)
}

/// Why the built-in tools cannot be had as configured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuiltinError {
    /// `read_file.root` is no directory that can be opened.
    #[error("open read_file.root {}: {source}", .root.display())]
    ReadFileRoot {
        /// The directory as configured.
        root: PathBuf,
        /// What opening it gave.
        source: io::Error,
    },
    /// `http_get.allow` has an entry that is none.
    #[error("read http_get.allow: {0}")]
    HttpGetAllow(#[from] InvalidAllowRule),
    /// No HTTP client can be made.
    #[error("make the client of http_get: {0}")]
    HttpGetClient(#[from] reqwest::Error),
    /// Two tools have one name.
    #[error(transparent)]
    Register(#[from] RegistryError),
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::tool::ToolContext;
    use crate::types::CallKey;

    fn names(options: &BuiltinOptions) -> Vec<String> {
        builtin(options).unwrap().iter().map(|(name, _)| name.to_owned()).collect()
    }

    #[test]
    fn read_file_needs_a_root() {
        let mut options = BuiltinOptions::default();
        let all = ["calculator", "clock", "get_variable", "http_get", "read_file", "set_variable"];
        let without: Vec<&str> = all.into_iter().filter(|name| *name != "read_file").collect();
        assert_eq!(names(&options), without);
        options.read_file_root = Some(std::env::temp_dir());
        assert_eq!(names(&options), all);
    }

    #[test]
    fn tools_have_their_manners_and_arguments() {
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
            assert!(spec.input.first_mismatch(&json!({ argument: "x" })).is_none());
            assert!(spec.input.first_mismatch(&json!({})).is_some());
            assert!(spec.input.first_mismatch(&json!({ argument: 1 })).is_some());
        }
    }

    #[tokio::test]
    async fn tools_run_with_their_arguments() {
        let root = std::env::temp_dir().join(format!("callsheet-builtin-{}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        std::fs::write(root.join("note.txt"), "a note").unwrap();
        let options =
            BuiltinOptions { read_file_root: Some(root.clone()), ..BuiltinOptions::default() };
        let registry = builtin(&options).unwrap();
        let run = async |name: &str, arguments: serde_json::Value| {
            let key = CallKey { turn: 1, attempt: 1, index: 0 };
            let token = CancellationToken::new();
            let context =
                ToolContext::new(key, arguments, "key".to_owned(), token, Arc::new(|_| {}));
            registry.tool(name).unwrap().tool.run(context).await.map(|output| output.0)
        };
        assert_eq!(
            run("calculator", json!({ "expression": "17 % of 2,350" })).await,
            Ok("399.5".to_owned())
        );
        assert_eq!(run("read_file", json!({ "path": "note.txt" })).await, Ok("a note".to_owned()));
        let missing = run("read_file", json!({ "path": "other" })).await.unwrap_err();
        assert_eq!(missing.0, "cannot read \"other\": no such file");
        let time = run("clock", json!({ "zone": "Tokyo" })).await.unwrap();
        assert!(time.contains("+09:00 (Asia/Tokyo, ") && time.ends_with("day)"), "{time}");
        let refused = run("http_get", json!({ "url": "http://127.0.0.1:1/" })).await.unwrap_err();
        assert!(refused.0.starts_with("refused: 127.0.0.1 is a loopback"), "{refused}");
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn says_what_is_wrong_with_the_options() {
        let missing = PathBuf::from("/nowhere/at/all");
        let options = BuiltinOptions { read_file_root: Some(missing), ..Default::default() };
        let error = builtin(&options).unwrap_err().to_string();
        assert!(error.starts_with("open read_file.root /nowhere/at/all: "), "{error}");
        let options = BuiltinOptions { http_get_allow: vec!["*".to_owned()], ..Default::default() };
        let error = builtin(&options).unwrap_err().to_string();
        assert!(error.starts_with("read http_get.allow: \"*\" is no "), "{error}");
    }
}
