"""The names that programs use first: functions that create arrays and events, NumPy's types, and
devices."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from conftest import DEADLINE

import crosshandle
from crosshandle import _dtypes

RECORD = np.dtype([("id", "i4"), ("at", "M8[us]"), ("name", "U5"), ("place", "f8", (2,))])
PADDED = np.dtype({"names": ["x", "y"], "formats": ["i2", ">f4"], "offsets": [3, 8], "itemsize": 16})
NESTED = np.dtype([("inner", [("a", "u1"), ("b", "S3")]), ("c", "?")])
SPECIAL = [
    np.dtype(form) for form in ("M8[ns]", "M8[25s]", "m8[us]", "S8", "U4", "V5", "longdouble", RECORD, PADDED, NESTED)
]  # fmt: skip


def test_the_module_says_its_version_and_imports_its_parts_when_they_are_used() -> None:
    program = (
        "import sys, crosshandle\n"
        "assert not {'numpy', 'torch', 'crosshandle.store', 'crosshandle.link'} & set(sys.modules)\n"
        "assert {'store', 'link', 'torch', 'cupy', 'zeros'} <= set(dir(crosshandle))\n"
        "assert crosshandle.store.open and crosshandle.link.connect\n"
        "from crosshandle import *\n"
        "print(crosshandle.__version__)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == crosshandle.__version__ and crosshandle.__version__.count(".") == 2


def test_the_package_runs_as_the_command() -> None:
    command = [sys.executable, "-m", "crosshandle", "--version"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    if "is not in this installation" in ran.stderr:
        assert ran.returncode != 0
    else:
        assert ran.returncode == 0 and crosshandle.__version__ in ran.stdout


@pytest.mark.parametrize("name", ["SharedMemory", "array", "send", "attach"])
def test_names_of_other_packages_say_what_is_meant(name: str) -> None:
    with pytest.raises(AttributeError, match="crosshandle"):
        getattr(crosshandle, name)
    with pytest.raises(AttributeError, match=": .*crosshandle|with "):
        getattr(crosshandle, name)


@pytest.mark.parametrize(
    ("forms", "name"),
    [
        (["f4", "<f4", "=f4", "f", "single", "float32", np.float32, np.dtype("f4")], "float32"),
        (["f8", "d", "double", "float", float, np.float64, None], "float64"),
        (["i1", "b", "byte", "|i1", np.byte], "int8"),
        (["u1", "B", "ubyte", "uint8", np.ubyte], "uint8"),
        (["int", int, "i8", "l", "long", np.int64, np.intp], "int64"),
        (["?", "b1", "|b1", bool, np.bool_], "bool"),
        (["c16", complex, "complex", "D", np.complex128], "complex128"),
        (["e", "half", "f2", np.half], "float16"),
        (["datetime64[ns]", "M8[ns]", "<M8[ns]", np.dtype("M8[ns]")], "<M8[ns]"),
        (["S8", "|S8", np.dtype("S8")], "|S8"),
        (["U4", "<U4"], "<U4"),
    ],
)
def test_types_in_every_form(forms: list[Any], name: str) -> None:
    for form in forms:
        array = crosshandle.zeros(2) if form is None else crosshandle.zeros(2, form)
        assert array.dtype == name, form
        if form is not None:
            assert array.numpy().dtype == np.dtype(form), form


def test_types_of_torch_and_arrow() -> None:
    torch = pytest.importorskip("torch")
    for kind in (torch.float, torch.double, torch.half, torch.bfloat16, torch.long, torch.bool, torch.float8_e4m3fn):
        array = crosshandle.empty(3, kind)
        assert array.torch().dtype == kind
    pyarrow = pytest.importorskip("pyarrow")
    # The type's str() in Arrow is "float", which is float64 in NumPy.
    assert crosshandle.empty(1, pyarrow.float32()).dtype == "float32"


@pytest.mark.parametrize("form", ["O", object, "f3", "U", str, "S0", "M8", "datetime64", "nothing", "V", 3, None, "f4 "])
def test_types_that_cannot_be(form: Any) -> None:
    with pytest.raises(TypeError):
        crosshandle.full(1, 0, form) if form is not None else crosshandle.full(1, "text")


@pytest.mark.parametrize("dtype", SPECIAL, ids=str)
def test_dates_strings_and_records_cross(dtype: Any) -> None:
    array = crosshandle.empty((3, 2), dtype)
    assert array.nbytes == 6 * dtype.itemsize == 6 * array.itemsize
    random = np.random.default_rng(3).integers(0, 100, array.nbytes, dtype="u1")
    array.numpy().reshape(-1).view(f"V{dtype.itemsize}")[:] = random.view(f"V{dtype.itemsize}")
    for opened in (crosshandle.open(crosshandle.share(array)), crosshandle.open(crosshandle.share(array.numpy()[::-1]))):
        assert opened.dtype == (dtype if dtype.names else dtype.str) and opened.shape == (3, 2)
        for view in (opened.numpy(), np.asarray(opened)):
            assert view.dtype == dtype and np.shares_memory(view, opened.numpy())
    assert opened.numpy()[::-1].tobytes() == array.numpy().tobytes()
    copied = crosshandle.open(crosshandle.share(np.array(array.numpy()), copy=True))
    assert copied.numpy().dtype == dtype and copied.numpy().tobytes() == array.numpy().tobytes()
    with pytest.raises(BufferError, match="numpy()"):
        opened.__dlpack__()


def test_descriptions_from_a_bundle_are_checked() -> None:
    good = _dtypes.describe(RECORD)
    assert good is not None and _dtypes.dtype_of(*good) == RECORD
    field = '["a","<i4",0]'
    for text, nbytes in [
        ("|O8", 8), ("O", 8), ("<i4,<i4", 8), ("<M8", 8), ("<V0", 0), ("|V4", 5), ("{", 4), ("{}", 4), ("[]", 4),
        ('{"f":[["a","|O8",0]],"n":8}', 8), (f'{{"f":[{field}],"n":2}}', 2), (f'{{"f":[{field}],"n":8}}', 4),
        ('{"f":[["a","<i4",-4]],"n":8}', 8), ('{"f":[["a","<i4",6]],"n":8}', 8), ('{"f":[["a","<i4",true]],"n":8}', 8),
        (f'{{"f":[{field},{field}],"n":8}}', 8), ('{"f":[["a","<i4",0,[1000000000,1000000000]]],"n":8}', 8),
        ('{"f":[["a","<i4",0,[-1]]],"n":8}', 8), ('{"f":[[1,"<i4",0]],"n":8}', 8), ('{"f":[["a"]],"n":8}', 8),
        ('{"f":' * 50 + "[]" + ',"n":8}' * 50, 8), ('{"f":[["a","<i4",0]],"n":"8"}', 8), ('{"f":[],"n":1e400}', 8),
        ('{"f":[["a","<i4",99999999999999999999]],"n":8}', 8), ('{"f":3,"n":8}', 8), ("{" + "[" * 100_000, 8),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match="which is no type"):
            _dtypes.dtype_of(text, nbytes)


def test_new_arrays() -> None:
    assert crosshandle.zeros((2, 2), int).tolist() == [[0, 0], [0, 0]]
    assert crosshandle.ones(3, "f4").numpy().tolist() == [1, 1, 1]
    assert crosshandle.full((1, 2), 0.1, "float32")[0, 1] == np.float32(0.1)
    assert crosshandle.full(2, 3).dtype == "int64" and crosshandle.full(2, True).dtype == "bool"
    assert crosshandle.full(100_000, -7, "int16").numpy().tolist() == [-7] * 100_000
    assert crosshandle.full(2, 1.5, "complex64").tolist() == [1.5, 1.5]
    assert crosshandle.full(2, np.datetime64("2024-02-29"), "M8[ns]").numpy()[1] == np.datetime64("2024-02-29")
    assert crosshandle.full(2, np.int8(3)).dtype == "int8" and crosshandle.zeros((0, 3)).tolist() == []
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for value in (1.0, 0.1, -3.14159, 65504.5, float("inf"), 1e-40):
        expected = np.array(value, ml_dtypes.bfloat16)
        assert crosshandle.full(1, value, "bfloat16").numpy()[0] == expected
    assert np.isnan(crosshandle.full(1, float("nan"), "bfloat16").numpy()[0].astype("f4"))
    with pytest.raises(OverflowError, match="300 is not a value of uint8"):
        crosshandle.full(1, 300, "uint8")


def test_data_is_copied_into_arrays() -> None:
    source = np.arange(12, dtype="int16").reshape(3, 4)
    for value in (source, source[:, ::-1], source.tolist(), crosshandle.open(crosshandle.share(source, copy=True))):
        made = crosshandle.asarray(value, "float32")
        assert made.dtype == "float32" and np.array_equal(made.numpy(), np.asarray(value))
        crosshandle.share(made)
    made = crosshandle.asarray(source)
    made[0, 0] = 99
    assert source[0, 0] == 0 and made.dtype == "int16"
    assert crosshandle.asarray(2.5).shape == () and crosshandle.asarray([]).shape == (0,)
    assert crosshandle.asarray([1, 2.5, True]).dtype == "float64" and crosshandle.asarray(b"ab").tolist() == [97, 98]
    assert crosshandle.asarray(["a", "bcd"]).dtype == "<U3"
    assert crosshandle.asarray([np.float32(1), np.float32(2)]).dtype == "float32"
    for uneven in ([[1], [2, 3]], [[1], 2], [1, [2]]):
        with pytest.raises(ValueError):
            crosshandle.asarray(uneven)
    with pytest.raises(TypeError, match="objects"):
        crosshandle.asarray([object()])
    with pytest.raises(TypeError, match="mask"):
        crosshandle.asarray(np.ma.masked_array([1, 2], [False, True]))


def test_arrays_are_read_and_written_in_place() -> None:
    array = crosshandle.zeros((2, 3), "int32")
    array[0] = [1, 2, 3]
    array[1, -1] = 7
    assert array.tolist() == [[1, 2, 3], [0, 0, 7]] and array[1, 2] == 7 and array[:, 0].tolist() == [1, 0]
    assert array.T.shape == (3, 2) and array.T.tolist() == [[1, 0], [2, 0], [3, 7]] and array.T[2, 1] == 7
    assert [row.tolist() for row in array] == array.tolist() and array.itemsize == 4 and len(array) == 2
    assert np.asarray(array, "float64").dtype == "float64" and np.array(array, copy=True).sum() == 13
    assert not np.shares_memory(np.array(array), array.numpy()) and np.shares_memory(np.asarray(array), array.numpy())
    with pytest.raises(IndexError):
        array[2]
    # A view of the array is shared without a copy.
    assert crosshandle.open(crosshandle.share(array[:, 1:])).tolist() == [[2, 3], [0, 7]]
    assert crosshandle.zeros((), "f4").tolist() == 0.0 and crosshandle.zeros(1, "f2").tolist() == [0.0]
    read_only = crosshandle.open(crosshandle.share(array, read_only=True))
    with pytest.raises(ValueError, match="read-only"):
        read_only[0] = 1


def test_devices_in_every_form() -> None:
    host = crosshandle.devices()[0]
    assert host.name == "host:0" and host == crosshandle.Device("cpu") == crosshandle.Device("host") == crosshandle.Device()
    for form in ("cpu", "cpu:0", "host", "host:0", host, None):
        assert crosshandle.empty(1, device=form).device == "host:0"
        assert crosshandle.Context(form).device == host
        assert crosshandle.event(device=form).submitted == 0
    assert crosshandle.default_context("cpu") is crosshandle.default_context(host) is crosshandle.default_context()
    torch = pytest.importorskip("torch")
    assert crosshandle.empty(1, device=torch.device("cpu")).device == "host:0"
    wrong: list[Any] = [3, 1.5, object(), ["cpu"]]
    for device in wrong:
        with pytest.raises(TypeError, match="a device is given as a Device or by its name"):
            crosshandle.empty(1, device=device)


def test_an_event_is_made_by_its_class() -> None:
    event = crosshandle.Event("done", low_power=True)
    assert event.name == "done" and crosshandle.event("x").name == "x" and crosshandle.Event().name is None
    assert event.signal() == 1
    crosshandle.open(event.handle()).wait(timeout=DEADLINE)
