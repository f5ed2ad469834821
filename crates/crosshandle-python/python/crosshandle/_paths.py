"""Paths of the `crosshandle` command and the Unified Runtime adapters that this package
contains."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

_HERE = Path(__file__).parent


def _part(path: Path, what: str) -> str:
    if not path.exists():
        raise FileNotFoundError(
            f"{what} is not in this installation ({path}): wheels from `cargo xtask wheel` contain it"
        )
    return str(path)


def command() -> str:
    """Returns the path of the `crosshandle` command in this package. Raises `FileNotFoundError` if
    the installation does not contain it.

    >>> import subprocess
    >>> command = [crosshandle.command(), "--version"]
    >>> output = subprocess.run(command, capture_output=True, check=True)
    >>> output.stdout.startswith(b"crosshandle ")
    True
    """
    return _part(_HERE / "_bin" / "crosshandle", "the command")


def ur_adapter(backend: str = "host") -> str:
    """Returns the path of the Unified Runtime adapter for a backend. Raises `FileNotFoundError` if
    the installation does not contain it.

    `backend` is "host", "cuda" or "level_zero".

    >>> os.path.basename(crosshandle.ur_adapter("host"))
    'libur_adapter_crosshandle_host.so'
    """
    known = ("host", "cuda", "level_zero")
    if backend not in known:
        raise ValueError(f"no adapter is called {backend!r}: there are {', '.join(known)}")
    return _part(_HERE / "_lib" / f"libur_adapter_crosshandle_{backend}.so", f"the {backend} adapter")


def main() -> NoReturn:
    """Replaces this process with the `crosshandle` command."""
    path = command()
    os.execv(path, [path, *sys.argv[1:]])
