#!/bin/bash
# Fulcrum once through, on one machine: installs packages, builds, makes weights, starts a node on
# loopback, drives it with concurrent clients, checks what comes back, opens a lever in mid-load,
# prints latency by tier and phase, stops. Ends with `quickstart: OK`. With --serve the node keeps
# running.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/.."
source deploy/progress.sh

serve=
case "${1:-}" in
  "") ;;
  --serve) serve=1 ;;
  *) echo "usage: deploy/quickstart.sh [--serve]" >&2; exit 2 ;;
esac

work=build/quickstart
bin=build/release/bin
mkdir -p "$work"
node_pid= step_log=

fail() {
  echo "quickstart: FAILED: $1" >&2
  [ -z "${2:-}" ] || { echo "---- end of $2" >&2; tail -n 25 "$2" >&2; }
  exit 1
}
cleanup() {
  local status=$?
  trap - EXIT
  end_step
  [ -z "$node_pid" ] || kill -TERM "$node_pid" 2>/dev/null || true
  exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

run() {  # run TEXT COMMAND...: a step that must succeed
  local text=$1
  shift
  step_log="$work/${text// /-}.log"
  step "$text" "$step_log" "$@" || fail "$text" "$step_log"
}

bash deploy/install_deps.sh --build || fail "packages could not be installed"
[ -f build/release/build.ninja ] || run "configure" cmake --preset release
run "build" ninja -C build/release fulcrumd fulcrum

# A small BF16 checkpoint, and what its owner would make of it. Kept for the next time.
if [ ! -s "$work/q2_0.gguf" ]; then
  run "make a checkpoint" python3 deploy/make_checkpoint.py "$work/bf16.safetensors"
  run "quantize to fp8" "$bin/fulcrum" quantize --force --format fp8 \
    --input "$work/bf16.safetensors" --output "$work/fp8.safetensors"
  run "quantize to q2_0" "$bin/fulcrum" quantize --force --format q2_0 \
    --input "$work/bf16.safetensors" --output "$work/q2_0.gguf"
fi

cat >"$work/node.textproto" <<END
# Written by deploy/quickstart.sh. Ports are chosen by the system.
listen: "127.0.0.1:0"
metrics_listen: "127.0.0.1:0"
models { model: "small" synthetic: "small" }
models { model: "fp8" checkpoint: "$PWD/$work/fp8.safetensors" }
models { model: "q2" checkpoint: "$PWD/$work/q2_0.gguf" }
weight_roots: "$PWD/$work"
weight_roots: "$PWD/tests/data"
levers { key: "audit_rate" value: "0.1" }
END

# wait_for TEXT: blocks until the node's log has it, or the node has ended.
wait_for() {
  local begin=$SECONDS
  until grep -qs "$1" "$work/node.log"; do
    kill -0 "$node_pid" 2>/dev/null || fail "the node ended" "$work/node.log"
    ((SECONDS - begin < 120)) || fail "the node did not say \"$1\" in two minutes" "$work/node.log"
    sleep 0.05
  done
}
"$bin/fulcrumd" --config "$work/node.textproto" >"$work/node.log" 2>&1 &
node_pid=$!
wait_for '^fulcrumd serving'
target=$(sed -nE 's/^fulcrumd .* listening on ([^,]+), .*/\1/p' "$work/node.log")
metrics=$(sed -nE 's/^fulcrumd .* metrics on ([^,]+), .*/\1/p' "$work/node.log")
echo "node on $target, metrics on http://$metrics, log in $work/node.log"

fulcrum() { "$bin/fulcrum" --target "$target" "$@"; }
fulcrum shards >"$work/shards.txt" || fail "shards cannot be listed" "$work/node.log"
echo "$(fulcrum shards --json | grep -c '"hash"') shards; the list is in $work/shards.txt"

# Sixteen clients of one row on each of four shards at once. Every reply is compared with the one the
# node gave before there was company, and those with the oracle, computed here from the weights. In
# mid-load the lever m16_tc is opened for the projections of the feed-forward part.
loads=("--shard models/small/shards/layers.0.ffn_gate"
  "--shard models/small/shards/lm_head"
  "--shard models/fp8/shards/layers.0.ffn_down --weights $work/fp8.safetensors --tensor model.layers.0.mlp.down_proj.weight"
  "--shard models/q2/shards/layers.1.attn_q --weights $work/q2_0.gguf --tensor model.layers.1.self_attn.q_proj.weight")
seconds=6
drive() {
  local pids=() status=0 i
  for i in "${!loads[@]}"; do
    # shellcheck disable=SC2086  a load is several words
    fulcrum bench ${loads[$i]} --clients 16 --rows 1 --seconds "$seconds" --json \
      >"$work/bench.$i.json" &
    pids+=($!)
  done
  sleep $((seconds / 2))
  fulcrum levers set "m16_tc=ffn_gate_up:one_pass,ffn_down:one_pass" || status=1
  for i in "${pids[@]}"; do wait "$i" || status=1; done
  return "$status"
}
fulcrum levers set m16_tc=off >/dev/null || fail "the lever cannot be set" "$work/node.log"
echo "driving ${#loads[@]} shards with 16 clients each for $seconds s, opening m16_tc half way"
run "drive" drive
python3 - "$work"/bench.?.json <<'END' || fail "a reply was wrong or not checked, or a call failed" "$work/node.log"
import json, sys
bad = False
print(f"{'shard':38} {'calls/s':>8} {'p50 us':>7} {'p99 us':>7} {'rows/launch':>11} "
      f"{'checked':>8} {'by oracle':>9} {'wrong':>5}")
for path in sys.argv[1:]:
    with open(path) as file:
        r = json.load(file)
    wrong = r["errors"] + r["mismatches"]
    bad |= wrong > 0 or r["verified"] == 0 or r["oracle_elements"] == 0
    print(f"{r['shards'][0]:38} {r['calls_per_s']:8.0f} {r['p50_us']:7.0f} {r['p99_us']:7.0f} "
          f"{r['mean_batch_rows']:11.2f} {r['verified']:8} {r['oracle_elements']:9} {wrong:5}")
sys.exit(bad)
END

# Files made by other implementations, with the products they computed.
for file in tests/data/fp8/*.safetensors; do
  run "verify $(basename "${file%.safetensors}")" "$bin/fulcrum" verify --file "$file" \
    --tensor "$(basename "${file%.safetensors}").weight" \
    --activations "${file%.safetensors}.x.bf16" --expect "${file%.safetensors}.y.f64"
done
for file in tests/data/q2_0/*.y.f64; do
  run "verify $(basename "${file%.y.f64}")" "$bin/fulcrum" verify --file tests/data/q2_0/mainline.gguf \
    --tensor "$(basename "${file%.y.f64}")" \
    --activations "${file%.y.f64}.x.bf16" --expect "$file"
done
echo "products of reference files: within their budgets"

echo
python3 deploy/tier_table.py "http://$metrics" || fail "no metrics" "$work/node.log"
echo
grep -q 'incident' "$work/node.log" && fail "the node's own audit found wrong bits" "$work/node.log"

if [ -n "$serve" ]; then
  disown "$node_pid"
  cat <<END
The node keeps running (pid $node_pid). Try:
  $bin/fulcrum --target $target shards
  $bin/fulcrum --target $target ladder --shard models/small/shards/layers.0.ffn_gate
  $bin/fulcrum --target $target levers list
  $bin/fulcrum --target $target levers set m16_tc=off
  $bin/fulcrum --target $target bench --shard models/small/shards/layers.0.ffn_gate --clients 32 --rows 1 --seconds 5
  python3 deploy/tier_table.py http://$metrics
  kill $node_pid        # drains and stops
quickstart: OK (serving on $target)
END
  node_pid=
  exit 0
fi

kill -TERM "$node_pid"
wait "$node_pid" || fail "the node stopped with status $?" "$work/node.log"
node_pid=
echo "quickstart: OK ($SECONDS s; the node drained and stopped with status 0)"
