"""Compares the module with other Python packages that share memory, move bytes, or load models.
Each function skips its rows if its package or a GPU is missing."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import shutil
import statistics
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import numpy as np

import crosshandle
import harness
from harness import DEADLINE, Row, Skipped, microseconds, other, pick

KIB, MIB = 1 << 10, 1 << 20
held: list[Any] = []


def package(name: str) -> Any:
    """Imports a compared package."""
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise Skipped(f"{name}: {error}") from None


def gpu() -> Any:
    """Returns torch, which has found a GPU."""
    torch = package("torch")
    if not torch.cuda.is_available():
        raise Skipped("no GPU that torch can use")
    return torch


def size(nbytes: int) -> str:
    return f"{nbytes // MIB} MiB" if nbytes >= MIB else f"{nbytes // KIB} KiB"


def in_turns(ours: Callable[[], float], peer: Callable[[], float], rounds: int) -> tuple[list[float], list[float]]:
    """Measures both sides in alternation. The first round is not recorded."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        for side in (0, 1) if number % 2 else (1, 0):
            took = (ours, peer)[side]()
            if number:
                times[side].append(took)
    return times


# multiprocessing


def take(queues: Any) -> None:
    """Receives arrays, reads one element of each, and replies, until it receives `None`."""
    queue, back = queues
    while (value := queue.get(timeout=DEADLINE)) is not None:
        if isinstance(value, crosshandle.Array):
            value = value.numpy()
        back.put(float(value.reshape(-1)[-1]))


def through_queue(context: Any, ours: Any, peer: Any) -> tuple[list[float], list[float]]:
    queue, back = context.Queue(), context.SimpleQueue()

    def there(value: Any) -> Callable[[], float]:
        def once() -> None:
            queue.put(value)
            assert back.get() == 1

        return lambda: microseconds(once)

    with other({"take": take}, context, (queue, back)) as process:
        process.ask("take")
        times = in_turns(there(ours), there(peer), pick(30, 5))
        queue.put(None)
        process.answer()
    return times


def queue() -> Iterator[Row]:
    context = multiprocessing.get_context("spawn")
    for nbytes in (64 * KIB, MIB, 16 * MIB, 128 * MIB):
        ours, plain = crosshandle.empty(nbytes // 8, "float64"), np.ones(nbytes // 8)
        ours.numpy()[:] = 1
        times = through_queue(context, ours, plain)
        what = f"NumPy array through a Queue until read, {size(nbytes)}"
        yield Row(what, *times, "multiprocessing.Queue", "≤ 1 ×", ("bytes", nbytes), "queue")


def read_ours(data: bytes) -> float:
    def opened() -> None:
        arrays = crosshandle.open(data)
        for array in arrays:
            array.numpy()[0]
        held.append(arrays)

    took = microseconds(opened)
    held.clear()
    return took


def read_shared_memory(names: list[str]) -> float:
    def opened() -> None:
        for name in names:
            memory = shared_memory.SharedMemory(name=name)
            array: Any = np.ndarray((512,), "float64", memory.buf)
            array[0]
            held.append((array, memory))

    took = microseconds(opened)
    while held:
        array, memory = held.pop()
        del array
        memory.close()
    return took


def objects() -> Iterator[Row]:
    """Opens many arrays at once. Both sides create theirs before."""
    with other({"ours": read_ours, "peer": read_shared_memory}) as process:
        for count in (1, 10, 100, 1000):
            arrays = [crosshandle.empty(512, "float64") for _ in range(count)]
            memories = [shared_memory.SharedMemory(create=True, size=4096) for _ in range(count)]
            names = [memory.name for memory in memories]

            def ours() -> float:
                began = time.perf_counter_ns()
                with crosshandle.share(arrays) as bundle:
                    shared = (time.perf_counter_ns() - began) / 1e3
                    return shared + process.call("ours", bytes(bundle))

            try:
                times = in_turns(ours, lambda: process.call("peer", names), pick(20, 5))
            finally:
                for memory in memories:
                    memory.close()
                    memory.unlink()
            what = f"share and open {count} NumPy arrays of 4 KiB"
            name = "multiprocessing.shared_memory, opening by name"
            yield Row(what, *times, name, "≤ 1 ×", ("objects", count), "objects")


def echo_event(shared: Any, rounds: int) -> None:
    asked, answered = shared
    for _ in range(rounds):
        asked.wait(DEADLINE)
        asked.clear()
        answered.set()


def echo_ours(shared: Any, ask: bytes, answer: bytes, first: int, rounds: int) -> None:
    asked, answered = crosshandle.open(ask), crosshandle.open(answer)
    for number in range(first, first + rounds):
        asked.wait_value(number, DEADLINE)
        answered.signal()


def event() -> Iterator[Row]:
    context = multiprocessing.get_context("spawn")
    ask, answer = crosshandle.default_context().event(), crosshandle.default_context().event()
    asked, answered = context.Event(), context.Event()
    rounds = pick(1000, 100)
    with other({"ours": echo_ours, "peer": echo_event}, context, (asked, answered)) as process:

        def ours() -> float:
            process.ask("ours", bytes(ask.handle()), bytes(answer.handle()), ask.submitted + 1, rounds)

            def once() -> None:
                answer.wait_value(ask.signal(), DEADLINE)

            took = statistics.median(microseconds(once) for _ in range(rounds))
            process.answer()
            return took

        def peer() -> float:
            process.ask("peer", rounds)

            def once() -> None:
                asked.set()
                answered.wait(DEADLINE)
                answered.clear()

            took = statistics.median(microseconds(once) for _ in range(rounds))
            process.answer()
            return took

        times = in_turns(ours, peer, pick(9, 3))
    yield Row("event to another Python process and back", *times, "multiprocessing.Event", "≤ 1 ×", None, "event")


# torch


def torch_queue() -> Iterator[Row]:
    torch = package("torch")
    harness.versions("torch")
    context = torch.multiprocessing.get_context("spawn")
    for nbytes in (MIB, 64 * MIB):
        ours, tensor = crosshandle.empty(nbytes // 4, "float32"), torch.ones(nbytes // 4)
        ours.numpy()[:] = 1
        times = through_queue(context, ours, tensor)
        what = f"torch tensor on the CPU through a Queue until read, {size(nbytes)}"
        yield Row(what, *times, "torch.multiprocessing", "≤ 1 ×", ("bytes", nbytes), "torch")


def torch_queue_on_gpu() -> Iterator[Row]:
    gpu()
    yield from importlib.import_module("gpu").queue_of_torch()


# Loading of safetensors


@contextmanager
def holder() -> Iterator[Any]:
    """Runs a holder. Removes its models at the end."""
    sockets = tempfile.mkdtemp(prefix="xh-")
    os.environ["CROSSHANDLE_SOCKET_DIR"] = sockets
    from crosshandle import store

    command = crosshandle.command()
    process = subprocess.Popen([command, "hold"], stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + DEADLINE
        while subprocess.run([command, "hold", "--check"], capture_output=True, check=False).returncode:
            if time.monotonic() > end:
                raise TimeoutError("there is no holder")
        yield store
    finally:
        subprocess.run([command, "hold", "--stop"], capture_output=True, check=False)
        process.kill()
        process.wait()
        shutil.rmtree(sockets, ignore_errors=True)
        del os.environ["CROSSHANDLE_SOCKET_DIR"]


@contextmanager
def model_files(nbytes: int) -> Iterator[list[str]]:
    """Writes four safetensors files with 32 tensors each. They are in the page cache."""
    place = next(place for place in ("/dev/shm", "/tmp") if os.path.isdir(place) and shutil.disk_usage(place).free > 2 * nbytes)
    directory = Path(tempfile.mkdtemp(prefix="xh-peers-", dir=place))
    each = nbytes // 128 // 4096 * 4096
    block = os.urandom(each)
    try:
        for file in range(4):
            tensors = {
                f"layers.{file}.{index}": {"dtype": "BF16", "shape": [each // 2], "data_offsets": [index * each, (index + 1) * each]}
                for index in range(32)
            }
            head = json.dumps(tensors).encode()
            with open(directory / f"{file}.safetensors", "wb") as out:
                out.write(struct.pack("<Q", len(head)) + head)
                for index in range(32):
                    out.write(struct.pack("<QQ", file, index) + block[16:])
        yield [str(directory / f"{file}.safetensors") for file in range(4)]
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def safetensors_way(files: list[str], device: str) -> Any:
    from safetensors.torch import load_file

    return [load_file(file, device=device) for file in files]


def copied_safetensors(files: list[str], device: str) -> Any:
    """Reads all bytes. `load_file` on the CPU only maps the file."""
    return [{name: tensor.clone() for name, tensor in tensors.items()} for tensors in safetensors_way(files, device)]


def fastsafetensors_way(files: list[str], device: str) -> Any:
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    loader = SafeTensorsFileLoader(SingleGroup(), device, nogds=True)
    loader.add_filenames({0: files})
    buffers = loader.copy_files_to_device()
    return loader, buffers, [buffers.get_tensor(name) for name in loader.get_keys()]


def instanttensor_way(files: list[str], device: str) -> Any:
    from instanttensor import safe_open

    with safe_open(files, framework="pt", device=device) as opened:
        return dict(opened.tensors())


Way = tuple[str, str, Callable[[list[str], str], Any]]


def loads(nbytes: int, device: str, torch_device: str, ways: list[Way], rounds: int) -> Iterator[Row]:
    """Compares loads of the same files. Ours computes the hash of the content too."""
    torch = package("torch")
    with holder() as store, model_files(nbytes) as files:

        def ours() -> float:
            took = microseconds(lambda: store.load("peers", files, device=device, replace=True))
            store.rm("peers")
            return took

        for name, package_name, way in ways:
            what = f"load {nbytes // MIB / 1024:g} GiB of safetensors into memory of {'the host' if device == 'host' else 'a GPU'}, from the page cache"
            row = Row(what, peer_name=name, goal="≤ 1 ×", group=f"load-{device.split(':')[0]}.{package_name}")
            try:
                package(package_name)
                harness.versions(package_name)

                def peer(way: Callable[[list[str], str], Any] = way) -> float:
                    def all() -> None:
                        held.append(way(files, torch_device))
                        if torch_device != "cpu":
                            torch.cuda.synchronize()

                    took = microseconds(all)
                    held.clear()
                    if torch_device != "cpu":
                        torch.cuda.empty_cache()
                    return took

                row.ours, row.peer = in_turns(ours, peer, rounds)
            except Skipped as reason:
                row.skipped = str(reason)
            except Exception as error:
                row.failed = repr(error)[:500]
            yield row


def load_into_host() -> Iterator[Row]:
    ways: list[Way] = [
        ("safetensors: load_file, then a copy of each tensor", "safetensors", copied_safetensors),
        ("fastsafetensors on the CPU", "fastsafetensors", fastsafetensors_way),
    ]
    yield from loads(pick(1 << 30, 256 * MIB), "host", "cpu", ways, pick(5, 2))


def load_into_gpu() -> Iterator[Row]:
    gpu()
    ways: list[Way] = [
        ("InstantTensor", "instanttensor", instanttensor_way),
        ("safetensors: load_file", "safetensors", safetensors_way),
        ("fastsafetensors without GPUDirect", "fastsafetensors", fastsafetensors_way),
    ]
    yield from loads(pick(4 << 30, 1 << 30), "cuda:0", "cuda:0", ways, 3)


# cuda.core


def cuda_core_start(number: int) -> Any:
    from cuda.core import Device

    device = Device(0)
    device.set_current()
    held.append((device, device.create_stream()))


def cuda_core_pool(handle: Any) -> None:
    from cuda.core import DeviceMemoryResource

    held.append(DeviceMemoryResource.from_allocation_handle(held[0][0], handle))


def cuda_core_open(descriptor: Any) -> float:
    from cuda.core import Buffer

    (_, stream), pool = held[0], held[1]
    began = time.perf_counter_ns()
    memory = Buffer.from_ipc_descriptor(pool, descriptor, stream=stream)
    stream.sync()
    took = (time.perf_counter_ns() - began) / 1e3
    memory.close(stream)
    stream.sync()
    return took


def cuda_core_on_gpu() -> Iterator[Row]:
    gpu()
    package("cuda.core")
    harness.versions("cuda-core")
    from cuda.core import Device, DeviceMemoryResource, DeviceMemoryResourceOptions

    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    nbytes = 64 * MIB
    pool = DeviceMemoryResource(device, options=DeviceMemoryResourceOptions(max_size=4 * nbytes, ipc_enabled=True))
    functions = {"start": cuda_core_start, "pool": cuda_core_pool, "peer": cuda_core_open, "ours": open_tree}
    own = crosshandle.Context("cuda:0", pooling=False)
    with other(functions) as process:
        process.call("start", 0)
        process.call("pool", pool.allocation_handle)

        def ours() -> float:
            memory = own.empty(nbytes, "uint8")
            with crosshandle.share([memory]) as bundle:
                return process.call("ours", bytes(bundle))

        def peer() -> float:
            memory = pool.allocate(nbytes, stream=stream)
            stream.sync()
            took = process.call("peer", memory.ipc_descriptor)
            memory.close(stream)
            stream.sync()
            return took

        times = in_turns(ours, peer, pick(20, 5))
    yield Row("first open of 64 MiB on a GPU", *times, "cuda.core: Buffer.from_ipc_descriptor", "≤ 1 ×", None, "cuda-core")


def open_tree(data: bytes) -> float:
    opened: list[Any] = []
    return microseconds(lambda: opened.append(crosshandle.open(data)))


# NIXL


class Agent:
    """One side of NIXL, with a region of host memory."""

    def __init__(self, nbytes: int):
        from nixl_cu13._api import nixl_agent, nixl_agent_config

        self.bytes = np.zeros(nbytes, "uint8")
        self.agent = nixl_agent(f"crosshandle-{os.getpid()}", nixl_agent_config(backends=["UCX"]))
        self.place = (self.bytes.ctypes.data, nbytes, 0)
        self.registered = self.agent.register_memory([(*self.place, "")], "DRAM")


agents: list[Agent] = []


def nixl_start(nbytes: int) -> tuple[bytes, int]:
    agents.append(Agent(nbytes))
    return agents[0].agent.get_agent_metadata(), agents[0].place[0]


def nixl_has(value: int) -> bool:
    return bool((agents[0].bytes == value).all())


def ours_has(data: bytes, value: int) -> bool:
    return bool((crosshandle.open(data).numpy() == value).all())


def nixl() -> Iterator[Row]:
    package("nixl_cu13._api")
    harness.versions("nixl-cu13")
    with other({"start": nixl_start, "peer": nixl_has, "ours": ours_has}) as process:
        most = 64 * MIB
        metadata, address = process.call("start", most)
        own = Agent(most)
        remote = own.agent.add_remote_agent(metadata)
        remote = remote.decode() if isinstance(remote, bytes) else remote
        for nbytes in (64 * KIB, MIB, most):
            array = crosshandle.empty(nbytes, "uint8")
            event = crosshandle.default_context().event()
            view = array.numpy()
            source = own.bytes[:nbytes]
            from_ = own.agent.get_xfer_descs([(own.place[0], nbytes, 0)], "DRAM")
            to = own.agent.get_xfer_descs([(address, nbytes, 0)], "DRAM")
            handle = own.agent.initialize_xfer("WRITE", from_, to, remote)

            def ours() -> float:
                def write() -> None:
                    view[:] = source
                    event.signal()

                return microseconds(write)

            def peer() -> float:
                def write() -> None:
                    state = own.agent.transfer(handle)
                    while state == "PROC":
                        state = own.agent.check_xfer_state(handle)
                    if state != "DONE":
                        raise RuntimeError(f"NIXL's transfer: {state}")

                return microseconds(write)

            source[:] = 7
            times = in_turns(ours, peer, pick(50, 10))
            with crosshandle.share(array) as bundle:
                assert process.call("ours", bytes(bundle), 7)
            if nbytes == most:
                assert process.call("peer", 7)
            own.agent.release_xfer_handle(handle)
            what = f"write {size(nbytes)} into memory of another process of this host"
            yield Row(what, *times, "NIXL over UCX", "≤ 1 ×", ("bytes", nbytes), "nixl")


ROWS = [
    queue, objects, event, torch_queue, nixl, load_into_host, torch_queue_on_gpu, cuda_core_on_gpu, load_into_gpu,
]  # fmt: skip
