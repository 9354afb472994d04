//! Runs of equal requests that this process has not seen: of an earlier process of this host, which has crashed, or of
//! another host. [`Retries`](super::retries::Retries) does not know them; the journal does.
//!
//! A session that a request without a key opens has the request's digest in its id. In a session that was there before,
//! the run of an equal request has the same input.

use std::cmp::Reverse;
use std::time::Duration;

use super::super::state::ApiState;
use super::begin::ReceivedRequest;
use super::records::for_each_record;
use super::retries::{KEPT_FOR, REPEAT_WITHIN, RunPlace};
use super::session_of;
use callsheet_host::journal::{SessionQuery, unix_ms};
use callsheet_host::runtime::{HostError, SessionHandle};
use callsheet_values::record::Record;
use callsheet_values::types::{Content, SessionId};

/// The beginnings of the ids of sessions that requests open: of those that are stored, and of the others.
pub(super) const SESSION_PREFIXES: [&str; 2] = ["ses_", "unstored_"];

/// The time for which a client may wait for an answer: the timeout of OpenAI's SDKs.
const ANSWERED_FOR: Duration = Duration::from_secs(600);

/// Maximum number of sessions of equal requests that are looked at.
const SESSIONS_MAX: usize = 16;

/// The last run of a session.
struct LastRun {
    place: RunPlace,
    input: Content,
    started: u64,
    ended: Option<u64>,
    /// Its number among the runs that began in the session, from 1. A fork has copies of earlier ones.
    number: u32,
}

/// Finds the runs that equal requests have started, if they can be this one, sent again: first the one that it repeats,
/// then those whose answers broke, too. `target` returns the session that the request goes on in, and
/// its input.
pub(super) async fn find(
    state: &ApiState,
    request: ReceivedRequest<'_>,
    target: impl FnOnce() -> Option<(SessionHandle, Content)>,
) -> Result<Vec<RunPlace>, HostError> {
    let is_marked = request.is_marked();
    let host_started = state.faces.started;
    if request.key().is_some() || !(is_marked || since(host_started) < REPEAT_WITHIN.as_millis()) {
        return Ok(Vec::new());
    }
    // Its answer ended with the process before.
    let is_cut = |run: &LastRun| {
        run.started < host_started && run.ended.is_none_or(|ended| ended > host_started)
    };
    let repeats = |run: &LastRun| match is_marked {
        true => run.ended.is_none_or(|ended| since(ended) < KEPT_FOR.as_millis()),
        false => is_cut(run),
    };
    if let Some((session, input)) = target() {
        let run = last_run(&session).await?.filter(|run| run.input == input && repeats(run));
        if let Some(run) = run {
            return Ok(vec![run.place]);
        }
    }
    let mut runs = Vec::new();
    for id in opened(state, request).await? {
        let Ok(session) = session_of(state, request.caller, &id).await else { continue };
        // A later run is of another request.
        runs.extend(last_run(&session).await?.filter(|run| run.number == 1 && repeats(run)));
    }
    runs.sort_by_key(|run: &LastRun| (!is_cut(run), Reverse(run.started)));
    let is_recent = |run: &LastRun| is_cut(run) && since(run.started) < ANSWERED_FOR.as_millis();
    let others = runs.iter().skip(1).filter(|run| is_recent(run));
    let all = runs.first().into_iter().chain(others);
    Ok(all.map(|run| run.place.clone()).collect())
}

/// Returns the session that an equal request has opened, if this one is known to be that one, sent again.
pub(super) async fn session_of_repeated(
    state: &ApiState,
    request: ReceivedRequest<'_>,
) -> Option<SessionId> {
    if request.key().is_some() {
        let ids = SESSION_PREFIXES.into_iter().filter_map(|prefix| request.new_session(prefix));
        for id in ids {
            if state.host.session(&id).exists().await.is_ok_and(|exists| exists) {
                return Some(id);
            }
        }
        return None;
    }
    let is_marked = request.is_marked();
    if is_marked { opened(state, request).await.ok()?.pop() } else { None }
}

/// Returns the sessions that equal requests without a key have opened.
async fn opened(
    state: &ApiState,
    request: ReceivedRequest<'_>,
) -> Result<Vec<SessionId>, HostError> {
    let mut opened = Vec::new();
    for prefix in SESSION_PREFIXES.map(|prefix| request.session_prefix(prefix)) {
        let query = SessionQuery::default().with(|query| {
            query.after = SessionId::parse(&prefix).ok();
            query.limit = SESSIONS_MAX;
        });
        let found = state.host.sessions(query).await?.into_iter().map(|found| found.id);
        opened.extend(found.filter(|id| id.as_str().starts_with(&prefix)));
    }
    Ok(opened)
}

/// Returns the milliseconds since a Unix time in milliseconds.
fn since(time: u64) -> u128 {
    unix_ms().saturating_sub(time).into()
}

async fn last_run(session: &SessionHandle) -> Result<Option<LastRun>, HostError> {
    let (mut last, mut number) = (None::<LastRun>, 0);
    for_each_record(session, |entry| {
        let ends = matches!(entry.record, Record::RunEnded { .. });
        let reopens = matches!(entry.record, Record::RunReopened { .. });
        if let Record::RunStarted { run_id: run, input, .. } = entry.record {
            let place = RunPlace { session: session.id().clone(), run, seq: entry.seq };
            number += 1;
            last = Some(LastRun { place, input, started: entry.time, ended: None, number });
        } else if matches!(entry.record, Record::SessionForked { .. }) {
            (last, number) = (None, 0);
        } else if let Some(run) = last.as_mut().filter(|_| ends || reopens) {
            run.ended = ends.then_some(entry.time);
        }
    })
    .await?;
    Ok(last)
}
