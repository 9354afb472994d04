//! The host of Callsheet: what runs sessions, keeps them, and shows what happens.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `runtime` | the actors, the limits, the client of models, and the handles of a program |
//! | `journal` | what outlives the process |
//! | `telemetry` | events for watchers, metrics, logs and traces |
//! | `error_response` | feature `server`: errors as answers over HTTP |
//! | `builder` | a host in a program, by method calls |

pub mod builder;
#[cfg(feature = "server")]
pub mod error_response;
pub mod journal;
pub mod runtime;
pub mod telemetry;
