//! The layout of the house: dependencies go down only, machines are pure, files stay small.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The modules of the crate, lowest first. A module names only modules that stand before it.
const ORDER: [&str; 21] = [
    "types",
    "message",
    "tls",
    "config",
    "event",
    "record",
    "transcript",
    "wire",
    "context",
    "tool",
    "response",
    "turn",
    "session",
    "journal",
    "telemetry",
    "runtime",
    "rehearsal",
    "server",
    "load",
    "cli",
    "main",
];

/// Pure code: values in, values out.
const MACHINES: [&str; 10] = [
    "types",
    "message",
    "event",
    "record",
    "transcript",
    "wire",
    "context",
    "response",
    "turn",
    "session",
];

/// What a machine does not know.
const SHELL_CRATES: [&str; 7] =
    ["tokio", "ractor", "reqwest", "axum", "metrics", "tracing", "parking_lot"];

const LINES_MAX: usize = 400;

struct Source {
    path: PathBuf,
    module: String,
    text: String,
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut sources = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let below = path.strip_prefix(&root).unwrap();
                let first = below.components().next().unwrap().as_os_str().to_str().unwrap();
                let module = first.trim_end_matches(".rs").to_owned();
                let text = fs::read_to_string(&path).unwrap();
                sources.push(Source { path: below.to_owned(), module, text });
            }
        }
    }
    assert!(sources.len() > 30, "the sources were found");
    sources
}

/// The code of a line, without its comment.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}

/// Names of the crate's own modules in a line, whether as `crate::x` or in `crate::{x, y}`.
fn named_modules(line: &str) -> BTreeSet<&'static str> {
    let mut named = BTreeSet::new();
    for marker in ["crate::", "callsheet::"] {
        for (at, _) in code(line).match_indices(marker) {
            let rest = &code(line)[at + marker.len()..];
            let word = |text: &str| {
                let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
                text[..end.unwrap_or(text.len())].to_owned()
            };
            named.extend(ORDER.iter().filter(|module| **module == word(rest)));
        }
    }
    named
}

#[test]
fn dependencies_go_down_only() {
    let mut wrong = Vec::new();
    for source in sources() {
        if source.module == "lib" {
            continue;
        }
        let place = ORDER.iter().position(|module| *module == source.module);
        let place = place.unwrap_or_else(|| panic!("{} stands in no layer", source.module));
        for (number, line) in source.text.lines().enumerate() {
            for module in named_modules(line) {
                let other = ORDER.iter().position(|name| *name == module).unwrap();
                if other > place {
                    wrong.push(format!("{}:{} names {module}", source.path.display(), number + 1));
                }
            }
            assert!(
                !code(line).contains("use crate::{"),
                "{}:{}: one `use crate::x` a module, so that arrows can be seen",
                source.path.display(),
                number + 1
            );
        }
    }
    assert!(wrong.is_empty(), "arrows that point up:\n{}", wrong.join("\n"));
}

#[test]
fn machines_know_no_runtime() {
    let mut wrong = Vec::new();
    let sources = sources();
    let machines = sources.iter().filter(|source| {
        MACHINES.contains(&source.module.as_str()) && !is_test(&source.path, &sources)
    });
    for source in machines {
        for (number, line) in source.text.lines().enumerate() {
            let line = code(line);
            let shell = SHELL_CRATES.iter().any(|name| {
                line.contains(&format!("{name}::")) || line.contains(&format!("use {name};"))
            });
            let clock = ["Instant::now", "SystemTime", "thread::"].iter().any(|w| line.contains(w));
            if shell || clock || line.contains("async ") || line.contains(".await") {
                wrong.push(format!("{}:{}: {line}", source.path.display(), number + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "machines that are not pure:\n{}", wrong.join("\n"));
}

#[test]
fn only_the_runtime_names_ractor() {
    for source in sources().iter().filter(|source| source.module != "runtime") {
        let named = source.text.lines().any(|line| code(line).contains("ractor::"));
        assert!(!named, "{} names ractor", source.path.display());
    }
}

/// Whether the whole file is a test: a module that is declared behind `cfg(test)`, or is in one.
fn is_test(path: &Path, sources: &[Source]) -> bool {
    sources.iter().any(|source| {
        let folder = match source.path.file_name().unwrap().to_str().unwrap() {
            "mod.rs" | "lib.rs" | "main.rs" => source.path.parent().unwrap().to_owned(),
            _ => source.path.with_extension(""),
        };
        let lines: Vec<&str> = source.text.lines().collect();
        lines.windows(2).any(|pair| {
            let named = pair[1].split_once("mod ").map(|(_, name)| name);
            let module = named.and_then(|name| name.strip_suffix(';'));
            pair[0] == "#[cfg(test)]"
                && module.is_some_and(|module| {
                    let module = folder.join(module);
                    path.starts_with(&module) || path == module.with_extension("rs")
                })
        })
    })
}

#[test]
fn files_stay_small() {
    let mut long = Vec::new();
    let sources = sources();
    for source in &sources {
        let lines = source.text.lines().take_while(|line| *line != "#[cfg(test)]").count();
        if lines > LINES_MAX {
            long.push(format!("{}: {lines} lines", source.path.display()));
        }
    }
    assert!(long.is_empty(), "files with more than {LINES_MAX} lines:\n{}", long.join("\n"));
}

#[test]
fn the_top_level_is_fixed() {
    let known = [
        "Cargo.toml",
        "Cargo.lock",
        "src",
        "tests",
        "benches",
        "examples",
        "docs",
        "dashboards",
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "LICENSE-MIT",
        "LICENSE-APACHE",
        "clippy.toml",
        "rustfmt.toml",
        "deny.toml",
        "target",
        "callsheet-data",
    ];
    for entry in fs::read_dir(env!("CARGO_MANIFEST_DIR")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(name.starts_with('.') || known.contains(&name.as_str()), "{name} at the top level");
    }
}
