//! Runs the checks of the fuzz targets on their seeds, on each prefix of a seed, and on mutations.
//! `tests/fuzz/run.sh` runs the fuzz targets themselves.
#![expect(clippy::unwrap_used, reason = "a test helper that fails is a failed test")]

#[path = "../fuzz/checks.rs"]
mod checks;

use std::path::Path;

use callsheet::types::Wire;

/// Number of mutations per seed.
const MUTATIONS: u32 = 60;

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/seeds").join(target);
    let files = std::fs::read_dir(folder).unwrap();
    let seeds: Vec<_> = files.map(|entry| std::fs::read(entry.unwrap().path()).unwrap()).collect();
    assert!(seeds.len() >= 3, "{target} has seeds");
    seeds
}

/// Changes, doubles or removes a few bytes of the seed, deterministically.
fn mutation(seed: &[u8], number: u32) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    let mut state = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % below.max(1)
    };
    for _ in 0..=next(4) {
        let at = next(bytes.len());
        let until = (at + 1 + next(40)).min(bytes.len());
        match next(4) {
            0 => bytes[at] = b"{}[]\":,\\\n\r 019ntf\xFF"[next(18)],
            1 => drop(bytes.drain(at..until)),
            2 => {
                let part = bytes[at..until].to_vec();
                let to = next(bytes.len());
                drop(bytes.splice(to..to, part));
            }
            _ => bytes[at] ^= 1 << next(8),
        }
        if bytes.is_empty() {
            break;
        }
    }
    bytes
}

fn check(target: &str, holds: impl Fn(&[u8])) {
    for seed in seeds(target) {
        for end in (0..=seed.len()).step_by(1 + seed.len() / 100) {
            holds(&seed[..end]);
        }
        holds(&seed);
        (0..MUTATIONS).for_each(|number| holds(&mutation(&seed, number)));
    }
}

#[test]
fn server_sent_events() {
    check("sse", checks::sse);
}

#[test]
fn arguments() {
    check("arguments", checks::arguments);
}

#[test]
fn dialects() {
    for (word, wire) in Wire::NAMES {
        check(&word.replace('-', "_"), |bytes| checks::dialect(wire, bytes));
    }
}
