#!/usr/bin/env bash
# Computes the lines of src/ that the library's and the integration tests execute, prints a table by
# folder, and fails below 90 %. Lines of tests inside src/ are not counted.
#
# Installs its tools if they are missing: rustup's llvm-tools (they match rustc's LLVM) and
# cargo-llvm-cov. The build with instrumentation takes several minutes, and the explorers of the state
# machines are slow with it. A failing test does not fail this script (--ignore-run-fail), because
# some tests have time limits that are too short for instrumented code. Arguments go to the test
# binaries:
#
#   bash tests/coverage.sh [--skip explorer]
set -euo pipefail
cd "$(dirname "$0")/.."
percent_min=90

if ! [ -x "$(rustc --print sysroot)/lib/rustlib/$(rustc --print host-tuple)/bin/llvm-cov" ] && [ -z "${LLVM_COV:-}" ]; then
  rustup component add llvm-tools
fi
export PATH="$PWD/target/coverage-tools/bin:$PATH"
command -v cargo-llvm-cov >/dev/null || cargo install --quiet --locked cargo-llvm-cov --root target/coverage-tools

lcov=target/coverage.lcov
cargo llvm-cov --locked --lib --bins --tests --ignore-run-fail --lcov --output-path "$lcov" -- "$@"

# A file of lcov has, for each source file, one line "SF:path" and lines "DA:line,count".
awk -v root="$PWD/" -v percent_min="$percent_min" '
  # Sets first_test_line to the line of the file'"'"'s test module.
  function find_tests(path,   line, number, previous) {
    first_test_line = 0
    while ((getline line < path) > 0) {
      number++
      if (previous == "#[cfg(test)]" && line ~ /^mod [a-z_]+ \{/) { first_test_line = number; break }
      previous = line
    }
    close(path)
  }
  /^SF:/ {
    path = substr($0, 4)
    name = index(path, root) == 1 ? substr(path, length(root) + 1) : path
    counted = name ~ /^src\// && name !~ /\/(tests|explorer|fixtures|samples)(\/|\.rs$)/
    if (counted) find_tests(path)
    split(name, parts, "/")
    folder = "src/" (parts[3] == "" ? "*.rs" : parts[2] "/")
  }
  /^DA:/ && counted {
    split(substr($0, 4), value, ",")
    if (first_test_line && value[1] + 0 >= first_test_line) next
    lines[folder]++
    if (value[2] + 0 > 0) covered[folder]++
  }
  END {
    printf "%-20s %8s %8s %8s\n", "folder", "lines", "covered", "percent"
    fflush()
    order = "sort"
    for (folder in lines) {
      printf "%-20s %8d %8d %7.1f%%\n", folder, lines[folder], covered[folder], 100 * covered[folder] / lines[folder] | order
      all += lines[folder]
      all_covered += covered[folder]
    }
    close(order)
    if (!all) { print "no lines of src/ in the report"; exit 1 }
    percent = 100 * all_covered / all
    printf "%-20s %8d %8d %7.1f%%\n", "all", all, all_covered, percent
    if (percent < percent_min) { printf "coverage is below %d %%\n", percent_min; exit 1 }
  }
' "$lcov"
