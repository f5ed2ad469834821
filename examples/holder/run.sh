#!/usr/bin/env bash
# Loads a model once, opens it in two other processes, and kills everybody in turn: the loader, a reader, the
# holder, its successor. Each time the model is opened again and its hash is taken again.
#
#   examples/holder/run.sh                  builds the command, and runs on the host in some seconds
#   CROSSHANDLE=/path/to/crosshandle DEVICE=cuda:0 MIB=16384 examples/holder/run.sh
#   PYTHON=/path/to/python examples/holder/run.sh     with a third reader, for which the interpreter needs this package
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
device=${DEVICE:-host}
mib=${MIB:-64}
if [ -z "${CROSSHANDLE:-}" ]; then
    (cd "$here/../.." && cargo build --quiet --release -p crosshandle-cli)
    CROSSHANDLE=${CARGO_TARGET_DIR:-$here/../../target}/release/crosshandle
fi

place=$(mktemp -d)
chmod 700 "$place"
export CROSSHANDLE_SOCKET_DIR=$place/sockets
end() {
    "$CROSSHANDLE" hold --stop 2>/dev/null || true
    rm -rf "$place"
}
trap end EXIT

say() { printf '\n== %s\n' "$*"; }
now_ms() { echo $(($(date +%s%N) / 1000000)); }
# The two processes, as the holder tells them.
holder_pid() { "$CROSSHANDLE" hold --check 2>/dev/null | sed 's/^process \([0-9]*\) holds.*/\1/'; }
successor_pid() { "$CROSSHANDLE" hold --check 2>/dev/null | sed 's/.*; process \([0-9]*\) is the successor.*/\1/'; }
await_successor() { until "$CROSSHANDLE" hold --check >/dev/null 2>&1; do :; done; }

say "a checkpoint of $mib MiB"
bytes=$((mib << 20))
half=$((bytes / 2))
header="{\"first\":{\"dtype\":\"BF16\",\"shape\":[$((half / 2))],\"data_offsets\":[0,$half]},\"second\":{\"dtype\":\"F32\",\"shape\":[$((half / 4))],\"data_offsets\":[$half,$bytes]}}"
length=$(printf '%016x' ${#header} | sed 's/\(..\)\(..\)\(..\)\(..\)\(..\)\(..\)\(..\)\(..\)/\\x\8\\x\7\\x\6\\x\5\\x\4\\x\3\\x\2\\x\1/')
{ printf "$length"; printf '%s' "$header"; head -c "$bytes" /dev/urandom; } >"$place/model.safetensors"

say "a holder and its successor"
"$CROSSHANDLE" hold &
await_successor
"$CROSSHANDLE" hold --check

say "the loader, which ends"
"$CROSSHANDLE" load "$place/model.safetensors" --name model --device "$device"
"$CROSSHANDLE" ls

say "two readers, which stay"
mkfifo "$place/one" "$place/two"
"$CROSSHANDLE" verify model --stay <"$place/one" &
first=$!
"$CROSSHANDLE" verify model --stay <"$place/two" &
exec 3>"$place/one" 4>"$place/two"
second=$!

third=
if "${PYTHON:-python3}" -c 'import crosshandle.store' 2>/dev/null; then
    say "a third one, in Python"
    mkfifo "$place/three"
    "${PYTHON:-python3}" "$here/reader.py" model <"$place/three" &
    third=$!
    exec 5>"$place/three"
fi

say "the holder is killed"
victim=$(holder_pid)
begin=$(now_ms)
kill -9 "$victim"
"$CROSSHANDLE" ls
echo "answered $(($(now_ms) - begin)) ms after the kill, the start of the command included"
"$CROSSHANDLE" verify model

say "a reader is killed"
kill -9 "$first"
"$CROSSHANDLE" verify model

say "the successor is killed, and has one of its own kind at once"
await_successor
kill -9 "$(successor_pid)"
await_successor
"$CROSSHANDLE" hold --check
"$CROSSHANDLE" verify model

say "the other reader has noticed nothing"
echo >&4
exec 3>&- 4>&-
wait "$second"
if [ -n "$third" ]; then
    say "nor has the one in Python"
    echo >&5
    exec 5>&-
    wait "$third"
fi

say "the name is let go of"
"$CROSSHANDLE" rm model
"$CROSSHANDLE" ls
echo "done"
