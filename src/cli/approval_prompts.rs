//! Approvals of calls during `callsheet run` and `tools call`, and questions of their tools: asked in the
//! terminal, or decided without a person (by a flag, or because there is no terminal). Calls that a client
//! would have to run are answered with an error.

use std::collections::VecDeque;
use std::io::{self, IsTerminal as _};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::termios::{QueueSelector, tcflush};
use serde_json::Value;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::form_prompt::FormPrompt;
use super::output;
use super::progress::approval_question;
use callsheet_host::runtime::{HostError, SessionHandle};
use callsheet_machines::turn::{ApprovalDecision, ApprovalError};
use callsheet_tools::ToolOutput;
use callsheet_values::event::{ApprovalRequest, Event};
use callsheet_values::types::{
    ApprovalVerdict, CallKey, QuestionKind, SessionId, VerdictWithMessage, WaitPhase,
};

// The parts of a rejection's message that say why no person is asked.
const NO_TERMINAL: &str = "there is no terminal";
const JSON_OUTPUT: &str = "--json was given";
const INPUT_ENDED: &str = "standard input has ended";

/// The way in which approvals, or questions of tools, are decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ApprovalMode {
    /// Approves all without asking.
    Approve,
    /// Asks in the terminal.
    Ask,
    /// Rejects all, because no person can be asked: for this reason.
    Reject(&'static str),
}

impl ApprovalMode {
    /// Returns the way in which approvals are decided. `--approve` holds with `--json`, too.
    pub(super) fn from_flags(approve: bool, json: bool) -> Self {
        if approve {
            Self::Approve
        } else if json {
            Self::Reject(JSON_OUTPUT)
        } else if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
            Self::Reject(NO_TERMINAL)
        } else {
            Self::Ask
        }
    }

    /// Returns the way in which questions of tools are answered on a screen. No flag answers them.
    pub(super) fn for_questions() -> Self {
        match Self::from_flags(false, false) {
            Self::Ask => Self::Ask,
            Self::Approve | Self::Reject(_) => Self::Reject(NO_TERMINAL),
        }
    }
}

/// Returns the message of a rejection, which the model reads.
fn rejection_message(reason: &str, request: &ApprovalRequest) -> String {
    let remedy = match request.phase {
        WaitPhase::Before | WaitPhase::After => {
            let name = &request.call.name;
            format!(" (allow calls with --approve, or set tools.{name}.approval)")
        }
        WaitPhase::Input | WaitPhase::Client => String::new(),
    };
    format!("nobody could be asked: {reason}{remedy}")
}

/// An approval that is not decided.
#[derive(Clone, Debug)]
struct PendingPrompt {
    /// The child session, if the approval is not that of the run's own session.
    child: Option<SessionId>,
    request: ApprovalRequest,
}

type PromptId = (Option<SessionId>, CallKey, WaitPhase);

impl PendingPrompt {
    fn id(&self) -> PromptId {
        (self.child.clone(), self.request.call.key, self.request.phase)
    }
}

/// The approvals and questions that a run waits for. Asks for one at a time.
#[derive(Debug)]
pub(super) struct ApprovalPrompts {
    approval_mode: ApprovalMode,
    question_mode: ApprovalMode,
    pending: VecDeque<PendingPrompt>,
    /// Calls that the client of the session would have to run. Child sessions have none.
    client_calls: Vec<CallKey>,
    /// The run is being stopped; no more prompts are printed.
    closed: bool,
    /// The approval whose prompt is on the screen.
    prompted: Option<PromptId>,
    /// The question whose form is being filled in, field by field, and the form.
    form: Option<(PromptId, FormPrompt)>,
    lines: Option<StdinLines>,
}

impl ApprovalPrompts {
    pub(super) fn new(approval_mode: ApprovalMode, question_mode: ApprovalMode) -> Self {
        Self {
            approval_mode,
            question_mode,
            pending: VecDeque::new(),
            client_calls: Vec::new(),
            closed: false,
            prompted: None,
            form: None,
            lines: None,
        }
    }

    fn mode_of(&self, request: &ApprovalRequest) -> ApprovalMode {
        match request.phase {
            WaitPhase::Before | WaitPhase::After => self.approval_mode,
            WaitPhase::Input | WaitPhase::Client => self.question_mode,
        }
    }

    /// Updates the pending approvals from an event.
    pub(super) fn handle_event(&mut self, event: &Event) {
        if let Event::OfChild { event, .. } = event {
            self.handle_session_event(Some(&event.session), &event.event);
        } else {
            self.handle_session_event(None, event);
        }
    }

    /// Updates the pending approvals from an event of the run's own session, or of a child session.
    fn handle_session_event(&mut self, child: Option<&SessionId>, event: &Event) {
        let pending = &mut self.pending;
        let is_of = |prompt: &PendingPrompt, key: CallKey| {
            (prompt.child.as_ref(), prompt.request.call.key) == (child, key)
        };
        if let Event::ApprovalAsked { request } = event {
            let prompt = PendingPrompt { child: child.cloned(), request: (**request).clone() };
            let is_known = pending.iter().any(|other| other.id() == prompt.id());
            if !self.closed && !is_known {
                pending.push_back(prompt);
            }
        } else if let Event::CallWaiting { call, by_client: true, .. } = event {
            self.client_calls.push(call.key);
        } else if let Event::ApprovalGiven { call, phase, .. } = event {
            pending.retain(|prompt| !(is_of(prompt, call.key) && prompt.request.phase == *phase));
        } else if let Event::CallEnded { result, .. } = event {
            pending.retain(|prompt| !is_of(prompt, result.call.key));
        } else if let Event::CallDiscarded { call, .. } = event {
            pending.retain(|prompt| !is_of(prompt, call.key));
        }
        let is_pending = |prompted: &PromptId| pending.iter().any(|other| other.id() == *prompted);
        // Drops the form also between two of its fields, when no prompt is on the screen.
        if self.form.as_ref().is_some_and(|(question, _)| !is_pending(question)) {
            self.form = None;
        }
        if self.prompted.as_ref().is_some_and(|prompted| !is_pending(prompted)) {
            self.void_prompt();
        }
    }

    /// Decides all pending approvals whose mode does not ask. Answers calls that the client would have to run with
    /// an error.
    pub(super) async fn decide_without_asking(&mut self, session: &SessionHandle) {
        for key in std::mem::take(&mut self.client_calls) {
            let error = ToolOutput::from("Error: callsheet run does not run the tools of a client");
            // Another client may have answered.
            let _ = session.answer_call(&key.to_string(), error.into_error()).await;
        }
        for prompt in std::mem::take(&mut self.pending) {
            let given = match self.mode_of(&prompt.request) {
                ApprovalMode::Ask => {
                    self.pending.push_back(prompt);
                    continue;
                }
                ApprovalMode::Approve => {
                    VerdictWithMessage { verdict: ApprovalVerdict::Approved, message: None }
                }
                ApprovalMode::Reject(reason) => {
                    rejection(Some(rejection_message(reason, &prompt.request)))
                }
            };
            decide(session, &prompt, given, None).await;
        }
    }

    /// Returns the prompt for the next pending approval. [`request_answer`](Self::request_answer) follows, directly
    /// before the prompt is printed.
    pub(super) fn next_prompt(&mut self) -> Option<String> {
        let pending = self.pending.front()?;
        let request = &pending.request;
        if self.mode_of(request) != ApprovalMode::Ask {
            return None;
        }
        let prompt = match self.form.as_ref().and_then(|(_, form)| form.prompt()) {
            Some(field) => field,
            None => approval_question(request) + " [y/N] ",
        };
        self.prompted = Some(pending.id());
        Some(prompt)
    }

    /// Drops what was typed before the prompt, which must not answer it, and starts to read its answer.
    pub(super) fn request_answer(&mut self) {
        let lines = self.lines.get_or_insert_with(StdinLines::new);
        lines.drop_typed();
        lines.request_line();
    }

    /// Returns true while a prompt is on the screen.
    pub(super) fn is_prompting(&self) -> bool {
        self.prompted.is_some()
    }

    /// Waits for the next line of standard input. Returns `None` when it has ended.
    pub(super) async fn next_line(&mut self) -> Option<String> {
        match &mut self.lines {
            Some(lines) => lines.lines.recv().await.flatten(),
            None => None,
        }
    }

    /// Handles the line that was typed at the prompt: decides the approval, or fills in a field of its form. At the
    /// end of the input (`None`), decides nothing: from then on what would be asked is rejected.
    pub(super) async fn handle_line(&mut self, session: &SessionHandle, line: Option<String>) {
        if let Some(lines) = &mut self.lines {
            lines.is_requested = false;
        }
        self.prompted = None;
        let Some(line) = line else {
            output::to_stderr("\n");
            for mode in [&mut self.approval_mode, &mut self.question_mode] {
                if matches!(mode, ApprovalMode::Ask) {
                    *mode = ApprovalMode::Reject(INPUT_ENDED);
                }
            }
            return;
        };
        let Some(asked) = self.pending.pop_front() else { return };
        let Some(form) = form_of(&asked.request) else {
            decide(session, &asked, parse_answer(&line), None).await;
            return;
        };
        let entered = match (&mut self.form, parse_answer(&line).verdict) {
            (Some((_, filled)), _) => {
                filled.enter(&line);
                filled
            }
            (None, ApprovalVerdict::Approved) => {
                &mut self.form.insert((asked.id(), FormPrompt::new(form))).1
            }
            // The line is the whole answer as JSON, or a rejection.
            (None, _) => match serde_json::from_str(&line) {
                Ok(content @ Value::Object(_)) => {
                    return self.send_form(session, asked, content).await;
                }
                Ok(_) | Err(_) => {
                    decide(session, &asked, parse_answer(&line), None).await;
                    return;
                }
            },
        };
        if entered.prompt().is_some() {
            self.pending.push_front(asked);
        } else {
            let content = entered.content();
            self.send_form(session, asked, content).await;
        }
    }

    /// Answers a form. Asks again if the answer does not fit.
    async fn send_form(&mut self, session: &SessionHandle, asked: PendingPrompt, content: Value) {
        self.form = None;
        let accepted = VerdictWithMessage { verdict: ApprovalVerdict::Approved, message: None };
        if !decide(session, &asked, accepted, Some(content)).await {
            self.pending.push_front(asked);
        }
    }

    /// Drops all pending approvals and shows no more prompts.
    pub(super) fn close(&mut self) {
        self.closed = true;
        self.pending.clear();
        self.void_prompt();
    }

    /// Drops the form. Notes on the screen that the prompt, if there is one, needs no answer.
    fn void_prompt(&mut self) {
        self.form = None;
        if self.prompted.take().is_some() {
            output::to_stderr("(no answer is needed any more)\n");
        }
    }
}

/// Returns the form of a question.
fn form_of(request: &ApprovalRequest) -> Option<&Value> {
    match &request.question.as_ref()?.kind {
        QuestionKind::Form(form) => Some(form),
        QuestionKind::Url(_) => None,
    }
}

/// Sends a decision. Returns false if the content of an answer does not fit its form, so that the question is
/// still open.
async fn decide(
    session: &SessionHandle,
    asked: &PendingPrompt,
    VerdictWithMessage { verdict, message }: VerdictWithMessage,
    content: Option<Value>,
) -> bool {
    let ApprovalRequest { call, phase, arguments_sha256, .. } = &asked.request;
    let arguments_sha256 = arguments_sha256.clone();
    let phase = Some(*phase);
    let decision =
        ApprovalDecision { phase, verdict, message, arguments_sha256, content, author: None };
    // The approval of a child is decided at its session.
    let child = asked.child.as_ref().map(|child| session.other(child));
    match child.as_ref().unwrap_or(session).decide(call.key, decision).await {
        Ok(()) => true,
        Err(error) => {
            output::error(&error.to_string());
            !matches!(error, HostError::Approval(ApprovalError::Content(_)))
        }
    }
}

/// Parses an answer. `y` and `yes` approve; anything else rejects, with the text as the reason.
fn parse_answer(line: &str) -> VerdictWithMessage {
    let line = line.trim();
    match line.to_ascii_lowercase().as_str() {
        "y" | "yes" => VerdictWithMessage { verdict: ApprovalVerdict::Approved, message: None },
        "" | "n" | "no" => rejection(None),
        _ => rejection(Some(line.to_owned())),
    }
}

fn rejection(message: Option<String>) -> VerdictWithMessage {
    VerdictWithMessage { verdict: ApprovalVerdict::Rejected, message }
}

/// Lines of standard input, read by a thread that the process does not join. The thread reads only while a
/// line is requested.
#[derive(Debug)]
struct StdinLines {
    requests: SyncSender<()>,
    lines: Receiver<Option<String>>,
    /// A line was requested and has not arrived.
    is_requested: bool,
    /// The bytes of lines that were not sent yet. The thread has the lock while it reads and sends, not while it
    /// waits for input.
    unsent: Arc<Mutex<Vec<u8>>>,
}

impl StdinLines {
    fn new() -> Self {
        let (requests, requested) = sync_channel(1);
        let (sender, lines) = channel(1);
        let unsent = Arc::<Mutex<Vec<u8>>>::default();
        let buffer = Arc::clone(&unsent);
        std::thread::spawn(move || {
            while requested.recv().is_ok() {
                send_line(&buffer, &sender);
            }
        });
        Self { requests, lines, is_requested: false, unsent }
    }

    /// Drops what was typed so far: lines that arrived for a prompt that needs no answer any more, what the
    /// thread has read, and what the terminal holds.
    fn drop_typed(&mut self) {
        // While this is locked, the thread can neither read nor send.
        let mut unsent = self.unsent.lock();
        unsent.clear();
        // Prompts need a terminal. If this fails, the terminal is gone, and there is nothing to read.
        let _ = tcflush(io::stdin(), QueueSelector::IFlush);
        while self.lines.try_recv().is_ok() {
            self.is_requested = false;
        }
    }

    /// Requests a line, unless the last requested line has not arrived yet.
    fn request_line(&mut self) {
        if !std::mem::replace(&mut self.is_requested, true) {
            // If the thread has ended, `lines` is closed and reports it.
            let _ = self.requests.try_send(());
        }
    }
}

/// Reads the next line of standard input and sends it; `None` at the end of the input.
fn send_line(unsent: &Mutex<Vec<u8>>, lines: &Sender<Option<String>>) {
    // Nothing is in the channel, because one line is requested at a time.
    let send = |line: Option<&[u8]>| {
        let _ = lines.try_send(line.map(|line| String::from_utf8_lossy(line).into_owned()));
    };
    loop {
        let mut bytes = unsent.lock();
        if let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = bytes.drain(..=end).collect();
            return send(Some(&line));
        }
        // The timeout is zero, because the buffer is locked here.
        if wait_for_stdin(Some(&Timespec::default())) {
            let mut read = [0_u8; 1024];
            match retry_on_intr(|| rustix::io::read(io::stdin(), &mut read)) {
                Ok(count @ 1..) => bytes.extend(read.iter().take(count)),
                Ok(0) | Err(_) => {
                    let rest = std::mem::take(&mut *bytes);
                    return send(Some(&*rest).filter(|rest| !rest.is_empty()));
                }
            }
        } else {
            drop(bytes);
            wait_for_stdin(None);
        }
    }
}

/// Waits until reading standard input would not block. Returns false if the time `wait` has passed before; `None`
/// sets no limit.
fn wait_for_stdin(wait: Option<&Timespec>) -> bool {
    let stdin = io::stdin();
    let mut polled = [PollFd::new(&stdin, PollFlags::IN)];
    let ready = retry_on_intr(|| poll(&mut polled, wait));
    // After an error, reading fails too.
    !matches!(ready, Ok(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use callsheet_values::event::CallLabel;

    fn request(index: u32, phase: WaitPhase) -> Event {
        let key = CallKey { turn: 1, attempt: 1, index };
        Event::ApprovalAsked {
            request: Box::new(ApprovalRequest {
                call: CallLabel { key, provider_id: None, name: "pay".into() },
                phase,
                arguments: serde_json::json!({"amount": index}).into(),
                arguments_sha256: "h".to_owned(),
                output_summary: None,
                question: None,
            }),
        }
    }

    fn given(index: u32) -> Event {
        let key = CallKey { turn: 1, attempt: 1, index };
        Event::ApprovalGiven {
            call: CallLabel { key, provider_id: None, name: "pay".into() },
            phase: WaitPhase::Before,
            verdict: ApprovalVerdict::Expired,
            message: None,
            author: None,
            waited: std::time::Duration::ZERO,
        }
    }

    #[test]
    fn anything_but_yes_rejects() {
        let yes = VerdictWithMessage { verdict: ApprovalVerdict::Approved, message: None };
        for (line, expect) in [
            ("y\n", yes.clone()),
            (" YES \n", yes),
            ("\n", rejection(None)),
            ("No\n", rejection(None)),
            ("y es\n", rejection(Some("y es".to_owned()))),
            ("too much\n", rejection(Some("too much".to_owned()))),
        ] {
            assert_eq!(parse_answer(line), expect, "{line:?}");
        }
    }

    #[test]
    fn a_rejection_because_nobody_is_asked_names_the_tool() {
        for (phase, remedy) in [
            (WaitPhase::Before, " (allow calls with --approve, or set tools.pay.approval)"),
            (WaitPhase::Input, ""),
        ] {
            let Event::ApprovalAsked { request } = request(0, phase) else { unreachable!() };
            let expected = format!("nobody could be asked: there is no terminal{remedy}");
            assert_eq!(rejection_message(NO_TERMINAL, &request), expected);
        }
    }

    #[test]
    fn an_approval_that_is_decided_elsewhere_is_not_prompted() {
        let mut prompts = ApprovalPrompts::new(ApprovalMode::Ask, ApprovalMode::Ask);
        prompts.handle_event(&request(0, WaitPhase::Before));
        prompts.handle_event(&request(1, WaitPhase::Before));
        prompts.handle_event(&given(1));
        assert_eq!(prompts.pending.len(), 1);
        prompts.prompted = prompts.pending.front().map(PendingPrompt::id);
        prompts.handle_event(&request(1, WaitPhase::After));
        assert!(prompts.is_prompting());
        prompts.handle_event(&given(0));
        assert!(!prompts.is_prompting());
        assert_eq!(prompts.pending.len(), 1);
        prompts.close();
        prompts.handle_event(&request(2, WaitPhase::Before));
        assert_eq!(prompts.next_prompt(), None);
    }

    #[test]
    fn a_line_that_was_typed_for_a_prompt_that_is_over_answers_no_other() {
        let mut prompts = ApprovalPrompts::new(ApprovalMode::Ask, ApprovalMode::Ask);
        let ((requests, requested), (sender, lines)) = (sync_channel(1), channel(1));
        let unsent = Arc::default();
        prompts.lines = Some(StdinLines { requests, lines, is_requested: false, unsent });
        prompts.handle_event(&request(0, WaitPhase::Before));
        assert!(prompts.next_prompt().is_some());
        prompts.request_answer();
        requested.try_recv().unwrap();
        prompts.handle_event(&given(0));
        sender.try_send(Some("y\n".to_owned())).unwrap();
        prompts.handle_event(&request(1, WaitPhase::Before));
        assert!(prompts.next_prompt().is_some());
        prompts.request_answer();
        // Another line is read for the second prompt.
        requested.try_recv().unwrap();
        assert!(prompts.lines.as_mut().unwrap().lines.try_recv().is_err());
    }
}
