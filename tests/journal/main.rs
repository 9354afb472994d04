//! The journal: its database, faults of the disk, what a restart finds, sessions that sleep, forks.

#[path = "../support/client.rs"]
#[expect(dead_code, reason = "these tests use a part")]
mod client;
#[path = "../support/host_directory.rs"]
mod host_directory;
#[path = "../support/mod.rs"]
#[expect(dead_code, reason = "these tests use a part")]
mod support;

mod backup;
mod cost;
mod faults;
mod fork;
mod hibernation;
mod large;
mod restart;
mod sqlite;
mod versions;
