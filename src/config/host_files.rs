//! The host's own files, which no sandbox contains: the data directory, the configuration, and the lock files of tools.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::{
    Config, HookKind, JournalEngine, McpTransport, OAuthGrant, ProcessConfig, SecretSource,
    ToolKind,
};

impl Config {
    /// Returns this configuration, in which every process knows the host's own files.
    #[must_use]
    pub(crate) fn with_host_files(&self) -> Self {
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

    /// Returns the files with secrets of models, tools, servers and hooks.
    fn secret_files(&self) -> Vec<PathBuf> {
        let definitions = self.tools.values().filter_map(|tool| tool.definition.as_ref());
        let tools = definitions.filter_map(|definition| match &definition.kind {
            ToolKind::Http(http) => Some(&http.secret_headers),
            ToolKind::Command(_) | ToolKind::Agent(_) => None,
        });
        let hooks = self.hooks.iter().filter_map(|hook| match &hook.kind {
            HookKind::Http(service) => Some(&service.secret_headers),
            HookKind::Command { .. } => None,
        });
        let servers = self.mcp.values().filter_map(|server| match &server.transport {
            McpTransport::Http { service, oauth } => Some((service, oauth)),
            McpTransport::Stdio { .. } => None,
        });
        let (services, oauth): (Vec<_>, Vec<_>) = servers.unzip();
        let services = services.into_iter().map(|service| &service.secret_headers);
        let headers = tools.chain(hooks).chain(services).flat_map(BTreeMap::values);
        let oauth = oauth.into_iter().flatten().flat_map(|oauth| {
            let refresh_token = match &oauth.grant {
                OAuthGrant::RefreshToken(source) => Some(source),
                OAuthGrant::ClientCredentials => None,
            };
            oauth.client_secret.iter().chain(refresh_token)
        });
        let files = headers.chain(oauth).filter_map(|source| match source {
            SecretSource::File(path) => Some(path.clone()),
            SecretSource::Variable(_) => None,
        });
        let keys = self.models.values().filter_map(|model| model.api_key_file.clone());
        files.chain(keys).collect()
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
