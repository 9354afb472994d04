//! Reads the definition of a tool: `[tools.NAME]` with `kind`.

use toml::de::DeValue;

use super::process::{EnvLookup, command, headers, proxy};
use super::source::Section;
use super::tools::parse_allow_entry;
use super::values::{self, Parsed};
use crate::config::key_table::{KeyTable as _, Value as _};
use crate::config::tool_definition::{
    CommandConfig, CommandOutput, CommandStdin, ConfiguredTool, HttpBody, HttpConfig, HttpMethod,
    ProcessConfig, ToolInput, ToolKind,
};
use crate::config::{AgentToolConfig, Share};

/// The kind of a tool that a table defines, as the key `kind` names it.
#[derive(Clone, Copy)]
enum ToolKindName {
    Command,
    Http,
    Agent,
}

const KINDS: [(&str, ToolKindName); 3] = [
    ("command", ToolKindName::Command),
    ("http", ToolKindName::Http),
    ("agent", ToolKindName::Agent),
];

impl ConfiguredTool {
    /// Reads the definition of a tool. Returns `None` if `kind` is missing or wrong. A table without `kind`
    /// changes a registered tool.
    pub(super) fn read(section: &Section<'_, '_>, env: EnvLookup<'_>) -> Option<Self> {
        let Some(kind) = section.read("kind", |value| values::one_of(value, &KINDS)) else {
            if !section.has("kind") {
                section.forbid("command", "needs kind = \"command\" in the same table");
                section.forbid("url", "needs kind = \"http\" in the same table");
                section.forbid("agent", "needs kind = \"agent\" in the same table");
            }
            return None;
        };
        let description = section.read("description", values::non_empty_string);
        section.require("description", &description);
        let description = description.unwrap_or_default();
        let kind = match kind {
            ToolKindName::Command => ToolKind::Command(Box::new(CommandConfig::read(section, env))),
            ToolKindName::Http => ToolKind::Http(Box::new(HttpConfig::read(section, env))),
            ToolKindName::Agent => {
                let message = "an agent has one argument, the text \"input\"";
                section.forbid("input", message);
                section.forbid("input_schema", message);
                let kind = ToolKind::Agent(AgentToolConfig::read(section));
                return Some(Self { description, input: ToolInput::default(), kind });
            }
        };
        Some(Self { description, input: ToolInput::read(section), kind })
    }
}

impl AgentToolConfig {
    fn read(section: &Section<'_, '_>) -> Self {
        let agent = section.read("agent", values::non_empty_string);
        section.require("agent", &agent);
        let mut config = Self::new(agent.unwrap_or_default());
        config.read_keys(section);
        if let Some(share) = section.read("share_of_budget", share_above_zero) {
            config.share_of_budget = share;
        }
        config
    }
}

/// Parses a share from 0.001 to 1, after it is rounded to thousandths.
fn share_above_zero(value: &DeValue<'_>) -> Parsed<Share> {
    let number = values::float(value)?;
    let share = Share::of(number).filter(|share| !share.is_zero());
    share.ok_or_else(|| format!("must be a share from 0.001 to 1, and is {number}"))
}

impl ToolInput {
    fn read(section: &Section<'_, '_>) -> Self {
        let properties = section.read("input", values::json_object);
        for (name, _) in properties.iter().flatten().filter(|(_, schema)| !schema.is_object()) {
            let message = "must be a JSON schema such as { type = \"string\" }";
            section.table("input").add_error(name, message);
        }
        let schema = section.read("input_schema", |value| {
            if value.is_table() {
                return Ok(Self::Schema(values::json_object(value)?.into()));
            }
            if value.as_str().is_none() {
                return Err(values::wrong_type("the name of a file, or a JSON schema", value));
            }
            Ok(Self::File(section.resolve_path(&values::non_empty_string(value)?)))
        });
        if section.has("input") && section.has("input_schema") {
            section.add_error("input_schema", "set either input or input_schema, not both");
        }
        schema.unwrap_or_else(|| Self::Properties(properties.unwrap_or_default()))
    }
}

impl CommandConfig {
    fn read(section: &Section<'_, '_>, env: EnvLookup<'_>) -> Self {
        let mut config = Self::new(command(section));
        let stdins = (CommandStdin::None, CommandStdin::Json, CommandStdin::Text);
        let stdin = section.read("stdin", |value| stdin_or_body(value, stdins));
        config.stdin = stdin.unwrap_or_default();
        config.read_keys(section);
        config.output_schema = section.path("output_schema");
        // A wrong value of `output` has its error already.
        let is_text = config.output == CommandOutput::Text && !section.is_wrong("output");
        if config.output_schema.is_some() && is_text {
            section.add_error("output_schema", "needs output = \"json\"");
        }
        let empty_message = "must not be empty: a list of exit statuses such as [0, 1]";
        let ok_exit = section.non_empty_list("ok_exit", empty_message, values::unsigned::<u8>);
        if let Some(ok_exit) = ok_exit {
            config.ok_exit = ok_exit.into_iter().map(i32::from).collect();
        }
        config.process = ProcessConfig::read(section, env);
        config
    }
}

impl HttpConfig {
    fn read(section: &Section<'_, '_>, env: EnvLookup<'_>) -> Self {
        let method = section.read("method", HttpMethod::parse);
        let url = section.read("url", values::non_empty_string);
        section.require("url", &url);
        let mut config = Self::new(method.unwrap_or_default(), url.unwrap_or_default());
        config.read_keys(section);
        config.query = section.table("query").entries(values::string);
        (config.headers, config.secret_headers) = headers(section, env);
        config.allow = section.list("allow", parse_allow_entry).unwrap_or_default();
        config.proxy = proxy(section);
        let bodies = (HttpBody::None, HttpBody::Json, HttpBody::Text);
        if let Some(body) = section.read("body", |value| stdin_or_body(value, bodies)) {
            config.body = body;
        }
        let empty_message = "must not be empty: a list of statuses such as [200, 201]";
        if let Some(ok_status) = section.non_empty_list("ok_status", empty_message, http_status) {
            config.ok_status = ok_status;
        }
        config
    }
}

/// Parses which arguments a tool receives as its standard input or request body: none, all as a JSON object, or one
/// as text.
fn stdin_or_body<T>(
    value: &DeValue<'_>,
    (none, json, text): (T, T, impl Fn(String) -> T),
) -> Parsed<T> {
    let word = value.as_str().unwrap_or_default();
    match (word, word.strip_prefix("text:")) {
        ("none", _) => Ok(none),
        ("json", _) => Ok(json),
        (_, Some(argument)) if !argument.is_empty() => Ok(text(argument.to_owned())),
        _ => Err(values::wrong_type("\"none\", \"json\" or \"text:NAME\"", value)),
    }
}

fn http_status(value: &DeValue<'_>) -> Parsed<u16> {
    match values::unsigned::<u16>(value)? {
        status @ 100..=599 => Ok(status),
        status => Err(format!("{status} is not an HTTP status (100 to 599)")),
    }
}

#[cfg(test)]
mod tests {
    use std::num::{NonZeroU32, NonZeroU64};
    use std::path::Path;

    use super::*;
    use crate::config::Config;
    use crate::config::tool_definition::SandboxLevel;

    fn parse(text: &str) -> Result<Config, String> {
        let lookup_env = |name: &str| match name {
            "SET" => Some("value".to_owned()),
            "BLANK" => Some(" ".to_owned()),
            _ => None,
        };
        Config::parse(text, "etc/callsheet.toml", &lookup_env).map_err(|error| error.to_string())
    }

    #[test]
    fn all_keys_of_a_command_are_read() {
        let text = r#"
[tools.search]
kind = "command"
description = "Searches."
input = { pattern = { type = "string" }, path = { type = "string", default = "." } }
command = ["./rg", "--json", "--", "{pattern}", "{path}"]
stdin = "text:pattern"
output = "json"
output_schema = "out.json"
ok_exit = [0, 1]
cwd = "work"
env = { LANG = "C.UTF-8" }
env_pass = ["SET"]
secret_env = { TOKEN = "SET" }
sandbox = "read"
read_paths = ["lib", "/srv/data"]
write_paths = ["cache"]
max_output_bytes = 10
max_memory = "512MiB"
max_processes = 32
timeout = "5s"
effect = "none"
"#;
        let config = parse(text).unwrap();
        let tool = &config.tools["search"];
        assert!(tool.timeout.is_some() && tool.effect.is_some());
        let definition = tool.definition.as_ref().unwrap();
        assert_eq!(definition.description, "Searches.");
        let ToolKind::Command(command) = &definition.kind else { panic!("a command") };
        assert_eq!(command.command[..2], ["etc/./rg", "--json"]);
        assert_eq!(command.stdin, CommandStdin::Text("pattern".to_owned()));
        assert_eq!(command.output, CommandOutput::Json);
        assert_eq!(command.output_schema.as_deref(), Some(Path::new("etc/out.json")));
        assert_eq!(command.ok_exit, [0, 1]);
        assert_eq!(command.max_output_bytes, 10);
        let process = &command.process;
        assert_eq!(process.cwd, Path::new("etc/work"));
        assert_eq!((&*process.env["LANG"], &*process.secret_env["TOKEN"]), ("C.UTF-8", "SET"));
        assert_eq!(
            (&*process.env_pass, process.sandbox),
            (&["SET".to_owned()][..], SandboxLevel::Read)
        );
        assert_eq!(process.read_paths, [Path::new("etc/lib"), Path::new("/srv/data")]);
        assert_eq!(process.write_paths, [Path::new("etc/cache")]);
        assert_eq!(process.max_memory.map(NonZeroU64::get), Some(512 << 20));
        assert_eq!(process.max_processes.map(NonZeroU32::get), Some(32));
    }

    #[test]
    fn the_argument_for_stdin_or_a_body_may_have_any_name() {
        let command = "[tools.c]\nkind = \"command\"\ndescription = \"d\"\ncommand = [\"true\"]\n\
                       stdin = \"text:text:\"\n";
        let http = "[tools.h]\nkind = \"http\"\ndescription = \"d\"\nurl = \"http://x.example/\"\n\
                    method = \"POST\"\nbody = \"text:text:a\"\n";
        let config = parse(&format!("{command}{http}")).unwrap();
        let kind = |name| &config.tools[name].definition.as_ref().unwrap().kind;
        let ToolKind::Command(command) = kind("c") else { panic!("a command") };
        assert_eq!(command.stdin, CommandStdin::Text("text:".to_owned()));
        let ToolKind::Http(http) = kind("h") else { panic!("an HTTP tool") };
        assert_eq!(http.body, HttpBody::Text("text:a".to_owned()));
    }

    #[test]
    fn input_schema_is_the_name_of_a_file_or_a_table() {
        let table = "[tools.t]\nkind = \"command\"\ndescription = \"d\"\ncommand = [\"true\"]\n";
        let input = |keys: &str| {
            let config = parse(&format!("{table}{keys}")).unwrap();
            config.tools["t"].definition.as_ref().unwrap().input.clone()
        };
        assert_eq!(input("input_schema = \"a.json\""), ToolInput::File("etc/a.json".into()));
        let keys =
            "[tools.t.input_schema]\ntype = \"object\"\nproperties.a = { type = \"string\" }";
        let schema = serde_json::json!({"type": "object", "properties": {"a": {"type": "string"}}});
        assert_eq!(input(keys), ToolInput::Schema(schema));
    }

    #[test]
    fn an_error_in_a_definition_names_the_line_and_the_remedy() {
        let table = "[tools.t]\nkind = \"command\"\ndescription = \"d\"\ncommand = [\"true\"]\n";
        for (text, expected) in [
            (
                "[tools.t]\nkind = \"comand\"\ndescription = \"d\"\ncommand = [\"true\"]",
                "2: tools.t.kind: must be \"command\", \"http\" or \"agent\", not \"comand\"",
            ),
            (
                "[tools.t]\ncommand = [\"true\"]",
                "2: tools.t.command: needs kind = \"command\" in the same table",
            ),
            (
                "[tools.t]\nkind = \"command\"\ndescription = \"d\"",
                "1: tools.t.command: is missing: a list of the program and its arguments",
            ),
            (
                "[tools.t]\nkind = \"command\"\ncommand = []\ndescription = \"d\"",
                "3: tools.t.command: must not be empty",
            ),
            (
                "[tools.t]\nkind = \"command\"\ncommand = [\"true\"]",
                "1: tools.t.description: is missing",
            ),
            (
                "[tools.t]\nkind = \"command\"\ncommand = [1]\ndescription = \"d\"",
                "3: tools.t.command[0]: must be a string, not 1",
            ),
            (
                "[tools.t]\nkind = \"command\"\ncommand = 1\ndescription = \"d\"",
                "3: tools.t.command: must be a list, not 1",
            ),
            (
                "[tools.t]\nkind = \"http\"\nurl = \"http://x.example/\"\ndescription = \"d\"\n\
                 headers = { X-Key = \"plain\" }\nsecret_headers = { x-key = \"SET\" }",
                "5: tools.t.headers: X-Key is also in secret_headers",
            ),
            (
                "[tools.t]\nkind = \"http\"\nurl = \"http://x.example/\"\ndescription = \"d\"\n\
                 headers = { X-Key = \"a\", x-key = \"b\" }",
                "5: tools.t.headers: x-key appears twice: header names are case-insensitive",
            ),
            (
                "[tools.t]\nkind = \"http\"\nurl = \"http://x.example/\"\ndescription = \"d\"\n\
                 [tools.t.secret_headers]\nX-Key = \"SET\"\nx-key = \"SET\"",
                "5: tools.t.secret_headers: x-key appears twice: header names are case-insensitive",
            ),
            (
                "[tools.t]\nkind = \"http\"\nurl = \"http://x.example/\"\ndescription = \"d\"\n\
                 ok_status = [200, \"ok\"]",
                "5: tools.t.ok_status[1]: must be a whole number, not \"ok\"",
            ),
            (
                &format!("{table}env_pass = [\"UNSET\"]"),
                "5: tools.t.env_pass[0]: the environment variable UNSET is not set: set it before \
                 the host starts",
            ),
            (
                &format!("{table}secret_env = {{ TOKEN = \"UNSET\" }}"),
                "5: tools.t.secret_env.TOKEN: the environment variable UNSET is not set or is blank: \
                 set it before the host starts",
            ),
            (
                &format!("{table}secret_env = {{ TOKEN = \"BLANK\" }}"),
                "5: tools.t.secret_env.TOKEN: the environment variable BLANK is not set or is blank: \
                 set it before the host starts",
            ),
            (
                &format!("{table}env = {{ A = \"1\" }}\nsecret_env = {{ A = \"SET\" }}"),
                "5: tools.t.env: A is also in secret_env",
            ),
            (
                &format!("{table}input = {{ a = 1 }}"),
                "5: tools.t.input.a: must be a JSON schema such as { type = \"string\" }",
            ),
            (
                &format!("{table}input = {{}}\ninput_schema = \"a.json\""),
                "6: tools.t.input_schema: set either input or input_schema, not both",
            ),
            (
                &format!("{table}input_schema = 1"),
                "5: tools.t.input_schema: must be the name of a file, or a JSON schema, not 1",
            ),
            (
                &format!("{table}stdin = \"text:\""),
                "5: tools.t.stdin: must be \"none\", \"json\" or \"text:NAME\", not \"text:\"",
            ),
            (
                &format!("{table}output_schema = \"a.json\""),
                "5: tools.t.output_schema: needs output = \"json\"",
            ),
            (
                &format!("{table}output_schema = \"a.json\"\noutput = \"jsn\""),
                "6: tools.t.output: must be \"text\" or \"json\", not \"jsn\"",
            ),
            (&format!("{table}ok_exit = [256]"), "5: tools.t.ok_exit[0]: 256 is too large"),
            (
                &format!("{table}ok_exit = []"),
                "5: tools.t.ok_exit: must not be empty: a list of exit statuses such as [0, 1]",
            ),
            (
                &format!("{table}sandbox = \"hard\""),
                "5: tools.t.sandbox: must be \"none\", \"read\", \"write\" or \"strict\", not \"hard\"",
            ),
            (
                &format!("{table}max_memory = \"much\""),
                "5: tools.t.max_memory: must be a size such as \"512MiB\", not \"much\"",
            ),
            (
                &format!("{table}comand = 1"),
                "5: tools.t.comand: unknown key (did you mean command?)",
            ),
        ] {
            let expected = format!("etc/callsheet.toml:{expected}");
            assert_eq!(parse(text).unwrap_err(), expected, "{text}");
        }
    }
}
