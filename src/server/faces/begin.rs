//! Begins the answer to a request for a run: starts the run, or joins the one that the same request has started before.

use std::borrow::Cow;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};

use axum::extract::Request;
use axum::http::HeaderMap;

use super::super::access::Caller;
use super::super::error::ApiError;
use super::super::extract::{ReceivedBody, check_media_type, read_in_time};
use super::super::state::ApiState;
use super::SESSION_HEADER;
use super::answer::FaceAnswer;
use super::earlier;
use super::openai_error::ParameterNames;
use super::retries::{self, Begun, RequestDigest, RequestNames, RunPlace};
use super::stream::RunEvents;
use callsheet_host::runtime::{HostError, RunRequest, SessionHandle, StartedRun};
use callsheet_host::telemetry::FaceKind;
use callsheet_values::config::RunOverrides;
use callsheet_values::record::RequestKey;
use callsheet_values::types::{Content, SessionId};

/// The header with which a client names a request. The same name means the same request.
pub(super) const KEY_HEADER: &str = "idempotency-key";

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
    /// Returns the request's `Idempotency-Key`. An empty one is none.
    pub(super) fn key(&self) -> Option<&str> {
        let key = self.headers.get(KEY_HEADER).and_then(|value| value.to_str().ok());
        key.map(str::trim).filter(|key| !key.is_empty())
    }

    /// Returns the key with the digest of the path, of the session that the header names and of the body. The order of
    /// members makes no difference.
    pub(super) fn request_key(&self) -> Option<RequestKey> {
        let key = self.key()?;
        // `Value` sorts members.
        let body: serde_json::Value = serde_json::from_slice(self.body).unwrap_or_default();
        Some(RequestKey::new(key, &format!("{} {body}", self.place())))
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
        format!("{prefix}{}", self.digest().digits())
    }

    /// Returns whether the client says that it may have sent the request before.
    pub(super) fn is_marked(&self) -> bool {
        self.attempt() > 0
    }

    /// Returns the number of earlier attempts, as the client counts them: at least 1 with a key, which may have been sent before.
    fn attempt(&self) -> u32 {
        retries::marked_attempt(self.headers).max(self.key().is_some().into())
    }

    /// Returns the path and the session that the header names.
    fn place(&self) -> Cow<'_, str> {
        match self.headers.get(SESSION_HEADER).and_then(|value| value.to_str().ok()) {
            None => self.path.into(),
            Some(session) => format!("{} {session}", self.path).into(),
        }
    }

    fn digest(&self) -> RequestDigest {
        match self.key() {
            None => self.digest_of(&self.place(), self.body),
            Some(key) => self.digest_of(self.path, key.as_bytes()),
        }
    }

    fn digest_of(&self, place: &str, named: &[u8]) -> RequestDigest {
        let author = self.caller.author();
        let author = author.as_ref().map(|author| author.as_str());
        RequestDigest::new(author, place, named)
    }

    fn names(&self) -> RequestNames {
        let digest = self.digest();
        let body = match self.request_key() {
            Some(key) => self.digest_of(self.path, key.digest.as_bytes()),
            None => digest,
        };
        RequestNames { digest, body, attempt: self.attempt() }
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

/// Starts the run of a request with `start`, unless the request repeats an earlier one: then joins its run. `target`
/// returns the session that the request goes on in, and its input.
///
/// # Errors
/// If the run cannot be started, or not be joined any more, or if the key of the request is that of another one.
pub(super) async fn begin<R: Into<ActedRun>, E: From<HostError>>(
    state: &ApiState,
    request: ReceivedRequest<'_>,
    target: impl FnOnce() -> Option<(SessionHandle, Content)>,
    start: impl Future<Output = Result<R, E>>,
) -> Result<BegunRun, E> {
    let (place, answering) = match state.faces.retries.begin(request.names()).await {
        Begun::New(answering) => {
            let earlier = match answering.is_first() {
                true => earlier::find(state, request, target).await?,
                false => Vec::new(),
            };
            let mut earlier = earlier.into_iter();
            let place = earlier.next();
            if let Some(place) = &place {
                answering.has_started(place.clone());
            }
            answering.add_cut(earlier);
            (place, answering)
        }
        Begun::Repeats(place, answering) => (Some(place), answering),
        Begun::KeyReused => return Err(HostError::KeyReused.into()),
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

/// Starts a run without the parameters that its agent does not allow, and adds their names to `ignored`: a temperature,
/// and a maximum of tokens above that of the agent.
pub(super) async fn start_run(
    session: &SessionHandle,
    mut run: RunRequest,
    names: &ParameterNames,
    ignored: &mut Vec<&'static str>,
) -> Result<StartedRun, HostError> {
    loop {
        match session.start_run(run.clone()).await {
            Err(HostError::OverrideNotAllowed("temperature")) => {
                run.overrides.temperature = None;
                ignored.push("temperature");
            }
            Err(HostError::InvalidOverride(error)) if error.key == "max_output_tokens" => {
                run.overrides.max_output_tokens = None;
                ignored.push(names.max_output);
            }
            started => return started,
        }
    }
}

/// Returns the names of parameters of a request that its run, which goes on, does not have.
pub(super) fn without_effect(
    request: &RunOverrides,
    run: &RunOverrides,
    names: &ParameterNames,
) -> Vec<&'static str> {
    fn differs<T: PartialEq>(request: Option<&T>, run: Option<&T>) -> bool {
        request.is_some() && request != run
    }
    let limit = |overrides: &RunOverrides| overrides.limits.max_tool_calls_per_run;
    let all = [
        (differs(request.client_tools.as_ref(), run.client_tools.as_ref()), "tools"),
        (differs(request.tool_choice.as_ref(), run.tool_choice.as_ref()), "tool_choice"),
        (differs(request.instructions.as_ref(), run.instructions.as_ref()), names.instructions),
        (differs(request.temperature.as_ref(), run.temperature.as_ref()), "temperature"),
        (
            differs(request.max_output_tokens.as_ref(), run.max_output_tokens.as_ref()),
            names.max_output,
        ),
        (differs(request.output.as_ref(), run.output.as_ref()), names.format),
        (
            differs(request.multi_tool_calls.as_ref(), run.multi_tool_calls.as_ref()),
            "parallel_tool_calls",
        ),
        (differs(limit(request).as_ref(), limit(run).as_ref()), "max_tool_calls"),
    ];
    all.into_iter().filter(|(is_different, _)| *is_different).map(|(_, name)| name).collect()
}
