//! Collects the comments with examples of the packages below `src/`.
#![expect(clippy::unwrap_used, reason = "a build script of tests")]

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../src");
    println!("cargo::rerun-if-changed={}", root.display());
    let mut files = Vec::new();
    find(&root, &mut files);
    files.sort();
    let mut module = String::new();
    // The package tests the examples of its own file.
    for file in files.iter().filter(|file| **file != root.join("lib.rs")) {
        let text = fs::read_to_string(file).unwrap();
        let path = file.strip_prefix(&root).unwrap().display().to_string();
        let name: String =
            path.chars().map(|c| if c.is_alphanumeric() { c } else { '_' }).collect();
        for (line, comment) in comments(&text).filter(|(_, comment)| comment.contains("```")) {
            writeln!(module, "#[doc = {comment:?}]\nfn {name}_line_{line}() {{}}\n").unwrap();
        }
    }
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap());
    fs::write(out.join("examples.rs"), module).unwrap();
}

fn find(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            find(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// Returns the comments of documentation, each with the number of its first line.
fn comments(text: &str) -> impl Iterator<Item = (usize, String)> {
    let mut comments: Vec<(usize, String)> = Vec::new();
    let mut last = None;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let Some(words) = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) else {
            continue;
        };
        if last.is_none_or(|last| last + 1 != number) {
            comments.push((number + 1, String::new()));
        }
        last = Some(number);
        let (_, comment) = comments.last_mut().unwrap();
        comment.push_str(words.strip_prefix(' ').unwrap_or(words));
        comment.push('\n');
    }
    comments.into_iter()
}
