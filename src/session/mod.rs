//! What happens to a session. Machines: no async, no clock, no I/O.
//!
//! | file | rule |
//! | --- | --- |
//! | `run` | the run machine: what follows a committed turn |
//! | `loop_detection` | consecutive turns with identical calls and results |
//! | `meter` | how much of a limit a run has used |
//! | `idempotency` | the requests that a session has seen |
//! | `approvals` | the open approvals of a turn |
//! | `rebuilt` | a session from its records |
//! | `replay` | a session once more from its records, compared with them |

mod approvals;
mod idempotency;
mod loop_detection;
mod meter;
mod rebuilt;
mod replay;
mod run;
#[cfg(test)]
mod tests;

pub use approvals::{OpenApproval, open_approvals};
pub use idempotency::{IDEMPOTENCY_KEYS_MAX, IdempotencyKeys, RequestEffect, SeenRequest};
pub use rebuilt::{Continue, OpenRun, PastRun, QueuedRun, RebuildError, Rebuilt, past_run};
pub use replay::{Replayed, replay};
pub use run::{FollowUp, Run, RunNext, TurnPlan};
