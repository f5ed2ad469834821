from __future__ import annotations

import gc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import crosshandle

DTYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128",
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_reaches_numpy_by_every_way(dtype: str) -> None:
    array = crosshandle.empty((2, 3), dtype)
    expected = np.arange(6).reshape(2, 3).astype(dtype)
    array.numpy()[:] = expected
    views = [array.numpy(), np.asarray(memoryview(array)), np.from_dlpack(array)]
    for view in views:
        assert view.dtype == np.dtype(dtype) and np.array_equal(view, expected)
        assert np.shares_memory(view, views[0])
    for form in (dtype, np.dtype(dtype), getattr(np, dtype, np.bool_), np.dtype(dtype).str):
        assert crosshandle.Context().empty(3, form).dtype == dtype


def test_bfloat16_crosses_by_dlpack() -> None:
    array = crosshandle.empty(8, "bfloat16")
    assert array.nbytes == 16
    assert jax.dlpack.from_dlpack(array).dtype == jnp.bfloat16
    with pytest.raises((TypeError, BufferError, ValueError)):
        memoryview(array)


def test_views_keep_memory_open() -> None:
    context = crosshandle.Context(pooling=False)
    memory = context.allocate(4096)
    handle = memory.handle()
    for make in (lambda a: a.numpy(), memoryview, np.from_dlpack, lambda a: a.jax()):
        view = make(memory.array(1024, "float32"))
        assert context.open_memory(handle).nbytes == 4096
        del view
    view = memory.array(1024, "float32").numpy()
    memory.close()
    gc.collect()
    context.open_memory(handle)
    view[0] = 1
    del view
    gc.collect()
    with pytest.raises(crosshandle.StaleHandleError):
        context.open_memory(handle)


def test_shapes_that_do_not_fit_are_refused() -> None:
    memory = crosshandle.Context().allocate(100)
    assert memory.array().shape == (100,) and memory.array(dtype="float32").shape == (25,)
    assert memory.array((), "float64").ndim == 0 and memory.array((0, 5)).size == 0
    assert memory.array((5, 5), "int32").strides == (20, 4)
    assert memory.array(3, "int32", offset=88).nbytes == 12
    for shape, dtype, offset in [(26, "float32", 0), (1, "float32", 97), (1, "int8", 200), ((1 << 40, 1 << 40), "int8", 0)]:
        with pytest.raises(ValueError):
            memory.array(shape, dtype, offset=offset)
    with pytest.raises(ValueError, match="multiples of 8"):
        memory.array(1, "float64", offset=4)
    with pytest.raises((ValueError, OverflowError, TypeError)):
        memory.array(-1)
    with pytest.raises(TypeError, match="there are bool, int8"):
        memory.array(1, "float31")


def test_read_only_memory_stays_so() -> None:
    context = crosshandle.Context()
    array = context.allocate(64).array(16, "float32")
    array.numpy()[:] = 7
    opened: Any = crosshandle.open(crosshandle.share(array, read_only=True))
    assert opened.read_only and not opened.numpy().flags.writeable
    assert not np.from_dlpack(opened).flags.writeable and memoryview(opened).readonly
    with pytest.raises(ValueError, match="read-only"):
        opened.numpy()[0] = 1
    with pytest.raises(BufferError, match="read-only"):
        opened.__dlpack__()
    with pytest.raises(BufferError, match="copy=True"):
        opened.torch()
    assert float(opened.jax().sum()) == 112


def test_strided_views_are_shared_without_a_copy() -> None:
    array = crosshandle.empty((6, 8), "int64")
    numbers = array.numpy()
    numbers[:] = np.arange(48).reshape(6, 8)
    for view in (numbers[1:, ::2], numbers[::-1], numbers.T, numbers[2:4, 3:3], numbers[3, 4:5], numbers[:, ::-3]):
        opened: Any = crosshandle.open(crosshandle.share(view))
        assert np.array_equal(opened.numpy(), view)
        if view.size:
            opened.numpy().flat[0] += 100
            assert np.array_equal(opened.numpy(), view)


def test_trees_come_back_as_they_were() -> None:
    make = crosshandle.empty
    tree = {"a": make(3), "b": [make(1), (make((2, 2), "int8"), [])], "c": {}, "": make(0)}
    opened: Any = crosshandle.open(crosshandle.share(tree))
    assert list(opened) == ["a", "b", "c", ""] and opened["c"] == {} and opened["b"][1][1] == []
    assert opened["b"][1][0].shape == (2, 2) and isinstance(opened["b"][1], tuple)
    deep: Any = make(1)
    for _ in range(200):
        deep = [deep]
    with pytest.raises(ValueError, match="deeper"):
        crosshandle.share(deep)


def test_memory_of_others_is_copied_or_refused() -> None:
    foreign = np.arange(12, dtype="float32").reshape(3, 4)[:, ::-2]
    with pytest.raises(ValueError, match="copy=True"):
        crosshandle.share(foreign)
    opened: Any = crosshandle.open(crosshandle.share([foreign, b"abc", memoryview(b"xyz")], copy=True))
    assert np.array_equal(opened[0].numpy(), foreign) and bytes(opened[1]) == b"abc" and bytes(opened[2]) == b"xyz"
    with pytest.raises(TypeError, match="handle"):
        crosshandle.share(crosshandle.Context().event())
    with pytest.raises(TypeError, match="objects of this process"):
        crosshandle.share(np.zeros(2, dtype=[("a", "i4"), ("b", "O")]), copy=True)


def test_a_bundle_keeps_its_arrays_until_it_is_released() -> None:
    context = crosshandle.Context(pooling=False)
    with crosshandle.share(context.allocate(64).array(16, "float32")) as bundle:
        data = bytes(bundle)
        gc.collect()
        crosshandle.open(data, context=context)
    gc.collect()
    with pytest.raises(crosshandle.StaleHandleError):
        crosshandle.open(data, context=context)
    with pytest.raises(ValueError, match="released"):
        bytes(bundle)


def test_damaged_bundles_are_refused() -> None:
    tree = {"x": crosshandle.empty((2, 3)), "y": [crosshandle.empty(4)]}
    data = bytes(crosshandle.share(tree))
    for cut in range(len(data)):
        with pytest.raises(ValueError):
            crosshandle.open(data[:cut])
    generator = np.random.default_rng(1)
    for _ in range(2000):
        damaged = bytearray(data)
        damaged[generator.integers(len(data))] ^= 1 << int(generator.integers(8))
        with pytest.raises((ValueError, crosshandle.Error)):
            crosshandle.open(damaged)
