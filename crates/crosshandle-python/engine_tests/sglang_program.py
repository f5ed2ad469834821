"""A weight cache daemon of SGLang, or an engine that maps its weights, without a GPU.

`sglang_program.py daemon SOCKET` runs SGLang's own daemon class: its export of a model, and its
server. `sglang_program.py engine SOCKET` runs SGLang's own loader class: its protocol, its import
of tensors, and its watchdog. SGLang creates its models only on GPUs, so the model is a small
module.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from typing import Any

import torch
from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.srt.weight_cache import daemon as daemons
from sglang.srt.weight_cache import ipc_loader
from sglang.srt.weight_cache.protocol import CacheConfig, compute_env_stamp, recv_msg, send_msg

from crosshandle.engines import sglang, sglang_cache


def reply(result: Any) -> None:
    print("REPLY " + json.dumps({"result": result}), flush=True)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(64, 600)
        self.up = torch.nn.Linear(600, 900)
        self.head = torch.nn.Linear(600, 64, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.ones(3), persistent=False)

    def answer(self) -> list[float]:
        with torch.no_grad():
            hidden = self.embed(torch.tensor([1, 5]))
            found = torch.cat([self.head(hidden).flatten(), self.up(hidden).flatten(), self.scale])
        return [float(found.sum()), float(found.std()), float(found[7])]


CONFIG: dict[str, Any] = {
    **dict.fromkeys(("tp_size", "pp_size", "dp_size", "ep_size", "moe_dp_size", "attn_dp_size", "attn_cp_size"), 1),
    **dict.fromkeys(("tp_rank", "pp_rank", "moe_dp_rank", "moe_ep_rank"), 0),
    **dict.fromkeys(("moe_a2a_backend", "quant_method", "quant_config_hash", "revision"), ""),
    "model_path": "tiny",
    "model_arch": "Model",
    "enable_dp_lm_head": False,
    "moe_dense_tp_size": None,
    "dtype": "torch.float32",
}


def config() -> CacheConfig:
    return CacheConfig(**CONFIG, **compute_env_stamp())


def run_daemon(path: str) -> None:
    torch.manual_seed(1)
    model = Model()
    model.scale.fill_(2)
    model.up.weight.data = model.up.weight.data.t().contiguous().t()
    expected = model.answer()
    made = daemons.WeightCacheDaemon.__new__(daemons.WeightCacheDaemon)
    made.model, made.config, made.gpu_id = model, config(), 0
    made.socket_path, made.ready_path = path, path + ".ready"
    made.state_entries, made.preloaded_weights_bytes = {}, 0

    # `run` chooses the transport, and then calls the function that runs a daemon.
    def serve() -> None:
        made._export_state()
        left = sum(tensor.untyped_storage().nbytes() for tensor in model.state_dict().values())
        reply({"expected": expected, "transport": made.transport_backend.name, "left": left})
        made.serve()

    daemons.run_weight_cache_daemon = serve
    sglang_cache.run()


def run_engine(path: str) -> None:
    sglang.register()
    HookRegistry.apply_hooks()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(path)
        send_msg(connection, {"type": "fetch_state", "config": config().to_dict()})
        result = recv_msg(connection)
        assert result["status"] == "ok", result
        transport = ipc_loader.get_client_transport_backend(result["transport_backend"])
        result = transport.recv_fetch_state_response(connection, result)
    with torch.device("meta"):
        model = Model()
    loader = ipc_loader.IpcModelLoader.__new__(ipc_loader.IpcModelLoader)
    for name, entry in result["entries"].items():
        loader._set_module_tensor(model, name, transport.import_tensor(entry), is_param=entry["is_param"])
    loader._start_daemon_liveness_watchdog(result.get("pid"))
    model.scale.mul_(1)
    watched = [thread.name for thread in threading.enumerate() if "watchdog" in thread.name]
    reply({"answer": model.answer(), "watched": watched, "pid": os.getpid()})
    for _ in sys.stdin:
        reply(model.answer())


if __name__ == "__main__":
    {"daemon": run_daemon, "engine": run_engine}[sys.argv[1]](sys.argv[2])
