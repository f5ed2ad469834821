"""An exporter stays reachable after another program has removed its socket or directory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import crosshandle
from conftest import DEADLINE

EXPORTER = """
import sys, crosshandle
kept = [crosshandle.share(crosshandle.empty(4, "int32"))]
print(bytes(kept[0]).hex(), flush=True)
for line in sys.stdin:
    kept.append(crosshandle.share(crosshandle.empty(4, "int32")))
    print(bytes(kept[-1]).hex(), flush=True)
"""

IMPORTER = """
import sys, crosshandle
crosshandle.open(bytes.fromhex(sys.argv[1])).numpy()
"""


class Exporter:
    def __init__(self, environment: dict[str, str]):
        self.environment = environment
        self.process = subprocess.Popen(
            [sys.executable, "-c", EXPORTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.first = self.read()

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def share(self) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write("share\n")
        self.process.stdin.flush()
        return self.read()

    def importer_opens(self, bundle: str) -> None:
        # A new process is needed, since a process that has the exporter open does not use the
        # socket.
        command = [sys.executable, "-c", IMPORTER, bundle]
        ran = subprocess.run(command, capture_output=True, text=True, env=self.environment, timeout=DEADLINE)
        assert ran.returncode == 0, ran.stderr

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(DEADLINE) == 0


def sockets(directory: Path) -> list[Path]:
    return list(directory.glob("*.sock"))


def until(condition: Any) -> bool:
    end = time.monotonic() + DEADLINE
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return bool(condition())


def environment(**values: str) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if name != crosshandle_dir and name != "XDG_RUNTIME_DIR"}
    return own | values


crosshandle_dir = "CROSSHANDLE_SOCKET_DIR"


@pytest.mark.parametrize("shares", [False, True], ids=["without a new share", "with a new share"])
def test_a_removed_socket(tmp_path: Path, shares: bool) -> None:
    exporter = Exporter(environment(CROSSHANDLE_SOCKET_DIR=str(tmp_path)))
    (socket,) = sockets(tmp_path)
    socket.unlink()
    bundle = exporter.share() if shares else exporter.first
    assert until(socket.exists)
    exporter.importer_opens(bundle)
    exporter.importer_opens(exporter.first)
    exporter.end()
    assert sockets(tmp_path) == []


@pytest.mark.parametrize("shares", [False, True], ids=["without a new share", "with a new share"])
def test_a_removed_default_directory(tmp_path: Path, shares: bool) -> None:
    exporter = Exporter(environment(XDG_RUNTIME_DIR=str(tmp_path)))
    directory = tmp_path / "crosshandle"
    assert len(sockets(directory)) == 1
    shutil.rmtree(directory)
    bundle = exporter.share() if shares else exporter.first
    assert until(lambda: directory.is_dir() and len(sockets(directory)) == 1)
    exporter.importer_opens(bundle)
    exporter.importer_opens(exporter.first)
    exporter.end()


def test_a_directory_that_a_program_chose_is_made_again_for_a_new_share(tmp_path: Path) -> None:
    directory = tmp_path / "chosen"
    exporter = Exporter(environment(CROSSHANDLE_SOCKET_DIR=str(directory)))
    shutil.rmtree(directory)
    bundle = exporter.share()
    assert until(lambda: len(sockets(directory)) == 1)
    exporter.importer_opens(bundle)
    exporter.importer_opens(exporter.first)
    exporter.end()


def test_the_exporter_of_this_process_goes_on() -> None:
    arrays = [crosshandle.empty(4), crosshandle.empty(4)]
    bundle = bytes(crosshandle.share(arrays[0]))
    directory = Path(os.environ[crosshandle_dir])
    for socket in sockets(directory):
        socket.unlink()
    again = bytes(crosshandle.share(arrays[1]))
    # The second export may rely on the check of the first, and then a thread listens again.
    assert until(lambda: len(sockets(directory)) >= 1)
    command = [sys.executable, "-c", IMPORTER]
    for one in (bundle, again):
        subprocess.run([*command, one.hex()], check=True, timeout=DEADLINE)
