"""Events that queues of dpctl signal and wait for, through the wheel's Unified Runtime adapter.

`CROSSHANDLE_TEST_ADAPTER` names the adapter (default: `host`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import crosshandle
from conftest import DEADLINE, Peer

np = pytest.importorskip("numpy")
pytest.importorskip("dpctl")

import crosshandle.dpctl  # noqa: E402

Start = Callable[..., Peer]

ADAPTER = os.environ.get("CROSSHANDLE_TEST_ADAPTER", "host")
# Set before the SYCL runtime starts, here and in the other processes.
os.environ["UR_ADAPTERS_FORCE_LOAD"] = crosshandle.ur_adapter(ADAPTER)
os.environ["CROSSHANDLE_UR_BACKEND"] = "opencl"

ROUNDS = 50
SIZE = 1 << 16

each_order = pytest.mark.parametrize("order", ["in_order", "out_of_order"])


def queue_of(order: str) -> Any:
    import dpctl

    return dpctl.SyclQueue(property="in_order" if order == "in_order" else ())


def memory_on(queue: Any) -> Any:
    from dpctl.memory import MemoryUSMDevice

    return MemoryUSMDevice(SIZE, queue=queue)


def copied(queue: Any, target: Any, source: Any, events: list[Any]) -> None:
    """Submits a copy, and keeps its event."""
    events.append(queue.memcpy_async(target, source, SIZE))


def answering(pipe: Any, order: str, first: bytes, second: bytes) -> None:
    """Copies what the other process writes in each turn. The host does not wait for a copy."""
    queue = queue_of(order)
    asked, answered = crosshandle.dpctl.Event(first), crosshandle.dpctl.Event(second)
    shared = crosshandle.open(pipe.recv()).dpctl(queue)
    seen = [np.zeros(SIZE, "u1") for _ in range(ROUNDS)]
    events: list[Any] = []
    for turn in range(ROUNDS):
        asked.wait_on(queue, turn + 1)
        copied(queue, seen[turn], shared, events)
        answered.signal(queue)
    pipe.send("submitted")
    queue.wait()
    pipe.send([int(one[0]) for one in seen] + [int(one[-1]) for one in seen])


@each_order
def test_queues_of_two_processes_take_turns(start: Start, order: str) -> None:
    queue = queue_of(order)
    asked, answered = crosshandle.dpctl.Event(), crosshandle.dpctl.Event()
    shared = memory_on(queue)
    peer = start(answering, order, asked.handle(), answered.handle())
    with crosshandle.share(shared) as bundle:
        peer.send(bytes(bundle))
        # All commands of the other process wait for signals that do not exist yet.
        assert peer.receive() == "submitted"
        numbers = [np.full(SIZE, turn + 1, "u1") for turn in range(ROUNDS)]
        events: list[Any] = []
        for turn in range(ROUNDS):
            if turn > 0:
                answered.wait_on(queue, turn)
            copied(queue, shared, numbers[turn], events)
            signalled = asked.signal(queue)
        answered.event.wait_value(ROUNDS, timeout=DEADLINE)
        signalled.wait()
        expected = list(range(1, ROUNDS + 1))
        assert peer.receive() == expected + expected
    peer.end()
    assert asked.event.completed == answered.event.completed == ROUNDS


def never_signal(pipe: Any) -> None:
    """Submits a signal that depends on an event which no process signals."""
    queue = queue_of("out_of_order")
    never = crosshandle.dpctl.Event()
    unfinished = crosshandle.dpctl.Event(pipe.recv())
    never.wait_on(queue, 1)
    unfinished.signal(queue)
    pipe.send(unfinished.event.submitted)
    pipe.recv()


@each_order
def test_a_queue_continues_after_the_signaller_was_killed(start: Start, order: str) -> None:
    import dpctl

    queue = queue_of(order)
    unfinished = crosshandle.dpctl.Event()
    peer = start(never_signal)
    peer.send(unfinished.handle())
    assert peer.receive() == 1
    waited = unfinished.wait_on(queue)
    assert waited.execution_status != dpctl.event_status_type.complete
    begin = time.monotonic()
    peer.kill()
    with pytest.raises(crosshandle.PeerDiedError):
        unfinished.event.wait(timeout=DEADLINE)
    assert time.monotonic() - begin < 5
    # The queue continues, and does not fail.
    target, source = memory_on(queue), np.full(SIZE, 3, "u1")
    queue.memcpy_async(target, source, SIZE)
    queue.wait()
    assert target.tobytes() == b"\3" * SIZE
    waited.wait()


@each_order
def test_the_host_signals_and_waits_too(order: str) -> None:
    queue = queue_of(order)
    gate, done = crosshandle.dpctl.Event(), crosshandle.dpctl.Event()
    target = memory_on(queue)
    gate.wait_on(queue)
    source = np.full(SIZE, 9, "u1")
    events: list[Any] = []
    copied(queue, target, source, events)
    done.signal(queue)
    assert not done.event.ready()
    gate.event.signal()
    done.event.wait(timeout=DEADLINE)
    assert target.tobytes() == b"\x09" * SIZE
    # Another queue of the same context uses the opened event.
    other = queue_of(order)
    done.wait_on(other).wait()
    assert len(done._opened) == 1
    with pytest.raises(ValueError, match="numbered from 1"):
        done.wait_on(queue, 0)


EXAMPLE = Path(__file__).parents[3] / "examples/engines/dpctl_queues.py"


@pytest.mark.skipif(not EXAMPLE.is_file(), reason="the example is not next to the tests")
def test_the_example_takes_turns() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stderr
    expected = ["the reader: all commands are submitted", f"the reader saw: {list(range(10))}"]
    assert done.stdout.splitlines() == expected


def test_handles_of_memory_and_damaged_handles_are_refused() -> None:
    memory = crosshandle.default_context().allocate(16)
    with pytest.raises(TypeError, match="not to an event"):
        crosshandle.dpctl.Event(bytes(memory.handle()))
    damaged = bytearray(crosshandle.dpctl.Event().handle())
    damaged[20] ^= 1
    with pytest.raises(ValueError):
        crosshandle.dpctl.Event(bytes(damaged))


def test_an_action_is_for_one_command() -> None:
    import dpctl

    from crosshandle._libraries import usm

    device = dpctl.SyclDevice()
    queue = dpctl.SyclQueue(device)
    event = crosshandle.dpctl.Event()
    event.signal(queue).wait()
    opened = event._opened[queue.sycl_context]
    adapter = opened.adapter
    # An attached action that no command does is removed.
    adapter.attach(opened.number, 0, 0)
    assert not adapter.detach() and adapter.detach()
    queue.submit_barrier([]).wait()
    assert event.event.submitted == 1
    for number, action in ((opened.number, 2), (2**63, 0)):
        with pytest.raises(ValueError):
            adapter.attach(number, action, 0)
    with pytest.raises(usm._Unknown):
        adapter.open_event(0, event.handle())
    with pytest.raises(ValueError):
        adapter.open_event(opened.memory[0]._pointer, event.handle()[:-1])
