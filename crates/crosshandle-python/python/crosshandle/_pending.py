"""Pickled objects: each is kept until the receiver has opened it."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from . import _crosshandle as _rust
from ._crosshandle import Array, Event, Memory, PhysicalMemory
from ._sharing import Bundle, _open_received, default_context, open, open_read_only, share


class Pending(NamedTuple):
    """What `pending` returns."""

    objects: int
    """The number of pickled objects that are kept."""
    nbytes: int
    """The number of bytes that these objects alone keep, and nothing else in this process."""


class Limits(NamedTuple):
    """What `pending_limits` returns."""

    objects: int
    """The number of pickled objects that this process keeps at most."""
    nbytes: int
    """The number of bytes from which on nothing more is pickled."""
    timeout: float | None
    """How many seconds pickling waits until a limit allows it; `None` is for ever."""
    exit_timeout: float | None
    """How many seconds a process that ends waits for the next receiver; `None` is for ever."""


class _Receivers(threading.local):
    number = 1


_receivers = _Receivers()
_exit_timeout: float | None = 10.0


def _open(data: bytes, ticket: bytes) -> Any:
    """Opens what was pickled, and tells the sender. Runs nothing that the sender chose."""
    value = open(data)
    opened(ticket)
    return value


def _open_read_only(data: bytes, ticket: bytes) -> Any:
    value = open_read_only(data)
    opened(ticket)
    return value


def _open_bundle(data: bytes, ticket: bytes) -> Bundle:
    bundle = _open_received(data)
    opened(ticket)
    return bundle


def opened(ticket: bytes) -> None:
    """Tells the sender of a pickle that it was opened."""
    _rust.opened(default_context(), ticket)


_OPENERS: dict[str, Callable[[bytes, bytes], Any]] = {
    "open": _open,
    "open_read_only": _open_read_only,
}

Reduced = tuple[Callable[..., Any], tuple[Any, ...]]


def reduced(value: Any, opener: str, data: bytes) -> Reduced:
    """What an object is pickled as. It is kept from now on."""
    return _OPENERS[opener], (data, keep([value]))


def reduced_bundle(bundle: Bundle, open: Callable[..., Any] = _open_bundle) -> Reduced:
    """What a bundle is pickled as. Its arrays are kept from now on."""
    return open, (bytes(bundle), keep(bundle._parts()))


def keep(objects: list[Any]) -> bytes:
    """Keeps objects, and returns the ticket that their receivers pass to `opened`."""
    _wait_when_it_ends()
    return _rust.keep(objects, _receivers.number)


class Pickled:
    """An object that `pickled` has pickled. It arrives as the object itself."""

    __slots__ = ("_reduced",)

    def __init__(self, reduced: Reduced):
        self._reduced = reduced

    def __reduce__(self) -> Reduced:
        return self._reduced


def pickled(value: Any, *, receivers: int = 1) -> Pickled:
    """Pickles an object once, for several receivers.

    Every object of this package may be pickled without this function. It is then kept until one process has opened it.
    The result of this function can be put into any number of queues. `value` is kept until it has been opened
    `receivers` times. Each receiver gets the value itself. A value that is no object of this package is shared as
    `share` does: an array of another library, or a tree of arrays.

    >>> import pickle
    >>> array = crosshandle.empty(3)
    >>> data = pickle.dumps(crosshandle.pickled(array, receivers=2))
    >>> one, other = pickle.loads(data), pickle.loads(data)
    """
    if receivers < 1:
        raise ValueError(f"there is at least one receiver: {receivers}")
    before, _receivers.number = _receivers.number, receivers
    try:
        if isinstance(value, (Bundle, Memory, Event, PhysicalMemory)):
            own: Any = value.__reduce__()
            return Pickled(own)
        return Pickled(reduced_bundle(share(value), _open))
    finally:
        _receivers.number = before


def pending() -> Pending:
    """Returns how many pickled objects no process has opened yet, and how many bytes they alone keep."""
    return Pending(*_rust.kept())


def release_pending() -> int:
    """Keeps none of the pickled objects any longer, and returns how many there were.

    Their pickles may be stale from then on: for pickles that no process will open, as after the death of a receiver.
    """
    return _rust.release_kept()


_UNCHANGED: Any = object()


def pending_limits(
    *,
    objects: int | None = None,
    nbytes: int | None = None,
    timeout: float | None = _UNCHANGED,
    exit_timeout: float | None = _UNCHANGED,
) -> Limits:
    """Sets limits for pickled objects that no process has opened yet, and returns all limits.

    Pickling waits while `objects` pickled objects are kept (65,536), or while they alone keep `nbytes` bytes or more
    (half of the machine's memory). After `timeout` seconds (60) it raises `LimitReachedError`. A process that ends waits
    for the receivers, until `exit_timeout` seconds (10) pass in which none has opened anything. `None` is no timeout.
    """
    global _exit_timeout
    own_objects, own_nbytes, own_timeout = _rust.kept_limits()
    _rust.set_kept_limits(
        own_objects if objects is None else objects,
        own_nbytes if nbytes is None else nbytes,
        own_timeout if timeout is _UNCHANGED else timeout,
    )
    if exit_timeout is not _UNCHANGED:
        if exit_timeout is not None and not exit_timeout >= 0:
            raise ValueError(f"a timeout is a number of seconds, not negative, or None: {exit_timeout}")
        _exit_timeout = exit_timeout
    return Limits(*_rust.kept_limits(), _exit_timeout)


def _wait_at_exit() -> None:
    left = _rust.wait_for_receivers(_exit_timeout)
    if left and sys.stderr is not None:
        print(
            f"crosshandle: process {os.getpid()} ends, and no process has opened {left} of the objects that it has "
            f"pickled, within {_exit_timeout} s: their receivers may get StaleHandleError or ExporterGoneError "
            "(see crosshandle.pending_limits)",
            file=sys.stderr,
        )
    _rust.release_kept()


# The process in which `multiprocessing` was last asked to wait at its end.
_waiting: int | None = None
_is_watching = False


def _wait_when_it_ends() -> None:
    """Makes this process wait after the threads of queues have pickled what was put. Processes of `multiprocessing` run
    no functions of `atexit`."""
    global _waiting
    util = sys.modules.get("multiprocessing.util")
    if _waiting != os.getpid() and util is not None:
        _waiting = os.getpid()
        # Those threads end at priority -5.
        util.Finalize(None, _wait_at_exit, exitpriority=-100)


def _start_again() -> None:
    """Runs in a forked child, and once more after `multiprocessing` has forgotten its parent's functions."""
    global _waiting, _is_watching
    _waiting = None
    _wait_when_it_ends()
    util = sys.modules.get("multiprocessing.util")
    if not _is_watching and util is not None:
        _is_watching = True
        util.register_after_fork(_start_again, lambda function: function())


atexit.register(_wait_at_exit)
os.register_at_fork(after_in_child=_start_again)
_start_again()
