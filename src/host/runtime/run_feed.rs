//! The events of one run up to its end, without a gap.
//!
//! A [`Subscription`] has the live events of a session and ends when its reader is too slow. [`SessionEvents`] has
//! the stored events of a session, then the live ones. A [`RunFeed`] joins both for one run: it reads the
//! subscription while it can, and after a gap the session's events for good.

use std::sync::Arc;

use futures::StreamExt as _;

use super::error::HostError;
use super::host_ref::HostRef;
use super::session_events::{SessionEvents, WatchOptions};
use crate::journal::SessionLog;
use crate::telemetry::{FeedItem, Subscription};
use callsheet_values::event::{EventId, PublishedEvent};
use callsheet_values::types::{RunId, SessionId};

/// The events of a run up to its end. A reader that was too slow for the live events continues from the
/// journal: text comes in larger pieces then, and the states of open calls come again.
#[derive(Debug)]
pub struct RunFeed {
    host_ref: HostRef,
    session: SessionId,
    run: RunId,
    log: Arc<SessionLog>,
    /// The position of the last event with an id; before the first one, the start of the feed.
    position: EventId,
    /// The source of events after the first gap: stored events, then live ones. A later gap replaces it. Before the
    /// first gap, events are read from the subscription.
    stored: Option<SessionEvents>,
    /// Events after the position were missed. They are read from the journal next.
    has_gap: bool,
    has_ended: bool,
}

impl RunFeed {
    /// Creates the feed of the events after `start`. `is_complete` is true if the subscription that is
    /// passed to [`Self::next`] has all of them.
    pub(super) fn new(
        host_ref: HostRef,
        (session, run): (SessionId, RunId),
        log: Arc<SessionLog>,
        start: EventId,
        is_complete: bool,
    ) -> Self {
        let has_gap = !is_complete;
        Self {
            host_ref,
            session,
            run,
            log,
            position: start,
            stored: None,
            has_gap,
            has_ended: false,
        }
    }

    /// Returns whether no event follows.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Returns the next event, or `None` after the last one. Nothing is lost if the caller stops waiting. `live` is
    /// the subscription of `Self::new`; the feed does not return what its owner reads from it.
    ///
    /// # Errors
    /// If the session or the host ended before the run, or the journal fails. No event follows.
    pub async fn next(
        &mut self,
        live: &mut Subscription,
    ) -> Result<Option<Arc<PublishedEvent>>, HostError> {
        if self.has_ended {
            return Ok(None);
        }
        let next = self.read(live).await;
        self.has_ended = match &next {
            Ok(event) => event.event.is_last_of_run(),
            Err(_) => true,
        };
        next.map(Some)
    }

    async fn read(&mut self, live: &mut Subscription) -> Result<Arc<PublishedEvent>, HostError> {
        loop {
            if self.has_gap {
                self.log.wait_durable(self.position.seq).await?;
                let events = SessionEvents::after(
                    &self.host_ref,
                    &self.session,
                    self.position,
                    WatchOptions::default(),
                )
                .await?;
                self.stored = Some(events.only_run(self.run.clone()));
                self.has_gap = false;
            }
            let item = match &mut self.stored {
                Some(stored) => stored.next().await,
                None => live.next().await,
            };
            match item {
                Some(FeedItem::Event(published)) => {
                    self.position = published.id.unwrap_or(self.position);
                    return Ok(published);
                }
                Some(FeedItem::Lagged) => self.has_gap = true,
                Some(FeedItem::Failed(error)) => return Err(error.into()),
                // The events of a run end with `RunEnded`, unless the session ends before.
                None => return Err(self.host_ref.shared.unavailable_error()),
            }
        }
    }
}
