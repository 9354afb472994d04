//! Follows a run until its end: on a screen, or as JSON lines.

use std::io::{self, IsTerminal as _, Stderr, Stdout};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use tokio::time::{Instant, MissedTickBehavior};

use super::approval_prompts::{ApprovalMode, ApprovalPrompts};
use super::error::CommandError;
use super::output;
use super::progress::RunProgress;
use super::screen::{
    LineOutput, Screen, ScreenItem, ascii_signs, is_coloured, is_dumb, terminal_columns,
};
use super::signals::Signals;
use callsheet_host::journal::export::{ChildSessions, TimelineStyle, timeline};
use callsheet_host::journal::unix_ms;
use callsheet_host::runtime::{Host, HostError, RunFeed, RunReport, SessionHandle, StartedRun};
use callsheet_host::telemetry::{Subscription, journal_failed};
use callsheet_values::event::{Event, PublishedEvent};
use callsheet_values::record::{JournalEntry, Record, Seq, StopMode};
use callsheet_values::types::RunId;

/// Interval at which open calls are redrawn.
const REDRAW_INTERVAL: Duration = Duration::from_millis(100);

/// Maximum number of turns in the timeline after the run.
const TIMELINE_TURNS_MAX: usize = 12;

/// The result of waiting for a run's next event. `None` after the last one.
type NextEvent = Result<Option<Arc<PublishedEvent>>, HostError>;

/// The parts of a run that are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DisplayScope {
    /// All events, and the timeline.
    Run,
    /// All events but the end, and no timeline: for a run without a real model.
    Calls,
}

/// Shows a run on the screen until it has ended, and prompts for approvals.
pub(super) async fn on_screen(
    host: &Host,
    session: &SessionHandle,
    run: StartedRun,
    shown: DisplayScope,
    mode: ApprovalMode,
    signals: &mut Signals,
) -> Result<RunReport, CommandError> {
    let StartedRun { mut events, report: running, run_id, seq, mut feed, .. } = run;
    let agent = session.agent().await.unwrap_or_default();
    let mut view = RunView::new(shown, mode, host.agent_models(&agent));
    let mut redraws = tokio::time::interval(REDRAW_INTERVAL);
    redraws.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut stopping = false;
    let mut report = None;
    tokio::pin!(running);
    let report = loop {
        tokio::select! {
            biased;
            event = feed.next(&mut events), if !feed.has_ended() => {
                view.handle_event(event);
                view.handle_ready_events(&mut feed, &mut events);
            }
            ended = &mut running, if report.is_none() => {
                report = Some(ended.map_err(CommandError::failed)?);
                view.prompts.close();
            }
            () = signals.next() => {
                view.prompts.close();
                handle_signal(session, &mut stopping).await;
            }
            line = view.prompts.next_line(), if view.prompts.is_prompting() => {
                view.prompts.handle_line(session, line).await;
                // The result of the decision is printed above the next prompt.
                view.handle_ready_events(&mut feed, &mut events);
            }
            _ = redraws.tick(), if view.screen.needs_ticks() => {}
        }
        view.prompts.decide_without_asking(session).await;
        stop_on_write_error(view.update_screen(), session).await?;
        // The report does not wait for readers, so the last events may come after it.
        if feed.has_ended()
            && let Some(report) = report.take()
        {
            break report;
        }
    };
    let output = report.output.as_ref().map(ToString::to_string);
    let is_text = output.is_none() || report.output.as_deref() == parsed(&report.text).as_ref();
    let answer = output.as_deref().unwrap_or(&report.text);
    let finished = view.screen.finish(answer, view.complete && is_text);
    stop_on_write_error(finished, session).await?;
    if io::stderr().is_terminal() && shown == DisplayScope::Run {
        output::to_stderr(&run_timeline(host, session, &run_id, seq).await);
    }
    Ok(report)
}

fn parsed(text: &str) -> Option<serde_json::Value> {
    serde_json::from_str(text).ok()
}

/// Draws the run's turns on a time axis. Returns an empty text if there were fewer than two attempts since the
/// record `seq`.
async fn run_timeline(host: &Host, session: &SessionHandle, run: &RunId, seq: Seq) -> String {
    // The timeline is optional, so an error only leaves it out.
    let entries = session.records(Seq(seq.0.saturating_sub(1))).await.unwrap_or_default();
    let is_attempt = |record: &Record| matches!(record, Record::AttemptStarted { .. });
    if entries.iter().filter(|entry| is_attempt(&entry.record)).count() < 2 {
        return String::new();
    }
    let stderr = io::stderr();
    let coloured = is_coloured(stderr.is_terminal());
    let style = TimelineStyle {
        columns: terminal_columns(&stderr),
        coloured,
        turns_max: TIMELINE_TURNS_MAX,
    };
    let children = child_sessions(host, session, &entries).await;
    let drawn: String = timeline(&entries, &children, Some(run), unix_ms(), style).collect();
    if is_dumb() { ascii_signs(&drawn) } else { drawn }
}

/// Reads the child sessions of the calls in these records, and their own children.
async fn child_sessions(
    host: &Host,
    session: &SessionHandle,
    entries: &[JournalEntry],
) -> ChildSessions {
    let mut children = ChildSessions::new(session.id());
    let mut open = ChildSessions::ids(session.id(), entries);
    while let Some(child) = open.pop() {
        let records = host.session(&child).records(Seq(0)).await;
        open.extend(children.add(child, records.map_err(|error| error.to_string())));
    }
    children
}

/// The view of a run: its screen, its open calls and its approvals.
struct RunView {
    shown: DisplayScope,
    screen: Screen<Stdout, Stderr>,
    progress: RunProgress,
    prompts: ApprovalPrompts,
    started: Instant,
    /// Output that waits until no prompt is on the screen.
    pending: Vec<ScreenItem>,
    /// No event was missed.
    complete: bool,
}

impl RunView {
    /// Makes the view of a run that asks these models.
    fn new(shown: DisplayScope, mode: ApprovalMode, models: Vec<String>) -> Self {
        let (stdout, stderr) = (io::stdout(), io::stderr());
        let (out_is_terminal, err_is_terminal) = (stdout.is_terminal(), stderr.is_terminal());
        let columns = terminal_columns(&stderr);
        let line_output = match (err_is_terminal, is_dumb()) {
            (false, _) => LineOutput::File,
            (true, true) => LineOutput::DumbTerminal,
            (true, false) => LineOutput::Terminal,
        };
        Self {
            shown,
            screen: Screen::new(stdout, out_is_terminal, stderr, line_output, columns),
            progress: RunProgress::new(models),
            prompts: ApprovalPrompts::new(mode, ApprovalMode::for_questions()),
            started: Instant::now(),
            pending: Vec::new(),
            complete: true,
        }
    }

    fn handle_event(&mut self, event: NextEvent) {
        match event {
            Ok(Some(event)) => {
                self.prompts.handle_event(&event.event);
                let item = self.progress.handle_event(self.started.elapsed(), &event.event);
                let is_end = matches!(event.event, Event::RunEnded { .. });
                let is_shown = self.shown == DisplayScope::Run || !is_end;
                self.pending.extend(item.filter(|_| is_shown));
            }
            Ok(None) => {}
            // The session has ended. The report follows.
            Err(HostError::SessionClosed | HostError::ShuttingDown) => {}
            Err(_) => self.complete = false,
        }
    }

    /// Handles the events that are ready, without waiting.
    fn handle_ready_events(&mut self, feed: &mut RunFeed, live: &mut Subscription) {
        while !feed.has_ended() {
            let Some(event) = feed.next(live).now_or_never() else { return };
            self.handle_event(event);
        }
    }

    /// Updates the screen, except while a prompt is on it.
    fn update_screen(&mut self) -> io::Result<()> {
        if self.prompts.is_prompting() {
            return Ok(());
        }
        self.screen.set_columns(terminal_columns(io::stderr()));
        if self.screen.is_dumb() {
            self.pending.extend(self.progress.long_wait_line(self.started.elapsed()));
        }
        let prompt = self.prompts.next_prompt();
        let open_calls = match prompt {
            Some(_) => Vec::new(),
            None => self.progress.open_call_lines(self.started.elapsed()),
        };
        self.screen.update(std::mem::take(&mut self.pending), &open_calls)?;
        let Some(prompt) = prompt else { return Ok(()) };
        self.prompts.request_answer();
        self.screen.prompt(&prompt)
    }
}

/// Prints a run's events as JSON lines until it has ended.
pub(super) async fn as_json(
    session: &SessionHandle,
    run: StartedRun,
    mode: ApprovalMode,
    signals: &mut Signals,
) -> Result<RunReport, CommandError> {
    let StartedRun { mut events, report: running, mut feed, .. } = run;
    let questions = ApprovalMode::from_flags(false, true);
    let mut prompts = ApprovalPrompts::new(mode, questions);
    let mut stopping = false;
    let mut report = None;
    tokio::pin!(running);
    loop {
        tokio::select! {
            biased;
            event = feed.next(&mut events), if !feed.has_ended() => {
                if let Ok(Some(event)) = &event {
                    prompts.handle_event(&event.event);
                }
                let lines = json_lines(&event);
                stop_on_write_error(output::to_stdout(&lines), session).await?;
            }
            ended = &mut running, if report.is_none() => {
                report = Some(ended.map_err(CommandError::failed)?);
                prompts.close();
            }
            () = signals.next() => handle_signal(session, &mut stopping).await,
        }
        prompts.decide_without_asking(session).await;
        // The report does not wait for readers, so the last events may come after it.
        if feed.has_ended()
            && let Some(report) = report.take()
        {
            return Ok(report);
        }
    }
}

fn json_lines(event: &NextEvent) -> String {
    match event {
        Ok(event) => {
            let public = event.iter().flat_map(|event| event.public());
            public.map(|event| event.json + "\n").collect()
        }
        Err(HostError::Journal(error)) => journal_failed(error, None).json + "\n",
        Err(HostError::SessionClosed | HostError::ShuttingDown) => String::new(),
        Err(_) => "{\"type\":\"resync\"}\n".to_owned(),
    }
}

/// Stops the run if its output cannot be written, so that no tool runs for a reader that is gone.
async fn stop_on_write_error(
    written: io::Result<()>,
    session: &SessionHandle,
) -> Result<(), CommandError> {
    if let Err(error) = written {
        let _ = session.stop(StopMode::Now).await;
        return Err(output::write_error(&error));
    }
    Ok(())
}

/// Handles a signal: the first one stops the run, and the second one exits.
async fn handle_signal(session: &SessionHandle, stopping: &mut bool) {
    if *stopping {
        std::process::exit(130);
    }
    *stopping = true;
    if let Err(error) = session.stop(StopMode::Now).await {
        output::error(&format!("stop the run: {error}"));
    }
}
