"""Waits for events in asyncio and trio, with one file descriptor for each event loop."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

from ._crosshandle import Consumer, Event, Item, Notifier
from ._errors import ChannelClosedError


# The pending waits in all event loops. Each wait is a tuple: the `id` of the loop's `_Tokens`, and
# the token.
_awaited: set[tuple[int, int]] = set()


class _Tokens:
    """The pending waits in one event loop. Each wait has a token for the notifier, and a
    callback."""

    def __init__(self) -> None:
        self.notifier = Notifier()
        self.waiting: dict[int, Callable[[BaseException | None], None]] = {}
        self.next = 0

    def add(self, event: Event, value: int, tell: Callable[[BaseException | None], None]) -> int:
        token, self.next = self.next, self.next + 1
        self.waiting[token] = tell
        _awaited.add((id(self), token))
        try:
            self.notifier.add(event, value, token)
        except BaseException:
            del self.waiting[token]
            _awaited.discard((id(self), token))
            raise
        return token

    def remove(self, token: int) -> None:
        _awaited.discard((id(self), token))
        if self.waiting.pop(token, None) is not None:
            self.notifier.remove(token)

    def close(self) -> None:
        """Closes the notifier's file descriptor after the event loop has ended.

        Drops pending callbacks without calling them.
        """
        for token in self.waiting:
            _awaited.discard((id(self), token))
        self.waiting.clear()
        self.notifier.close()

    def tell_all(self) -> None:
        while (came := self.notifier.next()) is not None:
            token, error = came
            tell = self.waiting.pop(token, None)
            if tell is not None:
                tell(error)


def reached(event: Event, value: int) -> Awaitable[None]:
    """Returns an awaitable that completes when signal `value` of the event has completed.

    Awaiting it raises the same exceptions as `Event.wait_value`.
    """
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_run():
        return _reached_in_trio(trio, event, value)
    return _reached_in_asyncio(event, value)


# The `_Tokens` of each asyncio loop. The loop itself keeps them alive, because `tokens.tell_all` is
# registered as a reader. References here are weak: a loop that is closed while a task waits stays
# alive through that task, and a strong reference would leak its tokens.
_loops: weakref.WeakKeyDictionary[Any, weakref.ref[_Tokens]] = weakref.WeakKeyDictionary()


def _tokens_of(loop: Any) -> _Tokens:
    reference = _loops.get(loop)
    tokens = None if reference is None else reference()
    if tokens is None:
        # A closed loop may stay alive for a while, through tasks that still wait in it. Close its
        # tokens now.
        for other, former in list(_loops.items()):
            if other.is_closed():
                del _loops[other]
                if (ended := former()) is not None:
                    ended.close()
        tokens = _Tokens()
        _loops[loop] = weakref.ref(tokens)
        loop.add_reader(tokens.notifier.fileno(), tokens.tell_all)
    return tokens


async def _reached_in_asyncio(event: Event, value: int) -> None:
    # If no other signal is awaited, spin for a few microseconds (`_look`), because spinning detects
    # a signal sooner than the notifier's thread. Otherwise the loop must not spin, so check only
    # once (`done`).
    if event.done(value) if _awaited else event._look(value):
        return
    import asyncio

    loop = asyncio.get_running_loop()
    tokens = _tokens_of(loop)
    future: asyncio.Future[None] = loop.create_future()

    def tell(error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    token = tokens.add(event, value, tell)
    try:
        await future
    finally:
        tokens.remove(token)


_runs: dict[str, Any] = {}


async def _reached_in_trio(trio: Any, event: Event, value: int) -> None:
    if event.done(value):
        await trio.lowlevel.checkpoint()
        return
    variable = _runs.setdefault("tokens", trio.lowlevel.RunVar("crosshandle"))
    try:
        tokens = variable.get()
    except LookupError:
        tokens = _Tokens()
        variable.set(tokens)

        async def serve() -> None:
            # trio cancels system tasks only after all tasks of the program have ended. So no task
            # waits any more when this one closes the file descriptor.
            try:
                while True:
                    await trio.lowlevel.wait_readable(tokens.notifier.fileno())
                    tokens.tell_all()
            finally:
                tokens.close()

        trio.lowlevel.spawn_system_task(serve)
    arrived = trio.Event()
    errors: list[BaseException] = []

    def tell(error: BaseException | None) -> None:
        if error is not None:
            errors.append(error)
        arrived.set()

    token = tokens.add(event, value, tell)
    try:
        await arrived.wait()
    finally:
        tokens.remove(token)
    if errors:
        raise errors[0]


async def received(consumer: Consumer) -> Item:
    """Receives the next item of a channel in a task of asyncio or trio."""
    while (item := consumer.try_receive()) is None:
        # The first use of the descriptor makes it readable, so that no item is missed.
        await _readable(consumer.fileno())
    return item


async def next_received(consumer: Consumer) -> Item:
    """Receives the next item for `async for`."""
    try:
        return await received(consumer)
    except ChannelClosedError:
        raise StopAsyncIteration from None


# Descriptors of consumers that a task of asyncio waits for. Each is a tuple: the `id` of the event
# loop, and the descriptor.
_watched: set[tuple[int, int]] = set()


async def _readable(descriptor: int) -> None:
    """Waits until a descriptor is readable."""
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_run():
        await trio.lowlevel.wait_readable(descriptor)
        return
    import asyncio

    loop = asyncio.get_running_loop()
    watched = (id(loop), descriptor)
    if watched in _watched:
        raise RuntimeError("another task waits for this consumer: each task needs a consumer of its own")
    future: asyncio.Future[None] = loop.create_future()

    def tell() -> None:
        if not future.done():
            future.set_result(None)

    loop.add_reader(descriptor, tell)
    _watched.add(watched)
    try:
        await future
    finally:
        _watched.discard(watched)
        if not loop.is_closed():
            loop.remove_reader(descriptor)
