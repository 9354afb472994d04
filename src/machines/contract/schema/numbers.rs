//! Compares JSON values by the rules of JSON Schema: numbers are equal if they have the same value, as 1 and 1.0.
//! Decides which numbers are integers, and which are multiples of others.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};
use std::mem;

use serde_json::{Number, Value};

/// Returns the value of a number without a fraction, if its size is below 1e38.
pub(super) fn integer(number: &Number) -> Option<i128> {
    let whole = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
    whole.or_else(|| {
        let float = number.as_f64()?;
        // Larger numbers may not fit.
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
    let difference = exponent.abs_diff(of_exponent);
    if exponent >= of_exponent {
        multiply_modulo(digits, power_of_ten_modulo(difference, of), of) == Some(0)
    } else {
        let divisor = 10_u128.checked_pow(difference).and_then(|scale| scale.checked_mul(of));
        // A divisor that overflows is greater than the digits.
        divisor.map_or(digits == 0, |divisor| digits.checked_rem(divisor) == Some(0))
    }
}

/// Returns the remainder of a power of ten, by squaring.
fn power_of_ten_modulo(exponent: u32, of: u128) -> u128 {
    let (mut power, mut square) = (1, 10);
    for bit in 0..u32::BITS - exponent.leading_zeros() {
        if exponent >> bit & 1 == 1 {
            power = multiply_modulo(power, square, of).unwrap_or(0);
        }
        square = multiply_modulo(square, square, of).unwrap_or(0);
    }
    power
}

/// Returns the remainder of a product, and `None` if `of` is 0. `of` is less than 2^64, so that nothing overflows.
fn multiply_modulo(a: u128, b: u128, of: u128) -> Option<u128> {
    a.checked_rem(of)?.checked_mul(b.checked_rem(of)?)?.checked_rem(of)
}

/// Returns the digits and the decimal exponent of a number, without its sign and the zeros at its end. The digits
/// are less than 2^64.
fn decimal(number: &Number) -> Option<(u128, i32)> {
    let text = number.to_string();
    let (digits, exponent) = text.split_once(['e', 'E']).unwrap_or((&text, "0"));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('-');
    let significant = digits.trim_end_matches('0');
    let zeros = i32::try_from(digits.len() - significant.len()).ok()?;
    let exponent = exponent.parse::<i32>().ok()? - i32::try_from(fraction.len()).ok()? + zeros;
    if significant.is_empty() { Some((0, 0)) } else { Some((significant.parse().ok()?, exponent)) }
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
        // Without the kind and the number of parts, many unequal values would have the same hash.
        mem::discriminant(self.0).hash(state);
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
                members.len().hash(state);
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
