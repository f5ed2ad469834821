"""Loads a store's model into torch, as a dict of tensors or into a module."""

from __future__ import annotations

from typing import Any

import torch

from .. import store


def load_state_dict(
    name: str | store.Model,
    module: torch.nn.Module | None = None,
    *,
    expected_hash: str | None = None,
    place: str | int | None = None,
    prefix: str = "",
    strict: bool = True,
) -> dict[str, Any]:
    """Returns a model's tensors by name, without a copy.

    `name` is the name of a model that a holder keeps, or an open `Model`. With `module`, the
    tensors also replace the module's parameters and buffers. Create the module on the device
    `meta`, where it takes neither time nor memory:

        with torch.device("meta"):
            module = Transformer(config)
        crosshandle.torch.load_state_dict("llama-70b", module)

    The weights are read-only, so gradients and optimisers need a copy. The weights stay mapped as
    long as any of the tensors lives. `place` has the same meaning as for `crosshandle.store.open`.
    With `"agreed"`, the addresses are the same in each process, which captured graphs require. With
    `prefix`, uses only tensors whose names start with the prefix, and removes the prefix from their
    names.

    If a tensor is missing in the module or in the model, raises an exception unless `strict` is
    False. With `strict=False`, buffers that the model does not contain stay on `meta`.
    """
    model = name
    if not isinstance(model, store.Model):
        model = store.open(model, expected_hash, framework="torch", place=place)
    tensors = {
        key.removeprefix(prefix): model.get_tensor(key, "torch") for key in model.keys() if key.startswith(prefix)
    }
    if module is not None:
        # torch copies `requires_grad` from a replaced parameter to the new one. Clear it first,
        # because the weights are read-only, and integer tensors cannot have a gradient. A parameter
        # may have several names.
        named = module.named_parameters(remove_duplicate=False)
        frozen = [own for name, own in named if name in tensors and own.requires_grad]
        try:
            for own in frozen:
                own.requires_grad_(False)
            module.load_state_dict(tensors, strict=strict, assign=True)
        except BaseException:
            for own in frozen:
                own.requires_grad_(True)
            raise
    return tensors
