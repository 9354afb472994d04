//! `callsheet tools import`: writes tables of the configuration for the operations of an OpenAPI document.
//!
//! Converts the text of a document to the text of the tables. Fetches nothing.
//!
//! | file | contents |
//! | --- | --- |
//! | `mod.rs` | the choice of operations, and the text around their tables |
//! | `document.rs` | the document: its version, its references and its operations |
//! | `naming.rs` | the names of tools, arguments and variables |
//! | `arguments.rs` | parameters and bodies as arguments |
//! | `schema.rs` | schemas as JSON Schema |
//! | `security.rs` | headers that authenticate |
//! | `tool_table.rs` | the table of an operation |
//! | `toml_text.rs` | texts and values as TOML |

mod arguments;
mod document;
mod naming;
mod schema;
mod security;
#[cfg(test)]
mod tests;
mod toml_text;
mod tool_table;

use std::collections::BTreeSet;

use self::document::{OpenApiDocument, Operation};
use self::toml_text::comment;
use super::output::format_count;
use callsheet_values::config::ToolPattern;

/// The second line of the output.
const HINT: &str =
    "Read them, and delete what the agent does not need: each tool costs tokens in every request.";

/// Maximum number of names that an error lists.
const LISTED_MAX: usize = 20;

/// The reason why nothing can be imported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ImportError {
    #[error("is not {0}: {1}")]
    Syntax(&'static str, String),
    #[error("is not an OpenAPI document: it has no `openapi`, such as \"3.1.0\"")]
    NotOpenApi,
    #[error("is Swagger {0}: convert it to OpenAPI 3 first, such as with `npx swagger2openapi`")]
    Swagger(String),
    #[error("is OpenAPI {0}, and only 3.0 to 3.2 can be read")]
    UnknownVersion(String),
    #[error("{at} {problem}")]
    Structure { at: String, problem: String },
    #[error("no operation matches --include and --tag (tags: {tags}; names: {names})")]
    NoMatch { tags: String, names: String },
}

/// The operations to import. An operation must match both lists. An empty list matches all.
#[derive(Debug, Default)]
pub(super) struct OperationFilter {
    /// Patterns of the tools' names.
    pub(super) include: Vec<ToolPattern>,
    pub(super) tags: Vec<String>,
}

impl OperationFilter {
    fn matches(&self, operation: &Operation<'_>) -> bool {
        let Self { include, tags } = self;
        let has_tag = || operation.tags().any(|tag| tags.iter().any(|wanted| wanted == tag));
        (include.is_empty() || include.iter().any(|pattern| pattern.matches(&operation.name)))
            && (tags.is_empty() || has_tag())
    }
}

/// Returns the tables of the operations that the filter chooses.
///
/// # Errors
/// If the text is no OpenAPI document, or the filter chooses none of its operations.
pub(super) fn import(text: &str, filter: &OperationFilter) -> Result<String, ImportError> {
    let document = OpenApiDocument::parse(text)?;
    let (operations, unread) = document.operations()?;
    let chosen: Vec<&Operation<'_>> =
        operations.iter().filter(|operation| filter.matches(operation)).collect();
    // With a filter, paths that cannot be read are not listed: they may not belong to the choice.
    let mut left_out = Vec::new();
    if filter.include.is_empty() && filter.tags.is_empty() {
        if operations.is_empty() && unread.is_empty() {
            let problem = "has no operations".to_owned();
            return Err(ImportError::Structure { at: "paths".to_owned(), problem });
        }
        left_out = unread;
    } else if chosen.is_empty() {
        return Err(no_match(&operations));
    }
    let title = document.title();
    let mut text = comment(&format!("Tools of {title:?}, written by `callsheet tools import`."));
    text.push_str(&comment(HINT));
    text.push('\n');
    let mut written = 0_u64;
    for operation in &chosen {
        let Operation { name, method, path, .. } = operation;
        match tool_table::tool_table(&document, operation) {
            Ok(table) => {
                written += 1;
                text.push_str(&format!("{table}\n"));
            }
            Err(reason) => left_out.push(format!("{name} ({method} {path}): {reason}")),
        }
    }
    for line in &left_out {
        text.push_str(&comment(&format!("left out: {line}")));
    }
    let written = format_count(written, "tool");
    text.push_str(&comment(&format!("{written} written, {} left out", left_out.len())));
    Ok(text)
}

fn no_match(operations: &[Operation<'_>]) -> ImportError {
    let list = |names: BTreeSet<&str>| {
        let listed: Vec<&str> = names.iter().take(LISTED_MAX).copied().collect();
        match names.len().saturating_sub(LISTED_MAX) {
            0 if names.is_empty() => "none".to_owned(),
            0 => listed.join(", "),
            more => format!("{} and {more} more", listed.join(", ")),
        }
    };
    ImportError::NoMatch {
        tags: list(operations.iter().flat_map(Operation::tags).collect()),
        names: list(operations.iter().map(|operation| operation.name.as_str()).collect()),
    }
}
