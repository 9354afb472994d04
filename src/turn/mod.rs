//! One turn, and the run around it. Machines: no async, no clock, no I/O.
//!
//! [`Turn`] is one model response and the calls in it, over as many attempts as it takes. Values
//! go in by `handle_*`, effects come out of [`Turn::poll`]; time is an argument. Each rule has
//! one place:
//!
//! | file | rule |
//! | --- | --- |
//! | `accumulator` | which piece belongs to which call; seals |
//! | `arguments` | what the bytes of a call's arguments mean |
//! | `admission` | which calls run, what the others are answered |
//! | `schedule` | which sealed calls may start now |
//! | `ending` | how a response ended |
//! | `aftermath` | what each ending leaves of the calls |
//! | `progress` | what is done after every event: admit, start, release, commit |
//! | `attempts` | whether, when and how the model is asked once more |
//! | `reassembly` | outcomes in any order, released in call order |
//! | `texts` | what the model is told of calls that did not simply run |
//! | `resume` | a turn from its records |
//! | `run` | turn after turn, and why that ended |
#![warn(clippy::indexing_slicing)]

mod accumulator;
mod admission;
mod aftermath;
mod arguments;
mod attempts;
mod bucket;
mod call;
mod clock;
mod effect;
mod ending;
mod progress;
mod reassembly;
mod resume;
mod run;
mod schedule;
mod texts;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

pub use accumulator::{Accumulator, AccumulatorLimits, Change, Changes};
pub use arguments::{Arguments, understand};
pub use bucket::Bucket;
pub use effect::{
    AttemptPlan, CancelReason, Effect, ResponseEnd, ToolDone, TurnEnd, TurnRecord, TurnRules,
    TurnSpec,
};
pub use run::{Run, RunStep, TurnPlan};

use crate::event::{CallLabel, Event, Oddity};
use crate::record::{Ending, Record, ResponseMessage};
use crate::types::{CallKey, FinishReason, ToolOutcome, Usage, excerpt};
use crate::wire::Delta;
use admission::Opening;
use attempts::Attempts;
use call::{Call, Phase, QUOTE_CHARS};
use clock::Clock;
use reassembly::Reassembly;

/// One model response and the tool calls in it: the machine that decides everything about them.
///
/// After each `handle_*` the shell calls [`poll`](Self::poll) until it gives none, appends the
/// records it got as one batch, and tells [`handle_recorded`](Self::handle_recorded) when they
/// are durable. Starts of calls with effects, results and the commit wait for that.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Turn {
    spec: Arc<TurnSpec>,
    state: State,
    attempts: Attempts,
    plan: AttemptPlan,
    response: Accumulator,
    deltas_seen: u64,
    asked_at: Duration,
    first_delta_at: Option<Duration>,
    exchange_told: bool,
    calls: Vec<Call>,
    dropped: Vec<String>,
    excess_told: bool,
    /// Results of pure calls of attempts that broke, by identity.
    reusable: BTreeMap<String, ToolOutcome>,
    finish: Option<FinishReason>,
    usage: Usage,
    reassembly: Reassembly,
    clock: Clock,
    outbox: VecDeque<Effect>,
    /// Effects that wait until so many records are durable; the numbers never fall.
    held: VecDeque<(u64, Effect)>,
    records: u64,
}

/// How far the turn has come.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum State {
    /// An exchange is open, or the wait before it.
    Asking,
    /// The response's ending is known; its calls may still run.
    Judged { ending: Ending, message: Option<ResponseMessage>, cancelled: Option<CancelReason> },
    /// Everything is decided; the commit is out or waits for its record.
    Over,
}

impl Turn {
    /// Begins a turn: the first effects ask the model.
    #[must_use]
    pub fn new(spec: TurnSpec) -> Self {
        let mut turn = Self::blank(spec, 0);
        turn.emit(Event::TurnStarted);
        turn.ask();
        turn
    }

    /// Which attempt is open, or was the last. Messages of another attempt are not for this turn.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.plan.attempt
    }

    /// The session's turn that this is.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.spec.number
    }

    /// Takes in what one chunk of the response decoded to.
    pub fn handle_deltas(&mut self, now: Duration, batch: Vec<Delta>) {
        self.clock.advance(now);
        for delta in batch {
            // `Excess` closes the response in the middle of a batch.
            if self.state != State::Asking {
                break;
            }
            self.handle_delta(delta);
        }
        self.settle();
    }

    /// The exchange is over.
    pub fn handle_response_end(&mut self, now: Duration, end: ResponseEnd) {
        self.clock.advance(now);
        if self.state != State::Asking {
            return;
        }
        match ending::judge(&self.response, end) {
            Ok(ending) => {
                if ending == Ending::Well {
                    let changes = self.response.end(true);
                    self.handle_changes(changes);
                }
                self.conclude(ending, None);
            }
            Err(error) => self.handle_broken(error),
        }
        self.settle();
    }

    /// A tool's actor has ended.
    pub fn handle_outcome(&mut self, now: Duration, key: CallKey, done: ToolDone) {
        self.clock.advance(now);
        match self.position(key) {
            Some(index) if self.calls.get(index).is_some_and(Call::is_running) => {
                self.end_call(index, done.outcome);
                self.settle();
            }
            Some(index) => {
                if let Some(label) = self.calls.get(index).map(Call::label) {
                    self.emit(Event::OutcomeLate { call: label });
                }
            }
            None => self.emit(Event::OutcomeLate {
                call: CallLabel { key, provider_id: None, name: String::new() },
            }),
        }
    }

    /// So many of the records that this turn asked for, counted from 1, are durable.
    pub fn handle_recorded(&mut self, now: Duration, upto: u64) {
        self.clock.advance(now);
        while let Some((_, effect)) = self.held.pop_front_if(|(needs, _)| *needs <= upto) {
            match effect {
                Effect::Start(call) => {
                    if let Some(index) = self.position(call.key) {
                        self.start_intended(index);
                    }
                }
                other @ (Effect::Record(_)
                | Effect::Request(_)
                | Effect::Disconnect
                | Effect::Abort(_)
                | Effect::Emit(_)
                | Effect::Release(_)
                | Effect::Commit(_)) => self.outbox.push_back(other),
            }
        }
        self.settle();
    }

    /// The moment that [`poll_timeout`](Self::poll_timeout) named has come.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.clock.advance(now);
        for index in 0..self.calls.len() {
            let Some(call) = self.calls.get(index) else { continue };
            let Phase::Running { deadline: Some(deadline) } = call.phase else { continue };
            if deadline <= now {
                let timeout = deadline.saturating_sub(call.started_at.unwrap_or(deadline));
                let outcome = texts::timed_out(call, timeout);
                self.outbox.push_back(Effect::Abort(call.key()));
                self.end_call(index, outcome);
            }
        }
        self.settle();
    }

    /// The turn is to end now. What has finished keeps its outcome; the rest is answered.
    pub fn handle_cancel(&mut self, now: Duration, why: CancelReason) {
        self.clock.advance(now);
        match &mut self.state {
            State::Asking => {
                self.outbox.push_back(Effect::Disconnect);
                self.conclude(Ending::Cancelled, Some(why));
            }
            State::Judged { cancelled, .. } => {
                cancelled.get_or_insert(why);
                self.cancel_calls();
            }
            State::Over => {}
        }
        self.settle();
    }

    /// The next thing to be done, until there is none.
    pub fn poll(&mut self) -> Option<Effect> {
        self.outbox.pop_front()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout), since the turn began.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        let deadlines = self.calls.iter().filter_map(|call| match call.phase {
            Phase::Running { deadline } => deadline,
            Phase::Open
            | Phase::Sealed
            | Phase::Ready
            | Phase::Duplicate { .. }
            | Phase::Intended
            | Phase::Ended { .. }
            | Phase::Dropped => None,
        });
        deadlines.min()
    }

    /// Whether the commit is out.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.state == State::Over && self.held.is_empty() && self.outbox.is_empty()
    }
}

/// The response as it comes.
impl Turn {
    fn blank(spec: TurnSpec, attempts_made: u32) -> Self {
        let rules = Arc::clone(&spec.rules);
        let attempts = Attempts::new(rules.max_attempts, rules.streamed, spec.seed);
        Self {
            state: State::Asking,
            attempts: attempts.resumed(attempts_made),
            plan: AttemptPlan {
                attempt: attempts_made,
                streamed: rules.streamed,
                wait: Duration::ZERO,
            },
            response: Accumulator::new(limits(&rules)),
            deltas_seen: 0,
            asked_at: Duration::ZERO,
            first_delta_at: None,
            exchange_told: false,
            calls: Vec::new(),
            dropped: Vec::new(),
            excess_told: false,
            reusable: BTreeMap::new(),
            finish: None,
            usage: Usage::default(),
            reassembly: Reassembly::default(),
            clock: Clock::default(),
            outbox: VecDeque::new(),
            held: VecDeque::new(),
            records: 0,
            spec: Arc::new(spec),
        }
    }

    fn ask(&mut self) {
        let plan = self.attempts.first();
        self.begin_attempt(plan);
    }

    fn begin_attempt(&mut self, plan: AttemptPlan) {
        self.record(Record::AttemptStarted {
            turn: self.spec.number,
            attempt: plan.attempt,
            model: self.spec.rules.model.clone(),
        });
        self.plan = plan.clone();
        self.asked_at = self.clock.now() + plan.wait;
        self.first_delta_at = None;
        self.exchange_told = false;
        self.clock.model_asked();
        self.outbox.push_back(Effect::Request(plan));
    }

    fn handle_delta(&mut self, delta: Delta) {
        self.first_delta_at.get_or_insert(self.clock.now());
        let changes = self.response.push(&delta);
        self.handle_changes(changes);
        self.deltas_seen += 1;
        match delta {
            Delta::Text(text) | Delta::Refusal(text) => self.emit(Event::TextReceived { text }),
            Delta::Reasoning(text) => self.emit(Event::ThinkingReceived { text }),
            Delta::Call(_)
            | Delta::Seal { .. }
            | Delta::Finish(_)
            | Delta::Usage { .. }
            | Delta::Error(_)
            | Delta::Problem(_)
            | Delta::Done => {}
        }
    }

    fn handle_changes(&mut self, changes: impl IntoIterator<Item = Change>) {
        for change in changes {
            match change {
                Change::Opened(index) => self.handle_opened(index),
                Change::Sealed(index) => self.handle_sealed(index),
                Change::Disturbed(index) => self.handle_disturbed(index),
            }
        }
    }

    fn handle_opened(&mut self, index: usize) {
        let Some(bucket) = self.response.calls().get(index) else { return };
        let name = bucket.name.clone();
        let key = CallKey {
            turn: self.spec.number,
            attempt: self.plan.attempt,
            index: u32::try_from(index).unwrap_or(u32::MAX),
        };
        let tool = self.spec.rules.tools.get(&name).cloned();
        let mut call = Call::open(key, &name, tool);
        let opening = match self.state {
            // Nothing more is kept of a response whose ending is known.
            State::Judged { .. } | State::Over => Opening::Drop,
            State::Asking => admission::at_opening(key.index, &self.spec),
        };
        match opening {
            Opening::Keep => self.emit(Event::CallOpened { call: call.label() }),
            Opening::KeepExcess => {
                call.excess = true;
                self.emit(Event::CallOpened { call: call.label() });
                self.tell_excess(key.index, "answered");
            }
            Opening::Drop => {
                call.phase = Phase::Dropped;
                self.dropped.push(name);
            }
            Opening::DropExcess => {
                call.phase = Phase::Dropped;
                self.dropped.push(name);
                self.tell_excess(key.index, "truncated");
            }
            Opening::Fail => {
                call.phase = Phase::Dropped;
                self.dropped.push(name);
                self.tell_excess(key.index, "failed");
                self.outbox.push_back(Effect::Disconnect);
                self.calls.push(call);
                self.conclude(Ending::Excess, None);
                return;
            }
        }
        self.calls.push(call);
    }

    fn handle_sealed(&mut self, index: usize) {
        let (Some(bucket), Some(call)) =
            (self.response.calls().get(index), self.calls.get_mut(index))
        else {
            return;
        };
        if call.phase != Phase::Open {
            return;
        }
        call.call.provider_id.clone_from(&bucket.provider_id);
        call.sealed_at = Some(self.clock.now());
        call.phase = Phase::Sealed;
        let odd = admission::take_arguments(call, &bucket.raw, bucket.oversize);
        let detected = call.unfit.is_none().then(|| call.label());
        self.name_call(index);
        if let Some(oddity) = odd {
            self.tell_oddity(index, oddity);
        }
        if let Some(call) = detected {
            self.emit(Event::CallDetected {
                call,
                latency: self.clock.now().saturating_sub(self.asked_at),
                stream_position: self.deltas_seen,
                streaming: self.plan.streamed,
            });
        }
    }

    /// Bytes came for a call that is already sealed.
    fn handle_disturbed(&mut self, index: usize) {
        let Some(call) = self.calls.get_mut(index) else { return };
        if call.notes.arguments_changed || !call.is_kept() {
            return;
        }
        call.notes.arguments_changed = true;
        let label = call.label();
        let stands = call.has_effects() && call.has_started();
        let had_result = call.started_at.is_some() && call.outcome().is_some();
        let running = call.is_running();
        self.tell_oddity(index, Oddity::ChangedAfterSeal);
        if stands {
            return;
        }
        if running {
            self.outbox.push_back(Effect::Abort(label.key));
        }
        if running || had_result {
            self.emit(Event::CallDiscarded { call: label.clone(), had_result });
        }
        if let Some(call) = self.calls.get_mut(index) {
            call.unfit = Some(texts::malformed());
        }
        self.end_call(index, texts::malformed());
        self.readmit_duplicates_of(label.key);
    }

    fn tell_oddity(&mut self, index: usize, oddity: Oddity) {
        let (Some(bucket), Some(call)) = (self.response.calls().get(index), self.calls.get(index))
        else {
            return;
        };
        let event = Event::ArgumentsOdd {
            call: call.label(),
            id: call.call.id.clone(),
            oddity,
            raw: excerpt(&bucket.raw, QUOTE_CHARS),
        };
        self.emit(event);
    }

    /// Duplicates that waited for a call which turned out malformed are decided anew.
    fn readmit_duplicates_of(&mut self, key: CallKey) {
        for call in &mut self.calls {
            if call.phase == (Phase::Duplicate { of: key }) {
                call.phase = Phase::Sealed;
            }
        }
    }

    fn tell_excess(&mut self, index: u32, action: &str) {
        let Some(maximum) = self.spec.rules.limits.max_tool_calls_per_turn else { return };
        if std::mem::replace(&mut self.excess_told, true) {
            return;
        }
        let (limit, value) = ("max_tool_calls_per_turn".to_owned(), u64::from(index) + 1);
        let maximum = u64::from(maximum);
        self.record(Record::LimitReached { limit: limit.clone(), value, maximum });
        self.hold(Effect::Emit(Event::LimitReached {
            limit,
            value,
            maximum,
            action: action.to_owned(),
        }));
    }
}

/// What the accumulator may hold of one response.
fn limits(rules: &TurnRules) -> AccumulatorLimits {
    AccumulatorLimits {
        arguments_bytes_max: rules.limits.max_arguments_bytes,
        ..AccumulatorLimits::default()
    }
}
