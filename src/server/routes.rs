//! The routes of the API, and the routers that serve them.

use std::sync::Arc;

use axum::Router;
use axum::extract::{OriginalUri, Request};
use axum::http::Method;
use axum::middleware::{Next, from_extractor, from_fn, from_fn_with_state, map_response};
use axum::response::Response;
use axum::routing::{MethodRouter, any, delete, get, post};
use tokio_util::sync::CancellationToken;

use super::access::{Caller, require_scope};
use super::error::ApiError;
use super::extract::NoQuery;
use super::mount::MountPath;
use super::operations::{agents, healthz, hosts, metrics, models, readyz};
use super::route::{Access, READ, RUN, Route};
use super::state::{ApiState, AppState, ServerOptions};
use super::{
    approvals, console, events, peers, records, results, runs, sessions, start_page, tools, vitals,
};
use callsheet_host::error_response::with_default_headers;
use callsheet_host::runtime::Host;
use callsheet_values::config::TokenScope;

/// Health checks and static pages, which reveal nothing of sessions (`/readyz` has the names and the load of models, and
/// the error of a journal that cannot be written). Health probes send no token, and a browser sends none until the
/// console has asked the user for it.
const PUBLIC: Access = None;
const APPROVE: Access = Some(TokenScope::Approve);
const ADMIN: Access = Some(TokenScope::Admin);

/// Returns the routes of sessions and runs, and the start page, to be mounted in the application of
/// the embedding program.
///
/// Mount it with `nest` or `merge`. Paths in its answers begin with the path at which it is mounted. With
/// `nest("/agents", ..)` axum serves the start page at `/agents`, not at `/agents/`.
/// It needs no connection info, so TLS and Unix sockets work. It checks neither hosts nor tokens: put
/// a [`Guard`](super::Guard) or a layer of your own around it. Event streams end when the host shuts
/// down, so shut the host down before the server, or at the same time.
///
/// ```
/// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use axum::routing::get;
/// use callsheet::prelude::*;
/// use callsheet::server::{self, Guard};
///
/// let host = Host::builder().start().await?;
/// let app: axum::Router = axum::Router::new()
///     .route("/mine", get(async || "my own page"))
///     .nest("/agents", server::router(&host).layer(Guard::new()))
///     .merge(server::operations(&host));
/// # host.shutdown().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
pub fn router<S: Clone + Send + Sync + 'static>(host: &Host) -> Router<S> {
    ServerOptions::default().router(host)
}

impl ServerOptions {
    /// Returns the routes of [`router`] with the `body_bytes_max`, `body_timeout`, `keep_alive` and
    /// `max_large_answers` of these options. `Guard::from(&options)` has their access rules.
    ///
    /// ```
    /// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use callsheet::prelude::*;
    /// use callsheet::server::{Guard, ServerOptions};
    ///
    /// let host = Host::builder().start().await?;
    /// let options = ServerOptions::default().with(|options| options.body_bytes_max = 32 << 20);
    /// let api = options.router(&host).layer(Guard::from(&options));
    /// let app: axum::Router = axum::Router::new().nest("/agents", api);
    /// # host.shutdown().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub fn router<S: Clone + Send + Sync + 'static>(&self, host: &Host) -> Router<S> {
        let state = Arc::new(ApiState::new(host, self, &CancellationToken::new(), false));
        client_routes(&state)
            // A fallback would be lost in a router that is nested twice, and would collide with the
            // fallback of an application.
            .route("/v1/{*path}", any(unknown_path))
            .layer(from_fn(with_errors_of_path))
            .with_state(state)
    }
}

/// Returns the routes of an operator: `/healthz`, `/readyz` and `/metrics`. They can be mounted
/// elsewhere than [`router`], or left out.
///
/// ```
/// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use callsheet::prelude::*;
/// use callsheet::server;
///
/// let host = Host::builder().start().await?;
/// let app: axum::Router = server::router(&host).merge(server::operations(&host));
/// # host.shutdown().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
pub fn operations<S: Clone + Send + Sync + 'static>(host: &Host) -> Router<S> {
    let state = ApiState::new(host, &ServerOptions::default(), &CancellationToken::new(), false);
    let state = Arc::new(state);
    with_routes(&state, operations_routes()).with_state(state)
}

/// Returns all routes, for [`serve`](super::serve).
pub(super) fn server_router(state: ApiState) -> Router {
    let state = Arc::new(state);
    client_routes(&state)
        .merge(with_routes(&state, operations_routes()))
        .fallback(unknown_path)
        .layer(from_fn(with_errors_of_path))
        .with_state(state)
}

/// Returns the routes of clients: the API, and the console if it is enabled.
fn client_routes(state: &AppState) -> Router<AppState> {
    // Clients can answer approvals, so approvals wait for an answer and are not rejected at once.
    state.host.note_approvals_are_read();
    let mut routes = with_routes(state, api_routes());
    #[cfg(feature = "faces")]
    {
        routes = routes.merge(with_routes(state, super::faces::routes(&state.options.faces)));
    }
    if state.host.peers().is_some() {
        routes = routes.layer(from_fn_with_state(Arc::clone(state), peers::answer_peer));
    }
    match state.host.console().enabled {
        true => routes.merge(with_routes(state, console_routes())),
        false => routes,
    }
}

fn api_routes() -> Vec<Route> {
    vec![
        ("GET", "/", PUBLIC, get(start_page::show)),
        ("POST", "/v1/sessions", RUN, post(sessions::open)),
        ("GET", "/v1/sessions", READ, get(sessions::list)),
        ("DELETE", "/v1/sessions", RUN, delete(sessions::delete_many)),
        ("GET", "/v1/sessions/{id}", READ, get(sessions::snapshot)),
        ("DELETE", "/v1/sessions/{id}", RUN, without_query(delete(sessions::delete))),
        ("POST", "/v1/sessions/{id}/fork", RUN, post(sessions::fork)),
        ("POST", "/v1/sessions/{id}/runs", RUN, post(runs::start)),
        ("GET", "/v1/sessions/{id}/runs", READ, get(runs::list)),
        ("GET", "/v1/sessions/{id}/runs/{run_id}", READ, without_query(get(runs::show))),
        ("GET", "/v1/sessions/{id}/events", READ, get(events::watch)),
        ("POST", "/v1/sessions/{id}/steer", RUN, post(runs::steer)),
        ("POST", "/v1/sessions/{id}/stop", RUN, post(runs::stop)),
        (
            "DELETE",
            "/v1/sessions/{id}/queue/{run_id}",
            RUN,
            without_query(delete(runs::remove_input)),
        ),
        ("POST", "/v1/sessions/{id}/resume", RUN, post(runs::resume)),
        ("POST", "/v1/sessions/{id}/tools/refresh", ADMIN, post(runs::refresh_tools)),
        ("POST", "/v1/sessions/{id}/compact", RUN, post(runs::compact)),
        ("POST", "/v1/sessions/{id}/exclude", RUN, post(runs::exclude)),
        ("POST", "/v1/sessions/{id}/include", RUN, post(runs::include)),
        ("GET", "/v1/sessions/{id}/context", READ, without_query(get(runs::context))),
        ("POST", "/v1/sessions/{id}/approvals/{tool_id}", APPROVE, post(approvals::decide)),
        ("GET", "/v1/approvals", READ, get(approvals::list)),
        ("GET", "/v1/sessions/{id}/results/{tool_id}", READ, get(results::show)),
        ("GET", "/v1/sessions/{id}/records", READ, get(records::list)),
        ("POST", "/v1/sessions/{id}/verify", READ, post(records::verify)),
        (
            "GET",
            "/v1/sessions/{id}/turns/{turn}/request",
            READ,
            without_query(get(records::request)),
        ),
        ("GET", "/v1/events", READ, get(events::watch_many)),
        ("POST", "/v1/sessions/{id}/results/{tool_id}", RUN, post(results::answer)),
        ("GET", "/v1/tools", READ, get(tools::list)),
        ("POST", "/v1/tools/{name}/call", ADMIN, post(tools::call)),
        ("GET", "/v1/agents", READ, without_query(get(agents))),
        ("GET", "/v1/hosts", READ, without_query(get(hosts))),
        ("GET", "/v1/host/models", READ, without_query(get(models))),
        ("POST", "/v1/ui/vitals", READ, post(vitals::report)),
    ]
}

/// Refuses a query, because the request has no parameters. Handlers that read a body refuse a query themselves.
fn without_query(handler: MethodRouter<AppState>) -> MethodRouter<AppState> {
    handler.route_layer(from_extractor::<NoQuery>())
}

fn console_routes() -> Vec<Route> {
    vec![
        ("GET", "/console", PUBLIC, get(console::add_slash)),
        ("GET", "/console/", PUBLIC, get(console::file)),
        ("GET", "/console/{*file}", PUBLIC, get(console::file)),
        ("GET", "/console/api", PUBLIC, get(start_page::list)),
    ]
}

fn operations_routes() -> Vec<Route> {
    vec![
        ("GET", "/healthz", PUBLIC, get(healthz)),
        ("GET", "/readyz", PUBLIC, get(readyz)),
        ("GET", "/metrics", READ, get(metrics)),
    ]
}

/// Returns the public paths, as [`Guard::public_paths`](super::Guard::public_paths) takes them.
pub(super) fn public_paths() -> Vec<String> {
    let all = [api_routes(), console_routes(), operations_routes()].into_iter().flatten();
    let public = all.filter(|(_, _, access, _)| *access == PUBLIC);
    public.map(|(_, path, ..)| path.replace("{*file}", "*")).collect()
}

fn with_routes(state: &AppState, routes: Vec<Route>) -> Router<AppState> {
    let has_peers = state.host.peers().is_some();
    let router =
        routes.into_iter().fold(Router::new(), |router, (method, path, access, handler)| {
            let handler = match (method, path) {
                _ if !has_peers => handler,
                ("POST", "/v1/sessions" | "/v1/sessions/{id}/fork" | "/v1/tools/{name}/call") => {
                    handler.route_layer(from_fn_with_state(Arc::clone(state), peers::to_living))
                }
                #[cfg(feature = "faces")]
                _ if super::faces::is_about_session(path) => handler
                    .route_layer(from_fn_with_state(Arc::clone(state), peers::to_owner_of_named)),
                _ if peers::is_for_owner(method, path) => {
                    handler.route_layer(from_fn_with_state(Arc::clone(state), peers::to_owner))
                }
                _ => handler,
            };
            let handler = match access {
                Some(scope) => {
                    handler.route_layer(from_fn(move |caller: Caller, request, next| {
                        require_scope(scope, caller, request, next)
                    }))
                }
                None => handler,
            };
            router.route(path, handler)
        });
    let router = router.method_not_allowed_fallback(unknown_method);
    router.layer(map_response(async |response: Response| with_default_headers(response)))
}

/// Answers with errors in the form of the protocol that a path belongs to.
async fn with_errors_of_path(request: Request, next: Next) -> Response {
    #[cfg(feature = "faces")]
    {
        let form = super::faces::error_form(request.uri().path());
        form(next.run(request).await)
    }
    #[cfg(not(feature = "faces"))]
    next.run(request).await
}

pub(super) async fn unknown_path(mount: MountPath, OriginalUri(asked): OriginalUri) -> ApiError {
    let message = format!("unknown path {}; GET {} lists the API", asked.path(), mount.root());
    ApiError::not_found("not_found", message)
}

async fn unknown_method(
    mount: MountPath,
    OriginalUri(asked): OriginalUri,
    method: Method,
) -> ApiError {
    let (path, root) = (asked.path(), mount.root());
    ApiError::method_not_allowed(format!(
        "{path} does not accept {method}; GET {root} lists the API"
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[cfg(feature = "faces")]
    fn face_routes() -> Vec<Route> {
        let all = callsheet_values::config::FacesConfig::default().enabled_by_default(true);
        super::super::faces::routes(&all)
    }

    #[cfg(not(feature = "faces"))]
    fn face_routes() -> Vec<Route> {
        Vec::new()
    }

    #[test]
    fn the_start_page_lists_every_route() {
        let rows = start_page::PAGE.split("<tr><td><code>").skip(1);
        let listed: BTreeSet<String> = rows
            .map(|row| {
                let (request, _) = row.split_once("</code>").expect("a row ends its request");
                request.split('?').next().unwrap_or_default().to_owned()
            })
            .collect();
        let routes: BTreeSet<String> = api_routes()
            .iter()
            .chain(&operations_routes())
            .chain(&console_routes())
            .chain(&face_routes())
            .filter(|(_, path, ..)| !["/console", "/console/{*file}"].contains(path))
            .map(|(method, path, ..)| format!("{method} {path}"))
            .collect();
        assert_eq!(listed, routes);
    }
}
