#!/bin/bash
# clang-tidy over every source of ours that a clang build compiled; `.clang-tidy` has the rules.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${1:?usage: clang_tidy.sh BUILD_DIR}
find kernels scheduler service client -name '*.cc' -print0 | sort -z |
  xargs -0 -n 1 -P "$(nproc)" clang-tidy-14 -p "$build" --quiet
