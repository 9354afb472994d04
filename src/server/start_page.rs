//! The start page, which lists the API, or redirects a browser to the console.

use axum::extract::{ConnectInfo, OriginalUri, State};
use axum::http::{HeaderMap, Uri, header, request::Parts, uri::Authority};
use axum::response::{IntoResponse, Response};

use super::console::redirect_below;
use super::listener::ConnectionAddresses;
use super::mount::MountPath;
use super::state::AppState;

/// The page. Lists every route of the API.
pub(super) const PAGE: &str = include_str!("page.html");

/// The address in `page.html`, which is replaced by the server's own.
const EXAMPLE_ADDRESS: &str = "http://127.0.0.1:7700";

/// Marks the lines of `page.html` that describe [`serve`](super::serve) and not a mounted router.
const SERVER_ONLY: &str = "<!-- server -->";

/// Marks the lines of `page.html` that describe the console.
const CONSOLE_ONLY: &str = "<!-- console -->";

/// Mark the lines of `page.html` that describe faces.
const OPENAI_ONLY: &str = "<!-- openai -->";
const UI_ONLY: &str = "<!-- ui -->";
const AGUI_ONLY: &str = "<!-- agui -->";

const MARKERS: [&str; 5] = [SERVER_ONLY, CONSOLE_ONLY, OPENAI_ONLY, UI_ONLY, AGUI_ONLY];

/// Redirects browsers to the console, if it is enabled. Returns the list of the API to other clients.
pub(super) async fn show(
    State(state): State<AppState>,
    mount: MountPath,
    OriginalUri(asked): OriginalUri,
    request: Parts,
) -> Response {
    let accepted = request.headers.get_all(header::ACCEPT).iter();
    let mut accepted = accepted.filter_map(|value| value.to_str().ok());
    if state.host.console().enabled && accepted.any(|types| types.contains("text/html")) {
        return redirect_below(&asked, "console/");
    }
    list(State(state), mount, request).await
}

/// Returns the list of the API.
pub(super) async fn list(
    State(state): State<AppState>,
    mount: MountPath,
    request: Parts,
) -> Response {
    let addresses = request.extensions.get::<ConnectInfo<ConnectionAddresses>>();
    let address = match addresses {
        Some(ConnectInfo(addresses)) => {
            let scheme = super::scheme(state.options.tls.is_some());
            addresses.local.map(|local| format!("{scheme}://{local}"))
        }
        None => requested_address(&request.uri, &request.headers),
    };
    let faces = &state.options.faces;
    let is_served = |enabled: Option<bool>| cfg!(feature = "faces") && enabled == Some(true);
    let shown = |marker: &str| match marker {
        SERVER_ONLY => state.is_server,
        OPENAI_ONLY => is_served(faces.openai.enabled),
        UI_ONLY => is_served(faces.ui.enabled),
        AGUI_ONLY => is_served(faces.agui.enabled),
        _ => state.host.console().enabled,
    };
    let page = page(shown, &mount.to_string(), address.as_deref());
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; style-src 'unsafe-inline'"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::VARY, "accept"),
    ];
    (headers, page).into_response()
}

/// Returns the page with its paths below `mount`, and with the marked lines for whose marker `shown` returns
/// true. Neither the path nor the host of a request can contain `<`, so they cannot inject markup.
fn page(shown: impl Fn(&str) -> bool, mount: &str, address: Option<&str>) -> String {
    let mut page = String::with_capacity(PAGE.len());
    for line in PAGE.lines() {
        let marker = MARKERS.into_iter().find(|marker| line.starts_with(marker));
        if marker.is_none_or(&shown) {
            page.extend([line.strip_prefix(marker.unwrap_or_default()).unwrap_or(line), "\n"]);
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

/// Returns the address that the client requested. Without a scheme in the request it begins with
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
        let page = page(|_| false, "/agents", Some("https://example.com"));
        assert!(page.contains("BASE=https://example.com/agents\n"));
        assert!(page.contains("<code>GET /agents/v1/sessions/{id}</code>"));
        for absent in ["/metrics", "/healthz", "console", "127.0.0.1", "<code>GET /v1", "<!--"] {
            assert!(!page.contains(absent), "{absent} is in\n{page}");
        }
    }

    #[test]
    fn the_page_of_the_server_lists_operations() {
        let page = page(|_| true, "", None);
        assert!(page.contains("BASE=http://127.0.0.1:7700\n"));
        assert!(page.contains("<tr><td><code>GET /metrics</code>") && !page.contains("<!--"));
        assert_eq!(
            page,
            MARKERS.iter().fold(PAGE.to_owned(), |page, marker| page.replace(marker, ""))
        );
    }
}
