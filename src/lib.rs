//! Callsheet hosts LLM agents as a long-running service. Many sessions live in one process; in
//! each, a model's response is read as a stream, every tool call in it becomes a supervised
//! actor, and the results go back to the model in call order.
//!
//! This page is the architecture. For how to use it, read the README.
//!
//! # The way of the data
//!
//! ```text
//!   HTTP body ──> StreamActor ──────── Vec<Delta> ────────> AccumulatorActor ──> one linked
//!                 runtime/stream.rs    one awaited call     owns the Turn         ToolActor
//!                 wire/: bytes, SSE,   a chunk: that is     turn/: seals,         a call
//!                 dialect              the backpressure     admission, schedule     │
//!                                                              │        ^           │
//!                        Record ──> SessionLog ──> durable ────┤        └─ its end ─┘
//!                                                              │
//!   SessionActor <── Commit(TurnRecord) ───────────────────────┘
//!   owns History, Variables and Run; asks for the next turn, or ends the run
//!
//!   Emit(Event) ──> telemetry/: metrics, logs, the session's feed ──> server/: SSE, /metrics
//! ```
//!
//! # Machines and shells
//!
//! Two kinds of code. **Machines** ([`wire`], [`response`], [`turn`], [`session`], [`context`] and the nouns below them) are
//! pure: no async, no clock, no randomness, no I/O; values go in by `handle_*`, effects come out
//! of `poll`, time is an argument. **Shells** ([`runtime`], [`server`], [`load`], [`cli`]) move values and
//! decide nothing. Dependencies go down only:
//!
//! | layer | modules | know nothing about |
//! | --- | --- | --- |
//! | nouns | [`types`], [`message`], [`event`], [`record`], [`config`] | how anything is done |
//! | machines | [`transcript`], [`wire`], [`response`], [`context`], [`turn`], [`session`] | HTTP, actors, clocks |
//! | what tools are | [`tool`] | sessions, models, actors |
//! | what is kept and told | [`journal`], [`telemetry`] | how a turn is decided |
//! | shells | [`runtime`] (alone names the actor library), [`rehearsal`], [`server`], [`load`], [`cli`] | |
//!
//! `tests/architecture.rs` enforces the order, the purity, and that no file has more than 400
//! lines without its tests.
//!
//! # Sessions that survive
//!
//! A session is a fold over its records: [`session::Rebuilt`] hands them to the machines that a living
//! session hands them to. [`journal::SessionLog`] numbers them and knows which are durable; an engine
//! ([`journal::SqliteJournal`], one writer with group commit, or [`journal::MemoryJournal`]) stores them. What a
//! machine holds back until a record is stored, it holds back itself (a start, a result, the
//! commit); what is *shown* waits in the session's feed ([`telemetry`]) until it is durable. A host holds in memory
//! only the sessions that are awake; any request wakes one, and unfinished runs are woken as it starts.
//! When an actor dies, when the host does, and when a session falls asleep with a question open, the
//! run goes on by the same code: [`turn::Turn::resume`].
//!
//! [`journal::verify`] checks on records what is true of every turn, and [`session::replay`] plays
//! them once more against the machines of today.
//!
//! # Wires
//!
//! A wire is a dialect, one a file in [`wire`], all of one shape: how a service is asked, and how
//! the JSON objects that it sends become [`wire::Delta`]s. What stands around the objects (cuts,
//! framing, broken payloads, errors) is read in one place for all, and what is the payload before
//! with another text in it is not even parsed. A dialect decides nothing about
//! calls; [`response::ResponseAssembler`] puts the deltas together, and knows from them where a call begins
//! and ends, or infers it where the wire does not say.
//!
//! A [`message::ResponseMessage`] knows who said it, and keeps the parts which that service wants
//! back: signatures of thinking, calls that the service ran itself. The model that said it gets all
//! of it back in its order ([`message::RequestPart`]); any other gets text and calls, under ids and names
//! that its service takes.
//!
//! # What watchers see
//!
//! An event that is the view of a record leaves the session's [`telemetry::Feed`] when that record
//! is durable, and all that comes behind it waits with it. Somebody who comes later is shown the
//! same from the journal ([`record::PastEvents`]), then the text of the running attempt and the states of
//! open calls from the feed, then what comes: [`runtime::SessionHandle::watch`].
//!
//! # Where a run stands in a trace
//!
//! A run may be asked for in somebody's trace ([`types::TraceContext`]); its requests and calls bring that along
//! ([`types::RunTrace`]). Spans are made of the events that metrics and logs are made of, each when it is over
//! ([`telemetry::Traces`], with the feature `otlp`); the ids that requests brought along are known before, for they
//! follow from session, run and place.
//!
//! # What is true of every turn
//!
//! 1. Every tool call kept in the history has exactly one outcome, whatever happens: unknown
//!    tool, bad or cut-off arguments, limit, duplicate, a person's no, panic, timeout, stop, the
//!    death of an actor. A late outcome is dropped and counted.
//! 2. Outcomes are released and committed in call order, whatever the execution and the finishing
//!    order. Live events come when things happen; the history is in call order.
//! 3. Only the session actor writes history and variables. What is sent to a provider always satisfies its
//!    pairing rule; a last check at request building repairs and *counts*
//!    (`callsheet_history_repairs_total` stays 0).
//! 4. Every queue, buffer, argument size, loop and retry has a limit; reaching it is a typed
//!    outcome.
//! 5. Machines name no tokio, ractor, reqwest, axum or metrics.
//! 6. A slow or dead subscriber never delays a turn; a tool's panic ends that call and nothing
//!    else.
//! 7. Sequential and parallel execution of tools whose reads and writes of variables do not
//!    conflict leave the same history, byte for byte; a conflict is seen, told and counted.
//!
//! The tests of [`turn`] visit every state that a turn's surroundings can bring about (deltas,
//! outcomes, records, decisions of people, places of tools, timeouts, stops, breaks and crashes in
//! any order) and check these in each.
//!
//! # Where to begin
//!
//! - To host agents: [`runtime::Host`], [`runtime::SessionHandle`].
//! - To write a tool: [`tool::Tool`].
//! - To ask a model without a host: [`runtime::model::ModelClient`].
//! - To decode a recorded response: [`response::decode_body`].

pub mod cli;
pub mod config;
pub mod context;
pub mod event;
pub mod journal;
pub mod load;
pub mod message;
pub mod record;
pub mod rehearsal;
pub mod response;
pub mod runtime;
pub mod server;
pub mod session;
pub mod telemetry;
pub mod tls;
pub mod tool;
pub mod transcript;
pub mod turn;
pub mod types;
pub mod wire;

/// The examples of the README and of `docs/tools.md`, compiled and run as tests.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../docs/tools.md")]
    struct Tools;
}
