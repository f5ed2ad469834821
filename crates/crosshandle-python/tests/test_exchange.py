"""DLPack's table of C functions, tested with a stand-in for torch in its own process."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest
from conftest import DEADLINE

import crosshandle

PROGRAM = """
import ctypes, sys, types

from crosshandle import _crosshandle as rust


class Described(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("kind", ctypes.c_int32), ("number", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    ]


Function = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(Described))


class Table(ctypes.Structure):
    pass


Table._fields_ = [
    ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("before", ctypes.POINTER(Table)),
    ("others", ctypes.c_void_p * 3), ("describe", Function), ("stream", ctypes.c_void_p),
]
seen = []


@Function
def describe(tensor, to):
    seen.append(type(tensor).__name__)
    if tensor.refused:
        return -1
    to[0] = Described(tensor.data_ptr(), 1, 0, 2, 2, 32, 1, tensor.sizes, tensor.steps, 0)
    return 0


older = Table(1, 2, None, (ctypes.c_void_p * 3)(), describe, None)
newer = Table(2, 0, ctypes.pointer(older), (ctypes.c_void_p * 3)(), Function(), None)
new = ctypes.pythonapi.PyCapsule_New
new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Tensor:
    __dlpack_c_exchange_api__ = new(ctypes.addressof(newer), b"dlpack_exchange_api", None)
    refused, is_cuda, dtype, shape = False, False, "float32", (2, 3)
    device = types.SimpleNamespace(type="cpu")

    def __init__(self):
        self.numbers = (ctypes.c_float * 12)()
        self.sizes, self.steps = (ctypes.c_int64 * 2)(2, 3), (ctypes.c_int64 * 2)(6, 2)

    def is_neg(self):
        return False

    def is_conj(self):
        return False

    def untyped_storage(self):
        return self.numbers

    def data_ptr(self):
        return ctypes.addressof(self.numbers)

    def stride(self):
        return (6, 2)


class Parameter(Tensor):
    pass


class Proxy:
    def __init__(self, tensor):
        self.tensor = tensor

    @property
    def __class__(self):
        return Tensor

    def __getattr__(self, name):
        return getattr(self.tensor, name)


def check(value, names):
    seen.clear()
    found = rust.describe(value)
    assert (found.device, found.dtype, found.shape) == ("host", "float32", (2, 3))
    assert found.address == value.data_ptr()
    assert seen == names, seen


sys.modules["torch"] = types.SimpleNamespace(Tensor=Tensor)
check(Tensor(), ["Tensor"])
check(Parameter(), ["Parameter"])
refused = Tensor()
refused.refused = True
check(refused, ["Tensor"])
proxy = Proxy(Tensor())
assert isinstance(proxy, Tensor)
check(proxy, [])
print("described")
"""


def test_a_table_describes_what_is_a_tensor_and_nothing_else() -> None:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "described\n", "")


OURS = """
import ctypes

import crosshandle

class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("kind", ctypes.c_int32), ("number", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    pass


Delete = ctypes.PYFUNCTYPE(None, ctypes.POINTER(Managed))
Managed._fields_ = [
    ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("owner", ctypes.c_void_p),
    ("delete", Delete),
    ("flags", ctypes.c_uint64), ("tensor", Tensor),
]
Pointer = ctypes.POINTER(Managed)
Fail = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)


class Table(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("before", ctypes.c_void_p),
        ("allocate", ctypes.PYFUNCTYPE(
            ctypes.c_int, ctypes.POINTER(Tensor), ctypes.POINTER(Pointer), ctypes.c_void_p, Fail)),
        ("from_object", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(Pointer))),
        ("to_object", ctypes.PYFUNCTYPE(ctypes.c_int, Pointer, ctypes.POINTER(ctypes.py_object))),
        ("describe", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(Tensor))),
        ("stream", ctypes.PYFUNCTYPE(
            ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))),
    ]


get = ctypes.pythonapi.PyCapsule_GetPointer
get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
table = Table.from_address(get(crosshandle.Array.__dlpack_c_exchange_api__, b"dlpack_exchange_api"))
assert (table.major, table.minor, table.before) == (1, 3, None)


def refused(call, *arguments):
    try:
        assert call(*arguments) == -1
    except SystemError:
        raise
    except Exception as error:
        return error
    raise AssertionError("not refused")


array = crosshandle.full((2, 3), 7, "int16").T
seen = Tensor()
assert table.describe(array, seen) == 0
assert (seen.data, seen.kind, seen.ndim) == (array.address, 1, 2)
assert (seen.code, seen.bits, seen.lanes) == (0, 16, 1)
assert seen.shape[:2] == [3, 2] and seen.strides[:2] == [1, 3]
assert isinstance(refused(table.describe, 3, seen), TypeError)
assert isinstance(refused(table.describe, crosshandle.zeros(2, "M8[s]"), seen), BufferError)

held = Pointer()
assert table.from_object(array, held) == 0
address = array.address
del array
assert held[0].major == 1 and held[0].flags == 0 and held[0].tensor.data == address
assert ctypes.c_int16.from_address(address).value == 7

# The memory belongs to this package, so an array that is made from it is shared without a copy.
again = ctypes.py_object()
assert table.to_object(held, again) == 0
again = again.value
assert type(again) is crosshandle.Array
assert again.tolist() == [[7, 7]] * 3 and again.address == address
crosshandle.open(crosshandle.share(again))[0, 0] = 9
assert again.tolist()[0] == [9, 7]

read_only = crosshandle.open(crosshandle.share(again, read_only=True))
assert table.from_object(read_only, held) == 0 and held[0].flags == 1
held[0].delete(held)

assert table.describe(again, seen) == 0 and table.allocate(seen, held, None, Fail()) == 0
assert held[0].tensor.shape[:2] == [3, 2] and held[0].tensor.strides[:2] == [2, 1]
assert held[0].tensor.data != address
held[0].delete(held)
told = []
seen.bits = 3
fail = Fail(lambda _context, kind, text: told.append((kind, text)))
assert table.allocate(seen, held, None, fail) == -1
assert told == [(b"RuntimeError", b"crosshandle cannot allocate such a tensor")]
stream = ctypes.c_void_p(1)
assert table.stream(2, 0, stream) == 0 and stream.value is None
print("exchanged")
"""


def test_the_table_of_arrays_gives_and_takes_tensors() -> None:
    command = [sys.executable, "-c", OURS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "exchanged\n", "")


def test_a_tensor_of_torch_is_made_by_its_table() -> None:
    torch = pytest.importorskip("torch")
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("this torch has no table of DLPack's functions")
    array = crosshandle.asarray([[1, 2], [3, 4]], "float32")
    calls: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.utils.dlpack, "from_dlpack", calls.append)
        tensor = array.torch()
    assert not calls and tensor.tolist() == [[1, 2], [3, 4]] and tensor.data_ptr() == array.address
    address = array.address
    del array
    gc.collect()
    assert crosshandle.open(crosshandle.share(tensor)).tolist() == [[1, 2], [3, 4]] and tensor.data_ptr() == address
