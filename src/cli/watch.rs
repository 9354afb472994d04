//! Watches a run until it has ended: on a screen for people, or as one event a line.

use std::io::{self, IsTerminal as _, Stderr, Stdout};
use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _};
use tokio::time::{Instant, MissedTickBehavior};

use super::approval_prompts::{ApprovalMode, ApprovalPrompts};
use super::progress::{RunProgress, ScreenItem};
use super::screen::{Screen, is_coloured, terminal_columns};
use super::serve::Signals;
use super::{CommandError, output};
use crate::journal::export::{TimelineStyle, timeline};
use crate::record::{Record, Seq, StopMode};
use crate::runtime::{RunReport, SessionHandle, StartedRun};
use crate::telemetry::{FeedItem, Subscription, journal_failed};
use crate::types::RunId;

/// How often open calls are drawn.
const FRAME: Duration = Duration::from_millis(100);

/// How many turns of a run are drawn behind it.
const TURNS_MAX: usize = 12;

/// Shows a run for people until it has ended, and asks them where a tool wants that.
pub(super) async fn on_screen(
    session: &SessionHandle,
    run: StartedRun,
    manner: ApprovalMode,
    signals: &mut Signals,
) -> Result<RunReport, CommandError> {
    let StartedRun { mut events, report, run_id, seq, .. } = run;
    let mut view = RunView::new(manner);
    let mut frames = tokio::time::interval(FRAME);
    frames.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut stopping = false;
    tokio::pin!(report);
    let report = loop {
        tokio::select! {
            biased;
            delivery = events.next(), if view.listening => {
                view.take(delivery);
                view.drain(&mut events);
            }
            report = &mut report => break report.map_err(CommandError::failed)?,
            () = signals.next() => {
                view.questions.close();
                stop(session, &mut stopping).await;
            }
            line = view.questions.line(), if view.questions.is_asking() => {
                view.questions.answer(session, line).await;
                // What came of it stands above the next question.
                view.drain(&mut events);
            }
            _ = frames.tick(), if view.screen.draws() => {}
        }
        view.questions.settle(session).await;
        shown(view.show(), session).await?;
    };
    // What was published before the report may still be on its way to us.
    view.drain(&mut events);
    view.questions.close();
    shown(view.show(), session).await?;
    shown(view.screen.finish(&report.text, view.complete), session).await?;
    if io::stderr().is_terminal() {
        output::to_stderr(&picture(session, &run_id, seq).await);
    }
    Ok(report)
}

/// The run's turns on a time axis; nothing where there is nothing to compare.
async fn picture(session: &SessionHandle, run: &RunId, seq: Seq) -> String {
    // Whoever cannot be shown it has lost nothing but that.
    let entries = session.records(Seq(seq.0.saturating_sub(1))).await.unwrap_or_default();
    let exchange = |record: &Record| matches!(record, Record::AttemptStarted { .. });
    if entries.iter().filter(|entry| exchange(&entry.record)).count() < 2 {
        return String::new();
    }
    let stderr = io::stderr();
    let coloured = is_coloured(stderr.is_terminal());
    let style =
        TimelineStyle { columns: terminal_columns(&stderr), coloured, turns_max: TURNS_MAX };
    timeline(&entries, Some(run), style).collect()
}

/// What is seen of a run.
struct RunView {
    screen: Screen<Stdout, Stderr>,
    progress: RunProgress,
    questions: ApprovalPrompts,
    began: Instant,
    /// What is to be shown as soon as no question stands below.
    shows: Vec<ScreenItem>,
    /// Whether no event was left out.
    complete: bool,
    /// Whether more can come.
    listening: bool,
}

impl RunView {
    fn new(manner: ApprovalMode) -> Self {
        let (stdout, stderr) = (io::stdout(), io::stderr());
        let (out_is_terminal, err_is_terminal) = (stdout.is_terminal(), stderr.is_terminal());
        let columns = terminal_columns(&stderr);
        // A dumb terminal cannot go back over what was drawn.
        let draws = err_is_terminal && std::env::var_os("TERM").is_some_and(|term| term != "dumb");
        Self {
            screen: Screen::new(stdout, out_is_terminal, stderr, draws, columns),
            progress: RunProgress::default(),
            questions: ApprovalPrompts::new(manner),
            began: Instant::now(),
            shows: Vec::new(),
            complete: true,
            listening: true,
        }
    }

    fn take(&mut self, delivery: Option<FeedItem>) {
        match delivery {
            Some(FeedItem::Event(event)) => {
                self.questions.note(&event.event);
                self.shows.extend(self.progress.handle(self.began.elapsed(), &event.event));
            }
            Some(FeedItem::Lagged | FeedItem::Failed(_)) => self.complete = false,
            None => self.listening = false,
        }
    }

    /// Takes the events that are there already.
    fn drain(&mut self, events: &mut Subscription) {
        while self.listening {
            let Some(delivery) = events.next().now_or_never() else { return };
            self.take(delivery);
        }
    }

    /// Shows what is new. While a question stands on the screen nothing is drawn over it.
    fn show(&mut self) -> io::Result<()> {
        if self.questions.is_asking() {
            return Ok(());
        }
        let question = self.questions.next();
        let live = match question {
            Some(_) => Vec::new(),
            None => self.progress.live(self.began.elapsed()),
        };
        self.screen.show(std::mem::take(&mut self.shows), &live)?;
        question.map_or(Ok(()), |text| self.screen.ask(&text))
    }
}

/// Prints a run's events until it has ended.
pub(super) async fn as_json(
    session: &SessionHandle,
    run: StartedRun,
    manner: ApprovalMode,
    signals: &mut Signals,
) -> Result<RunReport, CommandError> {
    let StartedRun { mut events, report, .. } = run;
    let mut questions = ApprovalPrompts::new(manner);
    let mut listening = true;
    let mut stopping = false;
    tokio::pin!(report);
    let report = loop {
        tokio::select! {
            biased;
            delivery = events.next(), if listening => match delivery {
                Some(delivery) => {
                    if let FeedItem::Event(event) = &delivery {
                        questions.note(&event.event);
                    }
                    shown(output::to_stdout(&lines(&delivery)), session).await?;
                }
                None => listening = false,
            },
            report = &mut report => break report.map_err(CommandError::failed)?,
            () = signals.next() => stop(session, &mut stopping).await,
        }
        questions.settle(session).await;
    };
    // What was published before the report may still be on its way to us.
    while let Some(Some(delivery)) = events.next().now_or_never() {
        shown(output::to_stdout(&lines(&delivery)), session).await?;
    }
    Ok(report)
}

fn lines(delivery: &FeedItem) -> String {
    match delivery {
        FeedItem::Event(event) => event.public().map(|event| event.json + "\n").collect(),
        FeedItem::Lagged => "{\"type\":\"resync\"}\n".to_owned(),
        FeedItem::Failed(error) => journal_failed(error).json + "\n",
    }
}

/// Nobody reads on: the run is stopped, so that no tool works for nothing.
async fn shown(written: io::Result<()>, session: &SessionHandle) -> Result<(), CommandError> {
    if let Err(error) = written {
        let _ = session.stop(StopMode::Now).await;
        return Err(output::broken(&error));
    }
    Ok(())
}

/// The first signal stops the run, which then says how it ended; the second ends the process.
async fn stop(session: &SessionHandle, stopping: &mut bool) {
    if *stopping {
        std::process::exit(130);
    }
    *stopping = true;
    if let Err(error) = session.stop(StopMode::Now).await {
        output::error(&format!("stop the run: {error}"));
    }
}
