//! Every recorded response, served over real HTTP to a real run.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::support::{parallel, world_of};
use async_trait::async_trait;
use callsheet::tool::{
    ParsedSchema, Tool, ToolContext, ToolError, ToolOutput, ToolRegistry, ToolSpec,
};
use callsheet::types::RunEnd;
use callsheet::types::Wire;
use callsheet_mock_provider::{Response, Script};
use serde_json::{Value, json};

/// A tool that accepts any arguments. Every second tool has effects.
struct AnyArgumentsTool(ToolSpec);

#[async_trait]
impl Tool for AnyArgumentsTool {
    fn spec(&self) -> ToolSpec {
        self.0.clone()
    }

    async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError> {
        Ok(format!("{} was called", context.key()).into())
    }
}

fn corpus() -> Option<PathBuf> {
    let named = std::env::var_os("CALLSHEET_CORPUS").map(PathBuf::from);
    let folder = named
        .unwrap_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/corpus")));
    if folder.join("MANIFEST.jsonl").exists() {
        return Some(folder);
    }
    let in_ci = std::env::var_os("CI").is_some_and(|ci| ci == "true");
    assert!(!in_ci, "no corpus at {}", folder.display());
    println!("skipped: no corpus at {}", folder.display());
    None
}

fn registry(names: &BTreeSet<String>) -> ToolRegistry {
    let mut registry = ToolRegistry::new();
    for (index, name) in names.iter().enumerate() {
        let schema = ParsedSchema::parse(json!({"type": "object"})).unwrap();
        let spec = ToolSpec::with_schema(name, "A recorded tool.", schema);
        let spec = if index % 2 == 0 { spec.pure() } else { spec };
        // Names that providers would refuse are not registered.
        let _ = registry.register(AnyArgumentsTool(spec));
    }
    registry
}

#[tokio::test(flavor = "multi_thread")]
async fn every_recording_ends_its_run_with_the_expected_end_and_a_valid_history() {
    let Some(folder) = corpus() else { return };
    let manifest = std::fs::read_to_string(folder.join("MANIFEST.jsonl")).unwrap();
    let mut served = 0;
    for entry in manifest.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        let Ok(wire) = entry["wire_format"].as_str().unwrap().parse::<Wire>() else { continue };
        let file = entry["file"].as_str().unwrap();
        let body = std::fs::read(folder.join(file)).unwrap();
        let (content_type, body) = match entry["framing"].as_str().unwrap() {
            "sse" => ("text/event-stream", body),
            "json" | "json-array" => ("application/json", body),
            _ if wire == Wire::OllamaChat => ("application/x-ndjson", body),
            // The recording holds only the payloads, which were sent as events.
            _ => ("text/event-stream", as_events(&body)),
        };
        let expected = &entry["expected"];
        let calls = expected["tool_calls"].as_array().unwrap();
        let calls: Vec<_> = calls.iter().filter(|c| c["kind"] != "server_tool_use").collect();
        let names: BTreeSet<String> =
            calls.iter().filter_map(|call| call["name"].as_str().map(str::to_owned)).collect();
        // Reads of 997 bytes do not coincide with boundaries of the recording.
        let chunks: Vec<Vec<u8>> = body.chunks(997).map(<[u8]>::to_vec).collect();
        let mut recorded = Response::raw(content_type, chunks);
        recorded.status = entry["http_status"].as_u64().map(|status| status as u16);
        let script =
            Script::new([recorded, Response::text("Done."), Response::text("Still here.")])
                .then_done();
        let world = world_of(wire, script, registry(&names), parallel(4)).await;
        let report = world.run("go").await;
        let ended = matches!(report.run_end, RunEnd::Answered | RunEnd::Refused | RunEnd::Failed);
        assert!(ended, "{file}: {:?}", report.run_end);
        let finish = expected["finish_reason"].as_str();
        let good = ["stop", "tool_calls", "end_turn", "tool_use", "STOP", "completed"];
        let whole = expected["error"].is_null() && finish.is_some_and(|word| good.contains(&word));
        // If several readings are valid, the manifest lists the calls of one.
        if whole && entry["ambiguous"] != true {
            assert_eq!(report.calls.len(), calls.len(), "{file}");
            for (call, expected) in report.calls.iter().zip(calls) {
                assert_eq!(*call.tool_name, *expected["name"].as_str().unwrap(), "{file}");
                // `null` means no arguments.
                if expected["arguments"].is_object() {
                    assert_eq!(*call.arguments, expected["arguments"], "{file}");
                }
            }
        }
        // The strict server refuses a history with unpaired calls.
        let after = world.run("and now?").await;
        assert_eq!(after.run_end, RunEnd::Answered, "{file}: {:?}", after.error);
        // A refusal in the recording does not count.
        if entry["http_status"] != 400 {
            world.assert_paired();
        }
        served += 1;
    }
    assert_eq!(served, manifest.lines().count());
}

fn as_events(lines: &[u8]) -> Vec<u8> {
    let lines = std::str::from_utf8(lines).unwrap().lines();
    lines.map(|line| format!("data: {line}\n\n")).collect::<String>().into_bytes()
}
