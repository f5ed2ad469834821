"""Every Python block in the documents runs, and a kill of its process leaves the peer working."""

from __future__ import annotations

import importlib.util
import multiprocessing
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest

import crosshandle
import documents
from conftest import DEADLINE, running_holder

# Time limit of a surviving process in seconds. The documents' own timeouts are 5 s, and the machine
# may be busy.
SURVIVES = 20.0

PROGRAMS = documents.programs()
PAIRS = [program for program in PROGRAMS if len(program.blocks) == 2]


def _skip_without(needs: set[str]) -> None:
    for need in sorted(needs):
        if need == "gpu":
            if not any(device.backend == "cuda" for device in crosshandle.Device.all()):
                pytest.skip("needs a GPU of NVIDIA's")
        elif need != "holder" and importlib.util.find_spec(need) is None:
            pytest.skip(f"needs {need}")


@contextmanager
def _holder(program: documents.Program) -> Iterator[None]:
    """Keeps the model that some programs open."""
    if "holder" not in program.needs:
        yield
        return

    with running_holder():
        weight = crosshandle.ones((16, 16), "float32")
        crosshandle.store.publish("llama-70b", {"lm_head.weight": weight})
        yield


class Played:
    """A block that runs in its own process."""

    def __init__(self, block: documents.Block, connection: Connection | None, line: int = 0):
        spawn = multiprocessing.get_context("spawn")
        self._notes, notes = spawn.Pipe(duplex=False)
        self._result, result = spawn.Pipe(duplex=False)
        self.process = spawn.Process(target=_play, args=(block, connection, notes, result, line))
        self.process.start()
        for end in (notes, result, connection):
            if end is not None:
                end.close()

    def result(self, seconds: float = DEADLINE) -> BaseException | None:
        """Returns the exception of the block, or None. Fails if the block still runs after
        `seconds`."""
        ready = wait([self._result, self.process.sentinel], seconds)
        assert ready, "a block of a document hangs"
        try:
            raised: BaseException | None = self._result.recv()
        except EOFError:
            raised = EOFError("the process was killed")
        self.process.join(DEADLINE)
        return raised

    def notes(self) -> list[Any]:
        """Returns the text of each line that started to run. If all lines have run, the last item
        is their number."""
        found = []
        try:
            while self._notes.poll(0):
                found.append(self._notes.recv())
        except EOFError:
            pass
        return found

    def stop(self) -> None:
        self.process.kill()
        self.process.join(DEADLINE)


def _play(block: documents.Block, connection: Connection | None, notes: Connection, result: Connection, line: int) -> None:
    try:
        documents.run(block, connection, notes, line)
    except BaseException as error:
        if isinstance(error, (crosshandle.Error, OSError, EOFError)):
            result.send(error)
            return
        raise
    result.send(None)


def _start(program: documents.Program, killed: int = 0, line: int = 0) -> list[Played]:
    ends: tuple[Any, ...] = (None,)
    if len(program.blocks) == 2:
        ends = multiprocessing.get_context("spawn").Pipe()
    return [
        Played(block, end, line if place == killed else 0)
        for place, (block, end) in enumerate(zip(program.blocks, ends, strict=True))
    ]


@pytest.mark.parametrize("program", PROGRAMS, ids=[program.name for program in PROGRAMS])
def test_every_block_runs(program: documents.Program, tmp_path: Path) -> None:
    _skip_without(program.needs)
    if program.blocks[0].is_program:
        file = tmp_path / "program.py"
        file.write_text(program.blocks[0].source)
        subprocess.run([sys.executable, file], check=True, timeout=DEADLINE)
        return
    with _holder(program):
        _run(program)


def _run(program: documents.Program) -> None:
    played = _start(program)
    try:
        results = [each.result() for each in played]
        assert results == [None] * len(played)
        assert [each.process.exitcode for each in played] == [0] * len(played)
    finally:
        for each in played:
            each.stop()


def test_a_block_that_does_not_run_says_why() -> None:
    for block in documents.blocks():
        assert block.reason is None or len(block.reason.split()) > 2, block.name


@pytest.mark.parametrize("killed", [0, 1], ids=documents.ROLES)
@pytest.mark.parametrize("program", PAIRS, ids=[program.name for program in PAIRS])
def test_no_line_to_be_killed_at_hangs_the_other(program: documents.Program, killed: int, kills: int) -> None:
    _skip_without(program.needs)
    share = kills // (2 * len(PAIRS))
    if program is PAIRS[0]:
        # At least one line of the README's first program, in each run of the tests.
        share = max(share, 1)
    if share == 0:
        pytest.skip(f"a kill of each document's processes needs --kills {2 * len(PAIRS)} or more")
    whole = _start(program)
    try:
        assert [each.result() for each in whole] == [None, None]
        lines = whole[killed].notes()[-1]
    finally:
        for each in whole:
            each.stop()
    for number in range(share):
        # The kills are spread evenly over all lines. If there are more kills than lines, lines
        # repeat.
        line = 1 + (2 * number + 1) * lines // (2 * share) if share < lines else 1 + number % lines
        played = _start(program, killed, line)
        try:
            raised = played[1 - killed].result(SURVIVES)
            if isinstance(raised, crosshandle.TimedOutError):
                # Only the death of a process that had attached is detected, so check whether it
                # had.
                begun = played[killed].notes()
                opened = [text for text in begun[:-1] if "open(" in text]
                assert not opened, f"killed at line {line}: {raised!r} after {opened}"
        finally:
            for each in played:
                each.stop()
