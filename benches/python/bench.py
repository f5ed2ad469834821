"""Measures the Python module and its peers in the same run: `cargo xtask bench python`.

    bench.py [host] [gpu] [loader] [stages] [--only TEXT]

`stages` compares nothing. It shows how the time of a first opening on a GPU is divided. """

from __future__ import annotations

import sys
import traceback

from harness import HEAD


def main(arguments: list[str]) -> int:
    only = arguments[arguments.index("--only") + 1] if "--only" in arguments else ""
    suites = [name for name in ("host", "gpu", "loader", "stages") if name in arguments]
    if not suites:
        suites = ["host"]
    failed = 0
    for suite in suites:
        if suite == "gpu":
            import gpu

            rows = gpu.ROWS
        elif suite == "loader":
            import loader

            rows = loader.ROWS
        elif suite == "stages":
            import stages

            rows = stages.ROWS
        else:
            import host

            rows = host.ROWS
        print(f"\n{suite}\n\n{HEAD}", flush=True)
        for function in rows:
            if only not in function.__name__:
                continue
            try:
                for row in function():
                    print(row.text(), flush=True)
            except Exception:
                failed += 1
                print(f"| {function.__name__} failed | | | | |", flush=True)
                traceback.print_exc()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
