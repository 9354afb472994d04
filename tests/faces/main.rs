//! The faces: clients of other systems drive sessions by OpenAI's APIs, the UI stream of the AI SDK, and AG-UI. The
//! requests are those of the real clients; where a test needs exact bytes or cuts, it is the client.

#[path = "../support/client.rs"]
#[expect(dead_code, reason = "these tests use a part")]
mod client;
#[path = "../support/host_directory.rs"]
#[expect(dead_code, reason = "these tests use a part")]
mod host_directory;
#[path = "../support/mod.rs"]
#[expect(dead_code, reason = "these tests use a part")]
mod support;

mod agui;
mod chat;
mod histories;
mod installed;
mod kills;
mod pages;
mod responses;
mod ui;
