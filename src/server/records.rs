//! The endpoints `records`, `verify` and `turns/{turn}/request` below `/v1/sessions/{id}/`: the records of a
//! session in the journal, and the requests to models that the host has kept. None of these endpoints wakes
//! the session.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::answer_limiter;
use super::error::ApiError;
use super::extract::{EmptyBody, PathParameters, PathSession, StrictQuery, page_length};
use super::state::AppState;
use callsheet_host::journal::JournalEntry;
use callsheet_host::runtime::{SentRequest, SessionCheck};
use callsheet_values::types::{Seq, excerpt};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RecordsQuery {
    #[serde(default)]
    after: u64,
    limit: Option<usize>,
}

#[derive(Debug, Serialize)]
struct RecordList<'a> {
    records: &'a [JournalEntry],
    /// The value of `after` for the next page; null on the last page.
    next: Option<Seq>,
}

/// Returns a page of records, which ends early if they are large.
pub(super) async fn list(
    State(state): State<AppState>,
    PathSession(session): PathSession,
    StrictQuery(RecordsQuery { after, limit }): StrictQuery<RecordsQuery>,
) -> Result<Response, ApiError> {
    let limit = page_length(limit)?;
    // One request of this kind at a time: see `JournalReads`.
    let _guard = state.reads.pages.lock().await;
    let (records, has_more) = session.record_page(Seq(after), limit).await?;
    let next = records.last().filter(|_| has_more).map(|entry| entry.seq);
    state.answer_limiter.json(&RecordList { records: &records, next })
}

/// Checks the stored records, as `callsheet sessions verify` does.
pub(super) async fn verify(
    State(state): State<AppState>,
    PathSession(session): PathSession,
    _: EmptyBody,
) -> Result<Response, ApiError> {
    let _guard = state.reads.checks.lock().await;
    let SessionCheck { records, open_run, breaches, .. } = session.verify().await?;
    let breaches = breaches.iter().map(|breach| {
        let (seq, invariant) = (breach.seq, breach.invariant.as_str());
        json!({"seq": seq, "invariant": invariant, "what": breach.message})
    });
    let breaches: Vec<Value> = breaches.collect();
    let body = json!({"records": records, "open_run": open_run, "breaches": breaches});
    state.answer_limiter.json(&body)
}

/// Returns the exact body of the request of a turn's newest attempt.
pub(super) async fn request(
    State(state): State<AppState>,
    PathSession(session): PathSession,
    path: PathParameters,
) -> Result<Response, ApiError> {
    if !state.host.console().requests {
        let message = "this host keeps no requests to models, because they may hold secrets; set \
                       requests = true in [console]";
        return Err(ApiError::not_found("requests_not_kept", message));
    }
    let turn = path.get("turn").unwrap_or_default();
    let sent = turn.parse().ok().and_then(|turn| session.sent_request(turn));
    let Some(SentRequest { attempt, model, body, .. }) = sent else {
        if !session.exists().await? {
            return Err(ApiError::no_such_session(session.id().as_str()));
        }
        let message = format!(
            "no request of turn {:?} is kept: the turn has sent none, or it is not among the newest \
             64 MiB since the host started",
            excerpt(turn, 20)
        );
        return Err(ApiError::not_found("no_such_request", message));
    };
    let permit = state.answer_limiter.try_acquire(body.len(), body.len())?;
    let headers = [
        (header::CONTENT_TYPE.as_str(), "application/json".to_owned()),
        ("callsheet-attempt", attempt.to_string()),
        ("callsheet-model", model),
    ];
    Ok((headers, answer_limiter::body(body, permit)).into_response())
}
