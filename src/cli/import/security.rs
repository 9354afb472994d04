//! The headers that authenticate an operation.

use std::collections::BTreeSet;

use serde_json::Value;

use super::document::{OpenApiDocument, Operation, members};
use super::naming::variable_name;

/// The default name of the service, in the names of variables.
const SERVICE: &str = "API";

const BEARER: &str = "the whole value, \"Bearer \" included";
const BASIC: &str = "the whole value: \"Basic \" and the base64 of user:password";

/// A header whose value is in an environment variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SecretHeader {
    pub(super) name: String,
    pub(super) variable: String,
    /// What the variable holds.
    pub(super) content: &'static str,
}

/// The authentication of an operation.
#[derive(Debug, Default)]
pub(super) struct OperationSecurity {
    pub(super) headers: Vec<SecretHeader>,
    /// Headers for a line that is commented out.
    pub(super) suggested: Vec<SecretHeader>,
    /// Comments.
    pub(super) notes: Vec<String>,
}

impl OperationSecurity {
    /// Chooses the first alternative of the document that headers can express.
    pub(super) fn read(document: &OpenApiDocument, operation: &Operation<'_>) -> Self {
        let own = operation.definition.get("security");
        let alternatives = own.or_else(|| document.at("/security")).and_then(Value::as_array);
        let alternatives = alternatives.map_or(&[][..], Vec::as_slice);
        let read: Vec<Result<Vec<SecretHeader>, Self>> =
            alternatives.iter().map(|schemes| headers(document, schemes)).collect();
        let mut usable = read.iter().filter_map(|headers| headers.as_ref().ok());
        let Some(chosen) = usable.next() else {
            let first = read.into_iter().find_map(Result::err);
            return first.unwrap_or_default();
        };
        match (chosen.is_empty(), usable.next()) {
            (true, Some(other)) => Self {
                suggested: other.clone(),
                notes: vec!["works without authentication; with it:".to_owned()],
                ..Self::default()
            },
            _ => Self { headers: chosen.clone(), ..Self::default() },
        }
    }
}

/// Returns the headers of an alternative. All its schemes are needed at once.
fn headers(
    document: &OpenApiDocument,
    schemes: &Value,
) -> Result<Vec<SecretHeader>, OperationSecurity> {
    let mut found = Vec::new();
    let mut security = OperationSecurity::default();
    for (name, _) in members(schemes) {
        match header(document, name) {
            Ok(header) => found.push(header),
            Err((problem, suggested)) => {
                security.notes.push(format!("the security scheme {name} {problem}"));
                security.suggested.extend(suggested);
            }
        }
    }
    let names: BTreeSet<String> =
        found.iter().map(|header| header.name.to_ascii_lowercase()).collect();
    if names.len() < found.len() {
        security.notes.push("two security schemes use the same header".to_owned());
    }
    if security.notes.is_empty() { Ok(found) } else { Err(security) }
}

/// Returns the header of a scheme, or the reason why there is none, and a header that may do.
fn header(
    document: &OpenApiDocument,
    name: &str,
) -> Result<SecretHeader, (String, Option<SecretHeader>)> {
    let schemes = document.at("/components/securitySchemes").unwrap_or(&Value::Null);
    let scheme = document.resolve(&schemes[name]).map_err(|problem| (problem, None))?;
    let text = |key: &str| scheme[key].as_str().unwrap_or_default();
    let secret = |header: &str, content| SecretHeader {
        name: header.to_owned(),
        variable: variable(document, name, members(schemes).count()),
        content,
    };
    match (text("type"), text("in"), text("scheme").to_ascii_lowercase().as_str()) {
        ("apiKey", "header", _) => Ok(secret(text("name"), "the key")),
        ("apiKey", place, _) => {
            Err((format!("is a key in the {place}; secrets can only be in headers"), None))
        }
        ("http", _, "bearer") => Ok(secret("authorization", BEARER)),
        ("http", _, "basic") => Ok(secret("authorization", BASIC)),
        ("oauth2" | "openIdConnect", _, _) => {
            let problem = "is OAuth, whose tokens the host does not get; with a token of your own:";
            Err((problem.to_owned(), Some(secret("authorization", BEARER))))
        }
        ("", _, _) => Err(("is not in the document".to_owned(), None)),
        (kind, _, scheme) => {
            let kind = format!("{kind} {scheme}");
            Err((format!("is {}, which is not supported", kind.trim()), None))
        }
    }
}

/// Returns the variable of a scheme. Its name has the service, because a configuration can have several.
fn variable(document: &OpenApiDocument, scheme: &str, schemes: usize) -> String {
    let service = variable_name(document.title());
    // The host's own variables begin with its name.
    let is_usable =
        service.starts_with(|c: char| c.is_ascii_alphabetic()) && !service.starts_with("CALLSHEET");
    let service = if is_usable { service } else { SERVICE.to_owned() };
    let name = match schemes {
        0 | 1 => service,
        _ => format!("{service}_{}", variable_name(scheme)),
    };
    if is_secret_variable(&name) { name } else { format!("{name}_TOKEN") }
}

/// Returns whether a name is one of those that [`variable`] makes.
pub(super) fn is_secret_variable(name: &str) -> bool {
    !name.starts_with("CALLSHEET") && (name.ends_with("_TOKEN") || name.ends_with("_KEY"))
}
