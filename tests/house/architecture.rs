//! The structure of the packages: dependencies go down only, pure packages are pure, one name stands for
//! one idea, files do not import each other in large circles.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The modules of packages with several floors, lowest first. A module uses only modules before it. That packages use
/// only those below them is what `Cargo.toml` says.
const ORDER: [&str; 16] = [
    "values/types",
    "values/message",
    "values/config",
    "values/event",
    "values/record",
    "values/transcript",
    "machines/contract",
    "machines/context",
    "machines/turn",
    "machines/session",
    "host/thread_pool",
    "host/journal",
    "host/telemetry",
    "host/runtime",
    "host/error_response",
    "host/builder",
];

/// Packages of pure code, without I/O, clocks or async.
const PURE_PACKAGES: [&str; 3] = ["values", "wire", "machines"];

/// Crates that only one folder names, with the folder.
const WALLED_CRATES: [(&str, &str); 2] = [("ractor", "host/runtime"), ("rmcp", "tools/mcp")];

/// Crates that pure packages must not use.
const SHELL_CRATES: [&str; 9] = [
    "axum",
    "futures",
    "metrics",
    "parking_lot",
    "ractor",
    "reqwest",
    "rustix",
    "tokio",
    "tracing",
];

/// The attributes of modules that are only compiled for tests, also those of other packages.
const TEST_ONLY: [&str; 2] = ["#[cfg(test)]", "#[cfg(any(test, feature = \"fixtures\"))]"];

/// The parallel modules of the package `wire`: each of them may define the same role under the same name.
const DIALECTS: [&str; 5] = ["anthropic", "gemini", "ollama", "openai_chat", "openai_responses"];

/// The largest number of files that may import each other in a circle.
const CIRCLE_MAX: usize = 3;

/// A file of `src/`.
struct Source {
    /// Its path below `src/`.
    path: PathBuf,
    /// Its package and its module's path, such as `["machines", "turn", "call"]`.
    module: Vec<String>,
    /// Its text without test modules.
    code: Vec<String>,
    /// True if the whole file is a test.
    is_test: bool,
}

impl Source {
    fn package(&self) -> &str {
        &self.module[0]
    }
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push((
                    path.strip_prefix(&root).unwrap().to_owned(),
                    fs::read_to_string(&path).unwrap(),
                ));
            }
        }
    }
    assert!(found.len() > 30, "the sources were found");
    let tests = test_modules(&found);
    let mut sources: Vec<Source> = found
        .iter()
        .map(|(path, text)| Source {
            module: module_of(path),
            code: code_of(text),
            is_test: tests.iter().any(|test| path.with_extension("").starts_with(test)),
            path: path.clone(),
        })
        .collect();
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    sources
}

/// Returns the module of a file: `turn/mod.rs` and `turn.rs` are `["turn"]`, `wire/lib.rs` is `["wire"]`.
fn module_of(path: &Path) -> Vec<String> {
    let mut parts: Vec<String> = path
        .with_extension("")
        .components()
        .map(|part| part.as_os_str().to_str().unwrap().to_owned())
        .collect();
    if parts.len() > 1 && ["lib", "mod"].contains(&parts.last().unwrap().as_str()) {
        parts.pop();
    }
    parts
}

/// Returns the paths of modules that are only compiled for tests, without extension.
fn test_modules(found: &[(PathBuf, String)]) -> Vec<PathBuf> {
    let mut tests = Vec::new();
    for (path, text) in found {
        let folder = match path.file_name().unwrap().to_str().unwrap() {
            "mod.rs" | "lib.rs" | "main.rs" => path.parent().unwrap().to_owned(),
            _ => path.with_extension(""),
        };
        let lines: Vec<&str> = text.lines().collect();
        for pair in lines.windows(2) {
            let declared = pair[1].split_once("mod ").and_then(|(_, rest)| rest.strip_suffix(';'));
            if let Some(module) = declared.filter(|_| TEST_ONLY.contains(&pair[0])) {
                tests.push(folder.join(module));
            }
        }
    }
    tests
}

/// Returns the lines of a file without comments and without the test modules at its end.
fn code_of(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let is_test_module = |at: usize| {
        lines[at] == "#[cfg(test)]"
            && lines
                .get(at + 1..)
                .unwrap_or_default()
                .iter()
                .take(2)
                .any(|line| line.starts_with("mod ") && line.ends_with('{'))
    };
    let end = (0..lines.len()).find(|at| is_test_module(*at)).unwrap_or(lines.len());
    lines[..end].iter().map(|line| line.split("//").next().unwrap().to_owned()).collect()
}

/// Returns the first names of the paths in a line that begin at the root of its package.
fn named_modules(line: &str) -> BTreeSet<&str> {
    let named = line.match_indices("crate::").map(|(at, marker)| {
        let rest = &line[at + marker.len()..];
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
        &rest[..end.unwrap_or(rest.len())]
    });
    named.collect()
}

#[test]
fn dependencies_go_down_only() {
    let mut wrong = Vec::new();
    let position = |package: &str, module: &str| {
        ORDER.iter().position(|name| *name == format!("{package}/{module}"))
    };
    for source in sources().iter().filter(|source| source.module.len() > 1) {
        let Some(own) = position(source.package(), &source.module[1]) else {
            let is_ordered =
                ORDER.iter().any(|name| name.starts_with(&format!("{}/", source.package())));
            assert!(!is_ordered, "{} stands on no floor", source.path.display());
            continue;
        };
        for (number, line) in source.code.iter().enumerate() {
            for module in named_modules(line) {
                if position(source.package(), module).is_some_and(|it| it > own) {
                    wrong.push(format!("{}:{} names {module}", source.path.display(), number + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "dependencies that point up:\n{}", wrong.join("\n"));
}

#[test]
fn pure_packages_depend_on_no_runtime() {
    for package in PURE_PACKAGES {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(package).join("Cargo.toml");
        let manifest: toml::Table = fs::read_to_string(path).unwrap().parse().unwrap();
        for name in manifest["dependencies"].as_table().unwrap().keys() {
            let name = name.replace('-', "_");
            assert!(!SHELL_CRATES.contains(&name.as_str()), "{package} depends on {name}");
            if let Some(below) = name.strip_prefix("callsheet_") {
                assert!(PURE_PACKAGES.contains(&below), "{package} depends on {below}");
            }
        }
    }
}

#[test]
fn pure_packages_ask_no_clock_and_do_not_wait() {
    let mut wrong = Vec::new();
    for source in sources().iter().filter(|source| !source.is_test) {
        if !PURE_PACKAGES.contains(&source.package()) {
            continue;
        }
        for (number, line) in source.code.iter().enumerate() {
            let clock = ["Instant::now", "SystemTime", "thread::"].iter().any(|w| line.contains(w));
            if clock || line.contains("async ") || line.contains(".await") {
                wrong.push(format!("{}:{}: {line}", source.path.display(), number + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "machines that are not pure:\n{}", wrong.join("\n"));
}

#[test]
fn one_folder_names_the_library_of_the_actors_and_of_mcp() {
    let mut wrong = Vec::new();
    for source in sources() {
        for (number, line) in source.code.iter().enumerate() {
            for (name, folder) in WALLED_CRATES {
                let names_it = line.match_indices(&format!("{name}::")).any(|(at, _)| {
                    !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_')
                });
                if names_it && !source.path.starts_with(folder) {
                    wrong.push(format!("{}:{}: {line}", source.path.display(), number + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "crates behind a wall:\n{}", wrong.join("\n"));
}

/// Returns the name of the type that a line defines at the top level of its file.
fn defined_type(line: &str) -> Option<&str> {
    let mut rest = line;
    if let Some(public) = rest.strip_prefix("pub") {
        rest = match public.strip_prefix('(') {
            Some(scope) => scope.split_once(") ")?.1,
            None => public.strip_prefix(' ')?,
        };
    }
    let (keyword, rest) = rest.split_once(' ')?;
    let defines = ["struct", "enum", "trait", "type", "union"].contains(&keyword);
    let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    defines.then_some(name)
}

#[test]
fn one_type_name_stands_for_one_idea() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for source in sources().iter().filter(|source| !source.is_test) {
        let parallel = source.package() == "wire"
            && source.module.get(1).is_some_and(|name| DIALECTS.contains(&name.as_str()));
        for name in source.code.iter().filter_map(|line| defined_type(line)) {
            // A role of a dialect is one name per dialect; within one dialect it is defined once.
            let scope = match parallel {
                true => format!("{}/{}/", source.module[0], source.module[1]),
                false => String::new(),
            };
            let place = source.path.display().to_string();
            places.entry(format!("{scope}{name}")).or_default().push(place);
        }
    }
    let twice: Vec<String> = places
        .iter()
        .filter(|(_, places)| places.len() > 1)
        .map(|(name, places)| format!("{name}: {}", places.join(", ")))
        .collect();
    assert!(twice.is_empty(), "type names that are defined more than once:\n{}", twice.join("\n"));
}

/// Returns the paths that a file imports, including item names. Each begins with the package.
fn imports(source: &Source) -> Vec<Vec<String>> {
    let text = source.code.join("\n");
    let mut imports = Vec::new();
    for marker in ["crate::", "super::", "self::", "callsheet_"] {
        for (at, _) in text.match_indices(marker) {
            let before = text[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
                continue;
            }
            expand(source, &text[at..], &mut imports);
        }
    }
    imports.extend(child_imports(source));
    imports
}

/// Returns the paths of `use child::Item` lines, which name a module below the file's own.
fn child_imports(source: &Source) -> Vec<Vec<String>> {
    let text = source.code.join("\n");
    let declared = |name: &str| {
        source.code.iter().any(|line| line.trim_end().ends_with(&format!("mod {name};")))
    };
    let mut paths = Vec::new();
    for (at, _) in text.match_indices("use ") {
        let rest = &text[at + 4..];
        let end = rest.find("::").unwrap_or(0);
        if declared(&rest[..end]) {
            expand(source, &format!("self::{rest}"), &mut paths);
        }
    }
    paths
}

/// Adds the paths at the beginning of `text`: `a::b`, `a::{b, c::d}`.
fn expand(source: &Source, text: &str, paths: &mut Vec<Vec<String>>) {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut path: Vec<String> = Vec::new();
    let mut stack: Vec<usize> = Vec::new();
    let mut rest = text;
    let mut first = true;
    loop {
        let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        let word = &rest[..end];
        rest = &rest[end..];
        match (word, first) {
            ("crate", true) => path.push(source.package().to_owned()),
            (package, true) if package.starts_with("callsheet_") => {
                path.push(package.replacen("callsheet_", "", 1));
            }
            ("self", true) => path.clone_from(&source.module),
            ("super", true) => {
                path.clone_from(&source.module);
                path.pop();
            }
            ("super", false) => {
                path.pop();
            }
            ("", _) => {}
            _ => path.push(word.to_owned()),
        }
        first = false;
        if let Some(after) = rest.strip_prefix("::{") {
            stack.push(path.len());
            rest = after.trim_start();
        } else if let Some(after) = rest.strip_prefix("::") {
            rest = after;
        } else {
            paths.push(path.clone());
            loop {
                let Some(&depth) = stack.last() else { return };
                path.truncate(depth);
                rest = rest.trim_start();
                if let Some(after) = rest.strip_prefix(',') {
                    rest = after.trim_start();
                    if !rest.starts_with('}') {
                        break;
                    }
                } else if let Some(after) = rest.strip_prefix('}') {
                    stack.pop();
                    rest = after;
                } else if rest.starts_with("as ") {
                    rest = rest[3..].trim_start_matches(is_name);
                } else {
                    return;
                }
            }
        }
    }
}

/// Returns which file imports which. An item that a `mod.rs` re-exports belongs to the file that
/// defines it. An import from a module that contains the file does not count.
fn graph(sources: &[Source]) -> Vec<BTreeSet<usize>> {
    let modules: BTreeMap<&[String], usize> =
        sources.iter().enumerate().map(|(at, source)| (source.module.as_slice(), at)).collect();
    let reexports: Vec<BTreeMap<String, Vec<String>>> = sources
        .iter()
        .map(|source| {
            let named = child_imports(source).into_iter();
            named.filter_map(|path| Some((path.last()?.clone(), path))).collect()
        })
        .collect();
    let mut graph = vec![BTreeSet::new(); sources.len()];
    for (at, source) in sources.iter().enumerate() {
        for mut path in imports(source) {
            let file = loop {
                let longest =
                    (1..=path.len()).rev().find(|end| modules.contains_key(&path[..*end]));
                let Some(end) = longest else { break None };
                let file = modules[&path[..end]];
                match path.get(end).and_then(|item| reexports[file].get(item)) {
                    Some(defined) if *defined != path => path.clone_from(defined),
                    _ => break Some(file),
                }
            };
            let is_whole = |file: usize| source.module.starts_with(&sources[file].module);
            graph[at].extend(file.filter(|file| !is_whole(*file)));
        }
    }
    graph
}

/// Returns groups of files that import each other in a circle.
fn circles(graph: &[BTreeSet<usize>]) -> Vec<Vec<usize>> {
    let reached = |from: usize| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(at) = open.pop() {
            open.extend(graph[at].iter().filter(|next| seen.insert(**next)));
        }
        seen
    };
    let reached: Vec<BTreeSet<usize>> = (0..graph.len()).map(reached).collect();
    let mut circles = BTreeSet::new();
    for (at, from) in reached.iter().enumerate() {
        let circle: Vec<usize> =
            from.iter().copied().filter(|other| reached[*other].contains(&at)).collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    circles.into_iter().collect()
}

#[test]
fn no_large_circle_of_files() {
    let sources: Vec<Source> =
        sources().into_iter().filter(|source| !source.is_test && source.module.len() > 1).collect();
    let large: Vec<String> = circles(&graph(&sources))
        .into_iter()
        .filter(|circle| circle.len() > CIRCLE_MAX)
        .map(|circle| {
            let names = circle.iter().map(|at| sources[*at].path.display().to_string());
            names.collect::<Vec<_>>().join(" ")
        })
        .collect();
    assert!(large.is_empty(), "files that import each other:\n{}", large.join("\n"));
}

#[test]
fn the_circle_check_reads_imports() {
    let source = Source {
        path: "machines/turn/call.rs".into(),
        module: ["machines", "turn", "call"].map(str::to_owned).to_vec(),
        code: vec![
            "use super::effect::{Effect, plan::{A, B as C}, Place};".to_owned(),
            "use callsheet_values::types::Seq;".to_owned(),
            "use crate::context::History;".to_owned(),
            "let x = super::super::record::Record::new();".to_owned(),
        ],
        is_test: false,
    };
    let read: BTreeSet<String> = imports(&source).iter().map(|path| path.join("/")).collect();
    for path in [
        "machines/turn/effect/Effect",
        "machines/turn/effect/plan/A",
        "machines/turn/effect/plan/B",
        "machines/turn/effect/Place",
        "machines/record/Record/new",
        "machines/context/History",
        "values/types/Seq",
    ] {
        assert!(read.contains(path), "{path} in {read:?}");
    }
    let graph: Vec<BTreeSet<usize>> =
        [vec![1], vec![2], vec![0], vec![0]].map(BTreeSet::from_iter).to_vec();
    assert_eq!(circles(&graph), [vec![0, 1, 2]]);
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
        "deploy",
        "findings",
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
