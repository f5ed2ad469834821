"""Time to load and memory of a second vLLM engine on a machine, next to vLLM's own loader."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from conftest import HERE, START, STEP, Holder, Program
from crosshandle import store
from test_vllm import QUESTIONS, TOKENS, from_holder, options


def test_the_second_engine_shares_the_memory_of_the_weights(
    start: Callable[..., Program], holder: Holder, tmp_path: Path
) -> None:
    wide = tmp_path / "wide"
    # Weights of 340 MB: large enough to be seen next to the memory of an engine.
    subprocess.run([sys.executable, str(HERE / "tiny_model.py"), str(wide), "7", "8"], check=True, timeout=STEP)
    weights = store.load("wide", [wide / "model.safetensors"])
    nbytes = store.ls()[0].nbytes
    settings = from_holder(name="wide", state="wide/vllm", expected_hash=weights.hash)
    memory, tokens = {}, {}
    for name, more in (("files", {}), ("first", settings), ("second", settings)):
        engine = start("vllm_engine.py", options(wide, **more))
        times = engine.receive(START)
        tokens[name] = engine.ask("generate", QUESTIONS, TOKENS)
        memory[name] = engine.ask("memory")
        print(name, times, memory[name])
        engine.kill()
    print("weights", nbytes)
    assert tokens["first"] == tokens["second"]
    saved = memory["files"]["Anonymous"] - memory["second"]["Anonymous"]
    assert saved > nbytes // 2, f"the second engine saves {saved} bytes of {nbytes}"
