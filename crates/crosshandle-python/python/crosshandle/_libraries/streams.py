"""Streams of other libraries, as queues of a context."""

from __future__ import annotations

import atexit
import threading
from collections import OrderedDict
from typing import Any

from .._crosshandle import Context, Device, Event, Queue
from .._errors import Error, InvalidArgumentError
from .._sharing import default_context

# How many streams are kept as queues. A program that uses more in turn adopts them again each time, which takes some
# microseconds.
_MOST = 64

# The numbers of the stream that every context has.
_DEFAULT = (0, 1)

_lock = threading.Lock()
# By device and number. A queue keeps its stream's object, so none is here that was adopted by its number alone: its
# stream may end, and another one may have its number. Only default streams never end.
_adopted: OrderedDict[tuple[str, int], Queue] = OrderedDict()
# Queues of this module's own by device, whose streams wait for events: a wait is behind no other event's.
_own: dict[str, list[Queue]] = {}
# How many of them a device has. With more waits than that at a time, some are behind others.
_MOST_OWN = 32


@atexit.register
def _let_go() -> None:
    """Drops every queue before the streams end, in whatever order the interpreter ends their libraries."""
    with _lock:
        queues = [_adopted.pop(key) for key in list(_adopted)]
        own = [_own.pop(device) for device in list(_own)]
    del queues, own


def number_of(stream: Any) -> int:
    """The driver's number of a stream: 0 is the default stream."""
    if isinstance(stream, int):
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        pair: Any = protocol() if callable(protocol) else protocol
        _, number = pair
        return int(number)
    for name in ("cuda_stream", "ptr", "handle"):
        number = getattr(stream, name, None)
        if number is not None:
            # numba's are pointers of ctypes, whose null is None.
            return int(getattr(number, "value", number) or 0)
    if hasattr(stream, "handle"):
        return 0
    raise TypeError(
        f"{type(stream).__name__} is no stream: it has none of __cuda_stream__, cuda_stream, ptr and handle"
    )


def _device_of(stream: Any) -> str | None:
    """The name of a stream's device, if the stream tells."""
    for name in ("device_index", "device_id"):
        index = getattr(stream, name, None)
        if isinstance(index, int) and index >= 0:
            return f"cuda:{index}"
    index = getattr(getattr(stream, "device", None), "index", None)
    if isinstance(index, int):
        return f"cuda:{index}"
    if type(stream).__module__.partition(".")[0] == "cupy":
        # CuPy's default stream is the current device's.
        import cupy

        return f"cuda:{cupy.cuda.runtime.getDevice()}"
    return None


def _devices() -> list[str]:
    found = [device.name for device in Device.all() if device.backend == "cuda"]
    if not found:
        raise InvalidArgumentError("there is no CUDA device here, so no stream can be used: see `crosshandle doctor`")
    return found


def queue(stream: Any, context: Context | None = None) -> Queue:
    """The queue that a stream is; of `context`, or of the default context of the stream's device."""
    number = number_of(stream)
    if context is not None:
        # Not one of those that are kept: the caller keeps it.
        return context._adopt_stream(number, stream)
    named = _device_of(stream)
    return _queue_on(number, stream, [named] if named is not None else _devices())


def _known(device: str, number: int) -> Queue | None:
    with _lock:
        known = _adopted.get((device, number))
        if known is not None:
            _adopted.move_to_end((device, number))
        return known


def _queue_on(number: int, stream: Any, devices: list[str]) -> Queue:
    # Every device has the default streams: which one is meant must not depend on those that were used before. Any other
    # number is one device's, whose context need not be made to find it among those that are known.
    if number not in _DEFAULT:
        for device in devices:
            known = _known(device, number)
            if known is not None:
                return known
    refused: Error | None = None
    for device in devices:
        known = _known(device, number)
        if known is not None:
            return known
        try:
            adopted = default_context(device)._adopt_stream(number, stream)
        except InvalidArgumentError as error:
            # Perhaps another device's.
            refused = error
            continue
        if isinstance(stream, int) and number not in _DEFAULT:
            return adopted
        with _lock:
            _adopted[device, number] = adopted
            idle = [key for key, queue in _adopted.items() if queue.idle] if len(_adopted) > _MOST else []
            # Dropped without the lock.
            dropped = [_adopted.pop(key) for key in idle[: len(_adopted) - _MOST]]
        del dropped
        return adopted
    assert refused is not None
    raise refused


def signal(event: Event, stream: Any) -> int:
    """Has a stream signal an event. Returns the signal's number."""
    return queue(stream).signal(event)


def wait(event: Event, stream: Any, value: int | None = None, device: str | None = None) -> None:
    """Has a stream wait for a signal of an event (default: the latest)."""
    if device is not None:
        _queue_on(number_of(stream), stream, [device]).wait(event, value)
    else:
        queue(stream).wait(event, value)


def waiting(event: Event, value: int, device: str) -> int:
    """The number of a stream of `device` that waits for a signal; whoever waits for the stream waits for the signal."""
    with _lock:
        # Two threads that find the same one idle are behind each other, at worst.
        own = _own.setdefault(device, [])
        chosen = next((queue for queue in own if queue.idle), None)
        if chosen is None and len(own) >= _MOST_OWN:
            # The one that was used the longest ago.
            chosen = own[0]
        if chosen is not None:
            own.remove(chosen)
            own.append(chosen)
    if chosen is None:
        chosen = default_context(device).queue()
        with _lock:
            own.append(chosen)
    chosen.wait(event, value)
    number = chosen.native
    assert number is not None
    return number
