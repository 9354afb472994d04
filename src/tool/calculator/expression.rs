//! Reads an expression: refuses what has no place in it or would be misread, and says it so that
//! fend means the same.

/// The longest expression, in characters.
pub(super) const EXPRESSION_CHARS_MAX: usize = 500;

/// The longest exponent in superscript digits; fend would overflow at twenty.
const SUPERSCRIPT_DIGITS_MAX: usize = 9;

/// Signs that an expression may hold besides letters, digits and spaces.
const SIGNS: &str = "+-*/^!%.,()_&|°′″‰$€£¥×÷−✕∕≠";

/// Functions whose brackets hold their argument.
const FUNCTIONS: &[&str] = &[
    "abs",
    "acos",
    "acosh",
    "arg",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "cbrt",
    "ceil",
    "cis",
    "conjugate",
    "cos",
    "cosh",
    "cubic",
    "exp",
    "fib",
    "fibonacci",
    "floor",
    "im",
    "imag",
    "ln",
    "log",
    "log10",
    "log2",
    "re",
    "real",
    "round",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "tan",
    "tanh",
];

/// An expression that fend may evaluate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FendExpression(String);

impl FendExpression {
    /// Reads what a model has written.
    pub(super) fn read(written: &str) -> Result<Self, UnreadableExpression> {
        let plain = normalise(written)?;
        check_groups(&plain)?;
        Ok(Self(bracket_calls(&plain)))
    }

    /// The expression as fend takes it.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it says what to convert its value to.
    pub(super) fn converts(&self) -> bool {
        self.has_word(&["to", "as", "in"])
    }

    /// Whether it rounds to whole numbers.
    pub(super) fn rounds(&self) -> bool {
        self.has_word(&["ceil", "floor", "round"])
    }

    fn has_word(&self, wanted: &[&str]) -> bool {
        let mut words = self.0.split(|c: char| !c.is_alphanumeric() && c != '_');
        words.any(|word| wanted.iter().any(|wanted| word.eq_ignore_ascii_case(wanted)))
    }
}

/// Why an expression is not evaluated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum UnreadableExpression {
    #[error("the expression is empty")]
    Empty,
    #[error("the expression has {0} characters; at most {EXPRESSION_CHARS_MAX} are read")]
    TooLong(usize),
    #[error("{0:?} has no meaning in an expression")]
    UnknownSign(char),
    #[error("\"d\" and a number would be dice, and results do not depend on chance")]
    Dice,
    #[error(
        "the comma in {0:?} separates no thousands; write a point before decimals (1.5) and \
         groups of three digits (2,350)"
    )]
    Comma(String),
    #[error(
        "an exponent in superscript digits has at most {SUPERSCRIPT_DIGITS_MAX}; write it with ^"
    )]
    Superscript,
}

/// Brings full-width signs to their plain form and refuses what this calculator does not know.
fn normalise(expression: &str) -> Result<String, UnreadableExpression> {
    let chars = expression.chars().count();
    if chars > EXPRESSION_CHARS_MAX {
        return Err(UnreadableExpression::TooLong(chars));
    }
    let mut plain = String::with_capacity(expression.len());
    for written in expression.trim().trim_end_matches(['=', '＝', '?', '？']).chars() {
        let sign = narrow(written);
        // λ is a letter, but opens a function; and functions can call themselves for ever.
        let known = (sign.is_alphanumeric() && sign != 'λ') || SIGNS.contains(sign);
        match sign.is_whitespace() {
            true => plain.push(' '),
            false if known => plain.push(sign),
            false => return Err(UnreadableExpression::UnknownSign(written)),
        }
    }
    if plain.trim().is_empty() {
        return Err(UnreadableExpression::Empty);
    }
    Ok(plain)
}

/// The plain form of a full-width sign, as Chinese and Japanese keyboards write them.
fn narrow(sign: char) -> char {
    match sign {
        '\u{ff01}'..='\u{ff5e}' => char::from_u32(sign as u32 - 0xfee0).unwrap_or(sign),
        '·' | '⋅' | '∙' => '*',
        plain => plain,
    }
}

/// Refuses what fend would read as something that nobody meant: dice, `1,5` as fifteen, and
/// superscripts so long that they overflow.
fn check_groups(expression: &str) -> Result<(), UnreadableExpression> {
    let superscripts = |c: char| "⁰¹²³⁴⁵⁶⁷⁸⁹".contains(c);
    let mut powers = expression.split(|c: char| !superscripts(c));
    if powers.any(|power| power.chars().count() > SUPERSCRIPT_DIGITS_MAX) {
        return Err(UnreadableExpression::Superscript);
    }
    if expression.split(|c: char| !c.is_alphanumeric()).any(has_dice) {
        return Err(UnreadableExpression::Dice);
    }
    for word in expression.split(|c: char| !c.is_ascii_digit() && c != ',' && c != '.') {
        if word.contains(',') && !is_grouped(word) {
            return Err(UnreadableExpression::Comma(word.to_owned()));
        }
    }
    Ok(())
}

/// Whether a `d` before a digit stands for dice: at the word's beginning or after a digit, but
/// not in a hexadecimal number.
fn has_dice(word: &str) -> bool {
    let after = word.chars().skip(1);
    let before = std::iter::once(' ').chain(word.chars());
    let mut places = before.zip(word.chars()).zip(after);
    !word.starts_with("0x")
        && places.any(|((before, sign), after)| {
            sign == 'd' && after.is_ascii_digit() && !before.is_alphabetic()
        })
}

/// Whether commas stand where thousands are separated: the last group has three digits, the
/// others two (as in India) or three, the first at least one; none after the point.
fn is_grouped(word: &str) -> bool {
    let (whole, decimals) = word.split_once('.').unwrap_or((word, ""));
    let Some((rest, last)) = whole.rsplit_once(',') else { return false };
    let (first, middle) = rest.split_once(',').unwrap_or((rest, ""));
    last.len() == 3
        && (1..=3).contains(&first.len())
        && !decimals.contains(',')
        && (middle.is_empty() && !rest.contains(',')
            || middle.split(',').all(|group| (2..=3).contains(&group.len())))
}

/// Puts brackets around calls, so that `ln(2)^2` is the square of a logarithm. To fend a call
/// is like a product, and the power would belong to the argument.
fn bracket_calls(expression: &str) -> String {
    let mut out = String::with_capacity(expression.len() + 16);
    // For each open bracket, whether it holds a function's argument.
    let mut open = Vec::new();
    for sign in expression.chars() {
        if sign == '(' {
            let name_at = function_before(&out);
            if let Some(at) = name_at {
                out.insert(at, '(');
            }
            open.push(name_at.is_some());
        }
        out.push(sign);
        if sign == ')' && open.pop() == Some(true) {
            out.push(')');
        }
    }
    out
}

/// Where the name of a function begins with which the text ends.
fn function_before(text: &str) -> Option<usize> {
    let text = text.trim_end();
    let in_name = |c: char| c.is_alphanumeric() || c == '_';
    let word = text.get(text.trim_end_matches(in_name).len()..)?;
    // A factor may stand close by, as in `2ln(3)`.
    let name = word.trim_start_matches(|c: char| c.is_ascii_digit());
    let at = text.len() - name.len();
    FUNCTIONS.iter().any(|function| name.eq_ignore_ascii_case(function)).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(written: &str, expect: &str) {
        assert_eq!(FendExpression::read(written).unwrap().as_str(), expect, "{written}");
    }

    #[test]
    fn reads_as_it_is_meant() {
        check(" 1 + 1 = ", "1 + 1 ");
        check("（１，０００×２）％？", "(1,000×2)%");
        check("2·3", "2*3");
        check("sqrt(2)", "(sqrt(2))");
        check("ln (abs(x))^2", "(ln ((abs(x))))^2");
        check("2sqrt(4)", "2(sqrt(4))");
        check("3log2(8)", "3(log2(8))");
        check("kg(2)", "kg(2)");
        check("sin(1", "(sin(1");
        check("1)+sin(2)", "1)+(sin(2))");
    }

    #[test]
    fn knows_its_words() {
        let words = |text| {
            let expression = FendExpression::read(text).unwrap();
            (expression.converts(), expression.rounds())
        };
        assert_eq!(words("1 km to m"), (true, false));
        assert_eq!(words("1 inch"), (false, false));
        assert_eq!(words("CEIL(1 total)"), (false, true));
    }

    #[test]
    fn knows_dice() {
        for word in ["d6", "2d6", "1e5d6", "0b1d6"] {
            assert!(has_dice(word), "{word}");
        }
        for word in ["0xd6", "0x1d6", "mod5", "d", "day", "2d"] {
            assert!(!has_dice(word), "{word}");
        }
    }

    #[test]
    fn commas_separate_thousands_only() {
        for word in ["1,000", "12,345,678", "1,000.5", "1,00,000", "12,34,567"] {
            assert!(is_grouped(word), "{word}");
        }
        for word in ["1,5", ",000", "1,,000", "1,000,", "1234,567", "1.5,000", "1,2,345", "1,0000"]
        {
            assert!(!is_grouped(word), "{word}");
        }
    }
}
