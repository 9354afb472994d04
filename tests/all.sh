#!/usr/bin/env bash
# Runs every check: formatting, lints, documentation, tests.
# Installs what it needs beyond the Rust toolchain; only promtool, which checks the metrics page.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v promtool >/dev/null; then
  as_root=""
  [ "$(id -u)" = 0 ] || as_root="sudo"
  $as_root apt-get update -qq
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends prometheus >/dev/null
fi

cargo fmt --check
cargo clippy --locked --all-targets -- -D warnings
RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --quiet
# The feature changes the library and the binary; what it adds is seen from outside.
cargo clippy --locked --features otlp --lib --bins --test otlp -- -D warnings
cargo test --locked --features otlp --test otlp
# CI, set, makes a missing corpus or promtool a failure instead of a skipped test.
cargo test --locked
