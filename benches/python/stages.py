"""Shows how the time of a first opening on a CUDA device, and the time of a frame that one GPU
process sends to another, are divided into stages. Needs torch.

Before each opening, both processes are idle for a while, as in the measured rows. Therefore caches
are cold and the other process sleeps. Each stage is the median of several openings, in
microseconds. For comparison, the table also contains the driver's own time in the same conditions,
and the time of a message between the two processes. The steps of a frame are means, because most of
them take long only if they wait. """

from __future__ import annotations

import ctypes
import multiprocessing.queues
import statistics
import time
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import crosshandle
import gpu
import gpu_frames
from crosshandle import _crosshandle as rust
from harness import DEADLINE, Row, other

# Number of float32 elements in 64 MiB.
ELEMENTS = 64 << 18
ROUNDS = 15
# Idle time before each opening, in seconds.
REST = 0.05
held: list[Any] = []


class Watch:
    """Measures the times between the steps of a repeated operation."""

    def __init__(self) -> None:
        self._times: dict[str, list[float]] = {}
        self._last = time.perf_counter_ns()

    def start(self) -> None:
        self._last = time.perf_counter_ns()

    def lap(self, stage: str) -> None:
        now = time.perf_counter_ns()
        self._times.setdefault(stage, []).append((now - self._last) / 1e3)
        self._last = time.perf_counter_ns()

    def add(self, stage: str, began: int, ended: int) -> None:
        self._times.setdefault(stage, []).append((ended - began) / 1e3)

    def medians(self) -> dict[str, float]:
        """Returns the medians without the first two rounds, which connect and load libraries."""
        return {stage: statistics.median(times[2:] or times) for stage, times in self._times.items()}

    def means(self) -> dict[str, float]:
        """Returns the means, also without the first two rounds."""
        return {stage: statistics.mean(times[2:] or times) for stage, times in self._times.items()}


watch = Watch()


def nothing() -> None:
    pass


def medians() -> dict[str, float]:
    return watch.medians()


def raw_legacy(handle: bytes) -> None:
    """Measures the driver's part of opening memory of torch's own allocator."""
    cuda = gpu.driver()
    start, about, size = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_size_t()
    watch.start()
    gpu.check(cuda.cuIpcOpenMemHandle_v2(ctypes.byref(start), gpu.LegacyHandle.from_buffer_copy(handle), 1))
    watch.lap("driver alone: cuIpcOpenMemHandle")
    gpu.check(cuda.cuMemGetAddressRange_v2(ctypes.byref(about), ctypes.byref(size), start))
    watch.lap("driver alone: cuMemGetAddressRange")
    gpu.check(cuda.cuIpcCloseMemHandle(start))
    watch.lap("driver alone: cuIpcCloseMemHandle")


def open_steps(what: str, data: bytes, to_torch: bool) -> None:
    watch.start()
    _, arrays = rust.unpack(None, data)
    watch.lap(f"{what}: unpack and open")
    if to_torch:
        tensor = arrays[0].torch()
        watch.lap(f"{what}: tensor of torch")
        held.append(tensor)
        if arrays[0].event is not None:
            watch.start()
            arrays[0].event.signal()
            watch.lap(f"{what}: receipt signalled")
    held.append(arrays)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "prepare": gpu.prepare, "arrays": gpu.open_arrays, "nothing": nothing, "raw_legacy": raw_legacy, "open": open_steps, "medians": medians,
}  # fmt: skip


def rows_of(where: str, stages: dict[str, float]) -> Iterator[Row]:
    for stage, took in stages.items():
        yield Row(f"{where}: {stage}", took)


def opening() -> Iterator[Row]:
    import torch

    gpu.prepare()
    device, host = crosshandle.default_context(gpu.DEVICE), crosshandle.Context(pooling=False)
    apart = crosshandle.Context(gpu.DEVICE, pooling=False)
    with other(FUNCTIONS) as process:
        process.call("prepare")
        gpu.attach(process)
        for _ in range(ROUNDS):
            tensor = torch.empty(ELEMENTS, device="cuda")
            torch.cuda.synchronize()
            time.sleep(REST)
            watch.start()
            process.call("nothing")
            watch.lap("a message to the other process and back")

            time.sleep(REST)
            (handle,) = gpu.raw_share([tensor])[1]
            process.call("raw_legacy", handle)

            time.sleep(REST)
            share_steps(device, tensor)
            event = device.event()
            event.signal(torch.cuda.current_stream())
            with_event = crosshandle.share(tensor, event=event)
            process.call("open", "tensor of torch's allocator, with an event", bytes(with_event), True)

            tensor = torch.empty(ELEMENTS, device="cuda")
            torch.cuda.synchronize()
            bundle = crosshandle.share(tensor)
            time.sleep(REST)
            process.call("open", "tensor of torch's allocator", bytes(bundle), True)

            own = crosshandle.share(apart.empty(ELEMENTS, "float32"))
            time.sleep(REST)
            process.call("open", "memory with a descriptor", bytes(own), True)
            # Both processes are awake, because this sharing comes directly before the opening.
            awake = crosshandle.share(apart.empty(ELEMENTS, "float32"))
            process.call("open", "memory with a descriptor, both awake", bytes(awake), True)

            on_host = crosshandle.share(host.empty(ELEMENTS, "float32"))
            time.sleep(REST)
            process.call("open", "memory of the host", bytes(on_host), False)
            held.append((tensor, bundle, with_event, own, awake, on_host))
        yield from rows_of("here", watch.medians())
        yield from rows_of("there", process.call("medians"))
    held.clear()


def share_steps(device: Any, tensor: Any) -> None:
    """Runs the steps of a sender after `crosshandle.torch.register`."""
    import torch

    watch.start()
    event = device.event()
    watch.lap("share: event made")
    event.signal(torch.cuda.current_stream())
    watch.lap("share: its signal submitted")
    detached = tensor.detach()
    watch.lap("share: tensor detached")
    described = rust.describe(detached)
    watch.lap("share: described")
    (array,) = rust.adopt_all(device, [described], [tensor])
    watch.lap("share: adopted")
    ready = (event.handle(), event.submitted)
    watch.lap("share: event exported")
    rust.pack_shared(crosshandle.default_context(), "null", [array], False, event=ready)
    watch.lap("share: memory exported and packed")
    held.append((event, array))


def take(queues: Any, count: int) -> None:
    """Takes tensors from a queue, and replies with the times of the steps."""
    import crosshandle.torch as ours

    queue, back = queues
    stamps: list[int] = []
    plain, opened = ForkingPickler.loads, ours.open

    def loads(data: Any) -> Any:
        stamps.append(time.perf_counter_ns())
        value = plain(data)
        stamps.append(time.perf_counter_ns())
        return value

    def open_(data: Any) -> Any:
        stamps.append(time.perf_counter_ns())
        value = opened(data)
        stamps.append(time.perf_counter_ns())
        return value

    multiprocessing.queues._ForkingPickler.loads = loads  # type: ignore[attr-defined]
    ours.open = open_
    for _ in range(count):
        stamps.clear()
        tensor = queue.get(timeout=DEADLINE)
        back.put([*stamps, time.perf_counter_ns()])
        held.append(tensor)
    multiprocessing.queues._ForkingPickler.loads = plain  # type: ignore[attr-defined]
    ours.open = opened
    held.clear()


def queue() -> Iterator[Row]:
    import torch

    import crosshandle.torch as ours

    gpu.prepare()
    context = torch.multiprocessing.get_context("spawn")
    queues = (context.Queue(), context.SimpleQueue())
    pickled: list[int] = []
    plain = ForkingPickler.dumps

    def dumps(*arguments: Any) -> Any:
        pickled.append(time.perf_counter_ns())
        data = plain(*arguments)
        pickled.append(time.perf_counter_ns())
        return data

    own = Watch()
    with other({"take": take}, context, queues) as process, ours.register():
        process.ask("take", ROUNDS)
        multiprocessing.queues._ForkingPickler.dumps = dumps  # type: ignore[attr-defined]
        for _ in range(ROUNDS):
            tensor = torch.empty(ELEMENTS, device="cuda")
            torch.cuda.synchronize()
            time.sleep(REST)
            pickled.clear()
            began = time.perf_counter_ns()
            queues[0].put(tensor)
            stamps = queues[1].get()
            ended = time.perf_counter_ns()
            loads, opening, opened, loaded, got = stamps
            own.add("put until the feeder thread pickles", began, pickled[0])
            own.add("pickled", pickled[0], pickled[1])
            own.add("through the pipe", pickled[1], loads)
            own.add("unpickled until it is opened", loads, opening)
            own.add("opened", opening, opened)
            own.add("tensor made, receipt signalled", opened, loaded)
            own.add("until get has returned", loaded, got)
            own.add("answer", got, ended)
            own.add("in all", began, ended)
            held.append(tensor)
        multiprocessing.queues._ForkingPickler.dumps = plain  # type: ignore[attr-defined]
        process.answer()
    held.clear()
    yield from rows_of("through a Queue", own.medians())


# Shapes of the measured channels: the depth, and the number of items that a consumer has at most.
SHAPES = ((8, 4), (8, 8), (8, 15), (32, 15))
FRAMES = 300


def received_frames(channels: Any, which: int) -> tuple[float, dict[str, float]]:
    """Receives frames, and returns the time of one frame and the mean times of the steps."""
    import torch

    steps = Watch()
    stream = torch.cuda.Stream(gpu.DEVICE)
    target = torch.empty(gpu_frames.FRAME, dtype=torch.uint8, device=gpu.DEVICE)
    began = 0
    with torch.cuda.stream(stream), channels[which].consumer(stream=stream, writable=True) as consumer:
        for number in range(FRAMES):
            steps.start()
            item = consumer.receive(timeout=DEADLINE)
            steps.lap("received")
            tensor = item.torch()
            steps.lap("tensor of torch")
            target.copy_(tensor, non_blocking=True)
            steps.lap("copy submitted")
            del tensor
            item.release()
            steps.lap("released")
            if number == 0:
                stream.synchronize()
                began = time.perf_counter_ns()
        stream.synchronize()
    return (time.perf_counter_ns() - began) / 1e3 / (FRAMES - 1), steps.means()


def sent_frames(channel: Any, image: Any, stream: Any) -> dict[str, float]:
    steps = Watch()
    with channel.producer(stream=stream) as producer:
        for _ in range(FRAMES):
            steps.start()
            slot = producer.reserve(timeout=DEADLINE)
            steps.lap("reserved")
            tensor = slot.torch()
            steps.lap("tensor of torch")
            tensor.copy_(image, non_blocking=True)
            steps.lap("copy submitted")
            slot.publish(timeout=DEADLINE)
            steps.lap("published")
    return steps.means()


def sent_copies(channel: Any, image: Any, stream: Any) -> dict[str, float]:
    steps = Watch()
    with channel.producer(stream=stream) as producer:
        for _ in range(FRAMES):
            steps.start()
            producer.send(image, timeout=DEADLINE)
            steps.lap("sent")
    return steps.means()


def received_raw_frames(_: Any, pickled: bytes) -> float:
    return gpu_frames.receive_raw(None, FRAMES, gpu.DEVICE, pickled)


def frames() -> Iterator[Row]:
    import torch

    torch.cuda.init()
    context = torch.multiprocessing.get_context("spawn")
    channels = [
        crosshandle.Channel(gpu_frames.FRAME, "uint8", depth=depth, held=held, device=gpu.DEVICE) for depth, held in SHAPES
    ]
    image = torch.ones(gpu_frames.FRAME, dtype=torch.uint8, device=gpu.DEVICE)
    stream = torch.cuda.Stream(gpu.DEVICE)
    functions = {"ours": received_frames, "raw": received_raw_frames}
    with other(functions, context, channels) as process, torch.cuda.stream(stream):
        for depth in sorted({depth for depth, _ in SHAPES}):
            for round_ in range(2):
                raw, pickled = gpu_frames.raw_ring(depth)
                process.ask("raw", pickled)
                gpu_frames.send_raw(raw, image, stream, FRAMES)
                period = process.answer()
                stream.synchronize()
                yield Row(f"frame through stream words, depth {depth}, round {round_}", period)
        for send in (sent_frames, sent_copies, sent_frames, sent_copies):
            for which, (depth, held) in enumerate(SHAPES):
                process.ask("ours", which)
                here = send(channels[which], image, stream)
                period, there = process.answer()
                where = f"frame, depth {depth}, held {held}, {send.__name__}"
                yield Row(where, period)
                yield from rows_of(f"{where}, producer", here)
                yield from rows_of(f"{where}, consumer", there)


ROWS = [opening, queue, frames]
