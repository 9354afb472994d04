//! The documents of the repository agree with the code: links are valid, configurations parse,
//! every event type is described.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use callsheet::config::{Config, KeyDescription, described_keys};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns every Markdown file of the top level, of `docs/` and of `dashboards/`.
fn documents() -> Vec<PathBuf> {
    let folders = [root().to_owned(), root().join("docs"), root().join("dashboards")];
    let files = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap());
    let files = files.map(|entry| entry.unwrap().path());
    let found: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect();
    assert!(found.len() > 8, "{found:?}");
    found
}

/// Returns the anchor of a heading, as GitHub creates it.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn links_lead_to_files_and_headings() {
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        let links = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
        for (link, _) in links.filter(|(link, _)| !link.starts_with("http")) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => path.clone(),
                file => path.parent().unwrap().join(file),
            };
            assert!(target.exists(), "{} links to {link}", path.display());
            let found = heading.is_empty()
                || fs::read_to_string(&target)
                    .unwrap()
                    .lines()
                    .any(|line| line.starts_with('#') && anchor(line) == heading);
            assert!(found, "{} links to the heading {link}", path.display());
        }
    }
}

/// Returns the names of the tools of a host with this configuration, and of two tools of servers that examples
/// name without their tables.
fn known_tools(config: &Config) -> Vec<&str> {
    let mut known = vec!["calculator", "clock", "get_variable", "http_get", "set_variable"];
    known.extend(["files__read", "git__log"]);
    let tools = config.tools.iter();
    let own = tools.filter(|(_, tool)| tool.root.is_some() || tool.definition.is_some());
    known.extend(own.map(|(name, _)| name.as_str()));
    known
}

#[test]
fn configurations_in_the_documents_are_valid() {
    for name in [
        "README.md",
        "docs/configuration.md",
        "docs/hooks.md",
        "docs/providers.md",
        "docs/sub-agents.md",
        "docs/tools.md",
    ] {
        let text = fs::read_to_string(root().join(name)).unwrap();
        let blocks: Vec<&str> = text
            .split("```toml\n")
            .skip(1)
            .filter_map(|block| block.split_once("```").map(|(block, _)| block))
            .collect();
        assert!(!blocks.is_empty(), "{name} shows no configuration");
        for block in blocks {
            let is_set = |key: &str| key.ends_with("_KEY") || key.ends_with("_TOKEN");
            let parsed =
                Config::parse(block, name, &|key| is_set(key).then(|| "secret".to_owned()));
            let config = parsed.unwrap_or_else(|error| panic!("{error}\n{block}"));
            let checked = config.check_tools(&known_tools(&config));
            assert!(checked.is_ok(), "{:?}\n{block}", checked.err());
        }
    }
}

/// Returns the rows of a section of the configuration, as a document has them.
fn key_rows(keys: &[KeyDescription]) -> String {
    let mut rows = "| key | value | default | meaning |\n| --- | --- | --- | --- |\n".to_owned();
    for KeyDescription { key, form, default, text } in keys {
        assert!(text.ends_with('.') && !text.contains(['[', '|']), "{key}: {text}");
        let default = if default.is_empty() { String::new() } else { format!("`{default}`") };
        rows += &format!("| `{key}` | {form} | {default} | {text} |\n");
    }
    rows
}

/// The tables of keys in the documents have the rows of the tables in the code. With `CALLSHEET_UPDATE_DOCUMENTS` set,
/// writes them.
#[test]
fn keys_are_documented_as_the_code_defines_them() {
    const END: &str = "<!-- end of the keys -->";
    let mut sections = BTreeMap::from_iter(described_keys());
    for path in documents() {
        let (mut current, mut text) = (fs::read_to_string(&path).unwrap(), String::new());
        let written = current.clone();
        while let Some((before, rest)) = current.split_once("<!-- keys of ") {
            let (name, rest) = rest.split_once(" -->\n").unwrap();
            let (_, after) = rest.split_once(END).unwrap();
            let keys = sections.remove(name).unwrap_or_else(|| panic!("{name} has no keys left"));
            text += &format!("{before}<!-- keys of {name} -->\n{}{END}", key_rows(&keys));
            current = after.to_owned();
        }
        text += &current;
        if std::env::var_os("CALLSHEET_UPDATE_DOCUMENTS").is_some() && text != written {
            fs::write(&path, &text).unwrap();
        } else {
            let update = "CALLSHEET_UPDATE_DOCUMENTS=1 cargo test --test house -- documents";
            let differs = text.lines().zip(written.lines()).find(|(new, old)| new != old);
            assert!(text == written, "{}: {differs:?}; {update}", path.display());
        }
    }
    assert!(sections.is_empty(), "sections without a document: {:?}", sections.keys());
}

#[test]
fn the_readme_is_short() {
    let text = fs::read_to_string(root().join("README.md")).unwrap();
    assert!(text.lines().count() <= 200, "{} lines", text.lines().count());
}

/// Returns the identifiers of a signature in HTML that may be names of types.
fn type_names(html: &str) -> Vec<String> {
    let text: String = html
        .split('<')
        .enumerate()
        .map(|(at, part)| if at == 0 { part } else { part.split_once('>').unwrap_or(("", "")).1 })
        .collect();
    let text: String =
        text.lines().map(|line| line.split("//").next().unwrap_or("").to_owned() + "\n").collect();
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| word.starts_with(|c: char| c.is_ascii_uppercase()))
        .map(str::to_owned)
        .collect()
}

/// Returns all files below a folder that end with `extension`.
fn files_below(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_below(&path, extension));
        } else if path.extension().is_some_and(|own| own == extension) {
            found.push(path);
        }
    }
    found
}

/// Returns the folder of the output of `cargo doc`.
fn doc_folder() -> PathBuf {
    // The folder of temporary files is in the target folder, wherever that is.
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("doc")
}

/// Returns the pages of the package `callsheet`, by their paths.
fn pages() -> Vec<(String, String)> {
    files_below(&doc_folder().join("callsheet"), "html")
        .into_iter()
        .map(|path| (path.display().to_string(), fs::read_to_string(path).unwrap()))
        .filter(|(_, html)| !html.contains("http-equiv=\"refresh\""))
        .collect()
}

/// Each item has an example on its page, or its first text links to an item that has one.
/// Reads the output of `cargo doc`, so it is run after that.
#[test]
#[ignore = "needs the output of cargo doc"]
fn each_public_item_has_an_example_or_names_an_item_that_has_one() {
    const KINDS: [&str; 5] = ["struct.", "enum.", "trait.", "fn.", "type."];
    let mut pages = pages();
    for (path, _) in &mut pages {
        *path = path.rsplit('/').next().unwrap().to_owned();
    }
    pages.retain(|(name, _)| KINDS.iter().any(|kind| name.starts_with(kind)));
    assert!(pages.len() > 50, "{} pages", pages.len());
    let with_example: Vec<&str> = pages
        .iter()
        .filter(|(_, html)| html.contains("rust-example-rendered"))
        .map(|(name, _)| name.as_str())
        .collect();
    let without = pages.iter().filter(|(name, _)| !with_example.contains(&name.as_str()));
    let missing: Vec<&str> = without
        .filter(|(_, html)| {
            let text = html.split("class=\"docblock\">").nth(1).unwrap_or_default();
            let text = text.split("</details>").next().unwrap_or_default();
            let links = text.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next());
            let mut names = links.filter_map(|link| link.split('#').next()?.rsplit('/').next());
            !names.any(|name| with_example.contains(&name))
        })
        .map(|(name, _)| name.as_str())
        .collect();
    assert!(missing.is_empty(), "no example, and no link to one: {missing:?}");
}

/// Reads the output of `cargo doc`, so it is run after that.
#[test]
#[ignore = "needs the output of cargo doc"]
fn types_in_documented_signatures_are_documented() {
    let pages = pages();
    // A type of another package has its page there.
    let packages = fs::read_dir(doc_folder()).unwrap().map(|entry| entry.unwrap().path());
    let packages = packages.filter(|path| {
        path.is_dir() && path.file_name().unwrap().to_str().unwrap().starts_with("callsheet")
    });
    let documented: Vec<PathBuf> = packages.flat_map(|path| files_below(&path, "html")).collect();
    let documented: Vec<&str> = documented
        .iter()
        .filter_map(|path| path.to_str().unwrap().rsplit(['/', '.']).nth(1))
        .collect();
    // Types of other crates have these names too.
    let mut own = vec![];
    for path in files_below(&root().join("src"), "rs") {
        for line in fs::read_to_string(path).unwrap().lines() {
            let kinds = ["pub struct ", "pub enum ", "pub trait ", "pub type "];
            let rest = kinds.iter().find_map(|kind| line.trim_start().strip_prefix(kind));
            own.extend(rest.and_then(|rest| type_names(rest).into_iter().next()));
        }
    }
    own.retain(|name| !documented.contains(&name.as_str()) && name != "Response" && name != "Then");
    let starts = [
        ("class=\"code-header\">", "</h"),
        ("class=\"rust item-decl\">", "</pre>"),
        ("id=\"structfield.", "</span>"),
    ];
    let mut wrong = std::collections::BTreeSet::new();
    for (path, html) in &pages {
        for (start, end) in starts {
            for part in html.split(start).skip(1) {
                let signature = part.split(end).next().unwrap();
                for name in type_names(signature) {
                    let is_variant = html.contains(&format!("id=\"variant.{name}\""));
                    if !is_variant && own.contains(&name) {
                        wrong.insert(format!("{path} shows {name}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "types that are not documented: {wrong:#?}");
}
