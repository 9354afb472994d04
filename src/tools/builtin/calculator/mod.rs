//! `calculator {expression}`: arithmetic with exact numbers, units and functions.
//!
//! Evaluates with the `fend-core` library. Variables, user-defined functions, strings, dates, dice
//! and currencies are refused. The remaining language cannot loop, but an evaluation can take very
//! long, so its time is limited: 2 s, and 5 s for the call. An expression has at most 500 characters, a result at
//! most 4,096 bytes.

mod expression;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use fend_core::Interrupt;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::Instant;

use self::expression::{FendExpression, InvalidExpression};
use crate::{Tool, ToolContext, ToolError, ToolOutput, ToolSpec};

/// Maximum length of a result. A longer result is an error, because a cut number would be wrong.
const RESULT_BYTES_MAX: usize = 4096;

/// Time limit of one evaluation.
const COMPUTING_TIME_MAX: Duration = Duration::from_secs(2);

/// Time limit of the call, in case the evaluation does not stop at its own limit: fend does not
/// check for an interrupt while it reduces a fraction of two very long numbers.
const CALL_TIME_MAX: Duration = Duration::from_secs(5);

/// The number of digits to which floating point is exact.
const PRECISE_DIGITS: usize = 15;

/// Number of decimal places of an approximate result. It is also that of fend after a conversion.
const DECIMAL_PLACES: usize = 10;

/// The beginning of results that are not exact.
const APPROXIMATE: &str = "approx. ";

/// Number of fend's interrupt checks between two reads of the clock.
const CHECKS_PER_CLOCK_READ: u32 = 64;

/// Stack size of an evaluation. fend's parser recurses once per bracket and sign, and each level uses
/// 28 kB in a debug build: the longest expression may need 14 MB, and a stack overflow would abort
/// the process. Untouched pages are never committed.
const STACK_BYTES: usize = 64 << 20;

/// Evaluates an arithmetic expression. Pure.
#[derive(Clone, Copy, Debug, Default)]
pub struct Calculator;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CalculatorInput {
    /// The expression, for example `17% of 2,350`, `sqrt(2) * 10^3`, `5 feet 3 inches to cm`,
    /// `100 °F to °C` or `1/3 to 5 dp`. The decimal separator is a point; commas separate thousands.
    expression: String,
}

#[async_trait]
impl Tool for Calculator {
    fn spec(&self) -> ToolSpec {
        ToolSpec::new::<CalculatorInput>(
            "calculator",
            "Computes an arithmetic expression exactly: + - * / ^ % ! mod, functions such as \
             sqrt, ln, log, sin (of radians, or `30 degrees`), round, abs, and units.",
        )
        .pure()
        .blocking()
        .timeout(CALL_TIME_MAX)
    }

    async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let CalculatorInput { expression } = context.input()?;
        let (deadline, call) = (Instant::now() + COMPUTING_TIME_MAX, context.clone());
        let expired = move || Instant::now() >= deadline || call.is_cancelled();
        evaluate_in_thread(&expression, expired).map(ToolOutput::from).map_err(|error| {
            if error == EvaluationError::TimedOut && context.is_cancelled() {
                return ToolError::new("cancelled").permanent();
            }
            // All other errors are those of the expression, and would come again.
            let may_help = matches!(error, EvaluationError::Evaluator(_));
            let error = ToolError::new(error);
            if may_help { error } else { error.permanent() }
        })
    }
}

/// The reason why an expression has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum EvaluationError {
    #[error(transparent)]
    InvalidExpression(#[from] InvalidExpression),
    #[error("the evaluation took longer than {} s and was stopped", COMPUTING_TIME_MAX.as_secs())]
    TimedOut,
    #[error(
        "the result has {0} bytes, more than {RESULT_BYTES_MAX}; ask for fewer digits, for \
         example with `to 10 sf`"
    )]
    ResultTooLong(usize),
    #[error("the result is too large for these functions, which are precise to 15 digits")]
    Imprecise,
    #[error(
        "the result is a function, not a number: write the argument of each function in brackets"
    )]
    FunctionResult,
    #[error("cannot evaluate {expression:?}: {reason}")]
    Rejected { expression: String, reason: String },
    #[error("the evaluation failed: {0}")]
    Evaluator(String),
}

/// Evaluates an expression on a thread of its own, which has a large stack.
fn evaluate_in_thread(
    source: &str,
    expired: impl Fn() -> bool + Send + Sync + 'static,
) -> Result<String, EvaluationError> {
    let expression = Arc::new(FendExpression::parse(source)?);
    let interrupt = Arc::new(InterruptCheck { expired, checks: AtomicU32::new(0) });
    let (parsed, interrupted) = (Arc::clone(&expression), Arc::clone(&interrupt));
    let evaluation = thread::Builder::new()
        .name("calculator".to_owned())
        .stack_size(STACK_BYTES)
        .spawn(move || {
            let interrupt = interrupted.as_ref();
            let text = evaluate_with_rounding(&parsed, interrupt)?;
            if parsed.angles().any(|angle| is_beyond_period(angle, interrupt)) {
                return Ok(None);
            }
            let is_precise = !has_doubtful_digits(&text) || is_exact_value(&parsed, interrupt);
            Ok::<_, String>(if is_precise { Some(text) } else { cut_to_precision(&text) })
        })
        .map_err(|e| EvaluationError::Evaluator(format!("start a thread: {e}")))?;
    let result = evaluation
        .join()
        .map_err(|_| EvaluationError::Evaluator("the evaluator panicked".to_owned()))?;
    let text = result.map_err(|reason| match (interrupt.expired)() {
        true => EvaluationError::TimedOut,
        false => EvaluationError::Rejected { expression: source.trim().to_owned(), reason },
    })?;
    let text = text.ok_or(EvaluationError::Imprecise)?;
    // fend writes a function that it could not apply as `\x.(10*(log10 x))`.
    if text.contains('\\') {
        return Err(EvaluationError::FunctionResult);
    }
    if is_beyond_precision(&expression, &text) {
        return Err(EvaluationError::Imprecise);
    }
    match text.len() <= RESULT_BYTES_MAX {
        true => Ok(text),
        false => Err(EvaluationError::ResultTooLong(text.len())),
    }
}

/// Evaluates to ten decimal places, or to fifteen significant digits if the result is less than 0.0001. An
/// expression with its own rounding is evaluated as it is. Without a conversion fend would search
/// for the period of each fraction, which is slow, and return up to a thousand decimals.
fn evaluate_with_rounding(
    expression: &FendExpression,
    interrupt: &impl Interrupt,
) -> Result<String, String> {
    let text = expression.as_str();
    let requested = expression.rounding();
    let rounding = requested.unwrap_or((DECIMAL_PLACES, "dp"));
    let result = if expression.has_conversion() {
        evaluate_rounded(text, rounding, interrupt)?
    } else {
        let query = format!("{text} to {DECIMAL_PLACES} dp");
        // Perhaps the result is not a number and cannot be rounded, as in `2 ≠ 3`. Any other error comes again.
        evaluate_rounded(&query, rounding, interrupt).or_else(|_| evaluate(text, interrupt))?
    };
    if requested.is_some() || !is_small(&result) {
        return Ok(result);
    }
    let precise = format!("{text} to {PRECISE_DIGITS} sf");
    // The result of `to string` cannot be rounded.
    evaluate_rounded(&precise, (PRECISE_DIGITS, "sf"), interrupt).or(Ok(result))
}

/// Evaluates an expression, and corrects its result if fend rounds it to these digits (with the unit `dp` or `sf`).
fn evaluate_rounded(
    expression: &str,
    (digits, unit): (usize, &str),
    interrupt: &impl Interrupt,
) -> Result<String, String> {
    let result = evaluate(expression, interrupt)?;
    if !result.starts_with(APPROXIMATE) || (unit == "dp" && has_all_decimals(&result, digits)) {
        return Ok(result);
    }
    let round_to = |digits| evaluate(&format!("{expression} to {digits} {unit}"), interrupt);
    match round_to(digits) {
        Ok(rounded) if rounded == result => Ok(correct_round_up(result, &round_to(digits + 1)?)),
        // The result is rounded otherwise, for example in brackets within the expression.
        Ok(_) => Ok(result),
        // The result of `to string` cannot be rounded. Any other error comes again.
        Err(_) => evaluate(expression, interrupt),
    }
}

/// Corrects a result that fend has rounded up at the wrong digit. fend does not write zeros at the end, and rounds up
/// the last digit that it has written: 7.306 to two decimal places becomes 7.4. The finer result has one digit more,
/// and then is correct: if that digit is 5 or more, the zero before it becomes 1.
fn correct_round_up(result: String, finer: &str) -> String {
    let (_, magnitude) = split_sign(&result);
    let (sign, finer) = split_sign(finer);
    if numbers(magnitude).count() != numbers(finer).count() {
        return result;
    }
    let mut output = format!("{APPROXIMATE}{sign}");
    let mut is_wrong = false;
    for ((number, _), (finer, separator)) in numbers(magnitude).zip(numbers(finer)) {
        let has_lost_zeros = decimals(finer) > decimals(number) + 1;
        if has_lost_zeros && !finer.starts_with(number) {
            output.push_str(finer.get(..finer.len() - 2).unwrap_or_default());
            output.push('1');
            is_wrong = true;
        } else {
            output.push_str(number);
        }
        output.push_str(separator);
    }
    if is_wrong { output } else { result }
}

/// Returns true if the result is approximate, real, and less than 0.0001: of its digits, ten decimal places show six
/// at most.
fn is_small(result: &str) -> bool {
    let (_, magnitude) = split_sign(result);
    let is_real = !magnitude.contains(" + ") && !magnitude.contains(" - ");
    let in_number = |c: char| c == '.' || c.is_alphanumeric();
    result.starts_with(APPROXIMATE)
        && is_real
        && magnitude
            .strip_prefix('0')
            .is_some_and(|rest| rest.starts_with(".0000") || !rest.starts_with(in_number))
}

/// Runs fend in a new context without a clock, random numbers and exchange rates.
fn evaluate(expression: &str, interrupt: &impl Interrupt) -> Result<String, String> {
    let mut context = fend_core::Context::new();
    let result = fend_core::evaluate_with_interrupt(expression, &mut context, interrupt)?;
    if result.output_is_empty() {
        return Err("it has no value".to_owned());
    }
    Ok(result.get_main_result().to_owned())
}

/// Returns true if fend marks the result as approximate and prints a number with more digits than
/// floating point is exact to.
fn has_doubtful_digits(result: &str) -> bool {
    result.starts_with(APPROXIMATE)
        && numbers(result).any(|(number, _)| digits(number) > PRECISE_DIGITS)
}

/// Returns true if the value itself is exact, so that only its decimals are rounded, as in `1/3 to 30
/// dp`. fend prints such a value as a fraction.
fn is_exact_value(expression: &FendExpression, interrupt: &impl Interrupt) -> bool {
    let fraction = format!("{} to fraction", expression.without_conversion());
    evaluate(&fraction, interrupt).is_ok_and(|value| !value.starts_with(APPROXIMATE))
}

/// Rounds each number of a result to the digits that floating point is exact to. Returns `None` if a
/// number has more digits before its point.
fn cut_to_precision(result: &str) -> Option<String> {
    let mut output = String::with_capacity(result.len());
    for (number, separator) in numbers(result) {
        if digits(number) <= PRECISE_DIGITS {
            output.push_str(number);
            output.push_str(separator);
            continue;
        }
        let value: f64 = number.parse().ok()?;
        let scientific = format!("{value:.*e}", PRECISE_DIGITS - 1);
        let exponent: i32 = scientific.split_once('e')?.1.parse().ok()?;
        let decimals = usize::try_from(PRECISE_DIGITS as i32 - 1 - exponent).ok()?;
        output.push_str(&format!("{value:.decimals$}"));
        output.push_str(separator);
    }
    Some(output)
}

/// Splits a result behind each character that is not part of a number. Returns each number, which may be empty, and
/// the separator after it.
fn numbers(result: &str) -> impl Iterator<Item = (&str, &str)> {
    let parts = result.split_inclusive(|c: char| !is_digit(c) && c != '.');
    parts.map(|part| part.split_at(part.trim_end_matches(|c| !is_digit(c)).len()))
}

/// Splits the minus sign from a result, without the mark of an approximate one.
fn split_sign(result: &str) -> (&str, &str) {
    let number = result.strip_prefix(APPROXIMATE).unwrap_or(result);
    number.strip_prefix('-').map_or(("", number), |magnitude| ("-", magnitude))
}

/// Returns true if each number has these decimal places, so that fend has rounded it correctly.
fn has_all_decimals(result: &str, digits: usize) -> bool {
    let mut numbers = numbers(result).filter(|(number, _)| !number.is_empty());
    numbers.all(|(number, _)| decimals(number) >= digits)
}

/// Returns the number of digits after the point.
fn decimals(number: &str) -> usize {
    number.split_once('.').map_or(0, |(_, decimals)| decimals.len())
}

/// Returns the number of significant digits.
fn digits(number: &str) -> usize {
    let significant = number.trim_start_matches(['0', '.']);
    significant.chars().filter(|c| is_digit(*c)).count()
}

fn is_digit(symbol: char) -> bool {
    symbol.is_ascii_digit()
}

/// Returns true if rounding to whole numbers may have made the result imprecise. fend rounds with floating point
/// numbers, which are exact to fifteen digits, and turns values above 2^64 into 2^64.
fn is_beyond_precision(expression: &FendExpression, result: &str) -> bool {
    let numbers = result.split(|c: char| !c.is_ascii_digit() && c != '.');
    let digits_max = numbers.map(|number| number.split('.').next().unwrap_or("").len()).max();
    expression.has_rounding() && digits_max.unwrap_or(0) > PRECISE_DIGITS
}

/// Returns true if the value of an angle has more digits than floating point is exact to, so that nothing is known of
/// its place in the period of a function. fend's result is then a wrong number, such as 0.
fn is_beyond_period(angle: &str, interrupt: &impl Interrupt) -> bool {
    let excess = evaluate(&format!("round(({angle})/10^{PRECISE_DIGITS})"), interrupt);
    excess.is_ok_and(|excess| numbers(&excess).any(|(number, _)| number != "0"))
}

/// Interrupts fend when the evaluation's time limit has passed or its call is cancelled.
struct InterruptCheck<F> {
    expired: F,
    checks: AtomicU32,
}

impl<F: Fn() -> bool + Sync> Interrupt for InterruptCheck<F> {
    fn should_interrupt(&self) -> bool {
        self.checks.fetch_add(1, Ordering::Relaxed).is_multiple_of(CHECKS_PER_CLOCK_READ)
            && (self.expired)()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::expression::EXPRESSION_CHARS_MAX;
    use super::*;
    use crate::testing::ToolTest;

    fn evaluated(expression: &str) -> Result<String, String> {
        let deadline = Duration::from_millis(500);
        let started = Instant::now();
        evaluate_in_thread(expression, move || started.elapsed() >= deadline)
            .map_err(|e| e.to_string())
    }

    fn check(expression: &str, expect: &str) {
        assert_eq!(evaluated(expression).as_deref(), Ok(expect), "{expression}");
    }

    #[track_caller]
    fn check_error(expression: &str, expect: &str) {
        let error = evaluated(expression).expect_err(expression);
        assert!(error.contains(expect), "{expression:?}: {error}");
    }

    #[test]
    fn evaluates_exactly() {
        check("17 % of 2,350", "399.5");
        check("17% of 2350", "399.5");
        check("0.1 + 0.2", "0.3");
        check("1,000,000.50 * 2", "2000001");
        check("1,00,000 + 1", "100001");
        check("2 + 2 =", "4");
        check("2 + 2 = ?", "4");
        check("2^64", "18446744073709551616");
        check("2**10", "1024");
        check("2³", "8");
        check("6 × 7 ÷ 2 − 1", "20");
        check("7 mod 3", "1");
        check("（1＋2）＊３", "9");
        check("sqrt(16) + abs(-3)", "7");
        check("5 feet 3 inches to cm", "160.02 cm");
        check("20 °C to °F", "68 °F");
        check("1/3", "approx. 0.3333333333");
        check("50!/49!", "50");
        check("0xff + 1", "0x100");
        check("2 + 2 ≠ 5", "true");
        check("2^64 to hex", "10000000000000000");
        check("round(2.5) + floor(-2.5) + ceil(2.1)", "3");
    }

    #[test]
    fn rounds_long_decimals() {
        check("50000*(1+0.07/12)^(12*30)", "approx. 405824.8737679804");
        check("1.00583^360", "approx. 8.1068199223");
        check("1.07^30", "approx. 7.6122550427");
        check("1e-12 * 3", "0.000000000003");
        check("2/3 * 1e-12", "approx. 0.000000000000666666666666667");
        check("1/3 to 3 dp", "approx. 0.333");
        check("10^30", "1000000000000000000000000000000");
    }

    #[test]
    fn rounds_up_a_last_digit_that_is_zero() {
        check("1 + 7e-11", "approx. 1.0000000001");
        check("1 + 1e-11/3", "approx. 1");
        check("100.00000000006 kg", "approx. 100.0000000001 kg");
        check("1.00000000007 m to m", "1.00000000007 m");
        check("sqrt(2) m to m", "approx. 1.4142135624 m");
        check("7.306 to 2 dp", "approx. 7.31");
        check("7.304999 to 2 dp", "approx. 7.3");
        check("1.096 to 1 dp", "approx. 1.1");
        check("1.0007 m to cm to m to 3 DP", "approx. 1.001 m");
        check("(7.306 to 2 dp) + 1", "approx. 8.31");
        check("(1/3 to 2 dp) + (7.306 to 4 dp)", "approx. 7.64");
        check("-0.007 to 2 dp", "approx. -0.01");
        check("-0.003 to 2 dp", "approx. 0");
        check("1234.00006 to 8 sf", "approx. 1234.0001");
        check("0.0001006 to 3 sf", "approx. 0.000101");
        check("exp(-20) to 10 dp", "approx. 0.0000000021");
        check("1 - 7e-11 i", "approx. 1 - 0.0000000001i");
        check("sqrt(2) to string", "approx. 1.4142135624");
    }

    #[test]
    fn small_results_have_fifteen_significant_digits() {
        check("3e-12 m", "0.000000000003 m");
        check("-1e-30 kg", "-0.000000000000000000000000000001 kg");
        check("1/3 * 1e-9", "approx. 0.000000000333333333333333");
        check("-1/3 * 1e-9 m to km", "approx. -0.000000000000333333333333333 km");
        check("exp(-20)", "approx. 0.00000000206115362243856");
        check("1e-9/3 to 10 dp", "approx. 0.0000000003");
        check("1/7000", "approx. 0.0001428571");
        check("sqrt(-2)", "approx. 0 + 1.4142135624i");
        check("31/3 to hex", "approx. a.5555555555");
    }

    #[test]
    fn a_function_call_binds_tighter_than_a_power() {
        check("sin(1)^2 + cos(1)^2", "approx. 1");
        check("round(2.4)^2", "4");
        check("2 ln(e)^3", "approx. 2");
        check("SQRT(16) ^ sqrt (4)", "16");
        check("sqrt(abs(-16)^2)/2", "8");
        check("3 kg(2)^2", "12 kg");
        check("sqrt 16", "4");
    }

    #[test]
    fn approximate_values_have_only_their_exact_digits() {
        check("sqrt(2) to 30 dp", "approx. 1.41421356237310");
        check("sqrt(2) m to cm to 30 dp", "approx. 141.421356237310 cm");
        check("ln(2) to 30 sf", "approx. 0.693147180559945");
        check("10 sqrt(2) to 20 dp", "approx. 14.1421356237310");
        check("1/3 to 20 dp", "approx. 0.33333333333333333333");
    }

    #[test]
    fn refuses_imprecise_results() {
        for expression in ["floor(1e25/7)", "round(9007199254740993.5)", "sinh(50)", "(1+i)^1000"] {
            check_error(expression, "precise to 15 digits");
        }
        for angle in ["10^100000", "1e16", "(2*10^20) degrees"] {
            check_error(&format!("2 + sin({angle})"), "precise to 15 digits");
        }
        check("cos(10^9 * pi)", "1");
        check("2^64 + 0", "18446744073709551616");
        check("2^64 + 1/3", "approx. 18446744073709551616.3333333333");
        check("round(10^15/7)", "142857142857143");
    }

    #[test]
    fn refuses_ambiguous_notation() {
        check_error("1,5 + 1", "write a point");
        check_error("1.000,5", "write a point");
        check_error("1,2345", "write a point");
        check_error("max(1,2)", "write a point");
        check_error(",5", "write a point");
        check_error("1,,000", "write a point");
        check_error("roll d6", "dice");
        check_error("300d300", "dice");
        check_error("2⁰¹²³⁴⁵⁶⁷⁸⁹", "superscript");
        for expression in ["7//2", "100 // 7", "6*/2"] {
            check_error(expression, "floor(a/b)");
        }
        check("floor(100/7)", "14");
        for expression in ["5 in", "5 in to cm", "5 cm to in"] {
            check_error(expression, "write \"inches\"");
        }
        check("5 inches in cm", "12.7 cm");
    }

    #[test]
    fn refuses_a_function_that_would_apply_to_a_part_of_its_argument() {
        for expression in ["sin 30°", "sin 30 degrees", "sin 2pi", "sqrt 16%", "sqrt 4 m"] {
            check_error(expression, "in brackets");
        }
        for expression in ["10 log 100", "10 log 100 + 1", "3 sqrt"] {
            check_error(expression, "the result is a function");
        }
        check("sin(30°)", "0.5");
        check("10 log(100)", "approx. 20");
        check("sin -30°", "-0.5");
        check("sqrt 16 % 3", "1");
        check("sqrt sqrt 16 / 2", "1");
        check("ln e + sqrt abs(-4)", "approx. 3");
        check("5 square feet to square meters", "0.4645152 meters^2");
    }

    #[test]
    fn refuses_function_definitions_strings_dates_and_currencies() {
        for (expression, sign) in [
            ("f = x: f x", "'='"),
            ("(x => x x) (x => x x)", "'='"),
            ("λx.x", "'λ'"),
            ("\\x.x", "\\\\"),
            ("\"2020-01-01\" to date", "'\"'"),
            ("@2020-01-01", "'@'"),
            ("1 << 99999999999", "'<'"),
            ("1; 2", "';'"),
            ("# note", "'#'"),
        ] {
            check_error(expression, "has no meaning");
            check_error(expression, sign);
        }
        check_error("today", "unable to get the current date");
        check_error("5 USD to EUR", "exchange rates are not available");
        check_error("nonsense + 1", "unknown identifier");
        check_error("1/0", "division by zero");
        check_error(" ", "empty");
        check_error("?", "empty");
    }

    #[test]
    fn stops_evaluations_that_take_too_long() {
        for hostile in
            ["9^9^9^9", "100000!", "3!!!!!", "fib 10^9", "1e999999999", "pi to 1000000000 dp"]
        {
            let started = Instant::now();
            check_error(hostile, "took longer");
            assert!(started.elapsed() < Duration::from_secs(5), "{hostile}");
        }
    }

    #[test]
    fn limits_the_length_of_expression_and_result() {
        check_error(&"1".repeat(501), "501 characters");
        check_error("2^20000", "the result has 6021 bytes");
    }

    #[test]
    fn survives_the_deepest_nesting() {
        for deep in ["(", ")", "-", "+", "-(", "abs(", "ln(", "2^", "sqrt ", "1+", "not ", "m "] {
            let times = (EXPRESSION_CHARS_MAX - 1) / deep.len();
            // Only the absence of a stack overflow matters, not the result.
            let _ = evaluated(&format!("{}1", deep.repeat(times)));
        }
        check(&format!("{}1{}", "(".repeat(240), ")".repeat(240)), "1");
    }

    #[test]
    fn stops_when_its_time_is_over() {
        assert_eq!(evaluate_in_thread("9^9^9^9", || true), Err(EvaluationError::TimedOut));
    }

    #[tokio::test]
    async fn stops_when_the_call_is_cancelled() {
        let mut test = ToolTest::new(Calculator).cancel_after(Duration::ZERO);
        let call = test.call(json!({"expression": "9^9^9^9"})).await;
        assert_eq!(call.error().message(), "cancelled");
    }
}
