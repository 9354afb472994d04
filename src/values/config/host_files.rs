//! The host's own files, which no sandbox contains: the data directory, the configuration, and the lock files of tools.

use std::path::PathBuf;

use super::{Config, HookKind, JournalEngine, McpTransport, ProcessConfig, SecretSource, ToolKind};

impl Config {
    /// Returns this configuration, in which every process knows the host's own files.
    #[must_use]
    pub fn with_host_files(&self) -> Self {
        let (mut config, files) = (self.clone(), self.host_files());
        config.processes().for_each(|process| process.host_files.clone_from(&files));
        config
    }

    fn host_files(&self) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> = self.key_locations.file.iter().map(PathBuf::from).collect();
        files.extend(self.mcp.values().map(|server| server.lock_file.clone()));
        files.push(self.host.data_dir.clone());
        files.extend(self.secret_files());
        // The host creates its data directory later.
        let is_created = |file: &PathBuf| {
            self.journal.engine == JournalEngine::Sqlite && *file == self.host.data_dir
        };
        files.retain(|file| is_created(file) || file.exists());
        files
    }

    /// Returns the files with secrets of models, tools, servers and hooks, and with tokens.
    fn secret_files(&self) -> Vec<PathBuf> {
        let files = self.secret_sources().filter_map(|source| match source {
            SecretSource::File(path) => Some(path.clone()),
            SecretSource::Variable(_) => None,
        });
        let keys = self.models.values().filter_map(|model| model.api_key_file.clone());
        let tls = self.tls.as_ref().map(|tls| tls.key.clone());
        let tokens = self.tokens.iter().filter_map(|token| token.file.clone());
        files.chain(keys).chain(self.host.token_file.clone()).chain(tokens).chain(tls).collect()
    }

    /// Returns the processes of all tools, servers and hooks.
    fn processes(&mut self) -> impl Iterator<Item = &mut ProcessConfig> {
        let tools = self.tools.values_mut().filter_map(|tool| match &mut tool.definition {
            Some(definition) => match &mut definition.kind {
                ToolKind::Command(command) => Some(&mut command.process),
                ToolKind::Http(_) | ToolKind::Agent(_) => None,
            },
            None => None,
        });
        let servers = self.mcp.values_mut().filter_map(|server| match &mut server.transport {
            McpTransport::Stdio { process, .. } => Some(&mut **process),
            McpTransport::Http { .. } => None,
        });
        let hooks = self.hooks.iter_mut().filter_map(|hook| match &mut hook.kind {
            HookKind::Command { process, .. } => Some(&mut **process),
            HookKind::Http(_) => None,
        });
        tools.chain(servers).chain(hooks)
    }
}
