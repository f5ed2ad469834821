"""Sends the weights of a checkpoint to a running vLLM server.

    crosshandle hold &
    export VLLM_SERVER_DEV_MODE=1
    vllm serve DIRECTORY --weight-transfer-config '{"backend": "crosshandle"}'
    python vllm_update.py http://localhost:8000 policy OTHER_DIRECTORY/model.safetensors [cuda:0]

A trainer does the same with its own module in place of the file. `policy` is the name under which
the holder keeps the weights, on the device of the last argument (default: host).
"""

from __future__ import annotations

import sys
import urllib.request
from collections.abc import Iterator

import torch
from safetensors.torch import load_file
from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource
from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

from crosshandle.engines.vllm_transfer import TrainerInit


class FileSource(WeightSource):
    """The tensors of a safetensors file. For a module, use vLLM's `ModuleSource`."""

    def __init__(self, file: str):
        self._tensors = load_file(file)

    def metadata(self) -> list[ParamMeta]:
        return [ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self._tensors.items()]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(self._tensors.items())


def main(url: str, name: str, file: str, device: str = "host") -> None:
    init = TrainerInit(rank=0, name=name, device=device)
    client = HTTPVLLMWeightSyncClient(url)
    trainer = WeightTransferTrainerFactory.trainer_init(init, client=client, source=FileSource(file))
    trainer.send_weights()
    # Cached results of the old weights are no longer valid.
    urllib.request.urlopen(urllib.request.Request(f"{url}/reset_prefix_cache", method="POST")).close()


if __name__ == "__main__":
    main(*sys.argv[1:])
