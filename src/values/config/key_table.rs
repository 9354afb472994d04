//! The tables of configuration keys: one row has the key, its type, its default, its bounds and its description.
//!
//! To add a key, add a row to the table of its section ([`key_table`]), and use the field. The struct, its defaults, the
//! reader of the file and the checks follow from the row. So does the row of the document:
//! `CALLSHEET_UPDATE_DOCUMENTS=1 cargo test --test house -- documents` writes it.

use std::fmt::Debug;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

#[cfg(feature = "toml")]
use toml::de::DeValue;

#[cfg(feature = "toml")]
use super::file::source::Section;
#[cfg(feature = "toml")]
use super::file::values::{self, Parsed};

/// Defines a section of the configuration: a struct whose fields are public, and its keys.
///
/// The fields in parentheses are arguments of the constructor `with_defaults`. A section without them implements
/// `Default`. The others are rows of one of three forms:
///
/// | row | the field is |
/// | --- | --- |
/// | `key: Type = default, Bounds;` | a plain key. The [`Value`] of the type and the [`Bounds`] read and check it |
/// | `key: Type = default => "form";` | a key that code of the section reads and checks. The text describes its values |
/// | `field: Type = default;` | no key of the section |
macro_rules! key_table {
    (
        $(#[$attribute:meta])*
        pub struct $name:ident { $($rows:tt)* }
    ) => {
        key_table! {
            $(#[$attribute])*
            pub struct $name() { $($rows)* }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::with_defaults()
            }
        }
    };
    (
        $(#[$attribute:meta])*
        pub struct $name:ident($(
            $(#[doc = $given_doc:literal])*
            $given:ident: $given_type:ty $(=> $given_form:literal)?
        ),* $(,)?) {
            $(
                $(#[doc = $doc:literal])*
                $key:ident: $type:ty = $default:expr
                    $(, $bounds:ident $(($($bound:expr),+))?)? $(=> $form:literal)?;
            )*
        }
    ) => {
        $(#[$attribute])*
        pub struct $name {
            $($(#[doc = $given_doc])* pub $given: $given_type,)*
            $(
                $(#[doc = $doc])*
                #[doc = concat!("Default: `", stringify!($default), "`.")]
                pub $key: $type,
            )*
        }

        impl $name {
            /// Creates the section with the default of each key.
            fn with_defaults($($given: $given_type),*) -> Self {
                Self { $($given,)* $($key: $default,)* }
            }
        }

        impl $crate::config::key_table::KeyTable for $name {
            #[cfg(feature = "toml")]
            fn read_keys(&mut self, section: &$crate::config::file::source::Section<'_, '_>) {
                // A section may have no plain keys.
                let _ = section;
                $($(
                    $crate::config::key_table::Bounds::$bounds $(($($bound),+))?
                        .read(section, stringify!($key), &mut self.$key);
                )?)*
            }

            fn check_keys(&self, add_error: &mut dyn FnMut(&'static str, String)) {
                let _ = &add_error;
                $($(
                    let bounds = $crate::config::key_table::Bounds::$bounds $(($($bound),+))?;
                    if let Err(message) = bounds.check(&self.$key) {
                        add_error(stringify!($key), message);
                    }
                )?)*
            }

            fn described_keys(&self) -> Vec<$crate::config::KeyDescription> {
                use $crate::config::KeyDescription;
                let mut keys = Vec::new();
                $(keys.extend([$(($given_form.to_owned(), String::new()))?].map(|values| {
                    KeyDescription::new(stringify!($given), &[$($given_doc),*], values)
                }));)*
                $(keys.extend(
                    [
                        $($crate::config::key_table::Bounds::$bounds $(($($bound),+))?
                            .describe(&self.$key))?
                        $(($form.to_owned(), $crate::config::key_table::debug_text(&self.$key)))?
                    ]
                    .map(|values| KeyDescription::new(stringify!($key), &[$($doc),*], values))
                );)*
                keys
            }
        }
    };
}

pub(super) use key_table;

/// A section of the configuration that [`key_table`] has defined.
pub(super) trait KeyTable {
    /// Reads the plain keys of the section. A key that is missing or wrong keeps its value.
    #[cfg(feature = "toml")]
    fn read_keys(&mut self, section: &Section<'_, '_>);

    /// Passes each plain key with a wrong value to `add_error`, with the reason. Code may have set the value.
    fn check_keys(&self, add_error: &mut dyn FnMut(&'static str, String));

    /// Describes the keys. The values of this section count as the defaults.
    fn described_keys(&self) -> Vec<KeyDescription>;

    /// Reads a section that has no other keys than plain ones.
    #[cfg(feature = "toml")]
    fn read_table(section: &Section<'_, '_>) -> Self
    where
        Self: Sized + Default,
    {
        let mut table = Self::default();
        table.read_keys(section);
        section.report_unknown_keys();
        table
    }
}

/// One key, as the document describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyDescription {
    /// The key.
    pub key: &'static str,
    /// The values that it may have.
    pub form: String,
    /// The default as TOML. Empty if the key has no default.
    pub default: String,
    /// The description: one paragraph of Markdown.
    pub text: String,
}

impl KeyDescription {
    pub(super) fn new(
        key: &'static str,
        lines: &[&str],
        (form, default): (String, String),
    ) -> Self {
        let lines: Vec<&str> = lines.iter().map(|line| line.trim()).collect();
        Self { key, form, default, text: lines.join(" ") }
    }
}

/// Returns a default that is no [`Value`], such as a list, as TOML. Empty for `None` and an empty text.
pub(super) fn debug_text(default: &impl Debug) -> String {
    let text = format!("{default:?}");
    if ["None", "\"\""].contains(&text.as_str()) { String::new() } else { text }
}

/// The values that a plain key may have.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bounds<T> {
    /// All values of the type.
    Any,
    /// A number or a time above 0.
    Positive,
    /// A text that is not blank.
    Filled,
    /// A number or a time above 0, or no limit. For that the file has 0, and the field `None`.
    Limit,
    /// From the first to the second value.
    Within(T, T),
    /// From 0 to this value.
    UpTo(T),
}

impl<T: Value> Bounds<T> {
    /// Reads the value of a key into `field`. Records an error for a wrong value.
    #[cfg(feature = "toml")]
    pub(super) fn read(&self, section: &Section<'_, '_>, key: &'static str, field: &mut T) {
        let read = section.read(key, |value| match (self, T::NO_LIMIT) {
            (Self::Limit, Some(no_limit)) if T::parses_zero(value) => Ok(no_limit),
            _ => {
                let parsed = T::parse(value)?;
                self.check(&parsed).map(|()| parsed)
            }
        });
        if let Some(value) = read {
            *field = value;
        }
    }

    /// Checks a value.
    ///
    /// # Errors
    /// If the key may not have it: the reason.
    pub(super) fn check(&self, value: &T) -> Result<(), String> {
        let problem = match self {
            Self::Any => None,
            Self::Positive | Self::Filled | Self::Limit => {
                value.zero_problem().map(ToOwned::to_owned)
            }
            Self::Within(least, most) => value.range_problem(least, most),
            Self::UpTo(most) => value.maximum_problem(most),
        };
        problem.map_or(Ok(()), Err)
    }

    /// Returns the form of the values, and the default as TOML.
    pub(super) fn describe(&self, default: &T) -> (String, String) {
        let form = T::form();
        let form = match self {
            Self::Any | Self::Filled => form,
            Self::Positive => form + ABOVE_ZERO,
            Self::Limit => {
                format!("{}; {}: no limit", form.trim_end_matches(ABOVE_ZERO), T::ZERO_TOML)
            }
            Self::Within(least, most) => {
                format!("{form} from {} to {}", least.to_toml(), most.to_toml())
            }
            Self::UpTo(most) => format!("{form} from 0 to {}", most.to_toml()),
        };
        let default = match (self, default.to_toml()) {
            (Self::Limit, text) if text.is_empty() => T::ZERO_TOML.to_owned(),
            (_, text) => text,
        };
        (form, default)
    }
}

/// A type of values of plain keys.
pub(super) trait Value: Sized + Debug {
    /// The zero of the type in the file.
    const ZERO_TOML: &'static str = "0";

    /// The value without a limit, if the type has one.
    #[cfg(feature = "toml")]
    const NO_LIMIT: Option<Self> = None;

    /// Describes the values of the type in the file.
    fn form() -> String;

    /// Returns the value as TOML. Empty for the value of a key that is absent.
    fn to_toml(&self) -> String {
        format!("{self:?}")
    }

    /// Returns the error about this value if it is 0 or blank.
    fn zero_problem(&self) -> Option<&'static str> {
        None
    }

    /// Returns the error about this value if it is not in a range.
    fn range_problem(&self, _least: &Self, _most: &Self) -> Option<String> {
        None
    }

    /// Returns the error about this value if it is not from 0 to a maximum.
    fn maximum_problem(&self, _most: &Self) -> Option<String> {
        None
    }

    /// Parses a value of the file. Returns the error without the key.
    #[cfg(feature = "toml")]
    fn parse(value: &DeValue<'_>) -> Parsed<Self>;

    /// Returns whether a value of the file is the zero of the type.
    #[cfg(feature = "toml")]
    fn parses_zero(value: &DeValue<'_>) -> bool {
        Self::parse(value).is_ok_and(|value| value.zero_problem().is_some())
    }
}

const ABOVE_ZERO: &str = " above 0";
const ZERO_NUMBER: &str = "must be at least 1";

/// Implements [`Value`] for whole numbers.
macro_rules! whole_numbers {
    ($($type:ty),+) => {$(
        impl Value for $type {
            fn form() -> String {
                "whole number".to_owned()
            }

            fn zero_problem(&self) -> Option<&'static str> {
                (*self == 0).then_some(ZERO_NUMBER)
            }

            fn range_problem(&self, least: &Self, most: &Self) -> Option<String> {
                let is_outside = !(least..=most).contains(&self);
                is_outside.then(|| format!("must be from {least} to {most}, and is {self}"))
            }

            fn maximum_problem(&self, most: &Self) -> Option<String> {
                (self > most).then(|| format!("must be a number from 0 to {most}, not {self}"))
            }

            #[cfg(feature = "toml")]
            fn parse(value: &DeValue<'_>) -> Parsed<Self> {
                values::unsigned(value)
            }
        }
    )+};
}

whole_numbers!(u32, u64, usize);

/// Implements [`Value`] for whole numbers above 0.
macro_rules! whole_numbers_above_zero {
    ($($type:ty),+) => {$(
        impl Value for $type {
            /// As good as none.
            #[cfg(feature = "toml")]
            const NO_LIMIT: Option<Self> = Some(Self::MAX);

            fn form() -> String {
                format!("whole number{ABOVE_ZERO}")
            }

            #[cfg(feature = "toml")]
            fn parse(value: &DeValue<'_>) -> Parsed<Self> {
                Self::new(values::unsigned(value)?).ok_or_else(|| ZERO_NUMBER.to_owned())
            }

            #[cfg(feature = "toml")]
            fn parses_zero(value: &DeValue<'_>) -> bool {
                values::unsigned::<u64>(value) == Ok(0)
            }
        }
    )+};
}

whole_numbers_above_zero!(NonZeroU32, NonZeroUsize);

impl<T: Value> Value for Option<T> {
    const ZERO_TOML: &'static str = T::ZERO_TOML;
    #[cfg(feature = "toml")]
    const NO_LIMIT: Option<Self> = Some(None);

    fn form() -> String {
        T::form()
    }

    fn to_toml(&self) -> String {
        self.as_ref().map(T::to_toml).unwrap_or_default()
    }

    fn zero_problem(&self) -> Option<&'static str> {
        self.as_ref()?.zero_problem()
    }

    fn range_problem(&self, least: &Self, most: &Self) -> Option<String> {
        self.as_ref()?.range_problem(least.as_ref()?, most.as_ref()?)
    }

    fn maximum_problem(&self, most: &Self) -> Option<String> {
        self.as_ref()?.maximum_problem(most.as_ref()?)
    }

    #[cfg(feature = "toml")]
    fn parse(value: &DeValue<'_>) -> Parsed<Self> {
        T::parse(value).map(Some)
    }

    #[cfg(feature = "toml")]
    fn parses_zero(value: &DeValue<'_>) -> bool {
        T::parses_zero(value)
    }
}

impl Value for bool {
    fn form() -> String {
        "true or false".to_owned()
    }

    #[cfg(feature = "toml")]
    fn parse(value: &DeValue<'_>) -> Parsed<Self> {
        values::boolean(value)
    }
}

impl Value for f64 {
    fn form() -> String {
        "number".to_owned()
    }

    fn maximum_problem(&self, most: &Self) -> Option<String> {
        let is_outside = !(0.0..=*most).contains(self);
        is_outside.then(|| format!("must be a number from 0 to {most}, not {self}"))
    }

    #[cfg(feature = "toml")]
    fn parse(value: &DeValue<'_>) -> Parsed<Self> {
        values::float(value)
    }
}

impl Value for String {
    fn form() -> String {
        "text".to_owned()
    }

    fn zero_problem(&self) -> Option<&'static str> {
        self.trim().is_empty().then_some("must not be empty")
    }

    #[cfg(feature = "toml")]
    fn parse(value: &DeValue<'_>) -> Parsed<Self> {
        values::string(value)
    }
}

impl Value for PathBuf {
    fn form() -> String {
        "path".to_owned()
    }

    #[cfg(feature = "toml")]
    fn parse(value: &DeValue<'_>) -> Parsed<Self> {
        values::non_empty_string(value).map(Self::from)
    }
}

impl Value for Duration {
    const ZERO_TOML: &'static str = "\"0s\"";

    fn form() -> String {
        "time".to_owned()
    }

    fn to_toml(&self) -> String {
        let milliseconds = self.as_millis();
        let units = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
        let fits =
            |(_, unit): &&(&str, u128)| milliseconds >= *unit && milliseconds.is_multiple_of(*unit);
        let (name, unit) = units.iter().find(fits).unwrap_or(&("s", 1_000));
        format!("\"{}{name}\"", milliseconds / unit)
    }

    fn zero_problem(&self) -> Option<&'static str> {
        (*self == Self::ZERO).then_some("must be longer than 0")
    }

    fn range_problem(&self, least: &Self, most: &Self) -> Option<String> {
        let is_outside = !(least..=most).contains(&self);
        is_outside.then(|| format!("must be from {} to {}", least.to_toml(), most.to_toml()))
    }

    #[cfg(feature = "toml")]
    fn parse(value: &DeValue<'_>) -> Parsed<Self> {
        values::duration(value)
    }
}

/// Implements [`Value`] for an enum whose values have names in the file.
macro_rules! named_values {
    ($type:ty, $names:expr) => {
        impl $crate::config::key_table::Value for $type {
            fn form() -> String {
                $crate::config::error::quoted_names(&$names)
            }

            fn to_toml(&self) -> String {
                let found = $names.iter().find(|(_, value)| value == self);
                found.map(|(name, _)| format!("{name:?}")).unwrap_or_default()
            }

            #[cfg(feature = "toml")]
            fn parse(value: &toml::de::DeValue<'_>) -> $crate::config::file::values::Parsed<Self> {
                $crate::config::file::values::one_of(value, &$names)
            }
        }
    };
}

pub(super) use named_values;
