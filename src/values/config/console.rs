//! The configuration of the console: `[console]`.

/// The configuration of the console, the web page that the HTTP server serves below `/console/`.
///
/// ```
/// use callsheet::config::Config;
///
/// let config = Config::default().with(|config| config.console.enabled = false);
/// assert!(!config.console.requests);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct ConsoleConfig {
    /// Serves the console. Default: true.
    pub enabled: bool,
    /// Keeps the requests to models and shows them. They may hold secrets. Default: false.
    pub requests: bool,
}

impl Default for ConsoleConfig {
    fn default() -> Self {
        Self { enabled: true, requests: false }
    }
}
