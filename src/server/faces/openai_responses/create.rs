//! `POST /v1/responses`: starts a run, or lets one go on that waits for its client.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;

use super::super::super::access::Caller;
use super::super::super::approvals::MESSAGE_CHARS_MAX;
use super::super::super::state::ApiState;
use super::super::begin::{self, ActedRun, BegunRun, ReceivedRequest};
use super::super::earlier::SESSION_PREFIXES;
use super::super::openai_error::{OpenAiError, ParameterNames, wrong};
use super::super::stream::{Fold as _, RunEvents};
use super::super::{AskedAgent, named_session, session_of};
use super::fold::{FoldOptions, ResponseFold, Wait};
use super::ids::{ItemId, ResponseId};
use super::object::{FACE_PAIR, ResponseSettings};
use super::request::{
    CreateRequest, InputItem, ItemPlace, Named, history, history_and_input, input,
    no_such_conversation, no_such_response,
};
use super::stored::{StoredRun, runs_of, session_tools};
use super::{fold_options, unstored};
use callsheet_host::runtime::{
    ClientResultError, HostError, OpenSession, RunRequest, SessionHandle, StartedRun,
};
use callsheet_machines::turn::ApprovalDecision;
use callsheet_values::config::TokenScope;
use callsheet_values::types::{ApprovalVerdict, Content, Seq, SessionId, WaitPhase};

/// The pause between attempts to answer a call that the session hands to the client at this moment, and their number.
const ANSWER_AGAIN: Duration = Duration::from_millis(20);
const ANSWER_TRIES: u32 = 250;

const PARAMETER_NAMES: ParameterNames = ParameterNames {
    function: "",
    schema: "parameters",
    format: "text.format",
    output: "text.format.schema",
    instructions: "instructions",
    max_output: "max_output_tokens",
};

/// What a request does.
pub(super) enum Plan {
    /// Starts a run in a new session with this id.
    New(Option<SessionId>),
    /// Starts a run in a session, after its last one.
    Next(SessionHandle),
    /// Starts a run after an earlier one: in its session, or in a fork if there is a later one.
    After(Box<StoredRun>, Seq),
    /// Lets the run go on whose response has ended for its client.
    Resume(Box<StoredRun>, Box<ResponseFold>),
    /// Sends the response of a run again that begins with this record.
    Again(Box<StoredRun>, Seq),
    /// Says again what the run waits for, because the request does not decide it.
    Repeat(Box<ResponseFold>),
}

/// Finds the agent that a request asks for.
pub(super) fn agent_of(
    state: &ApiState,
    caller: &Caller,
    request: &CreateRequest,
) -> Result<AskedAgent, OpenAiError> {
    let default = state.options.faces.openai.default_agent.as_deref();
    let found = match request.model.is_empty() {
        true => {
            let agent = state.host.agent_name(default.map(str::to_owned))?;
            AskedAgent { agent: agent.to_string(), model: None }
        }
        false => AskedAgent::find(state, &request.model, default)
            .ok_or_else(|| OpenAiError::no_such_model(&request.model, &state.host.agents()))?,
    };
    caller.check_agent(&found.agent)?;
    Ok(found)
}

/// Finds out what a request does, without an effect. Leaves items out of the request that say nothing new.
pub(super) async fn plan(
    state: &ApiState,
    received: ReceivedRequest<'_>,
    request: &mut CreateRequest,
    asked: &AskedAgent,
    console: &str,
) -> Result<Plan, OpenAiError> {
    let caller = received.caller;
    let named = named_session(received.headers)?;
    let place = place_of_items(request);
    let session = match (&request.names, &place) {
        (Some(Named::Response(id)), _) => Some(&id.session),
        (Some(Named::Conversation(session)), _) => Some(session),
        (None, Some(place)) => Some(&place.session),
        (None, None) => None,
    };
    if let (Some(named), Some(session)) = (&named, session)
        && named != session
    {
        return Err(wrong("X-Callsheet-Session", "names another session than the body"));
    }
    let options = |id: ResponseId, run: &StoredRun| fold_options(state, id, run, None, console);
    match (request.names.clone(), place) {
        (Some(Named::Response(id)), _) => {
            let missing = || no_such_response("previous_response_id", &id.to_string());
            let planned = async {
                let run =
                    StoredRun::of_response(state, caller, &id, "previous_response_id").await?;
                check_agent(&run.session, asked, "previous_response_id").await?;
                let fold = run.fold(options(id.clone(), &run)).await?;
                plan_after(caller, run, fold.ok_or_else(missing)?, request).await
            };
            // Its session may be deleted meanwhile.
            planned.await.map_err(|error| if error.is_not_found() { missing() } else { error })
        }
        (Some(Named::Conversation(session)), _) => {
            let missing = || no_such_conversation(&super::ids::conversation_id(&session));
            match session_of(state, caller, &session).await {
                Ok(found) => check_agent(&found, asked, "conversation").await?,
                Err(error) => {
                    let error = OpenAiError::from(error);
                    return Err(if error.is_not_found() { missing() } else { error });
                }
            }
            plan_in(state, caller, &session, asked, request, console).await
        }
        (None, Some(ItemPlace { session, run: None })) => {
            plan_in(state, caller, &session, asked, request, console).await
        }
        (None, Some(ItemPlace { session, run: Some(run) })) => {
            let found = match request.goes_on_elsewhere() {
                true => None,
                false => StoredRun::find(state, caller, &session, run).await?,
            };
            // A client may hand the history of one agent to another one.
            if let Some(run) = found
                && run.session.agent().await? == asked.agent
            {
                let fold = run.last_response(options(response_id(&run), &run)).await?;
                // A session that is not stored is deleted soon, and the items say what it was.
                if fold.run_end().is_none() || !unstored::is_unstored(&session) {
                    return plan_after(caller, run, fold, request).await;
                }
            }
            request.forget_places()?;
            Ok(Plan::New(named))
        }
        (None, None) => match named {
            Some(id) if state.host.session(&id).exists().await? => {
                plan_in(state, caller, &id, asked, request, console).await
            }
            named => Ok(Plan::New(named)),
        },
    }
}

/// Returns the place that the input goes on from: of the call or the approval that it answers, or of the last item that
/// this host has sent.
fn place_of_items(request: &CreateRequest) -> Option<ItemPlace> {
    let (own, items) = request.new_items();
    let answered = items.iter().filter_map(answered_id).find_map(|id| {
        let id = ItemId::parse(&id)?;
        Some(ItemPlace { session: id.session, run: Some(id.run) })
    });
    answered.or_else(|| own.cloned())
}

fn response_id(run: &StoredRun) -> ResponseId {
    ResponseId { session: run.place.session.clone(), run: run.place.seq, begins: run.place.seq }
}

/// Plans a request for a session, after all that it has.
async fn plan_in(
    state: &ApiState,
    caller: &Caller,
    session: &SessionId,
    asked: &AskedAgent,
    request: &mut CreateRequest,
    console: &str,
) -> Result<Plan, OpenAiError> {
    let handle = session_of(state, caller, session).await?;
    check_agent(&handle, asked, "model").await?;
    let is_waiting = handle
        .snapshot()
        .await?
        .current_run
        .is_some_and(|run| !(run.approvals.is_empty() && run.client_calls.is_empty()));
    let last = match is_waiting {
        true => runs_of(&handle).await?.pop(),
        false => None,
    };
    let Some(last) = last else { return Ok(Plan::Next(handle)) };
    let Some(run) = StoredRun::find(state, caller, session, last).await? else {
        return Ok(Plan::Next(handle));
    };
    let options = fold_options(state, response_id(&run), &run, None, console);
    let fold = run.last_response(options).await?;
    plan_after(caller, run, fold, request).await
}

async fn check_agent(
    session: &SessionHandle,
    asked: &AskedAgent,
    param: &str,
) -> Result<(), OpenAiError> {
    let agent = session.agent().await?;
    if agent == asked.agent {
        return Ok(());
    }
    let problem = format!("belongs to a session of the agent {agent:?}, which must be the model");
    Err(wrong(param, problem))
}

/// Plans what follows a response.
async fn plan_after(
    caller: &Caller,
    run: StoredRun,
    fold: ResponseFold,
    request: &mut CreateRequest,
) -> Result<Plan, OpenAiError> {
    let answered = request.drop_answered(&run.place.session, &waiting_ids(&fold));
    let (_, items) = request.new_items();
    let has_input = items.iter().any(|item| matches!(item, InputItem::User(_)));
    if !answered.is_empty() && !has_input && !items.iter().any(InputItem::is_answer) {
        return plan_again(run, &fold, &answered).await;
    }
    if !fold.has_ended() {
        return Err(in_progress());
    }
    if let Some(end) = fold.run_end() {
        return match items.iter().any(InputItem::is_answer) {
            true => Err(wrong(
                "input",
                "has the result of a call, or a decision, for which no response waits",
            )),
            false => Ok(Plan::After(Box::new(run), end)),
        };
    }
    let current = run.session.snapshot().await?.current_run;
    let current = current.filter(|current| current.run_id == run.place.run);
    let goes_on_behind = current.is_none() && has_input && !run.has_messages_of(items).await?;
    if items.iter().any(InputItem::is_answer) && !goes_on_behind {
        if items.iter().any(|item| matches!(item, InputItem::Decision { .. })) {
            caller.check_scope(TokenScope::Approve)?;
        }
        check_answers(&fold, items)?;
        return Ok(Plan::Resume(Box::new(run), Box::new(fold)));
    }
    match current {
        Some(current) if current.approvals.is_empty() && current.client_calls.is_empty() => {
            Err(in_progress())
        }
        Some(_) => {
            let call = fold.waits().find_map(client_call_id);
            match call {
                Some(id) => Err(wrong("input", format!("no output found for the call {id}"))),
                None => Ok(Plan::Repeat(Box::new(fold))),
            }
        }
        None => {
            let answers: Vec<String> = items.iter().filter_map(answered_id).collect();
            let has_result = |id: &String| answered.contains(id) || answers.contains(id);
            if let Some(id) = fold.waits().find_map(client_call_id).filter(|id| !has_result(id)) {
                return Err(wrong("input", format!("no output found for the call {id}")));
            }
            // Decided elsewhere, and over.
            let options = FoldOptions { id: response_id(&run), ..fold.options().clone() };
            match run.last_response(options).await?.run_end() {
                Some(end) => Ok(Plan::After(Box::new(run), end)),
                None => Err(in_progress()),
            }
        }
    }
}

/// Plans a request with results that the run has: the response that followed them is sent again.
async fn plan_again(
    run: StoredRun,
    fold: &ResponseFold,
    answered: &[String],
) -> Result<Plan, OpenAiError> {
    let options = FoldOptions { id: response_id(&run), ..fold.options().clone() };
    let responses = run.responses(options).await?;
    let waited = |fold: &&ResponseFold| waiting_ids(fold).iter().any(|id| answered.contains(id));
    let Some(before) = responses.iter().rfind(waited) else {
        return Err(wrong("input", "has only results of calls that have their results"));
    };
    let begins = Seq(before.ended_at().0 + 1);
    Ok(Plan::Again(Box::new(run), begins))
}

/// Returns the error of a request for a conversation that has a response in progress.
fn in_progress() -> OpenAiError {
    let message = "a response of this conversation is in progress: wait for its end, or cancel it";
    OpenAiError::new(StatusCode::UNPROCESSABLE_ENTITY, "run_in_progress", message)
}

fn client_call_id(wait: Wait<'_>) -> Option<String> {
    match wait {
        Wait::Client(id) => Some(id),
        Wait::Approval(..) => None,
    }
}

/// Returns the ids of what a response waits for.
fn waiting_ids(fold: &ResponseFold) -> Vec<String> {
    let id = |wait| match wait {
        Wait::Approval(_, id) | Wait::Client(id) => id,
    };
    fold.waits().map(id).collect()
}

/// Returns the id of what an item answers.
fn answered_id(item: &InputItem) -> Option<String> {
    match item {
        InputItem::Output { call: id, .. } | InputItem::Decision { request: id, .. } => {
            Some(id.clone())
        }
        InputItem::User(_)
        | InputItem::Assistant { .. }
        | InputItem::Call { .. }
        | InputItem::Own { .. }
        | InputItem::Reference(_) => None,
    }
}

/// Checks that the items answer all that the response waits for, and nothing else.
fn check_answers(fold: &ResponseFold, items: &[InputItem]) -> Result<(), OpenAiError> {
    let waits = waiting_ids(fold);
    let answers: Vec<String> = items.iter().filter_map(answered_id).collect();
    if let Some(other) = answers.iter().find(|id| !waits.contains(id)) {
        let call =
            |id: &str| ItemId::parse(id).map(|it| it.of.split('.').next().map(str::to_owned));
        let is_stale = waits.iter().any(|wait| call(wait).is_some() && call(wait) == call(other));
        let message = match is_stale {
            true => format!("{other} is about other arguments than those that wait for a decision"),
            false => {
                format!("no response waits for {:?}", callsheet_values::types::excerpt(other, 200))
            }
        };
        return Err(wrong("input", message));
    }
    match waits.iter().find(|id| !answers.contains(id)) {
        Some(missing) => {
            let kind = if missing.starts_with("call_") { "output" } else { "decision" };
            Err(wrong("input", format!("no {kind} found for {missing}: answer all that wait")))
        }
        None => Ok(()),
    }
}

/// A response whose answer begins, and parameters that were not taken because the agent allows less.
pub(super) struct BegunResponse {
    pub(super) begun: BegunRun,
    pub(super) fold: FoldOptions,
    pub(super) ignored: Vec<&'static str>,
}

/// Carries a plan out, unless the request repeats an earlier one.
pub(super) async fn carry_out(
    state: &ApiState,
    received: ReceivedRequest<'_>,
    request: &CreateRequest,
    asked: &AskedAgent,
    plan: Plan,
    console: &str,
) -> Result<BegunResponse, OpenAiError> {
    let mut ignored = Vec::new();
    let (_, items) = request.new_items();
    let gone_on = match &plan {
        Plan::Resume(run, fold) => Some((run, Seq(fold.ended_at().0 + 1), items)),
        Plan::Again(run, begins) => Some((run, *begins, &[][..])),
        Plan::New(_) | Plan::Next(_) | Plan::After(..) | Plan::Repeat(_) => None,
    };
    if let Some((run, begins, items)) = gone_on {
        ignored.extend(without_effect(request, &run.settings));
        let begun = begin::begin(state, received, || None, resume(run, items)).await?;
        let id = ResponseId { begins, ..response_id(run) };
        let fold = fold_options(state, id, run, None, console);
        return Ok(BegunResponse { begun, fold, ignored });
    }
    let continued = match &plan {
        Plan::Next(session) => Some(session.clone()),
        Plan::After(run, _) => Some(run.session.clone()),
        Plan::New(_) | Plan::Resume(..) | Plan::Again(..) | Plan::Repeat(_) => None,
    };
    let target = || continued.zip(input(items).ok());
    let start = async {
        let (OpenedSession { session, is_new }, content) =
            open(state, received, request, asked, plan).await?;
        let started = start(&session, request, asked, content, received, &mut ignored).await;
        if started.is_err() && is_new {
            // Nothing is half done.
            drop(session.close().await);
        }
        started
    };
    let begun = begin::begin(state, received, target, start).await?;
    let id = ResponseId {
        session: begun.session.id().clone(),
        run: begun.place.seq,
        begins: begun.place.seq,
    };
    let mut settings = request.settings();
    settings.session_tools = session_tools(&begun.session).await?;
    settings.overrides = Arc::new(request.overrides.clone().with(|overrides| {
        overrides.model.clone_from(&asked.model);
        if ignored.contains(&PARAMETER_NAMES.max_output) {
            overrides.max_output_tokens = None;
        }
    }));
    let openai = &state.options.faces.openai;
    let fold = FoldOptions {
        id,
        after: None,
        show_tools: openai.show_tools,
        unproven_text: openai.unproven_text,
        console: console.to_owned(),
        settings: Arc::new(settings),
    };
    Ok(BegunResponse { begun, fold, ignored })
}

/// Returns the names of parameters of a request for a run that goes on with others.
fn without_effect(request: &CreateRequest, run: &ResponseSettings) -> Vec<&'static str> {
    let mut names = begin::without_effect(&request.overrides, &run.overrides, &PARAMETER_NAMES);
    let mut pairs = request.metadata.iter().filter(|(name, _)| *name != FACE_PAIR);
    if pairs.any(|(name, value)| run.metadata.get(name) != Some(value)) {
        names.push("metadata");
    }
    if request.pair.unstored && !run.pair.unstored {
        names.push("store");
    }
    names
}

/// A session for a run.
struct OpenedSession {
    session: SessionHandle,
    is_new: bool,
}

/// Opens the session of a plan that starts a run. Returns it with the input.
async fn open(
    state: &ApiState,
    received: ReceivedRequest<'_>,
    request: &CreateRequest,
    asked: &AskedAgent,
    plan: Plan,
) -> Result<(OpenedSession, Content), OpenAiError> {
    let caller = received.caller;
    let (own, items) = request.new_items();
    let goes_on = own.is_some() || !matches!(plan, Plan::New(_));
    let (messages, content) = match goes_on {
        true => (Vec::new(), input(items)?),
        false => history_and_input(items)?,
    };
    let is_unstored = request.pair.unstored;
    let [stored, unstored] = SESSION_PREFIXES;
    let new_id = || received.new_session(if is_unstored { unstored } else { stored });
    let fork_id = || new_id().map(|id| id.to_string());
    let (session, is_new) = match plan {
        Plan::Next(session) if is_unstored && !unstored::is_unstored(session.id()) => {
            let at = session.stored_snapshot().await?.seq;
            (state.host.fork(&session, at, fork_id()).await?, true)
        }
        Plan::Next(session) => (session, false),
        Plan::After(run, end) => {
            let may_go_on = !is_unstored || unstored::is_unstored(run.session.id());
            match may_go_on && run.is_last(end).await? {
                true => (run.session, false),
                false => (state.host.fork(&run.session, end, fork_id()).await?, true),
            }
        }
        Plan::New(named) => {
            let id = named.or_else(new_id);
            let open = OpenSession::default().with(|open| {
                open.agent = Some(asked.agent.clone());
                open.id = id.as_ref().map(ToString::to_string);
                open.messages = messages;
            });
            match (state.host.open_session(open).await, id) {
                // A request with the same key or name has opened it.
                (Err(HostError::SessionExists), Some(id)) => {
                    (session_of(state, caller, &id).await?, false)
                }
                (opened, _) => (opened?, true),
            }
        }
        // They start no run.
        Plan::Resume(run, _) | Plan::Again(run, _) => (run.session, false),
        Plan::Repeat(_) => return Err(OpenAiError::from(HostError::RunInProgress)),
    };
    Ok((OpenedSession { session: caller.with_author(session), is_new }, content))
}

/// Opens a session with the history that a request names.
pub(super) async fn copy(
    state: &ApiState,
    caller: &Caller,
    request: &CreateRequest,
    asked: &AskedAgent,
    plan: Plan,
) -> Result<SessionHandle, OpenAiError> {
    let (_, items) = request.new_items();
    if !matches!(plan, Plan::New(_)) && !items.is_empty() {
        return Err(wrong(
            "input",
            "must have no item behind the history: send it with the next request",
        ));
    }
    let session = match plan {
        Plan::New(_) => {
            let messages = history(items)?;
            let open = OpenSession::default().with(|open| {
                open.agent = Some(asked.agent.clone());
                open.messages = messages;
            });
            state.host.open_session(open).await?
        }
        Plan::Next(session) => {
            let at = session.stored_snapshot().await?.seq;
            state.host.fork(&session, at, None).await?
        }
        Plan::After(run, end) => state.host.fork(&run.session, end, None).await?,
        Plan::Resume(..) | Plan::Again(..) | Plan::Repeat(_) => {
            return Err(HostError::RunInProgress.into());
        }
    };
    Ok(caller.with_author(session))
}

/// Starts the run. A maximum above that of the agent is left out, and named in `ignored`.
async fn start(
    session: &SessionHandle,
    request: &CreateRequest,
    asked: &AskedAgent,
    content: Content,
    received: ReceivedRequest<'_>,
    ignored: &mut Vec<&'static str>,
) -> Result<StartedRun, OpenAiError> {
    let run = RunRequest::default().with(|run| {
        run.input = content;
        run.overrides = request.overrides.clone();
        run.overrides.model.clone_from(&asked.model);
        run.metadata = request.metadata.clone();
        run.request_key = received.request_key();
    });
    begin::start_run(session, run, &PARAMETER_NAMES, ignored).await.map_err(|error| {
        if error == HostError::RunInProgress {
            return in_progress();
        }
        let tools = request.overrides.client_tools.as_deref();
        OpenAiError::of_start(error, tools, &PARAMETER_NAMES)
    })
}

/// Answers what a run waits for. Further messages of the user steer it, unless the run has all that the request answers:
/// then the client sends it once more.
async fn resume(run: &StoredRun, items: &[InputItem]) -> Result<ActedRun, OpenAiError> {
    let session = &run.session;
    let (mut is_repeated, mut is_new) = (false, false);
    for item in items {
        match item {
            InputItem::Decision { request, approve, reason } => {
                decide(session, request, *approve, reason.clone()).await?;
            }
            InputItem::Output { call, output } => {
                let call = ItemId::parse(call).map_or("", |id| id.of);
                let mut tries = 0;
                loop {
                    tries += 1;
                    match session.answer_call(call, output.clone()).await {
                        Ok(()) => is_new = true,
                        Err(HostError::ClientResult(ClientResultError::AlreadyAnswered)) => {
                            is_repeated = true;
                        }
                        // The response shows a call when it is certain, and the session may hand it out a moment later.
                        Err(HostError::ClientResult(ClientResultError::NoSuchCall))
                            if tries < ANSWER_TRIES =>
                        {
                            tokio::time::sleep(ANSWER_AGAIN).await;
                            continue;
                        }
                        Err(error) => return Err(error.into()),
                    }
                    break;
                }
            }
            InputItem::User(_) if is_repeated && !is_new => {}
            InputItem::User(content) => drop(session.steer(content.clone()).await?),
            InputItem::Assistant { .. }
            | InputItem::Call { .. }
            | InputItem::Own { .. }
            | InputItem::Reference(_) => {}
        }
    }
    let events = RunEvents::join(session.clone(), run.place.clone()).await?;
    Ok(ActedRun { session: session.clone(), place: run.place.clone(), events })
}

/// Decides about a call, or answers the question of its tool: with the reason, if that is JSON.
async fn decide(
    session: &SessionHandle,
    request: &str,
    approve: bool,
    reason: Option<String>,
) -> Result<(), OpenAiError> {
    let missing = || wrong("input", "approval_request_id: no response waits for it");
    let id = ItemId::parse(request).ok_or_else(missing)?;
    let mut parts = id.of.splitn(3, '.');
    let (Some(call), Some(phase), Some(sha)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(missing());
    };
    let key = call.parse().map_err(|_| missing())?;
    let phase = [WaitPhase::Before, WaitPhase::After, WaitPhase::Input]
        .into_iter()
        .find(|it| it.as_str() == phase);
    if reason.as_ref().is_some_and(|reason| reason.chars().nth(MESSAGE_CHARS_MAX).is_some()) {
        return Err(wrong("input", format!("reason: at most {MESSAGE_CHARS_MAX} characters")));
    }
    let is_question = phase == Some(WaitPhase::Input);
    let content = reason.as_deref().filter(|_| is_question && approve);
    let content = content.and_then(|text| serde_json::from_str(text).ok());
    let decision = ApprovalDecision {
        phase,
        verdict: if approve { ApprovalVerdict::Approved } else { ApprovalVerdict::Rejected },
        message: reason.filter(|reason| content.is_none() && !reason.trim().is_empty()),
        arguments_sha256: sha.to_owned(),
        content,
        author: None,
    };
    Ok(session.decide(key, decision).await?)
}
