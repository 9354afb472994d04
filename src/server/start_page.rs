//! The start page, which lists the API.

use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, Uri, header, request::Parts, uri::Authority};
use axum::response::IntoResponse;

use super::listener::LocalAddress;
use super::mount::MountPath;
use super::state::AppState;

/// The page. Lists every route of the API.
pub(super) const PAGE: &str = include_str!("page.html");

/// The address in `page.html`, which is replaced by the server's own.
const EXAMPLE_ADDRESS: &str = "http://127.0.0.1:7700";

/// Marks the lines of `page.html` that describe the binary's server and not a mounted router.
const SERVER_ONLY: &str = "<!-- server -->";

pub(super) async fn show(
    State(state): State<AppState>,
    mount: MountPath,
    request: Parts,
) -> impl IntoResponse {
    let local = request.extensions.get::<ConnectInfo<LocalAddress>>();
    let address = match local {
        Some(ConnectInfo(LocalAddress(local))) => local.map(|local| format!("http://{local}")),
        None => requested_address(&request.uri, &request.headers),
    };
    let page = page(state.is_server, &mount.to_string(), address.as_deref());
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; style-src 'unsafe-inline'"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, page)
}

/// Returns the page with its paths below `mount`. Neither a path nor a host of a request can have
/// `<`, so no markup can come in.
fn page(is_server: bool, mount: &str, address: Option<&str>) -> String {
    let mut page = String::with_capacity(PAGE.len());
    for line in PAGE.lines() {
        let (line, server_only) = match line.strip_prefix(SERVER_ONLY) {
            Some(line) => (line, true),
            None => (line, false),
        };
        if is_server || !server_only {
            page.extend([line, "\n"]);
        }
    }
    for method in ["GET", "POST", "DELETE"] {
        let code = |mount| format!("<code>{method} {mount}/");
        page = page.replace(&code(""), &code(mount));
    }
    if !mount.is_empty() {
        page = page
            .replace(&format!("<code>GET {mount}/</code>"), &format!("<code>GET {mount}</code>"));
    }
    let address = address.unwrap_or(EXAMPLE_ADDRESS);
    page.replace(EXAMPLE_ADDRESS, &format!("{address}{mount}"))
}

/// Returns the address that the client asked for. Without a scheme in the request it begins with
/// `http`.
fn requested_address(uri: &Uri, headers: &HeaderMap) -> Option<String> {
    let in_header = || headers.get(header::HOST)?.to_str().ok()?.parse::<Authority>().ok();
    let authority = uri.authority().cloned().or_else(in_header)?;
    Some(format!("{}://{authority}", uri.scheme_str().unwrap_or("http")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mounted_page_has_paths_below_its_mount_path_and_no_operations() {
        let page = page(false, "/agents", Some("https://example.com"));
        assert!(page.contains("BASE=https://example.com/agents\n"));
        assert!(page.contains("<code>GET /agents/v1/sessions/{id}</code>"));
        for absent in ["/metrics", "/healthz", "127.0.0.1", "<code>GET /v1", "<!--"] {
            assert!(!page.contains(absent), "{absent} is in\n{page}");
        }
    }

    #[test]
    fn the_page_of_the_server_lists_operations() {
        let page = page(true, "", None);
        assert!(page.contains("BASE=http://127.0.0.1:7700\n"));
        assert!(page.contains("<tr><td><code>GET /metrics</code>") && !page.contains("<!--"));
        assert_eq!(page, PAGE.replace(SERVER_ONLY, ""));
    }
}
