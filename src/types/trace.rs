//! Where a run stands in somebody's trace, as W3C Trace Context
//! (<https://www.w3.org/TR/trace-context/>) says it.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{CallKey, RunId, SessionId};

/// The header that names a trace and a span in it.
pub const TRACEPARENT: &str = "traceparent";

/// The header with what tracing systems want to keep beside it.
pub const TRACESTATE: &str = "tracestate";

/// How many entries a `tracestate` may have.
const STATE_ENTRIES_MAX: usize = 32;

/// How long one is that is passed on.
const STATE_BYTES_MAX: usize = 512;

/// A span of some trace: what comes below it belongs to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "TraceHeaders", into = "TraceHeaders")]
pub struct TraceContext {
    trace_id: [u8; 16],
    span_id: [u8; 8],
    flags: u8,
    state: Option<Arc<str>>,
}

/// It as it is written down.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TraceHeaders {
    traceparent: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    tracestate: Option<String>,
}

/// The flag that says that the trace is recorded.
const SAMPLED: u8 = 1;

/// The flags that this version of the headers knows: sampled, and that the trace's id is random.
const FLAGS: u8 = 3;

impl TraceContext {
    /// The root of a trace, or a span below another one.
    #[must_use]
    pub fn new(trace_id: [u8; 16], span_id: [u8; 8], sampled: bool) -> Self {
        Self { trace_id, span_id, flags: u8::from(sampled), state: None }
    }

    /// What a request's headers say: none where `traceparent` is missing or not valid, which is as
    /// good as missing. A `tracestate` that is not valid is left out.
    #[must_use]
    pub fn parse<'a>(
        traceparent: &str,
        tracestates: impl IntoIterator<Item = &'a str>,
    ) -> Option<Self> {
        let mut context = parent(traceparent)?;
        let states: Vec<&str> = tracestates.into_iter().collect();
        context.state = state(&states.join(","));
        Some(context)
    }

    /// The `traceparent` header.
    #[must_use]
    pub fn traceparent(&self) -> String {
        self.to_string()
    }

    /// The `tracestate` header, if there is one.
    #[must_use]
    pub fn tracestate(&self) -> Option<&str> {
        self.state.as_deref()
    }

    /// The trace.
    #[must_use]
    pub fn trace_id(&self) -> [u8; 16] {
        self.trace_id
    }

    /// The span in it.
    #[must_use]
    pub fn span_id(&self) -> [u8; 8] {
        self.span_id
    }

    /// Whether the trace is recorded.
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// Another span of the same trace.
    #[must_use]
    pub fn with_span(&self, span_id: [u8; 8], sampled: bool) -> Self {
        let flags = (self.flags & FLAGS & !SAMPLED) | u8::from(sampled);
        Self { span_id, flags, ..self.clone() }
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("00-")?;
        self.trace_id.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str("-")?;
        self.span_id.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, "-{:02x}", self.flags)
    }
}

impl TryFrom<TraceHeaders> for TraceContext {
    type Error = &'static str;

    fn try_from(headers: TraceHeaders) -> Result<Self, Self::Error> {
        Self::parse(&headers.traceparent, headers.tracestate.as_deref()).ok_or("no traceparent")
    }
}

impl From<TraceContext> for TraceHeaders {
    fn from(context: TraceContext) -> Self {
        let tracestate = context.tracestate().map(str::to_owned);
        Self { traceparent: context.traceparent(), tracestate }
    }
}

/// A later version of the header may have more behind a further dash.
fn parent(text: &str) -> Option<TraceContext> {
    let (version, rest) = (hex::<1>(text.get(..2)?)?, text.get(2..)?);
    let is_whole = match version {
        [0xff] => false,
        [0] => text.len() == 55,
        [_] => text.len() == 55 || text.get(55..56) == Some("-"),
    };
    let dashes = [0, 33, 50].into_iter().all(|at| rest.get(at..=at) == Some("-"));
    if !is_whole || !dashes {
        return None;
    }
    let trace_id = hex(rest.get(1..33)?)?;
    let span_id = hex(rest.get(34..50)?)?;
    let [flags] = hex(rest.get(51..53)?)?;
    let flags = if version == [0] { flags } else { flags & FLAGS };
    let is_known = trace_id != [0; 16] && span_id != [0; 8];
    is_known.then_some(TraceContext { trace_id, span_id, flags, state: None })
}

/// Lower case only, as the header wants it.
fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    if text.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let [high, low] = pair else { return None };
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bytes)
}

/// The entries of a valid `tracestate`; of one that is too long the long ones go first, then the
/// last.
fn state(text: &str) -> Option<Arc<str>> {
    let entries = text.split(',').map(|entry| entry.trim_matches([' ', '\t']));
    let mut entries: Vec<&str> = entries.filter(|entry| !entry.is_empty()).collect();
    let mut keys = Vec::with_capacity(entries.len());
    for entry in &entries {
        let (key, value) = entry.split_once('=')?;
        if !is_key(key) || !is_value(value) || keys.contains(&key) {
            return None;
        }
        keys.push(key);
    }
    if entries.len() > STATE_ENTRIES_MAX {
        return None;
    }
    if entries.join(",").len() > STATE_BYTES_MAX {
        entries.retain(|entry| entry.len() <= 128);
    }
    while entries.join(",").len() > STATE_BYTES_MAX {
        entries.pop();
    }
    (!entries.is_empty()).then(|| entries.join(",").into())
}

fn is_key(key: &str) -> bool {
    let begins = key.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    let is_letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-*/@".contains(c);
    begins && key.len() <= 256 && key.chars().all(is_letter)
}

fn is_value(value: &str) -> bool {
    let is_letter = |c: char| (' '..='~').contains(&c) && c != ',' && c != '=';
    (1..=256).contains(&value.len()) && value.chars().all(is_letter)
}

/// What the requests and the calls of a run bring along.
///
/// Where no spans are made of the run, that is what came with the run, unchanged. Else each of its
/// exchanges and calls is a span of its own. The ids of these follow from session, run and place,
/// so that a run that goes on after a crash goes on in the same trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunTrace {
    run: TraceContext,
    /// What the ids of spans are made of.
    seed: Option<[u8; 32]>,
}

impl RunTrace {
    /// The trace of a run that is passed on as it came.
    #[must_use]
    pub fn passed_on(given: TraceContext) -> Self {
        Self { run: given, seed: None }
    }

    /// The trace of a run that has spans: below what came with it, or a trace of its own.
    /// `is_sampled` decides about a trace by its id.
    #[must_use]
    pub fn with_spans(
        session: &SessionId,
        run: &RunId,
        given: Option<&TraceContext>,
        is_sampled: impl FnOnce([u8; 16]) -> bool,
    ) -> Self {
        let mut seed = Sha256::new();
        seed.update(session.as_str());
        seed.update([0]);
        seed.update(run.0.as_bytes());
        let seed: [u8; 32] = seed.finalize().into();
        let trace_id = match given {
            Some(given) => given.trace_id,
            None => digest(&seed, "trace"),
        };
        let (span_id, sampled) = (digest(&seed, "run"), is_sampled(trace_id));
        let context = match given {
            Some(given) => given.with_span(span_id, sampled),
            None => TraceContext::new(trace_id, span_id, sampled),
        };
        Self { run: context, seed: Some(seed) }
    }

    /// The run's own span, or what came with it.
    #[must_use]
    pub fn run(&self) -> &TraceContext {
        &self.run
    }

    /// What a request to a model brings along.
    #[must_use]
    pub fn of_attempt(&self, turn: u32, attempt: u32) -> TraceContext {
        self.below(|| format!("t{turn}a{attempt}"))
    }

    /// What a call brings along.
    #[must_use]
    pub fn of_call(&self, key: CallKey) -> TraceContext {
        self.below(|| key.to_string())
    }

    fn below(&self, place: impl FnOnce() -> String) -> TraceContext {
        match &self.seed {
            Some(seed) => self.run.with_span(digest(seed, &place()), self.run.is_sampled()),
            None => self.run.clone(),
        }
    }
}

/// An id, which is never all zeros.
fn digest<const N: usize>(seed: &[u8; 32], what: &str) -> [u8; N] {
    let digest: [u8; 32] = Sha256::new().chain_update(seed).chain_update(what).finalize().into();
    let mut id = [0; N];
    id.iter_mut().zip(digest).for_each(|(to, from)| *to = from);
    if id == [0; N] { [1; N] } else { id }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_traceparent_is_read_as_the_specification_says() {
        let zeros = "0".repeat(32);
        for (text, expected) in [
            (PARENT, Some(PARENT)),
            (
                "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-fe",
                Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-fe"),
            ),
            // A later version, with or without more behind it, is answered in ours.
            ("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-09", Some(PARENT)),
            ("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what", Some(PARENT)),
            ("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01.what", None),
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what", None),
            ("ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", None),
            ("00-4BF92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", None),
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", None),
            (&format!("00-{zeros}-00f067aa0ba902b7-01"), None),
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0", None),
            ("00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-011", None),
            ("00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", None),
            ("00-4bf92f3577b34da6a3ce929d0e0e473é-00f067aa0ba902b7-01", None),
            (" 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", None),
            ("", None),
        ] {
            let read = TraceContext::parse(text, None).map(|context| context.traceparent());
            assert_eq!(read.as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn a_tracestate_is_kept_if_it_is_one() {
        let long = |n: usize, bytes: usize| format!("k{n}={}", "v".repeat(bytes - 3));
        let many: Vec<String> = (0..33).map(|n| format!("k{n}=v")).collect();
        let filled = format!("{},{},{}", long(0, 200), long(1, 128), long(2, 128));
        let beyond = [filled.clone(), long(3, 100)].join(",");
        for (states, expected) in [
            (
                vec!["rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"],
                Some("rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"),
            ),
            (vec!["a=1", " b=2 ,, c@d=3\t"], Some("a=1,b=2,c@d=3")),
            (vec![], None),
            (vec![""], None),
            (vec!["a"], None),
            (vec!["A=1"], None),
            (vec!["a=1,a=2"], None),
            (vec!["a=1=2"], None),
            (vec!["a=é"], None),
            (vec![many[..32].join(",").as_str()], Some(many[..32].join(",").as_str())),
            (vec![many.join(",").as_str()], None),
            (vec![filled.as_str()], Some(filled.as_str())),
            (vec![beyond.as_str()], Some(beyond.split_once(',').unwrap().1)),
        ] {
            let read = TraceContext::parse(PARENT, states.iter().copied()).unwrap();
            assert_eq!(read.tracestate(), expected, "{states:?}");
            let written = serde_json::to_string(&read).unwrap();
            assert_eq!(serde_json::from_str::<TraceContext>(&written).unwrap(), read);
        }
        assert!(serde_json::from_str::<TraceContext>("{\"traceparent\":\"x\"}").is_err());
    }

    #[test]
    fn what_is_passed_on_has_spans_of_its_own_only_where_spans_are_made() {
        let given = TraceContext::parse(PARENT, ["a=1"]).unwrap();
        let key = CallKey { turn: 1, attempt: 2, index: 0 };
        let passed = RunTrace::passed_on(given.clone());
        assert_eq!((passed.of_attempt(1, 1), passed.of_call(key)), (given.clone(), given.clone()));

        let session = |id| SessionId::parse(id).unwrap();
        let run = RunId("run_1".into());
        let traced = |id, given| RunTrace::with_spans(&session(id), &run, given, |_| true);
        let below = traced("s1", Some(&given));
        assert_eq!(traced("s1", Some(&given)), below, "the same after a crash");
        let contexts = [
            given.clone(),
            below.run().clone(),
            below.of_attempt(1, 1),
            below.of_attempt(1, 2),
            below.of_call(key),
            traced("s2", Some(&given)).run().clone(),
        ];
        for (at, context) in contexts.iter().enumerate() {
            assert_eq!((context.trace_id(), context.tracestate()), (given.trace_id(), Some("a=1")));
            let same = contexts.iter().filter(|other| other.span_id() == context.span_id());
            assert_eq!(same.count(), 1, "{at}");
        }
        let root = RunTrace::with_spans(&session("s1"), &run, None, |_| false);
        assert_ne!(root.run().trace_id(), traced("s2", None).run().trace_id());
        assert!(!root.of_call(key).is_sampled() && below.of_call(key).is_sampled());
    }
}
