//! Ollama's own chat: payloads to deltas.
//!
//! Format: <https://docs.ollama.com/api/chat>. A stream is one JSON object a line, and a plain body
//! is the same object once. Every call is whole where it stands, with its arguments as an object,
//! so its seal comes with it. Several calls come on one line or on one line each, and their `index`
//! is not always there (nor always another), so calls are counted as they come. An error in
//! mid-stream is a line `{"error": ".."}`.

mod request;

use std::mem::take;

use serde::de::MapAccess;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::body::Elements;
use super::dialect::{Dialect, KeyHeader};
use super::error::{error_in, unkeyed_error};
use super::fields::{Fields, Fill, List, Loose, fill};
use super::loose::{Content, JsonText, Scalar, said_in};
use super::piece::{Outline, Piece, Said, Slot, say};
use super::{CallDelta, Delta, Framing, ModelRequest};
use crate::types::{FinishKind, FinishReason, Usage};

/// The dialect; all it remembers is how many calls have come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ollama {
    calls: u64,
}

#[derive(Default)]
struct Line<'a> {
    message: Message<'a>,
    has_message: bool,
    done: JsonText<'a>,
    done_reason: Scalar<'a>,
    prompt_eval_count: Option<&'a RawValue>,
    eval_count: Option<&'a RawValue>,
    error: Option<&'a RawValue>,
    /// The HTTP status that stands beside some errors.
    status: Scalar<'a>,
    created_at: Option<&'a RawValue>,
}

impl<'de> Fields<'de> for Line<'de> {
    fn take<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "message" => {
                self.has_message = map.next_value_seed(Fill(&mut self.message))?;
            }
            "done" => self.done = map.next_value()?,
            "done_reason" => self.done_reason = map.next_value()?,
            "prompt_eval_count" => self.prompt_eval_count = map.next_value()?,
            "eval_count" => self.eval_count = map.next_value()?,
            "error" => self.error = map.next_value()?,
            "created_at" => self.created_at = map.next_value()?,
            "StatusCode" | "status_code" => self.status = map.next_value()?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

#[derive(Default)]
struct Message<'a> {
    content: Content<'a>,
    thinking: Content<'a>,
    tool_calls: List<Box<Call<'a>>>,
}

impl<'de> Fields<'de> for Message<'de> {
    fn take<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "content" => self.content = map.next_value()?,
            "thinking" => self.thinking = map.next_value()?,
            "tool_calls" => self.tool_calls = map.next_value()?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

#[derive(Default, Deserialize)]
struct Call<'a> {
    #[serde(borrow, default)]
    id: Scalar<'a>,
    #[serde(borrow, default)]
    function: Loose<Function<'a>>,
    /// Name and arguments of a service that leaves out the `function` around them.
    #[serde(borrow, default)]
    name: Scalar<'a>,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Function<'a> {
    #[serde(borrow, default)]
    name: Scalar<'a>,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
}

impl Dialect for Ollama {
    const STREAM_FRAMING: Framing = Framing::JsonLines;
    const KEY_HEADER: KeyHeader = KeyHeader::BEARER;
    const HISTORY: &'static str = "messages";

    fn url(base: &str, _model: &str, _stream: bool) -> String {
        if base.ends_with("/api") { format!("{base}/chat") } else { format!("{base}/api/chat") }
    }

    fn head(request: &ModelRequest) -> impl Serialize {
        request::Head(request)
    }

    fn history(request: &ModelRequest, elements: &mut Elements) {
        request::write_messages(request, elements);
    }

    fn object<'p>(
        &mut self,
        _event: &str,
        text: &'p str,
        out: &mut Vec<Delta>,
    ) -> serde_json::Result<Option<Outline<'p>>> {
        let mut line = Line::default();
        fill(text, &mut line)?;
        let outline = line.outline();
        self.line(line, text, out);
        Ok(outline)
    }

    fn piece(&mut self, piece: &Piece<'_>, out: &mut Vec<Delta>) {
        match piece.said_text() {
            Some(text) if piece.said == Said::Reasoning => say(Delta::Reasoning, text, out),
            Some(text) => say(Delta::Text, text, out),
            None => {}
        }
    }
}

impl<'a> Line<'a> {
    /// Where the piece stands, if there is nothing else in it that is read.
    fn outline(&self) -> Option<Outline<'a>> {
        let Message { content, thinking, tool_calls } = &self.message;
        let counts = [self.prompt_eval_count, self.eval_count, self.error];
        let is_more = !tool_calls.is_empty()
            || !self.done_reason.says_nothing()
            || counts.iter().any(Option::is_some)
            || self.done.0.as_deref() == Some("true");
        if is_more || !self.has_message {
            return None;
        }
        let outline = match (content.says_nothing(), thinking.says_nothing()) {
            (_, true) => Outline::of(Said::Text).content(Slot::Text, content)?,
            (true, false) => Outline::of(Said::Reasoning).content(Slot::Text, thinking)?,
            (false, false) => return None,
        };
        outline.unread(Slot::Noise, self.created_at)
    }
}

impl Ollama {
    fn line(&mut self, mut line: Line<'_>, text: &str, out: &mut Vec<Delta>) {
        let before = out.len();
        take(&mut line.message.thinking).say(Delta::Reasoning, out);
        take(&mut line.message.content).say(Delta::Text, out);
        for call in line.message.tool_calls.items_mut() {
            self.call(take(&mut **call), out);
        }
        if let Some(raw) = take(&mut line.done_reason).into_text() {
            out.push(Delta::Finish(FinishReason { kind: finish_kind(&raw), raw: raw.into() }));
        }
        out.extend(usage(line.prompt_eval_count, line.eval_count));
        if let Some(mut error) = line.error.and_then(|raw| error_in(raw.get())) {
            let status = line.status.as_number().and_then(|status| u16::try_from(status).ok());
            error.status = error.status.or(status.filter(|status| (400..600).contains(status)));
            out.push(Delta::Error(error));
        } else if line.done.0.as_deref() == Some("true") {
            out.push(Delta::Done);
        } else if !line.has_message && out.len() == before {
            // Nothing that a line holds: perhaps an error without the key.
            out.extend(unkeyed_error(text));
        }
    }

    fn call(&mut self, call: Call<'_>, out: &mut Vec<Delta>) {
        let (name, arguments) = match call.function.0 {
            Some(function) => (function.name, function.arguments),
            None => (call.name, call.arguments),
        };
        let piece = CallDelta {
            index: Some(self.calls),
            id: call.id.into_text(),
            name: name.into_text(),
            arguments: arguments.and_then(|raw| said_in(raw.get())),
            begins: true,
            ..CallDelta::default()
        };
        if piece.says_nothing() {
            return;
        }
        out.push(Delta::Call(piece));
        out.push(Delta::Seal { index: self.calls, arguments: None });
        self.calls += 1;
    }
}

fn finish_kind(word: &str) -> FinishKind {
    match word.to_ascii_lowercase().as_str() {
        "stop" => FinishKind::Stop,
        "length" => FinishKind::Length,
        // Ollama itself says `stop` also where it calls; services that follow it may not.
        "tool_calls" => FinishKind::ToolCalls,
        "error" => FinishKind::Error,
        _ => FinishKind::Other,
    }
}

/// Token counts. A prompt that is cached as a whole is not counted by older services.
fn usage(read: Option<&RawValue>, written: Option<&RawValue>) -> Option<Delta> {
    read.or(written)?;
    let counts = [("prompt_eval_count", read), ("eval_count", written)];
    let members: Vec<String> = counts
        .iter()
        .filter_map(|(key, count)| Some(format!("\"{key}\":{}", (*count)?.get())))
        .collect();
    let count = |raw: Option<&RawValue>| {
        let scalar = serde_json::from_str::<Scalar<'_>>(raw?.get()).ok()?;
        scalar.as_number()
    };
    let usage = Usage {
        input_tokens: count(read).unwrap_or(0),
        output_tokens: count(written).unwrap_or(0),
        ..Usage::default()
    };
    Some(Delta::Usage { usage, raw: format!("{{{}}}", members.join(",")).into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{ProviderError, ProviderErrorKind};

    fn deltas(payloads: &[&str]) -> Vec<Delta> {
        crate::wire::payload::deltas::<Ollama>(payloads)
    }

    fn text(text: &str) -> Delta {
        Delta::Text(text.into())
    }

    fn reasoning(text: &str) -> Delta {
        Delta::Reasoning(text.into())
    }

    fn finish(raw: &str, kind: FinishKind) -> Delta {
        Delta::Finish(FinishReason { kind, raw: raw.into() })
    }

    fn call(index: u64, id: &str, name: &str, arguments: Option<&str>) -> [Delta; 2] {
        let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let piece = CallDelta {
            index: Some(index),
            id: some(id),
            name: some(name),
            arguments: arguments.map(str::to_owned),
            begins: true,
            ..CallDelta::default()
        };
        [Delta::Call(piece), Delta::Seal { index, arguments: None }]
    }

    #[track_caller]
    fn check_message(message: &str, expected: &[Delta]) {
        let line = format!(
            r#"{{"model":"m","created_at":"2026-01-01T00:00:00Z","message":{message},"done":false}}"#
        );
        assert_eq!(deltas(&[&line]), expected, "{line}");
    }

    #[test]
    fn text_and_thinking() {
        check_message(r#"{"role":"assistant","content":"hi"}"#, &[text("hi")]);
        check_message(r#"{"content":"a\n\u00e9","images":["AA=="]}"#, &[text("a\né")]);
        check_message(r#"{"content":"","thinking":"r"}"#, &[reasoning("r")]);
        check_message(r#"{"content":"t","thinking":"r"}"#, &[reasoning("r"), text("t")]);
        check_message(r#"{"content":[{"type":"text","text":"t"},"u"]}"#, &[text("t"), text("u")]);
        for nothing in [
            r#"{"content":""}"#,
            r#"{"content":null,"thinking":null,"tool_calls":null}"#,
            r#"{"content":7,"thinking":false,"tool_calls":"none"}"#,
            r#"{"tool_calls":[]}"#,
            r#"{"tool_calls":[null,{},{"function":{}},{"function":null}]}"#,
            "{}",
            "null",
            "[]",
        ] {
            check_message(nothing, &[]);
        }
    }

    #[test]
    fn a_call_is_whole_and_counted_as_it_comes() {
        let line = |call: &str| format!(r#"{{"message":{{"tool_calls":[{call}]}},"done":false}}"#);
        let first = r#"{"id":"a","function":{"index":0,"name":"f","arguments":{"x":[1,"é"]}}}"#;
        let second = r#"{"function":{"name":"g","arguments":{}}}"#;
        let expected = [call(0, "a", "f", Some(r#"{"x":[1,"é"]}"#)), call(1, "", "g", Some("{}"))];
        assert_eq!(deltas(&[&line(first), &line(second)]), expected.concat());
        assert_eq!(deltas(&[&line(&format!("{first},{second}"))]), expected.concat());
        // Some say the same index of every call.
        let again = first.replace(r#""id":"a""#, r#""id":"b""#);
        let twice = [
            call(0, "a", "f", Some(r#"{"x":[1,"é"]}"#)),
            call(1, "b", "f", Some(r#"{"x":[1,"é"]}"#)),
        ];
        assert_eq!(deltas(&[&line(first), &line(&again)]), twice.concat());
    }

    #[test]
    fn arguments_of_any_type() {
        for (arguments, expected) in [
            (r#","arguments":{"a":1}"#, Some(r#"{"a":1}"#)),
            (r#","arguments":"{\"a\":1}""#, Some(r#"{"a":1}"#)),
            (r#","arguments":"""#, Some("")),
            (r#","arguments":null"#, None),
            ("", None),
            (r#","arguments":[]"#, Some("[]")),
            (r#","arguments":true"#, Some("true")),
        ] {
            let message = format!(r#"{{"tool_calls":[{{"function":{{"name":"f"{arguments}}}}}]}}"#);
            check_message(&message, &call(0, "", "f", expected));
        }
        check_message(
            r#"{"tool_calls":{"id":7,"name":"f","arguments":{}}}"#,
            &call(0, "7", "f", Some("{}")),
        );
        check_message(
            r#"{"tool_calls":[{"id":"a","function":{"arguments":{}}}]}"#,
            &call(0, "a", "", Some("{}")),
        );
    }

    #[test]
    fn the_last_line_has_reason_and_counts() {
        let counts = |raw: &str, input_tokens, output_tokens| {
            let usage = Usage { input_tokens, output_tokens, ..Usage::default() };
            Delta::Usage { usage, raw: raw.into() }
        };
        let last = r#"{"message":{"role":"assistant","content":""},"done_reason":"stop","done":true,
            "total_duration":1,"prompt_eval_count":17,"prompt_eval_duration":2,"eval_count":5}"#;
        assert_eq!(
            deltas(&[last]),
            [
                finish("stop", FinishKind::Stop),
                counts(r#"{"prompt_eval_count":17,"eval_count":5}"#, 17, 5),
                Delta::Done
            ]
        );
        assert_eq!(
            deltas(&[r#"{"done":true,"eval_count":5,"prompt_eval_count":null}"#]),
            [counts(r#"{"eval_count":5}"#, 0, 5), Delta::Done]
        );
        assert_eq!(
            deltas(&[r#"{"done":true,"done_reason":"length","eval_count":"5"}"#]),
            [
                finish("length", FinishKind::Length),
                counts(r#"{"eval_count":"5"}"#, 0, 5),
                Delta::Done
            ]
        );
        assert_eq!(deltas(&[r#"{"done":true}"#, r#"{"done":"true"}"#]), [Delta::Done, Delta::Done]);
        for not_yet in [r#"{"done":false}"#, r#"{"done":null,"done_reason":null}"#, "{}", "", "[]"]
        {
            assert_eq!(deltas(&[not_yet]), [], "{not_yet}");
        }
    }

    #[test]
    fn reasons_have_a_kind_and_keep_their_word() {
        for (word, kind) in [
            ("stop", FinishKind::Stop),
            ("length", FinishKind::Length),
            ("tool_calls", FinishKind::ToolCalls),
            ("load", FinishKind::Other),
            ("unload", FinishKind::Other),
            ("anything", FinishKind::Other),
        ] {
            let line = format!(r#"{{"done_reason":"{word}"}}"#);
            assert_eq!(deltas(&[&line]), [finish(word, kind)]);
        }
    }

    #[track_caller]
    fn check_error(line: &str, message: &str, status: Option<u16>, code: Option<&str>) {
        let expected = Delta::Error(ProviderError {
            kind: ProviderErrorKind::InStream,
            status,
            code: code.map(str::to_owned),
            message: message.into(),
            retry_after: None,
            retryable: None,
        });
        assert_eq!(deltas(&[line]).last(), Some(&expected), "{line}");
    }

    #[test]
    fn errors_wherever_they_stand() {
        check_error(r#"{"error":"m"}"#, "m", None, None);
        check_error(r#"{"error":{"message":"m","code":503}}"#, "m", Some(503), Some("503"));
        check_error(
            r#"{"StatusCode":429,"Status":"429 Too Many","error":"m"}"#,
            "m",
            Some(429),
            None,
        );
        check_error(r#"{"error":"m","status_code":"500"}"#, "m", Some(500), None);
        check_error(r#"{"error":"m","signin_url":"https://a/b"}"#, "m", None, None);
        check_error(r#"{"message":{"content":"a"},"done":false,"error":"m"}"#, "m", None, None);
        check_error(r#"{"message":{"content":""},"done":true,"error":"m"}"#, "m", None, None);
        check_error(r#"{"error":{"message":"m\ud800"}}"#, "m\u{FFFD}", None, None);
        check_error(r#"{"message":"m"}"#, "m", None, None);
        check_error(r#"{"detail":"m"}"#, "m", None, None);
        check_error(r#"[{"error":"m"}]"#, "m", None, None);
        for none in [r#"{"error":null}"#, r#"{"error":"","message":{}}"#, r#"{"error":{}}"#] {
            assert_eq!(deltas(&[none]), [], "{none}");
        }
        let mut out = Vec::new();
        crate::wire::payload::read(&mut Ollama::default(), "error", "m", &mut out);
        assert!(matches!(&out[..], [Delta::Error(error)] if error.message == "m"), "{out:?}");
    }

    #[test]
    fn what_cannot_be_read_is_an_error_and_what_is_no_line_is_a_problem() {
        let cut = deltas(&[r#"{"message":{"content":"a"#]);
        assert!(
            matches!(&cut[..], [Delta::Error(e)] if e.kind == ProviderErrorKind::Malformed),
            "{cut:?}"
        );
        let odd = deltas(&["ping", r#"{"message":{"content":"a"}}"#]);
        assert!(
            matches!(&odd[..], [Delta::Problem(p), Delta::Text(_)] if p.code == "not_json"),
            "{odd:?}"
        );
    }

    #[test]
    fn lines_that_can_be_mended() {
        let a = r#"{"message":{"content":"a"}}"#;
        for several in [format!("{a}\n{a}"), format!("{a}{a}"), format!("[{a},{a}]")] {
            assert_eq!(deltas(&[&several]), [text("a"), text("a")], "{several}");
        }
        assert_eq!(deltas(&[&format!("data: {a}"), "data: [DONE]"]), [text("a")]);
        assert_eq!(deltas(&[r#"{"message":{"content":"\ud83d"}}"#]), [text("\u{FFFD}")]);
        assert_eq!(deltas(&["{\"message\":{\"content\":\"a\tb\"}}"]), [text("a\tb")]);
        assert_eq!(deltas(&[r#"{"message":null,"message":{"content":"a"}}"#]), [text("a")]);
    }

    #[test]
    fn the_address_may_or_may_not_name_the_api() {
        for (base, url) in [
            ("http://a:11434", "http://a:11434/api/chat"),
            ("http://a:11434/api", "http://a:11434/api/chat"),
            ("http://a/v1", "http://a/v1/api/chat"),
        ] {
            assert_eq!(Ollama::url(base, "m", true), url);
        }
    }
}
