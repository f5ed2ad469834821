"""Pickled objects are kept until they are opened, in queues, pools and executors."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import crosshandle
from conftest import DEADLINE, Peer

Start = Callable[..., Peer]


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    limits = crosshandle.pending_limits()
    yield
    crosshandle.pending_limits(**limits._asdict())
    crosshandle.release_pending()


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE
    while not holds():
        assert time.monotonic() < end, "it never holds"
        time.sleep(0.002)


def filled(number: int, count: int = 100) -> crosshandle.Array:
    array = crosshandle.empty(count, "int64")
    array.numpy()[:] = number
    return array


def reuse() -> None:
    """Allocates the memory that no object keeps, and changes it."""
    for _ in range(64):
        filled(-1)


def put_many(pipe: Any, queue: Any, count: int) -> None:
    for number in range(count):
        # No other object in this process keeps the array.
        queue.put(filled(number))
    # The feeder thread of the queue pickles the arrays.
    until(lambda: crosshandle.pending().objects == count)
    reuse()
    pipe.send(crosshandle.pending())
    pipe.recv()
    until(lambda: crosshandle.pending() == (0, 0))


def test_what_a_queue_has_is_kept(start: Start) -> None:
    queue = multiprocessing.get_context("spawn").Queue()
    peer = start(put_many, queue, 20)
    kept = peer.receive()
    assert kept.objects == 20 and kept.nbytes >= 20 * 800
    for number in range(20):
        assert np.all(queue.get(timeout=DEADLINE).numpy() == number)
    peer.send("all are opened")
    peer.end()


def pickles() -> dict[str, Any]:
    """Returns an object of each kind that only its pickle keeps, with a check that it still
    exists."""
    context = crosshandle.Context()
    memory = context.allocate(100)
    memory.write(b"memory")
    event = context.event()
    event.signal_value(7)
    physical = context.physical_memory(1 << 16)
    array = filled(3)
    bundle = crosshandle.share({"x": filled(4), "y": [filled(5)] * 200}, event=event)
    return {"memory": memory, "event": event, "physical": physical, "array": array, "bundle": bundle}


def give(pipe: Any) -> None:
    pipe.send_bytes(pickle.dumps(pickles()))
    reuse()
    pipe.send("reused")
    pipe.recv()
    until(lambda: crosshandle.pending() == (0, 0))


def check(got: dict[str, Any]) -> None:
    assert got["memory"].read(6) == b"memory"
    assert got["event"].submitted == 7
    assert got["physical"].nbytes == 1 << 16
    assert np.all(got["array"].numpy() == 3)
    bundle = got["bundle"]
    assert isinstance(bundle, crosshandle.Bundle)
    tree = crosshandle.open(bundle)
    assert np.all(tree["x"].numpy() == 4) and len(tree["y"]) == 200 and np.all(tree["y"][199].numpy() == 5)
    assert tree["x"].event.submitted == 7


def test_objects_of_each_kind_are_kept(start: Start) -> None:
    peer = start(give)
    assert peer._pipe.poll(DEADLINE)
    data = peer._pipe.recv_bytes()
    assert peer.receive() == "reused"
    got = pickle.loads(data)
    check(got)
    peer.send("opened")
    peer.end()


def test_a_bundle_is_pickled_as_its_bytes() -> None:
    bundle = crosshandle.share(crosshandle.empty(1 << 21))
    data = pickle.dumps(bundle)
    assert len(data) < 1000 and bytes(bundle) in data
    opened = pickle.loads(data)
    assert crosshandle.open(opened).nbytes == 16 << 20
    until(lambda: crosshandle.pending().objects == 0)
    # A received bundle can be shared again.
    again = pickle.loads(pickle.dumps(opened))
    assert crosshandle.open(again).nbytes == 16 << 20
    released = crosshandle.share(crosshandle.empty(3))
    released.release()
    with pytest.raises(ValueError, match="released"):
        pickle.dumps(released)


def test_a_pickle_for_several_receivers_is_kept_until_all_have_opened_it() -> None:
    data = pickle.dumps(crosshandle.pickled(filled(8), receivers=3))
    event = pickle.dumps(crosshandle.pickled(crosshandle.Context().event(), receivers=2))
    tree = pickle.dumps(crosshandle.pickled({"a": [filled(1)], "b": filled(2)}, receivers=2))
    assert crosshandle.pending().objects == 3
    for _ in range(2):
        assert np.all(pickle.loads(data).numpy() == 8)
        assert pickle.loads(event).submitted == 0
        assert np.all(pickle.loads(tree)["a"][0].numpy() == 1)
        reuse()
    until(lambda: crosshandle.pending().objects == 1)
    assert np.all(pickle.loads(data).numpy() == 8)
    until(lambda: crosshandle.pending() == (0, 0))
    with pytest.raises(ValueError, match="at least 1"):
        crosshandle.pickled(filled(1), receivers=0)


def test_too_much_is_not_pickled() -> None:
    before = crosshandle.pending_limits(objects=3, timeout=0.1)
    assert before.objects == 3 and before.exit_timeout == 10
    data = [pickle.dumps(filled(number)) for number in range(3)]
    with pytest.raises(crosshandle.LimitReachedError, match="3 pickled objects.*release_pending"):
        pickle.dumps(filled(3))
    # None of the pickles has become stale.
    assert [int(pickle.loads(one).numpy()[0]) for one in data] == [0, 1, 2]
    until(lambda: crosshandle.pending() == (0, 0))

    crosshandle.pending_limits(objects=100, nbytes=1 << 20)
    shared = crosshandle.empty(1 << 20)
    large = [pickle.dumps(shared) for _ in range(4)]
    assert crosshandle.pending() == (4, 0), "this process has it anyway"
    del shared
    assert crosshandle.pending() == (4, 8 << 20)
    with pytest.raises(crosshandle.LimitReachedError):
        pickle.dumps(filled(3))
    assert crosshandle.release_pending() == 4
    pickle.loads(pickle.dumps(filled(3)))
    with pytest.raises(crosshandle.StaleHandleError):
        pickle.loads(large[0])


def test_pickling_waits_for_room() -> None:
    crosshandle.pending_limits(objects=1, timeout=DEADLINE)
    first = pickle.dumps(filled(1))
    later: list[bytes] = []
    thread = threading.Thread(target=lambda: later.append(pickle.dumps(filled(2))))
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    pickle.loads(first)
    thread.join(DEADLINE)
    assert np.all(pickle.loads(later[0]).numpy() == 2)


def open_and_die(pipe: Any) -> None:
    array = pickle.loads(pipe.recv())
    pipe.send(int(array.numpy()[0]))
    os.kill(os.getpid(), 9)


def test_a_receiver_that_has_died_keeps_nothing(start: Start) -> None:
    peer = start(open_and_die)
    peer.send(pickle.dumps(filled(6)))
    assert peer.receive() == 6
    until(lambda: crosshandle.pending() == (0, 0))


ENDS = """
import pickle, sys, crosshandle
crosshandle.pending_limits(exit_timeout=float(sys.argv[1]))
array = crosshandle.empty(10, "int64")
array.numpy()[:] = 5
print(pickle.dumps(array).hex(), flush=True)
"""


def test_a_process_waits_for_its_receivers_when_it_ends() -> None:
    process = subprocess.Popen([sys.executable, "-c", ENDS, "30"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process, process.stdout:
        data = bytes.fromhex(process.stdout.readline().decode())
        assert process.poll() is None
        assert np.all(pickle.loads(data).numpy() == 5)
        assert process.wait(DEADLINE) == 0


def test_a_process_waits_no_longer_than_it_was_told() -> None:
    ended = subprocess.run([sys.executable, "-c", ENDS, "0.2"], capture_output=True, timeout=DEADLINE)
    assert ended.returncode == 0
    assert b"opened 1 of the objects" in ended.stderr and b"pending_limits" in ended.stderr


def test_a_queue_of_torch_pickles_in_put(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    import crosshandle.torch
    from crosshandle import torch as bridge

    threads = []

    class Noted:
        def __reduce__(self) -> Any:
            threads.append(threading.current_thread())
            return int, (7,)

    # Simulates a device, on which each thread has its own current stream.
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    context = multiprocessing.get_context("spawn")
    for queue in (context.Queue(), context.JoinableQueue()):
        with bridge.register():
            queue.put([Noted(), filled(3)])
            assert threads.pop() is threading.current_thread()
            number, array = queue.get(timeout=DEADLINE)
            assert number == 7 and np.all(array.numpy() == 3)
            queue.put("text")
            assert queue.get(timeout=DEADLINE) == "text"
        queue.put(Noted())
        assert queue.get(timeout=DEADLINE) == 7
        assert threads.pop() is not threading.current_thread()
        queue.close()
        queue.join_thread()
    until(lambda: crosshandle.pending() == (0, 0))
