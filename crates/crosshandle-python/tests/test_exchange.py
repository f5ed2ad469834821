"""DLPack's table of C functions, of a stand-in for torch in a process of its own."""

from __future__ import annotations

import subprocess
import sys

from conftest import DEADLINE

PROGRAM = """
import ctypes, sys, types

from crosshandle import _crosshandle as rust


class Described(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("kind", ctypes.c_int32), ("number", ctypes.c_int32), ("ndim", ctypes.c_int32),
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
    assert (found.device, found.dtype, found.shape, found.address) == ("host", "float32", (2, 3), value.data_ptr())
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
