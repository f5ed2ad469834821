"""The exceptions that this package raises.

Each class also derives from the built-in exception with the closest meaning. The messages come from
the Rust library.
"""

from __future__ import annotations


class Error(Exception):
    """The base class of this package's exceptions."""


class InvalidHandleError(Error, ValueError):
    """The bytes or the text are not a handle, are damaged, or are a handle of another kind."""


class WrongHostError(InvalidHandleError):
    """The handle was created on another machine, or before this machine was restarted."""


class WrongDeviceError(InvalidHandleError):
    """The handle's object is on a device that the context's device cannot access."""


class ExporterGoneError(Error, ConnectionError):
    """The exporter (the process that created the handle) has ended, or this process cannot reach
    it."""


class StaleHandleError(Error, ReferenceError):
    """The exporter has freed the object after it created the handle."""


class WrongKeyError(Error, PermissionError):
    """The key in the handle is wrong, so the exporter did not create this handle."""


class ReadOnlyError(Error, PermissionError):
    """Write access was requested, but the handle or the memory is read-only."""


class NotAdmittedError(Error, PermissionError):
    """The exporter or the importer does not accept the user that the other process runs as."""


class TimedOutError(Error, TimeoutError):
    """A call did not finish within its timeout."""

    pid: int | None = None
    """The id of the process that did not reply, or None if the call did not wait for a reply."""
    program: str = ""
    """The program name of the process that did not reply, or an empty string if it is unknown."""


class PeerDiedError(Error, ConnectionError):
    """The process that should have signalled the event ended without signalling it."""

    pid: int | None = None
    """The id of the process that died, or None if the process has no id in the exporter's PID
    namespace."""
    program: str = ""
    """The program name of the process that died."""
    event: str = ""
    """The name of the event, or its number if it has no name."""
    number: int = 0
    """The number of the signal that the process did not submit or complete."""


class ChannelClosedError(Error, EOFError):
    """All producers have left the channel, and all its items were received."""


class CommandFailedError(Error, RuntimeError):
    """The queue command that should have signalled the event has failed."""


class NoSymbolError(Error, LookupError):
    """The program has no kernel or variable with this name."""


class InvalidArgumentError(Error, ValueError):
    """An argument has a value that is not allowed."""


class UnsupportedError(Error, NotImplementedError):
    """The device, object or process does not support the requested operation."""


class NoDeviceError(Error, LookupError):
    """The requested device does not exist. The message says which device was requested and where
    the library searched."""


class OutOfMemoryError(Error, MemoryError):
    """The device or the host has too little memory for the request."""


class LimitReachedError(Error, OSError):
    """A limit of the operating system or of this package was reached. The message says how to raise
    it."""


class ProtocolError(Error, ConnectionError):
    """The other process does not use a compatible version of the protocol."""


class SystemCallError(Error, OSError):
    """A system call failed. `errno` contains the error code."""


class DriverError(Error, RuntimeError):
    """A call to the device's driver failed."""

    code: int = 0
    """The driver's error code."""
    code_name: str = ""
    """The driver's name for the error code."""
