"""Arrays and events that processes share, without a copy.

A process creates memory or an event and gets a handle, or packs whole arrays with `share`. It sends
the bytes to another process over any channel. The other process opens the bytes, and gets the same
object without a copy.

>>> import crosshandle
>>> array = crosshandle.zeros((1024, 1024), "float32")
>>> bundle = bytes(crosshandle.share(array))        # a few hundred bytes for any channel
>>> same = crosshandle.open(bundle)                 # in another process
>>> same.shape
(1024, 1024)

`crosshandle.torch`, `crosshandle.cupy`, `crosshandle.engines`, `crosshandle.store` and
`crosshandle.link` are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._crosshandle import (
    Array,
    Context,
    Device,
    Event,
    EventHandle,
    Memory,
    MemoryHandle,
    Notifier,
    PhysicalMemory,
    PhysicalMemoryHandle,
    Queue,
    VirtualRange,
)
from ._errors import (
    CommandFailedError,
    DriverError,
    Error,
    ExporterGoneError,
    InvalidArgumentError,
    InvalidHandleError,
    LimitReachedError,
    NoDeviceError,
    NoSymbolError,
    NotAdmittedError,
    OutOfMemoryError,
    PeerDiedError,
    ProtocolError,
    ReadOnlyError,
    StaleHandleError,
    SystemCallError,
    TimedOutError,
    UnsupportedError,
    WrongDeviceError,
    WrongHostError,
    WrongKeyError,
)
from ._creating import asarray, devices, empty, event, full, ones, zeros
from ._crosshandle import __version__
from ._frames import Frame
from ._paths import command, ur_adapter
from ._pending import Limits, Pending, Pickled, pending, pending_limits, pickled, release_pending
from ._sharing import Bundle, default_context, open, share, trim

if TYPE_CHECKING:
    from . import cupy as cupy, engines as engines, link as link, store as store, torch as torch

__all__ = [
    "Array",
    "Bundle",
    "CommandFailedError",
    "Context",
    "Device",
    "DriverError",
    "Error",
    "Event",
    "EventHandle",
    "ExporterGoneError",
    "Frame",
    "InvalidArgumentError",
    "InvalidHandleError",
    "LimitReachedError",
    "Limits",
    "Memory",
    "MemoryHandle",
    "NoDeviceError",
    "NoSymbolError",
    "NotAdmittedError",
    "Notifier",
    "OutOfMemoryError",
    "PeerDiedError",
    "Pending",
    "PhysicalMemory",
    "PhysicalMemoryHandle",
    "Pickled",
    "ProtocolError",
    "Queue",
    "ReadOnlyError",
    "StaleHandleError",
    "SystemCallError",
    "TimedOutError",
    "UnsupportedError",
    "VirtualRange",
    "WrongDeviceError",
    "WrongHostError",
    "WrongKeyError",
    "__version__",
    "asarray",
    "command",
    "default_context",
    "devices",
    "empty",
    "event",
    "full",
    "ones",
    "open",
    "pending",
    "pending_limits",
    "pickled",
    "release_pending",
    "share",
    "trim",
    "ur_adapter",
    "zeros",
]

# Modules that are imported on first use, because some need torch or CuPy.
_MODULES = ("cupy", "engines", "link", "store", "torch")

# Hints for names that this package lacks but similar packages have.
_HINTS = {
    "SharedMemory": "make an array with crosshandle.empty(shape, dtype), or bytes with Context().allocate(nbytes)",
    "SharedArray": "make an array with crosshandle.empty(shape, dtype)",
    "array": "copy data with crosshandle.asarray(data), or make an array with crosshandle.empty(shape, dtype)",
    "allocate": "make an array with crosshandle.empty(shape, dtype), or bytes with Context().allocate(nbytes)",
    "attach": "open what was sent with crosshandle.open(data)",
    "close": "close what was opened: memory.close(), or a with statement",
    "connect": "open what was sent with crosshandle.open(data), or another host's with crosshandle.link",
    "device": "it is called crosshandle.Device",
    "dumps": "bytes(crosshandle.share(tree)) are the bytes to send",
    "export": "bytes(crosshandle.share(tree)) are the bytes to send",
    "from_numpy": "copy an array with crosshandle.asarray(array)",
    "get": "open what was sent with crosshandle.open(data)",
    "load": "open what was sent with crosshandle.open(data), or a model with crosshandle.store.open(name)",
    "loads": "open what was sent with crosshandle.open(data)",
    "put": "bytes(crosshandle.share(tree)) are the bytes to send",
    "receive": "send the bytes in any way, for example by a pipe, and open them with crosshandle.open(data)",
    "send": "bytes(crosshandle.share(tree)) are the bytes to send, in any way",
    "wait": "wait for an event with event.wait(timeout=…)",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        import importlib

        return importlib.import_module(f"{__name__}.{name}")
    hint = _HINTS.get(name)
    raise AttributeError(f"module 'crosshandle' has no attribute {name!r}" + (f": {hint}" if hint else ""))


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_MODULES))
