"""Event loops that end during a wait leave no descriptor open."""

from __future__ import annotations

import asyncio
import gc
import os
from typing import Any

import pytest

import crosshandle

LOOPS = 100


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def waits(event: crosshandle.Event) -> None:
    await event.reached(event.submitted + 1)


def test_asyncio_loops_that_are_closed_while_something_waits() -> None:
    event = crosshandle.default_context().event()
    # The first loop's descriptor stays open.
    loop = asyncio.new_event_loop()
    loop.run_until_complete(asyncio.wait([loop.create_task(waits(event))], timeout=0.001))
    loop.close()
    del loop
    gc.collect()
    gc.disable()
    before = descriptors()
    try:
        for _ in range(LOOPS):
            loop = asyncio.new_event_loop()
            task = loop.create_task(waits(event))
            loop.run_until_complete(asyncio.wait([task], timeout=0.001))
            assert not task.done()
            # Otherwise asyncio warns about a pending task.
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            loop.close()
            del loop, task
        # Only the last loop's descriptor may be open, until another loop waits or that loop is
        # collected.
        assert descriptors() <= before + 1
        gc.collect()
        assert descriptors() <= before
    finally:
        gc.enable()


def test_trio_runs_that_end_while_something_waits() -> None:
    trio: Any = pytest.importorskip("trio")
    event = crosshandle.default_context().event()

    async def main() -> None:
        with trio.move_on_after(0.001):
            await waits(event)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waits, event)
            await trio.sleep(0.001)
            nursery.cancel_scope.cancel()

    trio.run(main)
    gc.collect()
    gc.disable()
    before = descriptors()
    try:
        for _ in range(LOOPS):
            trio.run(main)
        assert descriptors() <= before
    finally:
        gc.enable()


def test_a_loop_after_a_closed_one_waits_and_is_told() -> None:
    event = crosshandle.default_context().event()
    for _ in range(3):
        closed = asyncio.new_event_loop()
        task = closed.create_task(waits(event))
        closed.run_until_complete(asyncio.wait([task], timeout=0.001))
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        closed.close()

        async def main() -> None:
            waiting = asyncio.ensure_future(event.reached(event.submitted + 1))
            await asyncio.sleep(0)
            event.signal()
            await asyncio.wait_for(waiting, 20)

        asyncio.run(main())
        del task, closed
