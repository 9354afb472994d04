//! Tests of the state of a whole process: its launcher, its cryptography provider, its memory. Other tests in the same
//! process would disturb them.

#[path = "../support/client.rs"]
#[expect(dead_code, reason = "these tests use a part")]
mod client;

mod cryptography;
mod launcher;
mod slow_clients;
