//! Compares what Callsheet and another crate read, and explains the differences that are meant.

use std::fmt;

use serde_json::Value;

use crate::generate::Call;
use crate::peers::{Peer, PeerReading};
use crate::reading::{CallRead, Reading};

/// The outcome of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Comparison {
    Same,
    /// Different for this reason.
    Explained(&'static str),
    Different,
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same => f.write_str("the same"),
            Self::Explained(reason) => f.write_str(reason),
            Self::Different => f.write_str("DIFFERENT"),
        }
    }
}

/// Returns a call as the other crates describe it. `None` if its arguments are no object.
pub(crate) fn call_of(call: &CallRead) -> Option<Call> {
    Some(Call { name: call.name.clone(), arguments: call.object()? })
}

/// Why a difference is meant.
type Reason = (&'static str, fn(&Difference<'_>) -> bool);

/// Two readings of a response that are not the same.
struct Difference<'t> {
    peer: Peer,
    text: &'t str,
    ours: &'t Reading,
    theirs: &'t PeerReading,
}

pub(crate) fn compare(
    peer: Peer,
    text: &str,
    ours: &Reading,
    theirs: Option<&PeerReading>,
) -> Comparison {
    let Some(theirs) = theirs else { return Comparison::Explained("the other crate fails") };
    let calls: Vec<Option<Call>> = ours.calls.iter().map(call_of).collect();
    let same_calls = calls.len() == theirs.calls.len()
        && calls.iter().zip(&theirs.calls).all(|(ours, theirs)| {
            ours.as_ref().is_some_and(|ours| is_same_call(peer, ours, theirs))
        });
    // Most of the others drop the text after the first call.
    let text_before = ours.texts[0].trim();
    let same_text = match peer {
        Peer::ParserPythonic => theirs.text.trim_start().starts_with(text_before),
        _ => theirs.text.trim() == text_before,
    };
    if same_calls && same_text {
        return Comparison::Same;
    }
    let difference = Difference { peer, text, ours, theirs };
    let reason = REASONS.iter().find(|(_, applies)| applies(&difference));
    reason.map_or(Comparison::Different, |(reason, _)| Comparison::Explained(reason))
}

fn is_same_call(peer: Peer, ours: &Call, theirs: &Call) -> bool {
    match peer {
        // Both remove the white space around a value.
        Peer::ParserQwenXml | Peer::DynamoQwenCoder => {
            ours.name == theirs.name && trimmed(&ours.arguments) == trimmed(&theirs.arguments)
        }
        _ => ours == theirs,
    }
}

/// Returns arguments without the white space around texts.
fn trimmed(arguments: &Value) -> Value {
    let Value::Object(members) = arguments else { return arguments.clone() };
    let member = |(name, value): (&String, &Value)| {
        let value = value.as_str().map_or_else(|| value.clone(), |text| text.trim().into());
        (name.clone(), value)
    };
    Value::Object(members.iter().map(member).collect())
}

/// The differences that are meant. The first that applies counts.
const REASONS: &[Reason] = &[
    ("nothing in code, quotes and reasoning is a call", |of| {
        ["`", "~~~", "<think", "<tool_response"].iter().any(|mark| of.text.contains(mark))
            || [of.text, &of.ours.text()]
                .iter()
                .any(|text| text.lines().any(|line| line.trim_start().starts_with('>')))
    }),
    ("a call with mistakes is repaired, or answered", |of| {
        of.ours.calls.iter().any(|call| call.is_repaired || call.object().is_none())
    }),
    ("a name that is missing or broken is reported, or refused", |of| {
        let is_nameless = |arguments: &Value| {
            let mut members = arguments.as_object().into_iter().flatten();
            let is_odd = |name: &str| name.is_empty() || name.contains(['<', '"', '\'']);
            is_tagged(of.peer) && members.any(|(name, _)| is_odd(name))
        };
        of.ours
            .calls
            .iter()
            .any(|call| call.name.is_empty() || call.object().as_ref().is_some_and(is_nameless))
            || of.theirs.calls.iter().any(|call| {
                call.name.is_empty()
                    || call.name.contains(['"', '\''])
                    || is_nameless(&call.arguments)
            })
    }),
    ("a call without its end is accepted", |of| of.ours.calls.iter().any(|call| !call.is_sealed)),
    ("syntax in a value belongs to the value", |of| {
        let syntax = match of.peer {
            Peer::ParserQwen | Peer::DynamoHermes => &["tool_call>"][..],
            Peer::ParserQwenXml | Peer::DynamoQwenCoder => {
                &["tool_call>", "function>", "<function=", "parameter>", "<parameter="]
            }
            _ => &["<|", "("],
        };
        let has_syntax = |text: &str| syntax.iter().any(|word| text.contains(word));
        of.ours.calls.iter().any(|call| has_syntax(&call.arguments) || has_syntax(&call.name))
    }),
    ("a tag that begins no call is text", |of| {
        is_tagged(of.peer)
            && ["<tool_call>", "<function="].iter().any(|tag| of.ours.text().contains(tag))
    }),
    ("a tag without its other is left out", |of| {
        is_tagged(of.peer)
            && (!has_balanced_tags(of.text)
                || of.text.split("<tool_call>").any(|body| {
                    let body = body.split("</tool_call>").next().unwrap_or_default();
                    body.matches("<parameter=").count() != body.matches("</parameter>").count()
                }))
    }),
    ("an object without a tag is a call where it can mean nothing else", |of| {
        let answer = of.text.trim_start().trim_start_matches("```").trim_start_matches("json");
        let is_whole = answer.trim_start().starts_with(['{', '[']);
        let is_tagged_otherwise = is_tagged(of.peer)
            && ["</tool_call>", "<tools>", "</tools>"].iter().any(|tag| of.text.contains(tag));
        (is_whole || is_tagged_otherwise) && of.ours.calls.len() > of.theirs.calls.len()
    }),
    ("the form of Gemma is read", |of| of.text.contains("<|tool_call>call:")),
    ("several forms of calls are read", |of| match of.peer {
        Peer::ParserQwen | Peer::DynamoHermes => of.text.contains("<function="),
        Peer::ParserQwenXml | Peer::DynamoQwenCoder => has_json_call(of.text),
        _ => false,
    }),
    ("several calls in one tag are read, and what stands between them is left out", |of| {
        let is_odd = |body: &str| {
            let body = body.split("</tool_call>").next().unwrap_or_default().trim();
            match of.peer {
                Peer::ParserQwen | Peer::DynamoHermes => !is_json(body) || body.starts_with('['),
                _ => {
                    !(body.starts_with("<function=") && body.ends_with("</function>"))
                        || body.matches("<function=").count() > 1
                }
            }
        };
        is_tagged(of.peer) && of.text.split("<tool_call>").skip(1).any(is_odd)
    }),
    ("tool-parser reads a function only in `<tool_call>`", |of| {
        let functions = of.text.matches("<function=").count();
        of.peer == Peer::ParserQwenXml && functions > of.text.matches("<tool_call>").count()
    }),
    ("tool-parser reads `<tool_call>` on lines of its own alone", |of| {
        of.peer == Peer::ParserQwen
            && (of.text.matches("<tool_call>\n").count() < of.text.matches("<tool_call>").count()
                || of.text.matches("\n</tool_call>").count()
                    < of.text.matches("</tool_call>").count())
    }),
    ("tool-parser reads only `arguments` of Qwen, and only `parameters` of Llama", |of| {
        match of.peer {
            Peer::ParserQwen => of.text.contains("\"parameters\""),
            Peer::ParserLlama => of.text.contains("\"arguments\""),
            _ => false,
        }
    }),
    ("dynamo-parsers reads JSON without a tag", |of| {
        of.peer == Peer::DynamoHermes && !of.text.contains("<tool_call>")
    }),
    ("the others decide otherwise about the types of values", |of| {
        matches!(of.peer, Peer::ParserQwenXml | Peer::DynamoQwenCoder)
            && of.ours.calls.len() == of.theirs.calls.len()
            && of.ours.calls.iter().zip(&of.theirs.calls).all(|(ours, theirs)| {
                ours.name == theirs.name
                    && ours.object().as_ref().map(untyped) == Some(untyped(&theirs.arguments))
            })
    }),
    ("a list within a line must name an offered tool", |of| {
        let is_offered = |call: &Call| ["f", "g", "clock", "all_types"].contains(&&*call.name);
        matches!(of.peer, Peer::ParserPythonic | Peer::DynamoPythonic)
            && of.theirs.calls.iter().any(|call| !is_offered(call))
            && of.ours.text().contains('[')
    }),
    ("a list of something else than calls is text", |of| {
        of.peer == Peer::DynamoPythonic && of.ours.text().contains('[')
    }),
    ("a list ends where something else than a call follows", |of| {
        let is_pythonic = matches!(of.peer, Peer::ParserPythonic | Peer::DynamoPythonic);
        is_pythonic && of.ours.texts.iter().skip(1).any(|text| text.contains(']'))
    }),
    ("a token between bracket and call belongs to neither", |of| {
        of.peer == Peer::ParserPythonic && of.text.contains("<|python_")
    }),
    ("a tag in an object that is open belongs to it", |of| {
        let is_llama = matches!(of.peer, Peer::ParserLlama | Peer::DynamoLlama);
        is_llama && of.text.matches("<|python_tag|>").count() > 1
    }),
    ("a value that is nearly JSON is read as JSON", |of| {
        let is_nearly_json = |value: &Value| {
            value.as_str().map(str::trim).is_some_and(|text| {
                // As `5.`
                text.starts_with(['{', '[']) || text.parse::<f64>().is_ok()
            })
        };
        let has_one = |call: &Call| {
            call.arguments.as_object().into_iter().flatten().any(|(_, value)| is_nearly_json(value))
        };
        matches!(of.peer, Peer::ParserQwenXml | Peer::DynamoQwenCoder)
            && of.theirs.calls.iter().any(has_one)
    }),
    ("dynamo-parsers takes a text for false where the schema wants a boolean", |of| {
        of.peer == Peer::DynamoQwenCoder
            && of.theirs.calls.iter().any(|call| call.arguments["on"] == Value::Bool(false))
            && of
                .ours
                .calls
                .iter()
                .any(|call| call.object().is_some_and(|arguments| arguments["on"].is_string()))
    }),
    ("a backslash that begins no usual escape stays", |of| {
        let is_odd = |piece: &str| piece.starts_with(|c: char| "avN/\r1234567u".contains(c));
        let is_python = matches!(of.peer, Peer::ParserPythonic | Peer::DynamoPythonic);
        is_python && of.text.split('\\').skip(1).any(is_odd)
    }),
    ("tool-parser ends an object of Llama at any semicolon", |of| {
        of.peer == Peer::ParserLlama && of.text.contains(';')
    }),
    ("the others find only some lists, or objects", |of| {
        let is_pythonic = matches!(
            of.peer,
            Peer::ParserPythonic | Peer::DynamoPythonic | Peer::ParserLlama | Peer::DynamoLlama
        );
        is_pythonic && is_part(of.peer, &of.theirs.calls, &of.ours.calls)
    }),
    ("dynamo-parsers leaves out negative numbers and `**`", |of| {
        of.peer == Peer::DynamoPythonic
            && (of.ours.calls.iter().any(|call| call.arguments.contains('-'))
                || of.text.contains("**"))
    }),
];

/// Returns arguments whose texts are values, where they can be.
fn untyped(arguments: &Value) -> Value {
    let Value::Object(members) = arguments else { return arguments.clone() };
    let member = |(name, value): (&String, &Value)| {
        let text = value.as_str().map(str::trim);
        let value = text.map_or_else(
            // 2.0 is 2 for some.
            || value.as_f64().map_or_else(|| value.clone(), Value::from),
            |text| match text.to_lowercase().as_str() {
                "null" => Value::Null,
                _ => match serde_json::from_str::<Value>(text) {
                    Ok(value) => value.as_f64().map_or(value, Value::from),
                    Err(_) => text.into(),
                },
            },
        );
        (name.clone(), value)
    };
    Value::Object(members.iter().map(member).collect())
}

fn is_tagged(peer: Peer) -> bool {
    matches!(
        peer,
        Peer::ParserQwen | Peer::DynamoHermes | Peer::ParserQwenXml | Peer::DynamoQwenCoder
    )
}

/// Returns whether opening and closing tags follow each other.
fn has_balanced_tags(text: &str) -> bool {
    [
        ("<tool_call>", "</tool_call>"),
        ("<function=", "</function>"),
        ("<parameter=", "</parameter>"),
    ]
    .iter()
    .all(|(open, close)| {
        let mut rest = text;
        loop {
            match (rest.find(open), rest.find(close)) {
                (None, None) => return true,
                // Another opening tag before the closing one has none of its own.
                (Some(at), Some(end)) if at < end => {
                    if rest[at + open.len()..end].contains(open) {
                        return false;
                    }
                    rest = &rest[end + close.len()..];
                }
                _ => return false,
            }
        }
    })
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<Value>(text).is_ok()
}

fn has_json_call(text: &str) -> bool {
    text.split("<tool_call>").skip(1).any(|body| body.trim_start().starts_with(['{', '[']))
}

/// Returns whether calls are some of ours, in the same order.
fn is_part(peer: Peer, calls: &[Call], ours: &[CallRead]) -> bool {
    let mut ours = ours.iter().filter_map(call_of);
    calls.iter().all(|call| ours.any(|own| is_same_call(peer, &own, call)))
}
