"""vLLM's prefix cache in a holder: a restarted engine finds the blocks of its predecessor."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import START, Holder, Program
from crosshandle import store
from crosshandle.engines.vllm_kv import HolderConnector
from test_vllm import options


def prompt(start: int) -> str:
    """Returns a prompt of 300 tokens: two full blocks of 128 tokens, and a part of a third one."""
    return " ".join(f"w{(start + number) % 1000}" for number in range(300))


LONG = prompt(0)
FILES = 500
"""Number of files that the small holder may open. It keeps 384 of them for connections."""
PROMPTS = 4
REPEATS = 20
KV = {
    "kv_connector": "HolderConnector",
    "kv_connector_module_path": "crosshandle.engines.vllm_kv",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
    "kv_connector_extra_config": {"name": "kv/tiny"},
}


def blocks() -> list[str]:
    return [held.name for held in store.ls() if held.name.startswith("kv/tiny/")]


def test_a_restarted_engine_finds_its_prefix_cache(
    start: Callable[..., Program], holder: Holder, checkpoint: Path, tmp_path: Path
) -> None:
    def engine(**more: object) -> Program:
        program = start("vllm_engine.py", options(checkpoint, **{"max_model_len": 512, **more}))
        program.receive(START)
        return program

    plain = engine()
    expected = plain.ask("generate", [LONG], 8)
    other = plain.ask("generate", [LONG + " w5"], 8)
    times = {"computed": plain.ask("times", [LONG], REPEATS)}
    plain.kill()
    first = engine(kv_transfer_config=KV)
    assert first.ask("generate", [LONG], 8) == expected
    assert len(blocks()) == 2
    assert first.ask("cached", [LONG]) == [256]
    first.kill()
    second = engine(kv_transfer_config=KV)
    assert second.ask("cached", [LONG]) == [256]
    assert second.ask("generate", [LONG], 8) == expected
    assert second.ask("generate", [LONG + " w5"], 8) == other
    times["holder"] = second.ask("times", [LONG], REPEATS)
    # vLLM's own connector that outlives an engine keeps blocks in files.
    files: dict[str, Any] = {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}
    files["kv_connector_extra_config"] = {"shared_storage_path": str(tmp_path / "files")}
    filed = engine(kv_transfer_config=files)
    assert filed.ask("generate", [LONG], 8) == expected
    times["files"] = filed.ask("times", [LONG], REPEATS)
    filed.kill()
    print({name: f"{statistics.median(taken) * 1e3:.1f} ms" for name, taken in times.items()})
    # Without the holder, the engine computes everything.
    holder.stop()
    assert second.ask("generate", [LONG], 8) == expected


def test_the_oldest_blocks_leave_a_full_holder(start: Callable[..., Program], checkpoint: Path) -> None:
    # The holder may open few files, so it has room for few blocks.
    holder = Holder()
    holder.start(["prlimit", f"--nofile={FILES}:{FILES}"])
    try:
        engine = start("vllm_engine.py", options(checkpoint, max_model_len=512, kv_transfer_config=KV))
        engine.receive(START)
        prompts = [prompt(31 * number) for number in range(PROMPTS)]
        tokens = [engine.ask("generate", [one], 8) for one in prompts]
        held = len(blocks())
        assert 2 <= held < 2 * PROMPTS, f"{held} blocks"
        # The latest prompt is held, and the first one is not.
        assert engine.ask("cached", [prompts[-1]]) == [256]
        assert engine.ask("cached", [prompts[0]]) == [0]
        assert engine.ask("generate", [prompts[0]], 8) == tokens[0]
    finally:
        holder.stop()


class Worker(HolderConnector):
    """The part of the connector that publishes blocks, without an engine."""

    def __init__(self) -> None:
        self._store = store.Store()
        self._prefix, self._published, self._max_blocks = "kv/tiny/alone", {}, 1024

    def _rank(self) -> int:
        return 0

    def publish(self, block: str) -> None:
        self._publish(block, {"layer": torch.zeros(16)}, "host")


def test_a_block_that_another_engine_has_published_removes_none(holder: Holder) -> None:
    first, second = Worker(), Worker()
    for number in range(20):
        first.publish(f"block-{number}")
    # The newest block would be the last one to be removed.
    second.publish("block-19")
    assert len(blocks()) == 20


def test_a_failure_that_needs_no_room_removes_no_blocks(holder: Holder) -> None:
    worker = Worker()
    for number in range(20):
        worker.publish(f"block-{number}")
    # The holder refuses names with a space.
    worker.publish("not a name")
    assert len(blocks()) == 20


def test_a_holder_that_others_have_filled_loses_few_blocks() -> None:
    holder = Holder()
    holder.start(["prlimit", f"--nofile={FILES}:{FILES}"])
    try:
        worker, other = Worker(), store.Store()
        for number in range(4):
            worker.publish(f"block-{number}")
        before = len(blocks())
        with pytest.raises(store.NoRoomError):
            for number in range(FILES):
                other.publish(f"others/{number}", {"x": torch.zeros(1)})
        worker.publish("one-more")
        # At most two blocks are removed for the new one.
        assert before - 1 <= len(blocks()) and "kv/tiny/alone/0/one-more" in blocks()
    finally:
        holder.stop()
