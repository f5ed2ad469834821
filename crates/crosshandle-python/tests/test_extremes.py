"""No argument ends the interpreter, or causes a Rust panic."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import crosshandle
from conftest import DEADLINE

PROGRAM = Path(__file__).with_name("extreme_arguments.py")


def test_every_public_callable_takes_extreme_arguments() -> None:
    ran = subprocess.run([sys.executable, str(PROGRAM)], capture_output=True, text=True, timeout=10 * DEADLINE)
    assert ran.returncode == 0, (ran.returncode, ran.stderr[-2000:])
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["bad"] == []
    # The script searches for the callables. This checks that renamed ones are still found.
    expected = {"Memory.read", "VirtualRange.read", "RemoteMemory.read", "Event.wait", "Context.allocate"}
    assert expected <= set(found["names"])
    assert found["calls"] > 3000


@pytest.mark.parametrize("nbytes", [4097, 1 << 45, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_reads_beyond_the_end_are_refused_before_there_is_room_for_them(nbytes: int) -> None:
    memory = crosshandle.Context("host").allocate(4096)
    with pytest.raises(crosshandle.InvalidArgumentError):
        memory.read(nbytes)
    assert len(memory.read(4096)) == 4096


def test_a_copy_that_does_not_fit_is_a_memory_error() -> None:
    context = crosshandle.Context("host", overcommit=True)
    memory = context.allocate(1 << 45)
    with pytest.raises(MemoryError):
        memory.read()
    assert memory.read(5, offset=(1 << 45) - 5) == bytes(5)


def test_an_endless_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="dimensions"):
        crosshandle.default_context().empty(range(1 << 62))


@pytest.mark.parametrize("seconds", [float("nan"), -1.0, float("-inf")])
def test_timeouts_that_are_none(seconds: float) -> None:
    event = crosshandle.default_context().event()
    with pytest.raises(ValueError, match="a timeout is a number of seconds"):
        event.wait_value(1, seconds)
    with pytest.raises(ValueError, match="a timeout is a number of seconds"):
        crosshandle.Context("host", exchange_timeout=seconds)
    with pytest.raises(crosshandle.TimedOutError):
        event.wait_value(1, -0.0)
