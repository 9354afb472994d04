//! Chat Completions, and the dialects of services that follow them: payloads to deltas.
//!
//! Format: <https://platform.openai.com/docs/api-reference/chat>. Streamed chunks and plain bodies
//! give the same deltas. Only choice 0 counts. `reasoning_details` stands beside the reasoning's
//! text (or in its place, as data for the service alone): it is kept to be sent back, and no text
//! is taken from it, so that nothing is counted twice.

mod kept;
mod messages;
mod payload;
mod request;
pub(super) mod usage;

use std::borrow::Cow;
use std::mem::take;

use serde::Serialize;

use super::body::Elements;
use super::dialect::{Dialect, KeyHeader};
use super::error::{error_in, error_of, provider_error, unkeyed_error};
use super::fields::{Loose, fill};
use super::loose::Content;
use super::mend::value_of;
use super::piece::{Outline, Piece, Said, say, say_call};
use super::{CallDelta, CallKind, Delta, Framing, ModelRequest};
use crate::types::{FinishKind, FinishReason};

use kept::{Field, Kept};
use payload::{Body, Call, Choice, Chunk};
use usage::usage_of;

/// The dialect; all it remembers is whether the response comes in pieces, and what of it is to be
/// sent back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OpenaiChat {
    /// A `delta` has said something, so a `message` only repeats it.
    in_pieces: bool,
    kept: Kept,
}

impl Dialect for OpenaiChat {
    const STREAM_FRAMING: Framing = Framing::Sse;
    const KEY_HEADER: KeyHeader = KeyHeader::BEARER;
    const HISTORY: &'static str = "messages";

    fn url(base: &str, _model: &str, _stream: bool) -> String {
        format!("{base}/chat/completions")
    }

    fn head(request: &ModelRequest) -> impl Serialize {
        request::Head(request)
    }

    fn history(request: &ModelRequest, elements: &mut Elements) {
        messages::write(request, elements);
    }

    fn object<'p>(
        &mut self,
        _event: &str,
        text: &'p str,
        out: &mut Vec<Delta>,
    ) -> serde_json::Result<Option<Outline<'p>>> {
        let mut chunk = Chunk::default();
        fill(text, &mut chunk)?;
        let outline = chunk.outline();
        self.chunk(chunk, text, out);
        Ok(outline)
    }

    fn piece(&mut self, piece: &Piece<'_>, out: &mut Vec<Delta>) {
        let text = piece.said_text();
        if piece.said == Said::Finish {
            return text.into_iter().for_each(|raw| self.finish(raw, out));
        }
        self.in_pieces |= text.is_some() || piece.said == Said::Arguments;
        match (piece.said, text) {
            (Said::Arguments, _) => {
                let some =
                    |text: Option<&str>| text.filter(|text| !text.is_empty()).map(Into::into);
                let (index, id, name) = (piece.index, some(piece.id), some(piece.name));
                self.kept.before_call(out);
                let call = CallDelta { index, id, name, ..CallDelta::default() };
                say_call(call, piece.text.as_deref(), out);
            }
            (Said::Text, Some(text)) => say(Delta::Text, text, out),
            (Said::Refusal, Some(text)) => say(Delta::Refusal, text, out),
            (Said::Reasoning, Some(text)) => self.think(Field::Reasoning, text, out),
            (Said::ReasoningContent, Some(text)) => self.think(Field::ReasoningContent, text, out),
            (Said::ReasoningText, Some(text)) => self.think(Field::ReasoningText, text, out),
            // The latter two are not of this wire, and the end is told above.
            (_, None) | (Said::Summary | Said::Input | Said::Finish, _) => {}
        }
    }

    fn done_word(&mut self, out: &mut Vec<Delta>) {
        self.kept.finish(out);
        out.push(Delta::Done);
    }

    fn end(&mut self, out: &mut Vec<Delta>) {
        self.kept.finish(out);
    }
}

impl OpenaiChat {
    fn chunk(&mut self, mut chunk: Chunk<'_>, text: &str, out: &mut Vec<Delta>) {
        let before = out.len();
        let mut choice_usage = None;
        for choice in chunk.choices.items_mut() {
            if choice.index.as_number().unwrap_or(0) == 0 {
                choice_usage = choice.usage.or(choice_usage);
                self.choice(choice, out);
            }
        }
        let says_nothing = out.len() == before;
        let groq = chunk.x_groq.0.as_deref();
        let usage = [chunk.usage, choice_usage, groq.and_then(|groq| groq.usage)];
        out.extend(usage.into_iter().flatten().find_map(usage_of));
        if let Some(error) = chunk.error.and_then(|raw| error_in(raw.get())) {
            // What stands beside the error may say more than the error.
            let whole = value_of(text);
            let error = whole.as_ref().and_then(error_of).map(provider_error).unwrap_or(error);
            out.push(Delta::Error(error));
        } else if let Some(error) = groq.and_then(|groq| error_in(groq.error?.get())) {
            out.push(Delta::Error(error));
        } else if says_nothing && !chunk.has_choices {
            // No answer, whatever was counted: perhaps an error without the key.
            out.extend(unkeyed_error(text));
        }
    }

    fn choice(&mut self, choice: &mut Choice<'_>, out: &mut Vec<Delta>) {
        let before = out.len();
        self.body(&mut choice.delta, false, out);
        self.in_pieces |= out.len() > before;
        if let Some(message) = choice.message.as_mut().filter(|_| !self.in_pieces) {
            self.body(message, true, out);
        }
        if let Some(raw) = take(&mut choice.finish_reason).into_text() {
            self.finish(&raw, out);
        }
        out.extend(choice.error.and_then(|raw| error_in(raw.get())).map(Delta::Error));
    }

    fn finish(&mut self, raw: &str, out: &mut Vec<Delta>) {
        self.kept.finish(out);
        out.push(Delta::Finish(FinishReason { kind: finish_kind(raw), raw: raw.into() }));
    }

    fn think(&mut self, field: Field, text: &str, out: &mut Vec<Delta>) {
        self.kept.thought(field);
        say(Delta::Reasoning, text, out);
    }

    /// Reads a `delta` or, with `whole`, a `message`.
    fn body(&mut self, body: &mut Body<'_>, whole: bool, out: &mut Vec<Delta>) {
        for (field, thinking) in [
            (Field::ReasoningContent, &mut body.reasoning_content),
            (Field::Reasoning, &mut body.reasoning),
            (Field::ReasoningText, &mut body.reasoning_text),
        ] {
            let before = out.len();
            take(thinking).say(Delta::Reasoning, out);
            if out.len() > before {
                self.kept.thought(field);
                // Where both stand they say the same.
                break;
            }
        }
        if let Some(details) = body.reasoning_details {
            self.kept.details(details, whole);
        }
        if let Some(opaque) = body.reasoning_opaque {
            self.kept.opaque(opaque);
        }
        let (before, in_parts) =
            (out.len(), matches!(body.content, Content::List(_) | Content::Part(_)));
        take(&mut body.content).say(Delta::Text, out);
        let added = out.get(before..).unwrap_or_default();
        if in_parts && added.iter().any(|delta| matches!(delta, Delta::Reasoning(_))) {
            self.kept.thought(Field::Content);
        }
        take(&mut body.refusal).say(Delta::Refusal, out);
        if body.tool_calls.is_empty() {
            if let Some(function) = body.function_call.0.take() {
                // The older form, of one call without index and id.
                self.call(Call { function: Loose(Some(*function)), ..Call::default() }, None, out);
            }
            return;
        }
        for (place, piece) in (0..).zip(body.tool_calls.items_mut()) {
            // In a whole message every item is a call of its own.
            self.call(take(&mut **piece), whole.then_some(place), out);
        }
    }

    fn call(&mut self, call: Call<'_>, place: Option<u64>, out: &mut Vec<Delta>) {
        let members = call.members();
        let mut piece = CallDelta {
            index: call.index.value().or(place),
            id: call.id.into_text(),
            ..CallDelta::default()
        };
        if let Some(function) = call.function.0 {
            piece.name = function.name.into_text();
            piece.arguments = function.arguments.0.map(Cow::into_owned);
        } else if let Some(custom) = call.custom.0 {
            piece.kind = CallKind::Custom;
            piece.name = custom.name.into_text();
            piece.arguments = custom.input.into_text();
        } else {
            piece.name = call.name.into_text();
            piece.arguments = call.arguments.0.map(Cow::into_owned);
        }
        let (index, begins) = (piece.index, piece.name.is_some());
        self.kept.before_call(out);
        out.push(Delta::Call(piece));
        if !members.is_empty() {
            self.kept.call(index, begins, &members, out);
        }
    }
}

/// What a word means: of the services themselves, and of others' that gateways pass on.
fn finish_kind(word: &str) -> FinishKind {
    match word.to_ascii_lowercase().replace('-', "_").as_str() {
        "stop" | "eos" | "eos_token" | "end_turn" | "stop_sequence" | "complete" | "completed" => {
            FinishKind::Stop
        }
        "tool_calls" | "function_call" | "tool_use" | "tool_call" => FinishKind::ToolCalls,
        "length"
        | "max_tokens"
        | "model_length"
        | "max_output_tokens"
        | "max_completion_tokens"
        | "model_context_window_exceeded" => FinishKind::Length,
        "content_filter"
        | "content_filtered"
        | "sensitive"
        | "refusal"
        | "safety"
        | "recitation"
        | "prohibited_content"
        | "blocklist"
        | "spii"
        | "guardrail_intervened"
        | "image_safety"
        | "error_toxic" => FinishKind::ContentFilter,
        "pause_turn" => FinishKind::Pause,
        "error"
        | "network_error"
        | "insufficient_system_resource"
        | "aborted"
        | "abort"
        | "malformed_function_call" => FinishKind::Error,
        _ => FinishKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::types::{ProviderError, ProviderErrorKind};
    use crate::wire::ProviderMetadata;

    fn deltas(payloads: &[&str]) -> Vec<Delta> {
        crate::wire::payload::deltas::<OpenaiChat>(payloads)
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

    fn piece(index: Option<u64>, id: &str, name: &str, arguments: Option<&str>) -> Delta {
        let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        Delta::Call(CallDelta {
            index,
            id: some(id),
            name: some(name),
            arguments: arguments.map(str::to_owned),
            ..CallDelta::default()
        })
    }

    #[track_caller]
    fn check_delta(delta: &str, expected: &[Delta]) {
        let chunk = format!(r#"{{"choices":[{{"index":0,"delta":{delta}}}]}}"#);
        assert_eq!(deltas(&[&chunk]), expected, "{chunk}");
        let spaced = chunk.replace(':', " :\n").replace(',', " , ");
        assert_eq!(deltas(&[&spaced]), expected, "{spaced}");
    }

    #[track_caller]
    fn check_call(call: &str, expected: Delta) {
        check_delta(&format!(r#"{{"tool_calls":[{call}]}}"#), &[expected]);
    }

    #[test]
    fn text_reasoning_and_refusal() {
        check_delta(r#"{"content":"hi"}"#, &[text("hi")]);
        check_delta(r#"{"content":"a\n\u00e9"}"#, &[text("a\né")]);
        check_delta(r#"{"content":"","refusal":"","reasoning":null}"#, &[]);
        check_delta(r#"{"reasoning":"r","content":"t"}"#, &[reasoning("r"), text("t")]);
        check_delta(r#"{"reasoning_content":"r"}"#, &[reasoning("r")]);
        check_delta(r#"{"reasoning_content":"r","reasoning":"r"}"#, &[reasoning("r")]);
        check_delta(r#"{"reasoning_content":"","reasoning":"r"}"#, &[reasoning("r")]);
        check_delta(r#"{"reasoning_text":"r"}"#, &[reasoning("r")]);
        check_delta(
            r#"{"reasoning":"r","reasoning_details":[{"type":"reasoning.text","text":"r"}]}"#,
            &[reasoning("r")],
        );
        check_delta(r#"{"refusal":"no"}"#, &[Delta::Refusal("no".into())]);
    }

    #[test]
    fn content_in_parts() {
        check_delta(
            r#"{"content":[{"type":"thinking","thinking":[{"type":"text","text":"r"}]},
                {"type":"text","text":"t"},{"type":"reference","reference_ids":[1]},"u",7,null]}"#,
            &[reasoning("r"), text("t"), text("u")],
        );
        check_delta(r#"{"content":[{"type":"thinking","thinking":"r"}]}"#, &[reasoning("r")]);
        check_delta(r#"{"content":{"type":"text","text":"t"}}"#, &[text("t")]);
        check_delta(
            r#"{"content":[{"type":"reasoning","summary":[{"type":"summary_text","text":"r"}]}]}"#,
            &[reasoning("r")],
        );
        check_delta(
            r#"{"content":[{"type":"refusal","refusal":"no"}]}"#,
            &[Delta::Refusal("no".into())],
        );
    }

    #[test]
    fn pieces_of_calls_as_the_wire_says_them() {
        let function = r#""function":{"name":"f","arguments":"{}"}"#;
        for (index, expected) in [
            (r#""index":2,"#, Some(2)),
            (r#""index":"2","#, Some(2)),
            (r#""index":2.0,"#, Some(2)),
            (r#""index":2.5,"#, None),
            (r#""index":-1,"#, None),
            (r#""index":"first","#, None),
            (r#""index":null,"#, None),
            (r#""index":[0],"#, None),
            ("", None),
        ] {
            check_call(
                &format!(r#"{{{index}"id":"a",{function}}}"#),
                piece(expected, "a", "f", Some("{}")),
            );
        }
        check_call(
            r#"{"index":0,"id":null,"type":null,"function":{"name":null,"arguments":"{"}}"#,
            piece(Some(0), "", "", Some("{")),
        );
        check_call(
            r#"{"index":0,"id":"","type":"","function":{"name":"","arguments":""}}"#,
            piece(Some(0), "", "", Some("")),
        );
        check_call(r#"{"id":7,"function":{"name":"f"}}"#, piece(None, "7", "f", None));
        check_call(r#"{"index":0,"id":"a"}"#, piece(Some(0), "a", "", None));
        check_call(r#"{"name":"f","arguments":{}}"#, piece(None, "", "f", Some("{}")));
    }

    #[test]
    fn arguments_that_are_no_text() {
        for (arguments, expected) in [
            ("null", None),
            (r#""null""#, Some("null")),
            (r#"{"a":[1,"é"]}"#, Some(r#"{"a":[1,"é"]}"#)),
            (r#""{\"a\":\"\\u00e9\\n\"}""#, Some(r#"{"a":"\u00e9\n"}"#)),
            ("[]", Some("[]")),
        ] {
            let chunk = format!(
                r#"{{"choices":[{{"delta":{{"tool_calls":[{{"function":
                    {{"name":"f","arguments":{arguments}}}}}]}}}}]}}"#
            );
            assert_eq!(deltas(&[&chunk]), [piece(None, "", "f", expected)], "{chunk}");
        }
    }

    #[test]
    fn one_call_alone_in_place_of_a_list_and_the_older_form() {
        check_delta(
            r#"{"tool_calls":{"index":0,"id":"a","function":{"name":"f"}}}"#,
            &[piece(Some(0), "a", "f", None)],
        );
        check_delta(
            r#"{"function_call":{"name":"f","arguments":""}}"#,
            &[piece(None, "", "f", Some(""))],
        );
        // Where both stand they are the same call.
        check_delta(
            r#"{"function_call":{"name":"f","arguments":"{}"},
                "tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}}]}"#,
            &[piece(Some(0), "a", "f", Some("{}"))],
        );
        check_delta(r#"{"tool_calls":null,"function_call":null}"#, &[]);
        check_delta(r#"{"tool_calls":"none","content":"t"}"#, &[text("t")]);
    }

    #[test]
    fn a_call_with_free_text() {
        let chunk = r#"{"choices":[{"delta":{"tool_calls":[
            {"index":0,"id":"a","type":"custom","custom":{"name":"f","input":"x=1"}}]}}]}"#;
        let expected = CallDelta {
            index: Some(0),
            id: Some("a".into()),
            name: Some("f".into()),
            arguments: Some("x=1".into()),
            kind: CallKind::Custom,
            ..CallDelta::default()
        };
        assert_eq!(deltas(&[chunk]), [Delta::Call(expected)]);
    }

    #[test]
    fn a_message_beside_a_delta_is_not_counted_again() {
        let both = r#"{"choices":[{"delta":{"content":"a"},"message":{"content":"a"}}]}"#;
        let summary = r#"{"choices":[{"message":{"content":"ab"},"finish_reason":"stop"}]}"#;
        assert_eq!(deltas(&[both, summary]), [text("a"), finish("stop", FinishKind::Stop)]);
        assert_eq!(deltas(&[summary]), [text("ab"), finish("stop", FinishKind::Stop)]);
        let empty = r#"{"choices":[{"delta":{},"message":{"content":"ab"}}]}"#;
        assert_eq!(deltas(&[empty]), [text("ab")]);
        assert_eq!(deltas(&[both, empty]), [text("a")]);
    }

    #[test]
    fn a_message_gives_each_call_its_place() {
        let body = r#"{"choices":[{"message":{"content":null,"tool_calls":[
            {"function":{"name":"f","arguments":""}},{"function":{"name":"f","arguments":""}}]}}]}"#;
        assert_eq!(
            deltas(&[body]),
            [piece(Some(0), "", "f", Some("")), piece(Some(1), "", "f", Some(""))]
        );
    }

    fn kept(members: Value) -> Delta {
        Delta::Metadata(ProviderMetadata::Reasoning { members: Some(members.to_string().into()) })
    }

    fn chunk(delta: &str) -> String {
        format!(r#"{{"choices":[{{"delta":{delta}}}]}}"#)
    }

    const FINISH: &str = r#"{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}"#;

    #[test]
    fn the_field_of_thinking_is_kept_where_calls_follow() {
        let call = r#"{"tool_calls":[{"index":0,"id":"a","function":{"name":"f"}}]}"#;
        for (thinking, field) in [
            (r#"{"reasoning_content":"r"}"#, "reasoning_content"),
            (r#"{"reasoning":"r"}"#, "reasoning"),
            (r#"{"reasoning_content":"r","reasoning":"r"}"#, "reasoning_content"),
            (r#"{"content":[{"type":"thinking","thinking":"r"}]}"#, "content"),
        ] {
            assert_eq!(
                deltas(&[&chunk(thinking), &chunk(thinking), &chunk(call), FINISH, "[DONE]"]),
                [
                    reasoning("r"),
                    reasoning("r"),
                    kept(json!({ "field": field })),
                    piece(Some(0), "a", "f", None),
                    finish("tool_calls", FinishKind::ToolCalls),
                    Delta::Done,
                ]
            );
            let without = deltas(&[&chunk(thinking), FINISH, "[DONE]"]);
            assert!(
                without.iter().all(|delta| !matches!(delta, Delta::Metadata(_))),
                "{without:?}"
            );
        }
        // Thinking that comes last is not lost.
        assert_eq!(
            deltas(&[&chunk(call), &chunk(r#"{"reasoning":"r"}"#), FINISH])[2..],
            [kept(json!({"field": "reasoning"})), finish("tool_calls", FinishKind::ToolCalls)]
        );
    }

    #[test]
    fn reasoning_details_are_kept_when_they_are_whole() {
        let thinking = |text: &str| {
            chunk(&format!(
                r#"{{"reasoning":"{text}","reasoning_details":
                    [{{"type":"reasoning.text","text":"{text}","index":0}}]}}"#
            ))
        };
        let call = chunk(r#"{"tool_calls":[{"index":0,"function":{"name":"f"}}]}"#);
        let signed =
            chunk(r#"{"reasoning_details":[{"type":"reasoning.text","signature":"s","index":0}]}"#);
        let details = json!([{"type": "reasoning.text", "text": "ab", "index": 0,
            "signature": "s"}]);
        assert_eq!(
            deltas(&[&thinking("a"), &thinking("b"), &call, &signed, FINISH, "[DONE]"]),
            [
                reasoning("a"),
                reasoning("b"),
                piece(Some(0), "", "f", None),
                kept(json!({"field": "reasoning", "reasoning_details": details})),
                finish("tool_calls", FinishKind::ToolCalls),
                Delta::Done,
            ]
        );
        let mut dialect = OpenaiChat::default();
        let mut out = Vec::new();
        crate::wire::payload::read(&mut dialect, "", &thinking("a"), &mut out);
        crate::wire::payload::read(&mut dialect, "", &call, &mut out);
        assert_eq!(out.len(), 2);
        dialect.end(&mut out);
        assert!(matches!(out[2..], [Delta::Metadata(_)]), "{out:?}");
    }

    #[test]
    fn what_is_opaque_is_kept_wherever_it_comes() {
        let call = chunk(r#"{"tool_calls":[{"index":0,"function":{"name":"f"}}]}"#);
        let thinking = chunk(r#"{"reasoning_text":"r"}"#);
        let opaque = chunk(r#"{"content":null,"reasoning_opaque":"x"}"#);
        let whole = kept(json!({"field": "reasoning_text", "reasoning_opaque": "x"}));
        let end = finish("tool_calls", FinishKind::ToolCalls);
        let called = piece(Some(0), "", "f", None);
        assert_eq!(
            deltas(&[&thinking, &opaque, &opaque, &call, FINISH]),
            [reasoning("r"), whole.clone(), called.clone(), end.clone()]
        );
        assert_eq!(
            deltas(&[&thinking, &call, &opaque, FINISH]),
            [reasoning("r"), kept(json!({"field": "reasoning_text"})), called, whole, end]
        );
        let null = chunk(r#"{"reasoning_opaque":null}"#);
        assert_eq!(deltas(&[&null, &call, FINISH]).len(), 2);
    }

    #[test]
    fn what_stands_beside_a_call_is_kept_with_it() {
        let extra = json!({"google": {"thought_signature": "s"}});
        let member = |index, members: Value| {
            Delta::Metadata(ProviderMetadata::Call { index, members: members.to_string().into() })
        };
        check_delta(
            &format!(
                r#"{{"tool_calls":[{{"index":1,"function":{{"name":"f"}},"extra_content":{extra}}},
                    {{"index":2,"function":{{"name":"f","provider_specific_fields":{extra}}},
                      "thought_signature":"s","extra_content":null}}]}}"#
            ),
            &[
                piece(Some(1), "", "f", None),
                member(1, json!({ "extra_content": extra })),
                piece(Some(2), "", "f", None),
                member(
                    2,
                    json!({"thought_signature": "s",
                        "function": {"provider_specific_fields": extra}}),
                ),
            ],
        );
        // Gemini's own stream of this form has no index.
        check_delta(
            &format!(r#"{{"tool_calls":[{{"function":{{"name":"f"}},"extra_content":{extra}}}]}}"#),
            &[
                piece(None, "", "f", None),
                Delta::Metadata(ProviderMetadata::LastCall {
                    members: json!({ "extra_content": extra }).to_string().into(),
                }),
            ],
        );
        // It may come late, twice, and in pieces.
        let more = |field: &str| {
            chunk(&format!(
                r#"{{"tool_calls":[{{"index":0,"function":{{}},"{field}":{{"a":1}}}}]}}"#
            ))
        };
        let (first, second) = (more("extra_content"), more("provider_specific_fields"));
        let found = deltas(&[&first, &first, &second]);
        let found: Vec<_> = found.iter().filter(|d| matches!(d, Delta::Metadata(_))).collect();
        assert_eq!(
            found,
            [
                &member(0, json!({"extra_content": {"a": 1}})),
                &member(
                    0,
                    json!({"extra_content": {"a": 1}, "provider_specific_fields": {"a": 1}})
                ),
            ]
        );
    }

    #[test]
    fn only_the_first_choice_counts() {
        let chunk = r#"{"choices":[{"index":1,"delta":{"content":"b"}},
            {"index":0,"delta":{"content":"a"}},null,{"index":2,"delta":{"content":"c"}}]}"#;
        assert_eq!(deltas(&[chunk]), [text("a")]);
        for nothing in [
            r#"{"choices":[]}"#,
            r#"{"choices":null}"#,
            r#"{"choices":[{"index":0}]}"#,
            r#"{"choices":[{"index":0,"delta":null,"finish_reason":null}]}"#,
            r#"{"choices":[{"index":0,"delta":{},"finish_reason":""}]}"#,
            r#"{"type":"ping"}"#,
            "{}",
            "",
            "[]",
        ] {
            assert_eq!(deltas(&[nothing]), [], "{nothing}");
        }
    }

    #[test]
    fn finish_reasons_have_a_kind_and_keep_their_word() {
        for (word, kind) in [
            ("stop", FinishKind::Stop),
            ("STOP", FinishKind::Stop),
            ("eos", FinishKind::Stop),
            ("end_turn", FinishKind::Stop),
            ("tool_calls", FinishKind::ToolCalls),
            ("function_call", FinishKind::ToolCalls),
            ("tool_use", FinishKind::ToolCalls),
            ("length", FinishKind::Length),
            ("max_tokens", FinishKind::Length),
            ("model_length", FinishKind::Length),
            ("content_filter", FinishKind::ContentFilter),
            ("sensitive", FinishKind::ContentFilter),
            ("refusal", FinishKind::ContentFilter),
            ("error", FinishKind::Error),
            ("network_error", FinishKind::Error),
            ("insufficient_system_resource", FinishKind::Error),
            ("content-filter", FinishKind::ContentFilter),
            ("model_context_window_exceeded", FinishKind::Length),
            ("MALFORMED_FUNCTION_CALL", FinishKind::Error),
            ("pause_turn", FinishKind::Pause),
            ("anything", FinishKind::Other),
        ] {
            let chunk = format!(r#"{{"choices":[{{"delta":{{}},"finish_reason":"{word}"}}]}}"#);
            assert_eq!(deltas(&[&chunk]), [finish(word, kind)]);
        }
    }

    #[track_caller]
    fn check_error(payload: &str, message: &str, status: Option<u16>, code: Option<&str>) {
        let expected = Delta::Error(ProviderError {
            kind: ProviderErrorKind::InStream,
            status,
            code: code.map(str::to_owned),
            message: message.into(),
            retry_after: None,
            retryable: None,
        });
        assert_eq!(deltas(&[payload]).last(), Some(&expected), "{payload}");
    }

    #[test]
    fn errors_wherever_they_stand() {
        check_error(r#"{"error":{"message":"m","type":"t","code":null}}"#, "m", None, Some("t"));
        check_error(r#"{"error":"m"}"#, "m", None, None);
        check_error(r#"{"error":{"code":503,"message":"m"}}"#, "m", Some(503), Some("503"));
        check_error(
            r#"{"choices":[{"delta":{"content":"a"},"finish_reason":"error"}],
                "error":{"code":502,"message":"m"}}"#,
            "m",
            Some(502),
            Some("502"),
        );
        check_error(
            r#"{"choices":[{"delta":{},"error":{"code":429,"message":"m"}}]}"#,
            "m",
            Some(429),
            Some("429"),
        );
        check_error(
            r#"{"object":"error","message":"m","type":"BadRequestError","code":400}"#,
            "m",
            Some(400),
            Some("400"),
        );
        check_error(r#"{"choices":[{"delta":{}}],"x_groq":{"error":"m"}}"#, "m", None, None);
        check_error(r#"{"detail":"m"}"#, "m", None, None);
        check_error(
            r#"{"choices":null,"base_resp":{"status_code":1004,"status_msg":"m"}}"#,
            "m",
            None,
            Some("1004"),
        );
        // What was counted does not hide it.
        let counted = r#"{"choices":null,"usage":{"total_tokens":0},
            "base_resp":{"status_code":1004,"status_msg":"m"}}"#;
        let found = deltas(&[counted]);
        assert!(
            matches!(&found[..], [Delta::Usage { .. }, Delta::Error(e)] if e.message == "m"),
            "{found:?}"
        );
        check_error(r#"[{"error":{"message":"m"}}]"#, "m", None, None);
        check_error(r#"{"error":{"message":"m\ud800"}}"#, "m\u{FFFD}", None, None);
        check_error(r#"{"message":"m\ud800"}"#, "m\u{FFFD}", None, None);
        let fine = r#"{"choices":null,"base_resp":{"status_code":0,"status_msg":"ok"}}"#;
        assert_eq!(deltas(&[fine]), []);
        for none in [r#"{"error":null}"#, r#"{"error":""}"#, r#"{"error":{}}"#] {
            assert_eq!(deltas(&[none]), [], "{none}");
        }
    }

    #[test]
    fn an_error_that_is_nested_too_deeply_is_not_lost() {
        let deep = format!(r#"{{"message":"m","x":{}{}}}"#, "[".repeat(300), "]".repeat(300));
        for payload in [
            format!(r#"{{"error":{deep}}}"#),
            format!(r#"{{"choices":[{{"delta":{{}},"error":{deep}}}]}}"#),
        ] {
            let found = deltas(&[&payload]);
            assert!(
                matches!(&found[..], [Delta::Error(e)] if e.message.starts_with(r#"{"message":"m""#)),
                "{found:?}"
            );
        }
    }

    #[test]
    fn an_event_named_error_is_one() {
        for (data, message) in [
            (r#"{"error":{"message":"m"}}"#, "m"),
            (r#"{"message":"m"}"#, "m"),
            ("m", "m"),
            ("", "the service reported an error"),
        ] {
            let mut out = Vec::new();
            crate::wire::payload::read(&mut OpenaiChat::default(), "error", data, &mut out);
            let error = ProviderError::new(ProviderErrorKind::InStream, message);
            assert_eq!(out, [Delta::Error(error)], "{data}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_an_error_and_what_is_no_payload_is_a_problem() {
        let cut = deltas(&[r#"{"choices":[{"delta":{"content":"a"#]);
        assert!(
            matches!(&cut[..], [Delta::Error(e)] if e.kind == ProviderErrorKind::Malformed),
            "{cut:?}"
        );
        let ping = deltas(&["ping", r#"{"choices":[{"delta":{"content":"a"}}]}"#]);
        assert!(
            matches!(&ping[..], [Delta::Problem(p), Delta::Text(_)] if p.code == "not_json"),
            "{ping:?}"
        );
    }

    #[test]
    fn payloads_that_can_be_mended() {
        let a = r#"{"choices":[{"delta":{"content":"a"}}]}"#;
        assert_eq!(deltas(&[&format!("{a}\n{a}\n[DONE]")]), [text("a"), text("a"), Delta::Done]);
        assert_eq!(deltas(&[&format!("{a}{a}")]), [text("a"), text("a")]);
        let twice = r#"{"choices":[],"choices":[{"delta":{"content":"a"}}]}"#;
        assert_eq!(deltas(&[twice]), [text("a")]);
        let twice = format!(r#"{{"choices":[{{"delta":{{"content":"b"}}}}],{}"#, &a[1..]);
        assert_eq!(deltas(&[&twice]), [text("a")]);
        let half = r#"{"choices":[{"delta":{"content":"\ud83d"}}]}"#;
        assert_eq!(deltas(&[half]), [text("\u{FFFD}")]);
        let no_number = r#"{"choices":[{"delta":{"content":"a"},"logprobs":[NaN,-Infinity]}]}"#;
        assert_eq!(deltas(&[no_number]), [text("a")]);
        assert_eq!(deltas(&["{\"choices\":[{\"delta\":{\"content\":\"a\tb\"}}]}"]), [text("a\tb")]);
        let prefixed = format!("data: data:{a}");
        assert_eq!(deltas(&[&prefixed, "data: [DONE]"]), [text("a"), Delta::Done]);
    }

    #[test]
    fn a_list_has_a_limit() {
        let calls = vec![r#"{"name":"f"}"#; 10_000].join(",");
        let chunk = format!(r#"{{"choices":[{{"delta":{{"tool_calls":[{calls}]}}}}]}}"#);
        assert_eq!(deltas(&[&chunk]).len(), 4097);
        let choices = vec![r#"{"delta":{"content":"a"}}"#; 10_000].join(",");
        assert_eq!(deltas(&[&format!(r#"{{"choices":[{choices}]}}"#)]).len(), 4097);
    }

    #[test]
    fn the_end_and_usage() {
        let usage = r#"{"prompt_tokens":3,"completion_tokens":2}"#;
        let counts = Delta::Usage {
            usage: crate::types::Usage {
                input_tokens: 3,
                output_tokens: 2,
                ..crate::types::Usage::default()
            },
            raw: usage.into(),
        };
        for chunk in [
            format!(r#"{{"choices":[],"usage":{usage}}}"#),
            format!(r#"{{"choices":[{{"delta":{{}},"usage":{usage}}}]}}"#),
            format!(r#"{{"choices":[],"usage":null,"x_groq":{{"usage":{usage}}}}}"#),
        ] {
            assert_eq!(deltas(&[&chunk, " [DONE] "]), [counts.clone(), Delta::Done], "{chunk}");
        }
    }
}
