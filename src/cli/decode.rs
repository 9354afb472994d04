//! `callsheet decode`: decodes one recorded response into one JSON object.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;

use callsheet_values::types::ToolProtocol;
use callsheet_wire::response::{ResponseLimits, decode_body_with, describe_response};
use callsheet_wire::{DecoderOptions, Framing, Wire};

/// The reason why a recording could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The file, or standard input, cannot be read.
    #[error("read {name}: {source}")]
    Unreadable {
        /// The file's path, or `standard input`.
        name: String,
        /// The error of reading it.
        source: std::io::Error,
    },
}

/// Decodes a recorded response from `file`, or from standard input.
///
/// Without `framing`, the file's extension decides (`.sse`, `.ndjson`, `.jsonl`, `.json`), and
/// otherwise the content of the body.
///
/// # Errors
/// If the recording cannot be read. Faults of its content are reported in the result.
pub fn run(
    wire: Wire,
    protocol: ToolProtocol,
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
        .or_else(|| file.as_deref().and_then(framing_from_extension))
        .unwrap_or_else(|| framing_from_content(&body));
    let limits = (DecoderOptions::default(), ResponseLimits::default());
    Ok(describe_response(&decode_body_with(wire, protocol, framing, limits, &body)))
}

fn framing_from_extension(path: &Path) -> Option<Framing> {
    match path.extension()?.to_str()? {
        "sse" => Some(Framing::Sse),
        "ndjson" | "jsonl" => Some(Framing::JsonLines),
        "json" => Some(Framing::Json),
        _ => None,
    }
}

fn framing_from_content(body: &[u8]) -> Framing {
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
    fn the_framing_follows_from_extension_or_content() {
        assert_eq!(framing_from_extension(Path::new("a.b.sse")), Some(Framing::Sse));
        assert_eq!(framing_from_extension(Path::new("a.txt")), None);
        for (body, framing) in [
            ("data: {}\n\n", Framing::Sse),
            (": hi\n\ndata: {}\n\n", Framing::Sse),
            ("{}\n{}\n", Framing::JsonLines),
            ("{\n \"a\": {}\n}\n", Framing::Json),
            ("\n\n {\"choices\":[]}", Framing::Json),
            ("[{}]", Framing::JsonArray),
            ("", Framing::Sse),
        ] {
            assert_eq!(framing_from_content(body.as_bytes()), framing, "{body:?}");
        }
    }

    #[test]
    fn the_error_names_the_missing_file() {
        let error =
            run(Wire::OpenaiChat, ToolProtocol::Native, None, Some("/no/such/file.sse".into()))
                .unwrap_err();
        assert!(error.to_string().starts_with("read /no/such/file.sse: "), "{error}");
    }
}
