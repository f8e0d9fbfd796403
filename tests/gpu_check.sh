#!/bin/bash
# Proves the CUDA arms on the GPU of this machine, from binaries built elsewhere: no packages, no
# network. Usage: bash tests/gpu_check.sh BUILD_DIR [REPORT]
# BUILD_DIR/bin has tests_kernels, tests_kernels_cuda, tests_audit and fulcrum_bench_cuda (preset
# release); BUILD_DIR/lib, where there is one, the shared libraries that this machine lacks. Prints a
# summary, writes everything to REPORT (gpu_check.txt), and fails when anything did. A few minutes.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail

if [ $# -lt 1 ] || [ $# -gt 2 ]; then
  echo "usage: bash tests/gpu_check.sh BUILD_DIR [REPORT]" >&2
  exit 2
fi
build=$1 report=${2:-gpu_check.txt}
bin=$build/bin
[ ! -d "$build/lib" ] || export LD_LIBRARY_PATH=$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export REQUIRE_BACKENDS=cpu,cuda  # a device that is not found fails, it does not skip
: >"$report" || exit 1

passed=0 failed=0
check() {  # check NAME SECONDS COMMAND...
  local name=$1 limit=$2 begin=$SECONDS
  shift 2
  printf '%s\n' "==== $name: $*" >>"$report"
  if timeout "$limit" "$@" >>"$report" 2>&1; then
    passed=$((passed + 1))
    echo "ok      $name ($((SECONDS - begin)) s)"
  else
    failed=$((failed + 1))
    echo "FAILED  $name ($((SECONDS - begin)) s); see $report"
  fi
}

{ date -u; nvidia-smi --query-gpu=name,driver_version --format=csv,noheader; } >>"$report" 2>&1
check "arms against the oracle" 240 "$bin/tests_kernels" --gtest_filter='*ArmContract*'
check "the ladder's promises" 240 "$bin/tests_kernels" --gtest_filter='*LadderContract*'
check "backend" 120 "$bin/tests_kernels_cuda"
check "audit of planted faults" 60 "$bin/tests_audit" --gtest_filter='*cuda*'
if command -v compute-sanitizer >/dev/null; then
  rows='*EveryKindOfValue/cuda:*ARowAlone*/cuda:*OneHot*/cuda:*PaddingIsZero*/cuda'
  check "memcheck" 240 compute-sanitizer --tool memcheck --error-exitcode 1 \
    "$bin/tests_kernels" --gtest_filter="$rows"
  check "initcheck" 240 compute-sanitizer --tool initcheck --error-exitcode 1 \
    "$bin/tests_kernels" --gtest_filter="$rows"
  # Clusters of thread blocks break this one, so as an older card. The first launches of a kernel: of
  # all it takes an hour.
  for kernel in ExactRangeGemmKernel Sm80GemmKernel Q2ThreadRows Q2WarpRows QuantiseQ8; do
    check "racecheck of $kernel" 90 env FULCRUM_TEST_WITHOUT_CAPS=0x1a \
      compute-sanitizer --tool racecheck --error-exitcode 1 --kernel-name "kns=$kernel" \
      --launch-count 60 "$bin/tests_kernels" --gtest_filter='*ARowAlone*/cuda'
  done
else
  echo "skipped memcheck, initcheck and racecheck: no compute-sanitizer here"
fi
check "benchmark" 240 "$bin/fulcrum_bench_cuda"
check "benchmark of q2_0" 120 "$bin/fulcrum_bench_cuda" --format=q2_0
check "prefill" 120 "$bin/fulcrum_bench_cuda" --m=512,1193 --launches=30 --peers
if python3 -c 'import torch' 2>/dev/null; then
  check "torch as a peer" 120 python3 "$(dirname "$0")/../kernels/cuda/bench/torch_peers.py"
fi
grep -E 'one read of|^(w8a|dense|q2_0|peer|our|torch)|with our' "$report" || true
echo "$passed passed, $failed failed; report in $report"
exit $((failed > 0))
