//! The names under which the tools of a server are offered.

use crate::server::SERVER_SEPARATOR;
use callsheet_values::types::sha256_hex;

/// The longest name that every provider accepts.
const NAME_BYTES_MAX: usize = 64;

/// Number of hex digits of the hash in a name that was changed.
const HASH_DIGITS: usize = 8;

/// Returns the name of a server's tool for the model: `SERVER__TOOL`. A name that is too long, or that has
/// other characters than a provider accepts, is changed and ends with a hash of the tool's own name. The
/// same tool always has the same name.
pub(super) fn offered_name(server: &str, tool: &str) -> String {
    let is_accepted = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let clean: String = tool.chars().map(|c| if is_accepted(c) { c } else { '_' }).collect();
    let mut name = format!("{server}{SERVER_SEPARATOR}{clean}");
    if clean == tool && !tool.is_empty() && name.len() <= NAME_BYTES_MAX {
        return name;
    }
    let hash = sha256_hex(tool);
    // The name is ASCII.
    name.truncate(NAME_BYTES_MAX - HASH_DIGITS - 1);
    name.push('_');
    name.extend(hash.chars().take(HASH_DIGITS));
    name
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_valid_name_is_not_changed() {
        assert_eq!(offered_name("files", "read_file"), "files__read_file");
        let changed = offered_name("git", "a.b");
        assert!(changed.starts_with("git__a_b_") && changed.len() == 17, "{changed}");
        assert_ne!(offered_name("git", "a.b"), offered_name("git", "a:b"));
        let long = "x".repeat(128);
        assert_eq!(offered_name("git", &long).len(), 64);
        assert_ne!(offered_name("git", &long), offered_name("git", &format!("{long}y")));
    }

    proptest! {
        #[test]
        fn different_tools_have_different_valid_names(
            tools in proptest::collection::hash_set("[a-c.:_é]{0,5}|[a-z]{60,140}", 2..60)
        ) {
            let mut seen = HashMap::new();
            for tool in &tools {
                let name = offered_name("server", tool);
                prop_assert!((9..=64).contains(&name.len()), "{name}");
                prop_assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b)));
                prop_assert_eq!(seen.insert(name, tool), None);
            }
        }
    }
}
