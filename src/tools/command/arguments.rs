//! The arguments of a program, from templates. There is no shell, so only a leading `-` has a special meaning.

use serde_json::{Map, Value};

use crate::defined_input::{DefinedInput, DefinitionError};
use crate::{Template, ToolError};

/// The kernel's limit on the size of one argument, with its terminating NUL byte.
const ARGUMENT_BYTES_MAX: usize = 128 * 1024;

/// The templates of the arguments.
#[derive(Clone, Debug)]
pub(super) struct ArgumentTemplates {
    templates: Vec<Template>,
}

impl ArgumentTemplates {
    /// Parses the elements of `command` after the program.
    ///
    /// # Errors
    /// If a template is broken, or has a character that no argument can have.
    pub(super) fn parse(
        input: &DefinedInput,
        elements: &[String],
    ) -> Result<Self, DefinitionError> {
        let mut templates = Vec::with_capacity(elements.len());
        for (at, element) in elements.iter().enumerate() {
            let key = format!("command[{}]", at + 1);
            if element.contains('\0') {
                return Err(DefinitionError::new(key, "must not contain a NUL character"));
            }
            templates.push(input.template(&key, element)?);
        }
        Ok(Self { templates })
    }

    /// Returns the arguments of one call.
    ///
    /// # Errors
    /// If a value could be read as an option, or cannot be an argument.
    pub(super) fn render(&self, values: &Map<String, Value>) -> Result<Vec<String>, ToolError> {
        let mut arguments = Vec::new();
        let mut options_have_ended = false;
        for template in &self.templates {
            options_have_ended |= template.as_literal() == Some("--");
            let may_be_option = !options_have_ended
                && template.as_literal().is_none()
                && template.literal_prefix().is_empty();
            for argument in template.render_list(values) {
                let names: Vec<&str> = template.names().collect();
                if may_be_option && argument.starts_with('-') {
                    return Err(refused(
                        &names,
                        "must not begin with \"-\": it would be an option",
                    ));
                }
                if argument.contains('\0') {
                    return Err(refused(&names, "must not contain a NUL character"));
                }
                if argument.len() >= ARGUMENT_BYTES_MAX {
                    return Err(refused(&names, "must be shorter than 128 KiB"));
                }
                arguments.push(argument);
            }
        }
        Ok(arguments)
    }
}

fn refused(names: &[&str], why: &str) -> ToolError {
    ToolError::new(format!("the argument {} {why}", names.join(", "))).permanent()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::NextAttempt;
    use callsheet_values::config::ToolInput;

    /// Renders the arguments. Checks that a refusal is permanent.
    fn render(elements: &[&str], values: Value) -> Result<Vec<String>, String> {
        let names = ["a", "b", "list"].map(|name| (name.to_owned(), json!({})));
        let input = ToolInput::Properties(names.into_iter().collect());
        let input = DefinedInput::load(&input).unwrap();
        let elements: Vec<String> = elements.iter().map(|text| (*text).to_owned()).collect();
        let templates = ArgumentTemplates::parse(&input, &elements).unwrap();
        templates.render(values.as_object().unwrap()).map_err(|error| {
            assert_eq!(error.next_attempt(), NextAttempt::Useless, "{error}");
            error.to_string()
        })
    }

    #[test]
    fn each_element_is_one_argument() {
        let values = json!({"a": "x; rm -rf / $(b) *", "list": ["1", "2"]});
        let elements = ["-o", "{a}", "--b={b}", "--", "{list}", "{{x}"];
        let expected = ["-o", "x; rm -rf / $(b) *", "--", "1", "2", "{x}"];
        assert_eq!(render(&elements, values).unwrap(), expected);
    }

    #[test]
    fn a_value_cannot_become_an_option() {
        let error = "the argument a must not begin with \"-\": it would be an option";
        let dash = || json!({"a": "--exec=rm", "list": ["x", "-y"]});
        assert_eq!(render(&["{a}"], dash()).unwrap_err(), error);
        assert_eq!(render(&["-n", "{a}", "--", "{a}"], dash()).unwrap_err(), error);
        assert_eq!(
            render(&["--", "{a}", "{list}"], dash()).unwrap(),
            ["--", "--exec=rm", "x", "-y"]
        );
        assert_eq!(render(&["--n={a}"], dash()).unwrap(), ["--n=--exec=rm"]);
        assert!(render(&["{list}"], dash()).unwrap_err().starts_with("the argument list must not"));
        assert!(render(&["{a}{b}"], json!({"a": "", "b": "-x"})).is_err());
        assert!(render(&["{a}"], json!({"a": -1})).is_err());
        // A value in the place of "--" does not end the options.
        assert!(render(&["{a}", "{b}"], json!({"a": "--", "b": "-x"})).is_err());
    }

    #[test]
    fn an_element_with_a_nul_character_is_invalid() {
        let input = DefinedInput::load(&ToolInput::Properties(Map::new())).unwrap();
        let elements = ["x".to_owned(), "a\0b".to_owned()];
        let error = ArgumentTemplates::parse(&input, &elements).unwrap_err();
        assert_eq!(error.to_string(), "command[2]: must not contain a NUL character");
    }

    #[test]
    fn an_invalid_argument_is_refused() {
        let error = render(&["--", "{a}"], json!({"a": "x\0y"})).unwrap_err();
        assert_eq!(error, "the argument a must not contain a NUL character");
        let long = |bytes| render(&["{a}"], json!({"a": "x".repeat(bytes)}));
        assert!(long(ARGUMENT_BYTES_MAX - 1).is_ok());
        assert_eq!(
            long(ARGUMENT_BYTES_MAX).unwrap_err(),
            "the argument a must be shorter than 128 KiB"
        );
    }
}
