//! Thought signatures: opaque to a client, verified by the service.

use crate::text::hash;

/// The prefix of the signatures that [`sign`] makes.
const BEGINNING: &str = "cmVoZWFyc2Fs";
/// The values that Gemini's documentation gives for calls that another model made.
const PLACEHOLDERS: [&str; 2] =
    ["skip_thought_signature_validator", "context_engineering_is_the_way_to_go"];

/// Returns the signature of a call with this name, or of a text.
pub(super) fn sign(number: u64, name: &str) -> String {
    let number = format!("{number:08x}");
    format!("{BEGINNING}{number}{}", checksum(&number, name))
}

/// Returns whether a call with this name may have the signature: one that this server made for the name, a
/// placeholder, or one of another service.
pub(super) fn is_valid(signature: &str, name: &str) -> bool {
    let is_known = PLACEHOLDERS.contains(&signature);
    let Some(rest) = signature.strip_prefix(BEGINNING).filter(|_| !is_known) else {
        return is_known || is_base64(signature);
    };
    rest.split_at_checked(8).is_some_and(|(number, sum)| sum == checksum(number, name))
}

fn is_base64(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"+/=-_".contains(&b))
}

fn checksum(number: &str, name: &str) -> String {
    hash(&format!("{number} {name}"), 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_altered_signature_is_refused() {
        let ours = sign(7, "f");
        assert!(is_valid(&ours, "f") && !is_valid(&ours, "g"));
        assert!(!is_valid(&ours.to_uppercase().replacen("CMVOZWFYC2FS", BEGINNING, 1), "f"));
        assert!(!is_valid(BEGINNING, "f") && !is_valid("", "f") && !is_valid("é", "f"));
        assert!(is_valid("AB+/c=", "f") && is_valid(PLACEHOLDERS[0], "f"));
    }
}
