//! From flags, file and environment to a host that can be started.

use std::path::{Path, PathBuf};

use super::CommandError;
use crate::config::{ApiKey, BaseUrl, Config, ModelConfig, REHEARSAL, Wire};
use crate::rehearsal::{Rehearsal, RehearsalOptions};
use crate::runtime::HostError;
use crate::tool::{BuiltinError, BuiltinOptions, ToolRegistry, builtin};

/// The file that is read where no other is named, if it is there.
const FILE: &str = "callsheet.toml";

/// The model that flags describe; no model of a file can have this name.
const FLAGS_MODEL: &str = "(flags)";

/// Which configuration, and which model instead of it.
#[derive(Debug, Default, clap::Args)]
pub(super) struct ModelArgs {
    /// The configuration; ./callsheet.toml if that is there.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// What is spoken with --base-url, or with the rehearsal model.
    #[arg(long, value_name = "WIRE", value_parser = super::wires())]
    wire: Option<Wire>,
    /// The address of a model that no file describes, such as http://127.0.0.1:8080/v1.
    #[arg(long, value_name = "URL", requires = "model")]
    base_url: Option<String>,
    /// With --base-url the model's name there, else the name of a configured model.
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// The environment variable that holds the key for --base-url.
    #[arg(long, value_name = "NAME", requires = "base_url")]
    api_key_env: Option<String>,
    /// Use the offline rehearsal model, whatever is configured.
    #[arg(long, conflicts_with_all = ["base_url", "model", "api_key_env"])]
    rehearsal: bool,
}

/// The configuration as flags, file and environment say.
#[derive(Debug)]
pub(super) struct LoadedConfig {
    pub(super) config: Config,
    /// The file that was read, if one was.
    pub(super) file: Option<PathBuf>,
}

impl ModelArgs {
    pub(super) fn load(&self) -> Result<LoadedConfig, CommandError> {
        let mut loaded = load(self.config.as_deref())?;
        self.choose_model(&mut loaded.config)?;
        Ok(loaded)
    }

    fn choose_model(&self, config: &mut Config) -> Result<(), CommandError> {
        let asks_rehearsal = self.rehearsal || self.model.as_deref() == Some(REHEARSAL);
        if asks_rehearsal && self.base_url.is_none() {
            config.use_rehearsal(self.wire.unwrap_or(Wire::OpenaiChat));
            return Ok(());
        }
        if self.wire.is_some() && self.base_url.is_none() {
            let message =
                "--wire needs --base-url or --rehearsal: a configured model has its own wire";
            return Err(CommandError::usage(message));
        }
        let Some(model) = &self.model else { return Ok(()) };
        let Some(base_url) = &self.base_url else {
            let Some(known) = config.models.get(model).cloned() else {
                let hint = "give --base-url for one that no file describes";
                return Err(CommandError::usage(format!(
                    "--model: no model is called {model:?} ({hint})"
                )));
            };
            config.use_model(model, known);
            return Ok(());
        };
        let base_url = BaseUrl::parse(base_url)
            .map_err(|error| CommandError::usage(format!("--base-url: {error}")))?;
        let mut described = ModelConfig::new(base_url, model);
        if let Some(wire) = self.wire {
            described.wire = wire;
        }
        if let Some(name) = &self.api_key_env {
            let key = ApiKey::from_env(name, &env)
                .map_err(|error| CommandError::usage(format!("--api-key-env: {error}")))?;
            described.api_key = Some(key);
        }
        config.use_model(FLAGS_MODEL, described);
        Ok(())
    }
}

/// A host that cannot start because of its journal was told wrongly where that is, or somebody has
/// to look at it.
pub(super) fn not_started(error: HostError) -> CommandError {
    if let HostError::Journal(error) = error {
        return CommandError::usage(error);
    }
    CommandError::failed(error)
}

/// The configuration in this file, or in ./callsheet.toml if that is there.
pub(super) fn load(file: Option<&Path>) -> Result<LoadedConfig, CommandError> {
    let file = match file {
        Some(file) => Some(file.to_owned()),
        None => Some(PathBuf::from(FILE)).filter(|file| file.exists()),
    };
    let text = file.as_deref().map_or_else(|| Ok(String::new()), read)?;
    let name = file.as_deref().unwrap_or(Path::new(FILE)).display().to_string();
    let config = Config::parse(&text, &name, &env).map_err(CommandError::usage)?;
    Ok(LoadedConfig { config, file })
}

/// The tools that the configuration asks for.
pub(super) fn tools(config: &Config) -> Result<ToolRegistry, CommandError> {
    let options = BuiltinOptions {
        read_file_root: config.tools.get("read_file").and_then(|change| change.root.clone()),
        http_get_allow: config
            .tools
            .get("http_get")
            .map(|change| change.allow.clone())
            .unwrap_or_default(),
    };
    let registry = builtin(&options).map_err(|error| {
        if let BuiltinError::ReadFileRoot { root, source } = &error {
            let message = format!("open {}: {source}", root.display());
            return CommandError::usage(config.tool_error("read_file", "root", message));
        }
        CommandError::usage(error)
    })?;
    let names: Vec<&str> = registry.iter().map(|(name, _)| name).collect();
    config.check_tools(&names).map_err(CommandError::usage)?;
    Ok(registry)
}

/// Starts the offline model if an agent talks to it, and tells the configuration where it is.
pub(super) async fn rehearse(config: &mut Config) -> Result<Option<Rehearsal>, CommandError> {
    if !config.needs_rehearsal() {
        return Ok(None);
    }
    let rehearsal = Rehearsal::start(RehearsalOptions::watchable())
        .await
        .map_err(|error| CommandError::failed(format!("start the rehearsal model: {error}")))?;
    config.set_rehearsal(BaseUrl::parse(&rehearsal.base_url()).map_err(CommandError::failed)?);
    Ok(Some(rehearsal))
}

fn read(file: &Path) -> Result<String, CommandError> {
    let bytes = std::fs::read(file)
        .map_err(|error| CommandError::usage(format!("read {}: {error}", file.display())))?;
    String::from_utf8(bytes)
        .map_err(|_| CommandError::usage(format!("read {}: it is no UTF-8 text", file.display())))
}

/// A variable of the environment. One that is no UTF-8 counts as not set.
fn env(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
