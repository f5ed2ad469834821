"""What is written in Rust."""

from collections.abc import Awaitable, Iterable, Iterator, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, SupportsBytes, final

__version__: str

_Handle = SupportsBytes | bytes | bytearray | memoryview | str


@final
class Device:
    """A device: the host's own memory, or a GPU."""

    def __new__(cls, name: Any = None) -> Device: ...
    @staticmethod
    def all() -> list[Device]:
        """All devices of this machine whose drivers are here."""
    @property
    def name(self) -> str:
        """The name that finds the device again, such as `cuda:0`."""
    @property
    def description(self) -> str:
        """What the driver calls it."""
    @property
    def backend(self) -> str:
        """The driver that it belongs to: `host`, `cuda` or `level_zero`."""
    @property
    def index(self) -> int:
        """Its number among those of its backend, in this process."""
    @property
    def uuid(self) -> str:
        """Its identity, the same in every process on this machine."""
    @property
    def total_memory(self) -> int:
        """Its memory, in bytes."""
    @property
    def free_memory(self) -> int | None:
        """Its memory that is free now, in bytes; `None` if the driver doesn't say."""
    @property
    def granularity(self) -> int:
        """What the sizes of physical memory and of mappings are multiples of, in bytes."""
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Context:
    """What a process shares and opens on one device."""

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
        """Allocates `nbytes` bytes, of arbitrary contents, that can be shared."""
    def empty(self, shape: int | Sequence[int], dtype: Any = None) -> Array:
        """Makes an array in new memory, of arbitrary elements."""
    def open_memory(self, handle: _Handle, *, writable: bool = True, timeout: float | None = None) -> Memory:
        """Opens memory that a process has exported: the same bytes, without a copy."""
    def event(self, *, name: str | None = None, low_power: bool = False, isolated: bool = False) -> Event:
        """Makes an event."""
    def open_event(self, handle: _Handle, *, low_power: bool = False, timeout: float | None = None) -> Event:
        """Opens an event of another process."""
    def open(
        self, handle: _Handle, *, writable: bool = True, timeout: float | None = None
    ) -> Memory | Event | PhysicalMemory:
        """Opens what a handle is for: memory, physical memory or an event; `writable=False`: memory for reading only."""
    def queue(self, stream: Any = None, *, in_order: bool = True) -> Queue:
        """Makes a queue, which runs commands in order, or as they become ready; or of a stream."""
    def _adopt_stream(self, number: int, stream: Any) -> Queue:
        """Adopts a stream of the driver by its number. Whoever calls it keeps the stream."""
    def physical_memory(self, nbytes: int) -> PhysicalMemory:
        """Creates physical memory, a multiple of the device's granularity."""
    def reserve(self, nbytes: int) -> VirtualRange:
        """Reserves addresses, to map physical memory into."""
    def trim(self) -> None:
        """Gives freed memory that is kept for reuse back to the system."""
    def memory_handle_at(self, address: int) -> MemoryHandle:
        """Returns the handle of the memory that an address points into, if it is this context's."""

@final
class Memory:
    """Memory that processes share: allocated by a context, or opened from a handle."""

    name: str | None
    @property
    def nbytes(self) -> int:
        """The size in bytes."""
    @property
    def address(self) -> int:
        """The address in this process."""
    @property
    def read_only(self) -> bool:
        """Whether it can be read only."""
    @property
    def in_use(self) -> bool:
        """Whether commands that were submitted use it."""
    def lend(self, owner: object, *, nbytes: int | None = None, offset: int = 0) -> Memory:
        """Lends a part with handles of its own; `owner` is dropped when no process has it open any more."""
    def handle(self, *, read_only: bool = False) -> MemoryHandle:
        """Returns the handle to send to other processes."""
    def array(self, shape: int | Sequence[int] | None = None, dtype: Any = None, *, offset: int = 0) -> Array:
        """Returns a view of it as an array, without a copy."""
    def read(self, nbytes: int | None = None, *, offset: int = 0) -> bytes:
        """Copies bytes out of host memory."""
    def write(self, data: Any, *, offset: int = 0) -> None:
        """Copies bytes, an array or another contiguous buffer into host memory."""
    def close(self) -> None:
        """Closes it for this process, as far as no array keeps it open."""
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
        """The distance of neighbours in each dimension, in bytes."""
    @property
    def dtype(self) -> Any:
        """The name of the elements' type, such as `float32` or `<M8[ns]`. Of records it is NumPy's dtype."""
    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
    @property
    def T(self) -> Array:
        """The same array with its dimensions in the opposite order."""
    @property
    def ndim(self) -> int:
        """The number of dimensions."""
    @property
    def size(self) -> int:
        """The number of elements."""
    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
    @property
    def read_only(self) -> bool:
        """Whether it can be read only."""
    @property
    def _is_lent(self) -> bool:
        """Whether it is in memory that is lent, with what its library keeps the bytes by."""
    def _as_read_only(self) -> Array:
        """Returns the same array for reading only."""
    @property
    def event(self) -> Event | None:
        """The event that says that the bytes are there, if the bundle had one."""
    @property
    def device(self) -> str:
        """The name of the device that the bytes are on, such as `cuda:0`."""
    @property
    def address(self) -> int:
        """The address of the first element in this process."""
    def wait(self, timeout: float | None = None) -> None:
        """Waits on the host until the bytes are there, at most `timeout` seconds."""
    def numpy(self, *, timeout: float | None = None) -> Any:
        """Returns a NumPy array of the same bytes. Waits until they are there, at most `timeout` seconds."""
    def torch(self, *, copy: bool = False) -> Any:
        """Returns a torch tensor of the same bytes; of read-only memory a copy, if `copy` says so."""
    def jax(self) -> Any:
        """Returns a JAX array of the same bytes, which nobody may write as long as it lives."""
    def cupy(self) -> Any:
        """Returns a CuPy array of the same bytes, for memory of a GPU."""
    def dpctl(self, queue: Any = None) -> Any:
        """Returns memory of dpctl, USM of a device, of the bytes from the lowest to the highest one of the array. It is in
        the context of `queue`, or of the queue that dpctl uses for the array's device. The process has loaded this
        package's Unified Runtime adapter."""
    def dpnp(self, queue: Any = None) -> Any:
        """Returns a dpnp array of the same bytes, in USM as `dpctl` has it. Of read-only memory it is not writable."""
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
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __array__(self, dtype: Any = None, *, copy: bool | None = None) -> Any:
        """Returns NumPy's array of the same bytes, as `numpy.asarray` asks for it."""
    def __getitem__(self, index: Any, /) -> Any:
        """Returns an element, or NumPy's view of a part, of memory of the host."""
    def __setitem__(self, index: Any, value: Any, /) -> None:
        """Writes elements of memory of the host."""
    def __iter__(self) -> Iterator[Any]: ...
    def tolist(self) -> Any:
        """Returns the elements as a list of Python's numbers, with a list for each row."""
    def __len__(self) -> int: ...

@final
class Event:
    """A counter of signals that processes share."""

    def __new__(
        cls, name: str | None = None, *, device: Any = None, low_power: bool = False, isolated: bool = False
    ) -> Event: ...
    name: str | None
    def signal(self, stream: Any = None) -> int:
        """Signals from this process, or has a stream signal. Returns the signal's number."""
    def wait_on(self, stream: Any, value: int | None = None) -> None:
        """Has a stream wait for signal `value` (default: the latest, or the first one). This call does not wait."""
    def signal_value(self, value: int) -> None:
        """Signals all numbers up to `value` at once."""
    def wait(self, timeout: float | None = None) -> None:
        """Waits for the latest signal, or for the first one if there is none, at most `timeout` seconds."""
    def wait_value(self, value: int, timeout: float | None = None) -> None:
        """Waits for signal `value`, submitted or not, as `wait` does."""
    def ready(self, value: int | None = None) -> bool:
        """Returns whether signal `value` (default: the latest) has completed; `False` if it was not submitted."""
    def done(self, value: int | None = None) -> bool:
        """The same as `ready`."""
    def _look(self, value: int) -> bool:
        """Returns whether signal `value` has completed, or does so in the next microseconds."""
    def reached(self, value: int | None = None) -> Awaitable[None]:
        """Returns an awaitable that ends when signal `value` (default: the latest, or the first one) has completed."""
    @property
    def submitted(self) -> int:
        """The number of the signal that was submitted last; 0 if there was none."""
    @property
    def completed(self) -> int:
        """The greatest number such that this signal and all before it are finished."""
    def handle(self) -> EventHandle:
        """Returns the handle to send to other processes."""
    @staticmethod
    def wait_all(events: list[Event], timeout: float | None = None) -> None:
        """Waits until the latest signals of all events, or their first ones, have completed."""
    @staticmethod
    def wait_any(events: list[Event], timeout: float | None = None) -> int:
        """Waits until the latest signal of one of the events has completed; returns its index."""

@final
class MemoryHandle:
    """A handle to memory."""

    def __new__(cls, value: _Handle) -> MemoryHandle: ...
    @property
    def backend(self) -> str:
        """The backend of its device: `host`, `cuda` or `level_zero`."""
    @property
    def device_uuid(self) -> str:
        """The identity of its device, as `Device.uuid` has it."""
    @property
    def exporter_pid(self) -> int:
        """The id of the process that made it, in that process's own namespace: for messages only."""
    @property
    def nbytes(self) -> int:
        """The bytes that it is for."""
    @property
    def read_only(self) -> bool:
        """Whether it grants reading only."""
    def __bytes__(self) -> bytes: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

@final
class EventHandle:
    """A handle to an event."""

    def __new__(cls, value: _Handle) -> EventHandle: ...
    @property
    def backend(self) -> str:
        """The backend of its device: `host`, `cuda` or `level_zero`."""
    @property
    def device_uuid(self) -> str:
        """The identity of its device, as `Device.uuid` has it."""
    @property
    def exporter_pid(self) -> int:
        """The id of the process that made it, in that process's own namespace: for messages only."""
    def __bytes__(self) -> bytes: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

@final
class PhysicalMemoryHandle:
    """A handle to physical memory."""

    def __new__(cls, value: _Handle) -> PhysicalMemoryHandle: ...
    @property
    def backend(self) -> str:
        """The backend of its device: `host`, `cuda` or `level_zero`."""
    @property
    def device_uuid(self) -> str:
        """The identity of its device, as `Device.uuid` has it."""
    @property
    def exporter_pid(self) -> int:
        """The id of the process that made it, in that process's own namespace: for messages only."""
    @property
    def nbytes(self) -> int:
        """The bytes that it is for."""
    @property
    def read_only(self) -> bool:
        """Whether it grants reading only."""
    def __bytes__(self) -> bytes: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

@final
class PhysicalMemory:
    """Memory without an address: it is used by mapping it into a `VirtualRange`."""

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
        """Maps physical memory, or a part of it, at byte `offset`; `access` is `"rw"`, `"r"` or `None`."""
    def unmap(self, offset: int = 0, nbytes: int | None = None) -> None:
        """Unmaps bytes (default: all), which are one mapping or several side by side."""
    def protect(self, access: str | None, offset: int = 0, nbytes: int | None = None) -> None:
        """Changes the access to mappings (default: all)."""
    def is_mapped(self, offset: int) -> bool:
        """Whether something is mapped at a byte."""
    def read(self, offset: int, nbytes: int) -> bytes:
        """Copies bytes out of one mapping, of memory that the host can access."""
    def write(self, offset: int, data: bytes) -> None:
        """Copies bytes into one mapping, of memory that the host can access."""
    def close(self) -> None:
        """Unmaps all, and gives the addresses back."""
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
    """Awaits any number of signals for an event loop."""

    def __new__(cls) -> Notifier: ...
    def fileno(self) -> int:
        """The descriptor to watch; nothing is to be read from it."""
    def add(self, event: Event, value: int, token: int) -> None:
        """Awaits signal `value` of an event; `next` returns `token` with its result."""
    def remove(self, token: int) -> bool:
        """Cancels what is awaited with a token. Returns whether anything was."""
    def next(self) -> tuple[int, Exception | None] | None:
        """Returns the next token with its exception, if any; `None` if nothing has come."""
    def close(self) -> None:
        """Cancels all that is awaited, and closes the descriptor."""

@final
class Queue:
    """A queue of commands of a device."""

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
        """Submits a copy, which waits for the events in `after` and signals `signal` when it is done."""
    def fill(
        self, destination: Memory, pattern: bytes, *, after: Sequence[Event] | None = None, signal: Event | None = None
    ) -> None:
        """Submits a fill of memory with a pattern, over and over."""
    def signal(self, event: Event) -> int:
        """Has the event signalled when all earlier commands are done. Returns the signal's number."""
    def wait(self, event: Event, value: int | None = None) -> None:
        """Has all later commands wait for signal `value` (default: the latest) of the event."""
    @property
    def native(self) -> int | None:
        """The driver's own number of the queue; `None` where no driver is behind it."""
    def finish(self, timeout: float | None = None) -> None:
        """Waits until all commands are done, at most `timeout` seconds."""
    @property
    def idle(self) -> bool:
        """Whether no command is under way."""

@final
class Foreign:
    """An array of another library, and what keeps its bytes."""

    @property
    def device(self) -> str:
        """The device's name; `cuda` or `sycl` if the library does not say which one."""
    @property
    def dtype(self) -> str:
        """The name of the elements' type."""
    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension, in elements."""
    @property
    def address(self) -> int:
        """The address of the lowest byte."""

def describe(value: Any) -> Foreign:
    """Describes an array of another library."""

def adopt_all(context: Context, arrays: list[Foreign]) -> list[Array | Exception]:
    """Makes arrays of shared memory of other libraries' arrays, or says why each cannot be."""

def laid_over(base: Array, array: Foreign, offset: int) -> Array:
    """Makes an array with the layout of another library's, `offset` bytes inside the memory that `base` is in."""

def copied(context: Context, array: Foreign) -> Array:
    """Copies another library's array into new memory of a context on the array's device."""

def moved(context: Context, array: Array) -> Array:
    """Copies an array of this package without gaps into new memory of a context on any device."""

def filled(context: Context, shape: int | Sequence[int], dtype: Any, element: bytes) -> Array:
    """Makes an array in new memory of a context, filled with the bytes of one element or of several, over and over."""

def dtype_of(value: Any) -> tuple[str, int]:
    """Returns the name of a type in any form that NumPy or torch has, and the bytes of an element."""

def numpy_dtype(value: Any) -> Any:
    """Returns NumPy's dtype for a type in any form that NumPy or torch has."""

def device_name(device: Any) -> str:
    """Returns the name of a device: of a `Device`, a name, or a device of torch, JAX or CuPy."""

def parse_handle(value: _Handle) -> MemoryHandle | EventHandle | PhysicalMemoryHandle:
    """Reads a handle of any kind, from its bytes or its text."""

@final
class Block:
    """Memory for an allocator that is written in Python, freed with this object."""

    def __new__(cls, context: Context, nbytes: int) -> Block: ...
    @property
    def address(self) -> int:
        """The address of the first byte."""

def serve_allocations(context: Context, number: int, reserve: int) -> int | None:
    """Lets a context allocate for libraries on CUDA's device `number`; `reserve` bytes are taken now."""

def stop_freeing() -> None:
    """Frees nothing from now on, since the process ends."""

def keep_for_ever(object: object) -> None:
    """Keeps an object as long as the process."""

def abandon_arena(number: int, arena: int) -> None:
    """Gives the arenas of a device back that nothing is allocated in. Returns how many are left."""

def pack(
    structure: str,
    arrays: list[Array],
    read_only: bool,
    *,
    event: tuple[EventHandle, int] | None = None,
) -> bytes:
    """Packs arrays and the structure that they are arranged in; `event`: the signal after which they are ready."""

def pack_shared(
    context: Context,
    structure: str,
    arrays: list[Array],
    read_only: bool,
    *,
    event: tuple[EventHandle, int] | None = None,
) -> tuple[bytes, Memory | None]:
    """Packs as `pack` does. Keep the memory, if there is some, for as long as somebody may unpack the bytes."""

def unpack(
    context: Context | None, data: bytes, *, writable: bool = True, timeout: float | None = None
) -> tuple[str, list[Array]]:
    """Unpacks a bundle, and opens its memory in a context, or in the default contexts of its devices."""

def keep(objects: list[Any], receivers: int) -> bytes:
    """Keeps objects until so many processes have opened them. Returns the ticket that each receiver gives to `opened`.
    Waits for room if too much is kept."""

def opened(context: Context, ticket: bytes) -> None:
    """Tells the sender of a pickle that this process has opened the object."""

def kept() -> tuple[int, int]:
    """Returns how many pickled objects are kept, and how many bytes they alone keep."""

def release_kept() -> int:
    """Keeps none of the pickled objects any longer. Returns how many were kept."""

def wait_for_receivers(patience: float | None) -> int:
    """Waits until all pickled objects have been opened. Returns once `patience` seconds pass in which none was, with the
    number of those that are left."""

def kept_limits() -> tuple[int, int, float | None]:
    """Returns the limits: objects, bytes, and the seconds that pickling waits for room, where `None` is for ever."""

def set_kept_limits(objects: int, bytes: int, timeout: float | None) -> None:
    """Sets the limits."""

def forget_contexts() -> None:
    """Forgets which contexts are the default ones, so that they can end."""

def event_of(data: bytes) -> tuple[EventHandle, int] | None:
    """Returns the event in a bundle's bytes and the number of its signal, if there is one. Opens nothing."""

@final
class Link:
    """A link to another host: opens handles that were made there."""

    @staticmethod
    def connect(
        address: str, context: Context, options: dict[str, object], timeout: float | None = None
    ) -> Link: ...
    @property
    def peer(self) -> str:
        """The other side's address."""
    @property
    def ended(self) -> str | None:
        """Why the link has ended; `None` while it has not."""
    def open_memory(
        self, handle: _Handle, *, writable: bool = True, timeout: float | None = None
    ) -> RemoteMemory:
        """Opens memory of the other host."""
    def open_event(self, handle: _Handle, *, timeout: float | None = None) -> RemoteEvent:
        """Opens an event of the other host."""
    def open_name(
        self, name: str, *, timeout: float | None = None
    ) -> tuple[int, list[tuple[str, RemoteMemory]]]:
        """Opens what has a name at the other host's holder: its version, and its parts by what they are for."""
    def close(self) -> None:
        """Ends the link: whatever waits for the other side, on both sides, fails."""
    def __enter__(self) -> Link: ...
    def __exit__(
        self, cls: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

@final
class Listener:
    """Listens for other hosts that want to link."""

    @staticmethod
    def bind(address: str, context: Context, options: dict[str, object]) -> Listener: ...
    @property
    def address(self) -> str:
        """The address at which it listens."""
    def accept(self, timeout: float | None = None) -> Link:
        """Waits for the next host that links, at most `timeout` seconds."""
    def close(self) -> None:
        """Ends the listening. Links that were accepted go on."""
    def __enter__(self) -> Listener: ...
    def __exit__(
        self, cls: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

@final
class RemoteMemory:
    """Memory of the other host, which can be read and written but not mapped."""

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
    @property
    def read_only(self) -> bool:
        """Whether it can be read only."""
    @property
    def staged(self) -> bool:
        """Whether the other host cannot access it, as it cannot a GPU's: it is copied there once more."""
    def read(self, nbytes: int | None = None, *, offset: int = 0, timeout: float | None = None) -> bytes:
        """Copies bytes here: `nbytes` (default: all that follow) from byte `offset` on."""
    def read_into(self, into: Any, *, offset: int = 0, timeout: float | None = None) -> None:
        """Fills an array or another writable buffer with bytes from byte `offset` on."""
    def write(self, data: Any, *, offset: int = 0, timeout: float | None = None) -> None:
        """Copies bytes, an array or another contiguous buffer there. Returns when they are there."""
    def write_and_signal(
        self, data: Any, event: RemoteEvent, *, offset: int = 0, timeout: float | None = None
    ) -> int:
        """Copies bytes there, then signals an event of the same link, and returns the signal's number."""
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
        """Copies memory of this host there, maybe a GPU's: by a queue, or before it returns."""
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
        """Copies to memory of this host, maybe a GPU's: by a queue, or before it returns."""
    def close(self) -> None:
        """Closes it. What is under way goes on."""

@final
class RemoteEvent:
    """An event of the other host. Its `mirror` is waited for as any event is."""

    @property
    def mirror(self) -> Event:
        """The event of this host that goes on as the other host's does: to be waited for, not to be signalled."""
    def signal(self, timeout: float | None = None) -> int:
        """Signals the other host's event, and returns the signal's number after a round trip."""
    def close(self) -> None:
        """Closes it: waits for the mirror that are not over fail."""

def new_token() -> str:
    """Makes a new token, as text."""

@final
class StoreClient:
    """Models that a holder keeps under names: `crosshandle.store.Store` is what programs use."""

    def __new__(cls, socket_dir: str | None = None, token: str | None = None) -> StoreClient: ...
    def open(
        self, name: str, *, place: str | int | None, timeout: float, options: dict[str, Any]
    ) -> StoreModel:
        """Opens a model."""
    def load(
        self, name: str, files: list[str], *, device: str, options: dict[str, Any], hold: dict[str, Any]
    ) -> tuple[int, str, bool, int, tuple[float, float, float]]:
        """Loads files of safetensors, and hands them over."""
    def publish(
        self,
        name: str,
        tensors: list[tuple[str, str, list[int], Foreign]],
        *,
        device: str,
        options: dict[str, Any],
        hold: dict[str, Any],
    ) -> tuple[int, str, bool, int, tuple[float, float, float]]:
        """Copies tensors of the host's, and hands them over."""
    def updater(self, name: str, *, claim: bool, force: bool, timeout: float | None) -> StoreUpdater:
        """Opens a model to write its tensors in place."""
    def forget_contexts(self) -> None:
        """Lets go of the contexts that it keeps for later calls."""
    def ls(self, timeout: float | None = None) -> list[dict[str, Any]]:
        """Returns what the holder has."""
    def rm(self, name: str, timeout: float | None = None) -> None:
        """Lets go of what a name stands for."""
    def pin(self, name: str, pinned: bool, timeout: float | None = None) -> None:
        """Protects a name from being removed or replaced, or does so no more."""
    def await_version(self, name: str, version: int, timeout: float | None) -> int:
        """Waits until a name has a later version, and returns its number."""

@final
class StoreModel:
    """A model that was opened: `crosshandle.store.Model` is what programs use."""

    def describe(self) -> tuple[str, int, str, str, int, int]:
        """Returns the name, the version, the hash, the device, the bytes and the number of the last update."""
    def tensors(self) -> dict[str, tuple[str, list[int], int, int]]:
        """Returns the type, the shape, the first byte and the length of each tensor."""
    def metadata(self) -> dict[str, str]:
        """Returns what the files said beside the tensors."""
    def array(self, name: str, dtype: Any) -> Array:
        """Returns a tensor as an array of a type that this package has."""
    @property
    def address(self) -> int | None:
        """The address of the model's memory, which stays while it sleeps."""
    @property
    def asleep(self) -> bool:
        """Whether it sleeps."""
    def verify(self, threads: int | None = None) -> None:
        """Takes the hash of the contents again, and compares."""
    def stable(self, timeout: float | None) -> int:
        """Waits until no update is under way. Returns a number that updates change."""
    def is_still(self, number: int) -> bool:
        """Returns whether no update has begun since a number was returned."""
    def next_update(self, number: int, timeout: float | None) -> int:
        """Waits for the end of an update after the one with this number."""
    def refresh(self, timeout: float | None) -> int:
        """Reads names and hash again."""
    def sleep(self, to: str | None = None) -> None:
        """Unmaps the memory, and keeps its addresses."""
    def wake(self) -> bool:
        """Maps what the name stands for now at the same addresses."""

@final
class StoreUpdater:
    """A model that this process can write: `crosshandle.store.Updater` is what programs use."""

    @property
    def version(self) -> int:
        """The version that it writes."""
    @property
    def epoch(self) -> int | None:
        """The number of this process as the name's one writer; `None` if the name was not claimed."""
    def update(
        self,
        pieces: Iterable[list[tuple[str, str, list[int], Foreign]]],
        files: list[str],
        *,
        hashed: bool,
        timeout: float,
        options: dict[str, Any],
    ) -> str:
        """Does one update. Returns the model's new hash."""
