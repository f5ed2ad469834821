"""If a process is killed at any line of a program, its peer gets an exception at once."""

from __future__ import annotations

import multiprocessing
import threading
import time
from multiprocessing.connection import wait
from typing import Any

import pytest

import crosshandle
import example_program
from conftest import DEADLINE

# Maximum number of seconds from a death to the exception. It takes milliseconds, but the machine
# may be busy.
AT_ONCE = 5.0


def play(role: str, line: int) -> tuple[Any, float]:
    """Runs one role in this process. Another process runs the other role, and is killed at a line.

    Returns the exception or None, and the seconds from the death to the exception.
    """
    spawn = multiprocessing.get_context("spawn")
    pipe, theirs = spawn.Pipe()
    other = {"make": "use", "use": "make"}[role]
    process = spawn.Process(target=example_program.run, args=(theirs, other, line))
    process.start()
    theirs.close()
    died: list[float] = []

    def watch() -> None:
        wait([process.sentinel])
        died.append(time.monotonic())

    watcher = threading.Thread(target=watch)
    watcher.start()
    raised: Any = None
    lines = 0
    try:
        getattr(example_program, role)(pipe)
        lines = pipe.recv()
    except (crosshandle.Error, EOFError, OSError) as error:
        raised = error
    ended = time.monotonic()
    if raised is None:
        process.join(DEADLINE)
    else:
        # The exception was caused by a death, not by a delay.
        watcher.join(AT_ONCE)
    gap = ended - died[0] if died else 0.0
    process.kill()
    process.join(DEADLINE)
    watcher.join(DEADLINE)
    return (lines if raised is None else raised), gap


@pytest.mark.parametrize("role", ["make", "use"])
def test_no_line_to_be_killed_at_hangs_the_other(role: str, kills: int) -> None:
    lines, _ = play(role, 0)
    assert isinstance(lines, int) and lines > 20, lines
    share = max(kills // 2, 1)
    raised = 0
    for number in range(share):
        # Spread evenly over all lines. If there are more kills than lines, start over.
        line = 1 + number * lines // share if share < lines else 1 + number % lines
        result, gap = play(role, line)
        assert not isinstance(result, TimeoutError), f"killed at line {line}: {result!r}"
        assert gap < AT_ONCE, f"killed at line {line}: {result!r} after {gap:.1f} s"
        raised += not isinstance(result, int)
        # The surviving process continues to work.
        event = crosshandle.Context().event()
        event.signal()
        event.wait_value(1, timeout=DEADLINE)
    assert raised >= share - 3, f"{raised} of {share}: only deaths at the last lines go unnoticed"
