"""An array that passes through several processes keeps its event, its storage and its bytes."""

from __future__ import annotations

import copy
import ctypes
import gc
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import crosshandle
from conftest import DEADLINE, Peer
from crosshandle import _crosshandle as rust
from crosshandle import _storages

Start = Callable[..., Peer]


def shared_after(array: crosshandle.Array, event: crosshandle.Event, value: int) -> Any:
    """Returns the array as another process opens it, so that it waits for the signal."""
    context = crosshandle.default_context()
    data, _ = rust.pack_shared(context, "null", [array], False, event=(event.handle(), value))
    return crosshandle.open(data)


def relay(pipe: Any) -> None:
    """Opens a tree, and passes each array on at once in a different way."""
    opened = crosshandle.open(pipe.recv())
    first, second, ready = opened.values()
    pipe.send([
        bytes(crosshandle.share(first)),
        pickle.dumps(first),
        pickle.dumps({"first": first, "second": second}),
        bytes(crosshandle.share((first, second, ready))),
    ])  # fmt: skip
    pipe.recv()


def read_each(pipe: Any) -> None:
    for data in pipe.recv():
        opened = pickle.loads(data) if data.startswith(b"\x80") else crosshandle.open(data)
        arrays = opened.values() if isinstance(opened, dict) else opened if isinstance(opened, tuple) else [opened]
        for array in arrays:
            pipe.send("reads")
            pipe.send(int(array.numpy()[0]))
    pipe.send("done")


def test_an_array_keeps_its_event_through_relays(start: Start) -> None:
    arrays = [crosshandle.empty(8, "int64") for _ in range(3)]
    for array in arrays:
        array.numpy()[:] = 0
    events = [crosshandle.default_context().event() for _ in range(2)]
    events[0].signal()
    middle, last = start(relay), start(read_each)
    tree = {
        "first": shared_after(arrays[0], events[0], 2),
        "second": shared_after(arrays[1], events[1], 1),
        "ready": arrays[2],
    }
    with crosshandle.share(tree) as bundle:
        middle.send(bytes(bundle))
        last.send(middle.receive())
        for place, event in enumerate(events):
            assert last.receive() == "reads"
            assert not last._pipe.poll(0.3), "it waits for the signal"
            arrays[place].numpy()[:] = place + 7
            event.signal()
            assert last.receive() == place + 7
            if place == 0:
                # Once pickled, and once in a tree with an array that is not ready.
                for _ in range(2):
                    assert (last.receive(), last.receive()) == ("reads", 7)
        found = [last.receive() for _ in range(7)]
        assert found == ["reads", 7, "reads", 8, "reads", 0, "done"]
        middle.send(None)
        middle.end()
        last.end()


def test_views_wait_as_their_array_does() -> None:
    context = crosshandle.default_context()
    array, event = context.empty(8, "int64"), context.event()
    opened = shared_after(array, event, 1)
    assert opened.event is not None
    # The array is found by its address only, like a tensor of another library.
    view = (ctypes.c_int64 * 4).from_address(opened.address + 16)
    for kept in (crosshandle.open(crosshandle.share(view)), pickle.loads(pickle.dumps(opened))):
        assert kept.event is not None and kept.event.handle() == event.handle()
    other = context.event()
    other.signal()
    overridden: Any = crosshandle.open(crosshandle.share(opened, event=other))
    assert overridden.event.handle() == other.handle()
    overridden.numpy()
    event.signal()
    passed = bytes(crosshandle.share(opened))
    again: Any = crosshandle.open(passed)
    assert again.event.handle() == event.handle() and again.event.submitted == 1
    del again, event, opened, kept, overridden
    gc.collect()
    # The event may end before the array.
    assert crosshandle.open(passed).event is None


def end_or_free(pipe: Any) -> None:
    context = crosshandle.Context(pooling=False)
    array = context.empty((4, 6), "int32")
    array.numpy()[:] = np.arange(24).reshape(4, 6)
    bundle = crosshandle.share(array)
    pipe.send(bytes(bundle))
    pipe.recv()
    bundle.release()
    del array
    gc.collect()
    pipe.send("freed")
    pipe.recv()


@pytest.mark.parametrize("how", ["frees", "ends"])
def test_what_nobody_else_can_open_is_copied_or_refused(start: Start, how: str) -> None:
    maker, reader = start(end_or_free), start(read_each)
    opened = crosshandle.open(maker.receive())
    maker.send(None)
    assert maker.receive() == "freed"
    if how == "ends":
        maker.send(None)
        maker.end()
    numbers = opened.numpy()
    assert numbers[3, 5] == 23
    refused = crosshandle.StaleHandleError if how == "frees" else crosshandle.ExporterGoneError
    for use in (crosshandle.share, pickle.dumps, lambda array: crosshandle.share([array.numpy()[1:]])):
        with pytest.raises(refused, match="copy=True"):
            use(opened)
    with crosshandle.share((opened, opened.numpy()[1:, ::-2]), copy=True) as bundle:
        first, part = crosshandle.open(bundle)
        assert np.array_equal(first.numpy(), numbers) and np.array_equal(part.numpy(), numbers[1:, ::-2])
        assert first.address != opened.address
    flat = crosshandle.share(copy.copy(opened).numpy()[2], copy=True)
    reader.send([bytes(flat)])
    assert (reader.receive(), reader.receive(), reader.receive()) == ("reads", 12, "done")


@pytest.mark.parametrize("count", [1, 119, 120, 400])
def test_a_dropped_bundle_lives_as_long_as_the_storage(start: Start, count: int) -> None:
    memory = crosshandle.empty((count, 4), "int64")
    numbers = memory.numpy()
    numbers[:] = 5
    del memory
    data = bytes(crosshandle.share(tuple(numbers[place] for place in range(count)) + (numbers[:0], np.zeros((3, 0)))))
    gc.collect()
    tree: Any = crosshandle.open(data)
    assert [array.shape for array in tree[-3:]] == [(4,), (0, 4), (3, 0)]
    del tree
    if count == 120:
        reader = start(read_each)
        reader.send([bytes(crosshandle.share(tuple(numbers[place] for place in range(count))))])
        assert [reader.receive() for _ in range(2 * count + 1)] == ["reads", 5] * count + ["done"]
    del numbers
    gc.collect()
    with pytest.raises(crosshandle.StaleHandleError):
        crosshandle.open(data)


def test_arrays_without_elements_need_nobody() -> None:
    nothing = bytes(crosshandle.share([np.zeros((0, 3), "int16")] * 200))
    gc.collect()
    opened: Any = crosshandle.open(nothing)
    assert len(opened) == 200 and opened[7].shape == (0, 3) and opened[7].dtype == "int16"
    again: Any = crosshandle.open(crosshandle.share(opened[0], read_only=True))
    assert again.shape == (0, 3) and again.read_only


def test_sharing_the_same_over_and_over_makes_nothing_new() -> None:
    arrays = [crosshandle.empty(1) for _ in range(200)]
    assert len({bytes(crosshandle.share(arrays)) for _ in range(5)}) == 1


def test_a_copy_lives_as_long_as_what_it_was_made_of() -> None:
    source = np.arange(8)
    view = source[2:]
    data = bytes(crosshandle.share(view, copy=True))
    del view
    gc.collect()
    assert crosshandle.open(data).numpy()[0] == 2
    del source
    gc.collect()
    with pytest.raises(crosshandle.StaleHandleError):
        crosshandle.open(data)


def lent_block(count: int) -> Any:
    """Returns memory of an allocator that reuses it when the last array has ended."""
    block = rust.Block(crosshandle.default_context(), count * 8)
    memory = (ctypes.c_int64 * count).from_address(block.address)
    memory.block = block  # type: ignore[attr-defined]
    return np.frombuffer(memory, dtype="int64")


def stale(data: bytes) -> bool:
    _storages.look()
    try:
        crosshandle.open(data)
    except crosshandle.StaleHandleError:
        return True
    return False


def test_tensors_of_torch_live_as_long_as_their_storage(start: Start) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(lent_block(100))
    tensor[:] = 3
    # None of these view objects lives on.
    makes: list[Callable[[Any], Any]] = [lambda t: t.detach(), lambda t: t.data, lambda t: t[10:20], lambda t: t.view(10, 10)]
    kept = [bytes(crosshandle.share(make(tensor))) for make in makes]
    state = bytes(crosshandle.share({"weight": tensor.data, "bias": tensor[:4].detach()}))
    gc.collect()
    assert not any(stale(data) for data in (*kept, state))
    # Another tensor of the same storage.
    part = tensor[50:]
    del tensor
    gc.collect()
    assert not any(stale(data) for data in (*kept, state))
    reader = start(read_each)
    reader.send(kept[:2])
    assert [reader.receive() for _ in range(5)] == ["reads", 3, "reads", 3, "done"]
    reader.end()
    del part
    gc.collect()
    for data in (*kept, state):
        for _ in range(int(DEADLINE * 100)):
            if stale(data):
                break
        assert stale(data), "nothing uses the storage"


def test_donation_does_not_change_what_others_read() -> None:
    jax = pytest.importorskip("jax")
    donated = jax.jit(lambda array: array.at[0].set(9), donate_argnums=0)
    for hold in (lambda array: array.jax(), lambda array: jax.numpy.from_dlpack(array)):
        array = crosshandle.empty(1 << 16, "float32")
        array.numpy()[:] = 1
        values = hold(array)
        if values.unsafe_buffer_pointer() != array.address:
            # JAX has made a copy.
            continue
        opened: Any = crosshandle.open(crosshandle.share(values))
        assert float(donated(values)[0]) == 9
        assert opened.numpy()[0] == 1 and array.numpy()[0] == 1
        del values
    gc.collect()
    assert not _storages._holds


def test_negative_strides_do_not_reach_torch() -> None:
    torch = pytest.importorskip("torch")
    numbers = crosshandle.empty((3, 4), "float32").numpy()
    numbers[:] = np.arange(12).reshape(3, 4)
    for view in (numbers[::-1], numbers[:, ::-2], numbers.T[::-1]):
        opened: Any = crosshandle.open(crosshandle.share(view))
        for use in (opened.torch, lambda: torch.from_dlpack(opened), lambda: torch.utils.dlpack.from_dlpack(opened)):
            with pytest.raises((crosshandle.UnsupportedError, BufferError), match="copy"):
                use()
        tensor = opened.torch(copy=True)
        assert np.array_equal(tensor.numpy(), view)
        tensor[0, 0] = 100
        assert opened.numpy()[0, 0] != 100
    # A dimension with one element has no direction.
    one: Any = crosshandle.open(crosshandle.share(np.lib.stride_tricks.as_strided(numbers[:1], strides=(-16, 4))))
    assert one.torch().shape == (1, 4)


def test_copies_are_real() -> None:
    array = crosshandle.empty((3, 4), "int32")
    array.numpy()[:] = np.arange(12).reshape(3, 4)
    read_only: Any = crosshandle.open(crosshandle.share(array.numpy().T, read_only=True))
    for make in (copy.copy, copy.deepcopy):
        made = make({"a": [read_only]})["a"][0] if make is copy.deepcopy else make(read_only)
        assert np.array_equal(made.numpy(), array.numpy().T) and not made.read_only
        made.numpy()[:] = 0
        assert array.numpy()[2, 3] == 11
    memory = crosshandle.Context().allocate(8)
    memory.write(b"original")
    other = copy.deepcopy(memory)
    other.write(b"changed!")
    assert memory.read() == b"original" and other.read() == b"changed!"
    for single in (crosshandle.Context().event(), crosshandle.share(array)):
        for make in (copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="cannot be copied"):
                make(single)


def test_a_copy_waits_for_the_bytes() -> None:
    context = crosshandle.default_context()
    array, event = context.empty(4, "int64"), context.event()
    opened = shared_after(array, event, 1)
    queue = context.queue()
    array.numpy()[:] = 6
    queue.signal(event)
    assert copy.copy(opened).numpy()[3] == 6
    queue.finish(timeout=DEADLINE)
