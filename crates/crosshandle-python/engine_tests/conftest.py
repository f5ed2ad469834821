"""Fixtures of the tests with real engines: a holder, tiny checkpoints, processes with deadlines.

`cargo xtask engine-tests` runs these tests. They need packages of about 8 GB.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import crosshandle

HERE = Path(__file__).parent

START = 600.0
"""Time limit in seconds for the start of an engine, which takes 40 seconds on two idle cores."""
STEP = 120.0
"""Time limit in seconds for any other step."""

CONTAINER = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--ipc", "--uts", "--cgroup"]
"""A command that runs a program in namespaces of its own, as in a container or a pod."""


@pytest.fixture(scope="session", autouse=True)
def _environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CROSSHANDLE_SOCKET_DIR", str(tmp_path_factory.mktemp("sockets")))
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        patch.setenv("VLLM_NO_USAGE_STATS", "1")
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("VLLM_CACHE_ROOT", str(tmp_path_factory.mktemp("vllm")))
        # Otherwise a program would use a cluster of Ray that was left on this machine.
        patch.setenv("RAY_ADDRESS", "local")
        patch.delenv("VLLM_ALLOW_INSECURE_SERIALIZATION", raising=False)
        yield


class Holder:
    """A holder process in the session's socket directory."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, container: Sequence[str] = ()) -> None:
        self.process = subprocess.Popen([*container, crosshandle.command(), "hold"], stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + STEP
        while self._hold("--check") != 0:
            assert time.monotonic() < deadline, "there is no holder"

    def stop(self) -> None:
        self._hold("--stop")
        if self.process is not None:
            self.process.kill()
            self.process.wait(STEP)

    @staticmethod
    def _hold(*arguments: str) -> int:
        command = [crosshandle.command(), "hold", *arguments]
        return subprocess.run(command, timeout=STEP, check=False, capture_output=True).returncode


@pytest.fixture
def holder() -> Iterator[Holder]:
    made = Holder()
    made.start()
    yield made
    made.stop()


class Program:
    """A program that answers lines on its standard input with lines on its standard output."""

    def __init__(
        self,
        file: str,
        *arguments: str,
        environment: dict[str, str] | None = None,
        log: Path | None = None,
        container: Sequence[str] = (),
    ):
        self._log = open(log or os.devnull, "w+b")
        self.process = subprocess.Popen(
            [*container, sys.executable, str(HERE / file), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **(environment or {})},
        )
        self._rest = b""

    def receive(self, limit: float = STEP) -> Any:
        """Returns the next result. Raises `RuntimeError` if the program reports an error."""
        reply = json.loads(self._line(limit))
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply["result"]

    def _line(self, limit: float) -> bytes:
        assert self.process.stdout is not None
        deadline = time.monotonic() + limit
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while True:
                while b"\n" in self._rest:
                    line, _, self._rest = self._rest.partition(b"\n")
                    if line.startswith(b"REPLY "):
                        return line[len(b"REPLY ") :]
                assert selector.select(deadline - time.monotonic()), f"no reply in {limit} s: {self.errors()}"
                more = os.read(self.process.stdout.fileno(), 1 << 16)
                assert more, f"the process ended with {self.process.wait(STEP)}: {self.errors()}"
                self._rest += more

    def errors(self, most: int = 3000) -> str:
        """Returns the last `most` characters that the program has written to its standard error."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-most:]

    def ask(self, *call: Any, limit: float = STEP) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(call).encode() + b"\n")
        self.process.stdin.flush()
        return self.receive(limit)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(STEP)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Starts programs, and kills those that are left at the end of the test."""
    programs: list[Program] = []

    def started(file: str, *arguments: str, **named: Any) -> Program:
        programs.append(Program(file, *arguments, log=tmp_path / f"program-{len(programs)}.log", **named))
        return programs[-1]

    yield started
    for program in programs:
        program.kill()


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of 4 layers with random weights, and a tokenizer of words."""
    directory: Path = tmp_path_factory.mktemp("tiny")
    subprocess.run([sys.executable, str(HERE / "tiny_model.py"), str(directory), "7"], check=True, timeout=STEP)
    return directory


@pytest.fixture(scope="session")
def other_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of the same size as `checkpoint`, with other weights."""
    directory: Path = tmp_path_factory.mktemp("other")
    subprocess.run([sys.executable, str(HERE / "tiny_model.py"), str(directory), "8"], check=True, timeout=STEP)
    return directory
