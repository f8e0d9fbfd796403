#!/bin/bash
# The malformed calls of bad_input.py against two builds: the status codes must be the same line for
# line, so that no check lives in an assert. Case P007.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
[ $# -eq 2 ] || { echo "usage: compare_builds.sh BUILD_DIR BUILD_DIR" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
python=python3
[ ! -x /usr/bin/python3 ] || python=/usr/bin/python3
output=$(mktemp -d)
trap 'rm -rf "$output"' EXIT
for build in "$1" "$2"; do
  build=$(cd "$build" && pwd)
  FULCRUM_BIN=$build/bin FULCRUM_PYTHON_PROTO=$build/tests/e2e/proto \
    "$python" "$here/bad_input.py" >"$output/$(basename "$build")"
done
diff "$output/$(basename "$1")" "$output/$(basename "$2")"
echo "$(wc -l <"$output/$(basename "$1")") calls, the same codes"
