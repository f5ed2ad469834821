"""Passes tensors and arrays between Ray actors through the transport `crosshandle`.

`ray_program.py OBJECTS` checks values, target buffers, the deaths of actors, and that OBJECTS small
objects leave nothing behind. Prints the times of 100 MiB next to those of Ray's object store as
JSON.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch
from ray.experimental import register_tensor_transport
from ray.experimental.rdt.tensor_transport_manager import (
    CommunicatorMetadata,
    TensorTransportManager,
    TensorTransportMetadata,
)

import crosshandle
import crosshandle.ray



@dataclass
class InlineMetadata(TensorTransportMetadata):
    contents: bytes = b""


class Inline(TensorTransportManager):
    """A transport that shares nothing: the description of an object contains the tensors' values.
    Its growth is that of Ray itself."""

    def tensor_transport_backend(self) -> str:
        return "INLINE"

    @staticmethod
    def is_one_sided() -> bool:
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        return True

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        return True

    def get_communicator_metadata(self, src_actor: Any, dst_actor: Any, backend: Any = None) -> Any:
        return CommunicatorMetadata()

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[Any]) -> Any:
        meta = [(one.shape, one.dtype) for one in rdt_object]
        # As many bytes as a bundle has. The tensors have one value each.
        values = [one.flatten()[0].item() for one in rdt_object]
        return InlineMetadata(tensor_meta=meta, tensor_device="cpu", contents=json.dumps(values).encode().ljust(400))

    def recv_multiple_tensors(self, obj_id: str, meta: Any, communicator: Any, target_buffers: Any = None) -> list[Any]:
        values = json.loads(meta.contents)
        return [torch.full(shape, value, dtype=dtype) for (shape, dtype), value in zip(meta.tensor_meta, values)]

    def send_multiple_tensors(self, tensors: Any, meta: Any, communicator: Any) -> None:
        raise NotImplementedError

    def garbage_collect(self, obj_id: str, meta: Any, tensors: Any) -> None: ...

    def abort_transport(self, obj_id: str, communicator: Any) -> None: ...


# Ray checks the name of a transport where a method names it.
crosshandle.ray.register()
register_tensor_transport("inline", ["cpu"], Inline, torch.Tensor)

ELEMENTS = (100 << 20) // 4
REPEATS = 5


@ray.remote(enable_tensor_transport=True)
class Source:
    def __init__(self) -> None:
        self.ours = crosshandle.empty(ELEMENTS, "float32").torch()
        self.ours.fill_(3)
        self.plain = torch.full((ELEMENTS,), 2.0)
        self.array = np.full(ELEMENTS, 2.0, "float32")

    @ray.method(tensor_transport="crosshandle")
    def get_ours(self) -> Any:
        return self.ours

    @ray.method(tensor_transport="crosshandle")
    def get_plain(self) -> Any:
        return self.plain

    @ray.method(tensor_transport="crosshandle_numpy")
    def get_arrays(self) -> Any:
        return {"ours": crosshandle.asarray([1, 2, 3]).numpy(), "plain": np.arange(4.0), "text": "x"}

    def get_by_store(self) -> Any:
        return self.array

    @ray.method(tensor_transport="crosshandle")
    def get_small(self, value: int) -> Any:
        return [torch.full((1024,), float(value)), torch.tensor([value])]

    @ray.method(tensor_transport="inline")
    def get_inline(self, value: int) -> Any:
        return [torch.full((1024,), float(value)), torch.tensor([value])]

    def pid(self) -> int:
        return os.getpid()

    def first(self) -> float:
        return float(self.ours[0])


@ray.remote(enable_tensor_transport=True)
class Sink:
    def ends(self, array: Any) -> float:
        return float(array[0]) + float(array[-1])

    def write(self, array: Any, value: float) -> None:
        array[0] = value

    def lists(self, found: dict[str, Any]) -> Any:
        return {key: value if isinstance(value, str) else value.tolist() for key, value in found.items()}

    def small(self, found: Any) -> int:
        return int(found[0].sum()) + int(found[1])

    def memory(self) -> tuple[int, int]:
        return memory()

    def keep(self, array: Any) -> None:
        self.kept = array

    def kept_ends(self) -> float:
        return self.ends(self.kept)


def memory() -> tuple[int, int]:
    """Returns the number of open files of this process, and its own memory in bytes."""
    with open("/proc/self/statm") as file:
        numbers = [int(number) for number in file.read().split()]
    return len(os.listdir("/proc/self/fd")), (numbers[1] - numbers[2]) * os.sysconf("SC_PAGE_SIZE")


def timed(call: Any) -> float:
    begin = time.monotonic()
    call()
    return time.monotonic() - begin


def values(source: Any, sink: Any) -> None:
    found = ray.get(sink.lists.remote(source.get_arrays.remote()))
    assert found == {"ours": [1, 2, 3], "plain": [0.0, 1.0, 2.0, 3.0], "text": "x"}
    # The receiver has the sender's memory.
    ray.get(sink.write.remote(source.get_ours.remote(), 7.0))
    assert ray.get(source.first.remote()) == 7.0
    ray.get(sink.write.remote(source.get_ours.remote(), 3.0))
    # This process receives into memory of its own.
    reference = source.get_ours.remote()
    buffer = torch.zeros(ELEMENTS)
    ray.experimental.set_target_for_ref(reference, [buffer])
    received = ray.get(reference)
    assert received.data_ptr() == buffer.data_ptr() and bool((buffer == 3).all())


def speeds(source: Any, sink: Any) -> dict[str, float]:
    times: dict[str, list[float]] = {"ours": [], "plain": [], "store": []}
    expected = {"ours": 6.0, "plain": 4.0, "store": 4.0}
    methods = {"ours": source.get_ours, "plain": source.get_plain, "store": source.get_by_store}

    def pass_one(name: str) -> None:
        assert ray.get(sink.ends.remote(methods[name].remote())) == expected[name]

    for turn in range(REPEATS + 1):
        for name in times:
            took = timed(lambda name=name: pass_one(name))
            if turn > 0:
                times[name].append(took)
    return {f"{name}_ms": statistics.median(took) * 1e3 for name, took in times.items()}


def growth(source: Any, sink: Any, objects: int) -> dict[str, Any]:
    """Returns the growth of both actors' memory for each object: with this package's transport, and
    with one that shares nothing."""

    def some(method: Any, first: int, count: int) -> None:
        references = [sink.small.remote(method.remote(value)) for value in range(first, first + count)]
        assert ray.get(references) == [1025 * value for value in range(first, first + count)]

    def now() -> list[tuple[int, int]]:
        return [ray.get(sink.memory.remote()), ray.get(source.__ray_call__.remote(lambda _: memory()))]

    found: dict[str, Any] = {"objects": objects}
    for name, method in (("inline", source.get_inline), ("ours", source.get_small)):
        some(method, 0, 100)
        before = now()
        for first in range(0, objects, 100):
            some(method, first, 100)
        after = now()
        found[name] = {}
        for who, (files, bytes), (files_later, bytes_later) in zip(("sink", "source"), before, after):
            assert files_later <= files + 8, f"{name}: {files} open files became {files_later}"
            assert bytes_later <= bytes + (64 << 20), f"{name}: {bytes} bytes became {bytes_later}"
            found[name][f"{who}_bytes_each"] = round((bytes_later - bytes) / objects)
            found[name][f"{who}_files"] = files_later - files
    return found


def deaths(keeper: Any, sink: Any) -> dict[str, float]:
    # One receiver has the tensor open when its source is killed, and keeps it. Another one fetches
    # it after that.
    source = Source.remote()
    ray.get(keeper.keep.remote(source.get_ours.remote()))
    reference = source.get_ours.remote()
    ray.wait([reference])
    os.kill(ray.get(source.pid.remote()), 9)
    begin = time.monotonic()
    try:
        ray.get(sink.ends.remote(reference), timeout=30)
        raise SystemExit("a tensor of a dead actor was fetched")
    except (ray.exceptions.RayTaskError, crosshandle.ExporterGoneError) as error:
        assert "ExporterGone" in str(error) or isinstance(error, crosshandle.ExporterGoneError), error
    took = time.monotonic() - begin
    assert ray.get(keeper.kept_ends.remote()) == 6.0
    # The source is stopped during the fetch, and killed while the receiver waits for it.
    source = Source.remote()
    reference = source.get_ours.remote()
    ray.wait([reference])
    pid = ray.get(source.pid.remote())
    os.kill(pid, 19)
    fetch = sink.ends.remote(reference)
    ready, _ = ray.wait([fetch], timeout=1)
    assert not ready, "a stopped actor has answered"
    os.kill(pid, 9)
    begin = time.monotonic()
    try:
        ray.get(fetch, timeout=30)
        raise SystemExit("a tensor of a killed actor was fetched")
    except ray.exceptions.RayTaskError:
        during = time.monotonic() - begin
    assert ray.get(keeper.kept_ends.remote()) == 6.0
    return {"before_s": took, "during_s": during}


def main(objects: str) -> None:
    ray.init(num_cpus=8, include_dashboard=False, object_store_memory=700 << 20, logging_level="ERROR")
    source, sink = Source.remote(), Sink.remote()
    values(source, sink)
    figures: dict[str, Any] = {"speeds": speeds(source, sink)}
    figures["growth"] = growth(source, sink, int(objects))
    figures["deaths"] = deaths(sink, Sink.remote())
    print("REPLY " + json.dumps({"result": figures}), flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
