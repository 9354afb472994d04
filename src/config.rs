//! `callsheet.toml`, parsed once, validated, and passed in as values.
