"""A trainer that updates vLLM engines, in a process of its own, which a test asks over its streams.

The arguments are the URL of a vLLM server, and the name under which the weights are published. Each
line of the input is a JSON list: `["send", CHECKPOINT]` sends the weights of a checkpoint, and
`["send_half", CHECKPOINT]` stops before the engines commit the update, and waits to be killed.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from safetensors.torch import load_file
from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource
from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

from crosshandle.engines.vllm_transfer import TrainerInit


class Source(WeightSource):
    """The weights of the checkpoint that was chosen last."""

    def __init__(self) -> None:
        self.tensors: dict[str, Any] = {}

    def metadata(self) -> list[ParamMeta]:
        return [ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self.tensors.items()]

    def __iter__(self) -> Any:
        return iter(self.tensors.items())


class Dying(HTTPVLLMWeightSyncClient):
    """A client that stops before the commit, so that the test can kill the process there."""

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        print("REPLY " + json.dumps({"result": "before the commit"}), flush=True)
        time.sleep(600)


def main(url: str, name: str) -> None:
    source = Source()

    def trainer(client: Any) -> Any:
        return WeightTransferTrainerFactory.trainer_init(TrainerInit(rank=0, name=name), client=client, source=source)

    usual = trainer(HTTPVLLMWeightSyncClient(url))
    print("REPLY " + json.dumps({"result": "ready"}), flush=True)
    for line in sys.stdin:
        call, checkpoint = json.loads(line)
        source.tensors = load_file(f"{checkpoint}/model.safetensors")
        begin = time.monotonic()
        (usual if call == "send" else trainer(Dying(url))).send_weights()
        print("REPLY " + json.dumps({"result": time.monotonic() - begin}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
