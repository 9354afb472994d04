//! Model providers over HTTP: each wire format, failures, retries, fallback models, limits of a model, secrets, and
//! the rehearsal model and the mock provider.

#[path = "../support/client.rs"]
#[expect(dead_code, reason = "these tests use a part")]
mod client;
#[path = "../support/mod.rs"]
#[expect(dead_code, reason = "these tests use a part")]
mod support;

mod breaker;
mod caps;
mod corpus_runs;
mod failures;
mod fallback;
mod mock_provider;
mod model_caps;
mod pairing;
mod rehearsal;
mod scenarios;
mod secrets;
mod several_calls;
mod tool_protocols;
mod wire_anthropic;
mod wire_fast_path;
mod wire_gemini;
mod wire_ollama;
mod wire_openai_chat;
mod wire_pairs;
mod wire_responses;
