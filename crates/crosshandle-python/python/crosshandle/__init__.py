"""Arrays and events that processes share, without a copy.

One process makes memory or an event and gets a handle, or packs whole arrays with `share`; the bytes
travel in any way; another process opens them and has the same object.

>>> import crosshandle
>>> memory = crosshandle.Context("host").allocate(4096)
>>> array = memory.array((1024,), "float32").numpy()
>>> bundle = bytes(crosshandle.share(memory.array((1024,), "float32")))
"""

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
from ._paths import command, ur_adapter
from ._pending import Limits, Pending, Pickled, pending, pending_limits, pickled, release_pending
from ._sharing import Bundle, alloc_empty, default_context, open, share

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
    "alloc_empty",
    "command",
    "default_context",
    "open",
    "pending",
    "pending_limits",
    "pickled",
    "release_pending",
    "share",
    "ur_adapter",
]
