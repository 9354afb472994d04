//! Properties that hold for any bytes; used by the fuzz targets and by `tests/library/fuzzed.rs`.

use callsheet::response::{
    ParsedArguments, ResponseAssembler, ResponseLimits, describe_response, ended_well,
    parse_arguments,
};
use callsheet::types::{CALLS_MAX, Wire};
use callsheet::wire::{Decoder, DecoderOptions, Delta, Framing, SseDecoder, SseEvent};
use serde_json::Value;

const FRAMINGS: [Framing; 4] =
    [Framing::Sse, Framing::JsonLines, Framing::Json, Framing::JsonArray];

/// Small limits, so that fuzzed bytes reach them.
const LIMITS: (DecoderOptions, ResponseLimits) = (
    DecoderOptions {
        event_bytes_max: 1 << 16,
        body_bytes_max: 1 << 18,
        output_tokens_max: None,
        fast_path: true,
    },
    ResponseLimits { arguments_bytes_max: 1 << 12, calls_max: 64, text_bytes_max: 1 << 16 },
);

/// Checks that any split of a body gives the same events, within the length limit.
pub(crate) fn sse(body: &[u8]) {
    let events = |pieces: &[&[u8]]| {
        let mut events = Vec::new();
        let mut sink = |event: SseEvent<'_>| {
            // A byte that is not UTF-8 is replaced by three bytes.
            assert!(event.data.len() <= 3 * 4096);
            events.push((event.name.to_owned(), event.data.to_owned(), event.lossy));
        };
        let mut decoder = SseDecoder::new(4096);
        let mut result = Ok(());
        for piece in pieces {
            result = result.and_then(|()| decoder.push(piece, &mut sink));
        }
        let result = result.and_then(|()| decoder.finish(&mut sink));
        (result.is_ok(), events)
    };
    let (whole_ok, whole) = events(&[body]);
    let (cut_ok, cut) = events(&cuts(body));
    assert_eq!(whole_ok, cut_ok);
    // When a limit ends the body, one split may have let more events through.
    let common = if whole_ok { whole.len().max(cut.len()) } else { whole.len().min(cut.len()) };
    assert!(whole.iter().take(common).eq(cut.iter().take(common)));
}

/// Checks that any split of a body, in any framing, gives the same response within its limits.
pub(crate) fn dialect(wire: Wire, body: &[u8]) {
    for framing in FRAMINGS {
        let whole = decode(wire, framing, &[body]);
        let cut = decode(wire, framing, &cuts(body));
        assert!(
            whole == cut,
            "the split changes the response: {} {}",
            describe_response(&whole),
            describe_response(&cut)
        );
        check(&whole);
    }
}

/// Checks that arguments are an object or a reported problem, and that cut arguments are never parsed
/// as another object.
pub(crate) fn arguments(raw: &[u8]) {
    let Ok(raw) = std::str::from_utf8(raw) else { return };
    match parse_arguments(raw) {
        ParsedArguments::Object { value, decoded_twice: _ } => {
            assert!(value.is_object());
            let again = parse_arguments(&value.to_string());
            assert_eq!(again.object(), Some(&value));
            if raw.trim_start().starts_with('{') {
                let end = raw.trim_end().len() - 1;
                for cut in (1..=end).filter(|cut| raw.is_char_boundary(*cut)) {
                    let cut = &raw[..cut];
                    assert!(
                        cut.trim().is_empty() || parse_arguments(cut).object().is_none(),
                        "{cut:?}"
                    );
                }
            }
        }
        ParsedArguments::CutOff | ParsedArguments::NotAnObject { .. } => {
            assert!(!serde_json::from_str::<Value>(raw).is_ok_and(|value| value.is_object()));
        }
    }
}

fn decode(wire: Wire, framing: Framing, pieces: &[&[u8]]) -> ResponseAssembler {
    let mut decoder = Decoder::new(wire, framing, LIMITS.0);
    let mut response = ResponseAssembler::new(LIMITS.1);
    let mut deltas = Vec::new();
    let mut result = Ok(());
    for piece in pieces {
        result = result.and_then(|()| decoder.push(piece, &mut deltas));
    }
    result = result.and_then(|()| decoder.finish(&mut deltas));
    deltas.extend(result.err().map(Delta::Error));
    for delta in &deltas {
        response.push(delta);
    }
    response.drop_nameless_call();
    if ended_well(&response) {
        response.seal_all();
    }
    response
}

fn check(response: &ResponseAssembler) {
    let limits = LIMITS.1;
    for text in [response.text(), response.reasoning(), response.refusal()] {
        assert!(text.len() <= limits.text_bytes_max);
    }
    assert!(response.calls().len() <= limits.calls_max.min(CALLS_MAX));
    for call in response.calls() {
        assert!(!call.name.is_empty() && call.raw.len() <= limits.arguments_bytes_max);
    }
    let described = describe_response(response);
    for call in described["tool_calls"].as_array().into_iter().flatten() {
        let is_function = call["kind"] == "function";
        assert!(call["complete"] != true || !is_function || call["arguments"].is_object());
    }
}

/// Splits the body at positions that are derived from the body itself.
fn cuts(body: &[u8]) -> Vec<&[u8]> {
    let seed = body.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut rest = body;
    let mut pieces = Vec::new();
    let mut state = seed | 1;
    while !rest.is_empty() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let longest = if seed % 3 == 0 { 1 } else { 64 };
        let at = 1 + (state >> 33) as usize % longest;
        let (piece, tail) = rest.split_at(at.min(rest.len()));
        pieces.push(piece);
        rest = tail;
    }
    pieces
}
