"""Lifetimes: reserves of allocators, owners of lent memory, and streams that wait."""

from __future__ import annotations

import ctypes
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import crosshandle
from conftest import DEADLINE, Peer
from crosshandle import _crosshandle as _rust
from crosshandle._crosshandle import forget_adopted
from crosshandle._libraries import streams


class Owner:
    pass


class Allocator:
    """The C functions that torch calls, for a device number that no other test uses."""

    def __init__(self, number: int):
        library = ctypes.CDLL(_rust.__file__)
        self._allocate, self._free = library.crosshandle_allocate, library.crosshandle_free
        self._allocate.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        self._allocate.restype = ctypes.c_void_p
        self._free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        self._free.restype = None
        self._number = number

    def allocate(self, nbytes: int) -> int:
        address = self._allocate(nbytes, self._number, None)
        assert address is not None
        return int(address)

    def free(self, address: int, nbytes: int) -> None:
        self._free(address, nbytes, self._number, None)


def test_a_reserve_ends_with_its_pool_and_what_is_in_it() -> None:
    # The block is large, so that it contains no memory of other tests.
    context, number, reserve = crosshandle.Context(), 1001, 4 << 20

    def is_there(address: int) -> bool:
        try:
            context.memory_handle_at(address)
        except crosshandle.Error:
            return False
        return True

    allocator = Allocator(number)
    first, second = (_rust.serve_allocations(context, number, reserve) for _ in range(2))
    assert first is not None and second is not None
    one = allocator.allocate(1000)
    two = allocator.allocate(reserve)
    assert is_there(one) and is_there(two)
    # The first pool ends. The reserve of the second one is empty at times.
    allocator.free(two, reserve)
    _rust.abandon_arena(number, first)
    assert is_there(one) and is_there(two)
    # The first pool has ended, but its arena is still in use. No other pool may use this arena.
    assert allocator.allocate(2000) == two
    allocator.free(two, 2000)
    # This frees the last part of the first arena.
    allocator.free(one, 1000)
    assert not is_there(one) and is_there(two)
    _rust.abandon_arena(number, second)
    assert not is_there(two)
    assert _rust.serve_allocations(context, number, 0) is None


def hold(pipe: Any) -> None:
    context = crosshandle.Context()
    memory = context.open_memory(pipe.recv())
    pipe.send(memory.read(5))
    pipe.recv()
    pipe.send(memory.read(5))
    memory.close()
    pipe.send("closed")
    # The importer is still attached.
    pipe.recv()


@pytest.mark.parametrize("ends", ["closes", "dies"])
def test_an_owner_outlives_its_context(start: Callable[..., Peer], ends: str) -> None:
    context = crosshandle.Context()
    memory = context.allocate(100)
    memory.write(b"bytes")
    owner = Owner()
    kept = weakref.ref(owner)
    part = memory.lend(owner)
    del owner
    peer = start(hold)
    peer.send(bytes(part.handle()))
    assert peer.receive() == b"bytes"
    part.close()
    memory.close()
    del part, memory, context
    gc.collect()
    other = crosshandle.default_context()
    other.allocate(10).handle()
    assert kept() is not None, "it is open"
    if ends == "dies":
        peer.kill()
    else:
        peer.send(None)
        assert peer.receive() == b"bytes"
        assert peer.receive() == "closed"

    waited = threading.Event()
    for _ in range(int(DEADLINE * 100)):
        # An exporter notices closed memory when it makes a new handle.
        other.allocate(10).handle()
        if kept() is None:
            break
        waited.wait(0.01)
    assert kept() is None, "nobody has it open"
    if ends == "closes":
        peer.send(None)
        peer.end()


def test_each_signal_of_a_queue_has_its_number() -> None:
    context = crosshandle.default_context()
    event = context.event()
    numbers: list[list[int]] = [[] for _ in range(4)]

    def signal(own: list[int]) -> None:
        queue = context.queue()
        own.extend(queue.signal(event) for _ in range(500))
        queue.finish(timeout=DEADLINE)

    threads = [threading.Thread(target=signal, args=(own,)) for own in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert sorted(sum(numbers, [])) == list(range(1, 2001))


def test_a_wait_is_behind_no_other_events(monkeypatch: pytest.MonkeyPatch) -> None:
    class FakeQueue:
        """A queue that is busy until the events that it waits for are signalled."""

        def __init__(self, number: int):
            self.native = number
            self.waits: list[crosshandle.Event] = []

        @property
        def idle(self) -> bool:
            return all(event.submitted for event in self.waits)

        def wait(self, event: crosshandle.Event, value: int) -> None:
            self.waits.append(event)

    class FakeContext:
        def __init__(self) -> None:
            self.made = 0

        def queue(self) -> FakeQueue:
            self.made += 1
            return FakeQueue(self.made)

    fake = FakeContext()
    monkeypatch.setattr(streams, "default_context", lambda device: fake)
    monkeypatch.setattr(streams, "_own", {})
    context = crosshandle.default_context()
    never, now = context.event(), context.event()
    assert streams.waiting(never, 1, "fake:0") == 1
    assert streams.waiting(now, 1, "fake:0") == 2
    now.signal()
    # Idle queues are reused, and their number is limited.
    assert streams.waiting(never, 2, "fake:0") == 2
    for _ in range(100):
        streams.waiting(never, 3, "fake:0")
    assert fake.made == streams._MOST_OWN


class Adopting:
    """Replaces the contexts of CUDA devices. Each stream gets a queue of the host."""

    def __init__(self) -> None:
        self.adopted: dict[crosshandle.Queue, tuple[str, Any]] = {}

    def __call__(self, device: str) -> Any:
        adopted, context = self.adopted, crosshandle.default_context()

        class OfDevice:
            def _adopt_stream(self, number: int, stream: Any) -> crosshandle.Queue:
                queue: crosshandle.Queue = context.queue()
                adopted[queue] = device, stream
                return queue

        return OfDevice()


@pytest.fixture
def adopting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Adopting]:
    made = Adopting()
    monkeypatch.setattr(streams, "default_context", made)
    monkeypatch.setattr(streams, "_devices", lambda: ["cuda:0", "cuda:1"])
    forget_adopted()
    yield made
    forget_adopted()


class FakeStream:
    def __init__(self, number: int) -> None:
        self.cuda_stream = number
        self.device_index = 0


def test_the_queue_of_a_bare_number_is_not_that_of_a_stream(adopting: Adopting) -> None:
    # A DLPack consumer passes only the number. Its stream may end, and another stream may get the
    # same number.
    event = crosshandle.default_context().event()
    event.signal()
    streams.wait(event, 7, 1, "cuda:0")
    stream = FakeStream(7)
    queue = streams.queue(stream)
    assert adopting.adopted[queue] == ("cuda:0", stream)
    assert streams.queue(stream) is queue


def test_a_stream_finds_its_queue_again(adopting: Adopting) -> None:
    event, stream = crosshandle.default_context().event(), FakeStream(7)
    for turn in range(1, 5):
        assert event.signal(stream) == turn
        event.wait_on(stream)
        event.wait_on(stream, turn)
        event.wait(timeout=10)
    assert [found for _, found in adopting.adopted.values()] == [stream]
    # Another stream, and an object without torch's attributes, are not mistaken for it.
    event.signal(FakeStream(8))
    assert len(adopting.adopted) == 2
    with pytest.raises(TypeError):
        event.signal(object())


def test_a_full_cache_drops_the_stream_that_was_used_first(adopting: Adopting) -> None:
    event = crosshandle.default_context().event()
    made = [FakeStream(number) for number in range(2, 67)]
    for stream in made:
        assert event.signal(stream) > 0
        # An idle queue can be removed.
        event.wait(timeout=10)
        event.wait_on(made[0])
    assert len(adopting.adopted) == len(made)
    event.signal(made[0])
    event.signal(made[-1])
    assert len(adopting.adopted) == len(made)
    event.signal(made[1])
    assert len(adopting.adopted) == len(made) + 1


def test_the_default_streams_of_two_devices_are_told_apart(adopting: Adopting) -> None:
    event = crosshandle.default_context().event()
    event.signal()
    for number in (0, 1, 2):
        # A DLPack consumer on the second device passes the number like this.
        streams.wait(event, number, 1, "cuda:1")
        first = streams.queue(number)
        assert adopting.adopted[first][0] == "cuda:0"
        assert (streams.queue(number) is first) == (number in (0, 1))
        assert adopting.adopted[streams._queue_on(number, number, ["cuda:1"])][0] == "cuda:1"
