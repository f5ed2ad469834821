"""The part of this package that is written in Rust."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
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
        """Returns all devices of this machine whose driver is installed."""
    @property
    def name(self) -> str:
        """The name of the device, such as `cuda:0`. `Device(name)` accepts it."""
    @property
    def description(self) -> str:
        """The product name that the driver reports for the device."""
    @property
    def backend(self) -> str:
        """The backend of the device: `host`, `cuda` or `level_zero`."""
    @property
    def index(self) -> int:
        """The index of the device among the devices of its backend. It applies to this process
        only."""
    @property
    def uuid(self) -> str:
        """The UUID of the device. Every process on this machine sees the same UUID."""
    @property
    def total_memory(self) -> int:
        """The size of the device's memory, in bytes."""
    @property
    def free_memory(self) -> int | None:
        """The device's free memory in bytes, or `None` if the driver does not report it."""
    @property
    def granularity(self) -> int:
        """The device's page size in bytes. Sizes of physical memory and of mappings must be
        multiples of it."""
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Context:
    """A process's connection to one device. It creates memory, events and queues, and opens memory
    and events from other processes."""

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
        """Allocates `nbytes` bytes of uninitialized memory that other processes can open."""
    def empty(self, shape: int | Sequence[int], dtype: Any = None) -> Array:
        """Creates an array with uninitialized elements in new memory. `shape` is a number or a
        tuple of numbers. `dtype` is a NumPy dtype or a name (default: `float64`)."""
    def open_memory(self, handle: _Handle, *, writable: bool = True, timeout: float | None = None) -> Memory:
        """Opens another process's memory without copying it."""
    def event(
        self,
        *,
        name: str | None = None,
        low_power: bool = False,
        isolated: bool = False,
        single_signaller: bool = False,
    ) -> Event:
        """Creates an event. With `low_power`, a waiting thread in this process sleeps at once
        instead of spinning first. With `isolated`, the event's counters are in memory that no other
        event uses. With `single_signaller`, only kernels and streams of this process on the
        context's device signal the event, which they count by themselves."""
    def device_event(self, event: Event) -> DeviceEvent:
        """Returns an event for kernels on the context's device, which wait for it. They signal it
        if it was created in this context with `single_signaller`."""
    def abort_kernels(self) -> None:
        """Tells kernels on the context's device to stop: their waits return `aborted`."""
    def clear_abort(self) -> None:
        """Takes back `abort_kernels`, for kernels that are launched later."""
    def open_event(self, handle: _Handle, *, low_power: bool = False, timeout: float | None = None) -> Event:
        """Opens another process's event. `handle` is an `EventHandle`, its bytes or its text.
        `low_power` has the same meaning as for `event`, and `timeout` as for `open_memory`."""
    def open(
        self, handle: _Handle, *, writable: bool = True, timeout: float | None = None
    ) -> Memory | Event | PhysicalMemory:
        """Opens the object that a handle refers to: memory, physical memory or an event. Memory is
        opened read-only if the handle is read-only or if `writable` is False. `timeout` has the
        same meaning as for `open_memory`."""
    def queue(self, stream: Any = None, *, in_order: bool = True) -> Queue:
        """Creates a queue that runs commands in the order of submission. With `in_order=False`, a
        command runs as soon as the events that it waits for have been signalled."""
    def _adopt_stream(self, number: int, stream: Any) -> Queue:
        """Creates a queue for an existing driver stream. `number` is the driver's stream handle.
        `stream` is the Python object that owns the driver stream. The queue keeps this object
        alive."""
    def physical_memory(self, nbytes: int) -> PhysicalMemory:
        """Creates `nbytes` bytes of physical memory. `nbytes` must be a multiple of the device's
        granularity, which is 2 MiB on GPUs and one page on the host."""
    def reserve(self, nbytes: int) -> VirtualRange:
        """Reserves a range of `nbytes` addresses in this process. Physical memory can be mapped
        into it."""
    def trim(self) -> None:
        """Frees the unused memory that this context keeps for later allocations. Idle host memory
        is freed automatically within about a second."""
    def memory_handle_at(self, address: int) -> MemoryHandle:
        """Returns a handle to the memory that contains `address`. The memory must belong to this
        context."""

@final
class Memory:
    """Memory that several processes can use. `Context.allocate` creates it, and `crosshandle.open`
    opens another process's memory from a handle."""

    name: str | None
    @property
    def nbytes(self) -> int:
        """The size of the memory in bytes."""
    @property
    def address(self) -> int:
        """The address of the memory's first byte in this process."""
    @property
    def read_only(self) -> bool:
        """Whether this process can only read the memory."""
    @property
    def in_use(self) -> bool:
        """Whether a submitted command that has not finished uses the memory."""
    def lend(self, owner: object, *, nbytes: int | None = None, offset: int = 0) -> Memory:
        """Returns a part of the memory (default: all of it) as a new `Memory` object with its own
        handles."""
    def handle(self, *, read_only: bool = False) -> MemoryHandle:
        """Returns a handle, with which another process can open the memory."""
    def array(self, shape: int | Sequence[int] | None = None, dtype: Any = None, *, offset: int = 0) -> Array:
        """Returns a view of the memory as an array, without a copy."""
    def read(self, nbytes: int | None = None, *, offset: int = 0) -> bytes:
        """Returns a copy of `nbytes` bytes from byte `offset` (default: up to the end). The host
        must be able to access the memory."""
    def write(self, data: Any, *, offset: int = 0) -> None:
        """Copies `data` into the memory at byte `offset`. `data` is a bytes object, an array or
        another contiguous buffer. The host must be able to access the memory."""
    def close(self) -> None:
        """Closes this object. The memory itself stays open while arrays that were created from it
        live."""
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
        """The number of elements in each dimension."""
    @property
    def strides(self) -> tuple[int, ...]:
        """The distance in bytes between neighbouring elements, for each dimension."""
    @property
    def dtype(self) -> Any:
        """The name of the element type, such as `float32` or `<M8[ns]`. For records, the NumPy
        dtype instead of a name."""
    @property
    def itemsize(self) -> int:
        """The size of an element in bytes."""
    @property
    def T(self) -> Array:
        """The transposed array: a view of the same memory with the dimensions in reverse order."""
    @property
    def ndim(self) -> int:
        """The number of dimensions."""
    @property
    def size(self) -> int:
        """The number of elements."""
    @property
    def nbytes(self) -> int:
        """The total size of the elements in bytes."""
    @property
    def read_only(self) -> bool:
        """Whether the array is read-only."""
    @property
    def _is_lent(self) -> bool:
        """Whether the array is in lent memory. The loan keeps the objects alive that own the
        bytes."""
    def _keep(self, kept: Array | Memory) -> None:
        """Keeps other memory alive as long as this array's memory. `kept` is a `Memory` or an
        `Array`."""
    def _check_openable(self) -> None:
        """Raises `StaleHandleError` or `ExporterGoneError` if other processes can no longer open
        the array's memory."""
    def __copy__(self) -> Array:
        """Waits until the bytes are ready, and returns a copy in new memory on the same device. The
        copy is writable and has no gaps."""
    def __deepcopy__(self, _memo: object) -> Array:
        """Returns the same copy as `copy.copy`, because elements contain no Python objects."""
    def _as_read_only(self) -> Array:
        """Returns a read-only view of the array."""
    @property
    def event(self) -> Event | None:
        """The event that is signalled when the bytes are ready, or `None` if the array was shared
        without an event."""
    @property
    def device(self) -> str:
        """The name of the array's device, such as `cuda:0`."""
    @property
    def address(self) -> int:
        """The address of the first element in this process."""
    def wait(self, timeout: float | None = None) -> None:
        """Waits on the host until the bytes are ready. Raises `TimedOutError` after `timeout`
        seconds."""
    def numpy(self, *, timeout: float | None = None) -> Any:
        """Returns a NumPy array that shares the array's bytes."""
    def torch(self, *, copy: bool = False) -> Any:
        """Returns a torch tensor that shares the array's bytes. torch supports neither read-only
        tensors nor negative strides. For a read-only array or one with negative strides, pass
        `copy=True` to get a copy."""
    def jax(self) -> Any:
        """Returns a JAX array that shares the array's bytes. No process may write to the bytes as
        long as the JAX array lives."""
    def cupy(self) -> Any:
        """Returns a CuPy array that shares the array's bytes. The array must be in GPU memory."""
    def dpctl(self, queue: Any = None) -> Any:
        """Returns a dpctl memory object (USM device memory) over the array's bytes, from the lowest
        byte to the highest."""
    def dpnp(self, queue: Any = None) -> Any:
        """Returns a dpnp array that shares the array's bytes through USM, as with `dpctl`."""
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
        """Returns a NumPy array for `numpy.asarray`. It shares the array's bytes unless `dtype` or
        `copy` requires a copy."""
    def __getitem__(self, index: Any, /) -> Any:
        """Returns an element (`array[0, 3]`), or a NumPy array that shares a part of this array's
        bytes (`array[1:]`)."""
    def __setitem__(self, index: Any, value: Any, /) -> None:
        """Writes one or more elements, as in `array[:] = 1`."""
    def __iter__(self) -> Iterator[Any]: ...
    def tolist(self) -> Any:
        """Returns the elements as Python numbers in nested lists, with one level of lists for each
        dimension."""
    def __len__(self) -> int: ...

@final
class Event:
    """A counter of signals, which several processes can signal and wait for."""

    def __new__(
        cls,
        name: str | None = None,
        *,
        device: Any = None,
        low_power: bool = False,
        isolated: bool = False,
        single_signaller: bool = False,
    ) -> Event: ...
    name: str | None
    def signal(self, stream: Any = None) -> int:
        """Signals the event and returns the signal's number."""
    def wait_on(self, stream: Any, value: int | None = None) -> None:
        """Makes a stream wait for signal `value` before it runs work that is submitted later."""
    def signal_value(self, value: int) -> None:
        """Completes all signals up to number `value` at once."""
    def wait(self, timeout: float | None = None) -> None:
        """Waits until the latest signal has completed. If no signal was submitted yet, waits for
        the first one."""
    def wait_value(self, value: int, timeout: float | None = None) -> None:
        """Waits at most `timeout` seconds until signal `value` has completed. The signal may be
        submitted later. Raises the same exceptions as `wait`."""
    def ready(self, value: int | None = None) -> bool:
        """Returns whether signal `value` has completed (default: the latest signal). Returns
        `False` if the signal was not submitted yet. Raises the same exceptions as `wait`."""
    def done(self, value: int | None = None) -> bool:
        """Returns the same result as `ready`."""
    def _look(self, value: int) -> bool:
        """Spins for a few microseconds, and returns whether signal `value` has completed. An event
        loop calls this method if its tasks await no other signal."""
    def reached(self, value: int | None = None) -> Awaitable[None]:
        """Returns an awaitable for asyncio or trio, which completes when signal `value` has
        completed."""
    @property
    def submitted(self) -> int:
        """The number of the latest submitted signal, or 0 if there is none."""
    @property
    def completed(self) -> int:
        """The number of the last signal before the first pending one. That signal and all earlier
        ones have completed or failed."""
    def handle(self) -> EventHandle:
        """Returns a handle, with which another process can open the event."""
    @staticmethod
    def wait_all(events: list[Event], timeout: float | None = None) -> None:
        """Waits until the latest signal of each event has completed. If an event has no signal yet,
        waits for its first one. Raises the same exceptions as `wait`, including `TimedOutError`
        after `timeout` seconds in total."""
    @staticmethod
    def wait_any(events: list[Event], timeout: float | None = None) -> int:
        """Waits until the latest signal of at least one event has completed, and returns the index
        of that event. If an event has no signal yet, its first signal counts. Raises the same
        exceptions as `wait`, including `TimedOutError` after `timeout` seconds."""

@final
class MemoryHandle:
    """A handle to shared memory. Another process opens the memory with it."""

    def __new__(cls, value: _Handle) -> MemoryHandle: ...
    @property
    def backend(self) -> str:
        """The backend of the object's device: `host`, `cuda` or `level_zero`."""
    @property
    def device_uuid(self) -> str:
        """The UUID of the device, as in `Device.uuid`."""
    @property
    def exporter_pid(self) -> int:
        """The process id of the exporter, in the exporter's own PID namespace. Use the id only in
        messages."""
    @property
    def nbytes(self) -> int:
        """The size of the memory in bytes."""
    @property
    def read_only(self) -> bool:
        """Whether the handle permits only read access."""
    def __bytes__(self) -> bytes: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

@final
class EventHandle:
    """A handle to an event. Another process opens the event with it."""

    def __new__(cls, value: _Handle) -> EventHandle: ...
    @property
    def backend(self) -> str:
        """The backend of the object's device: `host`, `cuda` or `level_zero`."""
    @property
    def exporter_pid(self) -> int:
        """The process id of the exporter, in the exporter's own PID namespace. Use the id only in
        messages."""
    def __bytes__(self) -> bytes: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

@final
class ChannelHandle:
    """A handle to a channel. Another process opens the channel with it."""

    def __new__(cls, value: _Handle) -> ChannelHandle: ...
    @property
    def backend(self) -> str:
        """The backend of the object's device: `host`, `cuda` or `level_zero`."""
    @property
    def exporter_pid(self) -> int:
        """The process id of the exporter, in the exporter's own PID namespace. Use the id only in
        messages."""
    @property
    def read_only(self) -> bool:
        """Whether the handle grants only the role of consumers."""
    def __bytes__(self) -> bytes: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

@final
class PhysicalMemoryHandle:
    """A handle to physical memory. Another process opens the physical memory with it."""

    def __new__(cls, value: _Handle) -> PhysicalMemoryHandle: ...
    @property
    def backend(self) -> str:
        """The backend of the object's device: `host`, `cuda` or `level_zero`."""
    @property
    def device_uuid(self) -> str:
        """The UUID of the device, as in `Device.uuid`."""
    @property
    def exporter_pid(self) -> int:
        """The process id of the exporter, in the exporter's own PID namespace. Use the id only in
        messages."""
    @property
    def nbytes(self) -> int:
        """The size of the memory in bytes."""
    @property
    def read_only(self) -> bool:
        """Whether the handle permits only read access."""
    def __bytes__(self) -> bytes: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

@final
class PhysicalMemory:
    """Memory that has no address until a program maps it into a `VirtualRange`. It can be mapped
    any number of times. The memory exists as long as any process has this object or a mapping of
    the memory."""

    name: str | None
    @property
    def nbytes(self) -> int:
        """The size in bytes."""
    def handle(self, *, read_only: bool = False) -> PhysicalMemoryHandle:
        """Returns a handle, with which another process can open the physical memory."""
    def __len__(self) -> int: ...

@final
class VirtualRange:
    """A reserved range of addresses in this process. Physical memory is mapped into it. A `with`
    statement releases the addresses at its end."""

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
    @property
    def address(self) -> int:
        """The first address of the range, in this process."""
    def map(
        self,
        offset: int,
        memory: PhysicalMemory,
        *,
        memory_offset: int = 0,
        nbytes: int | None = None,
        access: str | None = "rw",
    ) -> None:
        """Maps physical memory at byte `offset` of the range."""
    def unmap(self, offset: int = 0, nbytes: int | None = None) -> None:
        """Unmaps `nbytes` bytes from byte `offset` (default: the whole range). These bytes must
        consist of one mapping or several adjacent mappings."""
    def protect(self, access: str | None, offset: int = 0, nbytes: int | None = None) -> None:
        """Changes the access to the mappings in `nbytes` bytes from byte `offset` (default: the
        whole range). `access` has the same meaning as for `map`."""
    def is_mapped(self, offset: int) -> bool:
        """Returns whether memory is mapped at byte `offset` of the range."""
    def read(self, offset: int, nbytes: int) -> bytes:
        """Returns a copy of `nbytes` bytes from byte `offset`. The bytes must be in one mapping,
        and the host must be able to access the memory."""
    def write(self, offset: int, data: bytes) -> None:
        """Copies `data` to byte `offset` of the range. The bytes must be in one mapping, and the
        host must be able to access the memory."""
    def close(self) -> None:
        """Unmaps all physical memory, and releases the addresses."""
    def __enter__(self) -> VirtualRange: ...
    def __exit__(
        self,
        _class: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None: ...
    def __len__(self) -> int: ...

@final
class DeviceEvent:
    """An event for kernels on a device: addresses that kernels take as arguments. The object must
    exist until the kernels have ended."""

    @property
    def words(self) -> int:
        """The address of the event's words."""
    @property
    def signalled(self) -> int:
        """The address of the number of signals by code on the device. It is 0 if the code may only
        wait."""
    @property
    def awaited(self) -> int:
        """The address of the number of calls of `wait_next`."""
    @property
    def abort(self) -> int:
        """The address of the word that tells kernels to stop."""
    def __bytes__(self) -> bytes:
        """The four addresses as the 32 bytes of `crosshandle_device_event`."""

def device_header() -> str:
    """Returns the text of `crosshandle.cuh`."""

@final
class Notifier:
    """Waits for any number of signals on behalf of an event loop. The notifier has a file
    descriptor, which becomes readable when one of the signals has completed or failed.
    `Event.reached` uses one notifier for each event loop."""

    def __new__(cls) -> Notifier: ...
    def fileno(self) -> int:
        """Returns the file descriptor that the event loop watches. Do not read from it."""
    def add(self, event: Event, value: int, token: int) -> None:
        """Starts a wait for signal `value` of an event. After the signal has completed or failed,
        `next` returns `token`."""
    def remove(self, token: int) -> bool:
        """Cancels the wait that was added with `token`. Returns `False` if no such wait is
        pending."""
    def next(self) -> tuple[int, Exception | None] | None:
        """Returns the token and the exception of one wait that has ended. The exception is `None`
        if the signal has completed. Returns `None` instead of a tuple if no further wait has
        ended."""
    def close(self) -> None:
        """Cancels all waits, and closes the file descriptor."""

@final
class Queue:
    """A queue that runs copies, fills and signals on a device. Submitting a command does not wait
    for it."""

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
        """Submits a copy of `nbytes` bytes (default: the whole source). The copy starts after the
        latest signals of the events in `after`, and signals the event `signal` when it is done.
        This method does not wait for the copy."""
    def fill(
        self, destination: Memory, pattern: bytes, *, after: Sequence[Event] | None = None, signal: Event | None = None
    ) -> None:
        """Submits a command that fills all of the memory with a repeated pattern. `after` and
        `signal` have the same meaning as for `copy`. This method does not wait for the command."""
    def signal(self, event: Event) -> int:
        """Submits a command that signals the event after all earlier commands. Returns the signal's
        number. This method does not wait for the command."""
    def wait(self, event: Event, value: int | None = None) -> None:
        """Makes all later commands wait for signal `value` of the event. By default, `value` is the
        latest signal, or the first signal if none was submitted yet."""
    @property
    def native(self) -> int | None:
        """The driver's handle of the queue as an integer, such as a `CUstream`, or `None` for a
        queue without a driver."""
    def finish(self, timeout: float | None = None) -> None:
        """Waits until all submitted commands are done, for at most `timeout` seconds. Other Python
        threads run meanwhile. Raises `TimedOutError` after the timeout. Ctrl-C interrupts the wait,
        but not the commands."""
    @property
    def idle(self) -> bool:
        """Whether all submitted commands are done."""

@final
class Channel:
    """A ring of slots in shared memory, through which processes send arrays or bytes."""

    def __new__(
        cls,
        shape: Any = None,
        dtype: Any = None,
        *,
        slot_size: int | None = None,
        depth: int = 8,
        device: Any = None,
        broadcast: bool = False,
        drop_oldest: bool = False,
        producers: int = 1,
        consumers: int = 1,
        reserved: int = 2,
        held: int | None = None,
        awaits_producers: bool = False,
        name: str | None = None,
    ) -> Channel: ...
    @staticmethod
    def open(
        channel: _Handle,
        *,
        device: Any = None,
        read_only: bool = False,
        socket_dir: str | PathLike[str] | None = None,
        token: str | None = None,
        timeout: float | None = None,
    ) -> Channel:
        """Opens a channel that another process has created. `channel` is a handle, its bytes or its
        text, or the name under which a holder keeps the channel."""
    def handle(self, *, read_only: bool = False) -> ChannelHandle:
        """Returns a handle, with which another process can open the channel. With `read_only`, that
        process can only be a consumer."""
    def hand_over(
        self,
        name: str,
        *,
        replaces: bool = False,
        socket_dir: str | PathLike[str] | None = None,
        token: str | None = None,
    ) -> int:
        """Hands the channel over to the holder under a name, so that it survives all its processes.
        Returns the version of the name."""
    def producer(self, *, stream: Any = None) -> Producer:
        """Joins the channel as a producer. `stream` writes the items of a GPU's channel."""
    def consumer(self, *, stream: Any = None, writable: bool = False) -> Consumer:
        """Joins the channel as a consumer. `stream` reads the items of a GPU's channel. With
        `writable`, the consumer may write to its items."""
    def __iter__(self) -> Consumer: ...
    def __aiter__(self) -> Consumer: ...
    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of all items, or `None` if the channel was created with a `slot_size`."""
    @property
    def dtype(self) -> str | None:
        """The name of the element type of all items, or `None` if the channel was created with a
        `slot_size`."""
    @property
    def slot_size(self) -> int:
        """The maximum size of an item in bytes."""
    @property
    def depth(self) -> int:
        """How many items can wait to be received."""
    @property
    def broadcast(self) -> bool:
        """Whether each consumer receives each item."""
    @property
    def drop_oldest(self) -> bool:
        """Whether a producer replaces the oldest item if the channel is full."""
    @property
    def device(self) -> str:
        """The name of the device whose memory contains the slots."""
    @property
    def read_only(self) -> bool:
        """Whether this process can only be a consumer."""
    @property
    def published(self) -> int:
        """The number of items that were published so far."""
    @property
    def members(self) -> tuple[int, int]:
        """The numbers of producers and of consumers that are alive."""
    def close(self) -> None:
        """Closes this object. The channel itself stays open in this process while its producers,
        consumers and items exist."""
    def __enter__(self) -> Channel: ...
    def __exit__(
        self, cls: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

@final
class Producer:
    """A producer of a channel, from `Channel.producer`."""

    def send(self, value: Any, *, user: Any = None, timeout: float | None = None) -> int:
        """Copies an array or bytes into a slot and publishes it. Returns the item's number. Waits
        for at most `timeout` seconds while the channel is full."""
    def try_send(self, value: Any, *, user: Any = None) -> int | None:
        """Sends an array or bytes as `send` does, or returns `None` if the channel is full."""
    def reserve(self, *, timeout: float | None = None) -> Slot:
        """Reserves a slot, and waits only for queues that still write all free slots. The `with`
        statement publishes the slot at the end of its block, and waits for room for at most
        `timeout` seconds."""
    @property
    def members(self) -> tuple[int, int]:
        """The numbers of producers and of consumers that are alive."""
    def close(self) -> None:
        """Leaves the channel as soon as all its slots are published or returned."""
    def __enter__(self) -> Producer: ...
    def __exit__(
        self, cls: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

@final
class Slot:
    """A reserved slot of a channel: a writable array in shared memory, from `Producer.reserve`."""

    @property
    def array(self) -> Array:
        """The array over the slot's memory."""
    @property
    def shape(self) -> tuple[int, ...]:
        """The number of elements in each dimension."""
    @property
    def dtype(self) -> Any:
        """The name of the element type, such as `uint8`."""
    def numpy(self) -> Any:
        """Returns a NumPy array that shares the slot's bytes."""
    def torch(self, *, copy: bool = False) -> Any:
        """Returns a torch tensor that shares the slot's bytes, or a copy. A read-only array needs
        `copy=True`."""
    def jax(self) -> Any:
        """Returns a JAX array that shares the slot's bytes."""
    def cupy(self) -> Any:
        """Returns a CuPy array that shares the slot's bytes, which must be on a GPU."""
    def __array__(self, dtype: Any = None, *, copy: bool | None = None) -> Any: ...
    def __dlpack__(self, **options: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: Any) -> Any: ...
    def __setitem__(self, index: Any, value: Any) -> None: ...
    def set_array(self, shape: Any, dtype: Any) -> None:
        """Makes the item an array of another shape and type, which must fit into the slot. The
        channel must have been created with a `slot_size`."""
    @property
    def nbytes(self) -> int:
        """The size of the item in bytes (default: the whole slot)."""
    @nbytes.setter
    def nbytes(self, nbytes: int) -> None: ...
    def _set_user(self, user: Any) -> None: ...
    user = property(None, _set_user)
    """Bytes that the item carries in addition, at most 64. This attribute can only be set."""
    def publish(self, timeout: float | None = None) -> int:
        """Publishes the item, and returns its number. Waits for at most `timeout` seconds while the
        channel is full."""
    def release(self) -> None:
        """Returns the slot without an item."""
    def __enter__(self) -> Slot: ...
    def __exit__(
        self, cls: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

@final
class Consumer:
    """A consumer of a channel, from `Channel.consumer`."""

    def receive(self, timeout: float | None = None) -> Item:
        """Receives the next item, and waits for it for at most `timeout` seconds."""
    def try_receive(self) -> Item | None:
        """Receives the next item, or returns `None` if no item is waiting."""
    def receive_latest(self, timeout: float | None = None) -> Item:
        """Receives the newest waiting item, and drops the older ones. Waits for at most `timeout`
        seconds if no item is waiting."""
    def received(self) -> Awaitable[Item]:
        """Receives the next item in a task of asyncio or trio."""
    def fileno(self) -> int:
        """Returns a file descriptor for event loops, which is readable when `try_receive` may
        return an item or raise an exception."""
    @property
    def lost(self) -> int:
        """The number of items of a broadcast that were replaced before this consumer received
        them."""
    @property
    def members(self) -> tuple[int, int]:
        """The numbers of producers and of consumers that are alive."""
    def close(self) -> None:
        """Leaves the channel. Received items stay valid."""
    def __enter__(self) -> Consumer: ...
    def __exit__(
        self, cls: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def __iter__(self) -> Consumer: ...
    def __next__(self) -> Item: ...
    def __aiter__(self) -> Consumer: ...
    def __anext__(self) -> Awaitable[Item]: ...

@final
class Item:
    """A received item: a read-only array in a slot of the channel."""

    @property
    def array(self) -> Array:
        """The array over the slot's memory."""
    @property
    def shape(self) -> tuple[int, ...]:
        """The number of elements in each dimension."""
    @property
    def dtype(self) -> Any:
        """The name of the element type, such as `uint8`."""
    def numpy(self) -> Any:
        """Returns a NumPy array that shares the slot's bytes."""
    def torch(self, *, copy: bool = False) -> Any:
        """Returns a torch tensor that shares the slot's bytes, or a copy. A read-only array needs
        `copy=True`."""
    def jax(self) -> Any:
        """Returns a JAX array that shares the slot's bytes."""
    def cupy(self) -> Any:
        """Returns a CuPy array that shares the slot's bytes, which must be on a GPU."""
    def __array__(self, dtype: Any = None, *, copy: bool | None = None) -> Any: ...
    def __dlpack__(self, **options: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: Any) -> Any: ...
    @property
    def number(self) -> int:
        """The item's number. The first item of a channel has the number 0."""
    @property
    def time(self) -> int:
        """The time at which the item was published, in nanoseconds of `time.monotonic_ns()`."""
    @property
    def user(self) -> bytes:
        """The bytes that the producer has added to the item."""
    @property
    def nbytes(self) -> int:
        """The size of the item in bytes."""
    def release(self) -> None:
        """Drops the item. Its slot is free when no array uses it any more."""
    def __enter__(self) -> Item: ...
    def __exit__(
        self, cls: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

def open_channel(context: Context, handle: _Handle) -> Channel:
    """Opens a channel from its handle's bytes in a context."""

@final
class Foreign:
    """A description of an array from another library, together with the object that keeps the
    array's bytes alive."""

    @property
    def owner(self) -> object:
        """The object that keeps the array's bytes alive, according to the protocol that described
        the array."""
    @property
    def device(self) -> str:
        """The name of the device, such as `cuda:0`. If the library does not report the device's
        number, the name is `cuda` or `sycl`."""
    @property
    def dtype(self) -> str:
        """The name of the element type, such as `float32`."""
    @property
    def shape(self) -> tuple[int, ...]:
        """The number of elements in each dimension."""
    @property
    def address(self) -> int:
        """The address of the array's lowest byte."""

def describe(value: Any) -> Foreign:
    """Describes an array from another library. Uses the first of these that the array supports:
    torch's own interface, `__cuda_array_interface__`, `__sycl_usm_array_interface__`, the buffer
    protocol, DLPack or `__array_interface__`. Raises `TypeError` if it supports none."""

def adopt_all(context: Context, arrays: list[Foreign], owners: Sequence[object]) -> list[Array | Exception]:
    """Creates arrays in shared memory from arrays of other libraries, without copying their
    bytes."""

def check_whole(array: object) -> None:
    """Fails if an array has a mask or a unit. The array protocols cannot express masks and units,
    so a shared array would silently lose them."""

def laid_over(base: Array, array: Foreign, offset: int) -> Array:
    """Creates an array in the memory of `base` that has the layout of another library's array. The
    new array's lowest byte is at byte `offset` of the memory."""

def copied(context: Context, array: Foreign) -> Array:
    """Copies another library's array into new memory. `context` must be on the array's device. The
    caller must wait until the bytes of a GPU array are ready."""

def copied_array(context: Context, array: Array) -> Array:
    """Waits until an array's bytes are ready, and then copies the array into new memory. `context`
    must be on the array's device."""

def moved(context: Context, array: Array) -> Array:
    """Copies a contiguous `crosshandle.Array` into new memory. `context` may be on any device."""

def filled(context: Context, shape: int | Sequence[int], dtype: Any, element: bytes) -> Array:
    """Creates an array in new memory and fills it with a repeated pattern. `element` contains the
    bytes of the pattern. The size of the array must be a multiple of the size of the pattern."""

def dtype_of(value: Any) -> tuple[str, int]:
    """Returns the name of an element type, and the size of an element in bytes. `value` is any form
    of type that NumPy or torch accepts."""

def numpy_dtype(value: Any) -> Any:
    """Returns the NumPy dtype for an element type. `value` is any form of type that NumPy or torch
    accepts."""

def device_name(device: Any) -> str:
    """Returns the name of a device, such as `cuda:0`. The argument is a `Device`, a name, or a
    device object from torch, JAX or CuPy. `None` means the host."""

def parse_handle(value: _Handle) -> MemoryHandle | EventHandle | PhysicalMemoryHandle | ChannelHandle:
    """Converts an encoded handle, bytes or text, to an object of the matching handle class."""

@final
class Block:
    """One allocation for an allocator that is written in Python. Dropping this object frees the
    memory after the device's pending work is done."""

    def __new__(cls, context: Context, nbytes: int) -> Block: ...
    @property
    def address(self) -> int:
        """The address of the block's first byte."""

def serve_allocations(context: Context, number: int, reserve: int) -> int | None:
    """Makes `context` allocate the memory that libraries request on CUDA device `number`. If a
    context was set before, that context is kept."""

def stop_freeing() -> None:
    """Stops freeing memory in this process. Call it when the interpreter is about to exit."""

def keep_for_ever(object: object) -> None:
    """Keeps an object alive until the process ends. torch may call an allocator even after the
    Python object for the allocator has been destroyed."""

def abandon_arena(number: int, arena: int) -> None:
    """Stops allocations from an arena on CUDA device `number`. The arena is freed when none of its
    parts is in use."""

def pack_shared(
    context: Context,
    structure: str,
    arrays: list[Array],
    read_only: bool,
    *,
    event: tuple[EventHandle, int] | None = None,
) -> tuple[bytes, Memory | None]:
    """Encodes arrays, and the structure that contains them (such as a dict of lists), as bytes."""

def pack_foreign(
    context: Context, owner: Context, values: list[Any], *, event: tuple[EventHandle, int] | None = None
) -> tuple[bytes, list[Array], Memory | None] | None:
    """Encodes a list of other libraries' arrays that are all on the device of `owner`. Returns None
    if an array cannot be shared without a copy."""

def unpack(
    context: Context | None,
    data: bytes,
    *,
    writable: bool = True,
    timeout: float | None = None,
    keep_events: bool = False,
) -> tuple[str, list[Array]]:
    """Decodes a bundle and opens its arrays' memory. Without `context`, the memory is opened in the
    default context for each array's device. Returns the structure and the arrays. `timeout` is the
    maximum number of seconds of each wait for another process. With `keep_events`, keeps the
    bundle's events open, which must be events that this process never signals."""

def adopted_queue(device: int, stream: int) -> Queue | None:
    """Returns the cached queue for a stream of a CUDA device, or None."""

def keep_adopted(device: int, stream: int, queue: Queue) -> None:
    """Adds a queue to the cache of queues for streams."""

def forget_adopted() -> None:
    """Drops all queues in the cache of queues for streams."""

def unpack_copied(
    data: bytes, fetch: Callable[[MemoryHandle, int, int], Memory], wait: Callable[[EventHandle, int], object]
) -> tuple[str, list[Array]]:
    """Decodes a bundle of another host. `fetch(handle, offset, nbytes)` returns memory of this
    process with a copy of the bytes. Before that, `wait` is called with the handle of each event
    and a signal number. Returns the structure and the arrays."""

def keep(objects: list[Any], receivers: int) -> bytes:
    """Keeps objects alive until `receivers` processes have opened them. If a limit is reached,
    waits until other pickles are opened. After the timeout, raises `LimitReachedError`. Returns the
    ticket that each receiver passes to `opened`."""

def opened(context: Context, ticket: bytes) -> None:
    """Notifies the sender of a pickle that this process has opened the object. Ignores all errors,
    because the sender may have ended or may no longer keep the object."""

def kept() -> tuple[int, int]:
    """Returns the number of pickled objects that this process keeps, and the number of bytes that
    are allocated only for them."""

def release_kept() -> int:
    """Drops all pickled objects that this process keeps, even if no process has opened them yet.
    Returns the number of objects that no process had opened."""

def wait_for_receivers(patience: float | None) -> int:
    """Waits until all pickled objects have been opened. Gives up if no object is opened for
    `patience` seconds. `None` means no timeout. Returns the number of objects that are still kept.
    Ctrl-C interrupts the wait."""

def kept_limits() -> tuple[int, int, float | None]:
    """Returns the limits for pickled objects: the maximum number of objects, the maximum number of
    bytes, and the timeout in seconds. The timeout applies when a limit is reached. `None` means no
    timeout."""

def set_kept_limits(objects: int, bytes: int, timeout: float | None) -> None:
    """Sets the limits for pickled objects. The arguments are in the order of `kept_limits`."""

def forget_contexts() -> None:
    """Drops the cached default contexts, so that they can be destroyed before the interpreter
    exits. From then on, events that other processes created stay open until this process ends."""

@final
class Link:
    """A link to another host. It opens memory and events from handles that processes on that host
    have created."""

    @staticmethod
    def _connect(
        address: str, context: Context, options: dict[str, object], timeout: float | None = None
    ) -> Link: ...
    @property
    def peer(self) -> str:
        """The network address of the remote host."""
    @property
    def ended(self) -> str | None:
        """The reason why the link has ended, as text, or `None` if the link still works."""
    def open_memory(
        self, handle: _Handle, *, writable: bool = True, timeout: float | None = None
    ) -> RemoteMemory:
        """Opens memory on the remote host. Waits at most `timeout` seconds for the remote host's
        reply, then raises `TimedOutError`. Ctrl-C interrupts the wait."""
    def open_event(self, handle: _Handle, *, timeout: float | None = None) -> RemoteEvent:
        """Opens an event on the remote host. Waits at most `timeout` seconds for the remote host's
        reply, then raises `TimedOutError`. Ctrl-C interrupts the wait."""
    def open_name(
        self, name: str, *, timeout: float | None = None
    ) -> tuple[int, list[tuple[str, RemoteMemory]]]:
        """Opens a named object that the holder on the remote host keeps. Returns the object's
        version, and the label and memory of each part. Waits at most `timeout` seconds for the
        reply, then raises `TimedOutError`. Ctrl-C interrupts the wait."""
    def close(self) -> None:
        """Ends the link. On both hosts, operations that wait for the other host fail."""
    def __enter__(self) -> Link: ...
    def __exit__(
        self, cls: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

@final
class Listener:
    """A listener that accepts links from other hosts."""

    @staticmethod
    def _bind(address: str, context: Context, options: dict[str, object]) -> Listener: ...
    @property
    def address(self) -> str:
        """The network address at which the listener accepts links."""
    def accept(self, timeout: float | None = None) -> Link:
        """Waits for the next link from another host, and returns it. Other Python threads run
        meanwhile. After `timeout` seconds, raises `TimedOutError`. Ctrl-C interrupts the wait."""
    def close(self) -> None:
        """Stops listening. Links that were already accepted stay open."""
    def __enter__(self) -> Listener: ...
    def __exit__(
        self, cls: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

@final
class RemoteMemory:
    """Memory on another host. A program can read, write and copy it, but cannot map it."""

    @property
    def nbytes(self) -> int:
        """The size of the remote memory in bytes."""
    @property
    def read_only(self) -> bool:
        """Whether this process can only read the remote memory."""
    @property
    def staged(self) -> bool:
        """Whether the remote host copies through a staging buffer, because the link cannot access
        the memory directly. An example is the memory of some GPUs."""
    def read(self, nbytes: int | None = None, *, offset: int = 0, timeout: float | None = None) -> bytes:
        """Reads `nbytes` bytes from byte `offset` (default: up to the end). Waits at most `timeout`
        seconds for the bytes, then raises `TimedOutError`. Ctrl-C interrupts the wait."""
    def read_into(self, into: Any, *, offset: int = 0, timeout: float | None = None) -> None:
        """Fills an array or another writable buffer with bytes from byte `offset`. Waits at most
        `timeout` seconds for the bytes, then raises `TimedOutError`. Ctrl-C interrupts the wait."""
    def write(self, data: Any, *, offset: int = 0, timeout: float | None = None) -> None:
        """Writes `data`, a contiguous buffer such as bytes or an array, at byte `offset`. Returns
        when the bytes have arrived. Raises `TimedOutError` after `timeout` seconds. After a timeout
        or Ctrl-C, the bytes may still arrive."""
    def write_and_signal(
        self, data: Any, event: RemoteEvent, *, offset: int = 0, timeout: float | None = None
    ) -> int:
        """Writes bytes like `write`, and then signals `event`. The event must have been opened
        through the same link. Returns the signal's number. A process that has seen the signal also
        sees the bytes."""
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
        """Copies local memory, which may be on a GPU, to the remote memory."""
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
        """Copies the remote memory to local memory, which may be on a GPU. The other arguments have
        the same meaning as for `copy_from`."""
    def close(self) -> None:
        """Closes the remote memory. Operations that are in progress continue."""

@final
class RemoteEvent:
    """An event on another host. To wait for the event, wait for its `mirror`."""

    @property
    def mirror(self) -> Event:
        """A local event that follows the remote event. Its signals have the same numbers. Wait for
        it like for any other event, but do not signal it."""
    def signal(self, timeout: float | None = None) -> int:
        """Signals the remote event, and returns the signal's number. Waits at most `timeout`
        seconds for the reply, then raises `TimedOutError`. After a timeout or Ctrl-C, the remote
        host may still signal the event."""
    def close(self) -> None:
        """Closes the remote event. Pending waits for the event's mirror fail."""

def new_token() -> str:
    """Generates a new token and returns it as text. Both sides of a link need the same token."""

@final
class StoreClient:
    """A client of the holder that keeps named models. Programs use `crosshandle.store.Store`."""

    def __new__(cls, socket_dir: str | None = None, token: str | None = None) -> StoreClient: ...
    def open(
        self, name: str, *, place: str | int | None, timeout: float, options: dict[str, Any]
    ) -> StoreModel:
        """Opens the model that the holder keeps under `name`. `place` selects the addresses: `None`
        for any, `"sleepable"`, `"agreed"`, or an integer address. `timeout` is in seconds.
        `options` may contain `expected_hash`, `or_elsewhere` and `back_up`. Programs call
        `crosshandle.store.Store.open`, which documents them."""
    def load(
        self, name: str, files: list[str], *, device: str, options: dict[str, Any], hold: dict[str, Any]
    ) -> tuple[int, str, bool, int, tuple[float, float, float]]:
        """Loads safetensors files into shared memory, and hands the memory over to the holder under
        `name`. Returns the fields of `crosshandle.store.Published`."""
    def publish(
        self,
        name: str,
        tensors: list[tuple[str, str, list[int], Foreign]],
        *,
        device: str,
        options: dict[str, Any],
        hold: dict[str, Any],
    ) -> tuple[int, str, bool, int, tuple[float, float, float]]:
        """Copies tensors into shared memory on `device`, and hands the memory over to the holder
        under `name`. All tensors must be on the host, or all on `device`. Returns the same fields
        as `load`."""
    def updater(self, name: str, *, claim: bool, force: bool, timeout: float | None) -> StoreUpdater:
        """Opens a model for updates of its tensors in place. With `claim`, this process becomes the
        only writer. With `force`, the holder does not check that the previous writer has ended.
        `timeout` is in seconds. After the timeout, raises an exception. Ctrl-C interrupts the
        wait."""
    def forget_contexts(self) -> None:
        """Drops the contexts that this client caches for later calls."""
    def ls(self, timeout: float | None = None) -> list[dict[str, Any]]:
        """Returns a list with one dict for each name that the holder keeps."""
    def rm(self, name: str, timeout: float | None = None) -> None:
        """Removes a name from the holder. Processes that have opened the model keep their
        memory."""
    def pin(self, name: str, pinned: bool, timeout: float | None = None) -> None:
        """Protects a name from being removed or replaced if `pinned` is true. Otherwise ends that
        protection."""
    def await_version(self, name: str, version: int, timeout: float | None) -> int:
        """Waits until a name has a version later than `version`, and returns the later version.
        Raises an exception after `timeout` seconds. Ctrl-C interrupts the wait."""

@final
class StoreModel:
    """An open model. Programs use `crosshandle.store.Model`."""

    def describe(self) -> tuple[str, int, str, str, int, int]:
        """Returns the model's name, version, hash, device and size in bytes, and the number of the
        latest update that this process has seen."""
    def tensors(self) -> dict[str, tuple[str, list[int], int, int]]:
        """Returns a dict from tensor names to tuples: the safetensors type, the shape, the offset
        in bytes, and the size in bytes."""
    def metadata(self) -> dict[str, str]:
        """Returns the metadata (a dict of strings) that the model's safetensors files contained."""
    def array(self, name: str, dtype: Any) -> Array:
        """Returns a tensor as a read-only array with element type `dtype`, without a copy. The
        array keeps the model's memory open."""
    @property
    def address(self) -> int | None:
        """The address of the model's memory. It stays the same while the model sleeps and after it
        wakes."""
    @property
    def asleep(self) -> bool:
        """Whether the model sleeps, which means that its memory is not mapped."""
    def verify(self, threads: int | None = None) -> None:
        """Hashes the model's contents again, and compares the result with the recorded hash. Raises
        `WrongContentsError` if they differ."""
    def stable(self, timeout: float | None) -> int:
        """Waits until no update is in progress. Returns a number that changes with each update.
        Raises an exception after `timeout` seconds. Ctrl-C interrupts the wait."""
    def is_still(self, number: int) -> bool:
        """Returns whether no update has started since `stable` returned `number`."""
    def next_update(self, number: int, timeout: float | None) -> int:
        """Waits until an update later than update `number` has finished, and returns the later
        update's number. Raises an exception after `timeout` seconds. Ctrl-C interrupts the wait."""
    def refresh(self, timeout: float | None) -> int:
        """Reads the tensor names and the hash again, because an update may have changed them.
        Returns the number of the latest update. Raises an exception after `timeout` seconds."""
    def sleep(self, to: str | None = None) -> None:
        """Unmaps the model's memory, but keeps its addresses reserved. With `to`, first copies the
        model to that device, and publishes the copy as the next version of the name."""
    def wake(self) -> bool:
        """Maps the latest version of the model at the same addresses as before. Returns whether the
        version has changed since the model was last mapped."""

@final
class StoreUpdater:
    """A model that this process can update in place. Programs use `crosshandle.store.Updater`."""

    @property
    def version(self) -> int:
        """The model version that this updater writes to."""
    @property
    def epoch(self) -> int | None:
        """The number of the claim by which this process is the only writer, or `None` if this
        process has not claimed the name."""
    def update(
        self,
        pieces: Iterable[list[tuple[str, str, list[int], Foreign]]],
        files: list[str],
        *,
        hashed: bool,
        timeout: float,
        options: dict[str, Any],
    ) -> str:
        """Makes one update. Writes the tensors that `pieces` yields (each item is a list of
        tensors), and then the tensors from `files`. First waits at most `timeout` seconds for the
        end of another process's update. Returns the model's new hash."""
