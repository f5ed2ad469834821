"""Converts a tree of arrays to the text that describes its structure in a bundle, and back.

The structure is JSON. `null` stands for the next array in the bundle, and a JSON list stands for a
list. Each other node is a JSON object with one member. The member's name says what the node stands
for:

| member | stands for |
|---|---|
| `{"t": […]}` | a tuple |
| `{"d": {…}}` | a dict whose keys are strings |
| `{"k": [[key, part], …]}` | a dict with other keys |
| `{"v": …}` | `None`, a bool, a number or a string |
| `{"c": [real, imaginary]}` | a complex number |
| `{"b": text}`, `{"B": 0}` | bytes, as base64 or as the next array |
| `{"n": [type, size, text]}` | a NumPy scalar: its type, its size in bytes, and its bytes as base64 |
| `{"nt": [module, class, names, parts]}` | a named tuple |
| `{"dc": [module, class, names, parts]}` | a dataclass |
| `{"f": …}` | a pandas, Polars or Arrow table, or an xarray object: see `_frames.py` |

Opening a bundle runs no code from the bundle and imports no module. A named tuple or dataclass
becomes an instance of its original class only if this process has already imported the class's
module and the class has the same fields. The class's `__init__`, `__new__` and `__post_init__` are
not called. Otherwise the result is a plain named tuple with the same fields, or a
`types.SimpleNamespace`.
"""

from __future__ import annotations

import base64
import binascii
import builtins
import collections
import dataclasses
import inspect
import json
import keyword
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

from . import _dtypes
from . import _crosshandle as _rust
from ._crosshandle import Array, Memory

_MAX_DEPTH = 100
_MOST_FIELDS = 1000
# Maximum length, in bytes, of a `bytes` object in the structure. Longer ones are copied into shared
# memory.
_LONG = 1024

_VALUES = (type(None), bool, int, float, str)
_LEAF, _FRAME, _NUMPY_SCALAR, _NAMED, _TUPLE, _LIST, _MAPPING, _DATACLASS = range(8)
_FRAME_LIBRARIES = ("pandas", "polars", "pyarrow", "xarray")
# A cache that maps a class to the kind of tree node for its instances.
_kinds: dict[type, int] = {Array: _LEAF, Memory: _LEAF}


class Leaves(list[Any]):
    """The arrays in a tree, in the order in which the structure refers to them.

    A buffer of a table is already an `Array`. Each other leaf is the object that the program
    passed.
    """

    def __init__(self, tree: Any, copy: bool):
        super().__init__()
        self.tree = tree
        self.copies = copy
        # The table that each buffer of a table belongs to, by the buffer's index in this list.
        self.owners: dict[int, Any] = {}

    def owned(self) -> list[Any]:
        """Returns, for each array, the object that the program shared: the array itself, or its
        table."""
        return [self.owners.get(place, leaf) for place, leaf in enumerate(self)] if self.owners else self

    def refused(self, place: int, error: Exception) -> Exception:
        """Returns `error` with a message that also contains the array's path in the tree.

        Returns `error` itself if the array is the whole tree or is not found in the tree.
        """
        path = _path(self.tree, self[place])
        if path is None or path == "tree":
            return error
        return type(error)(f"{path} is a {_name(self[place])}: {error}")


def arrange(tree: Any, leaves: Leaves) -> str:
    """Returns the structure of a tree, and appends the tree's arrays to `leaves`. Raises
    `TypeError` or `ValueError` for an object that cannot be shared."""
    if type(tree) is Array:
        leaves.append(tree)
        return "null"
    if type(tree) is list and all(_kinds.get(type(part)) == _LEAF for part in tree):
        leaves.extend(tree)
        return _flat(len(tree))
    try:
        return json.dumps(_arranged(tree, leaves, 0), separators=(",", ":"))
    except _Refused as refused:
        path = _path(tree, refused.value)
        raise refused.kind(refused.text if path in (None, "tree") else f"{path} is {refused.text}") from None


def _flat(count: int) -> str:
    """Returns the structure of a list of arrays."""
    return f"[{','.join(['null'] * count)}]"


class _Refused(Exception):
    def __init__(self, value: Any, text: str, kind: type[Exception] = TypeError):
        super().__init__(text)
        self.value, self.text, self.kind = value, text, kind


def _arranged(tree: Any, leaves: Leaves, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise ValueError(f"the tree is deeper than {_MAX_DEPTH}")
    cls = type(tree)
    if cls is dict:
        return _mapping(tree, leaves, depth)
    if cls is list:
        return [_arranged(part, leaves, depth + 1) for part in tree]
    if cls is tuple:
        return {"t": [_arranged(part, leaves, depth + 1) for part in tree]}
    if cls in _VALUES:
        if cls is int and tree.bit_length() > 4096:
            raise _Refused(tree, "a number of more than 4,096 bits: share it as bytes", ValueError)
        return {"v": tree}
    if cls is complex:
        return {"c": [tree.real, tree.imag]}
    if cls is bytes:
        if len(tree) <= _LONG:
            return {"b": base64.b64encode(tree).decode()}
        leaves.owners[len(leaves)] = tree
        leaves.append(_copied_bytes(tree))
        return {"B": 0}
    kind = _kinds.get(cls)
    if kind is None:
        kind = _kinds[cls] = _kind_of(cls)
    if kind == _LEAF:
        leaves.append(tree)
        return None
    if kind == _MAPPING:
        return _mapping(tree, leaves, depth)
    if kind == _LIST:
        return [_arranged(part, leaves, depth + 1) for part in tree]
    if kind == _TUPLE:
        return {"t": [_arranged(part, leaves, depth + 1) for part in tree]}
    if kind == _NAMED:
        parts = [_arranged(part, leaves, depth + 1) for part in tree]
        return {"nt": [cls.__module__, cls.__qualname__, list(tree._fields), parts]}
    if kind == _DATACLASS:
        names = [field.name for field in dataclasses.fields(tree)]
        parts = [_arranged(getattr(tree, name), leaves, depth + 1) for name in names]
        return {"dc": [cls.__module__, cls.__qualname__, names, parts]}
    if kind == _NUMPY_SCALAR:
        text, nbytes = _rust.dtype_of(tree.dtype)
        return {"n": [text, nbytes, base64.b64encode(tree.tobytes()).decode()]}
    from . import _frames

    try:
        return {"f": _frames.arrange(tree, leaves)}
    except (TypeError, ValueError, ImportError) as error:
        path = _path(leaves.tree, tree)
        raise type(error)(str(error) if path in (None, "tree") else f"{path} is a {_name(tree)}: {error}") from error


def _kind_of(cls: type) -> int:
    library = cls.__module__.partition(".")[0]
    if issubclass(cls, tuple):
        fields = getattr(cls, "_fields", None)
        is_named = isinstance(fields, tuple) and all(isinstance(name, str) for name in fields)
        return _NAMED if is_named else _TUPLE
    if issubclass(cls, list):
        return _LIST
    if library in _FRAME_LIBRARIES or hasattr(cls, "__arrow_c_stream__") or hasattr(cls, "__arrow_c_array__"):
        return _FRAME
    if issubclass(cls, Mapping):
        return _MAPPING
    numpy = sys.modules.get("numpy")
    if numpy is not None and issubclass(cls, numpy.generic):
        return _NUMPY_SCALAR
    return _DATACLASS if dataclasses.is_dataclass(cls) else _LEAF


def _mapping(tree: Any, leaves: Leaves, depth: int) -> Any:
    for key in tree:
        if not isinstance(key, str):
            break
    else:
        return {"d": {key: _arranged(part, leaves, depth + 1) for key, part in tree.items()}}
    pairs = []
    for key, part in tree.items():
        if not _is_key(key):
            raise _Refused(
                tree, f"a dict with a key of type {_name(key)}: keys are strings, numbers, bytes, None and tuples of these"
            )
        pairs.append([_arranged(key, leaves, depth + 1), _arranged(part, leaves, depth + 1)])
    return {"k": pairs}


def _is_key(key: Any) -> bool:
    if type(key) is tuple:
        return all(_is_key(part) for part in key)
    return type(key) in _VALUES or (type(key) is bytes and len(key) <= _LONG)


def _copied_bytes(value: bytes) -> Array:
    from ._sharing import default_context

    return _rust.copied(default_context(), _rust.describe(value))


def _name(value: Any) -> str:
    cls = type(value)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _path(tree: Any, wanted: Any) -> str | None:
    """Returns the path to an object in a tree, such as `tree["w"][0]`, or None if it is not in the
    tree."""
    for path, value in _walk(tree, "tree", 0):
        if value is wanted:
            return path
    return None


def _walk(tree: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    yield path, tree
    if depth > _MAX_DEPTH:
        return
    if isinstance(tree, Mapping):
        parts = [(f"{path}[{key!r}]" if not isinstance(key, str) else f"{path}[{json.dumps(key)}]", tree[key]) for key in tree]
    elif isinstance(tree, tuple) and hasattr(tree, "_fields"):
        parts = [(f"{path}.{name}", part) for name, part in zip(getattr(tree, "_fields"), tree)]
    elif isinstance(tree, (list, tuple)):
        parts = [(f"{path}[{place}]", part) for place, part in enumerate(tree)]
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        parts = [(f"{path}.{field.name}", getattr(tree, field.name)) for field in dataclasses.fields(tree)]
    else:
        return
    for path, part in parts:
        yield from _walk(part, path, depth + 1)


def rearrange(structure: str, arrays: list[Array]) -> Any:
    """Builds the tree that a received structure describes. Raises `ValueError` if any part of the
    structure is invalid."""
    if structure == "null" and len(arrays) == 1:
        return arrays[0]
    if structure == _flat(len(arrays)):
        return list(arrays)
    rest = iter(arrays)
    try:
        parsed = json.loads(structure)
        tree = _rearranged(parsed, rest, 0)
    except StopIteration:
        raise ValueError("the bundle has fewer arrays than places for them") from None
    except (KeyError, TypeError, binascii.Error, RecursionError, json.JSONDecodeError) as error:
        raise ValueError(f"the bundle's structure is invalid: {error}") from None
    if next(rest, None) is not None:
        raise ValueError("the bundle has more arrays than places for them")
    return tree


def _rearranged(structure: Any, arrays: Iterator[Array], depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise ValueError(f"the bundle's tree is deeper than {_MAX_DEPTH}")
    if structure is None:
        return next(arrays)
    # Most nodes are arrays. `_parts` handles a list of arrays without a call for each array.
    if isinstance(structure, list):
        return _parts(structure, arrays, depth)
    if isinstance(structure, dict) and len(structure) == 1:
        (kind, parts), = structure.items()
        if kind == "t" and isinstance(parts, list):
            return tuple(_parts(parts, arrays, depth))
        if kind == "d" and isinstance(parts, dict):
            return {
                key: next(arrays) if part is None else _rearranged(part, arrays, depth + 1)
                for key, part in parts.items()
            }
        if kind == "v" and type(parts) in _VALUES:
            return parts
        rebuild = _REBUILD.get(kind)
        if rebuild is not None:
            return rebuild(parts, arrays, depth)
    raise ValueError("the bundle's structure has a part of an unknown kind")


def _parts(parts: list[Any], arrays: Iterator[Array], depth: int) -> list[Any]:
    return [next(arrays) if part is None else _rearranged(part, arrays, depth + 1) for part in parts]


def _keyed(parts: Any, arrays: Iterator[Array], depth: int) -> Any:
    found: dict[Any, Any] = {}
    for key, part in _list(parts):
        key = _rearranged(key, arrays, depth + 1)
        if not _is_key(key):
            raise ValueError("the bundle has a dict with an invalid key")
        found[key] = _rearranged(part, arrays, depth + 1)
    return found


def _complex(parts: Any, _arrays: Iterator[Array], _depth: int) -> complex:
    real, imaginary = _list(parts)
    if type(real) is not float or type(imaginary) is not float:
        raise ValueError("the bundle has an invalid complex number")
    return complex(real, imaginary)


def _short_bytes(parts: Any, _arrays: Iterator[Array], _depth: int) -> bytes:
    return base64.b64decode(parts, validate=True)


def _long_bytes(_parts: Any, arrays: Iterator[Array], _depth: int) -> bytes:
    return builtins.bytes(memoryview(next(arrays)))


def _scalar(parts: Any, _arrays: Iterator[Array], _depth: int) -> Any:
    text, nbytes, encoded = _list(parts)
    if type(text) is not str or type(nbytes) is not int:
        raise ValueError("the bundle has an invalid scalar")
    data = base64.b64decode(encoded, validate=True)
    dtype = _dtypes.dtype_named(text) if text.isidentifier() else _dtypes.dtype_of(text, nbytes)
    if dtype.hasobject or dtype.itemsize != len(data) or len(data) == 0:
        raise ValueError("the bundle has an invalid scalar")
    import numpy

    return numpy.frombuffer(data, dtype)[0]


def _named(parts: Any, arrays: Iterator[Array], depth: int) -> Any:
    module, name, fields, parts = _fielded(parts)
    values = _parts(parts, arrays, depth)
    cls = _class(module, name)
    if cls is not None and issubclass(cls, tuple) and not _has_finalizer(cls):
        own = inspect.getattr_static(cls, "_fields", None)
        if own == tuple(fields):
            # `tuple.__new__` skips the class's own `__new__`.
            return tuple.__new__(cls, values)
    last = name.rpartition(".")[2]
    if not last.isidentifier() or keyword.iskeyword(last):
        last = "Tuple"
    if any(not field.isidentifier() or keyword.iskeyword(field) or field.startswith("_") for field in fields):
        raise ValueError("the bundle has a named tuple with invalid fields")
    plain: Any = collections.namedtuple(last, fields)  # type: ignore[misc]
    return plain(*values)


def _dataclass(parts: Any, arrays: Iterator[Array], depth: int) -> Any:
    module, name, fields, parts = _fielded(parts)
    values = _parts(parts, arrays, depth)
    cls = _class(module, name)
    if cls is not None and _is_plain_dataclass(cls, fields):
        try:
            made: Any = object.__new__(cls)
            for field, value in zip(fields, values):
                # `object.__setattr__` skips the class's own `__setattr__`, so it works for frozen
                # dataclasses.
                object.__setattr__(made, field, value)
            return made
        except (TypeError, AttributeError):
            pass
    return types.SimpleNamespace(**dict(zip(fields, values)))


def _fielded(parts: Any) -> tuple[str, str, list[str], list[Any]]:
    module, name, fields, parts = _list(parts)
    if not (isinstance(module, str) and isinstance(name, str) and isinstance(fields, list) and isinstance(parts, list)):
        raise ValueError("the bundle has an invalid object")
    if len(fields) != len(parts) or len(fields) > _MOST_FIELDS or len(set(fields)) != len(fields):
        raise ValueError("the bundle has an object with invalid fields")
    if not all(isinstance(field, str) for field in fields):
        raise ValueError("the bundle has an object with field names that are not strings")
    return module, name, fields, parts


def _list(parts: Any) -> list[Any]:
    if not isinstance(parts, list):
        raise ValueError("the bundle's structure has a part that is not a list")
    return parts


def _class(module: str, name: str) -> type | None:
    """Returns a class from a module that is already imported, or None. Runs no code from the
    module."""
    found: Any = sys.modules.get(module)
    if not issubclass(type(found), types.ModuleType):
        return None
    for part in name.split("."):
        found = found.__dict__.get(part) if issubclass(type(found), type) else object.__getattribute__(
            found, "__dict__"
        ).get(part)
        if not issubclass(type(found), type):
            return None
    cls: type = found
    return cls


def _has_finalizer(cls: type) -> bool:
    return any("__del__" in vars(base) for base in cls.__mro__)


def _is_plain_dataclass(cls: type, fields: list[str]) -> bool:
    """Returns whether an instance of a class can be built field by field without running the
    class's code."""
    if not isinstance(inspect.getattr_static(cls, "__dataclass_fields__", None), dict) or _has_finalizer(cls):
        return False
    if [field.name for field in dataclasses.fields(cls)] != fields:
        return False
    for field in fields:
        own = inspect.getattr_static(cls, field, None)
        if hasattr(type(own), "__set__") and not isinstance(own, types.MemberDescriptorType):
            return False
    return True


def _frame(parts: Any, arrays: Iterator[Array], _depth: int) -> Any:
    from . import _frames

    return _frames.rearrange(parts, arrays)


_REBUILD = {
    "k": _keyed, "c": _complex, "b": _short_bytes, "B": _long_bytes, "n": _scalar, "nt": _named, "dc": _dataclass,
    "f": _frame,
}  # fmt: skip
