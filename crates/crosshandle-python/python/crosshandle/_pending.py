"""Pickling of shared objects. The sender keeps each pickled object alive until its receivers have
opened it."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from . import _crosshandle as _rust
from ._crosshandle import Array, Channel, Event, Memory, PhysicalMemory
from ._sharing import Bundle, _context_of, _open_received, default_context, open, open_read_only, share

# The size of a channel's handle in bytes.
_HANDLE_SIZE = 104


class Pending(NamedTuple):
    """The result of `pending`.

    >>> crosshandle.pending().objects
    0
    """

    objects: int
    """The number of pickled objects that this process keeps for receivers."""
    nbytes: int
    """The number of bytes that are allocated only because of these pickled objects."""


class Limits(NamedTuple):
    """The result of `pending_limits`.

    >>> crosshandle.pending_limits().exit_timeout
    10.0
    """

    objects: int
    """The maximum number of pickled objects that this process keeps."""
    nbytes: int
    """The number of bytes, allocated only because of pickled objects, at which pickling starts to
    wait."""
    timeout: float | None
    """The number of seconds that pickling waits if a limit is reached, before it raises
    `LimitReachedError`. `None` means no timeout."""
    exit_timeout: float | None
    """The number of seconds without progress after which an exiting process stops waiting for
    receivers. `None` means no timeout."""


class _Receivers(threading.local):
    number = 1


_receivers = _Receivers()
_exit_timeout: float | None = 10.0


def _open(data: bytes, ticket: bytes) -> Any:
    """Opens a pickled object, and notifies the sender. Never runs code from the sender."""
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
    """Notifies the sender of a pickle that this process has opened the object."""
    _rust.opened(default_context(), ticket)


def _open_channel(data: bytes, ticket: bytes) -> Channel:
    """Opens a pickled channel. The data are the handle's bytes, and the device of the slots."""
    backend, _, uuid = data[_HANDLE_SIZE:].decode().partition(":")
    channel = _rust.open_channel(_context_of(backend, uuid), data[:_HANDLE_SIZE])
    opened(ticket)
    return channel


_OPENERS: dict[str, Callable[[bytes, bytes], Any]] = {
    "open": _open,
    "open_read_only": _open_read_only,
    "open_channel": _open_channel,
}

Reduced = tuple[Callable[..., Any], tuple[Any, ...]]


def reduced(value: Any, opener: str, data: bytes) -> Reduced:
    """Returns the result of `__reduce__` for an object. From then on, this process keeps the object
    alive until its receivers have opened it."""
    return _OPENERS[opener], (data, keep([value]))


def reduced_bundle(bundle: Bundle, open: Callable[..., Any] = _open_bundle) -> Reduced:
    """Returns the result of `__reduce__` for a bundle. From then on, this process keeps the
    bundle's arrays alive until the receivers have opened the bundle."""
    return open, (bytes(bundle), keep(bundle._parts()))


def keep(objects: list[Any]) -> bytes:
    """Keeps objects alive until their receivers have opened them. Returns the ticket that each
    receiver passes to `opened`."""
    _wait_when_it_ends()
    return _rust.keep(objects, _receivers.number)


class Pickled:
    """The result of `pickled`, which can be pickled any number of times. A process that unpickles
    it gets the original object.

    >>> import pickle
    >>> array = crosshandle.ones(3)
    >>> pickle.loads(pickle.dumps(crosshandle.pickled(array))).tolist()
    [1.0, 1.0, 1.0]
    """

    __slots__ = ("_reduced",)

    def __init__(self, reduced: Reduced):
        self._reduced = reduced

    def __reduce__(self) -> Reduced:
        return self._reduced


def pickled(value: Any, *, receivers: int = 1) -> Pickled:
    """Prepares an object so that it can be pickled for several receivers.

    An array, memory or event can also be pickled directly, but only for one receiver: this process
    keeps it alive until one process has opened it. The result of this function can be put into any
    number of queues. This process keeps `value` alive until it has been opened `receivers` times. A
    receiver that unpickles the result gets the value itself. `value` can also be another library's
    array or a tree of arrays, which is packed as by `share`.

    >>> import pickle
    >>> array = crosshandle.empty(3)
    >>> data = pickle.dumps(crosshandle.pickled(array, receivers=2))
    >>> one, other = pickle.loads(data), pickle.loads(data)
    """
    if receivers < 1:
        raise ValueError(f"the number of receivers must be at least 1, not {receivers}")
    before, _receivers.number = _receivers.number, receivers
    try:
        if isinstance(value, (Bundle, Memory, Event, PhysicalMemory)):
            own: Any = value.__reduce__()
            return Pickled(own)
        return Pickled(reduced_bundle(share(value), _open))
    finally:
        _receivers.number = before


def pending() -> Pending:
    """Returns the number of pickled objects that are not opened yet, and the number of bytes that
    are allocated only because of them.

    >>> import pickle
    >>> data = pickle.dumps(crosshandle.empty(1000, "float64"))
    >>> crosshandle.pending().objects
    1
    >>> array = pickle.loads(data)
    >>> crosshandle.pending().objects
    0
    """
    return Pending(*_rust.kept())


def release_pending() -> int:
    """Drops all pickled objects that this process keeps for receivers. Returns the number of
    dropped objects.

    After this call, opening one of these pickles may fail. Use this function if no process will
    open the pickles, for example because the receiver has died.

    >>> import pickle
    >>> data = pickle.dumps(crosshandle.empty(1000))
    >>> crosshandle.release_pending()
    1
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
    """Sets limits for pickled objects that are not opened yet. Returns all limits.

    Pickling waits while this process keeps `objects` pickled objects (default: 65,536), or while
    pickled objects alone keep `nbytes` or more bytes allocated (default: half of the machine's
    memory). After `timeout` seconds (default: 60), pickling raises `LimitReachedError`. When this
    process exits, it waits for receivers. It stops waiting if no object is opened for
    `exit_timeout` seconds (default: 10). `None` means no timeout. A limit that is not passed stays
    unchanged.

    >>> before = crosshandle.pending_limits()
    >>> crosshandle.pending_limits(objects=1000, timeout=5).objects
    1000
    >>> after = crosshandle.pending_limits(objects=before.objects, timeout=before.timeout)
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


# The id of the process that has most recently registered `_wait_at_exit` with `multiprocessing`.
_waiting: int | None = None
_is_watching = False


def _wait_when_it_ends() -> None:
    """Makes this process wait for receivers when it exits. The wait starts after the feeder threads
    of queues have pickled their objects.

    A child process from `multiprocessing` does not run `atexit` functions, so this function
    registers a finalizer with `multiprocessing`.
    """
    global _waiting
    util = sys.modules.get("multiprocessing.util")
    if _waiting != os.getpid() and util is not None:
        _waiting = os.getpid()
        # `multiprocessing` joins the feeder threads at priority -5, and lower priorities run later.
        util.Finalize(None, _wait_at_exit, exitpriority=-100)


def _start_again() -> None:
    """Resets the inherited state in a forked child. Runs a second time after `multiprocessing` has
    dropped the finalizers that the child inherited."""
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
