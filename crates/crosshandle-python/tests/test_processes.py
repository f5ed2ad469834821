from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import crosshandle
from conftest import DEADLINE, Peer

Start = Callable[..., Peer]


def double(pipe: Any) -> None:
    while (message := pipe.recv()) is not None:
        bundle, done = message
        tree = crosshandle.open(bundle)
        for array in tree.values():
            array.numpy()[:] *= 2
        crosshandle.open(done).signal()


def test_arrays_cross(start: Start) -> None:
    context = crosshandle.default_context()
    tree = {name: crosshandle.empty((100, 100), "float32") for name in "abc"}
    done = context.event()
    peer = start(double)
    with crosshandle.share(tree) as bundle:
        for round in range(1, 4):
            for array in tree.values():
                array.numpy()[:] = round
            peer.send((bytes(bundle), bytes(done.handle())))
            done.wait_value(round, timeout=DEADLINE)
            assert all(np.all(array.numpy() == 2 * round) for array in tree.values())
    peer.send(None)
    peer.end()


def take(pipe: Any) -> None:
    memory, event, array = pipe.recv()
    assert memory.read(3) == b"abc" and array.numpy().sum() == 10
    array.numpy()[0] = 5
    event.signal()


def test_objects_are_pickled_as_handles(start: Start) -> None:
    context = crosshandle.default_context()
    memory, event = context.allocate(16), context.event()
    memory.write(b"abc")
    array = crosshandle.empty(4, "int64")
    array.numpy()[:] = [1, 2, 3, 4]
    peer = start(take)
    peer.send((memory, event, array))
    event.wait_value(1, timeout=DEADLINE)
    assert array.numpy()[0] == 5
    peer.end()


def test_objects_cross_a_queue_of_multiprocessing() -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    array = crosshandle.empty(4, "int64")
    array.numpy()[:] = 3
    queue.put(array)
    assert queue.get(timeout=DEADLINE).numpy().sum() == 12


def hold(pipe: Any) -> None:
    context = crosshandle.default_context()
    event, memory = context.event(name="step"), context.allocate(64)
    pipe.send((bytes(event.handle()), bytes(memory.handle())))
    pipe.recv()


def test_a_death_is_an_exception(start: Start) -> None:
    peer = start(hold)
    event_handle, memory_handle = peer.receive()
    event, memory = crosshandle.open(event_handle), crosshandle.open(memory_handle)
    peer.kill()
    with pytest.raises(crosshandle.PeerDiedError, match="step") as died:
        event.wait_value(1, timeout=DEADLINE)
    assert isinstance(died.value, ConnectionError)
    assert died.value.pid == peer.process.pid and died.value.number == 1 and "step" in died.value.event
    # Open memory stays usable.
    memory.write(b"still here")
    with pytest.raises(crosshandle.ExporterGoneError):
        crosshandle.Context().open_memory(memory_handle)


def signal_each(pipe: Any, handles: list[bytes]) -> None:
    events = [crosshandle.open(handle) for handle in handles]
    pipe.recv()
    for event in reversed(events):
        event.signal()
    pipe.recv()


def test_asyncio_awaits_many_with_one_descriptor(start: Start) -> None:
    context = crosshandle.default_context()
    events = [context.event() for _ in range(300)]
    peer = start(signal_each, [bytes(event.handle()) for event in events])

    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(events[0].reached(1), 0.05)
        before = len(os.listdir("/proc/self/fd"))
        waits = [asyncio.ensure_future(event.reached(1)) for event in events]
        await asyncio.sleep(0)
        peer.send("go")
        await asyncio.wait_for(asyncio.gather(*waits), DEADLINE)
        await events[0].reached(1)
        assert len(os.listdir("/proc/self/fd")) <= before + 1
        late = asyncio.ensure_future(events[3].reached(2))
        await asyncio.sleep(0)
        late.cancel()
        with pytest.raises(asyncio.CancelledError):
            await late

    asyncio.run(main())
    # Another loop gets its own descriptor.
    asyncio.run(main_again(events[0]))
    peer.send("end")
    peer.end()


async def main_again(event: crosshandle.Event) -> None:
    wait = asyncio.ensure_future(event.reached(2))
    await asyncio.sleep(0)
    event.signal()
    await asyncio.wait_for(wait, DEADLINE)


def test_asyncio_learns_of_a_death(start: Start) -> None:
    peer = start(hold)
    event = crosshandle.open(peer.receive()[0])

    async def main() -> None:
        wait = asyncio.ensure_future(event.reached(1))
        await asyncio.sleep(0)
        peer.kill()
        with pytest.raises(crosshandle.PeerDiedError):
            await asyncio.wait_for(wait, DEADLINE)

    asyncio.run(main())


def test_trio_awaits(start: Start) -> None:
    trio = pytest.importorskip("trio")
    context = crosshandle.default_context()
    events = [context.event() for _ in range(10)]
    peer = start(signal_each, [bytes(event.handle()) for event in events])

    async def main() -> None:
        with trio.move_on_after(0.05) as scope:
            await events[0].reached(1)
        assert scope.cancelled_caught
        with trio.fail_after(DEADLINE):
            async with trio.open_nursery() as nursery:
                for event in events:
                    nursery.start_soon(event.reached, 1)
                peer.send("go")
            await events[0].reached(1)

    trio.run(main)
    peer.send("end")
    peer.end()


def wait_for_ever(pipe: Any) -> None:
    event = crosshandle.default_context().event()
    try:
        pipe.send("waiting")
        event.wait_value(1)
    except KeyboardInterrupt:
        pipe.send("interrupted")


def test_a_process_that_waits_ends_at_ctrl_c(start: Start) -> None:
    peer = start(wait_for_ever)
    assert peer.receive() == "waiting"
    assert peer.process.pid is not None
    os.kill(peer.process.pid, signal.SIGINT)
    assert peer.receive() == "interrupted"
    peer.end()
