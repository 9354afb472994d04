//! Begins the answer to a request for a run: starts the run, or joins the one that the same request has started before.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

use axum::extract::Request;
use axum::http::HeaderMap;

use super::super::access::Caller;
use super::super::error::ApiError;
use super::super::extract::{ReceivedBody, check_media_type, read_in_time};
use super::super::state::ApiState;
use super::answer::FaceAnswer;
use super::earlier;
use super::retries::{self, Begun, RequestDigest, RunPlace};
use super::stream::RunEvents;
use callsheet_host::runtime::{HostError, SessionHandle, StartedRun};
use callsheet_host::telemetry::FaceKind;
use callsheet_values::types::{Content, SessionId};

/// The header with which a client names a request. The same name means the same request.
const KEY_HEADER: &str = "idempotency-key";

/// A request with a JSON body that was read. It holds its share of the memory for bodies.
pub(super) struct WholeRequest {
    pub(super) headers: HeaderMap,
    path: String,
    body: ReceivedBody,
}

impl WholeRequest {
    pub(super) async fn read(state: &ApiState, request: Request) -> Result<Self, ApiError> {
        check_media_type(request.headers())?;
        let (headers, path) = (request.headers().clone(), request.uri().path().to_owned());
        Ok(Self { headers, path, body: read_in_time(request, state).await? })
    }

    pub(super) fn received<'a>(
        &'a self,
        face: FaceKind,
        caller: &'a Caller,
    ) -> ReceivedRequest<'a> {
        let Self { headers, path, body } = self;
        ReceivedRequest { face, caller, headers, path, body: &body.bytes }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.body.bytes
    }
}

/// A request for a run, as it was received.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceivedRequest<'a> {
    pub(super) face: FaceKind,
    pub(super) caller: &'a Caller,
    pub(super) headers: &'a HeaderMap,
    pub(super) path: &'a str,
    pub(super) body: &'a [u8],
}

impl ReceivedRequest<'_> {
    /// Returns the request's `Idempotency-Key`.
    pub(super) fn key(&self) -> Option<&str> {
        self.headers.get(KEY_HEADER).and_then(|value| value.to_str().ok())
    }

    /// Returns an id for the session that the request opens. With a key it is the same each time, so that a repeated
    /// request finds the session, also at another host and after a restart.
    pub(super) fn new_session(&self, prefix: &str) -> Option<SessionId> {
        let prefix = self.session_prefix(prefix);
        let id = match self.key() {
            Some(_) => prefix,
            // The keys of the hasher are random.
            None => format!("{prefix}{:08x}", RandomState::new().build_hasher().finish() >> 32),
        };
        SessionId::parse(&id).ok()
    }

    /// Returns the beginning that the ids of such sessions have in common.
    pub(super) fn session_prefix(&self, prefix: &str) -> String {
        format!("{prefix}{}", self.digest().0.digits())
    }

    /// Returns the digest of the request, and whether the client says that it has sent it before.
    pub(super) fn digest(&self) -> (RequestDigest, bool) {
        let author = self.caller.author();
        let author = author.as_ref().map(|author| author.as_str());
        match self.key() {
            Some(key) => (RequestDigest::new(author, self.path, key.as_bytes()), true),
            None => {
                let digest = RequestDigest::new(author, self.path, self.body);
                (digest, retries::is_marked(self.headers))
            }
        }
    }
}

/// A run whose answer begins.
pub(super) struct BegunRun {
    pub(super) session: SessionHandle,
    pub(super) place: RunPlace,
    pub(super) events: RunEvents,
    pub(super) answer: FaceAnswer,
}

/// A run that a request has started, or that goes on because of it.
pub(super) struct ActedRun {
    pub(super) session: SessionHandle,
    pub(super) place: RunPlace,
    pub(super) events: RunEvents,
}

impl From<StartedRun> for ActedRun {
    fn from(run: StartedRun) -> Self {
        let session = run.session().clone();
        let (id, run_id, seq) = (session.id().clone(), run.run_id.clone(), run.seq);
        let place = RunPlace { session: id, run: run_id, seq };
        Self { session, place, events: RunEvents::Started(Box::new(run)) }
    }
}

/// Starts the run of a request with `start`, unless the request repeats an earlier one: then joins its run. `target`: the
/// session that the request goes on in, and its input.
///
/// # Errors
/// If the run cannot be started, or not be joined any more.
pub(super) async fn begin<R: Into<ActedRun>, E: From<HostError>>(
    state: &ApiState,
    request: ReceivedRequest<'_>,
    target: Option<(SessionHandle, Content)>,
    start: impl Future<Output = Result<R, E>>,
) -> Result<BegunRun, E> {
    let (digest, is_marked) = request.digest();
    let (place, answering) = match state.faces.retries.begin(digest, is_marked).await {
        Begun::New(answering) => {
            let earlier = match answering.is_first() {
                true => earlier::find(state, request, target).await?,
                false => None,
            };
            if let Some(place) = &earlier {
                answering.has_started(place.clone());
            }
            (earlier, answering)
        }
        Begun::Repeats(place, answering) => (Some(place), answering),
    };
    let answer = |answering| FaceAnswer::new(request.face, state.host.telemetry(), Some(answering));
    if let Some(place) = place {
        state.host.telemetry().metrics().faces().joined(request.face);
        let session = request.caller.with_author(state.host.session(&place.session));
        return match RunEvents::join(session.clone(), place.clone()).await {
            Ok(events) => Ok(BegunRun { session, place, events, answer: answer(answering) }),
            Err(error) => {
                answer(answering).end_refused();
                Err(error.into())
            }
        };
    }
    let run = match start.await {
        Ok(run) => run,
        Err(error) => {
            answer(answering).end_refused();
            return Err(error);
        }
    };
    let ActedRun { session, place, events } = run.into();
    answering.has_started(place.clone());
    Ok(BegunRun { session, place, events, answer: answer(answering) })
}
