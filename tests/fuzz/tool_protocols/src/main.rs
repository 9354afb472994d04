//! Reads random responses with Callsheet's reader for models without tool calling, and with the parsers of
//! other crates, and compares.
//!
//! Three kinds of responses: those of which calls and text are known, mutations of them, and pieces of syntax
//! in any order. For all of them, the properties of `checks` hold. A difference to another crate is a failure,
//! unless `differences` explains it.

mod checks;
mod differences;
mod generate;
mod peers;
mod random;
mod reading;

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use callsheet::types::ToolProtocol;

use checks::{Failure, check_text};
use differences::{Comparison, compare};
use generate::{Call, PROTOCOLS, Response};
use peers::{Peer, PeerTools};
use random::Random;
use reading::Reading;

/// Maximum number of failures that are printed.
const FAILURES_MAX: usize = 16;

/// Maximum number of shorter responses that are tried to reduce one that fails.
const TRIES_MAX: u32 = 1_000;

/// The number of comparisons by peer and outcome.
type Counts = BTreeMap<(String, Comparison), u64>;

struct Fuzzer {
    tools: std::sync::Arc<[callsheet::wire::ToolDefinition]>,
    peer_tools: PeerTools,
    counts: Counts,
}

impl Fuzzer {
    /// Checks one random response. Returns the response that fails.
    fn check(&mut self, protocol: ToolProtocol, seed: u64) -> Result<(), (String, Failure)> {
        let random = &mut Random::new(seed);
        match random.below(10) {
            0..4 => {
                let response = generate::response(random, protocol);
                self.check_known(random, protocol, response)
            }
            kind => {
                let text = match kind {
                    4..8 => {
                        let response = generate::response(random, protocol);
                        let is_protected = random.has_chance(20);
                        let text = if is_protected { response.text } else { response.unprotected };
                        generate::mutate(random, protocol, &text)
                    }
                    _ => generate::pieces(random, protocol),
                };
                self.check_any(random, protocol, &text).map_err(|failure| (text, failure))
            }
        }
    }

    fn check_known(
        &mut self,
        random: &mut Random,
        protocol: ToolProtocol,
        response: Response,
    ) -> Result<(), (String, Failure)> {
        let Response { text, unprotected, remaining, calls } = response;
        let failed = |what, details| Err((text.clone(), (what, details)));
        let reading = check_text(random, protocol, &self.tools, &text);
        let reading = reading.map_err(|failure| (text.clone(), failure))?;
        let read: Vec<Option<Call>> = reading.calls.iter().map(differences::call_of).collect();
        if read != calls.iter().cloned().map(Some).collect::<Vec<_>>() {
            return failed(
                "the calls are not those of the response",
                format!("{reading:?}\n{calls:?}"),
            );
        }
        if reading.text() != remaining {
            return failed(
                "the text is not that of the response",
                format!("{reading:?}\n{remaining:?}"),
            );
        }
        let repaired = reading.calls.iter().find(|call| call.is_repaired);
        if let Some(call) = repaired {
            return failed("a call without mistakes is repaired", format!("{call:?}"));
        }
        // The other crates know no protected text.
        let reading = check_text(random, protocol, &self.tools, &unprotected);
        reading
            .and_then(|reading| self.compare(protocol, "known", &unprotected, &reading))
            .map_err(|failure| (unprotected, failure))
    }

    fn check_any(
        &mut self,
        random: &mut Random,
        protocol: ToolProtocol,
        text: &str,
    ) -> Result<(), Failure> {
        let reading = check_text(random, protocol, &self.tools, text)?;
        self.compare(protocol, "mutated", text, &reading)
    }

    fn compare(
        &mut self,
        protocol: ToolProtocol,
        kind: &str,
        text: &str,
        reading: &Reading,
    ) -> Result<(), Failure> {
        for &peer in peers::peers(protocol, text) {
            let other = self.peer_tools.read(peer, text);
            let comparison = compare(peer, text, reading, other.as_ref());
            *self.counts.entry((format!("{kind} {peer:?}"), comparison)).or_default() += 1;
            if comparison == Comparison::Different {
                let details = format!("{peer:?}\n{reading:?}\n{other:?}");
                return Err((different(peer), details));
            }
        }
        Ok(())
    }

    /// Removes parts of a response, as long as the same check fails.
    fn minimise(&mut self, protocol: ToolProtocol, text: &str, failed: &str) -> (String, Failure) {
        let check = |fuzzer: &mut Self, text: &str| {
            let tries = if failed.starts_with("the other") { 1 } else { 12 };
            (0..tries)
                .find_map(|seed| fuzzer.check_any(&mut Random::new(seed), protocol, text).err())
                .filter(|(what, _)| *what == failed)
        };
        let mut best = text.to_owned();
        let mut failure = match check(self, &best) {
            Some(failure) => failure,
            None => return (best, ("", "the response alone does not fail".into())),
        };
        let (mut length, mut tries) = (best.len() / 2, 0);
        while length > 0 {
            let mut at = 0;
            while at < best.len() && tries < TRIES_MAX {
                tries += 1;
                let end = at + length;
                if best.is_char_boundary(at) && best.is_char_boundary(end.min(best.len())) {
                    let mut shorter = best[..at].to_owned();
                    shorter.push_str(&best[end.min(best.len())..]);
                    if let Some(found) = check(self, &shorter) {
                        (best, failure) = (shorter, found);
                        continue;
                    }
                }
                at += length.div_ceil(2);
            }
            length /= 2;
        }
        (best, failure)
    }
}

fn different(peer: Peer) -> &'static str {
    match peer {
        Peer::ParserQwen | Peer::ParserQwenXml | Peer::ParserPythonic | Peer::ParserLlama => {
            "the other crate (tool-parser) reads another response"
        }
        Peer::DynamoHermes | Peer::DynamoQwenCoder | Peer::DynamoPythonic | Peer::DynamoLlama => {
            "the other crate (dynamo-parsers) reads another response"
        }
    }
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let seconds = arguments.next().map_or(60, |text| text.parse().expect("SECONDS"));
    let seed: u64 = arguments.next().map_or(1, |text| text.parse().expect("SEED"));
    // Other crates may panic.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let is_ours = info.location().is_some_and(|at| !at.file().contains("parser"));
        if is_ours {
            hook(info);
        }
    }));
    let tools = generate::tools();
    let peer_tools = PeerTools::new(&tools);
    let mut fuzzer = Fuzzer { tools, peer_tools, counts: Counts::new() };
    let begin = Instant::now();
    let mut cases = 0_u64;
    let mut failed = BTreeSet::new();
    while begin.elapsed() < Duration::from_secs(seconds) && failed.len() < FAILURES_MAX {
        for protocol in PROTOCOLS {
            cases += 1;
            let of_case = seed.wrapping_mul(0x1_0000_0001).wrapping_add(cases);
            let Err((text, (what, details))) = fuzzer.check(protocol, of_case) else { continue };
            let counts = fuzzer.counts.clone();
            let (smallest, (_, of_smallest)) = fuzzer.minimise(protocol, &text, what);
            fuzzer.counts = counts;
            if failed.insert((protocol, what, smallest.clone())) {
                println!("== {protocol:?}: {what}\n{text:?}\n{details}");
                println!("-- smallest\n{smallest:?}\n{of_smallest}\n");
            }
        }
    }
    println!("{cases} responses in {} s", begin.elapsed().as_secs());
    for ((of_peer, comparison), count) in &fuzzer.counts {
        println!("{count:>9} {of_peer}: {comparison}");
    }
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
