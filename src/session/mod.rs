//! The session machine. Machines: no async, no clock, no I/O.
//!
//! [`Session`] decides about inputs, the queue, stops, runs, suspension and closing, and alone
//! makes the records of a session. A stored session is read by the code that changes a living one.
//!
//! | file | rule |
//! | --- | --- |
//! | `machine` | the state, and the records that change it |
//! | `inputs` | requests: start, queue, steer, stop, resume, shut down, close |
//! | `advance` | what follows: the next turn, the records behind a turn, the next queued run |
//! | `effect` | the inputs and the effects of the machine |
//! | `open_run` | the current run: its stage, its sums, its time |
//! | `run` | what follows a committed turn |
//! | `loop_detection` | consecutive turns with identical calls and results |
//! | `meter` | how much of a limit a run has used |
//! | `idempotency_keys` | the requests that a session has seen |
//! | `stored` | a session from its journal |
//! | `approvals` | the open approvals of a turn, from its records |
//! | `past_run` | the report of a run that has ended, from its records |
//! | `replay` | a session once more from its records, compared with them |
#![warn(clippy::indexing_slicing)]

mod advance;
mod approvals;
mod effect;
#[cfg(test)]
mod explorer;
mod idempotency_keys;
mod inputs;
mod loop_detection;
mod machine;
mod meter;
mod open_run;
mod past_run;
mod replay;
mod run;
mod stored;
#[cfg(test)]
mod tests;

pub use advance::RulesOf;
pub use approvals::{OpenApproval, open_approvals};
pub use effect::{
    RecordedAt, RunAdmission, RunInput, RunSummary, SessionEffect, SessionRecord, SessionRefusal,
    TurnBegin, TurnOrigin,
};
pub use idempotency_keys::{IDEMPOTENCY_KEYS_MAX, IdempotencyKeys, RequestEffect, SeenRequest};
pub use machine::{LimitsOf, Session};
pub use open_run::{OpenRun, OpenTurn, QueuedRun, RunStage};
pub use past_run::{PastRun, past_run};
pub use replay::{Replayed, replay};
pub use run::{FollowUp, Run, RunNext, TurnPlan};
pub use stored::{RebuildError, StoredSession};
