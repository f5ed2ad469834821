"""Arrays, streams and allocators of torch, CuPy, JAX, numba and cuda.core on a CUDA device.

Each library is used if it is installed. Without a device, all tests are skipped.
`cargo xtask gpu-pack` packs these tests for a machine that has a device.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import crosshandle
from conftest import DEADLINE, Peer
from crosshandle import _crosshandle as _rust

GPUS = [device.name for device in crosshandle.Device.all() if device.backend == "cuda"]
pytestmark = pytest.mark.skipif(not GPUS, reason="there is no CUDA device")


def library(name: str) -> Any:
    return pytest.importorskip(name)


# The functions of the other process, by name.


class Other:
    def __init__(self) -> None:
        self.held: dict[str, Any] = {}

    def sums(self, data: bytes, way: str = "torch") -> Any:
        return each(crosshandle.open(data), lambda array: total(array, way))

    def add_one(self, data: bytes) -> None:
        import torch

        each(crosshandle.open(data), lambda array: array.torch().add_(1))
        torch.cuda.synchronize()

    def layouts(self, data: bytes) -> Any:
        return each(crosshandle.open(data), lambda array: (array.shape, array.dtype, array.read_only, array.device))

    def write_is_refused(self, data: bytes) -> bool:
        try:
            crosshandle.open(data).torch()
        except BufferError:
            return bool(crosshandle.open(data).torch(copy=True).sum() is not None)
        return False

    def hold(self, name: str, data: bytes) -> None:
        self.held[name] = crosshandle.open(data)

    def drop(self, name: str) -> None:
        del self.held[name]
        gc.collect()

    def echo(self, first: bytes, second: bytes, data: bytes, value: int) -> None:
        """On a stream, waits for the first event, adds one, and signals the second event."""
        import torch

        stream = torch.cuda.Stream()
        ask, answer = crosshandle.open(first), crosshandle.open(second)
        ask.wait_on(stream, value)
        with torch.cuda.stream(stream):
            crosshandle.open(data).torch().add_(1)
        answer.signal(stream)
        stream.synchronize()

    def receive(self, queue: Any) -> list[Any]:
        tensor = queue.get(timeout=DEADLINE)
        result = [type(tensor).__name__, tensor.requires_grad, float(tensor.detach().float().sum()), str(tensor.device)]
        tensor.detach().fill_(2)
        import torch

        torch.cuda.synchronize()
        return result


def each(tree: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(tree, dict):
        return {key: each(part, function) for key, part in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [each(part, function) for part in tree]
    return function(tree)


def total(array: Any, way: str) -> float:
    if way == "torch":
        return float(array.torch().float().sum())
    if way == "cupy":
        import cupy

        # CuPy's kernels run on the current device. Other devices may not be able to access memory
        # that a legacy handle opened.
        with cupy.cuda.Device(int(array.device.partition(":")[2])):
            return float(array.cupy().astype("float64").sum())
    return float(array.jax().astype("float32").sum())


def serve(pipe: Any, queue: Any) -> None:
    other = Other()
    while (message := pipe.recv()) is not None:
        name, arguments = message
        try:
            if name == "receive":
                pipe.send(("done", other.receive(queue)))
            else:
                pipe.send(("done", getattr(other, name)(*arguments)))
        except BaseException as error:
            pipe.send(("failed", f"{type(error).__name__}: {error}"))


class Served:
    def __init__(self, peer: Peer, queue: Any):
        self._peer, self.queue = peer, queue

    def ask(self, name: str, *arguments: Any) -> None:
        self._peer.send((name, arguments))

    def answer(self) -> Any:
        kind, value = self._peer.receive()
        assert kind == "done", value
        return value

    def call(self, name: str, *arguments: Any) -> Any:
        self.ask(name, *arguments)
        return self.answer()


@pytest.fixture(scope="module")
def other() -> Iterator[Served]:
    torch = library("torch")
    queue = torch.multiprocessing.get_context("spawn").Queue()
    peer = Peer(serve, queue)
    yield Served(peer, queue)
    peer.send(None)
    peer.process.join(DEADLINE)
    peer.stop()


def until(condition: Callable[[], bool]) -> bool:
    context = crosshandle.default_context(GPUS[0])
    deadline = time.monotonic() + DEADLINE
    while not condition() and time.monotonic() < deadline:
        with context.allocate(1 << 21) as memory:
            memory.handle()
        gc.collect()
        time.sleep(0.005)
    return condition()


def test_every_dtype_of_torch_crosses(other: Served) -> None:
    torch = library("torch")
    names = [
        "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64",
        "complex64", "complex128", "float8_e4m3fn", "float8_e5m2",
    ]  # fmt: skip
    tensors = {name: torch.ones(6, 4, device="cuda").to(getattr(torch, name)) for name in names}
    with crosshandle.share(tensors) as bundle:
        layouts = other.call("layouts", bytes(bundle))
        assert layouts == {name: ((6, 4), name, False, GPUS[0]) for name in names}
        reals = {name: tensor for name, tensor in tensors.items() if not name.startswith("complex")}
        with crosshandle.share(reals) as real:
            assert set(other.call("sums", bytes(real)).values()) == {24.0}
    for name, tensor in tensors.items():
        own = crosshandle.open(crosshandle.share(tensor)).torch()
        assert own.dtype == tensor.dtype and own.data_ptr() == tensor.data_ptr()


def test_views_of_torch_cross_without_a_copy(other: Served) -> None:
    torch = library("torch")
    whole = torch.zeros(64, 32, device="cuda")
    views = [whole[3:5], whole[:, ::2], whole.t(), whole[7, 9], whole[5:5]]
    with crosshandle.share(views) as bundle:
        other.call("add_one", bytes(bundle))
    torch.cuda.synchronize()
    expected = torch.zeros(64, 32)
    for view in (expected[3:5], expected[:, ::2], expected.t(), expected[7, 9]):
        view += 1
    assert torch.equal(whole.cpu(), expected)
    with pytest.raises(ValueError, match="resolve_conj"):
        crosshandle.share(torch.zeros(2, dtype=torch.complex64, device="cuda").conj())
    with pytest.raises((TypeError, RuntimeError, NotImplementedError)):
        crosshandle.share(torch.zeros(2, 2, device="cuda").to_sparse())
    with pytest.raises(ValueError, match="copy=True"):
        crosshandle.share(torch.zeros(3))
    assert crosshandle.open(crosshandle.share(torch.ones(3), copy=True)).torch().sum() == 3


def test_read_only_stays_so(other: Served) -> None:
    torch = library("torch")
    with crosshandle.share(torch.ones(8, device="cuda"), read_only=True) as bundle:
        assert other.call("write_is_refused", bytes(bundle))


def test_memory_is_kept_until_the_importer_lets_go(other: Served) -> None:
    torch = library("torch")
    gc.collect()
    before = torch.cuda.memory_allocated()
    tensor = torch.full((1 << 22,), 3.0, device="cuda")
    torch.cuda.synchronize()
    with crosshandle.share(tensor) as bundle:
        data = bytes(bundle)
        other.call("hold", "kept", data)
    del tensor
    gc.collect()
    assert torch.cuda.memory_allocated() - before > 3 << 22, "a process has it open"
    other.call("drop", "kept")
    assert until(lambda: torch.cuda.memory_allocated() <= before)
    with pytest.raises(crosshandle.StaleHandleError):
        crosshandle.open(data)


def test_a_dropped_bundle_keeps_what_lives(other: Served) -> None:
    torch = library("torch")
    tensor = torch.ones(1000, device="cuda")
    torch.cuda.synchronize()
    data = bytes(crosshandle.share(tensor))
    gc.collect()
    assert other.call("sums", data) == 1000.0
    # The memory is opened at the same address here, but torch's own memory is shared again.
    own = crosshandle.open(data).torch()
    again = bytes(crosshandle.share(tensor))
    del tensor
    gc.collect()
    with pytest.raises(AssertionError, match="StaleHandleError"):
        other.call("sums", again)
    assert float(own.sum()) == 1000


def test_a_tree_is_opened_by_few_handles(other: Served) -> None:
    torch = library("torch")
    tensors = {f"layer{number}": torch.full((1000,), float(number), device="cuda") for number in range(300)}
    torch.cuda.synchronize()
    with crosshandle.share(tensors) as bundle:
        sums = other.call("sums", bytes(bundle))
        arrays = crosshandle.open(bundle)
        assert sums == {name: 1000.0 * number for number, name in enumerate(tensors)}
        assert all(arrays[name].address == tensor.data_ptr() for name, tensor in tensors.items())


def streams() -> list[tuple[str, Callable[[], Any]]]:
    def of_torch() -> Any:
        return library("torch").cuda.Stream()

    def torch_default() -> Any:
        return library("torch").cuda.default_stream()

    def of_cupy() -> Any:
        return library("cupy").cuda.Stream(non_blocking=True)

    def of_numba() -> Any:
        return library("numba.cuda").stream()

    def of_cuda_core() -> Any:
        core = library("cuda.core")
        device = getattr(core, "Device", None) or library("cuda.core.experimental").Device
        device = device(0)
        device.set_current()
        return device.create_stream()

    def number() -> Any:
        return library("torch").cuda.Stream().cuda_stream

    made = (of_torch, torch_default, of_cupy, of_numba, of_cuda_core, number)
    return [(function.__name__, function) for function in made]


@pytest.mark.parametrize("make", [function for _, function in streams()], ids=[name for name, _ in streams()])
def test_streams_signal_and_wait(make: Callable[[], Any]) -> None:
    stream = make()
    context = crosshandle.default_context(GPUS[0])
    gate, done = context.event(), context.event()
    assert done.signal(stream) == 1
    done.wait_value(1, timeout=DEADLINE)
    gate.wait_on(stream, 1)
    assert done.signal(stream) == 2
    time.sleep(0.02)
    assert not done.done(2), "the stream waits for the gate"
    gate.signal()
    done.wait_value(2, timeout=DEADLINE)
    queue = context.queue(stream)
    queue.finish(timeout=DEADLINE)
    assert queue.idle


def test_a_queue_keeps_its_stream() -> None:
    torch = library("torch")
    context = crosshandle.default_context(GPUS[0])
    stream = torch.cuda.Stream()
    kept = weakref.ref(stream)
    queue = context.queue(stream)
    del stream
    gc.collect()
    assert kept() is not None
    event = context.event()
    assert queue.signal(event) == 1
    queue.finish(timeout=DEADLINE)
    del queue
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("mode", ["thread_local", "global", "relaxed"])
def test_memory_is_freed_while_another_thread_captures(mode: str) -> None:
    torch = library("torch")
    context = crosshandle.default_context(GPUS[0])
    block = _rust.Block(context, 64 << 20)
    address = block.address
    static = torch.zeros(1000, device="cuda")
    torch.cuda.synchronize()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode=mode)
        static.add_(1)
        thread = threading.Thread(target=lambda box: box.clear(), args=([block],))
        del block
        thread.start()
        thread.join(DEADLINE)
        assert not thread.is_alive()
        graph.capture_end()
    with pytest.raises(crosshandle.Error):
        context.memory_handle_at(address)
    graph.replay()
    torch.cuda.synchronize()
    assert static.sum().item() == 1000


def test_streams_of_two_processes_take_turns(other: Served) -> None:
    torch = library("torch")
    context = crosshandle.default_context(GPUS[0])
    ask, answer = context.event(name="ask"), context.event(name="answer")
    tensor = torch.zeros(1 << 20, device="cuda")
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with crosshandle.share(tensor) as bundle:
        for turn in range(1, 4):
            other.ask("echo", bytes(ask.handle()), bytes(answer.handle()), bytes(bundle), turn)
            with torch.cuda.stream(stream):
                torch.cuda._sleep(20_000_000)
                tensor.add_(1)
            ask.signal(stream)
            answer.wait_value(turn, timeout=DEADLINE)
            answer.wait_on(stream)
            with torch.cuda.stream(stream):
                total = tensor.sum()
            stream.synchronize()
            assert float(total) == 2 * turn * (1 << 20)
            other.answer()


@pytest.mark.parametrize("way", ["torch", "cupy", "jax"])
def test_arrays_wait_for_their_event(other: Served, way: str) -> None:
    torch = library("torch")
    library(way)
    event = crosshandle.default_context(GPUS[0]).event()
    tensor = torch.zeros(1 << 20, device="cuda")
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        tensor.add_(1)
    event.signal(stream)
    with crosshandle.share({"x": tensor}, event=event) as bundle:
        assert other.call("sums", bytes(bundle), way) == {"x": float(1 << 20)}
        opened = crosshandle.open(bundle)["x"]
        assert opened.event.submitted == 1
        if way == "cupy":
            # The same through `__cuda_array_interface__`, which passes a stream.
            cupy = library("cupy")
            assert float(cupy.asarray(opened).sum()) == float(1 << 20)


def test_arrays_of_cupy_cross(other: Served) -> None:
    cupy = library("cupy")
    for dtype in ("float32", "int64", "complex64", "bool", "float16"):
        array = cupy.ones((5, 6), dtype)
        with crosshandle.share([array, array[1:, ::3]]) as bundle:
            assert other.call("layouts", bytes(bundle))[1] == ((4, 2), dtype, False, GPUS[0])
            if dtype == "float32":
                assert other.call("sums", bytes(bundle), "cupy") == [30.0, 8.0]
                other.call("add_one", bytes(bundle))
                assert float(array.sum()) == 30 + 30 + 8
    pooled = cupy.ndarray((100,), "float32", cupy.cuda.malloc_async(400))
    pooled[:] = 2
    cupy.cuda.get_current_stream().synchronize()
    with pytest.raises(ValueError, match="copy=True"):
        crosshandle.share(pooled)
    with crosshandle.share(pooled[::2], copy=True) as bundle:
        assert other.call("sums", bytes(bundle)) == 100.0
    managed = cupy.ndarray((100,), "float32", cupy.cuda.malloc_managed(400))
    with pytest.raises(ValueError, match="managed"):
        crosshandle.share(managed)


def test_arrays_of_jax_cross_read_only(other: Served) -> None:
    library("jax")
    import jax.numpy as jnp

    for dtype in ("float32", "bfloat16", "int32"):
        array = jnp.ones((40, 50), dtype) * 2
        with crosshandle.share([array]) as bundle:
            assert other.call("layouts", bytes(bundle)) == [((40, 50), dtype, True, GPUS[0])]
            assert other.call("sums", bytes(bundle), "jax") == [4000.0]


def test_arrays_of_numba_cross(other: Served) -> None:
    cuda = library("numba.cuda")
    array = cuda.to_device(library("numpy").full((8, 8), 3, "float32"))
    cuda.synchronize()
    with crosshandle.share(array) as bundle:
        assert other.call("sums", bytes(bundle)) == 192.0


def test_the_pool_of_torch(other: Served) -> None:
    torch = library("torch")
    import crosshandle.torch

    context = crosshandle.default_context(GPUS[0])
    pool = crosshandle.torch.MemPool(reserve=256 << 20)
    with torch.cuda.use_mem_pool(pool):
        tensors = [torch.full((1 << 20,), float(number), device="cuda") for number in range(40)]
        # A tensor that is larger than the reserve gets its own allocation.
        large = torch.ones(300 << 18, device="cuda")
    torch.cuda.synchronize()
    with crosshandle.share([*tensors, large]) as bundle:
        sums = other.call("sums", bytes(bundle))
        assert sums == [float(number << 20) for number in range(40)] + [float(300 << 18)]
    # torch can reuse the freed memory only when no process has it open.
    with crosshandle.share(tensors[0]) as bundle:
        other.call("hold", "pooled", bytes(bundle))
    taken = tensors[0].data_ptr()
    tensors[0] = None
    gc.collect()
    with torch.cuda.use_mem_pool(pool):
        for _ in range(3):
            assert torch.empty(1 << 20, device="cuda").data_ptr() != taken
    other.call("drop", "pooled")
    graph = torch.cuda.CUDAGraph()
    static = torch.zeros(1 << 20, device="cuda")
    with torch.cuda.graph(graph, pool=pool.id):
        made = static + 1
        more = torch.empty(64 << 20, device="cuda").fill_(5)
    graph.replay()
    torch.cuda.synchronize()
    with crosshandle.share([made, more]) as bundle:
        assert other.call("sums", bytes(bundle)) == [float(1 << 20), float(5 * (64 << 20))]
    assert context.memory_handle_at(made.data_ptr()).nbytes > 0, "it is this library's memory"
    del graph, made, more, tensors, large, pool
    gc.collect()
    torch.cuda.empty_cache()


def test_the_allocator_of_cupy(other: Served) -> None:
    cupy = library("cupy")
    import crosshandle.cupy

    for allocator in (crosshandle.cupy.allocator, cupy.cuda.MemoryPool(crosshandle.cupy.allocator).malloc):
        with cupy.cuda.using_allocator(allocator):
            array = cupy.arange(1000, dtype="float32")
        cupy.cuda.get_current_stream().synchronize()
        with crosshandle.share([array, array[10:20]]) as bundle:
            assert other.call("sums", bytes(bundle)) == [499500.0, 145.0]
        del array
        gc.collect()


def test_torch_multiprocessing_sends_bundles(other: Served) -> None:
    torch = library("torch")
    import crosshandle.torch
    from multiprocessing.reduction import ForkingPickler

    plain = torch.ones(100, device="cuda")
    parameter = torch.nn.Parameter(torch.ones(50, device="cuda").half(), requires_grad=False)
    leaf = torch.ones(10, device="cuda", requires_grad=True)
    with crosshandle.torch.register() as registration:
        for tensor, name, total in [(plain, "Tensor", 100.0), (parameter, "Parameter", 50.0), (leaf, "Tensor", 10.0)]:
            assert b"xhb" in bytes(ForkingPickler.dumps(tensor))
            other.queue.put(tensor)
            assert other.call("receive") == [name, tensor.requires_grad, total, "cuda:0"]
            assert float(tensor.detach().float().sum()) == 2 * total
        with pytest.raises(RuntimeError, match="not a leaf"):
            ForkingPickler.dumps(leaf * 2)
        # torch sends host tensors in its own way.
        other.queue.put(torch.ones(4))
        assert other.call("receive")[2:] == [4.0, "cpu"]
    registration.undo()
    assert b"xhb" not in bytes(ForkingPickler.dumps(torch.ones(3)))
    del plain
    # Only pickled objects that no process has received are kept.
    assert crosshandle.pending().objects == 3
    crosshandle.release_pending()


def test_what_a_queue_sends_waits_for_the_stream_of_put(other: Served) -> None:
    torch = library("torch")
    import crosshandle.torch

    side = torch.cuda.Stream()
    with crosshandle.torch.register():
        for _ in range(10):
            tensor = torch.zeros(1 << 20, device="cuda")
            torch.cuda.synchronize()
            with torch.cuda.stream(side):
                # This delays the bytes by about half a second of GPU time.
                torch.cuda._sleep(1_000_000_000)
                tensor.fill_(1)
                other.queue.put(tensor)
            received = other.call("receive")
            assert received[2] == float(1 << 20), "the receiver has read too early"


SCRIPT = """
import sys, torch, crosshandle
tensor = torch.arange(100 << 18, dtype=torch.float32, device="cuda").fill_(1)
torch.cuda.synchronize()
try:
    bundle = crosshandle.share({"x": tensor, "y": tensor[5:7]})
except ValueError as refused:
    print("refused", "copy=True" in str(refused), refused)
    bundle = crosshandle.share({"x": tensor, "y": tensor[5:7]}, copy=True)
print(bytes(bundle).hex(), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    "setting, is_refused", [("expandable_segments:True", False), ("backend:cudaMallocAsync", True)]
)
def test_the_ways_in_which_torch_allocates(other: Served, setting: str, is_refused: bool) -> None:
    library("torch")
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": setting, "PYTORCH_ALLOC_CONF": setting}
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None and process.stdin is not None
            line = process.stdout.readline().strip()
            refused = line.startswith("refused")
            if refused:
                assert "refused True" in line, line
                print(line)
                line = process.stdout.readline().strip()
            assert other.call("sums", bytes.fromhex(line)) == {"x": float(100 << 18), "y": 2.0}
            assert refused == is_refused
            process.stdin.close()
            assert process.wait(DEADLINE) == 0
        finally:
            process.kill()


@pytest.mark.skipif(len(GPUS) < 2, reason="there is one CUDA device only")
def test_two_devices(other: Served) -> None:
    torch = library("torch")
    tensors = [torch.full((1000,), float(number + 1), device=f"cuda:{number}") for number in range(2)]
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    with crosshandle.share(tensors) as bundle:
        assert other.call("sums", bytes(bundle)) == [1000.0, 2000.0]
        layouts = other.call("layouts", bytes(bundle))
        assert [layout[3] for layout in layouts] == GPUS[:2]
    event = crosshandle.default_context(GPUS[0]).event()
    first, second = torch.cuda.Stream(0), torch.cuda.Stream(1)
    event.signal(first)
    event.wait_on(second, 1)
    second.synchronize()


@pytest.mark.skipif(len(GPUS) < 2, reason="there is one CUDA device only")
def test_two_devices_of_cupy(other: Served) -> None:
    cupy = library("cupy")
    with cupy.cuda.Device(1):
        array = cupy.ones(1000, "float32")
        cupy.cuda.get_current_stream().synchronize()
        with crosshandle.share(array) as bundle:
            assert other.call("layouts", bytes(bundle)) == ((1000,), "float32", False, GPUS[1])
            assert other.call("sums", bytes(bundle), "cupy") == 1000.0
