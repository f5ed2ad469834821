"""vLLM's prefix cache in a holder: a restarted engine finds the blocks of its predecessor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from conftest import START, Holder, Program
from crosshandle import store
from test_vllm import options

LONG = " ".join(f"w{number % 1000}" for number in range(300))
KV = {
    "kv_connector": "HolderConnector",
    "kv_connector_module_path": "crosshandle.engines.vllm_kv",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
    "kv_connector_extra_config": {"name": "kv/tiny"},
}


def test_a_restarted_engine_finds_its_prefix_cache(start: Callable[..., Program], holder: Holder, checkpoint: Path) -> None:
    def engine(**more: object) -> Program:
        program = start("vllm_engine.py", options(checkpoint, **{"max_model_len": 512, **more}))
        program.receive(START)
        return program

    plain = engine()
    expected = plain.ask("generate", [LONG], 8)
    other = plain.ask("generate", [LONG + " w5"], 8)
    plain.kill()
    first = engine(kv_transfer_config=KV)
    assert first.ask("generate", [LONG], 8) == expected
    # 300 tokens are two full blocks of 128, and a part of a third one.
    blocks = [held.name for held in store.ls() if held.name.startswith("kv/tiny/")]
    assert len(blocks) == 2
    assert first.ask("cached", [LONG]) == [256]
    first.kill()
    second = engine(kv_transfer_config=KV)
    assert second.ask("cached", [LONG]) == [256]
    assert second.ask("generate", [LONG], 8) == expected
    assert second.ask("generate", [LONG + " w5"], 8) == other
    # Without the holder, the engine computes everything.
    holder.stop()
    assert second.ask("generate", [LONG], 8) == expected
