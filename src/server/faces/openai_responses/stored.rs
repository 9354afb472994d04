//! Responses as the journal has them.

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;

use serde_json::{Value, json};

use super::super::super::access::Caller;
use super::super::super::state::ApiState;
use super::super::openai_error::OpenAiError;
use super::super::records::{PAGE_RECORDS, for_each_record, for_each_record_after};
use super::super::retries::RunPlace;
use super::super::session_of;
use super::super::stream::Fold as _;
use super::fold::{FoldOptions, ResponseFold, approval_place};
use super::ids::{ItemId, ResponseId};
use super::object::ResponseSettings;
use super::request::{InputItem, no_such_response};
use callsheet_host::runtime::{HostError, SessionHandle};
use callsheet_values::config::ClientTool;
use callsheet_values::record::{PastEvents, Record};
use callsheet_values::types::{ApprovalVerdict, Content, ContentPart, Seq};

/// A run that the journal has.
#[derive(Clone)]
pub(super) struct StoredRun {
    pub(super) session: SessionHandle,
    pub(super) place: RunPlace,
    pub(super) settings: Arc<ResponseSettings>,
    pub(super) input: Content,
}

impl StoredRun {
    /// Finds the run that begins with a record. `None`: there is none that the caller may reach.
    pub(super) async fn find(
        state: &ApiState,
        caller: &Caller,
        session: &callsheet_values::types::SessionId,
        run: Seq,
    ) -> Result<Option<Self>, OpenAiError> {
        let session = match session_of(state, caller, session).await {
            Ok(session) => session,
            Err(error) => {
                let error = OpenAiError::from(error);
                return if error.is_not_found() { Ok(None) } else { Err(error) };
            }
        };
        let before = Seq(run.0.saturating_sub(1));
        let (page, _) = session.record_page(before, 1).await?;
        let Some(entry) = page.into_iter().find(|entry| entry.seq == run) else { return Ok(None) };
        let Record::RunStarted { run_id, overrides, metadata, input, .. } = entry.record else {
            return Ok(None);
        };
        let mut settings = ResponseSettings::of_run(overrides, metadata);
        settings.session_tools = session_tools(&session).await?;
        let place = RunPlace { session: session.id().clone(), run: run_id, seq: run };
        Ok(Some(Self { session, place, settings: Arc::new(settings), input }))
    }

    /// Finds the run of a response that a request names.
    pub(super) async fn of_response(
        state: &ApiState,
        caller: &Caller,
        id: &ResponseId,
        param: &str,
    ) -> Result<Self, OpenAiError> {
        let found = Self::find(state, caller, &id.session, id.run).await?;
        found.ok_or_else(|| no_such_response(param, &id.to_string()))
    }

    /// Folds the run's stored events to a response. `None`: the run has no such response.
    pub(super) async fn fold(
        &self,
        options: FoldOptions,
    ) -> Result<Option<ResponseFold>, OpenAiError> {
        let mut fold = ResponseFold::new(options);
        let agent = self.session.agent().await?;
        let mut past = PastEvents::new(self.place.session.clone(), &agent, 0);
        let (mut after, mut events, mut parts) =
            (Seq(self.place.seq.0.saturating_sub(1)), VecDeque::new(), Vec::new());
        loop {
            let (page, has_more) = self.session.record_page(after, PAGE_RECORDS).await?;
            for entry in &page {
                past.handle_entry(entry, &mut events);
                after = entry.seq;
            }
            if !has_more {
                past.finish(None, &mut events);
            }
            for event in events.drain(..).filter(|event| event.run == self.place.run) {
                fold.push(&event, &mut parts);
                parts.clear();
            }
            if fold.has_ended() || !has_more || page.is_empty() {
                break;
            }
        }
        Ok(fold.response().is_some().then_some(fold))
    }

    /// Returns the run's responses. The last one may not have begun in the view of its client: it waits to be decided.
    pub(super) async fn responses(
        &self,
        mut options: FoldOptions,
    ) -> Result<Vec<ResponseFold>, OpenAiError> {
        let mut responses = Vec::new();
        loop {
            let Some(fold) = self.fold(options.clone()).await? else { return Ok(responses) };
            let goes_on = fold.has_ended() && fold.run_end().is_none();
            options.id.begins = Seq(fold.ended_at().0 + 1);
            responses.push(fold);
            if !goes_on {
                return Ok(responses);
            }
        }
    }

    /// Returns the inputs of the run as items, in order, each with its record: the message that has started it, and what its
    /// client and its users have added: results of calls, decisions and further messages.
    pub(super) async fn inputs(&self) -> Result<Vec<(Seq, Value)>, OpenAiError> {
        let first = self.place.seq;
        let id = |kind: &str, of: &str| {
            ItemId { kind, run: first, of, session: self.place.session.clone() }.to_string()
        };
        let mut inputs = vec![(first, user_item(&id("msg", "input"), &self.input))];
        let mut asked = BTreeMap::new();
        for_each_record_after(&self.session, first, |entry| {
            let seq = entry.seq;
            if let Record::RunStarted { .. } = entry.record {
                return ControlFlow::Break(());
            } else if let Record::Steered { input, .. } = entry.record {
                inputs.push((seq, user_item(&id("msg", &format!("{seq}-input")), &input)));
            } else if let Record::ApprovalAsked { request } = entry.record {
                asked.insert(request.call.key, request);
            } else if let Record::ApprovalGiven { key, verdict, message, .. } = entry.record {
                let Some(request) = asked.get(&key) else { return ControlFlow::Continue(()) };
                inputs.push((
                    seq,
                    json!({
                        "type": "mcp_approval_response",
                        "id": id("mcpa", &format!("{seq}")),
                        "approval_request_id": id("mcpr", &approval_place(request)),
                        "approve": verdict == ApprovalVerdict::Approved,
                        "reason": message,
                    }),
                ));
            } else if let Record::CallEnded { call, outcome, notes, amended: false, .. } =
                entry.record
                && notes.by_client
            {
                let key = call.key.to_string();
                inputs.push((
                    seq,
                    json!({
                        "type": "function_call_output",
                        "id": id("fco", &key),
                        "call_id": id("call", &key),
                        "output": &*outcome.content,
                        "status": "completed",
                    }),
                ));
            }
            ControlFlow::Continue(())
        })
        .await?;
        Ok(inputs)
    }

    /// Returns whether the run has got the messages of the user among the items.
    pub(super) async fn has_messages_of(&self, items: &[InputItem]) -> Result<bool, OpenAiError> {
        let inputs = self.inputs().await?;
        let mut messages = items.iter().filter_map(|item| match item {
            InputItem::User(content) => Some(user_item("", content)),
            InputItem::Assistant { .. }
            | InputItem::Call { .. }
            | InputItem::Own { .. }
            | InputItem::Reference(_)
            | InputItem::Output { .. }
            | InputItem::Decision { .. } => None,
        });
        let is_input = |message: Value| {
            inputs.iter().skip(1).any(|(_, input)| input["content"] == message["content"])
        };
        Ok(messages.all(is_input))
    }

    /// Returns the response that a request about the run goes on from: the last one that has ended, or else the first.
    pub(super) async fn last_response(
        &self,
        options: FoldOptions,
    ) -> Result<ResponseFold, OpenAiError> {
        let mut responses = self.responses(options).await?;
        if responses.len() > 1 && responses.last().is_some_and(|last| !last.has_ended()) {
            responses.pop();
        }
        let missing = || HostError::NoSuchSession(self.place.session.clone());
        Ok(responses.pop().ok_or_else(missing)?)
    }

    /// Returns whether the session has no later run. `end` is the run's last record.
    pub(super) async fn is_last(&self, end: Seq) -> Result<bool, OpenAiError> {
        let mut after = end;
        loop {
            let (page, has_more) = self.session.record_page(after, PAGE_RECORDS).await?;
            if page.iter().any(|entry| matches!(entry.record, Record::RunStarted { .. })) {
                return Ok(false);
            }
            match page.last() {
                Some(last) if has_more => after = last.seq,
                Some(_) | None => return Ok(true),
            }
        }
    }
}

/// Returns a message of the user.
fn user_item(id: &str, content: &Content) -> Value {
    let parts = content.parts().iter().map(|part| match part {
        ContentPart::Text(text) => json!({"type": "input_text", "text": text}),
        ContentPart::Image(image) => {
            json!({"type": "input_image", "image_url": image.url(), "detail": "auto"})
        }
    });
    let content: Vec<Value> = parts.collect();
    json!({"type": "message", "id": id, "status": "completed", "role": "user", "content": content})
}

/// Returns the tools that the client runs in all runs of a session.
pub(super) async fn session_tools(
    session: &SessionHandle,
) -> Result<Option<Arc<[ClientTool]>>, OpenAiError> {
    let (first, _) = session.record_page(Seq(0), 1).await?;
    Ok(match first.into_iter().next().map(|entry| entry.record) {
        Some(Record::SessionOpened { client_tools, .. }) => client_tools,
        Some(_) | None => None,
    })
}

/// Returns the first records of a session's runs.
pub(super) async fn runs_of(session: &SessionHandle) -> Result<Vec<Seq>, OpenAiError> {
    let mut runs = Vec::new();
    for_each_record(session, |entry| {
        if matches!(entry.record, Record::RunStarted { .. }) {
            runs.push(entry.seq);
        }
    })
    .await?;
    Ok(runs)
}
