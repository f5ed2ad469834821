"""A transport for SGLang's weight cache, which keeps the weights in a holder.

    python -m crosshandle.engines.sglang_cache …        # the options of SGLang's own daemon

SGLang's weight cache daemon loads and processes weights, and engines map them. Its transports share
the daemon's own memory, so an engine ends itself when the daemon dies. This transport publishes the
weights in a holder, and frees the daemon's copy. Engines map the holder's memory, and continue when
the daemon or the holder dies.

Engines find the transport through this package's plugin. The environment variable
`CROSSHANDLE_SGLANG_NAME` is the prefix of the names in the holder (default: `sglang`). The names
end in the device, such as `sglang/cuda:0`.
"""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

import torch
from sglang.srt.weight_cache.protocol import send_msg
from sglang.srt.weight_cache.transport import WeightCacheTransportBackend

from .. import store
from . import _state

NAME = "crosshandle"
"""The name of the transport, which the daemon sends to engines."""

_PREFIX = "CROSSHANDLE_SGLANG_NAME"


class HolderTransport(WeightCacheTransportBackend):
    """Publishes a daemon's weights in a holder, and maps them into engines."""

    name = NAME

    def __init__(self) -> None:
        self._models: dict[tuple[str, str], store.Model] = {}

    def prepare_export(self, state_tensors: Mapping[str, tuple[torch.Tensor, bool]]) -> dict[str, dict[str, Any]]:
        """Publishes all tensors, and frees the memory that they had before.

        The daemon never computes with its model, so the model does not need the memory.
        """
        tensors: dict[str, torch.Tensor] = {}
        known: dict[tuple[Any, ...], str] = {}
        entries: dict[str, dict[str, Any]] = {}
        for name, (tensor, is_param) in state_tensors.items():
            identity = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
            kept = known.setdefault(identity, name) if tensor.numel() else name
            order = _state._order(tensor)
            if kept == name:
                tensors[name] = tensor.detach().permute(order).contiguous()
            entries[name] = {
                "tensor": kept,
                "order": order,
                "shape": list(tensor.shape),
                "dtype": str(tensor.dtype).replace("torch.", ""),
                "is_param": is_param,
            }
        device = next(iter(tensors.values())).device
        where = f"cuda:{device.index or 0}" if device.type == "cuda" else "host"
        model = f"{os.environ.get(_PREFIX, 'sglang')}/{where}"
        published = store.publish(model, tensors, device=where, replace=True)
        for entry in entries.values():
            entry.update({"model": model, "hash": published.hash})
        tensors.clear()
        for tensor, _ in state_tensors.values():
            tensor.untyped_storage().resize_(0)
        return entries

    def send_fetch_state_response(
        self,
        conn: socket.socket,
        *,
        config: dict[str, Any],
        entries: dict[str, dict[str, Any]],
        pid: int,
        preloaded_weights_bytes: int = 0,
    ) -> None:
        """Sends the description of the published tensors.

        It contains no PID, because the engine does not depend on this process.
        """
        send_msg(
            conn,
            {
                "status": "ok",
                "config": config,
                "entries": entries,
                "pid": None,
                "transport_backend": self.name,
                "preloaded_weights_bytes": preloaded_weights_bytes,
            },
        )

    def recv_fetch_state_response(self, sock: socket.socket, result: dict[str, Any]) -> dict[str, Any]:
        return result

    def import_tensor(self, entry: dict[str, Any]) -> torch.Tensor:
        """Maps a tensor. Small buffers are copies, because engines write to them."""
        key = entry["model"], entry["hash"]
        if key not in self._models:
            self._models[key] = store.open(*key, framework="torch")
        order = entry["order"]
        mapped: torch.Tensor = self._models[key].get_tensor(entry["tensor"], "torch")
        tensor = mapped.permute([order.index(at) for at in range(len(order))])
        if not entry["is_param"] and tensor.nbytes <= _state.COPIED_BYTES:
            tensor = tensor.clone(memory_format=torch.preserve_format)
        return tensor


def _for_engine(original: Callable[..., Any], name: str | None) -> Any:
    """Chooses this transport for an engine, if the daemon has named it."""
    return HolderTransport() if name == NAME else original(name)


def register() -> None:
    """Makes the engines of this process accept the transport. This package's plugin calls it."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    # The loader has imported the function by its name, so the function is replaced there.
    HookRegistry.register("sglang.srt.weight_cache.ipc_loader.get_client_transport_backend", _for_engine, HookType.AROUND)


def run(*arguments: Any, **named: Any) -> None:
    """Runs a daemon of SGLang with this transport, in place of `run_weight_cache_daemon`."""
    from sglang.srt.weight_cache import daemon

    daemon.choose_daemon_transport_backend = lambda state_tensors: HolderTransport()
    daemon.run_weight_cache_daemon(*arguments, **named)


def main() -> None:
    """Starts the daemons of all ranks, or that of the rank that the arguments name."""
    from sglang.srt.platforms import current_platform
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.weight_cache import daemon

    parser = argparse.ArgumentParser(add_help=False)
    daemon.WeightCacheDaemonArgs.add_cli_args(parser)
    own, others = parser.parse_known_args()
    server = prepare_server_args(others)
    settings = daemon.WeightCacheDaemonArgs.from_cli_args(own)
    named = {"dist_init_method": settings.dist_init_method}
    if settings.gpu_id is None and settings.tp_rank is None:
        # The launcher starts processes that run this function by its name.
        daemon.run_weight_cache_daemon = run
        daemon.launch_weight_cache_daemons(server, timeout=settings.timeout, force=settings.force, **named)
        return
    gpu = settings.tp_rank if settings.gpu_id is None else settings.gpu_id
    rank = settings.gpu_id if settings.tp_rank is None else settings.tp_rank
    daemon.cleanup_stale_daemon_files(current_platform.get_device_uuid(gpu), force=settings.force)
    run(server, gpu_id=gpu, tp_rank=rank, pp_rank=settings.pp_rank, **named)


if __name__ == "__main__":
    # Processes that the launcher starts find `run` in the module, and not in `__main__`.
    from crosshandle.engines import sglang_cache

    sglang_cache.main()
