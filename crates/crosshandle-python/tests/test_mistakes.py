"""The error messages for requests that cannot be fulfilled."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import crosshandle


def misaligned() -> Any:
    memory = crosshandle.default_context().allocate(64)
    return memory.array((16,), "uint8", offset=1).numpy()[:12].view("float32")


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (print, TypeError, "builtin_function_or_method is not an array that can be shared"),
        (..., TypeError, "ellipsis is not an array"),
        (np.array(["a"], object), TypeError, "objects of this process"),
        (np.array([object()]), TypeError, "cannot be shared"),
        (np.ones(3), ValueError, "^pass copy=True .* or make it with crosshandle.empty"),
        (np.ones(3, ">f4"), TypeError, "not in this machine.s byte order: share array.astype"),
        (np.ma.masked_array([1, 2], [False, True]), TypeError, "share its data and its mask"),
        ({Path(): 1}, TypeError, "a dict with a key of type pathlib.PosixPath: keys are strings, numbers"),
    ],
    ids=["a function", "an ellipsis", "texts", "objects", "private memory", "swapped bytes", "a mask", "a path as a key"],
)
def test_what_is_shared(value: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        crosshandle.share(value)


@pytest.mark.parametrize("value", [np.ones(3, ">f4"), np.ma.masked_array([1, 2], [False, True])])
def test_a_copy_is_refused_that_would_have_other_elements(value: Any) -> None:
    with pytest.raises(TypeError):
        crosshandle.share(value, copy=True)


def test_the_reason_is_named_that_memory_of_this_package_is_not_shared() -> None:
    array = misaligned()
    array[:] = 3
    with pytest.raises(ValueError, match="float32 lies at multiples of 4 bytes.*copy=True"):
        crosshandle.share(array)
    assert np.array_equal(crosshandle.open(crosshandle.share(array, copy=True)).numpy(), array)


@pytest.mark.parametrize("shape", [-1, 4.5, "a", (2, -1), (2, "b")])
def test_shapes(shape: Any) -> None:
    with pytest.raises(TypeError, match="a shape is a number of elements or a tuple of them"):
        crosshandle.empty(shape)


def test_devices() -> None:
    wrong: Any = 3
    with pytest.raises(TypeError, match='a device is given as a Device or by its name, such as "cuda:0": 3'):
        crosshandle.Context(wrong)
    with pytest.raises(crosshandle.NoDeviceError, match='one of "host", "cuda", "level_zero"'):
        crosshandle.Device("gpu")


def test_a_text_that_is_no_handle() -> None:
    with pytest.raises(crosshandle.Error) as refused:
        crosshandle.open("abc")
    assert any("begins as no handle does" in note for note in refused.value.__notes__)


def after_fork(call: Any) -> str:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            call()
        except Exception as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as told:
        text = told.read().decode()
    os.waitpid(child, 0)
    return text


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning", "ignore:.*fork:RuntimeWarning")
def test_a_forked_child_is_told_to_be_spawned() -> None:
    array = crosshandle.empty(4)
    for call in (crosshandle.default_context().event, lambda: crosshandle.share(array)):
        told = after_fork(call)
        assert told.startswith("UnsupportedError: a child made by fork") and "'spawn' or 'forkserver'" in told
    # Memory that was open before the fork stays readable.
    assert after_fork(lambda: array.numpy().sum()) == ""
