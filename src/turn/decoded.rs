//! A whole response at once: what `callsheet decode` shows, and what tests compare.

use serde_json::{Value, json};

use super::{Accumulator, AccumulatorLimits, Bucket, understand};
use crate::types::{ProviderError, ProviderErrorKind};
use crate::wire::{Decoder, DecoderLimits, Delta, Framing, Wire};

/// Decodes a whole response body.
///
/// What a limit cut short is an error of the response, beside what was understood before.
#[must_use]
pub fn decode_body(
    wire: Wire,
    framing: Framing,
    limits: (DecoderLimits, AccumulatorLimits),
    body: &[u8],
) -> Accumulator {
    let mut decoder = Decoder::new(wire, framing, limits.0);
    let mut deltas = Vec::new();
    let result = decoder.push(body, &mut deltas).and_then(|()| decoder.finish(&mut deltas));
    deltas.extend(result.err().map(Delta::Error));
    let mut response = Accumulator::new(limits.1);
    for delta in &deltas {
        response.push(delta);
    }
    let well = response.ended_well();
    response.end(well);
    response
}

/// Describes a response as one JSON object, in the form of `callsheet decode`.
#[must_use]
pub fn describe(response: &Accumulator) -> Value {
    let calls: Vec<Value> =
        (0_u64..).zip(response.calls()).map(|(place, call)| describe_call(place, call)).collect();
    json!({
        "text": response.text(),
        "reasoning": response.reasoning(),
        "refusal": response.refusal(),
        "tool_calls": calls,
        "finish_reason": response.finish().map(|finish| &finish.raw),
        "usage": response.usage_raw().and_then(|raw| serde_json::from_str::<Value>(raw).ok()),
        "error": response.error().map(describe_error),
        "problems": response.problems(),
    })
}

fn describe_call(place: u64, call: &Bucket) -> Value {
    let arguments = understand(&call.raw);
    let object = arguments.object().filter(|_| !call.oversize);
    json!({
        "index": call.wire_index.unwrap_or(place),
        "id": call.provider_id,
        "name": call.name,
        "arguments": object,
        "arguments_raw": call.raw,
        "complete": call.sealed && !call.disturbed && object.is_some(),
        "kind": call.kind,
    })
}

fn describe_error(error: &ProviderError) -> Value {
    let ProviderError { kind, status, code, message, retry_after: _ } = error;
    let kind: &ProviderErrorKind = kind;
    json!({ "message": message, "code": code, "status": status, "kind": kind })
}
