"""Models of a store as torch has them: dicts of tensors, and modules."""

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
    """The tensors of a model by their names, without a copy: those of a name that a holder has, or of a model that was opened.

    With a `module`, they become its parameters and buffers: build it on `meta`, where it takes neither time nor memory.

        with torch.device("meta"):
            module = Transformer(config)
        crosshandle.torch.load_state_dict("llama-70b", module)

    The weights can be read only: gradients and optimisers need a copy. They stay mapped as long as one of the tensors
    lives. `place` is as for `crosshandle.store.open`: with `"agreed"` their addresses are the same in each process, which graphs
    that were captured rely on. With `prefix`, only the tensors that begin so, without it. What is not in the module, or not
    among the tensors, is an error unless `strict` is False; buffers that are computed, not loaded, stay on `meta` then.
    """
    model = name
    if not isinstance(model, store.Model):
        model = store.open(model, expected_hash, framework="torch", place=place)
    tensors = {
        key.removeprefix(prefix): model.get_tensor(key, "torch") for key in model.keys() if key.startswith(prefix)
    }
    if module is not None:
        # A parameter that is loaded so is a leaf without a gradient, which read-only memory could not take. It gets that
        # from the one that it replaces: before, since integers could not have one. A parameter may have several names.
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
