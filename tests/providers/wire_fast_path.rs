//! The fast path of decoding changes no delta: every recorded response is decoded with it and
//! without it.
//!
//! The recordings are not part of the crate. The tests search them in `$CALLSHEET_CORPUS`, or else
//! beside the clone in `../shared/corpus`. Without them the first test passes, except with `CI=true`.
#![expect(clippy::unwrap_used, reason = "a test helper that fails is a failed test")]

use std::path::PathBuf;

use callsheet::config::Config;
use callsheet::wire::{Decoder, DecoderOptions, Delta, Framing, PayloadTemplates, Wire};
use serde_json::Value;

struct Recording {
    file: String,
    wire: Wire,
    framing: Framing,
    body: Vec<u8>,
}

fn recordings() -> Vec<Recording> {
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/corpus");
    let root = PathBuf::from(std::env::var("CALLSHEET_CORPUS").unwrap_or_else(|_| default.into()));
    let Ok(manifest) = std::fs::read_to_string(root.join("MANIFEST.jsonl")) else {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "no corpus at {}", root.display());
        eprintln!("skipped: no corpus at {}", root.display());
        return Vec::new();
    };
    let entries = manifest.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let recordings: Vec<_> = entries
        .filter_map(|entry| {
            let file = entry["file"].as_str().unwrap().to_owned();
            Some(Recording {
                wire: entry["wire_format"].as_str()?.parse().ok()?,
                framing: entry["framing"].as_str().unwrap().parse().unwrap(),
                body: std::fs::read(root.join(&file)).unwrap(),
                file,
            })
        })
        .collect();
    assert!(!recordings.is_empty(), "the manifest names no recording");
    recordings
}

/// Decodes a recording in chunks of this size. Returns the deltas and the templates.
fn decode(
    recording: &Recording,
    fast_path: bool,
    chunk_bytes: usize,
    templates: PayloadTemplates,
) -> (Vec<Delta>, PayloadTemplates) {
    let options = DecoderOptions { fast_path, ..DecoderOptions::default() };
    let Recording { wire, framing, body, .. } = recording;
    let mut decoder = Decoder::with_templates(*wire, *framing, options, templates);
    let mut deltas = Vec::new();
    for chunk in body.chunks(chunk_bytes) {
        let mut new = Vec::new();
        decoder.push(chunk, &mut new).unwrap();
        deltas.append(&mut new);
    }
    decoder.finish(&mut deltas).unwrap();
    (merged(deltas), decoder.into_templates())
}

/// Merges consecutive texts of one kind and consecutive pieces of one call, which the fast path
/// merges already.
fn merged(deltas: Vec<Delta>) -> Vec<Delta> {
    let mut all: Vec<Delta> = Vec::new();
    for delta in deltas {
        match (&delta, all.last_mut()) {
            (Delta::Text(more), Some(Delta::Text(text)))
            | (Delta::Reasoning(more), Some(Delta::Reasoning(text)))
            | (Delta::Refusal(more), Some(Delta::Refusal(text))) => text.push_str(more),
            (Delta::Call(more), Some(Delta::Call(call)))
                if (call.index, call.kind, call.is_marked_start)
                    == (more.index, more.kind, more.is_marked_start)
                    && call.id.is_none()
                    && call.name.is_none()
                    && more.id.is_none()
                    && more.name.is_none()
                    && call.arguments.is_some()
                    && more.arguments.is_some() =>
            {
                let more = more.arguments.clone().unwrap_or_default();
                call.arguments.get_or_insert_default().push_str(&more);
            }
            _ => all.push(delta),
        }
    }
    all
}

#[test]
fn recordings_decode_to_the_same_deltas_with_and_without_the_fast_path() {
    let mut templates = PayloadTemplates::default();
    for recording in recordings() {
        for chunk_bytes in [recording.body.len().max(1), 61] {
            let off = decode(&recording, false, chunk_bytes, templates.clone());
            let on = decode(&recording, true, chunk_bytes, templates.clone());
            assert!(on.0 == off.0, "{} in chunks of {chunk_bytes} bytes", recording.file);
            templates = on.1;
        }
    }
}

#[test]
fn without_the_fast_path_no_templates_are_made() {
    let payload = r#"{"choices":[{"index":0,"delta":{"content":"a"}}]}"#;
    let recording = Recording {
        file: String::new(),
        wire: Wire::OpenaiChat,
        framing: Framing::Sse,
        body: format!("data: {payload}\n\n").repeat(3).into_bytes(),
    };
    let empty =
        Decoder::new(Wire::OpenaiChat, Framing::Sse, DecoderOptions::default()).into_templates();
    let (off, on) =
        (decode(&recording, false, 1, empty.clone()), decode(&recording, true, 1, empty.clone()));
    assert_eq!(off.0, [Delta::Text("aaa".into())]);
    assert_eq!((off.1 == empty, on.1 == empty, on.0), (true, false, off.0));
}

#[test]
fn the_environment_turns_the_fast_path_off() {
    let with = |value: &'static str| {
        let text = "[models.m]\nbase_url = 'http://h/v1'\nmodel = 'x'\n";
        Config::parse(text, "f", &move |name| {
            (name == "CALLSHEET_FAST_PATH").then(|| value.to_owned())
        })
    };
    assert!(!with("off").unwrap().models["m"].fast_path);
    assert!(with("on").unwrap().models["m"].fast_path);
    let errors: Vec<String> = with("no").unwrap_err().iter().map(ToString::to_string).collect();
    assert_eq!(errors, ["CALLSHEET_FAST_PATH: must be on or off, not \"no\""]);
}
