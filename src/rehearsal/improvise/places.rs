//! Cities of the world, with their time zones.

/// A city that prompts may name.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Its usual English name.
    pub(super) name: &'static str,
    /// Its IANA time zone.
    pub(super) zone: &'static str,
    /// Other names, in lower case.
    aliases: &'static [&'static str],
}

const fn place(name: &'static str, zone: &'static str, aliases: &'static [&'static str]) -> Place {
    Place { name, zone, aliases }
}

const PLACES: [Place; 44] = [
    place("Tokyo", "Asia/Tokyo", &["东京", "東京"]),
    place("Osaka", "Asia/Tokyo", &["大阪"]),
    place("Beijing", "Asia/Shanghai", &["北京", "peking"]),
    place("Shanghai", "Asia/Shanghai", &["上海"]),
    place("Shenzhen", "Asia/Shanghai", &["深圳"]),
    place("Guangzhou", "Asia/Shanghai", &["广州", "廣州"]),
    place("Hong Kong", "Asia/Hong_Kong", &["香港"]),
    place("Taipei", "Asia/Taipei", &["台北", "臺北"]),
    place("Seoul", "Asia/Seoul", &["首尔", "首爾"]),
    place("Singapore", "Asia/Singapore", &["新加坡"]),
    place("Bangkok", "Asia/Bangkok", &["曼谷"]),
    place("Hanoi", "Asia/Ho_Chi_Minh", &["河内"]),
    place("Jakarta", "Asia/Jakarta", &["雅加达"]),
    place("Manila", "Asia/Manila", &["马尼拉"]),
    place("Delhi", "Asia/Kolkata", &["new delhi", "德里"]),
    place("Mumbai", "Asia/Kolkata", &["bombay", "孟买"]),
    place("Dubai", "Asia/Dubai", &["迪拜"]),
    place("Istanbul", "Europe/Istanbul", &["伊斯坦布尔"]),
    place("Moscow", "Europe/Moscow", &["莫斯科"]),
    place("London", "Europe/London", &["伦敦", "倫敦"]),
    place("Dublin", "Europe/Dublin", &["都柏林"]),
    place("Paris", "Europe/Paris", &["巴黎"]),
    place("Berlin", "Europe/Berlin", &["柏林"]),
    place("Munich", "Europe/Berlin", &["münchen", "慕尼黑"]),
    place("Madrid", "Europe/Madrid", &["马德里"]),
    place("Rome", "Europe/Rome", &["罗马"]),
    place("Vienna", "Europe/Vienna", &["wien", "维也纳"]),
    place("Zurich", "Europe/Zurich", &["zürich", "苏黎世"]),
    place("Amsterdam", "Europe/Amsterdam", &["阿姆斯特丹"]),
    place("Stockholm", "Europe/Stockholm", &["斯德哥尔摩"]),
    place("Athens", "Europe/Athens", &["雅典"]),
    place("Cairo", "Africa/Cairo", &["开罗"]),
    place("Lagos", "Africa/Lagos", &["拉各斯"]),
    place("Nairobi", "Africa/Nairobi", &["内罗毕"]),
    place("Johannesburg", "Africa/Johannesburg", &["约翰内斯堡"]),
    place("New York", "America/New_York", &["nyc", "纽约", "紐約"]),
    place("Chicago", "America/Chicago", &["芝加哥"]),
    place("San Francisco", "America/Los_Angeles", &["旧金山"]),
    place("Los Angeles", "America/Los_Angeles", &["洛杉矶"]),
    place("Toronto", "America/Toronto", &["多伦多"]),
    place("Mexico City", "America/Mexico_City", &["墨西哥城"]),
    place("Sao Paulo", "America/Sao_Paulo", &["são paulo", "圣保罗"]),
    place("Buenos Aires", "America/Argentina/Buenos_Aires", &["布宜诺斯艾利斯"]),
    place("Sydney", "Australia/Sydney", &["悉尼"]),
];

/// The cities that a text names: where each name begins, in order. `lower` is the text with its
/// ASCII letters in lower case.
pub(super) fn find(lower: &str) -> Vec<(usize, &'static Place)> {
    let mut found: Vec<(usize, usize, &'static Place)> = Vec::new();
    for place in &PLACES {
        let own = place.name.to_ascii_lowercase();
        for name in std::iter::once(own.as_str()).chain(place.aliases.iter().copied()) {
            let hits = lower.match_indices(name).map(|(at, _)| at);
            let hits = hits.filter(|at| !name.is_ascii() || stands_alone(lower, *at, name.len()));
            found.extend(hits.map(|at| (at, name.len(), place)));
        }
    }
    // Of names that overlap ("New Delhi", "Delhi") the one that begins first stands.
    found.sort_by_key(|(at, length, _)| (*at, std::cmp::Reverse(*length)));
    let mut end = 0;
    found.retain(|(at, length, _)| {
        let free = *at >= end;
        if free {
            end = at + length;
        }
        free
    });
    found.into_iter().map(|(at, _, place)| (at, place)).collect()
}

/// Whether a stretch of text has no letter or digit of ASCII on either side.
pub(super) fn stands_alone(text: &str, at: usize, length: usize) -> bool {
    let open = |byte: Option<&u8>| byte.is_none_or(|b| !b.is_ascii_alphanumeric());
    let bytes = text.as_bytes();
    open(at.checked_sub(1).and_then(|before| bytes.get(before))) && open(bytes.get(at + length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_cities_in_both_languages() {
        let zones = |text: &str| -> Vec<&str> {
            find(&text.to_ascii_lowercase()).iter().map(|(_, place)| place.zone).collect()
        };
        assert_eq!(zones("in Tokyo and in Beijing?"), ["Asia/Tokyo", "Asia/Shanghai"]);
        assert_eq!(zones("北京和东京现在几点"), ["Asia/Shanghai", "Asia/Tokyo"]);
        assert_eq!(zones("New Delhi or new york"), ["Asia/Kolkata", "America/New_York"]);
        assert_eq!(zones("Parisian romeo"), [""; 0]);
    }

    #[test]
    fn every_zone_is_known_to_the_time_zone_database() {
        for place in &PLACES {
            assert!(jiff::tz::TimeZone::get(place.zone).is_ok(), "{}", place.zone);
        }
    }
}
