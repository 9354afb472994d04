//! Tools whose calls the client of a session executes.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::overrides::duration_text;
use super::tools::ToolEffect;

/// A tool that is not part of the host. A client declares it for a session or a run, executes its calls, and
/// sends their results.
///
/// ```
/// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # use callsheet::model::ModelReply;
/// # use callsheet::testing::FakeModel;
/// use callsheet::config::ClientTool;
/// use callsheet::prelude::*;
/// use serde_json::json;
///
/// # let calls = ModelReply::call("open_file", json!({"path": "a.txt"}));
/// # let model = FakeModel::replies([calls, ModelReply::text("It is open.")]);
/// # let host = Host::builder().model_source("fake", model).start().await?;
/// let schema = json!({"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]});
/// let open_file = ClientTool::new("open_file", "Opens a file in the editor.", schema);
/// let session = host.open_session(OpenSession::default().with_client_tools([open_file])).await?;
/// let mut run = session.start_run("Open a.txt.").await?;
/// while let Some(event) = run.next_event().await? {
///     if let RunEvent::ClientCall(call) = event {
///         assert_eq!(call.pending.input["path"], "a.txt");
///         call.answer("opened").await?;
///     }
/// }
/// assert_eq!(run.report.await?.text()?, "It is open.");
/// # host.shutdown().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ClientTool {
    /// The name: `[a-zA-Z0-9_-]{1,64}`. It must differ from the names of all other tools of the run, and from the
    /// names that the host reserves, such as `read_var`.
    pub name: String,
    /// The description that the model reads.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// The JSON schema of the arguments.
    pub input_schema: Arc<Value>,
    /// The effects of its calls. By default calls have effects. A call without effects may be handed to the client
    /// before the response has ended, and again if the response breaks.
    #[serde(default)]
    pub effect: ToolEffect,
    /// The time limit of the client's result, and of a person's approval of a call; 24 hours if `None`. A string such
    /// as `"30s"`.
    #[serde(default, with = "duration_text", skip_serializing_if = "Option::is_none")]
    pub approval_timeout: Option<Duration>,
}

impl ClientTool {
    /// Declares a tool whose calls have effects.
    #[must_use]
    pub fn new(name: impl Into<String>, description: impl Into<String>, schema: Value) -> Self {
        Self {
            name: name.into(),
            description: description.into(),
            input_schema: Arc::new(schema),
            effect: ToolEffect::Some,
            approval_timeout: None,
        }
    }

    /// Declares that a call has no effects. It may be handed to the client before the response has ended, and
    /// again if the response breaks.
    #[must_use]
    pub fn pure(mut self) -> Self {
        self.effect = ToolEffect::None;
        self
    }
}

crate::types::impl_with!(ClientTool);
