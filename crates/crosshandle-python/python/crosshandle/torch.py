"""Support for torch: allocators whose tensors can be shared without a copy, and bundles for
`torch.multiprocessing`.

    import crosshandle.torch

    with crosshandle.torch.register():        # queues and pipes of torch.multiprocessing
        queue.put(tensor)

    pool = crosshandle.torch.MemPool(reserve=8 << 30)
    with torch.cuda.use_mem_pool(pool):       # tensors that other processes open in microseconds
        weights = torch.empty(...)

    # Batches reach the GPU through channels in pinned shared memory.
    loader = crosshandle.torch.DataLoader(data, batch_bytes=64 << 20, num_workers=8, device="cuda")

    with crosshandle.torch.without_weights():
        module = Transformer(config)
    crosshandle.torch.load_state_dict("llama-70b", module)   # a holder's weights, without a copy
"""

from __future__ import annotations

import atexit
import multiprocessing.queues
import pickle
import threading
import weakref
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from types import TracebackType
from typing import Any

import torch

from . import _crosshandle as _rust
from ._pending import keep, opened
from ._sharing import default_context, open, share
from ._libraries.torch_loader import DataLoader as DataLoader
from ._libraries.torch_store import LeftOnMetaError as LeftOnMetaError
from ._libraries.torch_store import load_state_dict as load_state_dict
from ._libraries.torch_store import without_weights as without_weights

atexit.register(_rust.stop_freeing)

_allocators: dict[int, Any] = {}
_lock = threading.Lock()


def allocator(device: int | None = None) -> Any:
    """Returns an allocator whose tensors can be shared without a copy. Pass it to
    `torch.cuda.MemPool` or `torch.cuda.memory.change_current_allocator`.

    `device` is torch's device number (default: the current device). Tensors can be shared even
    while a graph is captured. If torch frees memory that other processes have open, those processes
    keep it.

    >>> pool = torch.cuda.MemPool(crosshandle.torch.allocator().allocator())      # needs gpu
    """
    number = torch.cuda.current_device() if device is None else device
    _rust.serve_allocations(default_context(f"cuda:{number}"), number, 0)
    with _lock:
        if number not in _allocators:
            made = torch.cuda.memory.CUDAPluggableAllocator(
                _rust.__file__, "crosshandle_allocate", "crosshandle_free"
            )
            # torch may free memory through this allocator until the process ends.
            _rust.keep_for_ever(made)
            _rust.keep_for_ever(made.allocator())
            _allocators[number] = made
        return _allocators[number]


class MemPool(torch.cuda.MemPool):
    """A pool for `torch.cuda.use_mem_pool` whose tensors can be shared without a copy.

    The pool first allocates one block of `reserve` bytes. An importer maps the block only once, so
    it opens many tensors as fast as one. Tensors that do not fit into the block are allocated
    separately. The block is freed after the pool has been destroyed and no tensor uses the block.
    Other pools on the same device may use free space in the block, because torch does not tell the
    allocator for which pool it allocates.

    >>> with torch.cuda.use_mem_pool(crosshandle.torch.MemPool(reserve=1 << 30)):   # needs gpu
    ...     weights = torch.ones(1024, device="cuda")
    """

    def __init__(self, reserve: int = 0, *, device: int | None = None):
        number = torch.cuda.current_device() if device is None else device
        super().__init__(allocator(number).allocator())
        if reserve:
            arena = _rust.serve_allocations(default_context(f"cuda:{number}"), number, reserve)
            assert arena is not None
            # torch frees the pool's memory when it destroys the underlying pool, which may be some
            # time after this object is destroyed.
            weakref.finalize(self, _rust.abandon_arena, number, arena)


def _open_tensor(data: bytes, ticket: bytes, requires_grad: bool, is_parameter: bool) -> torch.Tensor:
    """Unpickles a tensor, and notifies the sender. Never runs code from the sender."""
    tensor: torch.Tensor = open(data).torch()
    opened(ticket)
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    tensor.requires_grad_(requires_grad)
    return tensor


def _reduce(tensor: torch.Tensor) -> tuple[Callable[..., torch.Tensor], tuple[bytes, bytes, bool, bool]]:
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError(
            "this tensor requires a gradient and is not a leaf, and autograd does not cross processes: detach() it"
        )
    event = default_context(f"cuda:{tensor.get_device()}").event()
    event.signal(torch.cuda.current_stream(tensor.device))
    bundle = share(tensor.detach(), event=event)
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    return _open_tensor, (bytes(bundle), keep(bundle._parts()), tensor.requires_grad, is_parameter)


class _PickledByPut:
    """An object that the thread that called `Queue.put` has already pickled."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes):
        self._data = data

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return pickle.loads, (self._data,)


def _pickled_by_put(value: Any) -> Any:
    """Pickles an object now if a tensor in it may depend on the current stream.

    The queue's feeder thread pickles all other objects later. The feeder thread's current streams
    differ from those of the thread that called `put`.
    """
    if isinstance(value, (str, bytes, int, float, type(None))) or not torch.cuda.is_initialized():
        return value
    try:
        return _PickledByPut(bytes(ForkingPickler.dumps(value)))
    except Exception:
        # The feeder thread will try to pickle the object again, and report the error.
        return value


class Registration:
    """The changes that `register` has made to torch's pickling. `undo`, or the end of a `with`
    block, reverts them.

    >>> registration = crosshandle.torch.register()
    >>> registration.undo()
    """

    def __init__(self, before: dict[type, Any], puts: dict[type, Any]):
        self._before: dict[type, Any] | None = before
        self._puts = puts

    def undo(self) -> None:
        """Restores torch's own pickling of tensors."""
        if self._before is not None:
            for kind, reducer in self._before.items():
                ForkingPickler.register(kind, reducer)
            for kind, put in self._puts.items():
                setattr(kind, "put", put)
            self._before = None

    def __enter__(self) -> Registration:
        return self

    def __exit__(
        self, _class: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.undo()


def register() -> Registration:
    """Makes queues and pipes from `torch.multiprocessing` send CUDA tensors as bundles.

    The program needs no other change. A sender may free a tensor right after `put`, and may exit as
    soon as the receiver has opened the tensor. Tensors in expandable segments
    (`expandable_segments`) can be sent. No ptrace rights are needed. The receiver never runs code
    from the sender, and imports this module automatically. torch sends host tensors as before.

    The receiver's stream waits for the work that the sender's current stream contained when `put`
    was called. The sender keeps each tensor alive until the receiver has opened it. See
    `crosshandle.pending`.

    >>> with crosshandle.torch.register():
    ...     queue = torch.multiprocessing.get_context("spawn").Queue()
    ...     queue.put(torch.ones(1024, device="cuda"))           # needs gpu
    ...     tensor = queue.get(timeout=30)                       # needs gpu
    """
    import torch.multiprocessing  # registers torch's own reducers

    before: dict[type, Any] = {}
    table: dict[type, Any] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    for kind in (torch.Tensor, torch.nn.Parameter):
        own = table[kind]
        before[kind] = own

        def reduce(tensor: torch.Tensor, own: Any = own) -> Any:
            is_ours = tensor.is_cuda and tensor.layout == torch.strided and not tensor.is_nested
            return _reduce(tensor) if is_ours else own(tensor)

        ForkingPickler.register(kind, reduce)
    puts: dict[type, Any] = {}
    for queue in (multiprocessing.queues.Queue, multiprocessing.queues.JoinableQueue):
        put = puts[queue] = queue.put

        def put_pickled(self: Any, obj: Any, *rest: Any, put: Any = put, **named: Any) -> None:
            put(self, _pickled_by_put(obj), *rest, **named)

        setattr(queue, "put", put_pickled)
    return Registration(before, puts)
