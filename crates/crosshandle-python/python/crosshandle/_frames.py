"""Sharing of tables (pandas, Polars, Arrow) and labelled arrays (xarray).

A bundle contains a table as an Arrow schema (in Arrow's IPC format) and the buffers of its columns.
Each buffer is an array in the bundle, so a table in shared memory is not copied. Tables are shared
read-only, because Arrow arrays are immutable.

The receiver builds Arrow arrays over the buffers, and pyarrow validates all of them
(`validate(full=True)`). The sender can still write to the shared memory after this check. Therefore
the receiver copies each buffer whose numbers are used as positions: offsets, dictionary indices,
type ids and run ends. It does not copy buffers that contain values.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from typing import Any

from . import _crosshandle as _rust
from ._crosshandle import Array

_MAX_DEPTH = 40
_MOST_BATCHES = 1 << 20

_TABLES = {
    "pandas.DataFrame", "pandas.Series", "pandas.Index", "polars.DataFrame", "polars.Series", "pyarrow.Table",
    "pyarrow.RecordBatch", "pyarrow.ChunkedArray", "pyarrow.Array",
}  # fmt: skip
_GRIDS = {"xarray.DataArray", "xarray.Dataset"}
_NAMELESS = {"pandas.Series", "pandas.Index", "polars.Series", "pyarrow.ChunkedArray", "pyarrow.Array"}
# The name of an extension type whose metadata old pyarrow releases unpickle when they read a
# schema. A schema that contains this name is rejected.
_PICKLED = b"arrow.py_extension_type"


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise ImportError(
            "sharing tables needs pyarrow, which is not installed: install pyarrow, or share the columns as NumPy arrays"
        ) from None
    return pyarrow


class Frame:
    """A received table or labelled array.

    Its columns are in shared memory and read-only.

    `native()` returns an object of the type that the sender passed to `share`. `arrow()`,
    `pandas()`, `polars()` and `xarray()` convert the table to another library's type. Libraries
    that read Arrow's C interface accept a `Frame` directly, for example `pyarrow.table(frame)`.

    >>> import pyarrow
    >>> table = pyarrow.table({"x": [1, 2, 3], "name": ["a", None, "c"]})
    >>> frame = crosshandle.open(crosshandle.share(table, copy=True))
    >>> frame.kind, frame.shape
    ('pyarrow.Table', (3, 2))
    >>> frame.native().equals(table)
    True
    >>> table, data = frame.arrow(), frame.pandas()         # needs pandas
    >>> data = frame.polars()                               # needs polars
    >>> data = frame.xarray()                               # needs xarray
    """

    def __init__(self, kind: str, value: Any, name: Any = None):
        self._kind = kind
        # A pyarrow table, or an xarray DataArray or Dataset.
        self._value = value
        self._name = name

    @property
    def kind(self) -> str:
        """The type of the object that was shared, such as `pandas.DataFrame`."""
        return self._kind

    @property
    def columns(self) -> list[str]:
        """The names of the columns. For an xarray Dataset, the names of its variables. For an
        xarray DataArray, the names of its coordinates."""
        if self._kind in _GRIDS:
            return [str(name) for name in self._value.coords] if self._kind == "xarray.DataArray" else [
                str(name) for name in self._value.variables
            ]
        names: list[str] = self._value.column_names
        return names

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of rows and columns, or the shape of an xarray object."""
        shape: tuple[int, ...] = getattr(self._value, "shape", ()) or tuple(getattr(self._value, "sizes", {}).values())
        return shape

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 0

    def __getitem__(self, key: Any) -> Any:
        return self.native()[key]

    def native(self) -> Any:
        """Returns an object of the type that was shared, such as a pandas DataFrame."""
        library, _, cls = self._kind.partition(".")
        if library == "xarray":
            return self._value
        if library == "pandas":
            return self._to_pandas(cls)
        if library == "polars":
            return self._to_polars(cls)
        return self.arrow()

    def arrow(self) -> Any:
        """Returns a pyarrow table.

        If a record batch, an array or a chunked array was shared, returns that instead of a table.
        """
        table = self._table()
        if self._kind == "pyarrow.RecordBatch":
            batches = table.to_batches()
            return batches[0] if batches else _pyarrow().RecordBatch.from_pylist([], schema=table.schema)
        if self._kind in _NAMELESS:
            column = table.column(0)
            return column.combine_chunks() if self._kind == "pyarrow.Array" and column.num_chunks != 1 else (
                column.chunk(0) if self._kind == "pyarrow.Array" else column
            )
        return table

    def pandas(self) -> Any:
        """Returns a pandas DataFrame.

        If a Series or an Index was shared, returns that instead of a DataFrame. Columns of numbers
        without nulls are not copied.
        """
        if self._kind in _GRIDS:
            return self._value.to_pandas() if self._kind == "xarray.DataArray" else self._value.to_dataframe()
        own = self._kind.partition(".")[2] if self._kind in _NAMELESS else "DataFrame"
        return self._to_pandas("Index" if own == "Index" else "Series" if self._kind in _NAMELESS else "DataFrame")

    def polars(self) -> Any:
        """Returns a Polars DataFrame, or a Series if a single column was shared."""
        return self._to_polars("Series" if self._kind in _NAMELESS else "DataFrame")

    def xarray(self) -> Any:
        """Returns the xarray DataArray or Dataset that was shared. Converts a table to a
        Dataset."""
        if self._kind in _GRIDS:
            return self._value
        import xarray

        return xarray.Dataset.from_dataframe(self._to_pandas("DataFrame"))

    def _table(self) -> Any:
        if self._kind in _GRIDS:
            raise TypeError("an xarray array is not an Arrow table: use frame.xarray() or frame.pandas()")
        return self._value

    def _to_pandas(self, cls: str) -> Any:
        frame = self._table().to_pandas(split_blocks=True)
        if cls == "DataFrame":
            return frame
        series = frame.iloc[:, 0]
        series.name = self._name
        if cls == "Index":
            import pandas

            return pandas.Index(series, name=self._name)
        return series

    def _to_polars(self, cls: str) -> Any:
        import polars

        if cls == "Series":
            return polars.Series("" if self._name is None else str(self._name), self._table().column(0))
        return polars.from_arrow(self._table())

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> Any:
        return self._table().schema.__arrow_c_schema__()

    def __reduce__(self) -> Any:
        from . import _pending
        from ._sharing import share

        return _pending.reduced_bundle(share(self), _pending._open)

    def __repr__(self) -> str:
        return f"<crosshandle.Frame {self._kind}, {' × '.join(map(str, self.shape))}>"


def kind_of(value: Any) -> str:
    """Returns the type name of a table or labelled array, such as `pandas.DataFrame`. Raises
    `TypeError` for any other object."""
    if isinstance(value, Frame):
        return value.kind
    library = type(value).__module__.partition(".")[0]
    for cls in type(value).__mro__:
        kind = f"{cls.__module__.partition('.')[0]}.{cls.__name__}"
        if kind in _TABLES or kind in _GRIDS:
            return kind
    name = type(value).__name__
    if library == "polars" and name == "LazyFrame":
        raise TypeError("a LazyFrame has no data yet: share frame.collect()")
    if hasattr(value, "__arrow_c_stream__"):
        return "pyarrow.Table"
    if hasattr(value, "__arrow_c_array__"):
        return "pyarrow.Array"
    raise TypeError(
        f"{library}.{name} is not a table, column or array that can be shared: share a DataFrame, a Series, an Arrow table "
        "or array, or an xarray"
    )


def arrange(value: Any, leaves: Any) -> Any:
    """Returns the description of a table or labelled array for a bundle's structure, and appends
    its buffers to `leaves`."""
    kind = kind_of(value)
    if kind in _GRIDS:
        return _arrange_grid(kind, value._value if isinstance(value, Frame) else value, leaves)
    pyarrow = _pyarrow()
    name, table = _as_table(pyarrow, kind, value)
    try:
        buffers: list[Any] = []
        batches = _batches(table, buffers)
        arrays = _shared(buffers)
    except ValueError:
        if not leaves.copies:
            raise ValueError(
                "pass copy=True to share a copy of this table: some of its columns are in memory that no other process can reach"
            ) from None
        table = _copied(pyarrow, table)
        buffers = []
        batches = _batches(table, buffers)
        arrays = _shared(buffers)
    for array in arrays:
        leaves.owners[len(leaves)] = value
        leaves.append(array)
    schema = base64.b64encode(table.schema.serialize()).decode()
    return {"kind": kind, "name": _checked_name(name), "schema": schema, "batches": batches}


def _checked_name(name: Any) -> Any:
    if name is None or type(name) in (str, int, float, bool):
        return name
    raise TypeError(f"the name of a shared column is a string or a number, not {name!r}")


def _as_table(pyarrow: Any, kind: str, value: Any) -> tuple[Any, Any]:
    """Converts an object to an Arrow table. Returns the column's name (None unless the object is a
    single named column) and the table."""
    if isinstance(value, Frame):
        return value._name, value._table()
    if kind == "pandas.DataFrame":
        return None, pyarrow.Table.from_pandas(value)
    if kind == "pandas.Series":
        return value.name, pyarrow.Table.from_pandas(value.to_frame(name="0"))
    if kind == "pandas.Index":
        if value.nlevels > 1:
            raise TypeError("an Index of several levels is shared as a table: share index.to_frame()")
        return value.name, pyarrow.Table.from_pandas(value.to_frame(index=False, name="0"))
    if kind == "polars.DataFrame":
        return None, pyarrow.table(value)
    if kind == "polars.Series":
        return value.name, pyarrow.table({"0": pyarrow.chunked_array(value)})
    if kind == "pyarrow.RecordBatch":
        return None, pyarrow.Table.from_batches([value])
    if kind == "pyarrow.ChunkedArray":
        return None, pyarrow.table({"0": value})
    if kind == "pyarrow.Array":
        return None, pyarrow.table({"0": value if isinstance(value, pyarrow.Array) else pyarrow.array(value)})
    return None, value if isinstance(value, pyarrow.Table) else pyarrow.table(value)


def _copied(pyarrow: Any, table: Any) -> Any:
    """Copies a table into one block of shared memory, in Arrow's stream format. Receivers use the
    columns in this block without another copy."""
    from ._sharing import default_context

    def write(sink: Any) -> None:
        with pyarrow.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)

    measured = pyarrow.MockOutputStream()
    write(measured)
    array = default_context().empty(measured.size(), "uint8")
    with pyarrow.FixedSizeBufferWriter(pyarrow.py_buffer(array)) as sink:
        write(sink)
    return pyarrow.ipc.open_stream(pyarrow.py_buffer(array)).read_all()


def _batches(table: Any, buffers: list[Any]) -> list[Any]:
    return [[batch.num_rows, [_described(column, 0, buffers) for column in batch.columns]] for batch in table.to_batches()]


def _described(array: Any, back: int, buffers: list[Any]) -> Any:
    """Describes an Arrow array and its children, and appends their buffers to `buffers`. The
    description starts `back` elements before the array's first element."""
    kind = array.type
    pyarrow = _pyarrow()
    if isinstance(array, pyarrow.ExtensionArray):
        return _described(array.storage, back, buffers)
    if pyarrow.types.is_dictionary(kind):
        return {"i": _described(array.indices, back, buffers), "d": _described(array.dictionary, 0, buffers)}
    own = array.buffers()
    if not _is_view(pyarrow, kind):
        own = own[: kind.num_buffers]
    places: list[Any] = []
    for buffer in own:
        if buffer is None:
            places.append(None)
        elif buffer.size == 0:
            places.append(0)
        else:
            places.append(buffer.size)
            buffers.append(buffer)
    found = {"l": len(array) + back, "o": array.offset - back, "b": places}
    # pyarrow returns the children of structs and sparse unions as slices that start at the parent's
    # first element.
    moved = array.offset if pyarrow.types.is_struct(kind) or (pyarrow.types.is_union(kind) and kind.mode == "sparse") else 0
    children = [_described(child, moved, buffers) for child in _children(pyarrow, array)]
    return found | {"c": children} if children else found


def _is_view(pyarrow: Any, kind: Any) -> bool:
    return kind in (pyarrow.string_view(), pyarrow.binary_view())


def _children(pyarrow: Any, array: Any) -> list[Any]:
    kind = array.type
    if pyarrow.types.is_struct(kind) or pyarrow.types.is_union(kind):
        return [array.field(place) for place in range(kind.num_fields)]
    if pyarrow.types.is_run_end_encoded(kind):
        return [array.run_ends, array.values]
    return [array.values] if kind.num_fields else []


def _shared(buffers: list[Any]) -> list[Array]:
    """Returns Arrow buffers as read-only arrays in shared memory.

    Raises `ValueError` if a buffer is not in shared memory.
    """
    from . import _sharing, _trees

    leaves = _trees.Leaves(None, False)
    # Adopt each buffer only once, because columns of a table may share buffers.
    places: dict[tuple[int, int], int] = {}
    for buffer in buffers:
        if places.setdefault((buffer.address, buffer.size), len(leaves)) == len(leaves):
            leaves.append(buffer)
    arrays = _sharing._arrays(leaves, False)
    return [arrays[places[buffer.address, buffer.size]]._as_read_only() for buffer in buffers]


def rearrange(parts: Any, arrays: Iterator[Array]) -> Frame:
    """Builds the table or labelled array that a bundle describes, and validates it. Raises
    `ValueError` if the description is invalid."""
    if not isinstance(parts, dict):
        raise ValueError("the bundle has an invalid table")
    kind = parts.get("kind")
    if kind in _GRIDS:
        return _rearrange_grid(kind, parts, arrays)
    if kind not in _TABLES or not isinstance(parts.get("batches"), list) or len(parts["batches"]) > _MOST_BATCHES:
        raise ValueError("the bundle has a table of an unknown kind")
    pyarrow = _pyarrow()
    try:
        data = base64.b64decode(parts["schema"], validate=True)
        if _PICKLED in data:
            raise ValueError("its schema has a type that reading would unpickle")
        schema = pyarrow.ipc.read_schema(pyarrow.py_buffer(data))
        batches = []
        for rows, columns in parts["batches"]:
            if type(rows) is not int or rows < 0 or not isinstance(columns, list) or len(columns) != len(schema):
                raise ValueError("the columns of a batch do not match the schema")
            built = [_built(pyarrow, field.type, column, arrays, 0) for field, column in zip(schema, columns)]
            if any(len(column) != rows for column in built):
                raise ValueError("a batch has columns of different lengths")
            batches.append(
                pyarrow.RecordBatch.from_arrays(built, schema=schema) if built else
                pyarrow.RecordBatch.from_struct_array(pyarrow.array([{}] * rows, pyarrow.struct([])))
            )
        table = pyarrow.Table.from_batches(batches, schema=schema)
        table.validate(full=True)
        if kind in _NAMELESS and table.num_columns < 1:
            raise ValueError("a column is missing")
    except (
        pyarrow.ArrowException, KeyError, TypeError, OverflowError, AttributeError, MemoryError, OSError,
        binascii.Error, ValueError,
    ) as error:  # fmt: skip
        raise ValueError(f"the bundle has an invalid table: {error}") from error
    return Frame(kind, table, _checked_name(parts.get("name")))


def _built(pyarrow: Any, kind: Any, parts: Any, arrays: Iterator[Array], depth: int) -> Any:
    """Builds an Arrow array of type `kind` from a bundle's description. Validates the array and its
    children completely. A negative `depth` marks an array whose values are used as positions."""
    if depth > _MAX_DEPTH:
        raise ValueError("it is too deep")
    if isinstance(kind, pyarrow.BaseExtensionType):
        storage = _built(pyarrow, kind.storage_type, parts, arrays, depth + 1)
        return pyarrow.ExtensionArray.from_storage(kind, storage)
    if pyarrow.types.is_dictionary(kind):
        indices = _built(pyarrow, kind.index_type, parts["i"], arrays, -depth - 1)
        dictionary = _built(pyarrow, kind.value_type, parts["d"], arrays, depth + 1)
        built = pyarrow.DictionaryArray.from_arrays(indices, dictionary, ordered=kind.ordered, safe=True)
        built.validate(full=True)
        return built
    # See the docstring for the meaning of a negative depth.
    is_followed, depth = depth < 0, abs(depth)
    length, offset, places, children = parts["l"], parts["o"], parts["b"], parts.get("c", [])
    if type(length) is not int or type(offset) is not int or min(length, offset) < 0 or length + offset >= 1 << 62:
        raise ValueError("it has invalid lengths")
    # The indexes of the buffers that contain positions. Null bitmaps and values do not.
    followed = {1} if is_followed else _followed(pyarrow, kind)
    buffers: list[Any] = []
    for place, size in enumerate(places):
        if size is None:
            buffers.append(None)
        elif size == 0:
            buffers.append(pyarrow.py_buffer(b""))
        else:
            array = next(arrays)
            if array.nbytes != size or array.itemsize != 1 or array.ndim != 1:
                raise ValueError("it has a buffer of the wrong size")
            buffers.append(_buffer(pyarrow, array, place in followed))
    # pyarrow aborts the process if an array of one of these types has a null bitmap.
    is_without_nulls = pyarrow.types.is_union(kind) or pyarrow.types.is_run_end_encoded(kind) or pyarrow.types.is_null(kind)
    if not buffers or (is_without_nulls and buffers[0] is not None):
        raise ValueError("it has a null bitmap, which its type does not allow")
    types = _child_types(pyarrow, kind)
    if len(types) != len(children):
        raise ValueError("its children do not match its type")
    run_ends = pyarrow.types.is_run_end_encoded(kind)
    built_children = []
    for place, (child, part) in enumerate(zip(types, children)):
        is_run_ends = run_ends and place == 0
        built_children.append(_built(pyarrow, child, part, arrays, -depth - 1 if is_run_ends else depth + 1))
    built = pyarrow.Array.from_buffers(kind, length, buffers, -1, offset, built_children or None)
    built.validate(full=True)
    return built


def _followed(pyarrow: Any, kind: Any) -> set[int]:
    types = pyarrow.types
    if types.is_dictionary(kind) or types.is_primitive(kind) or types.is_decimal(kind) or types.is_fixed_size_binary(kind):
        return set()
    # Arrays of these types contain offsets, sizes, views or type ids in the following buffers.
    if types.is_union(kind) or types.is_list_view(kind) or types.is_large_list_view(kind):
        return {1, 2}
    return {1}


def _child_types(pyarrow: Any, kind: Any) -> list[Any]:
    if pyarrow.types.is_run_end_encoded(kind):
        return [kind.run_end_type, kind.value_type]
    if pyarrow.types.is_map(kind):
        return [pyarrow.struct([kind.key_field, kind.item_field])]
    return [kind.field(place).type for place in range(kind.num_fields)]


def _buffer(pyarrow: Any, array: Array, is_followed: bool) -> Any:
    if is_followed:
        from ._sharing import default_context

        array = _rust.copied(default_context(), _rust.describe(memoryview(array)))._as_read_only()
    return pyarrow.py_buffer(array)


def _arrange_grid(kind: str, value: Any, leaves: Any) -> Any:
    from . import _trees

    is_array = kind == "xarray.DataArray"
    variables = {name: variable.variable for name, variable in value.coords.items()}
    data = {None: value.variable} if is_array else {name: found.variable for name, found in value.data_vars.items()}
    tree = {
        "coords": {name: _variable(name, variable) for name, variable in variables.items()},
        "data": {name: _variable(name, variable) for name, variable in data.items()},
        "attrs": {} if is_array else dict(value.attrs),
        "name": value.name if is_array else None,
    }
    return {"kind": kind, "tree": _trees._arranged(tree, leaves, 1)}


def _variable(name: Any, variable: Any) -> Any:
    data = variable.data
    if type(data).__module__.partition(".")[0] == "dask":
        raise TypeError(f"{name!r} has no data yet: share the result of compute()")
    if not hasattr(data, "__cuda_array_interface__"):
        data = variable.values
    if data.dtype == object:
        import numpy

        if not all(isinstance(element, str) for element in data.flat):
            raise TypeError(f"{name!r} has elements that are objects of this process: share numbers, dates or strings")
        data = data.astype(numpy.str_)
    return (tuple(variable.dims), data, dict(variable.attrs))


def _rearrange_grid(kind: str, parts: Any, arrays: Iterator[Array]) -> Frame:
    import xarray

    from . import _trees

    tree = _trees._rearranged(parts.get("tree"), arrays, 1)
    try:
        coords = {name: _variable_of(found) for name, found in tree["coords"].items()}
        data = {name: _variable_of(found) for name, found in tree["data"].items()}
        if kind == "xarray.Dataset":
            return Frame(kind, xarray.Dataset(data, coords, attrs=tree["attrs"]))
        dims, values, attrs = data[None]
        return Frame(kind, xarray.DataArray(values, coords, dims, name=tree["name"], attrs=attrs))
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        raise ValueError(f"the bundle has an invalid xarray object: {error}") from error


def _variable_of(found: Any) -> Any:
    dims, array, attrs = found
    if not isinstance(array, Array):
        raise ValueError("a variable has no array")
    return dims, array.numpy() if array.device.startswith("host") else array.cupy(), attrs
