"""The part of this package that is written in Rust."""

from collections.abc import Awaitable, Iterable, Iterator, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, ClassVar, SupportsBytes, final

__version__: str

_Handle = SupportsBytes | bytes | bytearray | memoryview | str


@final
class Device:
    """A device: host memory, or a GPU."""

    def __new__(cls, name: Any = None) -> Device: ...
    @staticmethod
    def all() -> list[Device]:
        """Returns the devices of this machine that have an installed driver."""
    @property
    def name(self) -> str:
        """The name of the device, such as `cuda:0`, which `Device` accepts."""
    @property
    def description(self) -> str:
        """The driver's name for the device."""
    @property
    def backend(self) -> str:
        """The backend of the device: `host`, `cuda` or `level_zero`."""
    @property
    def index(self) -> int:
        """The number of the device among the devices of its backend, in this process."""
    @property
    def uuid(self) -> str:
        """The identity of the device, which is the same in every process on this machine."""
    @property
    def total_memory(self) -> int:
        """The size of the device's memory, in bytes."""
    @property
    def free_memory(self) -> int | None:
        """The free memory of the device in bytes, or `None` if the driver does not report it."""
    @property
    def granularity(self) -> int:
        """The granularity of physical memory and mappings, in bytes. Their sizes are multiples of
        it."""
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Context:
    """A process's connection to one device. It creates objects that the process shares, and opens
    objects of other processes."""

    def __new__(
        cls,
        device: Any = None,
        *,
        name: str | None = None,
        pooling: bool = True,
        overcommit: bool = False,
        socket_dir: str | PathLike[str] | None = None,
        exchange_timeout: float | None = None,
    ) -> Context: ...
    @property
    def device(self) -> Device:
        """The device that the context is on."""
    def allocate(
        self,
        nbytes: int,
        *,
        name: str | None = None,
        align: int | None = None,
        populate: bool = False,
        overcommit: bool = False,
    ) -> Memory:
        """Allocates `nbytes` bytes of memory that can be shared. The memory is not initialized."""
    def empty(self, shape: int | Sequence[int], dtype: Any = None) -> Array:
        """Creates an array in new memory, without initializing its elements."""
    def open_memory(self, handle: _Handle, *, writable: bool = True, timeout: float | None = None) -> Memory:
        """Opens memory that another process has exported, without a copy."""
    def event(self, *, name: str | None = None, low_power: bool = False, isolated: bool = False) -> Event:
        """Creates an event."""
    def open_event(self, handle: _Handle, *, low_power: bool = False, timeout: float | None = None) -> Event:
        """Opens an event of another process."""
    def open(
        self, handle: _Handle, *, writable: bool = True, timeout: float | None = None
    ) -> Memory | Event | PhysicalMemory:
        """Opens the object that a handle refers to: memory, physical memory or an event. With
        `writable=False`, memory opens read-only."""
    def queue(self, stream: Any = None, *, in_order: bool = True) -> Queue:
        """Creates a queue. It runs commands in order, or as they become ready if `in_order` is
        False. With `stream`, the queue is that stream."""
    def _adopt_stream(self, number: int, stream: Any) -> Queue:
        """Adopts a stream of the driver by its number. The queue keeps `stream` alive, which is the
        object that owns the driver's stream."""
    def physical_memory(self, nbytes: int) -> PhysicalMemory:
        """Creates physical memory, whose size is a multiple of the device's granularity."""
    def reserve(self, nbytes: int) -> VirtualRange:
        """Reserves addresses, into which physical memory can be mapped."""
    def trim(self) -> None:
        """Frees the unused memory that this context keeps for reuse."""
    def memory_handle_at(self, address: int) -> MemoryHandle:
        """Returns the handle of the memory that contains an address. The memory must belong to this
        context."""

@final
class Memory:
    """Memory that processes share. A context allocates it, or opens it from a handle."""

    name: str | None
    @property
    def nbytes(self) -> int:
        """The size in bytes."""
    @property
    def address(self) -> int:
        """The address of the memory in this process."""
    @property
    def read_only(self) -> bool:
        """Whether the memory is read-only."""
    @property
    def in_use(self) -> bool:
        """Whether a submitted command uses the memory."""
    def lend(self, owner: object, *, nbytes: int | None = None, offset: int = 0) -> Memory:
        """Lends a part of the memory, as memory that has its own handles. `owner` is dropped when
        no process has the part open."""
    def handle(self, *, read_only: bool = False) -> MemoryHandle:
        """Returns the handle to send to other processes."""
    def array(self, shape: int | Sequence[int] | None = None, dtype: Any = None, *, offset: int = 0) -> Array:
        """Returns a view of the memory as an array, without a copy."""
    def read(self, nbytes: int | None = None, *, offset: int = 0) -> bytes:
        """Returns a copy of bytes of the memory, which must be in host memory."""
    def write(self, data: Any, *, offset: int = 0) -> None:
        """Copies bytes, an array or another contiguous buffer into the memory, which must be in
        host memory."""
    def close(self) -> None:
        """Closes the memory for this process. Arrays that were made from it keep it open."""
    def __enter__(self) -> Memory: ...
    def __exit__(
        self,
        _class: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None: ...
    def __len__(self) -> int: ...

@final
class Array:
    """A view of memory as an array, without a copy. It keeps the memory open."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension, in elements."""
    @property
    def strides(self) -> tuple[int, ...]:
        """The distance between neighbouring elements in each dimension, in bytes."""
    @property
    def dtype(self) -> Any:
        """The name of the element type, such as `float32` or `<M8[ns]`. For records it is the NumPy
        dtype."""
    @property
    def itemsize(self) -> int:
        """The size of an element in bytes."""
    @property
    def T(self) -> Array:
        """The array with its dimensions in reverse order, as a view of the same memory."""
    @property
    def ndim(self) -> int:
        """The number of dimensions."""
    @property
    def size(self) -> int:
        """The number of elements."""
    @property
    def nbytes(self) -> int:
        """The size of all elements in bytes."""
    @property
    def read_only(self) -> bool:
        """Whether the array is read-only."""
    @property
    def _is_lent(self) -> bool:
        """Whether the array is in lent memory, which is kept together with its library's owner
        object."""
    def _keep(self, kept: Array | Memory) -> None:
        """Keeps `kept` alive as long as this array's memory. `kept` is memory or an array."""
    def _check_openable(self) -> None:
        """Raises `StaleHandleError` or `ExporterGoneError` if no other process can open the array's
        memory any more."""
    def __copy__(self) -> Array:
        """Returns a copy in new memory of the same device, as `copy.copy` does for NumPy arrays."""
    def __deepcopy__(self, _memo: object) -> Array:
        """Returns a copy, as `copy.copy` does."""
    def _as_read_only(self) -> Array:
        """Returns a read-only view of the array."""
    @property
    def event(self) -> Event | None:
        """The event that signals when the bytes are ready, or `None` if the array was shared
        without an event."""
    @property
    def device(self) -> str:
        """The name of the array's device, such as `cuda:0`."""
    @property
    def address(self) -> int:
        """The address of the first element in this process."""
    def wait(self, timeout: float | None = None) -> None:
        """Waits on the host until the bytes are ready, at most `timeout` seconds."""
    def numpy(self, *, timeout: float | None = None) -> Any:
        """Returns a NumPy array of the same bytes. Waits until the bytes are ready, at most
        `timeout` seconds."""
    def torch(self, *, copy: bool = False) -> Any:
        """Returns a torch tensor of the same bytes. For read-only memory, pass `copy=True` to get a
        copy."""
    def jax(self) -> Any:
        """Returns a JAX array of the same bytes. No process may write to the bytes as long as the
        JAX array lives."""
    def cupy(self) -> Any:
        """Returns a CuPy array of the same bytes. The array must be in GPU memory."""
    def dpctl(self, queue: Any = None) -> Any:
        """Returns the array's bytes as dpctl memory of device USM, from the lowest byte to the
        highest one.

        The memory is in the context of `queue`. By default, this is dpctl's queue for the array's
        device. The process must have loaded this package's Unified Runtime adapter.
        """
    def dpnp(self, queue: Any = None) -> Any:
        """Returns a dpnp array of the same bytes, in USM as with `dpctl`. The result is not
        writable if the memory is read-only."""
    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    __dlpack_c_exchange_api__: ClassVar[Any]
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __array__(self, dtype: Any = None, *, copy: bool | None = None) -> Any:
        """Returns a NumPy array of the same bytes, for `numpy.asarray`."""
    def __getitem__(self, index: Any, /) -> Any:
        """Returns an element, or a NumPy view of a part. The memory must be host memory."""
    def __setitem__(self, index: Any, value: Any, /) -> None:
        """Writes elements of host memory."""
    def __iter__(self) -> Iterator[Any]: ...
    def tolist(self) -> Any:
        """Returns the elements as a list of Python numbers, with a nested list for each row."""
    def __len__(self) -> int: ...

@final
class Event:
    """A counter of signals that processes share."""

    def __new__(
        cls, name: str | None = None, *, device: Any = None, low_power: bool = False, isolated: bool = False
    ) -> Event: ...
    name: str | None
    def signal(self, stream: Any = None) -> int:
        """Signals the event, or makes a stream signal it. Returns the signal's number."""
    def wait_on(self, stream: Any, value: int | None = None) -> None:
        """Makes a stream wait for signal `value`. By default, `value` is the latest signal, or the
        first signal if none was submitted yet. This call itself does not wait."""
    def signal_value(self, value: int) -> None:
        """Completes all signals up to number `value` at once."""
    def wait(self, timeout: float | None = None) -> None:
        """Waits at most `timeout` seconds for the latest signal, or for the first signal if none
        was submitted yet."""
    def wait_value(self, value: int, timeout: float | None = None) -> None:
        """Waits for signal `value`, which may be submitted later. Raises the same exceptions as
        `wait`."""
    def ready(self, value: int | None = None) -> bool:
        """Returns whether signal `value` (default: the latest) has completed. Returns `False` if
        the signal was not submitted yet."""
    def done(self, value: int | None = None) -> bool:
        """Returns the result of `ready`."""
    def _look(self, value: int) -> bool:
        """Spins for a few microseconds, and returns whether signal `value` has completed."""
    def reached(self, value: int | None = None) -> Awaitable[None]:
        """Returns an awaitable that ends when signal `value` has completed. By default, `value` is
        the latest signal, or the first signal if none was submitted yet."""
    @property
    def submitted(self) -> int:
        """The number of the latest submitted signal, or 0 if there is none."""
    @property
    def completed(self) -> int:
        """The number of the last signal before the first pending one: it and all earlier signals
        have completed or failed."""
    def handle(self) -> EventHandle:
        """Returns the handle to send to other processes."""
    @staticmethod
    def wait_all(events: list[Event], timeout: float | None = None) -> None:
        """Waits until the latest signals of all events have completed. For an event that has no
        signal yet, waits for its first signal."""
    @staticmethod
    def wait_any(events: list[Event], timeout: float | None = None) -> int:
        """Waits until the latest signal of any of the events has completed. Returns the index of
        that event."""

@final
class MemoryHandle:
    """A handle to memory."""

    def __new__(cls, value: _Handle) -> MemoryHandle: ...
    @property
    def backend(self) -> str:
        """The backend of the device: `host`, `cuda` or `level_zero`."""
    @property
    def device_uuid(self) -> str:
        """The identity of the device, as in `Device.uuid`."""
    @property
    def exporter_pid(self) -> int:
        """The id of the process that made the handle, in its own PID namespace. Use it only in
        messages."""
    @property
    def nbytes(self) -> int:
        """The size of the memory, in bytes."""
    @property
    def read_only(self) -> bool:
        """Whether the handle only allows reading."""
    def __bytes__(self) -> bytes: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

@final
class EventHandle:
    """A handle to an event."""

    def __new__(cls, value: _Handle) -> EventHandle: ...
    @property
    def backend(self) -> str:
        """The backend of the device: `host`, `cuda` or `level_zero`."""
    @property
    def device_uuid(self) -> str:
        """The identity of the device, as in `Device.uuid`."""
    @property
    def exporter_pid(self) -> int:
        """The id of the process that made the handle, in its own PID namespace. Use it only in
        messages."""
    def __bytes__(self) -> bytes: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

@final
class PhysicalMemoryHandle:
    """A handle to physical memory."""

    def __new__(cls, value: _Handle) -> PhysicalMemoryHandle: ...
    @property
    def backend(self) -> str:
        """The backend of the device: `host`, `cuda` or `level_zero`."""
    @property
    def device_uuid(self) -> str:
        """The identity of the device, as in `Device.uuid`."""
    @property
    def exporter_pid(self) -> int:
        """The id of the process that made the handle, in its own PID namespace. Use it only in
        messages."""
    @property
    def nbytes(self) -> int:
        """The size of the memory, in bytes."""
    @property
    def read_only(self) -> bool:
        """Whether the handle only allows reading."""
    def __bytes__(self) -> bytes: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

@final
class PhysicalMemory:
    """Memory without an address. To use it, map it into a `VirtualRange`."""

    name: str | None
    @property
    def nbytes(self) -> int:
        """The size in bytes."""
    def handle(self, *, read_only: bool = False) -> PhysicalMemoryHandle:
        """Returns the handle to send to other processes."""
    def __len__(self) -> int: ...

@final
class VirtualRange:
    """Reserved addresses, into which physical memory is mapped."""

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
    @property
    def address(self) -> int:
        """The first address, in this process."""
    def map(
        self,
        offset: int,
        memory: PhysicalMemory,
        *,
        memory_offset: int = 0,
        nbytes: int | None = None,
        access: str | None = "rw",
    ) -> None:
        """Maps physical memory, or a part of it, at byte `offset`. `access` is `"rw"`, `"r"` or
        `None`."""
    def unmap(self, offset: int = 0, nbytes: int | None = None) -> None:
        """Unmaps bytes (default: all). They must be one mapping, or several adjacent ones."""
    def protect(self, access: str | None, offset: int = 0, nbytes: int | None = None) -> None:
        """Changes the access to mappings (default: all). `access` is as for `map`."""
    def is_mapped(self, offset: int) -> bool:
        """Returns whether memory is mapped at a byte."""
    def read(self, offset: int, nbytes: int) -> bytes:
        """Copies bytes from one mapping. The host must be able to access the memory."""
    def write(self, offset: int, data: bytes) -> None:
        """Copies bytes into one mapping. The host must be able to access the memory."""
    def close(self) -> None:
        """Unmaps everything, and releases the addresses."""
    def __enter__(self) -> VirtualRange: ...
    def __exit__(
        self,
        _class: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None: ...
    def __len__(self) -> int: ...

@final
class Notifier:
    """Waits for any number of signals on behalf of an event loop."""

    def __new__(cls) -> Notifier: ...
    def fileno(self) -> int:
        """Returns the descriptor to watch. Do not read from it."""
    def add(self, event: Event, value: int, token: int) -> None:
        """Starts a wait for signal `value` of an event. When the wait has ended, `next` returns
        `token`."""
    def remove(self, token: int) -> bool:
        """Cancels the wait that has this token. Returns `False` if there is no such wait."""
    def next(self) -> tuple[int, Exception | None] | None:
        """Returns the token of a wait that has ended, and the wait's exception or `None`. Returns
        `None` if no further wait has ended."""
    def close(self) -> None:
        """Cancels all waits, and closes the descriptor."""

@final
class Queue:
    """A queue of commands for a device."""

    def copy(
        self,
        source: Memory,
        destination: Memory,
        *,
        nbytes: int | None = None,
        source_offset: int = 0,
        destination_offset: int = 0,
        after: Sequence[Event] | None = None,
        signal: Event | None = None,
    ) -> None:
        """Submits a copy. The copy waits for the events in `after`, and signals `signal` when it is
        done."""
    def fill(
        self, destination: Memory, pattern: bytes, *, after: Sequence[Event] | None = None, signal: Event | None = None
    ) -> None:
        """Submits a command that fills memory with a repeated pattern."""
    def signal(self, event: Event) -> int:
        """Submits a signal of the event. The event is signalled after all earlier commands. Returns
        the signal's number."""
    def wait(self, event: Event, value: int | None = None) -> None:
        """Makes all later commands wait for signal `value` of the event. By default, `value` is the
        latest signal, or the first signal if none was submitted yet."""
    @property
    def native(self) -> int | None:
        """The driver's own number of the queue, or `None` for a queue without a driver."""
    def finish(self, timeout: float | None = None) -> None:
        """Waits until all commands are done, at most `timeout` seconds."""
    @property
    def idle(self) -> bool:
        """Whether all submitted commands are done."""

@final
class Foreign:
    """A description of another library's array, with the object that keeps its bytes alive."""

    @property
    def owner(self) -> object:
        """The object that keeps the bytes alive, according to the library's protocol."""
    @property
    def device(self) -> str:
        """The name of the device. It is `cuda` or `sycl` if the library does not say which device
        it is."""
    @property
    def dtype(self) -> str:
        """The name of the element type."""
    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension, in elements."""
    @property
    def address(self) -> int:
        """The address of the lowest byte."""

def describe(value: Any) -> Foreign:
    """Describes an array of another library."""

def adopt_all(context: Context, arrays: list[Foreign], owners: Sequence[object]) -> list[Array | Exception]:
    """Adopts other libraries' arrays as `Array` objects in shared memory. The list contains an
    exception in place of each array that cannot be shared."""

def check_whole(array: object) -> None:
    """Raises `TypeError` for an array with a mask or a unit. The array protocols do not carry
    these."""

def laid_over(base: Array, array: Foreign, offset: int) -> Array:
    """Makes an array in the memory of `base`, with the layout of another library's array. Its
    lowest byte is at offset `offset`."""

def copied(context: Context, array: Foreign) -> Array:
    """Copies another library's array into new memory of a context on the array's device."""

def copied_array(context: Context, array: Array) -> Array:
    """Waits until an array's bytes are ready, and copies it into new memory of a context on the
    array's device."""

def moved(context: Context, array: Array) -> Array:
    """Copies a contiguous array of this package into new memory of a context on any device."""

def filled(context: Context, shape: int | Sequence[int], dtype: Any, element: bytes) -> Array:
    """Makes an array in new memory of a context, and fills it with a repeated pattern of one or
    more elements."""

def dtype_of(value: Any) -> tuple[str, int]:
    """Returns the name of a type, and the size of an element in bytes. `value` has any form that
    NumPy or torch accepts."""

def numpy_dtype(value: Any) -> Any:
    """Returns the NumPy dtype for a type in any form that NumPy or torch accepts."""

def device_name(device: Any) -> str:
    """Returns the name of a device. `device` is a `Device`, a name, or a device of torch, JAX or
    CuPy."""

def parse_handle(value: _Handle) -> MemoryHandle | EventHandle | PhysicalMemoryHandle:
    """Reads a handle of any kind, from its bytes or its text."""

@final
class Block:
    """Memory for an allocator that is written in Python. It is freed with this object."""

    def __new__(cls, context: Context, nbytes: int) -> Block: ...
    @property
    def address(self) -> int:
        """The address of the first byte."""

def serve_allocations(context: Context, number: int, reserve: int) -> int | None:
    """Selects the context that allocates memory for libraries on CUDA device `number`. Allocates an
    arena of `reserve` bytes unless `reserve` is 0. Returns the number of the arena."""

def stop_freeing() -> None:
    """Stops freeing memory, because the process is about to exit."""

def keep_for_ever(object: object) -> None:
    """Keeps an object alive until the process ends."""

def abandon_arena(number: int, arena: int) -> None:
    """Stops allocations from an arena, and frees it when none of its parts is in use."""

def pack_shared(
    context: Context,
    structure: str,
    arrays: list[Array],
    read_only: bool,
    *,
    event: tuple[EventHandle, int] | None = None,
) -> tuple[bytes, Memory | None]:
    """Packs arrays, and the structure that arranges them, into bytes.

    `event` is the signal after which all arrays are ready. Without it, each array keeps its own
    signals. If the result contains memory, keep that memory as long as other processes may unpack
    the bytes.
    """

def unpack(
    context: Context | None, data: bytes, *, writable: bool = True, timeout: float | None = None
) -> tuple[str, list[Array]]:
    """Unpacks a bundle and opens its memory, in a context or in the default contexts of its
    devices."""

def keep(objects: list[Any], receivers: int) -> bytes:
    """Keeps objects until `receivers` processes have opened them. Waits for room if a limit is
    reached.

    Returns the ticket that each receiver passes to `opened`.
    """

def opened(context: Context, ticket: bytes) -> None:
    """Notifies the sender of a pickle that this process has opened the object."""

def kept() -> tuple[int, int]:
    """Returns the number of pickled objects that are kept, and the number of bytes that this
    process keeps only for them."""

def release_kept() -> int:
    """Stops keeping the pickled objects. Returns the number of objects that were kept."""

def wait_for_receivers(patience: float | None) -> int:
    """Waits until all pickled objects have been opened, or until none was opened for `patience`
    seconds.

    Returns the number of remaining objects.
    """

def kept_limits() -> tuple[int, int, float | None]:
    """Returns the limits: objects, bytes, and the seconds that pickling waits for room (`None`: no
    timeout)."""

def set_kept_limits(objects: int, bytes: int, timeout: float | None) -> None:
    """Sets the limits that `kept_limits` returns."""

def forget_contexts() -> None:
    """Drops the cached default contexts, so that they can end before the interpreter exits."""

@final
class Link:
    """A link to another host. It opens handles that processes on that host have made."""

    @staticmethod
    def _connect(
        address: str, context: Context, options: dict[str, object], timeout: float | None = None
    ) -> Link: ...
    @property
    def peer(self) -> str:
        """The address of the peer."""
    @property
    def ended(self) -> str | None:
        """The reason why the link has ended, or `None` if it has not."""
    def open_memory(
        self, handle: _Handle, *, writable: bool = True, timeout: float | None = None
    ) -> RemoteMemory:
        """Opens memory of the remote host. Waits for its reply, at most `timeout` seconds."""
    def open_event(self, handle: _Handle, *, timeout: float | None = None) -> RemoteEvent:
        """Opens an event of the remote host. Waits for its reply, at most `timeout` seconds."""
    def open_name(
        self, name: str, *, timeout: float | None = None
    ) -> tuple[int, list[tuple[str, RemoteMemory]]]:
        """Opens a named object that the remote holder keeps. Returns its version, and the label and
        memory of each part."""
    def close(self) -> None:
        """Ends the link. Operations on either side that wait for the peer fail."""
    def __enter__(self) -> Link: ...
    def __exit__(
        self, cls: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

@final
class Listener:
    """A listener for links from other hosts."""

    @staticmethod
    def _bind(address: str, context: Context, options: dict[str, object]) -> Listener: ...
    @property
    def address(self) -> str:
        """The address at which the listener listens."""
    def accept(self, timeout: float | None = None) -> Link:
        """Waits for the next link from another host, at most `timeout` seconds."""
    def close(self) -> None:
        """Stops listening. Accepted links continue."""
    def __enter__(self) -> Listener: ...
    def __exit__(
        self, cls: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

@final
class RemoteMemory:
    """Memory of another host. It can be read and written, but not mapped."""

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
    @property
    def read_only(self) -> bool:
        """Whether the memory is read-only."""
    @property
    def staged(self) -> bool:
        """Whether the remote host copies through a staging buffer, because it cannot access the
        memory directly."""
    def read(self, nbytes: int | None = None, *, offset: int = 0, timeout: float | None = None) -> bytes:
        """Reads `nbytes` bytes (default: all that follow) from byte `offset`."""
    def read_into(self, into: Any, *, offset: int = 0, timeout: float | None = None) -> None:
        """Reads bytes into an array or another writable buffer, starting at byte `offset`."""
    def write(self, data: Any, *, offset: int = 0, timeout: float | None = None) -> None:
        """Writes bytes, an array or another contiguous buffer. Returns when the bytes have
        arrived."""
    def write_and_signal(
        self, data: Any, event: RemoteEvent, *, offset: int = 0, timeout: float | None = None
    ) -> int:
        """Writes bytes, then signals an event that was opened through the same link. Returns the
        signal's number."""
    def copy_from(
        self,
        source: Memory,
        *,
        offset: int = 0,
        source_offset: int = 0,
        nbytes: int | None = None,
        queue: Queue | None = None,
        after: Sequence[Event] | None = None,
        signal: Event | None = None,
        timeout: float | None = None,
    ) -> None:
        """Copies memory of this host, which may be on a GPU, to the remote memory. Returns when the
        copy is done, or at once with `queue`."""
    def copy_to(
        self,
        destination: Memory,
        *,
        offset: int = 0,
        destination_offset: int = 0,
        nbytes: int | None = None,
        queue: Queue | None = None,
        after: Sequence[Event] | None = None,
        signal: Event | None = None,
        timeout: float | None = None,
    ) -> None:
        """Copies the remote memory to memory of this host, which may be on a GPU. Returns when the
        copy is done, or at once with `queue`."""
    def close(self) -> None:
        """Closes the remote memory. Operations in progress continue."""

@final
class RemoteEvent:
    """An event of another host. To wait for it, wait for its `mirror`."""

    @property
    def mirror(self) -> Event:
        """The event of this host that follows the remote host's event. Wait for it, but do not
        signal it."""
    def signal(self, timeout: float | None = None) -> int:
        """Signals the remote host's event. Returns the signal's number after a round trip."""
    def close(self) -> None:
        """Closes the remote event. Pending waits for its mirror fail."""

def new_token() -> str:
    """Makes a new token, as text."""

@final
class StoreClient:
    """A client of the holder that keeps named models. Programs use `crosshandle.store.Store`."""

    def __new__(cls, socket_dir: str | None = None, token: str | None = None) -> StoreClient: ...
    def open(
        self, name: str, *, place: str | int | None, timeout: float, options: dict[str, Any]
    ) -> StoreModel:
        """Opens a model."""
    def load(
        self, name: str, files: list[str], *, device: str, options: dict[str, Any], hold: dict[str, Any]
    ) -> tuple[int, str, bool, int, tuple[float, float, float]]:
        """Loads safetensors files, and hands them over to the holder."""
    def publish(
        self,
        name: str,
        tensors: list[tuple[str, str, list[int], Foreign]],
        *,
        device: str,
        options: dict[str, Any],
        hold: dict[str, Any],
    ) -> tuple[int, str, bool, int, tuple[float, float, float]]:
        """Copies tensors from the host or from the device itself, and hands them over to the
        holder."""
    def updater(self, name: str, *, claim: bool, force: bool, timeout: float | None) -> StoreUpdater:
        """Opens a model to update its tensors in place."""
    def forget_contexts(self) -> None:
        """Drops the contexts that are kept for later calls."""
    def ls(self, timeout: float | None = None) -> list[dict[str, Any]]:
        """Returns the names that the holder keeps."""
    def rm(self, name: str, timeout: float | None = None) -> None:
        """Removes a name from the holder."""
    def pin(self, name: str, pinned: bool, timeout: float | None = None) -> None:
        """Protects a name from being removed or replaced, or ends the protection."""
    def await_version(self, name: str, version: int, timeout: float | None) -> int:
        """Waits until a name has a version later than `version`, and returns that version."""

@final
class StoreModel:
    """An open model. Programs use `crosshandle.store.Model`."""

    def describe(self) -> tuple[str, int, str, str, int, int]:
        """Returns the name, the version, the hash, the device, the size in bytes, and the number of
        the last update."""
    def tensors(self) -> dict[str, tuple[str, list[int], int, int]]:
        """Returns the type, the shape, the offset and the length in bytes of each tensor."""
    def metadata(self) -> dict[str, str]:
        """Returns the metadata of the model's files."""
    def array(self, name: str, dtype: Any) -> Array:
        """Returns a tensor as an array of a type that this package supports."""
    @property
    def address(self) -> int | None:
        """The address of the model's memory. It does not change while the model sleeps."""
    @property
    def asleep(self) -> bool:
        """Whether the model sleeps."""
    def verify(self, threads: int | None = None) -> None:
        """Hashes the contents again, and compares the hash."""
    def stable(self, timeout: float | None) -> int:
        """Waits until no update is in progress. Returns a number that every update changes."""
    def is_still(self, number: int) -> bool:
        """Returns whether no update has started since `stable` returned `number`."""
    def next_update(self, number: int, timeout: float | None) -> int:
        """Waits until an update later than update `number` has finished. Returns the later update's
        number."""
    def refresh(self, timeout: float | None) -> int:
        """Reads the tensor names and the hash again. Returns the number of the last update."""
    def sleep(self, to: str | None = None) -> None:
        """Unmaps the memory, and keeps its addresses reserved."""
    def wake(self) -> bool:
        """Maps the current version of the name at the same addresses."""

@final
class StoreUpdater:
    """A model that this process can update in place. Programs use `crosshandle.store.Updater`."""

    @property
    def version(self) -> int:
        """The version that this updater writes."""
    @property
    def epoch(self) -> int | None:
        """The number of this process as the only writer of the name, or `None` if the name was not
        claimed."""
    def update(
        self,
        pieces: Iterable[list[tuple[str, str, list[int], Foreign]]],
        files: list[str],
        *,
        hashed: bool,
        timeout: float,
        options: dict[str, Any],
    ) -> str:
        """Makes one update. Returns the model's new hash."""
