//! Parsers of single TOML values, and checks of names. Errors are messages without the key.

use std::fmt::Display;
use std::time::Duration;

use toml::de::DeValue;

use crate::config::error::quoted_names;
use crate::config::parse_duration;

/// A parsed value, or the message of an error.
pub(in crate::config) type Parsed<T> = Result<T, String>;

/// Returns the message for a value of the wrong type.
pub(in crate::config) fn wrong_type(expected: &str, value: &DeValue<'_>) -> String {
    format!("must be {expected}, not {}", described(value))
}

pub(in crate::config) fn string(value: &DeValue<'_>) -> Parsed<String> {
    value.as_str().map(str::to_owned).ok_or_else(|| wrong_type("a string", value))
}

/// Parses a string that is not blank.
pub(in crate::config) fn non_empty_string(value: &DeValue<'_>) -> Parsed<String> {
    let text = string(value)?;
    if text.trim().is_empty() { Err("must not be empty".to_owned()) } else { Ok(text) }
}

pub(in crate::config) fn boolean(value: &DeValue<'_>) -> Parsed<bool> {
    value.as_bool().ok_or_else(|| wrong_type("true or false", value))
}

/// Parses a whole number of at least 0 that fits `T`.
pub(in crate::config) fn unsigned<T: TryFrom<u64>>(value: &DeValue<'_>) -> Parsed<T> {
    let Some(integer) = value.as_integer() else { return Err(wrong_type("a whole number", value)) };
    let number = i128::from_str_radix(integer.as_str(), integer.radix())
        .map_err(|_| format!("{integer} is too large"))?;
    if number < 0 {
        return Err(format!("must not be negative, and is {number}"));
    }
    u64::try_from(number)
        .ok()
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| format!("{number} is too large"))
}

/// Parses a whole number above 0 that fits `T`.
pub(super) fn positive<T: TryFrom<u64>>(value: &DeValue<'_>) -> Parsed<T> {
    match unsigned::<u64>(value)? {
        0 => Err("must be at least 1".to_owned()),
        _ => unsigned(value),
    }
}

/// Parses a whole number within these bounds.
pub(super) fn within<T>(value: &DeValue<'_>, (least, most): (T, T)) -> Parsed<T>
where
    T: TryFrom<u64> + PartialOrd + Display + Copy,
{
    let number = unsigned(value)?;
    if (least..=most).contains(&number) {
        return Ok(number);
    }
    Err(format!("must be from {least} to {most}, and is {number}"))
}

/// Parses a number with or without a fraction.
pub(in crate::config) fn float(value: &DeValue<'_>) -> Parsed<f64> {
    let text = match (value.as_float(), value.as_integer()) {
        (Some(float), _) => float.as_str().to_owned(),
        (None, Some(integer)) if integer.radix() == 10 => integer.as_str().to_owned(),
        (None, _) => return Err(wrong_type("a number", value)),
    };
    let not_a_number = || format!("must be a number, not {text}");
    let number: f64 = text.parse().map_err(|_| not_a_number())?;
    if number.is_finite() { Ok(number) } else { Err(not_a_number()) }
}

/// Parses a size in bytes above 0, such as `"512MiB"` or a whole number.
pub(super) fn size(value: &DeValue<'_>) -> Parsed<u64> {
    let Some(text) = value.as_str() else { return positive(value) };
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40), ("B", 0)];
    let unit = units.iter().find_map(|(unit, bits)| Some((text.strip_suffix(unit)?, bits)));
    let bytes = unit.and_then(|(number, bits)| {
        let number: u64 = number.trim().parse().ok()?;
        number.checked_mul(1 << bits).filter(|bytes| *bytes > 0)
    });
    bytes.ok_or_else(|| wrong_type("a size such as \"512MiB\"", value))
}

/// Parses a duration such as `"30s"`, which may be 0.
pub(in crate::config) fn duration(value: &DeValue<'_>) -> Parsed<Duration> {
    let Some(text) = value.as_str() else {
        return Err(wrong_type("a time such as \"30s\"", value));
    };
    parse_duration(text)
}

/// Parses a duration above 0.
pub(super) fn positive_duration(value: &DeValue<'_>) -> Parsed<Duration> {
    let duration = duration(value)?;
    if duration.is_zero() { Err("must be longer than 0".to_owned()) } else { Ok(duration) }
}

/// Parses one of these names.
pub(in crate::config) fn one_of<T: Copy>(value: &DeValue<'_>, names: &[(&str, T)]) -> Parsed<T> {
    let found = value.as_str().and_then(|text| names.iter().find(|(name, _)| *name == text));
    found.map(|(_, value)| *value).ok_or_else(|| wrong_type(&quoted_names(names), value))
}

/// Converts a TOML value to JSON.
pub(super) fn json(value: &DeValue<'_>) -> Parsed<serde_json::Value> {
    Ok(match value {
        DeValue::String(text) => text.as_ref().into(),
        DeValue::Integer(integer) => i64::from_str_radix(integer.as_str(), integer.radix())
            .map_err(|_| format!("{integer} is too large"))?
            .into(),
        DeValue::Float(_) => float(value)?.into(),
        DeValue::Boolean(on) => (*on).into(),
        DeValue::Datetime(_) => return Err("a date cannot be sent as JSON; quote it".to_owned()),
        DeValue::Array(items) => {
            items.iter().map(|item| json(item.get_ref())).collect::<Parsed<Vec<_>>>()?.into()
        }
        DeValue::Table(_) => json_object(value)?.into(),
    })
}

/// Converts a TOML table to the members of a JSON object.
pub(super) fn json_object(
    value: &DeValue<'_>,
) -> Parsed<serde_json::Map<String, serde_json::Value>> {
    let table = value.as_table().ok_or_else(|| wrong_type("a table", value))?;
    let mut members = serde_json::Map::new();
    for (key, value) in table {
        let value = json(value.get_ref()).map_err(|error| format!("{}: {error}", key.get_ref()))?;
        members.insert(key.get_ref().to_string(), value);
    }
    Ok(members)
}

/// Checks the name of a model, an agent, a tool or an MCP server.
pub(super) fn check_name(name: &str) -> Parsed<()> {
    let fits = (1..=64).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    let message = "a name has 1 to 64 characters of A-Z, a-z, 0-9, _ and -";
    if fits { Ok(()) } else { Err(message.to_owned()) }
}

/// Splits `host:port` or `[v6]:port`. The port may be missing.
pub(super) fn split_port(text: &str) -> (&str, Option<&str>) {
    let after_address = text.rfind(']').map_or(0, |at| at + 1);
    match text.get(after_address..).unwrap_or_default().rfind(':') {
        Some(at) => {
            let (name, port) = text.split_at(after_address + at);
            (name, port.strip_prefix(':'))
        }
        None => (text, None),
    }
}

/// Returns whether the text can be a DNS name or an IPv4 address by its characters and length, or is an IPv6 address
/// in brackets.
pub(super) fn is_host_name(text: &str) -> bool {
    if let Some(address) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
        return address.parse::<std::net::Ipv6Addr>().is_ok();
    }
    (1..=253).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
        && !text.starts_with('.')
}

fn described(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("{:?}", crate::types::excerpt(text, 60)),
        DeValue::Integer(integer) => integer.to_string(),
        DeValue::Float(float) => float.to_string(),
        DeValue::Boolean(on) => on.to_string(),
        DeValue::Datetime(date) => date.to_string(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_become_json_and_dates_do_not() {
        let parse = |text| json(DeValue::parse(text).expect("parse TOML").get_ref());
        let value = parse("{ a = 1, b = [true, 1.5, 'x'], c = { d = 0x10 } }").expect("convert");
        assert_eq!(value.to_string(), r#"{"a":1,"b":[true,1.5,"x"],"c":{"d":16}}"#);
        let error = parse("{ when = 2026-01-01 }").expect_err("refuse a date");
        assert!(error.starts_with("when: "), "{error}");
        assert!(parse("{ a = nan }").is_err());
    }
}
