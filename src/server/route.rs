//! A route, and the scope that a token needs for it.

use axum::routing::MethodRouter;

use super::state::AppState;
use callsheet_values::config::TokenScope;

/// A method, a path, the scope that a token needs for it, and its handler.
pub(super) type Route = (&'static str, &'static str, Access, MethodRouter<AppState>);

/// The scope that a token needs for a route. `None`: the route is public and needs no token.
pub(super) type Access = Option<TokenScope>;

pub(super) const READ: Access = Some(TokenScope::Read);
pub(super) const RUN: Access = Some(TokenScope::Run);
