"""Loading of batches for torch, through channels in shared memory."""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree
from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from .._crosshandle import Channel, Consumer, Item, Producer, Slot

# Alignment in bytes of the tensors in a slot.
_ALIGN = 64
# Time in seconds that the trainer waits for a batch that its worker has published before.
_LIMIT = 60.0


class _Place(NamedTuple):
    """The place of a tensor in a slot."""

    offset: int
    nbytes: int
    dtype: Any
    shape: tuple[int, ...]


class _Packed(NamedTuple):
    """A batch in a channel. A worker sends it in place of the tensors."""

    worker: int
    number: int
    nbytes: int
    leaves: list[Any]
    structure: Any


class _Pack:
    """The function with which workers make batches. It runs in the workers.

    Without a function of the program, the samples are stacked in the slot. Otherwise the tensors of
    the batch are copied into the slot.
    """

    def __init__(self, own: Callable[[list[Any]], Any] | None, handles: list[bytes]):
        self._own = own
        self._handles = handles
        self._producer: Producer | None = None
        # The bytes of the reserved slot, and how many of them are used.
        self._buffer: Any = None
        self._used = 0

    def __getstate__(self) -> tuple[Any, list[bytes]]:
        return self._own, self._handles

    def __setstate__(self, state: tuple[Any, list[bytes]]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def __call__(self, samples: list[Any]) -> Any:
        worker = get_worker_info()
        if worker is None:
            return self._collated(samples)
        if self._producer is None:
            self._producer = Channel.open(self._handles[worker.id]).producer()
        slot = self._producer.reserve()
        self._buffer, self._used = slot.torch(), 0
        batch = None
        try:
            batch = self._packed(samples, worker.id, slot)
        finally:
            self._buffer = None
            if not isinstance(batch, _Packed):
                slot.release()
        return batch

    def _collated(self, samples: list[Any]) -> Any:
        if self._own is not None:
            return self._own(samples)
        return collate(samples, collate_fn_map={**default_collate_fn_map, torch.Tensor: self._stacked})

    def _take(self, nbytes: int) -> Any:
        """Returns bytes of the slot that are not used yet, or `None`."""
        if self._buffer is None or self._used + nbytes > self._buffer.numel():
            return None
        start, self._used = self._used, self._used + -(-nbytes // _ALIGN) * _ALIGN
        return self._buffer[start : start + nbytes]

    def _stacked(self, samples: Any, *, collate_fn_map: Any = None) -> Any:
        """Stacks tensors in the slot, or as torch does if they do not fit."""
        first = samples[0]
        is_plain = first.device.type == "cpu" and first.layout == torch.strided and not first.is_nested
        is_alike = is_plain and all(sample.shape == first.shape and sample.dtype == first.dtype for sample in samples)
        nbytes = len(samples) * first.numel() * first.element_size() if is_alike else 0
        place = self._take(nbytes) if nbytes else None
        if place is None:
            return default_collate_fn_map[torch.Tensor](samples, collate_fn_map=collate_fn_map)
        out = place.view(first.dtype).view(len(samples), *first.shape)
        return torch.stack(samples, 0, out=out)

    def _packed(self, samples: list[Any], worker: int, slot: Slot) -> Any:
        batch = self._collated(samples)
        start = self._buffer.data_ptr()
        leaves, structure = _pytree.tree_flatten(batch)
        for place, leaf in enumerate(leaves):
            if not (isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu" and leaf.layout == torch.strided):
                continue
            size = leaf.numel() * leaf.element_size()
            offset = leaf.data_ptr() - start
            if not (size and 0 <= offset < self._used):
                into = self._take(size)
                if into is None:
                    return self._unshared(leaves, structure, start)
                into.view(leaf.dtype).view(leaf.shape).copy_(leaf)
                offset = into.data_ptr() - start if size else 0
            leaves[place] = _Place(offset, size, leaf.dtype, tuple(leaf.shape))
        if self._used == 0:
            return batch
        nbytes = min(self._used, self._buffer.numel())
        slot.nbytes = nbytes
        return _Packed(worker, slot.publish(), nbytes, leaves, structure)

    def _unshared(self, leaves: list[Any], structure: Any, start: int) -> Any:
        """Returns a batch that does not fit into the slot, without the slot."""
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, _Place):
                leaves[place] = _view(self._buffer, leaf).clone()
            elif isinstance(leaf, torch.Tensor) and 0 <= leaf.data_ptr() - start < self._buffer.numel():
                leaves[place] = leaf.clone()
        return _pytree.tree_unflatten(leaves, structure)


def _view(buffer: Any, at: _Place) -> Any:
    return buffer[at.offset : at.offset + at.nbytes].view(at.dtype).view(at.shape)


class DataLoader:
    """Loads batches as `torch.utils.data.DataLoader` does, through channels in shared memory.

    The workers put the tensors of a batch into one slot of a channel. With a CUDA `device`, the
    slots are pinned, and the trainer copies each batch to the GPU with one transfer from the slot.
    Otherwise the tensors of a batch use the slot in place, and the trainer keeps at most `held`
    batches of each worker.

    `batch_bytes` is the size of the largest batch in bytes. A larger batch crosses as with torch's
    own loader. All other arguments are those of `torch.utils.data.DataLoader`.

    >>> data = torch.utils.data.TensorDataset(torch.arange(8.0).reshape(4, 2))
    >>> loader = crosshandle.torch.DataLoader(data, batch_size=2, num_workers=1, batch_bytes=4096)
    >>> [batch.tolist() for batch, in loader]
    [[[0.0, 1.0], [2.0, 3.0]], [[4.0, 5.0], [6.0, 7.0]]]
    >>> loader.close()
    """

    def __init__(
        self,
        dataset: Any,
        *,
        batch_bytes: int,
        device: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        prefetch_factor: int | None = None,
        held: int = 3,
        **options: Any,
    ):
        self._device = None if device is None else torch.device(device)
        # torch's loader asks for the next batch before the trainer has received the one that it
        # awaits, so one batch more than the prefetched ones may wait.
        waiting = 1 << (prefetch_factor or 2).bit_length()
        # A worker never waits: a batch that the trainer awaits is among the newest ones, and
        # batches of an iteration that was given up are replaced.
        self._channels = [
            Channel(slot_size=batch_bytes, depth=waiting, drop_oldest=True, producers=2, held=held, awaits_producers=True)
            for _ in range(num_workers)
        ]
        self._consumers: list[Consumer] = [channel.consumer(writable=True) for channel in self._channels]
        handles = [bytes(channel.handle()) for channel in self._channels]
        # The default of torch's loader would convert each sample without batches.
        is_batched = options.get("batch_sampler") is not None or options.get("batch_size", 1) is not None
        if collate_fn is None and not is_batched:
            collate_fn = torch.utils.data.default_convert
        self._loader = torch.utils.data.DataLoader(
            dataset,
            num_workers=num_workers,
            collate_fn=_Pack(collate_fn, handles),
            prefetch_factor=prefetch_factor,
            **options,
        )
        self._held = held
        # Addresses of slots that are pinned.
        self._pinned: set[int] = set()
        # Items that the GPU still reads, each with the event after its copy.
        self._copied: deque[tuple[Any, Item]] = deque()

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            if isinstance(batch, _Packed):
                yield self._unpacked(batch)
            elif self._device is None:
                yield batch
            else:
                yield _pytree.tree_map(self._moved, batch)

    def _moved(self, leaf: Any) -> Any:
        return leaf.to(self._device) if isinstance(leaf, torch.Tensor) else leaf

    def _unpacked(self, packed: _Packed) -> Any:
        consumer = self._consumers[packed.worker]
        while len(self._copied) >= self._held - 1 or (self._copied and self._copied[0][0].query()):
            event, item = self._copied.popleft()
            event.synchronize()
            del item
        item = consumer.receive(timeout=_LIMIT)
        while item.number < packed.number:
            # This batch belongs to an iteration that was given up.
            item = consumer.receive(timeout=_LIMIT)
        if item.number != packed.number:
            raise RuntimeError(f"batch {packed.number} of worker {packed.worker} was replaced")
        buffer = item.torch()[: packed.nbytes]
        if self._device is not None and self._device.type == "cuda":
            self._pin(item)
            buffer = buffer.to(self._device, non_blocking=True)
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(self._device))
            self._copied.append((event, item))
        elif self._device is not None:
            buffer = buffer.to(self._device)
        leaves = [_view(buffer, leaf) if isinstance(leaf, _Place) else leaf for leaf in packed.leaves]
        return _pytree.tree_unflatten(leaves, packed.structure)

    def _pin(self, item: Item) -> None:
        address = item.array.address
        if address not in self._pinned:
            size = -(-self._channels[0].slot_size // mmap.PAGESIZE) * mmap.PAGESIZE
            if address % mmap.PAGESIZE == 0:
                # Without pinned memory the copy is slower, but correct.
                torch.cuda.cudart().cudaHostRegister(address, size, 0)
            self._pinned.add(address)

    def close(self) -> None:
        """Frees the slots. Batches that the program still has stay valid."""
        while self._copied:
            self._copied.popleft()[0].synchronize()
        for address in self._pinned:
            torch.cuda.cudart().cudaHostUnregister(address)
        self._pinned.clear()
        for consumer in self._consumers:
            consumer.close()
        for channel in self._channels:
            channel.close()

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
