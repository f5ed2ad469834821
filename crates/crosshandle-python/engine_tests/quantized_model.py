"""Quantizes the linear layers of a checkpoint to 8 bits: `quantized_model.py FROM TO`.

The result has the format of the package compressed-tensors: whole numbers of 8 bits with a scale
for each row, and activations that the engine quantizes for each token.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

QUANTIZATION = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False},
            "input_activations": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True},
        }
    },
}


def main(source: str, target: str) -> None:
    shutil.copytree(source, target)
    weights = load_file(Path(source) / "model.safetensors")
    made: dict[str, torch.Tensor] = {}
    for name, weight in weights.items():
        if not name.endswith("_proj.weight"):
            made[name] = weight
            continue
        scale = weight.float().abs().amax(dim=1, keepdim=True) / 127
        made[name] = (weight.float() / scale).round().to(torch.int8)
        made[f"{name}_scale"] = scale.to(weight.dtype)
    save_file(made, Path(target) / "model.safetensors", {"format": "pt"})
    config = Path(target) / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "quantization_config": QUANTIZATION}))


if __name__ == "__main__":
    main(*sys.argv[1:])
