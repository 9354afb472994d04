# Fuzzes the reading of tool calls in text (`tool_protocol` of a model) for SECONDS (default 60), and compares with the
# crates `tool-parser` and `dynamo-parsers`:
#
#   bash tests/fuzz/tool_protocols.sh [SECONDS] [SEED]
#
# The first build takes some minutes, because these crates compile parsers of Python. The same seed makes the
# same responses. A failure prints the response, reduced to its smallest form, and exits with status 1.
set -euo pipefail
cd "$(dirname "$0")/tool_protocols"

export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/../../../target}/fuzz"
cargo run --quiet --release -- "${1:-60}" "${2:-1}"
