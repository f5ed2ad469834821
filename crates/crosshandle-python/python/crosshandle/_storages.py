"""Storages: what the bytes of arrays live as long as, and what is kept as long as they do.

A bundle that was dropped can be opened as long as the storage of each of its arrays lives: the rule is the same for all
libraries, and the objects that were shared may end before. Where sharing has to keep a storage itself, a thread looks
for those that nothing else uses.
"""

from __future__ import annotations

import atexit
import os
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

# Seconds between two looks at the storages that dropped bundles keep. Halved: the thread takes twice the processor time.
# Doubled: memory that only a dropped bundle keeps is free that much later.
_INTERVAL = 0.05
# A look takes at most this part of the time.
_SHARE = 0.01


def library(value: Any) -> str:
    """The name of the library that an object is of."""
    return type(value).__module__.partition(".")[0]


def _root(value: Any) -> Any:
    """The object that the bytes of an array live as long as; the array itself if its library has no other."""
    kind = library(value)
    if kind == "cupy":
        return value.data.mem
    storage = getattr(value, "untyped_storage", None)
    if storage is not None:
        return storage()
    if kind == "numpy":
        while library(value) == "numpy" and getattr(value, "base", None) is not None:
            value = value.base
    return value


class Storage:
    """A storage that sharing keeps: the owner of memory that is lent."""

    def __init__(self, root: Any, held: Any, witness: weakref.ref[Any] | None):
        # One reference alone, whose count tells whether there are others.
        self._root = root
        self._held = held
        self._witness = witness

    def is_used(self) -> bool:
        """Whether something else than this package uses it."""
        if self._witness is not None:
            return self._witness() is not None
        if library(self._root) == "torch" and uses_of_torch(self._root) > 1:
            return True
        # That of this object, and the argument's.
        return sys.getrefcount(self._root) > 2


def uses_of_torch(storage: Any) -> int:
    """How many tensors have a storage of torch, one more for its object in Python."""
    import torch

    count: Callable[[int], int] | None = getattr(torch._C, "_storage_Use_Count", None)
    # A torch without that: it is used as long as its object in Python is.
    return 0 if count is None else count(storage._cdata)


# By the identity of the object that a storage stands for, which the storage keeps.
_known: weakref.WeakValueDictionary[int, Storage] = weakref.WeakValueDictionary()
_lock = threading.RLock()


def of(value: Any, owner: Any) -> Storage:
    """The storage of another library's array. `owner` is what its protocol says that the bytes live as long as."""
    root: Any = _root(value)
    if root is not value or owner is value or isinstance(owner, memoryview):
        return _storage_of(root, root, None, None)
    # The owner is this package's alone, such as a capsule, and the array is watched.
    try:
        witness = weakref.ref(value)
    except TypeError:
        return _storage_of(value, value, owner, None)
    return _storage_of(value, None, owner, witness)


def _storage_of(key: Any, root: Any, held: Any, witness: weakref.ref[Any] | None) -> Storage:
    with _lock:
        known = _known.get(id(key))
        if known is not None and (known._witness is None or known._witness() is key):
            return known
        made = Storage(root, held, witness)
        _known[id(key)] = made
        return made


# What dropped bundles keep, by storage: arrays of lent memory.
_lent: dict[Storage, list[Any]] = {}
# What is kept as long as an object lives, by the identity of a reference to that. References compare as their objects do,
# and arrays compare by element.
_kept: dict[int, tuple[weakref.ref[Any], Any]] = {}
_thread: threading.Thread | None = None


def keep_lent(leaf: Any, array: Any) -> None:
    """Keeps an array of lent memory as long as the storage of the array that was shared."""
    storage = _known.get(id(_root(leaf)))
    if storage is not None:
        _keep_with(storage, array)
        # Looked at soon where this was the last array.
        _keep_until_end(leaf, _Look())


def keep_as_long_as(leaf: Any, array: Any) -> None:
    """Keeps an array that is no part of a storage, such as a copy, as long as the storage of the array that was shared."""
    root = _root(leaf)
    if not _keep_until_end(root, array):
        # It cannot be watched: its references are counted.
        _keep_with(_storage_of(root, root, None, None), array)


def _keep_with(storage: Storage, array: Any) -> None:
    global _thread
    with _lock:
        arrays = _lent.setdefault(storage, [])
        if all(array is not known for known in arrays):
            arrays.append(array)
        if _thread is None:
            _thread = threading.Thread(target=_look_on, name="crosshandle-storages", daemon=True)
            _thread.start()


def _keep_until_end(value: Any, kept: Any) -> bool:
    """Keeps something as long as an object, if that can be watched."""
    try:
        reference = weakref.ref(value, _drop_kept)
    except TypeError:
        return False
    _kept[id(reference)] = (reference, kept)
    return True


def _drop_kept(reference: weakref.ref[Any], kept: dict[int, tuple[weakref.ref[Any], Any]] = _kept) -> None:
    kept.pop(id(reference), None)


# Capsules that hold buffers of JAX, by the identity of their arrays.
_holds: dict[int, tuple[weakref.ref[Any], Any]] = {}


def hold(array: Any) -> None:
    """Keeps JAX from reusing the buffer of an array that shares memory with others: a donation copies it then."""
    key = id(array)
    known = _holds.get(key)
    if known is None or known[0]() is not array:

        def drop(_: Any, holds: dict[int, tuple[weakref.ref[Any], Any]] = _holds) -> None:
            holds.pop(key, None)

        reference = weakref.ref(array, drop)
        _holds[key] = reference, array.__dlpack__()


class _Look:
    """Has the thread look at once when it ends."""

    def __del__(self) -> None:
        _asked.put(None)


# It can be put to in the middle of anything.
_asked: queue.SimpleQueue[None] = queue.SimpleQueue()


def look() -> int:
    """Lets go of the storages that nothing else uses. Returns how many are left."""
    with _lock:
        unused = [storage for storage in list(_lent) if not storage.is_used()]
        dropped = [_lent.pop(storage) for storage in unused]
        left = len(_lent)
    # Without the lock: their ends run code of other libraries.
    del dropped, unused
    return left


def _look_on() -> None:
    global _thread
    pause = _INTERVAL
    while True:
        try:
            _asked.get(timeout=pause)
        except queue.Empty:
            pass
        started = time.monotonic()
        look()
        with _lock:
            if not _lent:
                _thread = None
                return
        pause = max(_INTERVAL, (time.monotonic() - started) / _SHARE)


def _forked() -> None:
    global _lock, _thread
    _lock, _thread = threading.RLock(), None


os.register_at_fork(after_in_child=_forked)


@atexit.register
def _end() -> None:
    """Lets go of everything while the drivers are there."""
    _lent.clear()
    _kept.clear()
    _holds.clear()
