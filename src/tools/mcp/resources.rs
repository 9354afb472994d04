//! The tool of the host that lists and reads the resources of a server: `SERVER__read_resource`. It has no effects.
//!
//! The fields are those of the specification
//! (<https://modelcontextprotocol.io/specification/2026-07-28/server/resources>).

use std::fmt::Write as _;
use std::sync::LazyLock;

use rmcp::model::{
    ClientRequest, ListResourceTemplatesRequest, ListResourcesRequest, PaginatedRequestParams,
    ReadResourceRequest, ReadResourceRequestParams,
};
use rmcp::service::PeerRequestOptions;
use serde::Deserialize;
use serde_json::{Value, json};

use super::call::{McpTool, Sent, cancel, cancelled, is_session_lost, metadata, wait_for_end_of};
use super::naming::offered_name;
use super::result::{complete, with_resource};
use super::shared::{LogicalConnection, OpenConnection};
use super::transport_error::SESSION_LOST;
use crate::{ToolContext, ToolError, ToolOutput};
use callsheet_values::types::excerpt;

/// The tool's name on the server.
pub(super) const READ_RESOURCE: &str = "read_resource";

/// Maximum number of characters of a name or a description in a list.
const LABEL_CHARS_MAX: usize = 300;

/// The beginnings of the cursors that the model reads. The rest is the server's.
const OF_RESOURCES: &str = "resources:";
const OF_TEMPLATES: &str = "templates:";

/// The definition of the tool.
static DEFINITION: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "name": READ_RESOURCE,
        "description": "Reads a resource of this server by its URI, such as one that a result names. Without uri, \
                        lists the resources and the templates of URIs; cursor continues the list.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "uri": {"type": "string"},
                "cursor": {"type": "string", "description": "The cursor at the end of a list."},
            },
        },
    })
});

/// Adds the tool to the list of a server that has resources. A tool of the server with its name stays alone.
pub(super) fn add_tool(server: &str, tools: &mut Vec<Value>) {
    let name = offered_name(server, READ_RESOURCE);
    let mut own_names = tools.iter().filter_map(|tool| tool.get("name")?.as_str());
    if !own_names.any(|own| offered_name(server, own) == name) {
        tools.push(DEFINITION.clone());
    }
}

/// Returns whether a listed tool is that of the host.
pub(super) fn is_resource_tool(tool: &Value) -> bool {
    *tool == *DEFINITION
}

#[derive(Deserialize)]
struct ReadResourceInput {
    #[serde(default)]
    uri: Option<String>,
    #[serde(default)]
    cursor: Option<String>,
}

impl McpTool {
    /// Reads a resource, or lists resources and templates.
    pub(super) async fn read_resource(
        &self,
        connection: &LogicalConnection,
        context: &ToolContext,
    ) -> Result<ToolOutput, ToolError> {
        let ReadResourceInput { uri, cursor } = context.input()?;
        let Some(uri) = uri.filter(|uri| !uri.is_empty()) else {
            let text = self.list_resources(connection, context, cursor.as_deref()).await?;
            return Ok(text.into());
        };
        let request = ReadResourceRequest::new(ReadResourceRequestParams::new(uri));
        let request = ClientRequest::ReadResourceRequest(request);
        let answer = self.query(connection, context, request).await?;
        complete(&answer)?;
        let contents = answer.get("contents").and_then(Value::as_array);
        let contents = contents.filter(|contents| !contents.is_empty());
        let contents = contents.ok_or_else(|| ToolError::new("the resource has no content"))?;
        Ok(contents.iter().fold(ToolOutput::default(), with_resource))
    }

    /// Lists the resources, and behind the last of them the templates, one page of each at a time.
    async fn list_resources(
        &self,
        connection: &LogicalConnection,
        context: &ToolContext,
        cursor: Option<&str>,
    ) -> Result<String, ToolError> {
        let cursor = cursor.filter(|cursor| !cursor.is_empty());
        let of_resources = cursor.map_or(Some(None), |cursor| {
            cursor.strip_prefix(OF_RESOURCES).map(|cursor| Some(cursor.to_owned()))
        });
        let of_templates = cursor.and_then(|cursor| cursor.strip_prefix(OF_TEMPLATES));
        let of_templates = of_templates.map(str::to_owned);
        let (mut text, mut next) = (String::new(), None);
        match of_resources {
            Some(cursor) => {
                let params = PaginatedRequestParams::default().with_cursor(cursor);
                let request = ListResourcesRequest::with_param(params);
                let request = ClientRequest::ListResourcesRequest(request);
                let page = self.query(connection, context, request).await?;
                next = add_page(&mut text, &page, "resources", "uri", OF_RESOURCES);
            }
            None if of_templates.is_some() => {}
            None => {
                let message = "cursor: must be the cursor at the end of a list of this server";
                return Err(ToolError::new(message).permanent());
            }
        }
        if next.is_none() {
            let is_first = of_templates.is_none();
            let params = PaginatedRequestParams::default().with_cursor(of_templates);
            let request = ListResourceTemplatesRequest::with_param(params);
            let request = ClientRequest::ListResourceTemplatesRequest(request);
            match self.query(connection, context, request).await {
                Ok(page) => {
                    next = add_page(
                        &mut text,
                        &page,
                        "resourceTemplates",
                        "uriTemplate",
                        OF_TEMPLATES,
                    );
                }
                // Many servers do not know templates.
                Err(_) if is_first && !context.is_cancelled() => {}
                Err(error) => return Err(error),
            }
        }
        if text.is_empty() {
            text.push_str("[no resources]\n");
        }
        if let Some(next) = next {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "[more with cursor {}]", json!(next));
        }
        Ok(text)
    }

    /// Sends a request without effects, and waits for its answer. If the server has not read it, sends it once more
    /// in a new connection.
    async fn query(
        &self,
        connection: &LogicalConnection,
        context: &ToolContext,
        request: ClientRequest,
    ) -> Result<Value, ToolError> {
        let open = self.open_connection(connection, context).await?;
        match self.query_once(&open, connection, context, request.clone()).await? {
            Sent::Answered(answer) => return Ok(answer),
            Sent::Unread(error) => {
                if !wait_for_end_of(&open, connection, context).await? {
                    return Err(error);
                }
            }
        }
        let open = self.open_connection(connection, context).await?;
        match self.query_once(&open, connection, context, request).await? {
            Sent::Answered(answer) => Ok(answer),
            Sent::Unread(error) => Err(error),
        }
    }

    /// Sends a request without effects once, and waits for its answer.
    async fn query_once(
        &self,
        open: &OpenConnection,
        connection: &LogicalConnection,
        context: &ToolContext,
        request: ClientRequest,
    ) -> Result<Sent, ToolError> {
        let OpenConnection { peer, calls } = open;
        let _open_call = calls.tracker.token();
        let mut options = PeerRequestOptions::no_options();
        options.meta = Some(metadata(context));
        let Ok(handle) = peer.send_cancellable_request(request, options).await else {
            return Ok(Sent::Unread(self.down("the connection has ended")));
        };
        let id = handle.id.clone();
        let answer = tokio::select! {
            answer = handle.await_response() => answer,
            () = context.cancelled() => {
                cancel(peer, id, "the call was cancelled").await;
                return Err(cancelled());
            }
            () = tokio::time::sleep(self.timeout) => {
                cancel(peer, id, "the call took too long").await;
                return Err(self.timed_out());
            }
        };
        let answer = match answer {
            Ok(answer) => serde_json::to_value(answer).unwrap_or_default(),
            Err(error) if is_session_lost(&error) => {
                return Ok(Sent::Unread(self.down(SESSION_LOST)));
            }
            Err(error) => return Err(self.failure(&error, false, connection, context)),
        };
        Ok(Sent::Answered(connection.secrets.redact_json(&answer).unwrap_or(answer)))
    }
}

/// Adds the lines of a page to a list. Returns the cursor of the next page, with its beginning.
fn add_page(
    text: &mut String,
    page: &Value,
    list: &str,
    uri_key: &str,
    beginning: &str,
) -> Option<String> {
    for entry in page[list].as_array().into_iter().flatten() {
        let label = |key: &str| {
            let text = entry[key].as_str().unwrap_or_default();
            excerpt(text, LABEL_CHARS_MAX).replace('\n', " ")
        };
        let details = [
            label("mimeType"),
            entry["size"].as_u64().map_or(String::new(), |size| format!("{size} bytes")),
        ];
        let details = details.into_iter().filter(|detail| !detail.is_empty());
        let details = details.collect::<Vec<_>>().join(", ");
        let uri = entry[uri_key].as_str().unwrap_or_default();
        // Writing to a string cannot fail.
        let _ = write!(text, "{uri}  {}", label("name"));
        if !details.is_empty() {
            let _ = write!(text, " ({details})");
        }
        let description = label("description");
        if !description.is_empty() {
            let _ = write!(text, ": {description}");
        }
        text.push('\n');
    }
    page["nextCursor"].as_str().map(|cursor| format!("{beginning}{cursor}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tool_is_added_unless_the_server_has_one_of_its_name() {
        let mut tools = vec![json!({"name": "read"})];
        add_tool("files", &mut tools);
        assert_eq!(tools.len(), 2);
        assert!(is_resource_tool(&tools[1]) && !is_resource_tool(&tools[0]));
        let mut own = vec![json!({"name": READ_RESOURCE, "inputSchema": {"type": "object"}})];
        add_tool("files", &mut own);
        assert_eq!(own.len(), 1);
        assert!(!is_resource_tool(&own[0]));
    }

    #[test]
    fn a_page_has_a_line_for_each_entry() {
        let page = json!({"resources": [
            {"uri": "demo://a", "name": "a", "mimeType": "text/plain", "size": 5, "description": "two\nlines"},
            {"uri": "demo://b", "name": "b"},
        ], "nextCursor": "2"});
        let mut text = String::new();
        let next = add_page(&mut text, &page, "resources", "uri", OF_RESOURCES);
        assert_eq!(text, "demo://a  a (text/plain, 5 bytes): two lines\ndemo://b  b\n");
        assert_eq!(next.as_deref(), Some("resources:2"));
    }
}
