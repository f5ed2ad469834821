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
    CommandFailed,
    DriverError,
    Error,
    ExporterGone,
    InvalidArgument,
    InvalidHandle,
    LimitReached,
    NoDevice,
    NoSymbol,
    NotAdmitted,
    OutOfMemory,
    PeerDied,
    ProtocolError,
    ReadOnly,
    Stale,
    SystemCallFailed,
    TimedOut,
    Unsupported,
    WrongDevice,
    WrongHost,
    WrongKey,
)
from ._paths import command, ur_adapter
from ._sharing import Bundle, alloc_empty, default_context, open, share

__all__ = [
    "Array",
    "Bundle",
    "CommandFailed",
    "Context",
    "Device",
    "DriverError",
    "Error",
    "Event",
    "EventHandle",
    "ExporterGone",
    "InvalidArgument",
    "InvalidHandle",
    "LimitReached",
    "Memory",
    "MemoryHandle",
    "NoDevice",
    "NoSymbol",
    "NotAdmitted",
    "Notifier",
    "OutOfMemory",
    "PeerDied",
    "PhysicalMemory",
    "PhysicalMemoryHandle",
    "ProtocolError",
    "Queue",
    "ReadOnly",
    "Stale",
    "SystemCallFailed",
    "TimedOut",
    "Unsupported",
    "VirtualRange",
    "WrongDevice",
    "WrongHost",
    "WrongKey",
    "alloc_empty",
    "command",
    "default_context",
    "open",
    "share",
    "ur_adapter",
]
