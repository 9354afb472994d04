//! Reads `[[tokens]]`.

use super::process::EnvLookup;
use super::source::Section;
use super::values;
use crate::config::tokens::EMPTY_SCOPE;
use crate::config::{ApiKey, SecretSource, TokenConfig, TokenScope};
use crate::types::InvalidValue;

impl TokenConfig {
    /// Reads a token. Returns `None` if its name, the token or its scope is missing or wrong.
    pub(super) fn read(section: &Section<'_, '_>, env: EnvLookup<'_>) -> Option<Self> {
        let name = section.read("name", |value| {
            let name = values::string(value)?;
            values::check_name(&name).map(|()| name)
        });
        section.require("name", &name);
        let variable = section.read("env", values::non_empty_string);
        if section.has("env") {
            section.forbid("file", "env and file exclude each other");
        } else if !section.has("file") {
            let message =
                "is missing: name the variable of the token with env, or its file with file";
            section.add_error("env", message);
        }
        section.forbid(
            "token",
            "a token is never in this file: name a variable with env, or another file with file",
        );
        let file = section.path("file");
        let token = match (&variable, &file) {
            (Some(variable), _) => {
                let token = ApiKey::from_env(variable, env).map_err(|error| ("env", error));
                Some(token)
            }
            (None, Some(file)) => {
                let token = SecretSource::File(file.clone()).read_token();
                Some(token.map_err(|error| ("file", error)))
            }
            (None, None) => None,
        };
        let token = token.and_then(|token| {
            let wrong =
                |(key, error): (&str, InvalidValue)| section.add_error(key, format!("{error}"));
            token.map_err(wrong).ok()
        });
        let scope = section.non_empty_list("scope", EMPTY_SCOPE, |value| {
            values::one_of(value, &TokenScope::NAMES)
        });
        section.require("scope", &scope);
        let empty = "must not be empty: leave it out for all";
        let agents = section.non_empty_list("agents", empty, values::non_empty_string);
        section.report_unknown_keys();
        let token = Self::new(name?, token?, scope?);
        Some(Self { env: variable, file, agents, ..token })
    }
}
