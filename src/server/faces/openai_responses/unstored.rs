//! Sessions of requests with `"store": false`: deleted when the answer was delivered whole and the run has ended, or else
//! some minutes after the end of the run, in which the client can still join it. Delivered means that it was sent: a client
//! whose connection broke then has the time in which clients repeat a request.

use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use futures::StreamExt as _;
use tokio::sync::oneshot;

use super::super::super::state::ApiState;
use super::super::earlier::SESSION_PREFIXES;
use super::super::retries::{REPEAT_WITHIN, RunPlace};
use callsheet_host::journal::{SessionQuery, unix_ms};
use callsheet_host::runtime::{SessionHandle, SessionState};
use callsheet_host::telemetry::FeedItem;
use callsheet_values::event::Event;
use callsheet_values::types::{RunEnd, SessionId};

/// The beginning of the ids of such sessions. No other session is deleted, so that a request without it cannot make the
/// history of one with it vanish.
const PREFIX: &str = SESSION_PREFIXES[1];

/// The time after the end of the run in which an answer that was not delivered whole can be fetched.
const KEPT_FOR: Duration = Duration::from_secs(600);

/// Number of sessions of one read.
const PAGE_SESSIONS: usize = 100;

/// Returns whether a session is deleted after its run.
pub(super) fn is_unstored(session: &SessionId) -> bool {
    session.as_str().starts_with(PREFIX)
}

/// Deletes the session when the response was delivered, or later.
pub(super) fn delete_after(
    state: &ApiState,
    session: SessionHandle,
    place: RunPlace,
    response: Response,
) -> Response {
    let (delivered, is_delivered) = oneshot::channel::<()>();
    let response = response.map(|body| {
        let pieces = body.into_data_stream();
        Body::from_stream(futures::stream::unfold(Some((pieces, delivered)), |it| async move {
            let (mut pieces, delivered) = it?;
            match pieces.next().await {
                Some(Ok(piece)) => Some((Ok(piece), Some((pieces, delivered)))),
                // The sender is dropped, which says that the answer broke.
                Some(Err(error)) => Some((Err(error), None)),
                None => {
                    // The receiver is gone if the server closes.
                    let _ = delivered.send(());
                    None
                }
            }
        }))
    });
    spawn(state, async move {
        let was_delivered = is_delivered.await.is_ok();
        run_end(&session, &place).await;
        tokio::time::sleep(if was_delivered { REPEAT_WITHIN } else { KEPT_FOR }).await;
        delete_unless_continued(&session, &place).await;
    });
    response
}

/// Deletes the session, unless a later request goes on in it.
async fn delete_unless_continued(session: &SessionHandle, place: &RunPlace) {
    let is_last = session
        .runs()
        .await
        .is_ok_and(|runs| runs.first().is_none_or(|run| run.run_id == place.run));
    if is_last {
        drop(session.close().await);
    }
}

/// Deletes the session when its run has ended.
pub(super) fn delete_after_run(state: &ApiState, session: SessionHandle, place: RunPlace) {
    if is_unstored(session.id()) {
        spawn(state, async move {
            run_end(&session, &place).await;
            drop(session.close().await);
        });
    }
}

/// Deletes what an earlier process of this host has left behind: the tasks above ended with it. Called at the start of
/// the server, or for the first request if this API is mounted elsewhere.
pub(in super::super) fn delete_old(state: &ApiState) {
    if state.faces.has_deleted_old.swap(true, Ordering::Relaxed) {
        return;
    }
    let host = state.host.clone();
    let now = unix_ms();
    spawn(state, async move {
        tokio::time::sleep(KEPT_FOR).await;
        let mut query = SessionQuery::default().with(|query| {
            query.after = SessionId::parse(PREFIX).ok();
            query.limit = PAGE_SESSIONS;
        });
        loop {
            let Ok(page) = host.sessions(query.clone()).await else { return };
            for stored in &page {
                if !is_unstored(&stored.id) {
                    return;
                }
                // The tasks of this process delete the later ones.
                let is_old = stored.touched < now;
                let has_run =
                    [SessionState::Running, SessionState::Waiting].contains(&stored.state);
                if is_old && !has_run {
                    drop(host.session(&stored.id).close().await);
                }
                query.continue_after(stored);
            }
            if page.len() < PAGE_SESSIONS {
                return;
            }
        }
    });
}

fn spawn(state: &ApiState, deletion: impl Future<Output = ()> + Send + 'static) {
    let closing = state.closing.clone();
    #[expect(
        clippy::disallowed_methods,
        reason = "it outlives the request, and ends with the server"
    )]
    drop(tokio::spawn(async move {
        tokio::select! {
            () = deletion => {}
            () = closing.cancelled() => {}
        }
    }));
}

/// Waits until the run has ended, or its session.
async fn run_end(session: &SessionHandle, place: &RunPlace) {
    let Ok(mut events) = session.watch_run(place.run.clone(), place.seq).await else { return };
    while let Some(item) = events.next().await {
        match item {
            FeedItem::Event(event) => {
                let event = &event.event;
                // It goes on when its host does.
                let is_pause = matches!(event, Event::RunEnded { end: RunEnd::Interrupted, .. });
                if event.is_last_of_run() && !is_pause {
                    return;
                }
            }
            FeedItem::Lagged => match session.watch_run(place.run.clone(), place.seq).await {
                Ok(again) => events = again,
                Err(_) => return,
            },
            FeedItem::Failed(_) => return,
        }
    }
}
