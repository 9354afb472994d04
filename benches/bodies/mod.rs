//! Response bodies as the services of each wire send them.

use callsheet::types::Wire;
use callsheet::wire::Framing;
use serde_json::{Value, json};

/// The number of bytes of one read, about as from a socket.
pub(crate) const READ_BYTES: usize = 16 * 1024;

const WORDS: [&str; 10] =
    [" the", " weather", " in", " Tokyo", " is", "\n\"fine\"", " at", " 21", " °C", "."];

const PIECES: [&str; 12] =
    ["{\"", "location", "\":\"", "San", " Francisco", ",", " CA", "\",\"", "days", "\":", "7", "}"];

/// Every wire, with the framing of its streams.
pub(crate) const WIRES: [(Wire, Framing); 5] = [
    (Wire::OpenaiChat, Framing::Sse),
    (Wire::OpenaiResponses, Framing::Sse),
    (Wire::AnthropicMessages, Framing::Sse),
    (Wire::GeminiGenerate, Framing::Sse),
    (Wire::OllamaChat, Framing::JsonLines),
];

/// Returns a response of text in word-sized pieces, and of calls whose arguments are in pieces if
/// the wire has pieces.
pub(crate) fn body(wire: Wire, texts: usize, calls: usize) -> Vec<u8> {
    let words = (0..texts).map(|at| WORDS[at % WORDS.len()]);
    let events = match wire {
        Wire::OpenaiChat => openai_chat(words, calls),
        Wire::OpenaiResponses => openai_responses(words, calls),
        Wire::AnthropicMessages => anthropic(words, calls),
        Wire::GeminiGenerate => gemini(words, calls),
        Wire::OllamaChat => ollama(words, calls),
    };
    let lines = events.iter().map(|event| match wire {
        Wire::OllamaChat => format!("{event}\n"),
        Wire::OpenaiResponses | Wire::AnthropicMessages => {
            format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap())
        }
        Wire::OpenaiChat | Wire::GeminiGenerate => format!("data: {event}\n\n"),
    });
    let mut body: String = lines.collect();
    if wire == Wire::OpenaiChat {
        body.push_str("data: [DONE]\n\n");
    }
    body.into_bytes()
}

fn openai_chat<'a>(words: impl Iterator<Item = &'a str>, calls: usize) -> Vec<Value> {
    let event = |delta: Value, finish_reason: Option<&str>| {
        json!({
            "id": "chatcmpl-BqKvhz5zX6oS1oMNF0BvpQOXGmCmE",
            "object": "chat.completion.chunk",
            "created": 1_751_900_000,
            "model": "some-model-2026-01-01",
            "service_tier": "default",
            "system_fingerprint": "fp_34a54ae93c",
            "choices": [{"index": 0, "delta": delta, "logprobs": null,
                "finish_reason": finish_reason}],
        })
    };
    let mut events: Vec<Value> = words.map(|word| event(json!({"content": word}), None)).collect();
    for index in 0..calls {
        let function = json!({"name": "get_weather", "arguments": ""});
        let id = format!("call_{index:024}");
        let opening = json!({"index": index, "id": id, "type": "function", "function": function});
        events.push(event(json!({"tool_calls": [opening]}), None));
        events.extend(PIECES.map(|piece| {
            let function = json!({"arguments": piece});
            event(json!({"tool_calls": [{"index": index, "function": function}]}), None)
        }));
    }
    events.push(event(json!({}), Some("tool_calls")));
    events
}

fn openai_responses<'a>(words: impl Iterator<Item = &'a str>, calls: usize) -> Vec<Value> {
    let mut events =
        vec![json!({"type": "response.output_item.added", "output_index": 0, "sequence_number": 1,
            "item": {"id": "msg_0", "type": "message", "role": "assistant", "content": []}})];
    let item = "msg_68b5d5e5a3f8819ca1f2c6f5e2b7d4a30a1b2c3d4e5f6071";
    events.extend(words.map(|word| {
        json!({"type": "response.output_text.delta", "sequence_number": 4, "item_id": item,
            "output_index": 0, "content_index": 0, "delta": word, "logprobs": [],
            "obfuscation": "kZq4n2Hc9b"})
    }));
    for index in 1..=calls {
        let id = format!("fc_{index:048}");
        let item = |arguments: &str, status: &str| {
            json!({"id": id, "type": "function_call", "status": status, "arguments": arguments,
                "call_id": format!("call_{index:024}"), "name": "get_weather"})
        };
        let whole = PIECES.concat();
        events.push(json!({"type": "response.output_item.added", "sequence_number": 7,
            "output_index": index, "item": item("", "in_progress")}));
        events.extend(PIECES.map(|piece| {
            json!({"type": "response.function_call_arguments.delta", "sequence_number": 8,
                "item_id": id, "output_index": index, "delta": piece,
                "obfuscation": "kZq4n2Hc9b"})
        }));
        events.push(json!({"type": "response.function_call_arguments.done", "item_id": id,
            "sequence_number": 9, "output_index": index, "arguments": whole}));
        events.push(json!({"type": "response.output_item.done", "sequence_number": 10,
            "output_index": index, "item": item(&whole, "completed")}));
    }
    events.push(json!({"type": "response.completed", "sequence_number": 11,
        "response": {"id": "resp_1", "object": "response", "status": "completed", "output": [],
        "usage": {"input_tokens": 9, "output_tokens": 9, "total_tokens": 18}}}));
    events
}

fn anthropic<'a>(words: impl Iterator<Item = &'a str>, calls: usize) -> Vec<Value> {
    let begin = |index: usize, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
    let stop = |index: usize| json!({"type": "content_block_stop", "index": index});
    let mut events = vec![
        json!({"type": "message_start", "message": {"id": "msg_1", "type": "message",
            "role": "assistant", "content": [], "usage": {"input_tokens": 9, "output_tokens": 1}}}),
        begin(0, json!({"type": "text", "text": ""})),
    ];
    events.extend(words.map(|word| {
        json!({"type": "content_block_delta", "index": 0,
            "delta": {"type": "text_delta", "text": word}})
    }));
    events.push(stop(0));
    for index in 1..=calls {
        let id = format!("toolu_{index:024}");
        let block = json!({"type": "tool_use", "id": id, "name": "get_weather", "input": {}});
        events.push(begin(index, block));
        events.extend(PIECES.map(|piece| {
            json!({"type": "content_block_delta", "index": index,
                "delta": {"type": "input_json_delta", "partial_json": piece}})
        }));
        events.push(stop(index));
    }
    events.push(json!({"type": "message_delta", "usage": {"output_tokens": 99},
        "delta": {"stop_reason": "tool_use", "stop_sequence": null}}));
    events.push(json!({"type": "message_stop"}));
    events
}

fn gemini<'a>(words: impl Iterator<Item = &'a str>, calls: usize) -> Vec<Value> {
    let event = |parts: Value, finish: Option<&str>| {
        let mut candidate = json!({"content": {"parts": parts, "role": "model"}, "index": 0});
        if let Some(word) = finish {
            candidate["finishReason"] = word.into();
        }
        json!({
            "candidates": [candidate],
            "usageMetadata": {"promptTokenCount": 57, "candidatesTokenCount": 10,
                "totalTokenCount": 67,
                "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 57}]},
            "modelVersion": "some-model-2026-01-01",
            "responseId": "Jt8waMn7KOqXmtkP1sWbwAM",
        })
    };
    let mut events: Vec<Value> = words.map(|word| event(json!([{"text": word}]), None)).collect();
    events.extend((0..calls).map(|day| {
        let args = json!({"location": "San Francisco, CA", "days": day});
        event(json!([{"functionCall": {"name": "get_weather", "args": args}}]), None)
    }));
    events.push(event(json!([{"text": ""}]), Some("STOP")));
    events
}

fn ollama<'a>(words: impl Iterator<Item = &'a str>, calls: usize) -> Vec<Value> {
    let event = |message: Value| {
        json!({"model": "some-model", "created_at": "2026-01-01T00:00:00.123456789Z",
            "message": message, "done": false})
    };
    let mut events: Vec<Value> =
        words.map(|word| event(json!({"role": "assistant", "content": word}))).collect();
    events.extend((0..calls).map(|day| {
        let arguments = json!({"location": "San Francisco, CA", "days": day});
        let call = json!({"function": {"name": "get_weather", "arguments": arguments}});
        event(json!({"role": "assistant", "content": "", "tool_calls": [call]}))
    }));
    events.push(json!({"model": "some-model", "created_at": "2026-01-01T00:00:00.123456789Z",
        "message": {"role": "assistant", "content": ""}, "done": true, "done_reason": "stop",
        "total_duration": 1_234_567_890_u64, "prompt_eval_count": 57, "eval_count": 99}));
    events
}
