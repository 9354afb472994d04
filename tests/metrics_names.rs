//! The dashboard and the rules speak only of metrics and labels that the host has.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use callsheet::telemetry::names::{ALL, Kind, Metric};
use serde_json::Value;

/// What PromQL itself brings along; a function that is not here yet fails the test until it is.
const FUNCTIONS: &[&str] =
    &["avg", "clamp_min", "histogram_quantile", "increase", "max", "min", "rate", "sum"];

/// Words before a list of labels.
const GROUPINGS: &[&str] = &["by", "without"];

/// Labels that Prometheus adds.
const SCRAPE_LABELS: &[&str] = &["instance", "job", "le"];

#[test]
fn the_dashboard_names_only_what_exists() {
    let dashboard = dashboard();
    let mut expressions = Vec::new();
    collect(&dashboard, "expr", &mut expressions);
    assert!(expressions.len() > 30, "{} expressions", expressions.len());
    for expression in &expressions {
        check(expression);
    }
    let mut definitions = Vec::new();
    collect(&dashboard, "definition", &mut definitions);
    for definition in &definitions {
        check(definition.trim_start_matches("label_values(").trim_end_matches(", job)"));
    }
}

#[test]
fn the_dashboard_shows_every_metric() {
    let mut expressions = Vec::new();
    collect(&dashboard(), "expr", &mut expressions);
    let shown: BTreeSet<String> =
        expressions.iter().flat_map(|expression| parse(expression).metrics).collect();
    for metric in ALL {
        assert!(
            shown.iter().any(|name| is_series_of(name, metric)),
            "{} is not shown",
            metric.name
        );
    }
}

#[test]
fn the_rules_name_only_what_exists() {
    let rules = fs::read_to_string(dashboards().join("rules.yml")).unwrap();
    assert!(rules.contains("- record: streaming_tool_detection_rate"));
    // Expressions are the only blocks of the file: what is indented deeper than their key.
    let mut expressions = Vec::new();
    let mut lines = rules.lines().peekable();
    while let Some(line) = lines.next() {
        if line.trim() != "expr: |" {
            continue;
        }
        let indent = line.len() - line.trim_start().len();
        let mut expression = String::new();
        let deeper = |next: &&str| next.len() - next.trim_start().len() > indent;
        while let Some(next) = lines.next_if(deeper) {
            expression.push_str(next.trim());
            expression.push(' ');
        }
        expressions.push(expression);
    }
    assert_eq!(expressions.len(), rules.matches("- record:").count());
    for expression in &expressions {
        check(expression);
    }
}

#[test]
fn the_first_row_shows_what_matters_most() {
    let dashboard = dashboard();
    let rows: Vec<_> = dashboard["panels"]
        .as_array()
        .unwrap()
        .iter()
        .map(|panel| panel["type"].as_str().unwrap())
        .collect();
    let second = rows.iter().skip(1).position(|kind| *kind == "row").unwrap() + 1;
    let mut expressions = Vec::new();
    for panel in &dashboard["panels"].as_array().unwrap()[..second] {
        collect(panel, "expr", &mut expressions);
    }
    let shown: BTreeSet<String> =
        expressions.iter().flat_map(|expression| parse(expression).metrics).collect();
    for name in [
        "tool_calls_per_turn_bucket",
        "tool_calls_per_turn_sum",
        "streaming_tool_calls_detected_total",
        "tool_execution_time_max_seconds_bucket",
        "callsheet_runs_total",
        "callsheet_seal_to_start_seconds_bucket",
        "gen_ai_client_operation_duration_seconds_bucket",
        "gen_ai_client_token_usage_sum",
    ] {
        assert!(shown.contains(name), "{name} is not in the first row: {shown:?}");
    }
}

#[test]
fn the_readme_explains_every_panel() {
    let readme = fs::read_to_string(dashboards().join("README.md")).unwrap();
    for panel in dashboard()["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        let line = if panel["type"] == "row" {
            format!("### {title}\n")
        } else {
            format!("| {title} | {} |\n", panel["description"].as_str().unwrap())
        };
        assert!(readme.contains(&line), "the README lacks {line}");
    }
}

#[test]
fn an_expression_is_taken_apart() {
    let parsed = parse(
        "histogram_quantile(0.5, sum by (le, status) (rate(a_bucket{job=~\"$job\",x!=\"y by z\"}[5m]))) / b",
    );
    assert_eq!(parsed.metrics, ["a_bucket", "b"]);
    assert_eq!(parsed.labels, ["le", "status", "job", "x"]);
}

/// What an expression names.
#[derive(Default)]
struct Named {
    metrics: Vec<String>,
    labels: Vec<String>,
}

/// Takes a PromQL expression apart, as far as names go.
fn parse(expression: &str) -> Named {
    let mut named = Named::default();
    let mut braces = false;
    let mut grouping = false;
    let mut rest = expression;
    while let Some(first) = rest.chars().next() {
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        let length = match first {
            '"' => 2 + rest[1..].find('"').expect("a string ends"),
            '[' => 1 + rest.find(']').expect("a range ends"),
            c if word(c) => rest.find(|c: char| !word(c) && c != '.').unwrap_or(rest.len()),
            c => c.len_utf8(),
        };
        let token = &rest[..length];
        match first {
            '{' => braces = true,
            '}' => braces = false,
            ')' => grouping = false,
            c if c.is_ascii_alphabetic() || c == '_' => {
                if GROUPINGS.contains(&token) {
                    grouping = true;
                } else if braces || grouping {
                    named.labels.push(token.to_owned());
                } else if !FUNCTIONS.contains(&token) {
                    named.metrics.push(token.to_owned());
                }
            }
            _ => {}
        }
        rest = &rest[length..];
    }
    named
}

fn check(expression: &str) {
    let named = parse(expression);
    assert!(!named.metrics.is_empty(), "no metric in {expression}");
    let mut labels: BTreeSet<&str> = SCRAPE_LABELS.iter().copied().collect();
    for name in &named.metrics {
        let metric = ALL.iter().find(|metric| is_series_of(name, metric));
        let metric = metric.unwrap_or_else(|| panic!("{name} is no metric, in {expression}"));
        labels.extend(metric.labels);
    }
    for label in &named.labels {
        assert!(labels.contains(label.as_str()), "{label} is no label, in {expression}");
    }
}

fn is_series_of(name: &str, metric: &Metric) -> bool {
    match metric.kind {
        Kind::Counter | Kind::Sum | Kind::Gauge => name == metric.name,
        Kind::Histogram(_) => name
            .strip_prefix(metric.name)
            .is_some_and(|suffix| ["_bucket", "_sum", "_count"].contains(&suffix)),
    }
}

fn dashboards() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/dashboards"))
}

fn dashboard() -> Value {
    let text = fs::read_to_string(dashboards().join("callsheet-overview.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// All strings under a key, wherever it stands.
fn collect(value: &Value, key: &str, found: &mut Vec<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect(item, key, found)),
        Value::Object(fields) => {
            for (name, field) in fields {
                if let Some(text) = field.as_str().filter(|_| name == key) {
                    found.push(text.to_owned());
                } else {
                    collect(field, key, found);
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
