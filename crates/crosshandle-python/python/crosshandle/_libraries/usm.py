"""Unified shared memory (USM) of dpctl and dpnp, through the Unified Runtime adapter that the
process has loaded.

The SYCL runtime of these libraries only accepts pointers that its adapter knows. So the adapter
opens received memory a second time, in the context of a SYCL queue. For memory that the adapter
allocated, the adapter also makes the handle.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from .. import _crosshandle as _rust
from .._crosshandle import Array, Context, Device, MemoryHandle
from .._errors import Error, ExporterGoneError, InvalidArgumentError, OutOfMemoryError, UnsupportedError, WrongDeviceError
from .._paths import ur_adapter
from .._sharing import _context_of, default_context

# The version of the adapters' function table, and the size of a handle in bytes.
_VERSION = 1
_HANDLE_SIZE = 104
# Result codes of the functions, as defined by Unified Runtime.
_SUCCESS = 0
_INVALID_MEM_OBJECT = 11
_ERRORS: dict[int, type[Error]] = {
    # The result for an invalid device.
    19: WrongDeviceError,
    # The results for exhausted host memory, device memory and resources.
    38: OutOfMemoryError,
    39: OutOfMemoryError,
    40: OutOfMemoryError,
    # The result for an unsupported feature.
    44: UnsupportedError,
    # The result "in event list exec status", which here means that the exporting process has ended.
    68: ExporterGoneError,
}


class _Functions(ctypes.Structure):
    """The table that an adapter's `crosshandle_usm_functions` returns."""

    _fields_ = (
        ("version", ctypes.c_uint32),
        ("handle", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p)),
        (
            "open",
            ctypes.CFUNCTYPE(
                ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p
            ),
        ),
        ("close", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p)),
        ("error", ctypes.CFUNCTYPE(ctypes.c_char_p)),
    )


class _Unknown(Exception):
    """Raised if an adapter does not know a pointer."""


class _Adapter:
    """An adapter that this process has loaded."""

    def __init__(self, functions: Any):
        self._functions = functions

    def _check(self, result: int) -> None:
        if result == _SUCCESS:
            return
        text = self._functions.error().decode(errors="replace")
        if result == _INVALID_MEM_OBJECT:
            raise _Unknown(text)
        raise _ERRORS.get(result, InvalidArgumentError)(text)

    def handle(self, address: int) -> tuple[bytes, int]:
        """Returns the handle of the allocation that contains an address, and the address's offset
        in it."""
        handle, offset = ctypes.create_string_buffer(_HANDLE_SIZE), ctypes.c_size_t()
        self._check(self._functions.handle(address, _HANDLE_SIZE, handle, ctypes.byref(offset)))
        return handle.raw, offset.value

    def open(self, beside: int, handle: bytes) -> tuple[int, int]:
        """Opens memory in the context of the pointer `beside`.

        Returns the address of the memory, and the number of the context.
        """
        memory, context = ctypes.c_void_p(), ctypes.c_uint64()
        result = self._functions.open(beside, handle, len(handle), ctypes.byref(memory), ctypes.byref(context))
        self._check(result)
        return memory.value or 0, context.value

    def close(self, context: int, address: int) -> None:
        """Closes memory that `open` opened. Does nothing if the context has ended, because that
        closed the memory."""
        self._functions.close(context, address)


_lock = threading.Lock()
# Loaded adapters, by path of the library. An adapter is never unloaded.
_adapters: dict[str, _Adapter] = {}


def adapters(again: bool = False) -> list[_Adapter]:
    """Returns this package's adapters that the process has loaded. Loads none.

    The adapters are searched in the process once. With `again`, they are searched again to find
    later ones.
    """
    with _lock:
        if again or not _adapters:
            for path in _mapped():
                adapter = _adapters.get(path) or _adapter_at(path)
                if adapter is not None:
                    _adapters[path] = adapter
        return list(_adapters.values())


def _mapped() -> list[str]:
    """Returns the paths of adapters among the files that this process has mapped."""
    paths: dict[str, None] = {}
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            fields = line.rstrip("\n").split(maxsplit=5)
            if len(fields) == 6 and "libur_adapter_crosshandle_" in fields[5]:
                paths[fields[5].removesuffix(" (deleted)")] = None
    return list(paths)


def _adapter_at(path: str) -> _Adapter | None:
    """Returns the adapter at a path, or `None` if it is not loaded or lacks the functions."""
    try:
        # `RTLD_NOLOAD` only finds a library that is loaded already. The mapped file may not be a
        # library, and its path may now belong to another file.
        library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        functions = library.crosshandle_usm_functions
    except (OSError, AttributeError):
        return None
    functions.argtypes, functions.restype = (ctypes.c_uint32,), ctypes.POINTER(_Functions)
    found = functions(_VERSION)
    return _Adapter(found.contents) if found else None


def _tried() -> Iterator[_Adapter]:
    """Yields each adapter once.

    The process is searched for further adapters only after the caller has tried the known ones.
    """
    known = adapters()
    yield from known
    yield from (adapter for adapter in adapters(again=True) if adapter not in known)


def _needed() -> Iterator[_Adapter]:
    if not adapters():
        raise UnsupportedError(
            "dpctl's SYCL runtime has not loaded this package's Unified Runtime adapter, and accepts memory of no other adapter: "
            f"start the program with {_setting()}"
        )
    return _tried()


def _setting() -> str:
    try:
        path = ur_adapter("host")
    except FileNotFoundError:
        path = "libur_adapter_crosshandle_host.so"
    return f"UR_ADAPTERS_FORCE_LOAD={path} and CROSSHANDLE_UR_BACKEND=opencl"


# Open memory, by `id` of its object. No lock protects this dictionary, because a destructor that
# needs the lock could run while the lock is held.
_opened: dict[int, weakref.ref[_Opened]] = {}


class _Opened:
    """Memory that an adapter has opened, in the form that dpctl accepts. dpctl's memory object
    keeps this object alive, and its destructor closes the memory."""

    def __init__(self, array: Array, adapter: _Adapter, opened: tuple[int, int], extent: tuple[int, int], queue: Any):
        self._adapter, (self.address, self._context) = adapter, opened
        # The array of this package in the same memory, which is used if the memory is shared again.
        self.array = array
        first, self.nbytes = extent
        # The address of the array's lowest byte.
        self.first = self.address + first
        self.__sycl_usm_array_interface__ = {
            "data": (self.first, array.read_only),
            "shape": (self.nbytes,),
            "strides": None,
            "typestr": "|u1",
            "version": 1,
            "syclobj": queue,
        }
        _opened[id(self)] = weakref.ref(self)

    # `_opened` is bound as a default argument, because the interpreter may clear the module's names
    # before the last object is destroyed.
    def __del__(self, _opened: dict[int, weakref.ref[_Opened]] = _opened) -> None:
        _opened.pop(id(self), None)
        self._adapter.close(self._context, self.address)


# For each device on which memory was opened: a queue, memory in the queue's context, and the
# adapter. The adapter identifies the context by that memory.
_places: dict[tuple[str, str], tuple[Any, Any, _Adapter]] = {}


def _queues() -> Iterator[Any]:
    """Yields the queues that dpctl and dpnp use by default.

    The first one belongs to the default device.
    """
    import dpctl

    try:
        first = dpctl.SyclDevice()
    except dpctl.SyclDeviceCreationError:
        return
    devices = [first, *(device for device in dpctl.get_devices() if device != first)]
    # The default device may be missing in dpctl's own lists.
    for device in devices:
        yield dpctl.get_device_cached_queue(device)


def _open_on(queue: Any, handle: bytes) -> tuple[Any, _Adapter, tuple[int, int]]:
    """Opens memory in the context of a queue.

    Also returns the adapter, and memory of the queue's context by which the adapter identifies the
    context.
    """
    from dpctl.memory import MemoryUSMDevice

    # Any memory of the context is suitable, because adapters identify a context by its memory.
    beside = MemoryUSMDevice(1, queue=queue)
    for adapter in _needed():
        try:
            return beside, adapter, adapter.open(beside._pointer, handle)
        except _Unknown:
            continue
    raise WrongDeviceError(
        f"the device {queue.sycl_device.name!r} is not one of this package's Unified Runtime adapter: "
        f"start the program with {_setting()}"
    )


def _open_somewhere(handle: MemoryHandle) -> tuple[Any, _Adapter, tuple[int, int]]:
    """Opens memory on the dpctl device that it belongs to. Also returns a queue of that device."""
    data, key = bytes(handle), (handle.backend, handle.device_uuid)
    known = _places.get(key)
    if known is not None:
        queue, beside, adapter = known
        try:
            return queue, adapter, adapter.open(beside._pointer, data)
        except _Unknown:
            # The call fails if the context has ended, so forget that context.
            del _places[key]
    refused: Error | None = None
    for queue in _queues():
        try:
            beside, adapter, opened = _open_on(queue, data)
        except WrongDeviceError as error:
            refused = refused or error
            continue
        _places[key] = queue, beside, adapter
        return queue, adapter, opened
    if refused is None:
        _needed()
        refused = WrongDeviceError("dpctl finds no device: its SYCL runtime has loaded no adapter that has one")
    raise refused


def memory_of(array: Array, handle: MemoryHandle, first: int, nbytes: int, queue: Any) -> Any:
    """Returns dpctl memory for `nbytes` bytes of an array, which start at byte `first` of the
    handle's memory."""
    from dpctl.memory import as_usm_memory

    if nbytes == 0:
        raise ValueError("an array without elements has no memory")
    if queue is None:
        queue, adapter, opened = _open_somewhere(handle)
    else:
        _, adapter, opened = _open_on(queue, bytes(handle))
    return as_usm_memory(_Opened(array, adapter, opened, (first, nbytes), queue))


def dpnp_of(array: Array, handle: MemoryHandle, first: int, nbytes: int, queue: Any) -> Any:
    """Returns a dpnp array of the same elements, whose lowest byte is byte `first` of the handle's
    memory."""
    import dpnp

    try:
        dtype = dpnp.dtype(array.dtype)
        size: int = dtype.itemsize
    except TypeError:
        raise TypeError(f"dpnp has no dtype for {array.dtype}") from None
    if nbytes == 0:
        return dpnp.empty(array.shape, dtype=dtype, sycl_queue=queue)
    if any(stride % size for stride in array.strides):
        raise ValueError(f"dpnp does not support strides ({array.strides}) that are not multiples of {size} bytes")
    memory = memory_of(array, handle, first, nbytes, queue)
    # The distance from the lowest byte to the first element.
    offset = sum(-stride * (length - 1) for length, stride in zip(array.shape, array.strides) if stride < 0)
    made = dpnp.ndarray(
        array.shape, dtype, buffer=memory, offset=offset // size, strides=array.strides, sycl_queue=memory.sycl_queue
    )
    if array.read_only:
        made.flags.writable = False
    return made


def adopt(group: list[_rust.Foreign], owners: list[Any]) -> list[tuple[Context, Array | Exception]]:
    """Adopts dpctl and dpnp arrays, which are in unified shared memory.

    For each array, returns its context, and the adopted array or the error that says why it cannot
    be shared.
    """
    made: dict[bytes, Array] = {}
    return [_adopt_one(one, owner, made) for one, owner in zip(group, owners)]


def _adopt_one(one: _rust.Foreign, owner: Any, made: dict[bytes, Array]) -> tuple[Context, Array | Exception]:
    for reference in list(_opened.values()):
        opened = reference()
        if opened is not None and 0 <= one.address - opened.first < opened.nbytes:
            return default_context(), _rust.laid_over(opened.array, one, one.address - opened.address)
    refused: Exception | None = None
    for adapter in _tried():
        try:
            handle, inside = adapter.handle(one.address)
            parsed = MemoryHandle(handle)
            context = _context_of(parsed.backend, parsed.device_uuid)
            if handle not in made:
                made[handle] = context.open_memory(parsed).array()
        except _Unknown:
            continue
        except Error as error:
            # The error is returned and not raised, because the caller may still copy the array.
            refused = error
            continue
        return context, _rust.laid_over(made[handle], one, inside)
    # Level Zero may know the driver's own allocations without an adapter.
    for device in Device.all():
        if device.backend == "level_zero":
            (adopted,) = _rust.adopt_all(default_context(device.name), [one], [owner])
            if isinstance(adopted, Array):
                return default_context(device.name), adopted
            refused = refused or adopted
    if refused is None:
        refused = UnsupportedError(f"no adapter of this package has allocated it: start the program with {_setting()}")
    return default_context(), refused
