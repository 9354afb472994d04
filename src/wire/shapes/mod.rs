//! Payloads of a shape that is known, as nearly all of a stream are.
//!
//! A payload that was read in full and held one piece is kept, with the places of what was read of
//! it. Where another one has the same bytes around these places, it parses to the same with what
//! stands there now, and nothing of it is parsed. This is true of the payload alone: the dialect
//! does with the piece what it does with one that was parsed, so that a shape may be used whatever
//! came in between, and in the next response too. Anything that is not certain is read in full.

use std::borrow::Cow;
use std::ops::Range;

use memchr::memchr;

use super::piece::{Outline, PAYLOAD_BYTES_MAX, Piece, SPOTS_MAX, Said, Slot};

/// Kinds of pieces of one response: mostly one of text, of reasoning and of calls each.
const SHAPES_MAX: usize = 6;

/// The first of a kind mostly has a shape of its own. Where they all have, none is worth keeping.
const SHAPES_OF_A_KIND_MAX: usize = 2;

/// The shapes of the payloads of a wire.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Known {
    /// The one that was met last comes first.
    shapes: Vec<Shape>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Shape {
    said: Said,
    event: String,
    /// The payload that had it last, but for what changes with every payload.
    payload: String,
    /// Where payloads may differ from it, in order.
    holes: Vec<Hole>,
    /// What stands in the steady ones.
    steady: Steady,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hole {
    begin: usize,
    end: usize,
    slot: Slot,
    /// The inside of a string, or else the digits of a number.
    is_string: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Steady {
    index: Option<u64>,
    part: Option<u64>,
    id: Option<Range<usize>>,
    name: Option<Range<usize>>,
}

/// Where the text of a payload stands, if it holds one.
type Text = Option<Place>;

/// The inside of a string, or a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Place {
    begin: usize,
    end: usize,
    has_escapes: bool,
}

impl Known {
    /// The piece that a payload holds, if its shape is known. Most have the shape of the one before
    /// and all that is steady in it.
    pub(super) fn read<'p>(&'p mut self, event: &str, payload: &'p str) -> Option<Piece<'p>> {
        let mut shapes = self.shapes.iter().enumerate();
        let found = shapes.find_map(|(at, shape)| Some((at, shape.compare(event, payload)?)));
        let (at, text) = match found {
            Some(found) => found,
            None => {
                let at = self.shapes.iter_mut().position(|shape| shape.adopt(event, payload))?;
                (at, self.shapes.get(at)?.compare(event, payload)?)
            }
        };
        if at > 0 {
            self.shapes.get_mut(..=at)?.rotate_right(1);
        }
        self.shapes.first()?.piece(payload, text)
    }

    /// A payload was read in full, as it stands, and holds the piece of this outline.
    pub(super) fn learn(&mut self, event: &str, payload: &str, outline: &Outline<'_>) {
        let Some(shape) = Shape::of(event, payload, outline) else { return };
        let mut others = 1;
        self.shapes.retain(|other| {
            others += usize::from(other.said == shape.said);
            other.said != shape.said || others <= SHAPES_OF_A_KIND_MAX
        });
        self.shapes.truncate(SHAPES_MAX - 1);
        self.shapes.insert(0, shape);
    }
}

impl Shape {
    fn of(event: &str, payload: &str, outline: &Outline<'_>) -> Option<Self> {
        if !is_short(event, payload) {
            return None;
        }
        let mut holes = Vec::with_capacity(SPOTS_MAX);
        for spot in outline.spots() {
            holes.push(Hole::at(payload, spot)?);
        }
        holes.sort_unstable_by_key(|hole| hole.begin);
        let mut shape = Self {
            said: outline.said,
            event: event.to_owned(),
            payload: String::new(),
            holes,
            steady: Steady::default(),
        };
        // It is known to itself, or else it is not certain.
        payload.clone_into(&mut shape.payload);
        shape.adopt(event, payload).then_some(shape)
    }

    /// Where the text is in a payload that differs from this one in what changes with every
    /// payload.
    fn compare(&self, event: &str, payload: &str) -> Option<Text> {
        let mut text = None;
        let mut walk = self.walk(event, payload)?;
        for hole in self.holes.iter().filter(|hole| !hole.slot.is_steady()) {
            let place = walk.next(hole)?;
            if hole.slot == Slot::Text {
                text = Some(place);
            } else if place.has_escapes {
                // It may be escaped wrongly.
                return None;
            }
        }
        walk.end().map(|()| text)
    }

    /// The piece of a payload that was compared.
    fn piece<'p>(&'p self, payload: &'p str, text: Text) -> Option<Piece<'p>> {
        let Steady { index, part, id, name } = &self.steady;
        let inside = |place: &Option<Range<usize>>| self.payload.get(place.clone()?);
        let text = match text {
            Some(place) => Some(place.text(payload)?),
            None => None,
        };
        let (said, index, part) = (self.said, *index, *part);
        Some(Piece { said, text, index, part, id: inside(id), name: inside(name) })
    }

    /// Takes a payload of this shape for its own.
    fn adopt(&mut self, event: &str, payload: &str) -> bool {
        let found = is_short(event, payload).then(|| self.places(event, payload)).flatten();
        let Some((places, steady)) = found else { return false };
        for (hole, Place { begin, end, .. }) in self.holes.iter_mut().zip(places) {
            (hole.begin, hole.end) = (begin, end);
        }
        payload.clone_into(&mut self.payload);
        self.steady = steady;
        true
    }

    /// Where the holes are in a payload of this shape, and what stands in those that are steady.
    fn places(&self, event: &str, payload: &str) -> Option<([Place; SPOTS_MAX], Steady)> {
        let mut places = [Place::default(); SPOTS_MAX];
        let mut steady = Steady::default();
        let mut walk = self.walk(event, payload)?;
        for (hole, found) in self.holes.iter().zip(&mut places) {
            let place = walk.next(hole)?;
            // Only the text is looked at by whoever reads it.
            if place.has_escapes && hole.slot != Slot::Text {
                return None;
            }
            *found = place;
            let place = place.begin..place.end;
            match hole.slot {
                Slot::Index => steady.index = Some(payload.get(place)?.parse().ok()?),
                Slot::Part => steady.part = Some(payload.get(place)?.parse().ok()?),
                Slot::Id => steady.id = Some(place),
                Slot::Name => steady.name = Some(place),
                Slot::Text | Slot::Mark | Slot::Noise => {}
            }
        }
        walk.end().map(|()| (places, steady))
    }

    fn walk<'s>(&'s self, event: &str, payload: &'s str) -> Option<Walk<'s>> {
        let walk = Walk { known: self.payload.as_bytes(), payload: payload.as_bytes(), at: [0, 0] };
        is_same(event, &self.event).then_some(walk)
    }
}

impl Hole {
    /// The hole for what was read of a payload, if it stands there as a string or a number.
    fn at(payload: &str, (slot, text): &(Slot, Cow<'_, str>)) -> Option<Self> {
        let slot = *slot;
        let Range { start: begin, end } = match text {
            Cow::Borrowed(text) => part_of(payload, text)?,
            Cow::Owned(text) => escaped_in(payload, text)?,
        };
        let byte_at = |at: usize| payload.as_bytes().get(at).copied();
        let is_string = byte_at(begin.checked_sub(1)?) == Some(b'"') && byte_at(end) == Some(b'"');
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        let fits = match slot {
            Slot::Text | Slot::Id | Slot::Name => is_string,
            Slot::Index | Slot::Part => is_number && !is_string,
            Slot::Mark | Slot::Noise => is_string || is_number,
        };
        fits.then_some(Self { begin, end, slot, is_string })
    }
}

impl Slot {
    /// Mostly the same as in the payload before. To look for that alone is quicker.
    fn is_steady(self) -> bool {
        match self {
            Self::Index | Self::Part | Self::Id | Self::Name | Self::Mark => true,
            Self::Text | Self::Noise => false,
        }
    }
}

/// How far a payload has been compared with the one that is known.
struct Walk<'s> {
    known: &'s [u8],
    payload: &'s [u8],
    /// The places up to which they are the same: in the known one, and in the other.
    at: [usize; 2],
}

impl Walk<'_> {
    /// The place of a hole in the payload, which is the same up to its beginning.
    fn next(&mut self, hole: &Hole) -> Option<Place> {
        let [known, at] = self.at;
        let before = self.known.get(known..hole.begin)?;
        let rest = self.payload.get(at..)?.strip_prefix(before)?;
        let begin = at + before.len();
        let (length, has_escapes) =
            if hole.is_string { string_bytes(rest)? } else { (number_bytes(rest)?, false) };
        self.at = [hole.end, begin + length];
        Some(Place { begin, end: begin + length, has_escapes })
    }

    /// The rest is the same.
    fn end(&self) -> Option<()> {
        let [known, at] = self.at;
        (self.payload.get(at..)? == self.known.get(known..)?).then_some(())
    }
}

/// Where a part of a payload stands in it, as the places of both in memory tell.
fn part_of(payload: &str, part: &str) -> Option<Range<usize>> {
    let begin = (part.as_ptr() as usize).checked_sub(payload.as_ptr() as usize)?;
    let end = begin.checked_add(part.len())?;
    (end < payload.len()).then_some(begin..end)
}

/// Where the one string stands whose inside is escaped and means this text.
fn escaped_in(payload: &str, text: &str) -> Option<Range<usize>> {
    let (mut at, mut found) = (0, None);
    while let Some(quote) = memchr(b'"', payload.as_bytes().get(at..)?) {
        let begin = at + quote + 1;
        let (length, has_escapes) = string_bytes(payload.as_bytes().get(begin..)?)?;
        let place = Place { begin, end: begin + length, has_escapes };
        if has_escapes
            && place.text(payload).as_deref() == Some(text)
            && found.replace(begin..place.end).is_some()
        {
            return None;
        }
        at = place.end + 1;
    }
    found
}

/// Whether a payload may be kept.
fn is_short(event: &str, payload: &str) -> bool {
    event.len() + payload.len() <= PAYLOAD_BYTES_MAX
}

/// Whether two names of events are equal. Most wires name none, and to compare nothing with nothing
/// byte by byte is slow: some versions of the C library read the place that an empty text does not
/// have, with a mask, and the processor has to catch that.
fn is_same(one: &str, other: &str) -> bool {
    one.len() == other.len() && (one.is_empty() || one == other)
}

/// How long the inside of a string is, up to its closing quote, and whether it has escapes. None
/// where it holds what JSON does not allow as it is.
fn string_bytes(text: &[u8]) -> Option<(usize, bool)> {
    let (mut end, mut has_escapes) = (0, false);
    loop {
        end += plain_bytes(text.get(end..)?)?;
        match text.get(end)? {
            b'"' => return Some((end, has_escapes)),
            // Whatever is escaped, it is not the closing quote.
            b'\\' => (end, has_escapes) = (end + 2, true),
            _ => return None,
        }
    }
}

/// How many bytes come before the first that is a quote, a backslash or a control character.
///
/// Nearly all strings are a word: eight bytes at once, without a branch for each, find its end
/// before a search for longer texts has begun.
fn plain_bytes(text: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const HIGHS: u64 = ONES << 7;
    let (words, rest) = text.as_chunks();
    for (word, at) in words.iter().zip((0..).step_by(8)) {
        let word = u64::from_le_bytes(*word);
        // The lowest byte of these that is marked is less than the number, and none below it is.
        let less_than =
            |word: u64, number: u8| word.wrapping_sub(ONES * u64::from(number)) & !word & HIGHS;
        let equal = |byte: u8| less_than(word ^ (ONES * u64::from(byte)), 1);
        let marked = equal(b'"') | equal(b'\\') | less_than(word, b' ');
        if marked != 0 {
            return Some(at + marked.trailing_zeros() as usize / 8);
        }
    }
    let in_rest = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..b' '))?;
    Some(text.len() - rest.len() + in_rest)
}

/// How long a whole number is that is no less and no more than its digits.
fn number_bytes(text: &[u8]) -> Option<usize> {
    let end = text.iter().position(|byte| !byte.is_ascii_digit())?;
    let is_number = end == 1 || (end > 1 && !text.starts_with(b"0"));
    let ends = text.get(end).is_some_and(|byte| b",}] \n\r\t".contains(byte));
    (is_number && ends).then_some(end)
}

impl Place {
    /// The text of a string; none where it is escaped wrongly.
    fn text(self, payload: &str) -> Option<Cow<'_, str>> {
        if self.has_escapes {
            let quoted = payload.get(self.begin.checked_sub(1)?..self.end.checked_add(1)?)?;
            return unescaped(quoted).map(Cow::Owned);
        }
        payload.get(self.begin..self.end).map(Cow::Borrowed)
    }
}

/// The text of a string in quotes.
fn unescaped(quoted: &str) -> Option<String> {
    let mut rest = quoted.strip_prefix('"')?.strip_suffix('"')?;
    let mut text = String::with_capacity(rest.len());
    while let Some(at) = memchr(b'\\', rest.as_bytes()) {
        text.push_str(rest.get(..at)?);
        text.push(match rest.as_bytes().get(at + 1)? {
            b'"' => '"',
            b'\\' => '\\',
            b'/' => '/',
            b'n' => '\n',
            b't' => '\t',
            // What is rare is not for us.
            _ => return serde_json::from_str(quoted).ok(),
        });
        rest = rest.get(at + 2..)?;
    }
    text.push_str(rest);
    Some(text)
}

#[cfg(test)]
mod tests;
