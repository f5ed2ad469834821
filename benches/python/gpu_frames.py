"""Benchmarks of frames that one process sends to another, in the memory of a CUDA device.

They need torch.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any

import crosshandle
from harness import DEADLINE, Other, Row, other, pick

DEVICE = "cuda:0"
FRAME = (1080, 1920, 3)
# Numbers of frames that can wait to be received, in a channel, a queue and a ring. Processes take
# turns on a GPU, so more frames in a turn need less time for each.
DEPTHS = (8, 32)
# Maximum number of items that a consumer has.
MOST_HELD = 15
ROUNDS = 3


def received(count: int, target_device: str, receive: Callable[[Any, Any, int], None]) -> float:
    """Receives frames and copies each into memory of this process. Returns the time of one frame in
    microseconds."""
    import torch

    stream = torch.cuda.Stream(DEVICE)
    target = torch.empty(FRAME, dtype=torch.uint8, device=target_device)
    began = 0
    with torch.cuda.stream(stream):
        for number in range(1, count + 1):
            receive(target, stream, number)
            if number == 1:
                stream.synchronize()
                began = time.perf_counter_ns()
        stream.synchronize()
    return (time.perf_counter_ns() - began) / 1e3 / (count - 1)


def receive_ours(shared: Any, which: int, count: int, target_device: str) -> float:
    consumers: list[Any] = []

    def receive(target: Any, stream: Any, _: int) -> None:
        if not consumers:
            consumers.append(shared[which][0].consumer(stream=stream, writable=True))
        item = consumers[0].receive(timeout=DEADLINE)
        target.copy_(item.torch(), non_blocking=True)
        item.release()

    return received(count, target_device, receive)


def receive_torch(shared: Any, which: int, count: int, target_device: str) -> float:
    def receive(target: Any, stream: Any, _: int) -> None:
        tensor = shared[which][1].get(timeout=DEADLINE)
        target.copy_(tensor, non_blocking=True)
        # The sender may reuse the memory as soon as this process drops the tensor.
        stream.synchronize()

    return received(count, target_device, receive)


class Words:
    """A ring in memory of a device, and two counters that streams write and wait for."""

    def __init__(self, ring: Any, words: Any):
        self.ring, self.words = ring, words
        self.cuda = ctypes.CDLL("libcuda.so.1")

    def _call(self, function: Any, stream: Any, word: int, value: int) -> None:
        address = ctypes.c_uint64(self.words[word].data_ptr())
        code = function(ctypes.c_void_p(stream.cuda_stream), address, ctypes.c_uint32(value), ctypes.c_uint(0))
        if code != 0:
            raise RuntimeError(f"the driver returned {code}")

    def wait(self, stream: Any, word: int, value: int) -> None:
        """Makes the stream wait until a counter has at least this value."""
        self._call(self.cuda.cuStreamWaitValue32_v2, stream, word, value)

    def write(self, stream: Any, word: int, value: int) -> None:
        self._call(self.cuda.cuStreamWriteValue32_v2, stream, word, value)


PUBLISHED, RELEASED = 0, 1


def receive_raw(shared: Any, count: int, target_device: str, pickled: bytes) -> float:
    raw = Words(*ForkingPickler.loads(pickled))

    def receive(target: Any, stream: Any, number: int) -> None:
        raw.wait(stream, PUBLISHED, number)
        target.copy_(raw.ring[(number - 1) % len(raw.ring)], non_blocking=True)
        raw.write(stream, RELEASED, number)

    return received(count, target_device, receive)


FUNCTIONS = {"ours": receive_ours, "torch": receive_torch, "raw": receive_raw}


def send_ours(channel: Any, image: Any, stream: Any, count: int) -> None:
    with channel.producer(stream=stream) as producer:
        for _ in range(count):
            producer.send(image, timeout=DEADLINE)


def send_raw(raw: Words, image: Any, stream: Any, count: int) -> None:
    depth = len(raw.ring)
    for number in range(1, count + 1):
        raw.wait(stream, RELEASED, max(number - depth, 0))
        raw.ring[(number - 1) % depth].copy_(image, non_blocking=True)
        raw.write(stream, PUBLISHED, number)


def raw_ring(depth: int) -> tuple[Words, bytes]:
    """Returns an empty ring of frames, and its pickled form for the other process."""
    import torch

    ring = torch.empty((depth, *FRAME), dtype=torch.uint8, device=DEVICE)
    # The counters are in different cache lines.
    words = torch.zeros((2, 64), dtype=torch.int32, device=DEVICE)
    torch.cuda.synchronize()
    return Words(ring, words), bytes(ForkingPickler.dumps((ring, words)))


def measured(process: Other, name: str, arguments: tuple[Any, ...], send: Callable[[], None]) -> float:
    process.ask(name, *arguments)
    send()
    period: float = process.answer()
    return period


def frames() -> Iterator[Row]:
    import torch

    torch.cuda.init()
    context = torch.multiprocessing.get_context("spawn")
    # The stream of a consumer releases items, so it has as many as its part of the ring.
    shared = [
        (
            crosshandle.Channel(FRAME, "uint8", depth=depth, held=min(depth, MOST_HELD), device=DEVICE),
            context.Queue(depth),
        )
        for depth in DEPTHS
    ]
    image = torch.ones(FRAME, dtype=torch.uint8, device=DEVICE)
    stream = torch.cuda.Stream(DEVICE)
    count, peer_count = pick(600, 200), pick(100, 40)
    devices = [DEVICE] + (["cuda:1"] if torch.cuda.device_count() > 1 else [])
    with other(FUNCTIONS, context, shared) as process, torch.cuda.stream(stream):
        for which, depth in enumerate(DEPTHS):
            channel, queue = shared[which]

            def send_torch(queue: Any = queue) -> None:
                for _ in range(peer_count):
                    queue.put(image.clone())

            for device in devices:
                ours, raw, peer = [], [], []
                for _ in range(ROUNDS):
                    send = partial(send_ours, channel, image, stream, count)
                    ours.append(measured(process, "ours", (which, count, device), send))
                    ring, pickled = raw_ring(depth)
                    send = partial(send_raw, ring, image, stream, count)
                    raw.append(measured(process, "raw", (count, device, pickled), send))
                    stream.synchronize()
                    peer.append(measured(process, "torch", (which, peer_count, device), send_torch))
                where = "" if device == DEVICE else ", copied to another GPU"
                what = f"1080p frame from one GPU process to another{where}, depth {depth}"
                yield Row(what, ours, peer, "torch queue with CUDA tensors", "≤ 0.05 ×")
                yield Row(f"{what}, raw", ours, raw, "stream words and a fixed ring", "≤ 1.2 ×")
