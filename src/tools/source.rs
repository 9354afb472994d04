//! Tools that are not known when the host starts.

use std::sync::Arc;

use super::Tool;
use callsheet_values::types::SessionId;

/// A source of tools that may change while the host runs, such as a directory of plugins or the
/// permissions of a user. It is read before a run starts, and the run keeps the tools that it had then. If the
/// session is woken from the journal during the run, the run has the tools of that time.
///
/// The agent offers these tools besides its own. A tool that cannot be registered, for example because its name is
/// invalid or that of another tool, is left out and logged as `tool_not_offered`. Metrics count their calls with the
/// tool label `other`.
///
/// ```
/// use std::sync::Arc;
/// use callsheet::prelude::*;
/// use callsheet::tool::{ToolSource, ToolSourceContext};
///
/// struct Reports;
///
/// impl ToolSource for Reports {
///     fn tools(&self, run: &ToolSourceContext<'_>) -> Vec<Arc<dyn Tool>> {
///         let name = format!("report_of_{}", run.session);
///         let tool = ToolSpec::named(name, "Returns the report of this session.")
///             .into_tool(async |(): (), _| Ok("all is well"));
///         vec![Arc::new(tool)]
///     }
/// }
/// ```
pub trait ToolSource: Send + Sync + 'static {
    /// Returns the tools of the next run. It can be called more often than runs start. Called on the session's own
    /// task: it must not block.
    fn tools(&self, run: &ToolSourceContext<'_>) -> Vec<Arc<dyn Tool>>;
}

/// The run for which a [`ToolSource`] is read.
///
/// [`ToolSource`] shows its use.
#[derive(Clone, Copy, Debug)]
pub struct ToolSourceContext<'a> {
    /// The session's id.
    pub session: &'a SessionId,
    /// The agent's name.
    pub agent: &'a str,
}
