# Sourced by scripts that run long commands. A command's output goes to a log; what a person sees is a
# line when it takes long, and the end of the log when it fails.
# SPDX-License-Identifier: Apache-2.0

# Each command gets its own process group, so that an interrupted script ends all of it and no more.
set -m
step_pid=

# step TEXT LOG COMMAND...  Runs COMMAND with its output in LOG and returns its exit status. Says TEXT
# after 3 seconds, then every 20 how far it has come, from the counts ninja and ctest print.
step() {
  local text=$1 log=$2 begin=$SECONDS next=3 count status
  shift 2
  "$@" >"$log" 2>&1 &
  step_pid=$!
  while kill -0 "$step_pid" 2>/dev/null; do
    if ((SECONDS - begin >= next)); then
      count=$(tail -c 4000 "$log" | grep -oE '^ *\[?[0-9]+/[0-9]+' | tail -n 1 | tr -d ' [' || true)
      echo "  $text ... $((SECONDS - begin)) s${count:+, $count}"
      next=$((next + 20))
    fi
    sleep 0.1
  done
  wait "$step_pid" && status=0 || status=$?
  step_pid=
  return "$status"
}

# Ends what step is running, for a trap.
end_step() {
  [ -z "$step_pid" ] || kill -TERM -- "-$step_pid" 2>/dev/null || true
}

# show_failure LOG: the part of a log a reader needs first.
show_failure() {
  grep -nE 'error[: ]|FAILED|Failure|\*\*\*Failed|AddressSanitizer|ThreadSanitizer' "$1" | head -n 20 || true
  echo "---- end of $1"
  tail -n 25 "$1"
}
