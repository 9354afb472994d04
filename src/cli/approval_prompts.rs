//! ApprovalPrompts about calls, answered in the terminal or by a flag.

use std::collections::VecDeque;
use std::io::{self, IsTerminal as _};
use std::sync::mpsc::{SyncSender, sync_channel};

use tokio::sync::mpsc::{Receiver, channel};

use super::output;
use super::progress::question;
use crate::event::{ApprovalRequest, Event};
use crate::runtime::SessionHandle;
use crate::turn::ApprovalDecision;
use crate::types::{ApprovalPhase, CallKey, Judgement, Verdict};

/// How questions are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ApprovalMode {
    /// With a yes.
    Approve,
    /// By whoever sits at the terminal.
    Ask,
    /// With a no, which says why nobody can be asked.
    Reject(&'static str),
}

impl ApprovalMode {
    pub(super) fn of(approve: bool, json: bool) -> Self {
        if approve {
            Self::Approve
        } else if json {
            Self::Reject("nobody can be asked: --json only prints")
        } else if !io::stdin().is_terminal() {
            Self::Reject("nobody can be asked: standard input is no terminal")
        } else if !io::stderr().is_terminal() {
            Self::Reject("nobody can be asked: standard error is no terminal")
        } else {
            Self::Ask
        }
    }
}

/// The questions of a run, one after the other.
#[derive(Debug)]
pub(super) struct ApprovalPrompts {
    manner: ApprovalMode,
    open: VecDeque<ApprovalRequest>,
    /// Whether the run is stopped, and nothing is asked any more.
    closed: bool,
    /// The question on the screen, which may be void by now.
    asking: Option<(CallKey, ApprovalPhase)>,
    lines: Option<StdinLines>,
}

impl ApprovalPrompts {
    pub(super) fn new(manner: ApprovalMode) -> Self {
        Self { manner, open: VecDeque::new(), closed: false, asking: None, lines: None }
    }

    /// Takes in what an event says of questions.
    pub(super) fn note(&mut self, event: &Event) {
        if let Event::ApprovalAsked { asked } = event {
            if !self.closed {
                self.open.push_back((**asked).clone());
            }
        } else if let Event::ApprovalGiven { call, phase, .. } = event {
            self.open.retain(|asked| (asked.call.key, asked.phase) != (call.key, *phase));
        } else if let Event::CallEnded { result, .. } = event {
            self.open.retain(|asked| asked.call.key != result.call.key);
        } else if let Event::CallDiscarded { call, .. } = event {
            self.open.retain(|asked| asked.call.key != call.key);
        }
        let stands = |asking: &(CallKey, ApprovalPhase)| {
            self.open.iter().any(|asked| (asked.call.key, asked.phase) == *asking)
        };
        if self.asking.is_some_and(|asking| !stands(&asking)) {
            self.end();
        }
    }

    /// Answers what needs nobody.
    pub(super) async fn settle(&mut self, session: &SessionHandle) {
        let judgement = match self.manner {
            ApprovalMode::Ask => return,
            ApprovalMode::Approve => Judgement { verdict: Verdict::Approved, message: None },
            ApprovalMode::Reject(why) => no(Some(why.to_owned())),
        };
        while let Some(asked) = self.open.pop_front() {
            decide(session, asked, judgement.clone()).await;
        }
    }

    /// The next question for the screen, whose answer is waited for from now on.
    pub(super) fn next(&mut self) -> Option<String> {
        if self.manner != ApprovalMode::Ask {
            return None;
        }
        let asked = self.open.front()?;
        self.asking = Some((asked.call.key, asked.phase));
        self.lines.get_or_insert_with(StdinLines::new).ask();
        Some(question(asked) + " [y/N] ")
    }

    /// Whether a question stands on the screen.
    pub(super) fn is_asking(&self) -> bool {
        self.asking.is_some()
    }

    /// The line that is typed; none when no more can come.
    pub(super) async fn line(&mut self) -> Option<String> {
        match &mut self.lines {
            Some(lines) => lines.read.recv().await.flatten(),
            None => None,
        }
    }

    /// Hands in what was typed.
    pub(super) async fn answer(&mut self, session: &SessionHandle, line: Option<String>) {
        if let Some(lines) = &mut self.lines {
            lines.waits = false;
        }
        self.asking = None;
        let Some(line) = line else {
            output::to_stderr("\n");
            self.manner = ApprovalMode::Reject("nobody can be asked: standard input has ended");
            return;
        };
        if let Some(asked) = self.open.pop_front() {
            decide(session, asked, judgement(&line)).await;
        }
    }

    /// Asks nothing any more.
    pub(super) fn close(&mut self) {
        self.closed = true;
        self.open.clear();
        self.end();
    }

    /// The question on the screen is void.
    fn end(&mut self) {
        if self.asking.take().is_some() {
            output::to_stderr("(no answer is needed any more)\n");
        }
    }
}

async fn decide(session: &SessionHandle, asked: ApprovalRequest, judgement: Judgement) {
    let ApprovalRequest { call, phase, arguments_sha256, .. } = asked;
    let decision = ApprovalDecision { phase: Some(phase), judgement, arguments_sha256 };
    if let Err(error) = session.decide(call.key, decision).await {
        output::error(&error.to_string());
    }
}

/// What a line means: anything but a yes is a no, and more than that is its reason.
fn judgement(line: &str) -> Judgement {
    let line = line.trim();
    match line.to_ascii_lowercase().as_str() {
        "y" | "yes" => Judgement { verdict: Verdict::Approved, message: None },
        "" | "n" | "no" => no(None),
        _ => no(Some(line.to_owned())),
    }
}

fn no(message: Option<String>) -> Judgement {
    Judgement { verdict: Verdict::Rejected, message }
}

/// Standard input, read on a thread of its own that the process does not wait for. A line is read
/// only when one is asked for.
#[derive(Debug)]
struct StdinLines {
    wanted: SyncSender<()>,
    read: Receiver<Option<String>>,
    /// Whether a line was asked for and has not come.
    waits: bool,
}

impl StdinLines {
    fn new() -> Self {
        let (wanted, wants) = sync_channel(1);
        let (send, read) = channel(1);
        std::thread::spawn(move || {
            while wants.recv().is_ok() {
                let mut line = String::new();
                let count = io::stdin().read_line(&mut line).unwrap_or(0);
                let line = Some(line).filter(|_| count > 0);
                if send.blocking_send(line).is_err() {
                    return;
                }
            }
        });
        Self { wanted, read, waits: false }
    }

    /// Asks for a line, unless the last one that was asked for is still to come.
    fn ask(&mut self) {
        if !std::mem::replace(&mut self.waits, true) {
            // A thread that is gone ends `read`, which says so.
            let _ = self.wanted.try_send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::CallLabel;

    fn asked(index: u32, phase: ApprovalPhase) -> Event {
        let key = CallKey { turn: 1, attempt: 1, index };
        Event::ApprovalAsked {
            asked: Box::new(ApprovalRequest {
                call: CallLabel { key, provider_id: None, name: "pay".into() },
                phase,
                arguments: serde_json::json!({"amount": index}).into(),
                arguments_sha256: "h".to_owned(),
                output_summary: None,
            }),
        }
    }

    fn given(index: u32) -> Event {
        let key = CallKey { turn: 1, attempt: 1, index };
        Event::ApprovalGiven {
            call: CallLabel { key, provider_id: None, name: "pay".into() },
            phase: ApprovalPhase::Before,
            verdict: Verdict::Expired,
            waited: std::time::Duration::ZERO,
        }
    }

    #[test]
    fn anything_but_a_yes_is_a_no() {
        let yes = Judgement { verdict: Verdict::Approved, message: None };
        for (line, expect) in [
            ("y\n", yes.clone()),
            (" YES \n", yes),
            ("\n", no(None)),
            ("No\n", no(None)),
            ("y es\n", no(Some("y es".to_owned()))),
            ("too much\n", no(Some("too much".to_owned()))),
        ] {
            assert_eq!(judgement(line), expect, "{line:?}");
        }
    }

    #[test]
    fn a_question_that_is_settled_elsewhere_is_asked_no_more() {
        let mut questions = ApprovalPrompts::new(ApprovalMode::Ask);
        questions.note(&asked(0, ApprovalPhase::Before));
        questions.note(&asked(1, ApprovalPhase::Before));
        questions.note(&given(1));
        assert_eq!(questions.open.len(), 1);
        questions.asking = Some((CallKey { turn: 1, attempt: 1, index: 0 }, ApprovalPhase::Before));
        questions.note(&asked(1, ApprovalPhase::After));
        assert!(questions.is_asking());
        questions.note(&given(0));
        assert!(!questions.is_asking());
        assert_eq!(questions.open.len(), 1);
        questions.close();
        questions.note(&asked(2, ApprovalPhase::Before));
        assert_eq!(questions.next(), None);
    }
}
