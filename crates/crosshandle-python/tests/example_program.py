"""A program of two processes, each of which may be killed at any of its lines."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import crosshandle

TURNS = 3
# Time limit of a step in seconds, which is far more than any step needs.
LIMIT = 60.0


def make(pipe: Any) -> None:
    """Creates and shares the objects, asks the other process, and reads its replies."""
    context = crosshandle.Context()
    array = context.empty(16, "int64")
    # Each process creates the event that it signals, so waiters learn of its death.
    asked = context.event(name="asked")
    numbers = memoryview(array)
    with crosshandle.share({"numbers": array}) as bundle:
        pipe.send((bytes(bundle), bytes(asked.handle())))
        answered = context.open_event(pipe.recv())
        for turn in range(1, TURNS + 1):
            numbers[0] = turn
            asked.signal()
            answered.wait_value(turn, LIMIT)
            assert numbers[1] == 2 * turn
    pipe.send("made")
    pipe.recv()


def use(pipe: Any) -> None:
    """Opens the objects, and replies to the other process."""
    bundle, ask = pipe.recv()
    context = crosshandle.Context()
    answered = context.event(name="answered")
    pipe.send(bytes(answered.handle()))
    tree = crosshandle.open(bundle, context=context)
    numbers = memoryview(tree["numbers"])
    asked = context.open_event(ask)
    for turn in range(1, TURNS + 1):
        asked.wait_value(turn, LIMIT)
        numbers[1] = 2 * numbers[0]
        answered.signal()
    pipe.recv()
    pipe.send("used")


def run(pipe: Any, role: str, line: int) -> None:
    """Runs one of the two roles. Kills the process after `line` lines of this file and of the
    package."""
    count = 0
    places = (__file__, str(Path(crosshandle.__file__).parent))

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.startswith(places):
            return None
        if event == "line":
            count += 1
            if count == line:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    try:
        {"make": make, "use": use}[role](pipe)
    finally:
        sys.settrace(None)
    pipe.send(count)
