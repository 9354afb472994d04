//! Prepares an expression for the library `fend-core`: refuses notation that fend does not support or would misread,
//! and puts brackets around function calls, because fend reads `ln(2)^2` as `ln(2^2)`.

/// Maximum length of an expression, in characters.
pub(super) const EXPRESSION_CHARS_MAX: usize = 500;

/// Maximum length of an exponent in superscript digits; fend overflows at twenty.
const SUPERSCRIPT_DIGITS_MAX: usize = 9;

/// Symbols that an expression may contain besides spaces, digits and all letters but λ.
const SYMBOLS: &str = "+-*/^!%.,()_&|°′″‰$€£¥×÷−✕∕≠";

/// Superscript digits.
const SUPERSCRIPTS: &str = "⁰¹²³⁴⁵⁶⁷⁸⁹";

/// Symbols that are a unit or a constant by themselves.
const SYMBOL_NAMES: &str = "°′″‰$€£¥π";

/// Words that are operators.
const OPERATORS: &[&str] = &[
    "AND", "OR", "XOR", "and", "as", "choose", "in", "mod", "nCr", "nPr", "of", "or", "per",
    "permute", "to", "xor",
];

/// Words that convert a value.
const CONVERSIONS: &[&str] = &["to", "as", "in"];

/// Functions that also stand before a unit, as in `square feet`.
const UNIT_FUNCTIONS: &[&str] = &["cubic", "square"];

/// The mathematical functions of fend.
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

    /// Returns true if the expression converts its value, for example to a unit. fend reads `in` as a conversion too,
    /// not as inches.
    pub(super) fn has_conversion(&self) -> bool {
        self.has_word(CONVERSIONS)
    }

    /// Returns the expression without its last conversion.
    pub(super) fn without_conversion(&self) -> &str {
        let keywords = [" to ", " as ", " in "];
        let at = keywords.iter().filter_map(|keyword| self.0.rfind(keyword)).max();
        at.and_then(|at| self.0.get(..at)).unwrap_or(&self.0)
    }

    /// Returns the digits and the unit (`dp` or `sf`) of the last rounding that the expression asks for, as in
    /// `1/3 to 5 dp`.
    pub(super) fn rounding(&self) -> Option<(usize, &'static str)> {
        let text = self.0.to_ascii_lowercase();
        let units = ["dp", "sf"].into_iter();
        let (at, unit) = units.filter_map(|unit| Some((text.rfind(unit)?, unit))).max()?;
        let digits = text.get(..at)?.trim_end().rsplit(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse::<u16>().ok().map(|digits| (usize::from(digits), unit))
    }

    /// Returns true if the expression rounds to whole numbers.
    pub(super) fn has_rounding(&self) -> bool {
        self.has_word(&["ceil", "floor", "round"])
    }

    /// Returns the arguments in brackets of `sin`, `cos` and `tan`.
    pub(super) fn angles(&self) -> impl Iterator<Item = &str> {
        let text = self.as_str();
        text.match_indices('(').filter_map(move |(at, _)| {
            let name = text.get(..at)?.trim_end().rsplit(|c| !in_name(c)).next()?;
            if !is_one_of(name, &["sin", "cos", "tan"]) {
                return None;
            }
            let argument = text.get(at + 1..)?;
            let mut depth = 1;
            let end = argument.find(|c| {
                depth += i32::from(c == '(') - i32::from(c == ')');
                depth == 0
            })?;
            argument.get(..end)
        })
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
    #[error("an operator directly before \"/\" has no meaning; integer division is floor(a/b)")]
    OperatorBeforeDivision,
    #[error("\"in\" converts, as \"to\" does; write \"inches\" for the unit")]
    Inches,
    #[error("the argument of {0} must be in brackets if it is not a single number: {0}(...)")]
    UnbracketedArgument(String),
}

/// Converts full-width symbols and dots of multiplication to ASCII, removes all `=`, `?` and spaces at the end, and
/// refuses unknown symbols.
fn normalise(expression: &str) -> Result<String, InvalidExpression> {
    let chars = expression.chars().count();
    if chars > EXPRESSION_CHARS_MAX {
        return Err(InvalidExpression::TooLong(chars));
    }
    let mut normalised = String::with_capacity(expression.len());
    let is_end = |c: char| c.is_whitespace() || matches!(c, '=' | '＝' | '?' | '？');
    for character in expression.trim_start().trim_end_matches(is_end).chars() {
        let symbol = to_ascii_symbol(character);
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

/// Converts a full-width symbol, as Chinese and Japanese keyboards produce it, to its ASCII form, and dots of
/// multiplication to `*`.
fn to_ascii_symbol(symbol: char) -> char {
    match symbol {
        '\u{ff01}'..='\u{ff5e}' => char::from_u32(symbol as u32 - 0xfee0).unwrap_or(symbol),
        '·' | '⋅' | '∙' => '*',
        other => other,
    }
}

/// Refuses notation that fend would misread: superscripts so long that they overflow, dice, `1,5` as fifteen,
/// `7//2` as `7/(1/2)`, `5 in` as a conversion, and `sin 30°` as `sin(30) °`.
fn check_misreadings(expression: &str) -> Result<(), InvalidExpression> {
    let mut superscripts = expression.split(|c: char| !SUPERSCRIPTS.contains(c));
    if superscripts.any(|digits| digits.chars().count() > SUPERSCRIPT_DIGITS_MAX) {
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
    if has_operator_before_division(expression) {
        return Err(InvalidExpression::OperatorBeforeDivision);
    }
    if has_inches(expression) {
        return Err(InvalidExpression::Inches);
    }
    match ambiguous_call(expression) {
        Some(name) => Err(InvalidExpression::UnbracketedArgument(name.to_owned())),
        None => Ok(()),
    }
}

/// Returns true if a division sign follows another operator. fend would read `/2` as one half.
fn has_operator_before_division(expression: &str) -> bool {
    let mut symbols = expression.chars().filter(|symbol| *symbol != ' ').peekable();
    let mut is_doubled = false;
    while let Some(symbol) = symbols.next() {
        let is_operator = "+-*/^×÷−✕∕".contains(symbol);
        is_doubled |= is_operator && symbols.peek().is_some_and(|next| "/÷∕".contains(*next));
    }
    is_doubled
}

/// Returns true if `in` is used as inches: its power is taken, or no unit follows it, as in `5 in to cm`.
fn has_inches(expression: &str) -> bool {
    expression.match_indices("in").any(|(at, word)| {
        let (before, rest) = expression.split_at(at);
        let after = rest.strip_prefix(word).unwrap_or_default();
        let after = after.trim_start_matches(|c: char| SUPERSCRIPTS.contains(c));
        let is_word = !before.ends_with(|c: char| c.is_alphabetic() || c == '_')
            && !after.starts_with(in_name);
        let after = after.trim_start();
        let has_no_unit = after.is_empty()
            || after.starts_with([')', '+', '-', '−', '*', '×', '✕', '^'])
            || CONVERSIONS.contains(&first_name(after));
        is_word && has_no_unit
    })
}

/// Returns the first function whose argument has no brackets and is followed by another factor, as in
/// `sin 30°` or `log 2 pi`. fend would not apply the function to that factor. `square` and `cubic` do not count.
fn ambiguous_call(expression: &str) -> Option<&str> {
    let mut rest = expression;
    loop {
        rest = rest.trim_start_matches(|c| !in_name(c));
        let behind = rest.trim_start_matches(in_name);
        let word = rest.get(..rest.len() - behind.len()).filter(|word| !word.is_empty())?;
        let name = function_name(word).filter(|name| !is_one_of(name, UNIT_FUNCTIONS));
        if name.is_some() && after_argument(behind).is_some_and(begins_with_factor) {
            return name;
        }
        rest = behind;
    }
}

/// Returns the text after the argument of a function: a number or a name, with its `!` and its exponent. Returns
/// `None` for any other argument, such as one in brackets.
fn after_argument(text: &str) -> Option<&str> {
    let mut rest = after_operand(text)?;
    loop {
        rest = rest.trim_start_matches(|c| c == ' ' || c == '!' || SUPERSCRIPTS.contains(c));
        let power = rest.strip_prefix("**").or_else(|| rest.strip_prefix('^'));
        let Some(exponent) = power else { return Some(rest) };
        rest = after_operand(exponent.trim_start_matches([' ', '+', '-', '−']))?;
    }
}

/// Returns the text after a number or a name that is neither an operator nor a function.
fn after_operand(text: &str) -> Option<&str> {
    let text = text.trim_start();
    if text.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return Some(after_number(text));
    }
    let name = first_name(text);
    let is_operand =
        !name.is_empty() && !OPERATORS.contains(&name) && function_name(name).is_none();
    is_operand.then(|| text.strip_prefix(name)).flatten()
}

/// Returns the text after a number, which may have a base or an exponent (`0xff`, `1e-5`).
fn after_number(text: &str) -> &str {
    if ["0x", "0b", "0o"].iter().any(|base| text.starts_with(base)) {
        return text.trim_start_matches(in_name);
    }
    let in_number = |c: char| c.is_ascii_digit() || matches!(c, '.' | ',' | '_');
    let rest = text.trim_start_matches(in_number);
    let exponent = rest.strip_prefix(['e', 'E']).map(|text| text.trim_start_matches(['+', '-']));
    let exponent = exponent.filter(|text| text.starts_with(|c: char| c.is_ascii_digit()));
    exponent.map_or(rest, |text| text.trim_start_matches(in_number))
}

/// Returns true if the text begins with a factor and not with an operator.
fn begins_with_factor(text: &str) -> bool {
    let text = text.trim_start();
    if let Some(behind) = text.strip_prefix('%') {
        // Before an operand, the sign is the operator of the remainder; otherwise it means per cent.
        return !begins_with_factor(behind);
    }
    let name = first_name(text);
    text.starts_with(['(', '.']) || (!name.is_empty() && !OPERATORS.contains(&name))
}

/// Returns the letters and digits at the start of the text, or the one symbol that is a name by itself.
fn first_name(text: &str) -> &str {
    let symbol = text.chars().next().filter(|c| SYMBOL_NAMES.contains(*c));
    let behind_name = text.len() - text.trim_start_matches(in_name).len();
    text.get(..symbol.map_or(behind_name, char::len_utf8)).unwrap_or_default()
}

fn in_name(symbol: char) -> bool {
    symbol.is_alphanumeric() || symbol == '_'
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
        && (!leading.contains(',') || middle.split(',').all(|group| (2..=3).contains(&group.len())))
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
    let word = text.get(text.trim_end_matches(in_name).len()..)?;
    function_name(word).map(|name| text.len() - name.len())
}

/// Returns the function that the word names. A factor may directly precede the name, as in `2ln(3)`.
fn function_name(word: &str) -> Option<&str> {
    let name = word.trim_start_matches(|c: char| c.is_ascii_digit());
    is_one_of(name, FUNCTIONS).then_some(name)
}

fn is_one_of(name: &str, names: &[&str]) -> bool {
    names.iter().any(|other| name.eq_ignore_ascii_case(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(source: &str, expect: &str) {
        assert_eq!(FendExpression::parse(source).unwrap().as_str(), expect, "{source}");
    }

    #[test]
    fn normalises_symbols_and_brackets_calls() {
        check(" 1 + 1 = ", "1 + 1");
        check("2 + 2 = ? ", "2 + 2");
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
    fn recognises_the_last_rounding() {
        let rounding = |text| FendExpression::parse(text).unwrap().rounding();
        assert_eq!(rounding("1/3 to 5 dp"), Some((5, "dp")));
        assert_eq!(rounding("(1/3 to 5 dp to 12SF) "), Some((12, "sf")));
        assert_eq!(rounding("1/3 to 5 sf to 2dp"), Some((2, "dp")));
        assert_eq!(rounding("1 km to m"), None);
        assert_eq!(rounding("1/3 to dp"), None);
        assert_eq!(rounding("1/3 to 99999999999999999999 dp"), None);
    }

    #[test]
    fn recognises_inches() {
        for text in [
            "5 in",
            "5in",
            "5 in to cm",
            "5 cm to in",
            "5 in in cm",
            "5 cm in in",
            "(5 in) + 1",
            "5 ft 3 in",
            "5 in^2",
            "5 in²",
            "1 in + 2 cm",
            "5 in to 2 dp",
        ] {
            assert_eq!(FendExpression::parse(text), Err(InvalidExpression::Inches), "{text}");
        }
        for text in [
            "5 cm in inches",
            "5 km in m",
            "50 in %",
            "90/minute in per second",
            "10/s in /s",
            "5 m in (cm)",
            "sin(1)",
            "3 min",
            "1/3 in 2 dp",
        ] {
            assert!(!has_inches(text), "{text}");
        }
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
    fn recognises_an_operator_before_a_division_sign() {
        for text in ["7//2", "7 / / 2", "6*/2", "6 × ÷ 2", "2**/2", "7÷÷2", "1+/2", "2^∕2"] {
            assert!(has_operator_before_division(text), "{text}");
        }
        for text in ["7/2", "17%/2", "3!/2", "7/-2", "(1)/2", "2 m / 3 s", "/2", "(/2)", "2**3/4"] {
            assert!(!has_operator_before_division(text), "{text}");
        }
    }

    #[test]
    fn recognises_unbracketed_arguments_that_another_factor_follows() {
        for (text, name) in [
            ("sin 30°", "sin"),
            ("2 + 3COS 60 degrees", "COS"),
            ("sin 2pi", "sin"),
            ("sin 2(pi)", "sin"),
            ("sin pi rad", "sin"),
            ("sin πr", "sin"),
            ("log 2 x + 1", "log"),
            ("log10 1.5e-3 m", "log10"),
            ("sqrt 0x10 m", "sqrt"),
            ("sqrt 2e", "sqrt"),
            ("sqrt 30^-2 °", "sqrt"),
            ("sqrt 3²!m", "sqrt"),
            ("sqrt 16%", "sqrt"),
            ("sqrt 16 % to 2 dp", "sqrt"),
            ("abs(sqrt abs 4 m)", "abs"),
            ("log 100 base 10", "log"),
        ] {
            assert_eq!(ambiguous_call(text), Some(name), "{text}");
        }
        for text in [
            "sqrt 2",
            "sqrt 1,000.5",
            "2 sqrt 1e-5 * 3",
            "sqrt .25 / 2",
            "sqrt pi",
            "ln e",
            "sin π/6",
            "sqrt sqrt 16",
            "sqrt abs(-16)",
            "sin -30°",
            "sin(30)°",
            "sin (30 degrees)",
            "sqrt(2) m to cm",
            "sqrt 16 % 3",
            "sqrt 16 mod 3",
            "sqrt 2 to 5 dp",
            "sqrt 16 per 2",
            "sqrt 3^2 + 1",
            "sqrt 3!",
            "sqrt 2^(3) m",
            "(sin 1) m",
            "5 square feet to square meters",
            "3 cubic meters per hour",
            "2 m / 3 s",
            "sine 30 m",
        ] {
            assert_eq!(ambiguous_call(text), None, "{text}");
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
