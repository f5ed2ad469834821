"""Shares unified shared memory (USM) with dpctl and dpnp, through the Unified Runtime adapter that
the process has loaded.

The SYCL runtime of these libraries accepts only pointers that its adapter knows. Therefore the
adapter opens received memory a second time, in the context of a SYCL queue. For memory that the
adapter has allocated, the adapter creates the handle.
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

# The version of the adapters' function table. `_HANDLE_SIZE` is the size of a handle in bytes.
_VERSION = 2
_HANDLE_SIZE = 104
# Result codes that the functions return. Unified Runtime defines them.
_SUCCESS = 0
_INVALID_MEM_OBJECT = 11
_ERRORS: dict[int, type[Error]] = {
    # `UR_RESULT_ERROR_INVALID_DEVICE`
    19: WrongDeviceError,
    # Too little host memory, too little device memory, and too few resources.
    38: OutOfMemoryError,
    39: OutOfMemoryError,
    40: OutOfMemoryError,
    # An unsupported feature.
    44: UnsupportedError,
    # The code for a failed event in a wait list. The adapters use it if the exporting process has
    # ended.
    68: ExporterGoneError,
}


class _Functions(ctypes.Structure):
    """The function table that `crosshandle_usm_functions` in an adapter returns."""

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
        (
            "open_event",
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p),
        ),
        ("close_event", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64)),
        ("attach", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint64)),
        ("detach", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)),
    )


class _Unknown(Exception):
    """Raised by `_Adapter` if the adapter does not know a pointer."""


class _Adapter:
    """A Unified Runtime adapter from this package that the process has loaded."""

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
        """Returns a handle to the allocation that contains an address, and the offset of the
        address in the allocation."""
        handle, offset = ctypes.create_string_buffer(_HANDLE_SIZE), ctypes.c_size_t()
        self._check(self._functions.handle(address, _HANDLE_SIZE, handle, ctypes.byref(offset)))
        return handle.raw, offset.value

    def open(self, beside: int, handle: bytes) -> tuple[int, int]:
        """Opens memory in the SYCL context that contains the allocation `beside`.

        Returns the address of the opened memory, and the adapter's number for the context.
        """
        memory, context = ctypes.c_void_p(), ctypes.c_uint64()
        result = self._functions.open(beside, handle, len(handle), ctypes.byref(memory), ctypes.byref(context))
        self._check(result)
        return memory.value or 0, context.value

    def close(self, context: int, address: int) -> None:
        """Closes memory that `open` has opened. Does nothing if the context was destroyed, because
        that has closed the memory already."""
        self._functions.close(context, address)

    def open_event(self, beside: int, handle: bytes) -> int:
        """Opens an event in the SYCL context that contains the allocation `beside`.

        Returns the adapter's number for the event.
        """
        event = ctypes.c_uint64()
        self._check(self._functions.open_event(beside, handle, len(handle), ctypes.byref(event)))
        return event.value

    def close_event(self, event: int) -> None:
        self._functions.close_event(event)

    def attach(self, event: int, action: int, value: int) -> None:
        """Makes this thread's next barrier or copy signal an event (0) or wait for it (1)."""
        self._check(self._functions.attach(event, action, value))

    def detach(self) -> bool:
        """Removes the action of this thread, and returns whether a command has done it."""
        is_done = ctypes.c_uint32()
        self._check(self._functions.detach(ctypes.byref(is_done)))
        return is_done.value != 0


_lock = threading.Lock()
# Loaded adapters, by the path of their library. An adapter is never unloaded.
_adapters: dict[str, _Adapter] = {}


def adapters(again: bool = False) -> list[_Adapter]:
    """Returns this package's Unified Runtime adapters that the process has loaded. Does not load
    any.

    Searches the process only if no adapter is known. With `again`, searches in any case, to find
    adapters that were loaded later.
    """
    with _lock:
        if again or not _adapters:
            for path in _mapped():
                adapter = _adapters.get(path) or _adapter_at(path)
                if adapter is not None:
                    _adapters[path] = adapter
        return list(_adapters.values())


def _mapped() -> list[str]:
    """Returns the paths of all adapter libraries that this process has mapped."""
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
    """Yields each loaded adapter once.

    Searches the process for further adapters only after the caller has tried all known ones.
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


# Memory that adapters have opened, by the `id` of its `_Opened`. No lock protects this dictionary,
# because a destructor could run while its own thread holds the lock.
_opened: dict[int, weakref.ref[_Opened]] = {}


class _Opened:
    """Memory that an adapter has opened, as an object that dpctl accepts. dpctl's memory object
    keeps this object alive. The destructor of this object closes the memory."""

    def __init__(self, array: Array, adapter: _Adapter, opened: tuple[int, int], extent: tuple[int, int], queue: Any):
        self._adapter, (self.address, self._context) = adapter, opened
        # The `Array` in the same memory. It is used if the program shares the memory again.
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

    # Bind `_opened` as a default argument, because the interpreter may clear this module's names
    # before it destroys the last object.
    def __del__(self, _opened: dict[int, weakref.ref[_Opened]] = _opened) -> None:
        _opened.pop(id(self), None)
        self._adapter.close(self._context, self.address)


# For each device on which memory was opened: a queue, some memory in the queue's context, and the
# adapter. The adapter identifies the context by that memory.
_places: dict[tuple[str, str], tuple[Any, Any, _Adapter]] = {}


def _queues() -> Iterator[Any]:
    """Yields the queue that dpctl and dpnp use by default for each device.

    The first queue belongs to the default device.
    """
    import dpctl

    try:
        first = dpctl.SyclDevice()
    except dpctl.SyclDeviceCreationError:
        return
    devices = [first, *(device for device in dpctl.get_devices() if device != first)]
    # The default device may be missing in the list that dpctl returns.
    for device in devices:
        yield dpctl.get_device_cached_queue(device)


def _open_on(queue: Any, handle: bytes) -> tuple[Any, _Adapter, tuple[int, int]]:
    """Opens the memory that `handle` refers to in the SYCL context of a queue.

    Returns some memory in the same context, by which the adapter identifies the context, the
    adapter, and the result of `_Adapter.open`.
    """
    from dpctl.memory import MemoryUSMDevice

    # Allocate one byte in the context, because adapters identify a context by memory in it.
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
    """Opens the memory that `handle` refers to on the dpctl device that contains it. Returns a
    queue on that device, the adapter, and the result of `_Adapter.open`."""
    data, key = bytes(handle), (handle.backend, handle.device_uuid)
    known = _places.get(key)
    if known is not None:
        queue, beside, adapter = known
        try:
            return queue, adapter, adapter.open(beside._pointer, data)
        except _Unknown:
            # The adapter does not know the memory any more, because its context was destroyed.
            # Forget the context.
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
    """Returns a dpctl memory object over `nbytes` bytes of an array. They start at byte `first` of
    the memory that `handle` refers to."""
    from dpctl.memory import as_usm_memory

    if nbytes == 0:
        raise ValueError("an array without elements has no memory")
    if queue is None:
        queue, adapter, opened = _open_somewhere(handle)
    else:
        _, adapter, opened = _open_on(queue, bytes(handle))
    return as_usm_memory(_Opened(array, adapter, opened, (first, nbytes), queue))


def dpnp_of(array: Array, handle: MemoryHandle, first: int, nbytes: int, queue: Any) -> Any:
    """Returns a dpnp array that shares the elements of `array`. Their lowest byte is byte `first`
    of the memory that `handle` refers to."""
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
    # The distance in bytes from the lowest byte to the first element.
    offset = sum(-stride * (length - 1) for length, stride in zip(array.shape, array.strides) if stride < 0)
    made = dpnp.ndarray(
        array.shape, dtype, buffer=memory, offset=offset // size, strides=array.strides, sycl_queue=memory.sycl_queue
    )
    if array.read_only:
        made.flags.writable = False
    return made


def adopt(group: list[_rust.Foreign], owners: list[Any]) -> list[tuple[Context, Array | Exception]]:
    """Adopts dpctl and dpnp arrays, which means that it shares their memory without a copy.

    For each array, returns its context, and either the adopted array or the exception that says why
    the array cannot be shared.
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
            # Return the error instead of raising it, because the caller may still copy the array.
            refused = error
            continue
        return context, _rust.laid_over(made[handle], one, inside)
    # Level Zero may be able to share its own allocations without an adapter.
    for device in Device.all():
        if device.backend == "level_zero":
            (adopted,) = _rust.adopt_all(default_context(device.name), [one], [owner])
            if isinstance(adopted, Array):
                return default_context(device.name), adopted
            refused = refused or adopted
    if refused is None:
        refused = UnsupportedError(f"no adapter of this package has allocated it: start the program with {_setting()}")
    return default_context(), refused
