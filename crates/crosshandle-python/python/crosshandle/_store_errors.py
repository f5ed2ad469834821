"""The exceptions that only the store raises. The messages come from the Rust library."""

from __future__ import annotations

from ._errors import Error


class StoreError(Error):
    """An operation of the store failed, or the holder rejected the request. This is the base class
    of the store's exceptions."""


class NoHolderError(StoreError, ConnectionError):
    """No holder is running in the socket directory. The command `crosshandle hold` starts one."""


class NoSuchNameError(StoreError, LookupError):
    """The holder has no object with this name."""


class NameTakenError(StoreError, FileExistsError):
    """The name is in use. Publish the next version of the name, or take another name."""


class NoRoomError(StoreError, MemoryError):
    """The holder has no room for more names or memory. The message says which of its limits was
    reached."""


class NotAllowedError(StoreError, PermissionError):
    """The name requires a token that the program did not pass, or the holder belongs to another
    user."""


class WrongContentsError(StoreError, ValueError):
    """The model's hash is not the expected hash, or the model's bytes do not match its hash."""


class TornUpdateError(StoreError, RuntimeError):
    """An update of the model was started but not finished, so its contents are inconsistent.

    To recover, write all tensors again with an `Updater`, or publish the next version.
    """


class AddressTakenError(StoreError, RuntimeError):
    """The addresses at which the model should be mapped are already in use in this process."""
