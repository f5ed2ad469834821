"""Awaiting events in asyncio and trio, with one descriptor for each event loop."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

from ._crosshandle import Event, Notifier


# The waits in progress of all event loops, each as (id of the loop's `_Tokens`, token).
_awaited: set[tuple[int, int]] = set()


class _Tokens:
    """The waits of one event loop: a notifier, and for each wait a token and a callback."""

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
        """Closes the descriptor after the loop has ended.

        Pending callbacks are dropped, not called.
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
    """Waits until signal `value` of the event has completed.

    Raises what `Event.wait_value` raises.
    """
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_run():
        return _reached_in_trio(trio, event, value)
    return _reached_in_asyncio(event, value)


# This dictionary has only weak references, because each loop keeps its own tokens alive through the
# reader `tokens.tell_all`. Strong references would leak the tokens of a loop that was closed while
# a task waited: that task keeps the loop alive.
_loops: weakref.WeakKeyDictionary[Any, weakref.ref[_Tokens]] = weakref.WeakKeyDictionary()


def _tokens_of(loop: Any) -> _Tokens:
    reference = _loops.get(loop)
    tokens = None if reference is None else reference()
    if tokens is None:
        # Tasks that waited in a closed loop may not be collected for a while, so close its tokens
        # now.
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
    # A signal that arrives within a few microseconds is seen sooner by spinning (`_look`) than
    # through the notifier's thread. If other signals are awaited too, the loop must not spin, so
    # `done` checks once.
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
            # trio ends its system tasks after all tasks of the program, so no task waits when this
            # one closes the descriptor.
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
