"""Compares the module with other Python packages that share memory, move bytes, or load models.
Each function skips its rows if its package or a GPU is missing."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import re
import select
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from multiprocessing import shared_memory
from typing import Any

import numpy as np

import crosshandle
import harness
from harness import DEADLINE, Row, Skipped, in_turns, microseconds, other, package, pick, torch_with_gpu
from models import load_into_host

KIB, MIB = 1 << 10, 1 << 20
held: list[Any] = []


def size(nbytes: int) -> str:
    return f"{nbytes // MIB} MiB" if nbytes >= MIB else f"{nbytes // KIB} KiB"


# multiprocessing


def take(queues: Any) -> None:
    """Receives arrays, reads one element of each, and replies, until it receives `None`."""
    queue, back = queues
    while (value := queue.get(timeout=DEADLINE)) is not None:
        if isinstance(value, crosshandle.Array):
            value = value.numpy()
        back.put(float(value.reshape(-1)[-1]))


def take_tensors(queues: Any) -> None:
    """Receives tensors of torch, as `take` receives arrays."""
    queue, back = queues
    while (value := queue.get(timeout=DEADLINE)) is not None:
        if isinstance(value, crosshandle.Array):
            value = value.torch()
        back.put(float(value[-1]))


def through_queue(context: Any, ours: Any, peer: Any, take: Callable[[Any], None] = take) -> tuple[list[float], list[float]]:
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
        times = through_queue(context, ours, tensor, take_tensors)
        what = f"torch tensor on the CPU through a Queue until read, {size(nbytes)}"
        yield Row(what, *times, "torch.multiprocessing", "≤ 1 ×", ("bytes", nbytes), "torch")


def torch_queue_on_gpu() -> Iterator[Row]:
    torch_with_gpu()
    yield from importlib.import_module("gpu").queue_of_torch()


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
    torch_with_gpu()
    package("cuda.core")
    harness.versions("cuda-core")
    from cuda.core import Device, DeviceMemoryResource, DeviceMemoryResourceOptions

    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    nbytes = 64 * MIB
    rounds = pick(20, 5)
    # The exporter keeps all memory of the pool, so that each opening is the first of its memory.
    options = DeviceMemoryResourceOptions(max_size=3 * (rounds + 1) * nbytes, ipc_enabled=True)
    pool = DeviceMemoryResource(device, options=options)
    functions = {"start": cuda_core_start, "pool": cuda_core_pool, "peer": cuda_core_open, "ours": open_tree}
    own = crosshandle.Context("cuda:0", pooling=False)
    kept = []
    with other(functions) as process:
        process.call("start", 0)
        process.call("pool", pool.allocation_handle)
        for pause, what in ((0, "right after other calls"), (0.05, "after 50 ms of rest")):

            def ours(pause: float = pause) -> float:
                memory = own.empty(nbytes, "uint8")
                with crosshandle.share([memory]) as bundle:
                    time.sleep(pause)
                    return process.call("ours", bytes(bundle))

            def peer(pause: float = pause) -> float:
                memory = pool.allocate(nbytes, stream=stream)
                kept.append(memory)
                stream.sync()
                descriptor = memory.ipc_descriptor
                time.sleep(pause)
                return process.call("peer", descriptor)

            times = in_turns(ours, peer, rounds)
            name = "cuda.core: Buffer.from_ipc_descriptor"
            yield Row(f"first open of 64 MiB on a GPU from Python, {what}", *times, name, "≤ 1 ×", None, "cuda-core")
    for memory in kept:
        memory.close(stream)
    stream.sync()


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


# UCX


# Time after which a process is treated as hung.
REPLY_SECONDS = 15.0


class Worker:
    """A process `crosshandle-link-peer`, which uses a link or UCX. It replies to each line."""

    def __init__(self, device: str = "host") -> None:
        program = os.environ.get("CROSSHANDLE_LINK_PEER")
        if program is None or "CROSSHANDLE_UCX" not in os.environ:
            raise Skipped("UCX or crosshandle-link-peer is missing")
        environment = {**os.environ, "UCX_LOG_LEVEL": "fatal", "CROSSHANDLE_LINK_DEVICE": device}
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def begin(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def end(self) -> str:
        assert self.process.stdout
        # The process writes whole lines, and only in reply.
        if not select.select([self.process.stdout], [], [], REPLY_SECONDS)[0]:
            raise TimeoutError("crosshandle-link-peer does not reply")
        kind, _, said = self.process.stdout.readline().strip().partition(" ")
        if kind != "ok":
            raise RuntimeError(f"UCX: {said}")
        return said

    def ask(self, line: str) -> str:
        self.begin(line)
        return self.end()


def ucx() -> Iterator[Row]:
    """Writes over loopback. Without network cards with RDMA, UCX moves remote memory by TCP."""
    one, two = Worker(), Worker()
    version = re.search(r"libucx-[^/]*-([0-9.]+)/", os.environ["CROSSHANDLE_UCX"])
    if version:
        print(json.dumps({"versions": {"UCX": version[1]}}), flush=True)
    try:
        starts = [worker.ask("bare start lo") for worker in (one, two)]
        one.ask(f"bare connect {starts[1]}")
        two.ask(f"bare connect {starts[0]}")
        for nbytes in (64 * KIB, MIB, 64 * MIB):
            view = crosshandle.empty(nbytes, "uint8").numpy()
            source = np.full(nbytes, 7, "uint8")
            event = crosshandle.default_context().event()

            def ours() -> float:
                def write() -> None:
                    view[:] = source
                    event.signal()

                return microseconds(write)

            def peer() -> float:
                one.begin(f"bare serve 1 {nbytes}")
                took = float(two.ask(f"bare write {pick(9, 3)} {nbytes}")) / 1e3
                one.end()
                return took

            times = in_turns(ours, peer, pick(9, 3))
            what = f"write {size(nbytes)} into memory of another process of this host"
            yield Row(what, *times, "UCX alone over TCP", "≤ 1 ×", ("bytes", nbytes), "ucx")
    finally:
        for worker in (one, two):
            worker.process.kill()
            worker.process.wait()


# Links between GPUs


TOKEN = "xhlink-" + 52 * "a"


class Pair:
    """Two processes that copy from GPU memory of one to GPU memory of the other over TCP."""

    def __init__(self, name: str) -> None:
        self.name, self.workers = name, [Worker("cuda:0"), Worker("cuda:0")]
        self.owner, self.user = self.workers

    def link(self, data: str, nbytes: int) -> Pair:
        """Links the two processes, and opens the owner's memory in the user."""
        address = self.owner.ask(f"listen 127.0.0.1:0 {TOKEN} {data} lo 10000")
        self.user.ask(f"connect {address} {TOKEN} {data} lo 10000")
        self.owner.ask("accept 10000")
        handle = self.owner.ask(f"allocate {nbytes}").split()[0]
        self.user.ask(f"allocate {nbytes}")
        self.user.ask(f"open_memory {handle}")
        self.user.ask("fill 0 7")
        self.user.ask(f"figure copy_there 1 {nbytes}")
        assert self.owner.ask(f"holds 0 7 0 {nbytes}") == "true"
        return self

    def alone(self, nbytes: int) -> Pair:
        """Connects the two processes by UCX."""
        starts = [worker.ask("bare start lo cuda:0") for worker in self.workers]
        self.owner.ask(f"bare connect {starts[1]}")
        self.user.ask(f"bare connect {starts[0]}")
        self.user.ask("bare gpu_fill 7")
        self.copy("copy_there", 1, nbytes)
        assert self.owner.ask(f"bare gpu_holds 7 {nbytes}") == "true"
        return self

    def copied_by_link(self, what: str, rounds: int, nbytes: int) -> float:
        return float(self.user.ask(f"figure {what} {rounds} {nbytes}")) / 1e3

    def copy(self, what: str, rounds: int, nbytes: int) -> float:
        self.owner.begin(f"bare serve 1 {nbytes}")
        took = float(self.user.ask(f"bare {what} {rounds} {nbytes}")) / 1e3
        self.owner.end()
        return took

    def end(self) -> None:
        for worker in self.workers:
            worker.process.kill()
            worker.process.wait()


class GpuAgent:
    """One side of NIXL, with GPU memory of torch."""

    def __init__(self, nbytes: int, value: int) -> None:
        from nixl_cu13._api import nixl_agent, nixl_agent_config

        torch = package("torch")
        self.tensor = torch.full((nbytes,), value, dtype=torch.uint8, device="cuda:0")
        torch.cuda.synchronize()
        self.place = (self.tensor.data_ptr(), nbytes, 0)
        self.agent = nixl_agent(f"crosshandle-gpu-{os.getpid()}", nixl_agent_config(backends=["UCX"]))
        self.registered = self.agent.register_memory([(*self.place, "")], "VRAM")


gpu_agents: list[GpuAgent] = []
OVER_TCP = {"UCX_TLS": "tcp,cuda_copy,self", "UCX_NET_DEVICES": "lo", "UCX_LOG_LEVEL": "fatal"}


def nixl_gpu_start(nbytes: int) -> tuple[bytes, int]:
    os.environ.update(OVER_TCP)
    gpu_agents.append(GpuAgent(nbytes, 0))
    return gpu_agents[0].agent.get_agent_metadata(), gpu_agents[0].place[0]


def nixl_gpu_has(nbytes: int, value: int) -> bool:
    torch = package("torch")
    torch.cuda.synchronize()
    return bool((gpu_agents[0].tensor[:nbytes] == value).all())


def links_of_a_gpu() -> Iterator[Row]:
    """Copies over loopback, because one machine has no network between its GPUs' processes."""
    torch_with_gpu()
    pairs: list[Pair] = []
    sizes = (64 * KIB, MIB, 64 * MIB)
    whats = {"copy_there": "to", "copy_here": "from"}
    ways = ("a link over UCX", "a link over TLS")
    goal = "≤ 1 ×"

    def rounds(nbytes: int) -> int:
        return pick(max(5, min(200, 256 * MIB // nbytes)), 5)

    def rows(name: str, group: str, peer: Callable[[str, int], float], links: dict[str, Pair]) -> Iterator[Row]:
        for nbytes in sizes:
            for what, preposition in whats.items():
                for way, link in links.items():

                    def ours(link: Pair = link, what: str = what, nbytes: int = nbytes) -> float:
                        return link.copied_by_link(what, rounds(nbytes), nbytes)

                    times = in_turns(ours, lambda what=what, nbytes=nbytes: peer(what, nbytes), pick(5, 2))
                    text = f"copy {size(nbytes)} {preposition} GPU memory of a process by TCP, {way}"
                    yield Row(text, *times, name, goal, ("bytes", nbytes), group)

    def started(name: str, start: Callable[[Pair], Pair]) -> Pair | str:
        """Returns two processes that are connected, or the reason why they are not."""
        try:
            pairs.append(Pair(name))
            return start(pairs[-1])
        except Skipped:
            raise
        except Exception as error:
            return f"{name}: {error!r}"

    try:
        over_ucx = started(ways[0], lambda pair: pair.link("ucx:tcp,cuda_copy,self:auto", sizes[-1]))
        over_tls = started(ways[1], lambda pair: pair.link("tls", sizes[-1]))
        alone = started("UCX alone", lambda pair: pair.alone(sizes[-1]))
        reasons = [one for one in (over_ucx, over_tls, alone) if isinstance(one, str)]
        for reason in reasons:
            yield Row(f"copy GPU memory by TCP, {reason.split(':')[0]}", failed=reason[:500], group="link-gpu")
        links = {way: link for way, link in zip(ways, (over_ucx, over_tls), strict=True) if isinstance(link, Pair)}
        if isinstance(alone, Pair):
            other_side = alone
            yield from rows("UCX alone", "link-gpu.ucx", lambda what, nbytes: other_side.copy(what, rounds(nbytes), nbytes), links)
        try:
            package("nixl_cu13._api")
        except Skipped as reason:
            yield Row("copy GPU memory by NIXL over TCP", skipped=str(reason), group="link-gpu.nixl")
            return
        harness.versions("nixl-cu13")
        yield from nixl_rows(lambda peer: rows("NIXL over UCX", "link-gpu.nixl", peer, links), sizes[-1], rounds)
    finally:
        for pair in pairs:
            pair.end()


def nixl_rows(
    rows: Callable[[Callable[[str, int], float]], Iterator[Row]], most: int, rounds: Callable[[int], int]
) -> Iterator[Row]:
    """Starts NIXL in this process and in another one, and measures rows with it."""
    before = dict(os.environ)
    os.environ.update(OVER_TCP)
    try:
        with other({"start": nixl_gpu_start, "has": nixl_gpu_has}) as process:
            metadata, address = process.call("start", most)
            own = GpuAgent(most, 7)
            remote = own.agent.add_remote_agent(metadata)
            remote = remote.decode() if isinstance(remote, bytes) else remote

            def peer(what: str, nbytes: int) -> float:
                from_ = own.agent.get_xfer_descs([(own.place[0], nbytes, 0)], "VRAM")
                to = own.agent.get_xfer_descs([(address, nbytes, 0)], "VRAM")
                handle = own.agent.initialize_xfer("WRITE" if what == "copy_there" else "READ", from_, to, remote)

                def move() -> None:
                    state = own.agent.transfer(handle)
                    while state == "PROC":
                        state = own.agent.check_xfer_state(handle)
                    if state != "DONE":
                        raise RuntimeError(f"NIXL's transfer: {state}")

                took = statistics.median(microseconds(move) for _ in range(rounds(nbytes)))
                own.agent.release_xfer_handle(handle)
                return took

            peer("copy_there", most)
            assert process.call("has", most, 7)
            yield from rows(peer)
    finally:
        os.environ.clear()
        os.environ.update(before)


ROWS = [
    queue, objects, event, torch_queue, ucx, nixl, load_into_host, torch_queue_on_gpu, cuda_core_on_gpu,
    links_of_a_gpu,
]  # fmt: skip
