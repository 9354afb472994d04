//! The names of tools, of their arguments, and of environment variables.

use std::collections::{HashMap, HashSet};

use callsheet_tools::RESERVED_NAMES;
use callsheet_values::types::sha256_hex;

/// Maximum length of a tool's name.
const NAME_BYTES_MAX: usize = 64;

/// Number of hex digits of the hash in a name that would not be unique or is too long.
const HASH_DIGITS: usize = 8;

/// The names of the built-in tools. [`RESERVED_NAMES`] has the others that an operation cannot have.
const BUILT_IN_NAMES: [&str; 6] =
    ["calculator", "clock", "get_variable", "http_get", "read_file", "set_variable"];

/// Returns a unique name for each operation: from its `operationId`, or from its method and path, such as
/// `GET /pets`, if it has none. A name that several operations would have, that belongs to a tool of the host, or
/// that is too long, ends with a hash of method and path.
pub(super) fn tool_names<'d>(operations: impl Iterator<Item = (&'d str, String)>) -> Vec<String> {
    let plain: Vec<(String, String)> = operations
        .map(|(id, method_and_path)| (plain_name(id, &method_and_path), method_and_path))
        .collect();
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for (name, _) in &plain {
        *counts.entry(name).or_default() += 1;
    }
    let mut used = HashSet::new();
    let mut names = Vec::new();
    for (name, method_and_path) in &plain {
        let is_unique = counts.get(name.as_str()) == Some(&1);
        let is_of_host =
            [&BUILT_IN_NAMES[..], &RESERVED_NAMES[..]].concat().contains(&name.as_str());
        let is_usable = is_unique && !is_of_host && name.len() <= NAME_BYTES_MAX;
        let mut unique = match is_usable {
            true => name.clone(),
            false => with_hash(name, method_and_path),
        };
        // The `operationId` of another operation can equal this name. Each round has another hash.
        let mut round = 1;
        while !used.insert(unique.clone()) {
            round += 1;
            unique = with_hash(name, &format!("{method_and_path} {round}"));
        }
        names.push(unique);
    }
    names
}

/// Returns a name for an operation, which may not be unique.
fn plain_name(id: &str, method_and_path: &str) -> String {
    let mut name = sanitized(id);
    if name.is_empty() {
        let (method, path) = method_and_path.split_once(' ').unwrap_or_default();
        name = sanitized(&format!("{} {path}", method.to_ascii_lowercase()));
    }
    // Some providers demand a letter at the beginning.
    if name.starts_with(|c: char| c.is_ascii_alphabetic()) { name } else { format!("op_{name}") }
}

/// Appends the first digits of the hash of a text to a name. Shortens the name to the permitted length.
fn with_hash(name: &str, hashed: &str) -> String {
    let hash = sha256_hex(hashed);
    let hash = hash.get(..HASH_DIGITS).unwrap_or(&hash);
    let beginning = name.get(..NAME_BYTES_MAX - 1 - HASH_DIGITS).unwrap_or(name);
    format!("{beginning}_{hash}")
}

/// Replaces each sequence of characters outside `a-z A-Z 0-9 _ -` with one `_`, and trims `_` at both ends.
fn sanitized(text: &str) -> String {
    let mut name = String::new();
    for c in text.chars() {
        match c {
            c if c.is_ascii_alphanumeric() || c == '_' || c == '-' => name.push(c),
            _ if !name.ends_with('_') => name.push('_'),
            _ => {}
        }
    }
    name.trim_matches('_').to_owned()
}

/// Returns the name of an argument for a parameter. If the name is taken, appends `suffix`, and then a number.
pub(super) fn argument_name(
    parameter: &str,
    suffix: &str,
    is_taken: impl Fn(&str) -> bool,
) -> String {
    let mut name = sanitized(parameter);
    // Leaves room for the suffix and a number.
    name.truncate(NAME_BYTES_MAX - 10);
    if name.is_empty() {
        name.push_str(suffix);
    }
    let suffixed = format!("{name}_{suffix}");
    let numbered = (2..).map(|number| format!("{suffixed}_{number}"));
    let mut candidates = [name.clone(), suffixed.clone()].into_iter().chain(numbered);
    candidates.find(|name| !is_taken(name)).unwrap_or_default()
}

/// Converts a text to the name of an environment variable of at most 40 characters. It is empty if the text has no
/// letter or digit of ASCII.
pub(super) fn env_var_name(text: &str) -> String {
    let name = sanitized(text).replace('-', "_").to_ascii_uppercase();
    name.get(..40).unwrap_or(&name).trim_matches('_').to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(operations: &[(&str, &str, &str)]) -> Vec<String> {
        tool_names(operations.iter().map(|(id, method, path)| (*id, format!("{method} {path}"))))
    }

    #[test]
    fn names_come_from_the_id_or_from_method_and_path() {
        let named = names(&[
            ("listPets", "GET", "/pets"),
            ("pets.show (by id)", "GET", "/pets/{petId}"),
            ("", "DELETE", "/pets/{petId}/tags/"),
            ("", "GET", "/"),
            ("2nd", "GET", "/2"),
            ("é", "PUT", "/e"),
        ]);
        let expected =
            ["listPets", "pets_show_by_id", "delete_pets_petId_tags", "get", "op_2nd", "put_e"];
        assert_eq!(named, expected);
    }

    #[test]
    fn long_repeated_and_taken_names_end_with_a_hash() {
        let long = "x".repeat(70);
        let named = names(&[
            (&long, "GET", "/a"),
            (&long, "GET", "/b"),
            ("clock", "GET", "/c"),
            ("a.b", "GET", "/d"),
            ("a:b", "GET", "/e"),
        ]);
        assert!(named.iter().take(2).all(|name| name.len() == 64), "{named:?}");
        assert!(named[2].starts_with("clock_") && named[2].len() == 14);
        assert!(named[3].starts_with("a_b_") && named[4].starts_with("a_b_"));
        assert_eq!(named.iter().collect::<HashSet<_>>().len(), 5);
        // The name of an operation does not depend on the others' order.
        let first = names(&[("a:b", "GET", "/e"), ("a.b", "GET", "/d")]);
        assert_eq!((&first[0], &first[1]), (&named[4], &named[3]));
        let same = names(&[("a.b", "GET", "/d"), ("a.b", "PUT", "/d"), (&named[3], "GET", "/x")]);
        assert_eq!(same.iter().collect::<HashSet<_>>().len(), 3);
    }

    #[test]
    fn ids_that_equal_the_names_with_a_hash_do_not_exhaust_them() {
        let hash = sha256_hex("GET /d");
        let id = |digits: usize| format!("{}_{}", &"a_b"[..(63 - digits).min(3)], &hash[..digits]);
        let ids: Vec<String> = (HASH_DIGITS..63).map(id).collect();
        let paths: Vec<String> = (0..ids.len()).map(|at| format!("/{at}")).collect();
        let operations =
            ids.iter().zip(&paths).map(|(id, path)| (id.as_str(), "GET", path.as_str()));
        let same = [("a.b", "GET", "/d"), ("a.b", "PUT", "/d")];
        let named = names(&operations.chain(same).collect::<Vec<_>>());
        assert_eq!(named[..ids.len()], ids);
        assert!(named[ids.len()..].iter().all(|name| name.starts_with("a_b_")), "{named:?}");
        assert_eq!(named.iter().collect::<HashSet<_>>().len(), ids.len() + 2);
    }

    #[test]
    fn arguments_and_variables_have_plain_names() {
        let name = |text| argument_name(text, "query", |name| name == "id" || name == "id_query");
        assert_eq!(name("filter[status]"), "filter_status");
        assert_eq!((name("id"), name("é")), ("id_query_2".to_owned(), "query".to_owned()));
        assert_eq!(env_var_name("Ticket-API (v2)"), "TICKET_API_V2");
    }

    proptest! {
        #[test]
        fn names_are_valid_and_unique(
            ids in proptest::collection::vec("[a-c.:_é]{0,4}|[a-z]{60,80}", 1..40)
        ) {
            let paths: Vec<String> = (0..ids.len()).map(|at| format!("/{at}")).collect();
            let operations = ids.iter().zip(&paths).map(|(id, path)| (id.as_str(), "GET", path.as_str()));
            let named = names(&operations.collect::<Vec<_>>());
            for name in &named {
                prop_assert!((1..=64).contains(&name.len()), "{name}");
                prop_assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b)));
            }
            prop_assert_eq!(named.iter().collect::<HashSet<_>>().len(), ids.len());
        }
    }
}
