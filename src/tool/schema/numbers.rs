//! Compares JSON values by the rules of JSON Schema: numbers are equal if they have the same value, as 1 and 1.0.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};

use serde_json::{Number, Value};

/// Returns the value of a number without a fraction.
pub(super) fn integer(number: &Number) -> Option<i128> {
    let whole = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
    whole.or_else(|| {
        let float = number.as_f64()?;
        // Larger numbers have no exact value as an integer.
        (float.fract() == 0.0 && float.abs() < 1e38).then_some(float as i128)
    })
}

/// Returns true for numbers without a fraction, however large.
pub(super) fn is_integer(number: &Number) -> bool {
    number.is_i64() || number.is_u64() || number.as_f64().is_some_and(|float| float.fract() == 0.0)
}

pub(super) fn compare(a: &Number, b: &Number) -> Ordering {
    match (integer(a), integer(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        (_, _) => a.as_f64().partial_cmp(&b.as_f64()).unwrap_or(Ordering::Equal),
    }
}

/// Returns true if a number is a multiple of another, in decimal: 0.3 is one of 0.1.
pub(super) fn is_multiple(number: &Number, of: &Number) -> bool {
    let (Some((digits, exponent)), Some((of, of_exponent))) = (decimal(number), decimal(of)) else {
        return false;
    };
    // Scales the number, or its divisor, to the exponent of the other.
    let mut remainder = digits.checked_rem(of);
    for _ in of_exponent..exponent {
        remainder = remainder.and_then(|digits| digits.checked_mul(10)?.checked_rem(of));
    }
    let mut divisor = Some(of);
    for _ in exponent..of_exponent {
        divisor = divisor.and_then(|of| of.checked_mul(10));
    }
    match divisor {
        Some(divisor) if exponent < of_exponent => digits.checked_rem(divisor) == Some(0),
        Some(_) => remainder == Some(0),
        // The divisor is greater than any number with these digits.
        None => digits == 0,
    }
}

/// Returns the digits and the decimal exponent of a number.
fn decimal(number: &Number) -> Option<(i128, i32)> {
    let text = number.to_string();
    let (digits, exponent) = text.split_once(['e', 'E']).unwrap_or((&text, "0"));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let exponent = exponent.parse::<i32>().ok()? - i32::try_from(fraction.len()).ok()?;
    Some((format!("{whole}{fraction}").parse().ok()?, exponent))
}

/// A JSON value that is compared by the rules of JSON Schema.
#[derive(Clone, Copy, Debug)]
pub(super) struct JsonValue<'v>(pub(super) &'v Value);

impl PartialEq for JsonValue<'_> {
    fn eq(&self, other: &Self) -> bool {
        match (self.0, other.0) {
            (Value::Number(a), Value::Number(b)) => compare(a, b) == Ordering::Equal,
            (Value::Array(a), Value::Array(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| JsonValue(a) == JsonValue(b))
            }
            (Value::Object(a), Value::Object(b)) => {
                let is_in_b = |(name, a)| b.get(name).is_some_and(|b| JsonValue(a) == JsonValue(b));
                a.len() == b.len() && a.iter().all(is_in_b)
            }
            (a, b) => a == b,
        }
    }
}

impl Eq for JsonValue<'_> {}

impl Hash for JsonValue<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self.0 {
            Value::Number(number) => match integer(number) {
                Some(integer) => integer.hash(state),
                None => number.as_f64().map(f64::to_bits).hash(state),
            },
            Value::Array(items) => {
                items.len().hash(state);
                items.iter().for_each(|item| JsonValue(item).hash(state));
            }
            Value::Object(members) => {
                // The order of the members does not matter.
                let mut members: Vec<_> = members.iter().collect();
                members.sort_unstable_by_key(|(name, _)| *name);
                for (name, value) in members {
                    (name, JsonValue(value)).hash(state);
                }
            }
            scalar @ (Value::Null | Value::Bool(_) | Value::String(_)) => scalar.hash(state),
        }
    }
}
