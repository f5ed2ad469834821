"""Tables of pandas, Polars and Arrow, and arrays of xarray: sharing them, and opening forged
bundles."""

from __future__ import annotations

import base64
import copy
import datetime
import decimal
import json
import pickle
import random
from typing import Any

import numpy as np
import pytest
from conftest import Peer

import crosshandle
from crosshandle import _frames, _trees

pa = pytest.importorskip("pyarrow")

BATCH = {
    "int": pa.array([1, None, 3], pa.int32()),
    "bool": pa.array([True, None, False]),
    "float": pa.array([1.5, float("nan"), None]),
    "text": pa.array(["a", None, "ünï"]),
    "large": pa.array(["x" * 50, "", None], pa.large_string()),
    "view": pa.array(["short", None, "long enough to be outside of the view"], pa.string_view()),
    "bytes": pa.array([b"\0", None, b"abc"]),
    "fixed": pa.array([b"abcd", None, b"efgh"], pa.binary(4)),
    "null": pa.nulls(3),
    "date": pa.array([datetime.date(2024, 2, 29), None, datetime.date(1, 1, 1)]),
    "time": pa.array([0, None, 5], pa.timestamp("us", "Europe/Berlin")),
    "decimal": pa.array([decimal.Decimal("1.23"), None, decimal.Decimal("-4.00")], pa.decimal128(10, 2)),
    "category": pa.array(["u", None, "v"]).dictionary_encode(),
    "list": pa.array([[1, 2], None, []], pa.list_(pa.int16())),
    "lists": pa.array([[["a"], None], None, [[None, "b"]]], pa.large_list(pa.list_(pa.string()))),
    "pair": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2)),
    "list view": pa.array([[1], None, [2, 3]], pa.list_view(pa.int64())),
    "struct": pa.array([{"a": 1, "b": {"c": "x"}}, None, {"a": None, "b": None}]),
    "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int8())),
    "sparse": pa.UnionArray.from_sparse(pa.array([0, 1, 0], pa.int8()), [pa.array([1, 2, 3]), pa.array(["a", "b", "c"])]),
    "dense": pa.UnionArray.from_dense(
        pa.array([0, 1, 0], pa.int8()), pa.array([0, 0, 1], pa.int32()), [pa.array([1, 2]), pa.array(["a"])]
    ),
    "runs": pa.RunEndEncodedArray.from_arrays([2, 3], ["a", None]),
    "uuid": pa.array([b"0123456789abcdef", None, b"fedcba9876543210"], pa.uuid()),
    "list of categories": pa.array([["p", "q"], None, ["p"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
}  # fmt: skip


def opened(value: Any, **options: Any) -> Any:
    return crosshandle.open(crosshandle.share(value, **options))


@pytest.mark.parametrize("name", BATCH)
def test_every_type_of_arrow_crosses(name: str) -> None:
    column = BATCH[name]
    many = pa.chunked_array([column, column.slice(1, 2), column.slice(3), column])
    # pyarrow cannot make empty arrays of unions itself.
    empty = [] if pa.types.is_union(column.type) else [column.slice(0, 0)]
    for value in (column, column.slice(1), column.slice(2, 1), *empty, many, many.slice(2, 4)):
        frame = opened(value, copy=True)
        assert frame.kind == f"pyarrow.{type(value).__name__ if value is many else frame.kind.partition('.')[2]}"
        back = frame.native()
        assert isinstance(back, type(value)) and back.type == value.type
        assert str(back.to_pylist()) == str(value.to_pylist())
        # The table is in shared memory now, so it can be shared again without a copy.
        again = opened(back).native()
        assert str(again.to_pylist()) == str(value.to_pylist())
        if len(back) > 1 or empty:
            again = opened(back.slice(1)).native()
            assert str(again.to_pylist()) == str(value.slice(1).to_pylist())


def test_tables_come_back_as_their_kind() -> None:
    batch = pa.record_batch(BATCH)
    table = pa.Table.from_batches([batch, batch.slice(1), batch.slice(2, 0)]).replace_schema_metadata({"k": "v"})
    for value in (batch, table, table.slice(2), table.select([]), table.slice(0, 0)):
        frame = opened(value, copy=True)
        back = frame.native()
        assert type(back) is type(value) and back.schema.equals(value.schema, check_metadata=True)
        assert str(back.to_pylist()) == str(value.to_pylist()) and frame.shape == value.shape
    assert opened({"t": [table]}, copy=True)["t"][0].arrow().num_rows == 5
    assert pa.table(opened(table.select(["int"]), copy=True)).num_rows == 5
    assert opened(table, copy=True)["int"].to_pylist() == [1, None, 3, None, 3]
    with pytest.raises(ValueError, match=r"^pass copy=True .* table"):
        crosshandle.share(table)
    with pytest.raises(ValueError, match=r'^tree\["t"\]\[0\] is a pyarrow.lib.Table: pass copy=True'):
        crosshandle.share({"t": [table]})


def test_numbers_are_not_copied() -> None:
    array = crosshandle.asarray(np.arange(1000.0))
    table = pa.table({"x": pa.array(array.numpy()), "y": pa.array(crosshandle.asarray(np.arange(1000)).numpy())})
    back = opened(table).native()
    column = back["x"].chunk(0).to_numpy()
    array[3] = -7
    assert column[3] == -7 and not column.flags.writeable
    sliced = opened(back.slice(3, 5))
    assert sliced.pandas()["x"].tolist() == [-7, 4, 5, 6, 7]
    array[3] = 9
    assert np.shares_memory(sliced.pandas()["x"].to_numpy(), sliced.native()["x"].chunk(0).to_numpy())


def test_pandas() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(
        {
            "i": [1, 2, 3], "f": [1.5, np.nan, -1], "s": ["a", None, "ü"], "d": pd.to_datetime(["2024-02-29", None, "2000-01-01"]),
            "c": pd.Categorical(["u", "v", "u"]), "b": [True, False, True], "n": pd.array([1, None, 3], "Int64"),
            "z": pd.date_range("2024", periods=3, tz="UTC"), "t": pd.to_timedelta([1, 2, 3], "s"), "p": pd.period_range("2024", periods=3, freq="M"),
        },
        index=pd.Index([10, 20, 30], name="key"),
    )  # fmt: skip
    back = opened(frame, copy=True)
    assert back.kind == "pandas.DataFrame" and back.shape[0] == 3 and "f" in back.columns
    pd.testing.assert_frame_equal(back.native(), frame)
    for index in (pd.RangeIndex(3), pd.MultiIndex.from_tuples([(1, "a"), (1, "b"), (2, "a")], names=["x", "y"])):
        pd.testing.assert_frame_equal(opened(frame.set_index(index), copy=True).pandas(), frame.set_index(index))
    for name in ("i", "s", "c", "d"):
        pd.testing.assert_series_equal(opened(frame[name], copy=True).native(), frame[name])
    for series in (pd.Series([1, 2]), pd.Series([1, 2], name=7), pd.Series([], dtype="float64", name="e")):
        pd.testing.assert_series_equal(opened(series, copy=True).native(), series)
    pd.testing.assert_index_equal(opened(frame.index, copy=True).native(), frame.index)
    array = crosshandle.asarray(np.arange(5.0))
    ours = pd.DataFrame({"x": array.numpy()}, copy=False)
    view = opened(ours).pandas()
    array[2] = 99
    assert view["x"].tolist() == [0, 1, 99, 3, 4]
    with pytest.raises(ValueError, match="^pass copy=True"):
        crosshandle.share(frame)
    with pytest.raises((TypeError, ValueError), match="objects|Could not convert|mixed|Expected|tried to convert|did not recognize"):
        crosshandle.share(pd.DataFrame({"x": [1, "a", object()]}), copy=True)


def test_polars() -> None:
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame(
        {"i": [1, None, 3], "s": ["a", None, "long enough to be outside of a view"], "l": [[1], [], None], "d": [datetime.date(2024, 2, 29)] * 3}
    ).with_columns(c=pl.Series(["u", "v", "u"], dtype=pl.Categorical), e=pl.Series(["x", "y", None], dtype=pl.Enum(["x", "y"])))  # fmt: skip
    back = opened(frame, copy=True)
    assert back.kind == "polars.DataFrame" and back.native().equals(frame) and back.native().schema == frame.schema
    assert opened(back.native().slice(1), copy=True).polars().equals(frame.slice(1))
    series = opened(frame["s"], copy=True).native()
    assert series.name == "s" and series.equals(frame["s"])
    assert opened(pl.DataFrame(), copy=True).native().equals(pl.DataFrame())
    with pytest.raises(TypeError, match="collect"):
        crosshandle.share(frame.lazy(), copy=True)


def test_xarray() -> None:
    xr = pytest.importorskip("xarray")
    grid = crosshandle.asarray(np.arange(6.0).reshape(2, 3))
    plain = xr.DataArray(grid.numpy(), dims=("y", "x"), name="t", attrs={"unit": "K", "scale": 2, "range": [0, 1]})
    back = opened(plain).native()
    xr.testing.assert_identical(back, plain)
    grid[1, 1] = 50
    assert back.values[1, 1] == 50
    full = plain.assign_coords(x=[1, 2, 3], y=["a", "b"], time=("y", np.array(["2024", "2025"], "M8[ns]")))
    xr.testing.assert_identical(opened(full, copy=True).xarray(), full)
    dataset = xr.Dataset({"t": full, "n": ("x", [1, 2, 3]), "scalar": 5}, attrs={"title": "x"})
    frame = opened([dataset], copy=True)[0]
    assert frame.kind == "xarray.Dataset"
    xr.testing.assert_identical(frame.native(), dataset)
    with pytest.raises(ValueError, match="pass copy=True"):
        crosshandle.share(full)
    with pytest.raises(TypeError, match="not a table"):
        frame.arrow()


def take(pipe: Any) -> None:
    frame = crosshandle.open(pipe.recv())
    pipe.send((frame.kind, frame.arrow().to_pydict()))
    pipe.send(frame)
    pipe.recv()


def test_a_frame_crosses_between_processes_and_by_pickles(start: Any) -> None:
    table = pa.table({"x": [1, 2, None], "s": ["a", None, "c"]})
    bundle = crosshandle.share(table, copy=True)
    peer: Peer = start(take)
    peer.send(bytes(bundle))
    assert peer.receive() == ("pyarrow.Table", table.to_pydict())
    relayed = peer.receive()
    assert relayed.native().equals(table)
    peer.send("end")
    peer.end()
    assert pickle.loads(pickle.dumps(relayed)).native().equals(table) and copy.copy(relayed).native().equals(table)


def test_no_forged_table_breaks_anything() -> None:
    generator = random.Random(66)
    for name, column in BATCH.items():
        leaves = _trees.Leaves(None, True)
        parts = _frames.arrange(column, leaves)
        arrays = list(leaves)
        assert str(_frames.rearrange(parts, iter(arrays)).native().to_pylist()) == str(column.to_pylist()), name
        for _ in range(40):
            forged = json.loads(json.dumps(parts))
            _change(generator, forged["batches"])
            _look(forged, arrays)
        for place, array in enumerate(arrays):
            changed = crosshandle.asarray(array.numpy().view("uint8"))
            for _ in range(10):
                changed[generator.randrange(changed.size)] = generator.choice([0, 1, 2, 127, 128, 255])
                _look(parts, [*arrays[:place], changed, *arrays[place + 1 :]])
        data = bytearray(base64.b64decode(parts["schema"]))
        for _ in range(40):
            data[generator.randrange(len(data))] = generator.randrange(256)
            _look(parts | {"schema": base64.b64encode(data).decode()}, arrays)
    for wrong in (None, {}, {"kind": "pyarrow.Table"}, {"kind": "x"}, parts | {"schema": "%"}, parts | {"batches": [[1, []]]}):
        with pytest.raises(ValueError):
            _frames.rearrange(wrong, iter(arrays))


def _look(parts: Any, arrays: list[Any]) -> None:
    """Opens a forged table. Checks that `open` refuses the bundle, or that all of the table can be
    read."""
    try:
        frame = _frames.rearrange(parts, iter(arrays))
    except (ValueError, StopIteration, crosshandle.Error):
        return
    try:
        str(frame.native().to_pylist())
    except (ValueError, ArithmeticError, pa.ArrowException):
        # Python cannot represent some values, such as dates of the year 300,000.
        pass


def _change(generator: random.Random, parts: Any) -> None:
    """Changes one number of a table's description, or removes a part of it."""
    while True:
        keys: list[Any] = list(parts) if isinstance(parts, dict) else list(range(len(parts)))
        if not keys:
            return
        key = generator.choice(keys)
        if isinstance(parts[key], (list, dict)) and generator.random() < 0.9:
            parts = parts[key]
            continue
        parts[key] = generator.choice([None, 0, 1, -1, 2, 3, 1 << 40, 1 << 61, "x", [], {}, parts[key]])
        return
