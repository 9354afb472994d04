//! The documents of the repository agree with the code: links are valid, configurations parse,
//! every event type is described.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::{Path, PathBuf};

use callsheet::config::Config;

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

#[test]
fn configurations_in_the_documents_are_valid() {
    for name in ["README.md", "docs/configuration.md"] {
        let text = fs::read_to_string(root().join(name)).unwrap();
        let blocks: Vec<&str> = text
            .split("```toml\n")
            .skip(1)
            .filter_map(|block| block.split_once("```").map(|(block, _)| block))
            .collect();
        assert!(!blocks.is_empty(), "{name} shows no configuration");
        for block in blocks {
            let parsed = Config::parse(block, name, &|key| {
                key.ends_with("_KEY").then(|| "secret".to_owned())
            });
            assert!(parsed.is_ok(), "{name}: {:?}\n{block}", parsed.err());
        }
    }
}

#[test]
fn the_readme_is_short() {
    let text = fs::read_to_string(root().join("README.md")).unwrap();
    assert!(text.lines().count() <= 200, "{} lines", text.lines().count());
}
