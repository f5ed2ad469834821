"""Packs arrays and trees of arrays into bytes, and opens them again."""

from __future__ import annotations

import atexit
import builtins
import os
import threading
from collections.abc import Sequence
from typing import Any, Union, overload

from . import _crosshandle as _rust
from . import _storages, _trees
from ._crosshandle import (
    Array,
    ChannelHandle,
    Context,
    Device,
    Event,
    EventHandle,
    Memory,
    MemoryHandle,
    PhysicalMemory,
    PhysicalMemoryHandle,
)
from ._errors import ExporterGoneError, StaleHandleError, UnsupportedError, WrongDeviceError

Tree = Union[Array, "list[Tree]", "tuple[Tree, ...]", "dict[str, Tree]"]

_contexts: dict[str, Context] = {}
_by_uuid: dict[tuple[str, str], Context] = {}
_lock = threading.Lock()


def default_context(device: Any = "host") -> Context:
    """Returns the context that `share` and `open` use for a device in this process.

    `device` is a name such as `"cuda:0"`, a `Device`, or a torch device. For a CUDA device, the
    result uses the device's primary context, which torch, CuPy, JAX and numba also use.

    >>> crosshandle.default_context("cpu").device.name
    'host:0'

    >>> crosshandle.default_context().device.name
    'host:0'
    """
    # No lock is needed, because a lookup in a dict is atomic.
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
            # Store the context under the name that the program passed too, so that the next call
            # finds it at once.
            _contexts[device] = context
        return context


# Contexts that this process has inherited through a fork. This process must neither use nor drop
# them, because threads in the parent may have held the contexts' locks at the time of the fork.
_inherited: list[Any] = []


def _start_again() -> None:
    """Resets the inherited state in a forked child, so that the child creates its own contexts."""
    global _lock
    _inherited.append((dict(_contexts), dict(_by_uuid)))
    _contexts.clear()
    _by_uuid.clear()
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_start_again)


def trim() -> None:
    """Frees the unused memory that the default contexts keep for later allocations.

    Idle host memory is freed automatically within about a second.

    >>> crosshandle.trim()
    """
    for context in list(_contexts.values()):
        context.trim()


@atexit.register
def _end() -> None:
    """Drops the default contexts when the interpreter exits, while the drivers are still loaded.

    Objects that are still open keep their contexts alive.
    """
    _rust.forget_contexts()
    _by_uuid.clear()
    _contexts.clear()


def _context_of(backend: str, uuid: str) -> Context:
    """Returns the default context for a handle's device.

    If this process does not see that device, returns the default context for another device of the
    same backend, which may be able to access the memory.
    """
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
    """Arrays that `share` has packed for other processes. Send `bytes(bundle)` over any channel.

    A bundle keeps the arrays' memory from being reused until `release` is called or its `with`
    block ends. After that, only processes that have opened the bundle keep the memory. If a bundle
    is dropped without being released, other processes can open its bytes as long as the storage of
    each array lives. The storage is torch's `untyped_storage()`, CuPy's `data.mem`, the innermost
    `base` of a NumPy array, a JAX array itself, or this package's memory. If `share` copied an
    array, the copy lives as long as the original array's storage.

    >>> with crosshandle.share([crosshandle.ones(3), crosshandle.zeros(2)]) as bundle:
    ...     data = bytes(bundle)            # send these bytes
    ...     one, other = crosshandle.open(data)
    >>> one.tolist()
    [1.0, 1.0, 1.0]
    >>> bundle.release()
    """

    def __init__(self, data: bytes, leaves: Sequence[Any], arrays: Sequence[Array], table: Memory | None = None):
        self._data = data
        self._leaves: Sequence[Any] = leaves
        self._arrays: Sequence[Array] | None = arrays
        # Shared memory that contains the list of arrays, if the list is too long to send inline.
        self._table = table
        # The event that is signalled when the arrays' bytes are ready, or None.
        self._event: Event | None = None
        # The structure of the tree, if this process has unpickled the bundle and thus already
        # opened its arrays. Otherwise None.
        self._structure: str | None = None

    def __bytes__(self) -> bytes:
        if self._arrays is None:
            raise ValueError("this bundle was released")
        return self._data

    def to_bytes(self) -> bytes:
        """Returns the bytes to send. `bytes(bundle)` does the same.

        >>> array = crosshandle.zeros(3)
        >>> crosshandle.open(crosshandle.share(array).to_bytes()).shape
        (3,)
        """
        return bytes(self)

    def __len__(self) -> int:
        return len(bytes(self))

    def release(self) -> None:
        """Stops keeping the arrays' memory. After this call, the bundle cannot be sent any more."""
        self._arrays = self._table = self._event = None
        self._leaves = ()

    def _parts(self) -> list[Any]:
        """Returns the objects that this process must keep alive so that other processes can open
        the bundle."""
        return [*(self._arrays or ()), *(part for part in (self._table, self._event) if part is not None)]

    def __reduce__(self) -> Any:
        from . import _pending

        return _pending.reduced_bundle(self)

    def __enter__(self) -> Bundle:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        if self._arrays is None:
            return
        for leaf, array in zip(self._leaves, self._arrays):
            if array._is_lent:
                _storages.keep_lent(leaf, array)
            elif isinstance(leaf, Array):
                leaf._keep(array)
            elif not isinstance(leaf, Memory):
                _storages.keep_as_long_as(leaf, array)
        if self._table is not None:
            # The table must live as long as any array in the bundle. The memory of empty arrays
            # lives until the process ends, so let only arrays with elements keep the table.
            with_bytes = [array for array in self._arrays if array.size]
            for array in with_bytes or self._arrays[:1]:
                array._keep(self._table)

    def __copy__(self) -> Bundle:
        raise TypeError("a bundle cannot be copied: send bytes(bundle)")

    def __deepcopy__(self, _memo: object) -> Bundle:
        return self.__copy__()

    def __repr__(self) -> str:
        if self._arrays is None:
            return "<crosshandle.Bundle, released>"
        total = sum(array.nbytes for array in self._arrays)
        return f"<crosshandle.Bundle of {len(self._arrays)} arrays, {total} bytes in {len(self._data)}>"


def share(tree: Any, *, read_only: bool = False, copy: bool = False, event: Event | None = None) -> Bundle:
    """Packs an array, a table, or a tree of arrays and tables for other processes.

    A tree consists of lists, tuples, dicts, named tuples and dataclasses. Its leaves are arrays,
    tables, `None`, numbers, strings and bytes. A table is a pandas or Polars DataFrame or Series,
    an Arrow table, record batch or array, or an xarray DataArray or Dataset. In the receiver, a
    table opens as a `Frame`.

    An array is an `Array`, or any object with the buffer protocol, DLPack,
    `__cuda_array_interface__`, `__sycl_usm_array_interface__` or `__array_interface__`:

    - GPU arrays from torch, CuPy, JAX and numba, no matter how their libraries allocated the
      memory,
    - dpnp arrays and dpctl memory that this package's Unified Runtime adapter allocated (`share`
      waits for their queue),
    - views of an `Array` on the host.

    With `copy=True`, `share` copies an array if other processes cannot access its memory, or can no
    longer open it. Without `copy`, `share` raises an exception for such an array. The bundle keeps
    the arrays' memory from being reused until the bundle is released. After that, only processes
    that have opened the bundle keep the memory.

    With `event`, the arrays' bytes are ready after the event's latest signal. If `event` has no
    signal yet, they are ready after its first one. Each use of the opened arrays waits for that
    signal. Without `event`, an array that was itself opened with an event (or a view of such an
    array) is shared with the same event.

    With `read_only`, other processes can only read the arrays. JAX arrays and tables are always
    shared read-only.

    >>> array = crosshandle.zeros(3)
    >>> data = bytes(crosshandle.share({"weights": array, "step": 7}))
    >>> crosshandle.open(data)["step"]
    7

    >>> weights = {"w": crosshandle.ones((2, 2)), "b": crosshandle.zeros(2)}
    >>> with crosshandle.share(weights) as bundle:
    ...     tree = crosshandle.open(bytes(bundle))      # as another process does
    >>> tree["b"].numpy()[0] = 7
    >>> weights["b"].tolist()
    [7.0, 0.0]
    """
    return share_after(tree, event, None if event is None else max(event.submitted, 1), read_only=read_only, copy=copy)


def share_after(
    tree: Any, event: Event | None, number: int | None, *, read_only: bool = False, copy: bool = False
) -> Bundle:
    """Packs a tree like `share`. The bytes are ready after signal `number` of the event."""
    leaves = _trees.Leaves(tree, copy)
    structure = _trees.arrange(tree, leaves)
    arrays = _arrays(leaves, copy)
    ready = None if event is None or number is None else (event.handle(), number)
    data, table = _rust.pack_shared(default_context(), structure, arrays, read_only, event=ready)
    bundle = Bundle(data, leaves.owned(), arrays, table)
    bundle._event = event
    return bundle


def share_list(values: list[Any], device: str, event: Event | None, number: int | None) -> Bundle:
    """Packs a list of other libraries' arrays on one device like `share` with `copy=True`.

    This is faster than `share`. The result must be released, because dropping it does not keep the
    arrays' memory. The bytes are ready after signal `number` of the event.
    """
    ready = None if event is None or number is None else (event.handle(), number)
    packed = _rust.pack_foreign(default_context(), default_context(device), values, event=ready)
    if packed is None:
        return share_after(values, event, number, copy=True)
    data, arrays, table = packed
    bundle = Bundle(data, (), arrays, table)
    bundle._event = event
    return bundle


def open_list(data: bytes, timeout: float) -> Any:
    """Opens a bundle like `open`, and keeps its events open, so that the next bundle with the same
    event opens faster. This process must not signal the events."""
    structure, arrays = _rust.unpack(None, data, timeout=timeout, keep_events=True)
    return _trees.rearrange(structure, arrays)


def _open_received(data: bytes) -> Bundle:
    """Unpickles a bundle from another process. Opens its arrays at once."""
    structure, arrays = _rust.unpack(None, data)
    # If the list of arrays is in the sender's memory, this process needs its own copy, so that it
    # can forward the bundle. So pack the arrays again.
    data, table = _rust.pack_shared(default_context(), structure, arrays, False)
    bundle = Bundle(data, arrays, arrays, table)
    bundle._structure = structure
    return bundle


def open_read_only(data: bytes) -> Any:
    """Opens a bundle or a handle like `open`, but read-only.

    Unpickling uses this function for memory that the sender had opened read-only.
    """
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
    """Opens a bundle or a handle that another process has sent, as bytes or text.

    Text that is not a handle is treated as the name of a model that a holder keeps, and is passed
    to `crosshandle.store.open`.

    Returns an array or a tree of arrays, a `Frame` for a table, memory, physical memory, or an
    event. Opens each object in `context` (default: the default context for the object's device).
    With `writable=False`, opens all memory read-only. Memory that was shared read-only always opens
    read-only. `timeout` is the maximum number of seconds to wait for the exporter. If the context's
    `exchange_timeout` is shorter, it applies instead. After the timeout, raises `TimedOutError`.
    Ctrl-C interrupts the wait.

    >>> memory, ready = crosshandle.Context("host").allocate(64), crosshandle.event()
    >>> same = crosshandle.open(bytes(memory.handle()))
    >>> also = crosshandle.open(str(ready.handle()))
    >>> reading = crosshandle.open(bytes(memory.handle()), writable=False)
    >>> reading.read_only
    True
    """
    # Check for the bytes of a bundle first, because they are the most frequent argument.
    if type(data) is builtins.bytes and data.startswith(b"xhb"):
        return _open_bundle(data, context, writable, timeout)
    if isinstance(data, Bundle):
        if data._structure is not None and data._arrays is not None and context is None and writable:
            # Unpickling has already opened the bundle's arrays. Use them, because the sender may
            # have freed its arrays by now.
            return _trees.rearrange(data._structure, list(data._arrays))
        # The argument `data` keeps the bundle's memory alive until this call has opened it.
        return _open_bundle(bytes(data), context, writable, timeout)
    if isinstance(data, (bytes, bytearray, memoryview)) and builtins.bytes(data[:3]) == b"xhb":
        return _open_bundle(builtins.bytes(data), context, writable, timeout)
    if isinstance(data, str) and not data.lstrip().startswith("xh"):
        from . import store

        if context is not None:
            raise ValueError("a model opens in its own context: do not pass one")
        try:
            return store.open(data) if timeout is None else store.open(data, timeout=timeout)
        except (LookupError, ConnectionError) as error:
            error.add_note(f"{data!r} begins as no handle does, so it was taken for the name of a holder's model")
            raise
    if context is None:
        handle = _rust.parse_handle(data)
        if isinstance(handle, (EventHandle, ChannelHandle)):
            # `Context.open` refuses the handle of a channel, and says what opens it.
            context = default_context()
        else:
            context = _context_of(handle.backend, handle.device_uuid)
        return context.open(handle, writable=writable, timeout=timeout)
    return context.open(data, writable=writable, timeout=timeout)


def _open_bundle(data: bytes, context: Context | None, writable: bool, timeout: float | None) -> Any:
    structure, arrays = _rust.unpack(context, data, writable=writable, timeout=timeout)
    return _trees.rearrange(structure, arrays)


# Types that `share` rejects as leaves of a tree. Programs send their handles separately.
_OWN = (ChannelHandle, Event, EventHandle, MemoryHandle, PhysicalMemory, PhysicalMemoryHandle)


def _arrays(leaves: _trees.Leaves, copy: bool) -> list[Array]:
    """Returns the leaves of a tree as arrays in shared memory.

    If `copy` is true, copies leaves whose memory cannot be shared. Otherwise raises an exception
    for them.
    """
    arrays: list[Array | None] = [None] * len(leaves)
    owners: dict[int, _storages.Storage] = {}
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
            owners[place] = _storages.of(leaf, found.owner)
            foreign.setdefault(found.device, []).append(place)
    for device, places in foreign.items():
        group = [described[place] for place in places]
        for place, (context, adopted) in zip(places, _adopt(device, group, [owners[place] for place in places])):
            if isinstance(adopted, Array):
                if not adopted._is_lent and _storages.library(leaves[place]).startswith("jax"):
                    _storages.hold(leaves[place])
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
                remedy = "make it on a device" if device == "sycl" else "allocate it with a crosshandle allocator"
                raise ValueError(
                    f"this array's memory cannot be shared ({adopted}): {remedy}, or pass copy=True to share a copy"
                ) from adopted
    return [_openable(array, copy) for array in arrays if array is not None]


def _openable(array: Array, copy: bool) -> Array:
    """Returns the array itself if other processes can open it. Otherwise returns a copy if `copy`
    is true, or raises an exception."""
    try:
        array._check_openable()
    except UnsupportedError as error:
        if copy:
            return copy_of(array)
        raise UnsupportedError(f"{error}: pass copy=True to share a copy") from None
    except (StaleHandleError, ExporterGoneError) as error:
        if copy:
            return copy_of(array)
        raise type(error)(
            f"{error}. This process still has the array, but no other process can open it: pass copy=True to share a copy"
        ) from None
    return array


def copy_of(array: Array) -> Array:
    """Copies an array into new memory on the same device."""
    device = array.device
    return _rust.copied_array(default_context("host" if device.startswith("host") else device), array)


def _adopt(
    device: str, group: list[_rust.Foreign], owners: list[_storages.Storage]
) -> list[tuple[Context, Array | Exception]]:
    """Adopts arrays from other libraries, which means that it shares their memory without a copy.

    For each array, returns its context, and either the adopted array or the exception that says why
    the array cannot be shared.
    """
    if device == "sycl":
        from ._libraries import usm

        return usm.adopt(group, owners)
    if device != "cuda":
        context = default_context(device)
        return [(context, adopted) for adopted in _rust.adopt_all(context, group, owners)]
    # The library does not report which device the arrays are on, so try each device. Only the right
    # device accepts the memory.
    names = [found.name for found in Device.all() if found.backend == device]
    if not names:
        raise WrongDeviceError(f"the array is on a {device} device, and this machine has none")
    found: dict[int, tuple[Context, Array | Exception]] = {}
    places = list(range(len(group)))
    for name in names:
        context = default_context(name)
        asked = [group[place] for place in places], [owners[place] for place in places]
        for place, adopted in zip(places, _rust.adopt_all(context, *asked)):
            # `UnsupportedError` only means that this device does not know the memory. Prefer any
            # other error.
            if isinstance(adopted, Array) or place not in found or not isinstance(found[place][1], UnsupportedError):
                found[place] = context, adopted
        places = [place for place in places if not isinstance(found[place][1], Array)]
        if not places:
            break
    return [found[place] for place in range(len(group))]


def _copy(value: Any, described: _rust.Foreign, context: Context) -> Array:
    """Copies an array from another library into new memory on the array's device."""
    library = _storages.library(value)
    if described.device == "sycl":
        # Let the array's own library copy it to the host, which works for any SYCL device.
        namespace = getattr(value, "__array_namespace__", None)
        array = default_context().empty(described.shape, described.dtype)
        array.numpy()[...] = value.copy_to_host() if namespace is None else namespace().asnumpy(value)
        return array
    if described.device != "host" and library in ("torch", "cupy"):
        # Let the array's own library copy it, because that library supports arrays with gaps and
        # knows the stream that produces the bytes.
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
