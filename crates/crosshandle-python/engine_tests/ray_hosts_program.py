"""Passes tensors and arrays between Ray actors on two machines through the transport `crosshandle`.

`ray_hosts_program.py ADDRESS` connects to a Ray cluster whose nodes have the resources `first` and
`second`. Prints figures as JSON.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from typing import Any

import numpy as np
import ray
import torch

import crosshandle.ray

crosshandle.ray.register(hosts=True)

ELEMENTS = (16 << 20) // 4
REPEATS = 5


@ray.remote(enable_tensor_transport=True)
class Source:
    def __init__(self) -> None:
        self.ours = crosshandle.empty(ELEMENTS, "float32").torch()
        self.ours.fill_(3)

    @ray.method(tensor_transport="crosshandle")
    def get_tensors(self) -> Any:
        return [self.ours, torch.arange(12.0).reshape(3, 4).T]

    @ray.method(tensor_transport="crosshandle_numpy")
    def get_arrays(self) -> Any:
        return {"ours": crosshandle.asarray([1, 2, 3]).numpy(), "plain": np.arange(4.0)[::-1], "empty": np.empty((0, 2))}

    @ray.method(tensor_transport="crosshandle_numpy")
    def get_many(self) -> Any:
        return [np.full(3, number) for number in range(2000)]

    @ray.method(tensor_transport="crosshandle")
    def get_large(self) -> Any:
        return crosshandle.empty(1 << 28, "float32").torch().fill_(1)

    def get_by_store(self) -> Any:
        return self.ours.numpy()

    def pid(self) -> int:
        return os.getpid()


@ray.remote(enable_tensor_transport=True)
class Sink:
    def tensors(self, found: Any) -> Any:
        found[0][0] += 1
        return [float(found[0][0]), float(found[0][-1]), found[1].tolist()]

    def lists(self, found: dict[str, Any]) -> Any:
        return {key: value.tolist() for key, value in found.items()}

    def total(self, found: list[Any]) -> int:
        return int(sum(int(one.sum()) for one in found))

    def ends(self, found: Any) -> float:
        return float(found[0]) + float(found[-1])

    def boot(self) -> str:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read()


def failing(call: Any, limit: float) -> float:
    """Returns the number of seconds until a call raises an exception."""
    begin = time.monotonic()
    try:
        ray.get(call, timeout=limit)
    except ray.exceptions.RayTaskError as error:
        assert any(name in str(error) for name in ("ExporterGone", "PeerDied")), error
        return time.monotonic() - begin
    raise SystemExit("a tensor of a dead actor was fetched")


def main(address: str) -> None:
    ray.init(address=address, logging_level="ERROR")
    sink = Sink.options(resources={"second": 1}).remote()

    def source() -> Any:
        made = Source.options(resources={"first": 1}).remote()
        return made, ray.get(made.pid.remote())

    first, pid = source()
    with open("/proc/sys/kernel/random/boot_id") as file:
        assert ray.get(sink.boot.remote()) != file.read()
    expected = [[float(row + 4 * column) for column in range(3)] for row in range(4)]
    # The receiver has a copy, so its write is not seen by the next receiver.
    for _ in range(2):
        assert ray.get(sink.tensors.remote(first.get_tensors.remote())) == [4.0, 3.0, expected]
    found = ray.get(sink.lists.remote(first.get_arrays.remote()))
    assert found == {"ours": [1, 2, 3], "plain": [3.0, 2.0, 1.0, 0.0], "empty": []}
    # The list of so many arrays is in the sender's memory.
    assert ray.get(sink.total.remote(first.get_many.remote())) == 3 * sum(range(2000))

    times: dict[str, list[float]] = {"ours": [], "store": []}
    for turn in range(REPEATS + 1):
        for name, method in (("ours", first.get_tensors), ("store", first.get_by_store)):
            begin = time.monotonic()
            reference = method.remote()
            if name == "ours":
                ray.get(sink.tensors.remote(reference))
            else:
                assert ray.get(sink.ends.remote(reference)) == 6.0
            if turn:
                times[name].append(time.monotonic() - begin)

    # The source is killed before the fetch. The link to it exists.
    reference = first.get_tensors.remote()
    ray.wait([reference])
    os.kill(pid, 9)
    before = failing(sink.tensors.remote(reference), 30)
    # The source is killed during the fetch of 1 GiB.
    second, pid = source()
    reference = second.get_large.remote()
    ray.wait([reference])
    assert ray.get(sink.tensors.remote(second.get_tensors.remote()))[0] == 4.0
    fetch = sink.ends.remote(reference)
    ready, _ = ray.wait([fetch], timeout=0.3)
    assert not ready, "1 GiB has crossed already"
    os.kill(pid, 9)
    during = failing(fetch, 30)
    # The receiver lives, and fetches from another source.
    third, _ = source()
    assert ray.get(sink.tensors.remote(third.get_tensors.remote())) == [4.0, 3.0, expected]
    figures = {f"{name}_ms": statistics.median(took) * 1e3 for name, took in times.items()}
    print("REPLY " + json.dumps({"result": {**figures, "before_s": before, "during_s": during}}), flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
