"""Benchmarks on a CUDA device: torch's tensors, streams and allocators. Needs torch."""

from __future__ import annotations

import ctypes
import fcntl
import gc
import multiprocessing.queues
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import crosshandle
from gpu_frames import frames
from harness import DEADLINE, Other, Row, median, microseconds, other

DEVICE = "cuda:0"
MIB = 1 << 20
# The test data of most rows: 300 tensors with 13.7 GiB in total. `EACH` is the size of one tensor
# in MiB.
COUNT, EACH = 300, 46.76
held: list[Any] = []


def prepare() -> None:
    import torch

    import crosshandle.torch  # noqa: F401

    torch.zeros(1, device="cuda")
    # The host context stores the tables of long bundles.
    crosshandle.default_context(DEVICE), crosshandle.default_context()
    torch.cuda.synchronize()


def open_tree(data: bytes, keep: bool) -> float:
    """Returns the time until all objects are tensors."""

    def opened() -> None:
        tree = crosshandle.open(data)
        tensors = [array.torch() for array in tree]
        if keep:
            held.append(tensors)

    took = microseconds(opened)
    gc.collect()
    return took


def open_arrays(data: bytes, keep: bool) -> float:
    """Returns the time until all objects are arrays of this package."""

    def opened() -> None:
        tree = crosshandle.open(data)
        if keep:
            held.append(tree)

    return microseconds(opened)


def open_again(data: bytes) -> list[float]:
    kept = crosshandle.open(data)
    again = median(lambda: crosshandle.open(data), 500, 20)
    tensors = median(lambda: [array.torch() for array in crosshandle.open(data)], 50, 5)
    del kept
    return [again, tensors]


def open_pickled(data: bytes, keep: bool) -> float:
    def opened() -> None:
        tensors = ForkingPickler.loads(data)
        if keep:
            held.append(tensors)

    took = microseconds(opened)
    return took


def drop() -> None:
    import torch

    held.clear()
    gc.collect()
    torch.cuda.ipc_collect()


def echo_ours(ask: bytes, answer: bytes, first: int, count: int) -> None:
    import torch

    stream = torch.cuda.Stream()
    asked, answered = crosshandle.open(ask), crosshandle.open(answer)
    for number in range(first, first + count):
        asked.wait_on(stream, number)
        answered.signal(stream)
        # This process must not run further ahead than its peer does.
        answered.wait_value(number, DEADLINE)


def echo_torch(pipe_handles: tuple[bytes, bytes], count: int) -> None:
    import torch

    asked = torch.cuda.Event.from_ipc_handle(torch.device("cuda", 0), pipe_handles[0])
    answered = torch.cuda.Event.from_ipc_handle(torch.device("cuda", 0), pipe_handles[1])
    stream = torch.cuda.Stream()
    raw_echo.append((asked, answered, stream))


raw_echo: list[Any] = []


def echo_torch_once() -> None:
    asked, answered, stream = raw_echo[0]
    stream.wait_event(asked)
    answered.record(stream)


class LegacyHandle(ctypes.Structure):
    """The C structure `CUipcMemHandle`."""

    _fields_ = [("bytes", ctypes.c_char * 64)]


def driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def check(code: int) -> None:
    if code != 0:
        raise RuntimeError(f"the driver returned {code}")


def raw_share(tensors: list[Any]) -> tuple[float, list[bytes]]:
    """Returns the driver's legacy handles of the tensors' allocations, and the time that took."""
    cuda = driver()
    began = time.perf_counter_ns()
    handles = []
    for tensor in tensors:
        start, handle = ctypes.c_uint64(), LegacyHandle()
        check(cuda.cuMemGetAddressRange_v2(ctypes.byref(start), None, ctypes.c_uint64(tensor.data_ptr())))
        check(cuda.cuIpcGetMemHandle(ctypes.byref(handle), start))
        handles.append(bytes(handle))
    return (time.perf_counter_ns() - began) / 1e3, handles


def raw_open(handles: list[bytes]) -> float:
    """Opens legacy handles, each once."""
    cuda = driver()
    opened = []
    began = time.perf_counter_ns()
    for data in dict.fromkeys(handles):
        start = ctypes.c_uint64()
        check(cuda.cuIpcOpenMemHandle_v2(ctypes.byref(start), LegacyHandle.from_buffer_copy(data), 1))
        opened.append(start)
    took = (time.perf_counter_ns() - began) / 1e3
    for start in opened:
        check(cuda.cuIpcCloseMemHandle(start))
    return took


FUNCTIONS = {
    "prepare": prepare, "tree": open_tree, "arrays": open_arrays, "again": open_again, "pickled": open_pickled,
    "drop": drop, "echo_ours": echo_ours, "echo_torch": echo_torch, "echo_torch_once": echo_torch_once,
    "raw_open": raw_open,
}  # fmt: skip


def streams() -> Iterator[Row]:
    import torch

    prepare()
    with other(FUNCTIONS) as process:
        process.call("prepare")
        context = crosshandle.default_context(DEVICE)
        ask, answer = context.event(), context.event()
        stream = torch.cuda.Stream()
        rounds = 1000
        process.ask("echo_ours", bytes(ask.handle()), bytes(answer.handle()), 1, rounds)

        def once() -> None:
            number = ask.signal(stream)
            answer.wait_value(number, DEADLINE)

        ours = median(once, rounds)
        process.answer()
        back = torch.cuda.Stream()
        process.ask("echo_ours", bytes(ask.handle()), bytes(answer.handle()), rounds + 1, rounds)

        def to_stream() -> None:
            number = ask.signal(stream)
            answer.wait_on(back, number)
            back.synchronize()

        through = median(to_stream, rounds)
        process.answer()

        asked = torch.cuda.Event(interprocess=True)
        answered = torch.cuda.Event(interprocess=True)
        asked.record(stream)
        answered.record(stream)
        process.call("echo_torch", (asked.ipc_handle(), answered.ipc_handle()), 1)

        def torch_once() -> None:
            asked.record(stream)
            process.call("echo_torch_once")
            answered.synchronize()

        peer = median(torch_once, 300, 20)
    name = "torch events and a pipe"
    yield Row("stream → other process's stream → back → host", ours, peer, name, "≤ 20 µs")
    yield Row("the same → back → stream → host", through, peer, name)
    yield Row("an event's signal on a stream, submitted", median(lambda: ask.signal(stream), 1000, 50))


def tensor_of_64_mib() -> Iterator[Row]:
    import torch

    prepare()
    with other(FUNCTIONS) as process:
        process.call("prepare")
        ours, first, peer_share, peer = [], [], [], []
        warm = torch.ones(64 << 18, device="cuda")
        with crosshandle.share([warm]) as bundle:
            process.call("tree", bytes(bundle), False)
        process.call("pickled", bytes(ForkingPickler.dumps([warm])), False)
        for _ in range(9):
            # Each tensor has its own allocation.
            tensor = torch.empty(64 << 18, device="cuda")
            torch.cuda.synchronize()
            began = time.perf_counter_ns()
            bundle = crosshandle.share([tensor])
            ours.append((time.perf_counter_ns() - began) / 1e3)
            first.append(process.call("arrays", bytes(bundle), True))
            held.append((tensor, bundle))
            time.sleep(0.05)
        again, again_torch = process.call("again", bytes(held[-1][1]))
        for _ in range(9):
            tensor = torch.empty(64 << 18, device="cuda")
            torch.cuda.synchronize()
            began = time.perf_counter_ns()
            data = bytes(ForkingPickler.dumps([tensor]))
            peer_share.append((time.perf_counter_ns() - began) / 1e3)
            peer.append(process.call("pickled", data, True))
            held.append(tensor)
            time.sleep(0.05)
        peer_again = statistics.median(
            process.call("pickled", bytes(ForkingPickler.dumps([held[-1]])), False) for _ in range(20)
        )
        process.call("drop")
    held.clear()
    name = "torch's reductions"
    yield Row("64 MiB tensor, shared", statistics.median(ours), statistics.median(peer_share), name)
    yield Row("opened first, nothing just before", statistics.median(first), statistics.median(peer), name, "≤ 131 µs")
    yield Row("opened again", again, peer_again, name, "≤ 5 µs")
    yield Row("opened again, as a tensor of torch", again_torch, peer_again, name)


def take(queues: Any, count: int) -> None:
    import torch

    queue, back = queues
    times = []
    queue._reader.poll()
    plain = ForkingPickler.loads

    def loads(data: Any) -> Any:
        began = time.perf_counter_ns()
        value = plain(data)
        times.append((time.perf_counter_ns() - began) / 1e3)
        return value

    multiprocessing.queues._ForkingPickler.loads = loads
    for _ in range(count):
        tensor = queue.get(timeout=DEADLINE)
        back.put(tensor.data_ptr() != 0)
        held.append(tensor)
    multiprocessing.queues._ForkingPickler.loads = plain
    print(f"    unpickled in {statistics.median(times):.0f} µs", flush=True)
    held.clear()
    torch.cuda.synchronize()


def queue_of_torch() -> Iterator[Row]:
    import torch

    import crosshandle.torch

    prepare()
    context = torch.multiprocessing.get_context("spawn")
    queue, back = context.Queue(), context.SimpleQueue()
    rounds = 12

    def there() -> float:
        times = []
        for _ in range(rounds):
            tensor = torch.empty(64 << 18, device="cuda")
            torch.cuda.synchronize()
            time.sleep(0.02)
            began = time.perf_counter_ns()
            queue.put(tensor)
            back.get()
            times.append((time.perf_counter_ns() - began) / 1e3)
            held.append(tensor)
        held.clear()
        return statistics.median(times[2:])

    with other({"take": take}, context, (queue, back)) as process:
        process.ask("take", rounds)
        peer = there()
        process.answer()
        with crosshandle.torch.register():
            tensor = torch.empty(64 << 18, device="cuda")
            print(f"    pickled in {median(lambda: ForkingPickler.dumps(tensor), 50, 5):.0f} µs", end=", ")
            process.ask("take", rounds)
            ours = there()
            process.answer()
    yield Row("64 MiB tensor through a Queue until usable", ours, peer, "torch's own", "≤ 0.5 ×")


def attach(process: Other) -> None:
    """Makes the other process open one object of each context."""
    import torch

    small = [crosshandle.default_context(DEVICE).empty(8), crosshandle.empty(8)]
    with crosshandle.share(small) as bundle:
        process.call("arrays", bytes(bundle), False)


def parts(tensors: list[Any]) -> None:
    """Prints how the time of sharing is divided."""
    from crosshandle import _crosshandle as rust

    began = time.perf_counter_ns()
    described = [rust.describe(tensor) for tensor in tensors]
    then = time.perf_counter_ns()
    arrays = rust.adopt_all(crosshandle.default_context(DEVICE), described, tensors)
    last = time.perf_counter_ns()
    rust.pack_shared(crosshandle.default_context(), "null", arrays, False)
    end = time.perf_counter_ns()
    print(f"    describe {(then - began) / 1e3:.0f}, adopt {(last - then) / 1e3:.0f}, pack {(end - last) / 1e3:.0f} µs")


def tree_rows(process: Other, tensors: list[Any], what: str, goal: str) -> Iterator[Row]:
    import torch

    torch.cuda.synchronize()
    attach(process)
    parts(tensors)
    gc.collect()
    share_began = time.perf_counter_ns()
    bundle = crosshandle.share(tensors)
    shared = (time.perf_counter_ns() - share_began) / 1e3
    opened = process.call("arrays", bytes(bundle), True)
    shared_again = median(lambda: crosshandle.share(tensors), 5)
    again, again_torch = process.call("again", bytes(bundle))
    process.call("drop")
    bundle.release()
    time.sleep(0.3)
    name = "torch's reductions"
    try:
        began = time.perf_counter_ns()
        data = bytes(ForkingPickler.dumps(tensors))
        peer_shared = (time.perf_counter_ns() - began) / 1e3
        peer_opened = process.call("pickled", data, True)
        peer_again = process.call("pickled", bytes(ForkingPickler.dumps(tensors)), False)
        process.call("drop")
        peer: list[Any] = [peer_shared, peer_opened, peer_again]
    except Exception as error:
        print(f"{name} failed: {str(error).splitlines()[-1][:100]}", file=sys.stderr)
        peer = [None, None, None]
    yield Row(f"{what}: share", shared, peer[0], name)
    yield Row(f"{what}: open", opened, peer[1], name)
    total = None if peer[0] is None else peer[0] + peer[1]
    yield Row(f"{what}: share + open", shared + opened, total, name, goal)
    yield Row(f"{what}: share again", shared_again, peer[0], name)
    yield Row(f"{what}: open again", again, peer[2], name, "≤ 0.5 ms")
    yield Row(f"{what}: open again, as tensors of torch", again_torch, peer[2], name)


def tree() -> Iterator[Row]:
    import torch

    prepare()
    with other(FUNCTIONS) as process:
        process.call("prepare")
        tensors = [torch.empty(int(EACH * MIB) // 4, device="cuda") for _ in range(COUNT)]
        taken, handles = raw_share(tensors)
        opened = process.call("raw_open", handles)
        yield Row("300 tensors, 13.7 GiB: the driver alone, handles + opening", taken + opened)
        print(f"    the driver: handles {taken:.0f}, opening {opened:.0f} µs, {len(set(handles))} allocations")
        began = time.perf_counter_ns()
        files = []
        for _ in range(COUNT):
            file = os.memfd_create("probe", 2)
            os.write(file, bytes(96))
            fcntl.fcntl(file, 1033, 15)
            files.append(file)
        print(f"    {COUNT} sealed files: {(time.perf_counter_ns() - began) / 1e3:.0f} µs")
        for file in files:
            os.close(file)
        yield from tree_rows(process, tensors, "300 tensors, 13.7 GiB", "≤ 0.9 ×")
        del tensors
    gc.collect()
    torch.cuda.ipc_collect()
    torch.cuda.empty_cache()


def tree_in_our_pool() -> Iterator[Row]:
    import torch

    import crosshandle.torch

    prepare()
    with other(FUNCTIONS) as process:
        process.call("prepare")
        pool = crosshandle.torch.MemPool(reserve=15 << 30)
        with torch.cuda.use_mem_pool(pool):
            tensors = [torch.empty(int(EACH * MIB) // 4, device="cuda") for _ in range(COUNT)]
        torch.cuda.synchronize()
        attach(process)
        times = []
        for _ in range(3):
            began = time.perf_counter_ns()
            bundle = crosshandle.share(tensors)
            shared = (time.perf_counter_ns() - began) / 1e3
            opened = process.call("arrays", bytes(bundle), True)
            times.append((shared, opened))
            bundle.release()
        bundle = crosshandle.share(tensors)
        again, again_torch = process.call("again", bytes(bundle))
        process.call("drop")
        del tensors, pool, bundle
    gc.collect()
    torch.cuda.empty_cache()
    what = "300 tensors in our pool, 13.7 GiB"
    yield Row(f"{what}: share", times[0][0])
    yield Row(f"{what}: open first", times[0][1])
    yield Row(f"{what}: share + open first", sum(times[0]), goal="≤ 1 ms")
    yield Row(f"{what}: share + open, second time", sum(times[1]), goal="≤ 0.5 ms")
    yield Row(f"{what}: open again as tensors of torch", again_torch)


def in_expandable_segments() -> Iterator[Row]:
    """Measures in a separate process, because torch reads the setting only once."""
    setting = "expandable_segments:True"
    if setting not in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""):
        environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": setting, "PYTORCH_ALLOC_CONF": setting}
        arguments = [sys.executable, sys.argv[0], "gpu", "--only", "in_expandable_segments"]
        subprocess.run(arguments, env=environment, timeout=DEADLINE, check=True)
        return
    import torch

    prepare()
    with other(FUNCTIONS) as process:
        process.call("prepare")
        tensors = [torch.empty(int(EACH * MIB) // 4, device="cuda") for _ in range(COUNT)]
        yield from tree_rows(process, tensors, "300 tensors in expandable segments", "≤ 0.9 ×")
        del tensors
        gc.collect()
        torch.cuda.empty_cache()
        large = torch.empty(10 << 28, device="cuda")
        yield from tree_rows(process, [large], "10 GiB tensor over expandable segments", "≤ 0.9 ×")


ROWS = [streams, frames, tensor_of_64_mib, queue_of_torch, tree, tree_in_our_pool, in_expandable_segments]
