"""The common parts of the benchmarks: a second process that runs functions on request, and a
table."""

from __future__ import annotations

import multiprocessing
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

# Time after which the other process is treated as hung, in seconds.
DEADLINE = 120.0


def microseconds(function: Callable[[], Any]) -> float:
    """Returns the duration of one call, in microseconds."""
    began = time.perf_counter_ns()
    function()
    return (time.perf_counter_ns() - began) / 1e3


def median(function: Callable[[], Any], rounds: int, warm: int = 0) -> float:
    """Returns the median duration of calls, in microseconds."""
    for _ in range(warm):
        function()
    return statistics.median(microseconds(function) for _ in range(rounds))


def _serve(pipe: Any, functions: dict[str, Callable[..., Any]], shared: Any) -> None:
    while (message := pipe.recv()) is not None:
        name, arguments = message
        try:
            if shared is not None:
                arguments = (shared, *arguments)
            pipe.send(("done", functions[name](*arguments)))
        except BaseException:
            pipe.send(("failed", traceback.format_exc()))


class Other:
    """The other process."""

    def __init__(self, pipe: Any, process: Any):
        self._pipe, self.process = pipe, process

    def ask(self, name: str, *arguments: Any) -> None:
        self._pipe.send((name, arguments))

    def answer(self) -> Any:
        if not self._pipe.poll(DEADLINE):
            raise TimeoutError("the other process does not reply")
        kind, value = self._pipe.recv()
        if kind != "done":
            raise RuntimeError(value)
        return value

    def call(self, name: str, *arguments: Any) -> Any:
        self.ask(name, *arguments)
        return self.answer()


@contextmanager
def other(functions: dict[str, Callable[..., Any]], context: Any = None, shared: Any = None) -> Iterator[Other]:
    """Starts a process that calls these functions by name. Each function receives `shared` first,
    if it is given."""
    context = context or multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, functions, shared), daemon=True)
    process.start()
    theirs.close()
    try:
        yield Other(ours, process)
        ours.send(None)
        process.join(10)
    finally:
        process.kill()
        process.join(10)


@dataclass
class Row:
    """A measurement, with that of its peer in the same run. Times are in microseconds."""

    what: str
    ours: float
    peer: float | None = None
    peer_name: str = ""
    goal: str = ""

    def text(self) -> str:
        ratio = f"{self.ours / self.peer:.3g}" if self.peer else ""
        peer = f"{shown(self.peer)} ({self.peer_name})" if self.peer is not None else "–"
        return f"| {self.what} | {shown(self.ours)} | {peer} | {ratio} | {self.goal} |"


def shown(time: float) -> str:
    """Formats a time in microseconds with its unit."""
    if time >= 1e6:
        return f"{time / 1e6:.3g} s"
    if time >= 1e3:
        return f"{time / 1e3:.3g} ms"
    return f"{time:.3g} µs"


HEAD = "| what | crosshandle | alternative | ratio | goal |\n|---|---|---|---|---|"
