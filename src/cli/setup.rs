//! Configuration, tools and rehearsal model of a command, from flags, file and environment.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::error::CommandError;
use super::signals::Signals;
use callsheet_host::builder::HostBuilder;
use callsheet_host::runtime::{Host, HostError};
use callsheet_host::telemetry;
use callsheet_rehearsal::{Rehearsal, improvise};
use callsheet_tools::{BuiltinError, BuiltinOptions, ToolRegistry, builtin};
use callsheet_values::config::{ApiKey, BaseUrl, Config, ModelConfig, REHEARSAL, ToolKind, Wire};

/// The configuration file that is read by default, if it exists.
const DEFAULT_FILE: &str = "callsheet.toml";

/// Name of the model that flags define; not a valid name in a configuration file.
const FLAGS_MODEL: &str = "(flags)";

/// The end of the error of a service that refuses the key of a configured model.
const REFUSED_KEY_HINT: &str = "(see the model's api_key_env or api_key_file)";

/// The help of `--config`.
pub(super) const CONFIG_HELP: &str =
    "The configuration file [default: ./callsheet.toml, if it exists]";

/// The help of `--data-dir`.
pub(super) const DATA_DIR_HELP: &str = "The data directory, where sessions are stored \
    [default: data_dir of the configuration, or ./callsheet-data]";

/// Flags that choose the configuration file and override the models of its agents.
#[derive(Debug, Default, clap::Args)]
pub(super) struct ConfigArgs {
    #[arg(long, value_name = "FILE", help = CONFIG_HELP)]
    config: Option<PathBuf>,
    /// The wire format of --base-url.
    #[arg(long, value_name = "WIRE", value_parser = wires())]
    wire: Option<Wire>,
    /// The base URL of a model that is not configured, such as http://127.0.0.1:8080/v1.
    #[arg(long, value_name = "URL", requires = "model")]
    base_url: Option<String>,
    /// With --base-url: the service's name of the model. Otherwise: the name of a configured model.
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// The environment variable with the API key for --base-url.
    #[arg(long, value_name = "NAME", requires = "base_url")]
    api_key_env: Option<String>,
    /// Use the offline rehearsal model instead of the configured models.
    #[arg(long, conflicts_with_all = ["base_url", "model", "api_key_env"])]
    rehearsal: bool,
}

/// A configuration, after flags, file and environment.
#[derive(Debug)]
pub(super) struct LoadedConfig {
    pub(super) config: Config,
    /// The file that was read, if there is one.
    pub(super) file: Option<PathBuf>,
}

impl ConfigArgs {
    /// Returns the flags as words of a command line.
    pub(super) fn words(&self) -> Vec<String> {
        let Self { config, wire, base_url, model, api_key_env, rehearsal } = self;
        let flags = [
            ("--config", config.as_ref().map(|file| file.display().to_string())),
            ("--wire", wire.map(|wire| wire.to_string())),
            ("--base-url", base_url.clone()),
            ("--model", model.clone()),
            ("--api-key-env", api_key_env.clone()),
        ];
        let given = flags.into_iter().filter_map(|(flag, value)| Some([flag.to_owned(), value?]));
        given.flatten().chain(rehearsal.then(|| "--rehearsal".to_owned())).collect()
    }

    pub(super) fn load(&self) -> Result<LoadedConfig, CommandError> {
        let mut loaded = load_with_keys(self.config.as_deref(), |model| self.needs_key(model))?;
        self.choose_model(&mut loaded.config)?;
        Ok(loaded)
    }

    /// Returns whether the API key of a configured model is needed: not if flags choose another model.
    fn needs_key(&self, model: &str) -> bool {
        match &self.model {
            Some(chosen) => self.base_url.is_none() && chosen == model,
            None => !self.rehearsal,
        }
    }

    fn choose_model(&self, config: &mut Config) -> Result<(), CommandError> {
        let use_rehearsal = self.rehearsal || self.model.as_deref() == Some(REHEARSAL);
        if use_rehearsal && self.base_url.is_none() {
            if let Some(wire) = self.wire.filter(|wire| *wire != Wire::OpenaiChat) {
                return Err(CommandError::usage(format!(
                    "--wire {wire}: the rehearsal model speaks openai-chat only (leave out --wire, or name a \
                     service that speaks {wire} with --base-url and --model)"
                )));
            }
            config.use_rehearsal();
            return Ok(());
        }
        if self.wire.is_some() && self.base_url.is_none() {
            let message = "--wire needs --base-url: a configured model has its own wire format";
            return Err(CommandError::usage(message));
        }
        let Some(model) = &self.model else { return Ok(()) };
        let Some(base_url) = &self.base_url else {
            let Some(configured) = config.models.get(model).cloned() else {
                let hint = "add --base-url for a model that is not configured";
                return Err(CommandError::usage(format!(
                    "--model: no model is called {model:?} ({hint})"
                )));
            };
            config.use_model(model, configured);
            return Ok(());
        };
        let base_url = BaseUrl::parse(base_url)
            .map_err(|error| CommandError::usage(format!("--base-url: {error}")))?;
        let mut from_flags = ModelConfig::new(base_url, model);
        if let Some(wire) = self.wire {
            from_flags.wire = wire;
        }
        if let Some(name) = &self.api_key_env {
            let key = ApiKey::from_env(name, &env)
                .map_err(|error| CommandError::usage(format!("--api-key-env: {error}")))?;
            from_flags.api_key = Some(key);
        }
        config.use_model(FLAGS_MODEL, from_flags);
        Ok(())
    }

    /// Returns the error of a model with a hint that names the flags, if flags define the model.
    pub(super) fn with_flag_hint(&self, message: &str) -> String {
        refused_key(message, self.base_url.as_deref(), self.api_key_env.as_deref())
    }
}

/// Replaces the hint of a service that refuses the key by one about the flag `--api-key-env`, if
/// `--base-url` defines the model. Does not quote the URL, whose path may hold a key.
pub(super) fn refused_key(
    message: &str,
    base_url: Option<&str>,
    api_key_env: Option<&str>,
) -> String {
    let (Some(problem), Some(_)) = (message.strip_suffix(REFUSED_KEY_HINT), base_url) else {
        return message.to_owned();
    };
    match api_key_env {
        Some(name) => format!("{problem}(the key in {name} was sent)"),
        None => format!("{problem}(no key was sent; name its variable with --api-key-env)"),
    }
}

/// Starts a host. Returns `None` if a signal arrives before it has started.
pub(super) async fn start_host(
    builder: HostBuilder,
    signals: &mut Signals,
) -> Result<Option<Host>, CommandError> {
    tokio::select! {
        host = Box::pin(builder.start()) => host.map(Some).map_err(start_error),
        () = signals.next() => Ok(None),
    }
}

/// Maps the error of starting a host. A journal error counts as a configuration error, because the
/// data directory is configured.
pub(super) fn start_error(error: HostError) -> CommandError {
    if let HostError::Journal(error) = error {
        return CommandError::usage(error);
    }
    let is_usage = matches!(error, HostError::Config(_));
    if is_usage { CommandError::usage(error) } else { CommandError::failed(error) }
}

/// Loads the configuration from a file, by default from ./callsheet.toml if it exists.
pub(super) fn load(file: Option<&Path>) -> Result<LoadedConfig, CommandError> {
    load_with_keys(file, |_| true)
}

/// Loads the configuration as [`load`] does. The API keys of its models may be missing.
pub(super) fn load_without_keys(file: Option<&Path>) -> Result<LoadedConfig, CommandError> {
    load_with_keys(file, |_| false)
}

/// Loads the configuration as [`load`] does. Only the models for which `needs_key` returns true must have their API
/// keys.
fn load_with_keys(
    file: Option<&Path>,
    needs_key: impl Fn(&str) -> bool,
) -> Result<LoadedConfig, CommandError> {
    let file = match file {
        Some(file) => Some(file.to_owned()),
        None => Some(PathBuf::from(DEFAULT_FILE)).filter(|file| file.exists()),
    };
    let text = file.as_deref().map_or_else(|| Ok(String::new()), read)?;
    let name = file.as_deref().unwrap_or(Path::new(DEFAULT_FILE)).display().to_string();
    let config = Config::parse_with_keys(&text, &name, &env, needs_key);
    let config = config.map_err(CommandError::usage)?;
    telemetry::redact_logs(config.secrets());
    telemetry::limit_server_logs(config.mcp_limits.max_log_lines_per_second);
    Ok(LoadedConfig { config, file })
}

/// Makes the built-in tools and the configured ones, and checks the configuration of tools against them.
pub(super) fn tools(config: &Config) -> Result<ToolRegistry, CommandError> {
    let mut registry = builtin(&BuiltinOptions::from(config)).map_err(|error| {
        if let BuiltinError::ReadFileRoot { root, source } = &error {
            let message = format!("open {}: {source}", root.display());
            return CommandError::usage(config.tool_error("read_file", "root", message));
        }
        CommandError::usage(error)
    })?;
    registry.register_configured(config).map_err(CommandError::usage)?;
    let names: Vec<&str> = registry.iter().map(|(name, _)| name).collect();
    config.check_tools(&names).map_err(CommandError::usage)?;
    Ok(registry)
}

/// Keeps this agent, and the agents that tools run in child sessions. A command needs no others.
pub(super) fn keep_agents(config: &mut Config, agent: &str) {
    let definitions = config.tools.values().filter_map(|tool| tool.definition.as_ref());
    let called = definitions.filter_map(|definition| match &definition.kind {
        ToolKind::Agent(tool) => Some(tool.agent.clone()),
        ToolKind::Command(_) | ToolKind::Http(_) => None,
    });
    let called: Vec<String> = called.collect();
    config.agents.retain(|name, _| name == agent || called.contains(name));
}

/// The pause between the chunks of the rehearsal model, so that a person can follow its text.
const READABLE_PACE: Duration = Duration::from_millis(15);

/// Starts the rehearsal model if an agent uses it, and sets its address in the configuration.
pub(super) async fn start_rehearsal(
    config: &mut Config,
) -> Result<Option<Rehearsal>, CommandError> {
    if !config.needs_rehearsal() {
        return Ok(None);
    }
    let rehearsal = Rehearsal::start(improvise, READABLE_PACE)
        .await
        .map_err(|error| CommandError::failed(format!("start the rehearsal model: {error}")))?;
    config.set_rehearsal(BaseUrl::parse(&rehearsal.base_url()).map_err(CommandError::failed)?);
    Ok(Some(rehearsal))
}

fn read(file: &Path) -> Result<String, CommandError> {
    let bytes = std::fs::read(file)
        .map_err(|error| CommandError::usage(format!("read {}: {error}", file.display())))?;
    String::from_utf8(bytes)
        .map_err(|_| CommandError::usage(format!("read {}: it is not UTF-8 text", file.display())))
}

/// Returns an environment variable. A value that is not UTF-8 counts as unset.
fn env(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Returns a parser for whole numbers of a range.
pub(super) fn number_in<T>(
    range: RangeInclusive<T>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    move |text: &str| {
        let number: Option<T> = text.parse().ok();
        number.filter(|number| range.contains(number)).ok_or_else(|| {
            let (least, most) = (range.start(), range.end());
            format!("must be a whole number from {least} to {most}")
        })
    }
}

/// Returns a parser for the names of wire formats, which help and errors list.
pub(super) fn wires() -> impl TypedValueParser<Value = Wire> {
    let words = PossibleValuesParser::new(Wire::NAMES.map(|(word, _)| word));
    words.try_map(|word| word.parse::<Wire>())
}
