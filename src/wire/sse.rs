//! Server-sent events: splits bytes into events, wherever the chunks begin and end, also within a UTF-8 character.
//!
//! Memory is bounded, and most events need no allocation. Follows
//! <https://html.spec.whatwg.org/multipage/server-sent-events.html>. Also accepts what recorded
//! services send against the standard: spaces before a field's name, a last event without its
//! blank line, a field `error`, an event named `error` without data, and bare JSON between the events.

use memchr::memchr2;

/// One server-sent event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SseEvent<'a> {
    /// The event's name, or empty. A field `error` is an event named `error`.
    pub name: &'a str,
    /// The event's data lines, joined by line feeds.
    pub data: &'a str,
    /// The data was not valid UTF-8. Each invalid sequence is replaced by U+FFFD.
    pub lossy: bool,
}

/// A line or an event exceeds the size limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event is longer than {bytes_max} bytes")]
pub struct EventTooLong {
    /// The limit.
    pub bytes_max: usize,
}

/// Splits a body into events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SseDecoder {
    event_bytes_max: usize,
    /// The beginning of a line that is not complete.
    line: Vec<u8>,
    name: Vec<u8>,
    data: Vec<u8>,
    data_kind: DataKind,
    /// The last line ended with CR. If the next byte is LF, both are one line ending.
    after_cr: bool,
    /// No line has been read yet. The first line may begin with a byte order mark.
    at_start: bool,
    failed: bool,
}

/// The source of the data of the current event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DataKind {
    /// There is no data yet.
    None,
    /// `data` fields.
    Fields,
    /// JSON in the stream without a field name.
    Bare,
}

impl SseDecoder {
    /// Creates a decoder that refuses lines and events of more than `event_bytes_max` bytes.
    #[must_use]
    pub fn new(event_bytes_max: usize) -> Self {
        Self {
            event_bytes_max,
            line: Vec::new(),
            name: Vec::new(),
            data: Vec::new(),
            data_kind: DataKind::None,
            after_cr: false,
            at_start: true,
            failed: false,
        }
    }

    /// Reads more bytes and passes every event that they complete to `sink`.
    ///
    /// # Errors
    /// If a line or an event is too long. After an error, every further line is refused too.
    pub fn push(
        &mut self,
        mut bytes: &[u8],
        sink: &mut impl FnMut(SseEvent<'_>),
    ) -> Result<(), EventTooLong> {
        while let Some(first) = bytes.first() {
            if std::mem::take(&mut self.after_cr) && *first == b'\n' {
                bytes = bytes.get(1..).unwrap_or_default();
                continue;
            }
            let Some(end) = memchr2(b'\n', b'\r', bytes) else {
                self.check_size(self.line.len() + bytes.len())?;
                self.line.extend_from_slice(bytes);
                break;
            };
            let (line, rest) = bytes.split_at(end);
            self.after_cr = rest.first() == Some(&b'\r');
            bytes = rest.get(1..).unwrap_or_default();
            self.check_size(self.line.len() + line.len())?;
            if self.line.is_empty() {
                if let (Some(data), Some(b'\n')) = (self.first_line_data(line), bytes.first()) {
                    // Nearly all events are one line followed by a blank one. These need no buffer.
                    self.at_start = false;
                    bytes = bytes.get(1..).unwrap_or_default();
                    emit("", data, sink);
                } else {
                    self.read_line(line, sink)?;
                }
            } else {
                let mut whole_line = std::mem::take(&mut self.line);
                whole_line.extend_from_slice(line);
                self.read_line(&whole_line, sink)?;
                // The buffer is kept for the next incomplete line.
                whole_line.clear();
                self.line = whole_line;
            }
        }
        Ok(())
    }

    /// Handles the end of the body. An event without its blank line counts too.
    ///
    /// # Errors
    /// If the last event is too long.
    pub fn finish(&mut self, sink: &mut impl FnMut(SseEvent<'_>)) -> Result<(), EventTooLong> {
        let last = std::mem::take(&mut self.line);
        if !last.is_empty() {
            self.read_line(&last, sink)?;
        }
        self.dispatch(sink);
        Ok(())
    }

    /// Returns the data of a `data` line that is the first line of its event and ended with LF.
    fn first_line_data<'a>(&self, line: &'a [u8]) -> Option<&'a [u8]> {
        let is_first_line =
            self.data_kind == DataKind::None && self.name.is_empty() && !self.after_cr;
        let value = line.strip_prefix(b"data:").filter(|_| is_first_line)?;
        Some(value.strip_prefix(b" ").unwrap_or(value))
    }

    fn check_size(&mut self, bytes: usize) -> Result<(), EventTooLong> {
        self.failed |= bytes > self.event_bytes_max;
        let bytes_max = self.event_bytes_max;
        if self.failed { Err(EventTooLong { bytes_max }) } else { Ok(()) }
    }

    fn read_line(
        &mut self,
        line: &[u8],
        sink: &mut impl FnMut(SseEvent<'_>),
    ) -> Result<(), EventTooLong> {
        let line = if std::mem::take(&mut self.at_start) {
            line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(line)
        } else {
            line
        };
        let stripped = line.trim_ascii_start();
        let (field, value) = match memchr::memchr(b':', stripped) {
            Some(colon) => {
                let (field, value) = stripped.split_at(colon);
                let value = value.get(1..).unwrap_or_default();
                (field, value.strip_prefix(b" ").unwrap_or(value))
            }
            None => (stripped, &[][..]),
        };
        match (field, stripped.first()) {
            (_, None) => self.dispatch(sink),
            (b"data", _) => {
                if self.data_kind == DataKind::Bare {
                    self.dispatch(sink);
                }
                self.add_data(value, DataKind::Fields)?;
            }
            (b"event", _) => {
                if self.data_kind == DataKind::Bare {
                    self.dispatch(sink);
                }
                self.name.clear();
                self.name.extend_from_slice(value);
            }
            (b"error", _) => {
                self.dispatch(sink);
                self.name.extend_from_slice(b"error");
                self.add_data(value, DataKind::Fields)?;
                self.dispatch(sink);
            }
            // A comment is also ignored within bare JSON.
            _ if line.starts_with(b":") => {}
            _ if self.data_kind == DataKind::Bare => self.add_data(line, DataKind::Bare)?,
            (_, Some(b'{' | b'[')) => {
                self.dispatch(sink);
                self.add_data(line, DataKind::Bare)?;
            }
            // Other fields (`id`, `retry`) and unknown ones do not concern the data.
            (_, Some(_)) => {}
        }
        Ok(())
    }

    fn add_data(&mut self, value: &[u8], kind: DataKind) -> Result<(), EventTooLong> {
        self.check_size(self.data.len() + value.len() + 1)?;
        if self.data_kind != DataKind::None {
            self.data.push(b'\n');
        }
        self.data_kind = kind;
        self.data.extend_from_slice(value);
        Ok(())
    }

    fn dispatch(&mut self, sink: &mut impl FnMut(SseEvent<'_>)) {
        // An event named `error` counts even without data.
        if self.data_kind != DataKind::None || self.name == b"error" {
            emit(&String::from_utf8_lossy(&self.name), &self.data, sink);
        }
        self.name.clear();
        self.data.clear();
        self.data_kind = DataKind::None;
    }
}

fn emit(name: &str, data: &[u8], sink: &mut impl FnMut(SseEvent<'_>)) {
    match simdutf8::basic::from_utf8(data) {
        Ok(data) => sink(SseEvent { name, data, lossy: false }),
        Err(_) => sink(SseEvent { name, data: &String::from_utf8_lossy(data), lossy: true }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Event = (String, String);

    fn decode(chunks: &[&[u8]]) -> Vec<Event> {
        let mut events = Vec::new();
        let mut sink = |event: SseEvent<'_>| events.push((event.name.into(), event.data.into()));
        let mut decoder = SseDecoder::new(1 << 16);
        for chunk in chunks {
            decoder.push(chunk, &mut sink).unwrap();
        }
        decoder.finish(&mut sink).unwrap();
        events
    }

    /// Decodes the body in two chunks, split at every position.
    #[track_caller]
    fn check(body: &str, expected: &[(&str, &str)]) {
        let expected: Vec<Event> =
            expected.iter().map(|(name, data)| ((*name).into(), (*data).into())).collect();
        for cut in 0..=body.len() {
            let (head, tail) = body.as_bytes().split_at(cut);
            assert_eq!(decode(&[head, tail]), expected, "{body:?} cut at {cut}");
        }
    }

    #[test]
    fn events_and_their_names() {
        check("data: a\n\ndata:b\n\n", &[("", "a"), ("", "b")]);
        check("event: x\ndata: a\n\ndata: b\n\n", &[("x", "a"), ("", "b")]);
        check("data: a\nid: 7\nretry: 1\nother: y\n: comment\n\n", &[("", "a")]);
        check("data: a\ndata: b\ndata:\n\n", &[("", "a\nb\n")]);
        check("data\n\n", &[("", "")]);
        check("\n\n: hi\n\nevent: x\n\n", &[]);
        check("data:  two blanks\n\n", &[("", " two blanks")]);
    }

    #[test]
    fn every_line_ending() {
        for end in ["\n", "\r\n", "\r"] {
            let body = "data: a|data: é||: c||event: x|data: b||".replace('|', end);
            check(&body, &[("", "a\né"), ("x", "b")]);
        }
    }

    #[test]
    fn deviations_of_services_from_the_standard() {
        check("\u{FEFF}data: a\n\n", &[("", "a")]);
        check("data: a", &[("", "a")]);
        check("data: a\n", &[("", "a")]);
        check("  data: a\n \t\n data: b\n\n", &[("", "a"), ("", "b")]);
        check("data: a\n\nerror: {\"m\":1}\n\n", &[("", "a"), ("error", "{\"m\":1}")]);
        check("data: a\nerror: {}", &[("", "a"), ("error", "{}")]);
        check("event: error\n\n", &[("error", "")]);
        check("data: a\n\n{\"error\":1}\n", &[("", "a"), ("", "{\"error\":1}")]);
        check("{\n  \"a\": 1\n}\n", &[("", "{\n  \"a\": 1\n}")]);
        check("{\n: hi\n \"a\"\n :1}\n", &[("", "{\n \"a\"\n :1}")]);
        check("data: a\n{\"b\":1}\ndata: c\n\n", &[("", "a"), ("", "{\"b\":1}"), ("", "c")]);
        check("[DONE]\n", &[("", "[DONE]")]);
    }

    #[test]
    fn invalid_utf8_is_marked_as_lossy() {
        let mut seen = Vec::new();
        let mut decoder = SseDecoder::new(100);
        let mut sink = |event: SseEvent<'_>| seen.push((event.data.to_owned(), event.lossy));
        decoder.push(b"data: a\xFFb\n\ndata: c\n\n", &mut sink).unwrap();
        assert_eq!(seen, [("a\u{FFFD}b".to_owned(), true), ("c".to_owned(), false)]);
    }

    #[test]
    fn memory_is_bounded() {
        let endless_line = |_: usize| b"data: aaaaaaaaaaaaaaaa".to_vec();
        let endless_event = |_: usize| b"data: aaaaaaaaaaaaaaaa\n".to_vec();
        let endless_json =
            |at: usize| if at == 0 { b"{\n".to_vec() } else { b"\"a\":1,\n".to_vec() };
        let hostile: [&dyn Fn(usize) -> Vec<u8>; 3] =
            [&endless_line, &endless_event, &endless_json];
        for body in hostile {
            let mut decoder = SseDecoder::new(1000);
            let error = (0..1000).find_map(|at| decoder.push(&body(at), &mut |_| {}).err());
            assert_eq!(error, Some(EventTooLong { bytes_max: 1000 }));
            assert!(decoder.line.capacity() + decoder.data.capacity() < 5000);
            assert!(
                decoder.push(b"data: a\n\n", &mut |_| {}).is_err(),
                "a failed decoder accepts no more"
            );
        }
    }

    proptest! {
        #[test]
        fn no_input_panics_and_chunk_boundaries_do_not_matter(
            body in proptest::collection::vec(
                prop_oneof![
                    Just(b"\n".to_vec()), Just(b"\r".to_vec()), Just(b"data:".to_vec()),
                    Just(b"event: e".to_vec()), Just(b"error: ".to_vec()), Just(b" {".to_vec()),
                    Just(b": ".to_vec()), Just("é".into()), proptest::collection::vec(any::<u8>(), 0..4),
                ],
                0..40,
            ),
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..4),
        ) {
            let body = body.concat();
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(body.len() + 1)).collect();
            cuts.extend([0, body.len()]);
            cuts.sort_unstable();
            let chunks: Vec<_> = cuts.windows(2).map(|cut| &body[cut[0]..cut[1]]).collect();
            prop_assert_eq!(decode(&chunks), decode(&[&body]));
        }
    }
}
