#!/usr/bin/env bash
# Runs every check: formatting, lints, documentation, tests.
# Installs what it needs beyond the Rust toolchain: Prometheus, which reads a host and checks its
# metrics, rules and dashboards; Node and two packages, which check the dashboards' form.
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
# Node trusts what the system trusts, so that a registry behind a proxy is within reach.
if [ -f /etc/ssl/certs/ca-certificates.crt ]; then
  export NODE_EXTRA_CA_CERTS="${NODE_EXTRA_CA_CERTS:-/etc/ssl/certs/ca-certificates.crt}"
fi
# Where the registry is out of reach the test that needs the packages is skipped, but not in CI.
npm ci --prefix tests/grafana --ignore-scripts --no-audit --no-fund --silent || [ "${CI:-}" != true ]

cargo fmt --check
cargo clippy --locked --all-targets -- -D warnings
RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --quiet
# The feature changes the library and the binary; what it adds is seen from outside.
cargo clippy --locked --features otlp --lib --bins --test otlp -- -D warnings
cargo test --locked --features otlp --test otlp
# CI, set, makes a missing corpus, Prometheus or Node a failure instead of a skipped test.
cargo test --locked
