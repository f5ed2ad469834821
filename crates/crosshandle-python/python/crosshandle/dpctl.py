"""Events that SYCL queues of dpctl signal and wait for, in several processes.

    import dpctl
    import crosshandle.dpctl

    queue = dpctl.SyclQueue()
    ready = crosshandle.dpctl.Event()
    connection.send_bytes(ready.handle())         # to another process
    queue.memcpy_async(target, source, nbytes)
    ready.signal(queue)                           # after the copy; the host does not wait

    ready = crosshandle.dpctl.Event(connection.recv_bytes())
    ready.wait_on(queue)                          # later commands start after the copy

The SYCL runtime must have loaded an adapter of this package, as for arrays of dpctl and dpnp.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any

from dpctl.memory import MemoryUSMDevice

from . import _crosshandle as _rust
from ._errors import UnsupportedError, WrongDeviceError
from ._libraries import usm
from ._sharing import default_context, open

_SIGNAL, _WAIT = 0, 1


class _Opened:
    """An event that an adapter has opened in the SYCL context of a queue."""

    def __init__(self, event: _rust.Event, queue: Any):
        # Adapters identify a context by memory in it. In-order queues copy the first allocation to
        # the second.
        self.memory = MemoryUSMDevice(1, queue=queue), MemoryUSMDevice(1, queue=queue)
        handle = bytes(event.handle())
        for adapter in usm._needed():
            try:
                self.number = adapter.open_event(self.memory[0]._pointer, handle)
            except usm._Unknown:
                continue
            self.adapter = adapter
            weakref.finalize(self, adapter.close_event, self.number)
            return
        raise WrongDeviceError(
            f"the device {queue.sycl_device.name!r} is not one of this package's Unified Runtime adapter: "
            f"start the program with {usm._setting()}"
        )


class Event:
    """An event of this package that queues of dpctl can signal and wait for.

    `event` is a `crosshandle.Event`, or the handle of an event as bytes. Without it, a new event is
    created. The host signals and waits with the attribute `event`, a `crosshandle.Event`. Any
    thread may use the object.
    """

    def __init__(self, event: _rust.Event | bytes | None = None):
        if event is None:
            event = default_context().event()
        elif not isinstance(event, _rust.Event):
            event = open(event)
            if not isinstance(event, _rust.Event):
                raise TypeError(f"this handle refers to {type(event).__name__}, not to an event")
        self.event: _rust.Event = event
        self._opened: dict[Any, _Opened] = {}
        self._lock = threading.Lock()

    def handle(self) -> bytes:
        """Returns a handle, with which another process can open the event."""
        return bytes(self.event.handle())

    def signal(self, queue: Any, dependent_events: Sequence[Any] = ()) -> Any:
        """Makes a queue signal the event, and returns a `dpctl.SyclEvent`.

        The queue signals after all commands that it contains. If there are dependent events and the
        queue is out of order, it signals after these events only. This method does not wait.
        """
        return self._submit(queue, _SIGNAL, 0, dependent_events)

    def wait_on(self, queue: Any, value: int | None = None, dependent_events: Sequence[Any] = ()) -> Any:
        """Makes all later commands of a queue wait for signal `value`, and returns a
        `dpctl.SyclEvent`. The default is the latest signal, or the first one if there is none.

        This method does not wait. If the process that should signal dies, the queue continues, and
        `event.ready()` and `event.wait()` of this object's attribute `event` raise `PeerDiedError`.
        """
        if value is not None and value <= 0:
            raise ValueError("signals are numbered from 1")
        return self._submit(queue, _WAIT, value or 0, dependent_events)

    def _submit(self, queue: Any, action: int, value: int, dependent_events: Sequence[Any]) -> Any:
        with self._lock:
            opened = self._opened.get(queue.sycl_context)
            if opened is None:
                opened = self._opened[queue.sycl_context] = _Opened(self.event, queue)
        opened.adapter.attach(opened.number, action, value)
        try:
            # An in-order queue of SYCL omits barriers.
            if queue.is_in_order:
                submitted = queue.memcpy_async(opened.memory[1], opened.memory[0], 1, list(dependent_events))
            else:
                submitted = queue.submit_barrier(list(dependent_events))
        finally:
            is_done = opened.adapter.detach()
        if not is_done:
            raise UnsupportedError(
                "the SYCL runtime has not submitted the command to this package's adapter yet: "
                "do not use events of this package on a queue that waits for host tasks"
            )
        return submitted
