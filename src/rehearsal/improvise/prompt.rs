//! What a prompt holds that could be an argument: cities, sums, addresses, numbers, quotations.

use std::collections::BTreeMap;

use super::{arithmetic, concepts, places};

/// What kind of text an argument is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// An IANA time zone.
    Zone,
    /// A city's name.
    City,
    /// Arithmetic.
    Expression,
    /// A web address.
    Url,
    /// A file's path.
    Path,
    /// A mail address.
    Email,
    /// A day as `2025-01-31`.
    Date,
    /// A day and time as RFC 3339 has it.
    DateTime,
    /// A short name in capitals, as shares have.
    Symbol,
    /// What to search for.
    Query,
    /// What something is about.
    Topic,
    /// Any text.
    Text,
}

/// So many different values of a kind are found at most.
const VALUES_MAX: usize = 64;

/// Which end of a way, or of a change, a property is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    From,
    To,
}

/// A value in a prompt, and where it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) at: usize,
    pub(super) text: String,
}

/// A prompt, read once.
#[derive(Clone, Debug)]
pub(super) struct Prompt {
    pub(super) text: String,
    /// The text with its ASCII letters in lower case: the places are the same.
    pub(super) lower: String,
    pub(super) concepts: Vec<(usize, usize)>,
    found: BTreeMap<Kind, Vec<Found>>,
    pub(super) numbers: Vec<f64>,
    pub(super) quoted: Vec<String>,
}

impl Prompt {
    pub(super) fn read(text: &str) -> Self {
        let lower = text.to_ascii_lowercase();
        let mut found = BTreeMap::<Kind, Vec<Found>>::new();
        let urls = urls(text);
        let covered = |at: usize| urls.iter().any(|u| (u.at..u.at + u.text.len()).contains(&at));
        for token in tokens(text).into_iter().filter(|token| !covered(token.at)) {
            if let Some(kind) = kind_of_token(&token.text) {
                found.entry(kind).or_default().push(token);
            }
        }
        // `Tokyo` in `Asia/Tokyo` asks for no second zone.
        let written = found.get(&Kind::Zone).cloned().unwrap_or_default();
        for (at, place) in places::find(&lower) {
            let city = Found { at, text: place.name.to_owned() };
            found.entry(Kind::City).or_default().push(city);
            if !written.iter().any(|zone| (zone.at..zone.at + zone.text.len()).contains(&at)) {
                let zone = Found { at, text: place.zone.to_owned() };
                found.entry(Kind::Zone).or_default().push(zone);
            }
        }
        found.entry(Kind::City).or_insert_with(|| named_places(text));
        let sums = arithmetic::find(&lower).into_iter().filter(|sum| !covered(sum.at));
        let sums = sums.map(|sum| Found { at: sum.at, text: sum.text }).collect();
        found.insert(Kind::Expression, sums);
        let taken: Vec<Found> = [Kind::Path, Kind::Date]
            .iter()
            .flat_map(|k| found.get(k).cloned().unwrap_or_default())
            .collect();
        let in_name = |at: usize| {
            covered(at) || taken.iter().any(|t| (t.at..t.at + t.text.len()).contains(&at))
        };
        let numbers = numbers(text).into_iter().filter(|(at, _)| !in_name(*at)).map(|(_, n)| n);
        let numbers = numbers.collect();
        found.insert(Kind::Url, urls.clone());
        for values in found.values_mut() {
            values.sort_by_key(|value| value.at);
        }
        Self {
            concepts: concepts::of_text(&lower),
            numbers,
            quoted: quoted(text),
            found,
            text: text.to_owned(),
            lower,
        }
    }

    /// The first values of a kind, in order, each once.
    pub(super) fn values(&self, kind: Kind) -> Vec<Found> {
        let mut values: Vec<Found> = Vec::new();
        for value in self.found.get(&kind).map(Vec::as_slice).unwrap_or_default() {
            if values.len() < VALUES_MAX && values.iter().all(|seen| seen.text != value.text) {
                values.push(value.clone());
            }
        }
        values
    }

    /// Of these places the one that a direction means: `London` of `from London to Rome`, if it
    /// is `from`.
    pub(super) fn directed(&self, direction: Direction, places: &[usize]) -> Option<usize> {
        let (words, fallback) = match direction {
            Direction::From => (["from", "从"], places.first()),
            Direction::To => (["to", "到"], places.last()),
        };
        let is_meant = |at: &usize| {
            let before = self.lower.get(..*at).unwrap_or_default().trim_end();
            words.iter().any(|word| before.ends_with(word))
        };
        places.iter().find(|at| is_meant(at)).or(fallback).copied()
    }

    /// How often a name stands by itself.
    pub(super) fn count(&self, name: &str) -> usize {
        let name = name.to_ascii_lowercase();
        let hits = self.lower.match_indices(name.as_str());
        hits.filter(|(at, _)| places::stands_alone(&self.lower, *at, name.len())).count()
    }

    /// What stands after the first of these words, up to the end of its sentence.
    pub(super) fn after(&self, words: &[&str]) -> Option<String> {
        let starts = words.iter().filter_map(|word| {
            let mut hits = self.lower.match_indices(word).map(|(at, _)| at);
            let at = hits.find(|at| {
                !word.is_ascii() || places::stands_alone(&self.lower, *at, word.len())
            })?;
            Some((at, std::cmp::Reverse(at + word.len())))
        });
        let (_, std::cmp::Reverse(start)) = starts.min()?;
        let rest = self.text.get(start..)?;
        let end = rest.find(|c| "?!;。？！；，\n".contains(c)).unwrap_or(rest.len());
        let end = rest.find(". ").map_or(end, |dot| dot.min(end));
        let text =
            rest.get(..end)?.trim().trim_end_matches(['.', ',']).trim_matches(['"', '“', '”']);
        let text = ["for ", "about ", "the web for ", "the "]
            .iter()
            .fold(text, |text, filler| text.strip_prefix(filler).unwrap_or(text));
        (!text.is_empty()).then(|| text.to_owned())
    }

    /// Where a name stands by itself, if it does; underscores may be written as spaces.
    pub(super) fn mentions(&self, name: &str) -> Option<usize> {
        let name = name.to_ascii_lowercase();
        [name.clone(), name.replace(['_', '-'], " ")].iter().find_map(|name| {
            let mut hits = self.lower.match_indices(name.as_str()).map(|(at, _)| at);
            hits.find(|at| places::stands_alone(&self.lower, *at, name.len()))
        })
    }

    /// Whether the prompt is written in Chinese.
    pub(super) fn is_chinese(&self) -> bool {
        self.text.chars().any(|c| ('\u{4e00}'..='\u{9fff}').contains(&c))
    }
}

/// Runs of characters that names and addresses are made of, without marks at their ends.
fn tokens(text: &str) -> Vec<Found> {
    let mut tokens = Vec::new();
    let mut begin = None;
    for (at, c) in text.char_indices().chain(std::iter::once((text.len(), ' '))) {
        let inside = c.is_ascii_graphic() && !"\"'`()[]{}<>,;?!".contains(c);
        match (begin, inside) {
            (None, true) => begin = Some(at),
            (Some(start), false) => {
                let word = text.get(start..at).unwrap_or_default().trim_end_matches(['.', ':']);
                tokens.push(Found { at: start, text: word.to_owned() });
                begin = None;
            }
            (None, false) | (Some(_), true) => {}
        }
    }
    tokens
}

fn kind_of_token(token: &str) -> Option<Kind> {
    const REGIONS: [&str; 11] = [
        "Africa/",
        "America/",
        "Antarctica/",
        "Arctic/",
        "Asia/",
        "Atlantic/",
        "Australia/",
        "Etc/",
        "Europe/",
        "Indian/",
        "Pacific/",
    ];
    const ENDINGS: [&str; 36] = [
        "txt", "md", "rs", "py", "js", "ts", "json", "jsonl", "toml", "yaml", "yml", "csv", "tsv",
        "log", "html", "htm", "xml", "pdf", "png", "jpg", "ini", "cfg", "conf", "sh", "c", "h",
        "cpp", "go", "java", "rb", "lock", "sql", "doc", "docx", "xlsx", "css",
    ];
    let zone = REGIONS.iter().any(|region| token.len() > region.len() && token.starts_with(region));
    if zone || token == "UTC" || token == "GMT" {
        return Some(Kind::Zone);
    }
    if (2..=5).contains(&token.len()) && token.bytes().all(|b| b.is_ascii_uppercase()) {
        return Some(Kind::Symbol);
    }
    let date = |token: &str| {
        let parts: Vec<&str> = token.split('-').collect();
        let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
        lengths == [4, 2, 2] && token.bytes().all(|b| b.is_ascii_digit() || b == b'-')
    };
    if date(token.get(..10).unwrap_or(token)) {
        return Some(if token.contains('T') { Kind::DateTime } else { Kind::Date });
    }
    if let Some((user, host)) = token.split_once('@') {
        return (!user.is_empty() && host.contains('.')).then_some(Kind::Email);
    }
    let rooted = ["/", "./", "../", "~/"].iter().any(|root| {
        token
            .strip_prefix(root)
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_alphabetic() || c == '.'))
    });
    let ending = token.rsplit_once('.').filter(|(stem, _)| !stem.is_empty());
    let known =
        ending.is_some_and(|(_, ending)| ENDINGS.contains(&ending.to_ascii_lowercase().as_str()));
    let plain = ["README", "LICENSE", "Makefile", "Dockerfile"].contains(&token);
    (rooted || known || plain).then_some(Kind::Path)
}

fn urls(text: &str) -> Vec<Found> {
    let mut urls = Vec::new();
    let mut from = 0;
    while let Some(at) = text.get(from..).and_then(|rest| rest.find("http").map(|at| from + at)) {
        let rest = text.get(at..).unwrap_or_default();
        let end = rest.find(|c: char| !c.is_ascii_graphic() || "\"'<>`\\{}|".contains(c));
        let url = rest.get(..end.unwrap_or(rest.len())).unwrap_or_default();
        let mut url = url.trim_end_matches(['.', ',', ';', ':', '?', '!', ']']);
        if !url.contains('(') {
            url = url.trim_end_matches([')', '.', ',']);
        }
        from = at + url.len().max(4);
        let host = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
        if host.is_some_and(|host| !host.is_empty()) {
            urls.push(Found { at, text: url.to_owned() });
        }
    }
    urls
}

/// Capitalised words after "in", "for", "at" or "from": cities that the table does not know.
fn named_places(text: &str) -> Vec<Found> {
    let mut found = Vec::new();
    let mut words = tokens(text).into_iter().peekable();
    while let Some(word) = words.next() {
        if !["in", "for", "at", "from", "to"].contains(&word.text.as_str()) {
            continue;
        }
        let mut name: Option<Found> = None;
        while let Some(next) =
            words.next_if(|next| next.text.starts_with(|c: char| c.is_ascii_uppercase()))
        {
            name = Some(match name {
                Some(begun) => Found { text: format!("{} {}", begun.text, next.text), ..begun },
                None => next,
            });
        }
        found.extend(name);
    }
    found
}

fn numbers(text: &str) -> Vec<(usize, f64)> {
    tokens(text)
        .into_iter()
        .flat_map(|token| {
            token
                .text
                .split(|c: char| !c.is_ascii_digit() && c != '.' && c != '-')
                .filter_map(|part| {
                    part.trim_matches('.').parse::<f64>().ok().filter(|n| n.is_finite())
                })
                .map(|n| (token.at, n))
                .collect::<Vec<_>>()
        })
        .collect()
}

fn quoted(text: &str) -> Vec<String> {
    let pairs = [('"', '"'), ('“', '”'), ('「', '」'), ('『', '』'), ('`', '`'), ('《', '》')];
    let mut found: Vec<(usize, String)> = Vec::new();
    for (open, close) in pairs {
        let mut from = 0;
        while let Some(at) =
            text.get(from..).and_then(|r| r.find(open)).map(|at| from + at + open.len_utf8())
        {
            let Some(length) = text.get(at..).and_then(|rest| rest.find(close)) else { break };
            if let Some(inner) = text.get(at..at + length).filter(|inner| !inner.trim().is_empty())
            {
                found.push((at, inner.to_owned()));
            }
            from = at + length + close.len_utf8();
        }
    }
    found.sort();
    found.into_iter().map(|(_, text)| text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_values_of_each_kind() {
        let prompt = Prompt::read(
            "Read notes.txt, /etc/hosts and src/main.rs, get https://example.com/a.json?x=1, (http://b.org), \
             write to joe@example.com on 2024-05-01 at 2.5 for 20 people in Europe/Berlin; say \"hi there\".",
        );
        let texts = |kind: Kind| -> Vec<String> {
            prompt.values(kind).into_iter().map(|found| found.text).collect()
        };
        assert_eq!(texts(Kind::Path), ["notes.txt", "/etc/hosts", "src/main.rs"]);
        assert_eq!(texts(Kind::Url), ["https://example.com/a.json?x=1", "http://b.org"]);
        assert_eq!(texts(Kind::Email), ["joe@example.com"]);
        assert_eq!(texts(Kind::Date), ["2024-05-01"]);
        assert_eq!(texts(Kind::Zone), ["Europe/Berlin"]);
        assert_eq!(texts(Kind::Expression), [""; 0]);
        assert_eq!(prompt.numbers, [2.5, 20.0]);
        assert_eq!(prompt.quoted, ["hi there"]);
    }

    #[test]
    fn knows_unknown_cities_and_what_is_asked_for() {
        let prompt = Prompt::read("Search the web for rust actors. What is it like in Santa Fe?");
        assert_eq!(prompt.values(Kind::City)[0].text, "Santa Fe");
        assert_eq!(prompt.after(&["search"]).as_deref(), Some("rust actors"));
        let chinese = Prompt::read("搜索Rust演员模型，然后打开notes.txt");
        assert!(chinese.is_chinese());
        assert_eq!(chinese.after(&["搜索"]).as_deref(), Some("Rust演员模型"));
        assert_eq!(chinese.values(Kind::Path)[0].text, "notes.txt");
    }
}
