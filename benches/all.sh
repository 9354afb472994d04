#!/usr/bin/env bash
# Runs every bench (or those that are named) and writes benches/RESULTS.md: what each prints last,
# under the machine and the date. One that fails fails the command, and the file stays as it was.
# Takes about six minutes on a two-core machine, beside the build, which takes longer.
#
#   bash benches/all.sh [NAME...]        with names, prints to stdout and writes nothing
set -euo pipefail
cd "$(dirname "$0")/.."

all=(load turn early stop growth tools mcp watchers faces metrics decode accumulate journal cost sessions)
names=("$@")
if [ ${#names[@]} -eq 0 ]; then
    names=("${all[@]}")
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cargo bench --no-run "${names[@]/#/--bench=}"

changes=$(git status --porcelain -- . ':!benches/RESULTS.md')
{
    echo "# What \`bash benches/all.sh\` measured"
    echo
    echo "Each number stands beside a baseline on the same machine in the same minute: the ratio is"
    echo "what counts. What a bench does, and how, says the head of its file."
    echo
    echo "| | |"
    echo "| --- | --- |"
    echo "| date | $(date -u +%F) |"
    echo "| commit | $(git rev-parse --short HEAD)${changes:+, with changes} |"
    echo "| processor | $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores |"
    echo "| memory | $(awk '/^MemTotal/ { printf "%.0f GB", $2 / 1e6 }' /proc/meminfo) |"
    echo "| system | $(uname -sr) |"
    echo "| compiler | $(rustc --version)${CARGO_PROFILE_BENCH_LTO:+, link-time optimisation $CARGO_PROFILE_BENCH_LTO} |"
    echo "| load average before | $(cut -d ' ' -f 1 /proc/loadavg) |"
} > "$work/results"

for name in "${names[@]}"; do
    echo "bench $name" >&2
    cargo bench --quiet --bench "$name" > "$work/output"
    sed -n '/^## /,$p' "$work/output" > "$work/section"
    if ! [ -s "$work/section" ]; then
        echo "bench $name printed no section (a line that begins with '## ')" >&2
        exit 1
    fi
    # Ends without empty lines, whatever the bench's end is.
    { echo; sed -e :a -e '/^\n*$/{$d;N;ba' -e '}' "$work/section"; } >> "$work/results"
done

if [ $# -eq 0 ]; then
    cp "$work/results" benches/RESULTS.md
    echo "wrote benches/RESULTS.md" >&2
else
    cat "$work/results"
fi
