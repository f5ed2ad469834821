"""Shares arrays and events between processes without copying them.

A process packs arrays with `share`, or creates memory or an event and gets a handle. It sends the
packed arrays or the handle, as bytes, to another process over any channel. The other process opens
the bytes, and then uses the same memory or event.

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
    Channel,
    ChannelHandle,
    Consumer,
    Context,
    Device,
    DeviceEvent,
    Event,
    EventHandle,
    Item,
    Memory,
    MemoryHandle,
    Notifier,
    PhysicalMemory,
    PhysicalMemoryHandle,
    Producer,
    Queue,
    Slot,
    VirtualRange,
)
from ._errors import (
    ChannelClosedError,
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
    "Channel",
    "ChannelClosedError",
    "ChannelHandle",
    "CommandFailedError",
    "Consumer",
    "Context",
    "Device",
    "DeviceEvent",
    "DriverError",
    "Error",
    "Event",
    "EventHandle",
    "ExporterGoneError",
    "Frame",
    "InvalidArgumentError",
    "InvalidHandleError",
    "Item",
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
    "Producer",
    "ProtocolError",
    "Queue",
    "ReadOnlyError",
    "Slot",
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

# Modules that are imported only on first use, because some of them need torch or CuPy.
_MODULES = ("cupy", "engines", "link", "store", "torch")

# Hints for names that this package does not have, but that similar packages do.
_HINTS = {
    "SharedMemory": "make an array with crosshandle.empty(shape, dtype), or bytes with Context().allocate(nbytes)",
    "SharedArray": "make an array with crosshandle.empty(shape, dtype)",
    "array": "copy data with crosshandle.asarray(data), or make an array with crosshandle.empty(shape, dtype)",
    "allocate": "make an array with crosshandle.empty(shape, dtype), or bytes with Context().allocate(nbytes)",
    "attach": "open the received bytes with crosshandle.open(data)",
    "close": "close the opened object with memory.close(), or use a with statement",
    "connect": "open the received bytes with crosshandle.open(data), or connect to another host with crosshandle.link",
    "device": "it is called crosshandle.Device",
    "dumps": "bytes(crosshandle.share(tree)) are the bytes to send",
    "export": "bytes(crosshandle.share(tree)) are the bytes to send",
    "from_numpy": "copy an array with crosshandle.asarray(array)",
    "Ring": "make a ring of frames with crosshandle.Channel(shape, dtype)",
    "get": "open the received bytes with crosshandle.open(data)",
    "load": "open the received bytes with crosshandle.open(data), or a model with crosshandle.store.open(name)",
    "loads": "open the received bytes with crosshandle.open(data)",
    "put": "bytes(crosshandle.share(tree)) are the bytes to send",
    "receive": "channel.consumer().receive() receives items of a crosshandle.Channel; open received bytes with crosshandle.open(data)",
    "send": "send bytes(crosshandle.share(tree)) over any pipe, or frames with a crosshandle.Channel",
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
