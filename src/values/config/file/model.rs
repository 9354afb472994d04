//! Reads `[models.NAME]`.

use std::collections::BTreeMap;

use toml::de::DeValue;

use super::source::Section;
use super::values::{self, Parsed};
use crate::config::key_table::KeyTable as _;
use crate::config::{ApiKey, BaseUrl, ModelConfig, SecretSource};
use crate::types::InvalidValue;

impl ModelConfig {
    /// Reads a model. It has no API key if it needs none and the environment has no valid one.
    pub(super) fn read(
        section: &Section<'_, '_>,
        env: &dyn Fn(&str) -> Option<String>,
        needs_key: bool,
    ) -> Self {
        let base_url = section.read("base_url", base_url);
        let model = section.read("model", values::non_empty_string);
        section.require("base_url", &base_url);
        section.require("model", &model);
        let optional_key = |key: Result<ApiKey, InvalidValue>| match key {
            Ok(key) => Ok(Some(key)),
            Err(error) if needs_key => Err(error.to_string()),
            Err(_) => Ok(None),
        };
        let api_key = section.read("api_key_env", |value| {
            optional_key(ApiKey::from_env(&values::non_empty_string(value)?, env))
        });
        if section.has("api_key_env") {
            section.forbid("api_key_file", "api_key_env and api_key_file exclude each other");
        }
        let api_key_file = section.path("api_key_file");
        let key_of_file = api_key_file.as_ref().and_then(|path| {
            let key = SecretSource::File(path.clone()).read().and_then(|key| ApiKey::new(&key));
            match optional_key(key) {
                Ok(key) => key,
                Err(message) => {
                    section.add_error("api_key_file", message);
                    None
                }
            }
        });
        let mut config =
            Self::new(base_url.unwrap_or_else(BaseUrl::unset), model.unwrap_or_default());
        config.read_keys(section);
        if !section.has("progress_timeout") {
            // A file that allows a longer silence allows it without progress too.
            config.progress_timeout = config.progress_timeout.max(config.idle_timeout);
        }
        config.api_key = api_key.flatten().or(key_of_file);
        config.api_key_file = api_key_file;
        config.headers = section.read("headers", headers).unwrap_or_default();
        config.extra_body = section.read("extra_body", extra_body).unwrap_or_default();
        config.extra_body_internal = section.read("extra_body_internal", extra_body);
        let omit_body = section.list("omit_body", omit_body_member);
        config.omit_body = omit_body.unwrap_or_default().into_iter().collect();
        section.forbid("api_key", "a key is never in this file: name a variable with api_key_env, or another file with api_key_file");
        section.report_unknown_keys();
        config
    }
}

fn base_url(value: &DeValue<'_>) -> Parsed<BaseUrl> {
    BaseUrl::parse(&values::string(value)?).map_err(|error| error.to_string())
}

fn headers(value: &DeValue<'_>) -> Parsed<BTreeMap<String, String>> {
    let table = value.as_table().ok_or_else(|| values::wrong_type("a table", value))?;
    let mut headers = BTreeMap::new();
    for (name, value) in table {
        let name = name.get_ref().to_ascii_lowercase();
        if name.is_empty() || !name.bytes().all(is_token_byte) {
            return Err(format!("{name:?} is not a valid header name"));
        }
        if matches!(name.as_str(), "authorization" | "content-type" | "content-length" | "host") {
            return Err(format!(
                "{name} is set by the host itself (keys come from api_key_env or api_key_file)"
            ));
        }
        let value = values::string(value.get_ref()).map_err(|error| format!("{name}: {error}"))?;
        if !value.bytes().all(|b| b == b' ' || b.is_ascii_graphic()) {
            return Err(format!("{name}: a header holds printable ASCII only"));
        }
        if headers.insert(name.clone(), value).is_some() {
            return Err(format!("{name} is there twice"));
        }
    }
    Ok(headers)
}

/// Returns whether a header name may contain this byte, see
/// [RFC 9110, section 5.6.2](https://www.rfc-editor.org/rfc/rfc9110#section-5.6.2).
fn is_token_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b)
}

/// Members of request bodies that `extra_body` must not set and `omit_body` must not name. Each is essential to at
/// least one wire format.
const RESERVED_BODY_MEMBERS: [&str; 6] =
    ["model", "messages", "input", "contents", "tools", "stream"];

fn omit_body_member(value: &DeValue<'_>) -> Parsed<String> {
    let member = values::non_empty_string(value)?;
    if RESERVED_BODY_MEMBERS.contains(&member.as_str()) {
        return Err(format!("{member} cannot be left out"));
    }
    Ok(member)
}

fn extra_body(value: &DeValue<'_>) -> Parsed<serde_json::Map<String, serde_json::Value>> {
    let members = values::json_object(value)?;
    match RESERVED_BODY_MEMBERS.iter().find(|member| members.contains_key(**member)) {
        Some(member) => Err(format!("{member} is set by the host itself")),
        None => Ok(members),
    }
}
