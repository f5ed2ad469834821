"""torch: tensors in memory that is born shareable, and `torch.multiprocessing` by this package's bundles.

    import crosshandle.torch

    with crosshandle.torch.register():            # queues and pipes of torch.multiprocessing
        queue.put(tensor)

    pool = crosshandle.torch.MemPool(reserve=8 << 30)
    with torch.cuda.use_mem_pool(pool):           # tensors that others open in microseconds
        weights = torch.empty(...)

    crosshandle.torch.load_state_dict("llama-70b", module)   # weights that a holder has, without a copy
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
from ._libraries.torch_store import load_state_dict as load_state_dict

atexit.register(_rust.stop_freeing)

_allocators: dict[int, Any] = {}
_lock = threading.Lock()


def allocator(device: int | None = None) -> Any:
    """The allocator for `torch.cuda.MemPool`, and for `torch.cuda.memory.change_current_allocator`.

    `device` is torch's number of the device, by default the current one. What it allocates can be shared by a handle at
    once, also while a graph is captured. Memory that others have open stays theirs when torch frees it.
    """
    number = torch.cuda.current_device() if device is None else device
    _rust.serve_allocations(default_context(f"cuda:{number}"), number, 0)
    with _lock:
        if number not in _allocators:
            made = torch.cuda.memory.CUDAPluggableAllocator(
                _rust.__file__, "crosshandle_allocate", "crosshandle_free"
            )
            # torch frees through it until the process ends.
            _rust.keep_for_ever(made)
            _rust.keep_for_ever(made.allocator())
            _allocators[number] = made
        return _allocators[number]


class MemPool(torch.cuda.MemPool):
    """A pool for `torch.cuda.use_mem_pool`, whose tensors can be shared by a handle at once.

    `reserve` bytes are taken now, as one block that importers map once: a tree of tensors in it is opened in the time
    of one. What does not fit is allocated piece by piece. The block is given back when the pool is gone and nothing in it
    is in use. Other pools of the device may use what is left of it, since torch does not say for which pool it
    allocates.
    """

    def __init__(self, reserve: int = 0, *, device: int | None = None):
        number = torch.cuda.current_device() if device is None else device
        super().__init__(allocator(number).allocator())
        if reserve:
            arena = _rust.serve_allocations(default_context(f"cuda:{number}"), number, reserve)
            assert arena is not None
            # torch gives the pool's memory back when the pool ends, some time after this object does.
            weakref.finalize(self, _rust.abandon_arena, number, arena)


def _open_tensor(data: bytes, ticket: bytes, requires_grad: bool, is_parameter: bool) -> torch.Tensor:
    """What a pickled tensor is made of again. Runs nothing that the sender chose."""
    tensor: torch.Tensor = open(data).torch()
    opened(ticket)
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    tensor.requires_grad_(requires_grad)
    return tensor


def _reduce(tensor: torch.Tensor) -> tuple[Callable[..., torch.Tensor], tuple[bytes, bytes, bool, bool]]:
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError(
            "this tensor requires a gradient and is no leaf, and autograd does not cross processes: detach() it"
        )
    event = default_context(f"cuda:{tensor.get_device()}").event()
    event.signal(torch.cuda.current_stream(tensor.device))
    bundle = share(tensor.detach(), event=event)
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    return _open_tensor, (bytes(bundle), keep(bundle._parts()), tensor.requires_grad, is_parameter)


class _PickledByPut:
    """An object that `Queue.put` has pickled, in its caller's thread."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes):
        self._data = data

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return pickle.loads, (self._data,)


def _pickled_by_put(value: Any) -> Any:
    """Pickles an object now, if a tensor in it may depend on the current stream. The thread of the queue that would do so
    later has other current streams."""
    if isinstance(value, (str, bytes, int, float, type(None))) or not torch.cuda.is_initialized():
        return value
    try:
        return _PickledByPut(bytes(ForkingPickler.dumps(value)))
    except Exception:
        # The thread of the queue reports it, as for any other object.
        return value


class Registration:
    """What `register` has changed; `with` and `undo` change it back."""

    def __init__(self, before: dict[type, Any], puts: dict[type, Any]):
        self._before: dict[type, Any] | None = before
        self._puts = puts

    def undo(self) -> None:
        """Lets torch send tensors itself again."""
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
    """Makes the queues and pipes of `torch.multiprocessing` send tensors on CUDA devices as bundles.

    The program stays as it is. A sender may free the tensor, and exit once the receiver has it; segments that grow
    (`expandable_segments`) work; nothing needs ptrace rights, and nothing that the sender chose runs in the
    receiver. Tensors on the host are sent by torch as before. The receiving process imports this module by itself.

    The receiver's stream waits for what the stream that is current when `put` is called was given before. A tensor is
    kept until the receiver has opened it, as everything is that is pickled: see `crosshandle.pending`.
    """
    import torch.multiprocessing  # registers torch's own

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
