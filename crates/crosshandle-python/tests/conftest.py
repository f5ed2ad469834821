"""Fixtures for all tests: a socket directory, and processes that end with the test."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import pytest

import crosshandle

# Otherwise JAX allocates most of a GPU's memory on first use.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

DEADLINE = 30.0
"""Time limit of a step in seconds, far more than any step needs."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", type=int, default=16, help="how often a process is killed at some line (16)")
    parser.addoption("--forks", type=int, default=8, help="how often a process with busy threads forks (8)")
    parser.addoption("--items", type=int, default=200, help="how many arrays cross each queue and pool (200)")


@pytest.fixture
def items(request: pytest.FixtureRequest) -> int:
    number: int = request.config.getoption("--items")
    return number


@pytest.fixture
def kills(request: pytest.FixtureRequest) -> int:
    number: int = request.config.getoption("--kills")
    return number


@pytest.fixture(scope="session", autouse=True)
def _interrupts() -> None:
    # A program that was started in the background ignores Ctrl-C, and so would its child processes.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _sockets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    # One directory serves the whole session, because the default context reads the variable only
    # when it is created.
    directory: Path = tmp_path_factory.mktemp("sockets")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CROSSHANDLE_SOCKET_DIR", str(directory))
        yield


class Peer:
    """A process that runs one function of a test, and the pipe that connects it to the test."""

    def __init__(self, function: Callable[..., None], *arguments: Any):
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(target=function, args=(theirs, *arguments))
        self.process.start()
        theirs.close()

    def send(self, value: Any) -> None:
        self._pipe.send(value)

    def receive(self) -> Any:
        assert self._pipe.poll(DEADLINE), "the other process sent no reply"
        return self._pipe.recv()

    def kill(self) -> None:
        self.process.kill()
        self.process.join(DEADLINE)

    def end(self) -> None:
        self.process.join(DEADLINE)
        assert self.process.exitcode == 0

    def stop(self) -> None:
        if self.process.is_alive():
            self.process.kill()
        self.process.join(DEADLINE)


@pytest.fixture
def start() -> Iterator[Callable[..., Peer]]:
    peers: list[Peer] = []

    def started(function: Callable[..., None], *arguments: Any) -> Peer:
        peers.append(Peer(function, *arguments))
        return peers[-1]

    yield started
    for peer in peers:
        peer.stop()


@contextmanager
def running_holder() -> Iterator[None]:
    """Runs a holder in this test's socket directory, and stops it afterwards."""

    def hold(*arguments: str) -> int:
        command = [crosshandle.command(), "hold", *arguments]
        return subprocess.run(command, timeout=DEADLINE, check=False, capture_output=True).returncode

    with subprocess.Popen([crosshandle.command(), "hold"], stderr=subprocess.DEVNULL) as holder:
        try:
            deadline = time.monotonic() + DEADLINE
            while hold("--check") != 0:
                assert time.monotonic() < deadline, "there is no holder"
            yield
        finally:
            hold("--stop")
            holder.kill()
