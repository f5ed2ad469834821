"""Loads a store's model into torch, as a dict of tensors or into a module."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .. import store

# Functions that return a tensor whose bytes the caller still has to fill. Modules create their
# parameters with them. They compute their buffers with other functions.
_UNFILLED = (torch.empty, torch.empty_strided, torch.empty_like)


class without_weights(TorchFunctionMode):
    """Creates a module's parameters on the device `meta`, and its buffers on a real device.

    Parameters on `meta` take neither time nor memory. `load_state_dict` replaces them. The module
    computes its non-persistent buffers, such as tables of rotary embeddings, as usual, because no
    checkpoint contains them. `device` is the device of the buffers (default: torch's default).

    >>> with crosshandle.torch.without_weights():
    ...     module = torch.nn.Linear(2, 3)
    >>> module.weight.device
    device(type='meta')
    """

    def __init__(self, device: Any = None):
        super().__init__()
        self._device: torch.device | None = None if device is None else torch.device(device)

    def __enter__(self) -> without_weights:
        if self._device is not None:
            self._device.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if self._device is not None:
            self._device.__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _UNFILLED:
            # Pinned memory exists only on the host.
            kwargs = {**kwargs, "device": "meta", "pin_memory": False}
        return func(*args, **kwargs)


class LeftOnMetaError(RuntimeError):
    """Tensors of a module have no bytes after loading. `names` has their names."""

    def __init__(self, names: list[str], model: str):
        self.names = names
        first = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
        super().__init__(
            f"{model} does not contain {len(names)} tensors that the module has on meta ({first}): create the module in `with crosshandle.torch.without_weights():`, which computes buffers, or fill them yourself and pass may_leave_meta=True"
        )


def left_on_meta(module: torch.nn.Module) -> list[str]:
    """Returns the names of a module's parameters and buffers that are still on `meta`."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return [name for name, tensor in named if tensor.device.type == "meta"]


def load_state_dict(
    name: str | store.Model,
    module: torch.nn.Module | None = None,
    *,
    expected_hash: str | None = None,
    place: str | int | None = None,
    prefix: str = "",
    strict: bool = True,
    may_leave_meta: bool = False,
) -> dict[str, Any]:
    """Returns a model's tensors by name, without a copy.

    `name` is the name of a model that a holder keeps, or an open `Model`. With `module`, the
    tensors also replace the module's parameters and buffers. Create the module without weights,
    which takes neither time nor memory:

        with crosshandle.torch.without_weights():
            module = Transformer(config)
        crosshandle.torch.load_state_dict("llama-70b", module)

    The weights are read-only, so gradients and optimisers need a copy. The weights stay mapped as
    long as any of the tensors lives. `place` has the same meaning as for `crosshandle.store.open`.
    With `"agreed"`, the addresses are the same in each process, which captured graphs require. With
    `prefix`, uses only tensors whose names start with the prefix, and removes the prefix from their
    names.

    If a tensor is missing in the module or in the model, raises an exception unless `strict` is
    False. If a parameter or buffer of the module would stay on `meta`, raises `LeftOnMetaError`
    unless `may_leave_meta` is True. This happens to non-persistent buffers if the module was
    created on `meta` instead of in `without_weights`.
    """
    model = name
    if not isinstance(model, store.Model):
        model = store.open(model, expected_hash, framework="torch", place=place)
    whole = model.state_dict("torch")
    tensors = {key.removeprefix(prefix): tensor for key, tensor in whole.items() if key.startswith(prefix)}
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
        left = [] if may_leave_meta else left_on_meta(module)
        if left:
            raise LeftOnMetaError(left, model.name)
    return tensors
