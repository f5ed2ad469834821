"""Exceptions of the store. The Rust library writes their messages."""

from __future__ import annotations

from ._errors import Error


class StoreError(Error):
    """The base class of the store's exceptions. The store failed, or the holder refused the
    request."""


class NoHolderError(StoreError, ConnectionError):
    """No holder replied. `crosshandle hold` starts one."""


class NoSuchNameError(StoreError, LookupError):
    """The holder has no object with this name."""


class NotAllowedError(StoreError, PermissionError):
    """The name requires a token that the caller did not give, or the holder belongs to another
    user."""


class WrongContentsError(StoreError, ValueError):
    """The model's hash is not the expected one, or its bytes do not match its own hash."""


class TornUpdateError(StoreError, RuntimeError):
    """An update was started but not finished.

    Write all tensors again, or publish the next version.
    """


class AddressTakenError(StoreError, RuntimeError):
    """The requested addresses are already in use."""
