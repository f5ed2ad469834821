"""Exceptions of this package.

Each class also derives from the built-in exception with the closest meaning. The Rust library
writes the messages.
"""

from __future__ import annotations


class Error(Exception):
    """The base class of all exceptions that this package's objects raise."""


class InvalidHandleError(Error, ValueError):
    """The bytes or text are not a handle, are damaged, or are a handle to an object of another
    kind."""


class WrongHostError(InvalidHandleError):
    """The handle was made on another machine, or before this machine was restarted."""


class WrongDeviceError(InvalidHandleError):
    """The handle's object is on a device that the context's device cannot access."""


class ExporterGoneError(Error, ConnectionError):
    """The process that made the handle has ended, or this process cannot reach it."""


class StaleHandleError(Error, ReferenceError):
    """The exporter has freed the object since it made the handle."""


class WrongKeyError(Error, PermissionError):
    """The key in the handle is wrong: the exporter did not make this handle."""


class ReadOnlyError(Error, PermissionError):
    """Write access was requested, but the handle or the memory only allows reading."""


class NotAdmittedError(Error, PermissionError):
    """The exporter or the importer does not admit the user that the other process runs as."""


class TimedOutError(Error, TimeoutError):
    """The timeout passed before the call finished."""

    pid: int | None = None
    """The id of the process that did not reply, or None if the call waited for no process."""
    program: str = ""
    """The program name of the process that did not reply, or an empty string if it is unknown."""


class PeerDiedError(Error, ConnectionError):
    """The process that should have signalled the event ended before it signalled."""

    pid: int | None = None
    """The id of the process that died, or None if the process has no id in the exporter's PID
    namespace."""
    program: str = ""
    """The program name of the process that died."""
    event: str = ""
    """The event's name, or its number."""
    number: int = 0
    """The number of the signal that did not complete."""


class CommandFailedError(Error, RuntimeError):
    """The command that should have signalled the event failed."""


class NoSymbolError(Error, LookupError):
    """The program has no kernel or variable with this name."""


class InvalidArgumentError(Error, ValueError):
    """An argument has a value that is not allowed."""


class UnsupportedError(Error, NotImplementedError):
    """The device, object or process does not support the requested operation."""


class NoDeviceError(Error, LookupError):
    """The device does not exist. The message says what was looked for and where."""


class OutOfMemoryError(Error, MemoryError):
    """There is not enough memory."""


class LimitReachedError(Error, OSError):
    """A limit of the system or of the library was reached. The message says how to raise it."""


class ProtocolError(Error, ConnectionError):
    """The other process does not use a compatible version of the protocol."""


class SystemCallError(Error, OSError):
    """The operating system refused a call. `errno` has its code."""


class DriverError(Error, RuntimeError):
    """A driver refused a call."""

    code: int = 0
    """The driver's own code."""
    code_name: str = ""
    """The driver's name for the code."""
