//! Words that speak of the same thing, in English and Chinese.

/// Groups of words; a tool and a prompt that both hold one of a group speak of the same thing.
const CONCEPTS: [&[&str]; 24] = [
    &["time", "clock", "o'clock", "几点", "时间", "幾點", "點鐘", "时刻"],
    &["weather", "forecast", "temperature", "rain", "sunny", "天气", "天氣", "气温", "下雨"],
    &["news", "headline", "新闻", "新聞", "头条"],
    &["search", "google", "lookup", "look up", "搜索", "搜一下", "查找", "检索"],
    &["calculate", "calculator", "calc", "compute", "math", "arithmetic", "计算", "算一下"],
    &["add", "sum", "plus", "相加", "总和"],
    &["multiply", "times", "multiplied", "product", "相乘"],
    &["read", "open", "cat", "读", "打开"],
    &["write", "save", "store", "append", "写入", "保存"],
    &["delete", "remove", "erase", "删除"],
    &["fetch", "download", "抓取", "下载"],
    &["translate", "translation", "翻译"],
    &["email", "mail", "邮件"],
    &["message", "sms", "消息", "短信"],
    &["remind", "reminder", "alarm", "提醒", "闹钟"],
    &["stock", "share price", "股票", "股价"],
    &["convert", "currency", "exchange", "汇率", "换算"],
    &["calendar", "event", "meeting", "schedule", "appointment", "日历", "会议", "日程"],
    &["image", "picture", "draw", "photo", "图片", "画"],
    &["music", "song", "音乐", "歌"],
    &["flight", "plane", "航班", "机票"],
    &["hotel", "accommodation", "酒店"],
    &["order", "buy", "purchase", "订单", "购买"],
    &["database", "sql", "数据库"],
];

/// Concepts of tools that change things: a value of their kind alone is no reason to call them.
const CHANGING: [usize; 4] = [8, 9, 12, 13];

/// Words of tool names that say nothing of what the tool is for.
const EMPTY_WORDS: [&str; 28] = [
    "a", "all", "an", "and", "api", "by", "current", "data", "do", "for", "from", "function",
    "get", "in", "info", "is", "make", "my", "new", "of", "on", "run", "set", "the", "to", "tool",
    "use", "with",
];

/// The concepts that a text in lower case speaks of, each with the place of its first word.
pub(super) fn of_text(lower: &str) -> Vec<(usize, usize)> {
    let words = words(lower);
    let mut found = Vec::new();
    for (concept, names) in CONCEPTS.iter().enumerate() {
        let places = names.iter().filter_map(|name| {
            if !name.is_ascii() || name.contains([' ', '\'']) {
                return lower.find(name);
            }
            words.iter().find(|(_, word)| same(word, name)).map(|(at, _)| *at)
        });
        if let Some(first) = places.min() {
            found.push((concept, first));
        }
    }
    found
}

/// Whether one of these concepts is about changing things.
pub(super) fn is_changing(concept: usize) -> bool {
    CHANGING.contains(&concept)
}

/// Whether a set of concepts holds calculating.
pub(super) fn is_calculating(concept: usize) -> bool {
    concept == 4
}

/// The words of a tool's name: `getWeather`, `get_weather` and `get-weather` are alike.
pub(super) fn name_words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut lower_before = false;
    for c in name.chars() {
        let begins = !c.is_ascii_alphanumeric() || (c.is_ascii_uppercase() && lower_before);
        if begins {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| c.is_ascii_alphanumeric()) {
            word.push(c.to_ascii_lowercase());
        }
        lower_before = c.is_ascii_lowercase() || c.is_ascii_digit();
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Whether a word of a tool's name says what the tool is for.
pub(super) fn tells(word: &str) -> bool {
    word.len() > 1 && !EMPTY_WORDS.contains(&word)
}

/// The runs of ASCII letters and digits of a text in lower case, with their places.
pub(super) fn words(lower: &str) -> Vec<(usize, &str)> {
    let mut words = Vec::new();
    let mut begin = None;
    let end = std::iter::once((lower.len(), ' '));
    for (at, c) in lower.char_indices().chain(end) {
        match (begin, c.is_ascii_alphanumeric()) {
            (None, true) => begin = Some(at),
            (Some(start), false) => {
                words.extend(lower.get(start..at).map(|word| (start, word)));
                begin = None;
            }
            (None, false) | (Some(_), true) => {}
        }
    }
    words
}

/// Whether two words are the same but for their ending. `times` is no `time`: it multiplies.
pub(super) fn same(one: &str, other: &str) -> bool {
    one == other || (one != "times" && other != "times" && stem(one) == stem(other))
}

fn stem(word: &str) -> &str {
    for (ending, length_min) in [("ing", 6), ("ed", 5), ("es", 5), ("s", 4), ("e", 4)] {
        if let Some(stem) = word.strip_suffix(ending)
            && word.len() >= length_min
            && !word.ends_with("ss")
            && word != "news"
        {
            return stem;
        }
    }
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_concepts_by_word_and_sign() {
        let has = |text: &str| -> Vec<usize> { of_text(text).into_iter().map(|c| c.0).collect() };
        assert_eq!(has("what time is it"), [0]);
        assert_eq!(has("7 times 6"), [6]);
        assert_eq!(has("现在几点，天气如何"), [0, 1]);
        assert_eq!(has("reading, downloaded, searches"), [3, 7, 10]);
        assert_eq!(has("breadth, something new"), [0; 0]);
        assert_eq!(of_text("the news")[0].1, 4);
    }

    #[test]
    fn cuts_names_into_words() {
        for name in ["get_weather", "getWeather", "get-weather", "GetWeather"] {
            assert_eq!(name_words(name), ["get", "weather"], "{name}");
        }
        assert_eq!(name_words("HTTPGet"), ["httpget"]);
        assert!(!tells("get") && tells("weather"));
    }
}
