"""Every public function and method has an example, and every example is correct.

A comment at the end of a line says what the example needs, such as `# needs torch` or
`# needs gpu`.
"""

from __future__ import annotations

import asyncio
import doctest
import importlib
import importlib.util
import inspect
import json
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import crosshandle
from conftest import running_holder
from crosshandle import link, store

MODULES = ["crosshandle", "crosshandle.store", "crosshandle.link", "crosshandle.torch", "crosshandle.cupy"]
# The needs that this test cannot detect. Examples with these needs are run by hand.
BY_HAND = {"sycl", "holder"}


def has(need: str) -> bool:
    if need == "gpu":
        return any(device.backend == "cuda" for device in crosshandle.Device.all())
    return need not in BY_HAND and importlib.util.find_spec(need) is not None


def module(name: str) -> Any:
    """Returns a module, or None if the library that it supports is missing."""
    _, _, library = name.partition(".")
    if library in ("torch", "cupy") and not has(library):
        return None
    return importlib.import_module(name)


def public(module: Any) -> Iterator[tuple[str, Any]]:
    """Yields the public functions and classes of a module, and the public methods of its
    classes."""
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    for name in getattr(module, "__all__", own):
        value = getattr(module, name)
        if name.startswith("_") or not callable(value):
            continue
        if inspect.isclass(value) and issubclass(value, BaseException):
            continue
        yield name, value
        if inspect.isclass(value):
            for member, attribute in vars(value).items():
                method = isinstance(attribute, (staticmethod, classmethod)) or callable(attribute)
                if method and not member.startswith("_"):
                    yield f"{name}.{member}", getattr(value, member)


def documented() -> Iterator[tuple[str, str]]:
    for name in MODULES:
        found = module(name)
        if found is not None:
            yield name, inspect.getdoc(found) or ""
            for member, value in public(found):
                yield f"{name}.{member}", inspect.getdoc(value) or ""


TEXTS = dict(documented())


def test_every_public_function_has_an_example() -> None:
    without = []
    for name, text in TEXTS.items():
        owner, _, member = name.rpartition(".")
        # A method needs no example of its own if the example of its class calls it.
        examples = "".join(example.source for example in doctest.DocTestParser().get_examples(TEXTS.get(owner, "")))
        if name not in MODULES and ">>> " not in text and f".{member}(" not in examples:
            without.append(name)
    assert not without, f"{len(without)} without an example: {without}"


@pytest.fixture(scope="module")
def _holder() -> Iterator[None]:
    with running_holder():
        yield


@pytest.mark.parametrize("name", [name for name, text in TEXTS.items() if ">>> " in text])
def test_every_example_is_right(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    names = {"asyncio": asyncio, "crosshandle": crosshandle, "link": link, "os": os, "store": store}
    for library in ("torch", "cupy"):
        if has(library):
            names[library] = importlib.import_module(library)
    example = doctest.DocTestParser().get_doctest(TEXTS[name], names, name, None, None)
    for library in re.findall(r"^import (\w+)", "".join(line.source for line in example.examples), re.MULTILINE):
        pytest.importorskip(library)
    for line in example.examples:
        needs = re.findall(r"\w+", " ".join(re.findall("# needs (.*)", line.source)))
        if not all(has(need) for need in needs):
            line.options[doctest.SKIP] = True
    if "store." in example.docstring or "store" in name:
        request.getfixturevalue("_holder")
        for held in store.ls():
            store.rm(held.name)
    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        if "model.safetensors" in example.docstring:
            header = json.dumps({"w": {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]}}).encode()
            Path("model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(32))
        output: list[str] = []
        runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.NORMALIZE_WHITESPACE)
        failed, _ = runner.run(example, out=output.append)
    finally:
        os.chdir(before)
    assert failed == 0, "".join(output)
