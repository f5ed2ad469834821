"""Events for LMCache's multiprocess mode (`LMCACHE_DEVICE_BACKEND=crosshandle`).

LMCache orders copies between an engine and its cache server by device events that cross processes.
With this backend, these are events of this package: each wait has a deadline, and a wait for a
process that has died raises `PeerDiedError` instead of blocking. The exporter may drop an event
right after it has exported it.

LMCache finds the backend through the entry points `lmcache.device_plugins` of this package.
"""

from __future__ import annotations

import collections
import functools
import os
from typing import Any

from lmcache.v1.platform.devices.cpu import CpuDeviceSpec
from lmcache.v1.platform.devices.cuda import CudaDeviceSpec

from .._crosshandle import Event
from .._sharing import default_context

TIMEOUT = 60.0
"""Maximum number of seconds that the host waits for an event."""

_EXPORTED = 2048
"""Maximum number of exported events that a process keeps for importers, as many as LMCache's own
backend keeps."""


class EventBackend:
    """LMCache's interface to events, as `EventIPCBackend` describes it."""

    def __init__(self, device_type: str):
        self.device_type = device_type
        self._exported: collections.deque[Event] = collections.deque(maxlen=_EXPORTED)

    def check_event_support(self, device: Any) -> None:
        """Raises an exception if the device cannot be used."""
        self._context(device)

    def create_event(self, device: Any) -> Event:
        made: Event = self._context(device).event()
        return made

    def export_event(self, event: Event, device: Any) -> bytes:
        self._exported.append(event)
        return bytes(event.handle())

    def import_event(self, handle: bytes, device: Any) -> Event:
        found: Event = self._context(device).open_event(handle, timeout=TIMEOUT)
        return found

    def record_event(self, event: Event, stream: Any) -> None:
        event.signal(self._stream(stream))

    def wait_event(self, event: Event, stream: Any) -> None:
        """Makes a stream wait for the event's latest signal. On the CPU, waits itself."""
        on = self._stream(stream)
        if on is None:
            event.wait(TIMEOUT)
        else:
            event.wait_on(on)

    def query_event(self, event: Event) -> bool:
        # An event of CUDA that was never recorded is complete.
        return event.submitted == 0 or event.ready()

    def synchronize_event(self, event: Event, device: Any) -> None:
        if event.submitted:
            event.wait(TIMEOUT)

    def _context(self, device: Any) -> Any:
        if self.device_type == "cpu":
            return default_context()
        number = device if isinstance(device, int) else getattr(device, "index", None)
        if number is None:
            import torch

            number = torch.cuda.current_device()
        return default_context(f"cuda:{number}")

    def _stream(self, stream: Any) -> Any:
        """Returns the stream to use, or None on the CPU, where LMCache has only stand-ins."""
        if self.device_type == "cpu":
            return None
        if stream is None:
            import torch

            return torch.cuda.current_stream()
        return stream


@functools.cache
def _backend(device_type: str) -> EventBackend:
    """Returns this process's backend for a type of device."""
    return EventBackend(device_type)


class CudaSpec(CudaDeviceSpec):
    """LMCache's CUDA device, with the events of this package."""

    @property
    def backend_name(self) -> str:
        return "crosshandle"

    @property
    def event_ipc_backend(self) -> Any:
        return _backend("cuda")


class CpuSpec(CpuDeviceSpec):
    """LMCache's CPU device, with the events of this package. LMCache's own events on the CPU are
    stand-ins, which are always complete."""

    @property
    def backend_name(self) -> str:
        return "crosshandle-cpu"

    def is_available(self) -> bool:
        # Otherwise LMCache would choose this backend wherever the package is installed, because its
        # own CPU device is never available.
        return os.environ.get("LMCACHE_DEVICE_BACKEND") == self.backend_name

    @property
    def event_ipc_backend(self) -> Any:
        return _backend("cpu")
