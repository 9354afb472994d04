//! The answer to a request: its fold, the note of the history that the client holds at its end, and what becomes of the
//! run when the connection is closed before.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;

use super::super::super::state::AppState;
use super::super::retries::RunPlace;
use super::super::stream::{FacePart, Fold, RunEvents};
use super::fold::{AnswerSettings, ChatFold};
use super::messages::HistoryHash;
use callsheet_host::runtime::{HostError, SessionHandle};
use callsheet_values::config::ChatDisconnect;
use callsheet_values::event::PublishedEvent;
use callsheet_values::record::StopMode;

/// The time in which a request must join a run whose connection was closed, if closing it is a stop.
const JOIN_WITHIN: Duration = Duration::from_secs(60);

/// The session, the run and the client's history of an answer.
#[derive(Clone)]
pub(super) struct AnswerContext {
    pub(super) state: AppState,
    pub(super) session: SessionHandle,
    pub(super) place: RunPlace,
    /// The hash of the history with the input of the request.
    pub(super) history: HistoryHash,
    pub(super) settings: AnswerSettings,
}

impl AnswerContext {
    /// Returns the work that notes the history which the client holds after an answer. Without the note the client
    /// is not recognised.
    pub(super) fn note(&self, fold: &ChatFold) -> Option<impl Future<Output = ()> + Send + use<>> {
        let hash = match fold.message()? {
            Some(message) => self.history.clone().with_message(&message).hex(),
            None => self.history.hex(),
        };
        let (host, session) = (self.state.host.clone(), self.session.id().clone());
        let waiting_run = fold.waits_for_people().then(|| self.place.run.clone());
        let seq = fold.last().seq;
        Some(async move {
            let noted = host.note_history(&hash, &session, seq, waiting_run).await;
            if let Err(error) = noted {
                tracing::warn!(%session, %error, "history_not_noted");
            }
        })
    }

    fn is_stopped_by_closing(&self) -> bool {
        self.state.options.faces.openai.chat_disconnect == ChatDisconnect::Stop
    }

    /// Follows the run to the end of the answer, so that it is noted what a client holds that joins it.
    async fn follow(self) -> Result<(), HostError> {
        if self.is_stopped_by_closing() {
            tokio::time::sleep(JOIN_WITHIN).await;
            let run = &self.place.run;
            if !self.state.faces.chat.is_left(run, JOIN_WITHIN) {
                return Ok(());
            }
            let current = self.session.snapshot().await?.current_run;
            if current.is_some_and(|current| current.run_id == *run) {
                self.session.stop(StopMode::Now).await?;
            }
        }
        let events = RunEvents::join(self.session.clone(), self.place.clone()).await?;
        let fold = fold_to_end(events, ChatFold::new(self.settings.clone())).await?;
        if let Some(note) = self.note(&fold) {
            note.await;
        }
        Ok(())
    }
}

/// Folds the events of a run up to the end of the answer.
pub(super) async fn fold_to_end<F: Fold>(
    mut events: RunEvents,
    mut fold: F,
) -> Result<F, HostError> {
    let mut parts = Vec::new();
    while !fold.has_ended() {
        match events.next().await? {
            Some(event) => fold.push(&event, &mut parts),
            None => return Err(HostError::SessionClosed),
        }
        parts.clear();
    }
    Ok(fold)
}

/// The fold of an answer, which notes at its end what the client holds. If it is dropped before, the run goes on, and the
/// note is made at its end.
pub(super) struct NotedFold {
    fold: ChatFold,
    context: AnswerContext,
    is_noted: Arc<AtomicBool>,
}

impl NotedFold {
    pub(super) fn new(context: AnswerContext) -> Self {
        context.state.faces.chat.opened(&context.place.run);
        let fold = ChatFold::new(context.settings.clone());
        Self { fold, context, is_noted: Arc::default() }
    }

    pub(super) fn fold(&self) -> &ChatFold {
        &self.fold
    }
}

impl Fold for NotedFold {
    fn push(&mut self, event: &PublishedEvent, parts: &mut Vec<FacePart>) {
        self.fold.push(event, parts);
    }

    fn has_ended(&self) -> bool {
        self.fold.has_ended()
    }

    fn idle_part(&self) -> Option<FacePart> {
        self.fold.idle_part()
    }

    fn fail(&mut self, error: &HostError, parts: &mut Vec<FacePart>) -> bool {
        self.fold.fail(error, parts)
    }

    fn before_end(&mut self) -> Option<BoxFuture<'static, ()>> {
        let is_noted = Arc::clone(&self.is_noted);
        let Some(note) = self.context.note(&self.fold) else {
            is_noted.store(true, Ordering::Relaxed);
            return None;
        };
        Some(Box::pin(async move {
            note.await;
            is_noted.store(true, Ordering::Relaxed);
        }))
    }
}

impl Drop for NotedFold {
    fn drop(&mut self) {
        let run = &self.context.place.run;
        self.context.state.faces.chat.closed(run);
        let is_noted = self.is_noted.load(Ordering::Relaxed);
        if is_noted || !self.context.is_stopped_by_closing() {
            self.context.state.faces.chat.is_left(run, Duration::ZERO);
        }
        if is_noted {
            return;
        }
        let context = self.context.clone();
        let follow = async move {
            let closing = context.state.closing.clone();
            let session = context.session.id().clone();
            tokio::select! {
                () = closing.cancelled() => {}
                followed = context.follow() => {
                    if let Err(error) = followed {
                        tracing::debug!(%session, %error, "run_not_followed");
                    }
                }
            }
        };
        spawn(follow);
    }
}

/// Spawns a task without an owner, if there is a runtime.
#[expect(clippy::disallowed_methods, reason = "the task ends with the run, or with the server")]
fn spawn(future: impl Future<Output = ()> + Send + 'static) {
    if tokio::runtime::Handle::try_current().is_ok() {
        tokio::spawn(future);
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::memory::OpenAnswers;
    use super::*;
    use callsheet_values::types::RunId;

    #[tokio::test(start_paused = true)]
    async fn a_run_is_left_when_nobody_joins_it_in_time() {
        let (answers, run) = (OpenAnswers::default(), RunId("run_1".into()));
        answers.opened(&run);
        answers.closed(&run);
        tokio::time::advance(JOIN_WITHIN / 2).await;
        // The client joins, and leaves again.
        answers.opened(&run);
        tokio::time::advance(JOIN_WITHIN / 2).await;
        assert!(!answers.is_left(&run, JOIN_WITHIN), "it is being answered");
        answers.closed(&run);
        assert!(!answers.is_left(&run, JOIN_WITHIN), "it was closed just now");
        tokio::time::advance(JOIN_WITHIN).await;
        assert!(answers.is_left(&run, JOIN_WITHIN));
    }
}
