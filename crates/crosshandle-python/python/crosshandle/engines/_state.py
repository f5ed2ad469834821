"""Publishes the tensors that an engine has loaded and processed, and maps them into the module of
another engine process.

Engines repack weights after loading, so the tensors that they compute with differ from those in the
files. This file publishes all tensors in a PyTorch module: parameters, persistent and
non-persistent buffers, and tensors that are plain attributes. A tensor with several names is
published once, and becomes one tensor with several names again when it is mapped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from .. import store

KEY = "crosshandle.engine-state"
"""The metadata key under which a published model describes its tensors."""
_FORMAT = 1


class OtherState(store.StoreError, ValueError):
    """The published weights come from an engine with another configuration."""


def _entries(module: torch.nn.Module) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Yields each tensor in a module, with its name and its kind: `(name, kind, tensor)`."""
    for path, part in module.named_modules(remove_duplicate=False):
        prefix = f"{path}." if path else ""
        for kind, found in (("parameter", part._parameters), ("buffer", part._buffers), ("attribute", part.__dict__)):
            for leaf, tensor in found.items():
                if isinstance(tensor, torch.Tensor):
                    yield prefix + leaf, kind, tensor


def _order(tensor: torch.Tensor) -> list[int]:
    """Returns the dimensions in the order of decreasing strides. A dense tensor that is permuted to
    this order is contiguous."""
    return sorted(range(tensor.dim()), key=lambda at: -tensor.stride(at))


def publish(
    where: store.Store, name: str, module: torch.nn.Module, fingerprint: Mapping[str, Any], *, device: str
) -> store.Published:
    """Publishes all tensors in a module. Only engines with the same fingerprint can map them."""
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
    """Replaces the tensors in a module by the published tensors, without a copy. Returns the number
    of tensors.

    The module may be on the device `meta`. If the fingerprint of the published tensors differs,
    raises `OtherState` and does not change the module.
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
        # Tied parameters are one object with several names, so create only one object for them.
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
    """Creates a parameter from a mapped tensor. Copies the attributes that the engine has set on
    the previous parameter, such as a loader for later updates."""
    made = torch.nn.Parameter(tensor, requires_grad=False)
    for key, value in getattr(before, "__dict__", {}).items():
        setattr(made, key, value)
    return made


def left_on_meta(module: torch.nn.Module) -> list[str]:
    """Returns the names of the tensors in the module that are still on the device `meta`, because
    they were not published."""
    return [key for key, _, tensor in _entries(module) if tensor.device.type == "meta"]
