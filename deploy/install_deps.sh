#!/bin/bash
# Installs the Debian 12 packages Fulcrum needs, as sets: --runtime (to run a built node), --build (to
# compile it), --test (to run the tests), --sanitizers (clang, for tests/run.sh --all). Does nothing,
# silently, when all are there. Works as root or through sudo.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

runtime=(libgrpc++1.51 libprotobuf32 libprometheus-cpp-core1.0 libprometheus-cpp-pull1.0
  libcivetweb1 libabsl20220623 libhwy1 libssl3 libre2-9 libc-ares2 zlib1g)
build=(g++ cmake ninja-build pkg-config libgrpc++-dev libgrpc-dev protobuf-compiler
  protobuf-compiler-grpc libprotobuf-dev libprotoc-dev libabsl-dev libre2-dev libc-ares-dev libssl-dev
  zlib1g-dev prometheus-cpp-dev libcurl4-openssl-dev libcivetweb-dev libgtest-dev libgmock-dev
  libbenchmark-dev libhwy-dev nlohmann-json3-dev libcli11-dev grpc-proto
  ccache lld python3)
test=(python3-grpcio python3-protobuf clang-format-14 openssl)
sanitizers=(clang-14 clang clang-tidy-14 libclang-rt-14-dev llvm-14)

usage() {
  echo "usage: install_deps.sh [--runtime] [--build] [--test] [--sanitizers]  (none: --build --test)"
}

wanted=()
for arg in "$@"; do
  case "$arg" in
    --runtime) wanted+=("${runtime[@]}") ;;
    --build) wanted+=("${build[@]}") ;;
    --test) wanted+=("${test[@]}") ;;
    --sanitizers) wanted+=("${sanitizers[@]}") ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done
[ ${#wanted[@]} -gt 0 ] || wanted=("${build[@]}" "${test[@]}")

if ! command -v dpkg-query >/dev/null; then
  echo "install_deps: not a Debian system; these packages (or their like) are needed: ${wanted[*]}" >&2
  exit 0  # the build says what is really missing
fi

# Status of each wanted package; one that dpkg has never heard of is not listed at all.
installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "${wanted[@]}" 2>/dev/null |
  awk '$2 == "installed" { print $1 }' || true)
missing=()
for package in "${wanted[@]}"; do
  grep -qxF -- "$package" <<<"$installed" || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "install_deps: missing packages; as root: apt-get install --no-install-recommends" \
      "${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

echo "installing ${#missing[@]} packages: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() {
  if ! "${as_root[@]}" apt-get -q "$@" >"$log" 2>&1; then
    echo "install_deps: apt-get $1 failed; the end of its output:" >&2
    tail -n 20 "$log" >&2
    exit 1
  fi
}
apt update
apt install -y --no-install-recommends "${missing[@]}"
