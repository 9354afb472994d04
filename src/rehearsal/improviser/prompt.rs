//! The values that a prompt contains, found by their form.

/// The kind of text that a tool's argument takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueKind {
    /// An IANA time zone, found by its own name or by the name of a city.
    TimeZone,
    /// The name of a city.
    City,
    /// Arithmetic.
    Expression,
    /// An `http` or `https` URL.
    Url,
    /// A path or a file name.
    Path,
    /// Any other text, found in double quotes.
    Text,
}

/// A value, and the position, in bytes, of the word or run of signs that holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FoundValue {
    pub(super) at: usize,
    pub(super) text: String,
}

/// A prompt, prepared for the search.
#[derive(Debug)]
pub(super) struct Prompt {
    pub(super) text: String,
    /// The prompt with ASCII letters in lower case: same positions as `text`.
    pub(super) lower: String,
}

/// English name in lower case, Chinese name, time zone.
const CITIES: [(&str, &str, &str); 16] = [
    ("amsterdam", "阿姆斯特丹", "Europe/Amsterdam"),
    ("beijing", "北京", "Asia/Shanghai"),
    ("berlin", "柏林", "Europe/Berlin"),
    ("cairo", "开罗", "Africa/Cairo"),
    ("delhi", "德里", "Asia/Kolkata"),
    ("london", "伦敦", "Europe/London"),
    ("los angeles", "洛杉矶", "America/Los_Angeles"),
    ("madrid", "马德里", "Europe/Madrid"),
    ("moscow", "莫斯科", "Europe/Moscow"),
    ("new york", "纽约", "America/New_York"),
    ("paris", "巴黎", "Europe/Paris"),
    ("rome", "罗马", "Europe/Rome"),
    ("shanghai", "上海", "Asia/Shanghai"),
    ("singapore", "新加坡", "Asia/Singapore"),
    ("sydney", "悉尼", "Australia/Sydney"),
    ("tokyo", "东京", "Asia/Tokyo"),
];

impl Prompt {
    pub(super) fn read(text: &str) -> Self {
        Self { text: text.to_owned(), lower: text.to_ascii_lowercase() }
    }

    pub(super) fn is_chinese(&self) -> bool {
        self.text.chars().any(|c| ('\u{4e00}'..='\u{9fff}').contains(&c))
    }

    /// Returns the position of the first occurrence of a text as a word of its own.
    pub(super) fn position_of(&self, word: &str) -> Option<usize> {
        let word = word.to_ascii_lowercase();
        let found = self.lower.match_indices(&word).map(|(at, _)| at);
        found.into_iter().find(|at| !word.is_empty() && stands_alone(&self.lower, *at, word.len()))
    }

    /// Returns the values of a kind, in the order of the prompt.
    pub(super) fn values(&self, kind: ValueKind) -> Vec<FoundValue> {
        match kind {
            ValueKind::TimeZone => {
                let mut zones = self.cities(|(_, _, zone)| (*zone).to_owned());
                zones.extend(self.words().filter(|word| is_time_zone(&word.text)));
                zones.sort_by_key(|zone| zone.at);
                zones
            }
            ValueKind::City => self.cities(|(name, _, _)| title_case(name)),
            ValueKind::Expression => expressions(&self.lower),
            ValueKind::Url => self.words().filter(|word| is_url(&word.text)).collect(),
            ValueKind::Path => self.words().filter(|word| is_path(&word.text)).collect(),
            ValueKind::Text => self.quotations(),
        }
    }

    /// Returns the parts between double quotes.
    fn quotations(&self) -> Vec<FoundValue> {
        let marks: Vec<usize> = self.text.match_indices('"').map(|(at, _)| at).collect();
        let quotation = |pair: &[usize]| {
            let (start, end) = (pair.first()? + 1, *pair.get(1)?);
            Some(FoundValue { at: start, text: self.text.get(start..end)?.to_owned() })
        };
        marks.chunks(2).filter_map(quotation).collect()
    }

    /// Returns the numbers, without those that are part of a word.
    pub(super) fn numbers(&self) -> Vec<f64> {
        let numbers = self.words().filter_map(|word| word.text.replace(',', "").parse().ok());
        numbers.filter(|number: &f64| number.is_finite()).collect()
    }

    /// Returns the value that the prompt gives a property by name: `ms=20`, `ms: 20`.
    pub(super) fn named_value(&self, name: &str) -> Option<&str> {
        let at = self.position_of(name)? + name.len();
        let rest = self.text.get(at..)?.trim_start().strip_prefix(['=', ':'])?.trim_start();
        let value = rest.split([' ', ',', ';', '\n']).next()?.trim_end_matches(['.', '?', '!']);
        (!value.is_empty()).then_some(value)
    }

    fn cities(&self, text: impl Fn(&(&str, &str, &str)) -> String) -> Vec<FoundValue> {
        let mut found = Vec::new();
        for city in &CITIES {
            for name in [city.0, city.1] {
                let places = self.lower.match_indices(name).map(|(at, _)| at);
                let places = places.filter(|at| stands_alone(&self.lower, *at, name.len()));
                found.extend(places.map(|at| FoundValue { at, text: text(city) }));
            }
        }
        found.sort_by_key(|value| value.at);
        found
    }

    /// Returns the words between spaces, without punctuation around them. The dots of a relative path stay.
    fn words(&self) -> impl Iterator<Item = FoundValue> {
        let marks = ['.', ',', ';', ':', '?', '!', '(', ')', '"', '\'', '？', '，', '。'];
        self.text.split_whitespace().filter_map(move |word| {
            let at = word.as_ptr().addr() - self.text.as_ptr().addr();
            let text = word.trim_start_matches(|c: char| c != '.' && marks.contains(&c));
            let is_relative = text.starts_with("./") || text.starts_with("../");
            let text = if is_relative { text } else { text.trim_start_matches(marks) };
            let text = text.trim_end_matches(marks);
            (!text.is_empty()).then(|| FoundValue { at, text: text.to_owned() })
        })
    }
}

/// Returns whether no ASCII letter, digit or underscore adjoins a word. True for any word that is not ASCII, because
/// Chinese has no spaces.
fn stands_alone(text: &str, at: usize, length: usize) -> bool {
    let is_part = |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_');
    let bytes = text.as_bytes();
    let word = bytes.get(at..at + length).unwrap_or_default();
    !word.is_ascii()
        || !(is_part(at.checked_sub(1).and_then(|before| bytes.get(before)))
            || is_part(bytes.get(at + length)))
}

fn title_case(name: &str) -> String {
    let words = name.split(' ').map(|word| {
        let (first, rest) = word.split_at(1);
        first.to_ascii_uppercase() + rest
    });
    words.collect::<Vec<_>>().join(" ")
}

fn is_time_zone(word: &str) -> bool {
    word.contains('/') && jiff::tz::TimeZone::get(word).is_ok()
}

fn is_url(word: &str) -> bool {
    word.starts_with("http://") || word.starts_with("https://")
}

fn is_path(word: &str) -> bool {
    let has_extension = word.rsplit_once('.').is_some_and(|(name, extension)| {
        let short = (1..=5).contains(&extension.len());
        !name.is_empty() && short && extension.bytes().all(|b| b.is_ascii_alphabetic())
    });
    let is_plain = word.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-/".contains(&b));
    let has_root = ["/", "./", "../"].iter().any(|root| word.starts_with(root));
    is_plain && !is_time_zone(word) && (has_extension || has_root)
}

/// Returns the arithmetic of a text: numbers with operators between them, or a share such as `17 % of 2,350` or
/// `2350 的 17%`.
fn expressions(text: &str) -> Vec<FoundValue> {
    let is_part = |c: char| c.is_ascii_digit() || "+-*/^%％(). ,的of".contains(c);
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(start) = text.get(from..).and_then(|t| t.find(|c: char| is_part(c))) {
        let start = from + start;
        let part = text.get(start..).unwrap_or_default();
        let end = start + part.find(|c: char| !is_part(c)).unwrap_or(part.len());
        let part = text.get(start..end).unwrap_or_default();
        if let Some(expression) = expression(part) {
            found.push(FoundValue { at: start, text: expression });
        }
        from = end;
    }
    found
}

/// Normalises a run of digits and signs, if it is an expression with an operator, or a share.
fn expression(run: &str) -> Option<String> {
    let run = run.replace('％', "%").replace("的", " 的 ").replace("of", " of ");
    let run = run.trim_matches(|c: char| !(c.is_ascii_digit() || "()%".contains(c)));
    let compact: String = run.split_whitespace().collect::<Vec<_>>().join(" ");
    let compact = compact.replace(" %", "%");
    if let Some((base, share)) = compact.split_once(" 的 ") {
        let share = share.strip_suffix('%')?;
        return Some(format!("{}% of {}", number(share)?, number(base)?));
    }
    if let Some((share, base)) = compact.split_once("% of ") {
        return Some(format!("{}% of {}", number(share)?, number(base)?));
    }
    let signs = compact.matches(['+', '-', '*', '/', '^']).count();
    let is_date = compact.split('-').count() == 3 && !compact.contains(' ');
    let balanced = compact.matches('(').count() == compact.matches(')').count();
    let plain = !compact.contains(['%', ',', 'o', 'f', '的']);
    let starts_well = compact.starts_with(|c: char| c.is_ascii_digit() || c == '(');
    let valid = plain && starts_well && balanced && signs > 0 && !is_date;
    valid.then_some(compact)
}

/// Parses a number with optional separators of thousands.
fn number(text: &str) -> Option<String> {
    let plain = text.trim().replace(',', "");
    plain.parse::<f64>().is_ok().then_some(plain)
}
