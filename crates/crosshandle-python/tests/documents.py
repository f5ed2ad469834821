"""Finds the Python blocks in the documents, and runs them as programs.

A comment before a block says how it runs:

- `<!-- run: maker -->` and `<!-- run: user -->`: the two blocks run in two processes, with a
  `connection` to each other.
- `<!-- run: torch -->`: the block runs if this module is installed. Several words are allowed.
  `gpu` is an NVIDIA GPU. `holder` is a holder that has a model `llama-70b` with one tensor.
- `<!-- run: program -->`: the block runs as a file of its own, which may start processes by
  `multiprocessing`. Words for modules may follow.
- `<!-- not run: REASON -->`: the block does not run.

A block without a comment runs in its own process.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

ROLES = ("maker", "user")

_COMMENT = r"^<!-- (not run|run): ((?:(?!-->).)*?)\s-->\n"
_BLOCK = re.compile(rf"(?:{_COMMENT})?^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A Python block in a document."""

    document: str
    line: int
    source: str
    words: tuple[str, ...] = ()
    """The words of the comment before the block: what the block needs, and its role."""
    reason: str | None = None
    """The reason why the block does not run, or an empty string if it runs."""

    @property
    def name(self) -> str:
        return f"{self.document}:{self.line}"

    @property
    def role(self) -> str | None:
        return next((word for word in self.words if word in ROLES), None)

    @property
    def is_program(self) -> bool:
        return "program" in self.words

    @property
    def needs(self) -> set[str]:
        return set(self.words) - set(ROLES) - {"program"}


@dataclass
class Program:
    """A block that runs alone, or a pair of blocks that run in two processes."""

    blocks: list[Block] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.blocks[0].name

    @property
    def needs(self) -> set[str]:
        return set().union(*(block.needs for block in self.blocks))


def directory() -> Path:
    """Returns the directory of the documents: next to packed tests, otherwise the root of the
    repository."""
    here = Path(__file__).resolve().parent
    packed = here.parent / "documents"
    return packed if packed.is_dir() else here.parents[2]


def blocks() -> Iterator[Block]:
    """Yields all blocks of all documents."""
    root = directory()
    paths = [root / "README.md", root / "crates" / "crosshandle-python" / "README.md"]
    for path in [*paths, *sorted((root / "docs").glob("*.md"))]:
        text = path.read_text()
        for found in _BLOCK.finditer(text):
            kind, words, source = found.groups()
            line = text.count("\n", 0, found.start(3)) + 1
            name = str(path.relative_to(root))
            if kind == "not run":
                yield Block(name, line, source, reason=words)
            else:
                yield Block(name, line, source, tuple((words or "").split()))


def programs() -> list[Program]:
    """Returns the programs that the documents' blocks form."""
    found: list[Program] = []
    for block in blocks():
        if block.reason is not None:
            continue
        if block.role == "user":
            first = found[-1].blocks[0]
            assert first.role == "maker" and first.document == block.document, f"{block.name} has no maker before it"
            found[-1].blocks.append(block)
        else:
            found.append(Program([block]))
    for program in found:
        expected = 2 if program.blocks[0].role else 1
        assert len(program.blocks) == expected, f"{program.name} is one process of two"
    return found


def run(block: Block, connection: Connection | None, notes: Connection | None = None, line: int = 0) -> None:
    """Runs a block, and kills its process before it runs its line number `line`. Lines of the
    package count too.

    `notes` receives the text of each line of the block before that line runs. At the end it
    receives the number of lines.
    """
    import crosshandle

    places = (block.name, str(Path(crosshandle.__file__).parent))
    texts = block.source.splitlines()
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        name = frame.f_code.co_filename
        if not name.startswith(places):
            return None
        if event == "line":
            count += 1
            if notes is not None and name == block.name:
                notes.send(texts[frame.f_lineno - 1])
            if count == line:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    code = compile(block.source, block.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    names: dict[str, Any] = {"__name__": "__main__", "connection": connection}
    if notes is not None:
        sys.settrace(trace)
    try:
        result = eval(code, names)
        if inspect.iscoroutine(result):
            asyncio.run(result)
    finally:
        sys.settrace(None)
    if notes is not None:
        notes.send(count)
