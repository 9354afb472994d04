#![no_main]

#[path = "../checks.rs"]
mod checks;

use callsheet::types::Wire;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| checks::dialect(Wire::OllamaChat, bytes));
