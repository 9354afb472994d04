//! Which of the offered tools a prompt speaks of, and how often.

use serde_json::Value;

use super::concepts;
use super::fill::Filler;
use super::prompt::{Found, Kind, Prompt};
use super::schema::{kind_of, resolve, type_of};

/// One response makes no more calls than this.
const CALLS_MAX: usize = 16;

/// A tool that the request offers.
#[derive(Debug)]
pub(super) struct Offer<'a> {
    name: &'a str,
    schema: &'a Value,
    /// The words of the name that say something.
    words: Vec<String>,
    /// What the name is about, and what the description is about.
    by_name: Vec<usize>,
    by_description: Vec<usize>,
    primary: Option<Primary>,
}

/// The property that says how many calls are needed: its kind and whether it takes them all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Primary {
    kind: Kind,
    /// A list, or one of several properties of the kind: one call takes all values.
    takes_all: bool,
}

/// A call to make.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wanted {
    pub(super) name: String,
    pub(super) arguments: Value,
}

/// Why a tool is meant; better reasons are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reason {
    /// The prompt holds a value that the tool takes.
    Value,
    /// The description is about the same.
    Description,
    /// The name is about the same.
    Name,
    /// The prompt names the tool.
    Named,
}

/// A tool that is meant, and where the prompt speaks of it.
struct Match<'o, 'a> {
    offer: &'o Offer<'a>,
    reason: Reason,
    at: Vec<usize>,
}

impl<'a> Offer<'a> {
    /// Reads a `function` of the request's tools.
    pub(super) fn read(function: &'a Value) -> Option<Self> {
        let name = function["name"].as_str()?;
        let schema = &function["parameters"];
        let all = concepts::name_words(name);
        let numbers = |text: &str| -> Vec<usize> {
            concepts::of_text(&text.to_ascii_lowercase()).into_iter().map(|(c, _)| c).collect()
        };
        let by_name = numbers(&all.join(" "));
        let calculates = by_name.iter().any(|concept| concepts::is_calculating(*concept));
        Some(Self {
            name,
            schema,
            words: all.into_iter().filter(|word| concepts::tells(word)).collect(),
            by_description: numbers(function["description"].as_str().unwrap_or_default()),
            primary: primary(schema, calculates),
            by_name,
        })
    }

    fn calculates(&self) -> bool {
        self.by_name.iter().any(|concept| concepts::is_calculating(*concept))
    }

    fn filler(&'a self, prompt: &'a Prompt) -> Filler<'a> {
        Filler::new(prompt, self.schema, self.calculates())
    }

    /// The values of the kind that this tool is for, if they alone are reason enough to call it,
    /// or if it cannot be called without.
    fn hard_values(&self, prompt: &Prompt) -> Option<Vec<Found>> {
        let kind = self.primary?.kind;
        matches!(kind, Kind::Expression | Kind::Url | Kind::Path).then(|| prompt.values(kind))
    }
}

/// The calls that a prompt asks for, in the order in which it speaks of them.
pub(super) fn calls(prompt: &Prompt, offers: &[Offer<'_>], tool_choice: &Value) -> Vec<Wanted> {
    let forced = tool_choice["function"]["name"].as_str();
    let allowed = || offers.iter().filter(|o| forced.is_none_or(|name| name == o.name));
    let mut matches: Vec<Match<'_, '_>> = allowed().filter_map(|o| matched(prompt, o)).collect();
    keep_the_best(&mut matches);
    if matches.is_empty() && (forced.is_some() || tool_choice == "required") {
        let first =
            allowed().next().map(|offer| Match { offer, reason: Reason::Named, at: vec![0] });
        matches.extend(first);
    }
    let mut wanted: Vec<(usize, Wanted)> = Vec::new();
    for number in 0..matches.len() {
        wanted.extend(calls_of(prompt, &matches, number));
    }
    wanted.sort_by_key(|(at, _)| *at);
    let mut calls: Vec<Wanted> = Vec::new();
    for (_, call) in wanted {
        if calls.len() < CALLS_MAX && !calls.contains(&call) {
            calls.push(call);
        }
    }
    calls
}

/// Whether and why a tool is meant.
fn matched<'o, 'a>(prompt: &Prompt, offer: &'o Offer<'a>) -> Option<Match<'o, 'a>> {
    if let Some(at) = prompt.mentions(offer.name) {
        return Some(Match { offer, reason: Reason::Named, at: vec![at] });
    }
    let places = |wanted: &[usize]| -> Vec<usize> {
        let shared = prompt.concepts.iter().filter(|(concept, _)| wanted.contains(concept));
        shared.map(|(_, at)| *at).collect()
    };
    let mut by_name = places(&offer.by_name);
    by_name.extend(concepts::words(&prompt.lower).into_iter().filter_map(|(at, word)| {
        offer.words.iter().any(|own| concepts::same(own, word)).then_some(at)
    }));
    by_name.sort_unstable();
    let by_description = places(&offer.by_description);
    let values = offer.hard_values(prompt);
    if values.as_ref().is_some_and(Vec::is_empty) {
        return None;
    }
    if !by_name.is_empty() {
        return Some(Match { offer, reason: Reason::Name, at: by_name });
    }
    if let Some(first) = values.and_then(|values| values.into_iter().next()) {
        let changes = offer.by_name.iter().any(|concept| concepts::is_changing(*concept));
        return (!changes).then(|| Match { offer, reason: Reason::Value, at: vec![first.at] });
    }
    let found = !by_description.is_empty();
    found.then_some(Match { offer, reason: Reason::Description, at: by_description })
}

/// Drops tools that are meant for a weaker reason than another one of the same purpose.
fn keep_the_best(matches: &mut Vec<Match<'_, '_>>) {
    let claimed: Vec<usize> = matches
        .iter()
        .filter(|m| m.reason >= Reason::Name)
        .flat_map(|m| m.offer.by_name.iter().copied())
        .collect();
    matches.retain(|m| {
        m.reason != Reason::Description
            || m.offer.by_description.iter().any(|c| !claimed.contains(c))
    });
    // A value goes to one tool: to one that is meant for a better reason, or to the first.
    let mut taken: Vec<Kind> = matches
        .iter()
        .filter(|m| m.reason >= Reason::Name)
        .filter_map(|m| m.offer.primary.map(|primary| primary.kind))
        .collect();
    matches.retain(|m| {
        let Some(kind) = m.offer.primary.map(|p| p.kind).filter(|_| m.reason == Reason::Value)
        else {
            return true;
        };
        let free = !taken.contains(&kind);
        taken.push(kind);
        free
    });
}

/// The calls of one of the tools that are meant, with their places.
fn calls_of(prompt: &Prompt, matches: &[Match<'_, '_>], number: usize) -> Vec<(usize, Wanted)> {
    let Some(meant) = matches.get(number) else { return Vec::new() };
    let offer = meant.offer;
    let wanted = |arguments: Value| Wanted { name: offer.name.to_owned(), arguments };
    let at = meant.at.first().copied().unwrap_or_default();
    let written = written_out(prompt, offer.name);
    if !written.is_empty() {
        return written.into_iter().map(|(at, arguments)| (at, wanted(arguments))).collect();
    }
    if let Some(times) = times(prompt).filter(|_| meant.reason == Reason::Named) {
        let nth = |i: usize| wanted(offer.filler(prompt).with_iteration(i).arguments());
        return (0..times.min(CALLS_MAX)).map(|i| (at, nth(i))).collect();
    }
    if let Some(quotes) = quotes(prompt, meant) {
        let say =
            |quote: &String| wanted(offer.filler(prompt).with_value(Kind::Text, quote).arguments());
        return quotes.iter().map(|quote| (at, say(quote))).collect();
    }
    let one = || vec![(at, wanted(offer.filler(prompt).arguments()))];
    let Some(primary) = offer.primary.filter(|primary| !primary.takes_all) else { return one() };
    let values = share(prompt, matches, number, primary.kind);
    if values.is_empty() {
        return one();
    }
    let fill =
        |value: &Found| offer.filler(prompt).with_value(primary.kind, &value.text).arguments();
    values.iter().map(|value| (value.at, wanted(fill(value)))).collect()
}

/// The values that are for this one of several tools that take the same kind: those in a clause
/// that speaks of the tool, or that follows one that does; all, if none is.
fn share(prompt: &Prompt, matches: &[Match<'_, '_>], number: usize, kind: Kind) -> Vec<Found> {
    let values = prompt.values(kind);
    let place = |kind: Kind| if kind == Kind::Zone { Kind::City } else { kind };
    let rivals: Vec<usize> = (0..matches.len())
        .filter(|n| {
            let primary = matches.get(*n).and_then(|m| m.offer.primary);
            primary.is_some_and(|p| place(p.kind) == place(kind) && !p.takes_all)
        })
        .collect();
    if rivals.len() < 2 {
        return values;
    }
    let clauses = clauses(&prompt.lower);
    let spoken: Vec<Vec<usize>> = clauses
        .iter()
        .map(|(start, end)| {
            let speaks = |n: &usize| {
                let places = matches.get(*n).map(|m| m.at.as_slice()).unwrap_or_default();
                places.iter().any(|at| (*start..*end).contains(at))
            };
            rivals.iter().copied().filter(|n| speaks(n)).collect()
        })
        .collect();
    let mut own: Vec<Found> = Vec::new();
    for (number_of_clause, (start, end)) in clauses.iter().enumerate() {
        // In English what is asked for stands before its places, in Chinese after them.
        let (before, from_here) = spoken.split_at(number_of_clause);
        let mut before = before.iter().rev();
        let mut after = from_here.iter();
        let here = after.next().filter(|tools| !tools.is_empty());
        let back = before.find(|tools| !tools.is_empty());
        let ahead = after.find(|tools| !tools.is_empty());
        let tools =
            if prompt.is_chinese() { here.or(ahead).or(back) } else { here.or(back).or(ahead) };
        if tools.is_none_or(|tools| tools.contains(&number)) {
            own.extend(values.iter().filter(|v| (*start..*end).contains(&v.at)).cloned());
        }
    }
    if own.is_empty() { values } else { own }
}

/// The clauses of a text, as ranges.
fn clauses(lower: &str) -> Vec<(usize, usize)> {
    let mut cuts = vec![0];
    for mark in [
        ",", ";", "?", "!", ". ", "\n", " and ", "，", "；", "？", "。", "、", "和", "以及", "还有",
    ] {
        cuts.extend(lower.match_indices(mark).map(|(at, mark)| at + mark.len()));
    }
    cuts.push(lower.len());
    cuts.sort_unstable();
    cuts.windows(2).filter_map(|pair| Some((*pair.first()?, *pair.last()?))).collect()
}

/// The quotations of a prompt that names a tool for texts as often as it quotes.
fn quotes<'p>(prompt: &'p Prompt, meant: &Match<'_, '_>) -> Option<&'p [String]> {
    let texts = meant.offer.primary.is_some_and(|p| p.kind == Kind::Text && !p.takes_all);
    let often = prompt.quoted.len() > 1 && prompt.count(meant.offer.name) == prompt.quoted.len();
    (texts && often && meant.reason == Reason::Named).then_some(prompt.quoted.as_slice())
}

/// Calls that the prompt writes out: the tool's name with a JSON object after it.
fn written_out(prompt: &Prompt, name: &str) -> Vec<(usize, Value)> {
    let lower = name.to_ascii_lowercase();
    let hits = prompt.lower.match_indices(&lower).filter_map(|(at, _)| {
        let rest = prompt.text.get(at + lower.len()..)?;
        let rest = rest.trim_start_matches([' ', ':', '(', '`']);
        let rest = rest.strip_prefix("with ").unwrap_or(rest);
        let object = rest.starts_with('{').then_some(rest)?;
        let mut values = serde_json::Deserializer::from_str(object).into_iter::<Value>();
        Some((at, values.next()?.ok()?))
    });
    hits.collect()
}

/// How many calls a prompt asks for in words: `4 times`, `three times`, `4 次`.
fn times(prompt: &Prompt) -> Option<usize> {
    const WORDS: [&str; 9] =
        ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];
    let words = concepts::words(&prompt.lower);
    let pair = words.windows(2).find_map(|pair| match pair {
        [(_, count), (_, "times" | "calls")] => Some(*count),
        _ => None,
    });
    let named = |count: &str| WORDS.iter().position(|word| *word == count).map(|at| at + 1);
    let chinese = || {
        let before = prompt.lower.split('次').next().filter(|b| b.len() < prompt.lower.len())?;
        let digits = before.trim_end().rsplit(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse().ok()
    };
    pair.and_then(|count| count.parse().ok().or_else(|| named(count))).or_else(chinese)
}

/// The property that the number of calls depends on: the required one (or the first) of the
/// kind that is found most surely.
fn primary(schema: &Value, calculates: bool) -> Option<Primary> {
    let properties = schema["properties"].as_object()?;
    let required = schema["required"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_required = |name: &str| required.iter().any(|r| r == name);
    let mut best: Option<Primary> = None;
    let mut count = 0;
    for (name, property) in properties {
        if !is_required(name) && !required.is_empty() {
            continue;
        }
        let property = resolve(schema, property);
        let (item, list) = match type_of(property) {
            "array" => (resolve(schema, &property["items"]), true),
            "string" => (property, false),
            _ => continue,
        };
        let kind = kind_of(name, item, calculates);
        if best.is_none_or(|best| kind < best.kind) {
            best = Some(Primary { kind, takes_all: list });
            count = 1;
        } else if best.is_some_and(|best| kind == best.kind) {
            count += 1;
        }
    }
    best.map(|best| Primary { takes_all: best.takes_all || count > 1, ..best })
}
