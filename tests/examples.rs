//! The programs in `examples/` run and print what they should.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

/// Runs an example and returns its output.
fn output_of(example: &str) -> String {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    let run = cargo.args(["run", "--quiet", "--offline", "--example", example]).output().unwrap();
    assert!(run.status.success(), "{example}: {}", String::from_utf8_lossy(&run.stderr));
    String::from_utf8(run.stdout).unwrap()
}

#[test]
fn word_count() {
    let output = output_of("word_count");
    assert!(output.contains("count_words {\"text\":\"one two three\"} -> 3\n"), "{output}");
}

#[test]
fn custom_tool() {
    let output = output_of("custom_tool");
    assert!(output.contains("-> {\"pieces\":42,\"queries\":1}\n"), "{output}");
}
