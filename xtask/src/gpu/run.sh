#!/bin/sh
# Runs what `cargo xtask gpu-pack` packed on the GPUs of this machine, and prints one table last.
#
#   run.sh [FILTER]     only the conformance cases whose name contains FILTER
#
# JOBS: cases at a time (half of the CPUs). LIMIT: seconds for each run (300). OUT: where whole outputs go.
# Exit code 1 if anything failed.
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=${OUT:-$here/results}
jobs=${JOBS:-$((($(nproc) + 1) / 2))}
limit=${LIMIT:-300}
filter=${1:-}
table=$out/table
mkdir -p "$out" || exit 2
: > "$table"

gpus=$("$here/crosshandle" devices --json | grep -c '"cuda:[0-9]*"')
if [ "$gpus" -eq 0 ]; then
    "$here/crosshandle" devices
    echo "no GPU that CUDA can use: see 'crosshandle doctor'" >&2
    exit 2
fi
"$here/crosshandle" devices

# row NAME PASSED SKIPPED FAILED SECONDS
row() {
    printf '%-34s %7s %8s %7s %8s\n' "$@" >> "$table"
}

# Runs a program with a limit, keeps its output, and adds its row: run NAME COMMAND…
run() {
    name=$1
    shift
    log=$out/$(echo "$name" | tr -c 'a-z0-9\n' '-').log
    echo
    echo "== $name"
    began=$(date +%s)
    timeout -k 10 "$limit" "$@" > "$log" 2>&1
    code=$?
    taken=$(($(date +%s) - began))
    # What did not go well; all of it is in the log.
    grep -E '^(failed|late|crashed|unavailable) |^    |panicked|FAILED' "$log" | head -n 200
    counts=$(sed -n \
        -e 's/.*: \([0-9]*\) passed, \([0-9]*\) skipped, \([0-9]*\) failed$/\1 \2 \3/p' \
        -e 's/^test result: .* \([0-9]*\) passed; \([0-9]*\) failed; \([0-9]*\) ignored.*/\1 \3 \2/p' \
        "$log" | tail -n 1)
    if [ "$code" -eq 124 ] || [ "$code" -eq 137 ]; then
        row "$name" - - late "$taken"
    elif [ -n "$counts" ]; then
        # shellcheck disable=SC2086
        row "$name" $counts "$taken"
    elif [ "$code" -eq 0 ]; then
        row "$name" 1 0 0 "$taken"
    else
        tail -n 20 "$log"
        row "$name" 0 0 1 "$taken"
    fi
}

conformance() {
    run "$1 with $2" "$here/conformance" --device "$1" --peer-device "$2" --jobs "$jobs" $filter
}

run "driver" "$here/crosshandle-units" backend::cuda --include-ignored --test-threads 1
conformance host host
conformance cuda:0 cuda:0
conformance host cuda:0
conformance cuda:0 host
if [ "$gpus" -gt 1 ]; then
    conformance cuda:0 cuda:1
    conformance cuda:1 cuda:0
fi
if [ -z "$filter" ] && "$here/bench" --help | grep -q '^ *cuda'; then
    run "bench cuda" "$here/bench" cuda --quick
    cat "$out/bench-cuda.log"
fi

echo
printf '%-34s %7s %8s %7s %8s\n' run passed skipped failed seconds
cat "$table"
awk '$(NF - 1) != "0" { bad = 1 } END { exit bad }' "$table"
