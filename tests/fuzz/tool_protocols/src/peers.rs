//! Reads a response by the parsers of the other crates.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use callsheet::types::ToolProtocol;
use callsheet::wire::ToolDefinition;
use futures::executor::block_on;
use openai_protocol::common::{Function, Tool};
use serde_json::{Value, json};
use tool_parser::ToolParser;
use tool_parser::parsers::{LlamaParser, PythonicParser, QwenParser, QwenXmlParser};

use crate::generate::{Call, parsed_arguments};

/// A parser of another crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Peer {
    /// `tool-parser`: `qwen`.
    ParserQwen,
    /// `tool-parser`: `qwen_xml`.
    ParserQwenXml,
    /// `tool-parser`: `pythonic`.
    ParserPythonic,
    /// `tool-parser`: `llama`.
    ParserLlama,
    /// `dynamo-parsers`: `hermes`.
    DynamoHermes,
    /// `dynamo-parsers`: `qwen3_coder`.
    DynamoQwenCoder,
    /// `dynamo-parsers`: `pythonic`.
    DynamoPythonic,
    /// `dynamo-parsers`: `llama3_json`.
    DynamoLlama,
}

/// A response as a peer reads it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PeerReading {
    pub(crate) calls: Vec<Call>,
    /// The text, which most peers end at the first call.
    pub(crate) text: String,
}

/// Returns the parsers for a form of calls. There are none for `react` and `arrow`.
pub(crate) fn peers(protocol: ToolProtocol, text: &str) -> &'static [Peer] {
    match protocol {
        ToolProtocol::Hermes => &[Peer::ParserQwen, Peer::DynamoHermes],
        ToolProtocol::Xml => &[Peer::ParserQwenXml, Peer::DynamoQwenCoder],
        // Llama has two forms, which the peers read by two parsers.
        ToolProtocol::Pythonic if text.contains("<|python_tag|>") => {
            &[Peer::ParserLlama, Peer::DynamoLlama]
        }
        ToolProtocol::Pythonic => &[Peer::ParserPythonic, Peer::DynamoPythonic],
        _ => &[],
    }
}

/// The definitions of the tools for the peers.
pub(crate) struct PeerTools {
    parser: Vec<Tool>,
    dynamo: Vec<dynamo_parsers::tool_calling::ToolDefinition>,
}

impl PeerTools {
    pub(crate) fn new(tools: &Arc<[ToolDefinition]>) -> Self {
        let parser = |tool: &ToolDefinition| {
            let function = json!({"name": tool.name, "parameters": tool.schema});
            let function: Function = serde_json::from_value(function).expect("a function");
            Tool { tool_type: "function".into(), function }
        };
        let dynamo = |tool: &ToolDefinition| dynamo_parsers::tool_calling::ToolDefinition {
            name: tool.name.clone(),
            parameters: Some(tool.schema.clone()),
            strict: None,
        };
        Self {
            parser: tools.iter().map(parser).collect(),
            dynamo: tools.iter().map(dynamo).collect(),
        }
    }

    /// Returns `None` if the peer fails or panics.
    pub(crate) fn read(&self, peer: Peer, text: &str) -> Option<PeerReading> {
        let read = || match peer {
            Peer::ParserQwen => self.parser(&QwenParser::new(), text),
            Peer::ParserQwenXml => self.parser(&QwenXmlParser::new(), text),
            Peer::ParserPythonic => self.parser(&PythonicParser::new(), text),
            Peer::ParserLlama => self.parser(&LlamaParser::new(), text),
            Peer::DynamoHermes => self.dynamo("hermes", text),
            Peer::DynamoQwenCoder => self.dynamo("qwen3_coder", text),
            Peer::DynamoPythonic => self.dynamo("pythonic", text),
            Peer::DynamoLlama => self.dynamo("llama3_json", text),
        };
        catch_unwind(AssertUnwindSafe(read)).ok().flatten()
    }

    fn parser(&self, parser: &dyn ToolParser, text: &str) -> Option<PeerReading> {
        let (text, calls) = block_on(parser.parse_complete_with_tools(text, &self.parser)).ok()?;
        let calls =
            calls.into_iter().map(|call| of_peer(call.function.name, &call.function.arguments));
        Some(PeerReading { calls: calls.collect(), text })
    }

    fn dynamo(&self, name: &str, text: &str) -> Option<PeerReading> {
        let read = dynamo_parsers::try_tool_call_parse_aggregate_finalize(
            text,
            Some(name),
            Some(&self.dynamo),
        );
        let (calls, text) = block_on(read).ok()?;
        let calls =
            calls.into_iter().map(|call| of_peer(call.function.name, &call.function.arguments));
        Some(PeerReading { calls: calls.collect(), text: text.unwrap_or_default() })
    }
}

fn of_peer(name: String, arguments: &str) -> Call {
    // Arguments that are no object stay what they are.
    let arguments = parsed_arguments(arguments)
        .unwrap_or_else(|| Value::from(format!("no object: {arguments}")));
    Call { name, arguments }
}
