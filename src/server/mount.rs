//! The path below which an application has mounted the API.

use std::convert::Infallible;
use std::fmt;

use axum::extract::{FromRequestParts, OriginalUri};
use axum::http::request::Parts;

/// The path below which the API is mounted, such as `/agents`. Empty if it is mounted at the root.
#[derive(Debug, Default)]
pub(super) struct MountPath(String);

impl MountPath {
    /// Returns the mount path of a request for the path `requested`, which the router sees as `routed`.
    fn of(requested: &str, routed: &str) -> Self {
        // A nested router sees `/` for its mount path.
        let mount = match requested.strip_suffix(routed) {
            Some(mount) => mount,
            None if routed == "/" => requested,
            None => "",
        };
        Self(mount.to_owned())
    }

    /// Returns the path of the start page.
    pub(super) fn root(&self) -> &str {
        if self.0.is_empty() { "/" } else { &self.0 }
    }
}

impl<S: Sync> FromRequestParts<S> for MountPath {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let Some(OriginalUri(asked)) = parts.extensions.get() else { return Ok(Self::default()) };
        Ok(Self::of(asked.path(), parts.uri.path()))
    }
}

impl fmt::Display for MountPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_path_is_what_precedes_the_own_path() {
        for (asked, own, expected) in [
            ("/v1/sessions", "/v1/sessions", ""),
            ("/", "/", ""),
            ("/agents/v1/sessions", "/v1/sessions", "/agents"),
            ("/a/b/v1/sessions/v1", "/v1/sessions/v1", "/a/b"),
            ("/agents", "/", "/agents"),
            ("/other", "/rewritten", ""),
        ] {
            assert_eq!(MountPath::of(asked, own).to_string(), expected, "{asked}");
        }
    }
}
