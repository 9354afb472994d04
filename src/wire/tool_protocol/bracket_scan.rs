//! The end of a bracketed value that arrives in pieces.

/// Finds the end of an object, a list or an argument list. Brackets within strings do not count. When more
/// text has arrived, the scan continues where it stopped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BracketScan {
    /// The next byte to read.
    at: usize,
    depth: usize,
    quote: Option<Quote>,
    is_closed: bool,
}

/// The delimiter of a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Quote {
    mark: u8,
    is_triple: bool,
}

/// The result of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScanEnd {
    /// The value has not ended yet.
    Open,
    /// The value ends before this position.
    Closed(usize),
    /// The value is broken: one of the stop words begins at this position.
    Stopped(usize),
}

impl BracketScan {
    /// Begins at the opening bracket.
    pub(super) fn new(at: usize) -> Self {
        Self { at, ..Self::default() }
    }

    /// Continues in a text that has grown at its end. A stop word counts outside of strings. Within a
    /// string it counts at the beginning of a line, because strings of JSON have no line feeds.
    pub(super) fn scan(&mut self, text: &str, stops: &[&str]) -> ScanEnd {
        if self.is_closed {
            return ScanEnd::Closed(self.at);
        }
        let bytes = text.as_bytes();
        while let Some(rest) = bytes.get(self.at..)
            && let Some(&byte) = rest.first()
        {
            let is_line_start = self.at > 0 && bytes.get(self.at - 1) == Some(&b'\n');
            if self.quote.is_none() || is_line_start {
                for stop in stops.iter().map(|stop| stop.as_bytes()) {
                    if rest.starts_with(stop) {
                        return ScanEnd::Stopped(self.at);
                    }
                    if stop.starts_with(rest) {
                        return ScanEnd::Open;
                    }
                }
            }
            match self.quote {
                Some(Quote { mark, is_triple }) => match byte {
                    b'\\' if rest.len() < 2 => return ScanEnd::Open,
                    b'\\' => self.at += 2,
                    _ if byte == mark && is_triple => {
                        if rest.len() < 3 && rest.iter().all(|byte| *byte == mark) {
                            return ScanEnd::Open;
                        }
                        let is_end = rest.starts_with(&[mark; 3]);
                        self.at += if is_end { 3 } else { 1 };
                        self.quote = self.quote.filter(|_| !is_end);
                    }
                    _ => {
                        self.at += 1;
                        self.quote = self.quote.filter(|_| byte != mark);
                    }
                },
                None => match byte {
                    mark @ (b'"' | b'\'') => {
                        // One or two marks at the end may become three.
                        if rest.len() < 3 && rest.iter().all(|byte| *byte == mark) {
                            return ScanEnd::Open;
                        }
                        let is_triple = rest.starts_with(&[mark; 3]);
                        self.at += if is_triple { 3 } else { 1 };
                        self.quote = Some(Quote { mark, is_triple });
                    }
                    b'{' | b'[' | b'(' => {
                        self.depth += 1;
                        self.at += 1;
                    }
                    b'}' | b']' | b')' => {
                        self.depth = self.depth.saturating_sub(1);
                        self.at += 1;
                        if self.depth == 0 {
                            self.is_closed = true;
                            return ScanEnd::Closed(self.at);
                        }
                    }
                    _ => self.at += 1,
                },
            }
        }
        ScanEnd::Open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_found_however_the_text_is_cut() {
        for (text, expected) in [
            (r#"{"a":"}\""} x"#, ScanEnd::Closed(11)),
            (r#"{'a': "it's", 'b': ''}"#, ScanEnd::Closed(22)),
            (r#"(a="""x")"y""", b=[1, (2)]) z"#, ScanEnd::Closed(27)),
            (r#"{"a": "", "b": {}} "#, ScanEnd::Closed(18)),
            ("{\"a\": 1</end>", ScanEnd::Stopped(7)),
            ("{\"a\": \"</end>\"}", ScanEnd::Closed(15)),
            ("{\"a\": \"x\n</end>", ScanEnd::Stopped(9)),
            ("{\"a\": \"é\\", ScanEnd::Open),
            ("{\"a\": 1</e", ScanEnd::Open),
        ] {
            for cut in (0..=text.len()).filter(|cut| text.is_char_boundary(*cut)) {
                let mut scan = BracketScan::new(0);
                let first = scan.scan(&text[..cut], &["</end>"]);
                let found = match first {
                    ScanEnd::Open => scan.scan(text, &["</end>"]),
                    ScanEnd::Closed(_) | ScanEnd::Stopped(_) => first,
                };
                assert_eq!(found, expected, "{text} cut at {cut}");
            }
        }
    }
}
