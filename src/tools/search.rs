//! Search among the tools of an agent: `find_tools`, and the definition of `use_tool`.
//!
//! With `tool_loading = "search"`, or with `"auto"` and many tools, a request leaves out the tools that only patterns
//! with wildcards match, and has these two instead. The model finds the other tools by words, and the result of the
//! search contains their schemas. The definitions in the request therefore stay few, however many tools there are.
//!
//! The ranking is Okapi BM25 over the words of a tool's name and description, and of the names and descriptions of
//! its arguments (S. Robertson, H. Zaragoza: The Probabilistic Relevance Framework: BM25 and Beyond, 2009). A tool
//! whose name is asked for comes first. At most five tools are found.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::json;

use super::{IntoTool, ParsedSchema, Tool, ToolSpec};
use callsheet_values::types::FINAL_ANSWER;
use callsheet_values::types::{READ_VAR, USE_TOOL};

/// The name of the tool that finds others.
pub(crate) const FIND_TOOLS: &str = "find_tools";

/// Names that no other tool may have: those of the host's own tools, and the texts of a
/// [`ToolChoice`](callsheet_values::config::ToolChoice), which could not name such a tool.
pub const RESERVED_NAMES: [&str; 7] =
    [FIND_TOOLS, USE_TOOL, READ_VAR, FINAL_ANSWER, "auto", "none", "required"];

/// Maximum number of tools in a result.
const FOUND_MAX: usize = 5;
/// Maximum number of names in the answer if no tool matches.
const NAMES_MAX: usize = 50;
/// Maximum number of families of tools in the description.
const FAMILIES_MAX: usize = 20;

/// The parameters of BM25.
const K1: f64 = 1.2;
const B: f64 = 0.75;

/// The weight of a word of a name.
const NAME_WEIGHT: u32 = 3;

/// The tools that can be found.
#[derive(Debug)]
struct SearchIndex {
    tools: Vec<IndexedTool>,
    /// The number of tools that contain a word.
    document_frequencies: HashMap<String, u32>,
    mean_length: f64,
}

#[derive(Debug)]
struct IndexedTool {
    spec: Arc<ToolSpec>,
    /// The number of times that it contains each word. A word of its name counts [`NAME_WEIGHT`] times.
    words: HashMap<String, u32>,
    length: f64,
}

#[derive(Deserialize, schemars::JsonSchema)]
struct Query {
    /// Words for what the tool should do, or the name of a tool.
    query: String,
}

/// Returns the tool that finds these tools, which are sorted by name.
pub fn find_tools(tools: Vec<Arc<ToolSpec>>) -> impl Tool {
    let index = Arc::new(SearchIndex::new(tools));
    let description = format!(
        "Finds tools by words, and returns their names, descriptions and argument schemas. Call a found tool \
         with {USE_TOOL}. {}.",
        index.families()
    );
    let spec = ToolSpec::named(FIND_TOOLS, description).pure().repeatable();
    spec.into_tool(move |input: Query, _| {
        let found = index.answer(&input.query);
        async move { Ok(found) }
    })
}

/// Returns the definition of the tool that calls a found tool. It never runs: admission replaces its calls by calls
/// of the tool that they name, or answers them with an error.
pub fn use_tool_spec() -> ToolSpec {
    let schema = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "The name of the tool."},
            "arguments": {"type": "object", "description": "Its arguments, by its schema."},
        },
        "required": ["name", "arguments"],
    });
    let description = format!("Calls a tool that {FIND_TOOLS} has found.");
    let schema = ParsedSchema::parse(schema).unwrap_or_else(|_| ParsedSchema::of::<()>());
    ToolSpec::with_schema(USE_TOOL, description, schema)
}

impl SearchIndex {
    fn new(tools: Vec<Arc<ToolSpec>>) -> Self {
        let tools: Vec<IndexedTool> = tools.into_iter().map(IndexedTool::new).collect();
        let mut document_frequencies = HashMap::new();
        for word in tools.iter().flat_map(|tool| tool.words.keys()) {
            *document_frequencies.entry(word.clone()).or_default() += 1;
        }
        let total: f64 = tools.iter().map(|tool| tool.length).sum();
        let mean_length = total / (tools.len().max(1) as f64);
        Self { tools, document_frequencies, mean_length }
    }

    /// Describes how many tools there are, by the beginning of their names: "There are 3 tools: files (2), git (1)".
    fn families(&self) -> String {
        let mut families = BTreeMap::<&str, usize>::new();
        for tool in &self.tools {
            let name = &*tool.spec.name;
            let family = name.split_once("__").map_or("others", |(server, _)| server);
            *families.entry(family).or_default() += 1;
        }
        let (count, more) = (self.tools.len(), families.len() > FAMILIES_MAX);
        let named = families.iter().take(FAMILIES_MAX);
        let mut text: Vec<String> =
            named.map(|(name, count)| format!("{name} ({count})")).collect();
        text.extend(more.then(|| "and more".to_owned()));
        let there_are = match count {
            1 => "There is 1 tool".to_owned(),
            _ => format!("There are {count} tools"),
        };
        format!("{there_are}: {}", text.join(", "))
    }

    /// Returns the best tools for a query, the best one first.
    fn find(&self, query: &str) -> Vec<&ToolSpec> {
        let query_words: BTreeSet<String> = words(query).collect();
        let query = query.trim();
        let scored = self.tools.iter().filter_map(|tool| {
            let name = &*tool.spec.name;
            let short = name.split_once("__").map_or(name, |(_, tool)| tool);
            let is_named = name.eq_ignore_ascii_case(query) || short.eq_ignore_ascii_case(query);
            let score = if is_named { f64::INFINITY } else { self.score(tool, &query_words) };
            (score > 0.0).then_some((score, &*tool.spec))
        });
        let mut scored: Vec<(f64, &ToolSpec)> = scored.collect();
        // The sort is stable: tools with equal scores stay sorted by name.
        scored.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        scored.into_iter().take(FOUND_MAX).map(|(_, spec)| spec).collect()
    }

    fn score(&self, tool: &IndexedTool, query_words: &BTreeSet<String>) -> f64 {
        let count = self.tools.len() as f64;
        let score_of = |word: &String| {
            let frequency = f64::from(*tool.words.get(word)?);
            let tools = f64::from(*self.document_frequencies.get(word)?);
            let inverse_document_frequency = ((count - tools + 0.5) / (tools + 0.5)).ln_1p();
            let length_norm = 1.0 - B + B * tool.length / self.mean_length;
            let weight = frequency * (K1 + 1.0) / (frequency + K1 * length_norm);
            Some(inverse_document_frequency * weight)
        };
        query_words.iter().filter_map(score_of).sum()
    }

    /// Returns the result for the model: the tools found, one a line, or else names of tools.
    fn answer(&self, query: &str) -> String {
        let found = self.find(query);
        if found.is_empty() {
            let names: Vec<&str> =
                self.tools.iter().take(NAMES_MAX).map(|tool| &*tool.spec.name).collect();
            let more = if self.tools.len() > NAMES_MAX { ", and more" } else { "" };
            return format!("No tool matches. Tools: {}{more}.", names.join(", "));
        }
        let lines = found.iter().map(|spec| {
            let ToolSpec { name, description, input, .. } = spec;
            json!({"name": name, "description": description, "arguments": input.as_value()})
                .to_string()
        });
        lines.collect::<Vec<_>>().join("\n")
    }
}

impl IndexedTool {
    fn new(spec: Arc<ToolSpec>) -> Self {
        let mut counts = HashMap::new();
        let mut add = |text: &str, weight: u32| {
            words(text).for_each(|word| *counts.entry(word).or_default() += weight);
        };
        add(&spec.name, NAME_WEIGHT);
        add(&spec.description, 1);
        if let Some(properties) = spec.input.as_value()["properties"].as_object() {
            for (name, schema) in properties {
                add(name, 1);
                add(schema["description"].as_str().unwrap_or_default(), 1);
            }
        }
        let length = f64::from(counts.values().sum::<u32>());
        Self { spec, words: counts, length }
    }
}

/// Splits a text into words: at characters that are not alphanumeric, and before an upper-case letter that follows
/// a lower-case one. Most words have the same form in singular and plural ([`stem`]).
fn words(text: &str) -> impl Iterator<Item = String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut after_lowercase = false;
    for letter in text.chars() {
        if !letter.is_alphanumeric() || (after_lowercase && letter.is_uppercase()) {
            words.push(std::mem::take(&mut word));
        }
        if letter.is_alphanumeric() {
            word.extend(letter.to_lowercase());
        }
        after_lowercase = letter.is_lowercase();
    }
    words.push(word);
    words.into_iter().filter(|word| !word.is_empty()).map(|word| stem(&word))
}

/// Returns a form that singular and plural share, such as "query" for "queries", and "cach" for "cache" and
/// "caches".
fn stem(word: &str) -> String {
    let singular = match word.strip_suffix('s') {
        Some(singular) if singular.len() > 2 && !singular.ends_with('s') => singular,
        Some(_) | None => word,
    };
    if let Some(beginning) = singular.strip_suffix("ie") {
        return format!("{beginning}y");
    }
    let after_sibilant = ["che", "she", "sse", "xe"].iter().any(|end| singular.ends_with(end));
    let end = if after_sibilant { "e" } else { "" };
    singular.strip_suffix(end).unwrap_or(singular).to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn singular_and_plural_are_one_word() {
        for (one, many) in [
            ("file", "files"),
            ("repository", "repositories"),
            ("movie", "movies"),
            ("cache", "caches"),
            ("branch", "branches"),
            ("class", "classes"),
            ("box", "boxes"),
        ] {
            assert!(words(one).eq(words(many)), "{one}");
        }
        assert!(!words("cat").eq(words("car")));
    }

    fn index() -> SearchIndex {
        let tools = [
            ("files__read_file", "Reads a text file.", "path"),
            ("files__write_file", "Writes a text file, or replaces it.", "content"),
            ("git__createBranch", "Creates a branch in a repository.", "branch_name"),
            ("git__log", "Shows the commits of a repository.", "revision"),
            ("mail__send", "Sends a message to somebody.", "recipient"),
            ("weather", "Tells the weather at a place, from several services.", "city"),
            ("files__delete", "Deletes files.", "paths"),
        ];
        let spec = |(name, text, argument): (&str, &str, &str)| {
            let schema = json!({"type": "object", "properties": {(argument): {"type": "string"}}});
            Arc::new(ToolSpec::with_schema(name, text, ParsedSchema::parse(schema).unwrap()))
        };
        SearchIndex::new(tools.into_iter().map(spec).collect())
    }

    fn found(query: &str) -> Vec<String> {
        index().find(query).into_iter().map(|spec| spec.name.clone()).collect()
    }

    #[test]
    fn words_of_names_descriptions_and_arguments_are_found() {
        assert_eq!(found("write a file")[0], "files__write_file");
        assert_eq!(found("branches")[0], "git__createBranch");
        assert_eq!(found("create branch")[0], "git__createBranch");
        assert_eq!(found("recipient"), ["mail__send"]);
        assert_eq!(found("commit history"), ["git__log"]);
        assert_eq!(found("city service"), ["weather"]);
        assert!(found("file").len() <= FOUND_MAX);
    }

    #[test]
    fn a_name_comes_first() {
        for (name, query) in [
            ("files__read_file", "files__read_file"),
            ("git__log", " LOG "),
            ("files__delete", "delete"),
            ("weather", "weather"),
        ] {
            assert_eq!(found(query)[0], name);
        }
    }

    #[test]
    fn a_search_without_a_result_names_tools() {
        for query in ["", "   ", "xyzzy", "\u{0}"] {
            assert_eq!(found(query), Vec::<String>::new());
        }
        let answer = index().answer("xyzzy");
        assert!(answer.starts_with("No tool matches. Tools: files__read_file, "), "{answer}");
        assert_eq!(SearchIndex::new(Vec::new()).answer("x"), "No tool matches. Tools: .");
    }

    #[test]
    fn a_result_has_the_whole_schema_in_lines() {
        let answer = index().answer("weather");
        let tool: Value = serde_json::from_str(answer.lines().next().unwrap()).unwrap();
        assert_eq!(tool["name"], "weather");
        assert_eq!(tool["arguments"]["properties"]["city"]["type"], "string");
        let families = index().families();
        assert_eq!(families, "There are 7 tools: files (3), git (2), mail (1), others (1)");
        let one = SearchIndex::new(vec![Arc::new(ToolSpec::named("git__log", ""))]);
        assert_eq!(one.families(), "There is 1 tool: git (1)");
    }
}
