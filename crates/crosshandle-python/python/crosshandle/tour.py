"""Runs numbered examples and prints their results: `python -m crosshandle.tour [NUMBER …]`.

The tour needs only this package. Each example is a few lines long. Read their source next to the
output.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import crosshandle

# Maximum time in seconds that an example waits for another process before it fails.
_LIMIT = 20.0


class _Other:
    """Another process, which runs one function from this file."""

    def __init__(self, function: Callable[..., None], *arguments: Any):
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        self.process = spawn.Process(target=function, args=(theirs, *arguments), daemon=True)
        self.process.start()
        theirs.close()

    def receive(self) -> Any:
        if not self.pipe.poll(_LIMIT):
            raise TimeoutError("the other process sent no reply")
        return self.pipe.recv()

    def __enter__(self) -> _Other:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.join(_LIMIT)


def devices() -> str:
    """This machine's devices"""
    names = [f"{device.name} ({device.description})" for device in crosshandle.Device.all()]
    return "found " + ", ".join(names)


def _write_into(pipe: Any, handle: bytes) -> None:
    crosshandle.open(handle).write(b"written by the other process")
    pipe.send("done")


def memory() -> str:
    """A handle to memory is 104 bytes long"""
    block = crosshandle.default_context().allocate(4096, name="tour")
    with _Other(_write_into, bytes(block.handle())) as other:
        other.receive()
    return f"sent {len(bytes(block.handle()))} bytes and read here: {block.read(28).decode()!r}"


def checked() -> str:
    """A handle is checked before it is used"""
    handle = bytearray(bytes(crosshandle.default_context().allocate(64).handle()))
    handle[40] ^= 1
    try:
        crosshandle.open(handle)
    except crosshandle.InvalidHandleError as refused:
        return f"one bit was flipped: {refused}"
    raise AssertionError("a damaged handle was opened")


def _double(pipe: Any, bundle: bytes) -> None:
    tree = crosshandle.open(bundle)
    numbers = memoryview(tree["layers"][1])
    for place in range(len(numbers)):
        numbers[place] = 2 * numbers[place]
    pipe.send("done")


def tree() -> str:
    """A tree of arrays is sent as one bundle"""
    layers = [crosshandle.empty(4, "float32"), crosshandle.empty(4, "float32")]
    numbers: Any = memoryview(layers[1])
    numbers[0], numbers[1], numbers[2], numbers[3] = 1.0, 2.0, 3.0, 4.0
    with crosshandle.share({"layers": layers}) as bundle:
        size = len(bytes(bundle))
        with _Other(_double, bytes(bundle)) as other:
            other.receive()
    return f"{size} bytes were sent, no array was copied, and the other process turned 1, 2, 3, 4 into {numbers.tolist()}"


def _answer(pipe: Any, ask: bytes, answer: bytes, rounds: int) -> None:
    asked, answered = crosshandle.open(ask), crosshandle.open(answer)
    for number in range(1, rounds + 1):
        asked.wait_value(number, _LIMIT)
        answered.signal()
    pipe.recv()


def events() -> str:
    """A process waits for another process's event"""
    context, rounds = crosshandle.default_context(), 2000
    ask, answer = context.event(), context.event()
    with _Other(_answer, bytes(ask.handle()), bytes(answer.handle()), rounds):
        times = []
        for number in range(1, rounds + 1):
            began = time.perf_counter()
            ask.signal()
            answer.wait_value(number, _LIMIT)
            times.append(time.perf_counter() - began)
    return f"a round trip takes {sorted(times)[rounds // 2] * 1e6:.1f} µs, the median of {rounds}"


def deadline() -> str:
    """Every wait has a deadline, and raises a built-in exception"""
    event = crosshandle.default_context().event(name="never")
    try:
        event.wait_value(1, timeout=0.05)
    except TimeoutError as late:
        return f"{type(late).__name__}, which is a TimeoutError: {late}"
    raise AssertionError("no process had signalled")


def _promise(pipe: Any) -> None:
    event = crosshandle.default_context().event(name="promised")
    block = crosshandle.default_context().allocate(64)
    block.write(b"still here")
    pipe.send((bytes(event.handle()), bytes(block.handle())))
    pipe.recv()


def death() -> str:
    """A wait ends when the process that should signal dies"""
    with _Other(_promise) as other:
        event = crosshandle.open(other.receive()[0])
        other.process.kill()
        began = time.perf_counter()
        try:
            event.wait_value(1, timeout=_LIMIT)
        except crosshandle.PeerDiedError as died:
            return f"after {(time.perf_counter() - began) * 1e3:.1f} ms: {died}"
    raise AssertionError("the wait ended")


def outlives() -> str:
    """Memory outlives the process that allocated it"""
    with _Other(_promise) as other:
        block = crosshandle.open(other.receive()[1])
        other.process.kill()
        other.process.join(_LIMIT)
    return f"the process that allocated it is dead, and the bytes are {block.read(10).decode()!r}"


def _try_to_write(pipe: Any, bundle: bytes) -> None:
    view = memoryview(crosshandle.open(bundle))
    try:
        view[0] = 1
    except TypeError as refused:
        pipe.send(f"read {view[0]}; writing raised {refused}")


def read_only() -> str:
    """Other processes cannot write to memory that was shared read-only"""
    array = crosshandle.empty(8, "int64")
    memoryview(array)[0] = 7
    with crosshandle.share(array, read_only=True) as bundle:
        with _Other(_try_to_write, bytes(bundle)) as other:
            return f"the other process {other.receive()}"


def _signal_each(pipe: Any, handles: list[bytes]) -> None:
    opened = [crosshandle.open(handle) for handle in handles]
    pipe.recv()
    for event in reversed(opened):
        event.signal()
    pipe.recv()


def awaited() -> str:
    """asyncio awaits a hundred events with one file descriptor"""
    context = crosshandle.default_context()
    waited = [context.event() for _ in range(100)]

    async def main() -> int:
        waits = [asyncio.ensure_future(event.reached(1)) for event in waited]
        await asyncio.sleep(0)
        other.pipe.send("go")
        await asyncio.wait_for(asyncio.gather(*waits), _LIMIT)
        return len(waits)

    with _Other(_signal_each, [bytes(event.handle()) for event in waited]) as other:
        return f"another process signalled {asyncio.run(main())} events"


def _take(pipe: Any, queue: Any) -> None:
    view = memoryview(queue.get(timeout=_LIMIT))
    view[1] = view[0] + 1
    pipe.send("done")


def queue() -> str:
    """Arrays are sent through queues of multiprocessing without a copy"""
    array = crosshandle.empty(1 << 20, "int64")
    view = memoryview(array)
    view[0] = 41
    channel = multiprocessing.get_context("spawn").Queue()
    with _Other(_take, channel) as other:
        channel.put(array)
        other.receive()
    return f"an array of 8 MiB was put, a few hundred bytes were sent, and the answer is {view[1]}"


def pages() -> str:
    """Physical memory is mapped at addresses that the program chooses"""
    context = crosshandle.default_context()
    size = context.device.granularity
    block = context.physical_memory(size)
    with context.reserve(4 * size) as addresses:
        addresses.map(0, block)
        addresses.map(2 * size, block)
        addresses.write(0, b"twice")
        return f"written at byte 0, read at byte {2 * size}: {addresses.read(2 * size, 5).decode()!r}"


class _Buffer:
    """An owner object, which records in `told` when it is destroyed."""

    def __init__(self, told: list[str]):
        self.told = told

    def __del__(self) -> None:
        self.told.append("dropped")


def lent() -> str:
    """Lent memory is not reused while another process has it open"""
    told: list[str] = []
    context = crosshandle.default_context()
    block = context.allocate(4096)
    part = block.lend(_Buffer(told), nbytes=100)
    opened = crosshandle.Context().open_memory(part.handle())
    part.close()
    before = list(told)
    opened.close()
    context.allocate(64).handle()
    if before or told != ["dropped"]:
        raise AssertionError(f"before the close: {before}, after it: {told}")
    return "its owner was dropped after the last process had closed it, not before"


def numpy() -> str:
    """NumPy and other libraries see the same bytes"""
    try:
        import numpy as np
    except ImportError:
        return "NumPy is not installed; `array.numpy()`, `.torch()`, `.jax()` and `.cupy()` would create views"
    array = crosshandle.empty((2, 3), "float32")
    array.numpy()[:] = np.arange(6).reshape(2, 3)
    opened = crosshandle.open(crosshandle.share(array.numpy()[:, ::-1]))
    return f"a reversed view, shared without a copy: {opened.numpy().tolist()}"


def _dpctl_reverses(pipe: Any, bundle: bytes) -> None:
    memory = crosshandle.open(bundle).dpctl()
    memory.copy_from_host(memory.copy_to_host()[::-1].copy())
    pipe.send(repr(memory))


def dpctl() -> str:
    """dpctl memory is shared as SYCL memory"""
    if importlib.util.find_spec("dpctl") is None:
        return "dpctl is not installed; `array.dpctl()` and `.dpnp()` would create SYCL memory and arrays"
    array = crosshandle.empty(5, "uint8")
    memoryview(array)[:] = bytes(range(1, 6))
    # These settings make the other process's SYCL runtime load this package's adapter. The runtime
    # accepts only memory that one of its adapters knows.
    loading = {"UR_ADAPTERS_FORCE_LOAD": crosshandle.ur_adapter("host"), "CROSSHANDLE_UR_BACKEND": "opencl"}
    kept = {name: os.environ.get(name) for name in loading}
    os.environ.update(loading)
    try:
        other = _Other(_dpctl_reverses, bytes(crosshandle.share(array)))
    finally:
        for name, value in kept.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    with other:
        return f"the other process had {other.receive()}, and reversed the bytes to {memoryview(array).tolist()}"


EXAMPLES: list[Callable[[], str]] = [
    devices, memory, checked, tree, events, deadline, death, outlives, read_only, awaited, queue, pages, lent, numpy, dpctl,
]  # fmt: skip


def main(arguments: list[str]) -> int:
    """Runs all examples, or those with the given numbers. Returns 1 if an example failed, and 2 if
    a number is unknown."""
    wanted = {int(number) for number in arguments} or set(range(1, len(EXAMPLES) + 1))
    unknown = wanted - set(range(1, len(EXAMPLES) + 1))
    if unknown:
        print(f"there are examples 1 to {len(EXAMPLES)}, and no {min(unknown)}", file=sys.stderr)
        return 2
    is_terminal = sys.stdout.isatty()
    failed = 0
    for number, example in enumerate(EXAMPLES, 1):
        if number not in wanted:
            continue
        done = sum(1 for one in wanted if one < number)
        bar = "#" * (20 * done // len(wanted))
        title = inspect.getdoc(example)
        if is_terminal:
            print(f"\r\x1b[K[{bar:<20}] {done}/{len(wanted)} {title} …", end="", flush=True)
        try:
            showed = example()
        except Exception as error:
            failed += 1
            showed = f"FAILED: {type(error).__name__}: {error}"
        if is_terminal:
            print("\r\x1b[K", end="")
        print(f"{number:2}  {title}\n      {showed}", flush=True)
    passed = len(wanted) - failed
    print(f"\n{passed} of {len(wanted)} examples worked. Their source: {__file__}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
