"""Functions that create arrays and events, which other processes can open."""

from __future__ import annotations

import struct
from typing import Any, Union

from . import _crosshandle as _rust
from ._crosshandle import Array, Context, Device, Event
from ._sharing import _copy, default_context

_PROTOCOLS = (
    "__dlpack__", "__array_interface__", "__cuda_array_interface__", "__sycl_usm_array_interface__", "__buffer__",
)  # fmt: skip

Shape = Union[int, "tuple[int, ...]", "list[int]"]

# Formats of the module `struct` for the element types that it supports.
_FORMATS = {
    "bool": "?", "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint8": "B", "uint16": "H", "uint32": "I",
    "uint64": "Q", "float16": "e", "float32": "f", "float64": "d", "complex64": "2f", "complex128": "2d",
}  # fmt: skip


def empty(shape: Shape, dtype: Any = "float64", *, device: Any = None) -> Array:
    """Creates an array that can be shared without a copy.

    The elements are not initialized, as with `numpy.empty`.

    `dtype` is a type in any form that NumPy or torch accepts: `"float32"`, `"f4"`, `numpy.float32`,
    `torch.bfloat16`, `float`. `device` is a name such as `"host"` (the default), `"cuda"` or
    `"cuda:1"`, a `Device`, or a torch device.

    >>> array = crosshandle.empty((2, 3), "float32")
    >>> array.shape, array.dtype, array.nbytes
    ((2, 3), 'float32', 24)
    """
    return _context(device).empty(shape, dtype)


def zeros(shape: Shape, dtype: Any = "float64", *, device: Any = None) -> Array:
    """Creates an array of zeros that can be shared without a copy.

    >>> crosshandle.zeros(3, int).tolist()
    [0, 0, 0]
    """
    _, nbytes = _rust.dtype_of(dtype)
    return _rust.filled(_context(device), shape, dtype, bytes(nbytes))


def ones(shape: Shape, dtype: Any = "float64", *, device: Any = None) -> Array:
    """Creates an array of ones that can be shared without a copy.

    >>> crosshandle.ones((2, 2), "f4").tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    return full(shape, 1, dtype, device=device)


def full(shape: Shape, fill_value: Any, dtype: Any = None, *, device: Any = None) -> Array:
    """Creates an array filled with one value, which can be shared without a copy.

    By default, `dtype` is the type of `fill_value`.

    >>> crosshandle.full(3, 7).tolist()
    [7, 7, 7]
    >>> crosshandle.full(2, 0.5, "float32", device="cpu").tolist()
    [0.5, 0.5]
    """
    if dtype is None:
        dtype = _type_of(fill_value)
    return _rust.filled(_context(device), shape, dtype, _element(fill_value, dtype))


def asarray(value: Any, dtype: Any = None, *, device: Any = None) -> Array:
    """Copies data into a new array that can be shared without another copy.

    `value` is a NumPy array, a tensor, a buffer, a number, or nested lists of numbers. The new
    array is on `device` (default: the device that `value` is on). With `dtype`, the elements are
    converted to that type.

    >>> array = crosshandle.asarray([[1, 2], [3, 4]], "float32")
    >>> array.tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    >>> len(bytes(crosshandle.share(array))) < 1000
    True
    """
    made = _copied(value, dtype)
    if device is None or _rust.device_name(device) == made.device:
        return made
    return _rust.moved(_context(device), made)


def event(
    name: str | None = None,
    *,
    device: Any = None,
    low_power: bool = False,
    isolated: bool = False,
    single_signaller: bool = False,
) -> Event:
    """Creates an event in the default context for `device` (default: the host).

    Any process that opens the event can signal it and wait for it.

    With `low_power`, a waiting thread in this process sleeps at once instead of spinning first.
    With `isolated`, the event's counters are in separate memory, so a process that opens the event
    cannot access other events. With `single_signaller`, only kernels and streams of this process on
    `device` signal the event. Kernels and captured graphs can signal no other events.

    >>> done = crosshandle.event("done")
    >>> done.signal()
    1
    >>> done.wait(timeout=5)
    """
    return _context(device).event(
        name=name, low_power=low_power, isolated=isolated, single_signaller=single_signaller
    )


def devices() -> list[Device]:
    """Returns the host and all GPUs of this machine whose driver is installed.

    >>> crosshandle.devices()[0].name
    'host:0'
    """
    return Device.all()


def _context(device: Any) -> Context:
    return default_context() if device is None else default_context(device)


def _type_of(value: Any) -> Any:
    if type(value) in (bool, int, float, complex):
        return type(value)
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        raise TypeError(f"{type(value).__name__} is not a number: pass dtype to convert it")
    return dtype


def _element(value: Any, dtype: Any) -> bytes:
    """Returns the bytes of one element of type `dtype` with the given value."""
    name, _ = _rust.dtype_of(dtype)
    if isinstance(value, (bool, int, float, complex)):
        form = _FORMATS.get(name)
        if form is not None:
            try:
                return _packed(value, name, form)
            except struct.error as error:
                raise OverflowError(f"{value!r} is not a value of {name}: {error}") from None
        if name == "bfloat16":
            # A bfloat16 is the upper half of a float32, here rounded to nearest even.
            bits = int.from_bytes(struct.pack("=f", value), "little")
            if value == value:
                bits += 0x7FFF + (bits >> 16 & 1)
            return (bits >> 16 & 0xFFFF).to_bytes(2, "little")
    import numpy

    array = numpy.empty(1, _rust.numpy_dtype(dtype))
    array[0] = value
    return array.tobytes()


def _packed(value: Any, name: str, form: str) -> bytes:
    if form[0] == "2":
        value = complex(value)
        return struct.pack("=" + form, value.real, value.imag)
    if isinstance(value, complex):
        raise TypeError(f"a complex number is not a value of {name}")
    if name == "bool":
        return struct.pack("=?", bool(value))
    return struct.pack("=" + form, value if name.startswith("float") else int(value))


def _copied(value: Any, dtype: Any) -> Array:
    if isinstance(value, Array) and not value.device.startswith("host") and (dtype is None or _has_type(value, dtype)):
        return _rust.moved(default_context(value.device), value)
    if not isinstance(value, (list, tuple, bool, int, float, complex, str)):
        if dtype is None or _has_type(value, dtype):
            return _copy_described(value)
        if getattr(value, "device", None) is not None and _rust.describe(value).device != "host":
            raise TypeError(
                f"elements on a device are converted by their own library: pass array.astype({dtype!r}) or "
                f"tensor.to({dtype!r})"
            )
    elif not isinstance(value, (list, tuple)) or not _has_arrays(value):
        plain = _of_numbers(value, dtype)
        if plain is not None:
            return plain
    try:
        import numpy
    except ImportError:
        raise ImportError("numbers of this kind are converted by NumPy, which is not installed") from None
    converted = numpy.asarray(value, None if dtype is None else _rust.numpy_dtype(dtype))
    return _copy_described(converted)


def _has_type(value: Any, dtype: Any) -> bool:
    own = getattr(value, "dtype", None)
    return own is not None and _rust.dtype_of(own) == _rust.dtype_of(dtype)


def _copy_described(value: Any) -> Array:
    if not any(hasattr(value, name) for name in _PROTOCOLS) and hasattr(value, "__array__"):
        # An object that NumPy can convert but that supports no array protocol, such as a pandas
        # Series.
        import numpy

        value = numpy.asarray(value)
    described = _rust.describe(value)
    place = described.device
    context = default_context() if place in ("host", "sycl") else default_context("cuda:0" if place == "cuda" else place)
    return _copy(value, described, context)


def _has_arrays(value: Any) -> bool:
    """Returns whether nested lists contain objects that are not numbers, such as arrays. Only NumPy
    can convert such lists."""
    if isinstance(value, (list, tuple)):
        return any(_has_arrays(part) for part in value)
    return type(value) not in (bool, int, float, complex)


def _of_numbers(value: Any, dtype: Any) -> Array | None:
    """Creates an array from a number or nested lists of numbers, without NumPy.

    Returns None for types that need NumPy.
    """
    shape: list[int] = []
    flat: list[Any] = [value]
    while flat and isinstance(flat[0], (list, tuple)):
        size = len(flat[0])
        if any(not isinstance(part, (list, tuple)) or len(part) != size for part in flat):
            raise ValueError("the lists have different lengths: all rows of an array have the same length")
        shape.append(size)
        flat = [element for part in flat for element in part]
        if len(shape) > 32:
            raise ValueError("an array has at most 32 dimensions")
    if any(isinstance(element, (list, tuple)) for element in flat):
        raise ValueError("the lists have different depths: all rows of an array have the same depth")
    if any(not isinstance(element, (bool, int, float, complex)) for element in flat):
        return None
    if dtype is None:
        kinds = {type(element) for element in flat} or {float}
        dtype = next(kind for kind in (complex, float, int, bool) if kind in kinds)
    name, _ = _rust.dtype_of(dtype)
    if name not in _FORMATS and name != "bfloat16":
        return None
    if not flat:
        return default_context().empty(tuple(shape), dtype)
    return _rust.filled(default_context(), tuple(shape), dtype, b"".join([_element(element, name) for element in flat]))


def _adopted(holder: Any) -> Array:
    """Creates an array from a tensor that another library has passed to this package's DLPack
    functions."""
    from . import _sharing, _trees

    leaves = _trees.Leaves(holder, False)
    leaves.append(holder)
    (array,) = _sharing._arrays(leaves, False)
    return array
