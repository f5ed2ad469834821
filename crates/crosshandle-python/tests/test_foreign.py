"""Arrays of other libraries on the host. `test_gpu.py` tests arrays on GPUs."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import crosshandle
from conftest import DEADLINE, Peer
from crosshandle import _storages
from crosshandle import _crosshandle as rust

Start = Callable[..., Peer]


class Owner:
    """An object that keeps bytes and supports weak references."""


def until(condition: Callable[[], bool]) -> bool:
    """Waits until another process has made a condition true. Meanwhile allocates and frees memory,
    because this process notices closed memory only then."""
    context = crosshandle.default_context()
    deadline = time.monotonic() + DEADLINE
    while not condition() and time.monotonic() < deadline:
        with context.allocate(64) as memory:
            memory.handle()
        gc.collect()
        time.sleep(0.005)
    return condition()


def open_and_hold(pipe: Any) -> None:
    opened = crosshandle.open(pipe.recv())
    pipe.send("opened")
    while pipe.recv() == "read":
        pipe.send(opened.read(3) if isinstance(opened, crosshandle.Memory) else opened.numpy().tolist())
    del opened
    gc.collect()
    pipe.send("closed")
    pipe.recv()


@pytest.mark.parametrize("ends", ["closes", "dies"])
def test_what_is_lent_keeps_its_owner_until_the_last_importer_lets_go(start: Start, ends: str) -> None:
    memory = crosshandle.default_context().allocate(4096)
    memory.write(b"abcdef")
    owner = Owner()
    alive = weakref.ref(owner)
    part = memory.lend(owner, offset=3, nbytes=100)
    del owner
    assert part.nbytes == 100 and part.read(3) == b"def"
    peer = start(open_and_hold)
    peer.send(bytes(part.handle()))
    assert peer.receive() == "opened"
    part.close()
    memory.close()
    gc.collect()
    peer.send("read")
    assert peer.receive() == b"def"
    assert alive() is not None, "a process has it open"
    if ends == "dies":
        peer.kill()
    else:
        peer.send("close")
        assert peer.receive() == "closed"
    assert until(lambda: alive() is None), "nobody has it open"
    if ends == "closes":
        peer.send(None)


def test_what_was_lent_and_never_opened_lets_go_at_once() -> None:
    memory = crosshandle.Context().allocate(64)
    owner = Owner()
    alive = weakref.ref(owner)
    part = memory.lend(owner)
    handle = part.handle()
    del owner
    part.close()
    assert until(lambda: alive() is None)
    with pytest.raises(crosshandle.StaleHandleError):
        crosshandle.Context().open_memory(handle)
    for offset, nbytes in [(0, 65), (64, 0), (65, 1), (0, 0)]:
        with pytest.raises(crosshandle.InvalidArgumentError):
            memory.lend(None, offset=offset, nbytes=nbytes)
    opened = crosshandle.Context().open_memory(memory.handle())
    with pytest.raises(crosshandle.InvalidArgumentError, match="pass that handle on"):
        opened.lend(None)


def is_stale(data: bytes) -> bool:
    try:
        crosshandle.open(data)
    except crosshandle.StaleHandleError:
        return True
    return False


def numbers_in(block: rust.Block, count: int) -> Any:
    """Returns an array in memory of an allocator. The allocator reuses the memory after the array
    has ended."""
    memory = (ctypes.c_int64 * count).from_address(block.address)
    memory.block = block
    memory.witness = Owner()
    return np.frombuffer(memory, dtype="int64")


def test_arrays_of_an_allocator_are_kept_from_reuse(start: Start) -> None:
    arrays = [numbers_in(rust.Block(crosshandle.default_context(), 80), 10) for _ in range(3)]
    block = rust.Block(crosshandle.default_context(), 240)
    whole = numbers_in(block, 30)
    arrays += [whole[:10], whole[10:20]]
    for place, array in enumerate(arrays):
        array[:] = place
    alive = [weakref.ref(array.base.witness) for array in arrays[:3]]
    peer = start(open_and_hold)
    with crosshandle.share(arrays[0]) as bundle:
        peer.send(bytes(bundle))
        assert peer.receive() == "opened"
    del array, arrays[0]
    gc.collect()
    peer.send("read")
    assert peer.receive() == [0] * 10
    assert alive[0]() is not None
    peer.send("close")
    assert peer.receive() == "closed"
    assert until(lambda: alive[0]() is None)
    peer.send(None)
    # A tree in one block needs only one handle.
    bundle = crosshandle.share(arrays)
    opened: Any = crosshandle.open(bundle)
    assert [array.numpy()[0] for array in opened] == [1, 2, 3, 4]
    assert opened[3].address - opened[2].address == 80
    del arrays, whole
    bundle.release()
    gc.collect()
    assert alive[1]() is not None, "it is open in this process"
    del opened
    assert until(lambda: alive[1]() is None)


def test_a_dropped_bundle_keeps_what_lives() -> None:
    array = crosshandle.empty(10, "int64")
    view = array.numpy()[3:]
    del array
    data = bytes(crosshandle.share([view]))
    gc.collect()
    assert crosshandle.open(data)[0].shape == (7,)
    del view
    gc.collect()
    with pytest.raises(crosshandle.StaleHandleError):
        crosshandle.open(data)
    # The storage of an allocator's array lives as long as its views.
    array = numbers_in(rust.Block(crosshandle.default_context(), 80), 10)
    data = bytes(crosshandle.share([array[2:4]]))
    rest = array[5:]
    del array
    gc.collect()
    assert _storages.look() >= 1 and not is_stale(data)
    del rest
    assert until(lambda: is_stale(data))
    data = bytes(crosshandle.share([numbers_in(rust.Block(crosshandle.default_context(), 80), 10)]))
    assert until(lambda: is_stale(data))
    # A long table lives as long as its arrays.
    arrays = [crosshandle.empty(1) for _ in range(200)]
    data = bytes(crosshandle.share(arrays))
    gc.collect()
    assert len(data) < 1000 and len(crosshandle.open(data)) == 200


def test_what_was_opened_is_shared_on() -> None:
    array = crosshandle.Context().empty(8, "int32")
    opened: Any = crosshandle.open(crosshandle.share(array), context=crosshandle.Context())
    again: Any = crosshandle.open(crosshandle.share(opened.numpy()[2:]))
    again.numpy()[0] = 5
    assert array.numpy()[2] == 5 and again.shape == (6,)


def test_views_by_any_protocol_are_shared_without_a_copy() -> None:
    array = crosshandle.empty((4, 4), "float32")

    class ByDlpack:
        def __init__(self, version: bool) -> None:
            self.version = version

        def __dlpack__(self, **options: Any) -> Any:
            if not self.version and "max_version" in options:
                raise TypeError("unexpected keyword")
            return array.numpy()[1:, ::2].__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    class ByInterface:
        __array_interface__ = array.numpy()[1:, ::2].__array_interface__

    for view in (ByDlpack(True), ByDlpack(False), ByInterface(), memoryview(array.numpy()[1:, ::2])):
        opened: Any = crosshandle.open(crosshandle.share(view))
        assert opened.shape == (3, 2) and opened.strides == (16, 8) and opened.dtype == "float32"
        before = array.numpy()[1, 2]
        opened.numpy()[0, 1] += 1
        assert array.numpy()[1, 2] == before + 1


def test_read_only_views_are_shared_so() -> None:
    array = crosshandle.empty(4, "int64")
    view = array.numpy().view()
    view.flags.writeable = False
    opened: Any = crosshandle.open(crosshandle.share([view, array]))
    assert opened[0].read_only and not opened[1].read_only
    jax_array = jnp.from_dlpack(array)
    if jax_array.unsafe_buffer_pointer() == array.address:
        shared: Any = crosshandle.open(crosshandle.share(jax_array))
        assert shared.read_only, "nobody may write what JAX holds"


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"])
def test_types_that_numpy_lacks_cross(dtype: str) -> None:
    values = np.arange(1, 7).reshape(2, 3).astype(getattr(ml_dtypes, dtype))
    bundle = crosshandle.share(values, copy=True)
    opened: Any = crosshandle.open(bundle)
    assert opened.dtype == dtype
    assert np.array_equal(opened.numpy(), values) and opened.numpy().dtype == values.dtype
    again: Any = crosshandle.open(crosshandle.share(opened.numpy()[:, 1]))
    assert again.dtype == dtype and np.array_equal(again.numpy(), values[:, 1])
    if dtype == "bfloat16":
        on_host = jax.device_put(values, jax.devices("cpu")[0])
        of_jax: Any = crosshandle.open(crosshandle.share(on_host, copy=True))
        assert np.array_equal(of_jax.numpy(), values)


def test_gaps_are_copied_away() -> None:
    numbers = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    for view in (numbers[:, ::2], numbers.T, numbers[..., ::-1], numbers[1, 2, 3, 4:].reshape(()), numbers[:0], numbers[:, None]):
        opened: Any = crosshandle.open(crosshandle.share(view, copy=True))
        assert np.array_equal(opened.numpy(), view) and opened.shape == view.shape


def test_what_is_no_array_is_refused() -> None:
    class Masked:
        __array_interface__ = {"shape": (1,), "typestr": "<f4", "data": (1, False), "version": 3, "mask": [True]}

    class Elsewhere:
        def __dlpack__(self, **_: Any) -> Any:
            return None

        def __dlpack_device__(self) -> tuple[int, int]:
            return (7, 0)

    class NoCapsule(Elsewhere):
        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    class Huge:
        __array_interface__ = {"shape": (1 << 62, 4), "typestr": "<f8", "data": (8, False), "version": 3}

    for value, text in [
        (Masked(), "mask"), (Elsewhere(), "type 7"), (NoCapsule(), "did not return a DLPack capsule"),
        (object(), "supports no array protocol"), (Huge(), "larger than the address space"),
    ]:  # fmt: skip
        with pytest.raises((TypeError, ValueError), match=text):
            crosshandle.share(value)


def test_an_array_waits_for_its_event() -> None:
    context = crosshandle.default_context()
    array, late = crosshandle.empty(3, "int64"), context.event(name="ready")
    array.numpy()[:] = 0
    late.signal()
    opened: Any = crosshandle.open(crosshandle.share(array, event=late))
    assert opened.event is not None and opened.numpy().sum() == 0
    gate = context.event()
    gated = context.queue()
    gated.wait(gate, 1)
    gated.signal(late)
    opened = crosshandle.open(crosshandle.share({"x": array}, event=late))["x"]
    assert not late.done(2)

    def finish() -> None:
        array.numpy()[:] = 7
        gate.signal()

    timer = threading.Timer(0.05, finish)
    timer.start()
    for take in (lambda: opened.numpy(), lambda: np.from_dlpack(opened), lambda: np.asarray(memoryview(opened))):
        assert take().sum() == 21
    timer.join()


def die_before_signalling(pipe: Any) -> None:
    context = crosshandle.default_context()
    array, event = crosshandle.empty(3, "int64"), context.event(name="never")
    queue = context.queue()
    queue.wait(context.event(), 1)
    queue.signal(event)
    bundle = crosshandle.share(array, event=event)
    pipe.send(bytes(bundle))
    pipe.recv()


def test_an_array_whose_maker_died_raises(start: Start) -> None:
    peer = start(die_before_signalling)
    opened: Any = crosshandle.open(peer.receive())
    peer.kill()
    with pytest.raises(crosshandle.PeerDiedError, match="never"):
        opened.numpy()


def test_streams_need_a_gpu() -> None:
    event = crosshandle.default_context().event()
    with pytest.raises(TypeError, match="not a stream"):
        event.signal(object())
    if all(device.backend != "cuda" for device in crosshandle.Device.all()):
        with pytest.raises(ValueError, match="no CUDA device"):
            event.signal(7)
        with pytest.raises(ValueError, match="no CUDA device"):
            event.wait_on(7)
    with pytest.raises(NotImplementedError):
        crosshandle.default_context().queue(7)
    assert event.submitted == 0


def map_and_add(pipe: Any) -> None:
    memory = pipe.recv()
    context = crosshandle.default_context()
    with context.reserve(memory.nbytes) as addresses:
        addresses.map(0, memory)
        (number,) = addresses.read(0, 1)
        addresses.write(0, bytes([number + 1]))
    pipe.send("done")


def test_physical_memory_crosses(start: Start) -> None:
    context = crosshandle.default_context()
    size = context.device.granularity
    memory = context.physical_memory(2 * size)
    memory.name = "pages"
    assert memory.name == "pages" and len(memory) == 2 * size
    with context.reserve(4 * size) as addresses:
        addresses.map(size, memory)
        addresses.write(size, b"\x05")
        peer = start(map_and_add)
        peer.send(memory)
        assert peer.receive() == "done" and addresses.read(size, 1) == b"\x06"
        opened = crosshandle.open(str(memory.handle()))
        assert isinstance(opened, crosshandle.PhysicalMemory)
        addresses.map(0, opened, memory_offset=size, nbytes=size, access="r")
        with pytest.raises(crosshandle.ReadOnlyError):
            addresses.write(0, b"x")
        addresses.protect("rw", 0, size)
        addresses.write(0, b"x")
        assert addresses.read(2 * size, 1) == b"x"
        with pytest.raises(crosshandle.InvalidArgumentError):
            addresses.read(3 * size, 1)
        with pytest.raises(crosshandle.InvalidArgumentError):
            addresses.map(0, memory)
        with pytest.raises(ValueError, match="rw"):
            addresses.map(3 * size, memory, access="w")
        addresses.unmap(size, 2 * size)
        assert addresses.is_mapped(0) and not addresses.is_mapped(size)
        assert "closed" not in repr(addresses)
    assert "closed" in repr(addresses)
    with pytest.raises(ValueError, match="closed"):
        addresses.read(0, 1)
    with pytest.raises(crosshandle.InvalidArgumentError, match="multiple"):
        context.physical_memory(size + 1)
    handle = memory.handle(read_only=True)
    assert handle.read_only and handle.nbytes == 2 * size and crosshandle.PhysicalMemoryHandle(bytes(handle)) == handle
    peer.end()
