//! `/console/`: the files of the console, which the compiler embeds.
//!
//! The files hold no data, so they need no token. The page requests its data from the API, which needs one.

use std::sync::LazyLock;

use axum::extract::{OriginalUri, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest as _, Sha256};

use super::mount::MountPath;
use super::routes::unknown_path;
use super::state::AppState;

/// Embeds files of `src/server/console/`.
macro_rules! files {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_bytes!(concat!("console/", $name)))),*]
    };
}

/// The files of the console by their paths below `/console/`. A file of `src/server/console/` is served
/// if it is listed here.
static FILES: &[(&str, &[u8])] = &files![
    "index.html",
    "api.js",
    "app.js",
    "approvals.js",
    "card.js",
    "chat.js",
    "context.js",
    "conversation.js",
    "dom.js",
    "form.js",
    "icon.svg",
    "journal.js",
    "live.js",
    "markdown.js",
    "models.js",
    "objects.js",
    "question.js",
    "session.js",
    "sessions.js",
    "style.css",
    "text.js",
    "timeline.js",
    "tools.js",
    "vitals.js",
    "waterfall-axis.js",
    "waterfall.js",
];

/// The `ETag` of each file of [`FILES`].
static ENTITY_TAGS: LazyLock<Vec<HeaderValue>> = LazyLock::new(|| {
    let tag = |(_, bytes): &(&str, &[u8])| {
        let hash = Sha256::digest(bytes)
            .iter()
            .take(16)
            .fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
        // All characters are valid in a header, so this cannot fail.
        HeaderValue::try_from(format!("\"{hash}\"")).unwrap_or(HeaderValue::from_static("\"\""))
    };
    FILES.iter().map(tag).collect()
});

/// The page runs only its own code, loads nothing from other hosts, and never inserts text as markup.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

const SECURITY_HEADERS: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    // The browser validates its copy at each use.
    (header::CACHE_CONTROL, "no-cache"),
];

/// Serves a file. The page itself is the file of the path `/console/`.
pub(super) async fn file(
    State(_): State<AppState>,
    mount: MountPath,
    asked: OriginalUri,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let name = match uri.path().strip_prefix("/console/") {
        Some("") => "index.html",
        Some(name) => name,
        None => "",
    };
    let found = FILES.iter().zip(ENTITY_TAGS.iter()).find(|((path, _), _)| *path == name);
    let Some(((_, bytes), tag)) = found else {
        return unknown_path(mount, asked).await.into_response();
    };
    let mut response = if is_current(&headers, tag) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        ([(header::CONTENT_TYPE, content_type(name))], *bytes).into_response()
    };
    let headers = response.headers_mut();
    headers.insert(header::ETAG, tag.clone());
    headers.extend(SECURITY_HEADERS.map(|(name, value)| (name, HeaderValue::from_static(value))));
    response
}

/// Redirects from `/console` to the page, whose relative URLs need the slash.
pub(super) async fn add_slash(OriginalUri(asked): OriginalUri) -> Response {
    redirect_below(&asked, "")
}

/// Redirects to a path below the requested path. The URL is relative, so that it is also correct behind a
/// proxy that adds a prefix.
pub(super) fn redirect_below(asked: &Uri, path: &str) -> Response {
    let (_, last) = asked.path().rsplit_once('/').unwrap_or_default();
    let slash = if last.is_empty() { "" } else { "/" };
    let location = format!("./{last}{slash}{path}");
    let headers = [
        (header::LOCATION, location.as_str()),
        (header::VARY, "accept"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (StatusCode::FOUND, headers).into_response()
}

/// Returns whether the client has the file with this tag.
fn is_current(headers: &HeaderMap, tag: &HeaderValue) -> bool {
    let tags =
        headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let mut tags = tags.flat_map(|tags| tags.split(',')).map(str::trim);
    tags.any(|client_tag| {
        client_tag == "*"
            || client_tag.strip_prefix("W/").unwrap_or(client_tag).as_bytes() == tag.as_bytes()
    })
}

fn content_type(name: &str) -> &'static str {
    match name.rsplit('.').next().unwrap_or_default() {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "json" => "application/json",
        "txt" => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Returns the paths of the files below a folder, relative to `root`.
    fn files_below(root: &Path, folder: &Path) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for entry in fs::read_dir(folder).expect("read a folder") {
            let path = entry.expect("read an entry").path();
            if path.is_dir() {
                found.extend(files_below(root, &path));
            } else {
                let name = path.strip_prefix(root).expect("is below the root").to_str();
                found.insert(name.expect("a name in UTF-8").to_owned());
            }
        }
        found
    }

    #[test]
    fn every_file_of_the_folder_is_served_with_a_known_type() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("console");
        let served: BTreeSet<String> = FILES.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(files_below(&folder, &folder), served);
        for name in &served {
            assert_ne!(content_type(name), "application/octet-stream", "{name}");
        }
        let tags: BTreeSet<&[u8]> = ENTITY_TAGS.iter().map(HeaderValue::as_bytes).collect();
        assert_eq!(tags.len(), FILES.len(), "{tags:?}");
    }

    #[test]
    fn a_copy_is_current_if_one_of_its_tags_is_the_tag_of_the_file() {
        let tag = HeaderValue::from_static("\"a1\"");
        for (sent, expected) in [
            ("\"a1\"", true),
            ("\"b\", \"a1\"", true),
            ("W/\"a1\"", true),
            ("*", true),
            ("\"a\"", false),
            ("a1", false),
            ("", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::IF_NONE_MATCH, HeaderValue::from_static(sent));
            assert_eq!(is_current(&headers, &tag), expected, "{sent}");
        }
        assert!(!is_current(&HeaderMap::new(), &tag));
    }

    #[test]
    fn redirects_are_relative_to_the_last_segment() {
        for (asked, expected) in [
            ("/", "./console/"),
            ("/agents", "./agents/console/"),
            ("/a/b", "./b/console/"),
            ("/a/b/", "./console/"),
            ("/a:b?c/d", "./a:b/console/"),
        ] {
            let response = redirect_below(&asked.parse().expect("parse"), "console/");
            assert_eq!(response.headers()[header::LOCATION], expected, "{asked}");
        }
    }
}
