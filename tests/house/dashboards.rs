//! The dashboards and rules use only existing metrics and labels and show all metrics. The README
//! describes each panel and metric.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

use std::collections::BTreeSet;
use std::fs;

use crate::panels::{Dashboard, Expression, dashboards, folder, readme, table};
use callsheet::telemetry::metric_table::{ALL, Metric, MetricKind};
use serde_json::Value;

/// The known functions of PromQL. An unknown one fails the test.
const FUNCTIONS: &[&str] = &[
    "absent",
    "histogram_quantile",
    "increase",
    "max",
    "max_over_time",
    "min",
    "min_over_time",
    "predict_linear",
    "rate",
    "sum",
    "vector",
];

/// Operators that are words.
const OPERATORS: &[&str] = &["or"];

/// The metrics that Prometheus makes of each scrape.
const SCRAPE_METRICS: &[&str] = &["up"];

/// Keywords before a list of labels.
const GROUPINGS: &[&str] = &["by", "without"];

/// Labels that Prometheus adds.
const SCRAPE_LABELS: &[&str] = &["instance", "job", "le"];

const RULES: &str = "callsheet.rules.yml";

#[test]
fn the_dashboards_use_only_existing_metrics() {
    for dashboard in dashboards() {
        let expressions = dashboard.expressions();
        assert!(expressions.len() > 30, "{}: {}", dashboard.name(), expressions.len());
        expressions.iter().for_each(|expression| check(expression, &[]));
        for query in dashboard.variable_queries() {
            let inner = query.text.strip_prefix("label_values(").expect("what Grafana offers");
            let (series, label) = inner.trim_end_matches(')').rsplit_once(", ").unwrap();
            // In this form the label is checked too.
            let text = format!("sum by ({label}) ({series})");
            check(&Expression { text, ..query }, &[]);
        }
    }
}

#[test]
fn every_metric_is_shown_or_left_out_on_purpose() {
    let expressions = dashboards().iter().flat_map(Dashboard::expressions).collect::<Vec<_>>();
    let shown: BTreeSet<String> =
        expressions.iter().flat_map(|expression| parse(&expression.text).metrics).collect();
    let readme = readme();
    let left_out = table(&readme, "## Left out of the dashboards");
    for row in &left_out {
        let name = row[0].trim_matches('`');
        assert!(ALL.iter().any(|metric| metric.name == name), "{name} is not a metric");
        assert!(row[1].len() > 20, "{name} is left out, because?");
    }
    for metric in ALL {
        let is_shown = shown.iter().any(|name| is_series_of(name, metric));
        let is_left_out = left_out.iter().any(|row| row[0].trim_matches('`') == metric.name);
        assert!(is_shown || is_left_out, "{} is not shown", metric.name);
        assert!(!(is_shown && is_left_out), "{} is shown after all", metric.name);
    }
}

#[test]
fn the_rules_use_only_existing_metrics() {
    let rules = rules();
    let mut recorded: Vec<&str> =
        rules.iter().filter(|rule| !rule.is_alert).map(|rule| rule.name.as_str()).collect();
    recorded.extend(SCRAPE_METRICS);
    assert!(recorded.contains(&"streaming_tool_detection_rate"));
    for rule in &rules {
        check(&Expression { place: rule.name.clone(), text: rule.expression.clone() }, &recorded);
    }
}

#[test]
fn every_alert_has_a_description_and_tests_that_it_fires_clears_and_is_silent() {
    let tests = fs::read_to_string(folder().join("../tests/alerts.yml")).unwrap();
    let alerts: Vec<Rule> = rules().into_iter().filter(|rule| rule.is_alert).collect();
    assert!(alerts.len() >= 10, "{} alerts", alerts.len());
    for alert in &alerts {
        let Rule { name, text, .. } = alert;
        for part in ["for: ", "labels: {severity: ", "summary: ", "description: >-"] {
            assert!(text.contains(part), "{name} has no {part}");
        }
        let query = format!("count(ALERTS{{alertname=\"{name}\", alertstate=\"firing\"}})");
        assert_eq!(tests.matches(&query).count(), 3, "{name}");
        for word in ["fires", "is silent"] {
            assert!(
                tests.contains(&format!("- name: \"{name} {word}: ")),
                "{name} {word}: no test"
            );
        }
    }
    // An alert that fires has a sample. An alert that has cleared or is silent has none.
    let one = "exp_samples: [{labels: \"{}\", value: 1}]";
    assert_eq!(tests.matches(one).count(), alerts.len());
    assert_eq!(tests.matches("exp_samples: []").count(), 2 * alerts.len());
    assert_eq!(tests.matches(" fires: ").count(), alerts.len());
}

#[test]
fn the_dashboards_have_a_consistent_structure() {
    let all = dashboards();
    let names: Vec<&str> = all.iter().map(Dashboard::name).collect();
    assert_eq!(names, ["callsheet-host", "callsheet-overview", "callsheet-tools"]);
    for dashboard in &all {
        let Value::Object(json) = &dashboard.json else { panic!("no dashboard") };
        assert_eq!(json["uid"], dashboard.name());
        let links: BTreeSet<_> =
            json["links"].as_array().unwrap().iter().map(|link| link["url"].as_str()).collect();
        let others = names.iter().filter(|name| **name != dashboard.name());
        let others: Vec<String> = others.map(|name| format!("/d/{name}")).collect();
        assert_eq!(links, others.iter().map(|url| Some(url.as_str())).collect());
        let (mut ids, mut cells) = (BTreeSet::new(), BTreeSet::new());
        for panel in dashboard.panels() {
            let place = format!("{}, {}", dashboard.name(), panel["title"]);
            assert!(ids.insert(panel["id"].as_u64().unwrap()), "{place}: its id");
            let at = |name: &str| panel["gridPos"][name].as_u64().unwrap();
            assert!(at("x") + at("w") <= 24, "{place}: it is too wide");
            for x in at("x")..at("x") + at("w") {
                for y in at("y")..at("y") + at("h") {
                    assert!(cells.insert((x, y)), "{place}: it lies on another");
                }
            }
            if panel["type"] == "row" {
                continue;
            }
            assert!(
                panel["description"].as_str().is_some_and(|text| text.ends_with('.')),
                "{place}"
            );
            assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{place}: its unit");
            let targets = panel["targets"].as_array().unwrap();
            // A series for each value of a label: those that are always zero are not in the legend.
            let has_label =
                |target: &Value| target["legendFormat"].as_str().unwrap().contains("{{");
            if panel["type"] == "timeseries" && targets.iter().any(has_label) {
                let overrides = panel["fieldConfig"]["overrides"].as_array().unwrap();
                let reducers = overrides.iter().map(|o| &o["matcher"]["options"]["reducer"]);
                assert_eq!(reducers.collect::<Vec<_>>(), ["allIsZero", "allIsNull"], "{place}");
            }
            let sources = targets.iter().chain([panel]).map(|item| &item["datasource"]["uid"]);
            sources.for_each(|source| assert_eq!(source, "${datasource}", "{place}"));
        }
    }
}

#[test]
fn the_readme_describes_every_panel() {
    let readme = readme();
    let mut expected = String::new();
    for dashboard in dashboards() {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let (title, about) = (text(&dashboard.json["title"]), text(&dashboard.json["description"]));
        expected += &format!("### {title} (`{}.json`)\n\n{about}\n", dashboard.name());
        for panel in dashboard.panels() {
            let title = text(&panel["title"]);
            if panel["type"] == "row" {
                expected += &format!("\n#### {title}\n\n| panel | shows |\n| --- | --- |\n");
            } else {
                expected += &format!("| {title} | {} |\n", text(&panel["description"]));
            }
        }
        assert!(readme.contains(&expected), "the README lacks:\n{expected}");
        expected.clear();
    }
}

#[test]
fn the_readmes_table_is_what_the_code_registers() {
    let expected: Vec<String> = ALL.iter().map(row).collect();
    let readme = readme();
    let rows = table(&readme, "## The metrics");
    let rows: Vec<String> = rows.iter().map(|cells| cells.join(" | ")).collect();
    assert_eq!(rows.join("\n"), expected.join("\n"));
}

#[test]
fn names_in_an_expression_are_parsed() {
    let parsed = parse(
        "histogram_quantile(0.5, sum by (le, status) (rate(a_bucket{job=~\"$job\",x!=\"y by z\"}[5m]))) / b",
    );
    assert_eq!(parsed.metrics, ["a_bucket", "b"]);
    assert_eq!(parsed.labels, ["le", "status", "job", "x"]);
}

/// Returns a metric's row in the README.
fn row(metric: &Metric) -> String {
    let kind = match metric.kind {
        MetricKind::Counter | MetricKind::SecondsSum => "counter",
        MetricKind::Gauge => "gauge",
        MetricKind::Histogram(_) => "histogram",
    };
    let labels = metric.labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>();
    let labels = if labels.is_empty() { "-".to_owned() } else { labels.join(", ") };
    let unit = match metric.unit.as_str() {
        "seconds" => "s",
        "count" => "1",
        unit => unit,
    };
    let from = match metric.name.split('_').next().unwrap() {
        "gen" => "OpenTelemetry GenAI",
        "mcp" => "OpenTelemetry MCP",
        "process" => "Prometheus clients",
        "callsheet" => "ours",
        _ => "source documents",
    };
    let Metric { name, help, .. } = metric;
    format!("`{name}` | {kind} | {labels} | {unit} | {help} | {from}")
}

/// A rule of the file, with the parts that these tests check.
struct Rule {
    name: String,
    is_alert: bool,
    expression: String,
    text: String,
}

/// Parses the rules. Each starts with its name. An expression is one line, or the following lines
/// with deeper indentation.
fn rules() -> Vec<Rule> {
    let file = fs::read_to_string(folder().join(RULES)).unwrap();
    let mut rules: Vec<Rule> = Vec::new();
    let mut lines = file.lines().filter(|line| !line.trim_start().starts_with('#')).peekable();
    while let Some(line) = lines.next() {
        let trimmed = line.trim();
        for (key, is_alert) in [("- record: ", false), ("- alert: ", true)] {
            if let Some(name) = trimmed.strip_prefix(key) {
                let (name, text, expression) = (name.to_owned(), String::new(), String::new());
                rules.push(Rule { name, is_alert, expression, text });
            }
        }
        let Some(rule) = rules.last_mut() else { continue };
        rule.text += line;
        rule.text += "\n";
        let Some(expression) = trimmed.strip_prefix("expr: ") else { continue };
        if expression != "|" {
            rule.expression = expression.to_owned();
            continue;
        }
        let indent = line.len() - line.trim_start().len();
        let deeper = |next: &&str| next.len() - next.trim_start().len() > indent;
        while let Some(next) = lines.next_if(deeper) {
            rule.expression += next.trim();
            rule.expression += " ";
        }
    }
    assert!(rules.iter().all(|rule| !rule.expression.is_empty()), "a rule without expression");
    rules
}

/// The names in an expression.
#[derive(Default)]
struct Named {
    metrics: Vec<String>,
    labels: Vec<String>,
}

/// Parses the names in a PromQL expression.
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
                } else if !FUNCTIONS.contains(&token) && !OPERATORS.contains(&token) {
                    named.metrics.push(token.to_owned());
                }
            }
            _ => {}
        }
        rest = &rest[length..];
    }
    named
}

fn check(expression: &Expression, recorded: &[&str]) {
    let Expression { place, text } = expression;
    let named = parse(text);
    assert!(!named.metrics.is_empty(), "{place}: no metric in {text}");
    let mut labels: BTreeSet<&str> = SCRAPE_LABELS.iter().copied().collect();
    for name in named.metrics.iter().filter(|name| !recorded.contains(&name.as_str())) {
        let metric = ALL.iter().find(|metric| is_series_of(name, metric));
        let metric = metric.unwrap_or_else(|| panic!("{place}: {name} is not a metric, in {text}"));
        labels.extend(metric.labels);
    }
    for label in &named.labels {
        assert!(labels.contains(label.as_str()), "{place}: {label} is not a label, in {text}");
    }
}

fn is_series_of(name: &str, metric: &Metric) -> bool {
    match metric.kind {
        MetricKind::Counter | MetricKind::SecondsSum | MetricKind::Gauge => name == metric.name,
        MetricKind::Histogram(_) => name
            .strip_prefix(metric.name)
            .is_some_and(|suffix| ["_bucket", "_sum", "_count"].contains(&suffix)),
    }
}
