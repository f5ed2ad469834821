"""Model loader for vLLM, which gets the weights from a holder (`--load-format crosshandle`).

    crosshandle load model.safetensors.index.json --name llama-70b --device cuda:0
    vllm serve … --load-format crosshandle --model-loader-extra-config '{"name": "llama-70b"}'

With `name`, the model's own loading code receives the holder's tensors, and copies the parts that
it needs on the device. This works for any model, any quantization and any number of ranks. With
`state` in addition, the first engine publishes its own weights. Later engines map these weights
without a copy:

    … --model-loader-extra-config '{"name": "llama-70b", "state": "llama-70b/vllm"}'

On a GPU, the first engine publishes its weights after vLLM has processed them, and later engines
skip the processing. On the CPU, the processing packs weights into objects that are not tensors. So
there, the first engine publishes its weights before the processing, and later engines process them.
Linear layers without quantization are not packed in this mode: they compute from the mapped
weights, so that all engines use the same memory.

vLLM finds this module as a plugin through the entry point `crosshandle` of `vllm.general_plugins`.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator
from typing import Any

import torch
import vllm
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

from .. import store
from . import _state
from ._settings import FORMAT, Ranks, Settings

_log = logging.getLogger(__name__)


def _ranks() -> Ranks:
    from vllm.distributed import parallel_state

    if not parallel_state.model_parallel_is_initialized():
        return Ranks()
    tensor, pipeline = parallel_state.get_tp_group(), parallel_state.get_pp_group()
    return Ranks(tensor.rank_in_group, tensor.world_size, pipeline.rank_in_group, pipeline.world_size)


def _is_cpu() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


@contextlib.contextmanager
def _unpacked() -> Iterator[None]:
    """Keeps linear layers on the CPU from packing their weights into memory of their own.

    Layers that vLLM packs nevertheless are correct, and only use more memory.
    """
    from vllm.model_executor.layers import utils

    pack = utils.dispatch_cpu_unquantized_gemm

    def keep(layer: Any, *arguments: Any, **named: Any) -> None:
        if layer.weight.ndim == 2:
            layer.cpu_linear = torch.nn.functional.linear
        else:
            pack(layer, *arguments, **named)

    utils.dispatch_cpu_unquantized_gemm = keep
    try:
        yield
    finally:
        utils.dispatch_cpu_unquantized_gemm = pack


def _check_processed(module: Any) -> None:
    """Raises an exception if another engine cannot use the module's processed weights."""
    try:
        from vllm.model_executor.utils import weights_already_processed  # noqa: F401
    except ImportError as error:
        raise _state.NotComplete(f"vLLM {vllm.__version__} cannot take weights that were processed already") from error
    for path, part in module.named_modules():
        method = getattr(part, "quant_method", None)
        if method is not None and not getattr(method, "supports_pre_processed_weights", False):
            raise _state.NotComplete(f"{type(method).__name__} of {path} does not support weights that were processed already")


def _fingerprint(model_config: Any, ranks: Ranks, checkpoint: str | None) -> dict[str, Any]:
    """Returns all properties that influence an engine's processed weights. Engines with equal
    properties can use the same weights."""
    return {
        "engine": f"vllm {vllm.__version__}",
        "stage": "loaded" if _is_cpu() else "processed",
        "torch": torch.__version__,
        "checkpoint": checkpoint,
        "model": model_config.model,
        "revision": model_config.revision,
        "dtype": str(model_config.dtype),
        "quantization": model_config.quantization,
        "config": json.loads(model_config.hf_config.to_json_string(use_diff=False)),
        "ranks": str(ranks),
    }


class CrosshandleModelLoader(BaseModelLoader):
    """Loads a model's weights from a holder."""

    def __init__(self, load_config: Any):
        super().__init__(load_config)
        self._settings = Settings.read(load_config.model_loader_extra_config)
        self._store = self._settings.store()
        # Hold the mapped model here, because torch tensors do not keep it open.
        self._state_model: store.Model | None = None

    def download_model(self, model_config: Any) -> None:
        """Checks that the holder has the weights. Downloads nothing."""
        if self._settings.name is not None:
            self._open().close()

    def load_weights(self, model: Any, model_config: Any) -> None:
        """Runs the model's own loading code, which copies the weights from the holder's memory."""
        with self._open() as held:
            model.load_weights(_tensors(held))
            # Copies of the last tensors may still be in progress. Wait before the model is closed.
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()

    def get_external_weight_memory(self, vllm_config: Any) -> int:
        """Returns the size in bytes of the weights that this process maps instead of allocating
        them."""
        if self._settings.state is None:
            return 0
        held = self._find_state()
        return 0 if held is None else held.nbytes

    def load_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> Any:
        if self._settings.state is None:
            return super().load_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)
        held = self._find_state()
        if held is None:
            return self._load_and_publish(vllm_config, model_config, prefix)
        return self._map(held, vllm_config, model_config, prefix)

    def _open(self) -> store.Model:
        if self._settings.name is None:
            raise ValueError(f"the loader {FORMAT} has a state and no name, and nothing is published under {self._settings.state}")
        name = self._settings.name_for(_ranks())
        return self._store.open(name, self._settings.expected_hash, framework="torch")

    def _find_state(self) -> store.Model | None:
        if self._state_model is None:
            name = self._settings.state_for(_ranks())
            try:
                self._state_model = self._store.open(name, framework="torch", place=self._settings.place)
            except store.NoSuchNameError:
                return None
        return self._state_model

    def _checkpoint(self) -> str | None:
        """Returns the hash of the checkpoint from which the engine computes its processed weights,
        or None if the hash is unknown."""
        if self._settings.name is None:
            return self._settings.expected_hash
        with self._open() as held:
            return held.hash

    def _load_and_publish(self, vllm_config: Any, model_config: Any, prefix: str) -> Any:
        if _is_cpu() and model_config.quantization is not None:
            # Native code of vLLM may write to these weights, which would end the process.
            _log.warning(
                "the weights are not published, and later engines load them: on the CPU, vLLM may write to weights of %s",
                model_config.quantization,
            )
            return super().load_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)
        if _is_cpu():
            try:
                return self._build(None, vllm_config, model_config, prefix)
            except _state.WriteRefused as error:
                name = self._settings.state_for(_ranks())
                self._store.rm(name)
                self._state_model = None
                _log.warning("%s is removed again, and later engines load the weights: %s", name, error)
                # The layers of the abandoned module have registered themselves here.
                vllm_config.compilation_config.static_forward_context.clear()
                return super().load_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)
        module = super().load_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)
        self._publish(module, model_config, after=_check_processed)
        return module

    def _publish(self, module: Any, model_config: Any, after: Any = None) -> store.Model | None:
        """Publishes a module's tensors, and replaces them by the published ones, so that only one
        copy stays in memory. Returns None if they cannot be published."""
        ranks = _ranks()
        fingerprint = _fingerprint(model_config, ranks, self._checkpoint())
        device = next(module.parameters()).device
        where = f"{device.type}:{device.index or 0}" if device.type == "cuda" else "host"
        name = self._settings.state_for(ranks)
        try:
            if after is not None:
                after(module)
            published = _state.publish(self._store, name, module, fingerprint, device=where)
        except (store.StoreError, TypeError) as error:
            _log.warning("the weights are not published as %s, and later engines load them: %s", name, error)
            return None
        _log.info("the weights are published as %s, with the hash %s", name, published.hash)
        held = self._find_state()
        assert held is not None
        _state.adopt(module, held, fingerprint)
        module._crosshandle_state = held.name
        if device.type == "cuda":
            torch.cuda.empty_cache()
        return held

    def _map(self, held: store.Model, vllm_config: Any, model_config: Any, prefix: str) -> Any:
        if _is_cpu():
            return self._build(held, vllm_config, model_config, prefix)
        from vllm.model_executor.model_loader.utils import initialize_model, process_weights_after_loading
        from vllm.utils.torch_utils import set_default_torch_dtype

        try:
            from vllm.model_executor.utils import weights_already_processed
        except ImportError as error:
            raise RuntimeError(
                f"vLLM {vllm.__version__} cannot take weights that were processed already: leave `state` out"
            ) from error
        fingerprint = _fingerprint(model_config, _ranks(), self._checkpoint())
        target = torch.device(self.load_config.device or vllm_config.device_config.device)
        with set_default_torch_dtype(model_config.dtype):
            with torch.device("meta"):
                module = initialize_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)
            count = _state.adopt(module, held, fingerprint)
            with weights_already_processed(), _state.refusing_writes(module, held):
                process_weights_after_loading(module, model_config, target)
        module._crosshandle_state = held.name
        dropped = _state.drop_consumed(module)
        _log.info("%d tensors of %s are mapped, %d were consumed by processing", count, held.name, len(dropped))
        return module.eval()

    def _build(self, held: store.Model | None, vllm_config: Any, model_config: Any, prefix: str) -> Any:
        """Builds a module on the CPU whose weights are mapped. Without `held`, loads and publishes
        the weights first.

        The module is not created on `meta`: there, memory that nothing has written to takes no
        space, and all of the module's other tensors have their values.
        """
        from vllm.model_executor.model_loader.utils import initialize_model, process_weights_after_loading
        from vllm.utils.torch_utils import set_default_torch_dtype

        target = torch.device("cpu")
        with set_default_torch_dtype(model_config.dtype), target:
            module = initialize_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)
            if held is None:
                self.load_weights(module, model_config)
                held = self._publish(module, model_config)
            else:
                fingerprint = _fingerprint(model_config, _ranks(), self._checkpoint())
                count = _state.adopt(module, held, fingerprint)
                module._crosshandle_state = held.name
                _log.info("%d tensors of %s are mapped", count, held.name)
            guard = contextlib.nullcontext() if held is None else _state.refusing_writes(module, held)
            with _unpacked(), guard:
                process_weights_after_loading(module, model_config, target)
        return module.eval()


def _tensors(held: store.Model) -> Iterator[tuple[str, torch.Tensor]]:
    for name in held.keys():
        yield name, held.get_tensor(name, "torch")


def register() -> None:
    """Registers the load format and the weight transfer with vLLM.

    vLLM calls this plugin function in each of its processes.
    """
    from vllm.model_executor import model_loader

    if model_loader._LOAD_FORMAT_TO_MODEL_LOADER.get(FORMAT) is not CrosshandleModelLoader:
        register_model_loader(FORMAT)(CrosshandleModelLoader)
    # Older versions of vLLM have no such module.
    with contextlib.suppress(ImportError):
        from . import vllm_transfer  # noqa: F401  registers itself
