//! The tools that the service of a model refuses. Requests to the model leave them out.
//!
//! A tool is known by the hash of its name, description and schema, so that a changed tool is offered again.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::model::ModelRequest;
use super::model_tokens::document_key;
use super::model_tokens::{Learnt, LearntValue};
use crate::journal::{Journal, JournalError};
use crate::telemetry::ModelMetrics;
use callsheet_values::config::ModelConfig;
use callsheet_values::types::ToolChoice;
use callsheet_wire::ToolDefinition;

/// Maximum number of tools that are remembered for one model.
const TOOLS_MAX: usize = 512;

/// The largest number of tool lists whose remaining tools are kept.
const LISTS_MAX: usize = 8;

/// The tools that the service of one model refuses. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct SetAsideTools {
    learnt: Learnt<RefusedTools>,
    remaining: Arc<Mutex<RemainingTools>>,
    metrics: ModelMetrics,
}

/// The refused tools, by their hashes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
struct RefusedTools(BTreeMap<String, RefusedTool>);

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct RefusedTool {
    name: String,
    /// The error of the service.
    reason: String,
}

type ToolList = Arc<[ToolDefinition]>;

/// The tool lists of recent requests, each with the tools that are sent. Empty if no tool is refused.
#[derive(Debug, Default)]
struct RemainingTools {
    is_any_refused: bool,
    lists: Vec<(ToolList, ToolList)>,
}

impl LearntValue for RefusedTools {
    const DOCUMENT: &'static str = "refused_tools";

    fn needs_storing(&self, stored: &Self) -> bool {
        self != stored
    }
}

impl SetAsideTools {
    /// Creates the tools of a model whose service has refused none.
    pub(super) fn new(name: &str, config: &ModelConfig, metrics: ModelMetrics) -> Self {
        metrics.tools_set_aside(0);
        Self { learnt: Learnt::new(name, config), remaining: Arc::default(), metrics }
    }

    /// Reads the tools from the journal.
    pub(super) async fn read(&self, journal: &dyn Journal) -> Result<(), JournalError> {
        self.learnt.read(journal).await?;
        self.handle_change();
        Ok(())
    }

    /// Adds tools of a request, and stores them soon.
    pub(super) fn add(&self, tools: &[&ToolDefinition], reason: &str) {
        self.learnt.update(|RefusedTools(refused)| {
            for tool in tools {
                if refused.len() >= TOOLS_MAX {
                    refused.pop_first();
                }
                let (name, reason) = (tool.name.clone(), reason.to_owned());
                refused.insert(tool_hash(tool), RefusedTool { name, reason });
            }
        });
        self.handle_change();
    }

    /// Returns the reason why a tool is set aside. `None` if it is not.
    pub(super) fn reason(&self, tool: &ToolDefinition) -> Option<String> {
        if !self.remaining.lock().is_any_refused {
            return None;
        }
        let hash = tool_hash(tool);
        self.learnt.update(|RefusedTools(refused)| {
            refused.get(&hash).map(|refused| refused.reason.clone())
        })
    }

    /// Stores the tools soon, if they have changed.
    pub(super) fn store_soon(&self, journal: &Arc<dyn Journal>) {
        self.learnt.store_soon(journal);
    }

    /// Stores the tools, if they have changed.
    pub(super) async fn store(&self, journal: &Arc<dyn Journal>) {
        self.learnt.store(journal).await;
    }

    fn handle_change(&self) {
        let count = self.learnt.update(|RefusedTools(refused)| refused.len());
        self.metrics.tools_set_aside(count);
        let is_any_refused = count > 0;
        *self.remaining.lock() = RemainingTools { is_any_refused, lists: Vec::new() };
    }

    /// Returns the request without refused tools, and without those of these names. `None` if it has none of them.
    pub(super) fn without_refused(
        &self,
        request: &ModelRequest,
        left_out: &[String],
    ) -> Option<ModelRequest> {
        let mut tools = self.remaining_of(&request.tools);
        if !left_out.is_empty() {
            tools = tools.iter().filter(|tool| !left_out.contains(&tool.name)).cloned().collect();
        }
        if tools.len() == request.tools.len() {
            return None;
        }
        let has_tool = |name: &str| tools.iter().any(|tool| tool.name == name);
        let tool_choice = match &request.tool_choice {
            // The service refuses the choice of a tool that it does not have.
            ToolChoice::Tool(name) if !has_tool(name) => ToolChoice::Auto,
            choice @ (ToolChoice::Auto
            | ToolChoice::None
            | ToolChoice::Required
            | ToolChoice::Tool(_)) => choice.clone(),
        };
        Some(ModelRequest { tools, tool_choice, ..request.clone() })
    }

    /// Returns the tools of a list that are not refused. The same list gives the same one, so that a head is encoded
    /// once.
    fn remaining_of(&self, tools: &Arc<[ToolDefinition]>) -> Arc<[ToolDefinition]> {
        let mut remaining = self.remaining.lock();
        if !remaining.is_any_refused {
            return Arc::clone(tools);
        }
        let is_same =
            |(list, _): &&(Arc<[ToolDefinition]>, _)| Arc::ptr_eq(list, tools) || list == tools;
        if let Some((_, sent)) = remaining.lists.iter().find(is_same) {
            return Arc::clone(sent);
        }
        let refused = self.learnt.get().0;
        let is_sent = |tool: &&ToolDefinition| !refused.contains_key(&tool_hash(tool));
        let sent: Vec<ToolDefinition> = tools.iter().filter(is_sent).cloned().collect();
        let sent = if sent.len() == tools.len() { Arc::clone(tools) } else { sent.into() };
        if remaining.lists.len() >= LISTS_MAX {
            remaining.lists.remove(0);
        }
        remaining.lists.push((Arc::clone(tools), Arc::clone(&sent)));
        sent
    }
}

/// Returns the tools that are set aside for a configured model, by name, with the reasons. `document` reads a document
/// of the journal.
pub fn stored_refusals(
    name: &str,
    config: &ModelConfig,
    document: impl FnOnce(&str) -> Option<String>,
) -> BTreeMap<String, String> {
    let text = document(&document_key(RefusedTools::DOCUMENT, name, config));
    let refused = text.and_then(|text| serde_json::from_str::<RefusedTools>(&text).ok());
    let tools = refused.unwrap_or_default().0.into_values();
    tools.map(|tool| (tool.name, tool.reason)).collect()
}

fn tool_hash(tool: &ToolDefinition) -> String {
    let parts = json!([tool.name, tool.description, tool.schema]);
    let digest = Sha256::digest(parts.to_string());
    digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}
