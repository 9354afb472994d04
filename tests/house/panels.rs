//! Reads the dashboards.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// One dashboard.
pub(crate) struct Dashboard {
    /// The file.
    pub(crate) file: PathBuf,
    pub(crate) json: Value,
}

/// An expression and its position.
pub(crate) struct Expression {
    pub(crate) place: String,
    pub(crate) text: String,
}

pub(crate) fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/dashboards"))
}

pub(crate) fn readme() -> String {
    fs::read_to_string(folder().join("README.md")).unwrap()
}

pub(crate) fn dashboards() -> Vec<Dashboard> {
    let files = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        files.filter(|file| file.extension().is_some_and(|ending| ending == "json")).collect();
    files.sort();
    let read = |file: PathBuf| {
        let json = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        Dashboard { file, json }
    };
    files.into_iter().map(read).collect()
}

impl Dashboard {
    pub(crate) fn name(&self) -> &str {
        self.file.file_stem().unwrap().to_str().unwrap()
    }

    /// Returns the panels and rows in order. A collapsed row contains its panels.
    pub(crate) fn panels(&self) -> impl Iterator<Item = &Value> {
        let panels = self.json["panels"].as_array().unwrap().iter();
        panels.flat_map(|panel| {
            [panel].into_iter().chain(panel["panels"].as_array().into_iter().flatten())
        })
    }

    /// Returns every expression of its panels.
    pub(crate) fn expressions(&self) -> Vec<Expression> {
        let mut found = Vec::new();
        for panel in self.panels() {
            for target in panel["targets"].as_array().into_iter().flatten() {
                let text = target["expr"].as_str().unwrap().to_owned();
                let place = format!("{}, {}: {}", self.name(), panel["title"], target["refId"]);
                found.push(Expression { place, text });
            }
        }
        found
    }

    /// Returns the queries of its variables.
    pub(crate) fn variable_queries(&self) -> Vec<Expression> {
        let list = self.json["templating"]["list"].as_array().unwrap().iter();
        let queries = list.filter_map(|variable| {
            let text = variable["query"]["query"].as_str()?.to_owned();
            Some(Expression { place: format!("{}, {}", self.name(), variable["name"]), text })
        });
        queries.collect()
    }
}

/// Returns an expression as Grafana sends it, with "All" selected in its variables.
pub(crate) fn substituted(expression: &str, rate_interval: &str, range: &str) -> String {
    let variables =
        [("$__rate_interval", rate_interval), ("$__range", range), ("$job", ".*"), ("$tool", ".*")];
    let text = variables
        .iter()
        .fold(expression.to_owned(), |text, (variable, value)| text.replace(variable, value));
    assert!(!text.contains('$'), "a variable without a value: {text}");
    text
}

/// Returns the rows of the table under a heading of a Markdown text, without the header row, as
/// trimmed cells.
pub(crate) fn table<'m>(markdown: &'m str, heading: &str) -> Vec<Vec<&'m str>> {
    let mut lines = markdown.lines().skip_while(|line| *line != heading).skip(1);
    let table = lines.by_ref().skip_while(|line| !line.starts_with('|'));
    let rows = table.take_while(|line| line.starts_with('|')).skip(2);
    rows.map(|row| row.trim_matches('|').split(" | ").map(str::trim).collect()).collect()
}
