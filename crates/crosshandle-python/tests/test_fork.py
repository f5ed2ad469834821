"""A forked child starts with fresh contexts on the host."""

from __future__ import annotations

import gc
import os
import pickle
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Pipe
from typing import Any

import numpy as np
import pytest

import crosshandle
from conftest import DEADLINE

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning", "ignore:.*fork:RuntimeWarning")


@pytest.fixture
def forks(request: pytest.FixtureRequest) -> int:
    number: int = request.config.getoption("--forks")
    return number


class Child:
    """A forked child that runs a function, and exits normally."""

    def __init__(self, function: Callable[[Any], None]):
        self._pipe, theirs = Pipe()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                self._pipe.close()
                function(theirs)
                gc.collect()
                status = 0
            except BaseException:
                theirs.send(traceback.format_exc())
            finally:
                os._exit(status)
        theirs.close()

    def send(self, value: Any) -> None:
        self._pipe.send(value)

    def receive(self) -> Any:
        assert self._pipe.poll(DEADLINE), "the child says nothing"
        return self._pipe.recv()

    def end(self) -> None:
        end = time.monotonic() + DEADLINE
        while (waited := os.waitpid(self.pid, os.WNOHANG)) == (0, 0):
            if time.monotonic() > end:
                os.kill(self.pid, 9)
                os.waitpid(self.pid, 0)
                raise AssertionError("the child hangs")
            time.sleep(0.002)
        assert waited[1] == 0, self._pipe.recv() if self._pipe.poll() else waited
        self._pipe.close()


@pytest.fixture
def _busy() -> Iterator[None]:
    """Runs threads that take the locks of this process as often as possible."""
    is_over = threading.Event()
    ended: list[bool] = []

    def work() -> None:
        while not is_over.is_set():
            array = crosshandle.empty(100)
            pickle.loads(pickle.dumps(array))
            context = crosshandle.Context()
            memory = context.allocate(100)
            context.open(memory.handle())
            context.event().signal()
        ended.append(True)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    yield
    is_over.set()
    for thread in threads:
        thread.join(DEADLINE)
        assert not thread.is_alive()
    assert len(ended) == 3


def refused(call: Callable[[], Any]) -> None:
    began = time.monotonic()
    with pytest.raises(crosshandle.UnsupportedError, match="'spawn' or 'forkserver'"):
        call()
    assert time.monotonic() - began < 1


def afresh(pipe: Any, inherited: crosshandle.Array, data: bytes) -> None:
    # The child reads and writes inherited memory.
    view = inherited.numpy()
    assert view[0] == 5
    view[1] = os.getpid()
    assert crosshandle.pending() == (0, 0), "what its parent keeps"
    # The child opens objects that its parent has created,
    opened, done = pickle.loads(data)
    assert np.all(opened.numpy() == 7)
    # and creates objects of its own.
    own = crosshandle.empty(10, "int64")
    own.numpy()[:] = 9
    event = crosshandle.default_context().event()
    pipe.send((own, event, {"tree": crosshandle.share([own])}))
    event.wait_value(1, timeout=DEADLINE)
    queue = crosshandle.default_context().queue()
    queue.signal(event)
    event.wait_value(2, timeout=DEADLINE)
    done.signal()


@pytest.mark.usefixtures("_busy")
def test_a_forked_child_starts_afresh(forks: int) -> None:
    inherited = crosshandle.empty(10, "int64")
    inherited.numpy()[:] = 5
    for _ in range(forks):
        other = crosshandle.empty(10, "int64")
        other.numpy()[:] = 7
        done = crosshandle.default_context().event()
        data = pickle.dumps((other, done))
        child = Child(lambda pipe: afresh(pipe, inherited, data))
        message = child.receive()
        assert not isinstance(message, str), message
        own, event, tree = message
        assert np.all(own.numpy() == 9) and np.all(crosshandle.open(tree["tree"])[0].numpy() == 9)
        event.signal()
        done.wait_value(1, timeout=DEADLINE)
        child.end()
        assert inherited.numpy()[1] == child.pid


def test_what_a_forked_child_cannot_use_names_the_remedy() -> None:
    context = crosshandle.default_context()
    array, memory, event = crosshandle.empty(4), context.allocate(100), context.event()
    handle, event_handle = memory.handle(), event.handle()
    assert handle and event_handle
    physical = context.physical_memory(1 << 16)
    queue = context.queue()
    opened = crosshandle.Context().open(handle)

    def check(pipe: Any) -> None:
        refused(lambda: context.allocate(3))
        refused(context.event)
        refused(memory.handle)
        refused(physical.handle)
        refused(event.handle)
        refused(event.signal)
        refused(lambda: event.wait_value(1, timeout=DEADLINE))
        refused(queue.finish)
        refused(lambda: queue.signal(event))
        refused(lambda: context.open(handle))
        refused(lambda: pickle.dumps(array))
        refused(lambda: pickle.dumps(opened))
        # The child can access the bytes of inherited memory.
        memory.write(b"child")
        assert opened.read(5) == b"child"

    child = Child(check)
    child.end()
    assert memory.read(5) == b"child"
    # The drops in the child have not affected the parent's objects.
    assert pickle.loads(pickle.dumps(opened)).read(5) == b"child"
    event.signal()
    queue.signal(event)
    queue.finish(timeout=DEADLINE)


def test_a_child_of_a_child_starts_afresh() -> None:
    def grandchild(pipe: Any, array: crosshandle.Array) -> None:
        assert array.numpy()[0] == 3
        pipe.send(crosshandle.empty(5))
        pipe.recv()

    def middle(pipe: Any) -> None:
        array = crosshandle.empty(4, "int64")
        array.numpy()[:] = 3
        child = Child(lambda inner: grandchild(inner, array))
        pipe.send(child.receive().shape)
        child.send("end")
        child.end()
        # The grandchild has not received the object.
        pipe.send(array)
        pipe.recv()

    child = Child(middle)
    assert child.receive() == (5,)
    assert child.receive().numpy()[0] == 3
    child.send("end")
    child.end()
