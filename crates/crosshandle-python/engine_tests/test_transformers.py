"""Models of transformers from a holder, with two versions of transformers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import HERE, STEP, Holder
from crosshandle import store

EXAMPLE = HERE.parents[2] / "examples/holder/transformers_model.py"
VERSIONS = ["installed", "older"]


def environment(version: str) -> dict[str, str]:
    paths = os.environ["PYTHONPATH"]
    if version == "older":
        paths = os.pathsep.join([os.environ["CROSSHANDLE_OLDER_TRANSFORMERS"], paths])
    return {**os.environ, "PYTHONPATH": paths}


def run(version: str, *arguments: str) -> str:
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=environment(version), capture_output=True, text=True, timeout=STEP, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("version", VERSIONS)
def test_a_model_from_the_holder_generates_what_a_plain_load_does(version: str, holder: Holder) -> None:
    print(run(version, str(HERE / "transformers_program.py")))


@pytest.mark.parametrize("version", VERSIONS)
def test_the_example_generates_the_tokens_of_a_plain_load(version: str, holder: Holder, checkpoint: Path) -> None:
    store.load("tiny", [checkpoint / "model.safetensors"])
    text = "w1 w5 w9"
    plain = (
        "import sys, transformers as t; d, text = sys.argv[1:]; m = t.AutoModelForCausalLM.from_pretrained(d);"
        "q = t.AutoTokenizer.from_pretrained(d)(text, return_tensors='pt');"
        "print(m.generate(**q, max_new_tokens=20, do_sample=False)[0].tolist())"
    )
    expected = run(version, "-c", plain, str(checkpoint), text)
    assert run(version, str(EXAMPLE), str(checkpoint), "tiny", text) == expected
