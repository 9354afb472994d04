#!/usr/bin/env bash
# Runs every check: formatting, lints, documentation, tests.
# Installs what it needs besides the Rust toolchain: Prometheus, which scrapes a host and checks its
# metrics, rules and dashboards; Node and two packages, which check the form of the dashboards.
set -euo pipefail
cd "$(dirname "$0")/.."

missing=()
command -v promtool >/dev/null || missing+=(prometheus)
command -v node >/dev/null || missing+=(nodejs)
command -v npm >/dev/null || missing+=(npm)
if [ "${#missing[@]}" -gt 0 ]; then
  as_root=""
  [ "$(id -u)" = 0 ] || as_root="sudo"
  $as_root apt-get update -qq
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
# Makes Node trust the system's CA certificates, for registries behind a proxy.
if [ -f /etc/ssl/certs/ca-certificates.crt ]; then
  export NODE_EXTRA_CA_CERTS="${NODE_EXTRA_CA_CERTS:-/etc/ssl/certs/ca-certificates.crt}"
fi
# Without the registry, the test that needs the packages is skipped, except in CI.
npm ci --prefix tests/grafana --ignore-scripts --no-audit --no-fund --silent || [ "${CI:-}" != true ]

cargo fmt --check
cargo clippy --locked --all-targets -- -D warnings
# The library without what its features add.
cargo clippy --locked --no-default-features --lib -- -D warnings
RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --quiet
# The feature changes the library and the binary; its test is an integration test.
cargo clippy --locked --features otlp --lib --bins --test otlp -- -D warnings
cargo test --locked --features otlp --test otlp
# If CI is set, a missing corpus, Prometheus or Node is a failure instead of a skipped test.
cargo test --locked
