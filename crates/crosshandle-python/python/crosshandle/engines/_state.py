"""Publishes the tensors of an engine's module, and maps them into the module of another engine
process.

The tensors that an engine computes with differ from those in the files: it fuses and repacks
weights. This file publishes all tensors in a PyTorch module: parameters, persistent and
non-persistent buffers, and tensors that are plain attributes. A tensor with several names is
published once, and becomes one tensor with several names again when it is mapped.

The holder's memory is mapped read-only, so that a write to it ends the process. Engines write to
small buffers, such as scales. Therefore a buffer or attribute of up to `COPIED_BYTES` is copied.
`refusing_writes` turns a write to any other mapped tensor into an exception.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .. import store

KEY = "crosshandle.engine-state"
"""The metadata key under which a published model describes its tensors."""
_FORMAT = 2

COPIED_BYTES = 1 << 20
"""Maximum size of a buffer or attribute that is copied instead of mapped."""


class OtherState(store.StoreError, ValueError):
    """The published weights come from an engine with another configuration."""


class WriteRefused(store.StoreError, RuntimeError):
    """The engine writes to a mapped tensor, so it cannot use published weights."""


class NotComplete(store.StoreError, RuntimeError):
    """The published tensors are not all that the engine computes with."""


class refusing_writes(TorchDispatchMode):
    """Raises `WriteRefused` before an operation writes to one of the published tensors of a module.

    Without this, the write would end the process (`SIGSEGV`).
    """

    def __init__(self, module: torch.nn.Module, model: store.Model):
        super().__init__()
        self._names: dict[tuple[int, int], str] = {}
        mapped = [model.get_tensor(key, "torch") for key in model.keys() if model.shape(key)]
        self._from = min((one.data_ptr() for one in mapped if one.numel()), default=0)
        self._to = max((one.data_ptr() + one.nbytes for one in mapped), default=0)
        for key, _, tensor in _entries(module):
            if tensor.device.type != "meta" and self._is_mapped(tensor):
                self._names.setdefault((tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes), key)

    def _is_mapped(self, tensor: torch.Tensor) -> bool:
        return bool(tensor.numel() > 0 and self._from <= tensor.data_ptr() < self._to)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for at, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = args[at] if at < len(args) else kwargs.get(argument.name)
            for tensor in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(tensor, torch.Tensor) and tensor.device.type != "meta" and self._is_mapped(tensor):
                    raise WriteRefused(f"the engine writes to {self._named(tensor)} ({func}), which is mapped read-only")
        return func(*args, **kwargs)

    def _named(self, tensor: torch.Tensor) -> str:
        start = tensor.data_ptr()
        return next((name for (low, high), name in self._names.items() if low <= start < high), "a published tensor")


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
    """Replaces the tensors in a module by the published tensors. Returns the number of tensors.

    Parameters and large buffers are not copied. The module may be on the device `meta`. If the
    fingerprint of the published tensors differs, raises `OtherState` and does not change the
    module.
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
    parameters = {entry["of"] for entry in found["tensors"].values() if entry["kind"] == "parameter"}
    made: dict[str, torch.Tensor] = {}
    objects: dict[tuple[str, str], torch.Tensor] = {}
    for key, entry in found["tensors"].items():
        path, _, leaf = key.rpartition(".")
        kept, kind, order = entry["of"], entry["kind"], entry["order"]
        if kept not in made:
            made[kept] = model.get_tensor(kept, "torch").permute([order.index(at) for at in range(len(order))])
            if kept not in parameters and made[kept].nbytes <= COPIED_BYTES:
                made[kept] = made[kept].clone(memory_format=torch.preserve_format)
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


def drop_consumed(module: torch.nn.Module) -> list[str]:
    """Replaces parameters and buffers on the device `meta` by None, and returns their names.

    The publishing engine did not have them after its processing, which had consumed them. If any
    other tensor is on `meta`, raises `NotComplete`: in an attribute of a module, or in an object
    that a module uses.
    """
    dropped = []
    for path, part in module.named_modules():
        for found in (part._parameters, part._buffers):
            for leaf, tensor in found.items():
                if tensor is not None and tensor.device.type == "meta":
                    found[leaf] = None
                    dropped.append(f"{path}.{leaf}")
        left = _meta_tensor(vars(part), f"{path}.", set())
        if left is not None:
            raise NotComplete(f"{left} has no bytes, because no engine publishes it: leave `state` out")
    return dropped


def _meta_tensor(found: Any, path: str, seen: set[int], depth: int = 4) -> str | None:
    """Returns the path of a tensor on `meta` that an object refers to, or None."""
    if isinstance(found, torch.Tensor):
        return path if found.device.type == "meta" else None
    if id(found) in seen or depth == 0 or isinstance(found, (torch.nn.Module, type)):
        return None
    seen.add(id(found))
    if isinstance(found, dict):
        items = [(str(key), value) for key, value in found.items() if key not in ("_modules", "_parameters", "_buffers")]
    elif isinstance(found, (list, tuple)):
        items = [(str(at), value) for at, value in enumerate(found)]
    elif type(found).__module__.partition(".")[0] == "vllm" and hasattr(found, "__dict__"):
        items = [(f".{key}", value) for key, value in vars(found).items()]
    else:
        return None
    return next(filter(None, (_meta_tensor(value, path + key, seen, depth - 1) for key, value in items)), None)
