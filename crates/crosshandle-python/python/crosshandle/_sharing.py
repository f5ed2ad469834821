"""Arrays and trees of arrays as bytes, and back."""

from __future__ import annotations

import atexit
import builtins
import os
import threading
import weakref
from collections.abc import Sequence
from typing import Any, Union, overload

from . import _crosshandle as _rust
from . import _trees
from ._crosshandle import (
    Array,
    Context,
    Device,
    Event,
    EventHandle,
    Memory,
    MemoryHandle,
    PhysicalMemory,
    PhysicalMemoryHandle,
)
from ._errors import UnsupportedError, WrongDeviceError

Tree = Union[Array, "list[Tree]", "tuple[Tree, ...]", "dict[str, Tree]"]

_contexts: dict[str, Context] = {}
_by_uuid: dict[tuple[str, str], Context] = {}
_lock = threading.Lock()


def default_context(device: Any = "host") -> Context:
    """The context of this process that `share` and `open` use for a device: a name such as `"cuda:0"`, a `Device`, or
    a device of torch.

    On a CUDA device it is in the device's primary context, which torch, CuPy, JAX and numba use too.

    >>> crosshandle.default_context("cpu").device.name
    'host:0'
    """
    # Without the lock: a dict is looked into at once.
    if type(device) is str:
        known = _contexts.get(device)
        if known is not None:
            return known
    name = _rust.device_name(device)
    with _lock:
        context = _contexts.get(name)
        if context is None:
            context = _contexts[name] = Context(name)
        if type(device) is str:
            # So it is found as it was asked for.
            _contexts[device] = context
        return context


# What a forked child must not use, nor drop: threads of its parent may hold locks of it.
_inherited: list[Any] = []


def _start_again() -> None:
    """Runs in a forked child, which makes contexts of its own."""
    global _lock
    _inherited.append((dict(_contexts), dict(_by_uuid)))
    _contexts.clear()
    _by_uuid.clear()
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_start_again)


def trim() -> None:
    """Gives freed memory that the default contexts keep for reuse back to the system.

    Memory of the host that is idle goes back by itself within about a second.
    """
    for context in list(_contexts.values()):
        context.trim()


@atexit.register
def _end() -> None:
    """Lets the default contexts end while the drivers are there; what is still open keeps its own."""
    _rust.forget_contexts()
    _by_uuid.clear()
    _contexts.clear()


def _context_of(backend: str, uuid: str) -> Context:
    """The default context for what a handle's device has: on that device if this process sees it, otherwise on another
    of its backend, which may reach the memory."""
    if backend == "host":
        return default_context()
    known = _by_uuid.get((backend, uuid))
    if known is not None:
        return known
    devices = [device for device in Device.all() if device.backend == backend]
    if not devices:
        raise WrongDeviceError(f"the memory is on a {backend} device, and this process sees none: see `crosshandle doctor`")
    own = [device for device in devices if device.uuid == uuid]
    context = default_context((own or devices)[0].name)
    _by_uuid[backend, uuid] = context
    return context


class Bundle:
    """Arrays on their way to other processes: `bytes(bundle)` is what to send.

    Until it is released or left by `with`, it keeps the memory of its arrays from being used again; after that, those who
    have opened it do. A bundle that is dropped without either keeps tensors of torch, arrays of CuPy and what lies in this
    package's memory as long as the object lives that was shared.
    """

    def __init__(self, data: bytes, leaves: Sequence[Any], arrays: Sequence[Array], table: Memory | None = None):
        self._data = data
        self._leaves: Sequence[Any] = leaves
        self._arrays: Sequence[Array] | None = arrays
        # The memory that a long bundle's table is in.
        self._table = table
        # The event that says when the bytes are there.
        self._event: Event | None = None
        # How the arrays are arranged, in a bundle that this process has received: they are open already.
        self._structure: str | None = None

    def __bytes__(self) -> bytes:
        if self._arrays is None:
            raise ValueError("this bundle was released")
        return self._data

    def to_bytes(self) -> bytes:
        """The bytes to send, which are `bytes(bundle)`.

        >>> array = crosshandle.zeros(3)
        >>> crosshandle.open(crosshandle.share(array).to_bytes()).shape
        (3,)
        """
        return bytes(self)

    def __len__(self) -> int:
        return len(bytes(self))

    def release(self) -> None:
        """Lets go of the arrays."""
        self._arrays = self._table = self._event = None
        self._leaves = ()

    def _parts(self) -> list[Any]:
        """What a process must keep so that another one can open the bundle."""
        return [*(self._arrays or ()), *(part for part in (self._table, self._event) if part is not None)]

    def __reduce__(self) -> Any:
        from . import _pending

        return _pending.reduced_bundle(self)

    def __enter__(self) -> Bundle:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        if self._arrays is not None:
            for leaf, array in zip(self._leaves, self._arrays):
                if array._is_lent and _library(leaf) not in ("torch", "cupy"):
                    # The bytes are kept by the object itself, which so would never end.
                    continue
                if leaf is not array:
                    _keep_as_long_as(leaf, (array, self._table))
                elif self._table is not None:
                    _keep_as_long_as(leaf, self._table)

    def __repr__(self) -> str:
        if self._arrays is None:
            return "<crosshandle.Bundle, released>"
        total = sum(array.nbytes for array in self._arrays)
        return f"<crosshandle.Bundle of {len(self._arrays)} arrays, {total} bytes in {len(self._data)}>"


def _library(value: Any) -> str:
    """The name of the library that an object is of."""
    return type(value).__module__.partition(".")[0]


# What dropped bundles keep, by the identity of a reference to the object that was shared. References compare as their
# objects do, and arrays compare by element.
_kept: dict[int, tuple[weakref.ref[Any], Any]] = {}


def _keep_as_long_as(leaf: Any, kept: Any) -> None:
    try:
        reference = weakref.ref(leaf, _drop_kept)
    except TypeError:
        # It cannot be watched.
        return
    _kept[id(reference)] = (reference, kept)


def _drop_kept(reference: weakref.ref[Any], kept: dict[int, tuple[weakref.ref[Any], Any]] = _kept) -> None:
    kept.pop(id(reference), None)


def share(tree: Any, *, read_only: bool = False, copy: bool = False, event: Event | None = None) -> Bundle:
    """Packs an array, a table, or a tree of these, for other processes.

    A tree is made of lists, tuples, dicts, named tuples and dataclasses. Its leaves are arrays, tables, `None`, numbers,
    strings and bytes. A table is a DataFrame or Series of pandas or Polars, a table, record batch or array of Arrow, or an
    array or dataset of xarray. It opens as a `Frame`.

    An array is an `Array`, or anything with the buffer protocol, DLPack, `__cuda_array_interface__`,
    `__sycl_usm_array_interface__` or `__array_interface__`: tensors of torch, arrays of CuPy, JAX and numba on a GPU, in
    whatever memory their libraries take; arrays of dpnp and memory of dpctl that this package's Unified Runtime adapter
    allocated, whose queue this call waits for; views of an `Array` on the host. What lies in memory that no other process can reach is refused;
    `copy=True` copies it. The bundle keeps the arrays' memory from reuse until it is released, and those who have
    opened it do after that.

    `event`: its latest signal says when the bytes are there, or its first one if there is none yet. Whatever takes
    the opened arrays waits for it.
    Who opens the bundle of `read_only=True` can read only; arrays of JAX and tables are always shared so.

    >>> array = crosshandle.zeros(3)
    >>> data = bytes(crosshandle.share({"weights": array, "step": 7}))
    >>> crosshandle.open(data)["step"]
    7
    """
    leaves = _trees.Leaves(tree, copy)
    structure = _trees.arrange(tree, leaves)
    arrays = _arrays(leaves, copy)
    ready = None if event is None else (event.handle(), max(event.submitted, 1))
    data, table = _rust.pack_shared(default_context(), structure, arrays, read_only, event=ready)
    bundle = Bundle(data, leaves.owned(), arrays, table)
    bundle._event = event
    return bundle


def _open_received(data: bytes) -> Bundle:
    """A bundle that another process has pickled. It has its arrays open."""
    structure, arrays = _rust.unpack(None, data)
    # The table of a long bundle is the sender's: this process has one of its own.
    data, table = _rust.pack_shared(default_context(), structure, arrays, False, event=_rust.event_of(data))
    bundle = Bundle(data, arrays, arrays, table)
    bundle._structure = structure
    return bundle


def open_read_only(data: bytes) -> Any:
    """Opens as `open` does, for reading only: what is pickled of memory that was opened so."""
    return open(data, writable=False)


@overload
def open(
    data: EventHandle, *, context: Context | None = None, writable: bool = True, timeout: float | None = None
) -> Event: ...
@overload
def open(
    data: MemoryHandle, *, context: Context | None = None, writable: bool = True, timeout: float | None = None
) -> Memory: ...
@overload
def open(
    data: PhysicalMemoryHandle, *, context: Context | None = None, writable: bool = True, timeout: float | None = None
) -> PhysicalMemory: ...
@overload
def open(
    data: Bundle | bytes | bytearray | memoryview | str,
    *,
    context: Context | None = None,
    writable: bool = True,
    timeout: float | None = None,
) -> Any: ...
def open(
    data: Any, *, context: Context | None = None, writable: bool = True, timeout: float | None = None
) -> Any:
    """Opens what another process has sent: a bundle's bytes or a handle, as bytes or text. A text that is no handle's is
    the name of a model that a holder has: it is opened as `crosshandle.store.open` does.

    Returns what was shared: an array or a tree of arrays, a `Frame` of a table, memory, physical memory, or an event. Each
    is opened in `context`, or in the default context of its device. What is read-only opens so that it can be read only;
    `writable=False` opens everything so. `timeout` is how many seconds to wait for the other process, if that is less than
    the context's `exchange_timeout`.
    """
    # Bytes are asked for first: they come over and over.
    if type(data) is builtins.bytes and data.startswith(b"xhb"):
        return _open_bundle(data, context, writable, timeout)
    if isinstance(data, Bundle):
        if data._structure is not None and data._arrays is not None and context is None and writable:
            # The sender may have freed its own by now.
            return _trees.rearrange(data._structure, list(data._arrays))
        # Until its memory is open, a bundle keeps it.
        return _open_bundle(bytes(data), context, writable, timeout)
    if isinstance(data, (bytes, bytearray, memoryview)) and builtins.bytes(data[:3]) == b"xhb":
        return _open_bundle(builtins.bytes(data), context, writable, timeout)
    if isinstance(data, str) and not data.lstrip().startswith("xh"):
        from . import store

        if context is not None:
            raise ValueError("a model is opened in a context of its own")
        try:
            return store.open(data) if timeout is None else store.open(data, timeout=timeout)
        except (LookupError, ConnectionError) as error:
            error.add_note(f"{data!r} begins as no handle does, so it was taken for the name of a holder's model")
            raise
    if context is None:
        handle = _rust.parse_handle(data)
        is_event = isinstance(handle, EventHandle)
        context = default_context() if is_event else _context_of(handle.backend, handle.device_uuid)
        return context.open(handle, writable=writable, timeout=timeout)
    return context.open(data, writable=writable, timeout=timeout)


def _open_bundle(data: bytes, context: Context | None, writable: bool, timeout: float | None) -> Any:
    structure, arrays = _rust.unpack(context, data, writable=writable, timeout=timeout)
    return _trees.rearrange(structure, arrays)


# What is not an array that could be shared, but something that travels by itself.
_OWN = (Event, EventHandle, MemoryHandle, PhysicalMemory, PhysicalMemoryHandle)


def _arrays(leaves: _trees.Leaves, copy: bool) -> list[Array]:
    """The arrays of shared memory that a tree's leaves are, or are copied to."""
    arrays: list[Array | None] = [None] * len(leaves)
    foreign: dict[str, list[int]] = {}
    described: dict[int, _rust.Foreign] = {}
    for place, leaf in enumerate(leaves):
        if isinstance(leaf, Array):
            arrays[place] = leaf
        elif isinstance(leaf, Memory):
            arrays[place] = leaf.array()
        elif isinstance(leaf, _OWN):
            own = TypeError("events, handles and physical memory travel by themselves: send bytes(event.handle())")
            raise leaves.refused(place, own)
        else:
            try:
                found = described[place] = _rust.describe(leaf)
            except (TypeError, ValueError) as error:
                raise leaves.refused(place, error) from None
            foreign.setdefault(found.device, []).append(place)
    for device, places in foreign.items():
        group = [described[place] for place in places]
        for place, (context, adopted) in zip(places, _adopt(device, group)):
            if isinstance(adopted, Array):
                arrays[place] = adopted
            elif copy:
                arrays[place] = _copy(leaves[place], described[place], context)
            elif device == "host" and isinstance(adopted, UnsupportedError):
                reason = ValueError(
                    "pass copy=True to share a copy of this array, or make it with crosshandle.empty or "
                    "crosshandle.asarray: it lies in memory that no other process can reach"
                )
                raise leaves.refused(place, reason)
            else:
                remedy = "make it on a device" if device == "sycl" else "make it with an allocator of crosshandle's"
                raise ValueError(
                    f"this array's memory cannot be shared ({adopted}): {remedy}, or pass copy=True to share a copy"
                ) from adopted
    return [array for array in arrays if array is not None]


def _adopt(device: str, group: list[_rust.Foreign]) -> list[tuple[Context, Array | Exception]]:
    """Adopts arrays of other libraries: for each, the context, and the array or why it cannot be."""
    if device == "sycl":
        from ._libraries import usm

        return usm.adopt(group)
    if device != "cuda":
        context = default_context(device)
        return [(context, adopted) for adopted in _rust.adopt_all(context, group)]
    # The library does not say which of its devices: the first ones refuse what is not theirs.
    names = [found.name for found in Device.all() if found.backend == device]
    if not names:
        raise WrongDeviceError(f"the array is on a {device} device, and there is none here")
    found: dict[int, tuple[Context, Array | Exception]] = {}
    places = list(range(len(group)))
    for name in names:
        context = default_context(name)
        for place, adopted in zip(places, _rust.adopt_all(context, [group[place] for place in places])):
            # A device that knows the memory says more than one that does not.
            if isinstance(adopted, Array) or place not in found or not isinstance(found[place][1], UnsupportedError):
                found[place] = context, adopted
        places = [place for place in places if not isinstance(found[place][1], Array)]
        if not places:
            break
    return [found[place] for place in range(len(group))]


def _copy(value: Any, described: _rust.Foreign, context: Context) -> Array:
    """Copies an array of another library into memory of its device."""
    library = _library(value)
    if described.device == "sycl":
        # Its own library reads it, wherever it is.
        namespace = getattr(value, "__array_namespace__", None)
        array = default_context().empty(described.shape, described.dtype)
        array.numpy()[...] = value.copy_to_host() if namespace is None else namespace().asnumpy(value)
        return array
    if described.device != "host" and library in ("torch", "cupy"):
        # Its own library knows arrays with gaps, and the stream that makes the bytes.
        array = context.empty(described.shape, described.dtype)
        if library == "torch":
            import torch

            array.torch().copy_(value.detach())
            torch.cuda.current_stream(value.device).synchronize()
        else:
            import cupy

            array.cupy()[...] = value
            cupy.cuda.get_current_stream().synchronize()
        return array
    return _rust.copied(context, described)
