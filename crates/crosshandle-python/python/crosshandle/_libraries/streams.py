"""Streams of other libraries as queues of a context."""

from __future__ import annotations

import atexit
import threading
from collections import OrderedDict
from typing import Any

from .._crosshandle import Context, Device, Event, Queue
from .._errors import Error, InvalidArgumentError
from .._sharing import default_context

# The maximum number of streams that are kept as queues. A program that alternates between more
# streams adopts them again each time, which takes some microseconds.
_MOST = 64

# The stream numbers that every context has.
_DEFAULT = (0, 1)

_lock = threading.Lock()
# Adopted queues, by device and stream number. A queue keeps its stream's object alive. A stream
# that was adopted by its number alone is not in this table, because the stream may end and the
# driver may reuse its number. The exception is the default streams, which never end.
_adopted: OrderedDict[tuple[str, int], Queue] = OrderedDict()
# Queues of this module, by device. Each one waits for one event at a time, so that no wait has to
# queue behind another.
_own: dict[str, list[Queue]] = {}
# The maximum number of queues in `_own` for each device. If more waits are pending at a time, some
# of them queue behind others.
_MOST_OWN = 32


@atexit.register
def _let_go() -> None:
    """Drops all queues before their streams end, because the interpreter ends the libraries in any
    order."""
    with _lock:
        queues = [_adopted.pop(key) for key in list(_adopted)]
        own = [_own.pop(device) for device in list(_own)]
    del queues, own


def number_of(stream: Any) -> int:
    """Returns the driver's number of a stream. The default stream has number 0."""
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
            # In numba the number is a ctypes pointer, whose value is None for a null pointer.
            return int(getattr(number, "value", number) or 0)
    if hasattr(stream, "handle"):
        return 0
    raise TypeError(
        f"{type(stream).__name__} is not a stream: it has none of __cuda_stream__, cuda_stream, ptr and handle"
    )


def _device_of(stream: Any) -> str | None:
    """Returns the name of a stream's device, or None if the stream object does not have it."""
    for name in ("device_index", "device_id"):
        index = getattr(stream, name, None)
        if isinstance(index, int) and index >= 0:
            return f"cuda:{index}"
    index = getattr(getattr(stream, "device", None), "index", None)
    if isinstance(index, int):
        return f"cuda:{index}"
    if type(stream).__module__.partition(".")[0] == "cupy":
        # CuPy's default stream has no device of its own: it belongs to the current device.
        import cupy

        return f"cuda:{cupy.cuda.runtime.getDevice()}"
    return None


def _devices() -> list[str]:
    found = [device.name for device in Device.all() if device.backend == "cuda"]
    if not found:
        raise InvalidArgumentError("there is no CUDA device here, so no stream can be used: see `crosshandle doctor`")
    return found


def queue(stream: Any, context: Context | None = None) -> Queue:
    """Returns the queue that adopts a stream. The queue belongs to `context`, or to the default
    context of the stream's device."""
    number = number_of(stream)
    if context is not None:
        # The caller keeps this queue alive, so it is not added to `_adopted`.
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
    # The numbers of the default streams are the same on every device. Any other number belongs to
    # one device, so it is looked up among the known streams first, which needs no context.
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
            # The stream may belong to another device.
            refused = error
            continue
        if isinstance(stream, int) and number not in _DEFAULT:
            return adopted
        with _lock:
            _adopted[device, number] = adopted
            idle = [key for key, queue in _adopted.items() if queue.idle] if len(_adopted) > _MOST else []
            # The queues are dropped after the lock is released.
            dropped = [_adopted.pop(key) for key in idle[: len(_adopted) - _MOST]]
        del dropped
        return adopted
    assert refused is not None
    raise refused


def signal(event: Event, stream: Any) -> int:
    """Makes a stream signal an event. Returns the signal's number."""
    return queue(stream).signal(event)


def wait(event: Event, stream: Any, value: int | None = None, device: str | None = None) -> None:
    """Makes a stream wait for a signal of an event (default: the latest)."""
    if device is not None:
        _queue_on(number_of(stream), stream, [device]).wait(event, value)
    else:
        queue(stream).wait(event, value)


def waiting(event: Event, value: int, device: str) -> int:
    """Returns the number of a stream of `device` that waits for a signal.

    Waiting for that stream means waiting for the signal.
    """
    with _lock:
        # No lock is needed. If two threads choose the same idle queue, one of their waits queues
        # behind the other.
        own = _own.setdefault(device, [])
        chosen = next((queue for queue in own if queue.idle), None)
        if chosen is None and len(own) >= _MOST_OWN:
            # The queues are in the order of their last use, so this one is the least recently used.
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
