//! The session machine: no async, no clock, no I/O.
//!
//! [`Session`] decides about inputs, the queue, stops, runs, suspension and closing, and makes the records about
//! them. The records of a turn come from the turn machine. A stored session is read by the code that changes a living
//! one: both apply records (event sourcing).
//!
//! | rule | file |
//! | --- | --- |
//! | requests to start or to queue a run | `runs` |
//! | other requests: steer, stop, resume, shut down, close | `inputs` |
//! | stop: `now` ([`StopMode::Now`](callsheet_values::record::StopMode)) cancels the turn | `inputs` (`handle_stop`), `turn::response_end` |
//! | stop: `after_turn` ends the run when its turn is over | `run_machine` (`follow_up_turn`), `runs` (`stops_before_turn`) |
//! | suspended, resting, resumable: the meaning of the words | `machine` (`Session::suspended`) |
//! | limits on waiting inputs and on the size of a session | `inputs`, `machine` |
//! | requests for a new list of MCP tools (the list is frozen otherwise) | `inputs`; a server's change: `runtime::session::tools` |
//! | conditions of hibernation in the machine (`may_hibernate`) | `inputs` |
//! | idempotency keys of client requests (`Idempotency-Key`) | `idempotency_keys` |
//! | the next turn, the records that follow a turn, the next queued run, the end of a run | `runs` |
//! | end of a run after a turn: `max_turns`, `max_failed_turns`, token budget, request for a final answer | `run_machine` |
//! | forced call (`tool_choice`, `FORCED_REQUESTS_MAX`), an answer without text, typed answer (structured output): requests for it, `output_retries` | `run_machine` |
//! | a history that is too long (truncate, trim, shorten, compact): clearing of results, compact history, summary, overflow, learnt window | `context` |
//! | content that a service refuses, or that a client leaves out | `exclusion`, `exclusion_state` |
//! | use of a limit, and the note when half of it is used | `limit_meter` |
//! | loop detection (`repeat_limit`) | `loop_detection` |
//! | stage, usage and time of the current run | `open_run` |
//! | limits that end a run before its next turn: `run_timeout`, tokens that a summary has used up | `open_run` |
//! | pending approvals after a restart or while hibernating, from the records of the turn | `approvals` |
//! | the state of a session, the records that change it, inputs and effects of the machine | `machine` |
//! | a session from its journal | `stored` |
//! | fork (branch, time travel): keeps the records up to a position; drops idempotency keys and queued inputs; ends the open run | `stored` (`StoredSession::fork`), `machine` (`SessionForked`); storage: `journal::sqlite::database` |
//! | report of a run that has ended, from its records | `past_run` |
//! | the records that hold the values of references | `reference_index` |
//! | replay of a session, compared with its records | `replay` |
#![warn(clippy::indexing_slicing)]

mod approvals;
mod context;
mod context_state;
mod exclusion;
mod exclusion_state;
#[cfg(test)]
mod explorer;
mod idempotency_keys;
mod inputs;
mod limit_meter;
mod loop_detection;
mod machine;
mod open_run;
mod past_run;
mod reference_index;
mod replay;
mod run_machine;
mod runs;
mod stored;
#[cfg(test)]
mod tests;

pub use approvals::{PendingApprovalRequest, pending_approvals};
pub use exclusion::MessageName;
pub use idempotency_keys::{IDEMPOTENCY_KEYS_MAX, IdempotencyKeys, RequestEffect, SeenRequest};
pub use machine::{
    InputLimits, RunAdmission, RunResult, Session, SessionEffect, SessionRefusal, SessionRulesOf,
    SummaryReply, SummaryRequest, TurnBegin,
};
pub use open_run::{OpenRun, OpenTurn, RecordedAt, RunSpec, RunStage, SessionRunRules, TurnOrigin};
pub use past_run::{PastRun, past_run};
pub use reference_index::RecordRange;
pub use replay::{Replayed, replay};
pub use run_machine::{
    EMPTY_ANSWER, FollowUp, Instruction, OUTPUT_INVALID, RunAnswer, RunMachine, RunNext,
};
pub use runs::RulesOf;
pub use stored::{RebuildError, StoredSession};
