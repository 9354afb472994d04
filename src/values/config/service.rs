//! HTTP services that tools, hooks and MCP servers use, and the places of their secrets.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::model::ApiKey;
use crate::types::InvalidValue;

/// Maximum size of a file with a secret, in bytes.
const SECRET_FILE_BYTES_MAX: u64 = 64 << 10;

/// A service that is asked over HTTP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServiceConfig {
    /// The URL.
    pub url: String,
    /// Headers and their values.
    pub headers: BTreeMap<String, String>,
    /// Headers with secret values, and the places of these.
    pub secret_headers: BTreeMap<String, SecretSource>,
    /// Targets besides the host of the URL that may be reached although they are not public.
    pub allow: Vec<String>,
    /// The proxy through which it is asked.
    pub proxy: Proxy,
}

impl ServiceConfig {
    /// Configures the service at a URL, without headers and without a proxy.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), ..Self::default() }
    }
}

/// The proxy of HTTP requests. A service on this machine is asked without one.
///
/// ```
/// use callsheet::config::{Config, Proxy};
///
/// let text = "[tools.http_get]\nproxy = \"http://proxy.example.com:3128\"\n";
/// let config = Config::parse(text, "callsheet.toml", &|name| std::env::var(name).ok())?;
/// let proxy = Proxy::Url("http://proxy.example.com:3128/".to_owned());
/// assert_eq!(config.tools["http_get"].proxy, proxy);
/// # Ok::<(), callsheet::config::ConfigErrors>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Proxy {
    /// None, whatever the environment says.
    #[default]
    None,
    /// That of the variables `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`, in upper or lower case.
    Environment,
    /// The one at this URL, for all targets.
    Url(String),
}

/// The place of a secret. It is read again while the host runs, so that the secret may be replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSource {
    /// The environment variable of the host with this name.
    Variable(String),
    /// A file. White space at its ends is not part of the secret.
    File(PathBuf),
}

impl SecretSource {
    /// Reads the secret, without white space at its ends.
    ///
    /// # Errors
    /// If the variable is not set, the file is no readable file of at most 64 KiB of UTF-8, or the secret is blank.
    pub fn read(&self) -> Result<String, InvalidValue> {
        let read = match self {
            Self::Variable(name) => std::env::var(name).map_err(|_| "is not set".to_owned()),
            Self::File(path) => read_file(path).map_err(|error| format!("cannot be read: {error}")),
        };
        let invalid = |reason| InvalidValue::new(format!("{self} {reason}"));
        match read.map_err(invalid)?.trim() {
            "" => Err(invalid("is blank".to_owned())),
            secret => Ok(secret.to_owned()),
        }
    }
}

impl SecretSource {
    /// Reads a token or a key, which a header can hold.
    ///
    /// # Errors
    /// As [`Self::read`], and if it contains characters other than visible ASCII.
    pub fn read_token(&self) -> Result<ApiKey, InvalidValue> {
        ApiKey::new(&self.read()?)
    }
}

impl fmt::Display for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Variable(name) => write!(f, "the environment variable {name}"),
            Self::File(path) => write!(f, "the file {}", path.display()),
        }
    }
}

fn read_file(path: &Path) -> Result<String, String> {
    let metadata = std::fs::metadata(path).map_err(|error| error.to_string())?;
    // Opening a pipe would wait for a writer.
    if !metadata.is_file() {
        return Err("it is no file".to_owned());
    }
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    let mut text = String::new();
    let read = file.take(SECRET_FILE_BYTES_MAX + 1).read_to_string(&mut text);
    let size = read.map_err(|error| error.to_string())?;
    match u64::try_from(size) {
        Ok(size) if size <= SECRET_FILE_BYTES_MAX => Ok(text),
        _ => Err(format!("it has more than {SECRET_FILE_BYTES_MAX} bytes")),
    }
}

crate::types::impl_with!(ServiceConfig);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_secret_of_a_file_is_read_again_each_time() {
        let folder = std::env::temp_dir().join(format!("callsheet-secret-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("token");
        let source = SecretSource::File(path.clone());
        for text in ["first\n", "  second \r\n"] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(source.read().unwrap(), text.trim());
        }
        let error = || source.read().unwrap_err().to_string();
        std::fs::write(&path, " \n").unwrap();
        assert_eq!(error(), format!("the file {} is blank", path.display()));
        std::fs::write(&path, "x".repeat(65 << 10)).unwrap();
        assert!(error().ends_with("it has more than 65536 bytes"));
        std::fs::remove_file(&path).unwrap();
        assert!(error().contains("cannot be read: No such file"));
        let of_folder = SecretSource::File(folder.clone()).read().unwrap_err().to_string();
        assert!(of_folder.ends_with("cannot be read: it is no file"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
