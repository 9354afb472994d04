//! The headers that authenticate an operation.

use serde_json::Value;

use super::document::{OpenApiDocument, Operation, members};
use super::naming::variable_name;

/// The default name of the service, in the names of variables.
const SERVICE: &str = "API";

/// A header whose value is in an environment variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SecretHeader {
    pub(super) name: String,
    pub(super) variable: String,
    /// What the variable holds.
    pub(super) content: &'static str,
}

/// Returns the headers of the first alternative of the document that headers can express.
///
/// # Errors
/// If there are alternatives, and headers can express none: the reason.
pub(super) fn secret_headers(
    document: &OpenApiDocument,
    operation: &Operation<'_>,
) -> Result<Vec<SecretHeader>, String> {
    let own = operation.definition.get("security");
    let alternatives = own.or_else(|| document.at("/security")).and_then(Value::as_array);
    let mut first_problem = None;
    for schemes in alternatives.into_iter().flatten() {
        // All schemes of an alternative are needed at once.
        let headers: Result<Vec<_>, _> =
            members(schemes).map(|(name, _)| header(document, name)).collect();
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
