"""Publishing the tensors that an engine has loaded and processed, and mapping them into another
module.

Engines repack weights after loading, so they do not compute with the tensors of the files. This
module publishes all tensors of a PyTorch module: parameters, persistent and non-persistent buffers,
and tensors that are plain attributes. A tensor with several names is stored once, and is one tensor
again after mapping.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from .. import store

KEY = "crosshandle.engine-state"
"""The metadata key whose value describes the tensors."""
_FORMAT = 1


class OtherState(store.StoreError, ValueError):
    """The published weights belong to another configuration of the engine."""


def _entries(module: torch.nn.Module) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Yields the name, the kind and the tensor of each tensor of a module."""
    for path, part in module.named_modules(remove_duplicate=False):
        prefix = f"{path}." if path else ""
        for kind, found in (("parameter", part._parameters), ("buffer", part._buffers), ("attribute", part.__dict__)):
            for leaf, tensor in found.items():
                if isinstance(tensor, torch.Tensor):
                    yield prefix + leaf, kind, tensor


def _order(tensor: torch.Tensor) -> list[int]:
    """Returns the dimensions by decreasing stride. A dense tensor has no gaps in this order."""
    return sorted(range(tensor.dim()), key=lambda at: -tensor.stride(at))


def publish(
    where: store.Store, name: str, module: torch.nn.Module, fingerprint: Mapping[str, Any], *, device: str
) -> store.Published:
    """Publishes all tensors of a module, for engines with the same fingerprint."""
    tensors: dict[str, torch.Tensor] = {}
    known: dict[tuple[Any, ...], str] = {}
    described: dict[str, dict[str, Any]] = {}
    for key, kind, tensor in _entries(module):
        if tensor.layout != torch.strided or tensor.device.type == "meta":
            raise TypeError(f"the tensor {key} is not a strided tensor, or is on meta")
        identity = (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        kept = known.setdefault(identity, key) if tensor.numel() else key
        order = _order(tensor)
        described[key] = {"kind": kind, "of": kept, "order": order}
        if kept == key:
            tensors[key] = tensor.detach().permute(order).contiguous()
    text = json.dumps({"format": _FORMAT, "fingerprint": dict(fingerprint), "tensors": described})
    return where.publish(name, tensors, device=device, metadata={KEY: text})


def adopt(module: torch.nn.Module, model: store.Model, fingerprint: Mapping[str, Any]) -> int:
    """Replaces the tensors of a module by the published ones without a copy. Returns their number.

    The module may be on `meta`. Raises `OtherState`, and changes nothing, if the tensors have
    another fingerprint.
    """
    text = model.metadata().get(KEY)
    found = json.loads(text) if text is not None else {}
    if found.get("format") != _FORMAT:
        raise OtherState(f"{model.name} is not an engine's state that this version can read: remove it, or use another name")
    wanted = json.loads(json.dumps(dict(fingerprint)))
    if found["fingerprint"] != wanted:
        both = found["fingerprint"].keys() | wanted.keys()
        differing = sorted(key for key in both if found["fingerprint"].get(key) != wanted.get(key))
        raise OtherState(
            f"{model.name} belongs to an engine with different settings ({', '.join(differing)}): remove it (crosshandle rm), or use another name"
        )
    parts = dict(module.named_modules(remove_duplicate=False))
    missing = sorted({key.rpartition(".")[0] for key in found["tensors"]} - parts.keys())
    if missing:
        raise OtherState(f"{model.name} has tensors of {missing[0]}, which this module does not have")
    made: dict[str, torch.Tensor] = {}
    objects: dict[tuple[str, str], torch.Tensor] = {}
    for key, entry in found["tensors"].items():
        path, _, leaf = key.rpartition(".")
        kept, kind, order = entry["of"], entry["kind"], entry["order"]
        if kept not in made:
            made[kept] = model.get_tensor(kept, "torch").permute([order.index(at) for at in range(len(order))])
        _put(parts[path], leaf, kind, kept, made[kept], objects)
    return len(found["tensors"])


def _put(
    part: torch.nn.Module,
    leaf: str,
    kind: str,
    kept: str,
    tensor: torch.Tensor,
    objects: dict[tuple[str, str], torch.Tensor],
) -> None:
    if kind == "parameter":
        # The names of tied parameters refer to the same object, so make one object for them.
        if (kept, kind) not in objects:
            objects[kept, kind] = _parameter(part._parameters.get(leaf), tensor)
        tensor = objects[kept, kind]
    elif kind == "buffer":
        tensor = objects.setdefault((kept, kind), tensor)
    persistent = leaf not in part._non_persistent_buffers_set
    for others in (part._parameters, part._buffers, part.__dict__):
        others.pop(leaf, None)
    if kind == "parameter":
        part._parameters[leaf] = tensor
    elif kind == "buffer":
        part.register_buffer(leaf, tensor, persistent=persistent)
    else:
        part.__dict__[leaf] = tensor


def _parameter(before: torch.nn.Parameter | None, tensor: torch.Tensor) -> torch.nn.Parameter:
    """Makes a parameter for a mapped tensor. It gets the attributes that the engine has set on the
    parameter `before`, such as a loader for later updates."""
    made = torch.nn.Parameter(tensor, requires_grad=False)
    for key, value in getattr(before, "__dict__", {}).items():
        setattr(made, key, value)
    return made


def left_on_meta(module: torch.nn.Module) -> list[str]:
    """Returns the names of the module's tensors that are still on `meta` because they were not
    published."""
    return [key for key, _, tensor in _entries(module) if tensor.device.type == "meta"]
