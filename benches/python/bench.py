"""Measures the Python module and its peers in the same run. `cargo xtask bench python` and `cargo
xtask bench peers` run it, and make tables of the lines that it prints.

    bench.py host|gpu|loader|stages|peers [--only TEXT] [--quick]

`stages` compares nothing. It shows how the times of a first opening and of a frame on a GPU are
divided."""

from __future__ import annotations

import importlib
import sys
import time
import traceback

import harness


def main(arguments: list[str]) -> None:
    part = arguments[0]
    only = arguments[arguments.index("--only") + 1] if "--only" in arguments else ""
    harness.quick = "--quick" in arguments
    if part == "peers":
        # The benchmark program itself loads UMF.
        harness.versions("umf")
    for function in importlib.import_module(part).ROWS:
        if only not in function.__name__:
            continue
        print(f"measuring {function.__name__} … ", end="", file=sys.stderr, flush=True)
        began = time.monotonic()
        try:
            for row in function():
                row.emit()
            said = f"{time.monotonic() - began:.1f} s"
        except harness.Skipped as reason:
            harness.Row(function.__name__.replace("_", " "), skipped=str(reason)).emit()
            said = f"skipped: {reason}"
        except Exception as error:
            harness.Row(function.__name__.replace("_", " "), failed=repr(error)[:500]).emit()
            said = f"failed\n{traceback.format_exc()}"
        print(said, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
