"""Opens a model that a holder keeps, hashes it, and sums its tensors.

The program does that once at the start, and again for each line of standard input.

    python reader.py NAME
"""

from __future__ import annotations

import sys

from crosshandle import store


def main() -> None:
    model = store.open(sys.argv[1], framework="crosshandle")
    while True:
        model.stable()
        model.verify()
        sizes = {name: model.get_tensor(name).nbytes for name in model.keys()}
        print(f"{model.name} version {model.version}: {len(sizes)} tensors, {sum(sizes.values())} bytes, hash {model.hash}", flush=True)
        if not sys.stdin.readline():
            return


if __name__ == "__main__":
    main()
