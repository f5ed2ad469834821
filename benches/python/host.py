"""Benchmarks on the host: NumPy arrays, waits, the module itself."""

from __future__ import annotations

import asyncio
import importlib.util
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing import shared_memory
from typing import Any

import numpy as np

import crosshandle
from harness import DEADLINE, Row, median, microseconds, other


def import_time() -> Iterator[Row]:
    def took(module: str) -> float:
        script = f"import time; t = time.perf_counter_ns(); import {module}; print(time.perf_counter_ns() - t)"
        times = []
        for _ in range(15):
            said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
            times.append(int(said.stdout) / 1e3)
        return statistics.median(times)

    yield Row("import of the module", took("crosshandle"), took("numpy"), "import numpy", "≤ 30 ms")


held: list[Any] = []


def open_ours(datas: list[bytes]) -> list[float]:
    times = []
    for data in datas:
        began = time.perf_counter_ns()
        array = crosshandle.open(data).numpy()
        array[0]
        times.append((time.perf_counter_ns() - began) / 1e3)
        held.append(array)
    return times


def open_again(data: bytes) -> float:
    return median(lambda: crosshandle.open(data), 2000, 100)


def open_array_again(data: bytes) -> float:
    return median(lambda: crosshandle.open(data).numpy(), 2000, 100)


def open_shared_memory(names: list[str]) -> list[float]:
    times = []
    for name in names:
        began = time.perf_counter_ns()
        memory = shared_memory.SharedMemory(name=name, **({"track": False} if sys.version_info >= (3, 13) else {}))
        array: Any = np.ndarray((1 << 18,), "float64", memory.buf)
        array[0]
        times.append((time.perf_counter_ns() - began) / 1e3)
        held.append((memory, array))
    return times


def opening() -> Iterator[Row]:
    functions = {
        "ours": open_ours, "again": open_again, "array": open_array_again, "peer": open_shared_memory,
    }  # fmt: skip
    own_segments = crosshandle.Context(pooling=False)
    with other(functions) as process:
        arrays = [own_segments.empty(1 << 18, "float64") for _ in range(100)]
        bundles = [crosshandle.share(array) for array in arrays]
        memories = [shared_memory.SharedMemory(create=True, size=8 << 18) for _ in range(100)]
        try:
            first = process.call("ours", [bytes(bundle) for bundle in bundles])
            peer = process.call("peer", [memory.name for memory in memories])
        finally:
            for memory in memories:
                memory.close()
                memory.unlink()
        name = "multiprocessing.shared_memory"
        yield Row("first array of a process, opened (attaches)", first[0])
        yield Row("NumPy array of 2 MiB, opened first", statistics.median(first[1:]), statistics.median(peer), name)
        again = process.call("again", bytes(bundles[0]))
        yield Row("the same bundle opened again", again, statistics.median(peer), name, "≤ 2 µs")
        array = process.call("array", bytes(bundles[0]))
        yield Row("the same, as a NumPy array", array, statistics.median(peer), name)


def take(queues: Any, count: int) -> None:
    queue, back = queues
    for _ in range(count):
        value = queue.get(timeout=DEADLINE)
        array = value if isinstance(value, np.ndarray) else value.numpy()
        back.put(float(array[-1]))


def queues() -> Iterator[Row]:
    context = multiprocessing.get_context("spawn")
    queue, back = context.Queue(), context.Queue()
    rounds = 10
    array = crosshandle.empty(100 << 17, "float64")
    array.numpy()[:] = 1
    plain = np.ones(100 << 17)

    def there_and_back(value: Any) -> float:
        def once() -> None:
            queue.put(value)
            assert back.get(timeout=DEADLINE) == 1

        return median(once, rounds)

    with other({"take": take}, context, (queue, back)) as process:
        process.ask("take", 2 * rounds + 2)
        there_and_back_first = microseconds(lambda: (queue.put(array), back.get(timeout=DEADLINE)))
        queue.put(plain)
        back.get(timeout=DEADLINE)
        ours, peer = there_and_back(array), there_and_back(plain)
        process.answer()
    yield Row("100 MiB array through a Queue, first", there_and_back_first, peer, "Queue of the array")
    yield Row("100 MiB array through a Queue", ours, peer, "Queue of the array", "≤ 0.05 ×")


def echo(ask: bytes, answer: bytes, first: int, count: int) -> None:
    asked, answered = crosshandle.open(ask), crosshandle.open(answer)
    for number in range(first, first + count):
        asked.wait_value(number, DEADLINE)
        answered.signal()


def waits() -> Iterator[Row]:
    context = crosshandle.default_context()
    ask, answer = context.event(), context.event()
    rounds = 5000
    with other({"echo": echo}) as process:

        def blocking() -> float:
            process.ask("echo", bytes(ask.handle()), bytes(answer.handle()), ask.submitted + 1, rounds)

            def once() -> None:
                number = ask.signal()
                answer.wait_value(number, DEADLINE)

            took = median(once, rounds)
            process.answer()
            return took

        async def awaited() -> float:
            process.ask("echo", bytes(ask.handle()), bytes(answer.handle()), ask.submitted + 1, rounds)
            times = []
            for _ in range(rounds):
                began = time.perf_counter_ns()
                number = ask.signal()
                await answer.reached(number)
                times.append((time.perf_counter_ns() - began) / 1e3)
            process.answer()
            return statistics.median(times)

        wait = blocking()
        awaiting = asyncio.run(awaited())
        event = multiprocessing.get_context("spawn").Event()
        yield Row("event to another process and back, blocking waits", wait)
        yield Row("the same, awaited in asyncio here", awaiting, wait, "blocking wait", "≤ 2.2 ×")
        yield Row("signal, no thread waiting", median(ask.signal, 5000), median(event.set, 5000), "multiprocessing.Event.set")


FRAME = (1080, 1920, 3)
FRAME_BYTES = 1080 * 1920 * 3
STAMP_BYTES = 8


def iceoryx_service(name: str, depth: int) -> Any:
    """Opens a service of iceoryx2 whose messages are a time stamp and a frame."""
    import ctypes

    import iceoryx2

    iceoryx2.set_log_level(iceoryx2.LogLevel.Fatal)
    node = iceoryx2.NodeBuilder.new().create(iceoryx2.ServiceType.Ipc)
    builder = node.service_builder(iceoryx2.ServiceName.new(name))
    builder = builder.publish_subscribe(iceoryx2.Slice[ctypes.c_uint8])
    builder = builder.enable_safe_overflow(False).history_size(0).subscriber_max_buffer_size(depth)
    event = node.service_builder(iceoryx2.ServiceName.new(f"{name}/wake")).event().open_or_create()
    return builder.open_or_create(), event, node


def subscribe_iceoryx(shared: Any, name: str, depth: int) -> None:
    """Makes this process a subscriber for `receive_iceoryx`."""
    import iceoryx2

    service, event, node = iceoryx_service(name, depth)
    held.append((service.subscriber_builder().create(), event.listener_builder().create(), node, iceoryx2))


def receive_iceoryx(shared: Any, count: int) -> tuple[list[float], float]:
    subscriber, listener, _, iceoryx2 = held[-1]
    times, began = [], 0
    while len(times) < count:
        sample = subscriber.receive()
        if sample is None:
            listener.timed_wait(iceoryx2.Duration.from_secs(1))
            continue
        now = time.monotonic_ns()
        view = sample.payload().as_memory_view()
        frame: Any = np.frombuffer(view, "uint8", offset=STAMP_BYTES).reshape(FRAME)
        frame[-1, -1, -1]
        times.append((now - int(np.frombuffer(view, "uint64", 1)[0])) / 1e3)
        began = began or now
        del frame, view
        sample.delete()
    return times, (time.monotonic_ns() - began) / 1e3 / (count - 1)


def receive_ours(shared: Any, count: int) -> tuple[list[float], float]:
    """Returns the one-way times of frames in microseconds, and the time from frame to frame."""
    consumer = shared[0].consumer()
    times, began = [], 0
    for place in range(count):
        with consumer.receive(timeout=DEADLINE) as frame:
            now = time.monotonic_ns()
            frame.numpy()[-1, -1, -1]
            times.append((now - int(frame.user)) / 1e3)
        began = began or now
    return times, (time.monotonic_ns() - began) / 1e3 / (count - 1)


def receive_peer(shared: Any, count: int) -> tuple[list[float], float]:
    times, began = [], 0
    for place in range(count):
        sent, frame = shared[1].get(timeout=DEADLINE)
        now = time.monotonic_ns()
        frame[-1, -1, -1]
        times.append((now - sent) / 1e3)
        began = began or now
    return times, (time.monotonic_ns() - began) / 1e3 / (count - 1)


def frames() -> Iterator[Row]:
    spawn = multiprocessing.get_context("spawn")
    channel, queue = crosshandle.Channel(FRAME, "uint8", depth=4), spawn.Queue(4)
    image = np.ones(FRAME, "uint8")
    functions = {
        "ours": receive_ours, "peer": receive_peer, "subscribe": subscribe_iceoryx, "iceoryx": receive_iceoryx,
    }  # fmt: skip
    with other(functions, spawn, (channel, queue)) as process, channel.producer() as producer:

        def in_place() -> None:
            with producer.reserve(timeout=DEADLINE) as slot:
                slot.user = str(time.monotonic_ns()).encode()

        def copied() -> None:
            producer.send(image, user=str(time.monotonic_ns()).encode(), timeout=DEADLINE)

        def pickled() -> None:
            queue.put((time.monotonic_ns(), image))

        def measured(receive: str, send: Any, count: int, pause: float) -> tuple[float, float]:
            process.ask(receive, count)
            for _ in range(count):
                time.sleep(pause)
                send()
            times, period = process.answer()
            return statistics.median(times), period

        peer, _ = measured("peer", pickled, 100, 0.05)
        _, peer_period = measured("peer", pickled, 200, 0)
        name = "multiprocessing.Queue"
        for what, send in (("written in place", in_place), ("copied", copied)):
            one_way, _ = measured("ours", send, 300, 0.005)
            _, period = measured("ours", send, 2000, 0)
            yield Row(f"1080p frame, {what}, one way", one_way, peer, name)
            yield Row(f"1080p frame, {what}, time from frame to frame", period, peer_period, name, "≤ 0.02 ×")

        # iceoryx2's package is measured if it is installed.
        if importlib.util.find_spec("iceoryx2") is None:
            return
        import iceoryx2

        service, event, _node = iceoryx_service(f"crosshandle-bench-{os.getpid()}", 4)
        process.call("subscribe", f"crosshandle-bench-{os.getpid()}", 4)
        strategy = iceoryx2.BackpressureStrategy.RetryUntilDelivered
        publisher = service.publisher_builder().initial_max_slice_len(STAMP_BYTES + FRAME_BYTES)
        publisher = publisher.backpressure_strategy(strategy).create()
        notifier = event.notifier_builder().create()

        def loaned(copies: bool) -> None:
            sample = publisher.loan_slice_uninit(STAMP_BYTES + FRAME_BYTES)
            view = sample.payload().as_memory_view()
            stamp = time.monotonic_ns()
            if copies:
                np.frombuffer(view, "uint8", offset=STAMP_BYTES).reshape(FRAME)[:] = image
            np.frombuffer(view, "uint64", 1)[0] = stamp
            del view
            sample.assume_init().send()
            notifier.notify()

        name = "iceoryx2"
        for what, ours, theirs in (
            ("written in place", in_place, lambda: loaned(False)),
            ("copied", copied, lambda: loaned(True)),
        ):
            # In turns, so that other programs of the machine slow both down.
            sent = [(measured("ours", ours, 60, 0.005)[0], measured("iceoryx", theirs, 60, 0.005)[0]) for _ in range(5)]
            fast = [(measured("ours", ours, 500, 0)[1], measured("iceoryx", theirs, 500, 0)[1]) for _ in range(5)]
            one_way, peer = zip(*sent, strict=True)
            yield Row(f"1080p frame, {what}, one way", list(one_way), list(peer), name, "≤ 0.6 ×", group="iceoryx2")
            period, peer_period = zip(*fast, strict=True)
            what = f"1080p frame, {what}, time from frame to frame"
            yield Row(what, list(period), list(peer_period), name, group="iceoryx2")


ROWS = [import_time, opening, queues, waits, frames]
