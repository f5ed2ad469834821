"""Where the parts of this package lie that other programs use."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

_HERE = Path(__file__).parent


def _part(path: Path, what: str) -> str:
    if not path.exists():
        raise FileNotFoundError(
            f"{what} is not in this installation ({path}): wheels made by `cargo xtask wheel` have it"
        )
    return str(path)


def command() -> str:
    """The path of the `crosshandle` command.

    >>> import subprocess
    >>> output = subprocess.run([crosshandle.command(), "--version"], capture_output=True, check=True)
    >>> output.stdout.startswith(b"crosshandle ")
    True
    """
    return _part(_HERE / "_bin" / "crosshandle", "the command")


def ur_adapter(backend: str = "host") -> str:
    """The path of the Unified Runtime adapter of a backend: "host", "cuda" or "level_zero".

    >>> os.path.basename(crosshandle.ur_adapter("host"))
    'libur_adapter_crosshandle_host.so'
    """
    known = ("host", "cuda", "level_zero")
    if backend not in known:
        raise ValueError(f"no adapter is called {backend!r}: there are {', '.join(known)}")
    return _part(_HERE / "_lib" / f"libur_adapter_crosshandle_{backend}.so", f"the {backend} adapter")


def main() -> NoReturn:
    """Becomes the `crosshandle` command."""
    path = command()
    os.execv(path, [path, *sys.argv[1:]])
