"""Events: which signal a wait is for, and how the wait ends if the signalling process dies."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import crosshandle
from conftest import DEADLINE, Peer

Start = Callable[..., Peer]

# Timeout of a wait in seconds. On a busy machine, the wait may end this much later.
WAIT = 1.0
LATE = 10.0
SOON = 0.02


def test_a_wait_lasts_until_the_first_signal() -> None:
    context = crosshandle.default_context()
    event, other = context.event(name="never"), context.event()
    waits: list[Callable[[], Any]] = [
        lambda: event.wait(timeout=SOON),
        lambda: event.wait(timeout=0),
        lambda: event.wait_value(1, timeout=SOON),
        lambda: crosshandle.Event.wait_all([event, other], timeout=SOON),
        lambda: crosshandle.Event.wait_any([event, other], timeout=SOON),
    ]
    for wait in waits:
        began = time.monotonic()
        with pytest.raises(crosshandle.TimedOutError):
            wait()
        assert time.monotonic() - began < LATE
    assert not event.ready() and not event.done() and not event.ready(1) and event.ready(0)

    async def late() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(event.reached(), SOON)

    asyncio.run(late())
    waiters = [threading.Thread(target=event.wait, kwargs={"timeout": DEADLINE}) for _ in range(3)]
    for waiter in waiters:
        waiter.start()
    assert event.signal() == 1
    for waiter in waiters:
        waiter.join(DEADLINE)
        assert not waiter.is_alive()
    # A signal before the wait is never missed.
    for _ in range(100):
        event.signal()
        event.wait(timeout=0)
        assert event.ready() and event.done()
    assert crosshandle.Event.wait_any([other, event], timeout=0) == 1
    asyncio.run(asyncio.wait_for(event.reached(), DEADLINE))


def test_queues_wait_for_the_first_signal() -> None:
    context = crosshandle.default_context()
    event, done, chained = context.event(), context.event(), context.event()
    queue = context.queue()
    queue.wait(event)
    queue.signal(done)
    with pytest.raises(crosshandle.TimedOutError):
        done.wait(timeout=SOON)
    event.signal()
    done.wait(timeout=DEADLINE)
    # A command never waits for its own signal.
    memory = context.allocate(64)
    for _ in range(3):
        queue.fill(memory, b"x", after=[chained], signal=chained)
    chained.wait_value(3, timeout=DEADLINE)


def open_and_read(pipe: Any, bundle: bytes) -> None:
    array = crosshandle.open(bundle)
    pipe.send("opened")
    pipe.send(int(array.numpy()[0]))


def test_an_array_shared_before_its_signal_is_waited_for(start: Start) -> None:
    array = crosshandle.empty(4, "int64")
    event = crosshandle.default_context().event()
    array.numpy()[:] = 0
    with crosshandle.share(array, event=event) as bundle:
        peer = start(open_and_read, bytes(bundle))
        assert peer.receive() == "opened"
        time.sleep(SOON)
        array.numpy()[:] = 7
        event.signal()
        assert peer.receive() == 7
    # If there is a signal, `wait` waits for the latest one.
    event.signal()
    with crosshandle.share(array, event=event) as bundle:
        assert int(crosshandle.open(bytes(bundle)).numpy()[0]) == 7


# These two functions follow the first program of the README: one process makes an array and an
# event, and its peer fills the array and signals the event.


def give(pipe: Any) -> None:
    array = crosshandle.empty((1024, 1024), "float32")
    array.numpy()[:] = 1
    done = crosshandle.default_context().event(name="done")
    bundle = crosshandle.share({"weights": array})
    pipe.send((bytes(bundle), bytes(done.handle())))
    done.wait(timeout=WAIT)
    assert array.numpy()[0, 0] == 2
    bundle.release()


def take(pipe: Any) -> None:
    bundle, handle = pipe.recv()
    tree = crosshandle.open(bundle)
    done = crosshandle.open(handle)
    pipe.send("attached")
    tree["weights"].numpy()[0, 0] = 2
    done.signal()
    pipe.recv()


def run_killed(pipe: Any, role: str, line: int) -> None:
    """Runs one of the two roles. Kills the process after `line` lines of this file and of the
    package."""
    count = 0
    places = (__file__, str(Path(crosshandle.__file__).parent))

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.startswith(places):
            return None
        if event == "line":
            count += 1
            if count == line:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    pipe.send("started")
    sys.settrace(trace)
    try:
        {"give": give, "take": take}[role](pipe)
    finally:
        sys.settrace(None)
    pipe.send(count)


def play(role: str, line: int) -> tuple[Any, bool, int]:
    """Runs one role in this process. Another process runs the other role, and is killed at a line.

    Returns the error or None, whether the other process had attached, and the number of lines that
    the other process ran.
    """
    spawn = multiprocessing.get_context("spawn")
    pipe, theirs = spawn.Pipe()
    other = {"give": "take", "take": "give"}[role]
    process = spawn.Process(target=run_killed, args=(theirs, other, line))
    process.start()
    theirs.close()
    try:
        assert pipe.poll(DEADLINE) and pipe.recv() == "started"
        error: Any = None
        lines = 0
        try:
            {"give": give, "take": take}[role](pipe)
            pipe.send("end")
        except (crosshandle.Error, EOFError, OSError) as raised:
            error = raised
        attached = False
        try:
            while pipe.poll(DEADLINE):
                said = pipe.recv()
                attached |= said == "attached"
                lines = said if isinstance(said, int) else lines
        except (EOFError, OSError):
            pass
        return error, attached, lines
    finally:
        process.kill()
        process.join(DEADLINE)
        pipe.close()


def test_the_readmes_pattern_never_hangs(kills: int) -> None:
    error, attached, lines = play("give", 0)
    assert error is None and attached and lines > 10, (error, lines)
    # A kill before the process has attached costs the whole timeout.
    share = max(kills // 5, 2)
    for number in range(share):
        line = 1 + (number + 1) * lines // (share + 1)
        began = time.monotonic()
        error, attached, _ = play("give", line)
        assert time.monotonic() - began < WAIT + LATE, line
        if attached and error is not None:
            assert isinstance(error, crosshandle.PeerDiedError), (line, error)
        elif error is not None:
            # The process was killed before it reported that it had attached. If it had not
            # attached, only the timeout ends the wait.
            assert isinstance(error, (crosshandle.TimedOutError, crosshandle.PeerDiedError, OSError)), (line, error)
    error, _, lines = play("take", 0)
    share = max(kills // 8, 1)
    for number in range(share):
        line = 1 + (number + 1) * lines // (share + 1)
        error, _, _ = play("take", line)
        assert error is None or isinstance(error, (crosshandle.Error, EOFError, OSError)), (line, error)


def attach(pipe: Any, handle: bytes) -> None:
    event = crosshandle.open(handle)
    pipe.send("attached")
    pipe.recv()
    del event


def test_the_death_of_the_last_process_ends_every_wait(start: Start) -> None:
    event = crosshandle.default_context().event(name="done")
    peer = start(attach, bytes(event.handle()))
    assert peer.receive() == "attached"
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            event.wait(timeout=DEADLINE)
        except crosshandle.Error as error:
            errors.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()

    async def awaited() -> None:
        reached = asyncio.ensure_future(event.reached())
        await asyncio.sleep(SOON)
        peer.kill()
        with pytest.raises(crosshandle.PeerDiedError) as died:
            await asyncio.wait_for(reached, DEADLINE)
        assert died.value.pid == peer.process.pid

    asyncio.run(awaited())
    waiter.join(DEADLINE)
    assert len(errors) == 1 and isinstance(errors[0], crosshandle.PeerDiedError)
    for raises in (event.ready, event.done, lambda: event.wait(timeout=0), lambda: event.wait_value(9)):
        with pytest.raises(crosshandle.PeerDiedError, match="done"):
            raises()
    # Making a handle tells the event that another process may signal it.
    bytes(event.handle())
    assert not event.ready()
    assert event.signal() == 1 and event.ready()


def test_closing_ends_no_wait(start: Start) -> None:
    event = crosshandle.default_context().event()
    peer = start(attach, bytes(event.handle()))
    assert peer.receive() == "attached"
    peer.send("close")
    peer.end()
    with pytest.raises(crosshandle.TimedOutError):
        event.wait(timeout=0.1)


PROGRAM = """
import sys, crosshandle
event = crosshandle.open(sys.argv[1])
{last}
"""


@pytest.mark.parametrize("last", ["raise RuntimeError('as asked')", "sys.exit(0)", "import os; os._exit(0)"])
def test_a_process_that_exits_with_the_event_in_use_is_missed(last: str) -> None:
    event = crosshandle.default_context().event()
    program = [sys.executable, "-c", PROGRAM.format(last=last), str(event.handle())]
    subprocess.run(program, stderr=subprocess.DEVNULL, timeout=DEADLINE, check=False)
    with pytest.raises(crosshandle.PeerDiedError):
        event.wait(timeout=DEADLINE)


def test_receivers_of_a_pickled_event_are_expected(start: Start) -> None:
    event = crosshandle.default_context().event()
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    peer = start(attach, bytes(event.handle()))
    assert peer.receive() == "attached"
    queue.put(event)
    peer.kill()
    # The event is still in the queue.
    with pytest.raises(crosshandle.TimedOutError):
        event.wait(timeout=0.1)
    arrived = queue.get(timeout=DEADLINE)
    arrived.signal()
    event.wait(timeout=DEADLINE)
