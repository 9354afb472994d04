//! The headers that authenticate the requests of an operation.

use serde_json::Value;

use super::document::{OpenApiDocument, Operation, members};
use super::naming::env_var_name;

/// Stands for the service in the names of environment variables, if its own title cannot.
const SERVICE: &str = "API";

/// A header whose value is in an environment variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SecretHeader {
    pub(super) name: String,
    /// The environment variable that holds the value.
    pub(super) variable: String,
    /// Says what the variable has to hold.
    pub(super) content: &'static str,
}

/// Returns the headers that authenticate an operation. A document lists alternatives: the first one is taken that
/// needs nothing but headers.
///
/// # Errors
/// If there are alternatives, and each needs more than headers: the reason for the first one.
pub(super) fn secret_headers(
    document: &OpenApiDocument,
    operation: &Operation<'_>,
) -> Result<Vec<SecretHeader>, String> {
    let own = operation.definition.get("security");
    let alternatives = own.or_else(|| document.at("/security")).and_then(Value::as_array);
    let mut first_problem = None;
    for alternative in alternatives.into_iter().flatten() {
        // All schemes of an alternative are needed at once.
        let headers: Result<Vec<_>, _> =
            members(alternative).map(|(name, _)| header(document, name)).collect();
        match headers {
            Ok(headers) => return Ok(headers),
            Err(problem) => first_problem = first_problem.or(Some(problem)),
        }
    }
    first_problem.map_or(Ok(Vec::new()), Err)
}

fn header(document: &OpenApiDocument, name: &str) -> Result<SecretHeader, String> {
    let wrong = |problem: &str| format!("the security scheme {name} {problem}");
    let schemes = document.at("/components/securitySchemes").unwrap_or(&Value::Null);
    let scheme = document.resolve(&schemes[name]).map_err(|problem| wrong(&problem))?;
    let text = |key: &str| scheme[key].as_str().unwrap_or_default();
    let (header, content) = match (text("type"), text("in"), &*text("scheme").to_lowercase()) {
        ("apiKey", "header", _) => (text("name"), "the key"),
        ("http", _, "bearer") => ("authorization", "the whole value, \"Bearer \" included"),
        ("http", _, "basic") => {
            ("authorization", "the whole value: \"Basic \" and the base64 of user:password")
        }
        ("oauth2" | "openIdConnect", _, _) => {
            ("authorization", "\"Bearer \" and a token of your own; the host gets none by OAuth")
        }
        _ => return Err(wrong("is none that a header can express")),
    };
    let variable = variable(document, name, members(schemes).count());
    Ok(SecretHeader { name: header.to_owned(), variable, content })
}

/// Returns the name of the environment variable for a security scheme. It begins with the service, because a
/// configuration can have several.
fn variable(document: &OpenApiDocument, scheme: &str, scheme_count: usize) -> String {
    let service = env_var_name(document.title());
    // The host's own variables begin with its name.
    let is_usable =
        service.starts_with(|c: char| c.is_ascii_alphabetic()) && !service.starts_with("CALLSHEET");
    let service = if is_usable { service } else { SERVICE.to_owned() };
    let name = match scheme_count {
        0 | 1 => service,
        _ => format!("{service}_{}", env_var_name(scheme)),
    };
    if is_secret_variable(&name) { name } else { format!("{name}_TOKEN") }
}

/// Returns whether a name is one of those that [`variable`] makes.
pub(super) fn is_secret_variable(name: &str) -> bool {
    !name.starts_with("CALLSHEET") && (name.ends_with("_TOKEN") || name.ends_with("_KEY"))
}
