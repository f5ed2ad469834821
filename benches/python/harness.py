"""The common parts of the benchmarks: a second process that runs functions on request, and rows of
results, which the benchmark program shows."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import re
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from typing import Any

# Time after which the other process is treated as hung, in seconds.
DEADLINE = 120.0
# Whether this is a short run, whose results must not be quoted.
quick = False

Times = float | list[float]


def pick(full: int, short: int) -> int:
    """Returns the number of rounds, which is smaller in a quick run."""
    return short if quick else full


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


class Skipped(Exception):
    """The machine cannot measure a row. The text is the reason."""


def package(name: str) -> Any:
    """Imports a compared package."""
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise Skipped(f"{name}: {error}") from None


def torch_with_gpu() -> Any:
    """Returns torch, which has found a GPU."""
    torch = package("torch")
    if not torch.cuda.is_available():
        raise Skipped("no GPU that torch can use")
    return torch


def in_turns(
    ours: Callable[[], float], peer: Callable[[], float], rounds: int, warm: int = 1
) -> tuple[list[float], list[float]]:
    """Measures both sides in alternation. The first `warm` rounds are not recorded."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + warm):
        for side in (0, 1) if number % 2 else (1, 0):
            took = (ours, peer)[side]()
            if number >= warm:
                times[side].append(took)
    return times


@dataclass
class Row:
    """A measurement, with that of its peer in the same run. Times are in microseconds, each one
    median or a list of samples. A goal is a time, such as `≤ 2 µs`, or a multiple of the peer's
    time, such as `≤ 0.5 ×`."""

    what: str
    ours: Times | None = None
    peer: Times | None = None
    peer_name: str = ""
    goal: str = ""
    # The size of the measured object, for plots: ("bytes", 4096) or ("objects", 10).
    at: tuple[str, int] | None = None
    # The part of the identifier before the description.
    group: str = ""
    skipped: str | None = None
    failed: str | None = None

    def emit(self) -> None:
        """Prints the row for the benchmark program."""
        words = re.sub(r"[^a-z0-9.]+", "-", self.what.lower()).strip("-.")
        row = {
            "id": f"{self.group}.{words}" if self.group else words,
            "what": self.what,
            "ours": nanoseconds(self.ours),
            "peer": nanoseconds(self.peer),
            "peer_name": self.peer_name or None,
            "target": target(self.goal),
            "at": {self.at[0]: self.at[1]} if self.at else None,
            "skipped": self.skipped,
            "failed": self.failed,
        }
        print(json.dumps({"row": row}), flush=True)


def nanoseconds(times: Times | None) -> list[float]:
    if times is None:
        return []
    return [time * 1e3 for time in ([times] if isinstance(times, int | float) else times)]


def target(goal: str) -> dict[str, Any] | None:
    """Parses a goal."""
    if not goal:
        return None
    less, number, unit = goal.split()
    units = {"ns": 1.0, "µs": 1e3, "ms": 1e6, "s": 1e9}
    assert less == "≤" and (unit == "×" or unit in units), goal
    if unit == "×":
        return {"kind": "at_most_times_raw", "bound": float(number)}
    return {"kind": "at_most", "bound": float(number) * units[unit]}


def versions(*packages: str) -> None:
    """Prints the versions of compared packages for the benchmark program."""
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            pass
    print(json.dumps({"versions": found}), flush=True)
