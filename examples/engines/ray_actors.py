"""Two Ray actors that pass a tensor without a copy, and without Ray's object store.

    python ray_actors.py

The tensor is on a GPU if there is one. Needs `ray` and `torch`.
"""

from __future__ import annotations

import ray
import torch

import crosshandle
import crosshandle.ray

crosshandle.ray.register()  # before the classes of the actors


@ray.remote
class Source:
    def __init__(self) -> None:
        # On the host, only arrays in shared memory cross without a copy.
        host = crosshandle.empty(1 << 20, "float32").torch()
        self.tensor = torch.ones(1 << 20, device="cuda") if torch.cuda.is_available() else host.fill_(1)

    @ray.method(tensor_transport="crosshandle")
    def get(self) -> torch.Tensor:
        return self.tensor

    def first(self) -> float:
        return float(self.tensor[0])


@ray.remote(enable_tensor_transport=True)
class Sink:
    def double(self, tensor: torch.Tensor) -> float:
        tensor.mul_(2)
        return float(tensor.sum())


if __name__ == "__main__":
    ray.init(include_dashboard=False)
    gpus = {"num_gpus": 0.5} if torch.cuda.is_available() else {}
    source, sink = Source.options(**gpus).remote(), Sink.options(**gpus).remote()
    print("the sink's sum:", ray.get(sink.double.remote(source.get.remote())))
    print("the source's first element:", ray.get(source.first.remote()))
