"""Ray actors pass tensors through the transport `crosshandle`."""

from __future__ import annotations

from collections.abc import Callable

from conftest import START, Program


def test_actors_pass_tensors_and_survive_each_other(start: Callable[..., Program]) -> None:
    figures = start("ray_program.py", "1000").receive(START)
    print(figures)
    assert figures["deaths"]["before_s"] < 10 and figures["deaths"]["during_s"] < 10
