//! Runs of equal requests that this process has not seen: of an earlier process of this host, which has crashed, or of
//! another host. [`Retries`](super::retries::Retries) does not know them; the journal does.
//!
//! A session that a request without a key opens has the request's digest in its id. In a session that was there before,
//! the run of an equal request has the same input.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use super::super::state::ApiState;
use super::begin::ReceivedRequest;
use super::records::for_each_record;
use super::retries::{KEPT_FOR, REPEAT_WITHIN, RunPlace};
use super::session_of;
use callsheet_host::journal::{SessionQuery, unix_ms};
use callsheet_host::runtime::{HostError, SessionHandle};
use callsheet_values::record::Record;
use callsheet_values::types::{CallKey, Content, SessionId};

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
    /// The calls that are not over: the time since which each one waits for its client or a person.
    calls: BTreeMap<CallKey, Option<u64>>,
    /// Its number among the runs that began in the session, from 1. A fork has copies of earlier ones.
    number: u32,
}

impl LastRun {
    /// Returns when the answer to its request ended, if it waits. Where all calls wait, an answer ends.
    fn answered(&self) -> Option<u64> {
        let latest = |latest: Option<u64>, since: &Option<u64>| Some(latest.max(Some((*since)?)));
        self.calls.values().try_fold(None, latest).flatten()
    }

    /// Returns whether the answer to its request may have ended with the process before.
    fn is_cut(&self, host_started: u64, is_background: bool) -> bool {
        let answered = if is_background { Some(self.started) } else { self.answered() };
        let repeat_within = REPEAT_WITHIN.as_millis();
        let is_recent = |at: u64| u128::from(host_started.saturating_sub(at)) < repeat_within;
        self.started < host_started
            && self.ended.is_none_or(|ended| ended > host_started)
            && answered.is_none_or(is_recent)
    }
}

/// Returns whether a request of Responses is answered at once.
fn is_background(body: &[u8]) -> bool {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    body["background"] == true
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
    let is_background = is_background(request.body);
    let is_cut = |run: &LastRun| run.is_cut(host_started, is_background);
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
            let (started, ended, calls) = (entry.time, None, BTreeMap::new());
            last = Some(LastRun { place, input, started, ended, calls, number });
        } else if matches!(entry.record, Record::SessionForked { .. }) {
            (last, number) = (None, 0);
        } else if let Some(run) = last.as_mut() {
            if ends || reopens {
                run.ended = ends.then_some(entry.time);
            } else if let Record::CallIntended { call, .. } = &entry.record {
                run.calls.insert(call.key, None);
            } else if let Record::ApprovalAsked { request } = &entry.record {
                run.calls.insert(request.call.key, Some(entry.time));
            } else if let Record::CallEnded { call, .. } = &entry.record {
                run.calls.remove(&call.key);
            } else if let Record::ApprovalGiven { key, .. } = &entry.record {
                run.calls.remove(key);
            }
        }
    })
    .await?;
    Ok(last)
}

#[cfg(test)]
mod tests {
    use callsheet_values::types::{RunId, Seq};

    use super::*;

    #[test]
    fn an_answer_that_had_ended_long_before_the_crash_is_not_cut() {
        let key = |index| CallKey { turn: 1, attempt: 1, index };
        let run = |calls: &[Option<u64>]| LastRun {
            place: RunPlace {
                session: SessionId::parse("s").unwrap(),
                run: RunId("r".into()),
                seq: Seq(2),
            },
            input: Content::default(),
            started: 1_000,
            ended: None,
            calls: (0..).map(key).zip(calls.iter().copied()).collect(),
            number: 1,
        };
        let started = 60_000;
        assert!(run(&[]).is_cut(started, false), "its model was being read");
        assert!(run(&[None]).is_cut(started, false), "a call was running");
        assert!(run(&[Some(2_000), None]).is_cut(started, false), "and another one waited");
        assert!(run(&[Some(2_000), Some(59_000)]).is_cut(started, false), "it waited just then");
        assert!(!run(&[Some(2_000), Some(40_000)]).is_cut(started, false));
        assert!(!run(&[]).is_cut(started, true), "its answer said that it runs");
        assert!(run(&[]).is_cut(5_000, true), "its answer may have been cut");
        let ended = LastRun { ended: Some(3_000), ..run(&[]) };
        assert!(!ended.is_cut(started, false));
    }
}
