"""Models of a store for torch, as dicts of tensors and in modules."""

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
    """Returns the tensors of a model by name, without a copy.

    `name` is the name of a model that a holder keeps, or an open `Model`. With a `module`, the
    tensors become its parameters and buffers. Build the module on `meta`, where it takes neither
    time nor memory:

        with torch.device("meta"):
            module = Transformer(config)
        crosshandle.torch.load_state_dict("llama-70b", module)

    The weights are read-only, so gradients and optimisers need a copy. The weights stay mapped as
    long as one of the tensors lives. `place` is as for `crosshandle.store.open`. With `"agreed"`,
    the addresses are the same in each process, as captured graphs require. With `prefix`, only
    tensors whose names start with it are used, and the prefix is removed from their names.

    Tensors that are missing in the module or in the model are an error unless `strict` is False.
    With `strict=False`, buffers that the model's files do not contain stay on `meta`.
    """
    model = name
    if not isinstance(model, store.Model):
        model = store.open(model, expected_hash, framework="torch", place=place)
    tensors = {
        key.removeprefix(prefix): model.get_tensor(key, "torch") for key in model.keys() if key.startswith(prefix)
    }
    if module is not None:
        # An assigned parameter takes `requires_grad` from the parameter that it replaces, so clear
        # the flag there first. Read-only memory cannot store a gradient, and integer tensors cannot
        # have one. A parameter may have several names.
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
