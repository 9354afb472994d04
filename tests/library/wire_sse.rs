//! The decoder of server-sent events agrees with the crate `sse-stream` on every stream that both
//! read in the same way.
#![expect(clippy::unwrap_used, reason = "a test helper that fails is a failed test")]

use std::convert::Infallible;
use std::io::Cursor;

use callsheet::wire::{SseDecoder, SseEvent};
use futures::{FutureExt, StreamExt, stream};
use proptest::prelude::*;
use sse_stream::SseByteStream;

type Event = (String, String);

fn ours(pieces: &[&[u8]]) -> Vec<Event> {
    let mut events = Vec::new();
    let mut sink = |event: SseEvent<'_>| events.push((event.name.into(), event.data.into()));
    let mut decoder = SseDecoder::new(1 << 20);
    for piece in pieces {
        decoder.push(piece, &mut sink).unwrap();
    }
    decoder.finish(&mut sink).unwrap();
    events
}

fn theirs(pieces: &[&[u8]]) -> Vec<Event> {
    let pieces: Vec<_> =
        pieces.iter().map(|piece| Ok::<_, Infallible>(Cursor::new(piece.to_vec()))).collect();
    SseByteStream::new(stream::iter(pieces))
        .map(Result::unwrap)
        .filter_map(|sse| async move { Some((sse.event.unwrap_or_default(), sse.data?)) })
        .collect()
        .now_or_never()
        .unwrap()
}

/// Generates lines that both read in the same way: no field `error`, no bare JSON, no blanks before
/// the name of a field, and no event named `error`, which counts here even without data.
fn line() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => "data: ?[^\r\n\u{0}]{0,12}",
        2 => "event: ?[a-df-z]{0,4}",
        1 => "id: ?[a-z0-9]{0,3}",
        1 => "retry: ?[0-9]{1,4}",
        1 => ":[^\r\n]{0,8}",
        1 => Just("data".to_owned()),
        1 => "[f-z]{1,5}: ?[a-z]{0,3}",
        4 => Just(String::new()),
    ]
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    let end = prop_oneof![Just("\n"), Just("\r\n"), Just("\r")];
    let mark = prop_oneof![4 => Just(""), 1 => Just("\u{FEFF}")];
    (mark, end, proptest::collection::vec(line(), 0..24)).prop_map(|(mark, end, mut lines)| {
        // `sse-stream` drops an event that the end of the body cuts off.
        lines.extend([String::new(), String::new()]);
        format!("{mark}{}", lines.join(end)).into_bytes()
    })
}

proptest! {
    #[test]
    fn both_see_the_same_events(
        body in body(),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..5),
    ) {
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(body.len() + 1)).collect();
        cuts.extend([0, body.len()]);
        cuts.sort_unstable();
        let pieces: Vec<_> = cuts.windows(2).map(|cut| &body[cut[0]..cut[1]]).collect();
        prop_assert_eq!(ours(&pieces), theirs(&[&body]));
    }
}
