#!/bin/bash
# Fuzzes every target for SECONDS each (default 60) with clang's libFuzzer under AddressSanitizer and
# UBSan, from its corpus. What it finds on the way stays in build/fuzz; the corpus is not changed.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=${1:-60}
cmake --preset fuzz
ninja -C build/fuzz fuzzers
for corpus in tests/fuzz/corpus/*/; do
  name=$(basename "$corpus")
  found=build/fuzz/found/$name
  mkdir -p "$found"
  echo "== $name, $seconds s"
  "build/fuzz/bin/${name}_fuzz" -max_total_time="$seconds" -max_len=65536 -timeout=10 \
    -rss_limit_mb=2048 -artifact_prefix="$found/" -print_final_stats=1 "$found" "$corpus"
done
