"""The common code of all peers. It starts two processes, exchanges their messages, and replies in
lines."""

import ctypes
import json
import os
import pickle
import socket
import subprocess
import sys
import time

BOOT = "import os; exec(os.environ['CROSSHANDLE_BENCH_SCRIPT'])"
SOCKET = "CROSSHANDLE_BENCH_SOCKET"
PR_SET_PDEATHSIG = 1


class Link:
    """Messages to and from the other process."""

    def __init__(self, end):
        self.socket = end

    def send(self, *message, descriptors=()):
        socket.send_fds(self.socket, [pickle.dumps(message)], descriptors)

    def receive(self):
        data, descriptors, _, _ = socket.recv_fds(self.socket, 1 << 16, 4)
        if not data:
            sys.exit("the other process has gone")
        return (*pickle.loads(data), *descriptors)

    def send_byte(self):
        self.socket.send(b"1")

    def receive_byte(self):
        if not self.socket.recv(1):
            sys.exit("the other process has gone")


def timed(operation):
    """Runs an operation. Returns its result and its nanoseconds."""
    start = time.perf_counter_ns()
    result = operation()
    return result, time.perf_counter_ns() - start


def times(operation, count):
    """Runs an operation `count` times. Returns the nanoseconds of each run."""
    return [timed(operation)[1] for _ in range(count)]


def run(leader, follower):
    """Runs the leader, which answers requests, or the follower, which the leader starts.

    `leader(link)` returns the leader's abilities by name, and a text with versions.
    """
    # A process that hangs in the driver must not outlive the benchmark.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 9, 0, 0, 0)
    if sys.argv[1:] == ["follower"]:
        follower(Link(socket.socket(fileno=int(os.environ[SOCKET]))))
        return
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {**os.environ, SOCKET: str(other.fileno())}
    subprocess.Popen(
        [sys.executable, "-c", BOOT, "follower"],
        env=environment,
        pass_fds=[other.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    other.close()
    try:
        abilities, versions = leader(Link(own))
    except Exception as error:
        print("absent", repr(error), flush=True)
        return
    print("ready", versions, flush=True)
    for line in sys.stdin:
        name, count = line.split()
        try:
            answer = abilities[name](int(count))
        except Exception as error:
            answer = {"error": repr(error)}
        print(json.dumps(answer), flush=True)
