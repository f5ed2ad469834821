"""Ray actors pass tensors through the transport `crosshandle`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from conftest import HERE, START, Program


def test_actors_pass_tensors_and_survive_each_other(start: Callable[..., Program]) -> None:
    figures = start("ray_program.py", "1000").receive(START)
    print(figures)
    assert figures["deaths"]["before_s"] < 10 and figures["deaths"]["during_s"] < 10


def test_the_example_passes_a_tensor_without_a_copy() -> None:
    example = HERE.parents[2] / "examples/engines/ray_actors.py"
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=START, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-2:] == ["the sink's sum: 2097152.0", "the source's first element: 2.0"]
