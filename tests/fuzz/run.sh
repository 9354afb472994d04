# Fuzzes all targets, or the named ones, for SECONDS each (default 60):
#
#   bash tests/fuzz/run.sh [SECONDS] [TARGET...]
#
# Needs a C++ compiler for libFuzzer. Findings are kept in target/fuzz. A failure leaves the input
# that causes it there and exits with status 1. Recordings of real responses are used as additional
# seeds, if the corpus of the tests is present.
#
# The reading of tool calls in text is fuzzed by a command of its own, which compares with other crates:
#
#   bash tests/fuzz/tool_protocols.sh [SECONDS] [SEED]
set -euo pipefail
cd "$(dirname "$0")"

seconds="${1:-60}"
shift || true
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  targets=(sse arguments openai_chat openai_responses anthropic_messages gemini_generate ollama_chat)
fi

# Coverage for libFuzzer: rustc's stable names of the LLVM options.
instrumented="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
  -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Ccodegen-units=1"
out="$PWD/../../target/fuzz"
host="$(rustc -vV | sed -n 's/^host: //p')"
bins=()
for target in "${targets[@]}"; do bins+=(--bin "$target"); done
RUSTFLAGS="$instrumented" CARGO_TARGET_DIR="$out" \
  cargo build --quiet --release --target "$host" "${bins[@]}"

recorded="${CALLSHEET_CORPUS:-$PWD/../../../shared/corpus}"
for target in "${targets[@]}"; do
  mkdir -p "$out/corpus/$target" "$out/found"
  seeds=("seeds/$target")
  if [ -d "$recorded/${target//_/-}" ]; then seeds+=("$recorded/${target//_/-}"); fi
  if [ "$target" = sse ]; then seeds+=(seeds/*/); fi
  echo "== $target: $seconds s"
  log="$out/found/$target.log"
  if "$out/$host/release/$target" "$out/corpus/$target" "${seeds[@]}" -max_total_time="$seconds" \
    -max_len=20000 -timeout=10 -rss_limit_mb=1024 -print_final_stats=1 \
    -artifact_prefix="$out/found/$target-" >"$log" 2>&1
  then
    grep -E '^(Done|stat::(average|new_units|peak))' "$log"
  else
    tail -n 60 "$log"
    exit 1
  fi
done
