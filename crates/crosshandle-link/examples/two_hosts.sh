#!/bin/sh
# Two hosts on one machine: two network namespaces with a pair of veths, each with its own boot
# identity. Two commands share an array and an event between the hosts. A third command uses them
# without its own link. Needs root and iproute2. The bytes travel over UCX if CROSSHANDLE_UCX names
# it or the system has version 1.22 or newer, and otherwise over TLS.
set -eu
cd "$(dirname "$0")/../../.."
cargo build --quiet --package crosshandle-link --example two_hosts
target=${CARGO_TARGET_DIR:-target}
case $target in /*) ;; *) target=$PWD/$target ;; esac
program=$target/debug/examples/two_hosts
name=xh-two-$$
scratch=$(mktemp -d)
export UCX_TLS=${UCX_TLS:-tcp,self}

clean_up() {
    ip netns delete "$name-a" 2>/dev/null || true
    ip netns delete "$name-b" 2>/dev/null || true
    rm -r "$scratch"
}
trap clean_up EXIT

for side in a b; do
    ip netns add "$name-$side"
    mkdir "$scratch/$side"
    echo "${side}0000000-0000-4000-8000-000000000000" >"$scratch/boot-$side"
done
ip link add xhA netns "$name-a" type veth peer name xhB netns "$name-b"
ip -n "$name-a" addr add 10.78.0.1/24 dev xhA
ip -n "$name-b" addr add 10.78.0.2/24 dev xhB
ip -n "$name-a" link set xhA up
ip -n "$name-b" link set xhB up
until ip -n "$name-a" link show dev xhA | grep -q 'state UP' &&
    ip -n "$name-b" link show dev xhB | grep -q 'state UP'; do
    sleep 0.05
done

# on SIDE COMMAND...: runs a command on one of the hosts.
on() {
    side=$1
    shift
    ip netns exec "$name-$side" env CROSSHANDLE_SOCKET_DIR="$scratch/$side" unshare --mount sh -c '
        mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"' "$scratch/boot-$side" "$@"
}

"$program" token "$scratch/token"
mkfifo "$scratch/said"
on a "$program" owner 10.78.0.1:0 "$scratch/token" xhA >"$scratch/said" &
exec 3<"$scratch/said"
read -r address memory event <&3
mkfifo "$scratch/user"
on b "$program" user "$address" "$scratch/token" xhB "$memory" "$event" >"$scratch/user" &
exec 4<"$scratch/user"
while read -r line <&4; do
    echo "$line"
    # A third process, on the user's host, has no token and no link of its own.
    case $line in *"shares the link"*) on b "$program" neighbour "$memory" "$event" ;; esac
done
cat <&3
wait
