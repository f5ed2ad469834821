"""Published states of vLLM engines with several ranks, and with quantized weights."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conftest import HERE, START, STEP, Holder, Program
from crosshandle import store
from test_vllm import QUESTIONS, TOKENS, from_holder, options

Start = Callable[..., Program]

RANKS = 2


def engine(start: Start, checkpoint: Path, **more: Any) -> Program:
    # One CPU for each rank.
    binding = {"VLLM_CPU_OMP_THREADS_BIND": "|".join(str(rank) for rank in range(RANKS))}
    environment = binding if "tensor_parallel_size" in more else {}
    program = start("vllm_engine.py", options(checkpoint, **more), environment=environment)
    program.receive(START)
    return program


def test_each_rank_maps_its_own_state(start: Start, holder: Holder, checkpoint: Path) -> None:
    ranks = {"tensor_parallel_size": RANKS, "distributed_executor_backend": "mp"}
    plain = engine(start, checkpoint, **ranks)
    expected = plain.ask("generate", QUESTIONS, TOKENS)
    plain.kill()
    published = store.load("tiny", [checkpoint / "model.safetensors"])
    settings = from_holder(name="tiny", state="tiny/ranks", expected_hash=published.hash)
    first = engine(start, checkpoint, **ranks, **settings)
    assert first.ask("generate", QUESTIONS, TOKENS) == expected
    held = {one.name: one.hash for one in store.ls() if one.name.startswith("tiny/ranks/")}
    assert held.keys() == {f"tiny/ranks/tp{rank}-of-{RANKS}-pp0-of-1" for rank in range(RANKS)}
    assert len(set(held.values())) == RANKS
    first.kill()
    second = engine(start, checkpoint, **ranks, **settings)
    assert second.ask("generate", QUESTIONS, TOKENS) == expected
    # The second engine has published nothing.
    assert held == {one.name: one.hash for one in store.ls() if one.name.startswith("tiny/ranks/")}


def test_quantized_weights_are_mapped_or_loaded(start: Start, holder: Holder, checkpoint: Path, tmp_path: Path) -> None:
    quantized = tmp_path / "quantized"
    made = [sys.executable, str(HERE / "quantized_model.py"), str(checkpoint), str(quantized)]
    subprocess.run(made, check=True, timeout=STEP)
    plain = engine(start, quantized)
    expected = plain.ask("generate", QUESTIONS, TOKENS)
    plain.kill()
    published = store.load("eight", [quantized / "model.safetensors"])
    settings = from_holder(name="eight", state="eight/vllm", expected_hash=published.hash)
    for _ in range(2):
        program = engine(start, quantized, **settings)
        assert program.ask("generate", QUESTIONS, TOKENS) == expected
        program.kill()
