"""Tracks storages, which are the objects in other libraries that own arrays' bytes.

A dropped bundle can be opened as long as the storage of each of its arrays lives, even if the array
objects themselves have been destroyed. This rule is the same for all libraries. If this package
must keep a storage alive, a background thread releases the storage when nothing else uses it.
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

# Minimum time in seconds between two checks of the storages that dropped bundles keep. A shorter
# interval frees memory sooner, but takes more processor time.
_INTERVAL = 0.05
# Maximum fraction of the background thread's time that these checks may take. Slow checks make the
# interval longer.
_SHARE = 0.01


def library(value: Any) -> str:
    """Returns the name of the library that defines an object's class."""
    return type(value).__module__.partition(".")[0]


def _root(value: Any) -> Any:
    """Returns the object that owns an array's bytes. For some libraries, it is the array itself."""
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
    """A storage from another library that this package keeps alive. It is the owner object of lent
    memory."""

    def __init__(self, root: Any, held: Any, witness: weakref.ref[Any] | None):
        # This is this package's only reference to the root object, so the reference count shows
        # whether the program still uses the storage.
        self._root = root
        self._held = held
        self._witness = witness

    def is_used(self) -> bool:
        """Returns whether another library or the program still uses the storage."""
        if self._witness is not None:
            return self._witness() is not None
        if library(self._root) == "torch" and uses_of_torch(self._root) > 1:
            return True
        # `self._root` is one reference, and the argument of `getrefcount` is the second.
        return sys.getrefcount(self._root) > 2


def uses_of_torch(storage: Any) -> int:
    """Returns the number of tensors that use a torch storage, plus one for the storage's Python
    object. Returns 0 if this torch version does not report the number."""
    import torch

    count: Callable[[int], int] | None = getattr(torch._C, "_storage_Use_Count", None)
    # Without this function, only the Python object's reference count shows whether the storage is
    # used.
    return 0 if count is None else count(storage._cdata)


# Known storages, by the `id` of the object that owns the bytes. A `Storage` has a strong or a weak
# reference to that object.
_known: weakref.WeakValueDictionary[int, Storage] = weakref.WeakValueDictionary()
_lock = threading.RLock()


def of(value: Any, owner: Any) -> Storage:
    """Returns the storage of another library's array.

    `owner` is the object that keeps the bytes alive, according to the array's protocol.
    """
    root: Any = _root(value)
    if root is not value or owner is value or isinstance(owner, memoryview):
        return _storage_of(root, root, None, None)
    # Only this package uses the owner (for example, a capsule), so the owner's reference count says
    # nothing about the program. Watch the array itself instead.
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


# Arrays in lent memory that dropped bundles keep alive, by storage.
_lent: dict[Storage, list[Any]] = {}
# Objects that are kept as long as another object lives. The key is the `id` of a weak reference to
# that other object. The weak reference itself cannot be the key: it compares like its object, and
# arrays compare by element.
_kept: dict[int, tuple[weakref.ref[Any], Any]] = {}
_thread: threading.Thread | None = None


def keep_lent(leaf: Any, array: Any) -> None:
    """Keeps `array`, which is in lent memory, until the storage of `leaf` is freed. `leaf` is the
    shared object."""
    storage = _known.get(id(_root(leaf)))
    if storage is not None:
        _keep_with(storage, array)
        # When the leaf is destroyed, let the background thread check the storages, because the leaf
        # may have been the last array that used its storage.
        _keep_until_end(leaf, _Look())


def keep_as_long_as(leaf: Any, array: Any) -> None:
    """Keeps `array` until the storage of `leaf` is freed. `leaf` is the shared object. `array` is
    in other memory, for example because it is a copy."""
    root = _root(leaf)
    if not _keep_until_end(root, array):
        # The object does not support weak references, so watch its reference count.
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
    """Keeps `kept` alive as long as `value` lives.

    Returns False if `value` does not support weak references.
    """
    try:
        reference = weakref.ref(value, _drop_kept)
    except TypeError:
        return False
    _kept[id(reference)] = (reference, kept)
    return True


def _drop_kept(reference: weakref.ref[Any], kept: dict[int, tuple[weakref.ref[Any], Any]] = _kept) -> None:
    kept.pop(id(reference), None)


# Held JAX arrays, by `id`: a weak reference to the array, and a DLPack capsule that holds the
# array's buffer.
_holds: dict[int, tuple[weakref.ref[Any], Any]] = {}


def hold(array: Any) -> None:
    """Prevents JAX from reusing the buffer of a shared array as long as the array lives.

    While a capsule holds the buffer, JAX copies the buffer when the program donates it.
    """
    key = id(array)
    known = _holds.get(key)
    if known is None or known[0]() is not array:

        def drop(_: Any, holds: dict[int, tuple[weakref.ref[Any], Any]] = _holds) -> None:
            holds.pop(key, None)

        reference = weakref.ref(array, drop)
        _holds[key] = reference, array.__dlpack__()


class _Look:
    """An object that makes the background thread check the storages at once when it is
    destroyed."""

    def __del__(self) -> None:
        _asked.put(None)


# Requests for an immediate check. A destructor may call `put` at any time, which only `SimpleQueue`
# permits.
_asked: queue.SimpleQueue[None] = queue.SimpleQueue()


def look() -> int:
    """Releases the storages that neither the program nor another library uses.

    Returns the number of storages that this package still keeps.
    """
    with _lock:
        unused = [storage for storage in list(_lent) if not storage.is_used()]
        dropped = [_lent.pop(storage) for storage in unused]
        left = len(_lent)
    # Drop the objects after releasing the lock, because their destructors run code from other
    # libraries.
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
    """Releases all kept objects when the interpreter exits, while the drivers are still loaded."""
    _lent.clear()
    _kept.clear()
    _holds.clear()
