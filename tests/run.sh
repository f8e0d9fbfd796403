#!/bin/bash
# Builds Fulcrum and runs everything that checks it; the last line is `N passed, N failed`. Without an
# argument: the release build with all its tests, the kernel half alone, the build without CUDA. With
# --all also what takes long: sanitizers, clang-tidy, every CUDA architecture, debug against release,
# fuzzing, soaks.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
cd "$(dirname "$0")/.."
source deploy/progress.sh

all=
case "${1:-}" in
  "") ;;
  --all) all=1 ;;
  *) echo "usage: tests/run.sh [--all]" >&2; exit 2 ;;
esac

jobs=$(nproc)
logs=build/test-logs
mkdir -p "$logs"
passed=0 failed=0 times=
finish() {
  local status=$?
  trap - EXIT
  end_step
  ((status == 0 || failed > 0)) || failed=1  # interrupted
  [ -z "$times" ] || echo "seconds:$times"
  echo "$passed passed, $failed failed"
  exit $((failed > 0))
}
trap finish EXIT
trap 'exit 130' INT TERM

# phase NAME COMMAND...: one thing that passes or fails as a whole. Only a failure is counted: what it
# makes is tested after it.
phase() {
  local name=$1 begin=$SECONDS
  shift
  if ! step "$name" "$logs/${name// /-}.log" "$@"; then
    echo "FAILED: $name ($*)"
    show_failure "$logs/${name// /-}.log"
    failed=$((failed + 1))
    times+=" $name $((SECONDS - begin)),"
    return 1
  fi
  times+=" $name $((SECONDS - begin)),"
}

# check NAME COMMAND...: a phase that is itself a test.
check() {
  phase "$@" && passed=$((passed + 1))
}

# ctest_in PRESET [ARGS]: runs a build's tests and adds up what it counts. No tests at all is an error.
ctest_in() {
  local preset=$1 name="test $1" begin=$SECONDS report="$PWD/$logs/$1.xml" log="$logs/test-$1.log"
  shift
  rm -f "$report"
  step "$name" "$log" ctest --test-dir "build/$preset" -j "$jobs" --output-on-failure \
    --no-tests=error --output-junit "$report" "$@"
  local status=$? suite total bad skipped
  suite=$(grep -m 1 -A 9 '<testsuite' "$report" 2>/dev/null | tr '\n' ' ')
  count() { sed -nE "s/.*[[:space:]]$1=\"([0-9]+)\".*/\1/p" <<<"$suite"; }
  total=$(count tests) bad=$(count failures) skipped=$(($(count skipped) + $(count disabled)))
  if [ -z "$total" ]; then
    echo "FAILED: $name did not run"
    tail -n 20 "$log"
    failed=$((failed + 1))
    return 1
  fi
  passed=$((passed + total - bad - skipped))
  failed=$((failed + bad))
  ((skipped == 0)) || grep -E '\*\*\*Skipped|\(Disabled\)' "$log" |
    sed -E 's/^.*Test +#[0-9]+: ([^ ]+).*/skipped: \1/' | head -n 20
  times+=" $name $((SECONDS - begin)),"
  if ((status != 0)); then
    echo "FAILED: $name"
    sed -n '/^The following tests FAILED/,$p' "$log" | head -n 40
    grep -nE 'Failure$|: error:|Sanitizer:|^E  ' "$log" | head -n 20
    ((bad > 0)) || failed=$((failed + 1))
    return 1
  fi
}

build() {  # build PRESET [TARGET...]
  local preset=$1
  shift
  phase "configure $preset" cmake --preset "$preset" && phase "build $preset" ninja -C "build/$preset" "$@"
}

if ! bash deploy/install_deps.sh --build --test ${all:+--sanitizers}; then
  failed=1
  exit 1
fi

export FULCRUM_LONG_TESTS=${all:+1}
build release all headers && ctest_in release
unset FULCRUM_LONG_TESTS
# A machine with a GPU is often bare: the kernel half must build without gRPC and the rest.
build kernels && ctest_in kernels -LE lint
# And a machine without nvcc must get the CPU node.
build no-cuda fulcrum_backends && passed=$((passed + 1))

if [ -n "$all" ]; then
  # A sanitizer keeps freed memory on purpose: what measures memory says nothing there.
  memory='does_not_grow|do_not_add_up|return_the_memory|is_held_back'
  build asan && ctest_in asan -LE lint -E "$memory"
  build tsan && ctest_in tsan -LE lint -E "$memory"
  build debug all && ctest_in debug -LE lint
  check "debug and release agree" bash tests/e2e/compare_builds.sh build/debug build/release
  check "clang-tidy" bash tests/lint/clang_tidy.sh build/asan
  build package fulcrum_backends && passed=$((passed + 1))
  check "fuzz" bash tests/fuzz/run.sh 60
fi
