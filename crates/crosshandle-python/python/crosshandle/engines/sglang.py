"""Model loader for SGLang, which gets the weights from a holder.

    crosshandle load model.safetensors.index.json --name llama-70b --device cuda:0
    python -m sglang.launch_server … \\
        --model-loader-extra-config '{"crosshandle": {"name": "llama-70b"}}'

The model's own loading code receives the holder's tensors, and copies the parts that it needs on
the device. This works for any model, any quantization and any number of ranks. SGLang has a fixed
list of load formats. Therefore the key `crosshandle` in the settings selects this loader, and
`--load-format` stays `auto`.

SGLang finds this module as a plugin through the entry point `crosshandle` of `sglang.srt.plugins`.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from sglang.srt.model_loader.loader import DefaultModelLoader

from ._settings import FORMAT, Ranks, Settings


def _ranks() -> Ranks:
    from sglang.srt.distributed import parallel_state

    if not parallel_state.model_parallel_is_initialized():
        return Ranks()
    tensor, pipeline = parallel_state.get_tp_group(), parallel_state.get_pp_group()
    return Ranks(tensor.rank_in_group, tensor.world_size, pipeline.rank_in_group, pipeline.world_size)


class CrosshandleModelLoader(DefaultModelLoader):
    """Loads a model's weights from a holder. SGLang processes them as if they came from files."""

    def __init__(self, load_config: Any):
        extra = dict(load_config.model_loader_extra_config or {})
        self._settings = Settings.read(extra.pop(FORMAT))
        if self._settings.name is None or self._settings.state is not None:
            raise ValueError(f"the loader {FORMAT} of SGLang takes a name, and no state")
        super().__init__(dataclasses.replace(load_config, model_loader_extra_config=extra))
        self._store = self._settings.store()

    def download_model(self, model_config: Any) -> None:
        """Checks that the holder has the weights. Downloads nothing."""
        self._store.open(self._settings.name_for(_ranks()), self._settings.expected_hash).close()

    def _get_all_weights(self, model_config: Any, model: Any) -> Iterator[tuple[str, torch.Tensor]]:
        held = self._store.open(self._settings.name_for(_ranks()), self._settings.expected_hash, framework="torch")
        with held:
            for name in held.keys():
                yield name, held.get_tensor(name, "torch")
            # Copies of the last tensors may still be in progress. Wait before the model is closed.
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()


def choose(original: Callable[..., Any], load_config: Any, *arguments: Any, **named: Any) -> Any:
    """Returns this loader if the settings select it. Otherwise returns the loader that SGLang
    chooses."""
    if FORMAT in (load_config.model_loader_extra_config or {}):
        return CrosshandleModelLoader(load_config)
    return original(load_config, *arguments, **named)


def register() -> None:
    """Registers the loader with SGLang.

    SGLang calls this plugin function in each of its processes.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register("sglang.srt.model_loader.loader.get_model_loader", choose, HookType.AROUND)
    # Older versions of SGLang have no weight cache.
    with contextlib.suppress(ImportError):
        from . import sglang_cache

        sglang_cache.register()
