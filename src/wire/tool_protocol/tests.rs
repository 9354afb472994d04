//! Every case is read in every cut, and gives the same text and calls.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::CallReader;
use crate::{Delta, ToolDefinition};
use ToolProtocol::{Arrow, Hermes, Pythonic, React, Xml};
use callsheet_values::types::{FinishKind, FinishReason, ToolProtocol};

fn tools() -> Arc<[ToolDefinition]> {
    let tool = |name: &str, properties: Value| {
        let schema = json!({"type": "object", "properties": properties});
        ToolDefinition { name: name.into(), description: String::new(), schema }
    };
    [
        tool("f", json!({"a": {"type": "integer"}, "b": {"type": "string"}})),
        tool("g", json!({"text": {"type": "string"}})),
        tool("clock", json!({})),
    ]
    .into()
}

/// A response as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Read {
    text: String,
    /// Name and arguments; `~` before the name: repaired, `!`: surplus, `?` behind the arguments: not sealed.
    calls: Vec<String>,
    problems: Vec<&'static str>,
    /// The order: `t` for text, `c` for a call, `s` for a seal.
    order: String,
}

fn finish(kind: FinishKind) -> Delta {
    Delta::Finish(FinishReason::new(kind, "x"))
}

fn read(protocol: ToolProtocol, pieces: &[&str], end: Option<FinishKind>) -> Read {
    let mut reader = CallReader::new(protocol, &tools()).unwrap();
    let mut deltas = Vec::new();
    for piece in pieces {
        deltas.extend(reader.read(vec![Delta::Text((*piece).to_owned())]));
    }
    deltas.extend(reader.read(end.map(finish).into_iter().collect()));
    deltas.extend(reader.finish());
    let mut read = Read::default();
    let mut indexes = Vec::new();
    for delta in deltas {
        let kind = match delta {
            Delta::Text(text) => {
                read.text.push_str(&text);
                't'
            }
            Delta::Call(call) => {
                assert!(call.is_marked_start && call.id.is_none());
                let mark = if call.is_repaired { "~" } else { "" };
                let mark = if call.is_surplus { "!" } else { mark };
                let (name, arguments) = (call.name.unwrap_or_default(), call.arguments.unwrap());
                read.calls.push(format!("{mark}{name} {arguments}?"));
                indexes.push(call.index.unwrap());
                'c'
            }
            Delta::Seal { index, arguments: None } => {
                let at = indexes.iter().position(|known| *known == index).unwrap();
                assert_eq!(read.calls[at].pop(), Some('?'), "sealed twice");
                's'
            }
            Delta::Problem(problem) => {
                read.problems.push(problem.code);
                continue;
            }
            Delta::Finish(_) => continue,
            Delta::Seal { .. }
            | Delta::Reasoning(_)
            | Delta::Refusal(_)
            | Delta::Metadata(_)
            | Delta::Usage { .. }
            | Delta::Error(_)
            | Delta::Done => panic!("no such delta was given"),
        };
        if !(kind == 't' && read.order.ends_with('t')) {
            read.order.push(kind);
        }
    }
    read
}

/// Reads a text whole, in all pairs of pieces, and character by character.
#[track_caller]
fn read_all_cuts(protocol: ToolProtocol, text: &str, end: Option<FinishKind>) -> Read {
    let whole = read(protocol, &[text], end);
    let chars: Vec<&str> = text.split("").filter(|piece| !piece.is_empty()).collect();
    assert_eq!(read(protocol, &chars, end), whole, "character by character: {text}");
    for at in (0..text.len()).filter(|at| text.is_char_boundary(*at)) {
        let (head, rest) = text.split_at(at);
        assert_eq!(read(protocol, &[head, rest], end), whole, "cut at {at}: {text}");
    }
    whole
}

/// Checks text and calls after a good end.
#[track_caller]
fn check(protocol: ToolProtocol, text: &str, expected_text: &str, calls: &[&str]) {
    let read = read_all_cuts(protocol, text, Some(FinishKind::Stop));
    assert_eq!(read.text, expected_text, "{text}");
    assert_eq!(read.calls, calls, "{text}");
}

/// Checks that a text has no call and stays as it is.
#[track_caller]
fn check_text(protocol: ToolProtocol, text: &str) {
    let read = read_all_cuts(protocol, text, Some(FinishKind::Stop));
    assert_eq!(read, Read { text: text.into(), order: read.order.clone(), ..Read::default() });
}

#[test]
fn hermes() {
    let f = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
    check(Hermes, f, "", &["f {\"a\":1}"]);
    check(Hermes, &format!("\n{f}\n"), "", &["f {\"a\":1}"]);
    check(Hermes, &format!("I look.\n{f}\n{f}\n"), "I look.\n", &["f {\"a\":1}"; 2]);
    check(Hermes, &format!("A {f}\n\nthen {f}.\n"), "A \n\nthen .\n", &["f {\"a\":1}"; 2]);
    check(Hermes, "<tool_call>{\"name\":\"no\"}</tool_call>", "", &["no {}"]);
    // The closing tag within a string, and other tags.
    check(
        Hermes,
        "<tool_call>{\"name\":\"g\",\"arguments\":{\"text\":\"</tool_call>\\\" <tool_call>\"}}</tool_call>x",
        "x",
        &["g {\"text\":\"</tool_call>\\\" <tool_call>\"}"],
    );
    // Several in one tag, a list, a missing or doubled closing tag.
    let two = ["f {}", "clock {}"];
    check(Hermes, "<tool_call>{\"name\":\"f\"}\n{\"name\":\"clock\"}</tool_call>", "", &two);
    check(Hermes, "<tool_call>[{\"name\":\"f\"},{\"name\":\"clock\"}]</tool_call>", "", &two);
    check(
        Hermes,
        "<tool_call>{\"name\":\"f\"}\n<tool_call>{\"name\":\"clock\"}</tool_call></tool_call>",
        "",
        &two,
    );
    // The form of Qwen3-Coder.
    check(
        Hermes,
        "<tool_call><function=f><parameter=a>1</parameter></function></tool_call>",
        "",
        &["f {\"a\":1}"],
    );
}

#[test]
fn an_object_before_a_closing_tag_alone_is_a_call() {
    let f = "{\"name\": \"f\", \"arguments\": {\"a\": 1}}";
    for protocol in [Hermes, Xml] {
        check(protocol, &format!("{f}</tool_call>"), "", &["f {\"a\":1}"]);
        check(
            protocol,
            &format!("I look.\n{f}\n</tool_call>\nx"),
            "I look.\n\nx",
            &["f {\"a\":1}"],
        );
        check(protocol, &format!("I look. {f}</tool_call>\n"), "I look. ", &["f {\"a\":1}"]);
        check(protocol, &format!("{f}\n{f}</tool_call>"), "", &["f {\"a\":1}"; 2]);
        check(protocol, &format!("{f}</tool_call>\n{f}</tool_call>"), "", &["f {\"a\":1}"; 2]);
        check(protocol, &format!("{f}</tools>"), "", &["f {\"a\":1}"]);
        let reasoning = "<think>\nHm.\n</think>\n\n";
        check(protocol, &format!("{reasoning}{f}</tool_call>"), reasoning, &["f {\"a\":1}"]);
        check(protocol, &format!("Hm.</think>{f}</tool_call>"), "Hm.</think>", &["f {\"a\":1}"]);
        // Also to a tool that does not exist, and with mistakes.
        check(protocol, "{\"name\": \"no\", \"arguments\": {}}</tool_call>", "", &["no {}"]);
        let open = "{'name': 'f', 'arguments': {'a': 1}</tool_call>";
        check(protocol, open, "", &["~f {\"a\":1}"]);
        let broken = "{\"name\": \"f\", \"arguments\": {\"a\": b c}}</tool_call>";
        check(protocol, broken, "", &["f {\"a\": b c}}"]);
        let chat = "{\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": {}}}</tool_call>";
        check(protocol, chat, "", &["f {}"]);
        for text in [
            format!("`{f}</tool_call>`"),
            format!("> {f}</tool_call>"),
            format!("It ends so: {f} and then."),
            format!("It was\n{f}\nand no more."),
            "{\"name\": \"Bob\", \"age\": 3} is a record".to_owned(),
        ] {
            check_text(protocol, &text);
        }
    }
    for tag in ["tool_calls", "toolcall", "function_call"] {
        check(Hermes, &format!("<{tag}>{f}</{tag}>"), "", &["f {\"a\":1}"]);
        check(Hermes, &format!("{f}</{tag}>"), "", &["f {\"a\":1}"]);
    }
    check(Hermes, &format!("<|tool_call|>[{f}]<|/tool_call|>"), "", &["f {\"a\":1}"]);
    for protocol in [Hermes, Xml] {
        let llama = "<function=f>{\"a\": 1}</function>";
        check(protocol, llama, "", &["f {\"a\":1}"]);
        check(protocol, &format!("{llama}\n{llama}"), "", &["f {\"a\":1}"; 2]);
        check(protocol, &format!("<tool_call>{llama}</tool_call> x"), " x", &["f {\"a\":1}"]);
        check(protocol, "<function=f>{\"a\": 1</function>", "", &["~f {\"a\":1}?"]);
        check(protocol, "<function=f>{\"a\": 1", "", &["f {\"a\": 1?"]);
        check_text(protocol, "<function=f>{ x }</function>");
    }
    // In the middle of a sentence it is rather a quotation. The tag itself is none of the text.
    check(
        Hermes,
        &format!("It ends with {f}</tool_call> there."),
        &format!("It ends with {f} there."),
        &[],
    );
}

#[test]
fn objects_in_tools_are_calls_but_no_definitions() {
    let f = "{\"name\": \"f\", \"arguments\": {\"a\": 1}}";
    let definition = "{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"d\", \
        \"parameters\": {\"type\": \"object\", \"properties\": {}}}}";
    for protocol in [Hermes, Xml] {
        check(protocol, &format!("<tools>\n{f}\n</tools>"), "", &["f {\"a\":1}"]);
        check(protocol, &format!("So.\n<tools>{f}</tools>\nx"), "So.\n\nx", &["f {\"a\":1}"]);
        check(protocol, &format!("<tools>{f}\n{f}</tools>"), "", &["f {\"a\":1}"; 2]);
        check(protocol, &format!("<tools>[{f}]</tools>"), "", &["f {\"a\":1}"]);
        check(protocol, &format!("<tools>{f}</tool_call>"), "", &["f {\"a\":1}"]);
        check(protocol, &format!("<tools>{f}"), "", &["f {\"a\":1}?"]);
        check(protocol, &format!("<tool_call>{f}</tools>"), "", &["f {\"a\":1}"]);
        check(protocol, "<tools>{\"name\": \"no\", \"arguments\": {}}</tools>", "", &["no {}"]);
        for text in [
            format!("<tools>\n{definition}\n</tools>"),
            "I have no <tools> here".to_owned(),
            "<tools></tools>".to_owned(),
            format!("`<tools>{f}</tools>`"),
        ] {
            check_text(protocol, &text);
        }
    }
}

#[test]
fn an_object_that_is_the_whole_answer_is_a_call_to_an_offered_tool() {
    let f = "{\"name\": \"f\", \"arguments\": {\"a\": 1}}";
    let chat =
        "{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"a\": 1}}}";
    let list = format!("{{\"tool_calls\": [{f}]}}");
    for protocol in [Hermes, Xml, React, Arrow] {
        for answer in [
            f.to_owned(),
            format!("\n {f}\n"),
            format!("```json\n{f}\n```"),
            format!("```\n{f}\n```\n"),
            format!("```json {f}```"),
            format!("```tool_call\n{f}\n```"),
            chat.to_owned(),
            list.clone(),
            format!("[{f}]"),
        ] {
            check(protocol, &answer, "", &["f {\"a\":1}?"]);
        }
        if protocol != Arrow {
            check(protocol, &format!("{f}\n{f}"), "", &["f {\"a\":1}?"; 2]);
        }
        check(protocol, "{\"name\": \"clock\"}", "", &["clock {}?"]);
        // Without the last bracket.
        check(protocol, f.strip_suffix('}').unwrap(), "", &["~f {\"a\":1}?"]);
        for text in [
            "{\"name\": \"no\", \"arguments\": {}}".to_owned(),
            "{\"name\": \"f\", \"price\": 3}".to_owned(),
            "{\"name\": \"f\", \"description\": \"d\", \"parameters\": {}}".to_owned(),
            "{\"name\": \"Bob\", \"age\": 3}".to_owned(),
            "{\"name".to_owned(),
            "[1, 2]".to_owned(),
            format!("{f} is how it would be called"),
            format!("It would be\n{f}"),
            format!("```json\n{f}\n```\nis how it would be called"),
            format!("So:\n```json\n{f}\n```"),
            "```python\nx\n```".to_owned(),
            "```json\n{\"a\": 1}\n```".to_owned(),
        ] {
            check_text(protocol, &text);
        }
        for cut in 0..f.len() {
            let read = read_all_cuts(protocol, &f[..cut], Some(FinishKind::Length));
            assert!(read.calls.iter().all(|call| call.ends_with('?')), "{read:?}");
            assert!(cut < 12 || read.text.is_empty(), "{read:?} of {}", &f[..cut]);
        }
    }
    check(Pythonic, &format!("```json\n{f}\n```"), "", &["f {\"a\":1}?"]);
}

#[test]
fn the_form_of_gemma_is_read_in_every_protocol() {
    let f = "<|tool_call>call:f{a:1,b:<|\"|>it's \"}{\" <b>\\n<|\"|>}<tool_call|>";
    let arguments = json!({"a": 1, "b": "it's \"}{\" <b>\\n"});
    for protocol in [Hermes, Xml, React, Pythonic, Arrow] {
        check(protocol, f, "", &[&format!("f {arguments}")]);
        check(protocol, &format!("So.\n{f}x"), "So.\nx", &[&format!("f {arguments}")]);
        check(protocol, "<|tool_call>call:clock{}<tool_call|>", "", &["clock {}"]);
        let nested =
            "<|tool_call>call:no.x{o:{k:[1,true,null,<|\"|>a<|\"|>]},s:\"q}\\\"\"}<tool_call|>";
        let arguments = json!({"o": {"k": [1, true, null, "a"]}, "s": "q}\""});
        check(protocol, nested, "", &[&format!("no.x {arguments}")]);
        let escape = "<start_function_call>call:g{text:<escape>Oslo<escape>}<end_function_call>";
        check(protocol, escape, "", &["g {\"text\":\"Oslo\"}"]);
        check(protocol, "<|tool_call>call:f{a:1<tool_call|>", "", &["~f {\"a\":1}"]);
        check(protocol, "<|tool_call>call:f{a:1}", "", &["f {\"a\":1}?"]);
        for text in
            ["<|tool_call>: a token", "<|tool_call>call: x", "`<|tool_call>call:f{}<tool_call|>`"]
        {
            check_text(protocol, text);
        }
        for cut in 0..f.len() {
            let read = read_all_cuts(protocol, &f[..cut], Some(FinishKind::Length));
            assert!(read.text.len() <= 1, "{read:?} of {}", &f[..cut]);
            assert!(read.calls.iter().all(|call| call.ends_with('?')), "{read:?}");
        }
    }
    check(Hermes, &format!("{f}{f}"), "", &[&*format!("f {arguments}"); 2]);
}

#[test]
fn mistakes_of_json_are_repaired() {
    for (body, expected) in [
        ("{'name': 'f', 'arguments': {'a': 1,}}", "~f {\"a\":1}"),
        ("{\"name\": \"g\", \"arguments\": {\"text\": \"a\nb\"}}", "~g {\"text\":\"a\\nb\"}"),
        ("{\"name\": \"f\", \"arguments\": {\"a\": 1}", "~f {\"a\":1}"),
        ("{\"name\": \"f\", \"arguments\": {\"a\": 1}}}", "f {\"a\":1}"),
        ("{\"name\": \"f\", \"arguments\": {\"a\": True}}", "~f {\"a\":true}"),
        ("{\"name\": \"f\", \"arguments\": {\"a\": x}}", "f {\"a\": x}}"),
        ("{\"name\": \"g\", \"arguments\": {\"text\": \"x}}\n", "g {\"text\": \"x}}\n"),
    ] {
        check(Hermes, &format!("a <tool_call>{body}</tool_call> b"), "a  b", &[expected]);
    }
}

#[test]
fn xml() {
    let f = "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2\n</parameter>\n\
             </function>\n</tool_call>";
    check(Xml, f, "", &["f {\"a\":1,\"b\":\"2\"}"]);
    check(Xml, &format!("x\n{f}\n{f}"), "x\n", &["f {\"a\":1,\"b\":\"2\"}"; 2]);
    check(Xml, "<tool_call><function=clock>\n</function></tool_call>", "", &["clock {}"]);
    // Without the outer tags, or with only one of them.
    let clock = "<function=clock></function>";
    for text in [clock, &format!("{clock}</tool_call>"), &format!("<tool_call>{clock}")] {
        check(Xml, text, "", &["clock {}"]);
    }
    check(Xml, &format!("{clock}{clock} x"), " x", &["clock {}"; 2]);
    check(Xml, "<tool_call>{\"name\":\"f\"}</tool_call>", "", &["f {}"]);
    // Values with tags, line feeds and white space of their own.
    for value in [
        "</parameter> <b>",
        "  a\n\nb ",
        "</function>",
        "<parameter=b>x</parameter> y",
        "</tool_call>",
        "é < </",
        "",
    ] {
        check(
            Xml,
            &format!(
                "<tool_call><function=g><parameter=text>\n{value}\n</parameter></function></tool_call>."
            ),
            ".",
            &[&format!("g {}", json!({"text": value}))],
        );
    }
    let call = "<tool_call><function=g><parameter=text>  x y </parameter></function></tool_call>";
    check(Xml, call, "", &["g {\"text\":\"x y\"}"]);
    // A closing tag is missing.
    let call = "<function=g><parameter=text>x</function></tool_call>";
    check(Xml, call, "", &["g {\"text\":\"x\"}"]);
    check(
        Xml,
        "<function=g><parameter=text>x</parameter></tool_call>",
        "",
        &["g {\"text\":\"x\"}"],
    );
}

#[test]
fn react() {
    let f = "Action: f\nAction Input: {\"a\": 1}";
    check(React, f, "", &["f {\"a\": 1}"]);
    check(React, &format!("Thought: so\n{f}\n"), "Thought: so\n", &["f {\"a\": 1}"]);
    check(React, &format!("{f}\n{f}"), "", &["f {\"a\": 1}"; 2]);
    check(React, "**Action:** `f`\n\n**Action Input:** {'a': 1}", "", &["~f {\"a\":1}"]);
    check(React, "Action: f\nAction Input:\n```json\n{\"a\": 1}\n```\nx", "\nx", &["f {\"a\": 1}"]);
    check(React, "Action: f\nAction Input: ```json {\"a\": 1}```\n", "", &["f {\"a\": 1}"]);
    let call = "Action: g\nAction Input: ```json {\"text\": \"x\"}\n```";
    check(React, call, "", &["g {\"text\": \"x\"}"]);
    check(React, "Action: clock\nAction Input: None\n", "", &["clock {}"]);
    check(React, "Action: clock\nAction Input:\n```\n```\nx", "\nx", &["clock {}"]);
    check(React, "Action: g\nAction Input: ```json\n```", "", &["g {}"]);
    check(React, "Action: clock", "", &["clock {}?"]);
    check(React, "Action: g\nAction Input: \"Oslo, now\"\n", "", &["~g {\"text\":\"Oslo, now\"}"]);
    check(React, "Action: f\nAction Input: Oslo\n", "", &["f Oslo"]);
    check(React, "Thought: ok\nFinal Answer: 42", "Thought: ok\n42", &[]);
    for text in [
        "Action: the hero fights\nAction Input: x",
        "An Action: f\nsays Action Input: {}",
        "Action: f\nnothing",
        "Actions: none",
        "Observation: it is wet",
    ] {
        check_text(React, text);
    }
}

#[test]
fn what_the_model_imagines_as_a_result_is_dropped() {
    let text = "Action: f\nAction Input: {\"a\": 1}\nObservation: 2\nAction: g\nAction Input: {}\n";
    let read = read_all_cuts(React, text, Some(FinishKind::Stop));
    assert_eq!((&*read.text, &read.calls[..]), ("", &["f {\"a\": 1}".to_owned()][..]));
    assert_eq!(read.problems, ["imagined_results"]);
    check(React, "Action: clock\nObservation: noon", "", &["clock {}"]);
}

#[test]
fn pythonic() {
    check(Pythonic, "[f(a=1), g(text=\"x\")]", "", &["f {\"a\":1}", "g {\"text\":\"x\"}"]);
    check(Pythonic, "x: [f(a=1)] y", "x:  y", &["f {\"a\":1}"]);
    check(Pythonic, "x\n[no(a=1,\n b='it\\'s')]", "x\n", &["no {\"a\":1,\"b\":\"it's\"}"]);
    check(
        Pythonic,
        "[f(b=\"[(')\", **{'c-d': [1, {}]})]",
        "",
        &["f {\"b\":\"[(')\",\"c-d\":[1,{}]}"],
    );
    check(Pythonic, "[clock()]", "", &["clock {}"]);
    check(Pythonic, "[no(größe='x', 大=1)]", "", &["no {\"größe\":\"x\",\"大\":1}"]);
    check(Pythonic, "<|python_start|>[clock()]<|python_end|>\n", "", &["clock {}"]);
    for call in [
        "<|python_tag|>{\"name\": \"f\", \"parameters\": {\"a\": 1}}<|eom_id|>",
        "<|python_tag|>f.call(a=1)",
        "{\"name\": \"f\", \"parameters\": {\"a\": 1}}",
        "[{\"name\": \"f\", \"arguments\": {\"a\": 1}}]",
    ] {
        check(Pythonic, call, "", &["f {\"a\":1}"]);
    }
    let two = "<|python_tag|>{\"name\": \"clock\"}; {\"name\": \"f\"}";
    check(Pythonic, two, "", &["clock {}", "f {}"]);
    check(Pythonic, "[f(a=?)]", "", &["f a=?"]);
    for text in [
        "[1, 2]",
        "[see](x) [no(a=1)]",
        "[no(x)]",
        "[no(a=1) for x in y]",
        "[no(a==1)]",
        "{\"name\": \"Bob\", \"age\": 3}",
        "x {\"name\": \"f\", \"arguments\": {}}",
        "[",
        "[f",
    ] {
        check_text(Pythonic, text);
    }
}

#[test]
fn arrow() {
    check(Arrow, "=>#f {\"a\": 1}", "", &["f {\"a\": 1}"]);
    check(
        Arrow,
        "I look.\n=>#f\n{\"a\": {\"b\": \"}\"}} x",
        "I look.\n x",
        &["f {\"a\": {\"b\": \"}\"}}"],
    );
    check(Arrow, "=>#no-tool {'a': 1}", "", &["~no-tool {\"a\":1}"]);
    let read = read_all_cuts(Arrow, "=>#f {}\n=>#g {}\nx", Some(FinishKind::Stop));
    assert_eq!(
        (&*read.text, &read.calls[..]),
        ("\nx", &["f {}".to_owned(), "!g {}".to_owned()][..])
    );
    assert_eq!(read.problems, ["second_call"]);
    for text in ["a =>#f {}", "=> #f {}", "=>#f [1]", "=>#{}", "=>#f", "    =>#f {}"] {
        check_text(Arrow, text);
    }
}

/// A call of each protocol.
const CALLS: [(ToolProtocol, &str); 6] = [
    (Hermes, "<tool_call>{\"name\": \"clock\", \"arguments\": {}}</tool_call>"),
    (Xml, "<tool_call><function=clock></function></tool_call>"),
    (React, "Action: clock\nAction Input: {}\n"),
    (Pythonic, "[clock()]"),
    (Pythonic, "<|python_tag|>{\"name\": \"clock\", \"parameters\": {}}"),
    (Arrow, "=>#clock {}"),
];

#[test]
fn nothing_in_code_quotes_results_or_reasoning_is_a_call() {
    for (protocol, call) in CALLS {
        check(protocol, call, "", &["clock {}"]);
        let quoted = call.lines().map(|line| format!("> {line}\n")).collect::<String>();
        for text in [
            format!("```\n{call}\n```"),
            format!("So:\n\n~~~xml\nx\n{call}\n~~~\n"),
            format!("```\n{call}"),
            quoted,
            format!("<think>\n{call}\n</think>"),
            format!("<tool_response>\n{call}\n</tool_response>"),
        ] {
            check_text(protocol, &text);
        }
        if !call.contains('\n') {
            check_text(protocol, &format!("as `{call}` says"));
        }
        // The rest is read again.
        let after = format!("```\n{call}\n```\n{call}");
        check(protocol, &after, &format!("```\n{call}\n```\n"), &["clock {}"]);
        // Reasoning passes unread.
        let mut reader = CallReader::new(protocol, &tools()).unwrap();
        let reasoning = vec![Delta::Reasoning(call.to_owned())];
        assert_eq!(reader.read(reasoning.clone()), reasoning);
        assert_eq!(reader.finish(), []);
    }
}

#[test]
fn reasoning_ends_also_within_open_code() {
    let reasoning = "<think>\n```\nx\n</think>\n";
    for (protocol, call) in CALLS {
        check(protocol, &format!("{reasoning}{call}"), reasoning, &["clock {}"]);
    }
}

#[test]
fn prose_about_the_protocol_stays_text() {
    for text in ["the <tool_call> tag", "a < b", "<tool", "<tool_calls>", "x <tool_call>: y"] {
        check_text(Hermes, text);
    }
    for text in ["<function=NAME> opens it", "<functions>"] {
        check_text(Xml, text);
    }
}

#[test]
fn a_missing_end_is_accepted_at_a_good_end_and_is_no_seal() {
    for (protocol, text, expected) in [
        (Hermes, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}", "f {\"a\":1}?"),
        (Hermes, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}", "f {\"a\": 1}?"),
        (Xml, "<tool_call><function=f><parameter=a>1</parameter>", "f {\"a\":1}?"),
        (Pythonic, "<|python_tag|>[f(a=1)", "f {\"a\":1}"),
    ] {
        for end in [Some(FinishKind::Stop), Some(FinishKind::Length), None] {
            let read = read_all_cuts(protocol, text, end);
            assert_eq!((&*read.text, &read.calls[..]), ("", &[expected.to_owned()][..]), "{text}");
        }
    }
}

#[test]
fn a_call_that_is_cut_off_never_leaks_and_is_never_sealed() {
    let calls = [
        (
            Hermes,
            "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1, \"b\": \"x\"}}</tool_call>",
        ),
        (Xml, "<tool_call><function=f><parameter=a>1</parameter></function></tool_call>"),
        (React, "Action: f\nAction Input: {\"a\": 1}\n"),
        (Pythonic, "[f(a=1)]"),
        (Pythonic, "<|python_tag|>{\"name\": \"f\", \"parameters\": {\"a\": 1}}"),
        (Arrow, "=>#f {\"a\": 1}"),
    ];
    for (protocol, call) in calls {
        let whole = read(protocol, &[call], Some(FinishKind::Length));
        assert_eq!((whole.calls.len(), whole.text.as_str()), (1, ""));
        for length in 0..call.len() {
            let read = read_all_cuts(protocol, &call[..length], Some(FinishKind::Length));
            assert!(read.text.len() <= 1, "{:?} of {}", read.text, &call[..length]);
            let sealed = read.calls.iter().any(|call| !call.ends_with('?'));
            assert!(!sealed || read.calls == whole.calls, "{read:?} of {}", &call[..length]);
        }
    }
}

#[test]
fn a_closing_tag_in_a_string_does_not_end_a_call_that_is_cut_off() {
    let call = "<tool_call>{\"name\": \"g\", \"arguments\": {\"text\": \"the tag </tool_call> ends";
    let read = read_all_cuts(Hermes, call, Some(FinishKind::Length));
    assert_eq!((&*read.text, read.calls.len()), ("", 1));
    assert!(read.calls[0].ends_with(" ends?"), "{:?} is not sealed", read.calls);
}

#[test]
fn the_end_of_a_function_in_a_value_that_is_cut_off_seals_nothing() {
    let call = "<tool_call><function=g><parameter=text>write </function>";
    let read = read_all_cuts(Xml, call, Some(FinishKind::Length));
    assert_eq!(read.calls, ["g {\"text\":\"write </function>?"]);
    check(Xml, call, "", &["g {\"text\":\"write\"}"]);
}

#[test]
fn a_value_that_is_cut_off_is_the_last_of_its_object() {
    let call = "<tool_call><function=f><parameter=b>2</parameter><parameter=a>x";
    let read = read_all_cuts(Xml, call, Some(FinishKind::Length));
    assert_eq!(read.calls, ["f {\"b\":\"2\",\"a\":\"x?"]);
}

#[test]
fn a_parameter_whose_tag_does_not_end_cuts_the_arguments_off() {
    let begin = "<tool_call><function=f><parameter=b>2</parameter><parameter=a";
    let rest = "\n1</parameter></function>";
    let cut_off = ["f {\"b\":\"2\",\"?"];
    check(Xml, &format!("{begin}{rest}</tool_call>"), &format!("a{rest}"), &cut_off);
    check(Xml, begin, "", &cut_off);
    check(Xml, "<function=f><parameter=a", "", &["f {\"?"]);
}

#[test]
fn a_list_that_is_cut_off_after_its_first_call_seals_nothing() {
    for (end, expected) in [(FinishKind::Stop, "clock {}"), (FinishKind::Length, "clock {}?")] {
        let read = read_all_cuts(Pythonic, "[clock()", Some(end));
        assert_eq!(read.calls, [expected]);
    }
    check_text(Pythonic, "[clock() is a call]");
}

#[test]
fn a_tag_in_a_quoted_line_begins_no_reasoning() {
    let quoted = "> Begin with <think>.\n> <tool_response>\n";
    for (protocol, call) in CALLS {
        check(protocol, &format!("{quoted}{call}"), quoted, &["clock {}"]);
    }
}

#[test]
fn a_call_is_sealed_at_its_end_and_text_is_held_back_no_longer_than_it_may_begin_one() {
    let mut reader = CallReader::new(Hermes, &tools()).unwrap();
    let mut read = |text: &str| {
        let deltas = reader.read(vec![Delta::Text(text.into())]);
        let kinds = deltas.into_iter().map(|delta| {
            if let Delta::Text(text) = delta {
                return text;
            }
            if matches!(delta, Delta::Call(_)) { "call".into() } else { "seal".into() }
        });
        kinds.collect::<Vec<_>>()
    };
    assert_eq!(read("I "), ["I "]);
    assert_eq!(read("look <to"), ["look "]);
    assert_eq!(read("p> <tool_call"), ["<top> "]);
    assert_eq!(read(">{\"name\": \"f\"}"), ["call"]);
    assert_eq!(read("</tool_call"), Vec::<String>::new());
    assert_eq!(read(">"), ["seal"]);
    assert_eq!(read("\n"), Vec::<String>::new());
    assert_eq!(read("Done"), ["\nDone"]);
}

/// If a step read or moved all of the text behind it, this test would take minutes.
#[test]
fn a_long_text_takes_linear_time() {
    let call = "<tool_call>{\"name\": \"f\"}";
    for (protocol, begin, repeated, calls) in [
        (Hermes, call, "}", 1),
        (Hermes, "", "<tool_call>x", 0),
        (Xml, "<function=f><parameter=a>1</parameter>", "x", 1),
        (Xml, "", "<function=", 0),
        (Pythonic, "", "[f(a=1)x", 0),
        (Hermes, "", "{\"name\":", 0),
        (Hermes, "", "{\"name\":\n{}", 0),
        (Hermes, "", "<tools>{", 0),
        (Hermes, "<|tool_call>call:f{b:<|\"|>", "x", 1),
    ] {
        let text = format!("{begin}{}\n.", repeated.repeat((1 << 19) / repeated.len()));
        let read = read(protocol, &[&text], Some(FinishKind::Stop));
        assert_eq!(read.calls.len(), calls, "{begin}{repeated}");
        assert!(calls > 0 || read.text == text, "{begin}{repeated}");
    }
}

#[test]
fn without_tools_or_with_native_calls_there_is_no_reader() {
    let none: Arc<[ToolDefinition]> = Arc::new([]);
    assert!(CallReader::new(Hermes, &none).is_none());
    assert!(CallReader::new(ToolProtocol::Native, &tools()).is_none());
}

/// Pieces of which responses are made: parts of all protocols, and what confuses a reader.
fn pieces() -> impl Strategy<Value = String> {
    let words = [
        "<tool_call>",
        "</tool_call>",
        "<function=f>",
        "</function>",
        "<parameter=a>",
        "</parameter>",
        "{\"name\": \"f\", \"arguments\": {\"a\": 1}}",
        "{\"name\": \"f\"",
        "{",
        "}",
        "[",
        "]",
        "\"",
        "'",
        "Action: f\n",
        "Action Input:",
        "Observation:",
        "Final Answer:",
        "[f(a=1)",
        ", g(text='x')]",
        "<|python_tag|>",
        "=>#f ",
        "=>#",
        "\n",
        " ",
        "```",
        "`",
        "> ",
        "<think>",
        "</think>",
        "é",
        "<",
        "f",
        "\\",
        ",",
        "(",
        ")",
        "text",
        "<tool_response>",
        "</tool_response>",
        "1",
        "\u{2028}",
        "**Action:** f",
        "<tools>",
        "</tools>",
        "```json\n",
        "<|tool_call>call:f{",
        "<|\"|>",
        "<tool_call|>",
        "{\"name\": \"g\", \"arguments\": {}}",
    ];
    proptest::collection::vec(proptest::sample::select(words.to_vec()), 0..14)
        .prop_map(|words| words.concat())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_cut_gives_the_same(
        text in pieces(),
        protocol in proptest::sample::select(vec![Hermes, Xml, React, Pythonic, Arrow]),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..6),
        end in proptest::sample::select(vec![Some(FinishKind::Stop), Some(FinishKind::Length), None]),
    ) {
        let whole = read(protocol, &[&text], end);
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
        places.retain(|place| text.is_char_boundary(*place));
        places.sort_unstable();
        let mut cut = Vec::new();
        let mut from = 0;
        for place in places {
            cut.push(&text[from..place]);
            from = place;
        }
        cut.push(&text[from..]);
        prop_assert_eq!(&read(protocol, &cut, end), &whole);
        let chars: Vec<&str> = text.split("").filter(|piece| !piece.is_empty()).collect();
        prop_assert_eq!(&read(protocol, &chars, end), &whole);
    }
}
