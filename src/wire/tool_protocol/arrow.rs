//! Calls of the protocol `arrow`: `=>#NAME` at a line's start, then one JSON object. Its closing brace is
//! the seal.

use super::bracket_scan::{BracketScan, ScanEnd};
use super::read_call::{BodyText, ReadStep, read_arguments, up_to};

pub(super) const ARROW: &str = "=>#";

/// Reads the text from the opening brace on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ArrowBody {
    name: String,
    scan: BracketScan,
    is_read: bool,
}

impl ArrowBody {
    pub(super) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), scan: BracketScan::new(0), is_read: false }
    }

    pub(super) fn step(&mut self, body: BodyText<'_>) -> ReadStep {
        if self.is_read {
            return ReadStep::Over(0);
        }
        let (bytes, are_sealed) = match self.scan.scan(body.text, &[]) {
            ScanEnd::Closed(bytes) => (bytes, true),
            ScanEnd::Open | ScanEnd::Stopped(_) if !body.is_end => return ReadStep::More,
            ScanEnd::Open | ScanEnd::Stopped(_) => (body.text.len(), false),
        };
        self.is_read = true;
        ReadStep::call(
            read_arguments(&self.name, up_to(body.text, bytes), false),
            bytes,
            are_sealed,
        )
    }
}
