//! Parses an expression for fend: refuses notation that fend would not support or would misread, and
//! rewrites function calls so that fend evaluates them as usual.

/// Maximum length of an expression.
pub(super) const EXPRESSION_CHARS_MAX: usize = 500;

/// Maximum length of an exponent in superscript digits; fend overflows at twenty.
const SUPERSCRIPT_DIGITS_MAX: usize = 9;

/// Symbols that an expression may contain besides letters, digits and spaces.
const SYMBOLS: &str = "+-*/^!%.,()_&|°′″‰$€£¥×÷−✕∕≠";

/// Functions whose argument is in brackets.
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
    /// Parses an expression as a model writes it.
    pub(super) fn parse(source: &str) -> Result<Self, InvalidExpression> {
        let normalised = normalise(source)?;
        check_misreadings(&normalised)?;
        Ok(Self(bracket_calls(&normalised)))
    }

    /// Returns the expression in fend's syntax.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true if the expression converts its value, for example to a unit.
    pub(super) fn has_conversion(&self) -> bool {
        self.has_word(&["to", "as", "in"])
    }

    /// Returns the expression without its last conversion.
    pub(super) fn without_conversion(&self) -> &str {
        let keywords = [" to ", " as ", " in "];
        let at = keywords.iter().filter_map(|keyword| self.0.rfind(keyword)).max();
        at.and_then(|at| self.0.get(..at)).unwrap_or(&self.0)
    }

    /// Returns true if the expression rounds to whole numbers.
    pub(super) fn has_rounding(&self) -> bool {
        self.has_word(&["ceil", "floor", "round"])
    }

    fn has_word(&self, keywords: &[&str]) -> bool {
        let mut words = self.0.split(|c: char| !c.is_alphanumeric() && c != '_');
        words.any(|word| keywords.iter().any(|keyword| word.eq_ignore_ascii_case(keyword)))
    }
}

/// The reason why an expression is not evaluated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum InvalidExpression {
    #[error("the expression is empty")]
    Empty,
    #[error("the expression has {0} characters; at most {EXPRESSION_CHARS_MAX} are allowed")]
    TooLong(usize),
    #[error("{0:?} has no meaning in an expression")]
    UnknownSymbol(char),
    #[error("\"d\" before a number means dice, which are not supported")]
    Dice,
    #[error(
        "the comma in {0:?} does not separate thousands; write a point before decimals (1.5) and \
         groups of three digits (2,350)"
    )]
    Comma(String),
    #[error(
        "an exponent in superscript digits has at most {SUPERSCRIPT_DIGITS_MAX}; write it with ^"
    )]
    Superscript,
}

/// Replaces full-width symbols by their ASCII form and refuses unknown symbols.
fn normalise(expression: &str) -> Result<String, InvalidExpression> {
    let chars = expression.chars().count();
    if chars > EXPRESSION_CHARS_MAX {
        return Err(InvalidExpression::TooLong(chars));
    }
    let mut normalised = String::with_capacity(expression.len());
    for character in expression.trim().trim_end_matches(['=', '＝', '?', '？']).chars() {
        let symbol = to_half_width(character);
        // λ would begin a function definition, and a function could recurse without end.
        let known = (symbol.is_alphanumeric() && symbol != 'λ') || SYMBOLS.contains(symbol);
        match symbol.is_whitespace() {
            true => normalised.push(' '),
            false if known => normalised.push(symbol),
            false => return Err(InvalidExpression::UnknownSymbol(character)),
        }
    }
    if normalised.trim().is_empty() {
        return Err(InvalidExpression::Empty);
    }
    Ok(normalised)
}

/// Converts a full-width symbol, as Chinese and Japanese keyboards produce it, to its ASCII form.
fn to_half_width(symbol: char) -> char {
    match symbol {
        '\u{ff01}'..='\u{ff5e}' => char::from_u32(symbol as u32 - 0xfee0).unwrap_or(symbol),
        '·' | '⋅' | '∙' => '*',
        other => other,
    }
}

/// Refuses notation that fend would misread: dice, `1,5` as fifteen, and superscripts so long that
/// they overflow.
fn check_misreadings(expression: &str) -> Result<(), InvalidExpression> {
    let superscripts = |c: char| "⁰¹²³⁴⁵⁶⁷⁸⁹".contains(c);
    let mut powers = expression.split(|c: char| !superscripts(c));
    if powers.any(|power| power.chars().count() > SUPERSCRIPT_DIGITS_MAX) {
        return Err(InvalidExpression::Superscript);
    }
    if expression.split(|c: char| !c.is_alphanumeric()).any(has_dice) {
        return Err(InvalidExpression::Dice);
    }
    for word in expression.split(|c: char| !c.is_ascii_digit() && c != ',' && c != '.') {
        if word.contains(',') && !has_thousands_separators(word) {
            return Err(InvalidExpression::Comma(word.to_owned()));
        }
    }
    Ok(())
}

/// Returns true if a `d` before a digit means dice: at the start of the word or after a digit, but
/// not in a hexadecimal number.
fn has_dice(word: &str) -> bool {
    let after = word.chars().skip(1);
    let before = std::iter::once(' ').chain(word.chars());
    let mut windows = before.zip(word.chars()).zip(after);
    !word.starts_with("0x")
        && windows.any(|((before, symbol), after)| {
            symbol == 'd' && after.is_ascii_digit() && !before.is_alphabetic()
        })
}

/// Returns true if the commas separate thousands: the last group has three digits, middle groups two
/// (as in India) or three, the first one to three, and there is no comma after the point.
fn has_thousands_separators(word: &str) -> bool {
    let (integer, decimals) = word.split_once('.').unwrap_or((word, ""));
    let Some((leading, last)) = integer.rsplit_once(',') else { return false };
    let (first, middle) = leading.split_once(',').unwrap_or((leading, ""));
    last.len() == 3
        && (1..=3).contains(&first.len())
        && !decimals.contains(',')
        && (middle.is_empty() && !leading.contains(',')
            || middle.split(',').all(|group| (2..=3).contains(&group.len())))
}

/// Puts brackets around function calls, so that `ln(2)^2` is the square of a logarithm. fend parses a
/// call like a product and would apply the power to the argument.
fn bracket_calls(expression: &str) -> String {
    let mut output = String::with_capacity(expression.len() + 16);
    // One entry for each open bracket: true if it encloses a function's argument.
    let mut open = Vec::new();
    for symbol in expression.chars() {
        if symbol == '(' {
            let name_at = function_start(&output);
            if let Some(at) = name_at {
                output.insert(at, '(');
            }
            open.push(name_at.is_some());
        }
        output.push(symbol);
        if symbol == ')' && open.pop() == Some(true) {
            output.push(')');
        }
    }
    output
}

/// Returns the start of a function name at the end of the text, if there is one.
fn function_start(text: &str) -> Option<usize> {
    let text = text.trim_end();
    let in_name = |c: char| c.is_alphanumeric() || c == '_';
    let word = text.get(text.trim_end_matches(in_name).len()..)?;
    // A factor may directly precede the name, as in `2ln(3)`.
    let name = word.trim_start_matches(|c: char| c.is_ascii_digit());
    let at = text.len() - name.len();
    FUNCTIONS.iter().any(|function| name.eq_ignore_ascii_case(function)).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(source: &str, expect: &str) {
        assert_eq!(FendExpression::parse(source).unwrap().as_str(), expect, "{source}");
    }

    #[test]
    fn normalises_symbols_and_brackets_calls() {
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
    fn recognises_conversion_and_rounding_keywords() {
        let words = |text| {
            let expression = FendExpression::parse(text).unwrap();
            (expression.has_conversion(), expression.has_rounding())
        };
        assert_eq!(words("1 km to m"), (true, false));
        assert_eq!(words("1 inch"), (false, false));
        assert_eq!(words("CEIL(1 total)"), (false, true));
    }

    #[test]
    fn recognises_dice() {
        for word in ["d6", "2d6", "1e5d6", "0b1d6"] {
            assert!(has_dice(word), "{word}");
        }
        for word in ["0xd6", "0x1d6", "mod5", "d", "day", "2d"] {
            assert!(!has_dice(word), "{word}");
        }
    }

    #[test]
    fn commas_may_only_separate_thousands() {
        for word in ["1,000", "12,345,678", "1,000.5", "1,00,000", "12,34,567"] {
            assert!(has_thousands_separators(word), "{word}");
        }
        for word in ["1,5", ",000", "1,,000", "1,000,", "1234,567", "1.5,000", "1,2,345", "1,0000"]
        {
            assert!(!has_thousands_separators(word), "{word}");
        }
    }
}
