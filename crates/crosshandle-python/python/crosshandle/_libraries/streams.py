"""Wraps other libraries' streams as `Queue` objects."""

from __future__ import annotations

import atexit
import threading
from typing import Any

from .._crosshandle import Context, Device, Event, Queue, adopted_queue, forget_adopted, keep_adopted
from .._errors import Error, InvalidArgumentError
from .._sharing import default_context

# The handles of the default streams, which are valid on every device.
_DEFAULT = (0, 1)

_lock = threading.Lock()
# Queues that this module has created, by device name. A queue that is waiting for an event is not
# used for another wait, so that no wait is delayed by another.
_own: dict[str, list[Queue]] = {}
# Maximum number of queues in `_own` for each device. If more waits are pending, some of them wait
# behind others.
_MOST_OWN = 32


@atexit.register
def _let_go() -> None:
    """Drops all queues when the interpreter exits, before the libraries destroy the streams."""
    with _lock:
        own = [_own.pop(device) for device in list(_own)]
    forget_adopted()
    del own


def number_of(stream: Any) -> int:
    """Returns the driver's handle of a stream as an integer. The default stream has handle 0."""
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
            # For numba streams, the handle is a ctypes pointer. Its value is None if it is null.
            return int(getattr(number, "value", number) or 0)
    if hasattr(stream, "handle"):
        return 0
    raise TypeError(
        f"{type(stream).__name__} is not a stream: it has none of __cuda_stream__, cuda_stream, ptr and handle"
    )


def _device_of(stream: Any) -> str | None:
    """Returns the name of a stream's device, or None if the stream object does not contain it."""
    for name in ("device_index", "device_id"):
        index = getattr(stream, name, None)
        if isinstance(index, int) and index >= 0:
            return f"cuda:{index}"
    index = getattr(getattr(stream, "device", None), "index", None)
    if isinstance(index, int):
        return f"cuda:{index}"
    if type(stream).__module__.partition(".")[0] == "cupy":
        # CuPy's default stream object has no device. It refers to the current device.
        import cupy

        return f"cuda:{cupy.cuda.runtime.getDevice()}"
    return None


def _devices() -> list[str]:
    found = [device.name for device in Device.all() if device.backend == "cuda"]
    if not found:
        raise InvalidArgumentError("there is no CUDA device here, so no stream can be used: see `crosshandle doctor`")
    return found


def queue(stream: Any, context: Context | None = None) -> Queue:
    """Returns a queue that submits its commands to a stream. The queue belongs to `context`
    (default: the default context for the stream's device)."""
    number = number_of(stream)
    if context is not None:
        # The caller owns this queue, so it is not added to the cache.
        return context._adopt_stream(number, stream)
    named = _device_of(stream)
    return _queue_on(number, stream, [named] if named is not None else _devices())


def _known(device: str, number: int) -> Queue | None:
    return adopted_queue(_index(device), number)


def _index(device: str) -> int:
    return int(device.rpartition(":")[2])


def _queue_on(number: int, stream: Any, devices: list[str]) -> Queue:
    # A handle other than those of the default streams belongs to exactly one device. Search the
    # cache for it first, because that needs no context.
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
        # If the program passed only a handle, the queue is not cached, because the stream may be
        # destroyed and the driver may reuse its handle. The default streams always exist.
        if not isinstance(stream, int) or number in _DEFAULT:
            keep_adopted(_index(device), number, adopted)
        return adopted
    assert refused is not None
    raise refused


def signal(event: Event, stream: Any) -> int:
    """Makes a stream signal an event after its submitted work. Returns the signal's number."""
    return queue(stream).signal(event)


def wait(event: Event, stream: Any, value: int | None = None, device: str | None = None) -> None:
    """Makes a stream wait for signal `value` of an event (default: the latest signal)."""
    if device is not None:
        _queue_on(number_of(stream), stream, [device]).wait(event, value)
    else:
        queue(stream).wait(event, value)


def waiting(event: Event, value: int, device: str) -> int:
    """Returns the handle of a stream on `device` that waits for signal `value` of an event.

    Work that waits for this stream therefore also waits for the signal.
    """
    with _lock:
        # Two threads may still choose the same idle queue. Then one of their waits is behind the
        # other, which is harmless.
        own = _own.setdefault(device, [])
        chosen = next((queue for queue in own if queue.idle), None)
        if chosen is None and len(own) >= _MOST_OWN:
            # The queues are in the order of their last use, so the first one is the least recently
            # used.
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
