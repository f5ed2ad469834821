from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

import crosshandle
from conftest import DEADLINE


def test_what_was_opened_for_reading_stays_so() -> None:
    memory = crosshandle.default_context().allocate(100)
    opened = crosshandle.Context("host").open_memory(memory.handle(), writable=False)
    for ask in (opened.handle, lambda **options: crosshandle.share(opened.array(), **options)):
        with pytest.raises(crosshandle.UnsupportedError, match="only the exporting process"):
            ask(read_only=True)
    again = pickle.loads(pickle.dumps(opened))
    with pytest.raises(crosshandle.ReadOnlyError):
        again.write(b"x")
    memory.write(b"new")
    assert again.read(3) == b"new"


def test_devices() -> None:
    host = crosshandle.Device("host")
    assert host in crosshandle.Device.all() and host.backend == "host"
    assert host.total_memory > 0 and "host" in repr(host)
    with pytest.raises(crosshandle.NoDeviceError, match="no device 'moon'") as refused:
        crosshandle.Device("moon")
    assert isinstance(refused.value, LookupError) and isinstance(refused.value, crosshandle.Error)


def test_handles_are_values() -> None:
    memory = crosshandle.Context().allocate(100, name="frames")
    handle = memory.handle()
    assert len(bytes(handle)) == 104 and handle.nbytes == 100 and handle.exporter_pid == os.getpid()
    for form in (bytes(handle), str(handle), handle, bytearray(bytes(handle))):
        assert crosshandle.MemoryHandle(form) == handle
    assert hash(pickle.loads(pickle.dumps(handle))) == hash(handle)
    damaged = bytearray(bytes(handle))
    damaged[50] ^= 1
    with pytest.raises(crosshandle.InvalidHandleError) as refused:
        crosshandle.MemoryHandle(damaged)
    assert isinstance(refused.value, ValueError)
    with pytest.raises(crosshandle.InvalidHandleError):
        crosshandle.EventHandle(bytes(handle))
    with pytest.raises(TypeError, match="not as int"):
        crosshandle.MemoryHandle(5)  # type: ignore[arg-type]


def test_memory() -> None:
    context = crosshandle.Context(name="test")
    with context.allocate(4096, name="block") as memory:
        memory.write(b"hello", offset=10)
        assert memory.read(5, offset=10) == b"hello" and len(memory) == 4096
        assert memory.name == "block" and "'block' of 4096 bytes" in repr(memory)
        opened = context.open_memory(memory.handle())
        assert opened.read(5, offset=10) == b"hello" and opened.name == "block"
        read_only = context.open_memory(memory.handle(read_only=True), writable=False)
        with pytest.raises(crosshandle.ReadOnlyError):
            read_only.write(b"x")
        with pytest.raises(crosshandle.ReadOnlyError) as refused:
            context.open_memory(memory.handle(read_only=True))
        assert isinstance(refused.value, PermissionError)
        with pytest.raises(crosshandle.InvalidArgumentError):
            memory.read(1, offset=4096)
    with pytest.raises(ValueError, match="closed"):
        memory.read()
    assert "closed" in repr(memory)
    opened.close()
    read_only.close()


def test_closed_memory_is_freed() -> None:
    context = crosshandle.Context(pooling=False)
    handle = None
    with context.allocate(4096) as memory:
        handle = memory.handle()
    with pytest.raises(crosshandle.StaleHandleError):
        context.open_memory(handle)


def test_events() -> None:
    context = crosshandle.Context()
    event = context.event(name="ready")
    with pytest.raises(crosshandle.TimedOutError):
        event.wait(timeout=0.01)
    assert event.signal() == 1 and event.done() and event.submitted == event.completed == 1
    event.wait_value(1, timeout=0)
    assert not event.done(2)
    began = time.monotonic()
    with pytest.raises(crosshandle.TimedOutError) as late:
        event.wait_value(2, timeout=0.05)
    assert isinstance(late.value, TimeoutError) and 0.05 <= time.monotonic() - began < DEADLINE
    for bad in (-1, float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            event.wait(timeout=bad)
    opened = context.open_event(str(event.handle()))
    opened.signal_value(5)
    assert event.submitted == 5 and event.name == "ready" and "'ready'" in repr(event).replace('"', "'")
    other = context.event()
    queue = context.queue()
    assert crosshandle.Event.wait_any([other, event], timeout=1) == 1
    other.signal()
    crosshandle.Event.wait_all([other, event], timeout=1)
    assert queue.idle


def test_other_threads_run_during_a_wait() -> None:
    event = crosshandle.Context().event()
    thread = threading.Timer(0.05, event.signal)
    thread.start()
    event.wait_value(1, timeout=DEADLINE)
    thread.join()


def test_ctrl_c_ends_a_wait() -> None:
    event = crosshandle.Context().event()
    thread = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        event.wait_value(1)
    thread.join()


def test_queue() -> None:
    context = crosshandle.Context()
    source, destination = context.allocate(1000), context.allocate(1000)
    event, gate = context.event(), context.event()
    queue = context.queue()
    queue.fill(source, b"ab")
    queue.copy(source, destination, nbytes=10, source_offset=1, destination_offset=3, after=[gate], signal=event)
    gate.signal()
    event.wait(timeout=DEADLINE)
    assert destination.read(14) == b"\0\0\0bababababa\0"
    queue.finish(timeout=DEADLINE)
    with pytest.raises(crosshandle.InvalidArgumentError):
        queue.copy(source, destination, nbytes=2000)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_nothing_leaks() -> None:
    def once() -> None:
        context = crosshandle.Context(pooling=False)
        for _ in range(20):
            memory = context.allocate(4096)
            array = memory.array((32, 32), "float32")
            with crosshandle.share(array) as bundle:
                crosshandle.open(bundle, context=context)
            memoryview(array).release()
            event = context.event()
            context.open_event(event.handle())

    once()
    gc.collect()
    before = descriptors()
    for _ in range(5):
        once()
    gc.collect()
    # The library closes these in the background, soon.
    began = time.monotonic()
    while descriptors() > before and time.monotonic() - began < DEADLINE:
        time.sleep(0.01)
    assert descriptors() <= before


def test_package() -> None:
    package = Path(crosshandle.__file__).parent
    for name in ("host", "cuda", "level_zero"):
        assert Path(crosshandle.ur_adapter(name)).is_relative_to(package)
    with pytest.raises(ValueError, match="there are host, cuda, level_zero"):
        crosshandle.ur_adapter("metal")
    assert os.access(crosshandle.command(), os.X_OK)
    assert set(crosshandle.__all__) <= set(dir(crosshandle))
    assert all(sys.modules.get(name) is None for name in ("torch", "cupy"))
