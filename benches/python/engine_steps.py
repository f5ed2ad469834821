"""Compares this package's integrations with the steps of the packages that they replace, on a GPU.

    engine_steps.py ray [--device cuda:0] [--receiver cuda:0] [--mib 64] [--rounds 30]
    engine_steps.py events [--device cuda:0] [--rounds 300]

`ray` passes tensors between two processes: by this package's transport for Ray, and by the steps of
Ray's own transport `CUDA_IPC`. `events` passes events as LMCache does: by this package's backend,
and by the steps of LMCache's backend for interprocess events of CUDA. Ray and LMCache themselves
are not needed: stand-ins replace the few names that the integrations import from them. The program
fails if a tensor has wrong contents, or if an event does not order the streams.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import pickle
import statistics
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

DEADLINE = 30.0
CYCLES = 20_000_000
"""Duration of a kernel that delays a stream, in cycles of the GPU: about 10 ms."""


def stand_ins() -> None:
    """Provides the names that `crosshandle.ray` and `crosshandle.engines.lmcache` import."""

    class Plain:
        def __init__(self, **values: Any) -> None:
            self.__dict__.update(values)

    class Node:
        def get_node_id(self) -> str:
            return "this"

    names: dict[str, dict[str, Any]] = {
        "ray": {"get_runtime_context": Node},
        "ray.util": {},
        "ray.experimental": {"register_tensor_transport": None},
        "ray.experimental.rdt": {},
        "ray.experimental.rdt.tensor_transport_manager": {
            "CommunicatorMetadata": type("CommunicatorMetadata", (Plain,), {}),
            "TensorTransportManager": type("TensorTransportManager", (), {}),
            "TensorTransportMetadata": described(),
        },
        "lmcache": {},
        "lmcache.v1": {},
        "lmcache.v1.platform": {},
        "lmcache.v1.platform.devices": {},
        "lmcache.v1.platform.devices.cpu": {"CpuDeviceSpec": object},
        "lmcache.v1.platform.devices.cuda": {"CudaDeviceSpec": object},
    }
    for name, contents in names.items():
        module = types.ModuleType(name)
        module.__dict__.update(contents)
        module.__path__ = []  # type: ignore[attr-defined]
        sys.modules[name] = module
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], own, module)


def described() -> type:
    from dataclasses import dataclass

    @dataclass
    class TensorTransportMetadata:
        tensor_meta: list[Any]
        tensor_device: str | None = None

    return TensorTransportMetadata


class RaySteps:
    """The steps of Ray's transport `CUDA_IPC` (Ray 2.60)."""

    def __init__(self) -> None:
        self._events: dict[str, Any] = {}

    def extract(self, name: str, tensor: Any) -> Any:
        import torch
        from torch.multiprocessing.reductions import reduce_tensor

        event = torch.cuda.Event(interprocess=True)
        torch.cuda.current_stream(tensor.device).record_event(event)
        # Ray drops the event, which other processes then cannot open reliably.
        self._events[name] = event
        return reduce_tensor(tensor), event.ipc_handle()

    def receive(self, name: str, meta: Any, device: Any) -> Any:
        import torch

        (function, arguments), handle = meta
        event = torch.cuda.Event.from_ipc_handle(device=device, handle=handle)
        torch.cuda.current_stream(device).wait_event(event)
        return function(*arguments)

    def collect(self, name: str, meta: Any, tensor: Any) -> None:
        del self._events[name]


class OurSteps:
    """The transport of this package."""

    def __init__(self) -> None:
        import crosshandle.ray

        self._transport = crosshandle.ray.TorchTransport()

    def extract(self, name: str, tensor: Any) -> Any:
        return self._transport.extract_tensor_transport_metadata(name, [tensor])

    def receive(self, name: str, meta: Any, device: Any) -> Any:
        import crosshandle.ray

        (tensor,) = self._transport.recv_multiple_tensors(name, meta, crosshandle.ray.CommunicatorMetadata())
        return tensor

    def collect(self, name: str, meta: Any, tensor: Any) -> None:
        self._transport.garbage_collect(name, meta, [tensor])


def receiver(pipe: Any, device: str) -> None:
    """Receives tensors, reports when its stream has waited, and then what they contain."""
    stand_ins()
    import torch

    place = torch.device(device)
    torch.cuda.set_device(place)
    ways = {"theirs": RaySteps(), "ours": OurSteps()}
    torch.zeros(1, device=place)
    pipe.send("started")
    kept: Any = None
    while (message := pipe.recv()) is not None:
        way, name, data, keeps = message
        tensor = ways[way].receive(name, pickle.loads(data), place)
        torch.cuda.current_stream(place).synchronize()
        pipe.send("received")
        pipe.recv()
        pipe.send((float(tensor[0]), float(tensor[-1]), bool((tensor == tensor[0]).all())))
        if keeps:
            kept = tensor  # noqa: F841
        del tensor
        torch.cuda.synchronize()


def answered(pipe: Any) -> Any:
    if not pipe.poll(DEADLINE):
        raise TimeoutError("the other process does not reply")
    return pipe.recv()


def started(function: Callable[..., None], *arguments: Any) -> tuple[Any, Any]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=function, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    if not ours.poll(3 * DEADLINE):
        raise TimeoutError("the other process does not start")
    assert ours.recv() == "started"
    return ours, process


def row(name: str, ours: list[float], theirs: list[float], goal: float) -> str:
    first, second = statistics.median(ours), statistics.median(theirs)
    ratio = first / second
    reached = "reached" if ratio <= goal else "NOT reached"
    return f"| {name} | {second * 1e6:.1f} µs | {first * 1e6:.1f} µs | {ratio:.2f} × | {goal} × {reached} |"


def ray_rows(arguments: argparse.Namespace) -> Iterator[str]:
    stand_ins()
    import torch

    device = torch.device(arguments.device)
    torch.cuda.set_device(device)
    pipe, process = started(receiver, arguments.receiver)
    ways: dict[str, Any] = {"theirs": RaySteps(), "ours": OurSteps()}
    if arguments.receiver != arguments.device:
        # Ray's transport refuses another GPU.
        del ways["theirs"]
    value = 0

    def passed(way: str, tensor: Any, keeps: bool) -> float:
        nonlocal value
        value = value % 1000 + 1
        tensor.fill_(value)
        torch.cuda.synchronize()
        name = f"object-{value}"
        begin = time.perf_counter()
        meta = ways[way].extract(name, tensor)
        pipe.send((way, name, pickle.dumps(meta), keeps))
        assert answered(pipe) == "received"
        took = time.perf_counter() - begin
        pipe.send("check")
        assert answered(pipe) == (value, value, True), f"{way}: wrong contents"
        ways[way].collect(name, meta, tensor)
        return took

    def measured(made: Callable[[str], Any], keeps: bool) -> dict[str, list[float]]:
        times: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(arguments.rounds + 3):
            for way in ways:
                took = passed(way, made(way), keeps)
                if turn >= 3:
                    times[way].append(took)
        return times

    elements = arguments.mib << 18
    kept = {way: torch.zeros(elements, device=device) for way in ways}
    cases: dict[str, tuple[Callable[[str], Any], bool]] = {
        "a new tensor for each object": (lambda way: torch.empty(elements, device=device), False),
        "the same tensor, dropped by the receiver": (lambda way: kept[way], False),
        "the same tensor, kept by the receiver": (lambda way: kept[way], True),
    }
    try:
        for name, (made, keeps) in cases.items():
            times = measured(made, keeps)
            if "theirs" in times:
                yield row(name, times["ours"], times["theirs"], 0.5)
            else:
                yield f"| {name} | – | {statistics.median(times['ours']) * 1e6:.1f} µs | – | – |"
    finally:
        process.kill()


class TheirEvents:
    """LMCache's backend for interprocess events (`DefaultEventIPCBackend`, LMCache 0.5.6)."""

    def create_event(self, device: Any) -> Any:
        import torch

        return torch.cuda.Event(interprocess=True)

    def export_event(self, event: Any, device: Any) -> bytes:
        return bytes(event.ipc_handle())

    def import_event(self, handle: bytes, device: Any) -> Any:
        import torch

        return torch.cuda.Event.from_ipc_handle(device, handle)

    def record_event(self, event: Any, stream: Any) -> None:
        event.record(stream)

    def wait_event(self, event: Any, stream: Any) -> None:
        stream.wait_event(event)


def backends() -> dict[str, Any]:
    stand_ins()
    from crosshandle.engines.lmcache import EventBackend

    return {"theirs": TheirEvents(), "ours": EventBackend("cuda")}


def answerer(pipe: Any, device: str) -> None:
    """Imports events and waits for them on its stream, and answers with events of its own."""
    all_of = backends()
    import torch

    place = torch.device(device)
    torch.cuda.set_device(place)
    stream = torch.cuda.current_stream(place)
    number = torch.zeros(1, device=place)
    torch.cuda.synchronize()
    pipe.send("started")
    while (message := pipe.recv()) is not None:
        kind, way, data = message
        backend = all_of[way]
        if kind == "import":
            begin = time.perf_counter()
            event = backend.import_event(data, place)
            took = time.perf_counter() - begin
            backend.wait_event(event, stream)
            stream.synchronize()
            pipe.send(took)
        elif kind == "turn":
            backend.wait_event(backend.import_event(data, place), stream)
            number.add_(1)
            own = backend.create_event(place)
            backend.record_event(own, stream)
            pipe.send(backend.export_event(own, place))
        else:
            # This process's stream copies the memory after the event of the other process.
            memory = torch.multiprocessing.reductions.rebuild_cuda_tensor(*data[1])
            backend.wait_event(backend.import_event(data[0], place), stream)
            pipe.send(float(memory.clone()[0]))


def event_rows(arguments: argparse.Namespace) -> Iterator[str]:
    all_of = backends()
    import torch
    import torch.multiprocessing
    from torch.multiprocessing.reductions import reduce_tensor

    device = torch.device(arguments.device)
    torch.cuda.set_device(device)
    stream = torch.cuda.current_stream(device)
    other = torch.cuda.Stream(device)
    torch.zeros(1, device=device)
    pipe, process = started(answerer, arguments.device)
    times: dict[str, dict[str, list[float]]] = {
        name: {way: [] for way in all_of} for name in ("export and import", "there and back", "record and wait")
    }

    def crossing(backend: Any, way: str) -> float:
        begin = time.perf_counter()
        event = backend.create_event(device)
        backend.record_event(event, stream)
        data = backend.export_event(event, device)
        took = time.perf_counter() - begin
        pipe.send(("import", way, data))
        return took + float(answered(pipe))

    def turn(backend: Any, way: str) -> float:
        begin = time.perf_counter()
        event = backend.create_event(device)
        backend.record_event(event, stream)
        pipe.send(("turn", way, backend.export_event(event, device)))
        backend.wait_event(backend.import_event(answered(pipe), device), stream)
        stream.synchronize()
        return time.perf_counter() - begin

    def here(backend: Any, way: str) -> float:
        event = backend.create_event(device)
        backend.record_event(event, stream)
        begin = time.perf_counter()
        for _ in range(100):
            backend.record_event(event, stream)
            backend.wait_event(event, other)
        took = (time.perf_counter() - begin) / 100
        torch.cuda.synchronize()
        return took

    steps = {"export and import": crossing, "there and back": turn, "record and wait": here}
    try:
        for way, backend in all_of.items():
            # The other process reads what a slow stream writes before the event.
            memory = torch.zeros(1 << 20, device=device)
            torch.cuda.synchronize()
            for value in range(1, 6):
                torch.cuda._sleep(CYCLES)
                memory.fill_(value)
                event = backend.create_event(device)
                backend.record_event(event, stream)
                pipe.send(("order", way, (backend.export_event(event, device), reduce_tensor(memory)[1])))
                assert answered(pipe) == value, f"{way}: the event did not order the streams"
                torch.cuda.synchronize()
        for number in range(arguments.rounds + 20):
            for name, step in steps.items():
                for way, backend in all_of.items():
                    took = step(backend, way)
                    if number >= 20:
                        times[name][way].append(took)
        for name, goal in (("export and import", 0.2), ("there and back", 0.2), ("record and wait", 1.2)):
            yield row(name, times[name]["ours"], times[name]["theirs"], goal)
    finally:
        process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("ray", "events"))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--receiver", default=None)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=None)
    arguments = parser.parse_args()
    arguments.receiver = arguments.receiver or arguments.device
    arguments.rounds = arguments.rounds or (30 if arguments.what == "ray" else 300)
    os.environ["CROSSHANDLE_SOCKET_DIR"] = tempfile.mkdtemp(prefix="xh-")
    if arguments.what == "ray":
        print(f"{arguments.mib} MiB from {arguments.device} to {arguments.receiver}, without Ray itself\n")
        print("| object | the steps of Ray's CUDA_IPC | crosshandle | ratio | goal |\n|---|---|---|---|---|")
        rows = ray_rows(arguments)
    else:
        print(f"events on {arguments.device}, without LMCache itself\n")
        print("| step | CUDA's interprocess events | crosshandle | ratio | goal |\n|---|---|---|---|---|")
        rows = event_rows(arguments)
    for line in rows:
        print(line, flush=True)


if __name__ == "__main__":
    main()
