//! `clock {zone}`: the time in a named time zone.

use std::collections::BTreeSet;

use async_trait::async_trait;
use jiff::Timestamp;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Tool, ToolContext, ToolError, ToolOutput, ToolSpec};

/// Places that people name although the database has no zone of that name.
const PLACES: &[(&str, &str)] = &[
    ("beijing", "Asia/Shanghai"),
    ("china", "Asia/Shanghai"),
    ("guangzhou", "Asia/Shanghai"),
    ("shenzhen", "Asia/Shanghai"),
    ("北京", "Asia/Shanghai"),
    ("上海", "Asia/Shanghai"),
    ("东京", "Asia/Tokyo"),
    ("東京", "Asia/Tokyo"),
    ("kyoto", "Asia/Tokyo"),
    ("osaka", "Asia/Tokyo"),
    ("bangalore", "Asia/Kolkata"),
    ("delhi", "Asia/Kolkata"),
    ("india", "Asia/Kolkata"),
    ("mumbai", "Asia/Kolkata"),
    ("new_delhi", "Asia/Kolkata"),
    ("hanoi", "Asia/Ho_Chi_Minh"),
    ("barcelona", "Europe/Madrid"),
    ("france", "Europe/Paris"),
    ("frankfurt", "Europe/Berlin"),
    ("geneva", "Europe/Zurich"),
    ("germany", "Europe/Berlin"),
    ("hamburg", "Europe/Berlin"),
    ("italy", "Europe/Rome"),
    ("milan", "Europe/Rome"),
    ("munich", "Europe/Berlin"),
    ("伦敦", "Europe/London"),
    ("巴黎", "Europe/Paris"),
    ("boston", "America/New_York"),
    ("miami", "America/New_York"),
    ("纽约", "America/New_York"),
    ("las_vegas", "America/Los_Angeles"),
    ("san_francisco", "America/Los_Angeles"),
    ("seattle", "America/Los_Angeles"),
    ("rio_de_janeiro", "America/Sao_Paulo"),
];

/// The longest name that is looked up; the longest in the database has 32 bytes.
const NAME_CHARS_MAX: usize = 64;

/// How many zones an error suggests.
const SUGGESTIONS_MAX: usize = 3;

/// Tells the time. Pure; the zones are those of the IANA database that is compiled in.
#[derive(Clone, Debug)]
pub struct Clock {
    zones: TimeZoneDatabase,
}

impl Clock {
    /// A clock with all zones.
    #[must_use]
    pub fn new() -> Self {
        Self { zones: TimeZoneDatabase::bundled() }
    }

    fn tell(&self, name: &str, now: Timestamp) -> Result<String, UnknownZone> {
        let zone = self.find(name, now)?;
        let told = now.to_zoned(zone);
        let zone_name = told.time_zone().iana_name().unwrap_or(name);
        Ok(told.strftime(&format!("%Y-%m-%dT%H:%M:%S%:z ({zone_name}, %A)")).to_string())
    }

    /// The zone of that name, or of the city of that name.
    fn find(&self, name: &str, now: Timestamp) -> Result<TimeZone, UnknownZone> {
        if name.chars().count() > NAME_CHARS_MAX {
            let start = name.chars().take(NAME_CHARS_MAX).collect::<String>() + "…";
            return Err(UnknownZone { name: start, suggestions: Vec::new() });
        }
        let wanted = name.trim().replace(' ', "_");
        if let Ok(zone) = self.zones.get(&wanted) {
            return Ok(zone);
        }
        let place = wanted.to_lowercase();
        if let Some((_, zone)) = PLACES.iter().find(|(known, _)| *known == place) {
            return self.zones.get(zone).map_err(|_| self.unknown(name, &place));
        }
        let cities = self.cities().filter(|zone| city(zone).to_lowercase() == place);
        let found: Vec<TimeZone> = cities.filter_map(|zone| self.zones.get(&zone).ok()).collect();
        // Old names of one city keep the same time; two cities of the same name do not.
        match found.split_first() {
            Some((first, others))
                if others.iter().all(|zone| zone.to_offset(now) == first.to_offset(now)) =>
            {
                Ok(first.clone())
            }
            Some(_) | None => Err(self.unknown(name, &place)),
        }
    }

    /// The zones that are named after a place. `Etc/GMT+8` is eight hours *behind*, so those are
    /// only found by their whole name.
    fn cities(&self) -> impl Iterator<Item = String> {
        let names: BTreeSet<String> =
            self.zones.available().map(|zone| zone.as_str().to_owned()).collect();
        names.into_iter().filter(|name| name.contains('/') && !name.starts_with("Etc/"))
    }

    fn unknown(&self, name: &str, place: &str) -> UnknownZone {
        let near_max = (city(place).chars().count() / 3).max(1);
        let mut ranked: Vec<(usize, String)> = self
            .cities()
            .filter_map(|zone| {
                let whole = zone.to_lowercase();
                let near = distance(place, &whole).min(distance(city(place), city(&whole)));
                (near <= near_max).then_some((near, zone))
            })
            .collect();
        ranked.sort();
        let suggestions = ranked.into_iter().take(SUGGESTIONS_MAX).map(|(_, zone)| zone).collect();
        UnknownZone { name: name.to_owned(), suggestions }
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ClockInput {
    /// A time zone by its IANA name, for example `Asia/Tokyo`, `Europe/Berlin` or `UTC`.
    zone: String,
}

#[async_trait]
impl Tool for Clock {
    fn spec(&self) -> ToolSpec {
        ToolSpec::new::<ClockInput>(
            "clock",
            "Tells the current date, time and weekday in a time zone.",
        )
        .pure()
    }

    async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let ClockInput { zone } = context.input()?;
        self.tell(&zone, Timestamp::now()).map(ToolOutput).map_err(ToolError::new)
    }
}

/// No zone has the name, or several have.
#[derive(Clone, Debug, PartialEq, Eq)]
struct UnknownZone {
    name: String,
    suggestions: Vec<String>,
}

impl std::fmt::Display for UnknownZone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "unknown time zone {:?}; ", self.name)?;
        match self.suggestions.as_slice() {
            [] => f.write_str("give an IANA name such as \"Asia/Tokyo\" or \"UTC\""),
            near => write!(f, "did you mean {}?", near.join(", ")),
        }
    }
}

/// The last part of a zone's name.
fn city(zone: &str) -> &str {
    zone.rsplit('/').next().unwrap_or(zone)
}

/// How many letters must be changed, added or left out to make one word of the other.
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.chars().count()).collect();
    for (above, letter) in one.chars().enumerate() {
        let mut diagonal = above;
        let mut left = above + 1;
        for (cell, wanted) in row.iter_mut().skip(1).zip(other.chars()) {
            let changed = diagonal + usize::from(letter != wanted);
            diagonal = *cell;
            left = changed.min(*cell + 1).min(left + 1);
            *cell = left;
        }
        if let Some(first) = row.first_mut() {
            *first = above + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(zone: &str) -> Result<String, String> {
        let now = "2026-11-21T14:05:12.5Z".parse().unwrap();
        Clock::new().tell(zone, now).map_err(|e| e.to_string())
    }

    fn check(zone: &str, expect: &str) {
        assert_eq!(told(zone).as_deref(), Ok(expect), "{zone}");
    }

    #[test]
    fn tells_the_time_in_a_zone() {
        check("Asia/Tokyo", "2026-11-21T23:05:12+09:00 (Asia/Tokyo, Saturday)");
        check("Pacific/Kiritimati", "2026-11-22T04:05:12+14:00 (Pacific/Kiritimati, Sunday)");
        check("America/St_Johns", "2026-11-21T10:35:12-03:30 (America/St_Johns, Saturday)");
        check("UTC", "2026-11-21T14:05:12+00:00 (UTC, Saturday)");
        check("Japan", "2026-11-21T23:05:12+09:00 (Japan, Saturday)");
    }

    #[test]
    fn accepts_cities_and_any_case() {
        let tokyo = "2026-11-21T23:05:12+09:00 (Asia/Tokyo, Saturday)";
        for name in ["asia/tokyo", "Tokyo", " tokyo ", "TOKYO", "东京", "Kyoto"] {
            check(name, tokyo);
        }
        check("new york", "2026-11-21T09:05:12-05:00 (America/New_York, Saturday)");
        check("Beijing", "2026-11-21T22:05:12+08:00 (Asia/Shanghai, Saturday)");
        check("Buenos Aires", &told("America/Argentina/Buenos_Aires").unwrap());
    }

    #[test]
    fn every_place_has_a_zone() {
        let clock = Clock::new();
        for (place, zone) in PLACES {
            assert!(clock.zones.get(zone).is_ok(), "{place}: {zone}");
            assert_eq!(*place, place.to_lowercase());
        }
    }

    #[test]
    fn names_the_unknown_zone_and_suggests_near_ones() {
        let error = |zone| told(zone).unwrap_err();
        assert_eq!(error("Tokio"), "unknown time zone \"Tokio\"; did you mean Asia/Tokyo?");
        assert_eq!(
            error("Asia/Tokio"),
            "unknown time zone \"Asia/Tokio\"; did you mean Asia/Tokyo?"
        );
        assert!(error("Europe/Berln").contains("Europe/Berlin"), "{}", error("Europe/Berln"));
        for zone in ["GMT+8", "UTC+8", "+09:00", "", "Atlantis/Capital", "../../etc/passwd"] {
            let expect = "give an IANA name such as \"Asia/Tokyo\" or \"UTC\"";
            assert_eq!(error(zone), format!("unknown time zone {zone:?}; {expect}"));
        }
        assert!(error(&"x".repeat(100_000)).len() < 200);
    }

    #[test]
    fn counts_changed_letters() {
        for (one, other, expect) in
            [("", "", 0), ("", "abc", 3), ("abc", "", 3), ("kitten", "sitting", 3), ("ab", "ba", 2)]
        {
            assert_eq!(distance(one, other), expect, "{one} {other}");
        }
    }
}
