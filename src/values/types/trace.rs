//! The trace that a run belongs to, as defined by W3C Trace Context
//! (<https://www.w3.org/TR/trace-context/>).

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{CallKey, RunId, SessionId};

/// The header with the ids of the trace and of the parent span.
pub const TRACEPARENT: &str = "traceparent";

/// The header with vendor-specific trace data.
pub const TRACESTATE: &str = "tracestate";

/// Maximum number of entries of a `tracestate`.
const STATE_ENTRIES_MAX: usize = 32;

/// Maximum length of a `tracestate` that is passed on, in bytes.
const STATE_BYTES_MAX: usize = 512;

/// A span of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "TraceHeaders", into = "TraceHeaders")]
pub struct TraceContext {
    trace_id: [u8; 16],
    span_id: [u8; 8],
    flags: u8,
    state: Option<Arc<str>>,
}

/// The serialised form.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TraceHeaders {
    traceparent: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    tracestate: Option<String>,
}

/// The flag of a sampled trace.
const SAMPLED: u8 = 1;

/// The flags of this version of the headers: sampled, and random trace id.
const FLAGS: u8 = 3;

impl TraceContext {
    /// Creates the context of a span, without a `tracestate`.
    #[must_use]
    pub fn new(trace_id: [u8; 16], span_id: [u8; 8], sampled: bool) -> Self {
        Self { trace_id, span_id, flags: u8::from(sampled), state: None }
    }

    /// Parses the headers of a request. Returns `None` if `traceparent` is invalid. Ignores an invalid `tracestate`.
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

    /// Returns the `traceparent` header.
    #[must_use]
    pub fn traceparent(&self) -> String {
        self.to_string()
    }

    /// Returns the `tracestate` header, if any.
    #[must_use]
    pub fn tracestate(&self) -> Option<&str> {
        self.state.as_deref()
    }

    /// Returns the id of the trace.
    #[must_use]
    pub fn trace_id(&self) -> [u8; 16] {
        self.trace_id
    }

    /// Returns the id of the span.
    #[must_use]
    pub fn span_id(&self) -> [u8; 8] {
        self.span_id
    }

    /// Returns whether the trace is sampled.
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// Returns another span of the same trace.
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
        let parsed = Self::parse(&headers.traceparent, headers.tracestate.as_deref());
        parsed.ok_or("invalid traceparent")
    }
}

impl From<TraceContext> for TraceHeaders {
    fn from(context: TraceContext) -> Self {
        let tracestate = context.tracestate().map(str::to_owned);
        Self { traceparent: context.traceparent(), tracestate }
    }
}

/// Parses a `traceparent` header. A later version may append data after another dash.
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

/// Parses lower-case hex digits.
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

/// Returns the entries of a `tracestate`, or `None` if it is invalid or has more than 32. If it is too long, entries
/// above 128 bytes are removed first, then the last ones.
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
    let is_valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-*/@".contains(c);
    begins && key.len() <= 256 && key.chars().all(is_valid)
}

fn is_value(value: &str) -> bool {
    let is_valid = |c: char| (' '..='~').contains(&c) && c != ',' && c != '=';
    (1..=256).contains(&value.len()) && value.chars().all(is_valid)
}

/// The trace context of a run's model requests and tool calls.
///
/// If the host makes no spans, this is the context that the client sent. Otherwise each model
/// request and each tool call is a span of its own. Span ids are derived from session, run and
/// position, so a run that is resumed after a crash continues the same trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunTrace {
    run: TraceContext,
    /// The seed of the span ids, if the host makes spans.
    seed: Option<[u8; 32]>,
}

impl RunTrace {
    /// Creates the trace of a run that passes on the client's context.
    #[must_use]
    pub fn passed_on(given: TraceContext) -> Self {
        Self { run: given, seed: None }
    }

    /// Creates the trace of a run that has spans: below the client's span, or as a new trace.
    /// `is_sampled` decides by the trace id.
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

    /// Returns the run's span, or the client's context.
    #[must_use]
    pub fn run(&self) -> &TraceContext {
        &self.run
    }

    /// Returns the trace context of a model request.
    #[must_use]
    pub fn for_attempt(&self, turn: u32, attempt: u32) -> TraceContext {
        self.below(|| format!("t{turn}a{attempt}"))
    }

    /// Returns the trace context of a tool call.
    #[must_use]
    pub fn for_call(&self, key: CallKey) -> TraceContext {
        self.below(|| key.to_string())
    }

    fn below(&self, position: impl FnOnce() -> String) -> TraceContext {
        match &self.seed {
            Some(seed) => self.run.with_span(digest(seed, &position()), self.run.is_sampled()),
            None => self.run.clone(),
        }
    }
}

/// Derives an id. It is never zero.
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
    fn traceparent_is_parsed_as_specified() {
        let zeros = "0".repeat(32);
        for (text, expected) in [
            (PARENT, Some(PARENT)),
            (
                "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-fe",
                Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-fe"),
            ),
            // A later version, with or without more data, is answered in this version.
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
    fn a_valid_tracestate_is_kept() {
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
        let error = serde_json::from_str::<TraceContext>("{\"traceparent\":\"x\"}").unwrap_err();
        assert!(error.to_string().starts_with("invalid traceparent"), "{error}");
    }

    #[test]
    fn requests_and_calls_have_spans_of_their_own_only_if_spans_are_made() {
        let given = TraceContext::parse(PARENT, ["a=1"]).unwrap();
        let key = CallKey { turn: 1, attempt: 2, index: 0 };
        let passed = RunTrace::passed_on(given.clone());
        assert_eq!(
            (passed.for_attempt(1, 1), passed.for_call(key)),
            (given.clone(), given.clone())
        );

        let session = |id| SessionId::parse(id).unwrap();
        let run = RunId("run_1".into());
        let traced = |id, given| RunTrace::with_spans(&session(id), &run, given, |_| true);
        let below = traced("s1", Some(&given));
        assert_eq!(traced("s1", Some(&given)), below, "the same after a crash");
        let contexts = [
            given.clone(),
            below.run().clone(),
            below.for_attempt(1, 1),
            below.for_attempt(1, 2),
            below.for_call(key),
            traced("s2", Some(&given)).run().clone(),
        ];
        for (at, context) in contexts.iter().enumerate() {
            assert_eq!((context.trace_id(), context.tracestate()), (given.trace_id(), Some("a=1")));
            let same = contexts.iter().filter(|other| other.span_id() == context.span_id());
            assert_eq!(same.count(), 1, "{at}");
        }
        let root = RunTrace::with_spans(&session("s1"), &run, None, |_| false);
        assert_ne!(root.run().trace_id(), traced("s2", None).run().trace_id());
        assert!(!root.for_call(key).is_sampled() && below.for_call(key).is_sampled());
    }
}
