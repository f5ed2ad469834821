"""Ray actors on two machines. A machine is a network namespace with its own boot identity."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import START, STEP, Program

PORT = 6479
RAY = [sys.executable, "-m", "ray.scripts.scripts"]
MOUNTED = 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"'


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=STEP, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]} {done.stderr[-2000:]}"


class Machine:
    """A network namespace with an address, and its own boot identity."""

    def __init__(self, number: int, directory: Path):
        self.name = f"xhray-{os.getpid()}-{number}"
        self.interface = f"xhr{os.getpid() % 100000}{'ab'[number - 1]}"
        self.address = f"10.213.77.{number}"
        self._boot = directory / f"boot-{number}"
        self._boot.write_text(f"{number}0000000-0000-4000-8000-{os.getpid():012x}\n")
        self._sockets = directory / str(number)
        self._sockets.mkdir(mode=0o700)
        run("ip", "netns", "add", self.name)

    def up(self) -> None:
        run("ip", "-n", self.name, "addr", "add", f"{self.address}/24", "dev", self.interface)
        for interface in ("lo", self.interface):
            run("ip", "-n", self.name, "link", "set", interface, "up")

    def command(self, *command: str) -> list[str]:
        """Returns a command that runs another one on the machine."""
        inside = ["ip", "netns", "exec", self.name, "sh", "-c", MOUNTED, str(self._boot)]
        variables = [f"CROSSHANDLE_SOCKET_DIR={self._sockets}", "RAY_AUTH_MODE=disabled"]
        return [*inside, "env", *variables, *command]

    def remove(self) -> None:
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True, timeout=STEP, check=False)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[list[Machine]]:
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    made = [Machine(number, tmp_path) for number in (1, 2)]
    try:
        first, second = made
        peer = ["peer", "name", second.interface, "netns", second.name]
        run("ip", "link", "add", first.interface, "netns", first.name, "type", "veth", *peer)
        for machine in made:
            machine.up()
        yield made
    finally:
        for machine in made:
            machine.remove()


class Node:
    """A node of Ray on a machine."""

    def __init__(self, machine: Machine, resource: str, *arguments: str):
        options = ["--node-ip-address", machine.address, "--num-cpus", "4", "--resources", f'{{"{resource}": 10}}']
        options += ["--object-store-memory", str(300 << 20), "--disable-usage-stats", "--block", *arguments]
        command = machine.command(*RAY, "start", *options)
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def wait_until_started(self) -> None:
        assert self.process.stdout is not None
        deadline, seen = time.monotonic() + STEP, b""
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while b"Ray runtime started" not in seen:
                assert selector.select(deadline - time.monotonic()), f"no node of Ray: {seen[-3000:]!r}"
                more = os.read(self.process.stdout.fileno(), 1 << 16)
                assert more, f"the node of Ray has ended: {seen[-3000:]!r}"
                seen += more

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(STEP)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(STEP)


def test_actors_of_two_machines_pass_tensors_and_survive_each_other(
    start: Callable[..., Program], machines: list[Machine]
) -> None:
    first, second = machines
    address = f"{first.address}:{PORT}"
    nodes = [Node(first, "first", "--head", "--port", str(PORT), "--include-dashboard", "false")]
    try:
        nodes[0].wait_until_started()
        nodes.append(Node(second, "second", "--address", address))
        nodes[1].wait_until_started()
        figures = start("ray_hosts_program.py", address, container=first.command()).receive(START)
        print(figures)
        assert figures["before_s"] < 10 and figures["during_s"] < 10
    finally:
        for node in nodes:
            node.stop()
