//! The contract of tools and hooks, as values: the properties of a tool, the input and the answer of a hook, and the
//! check of a value by a JSON Schema.
//!
//! | file | what it holds |
//! | --- | --- |
//! | `spec.rs` | [`ToolSpec`]: name, input schema and scheduling policy of a tool |
//! | `schema/` | [`ParsedSchema`]: a compiled JSON Schema, and the check of a value with a limited number of steps |
//! | `hook.rs` | [`HookInput`], [`HookAnswer`] and [`HookError`] |

mod hook;
mod schema;
mod spec;

pub use hook::{HookAnswer, HookError, HookInput};
pub use schema::{CompiledSchema, FormatCheck, ParsedSchema, PathSegment, Violation};
pub use spec::ToolSpec;
