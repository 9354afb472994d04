//! The contract of tools and hooks, as values: what a tool says about itself, what a hook is asked and answers, and the
//! check of a value by a JSON Schema.
//!
//! | file | what it holds |
//! | --- | --- |
//! | `spec.rs` | [`ToolSpec`]: name, input schema and scheduling policy of a tool |
//! | `schema/` | [`ParsedSchema`]: a compiled JSON Schema, and the check of a value with a limited number of steps |
//! | `hook.rs` | [`HookInput`] and [`HookAnswer`]: what a hook is asked, and its answer |

mod hook;
mod schema;
mod spec;

pub use hook::{HookAnswer, HookError, HookInput};
pub use schema::{CompiledSchema, FormatCheck, ParsedSchema, PathSegment, Violation};
pub use spec::ToolSpec;
