//! Reads the keys that tools, hooks and MCP servers have in common: those of a process and the headers of HTTP
//! requests.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use toml::de::DeValue;
use url::Url;

use super::source::Section;
use super::tools::parse_allow_entry;
use super::values::{self, Parsed};
use crate::config::key_table::KeyTable as _;
use crate::config::tool_definition::{ProcessConfig, SandboxLevel};
use crate::config::{Proxy, SecretSource, ServiceConfig};

/// Returns the value of an environment variable of the host, or `None` if it is not set.
pub(super) type EnvLookup<'e> = &'e dyn Fn(&str) -> Option<String>;

impl ProcessConfig {
    /// Reads the keys that all processes have. Records an error for each wrong value, and for a name that is
    /// in both `env` and `secret_env`.
    pub(super) fn read(section: &Section<'_, '_>, lookup_env: EnvLookup<'_>) -> Self {
        let env_pass = section.list("env_pass", |value| {
            let name = env_var_name(value)?;
            match lookup_env(&name) {
                Some(_) => Ok(name),
                None => Err(unusable_message(&name, "is not set")),
            }
        });
        let secret_env = secret_env_names(section, "secret_env", lookup_env);
        let env = section.table("env").entries(values::string);
        for name in env.keys().filter(|name| secret_env.contains_key(*name)) {
            section.add_error("env", format!("{name} is also in secret_env"));
        }
        let mut process = Self::default();
        process.read_keys(section);
        let paths = |key| {
            if process.sandbox == SandboxLevel::None {
                section.forbid(
                    key,
                    "needs a sandbox: set sandbox to \"read\", \"write\" or \"strict\"",
                );
            }
            let paths = section.list(key, values::non_empty_string).unwrap_or_default();
            paths.iter().map(|path| section.resolve_path(path)).collect()
        };
        let (read_paths, write_paths) = (paths("read_paths"), paths("write_paths"));
        Self {
            cwd: section.path("cwd").unwrap_or_else(|| section.resolve_path("")),
            env,
            env_pass: env_pass.unwrap_or_default(),
            secret_env,
            read_paths,
            write_paths,
            max_memory: section.read("max_memory", values::size).and_then(NonZeroU64::new),
            ..process
        }
    }
}

/// Reads `command`: a program and its arguments. Records an error if the key is missing, is not a list or is
/// empty, and for each wrong item. Leaves wrong items out. Returns an empty list if the key is missing or is
/// not a list.
pub(super) fn command(section: &Section<'_, '_>) -> Vec<String> {
    let mut has_wrong_item = false;
    let command = section.list("command", |value| {
        let item = values::string(value);
        has_wrong_item |= item.is_err();
        item
    });
    if !section.has("command") {
        section.add_error("command", "is missing: a list of the program and its arguments");
    } else if !has_wrong_item && command.as_ref().is_some_and(Vec::is_empty) {
        section.add_error("command", "must not be empty");
    }
    let mut command = command.unwrap_or_default();
    // A program with a slash is a path relative to the folder of the file. A name without one is searched in PATH.
    if let Some(program) = command.first_mut().filter(|name| name.contains('/')) {
        *program = section.resolve_path(program).display().to_string();
    }
    command
}

/// Reads `headers`, and the secret ones: `secret_headers` and `secret_files`. Records an error for a name that appears
/// twice, in one table or in two. Names are case-insensitive, see [RFC 9110, section 5.1](https://www.rfc-editor.org/rfc/rfc9110#section-5.1).
pub(super) fn headers(
    section: &Section<'_, '_>,
    lookup_env: EnvLookup<'_>,
) -> (BTreeMap<String, String>, BTreeMap<String, SecretSource>) {
    let headers = section.table("headers").entries(values::string);
    let variables = secret_env_names(section, "secret_headers", lookup_env);
    let files = section.table("secret_files").entries(|value| secret_file(section, value));
    let mut seen: BTreeMap<String, &str> = BTreeMap::new();
    let variable_names = variables.keys().map(|name| (name, "secret_headers"));
    let file_names = files.keys().map(|name| (name, "secret_files"));
    let names =
        variable_names.chain(file_names).chain(headers.keys().map(|name| (name, "headers")));
    for (name, key) in names {
        match seen.insert(name.to_ascii_lowercase(), key) {
            Some(other) if other == key => {
                let message = format!("{name} appears twice: header names are case-insensitive");
                section.add_error(key, message);
            }
            Some(other) => section.add_error(key, format!("{name} is also in {other}")),
            None => {}
        }
    }
    let variables = variables.into_iter().map(|(name, it)| (name, SecretSource::Variable(it)));
    (headers, variables.chain(files).collect())
}

/// Returns the file with this path, whose secret can be read.
pub(super) fn secret_file(section: &Section<'_, '_>, value: &DeValue<'_>) -> Parsed<SecretSource> {
    let file = SecretSource::File(section.resolve_path(&values::non_empty_string(value)?));
    file.read().map(|_| file).map_err(|error| error.to_string())
}

/// Reads a secret whose place is the value of one of two keys: the name of an environment variable, or a file.
pub(super) fn secret_source(
    section: &Section<'_, '_>,
    (variable, file): (&'static str, &'static str),
    lookup_env: EnvLookup<'_>,
) -> Option<SecretSource> {
    if section.has(variable) {
        section.forbid(file, &format!("{variable} and {file} exclude each other"));
    }
    let named = section.read(variable, |name| {
        env_value(name, lookup_env).and_then(|_| env_var_name(name)).map(SecretSource::Variable)
    });
    named.or(section.read(file, |value| secret_file(section, value)))
}

/// Reads `proxy`.
pub(super) fn proxy(section: &Section<'_, '_>) -> Proxy {
    let proxy = section.read("proxy", |value| match &*values::non_empty_string(value)? {
        "none" => Ok(Proxy::None),
        "env" => Ok(Proxy::Environment),
        url if url.starts_with("http://") || url.starts_with("https://") => {
            Url::parse(url).map(|url| Proxy::Url(url.into())).map_err(|error| error.to_string())
        }
        other => Err(format!(
            "must be \"none\", \"env\" or a URL such as \"http://proxy:3128\", not {other:?}"
        )),
    });
    proxy.unwrap_or_default()
}

/// Reads the keys of a service that is asked over HTTP, besides its URL.
pub(super) fn service(section: &Section<'_, '_>, url: String, env: EnvLookup<'_>) -> ServiceConfig {
    let (headers, secret_headers) = headers(section, env);
    let allow = section.list("allow", parse_allow_entry).unwrap_or_default();
    ServiceConfig { url, headers, secret_headers, allow, proxy: proxy(section) }
}

/// Reads a table whose values are names of environment variables of the host that hold secrets. Records an
/// error for a variable that is not set or is blank.
fn secret_env_names(
    section: &Section<'_, '_>,
    key: &'static str,
    lookup_env: EnvLookup<'_>,
) -> BTreeMap<String, String> {
    section
        .table(key)
        .entries(|value| env_value(value, lookup_env).and_then(|_| env_var_name(value)))
}

/// Returns the value of the environment variable of the host with this name.
///
/// # Errors
/// If it is not set or is blank.
pub(super) fn env_value(name: &DeValue<'_>, lookup_env: EnvLookup<'_>) -> Parsed<String> {
    let name = env_var_name(name)?;
    let value = lookup_env(&name).filter(|value| !value.trim().is_empty());
    value.ok_or_else(|| unusable_message(&name, "is not set or is blank"))
}

fn unusable_message(name: &str, problem: &str) -> String {
    format!("the environment variable {name} {problem}: set it before the host starts")
}

/// Parses the name of an environment variable of the host.
///
/// # Errors
/// If the value is not a text that can name a variable.
fn env_var_name(value: &DeValue<'_>) -> Parsed<String> {
    let name = values::non_empty_string(value)?;
    if name.contains(['=', '\0']) {
        return Err(format!("{name:?} is not the name of an environment variable"));
    }
    Ok(name)
}
