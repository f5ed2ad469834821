"""Compares this package's integrations with the steps of the packages that they replace, on a GPU.

    engine_steps.py ray [--device cuda:0] [--receiver cuda:0] [--mib 64] [--rounds 30] [--steps]
    engine_steps.py events [--device cuda:0] [--rounds 300] [--steps]

`ray` passes tensors between two processes: by this package's transport for Ray, and by the steps of
Ray's own transport `CUDA_IPC`. `events` passes events as LMCache does: by this package's backend,
and by the steps of LMCache's backend for interprocess events of CUDA. Ray and LMCache themselves
are not needed: stand-ins replace the few names that the integrations import from them. The program
fails if a tensor has wrong contents, or if an event does not order the streams.

With `--steps`, the program also prints the median time of each step in both processes. With
`--device cpu`, it measures only this package's steps, in the host's memory.
"""

from __future__ import annotations

import argparse
import functools
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


Steps = dict[str, list[float]]
"""The times of steps in seconds, by the name of the step."""


def synchronize(device: Any) -> None:
    """Waits until a GPU has done its work. Does nothing on the CPU."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Watch:
    """Measures the time of each call to some functions, while it is switched on."""

    def __init__(self) -> None:
        self.steps: Steps = {}

    def of(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*arguments: Any, **named: Any) -> Any:
            begin = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                self.steps.setdefault(name, []).append(time.perf_counter() - begin)

        return timed

    def on(self, holder: Any, *names: str) -> None:
        """Replaces functions of a module, a class or an object by versions that are measured."""
        for name in names:
            setattr(holder, name, self.of(name, getattr(holder, name)))

    def on_sharing(self) -> None:
        """Measures the functions that `share` and `open` call."""
        import crosshandle._crosshandle
        import crosshandle._trees
        import crosshandle.ray

        self.on(crosshandle._trees, "rearrange")
        self.on(crosshandle._crosshandle, "pack_foreign", "unpack")
        self.on(crosshandle.ray, "share_list", "open_list")
        self.on(crosshandle.ray._signals, "after")

    def taken(self) -> Steps:
        taken, self.steps = self.steps, {}
        return taken


def medians(title: str, steps: Steps) -> Iterator[str]:
    yield f"\n{title}"
    for name, times in steps.items():
        yield f"    {statistics.median(times) * 1e6:8.1f} µs  {name} ({len(times)} times)"


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

        event = crosshandle.default_context().event()

        class WithEvents(crosshandle.ray.TorchTransport):
            """Uses an event on the CPU too, so that `--device cpu` measures the same steps."""

            def _shared(self, arrays: list[Any]) -> tuple[Any, str]:
                if arrays[0].device.type == "cuda":
                    return super()._shared(arrays)
                return crosshandle.ray.share_list(arrays, "host", event, event.signal()), "cpu"

        self._transport = WithEvents()

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
    if place.type == "cuda":
        torch.cuda.set_device(place)
    ways = {"theirs": RaySteps(), "ours": OurSteps()}
    torch.zeros(1, device=place)
    watch = Watch()
    pipe.send("started")
    kept: dict[str, Any] = {}
    while (message := pipe.recv()) is not None:
        if message == "watch":
            watch.on_sharing()
            continue
        if message == "steps":
            pipe.send(watch.taken())
            continue
        got = time.perf_counter()
        way, name, data, keeps = message
        meta = pickle.loads(data)
        loaded = time.perf_counter()
        tensor = ways[way].receive(name, meta, place)
        received = time.perf_counter()
        if place.type == "cuda":
            torch.cuda.current_stream(place).synchronize()
        pipe.send((got, loaded, received, time.perf_counter()))
        pipe.recv()
        pipe.send((float(tensor[0]), float(tensor[-1]), bool((tensor == tensor[0]).all())))
        if keeps:
            kept[way] = tensor
        begin = time.perf_counter()
        del tensor
        watch.steps.setdefault("drop the tensor", []).append(time.perf_counter() - begin)
        synchronize(place)


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
    if device.type == "cuda":
        torch.cuda.set_device(device)
    pipe, process = started(receiver, arguments.receiver)
    ways: dict[str, Any] = {"theirs": RaySteps(), "ours": OurSteps()}
    if arguments.receiver != arguments.device or device.type == "cpu":
        # Ray's transport refuses another GPU.
        del ways["theirs"]
    value = 0
    stamps: dict[str, Steps] = {way: {} for way in ways}

    def passed(way: str, tensor: Any, keeps: bool) -> tuple[float, float]:
        """Returns the time until the sender knows that the receiver has the tensor, and the part of
        this time that is not spent on the pipe."""
        nonlocal value
        value = value % 1000 + 1
        tensor.fill_(value)
        synchronize(device)
        name = f"object-{value}"
        begin = time.perf_counter()
        meta = ways[way].extract(name, tensor)
        extracted = time.perf_counter()
        data = pickle.dumps(meta)
        dumped = time.perf_counter()
        pipe.send((way, name, data, keeps))
        got, loaded, received, synchronized = answered(pipe)
        end = time.perf_counter()
        pipe.send("check")
        assert answered(pipe) == (value, value, True), f"{way}: wrong contents"
        collecting = time.perf_counter()
        ways[way].collect(name, meta, tensor)
        # The clock is the same in both processes.
        alone = (dumped - begin) + (synchronized - got)
        for step, took in {
            "extract": extracted - begin,
            "pickle": dumped - extracted,
            "send": got - dumped,
            "unpickle": loaded - got,
            "receive": received - loaded,
            "synchronize": synchronized - received,
            "answer": end - synchronized,
            "(later) collect": time.perf_counter() - collecting,
        }.items():
            stamps[way].setdefault(step, []).append(took)
        return end - begin, alone

    def measured(made: Callable[[str], Any], keeps: bool) -> dict[str, list[tuple[float, float]]]:
        times: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for turn in range(arguments.rounds + 3):
            for way in ways:
                took = passed(way, made(way), keeps)
                if turn >= 3:
                    times[way].append(took)
        return times

    elements = arguments.mib << 18

    def new() -> Any:
        if device.type == "cuda":
            return torch.empty(elements, device=device)
        # Other processes cannot map memory of torch on the CPU.
        import crosshandle

        return crosshandle.empty(elements, "float32").torch()

    kept = {way: new() for way in ways}
    cases: dict[str, tuple[Callable[[str], Any], bool]] = {
        "a new tensor for each object": (lambda way: new(), False),
        "the same tensor, dropped by the receiver": (lambda way: kept[way], False),
        "the same tensor, kept by the receiver": (lambda way: kept[way], True),
    }
    try:
        for name, (made, keeps) in cases.items():
            times = measured(made, keeps)
            for part, title in enumerate((f"{name}, with the messages", name)):
                took = {way: [pair[part] for pair in pairs] for way, pairs in times.items()}
                if "theirs" in took:
                    yield row(title, took["ours"], took["theirs"], 0.5)
                else:
                    yield f"| {title} | – | {statistics.median(took['ours']) * 1e6:.1f} µs | – | – |"
        if not arguments.steps:
            return
        # The functions are measured after the rows, because measuring takes time too.
        watch = Watch()
        watch.on_sharing()
        pipe.send("watch")
        for name, (made, keeps) in cases.items():
            for way in ways:
                stamps[way].clear()
            measured(made, keeps)
            for way in ways:
                yield from medians(f"{name}: {way}", stamps[way])
            yield from medians(f"{name}: ours, calls of the sender", watch.taken())
            pipe.send("steps")
            yield from medians(f"{name}: ours, calls of the receiver", answered(pipe))
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


CALLS = ("create_event", "export_event", "import_event", "record_event", "wait_event")
"""The calls of a backend that `--steps` measures."""


def watched(all_of: dict[str, Any]) -> dict[str, Watch]:
    watches = {way: Watch() for way in all_of}
    for way, backend in all_of.items():
        watches[way].on(backend, *CALLS)
    return watches


def answerer(pipe: Any, device: str) -> None:
    """Imports events and waits for them on its stream, and answers with events of its own."""
    all_of = backends()
    watches: dict[str, Watch] = {}
    import torch

    place = torch.device(device)
    torch.cuda.set_device(place)
    stream = torch.cuda.current_stream(place)
    number = torch.zeros(1, device=place)
    torch.cuda.synchronize()
    pipe.send("started")
    while (message := pipe.recv()) is not None:
        if message == "watch":
            watches = watched(all_of)
            continue
        if message == "steps":
            pipe.send({way: watch.taken() for way, watch in watches.items()})
            continue
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
        def measured(name: str) -> None:
            for number in range(arguments.rounds + 20):
                for way, backend in all_of.items():
                    took = steps[name](backend, way)
                    if number >= 20:
                        times[name][way].append(took)

        for name in steps:
            measured(name)
        for name, goal in (("export and import", 0.2), ("there and back", 0.2), ("record and wait", 1.2)):
            yield row(name, times[name]["ours"], times[name]["theirs"], goal)
        if not arguments.steps:
            return
        watches = watched(all_of)
        pipe.send("watch")
        for name in steps:
            measured(name)
            pipe.send("steps")
            other_side = answered(pipe)
            for way, watch in watches.items():
                yield from medians(f"{name}: {way}, calls of this process", watch.taken())
                yield from medians(f"{name}: {way}, calls of the other process", other_side[way])
    finally:
        process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("ray", "events"))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--receiver", default=None)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--steps", action="store_true", help="print the median time of each step")
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
