//! One turn, and the run around it. Machines: no async, no clock, no I/O.
#![warn(clippy::indexing_slicing)]

mod effect;

pub use effect::{
    AttemptPlan, CancelReason, Effect, ResponseEnd, ToolDone, TurnEnd, TurnRecord, TurnRules,
    TurnSpec,
};
