"""Conversion of element types that DLPack cannot express: dates, strings of fixed size, and
records.

A bundle describes such a type as text. For a simple type this is NumPy's code, such as `<M8[ns]` or
`<U4`. For a record it is JSON: `{"f": [[name, type, offset, [sizes]?], …], "n": bytes}`, where
`type` is a code or another record. """

from __future__ import annotations

import json
import re
from typing import Any

_LETTERS = {
    "S": "|S", "a": "|S", "V": "|V", "U": "<U", "M": "<M", "m": "<m",
}  # fmt: skip
_SIZES = {"S": 1, "a": 1, "V": 1, "U": 4, "M": 1, "m": 1}
_SIMPLE = re.compile(r"[<=|]?([SaVUMm])([1-9][0-9]{0,8})(\[[0-9]{0,9}[a-zA-Zμ]{1,2}\])?")
_NAMED = re.compile(r"(datetime|timedelta)64(\[[0-9]{0,9}[a-zA-Zμ]{1,2}\])")
_CODE = re.compile(r"[<>|]([biufcSVU][1-9][0-9]{0,8}|[Mm]8\[[0-9]{0,9}[a-zA-Zμ]{1,2}\])")
_MOST_FIELDS = 1024
_MAX_DEPTH = 16


def describe(value: Any) -> tuple[str, int] | None:
    """Converts a NumPy type that DLPack cannot express to its textual description.

    Returns the text and the size of an element in bytes, or None if `value` is not a type. Raises
    `TypeError` if elements of the type cannot be shared.

    `value` is a string or a NumPy dtype.
    """
    if isinstance(value, str):
        named = _NAMED.fullmatch(value)
        if named is not None:
            return f"<{'M' if named[1] == 'datetime' else 'm'}8{named[2]}", 8
        simple = _SIMPLE.fullmatch(value)
        if simple is not None:
            letter, size, unit = simple.groups()
            if (letter in "Mm") == (unit is not None) and (letter not in "Mm" or size == "8"):
                return f"{_LETTERS[letter]}{size}{unit or ''}", int(size) * _SIZES[letter]
        # NumPy also accepts other forms of text, such as "i4,f8".
        try:
            import numpy

            value = numpy.dtype(value)
        except (ImportError, TypeError, ValueError):
            return None
    _check(value)
    text: str = value.str
    if value.names is not None or value.subdtype is not None:
        text = json.dumps(_packed(value), separators=(",", ":"))
    elif text.startswith(">"):
        raise TypeError(
            f"elements of {text} are not in this machine's byte order: share "
            'array.astype(array.dtype.newbyteorder("="))'
        )
    return text, value.itemsize


def _check(dtype: Any) -> None:
    if dtype.hasobject:
        raise TypeError(
            f"elements of {dtype} cannot be shared: they are objects of this process; share numbers, or text as a "
            "string of fixed size such as \"U16\""
        )
    if dtype.itemsize == 0:
        raise TypeError(f"elements of {dtype!r} have no bytes: give a size, as in \"S8\", \"U4\" or \"datetime64[ns]\"")
    if dtype.kind in "Mm" and dtype.str.endswith("8"):
        raise TypeError(f'a type of dates has a unit, as in "{dtype.name}[ns]"')
    if dtype.kind not in "biufcSUVMm?":
        raise TypeError(f"elements of {dtype!r} cannot be shared")


def _packed(dtype: Any) -> Any:
    if dtype.subdtype is not None:
        raise TypeError(f"{dtype} has an array in each element: use more dimensions of the shared array instead")
    if dtype.names is None:
        _check(dtype)
        return dtype.str
    fields = []
    for name in dtype.names:
        field, offset = dtype.fields[name][:2]
        sizes: tuple[int, ...] = ()
        if field.subdtype is not None:
            field, sizes = field.subdtype
        fields.append([name, _packed(field), offset, list(sizes)] if sizes else [name, _packed(field), offset])
    return {"f": fields, "n": dtype.itemsize}


def dtype_of(text: str, nbytes: int) -> Any:
    """Creates the NumPy dtype that a text in a received bundle describes.

    The text comes from another process, so this function first checks every part of it.
    """
    numpy = _numpy(text)
    refused = ValueError(f"the bundle describes elements as {text[:80]!r}, which is no type")
    try:
        found = json.loads(text) if text.startswith("{") else text
        dtype = numpy.dtype(_unpacked(found, 0))
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError, MemoryError) as error:
        raise refused from error
    if dtype.hasobject or dtype.itemsize != nbytes:
        raise refused
    return dtype


def dtype_named(name: str) -> Any:
    """Creates the NumPy dtype for a type's name. Some types require the package ml_dtypes."""
    numpy = _numpy(name)
    try:
        return numpy.dtype(name)
    except TypeError:
        pass
    try:
        import ml_dtypes

        return numpy.dtype(getattr(ml_dtypes, name))
    except (ImportError, AttributeError):
        raise TypeError(f"NumPy has no dtype for {name} without the package ml_dtypes") from None


def _numpy(text: str) -> Any:
    try:
        import numpy
    except ImportError:
        raise ImportError(f"elements of {text} need NumPy, which is not installed") from None
    return numpy


def _unpacked(found: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise ValueError("too deep")
    if isinstance(found, str):
        if _CODE.fullmatch(found) is None:
            raise ValueError("no code of a type")
        return found
    if not isinstance(found, dict) or set(found) != {"f", "n"} or len(found["f"]) > _MOST_FIELDS:
        raise ValueError("no record")
    names, formats, offsets = [], [], []
    for name, kind, offset, *sizes in found["f"]:
        if not isinstance(name, str) or type(offset) is not int or len(sizes) > 1:
            raise ValueError("no field")
        kind = _unpacked(kind, depth + 1)
        if sizes:
            if not all(type(size) is int and size > 0 for size in sizes[0]):
                raise ValueError("no sizes")
            kind = (kind, tuple(sizes[0]))
        names.append(name)
        formats.append(kind)
        offsets.append(offset)
    return {"names": names, "formats": formats, "offsets": offsets, "itemsize": found["n"]}
