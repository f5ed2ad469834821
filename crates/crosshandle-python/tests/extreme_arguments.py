"""Calls every public callable of the package with extreme arguments. `test_extremes.py` runs this
script in its own process.

The script reports each outcome that no program may see: a panic, or a failure that is not a Python
exception.
"""

from __future__ import annotations

import inspect
import json
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import crosshandle
from crosshandle import link, store


class Late(Exception):
    """A call took too long, and was interrupted as by Ctrl-C."""


class Endless:
    """A sequence that claims to be long."""

    def __len__(self) -> int:
        return 1 << 62

    def __getitem__(self, place: int) -> int:
        if place > 100:
            raise IndexError
        return 1

    def __repr__(self) -> str:
        return "Endless()"


INTEGERS = [-1, 0, 1, 2, 4095, 1 << 31, 1 << 45, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, -(1 << 63)]
NUMBERS = [float("nan"), float("inf"), float("-inf"), 1e300, -1e300, -0.0, 5e-324, 0.5]
TEXTS: list[Any] = ["", "x", "\0", "\ud800", "x" * 100_000, "xh", b"", b"\0" * 104, b"\xff" * 104, b"xhb", b"xhb\1" + b"\xff" * 200]
LISTS: list[Any] = [[], (), [1 << 62] * 3, [-1], [0] * 1000, [1 << 64], range(1 << 62), Endless(), {}, {"a": 1}, set()]
OTHERS: list[Any] = [None, True, bytearray(3), memoryview(b"abcd")[::2], object(), int, ...]
EXTREMES = [*INTEGERS, *NUMBERS, *TEXTS, *LISTS, *OTHERS]

# Methods that are not called: they close an object that other calls need, or import a library that
# ends the process when memory is low.
SKIPPED = {"close", "release", "cupy", "dpctl", "dpnp", "jax", "torch"}


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        found = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):
        return []
    return [one for one in found if one.name not in ("self", "cls", "slf")]


class Calls:
    def __init__(self) -> None:
        self.count = 0
        self.names: set[str] = set()
        self.bad: list[str] = []
        self.good: dict[str, Any] = {}
        self.is_calling = False

    def usual(self, parameter: inspect.Parameter) -> Any:
        return self.good.get(parameter.name, 1)

    def call(self, name: str, function: Callable[..., Any], positional: list[Any], named: dict[str, Any]) -> None:
        self.count += 1
        try:
            try:
                self.is_calling = True
                signal.setitimer(signal.ITIMER_REAL, 0.03)
                function(*positional, **named)
            finally:
                # An alarm that arrives before this line is caught by the surrounding block. A later
                # one is ignored.
                self.is_calling = False
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Exception:
            pass
        except BaseException as error:
            self.bad.append(f"{name} {positional!r:.200} {named!r:.200}: {type(error).__name__}: {error}")

    def late(self, _signal: int, _frame: FrameType | None) -> None:
        if self.is_calling:
            raise Late

    def everything(self, name: str, function: Callable[..., Any]) -> None:
        self.names.add(name)
        print(name, file=sys.stderr, flush=True)
        all_of_it = [one for one in parameters(function) if one.kind is not one.VAR_KEYWORD]
        self.call(name, function, *self.arguments(all_of_it, None, None))
        for chosen in all_of_it:
            for value in EXTREMES:
                self.call(name, function, *self.arguments(all_of_it, chosen, value))

    def arguments(
        self, all_of_it: list[inspect.Parameter], chosen: inspect.Parameter | None, value: Any
    ) -> tuple[list[Any], dict[str, Any]]:
        positional: list[Any] = []
        named: dict[str, Any] = {}
        for one in all_of_it:
            if one is chosen:
                given = value
            elif one.default is one.empty and one.kind is not one.VAR_POSITIONAL:
                given = self.usual(one)
            else:
                continue
            if one.kind is one.KEYWORD_ONLY or one.default is not one.empty:
                named[one.name] = given
            else:
                positional.append(given)
        return positional, named


def public(owner: Any) -> Iterator[tuple[str, Any]]:
    for name in dir(owner):
        if not name.startswith("_") and name not in SKIPPED:
            try:
                yield name, getattr(owner, name)
            except Exception:
                continue


def main() -> None:
    calls = Calls()
    signal.signal(signal.SIGALRM, calls.late)
    sparse = crosshandle.Context("host", overcommit=True)
    context = crosshandle.Context("host")
    memory, event, queue = context.allocate(1 << 16), context.event(), context.queue()
    event.signal()
    array = memory.array((8,), "float32")
    physical, addresses = context.physical_memory(1 << 16), context.reserve(1 << 45)
    addresses.map(0, physical)
    listener = link.listen("127.0.0.1:0", token=(token := link.new_token()), data="tls", context=sparse)
    ends: list[link.Link] = []
    connecting = threading.Thread(
        target=lambda: ends.append(link.connect(listener.address, token=token, data="tls", context=context))
    )
    connecting.start()
    ends.append(listener.accept(timeout=20))
    connecting.join()
    other = ends[-1]
    # Sparse memory of a peer may be far larger than the machine's memory.
    huge = sparse.allocate(1 << 44)
    remote, there = other.open_memory(huge.handle()), other.open_event(event.handle())
    opened = context.open_memory(huge.handle())
    bundle = crosshandle.share(array)
    calls.good = {
        "address": listener.address, "array": array, "arrays": [array], "context": context, "data": bytes(bundle),
        "destination": memory, "device": "host", "dtype": "float32", "event": event, "events": [event],
        "handle": memory.handle(), "into": bytearray(8), "memory": memory, "name": "name", "offset": 0, "owner": object(),
        "pattern": b"1234", "shape": (8,), "source": memory, "tensors": {"a": array}, "token": token, "tree": array,
        "value": 1, "files": ["nothing"], "options": {}, "fill_value": 1, "object": array, "obj": array, "x": array,
    }  # fmt: skip
    objects: list[tuple[str, Any]] = [
        ("Device", crosshandle.Device()), ("Context", context), ("Memory", memory), ("Memory (huge)", opened),
        ("Array", array), ("Event", event), ("Queue", queue), ("PhysicalMemory", physical), ("VirtualRange", addresses),
        ("Notifier", crosshandle.Notifier()), ("MemoryHandle", memory.handle()), ("EventHandle", event.handle()),
        ("ChannelHandle", crosshandle.Channel(slot_size=8).handle()),
        ("Bundle", bundle), ("Link", other), ("Listener", listener), ("RemoteMemory", remote), ("RemoteEvent", there),
        ("Store", store.Store()),
    ]  # fmt: skip
    # Limit the address space, so that large allocations fail, and an unchecked one ends the
    # process.
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), resource.RLIM_INFINITY))
    for module in (crosshandle, store, link):
        for name, found in public(module):
            if callable(found) and not (inspect.isclass(found) and issubclass(found, BaseException)):
                calls.everything(f"{module.__name__}.{name}", found)
    for name, found in objects:
        for member, method in public(found):
            if callable(method):
                calls.everything(f"{name}.{member}", method)
    print(json.dumps({"calls": calls.count, "names": sorted(calls.names), "bad": calls.bad}))


if __name__ == "__main__":
    main()
