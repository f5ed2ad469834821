"""The exceptions, which are also the builtin ones of their kind. The library makes their texts."""

from __future__ import annotations


class Error(Exception):
    """Any failure of this package's objects."""


class InvalidHandleError(Error, ValueError):
    """The bytes or text are no handle, or a damaged one, or one of another kind."""


class WrongHostError(InvalidHandleError):
    """The handle was made on another machine, or before this one was started again."""


class WrongDeviceError(InvalidHandleError):
    """The handle's object lives on a device that the context's device cannot reach."""


class ExporterGoneError(Error, ConnectionError):
    """The process that made the handle has ended, or cannot be found from here."""


class StaleHandleError(Error, ReferenceError):
    """The exporter has freed the object since it made the handle."""


class WrongKeyError(Error, PermissionError):
    """The handle was not made by its exporter."""


class ReadOnlyError(Error, PermissionError):
    """Writing was asked for, and the handle or the memory allows reading only."""


class NotAdmittedError(Error, PermissionError):
    """One side does not admit the other's user."""


class TimedOutError(Error, TimeoutError):
    """The timeout passed first."""

    pid: int | None = None
    """The process that did not answer, if one was asked; None otherwise."""
    program: str = ""
    """The name of its program, if it is known."""


class PeerDiedError(Error, ConnectionError):
    """The process that was to signal has ended without doing so."""

    pid: int | None = None
    """Its process id; None if it has none in the exporter's namespace."""
    program: str = ""
    """The name of its program."""
    event: str = ""
    """The event's name, or its number."""
    number: int = 0
    """The number of the signal that never came."""


class CommandFailedError(Error, RuntimeError):
    """The command that was to signal failed."""


class NoSymbolError(Error, LookupError):
    """A program has no kernel or variable of this name."""


class InvalidArgumentError(Error, ValueError):
    """An argument is not allowed."""


class UnsupportedError(Error, NotImplementedError):
    """The device, object or process does not support this."""


class NoDeviceError(Error, LookupError):
    """There is no such device; the text says what was looked for and where."""


class OutOfMemoryError(Error, MemoryError):
    """There is not enough memory."""


class LimitReachedError(Error, OSError):
    """A limit of the system or of the library is reached; the text says how to raise it."""


class ProtocolError(Error, ConnectionError):
    """The other process does not speak this protocol: both need compatible versions."""


class SystemCallError(Error, OSError):
    """The operating system refused a call; `errno` has its code."""


class DriverError(Error, RuntimeError):
    """A driver refused a call."""

    code: int = 0
    """The driver's own code."""
    code_name: str = ""
    """The driver's name for it."""
