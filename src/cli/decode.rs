//! `callsheet decode`: one recorded response to one JSON object.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::response::{ResponseLimits, decode_body, describe_response};
use crate::wire::{DecoderOptions, Framing, Wire};

/// Why a response could not be decoded at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The file, or standard input, cannot be read.
    #[error("cannot read {name}: {source}")]
    Unreadable {
        /// What was to be read.
        name: String,
        /// Why it cannot.
        source: std::io::Error,
    },
}

/// Decodes a recorded response from `file`, or from standard input without one.
///
/// Without a framing the file's ending decides (`.sse`, `.ndjson`, `.jsonl`, `.json`), and where
/// that says nothing, the body's first bytes.
///
/// # Errors
/// When the response cannot be read. Whatever it holds is no error.
pub fn run(
    wire: Wire,
    framing: Option<Framing>,
    file: Option<PathBuf>,
) -> Result<Value, DecodeError> {
    let body = match &file {
        Some(path) => std::fs::read(path)
            .map_err(|source| DecodeError::Unreadable { name: path.display().to_string(), source }),
        None => {
            let mut body = Vec::new();
            let name = || "standard input".to_owned();
            let read = std::io::stdin().lock().read_to_end(&mut body);
            read.map(|_| body).map_err(|source| DecodeError::Unreadable { name: name(), source })
        }
    }?;
    let framing = framing
        .or_else(|| file.as_deref().and_then(framing_of_name))
        .unwrap_or_else(|| framing_of_body(&body));
    let limits = (DecoderOptions::default(), ResponseLimits::default());
    Ok(describe_response(&decode_body(wire, framing, limits, &body)))
}

fn framing_of_name(path: &Path) -> Option<Framing> {
    match path.extension()?.to_str()? {
        "sse" => Some(Framing::Sse),
        "ndjson" | "jsonl" => Some(Framing::JsonLines),
        "json" => Some(Framing::Json),
        _ => None,
    }
}

fn framing_of_body(body: &[u8]) -> Framing {
    match body.trim_ascii_start().first() {
        Some(b'[') => Framing::JsonArray,
        Some(b'{') => {
            let lines = body.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
            let mut lines = lines.filter(|line| !line.is_empty());
            if lines.clone().count() > 1 && lines.all(|line| line.starts_with(b"{")) {
                Framing::JsonLines
            } else {
                Framing::Json
            }
        }
        Some(_) | None => Framing::Sse,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_framing_is_guessed_from_name_and_body() {
        assert_eq!(framing_of_name(Path::new("a.b.sse")), Some(Framing::Sse));
        assert_eq!(framing_of_name(Path::new("a.txt")), None);
        for (body, framing) in [
            ("data: {}\n\n", Framing::Sse),
            (": hi\n\ndata: {}\n\n", Framing::Sse),
            ("{}\n{}\n", Framing::JsonLines),
            ("{\n \"a\": {}\n}\n", Framing::Json),
            ("\n\n {\"choices\":[]}", Framing::Json),
            ("[{}]", Framing::JsonArray),
            ("", Framing::Sse),
        ] {
            assert_eq!(framing_of_body(body.as_bytes()), framing, "{body:?}");
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = run(Wire::OpenaiChat, None, Some("/no/such/file.sse".into())).unwrap_err();
        assert!(error.to_string().starts_with("cannot read /no/such/file.sse: "), "{error}");
    }
}
