//! The library without its features: decoders on recordings, hostile bytes and random cuts, and what a host of
//! `default-features = false` does.

mod context_cost;
mod context_facts;
mod corpus_decode;
mod fuzzed;
mod hostile;
mod stalls;
mod wire_anthropic_blocks;
mod wire_splits;
mod wire_sse;
