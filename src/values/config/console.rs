//! The configuration of the console: `[console]`.

use super::key_table::key_table;

key_table! {
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
        /// Serves the console, a web page, below `/console/`.
        enabled: bool = true, Any;
        /// Keeps the newest requests to models in memory, and shows them. They may hold secrets.
        requests: bool = false, Any;
    }
}
