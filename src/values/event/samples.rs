//! Sample events, at least one of each kind, for tests.
#![expect(clippy::unwrap_used, reason = "for tests")]

use std::sync::Arc;
use std::time::Duration;

use super::{
    ApprovalRequest, ArgumentsAnomaly, AttemptFallback, CallLabel, ChildEvent, ConflictResolution,
    Event, PublishedEvent, ResponseSummary, RunStats, ServerToolsChange, ServiceCall,
    ServiceCallStatus, ToolListChange, TurnSummary, TurnTimes, VoidedText, WaitingFor,
};
use crate::types::ResponseEnding;
use crate::types::{
    ApprovalVerdict, Author, CallKey, CompactionKind, Execution, FinishKind, FinishReason,
    ProviderError, ProviderErrorKind, ResultNotes, RunEnd, RunError, RunId, SessionId, ToolCall,
    ToolOutcome, ToolResult, Usage, WaitPhase,
};

/// Publishes the event in turn 3 of the run `run_1` of the session `s1`.
pub fn published(event: Event) -> PublishedEvent {
    PublishedEvent {
        session: SessionId::parse("s1").unwrap(),
        run: RunId("run_1".into()),
        turn: 3,
        id: None,
        stream_text: crate::event::EventStreamText::default(),
        timestamp_ms: 1_700_000_000_123,
        event,
    }
}

/// Returns the key of a call.
pub fn key() -> CallKey {
    CallKey { turn: 3, attempt: 1, index: 2 }
}

/// Returns the call with that key.
pub fn label() -> CallLabel {
    CallLabel { key: key(), provider_id: Some("call_x".into()), name: "clock".into() }
}

/// Returns a call that the service ran.
pub fn service_call() -> ServiceCall {
    ServiceCall {
        turn: 3,
        attempt: 1,
        position: 0,
        provider_id: Some("srv_x".into()),
        name: "web_search".into(),
        input_summary: String::new(),
    }
}

/// Returns a successful result that took 1.5 s after a wait of 20 ms.
pub fn result() -> ToolResult {
    ToolResult {
        call: ToolCall {
            key: key(),
            id: "call_x".into(),
            provider_id: Some("call_x".into()),
            name: "clock".into(),
            arguments: serde_json::json!({"zone": "Asia/Tokyo"}).into(),
            raw: None,
            indirect: false,
        },
        outcome: ToolOutcome::ok("12:00"),
        notes: ResultNotes::default(),
        started: Some(Duration::from_secs(1)),
        wait: Duration::from_millis(20),
        duration: Duration::from_millis(1_500),
        writes: crate::types::WriteSet::default(),
    }
}

/// Returns the summary of a response.
pub fn response() -> ResponseSummary {
    ResponseSummary {
        attempt: 1,
        model: "m".into(),
        ending: ResponseEnding::Complete,
        calls: vec![result().call],
        dropped_calls: vec!["fly".into()],
        finish_reason: Some(FinishReason::new(FinishKind::ToolCalls, "tool_use")),
        usage: Usage { input_tokens: 10, output_tokens: 5, cached_tokens: 2, reasoning_tokens: 1 },
    }
}

/// Returns the summary of a turn.
pub fn summary() -> TurnSummary {
    TurnSummary {
        tool_names: vec!["clock".into(), "calculator".into()],
        dropped_calls: 1,
        finish_reason: Some(FinishReason::new(FinishKind::ToolCalls, "tool_use")),
        usage: Usage { input_tokens: 10, output_tokens: 5, cached_tokens: 2, reasoning_tokens: 1 },
        parallel: true,
        times: TurnTimes {
            total: Duration::from_millis(2_000),
            model: Duration::from_millis(900),
            tools: Duration::from_millis(1_500),
            overlap: Duration::from_millis(401),
            people: Duration::ZERO,
            waits: Duration::ZERO,
            overhead: Duration::from_millis(1),
            tools_sum: Duration::from_millis(1_600),
            tools_longest: Duration::from_millis(1_500),
        },
    }
}

/// Returns the figures of a run.
pub fn stats() -> RunStats {
    RunStats {
        turns: 2,
        tool_calls: 3,
        usage: Usage { input_tokens: 20, output_tokens: 9, cached_tokens: 7, reasoning_tokens: 4 },
        duration: Duration::from_millis(3_000),
        model: Duration::from_millis(1_800),
        tools: Duration::from_millis(1_500),
        people: Duration::ZERO,
        waits: Duration::ZERO,
        overhead: Duration::from_millis(2),
        overlap: Duration::from_millis(302),
    }
}

/// Returns the end of an attempt.
pub fn attempt_ended(error: Option<ProviderError>) -> Event {
    Event::AttemptEnded {
        model: "m".into(),
        streamed: true,
        duration: Duration::from_millis(900),
        first_chunk: Some(Duration::from_millis(90)),
        usage: Usage { input_tokens: 10, output_tokens: 5, ..Usage::default() },
        finish_reason: None,
        error: error.map(Box::new),
    }
}

/// Returns the end of a run.
pub fn run_ended(end: RunEnd, error: Option<RunError>) -> Event {
    Event::RunEnded {
        agent: "default".into(),
        metadata: crate::types::Metadata::default(),
        end,
        text: "It is noon.".into(),
        output: None,
        error,
        finish_reason: Some(FinishReason::new(FinishKind::Stop, "stop")),
        stats: Box::new(stats()),
    }
}

/// Defines the names of all kinds of events. The match is exhaustive, so a new kind does not compile
/// until its name is added here; then the test below fails until [`every`] has a sample of it.
#[cfg(test)]
macro_rules! kinds {
    ($($kind:ident)*) => {
        const KINDS: &[&str] = &[$(stringify!($kind)),*];

        fn kind(event: &Event) -> &'static str {
            match event {
                $(Event::$kind { .. } => stringify!($kind),)*
            }
        }
    };
}

#[cfg(test)]
kinds! {
    RunStarted InputQueued InputRemoved RunSteered RunWaiting ToolsChanged ServerReleased TurnStarted ThinkingReceived TextReceived CallOpened
    CallDetected ArgumentsReceived ArgumentsAnomalyFound ArgumentsLost CallWaiting CallStarted CallProgressed ApprovalAsked
    ApprovalGiven ConflictFound CallDiscarded CallEnded ServiceCallChanged OutcomeLate
    ResultReleased ResponseEnded ResponseDecoded AttemptEnded AttemptFellBack AttemptStarted AttemptVoided TurnEnded LimitReached
    ContextCompacted OfChild HistoryRepaired ToolSetAside RunEnded
}

#[test]
fn every_kind_of_event_has_a_sample() {
    let samples: std::collections::BTreeSet<_> = every().iter().map(kind).collect();
    assert_eq!(samples, KINDS.iter().copied().collect());
}

/// Returns the start of a call in a child session.
pub fn child_event() -> ChildEvent {
    ChildEvent {
        session: SessionId::parse("sub_00000000000000000000000000000000").unwrap(),
        run: RunId("run_00000000000000000000000000000000".into()),
        turn: 1,
        timestamp_ms: 1_700_000_000_123,
        event: Event::CallOpened { call: label() },
        parent_session: SessionId::parse("s1").unwrap(),
        parent_call: key(),
        agent_path: vec!["default".into(), "researcher".into()],
    }
}

/// Returns at least one event of each kind.
pub fn every() -> Vec<Event> {
    let call = label();
    let ms = Duration::from_millis;
    vec![
        Event::RunStarted {
            agent: "default".into(),
            model: "m".into(),
            execution: Execution::Parallel { max: 4 },
            input: Some("And in Tokyo?".into()),
            metadata: crate::types::Metadata::default(),
            reopened: false,
        },
        Event::InputQueued { input: "And later?".into(), waiting: 1 },
        Event::InputRemoved { waiting: 0 },
        Event::RunSteered { input: "And in Beijing?".into(), author: Some(Author::new("ada")) },
        Event::RunWaiting { waiting_for: WaitingFor::Server, servers: vec!["files".into()] },
        Event::ToolsChanged {
            change: Arc::new(ServerToolsChange {
                server: "files".into(),
                change: ToolListChange {
                    added: vec!["files__write".into()],
                    removed: Vec::new(),
                    changed: vec!["files__read".into()],
                },
            }),
        },
        Event::ServerReleased { server: "files".into() },
        Event::TurnStarted,
        Event::ThinkingReceived { text: "Hm.".into() },
        Event::TextReceived { text: "Noon \"there\"\n".into() },
        Event::CallOpened { call: call.clone() },
        Event::CallDetected {
            call: call.clone(),
            arguments: serde_json::json!({"zone": "Asia/Tokyo"}).into(),
            latency: ms(420),
            stream_position: 17,
            streaming: true,
        },
        Event::ArgumentsReceived { call: call.clone(), offset: 9, text: "\"Asia".into() },
        Event::ArgumentsAnomalyFound {
            call: call.clone(),
            id: "call_x".into(),
            anomaly: ArgumentsAnomaly::CutOff,
            raw: "{\"zone\": \"As".into(),
        },
        Event::ArgumentsLost { model: "gpt".into(), reason: "they belong to no call".into() },
        Event::CallWaiting {
            call: call.clone(),
            waiting_for: WaitingFor::Capacity,
            input_summary: "{}".into(),
            arguments: serde_json::json!({"zone": "Asia/Tokyo"}).into(),
            by_client: false,
        },
        Event::CallStarted {
            call: call.clone(),
            input_summary: "{\"zone\":\"Asia/Tokyo\"}".into(),
            arguments: serde_json::json!({"zone": "Asia/Tokyo"}).into(),
            early: true,
            waited: ms(20),
            queued: Some(ms(10)),
            known_calls: 4,
        },
        Event::CallProgressed { key: key(), text: "half".into() },
        Event::ApprovalAsked {
            request: Box::new(ApprovalRequest {
                call: call.clone(),
                phase: WaitPhase::Before,
                arguments: serde_json::json!({"zone": "Asia/Tokyo"}).into(),
                arguments_sha256: "5f70".into(),
                output_summary: None,
                question: None,
            }),
        },
        Event::ApprovalGiven {
            call: call.clone(),
            phase: WaitPhase::Before,
            verdict: ApprovalVerdict::Approved,
            message: Some("once".into()),
            author: Some(Author::new("ada")),
            waited: ms(7_000),
        },
        Event::ConflictFound {
            call: call.clone(),
            names: vec!["zone".into()],
            resolution: ConflictResolution::Rerun,
        },
        Event::CallDiscarded { call: call.clone(), had_result: true },
        Event::CallEnded { result: Box::new(result()), parallel: true, early: true },
        Event::ServiceCallChanged {
            call: Box::new(service_call()),
            status: ServiceCallStatus::Running,
        },
        Event::OutcomeLate { call },
        Event::ResultReleased { key: key(), reorder_wait: ms(5) },
        Event::ResponseEnded { response: Arc::new(response()) },
        Event::ResponseDecoded {
            names: vec!["clock".into(), "calculator".into()],
            opened: 3,
            detected: 2,
            stopped: false,
        },
        attempt_ended(None),
        attempt_ended(Some(ProviderError::new(ProviderErrorKind::Transport, "it broke"))),
        Event::AttemptStarted {
            attempt: 2,
            model: "m".into(),
            streamed: false,
            reason: "it broke".into(),
            wait: ms(250),
            voided: None,
        },
        Event::AttemptVoided {
            attempt: 3,
            model: "m".into(),
            streamed: true,
            reason: "it broke".into(),
            voided: Some(Arc::new(VoidedText {
                text: "It is".into(),
                thinking: "Hm.".into(),
                omitted_bytes: 3,
            })),
        },
        Event::TurnEnded { summary: Box::new(summary()) },
        Event::LimitReached {
            limit: "max_turns".into(),
            value: 11,
            maximum: 10,
            action: "asked for a final answer".into(),
            reason: None,
        },
        Event::ContextCompacted {
            kind: CompactionKind::Cleared,
            tokens_before: 120_000,
            tokens_after: 60_000,
            upto: 7,
            messages: vec!["t1a1c0".to_owned()],
        },
        Event::OfChild { call: key(), event: Arc::new(child_event()) },
        Event::HistoryRepaired { repairs: 1 },
        Event::AttemptFellBack { to: AttemptFallback::PlainAnswer },
        Event::ToolSetAside {
            tool_name: "clock".into(),
            model: "m".to_owned(),
            reason: "no".to_owned(),
        },
        run_ended(RunEnd::Answered, None),
        run_ended(
            RunEnd::Failed,
            Some(RunError {
                code: "provider_error".into(),
                message: "it broke".into(),
                transient: true,
            }),
        ),
    ]
}
