//! Buckets by index, ids, seals: the deltas of one response, put together.
//!
//! Which piece belongs to which call is decided here and nowhere else. A piece belongs to the
//! last call with its index; a new id together with a name begins another call under an index
//! that is in use. Without an index it belongs to the call with its id, or else to the call
//! before. A missing index never means 0, because that would merge calls. The first id and the
//! first name stand.
//!
//! A call that opens seals all earlier ones (of 1,046 recorded Chat Completions streams none
//! interleaves calls), and a good ending seals all. That text parses is no proof that it is whole:
//! some services send placeholders first.

use crate::turn::bucket::Bucket;
use crate::types::{FinishKind, FinishReason, ProviderError, ProviderErrorKind, Usage};
use crate::wire::{CallPiece, Delta, Problem};

/// How much one response may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AccumulatorLimits {
    /// Bytes of one call's arguments; more is not kept.
    pub arguments_bytes_max: usize,
    /// Calls that are kept at all; more are only counted.
    pub calls_max: usize,
    /// Bytes of text, of reasoning and of refusal, each; more is an error of the response.
    pub text_bytes_max: usize,
}

impl Default for AccumulatorLimits {
    fn default() -> Self {
        Self { arguments_bytes_max: 1 << 20, calls_max: 1024, text_bytes_max: 16 << 20 }
    }
}

/// What a delta did to the calls; the numbers are indexes into [`Accumulator::calls`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// A call with a name was opened.
    Opened(usize),
    /// A call's arguments are whole.
    Sealed(usize),
    /// More bytes came for a call that was sealed already.
    Disturbed(usize),
}

/// Changes in the order in which they happened; mostly none, which allocates nothing.
pub type Changes = Vec<Change>;

/// One response, as far as it has come.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Accumulator {
    limits: AccumulatorLimits,
    calls: Vec<Bucket>,
    /// The newest call, while it is none that is kept: one that lacks its name, or one too many.
    tail: Option<Tail>,
    excess: usize,
    text: String,
    reasoning: String,
    refusal: String,
    finish: Option<FinishReason>,
    usage: Usage,
    usage_raw: Option<Box<str>>,
    error: Option<ProviderError>,
    problems: Vec<Problem>,
    done: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Tail {
    Nameless(Bucket),
    Excess(Bucket),
}

/// Where a piece belongs.
#[derive(Clone, Copy)]
enum Place {
    Tail,
    Call(usize),
}

/// Problems of one response that are kept.
const PROBLEMS_MAX: usize = 64;

impl Accumulator {
    /// An empty response.
    #[must_use]
    pub fn new(limits: AccumulatorLimits) -> Self {
        Self {
            limits,
            calls: Vec::new(),
            tail: None,
            excess: 0,
            text: String::new(),
            reasoning: String::new(),
            refusal: String::new(),
            finish: None,
            usage: Usage::default(),
            usage_raw: None,
            error: None,
            problems: Vec::new(),
            done: false,
        }
    }

    /// Adds one delta, and says what it did to the calls.
    pub fn push(&mut self, delta: &Delta) -> Changes {
        let bytes_max = self.limits.text_bytes_max;
        let mut changes = Changes::new();
        let fits = match delta {
            Delta::Text(piece) => append(&mut self.text, piece, bytes_max),
            Delta::Reasoning(piece) => append(&mut self.reasoning, piece, bytes_max),
            Delta::Refusal(piece) => append(&mut self.refusal, piece, bytes_max),
            Delta::Call(piece) => {
                self.push_call(piece, &mut changes);
                true
            }
            Delta::Seal { index } => {
                let found = self.calls.iter().rposition(|call| call.wire_index == Some(*index));
                if let Some(at) = found {
                    self.seal(at, &mut changes);
                }
                true
            }
            Delta::Finish(reason) => {
                self.finish = Some(reason.clone());
                true
            }
            Delta::Usage { usage, raw } => {
                self.usage = *usage;
                self.usage_raw = Some(raw.clone());
                true
            }
            Delta::Error(error) => {
                self.error.get_or_insert_with(|| error.clone());
                true
            }
            Delta::Problem(problem) => {
                self.note(problem.clone());
                true
            }
            Delta::Done => {
                self.done = true;
                true
            }
        };
        if !fits {
            self.error.get_or_insert_with(|| {
                let message = format!("the response holds more than {bytes_max} bytes of text");
                ProviderError::new(ProviderErrorKind::TooLarge, message)
            });
        }
        changes
    }

    /// Says that nothing more will come. What is open is sealed if the response ended well, and
    /// stays open otherwise.
    pub fn end(&mut self, well: bool) -> Changes {
        let mut changes = Changes::new();
        self.drop_tail();
        if well {
            self.seal_all(&mut changes);
        }
        changes
    }

    /// Whether what has come is a response that ended well: with a finish reason that says so, or
    /// with the wire's own sign of the end where the service sends no reason; and without error.
    #[must_use]
    pub fn ended_well(&self) -> bool {
        if self.error.is_some() {
            return false;
        }
        match self.finish.as_ref().map(|finish| finish.kind) {
            Some(FinishKind::Stop | FinishKind::ToolCalls | FinishKind::Other) => true,
            Some(FinishKind::Length | FinishKind::ContentFilter | FinishKind::Error) => false,
            None => self.done,
        }
    }

    /// The calls with a name, in the order in which they were opened.
    #[must_use]
    pub fn calls(&self) -> &[Bucket] {
        &self.calls
    }

    /// How many calls were opened beyond `calls_max`.
    #[must_use]
    pub fn excess(&self) -> usize {
        self.excess
    }

    /// The answer's text so far.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The model's thinking so far.
    #[must_use]
    pub fn reasoning(&self) -> &str {
        &self.reasoning
    }

    /// The refusal so far.
    #[must_use]
    pub fn refusal(&self) -> &str {
        &self.refusal
    }

    /// Why the response ended, if it said so.
    #[must_use]
    pub fn finish(&self) -> Option<&FinishReason> {
        self.finish.as_ref()
    }

    /// The last token counts that came; zeros if none came.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// The last token counts that came, as JSON text of the wire's own.
    #[must_use]
    pub fn usage_raw(&self) -> Option<&str> {
        self.usage_raw.as_deref()
    }

    /// The first error that the service reported, or that a limit made.
    #[must_use]
    pub fn error(&self) -> Option<&ProviderError> {
        self.error.as_ref()
    }

    /// What was odd and was passed over; the first 64.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Whether the wire's own sign of the end was seen.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Whether the response holds neither text, nor thinking, nor a refusal, nor a call.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
            && self.reasoning.is_empty()
            && self.refusal.is_empty()
            && self.calls.is_empty()
            && self.excess == 0
    }

    fn push_call(&mut self, piece: &CallPiece, changes: &mut Changes) {
        let place = self.place_of(piece).filter(|place| {
            self.bucket_mut(*place).is_some_and(|bucket| !bucket.is_followed_by(piece))
        });
        match place {
            None => self.open(Bucket::begin(piece), piece, changes),
            Some(Place::Call(at)) => self.continue_call(at, piece, changes),
            Some(Place::Tail) => self.continue_tail(piece, changes),
        }
    }

    /// The bucket to which a piece would belong if it begins no call of its own.
    fn place_of(&self, piece: &CallPiece) -> Option<Place> {
        let same_id = |bucket: &Bucket| piece.id.is_some() && bucket.provider_id == piece.id;
        match piece.index {
            Some(_) => {
                let same_index = |bucket: &Bucket| bucket.wire_index == piece.index;
                self.find(|bucket| same_index(bucket) && same_id(bucket))
                    .or_else(|| self.find(same_index))
                    // Without a name it cannot begin a call, so its id is worth more.
                    .or_else(|| self.find(same_id).filter(|_| piece.name.is_none()))
            }
            None => self.find(same_id).or_else(|| match (&piece.id, &piece.name) {
                (Some(_), Some(_)) => None,
                (None, _) | (_, None) => self.find(|_| true),
            }),
        }
    }

    fn find(&self, wanted: impl Fn(&Bucket) -> bool) -> Option<Place> {
        match &self.tail {
            Some(Tail::Nameless(bucket) | Tail::Excess(bucket)) if wanted(bucket) => {
                Some(Place::Tail)
            }
            Some(Tail::Nameless(_) | Tail::Excess(_)) | None => {
                self.calls.iter().rposition(wanted).map(Place::Call)
            }
        }
    }

    fn bucket_mut(&mut self, place: Place) -> Option<&mut Bucket> {
        match place {
            Place::Call(at) => self.calls.get_mut(at),
            Place::Tail => match &mut self.tail {
                Some(Tail::Nameless(bucket) | Tail::Excess(bucket)) => Some(bucket),
                None => None,
            },
        }
    }

    fn open(&mut self, mut bucket: Bucket, piece: &CallPiece, changes: &mut Changes) {
        self.drop_tail();
        bucket.append(piece, self.limits.arguments_bytes_max);
        if bucket.name.is_empty() {
            self.tail = Some(Tail::Nameless(bucket));
        } else {
            self.keep(bucket, changes);
        }
    }

    /// Takes a call that has its name among the calls, or counts it as one too many.
    fn keep(&mut self, bucket: Bucket, changes: &mut Changes) {
        self.seal_all(changes);
        if self.calls.len() < self.limits.calls_max {
            changes.push(Change::Opened(self.calls.len()));
            self.calls.push(bucket);
        } else {
            self.excess += 1;
            self.tail = Some(Tail::Excess(bucket));
        }
    }

    fn continue_call(&mut self, at: usize, piece: &CallPiece, changes: &mut Changes) {
        let Some(bucket) = self.calls.get_mut(at) else { return };
        let renamed = piece.name.as_ref().filter(|name| **name != bucket.name);
        let problem = renamed.map(|name| Problem {
            code: "name_changed",
            detail: crate::types::excerpt(&format!("{} -> {name}", bucket.name), 200),
        });
        bucket.fill(piece);
        let adds = piece.arguments.as_deref().is_some_and(|text| !text.trim().is_empty());
        if bucket.sealed && adds {
            bucket.disturbed = true;
            changes.push(Change::Disturbed(at));
        }
        bucket.append(piece, self.limits.arguments_bytes_max);
        if let Some(problem) = problem {
            self.note(problem);
        }
    }

    fn continue_tail(&mut self, piece: &CallPiece, changes: &mut Changes) {
        match self.tail.take() {
            Some(Tail::Nameless(mut bucket)) => {
                bucket.fill(piece);
                bucket.append(piece, self.limits.arguments_bytes_max);
                if bucket.name.is_empty() {
                    self.tail = Some(Tail::Nameless(bucket));
                } else {
                    self.keep(bucket, changes);
                }
            }
            Some(Tail::Excess(mut bucket)) => {
                bucket.fill(piece);
                bucket.append(piece, self.limits.arguments_bytes_max);
                self.tail = Some(Tail::Excess(bucket));
            }
            None => {}
        }
    }

    fn drop_tail(&mut self) {
        if let Some(Tail::Nameless(bucket)) = self.tail.take() {
            let detail = crate::types::excerpt(&bucket.raw, 200);
            self.note(Problem { code: "call_without_name", detail });
        }
    }

    fn seal_all(&mut self, changes: &mut Changes) {
        // Only the newest calls can be open, so this looks at few.
        let open = self.calls.iter().rev().take_while(|call| !call.sealed).count();
        for at in self.calls.len() - open..self.calls.len() {
            self.seal(at, changes);
        }
    }

    fn seal(&mut self, at: usize, changes: &mut Changes) {
        if let Some(call) = self.calls.get_mut(at).filter(|call| !call.sealed) {
            call.sealed = true;
            changes.push(Change::Sealed(at));
        }
    }

    fn note(&mut self, problem: Problem) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(problem);
        }
    }
}

fn append(text: &mut String, piece: &str, bytes_max: usize) -> bool {
    let fits = text.len() + piece.len() <= bytes_max;
    if fits {
        text.push_str(piece);
    }
    fits
}

#[cfg(test)]
#[path = "accumulator_tests.rs"]
mod tests;
