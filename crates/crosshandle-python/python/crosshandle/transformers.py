"""Models of `transformers` whose weights a holder has.

    import crosshandle.transformers

    config = transformers.AutoConfig.from_pretrained("directory")     # config.json, no weights
    model = crosshandle.transformers.from_holder("llama-70b", config)
    model.generate(...)
"""

from __future__ import annotations

from typing import Any

import torch
import transformers

from . import store
from ._libraries.torch_store import LeftOnMetaError, left_on_meta, without_weights

__all__ = ["from_holder"]


def from_holder(
    name: str | store.Model,
    config: Any,
    *,
    model_class: Any = None,
    expected_hash: str | None = None,
    place: str | int | None = None,
    **options: Any,
) -> Any:
    """Returns a model whose weights are mapped from a holder, without a copy.

    `name` is the name of a checkpoint that a holder keeps, or an open `crosshandle.store.Model`.
    The checkpoint's tensors have the names that its files have. `config` is the model's
    configuration. The model's class is `model_class`, or the class that `config.architectures`
    names, or the class of `AutoModelForCausalLM`. `place` has the same meaning as for
    `crosshandle.store.open`. Further options, such as `attn_implementation`, go to the class.

    The model is on the device of the weights, and in evaluation mode. The weights are read-only, so
    gradients and optimisers need a copy. Buffers that no checkpoint contains are computed. If the
    names in the checkpoint differ from those in the model, `transformers` converts the tensors and
    may copy them, as it does for files. If the checkpoint lacks a tensor, raises an exception.
    """
    held = name
    if not isinstance(held, store.Model):
        held = store.open(held, expected_hash, framework="torch", place=place)
    kind = model_class or _class_of(config)
    tensors = {key: held.get_tensor(key, "torch") for key in held.keys()}
    devices = {tensor.device for tensor in tensors.values()}
    device = devices.pop() if len(devices) == 1 else torch.device("cpu")
    dtype = _dtype(config, tensors)
    with without_weights(device):
        model = kind._from_config(config, dtype=dtype, **options)
    model.tie_weights()
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    missing = model.state_dict().keys() - tensors.keys() - tied
    if missing or tensors.keys() - model.state_dict().keys():
        model = _converted(kind, config, tensors, dtype, device, held.name, options)
    else:
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        model.load_state_dict(tensors, strict=False, assign=True)
        model.tie_weights()
    left = left_on_meta(model)
    if left:
        raise LeftOnMetaError(left, held.name)
    if place is not None:
        # Tensors at a place are valid only while the model object lives.
        model._crosshandle_model = held
    return model.eval()


def _class_of(config: Any) -> Any:
    for architecture in config.architectures or ():
        found = getattr(transformers, architecture, None)
        if found is not None:
            return found
    return transformers.AutoModelForCausalLM._model_mapping[type(config)]


def _dtype(config: Any, tensors: dict[str, torch.Tensor]) -> torch.dtype:
    """Returns the element type of the configuration, or of most of the weights."""
    if isinstance(config.dtype, torch.dtype):
        return config.dtype
    floats = [tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()]
    return max(set(floats), key=floats.count) if floats else torch.get_default_dtype()


def _converted(
    kind: Any,
    config: Any,
    tensors: dict[str, torch.Tensor],
    dtype: torch.dtype,
    device: torch.device,
    name: str,
    options: dict[str, Any],
) -> Any:
    """Lets `transformers` convert the names and tensors of a checkpoint, as it does for files."""
    if device.type != "cpu":
        options = {**options, "device_map": {"": device}}
    model, found = kind.from_pretrained(
        None, config=config, state_dict=tensors, dtype=dtype, output_loading_info=True, **options
    )
    missing = sorted(found["missing_keys"])
    if missing:
        raise store.StoreError(f"{name} does not have {len(missing)} tensors of {kind.__name__}: {', '.join(missing[:5])}")
    return model
