//! The ways to spawn a task.

use std::future::Future;

use futures::FutureExt as _;
use tokio_util::task::AbortOnDropHandle;

use super::error::HostError;
use super::gauge::Gauge;

/// A task that belongs to an actor: it is aborted when its owner drops this.
#[derive(Debug)]
pub(super) struct OwnedTask {
    _handle: AbortOnDropHandle<()>,
}

impl OwnedTask {
    /// Spawns a task and counts it for as long as it lives.
    #[expect(clippy::disallowed_methods, reason = "the task is aborted when the value is dropped")]
    pub(super) fn spawn(tasks: &Gauge, future: impl Future<Output = ()> + Send + 'static) -> Self {
        let held = tasks.increment();
        // An async block would have room for the future twice.
        let handle = tokio::spawn(future.map(move |()| drop(held)));
        Self { _handle: AbortOnDropHandle::new(handle) }
    }
}

/// Runs a future in a task of its own, which is aborted when this future is dropped. A panic ends only that
/// task.
#[expect(clippy::disallowed_methods, reason = "the task is aborted when the future is dropped")]
pub(super) async fn isolated<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> Result<T, tokio::task::JoinError> {
    AbortOnDropHandle::new(tokio::spawn(future)).await
}

/// Runs a future to its end, also if this future is dropped, such as that of a request whose client has gone.
///
/// # Errors
/// Returns the error of the future, or [`HostError::ShuttingDown`] if it panics.
#[expect(clippy::disallowed_methods, reason = "the task ends by itself")]
pub(super) async fn to_its_end<T: Send + 'static>(
    future: impl Future<Output = Result<T, HostError>> + Send + 'static,
) -> Result<T, HostError> {
    tokio::spawn(future).await.map_err(|_| HostError::ShuttingDown)?
}

/// Spawns a short task without an owner, which ends by itself.
#[expect(clippy::disallowed_methods, reason = "the task is short and ends by itself")]
pub(super) fn detach(future: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(future);
}
