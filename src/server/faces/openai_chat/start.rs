//! Finds the session of a request, and starts its run or goes on with it.
//!
//! A request that names no session is recognised by its history, of which the journal knows the hash
//! ([`Host::known_history`](callsheet_host::runtime::Host::known_history)). A history that is the whole one of exactly one
//! session goes on there; of several, nobody knows in which, so that two clients never share one. A history that a
//! session had earlier goes on in a fork. One that is not known is the beginning of a new session.

use axum::http::StatusCode;

use super::super::super::access::Caller;
use super::super::super::state::ApiState;
use super::super::GO_ON;
use super::super::begin::{self, ActedRun, ReceivedRequest};
use super::super::earlier::SESSION_PREFIXES;
use super::super::openai_error::{OpenAiError, wrong};
use super::super::records::overrides_of_run;
use super::super::retries::RunPlace;
use super::super::stream::RunEvents;
use super::super::{AskedAgent, named_session, session_of};
use super::fold::parse_call_id;
use super::messages::{ChatInput, HistoryHash};
use super::request::{CompletionRequest, PARAMETER_NAMES};
use super::results::{SentResults, call_ended};
use callsheet_host::runtime::{
    HistoryPoint, HostError, OpenSession, RunRequest, SessionHandle, SessionSnapshot,
};
use callsheet_values::types::{Content, RunId, Seq, SessionId, SessionState, excerpt};

/// The reason why a request does not start a run.
#[derive(Debug)]
pub(super) enum NotStarted {
    Refused(OpenAiError),
    /// A call of the session's run waits for a person. The request has had no effect.
    Waits(WaitingRun),
}

/// A run that waits for a person.
#[derive(Debug)]
pub(super) struct WaitingRun {
    pub(super) session: SessionHandle,
    pub(super) run: RunId,
    /// The session's last record.
    pub(super) seq: Seq,
    /// The name of the tool.
    pub(super) tool: String,
}

impl<E: Into<OpenAiError>> From<E> for NotStarted {
    fn from(error: E) -> Self {
        Self::Refused(error.into())
    }
}

/// The session of a request.
#[derive(Clone, Debug)]
pub(super) enum SessionTarget {
    /// A new one with this id.
    New(Option<SessionId>),
    /// One that exists, at the point at which the client has seen it, if that is known.
    Known(SessionHandle, Option<HistoryPoint>),
    /// A fork.
    Fork(HistoryPoint),
}

/// A request whose parts were read.
#[derive(Clone, Copy)]
pub(super) struct CompletionStart<'a> {
    pub(super) state: &'a ApiState,
    pub(super) caller: &'a Caller,
    pub(super) received: ReceivedRequest<'a>,
    pub(super) request: &'a CompletionRequest,
    pub(super) agent: &'a AskedAgent,
}

impl CompletionStart<'_> {
    /// Returns the hash of the history, without the input.
    pub(super) fn history(&self) -> HistoryHash {
        let author = self.caller.author();
        let token = author.as_ref().map(|author| author.as_str());
        let empty = HistoryHash::new(token, &self.agent.agent);
        self.request.messages.history.iter().fold(empty, HistoryHash::with_message)
    }

    /// Finds the session. Changes nothing.
    pub(super) async fn target(&self) -> Result<SessionTarget, OpenAiError> {
        let named = self.named_session()?;
        let known = match self.request.messages.history.is_empty() {
            true => Vec::new(),
            false => self.state.host.known_history(&self.history().hex()).await?,
        };
        if let Some(id) = named {
            let session = match session_of(self.state, self.caller, &id).await {
                Ok(session) => session,
                Err(error) if error.is_no_such_session() && !self.continues_calls() => {
                    return Ok(SessionTarget::New(Some(id)));
                }
                // The session of the calls was deleted, but the client still has the history.
                Err(error) if error.is_no_such_session() && !self.is_named_by_client()? => {
                    return Ok(SessionTarget::New(self.new_session()));
                }
                Err(error) => return Err(error.into()),
            };
            let (agent, asked) = (session.agent().await?, &self.agent.agent);
            if agent != *asked {
                // A client hands the history of one agent to another one.
                if !self.is_named_by_client()? {
                    return Ok(SessionTarget::New(self.new_session()));
                }
                let problem = format!("session {id} is of the agent {agent}, not of {asked}");
                return Err(wrong("model", problem));
            }
            let point = known.into_iter().map(|known| known.point);
            let point = point.into_iter().find(|point| point.session == id);
            return Ok(SessionTarget::Known(session, point));
        }
        let session = |id: &SessionId| self.caller.with_author(self.state.host.session(id));
        let is_single = |of_kind: &[HistoryPoint]| of_kind.len() == 1;
        let (whole, earlier): (Vec<_>, Vec<_>) =
            known.into_iter().partition(|known| known.is_whole);
        let points = |known: Vec<callsheet_host::runtime::KnownHistory>| -> Vec<HistoryPoint> {
            known.into_iter().map(|known| known.point).collect()
        };
        let (mut whole, mut earlier) = (points(whole), points(earlier));
        match (is_single(&whole), whole.is_empty() && is_single(&earlier)) {
            (true, _) => {
                let point = whole.remove(0);
                Ok(SessionTarget::Known(session(&point.session), Some(point)))
            }
            (false, true) => Ok(SessionTarget::Fork(earlier.remove(0))),
            (false, false) => Ok(SessionTarget::New(self.new_session())),
        }
    }

    fn new_session(&self) -> Option<SessionId> {
        self.received.new_session(SESSION_PREFIXES[0])
    }

    /// Returns the session that the request goes on in, and its input.
    pub(super) fn continued(&self, target: &SessionTarget) -> Option<(SessionHandle, Content)> {
        let session = match target {
            SessionTarget::Known(session, _) => session.clone(),
            SessionTarget::Fork(point) => self.state.host.session(&point.session),
            SessionTarget::New(_) => return None,
        };
        match &self.request.messages.input {
            ChatInput::User(input) => Some((session, input.clone())),
            ChatInput::Results(..) => None,
        }
    }

    /// Returns whether the input begins with results of calls of a session of this host.
    fn continues_calls(&self) -> bool {
        match &self.request.messages.input {
            ChatInput::User(_) => false,
            ChatInput::Results(results, _) => {
                results.iter().any(|(id, _)| parse_call_id(id).is_some())
            }
        }
    }

    /// Returns the session that the header, the metadata or the calls name.
    fn named_session(&self) -> Result<Option<SessionId>, OpenAiError> {
        let header = named_session(self.received.headers)?;
        let header = header.map(|id| ("X-Callsheet-Session", id));
        let metadata = self.request.session.clone().map(|id| ("metadata.session_id", id));
        let calls = match &self.request.messages.input {
            ChatInput::User(_) => Vec::new(),
            ChatInput::Results(results, _) => {
                let sessions = results.iter().filter_map(|(id, _)| parse_call_id(id));
                sessions.map(|(session, _)| ("tool_call_id", session)).collect()
            }
        };
        let mut named = header.into_iter().chain(metadata).chain(calls);
        let Some((name, id)) = named.next() else { return Ok(None) };
        if let Some((other_name, other)) = named.find(|(_, other)| *other != id) {
            let message = format!("{name} names session {id}, and {other_name} session {other}");
            return Err(wrong(other_name, message));
        }
        Ok(Some(id))
    }

    /// Starts the run of the request, or goes on with the run that waits for it. Adds the names of parameters that have
    /// no effect to `ignored`.
    pub(super) async fn start(
        &self,
        target: SessionTarget,
        ignored: &mut Vec<&'static str>,
    ) -> Result<ActedRun, NotStarted> {
        let messages = &self.request.messages;
        match (&messages.input, target) {
            (ChatInput::Results(results, user), SessionTarget::Known(session, _))
                if self.continues_calls() =>
            {
                self.answer_calls(&session, results, user.as_ref(), ignored).await
            }
            (ChatInput::Results(_, None), target @ SessionTarget::New(_)) => {
                self.start_with(target, &Content::from(GO_ON), ignored).await
            }
            (
                ChatInput::Results(results, None),
                SessionTarget::Known(..) | SessionTarget::Fork(_),
            ) => {
                let id = results.first().map(|(id, _)| excerpt(id, 64)).unwrap_or_default();
                let message = format!(
                    "the session has no call {id:?}, and a call that was made elsewhere can only be in the history \
                     of a new session: leave out the session's name"
                );
                Err(wrong("messages", message).into())
            }
            (ChatInput::User(input) | ChatInput::Results(_, Some(input)), target) => {
                self.start_with(target, input, ignored).await
            }
        }
    }

    async fn start_with(
        &self,
        target: SessionTarget,
        input: &Content,
        ignored: &mut Vec<&'static str>,
    ) -> Result<ActedRun, NotStarted> {
        let (session, point, is_new) = match target {
            SessionTarget::New(id) => {
                let (session, is_new) = self.open(id).await?;
                (session, None, is_new)
            }
            SessionTarget::Fork(point) => (self.fork(&point).await?, None, true),
            SessionTarget::Known(session, point) => (session, point, false),
        };
        if session.state() != SessionState::Idle
            && let Some(run) = self.go_on(&session, point.as_ref(), input).await?
        {
            return Ok(run);
        }
        let (refused, error) = match (self.start_run(&session, input, ignored).await, point) {
            (Ok(run), _) => return Ok(run.into()),
            // Another request with the same history was faster.
            (Err(HostError::RunInProgress), Some(point)) if !self.is_named()? => {
                let fork = self.fork(&point).await?;
                match self.start_run(&fork, input, ignored).await {
                    Ok(run) => return Ok(run.into()),
                    Err(error) => (Some(fork), error),
                }
            }
            (Err(error), _) => (Some(session).filter(|_| is_new), error),
        };
        if let Some(refused) = refused {
            // The refused request leaves nothing. If this fails, a session without a run stays.
            refused.delete().await.unwrap_or_default();
        }
        let tools = self.request.overrides.client_tools.as_deref();
        Err(OpenAiError::of_start(error, tools, &PARAMETER_NAMES).into())
    }

    fn is_named(&self) -> Result<bool, OpenAiError> {
        Ok(self.named_session()?.is_some())
    }

    /// Returns whether the header or the metadata name the session.
    fn is_named_by_client(&self) -> Result<bool, OpenAiError> {
        let header = named_session(self.received.headers)?;
        Ok(header.is_some() || self.request.session.is_some())
    }

    /// Opens a session, and returns true if there was none with this id.
    async fn open(&self, id: Option<SessionId>) -> Result<(SessionHandle, bool), HostError> {
        let open = OpenSession::default().with(|open| {
            open.agent = Some(self.agent.agent.clone());
            open.id = id.as_ref().map(ToString::to_string);
            open.messages = self.request.messages.seed();
        });
        let (session, is_new) = match (self.state.host.open_session(open).await, id) {
            // A repeated request with a key finds the session that it has opened before.
            (Err(HostError::SessionExists), Some(id)) => (self.state.host.session(&id), false),
            (opened, _) => (opened?, true),
        };
        Ok((self.caller.with_author(session), is_new))
    }

    async fn fork(&self, point: &HistoryPoint) -> Result<SessionHandle, OpenAiError> {
        let from = self.state.host.session(&point.session);
        let id = self.new_session().map(|id| id.to_string());
        let fork = self.state.host.fork(&from, point.seq, id).await?;
        Ok(self.caller.with_author(fork))
    }

    /// Starts a run without the parameters that it may not have.
    async fn start_run(
        &self,
        session: &SessionHandle,
        input: &Content,
        ignored: &mut Vec<&'static str>,
    ) -> Result<callsheet_host::runtime::StartedRun, HostError> {
        let key = self.received.request_key();
        let run = RunRequest::default().with(|run| {
            run.input = input.clone();
            run.overrides = self.request.overrides.clone();
            run.overrides.model.clone_from(&self.agent.model);
            run.metadata = self.request.metadata.clone();
            run.request_key = key;
        });
        begin::start_run(session, run, &PARAMETER_NAMES, ignored).await
    }

    /// Handles a message for a session with a run. `None`: the run has ended meanwhile, or its end is not the client's
    /// matter.
    async fn go_on(
        &self,
        session: &SessionHandle,
        point: Option<&HistoryPoint>,
        input: &Content,
    ) -> Result<Option<ActedRun>, NotStarted> {
        let snapshot = session.stored_snapshot().await?;
        let waiting_tool = waiting_tool(&snapshot);
        let Some(run) = snapshot.current_run else { return Ok(None) };
        if let Some(tool) = waiting_tool {
            let (session, run, seq) = (session.clone(), run.run_id, snapshot.seq);
            return Err(NotStarted::Waits(WaitingRun { session, run, seq, tool }));
        }
        if !run.client_calls.is_empty() && self.is_named()? {
            let message = "the run waits for the results of the client's calls: send them as \
                           messages of the role \"tool\"";
            let status = StatusCode::UNPROCESSABLE_ENTITY;
            return Err(OpenAiError::new(status, "run_in_progress", message).into());
        }
        let waited = point.filter(|point| point.waiting_run.as_ref() == Some(&run.run_id));
        let Some(point) = waited else { return Ok(None) };
        match session.steer(input.clone()).await {
            Ok(_) => {}
            Err(HostError::NoRun) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        Ok(Some(act(session, run.run_id, point.seq).await?))
    }

    /// Sends the results of the calls that the client has run. All are checked before the first is sent.
    async fn answer_calls(
        &self,
        session: &SessionHandle,
        results: &[(String, Content)],
        user: Option<&Content>,
        ignored: &mut Vec<&'static str>,
    ) -> Result<ActedRun, NotStarted> {
        let snapshot = session.stored_snapshot().await?;
        let sent = SentResults::read(results, &snapshot)?;
        let run = match snapshot.current_run {
            Some(run) if !sent.awaited.is_empty() => run,
            Some(_) | None => return self.answer_again(session, &sent, user, ignored).await,
        };
        if !sent.ended.is_empty() {
            sent.accepted(session).await?;
        }
        let overrides = overrides_of_run(session, run.seq).await?;
        let asked = &self.request.overrides;
        ignored.extend(begin::without_effect(asked, &overrides, &PARAMETER_NAMES));
        for (key, output) in sent.awaited {
            session.answer_call(&key.to_string(), output).await?;
        }
        if let Some(user) = user {
            session.steer(user.clone()).await?;
        }
        Ok(act(session, run.run_id, snapshot.seq).await?)
    }

    /// Answers results that the session has accepted before: with what has followed them. With a message behind them
    /// the history is one that no session has.
    async fn answer_again(
        &self,
        session: &SessionHandle,
        sent: &SentResults,
        user: Option<&Content>,
        ignored: &mut Vec<&'static str>,
    ) -> Result<ActedRun, NotStarted> {
        let Some(user) = user else {
            let place = sent.accepted(session).await?;
            return Ok(join(session, place).await?);
        };
        if self.is_named_by_client()? {
            let id = sent.ended.keys().next().map(ToString::to_string).unwrap_or_default();
            return Err(call_ended(&id).into());
        }
        self.start_with(SessionTarget::New(self.new_session()), user, ignored).await
    }
}

/// Goes on with a run behind this record.
async fn act(session: &SessionHandle, run: RunId, seen: Seq) -> Result<ActedRun, HostError> {
    join(session, RunPlace { session: session.id().clone(), run, seq: Seq(seen.0 + 1) }).await
}

async fn join(session: &SessionHandle, place: RunPlace) -> Result<ActedRun, HostError> {
    let events = RunEvents::join(session.clone(), place.clone()).await?;
    Ok(ActedRun { session: session.clone(), place, events })
}

/// Returns the tool of the first call that waits for a person.
pub(super) fn waiting_tool(snapshot: &SessionSnapshot) -> Option<String> {
    let run = snapshot.current_run.as_ref().filter(|_| snapshot.approvals_open > 0)?;
    // Without one of its own, a call of a child waits.
    let tool = run.approvals.first().map_or("a sub-agent", |approval| &approval.tool_name);
    Some(tool.to_owned())
}
