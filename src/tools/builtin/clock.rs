//! `clock {zone}`: the time in a named time zone.

use std::collections::BTreeSet;

use async_trait::async_trait;
use jiff::Timestamp;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use schemars::JsonSchema;
use serde::Deserialize;
use strsim::levenshtein;

use crate::{Tool, ToolContext, ToolError, ToolOutput, ToolSpec};
use callsheet_values::types::excerpt;

/// Names of places that are not in the name of a zone of the IANA database.
const PLACE_ALIASES: &[(&str, &str)] = &[
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

/// Maximum length of a zone name; the longest in the database has 32 bytes.
const NAME_CHARS_MAX: usize = 64;

/// Maximum number of zones that an error suggests.
const SUGGESTIONS_MAX: usize = 3;

/// Returns the current time in a zone. Pure. The IANA time zone database is compiled in.
#[derive(Clone, Debug)]
pub struct Clock {
    zones: TimeZoneDatabase,
}

impl Clock {
    /// Makes a clock with all zones of the database.
    #[must_use]
    pub fn new() -> Self {
        Self { zones: TimeZoneDatabase::bundled() }
    }

    fn format_time(&self, name: &str, now: Timestamp) -> Result<String, UnknownZone> {
        let zone = self.find(name, now)?;
        let local = now.to_zoned(zone);
        let zone_name = local.time_zone().iana_name().unwrap_or(name);
        Ok(local.strftime(&format!("%Y-%m-%dT%H:%M:%S%:z ({zone_name}, %A)")).to_string())
    }

    /// Finds a zone by its IANA name, by an alias, or by its city.
    fn find(&self, name: &str, now: Timestamp) -> Result<TimeZone, UnknownZone> {
        if name.chars().count() > NAME_CHARS_MAX {
            let name = excerpt(name, NAME_CHARS_MAX);
            return Err(UnknownZone { name, suggestions: Vec::new() });
        }
        let zone_name = name.trim().replace(' ', "_");
        // jiff has `Etc/Unknown`, with the time of UTC.
        if let Ok(zone) = self.zones.get(&zone_name)
            && !zone.is_unknown()
        {
            return Ok(zone);
        }
        let place = zone_name.to_lowercase();
        if let Some((_, zone)) = PLACE_ALIASES.iter().find(|(alias, _)| *alias == place) {
            return self.zones.get(zone).map_err(|_| self.unknown(name, &place));
        }
        let cities = self.cities().filter(|zone| city(zone).to_lowercase() == place);
        let found: Vec<TimeZone> = cities.filter_map(|zone| self.zones.get(&zone).ok()).collect();
        // Old names of one city have the same offset. Different cities with the same name do not;
        // such a name is ambiguous.
        match found.split_first() {
            Some((first, others))
                if others.iter().all(|zone| zone.to_offset(now) == first.to_offset(now)) =>
            {
                Ok(first.clone())
            }
            Some(_) | None => Err(self.unknown(name, &place)),
        }
    }

    /// Iterates over the zones that are named after a place. Leaves out the `Etc/` zones, whose
    /// signs are inverted (`Etc/GMT+8` is UTC-8): they need their full name.
    fn cities(&self) -> impl Iterator<Item = String> {
        let names: BTreeSet<String> =
            self.zones.available().map(|zone| zone.as_str().to_owned()).collect();
        names.into_iter().filter(|name| name.contains('/') && !name.starts_with("Etc/"))
    }

    fn unknown(&self, name: &str, place: &str) -> UnknownZone {
        let distance_max = (city(place).chars().count() / 3).max(1);
        let mut ranked: Vec<(usize, String)> = self
            .cities()
            .filter_map(|zone| {
                let lower = zone.to_lowercase();
                let distance =
                    levenshtein(place, &lower).min(levenshtein(city(place), city(&lower)));
                (distance <= distance_max).then_some((distance, zone))
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
    /// IANA name of the time zone, for example `Asia/Tokyo`, `Europe/Berlin` or `UTC`.
    zone: String,
}

#[async_trait]
impl Tool for Clock {
    fn spec(&self) -> ToolSpec {
        ToolSpec::new::<ClockInput>(
            "clock",
            "Returns the current date, time and weekday in a time zone.",
        )
        .pure()
    }

    async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let ClockInput { zone } = context.input()?;
        let time = self.format_time(&zone, Timestamp::now());
        time.map(ToolOutput::from).map_err(|error| ToolError::new(error).permanent())
    }
}

/// No zone has this name, or the name is ambiguous.
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
            names => write!(f, "did you mean {}?", names.join(", ")),
        }
    }
}

/// Returns the last part of a zone's name.
fn city(zone: &str) -> &str {
    zone.rsplit('/').next().unwrap_or(zone)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time_in(zone: &str) -> Result<String, String> {
        let now = "2026-11-21T14:05:12.5Z".parse().unwrap();
        Clock::new().format_time(zone, now).map_err(|e| e.to_string())
    }

    fn check(zone: &str, expect: &str) {
        assert_eq!(time_in(zone).as_deref(), Ok(expect), "{zone}");
    }

    #[test]
    fn formats_the_time_in_a_zone() {
        check("Asia/Tokyo", "2026-11-21T23:05:12+09:00 (Asia/Tokyo, Saturday)");
        check("Pacific/Kiritimati", "2026-11-22T04:05:12+14:00 (Pacific/Kiritimati, Sunday)");
        check("America/St_Johns", "2026-11-21T10:35:12-03:30 (America/St_Johns, Saturday)");
        check("UTC", "2026-11-21T14:05:12+00:00 (UTC, Saturday)");
        check("Japan", "2026-11-21T23:05:12+09:00 (Japan, Saturday)");
    }

    #[test]
    fn accepts_cities_aliases_and_any_case() {
        let tokyo = "2026-11-21T23:05:12+09:00 (Asia/Tokyo, Saturday)";
        for name in ["asia/tokyo", "Tokyo", " tokyo ", "TOKYO", "东京", "Kyoto"] {
            check(name, tokyo);
        }
        check("new york", "2026-11-21T09:05:12-05:00 (America/New_York, Saturday)");
        check("Beijing", "2026-11-21T22:05:12+08:00 (Asia/Shanghai, Saturday)");
        check("Buenos Aires", &time_in("America/Argentina/Buenos_Aires").unwrap());
    }

    #[test]
    fn every_alias_is_lower_case_and_names_a_zone() {
        let clock = Clock::new();
        for (place, zone) in PLACE_ALIASES {
            assert!(clock.zones.get(zone).is_ok(), "{place}: {zone}");
            assert_eq!(*place, place.to_lowercase());
        }
    }

    #[test]
    fn error_suggests_zones_with_similar_names() {
        let error = |zone| time_in(zone).unwrap_err();
        assert_eq!(error("Tokio"), "unknown time zone \"Tokio\"; did you mean Asia/Tokyo?");
        assert_eq!(
            error("Asia/Tokio"),
            "unknown time zone \"Asia/Tokio\"; did you mean Asia/Tokyo?"
        );
        assert!(error("Europe/Berln").contains("Europe/Berlin"), "{}", error("Europe/Berln"));
        for zone in [
            "GMT+8",
            "UTC+8",
            "+09:00",
            "",
            "Atlantis/Capital",
            "../../etc/passwd",
            "Etc/Unknown",
            "etc/unknown",
        ] {
            let expect = "give an IANA name such as \"Asia/Tokyo\" or \"UTC\"";
            assert_eq!(error(zone), format!("unknown time zone {zone:?}; {expect}"));
        }
        assert!(error(&"x".repeat(100_000)).len() < 200);
    }
}
