//! Converts security schemes to request headers whose values are in environment variables.

use serde_json::Value;

use super::document::{OpenApiDocument, Operation, members};
use super::naming::env_var_name;

/// The prefix of environment variables if the title of the document cannot be the prefix.
const FALLBACK_PREFIX: &str = "API";

/// A header whose value is in an environment variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SecretHeader {
    pub(super) name: String,
    /// The environment variable that holds the value.
    pub(super) variable: String,
    /// The description of the value that the variable must have.
    pub(super) content: &'static str,
}

/// Returns the headers that authenticate an operation: those of the first alternative in its `security`, or else in
/// that of the document, whose schemes can all be sent as headers.
///
/// # Errors
/// If there are alternatives, but none of them can be sent as headers. The error gives the reason for the first one.
pub(super) fn secret_headers(
    document: &OpenApiDocument,
    operation: &Operation<'_>,
) -> Result<Vec<SecretHeader>, String> {
    let operation_security = operation.definition.get("security");
    let security = operation_security.or_else(|| document.at("/security"));
    let alternatives = security.and_then(Value::as_array);
    let mut first_problem = None;
    for alternative in alternatives.into_iter().flatten() {
        // An alternative requires all of its schemes.
        let headers: Result<Vec<_>, _> =
            members(alternative).map(|(name, _)| secret_header(document, name)).collect();
        match headers {
            Ok(headers) => return Ok(headers),
            Err(problem) => first_problem = first_problem.or(Some(problem)),
        }
    }
    first_problem.map_or(Ok(Vec::new()), Err)
}

fn secret_header(document: &OpenApiDocument, name: &str) -> Result<SecretHeader, String> {
    let scheme_error = |problem: &str| format!("the security scheme {name} {problem}");
    let schemes = document.at("/components/securitySchemes").unwrap_or(&Value::Null);
    let scheme = document.resolve(&schemes[name]).map_err(|problem| scheme_error(&problem))?;
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
        _ => return Err(scheme_error("is none that a header can express")),
    };
    let names: Vec<_> = members(schemes).map(|(name, _)| name).collect();
    let variable = secret_variable_name(document, name, &names);
    Ok(SecretHeader { name: header.to_owned(), variable, content })
}

/// Returns the name of the environment variable for a security scheme. The prefix is the title of the document,
/// because a configuration can have tools of several documents. `schemes` are the names of all schemes: of those that
/// would have the same variable, the later ones are numbered.
fn secret_variable_name(
    document: &OpenApiDocument,
    scheme: &str,
    schemes: &[impl AsRef<str>],
) -> String {
    let title = env_var_name(document.title());
    // `CALLSHEET` is the prefix of the host's own variables.
    let is_usable =
        title.starts_with(|c: char| c.is_ascii_alphabetic()) && !title.starts_with("CALLSHEET");
    let prefix = if is_usable { title } else { FALLBACK_PREFIX.to_owned() };
    let finished =
        |name: String| if is_secret_variable(&name) { name } else { format!("{name}_TOKEN") };
    if schemes.len() < 2 {
        return finished(prefix);
    }
    let mut used = Vec::new();
    for known in schemes.iter().map(AsRef::as_ref) {
        let name = format!("{prefix}_{}", env_var_name(known));
        let numbered = (2..).map(|number| finished(format!("{name}_{number}")));
        let first = std::iter::once(finished(name.clone()));
        let Some(variable) = first.chain(numbered).find(|variable| !used.contains(variable)) else {
            break;
        };
        if known == scheme {
            return variable;
        }
        used.push(variable);
    }
    finished(prefix)
}

/// Returns whether a name ends like a variable for a secret and is not a variable of the host itself. This is true
/// for each name from [`secret_variable_name`], and for other names such as `X_KEY`.
pub(super) fn is_secret_variable(name: &str) -> bool {
    !name.starts_with("CALLSHEET") && (name.ends_with("_TOKEN") || name.ends_with("_KEY"))
}
