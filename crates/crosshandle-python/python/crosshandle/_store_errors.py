"""The exceptions of the store. The library makes their texts."""

from __future__ import annotations

from ._errors import Error


class StoreError(Error):
    """A failure of the store, or a refusal of the holder."""


class NoHolderError(StoreError, ConnectionError):
    """No holder answers: `crosshandle hold` starts one."""


class NoSuchNameError(StoreError, LookupError):
    """The holder has nothing under the name."""


class NotAllowedError(StoreError, PermissionError):
    """The name needs a token that was not shown, or the holder is another user's."""


class WrongContentsError(StoreError, ValueError):
    """The model has another hash than the one that was asked for, or its bytes have another one than it says."""


class TornUpdateError(StoreError, RuntimeError):
    """An update was begun and not ended: all tensors have to be written, or the next version published."""


class AddressTakenError(StoreError, RuntimeError):
    """Something else is at the addresses that were asked for."""
