"""Trees: the values that can be shared besides arrays, refused values, and forged bundles."""

from __future__ import annotations

import dataclasses
import json
import math
import socket
import sys
import types
from collections import OrderedDict, namedtuple
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import pytest

import crosshandle
from crosshandle import _trees


class Point(NamedTuple):
    x: Any
    y: Any = 0


@dataclasses.dataclass(frozen=True)
class Batch:
    images: Any
    label: str = ""
    extra: Any = None

    def __post_init__(self) -> None:
        RAN.append("post_init")


@dataclasses.dataclass(slots=True)
class Slotted:
    a: Any
    b: Any


@dataclasses.dataclass
class WithProperty:
    a: Any

    def __setattr__(self, name: str, value: Any) -> None:
        RAN.append(name)
        object.__setattr__(self, name, value)


@dataclasses.dataclass
class Finalized:
    path: str

    def __del__(self) -> None:
        RAN.append(self.path)


class Fancy(NamedTuple("Base", [("a", Any)])):
    def __new__(cls, a: Any) -> Fancy:
        RAN.append("new")
        return super().__new__(cls, a)


class Color(IntEnum):
    RED = 1


RAN: list[str] = []
Gone = namedtuple("Gone", "left right")


def opened(tree: Any, **options: Any) -> Any:
    return crosshandle.open(crosshandle.share(tree, **options))


VALUES: list[Any] = [
    None, True, False, 0, -1, 1 << 4000, 1.5, -0.0, math.inf, "", "text \ud800 é\0", b"", b"abc", b"x" * 5000, 1 + 2j, (), [], {},
    (1, (2, [3.0, None])), {"a": None, "": {"b": ()}}, {0: "int", 1.5: "float", None: "none", (1, "a"): "pair", b"k": "bytes"},
    np.float32(1.5), np.int8(-3), np.bool_(True), np.datetime64("2024-02-29", "D"), np.complex64(1 + 1j),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:20])
def test_values_come_back_as_they_were(value: Any) -> None:
    for tree in (value, [value], {"a": (value,)}):
        back = opened(tree)
        assert repr(back) == repr(tree) and type(back) is type(tree) and back == tree
    assert math.isnan(opened(math.nan))


def test_named_tuples_and_dataclasses_keep_their_classes() -> None:
    array = crosshandle.full(2, 7)
    RAN.clear()
    tree = {"point": Point(array, [Slotted(1, "b")]), "batch": Batch(array, extra=(None, 3))}
    RAN.clear()
    back = opened(tree)
    assert type(back["point"]) is Point and back["point"].x.tolist() == [7, 7] and back["point"].y == [Slotted(1, "b")]
    assert type(back["batch"]) is Batch and back["batch"].extra == (None, 3) and back["batch"].label == ""
    assert opened(Fancy(3)) == (3,) and type(opened(tuple.__new__(Fancy, (3,)))) is Fancy
    assert type(opened(WithProperty(1))) is WithProperty
    # Only the test's own calls above have run code of the classes.
    assert RAN == ["new", "a"]


def test_classes_that_are_not_here_become_plain_ones() -> None:
    bundle = crosshandle.share([Gone(1, [2]), Finalized("x"), Point(1)])
    here = sys.modules[__name__]
    data = bytes(bundle)
    RAN.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(here, "Gone")
        patch.setattr(here, "Point", namedtuple("Point", "y x"))
        gone, finalized, point = crosshandle.open(data)
    assert type(gone) is not Gone and gone._fields == ("left", "right") and tuple(gone) == (1, [2])
    assert finalized == types.SimpleNamespace(path="x") and not RAN
    assert point._fields == ("x", "y") and type(point).__name__ == "Point" and type(point) is not Point


@pytest.mark.parametrize(
    ("leaf", "text"),
    [
        (socket.socket, r'^tree\["a"\]\[3\]\.y is a type: '),
        (..., r'^tree\["a"\]\[3\]\.y is a ellipsis: '),
        ({1, 2}, r'^tree\["a"\]\[3\]\.y is a set: '),
        (Color.RED, r'^tree\["a"\]\[3\]\.y is a test_trees.Color: '),
        (NotImplemented, "NotImplementedType"),
        (iter([]), "list_iterator"),
        ({Color.RED: 1}, r'^tree\["a"\]\[3\]\.y is a dict with a key of type test_trees.Color'),
        (np.array([None]), r'^tree\["a"\]\[3\]\.y is a numpy.ndarray: .*objects of this process'),
        (np.ones(3), r'^tree\["a"\]\[3\]\.y is a numpy.ndarray: pass copy=True'),
        (1 << 5000, r'^tree\["a"\]\[3\]\.y is a number of more than 4,096 bits'),
        (crosshandle.Event(), r'^tree\["a"\]\[3\]\.y is a crosshandle.Event: .*event.handle'),
    ],
    ids=repr,
)
def test_other_leaves_are_refused_by_type_and_path(leaf: Any, text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        crosshandle.share({"a": [1, crosshandle.empty(1), None, Point(0, leaf)]})


def test_dicts_of_other_kinds_become_dicts_in_their_order() -> None:
    back = opened(OrderedDict([("b", crosshandle.zeros(1)), ("a", 2)]))
    assert list(back) == ["b", "a"] and type(back) is dict
    state = {"state": {0: {"step": np.float32(3)}}, "param_groups": [{"lr": 1e-3, "betas": (0.9, 0.999)}]}
    assert opened(state) == state


def test_no_forged_structure_runs_or_breaks_anything() -> None:
    array = crosshandle.zeros(1)
    before = set(sys.modules)
    forged: list[Any] = [
        None, [None, None], {"t": 3}, {"d": [1]}, {"x": 1}, {}, {"t": [], "d": {}}, {"v": [1]}, {"c": [1, 2]}, {"c": [1.0]},
        {"b": "%%%"}, {"b": 3}, {"n": ["O", 8, "AAAAAAAAAAA="]}, {"n": ["object", 8, "AAAAAAAAAAA="]}, {"n": ["float64", 8, "AAAA"]},
        {"n": ["<U0", 0, ""]}, {"k": [[None, 1]]}, {"k": [[[], 1]]}, {"k": [[{"v": 1}]]}, {"k": 3}, {"nt": ["os", "system", ["a"], []]},
        {"nt": ["test_trees", "Point", ["x", "x"], [{"v": 1}, {"v": 2}]]}, {"nt": ["", "", ["1a"], [{"v": 1}]]},
        {"nt": ["", "", ["def"], [{"v": 1}]]}, {"nt": ["", "", ["a=print(1)"], [{"v": 1}]]}, {"dc": [1, 2, [], []]},
        {"dc": ["a", "b", [3], [{"v": 1}]]}, {"f": 3}, {"f": {}}, {"B": 0, "b": ""}, {"t": [None, None, None]},
    ]  # fmt: skip
    for structure in forged:
        with pytest.raises(ValueError):
            _trees.rearrange(json.dumps(structure), [array] if structure is not None else [])
    for text in ("", "nul", "[" * 100_000, '{"t":' * 500 + "[]" + "}" * 500, "9" * 10_000, '{"v":' + "9" * 5000 + "}"):
        with pytest.raises(ValueError):
            _trees.rearrange(text, [])
    for harmless in (
        {"nt": ["os", "stat_result", ["a"], [{"v": 1}]]}, {"dc": ["subprocess", "Popen", ["args"], [{"v": "touch x"}]]},
        {"dc": ["antigravity", "X", ["a"], [{"v": 1}]]}, {"dc": ["crosshandle", "Array", [], []]},
        {"nt": ["builtins", "tuple", ["a"], [{"v": 1}]]}, {"dc": ["test_trees", "Point", ["x", "y"], [{"v": 1}, {"v": 2}]]},
    ):  # fmt: skip
        made = _trees.rearrange(json.dumps(harmless), [])
        assert type(made) is types.SimpleNamespace or type(made).__bases__ == (tuple,)
    assert set(sys.modules) == before
