"""Arrays and trees of arrays as bytes, and back."""

from __future__ import annotations

import builtins
import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Union

from . import _crosshandle as _rust
from ._crosshandle import Array, Context, Event, EventHandle, Memory, MemoryHandle

Tree = Union[Array, "list[Tree]", "tuple[Tree, ...]", "dict[str, Tree]"]

_contexts: dict[str, Context] = {}
_lock = threading.Lock()


def default_context(device: str = "host") -> Context:
    """The context of this process that `share` and `open` use for a device."""
    with _lock:
        if device not in _contexts:
            _contexts[device] = Context(device)
        return _contexts[device]


class Bundle:
    """Arrays on their way to other processes: `bytes(bundle)` is what to send.

    As long as it is neither released nor left by `with`, it keeps the memory of its arrays from being used
    again; after that, those who have opened it do.
    """

    def __init__(self, data: bytes, arrays: Sequence[Array]):
        self._data = data
        self._arrays: Sequence[Array] | None = arrays

    def __bytes__(self) -> bytes:
        if self._arrays is None:
            raise ValueError("this bundle was released")
        return self._data

    def release(self) -> None:
        """Lets go of the arrays."""
        self._arrays = None

    def __enter__(self) -> Bundle:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        if self._arrays is None:
            return "<crosshandle.Bundle, released>"
        total = sum(array.nbytes for array in self._arrays)
        return f"<crosshandle.Bundle of {len(self._arrays)} arrays, {total} bytes in {len(self._data)}>"


def share(tree: Any, *, read_only: bool = False, copy: bool = False) -> Bundle:
    """Packs an array, or a tree of lists, tuples and dicts of arrays, for other processes.

    An array is an `Array`, or anything with the buffer protocol or `__array_interface__` that lies in memory of
    `default_context()`, such as a NumPy view of an `Array`. Other arrays lie in memory that no other process
    can reach: `copy=True` copies those. Who opens the bundle of `read_only=True` can read only.
    """
    arrays: list[Array] = []
    structure = _arrange(tree, arrays, copy)
    return Bundle(_rust.pack(json.dumps(structure, separators=(",", ":")), arrays, read_only), arrays)


def open(data: Any, *, context: Context | None = None, writable: bool = True) -> Any:
    """Opens what another process has sent: a bundle's bytes or a handle, as bytes or text.

    Returns what was shared: an array or a tree of arrays, memory, or an event. What is read-only opens so
    that it can be read only; `writable=False` opens everything so.
    """
    # Until its memory is open, a bundle keeps it.
    bundle = data if isinstance(data, Bundle) else None
    if bundle is not None:
        data = bytes(bundle)
    if isinstance(data, (bytes, bytearray, memoryview)) and builtins.bytes(data[:3]) == b"xhb":
        structure, arrays = _rust.unpack(context or default_context(), builtins.bytes(data), writable=writable)
        rest = iter(arrays)
        tree = _rearrange(_parse(structure), rest, 0)
        if next(rest, None) is not None:
            raise ValueError("the bundle has more arrays than places for them")
        return tree
    return (context or default_context()).open(data)


def alloc_empty(shape: int | tuple[int, ...], dtype: Any = "float64", *, device: str = "host") -> Array:
    """Makes an array that can be shared without a copy. Its elements are zero."""
    return default_context(device).empty(shape, dtype)


# The structure of a bundle is JSON: null is an array, a list is a list, {"t": […]} is a tuple, and {"d": {…}} is a dict.

_MAX_DEPTH = 100


def _arrange(tree: Any, arrays: list[Array], copy: bool, depth: int = 0) -> Any:
    if depth > _MAX_DEPTH:
        raise ValueError(f"the tree is deeper than {_MAX_DEPTH}")
    if isinstance(tree, tuple):
        return {"t": [_arrange(part, arrays, copy, depth + 1) for part in tree]}
    if isinstance(tree, list):
        return [_arrange(part, arrays, copy, depth + 1) for part in tree]
    if isinstance(tree, Mapping):
        for key in tree:
            if not isinstance(key, str):
                raise TypeError(f"keys of a shared dict are strings, not {type(key).__name__}")
        return {"d": {key: _arrange(part, arrays, copy, depth + 1) for key, part in tree.items()}}
    arrays.append(_array(tree, copy))
    return None


def _parse(structure: str) -> Any:
    try:
        return json.loads(structure)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the bundle's structure is none: {error}") from None


def _rearrange(structure: Any, arrays: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise ValueError(f"the bundle's tree is deeper than {_MAX_DEPTH}")
    if structure is None:
        array = next(arrays, None)
        if array is None:
            raise ValueError("the bundle has fewer arrays than places for them")
        return array
    if isinstance(structure, list):
        return [_rearrange(part, arrays, depth + 1) for part in structure]
    if isinstance(structure, dict) and len(structure) == 1:
        (kind, parts), = structure.items()
        if kind == "t" and isinstance(parts, list):
            return tuple(_rearrange(part, arrays, depth + 1) for part in parts)
        if kind == "d" and isinstance(parts, dict):
            return {key: _rearrange(part, arrays, depth + 1) for key, part in parts.items()}
    raise ValueError("the bundle's structure has a part that is neither array, list, tuple nor dict")


def _array(value: Any, copy: bool) -> Array:
    if isinstance(value, Array):
        return value
    if isinstance(value, Memory):
        return value.array()
    if isinstance(value, (Event, EventHandle, MemoryHandle)):
        raise TypeError("events and handles travel by themselves: send bytes(event.handle())")
    context = default_context()
    found = _rust.adopt(context, value)
    if found is not None:
        return found
    if copy:
        return _rust.copied(context, value)
    raise ValueError(
        "this array lies in memory that no other process can reach: make it with crosshandle.alloc_empty, "
        "or pass copy=True to share a copy"
    )
