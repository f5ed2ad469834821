"""Two processes compute in turns on one array of dpctl. Their queues wait for each other.

    python dpctl_queues.py

It needs dpctl, and an installation of this package with its Unified Runtime adapters. No host
thread waits between the turns.
"""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

import numpy as np

import crosshandle

# Set before the SYCL runtime starts, here and in the other process.
os.environ.setdefault("UR_ADAPTERS_FORCE_LOAD", crosshandle.ur_adapter("host"))
os.environ.setdefault("CROSSHANDLE_UR_BACKEND", "opencl")

TURNS = 10
SIZE = 1 << 20


def reader(pipe: Any) -> None:
    import dpctl

    import crosshandle.dpctl

    queue = dpctl.SyclQueue(property="in_order")
    array, written, read = pipe.recv()
    memory = crosshandle.open(array).dpctl(queue)
    written, read = crosshandle.dpctl.Event(written), crosshandle.dpctl.Event(read)
    seen = [np.empty(SIZE, "u1") for _ in range(TURNS)]
    for turn in range(TURNS):
        written.wait_on(queue, turn + 1)
        queue.memcpy_async(seen[turn], memory, SIZE)
        read.signal(queue)
    pipe.send("all commands are submitted")
    queue.wait()
    pipe.send([int(one.max()) for one in seen if one.min() == one.max()])


def main() -> None:
    import dpctl
    from dpctl.memory import MemoryUSMDevice

    import crosshandle.dpctl

    queue = dpctl.SyclQueue(property="in_order")
    memory = MemoryUSMDevice(SIZE, queue=queue)
    written, read = crosshandle.dpctl.Event(), crosshandle.dpctl.Event()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=reader, args=(theirs,), daemon=True)
    process.start()
    with crosshandle.share(memory) as bundle:
        ours.send((bytes(bundle), written.handle(), read.handle()))
        print("the reader:", ours.recv())
        contents = [np.full(SIZE, turn, "u1") for turn in range(TURNS)]
        for turn in range(TURNS):
            if turn > 0:
                read.wait_on(queue, turn)
            queue.memcpy_async(memory, contents[turn], SIZE)
            written.signal(queue)
        # Raises an exception if the reader dies.
        read.event.wait_value(TURNS, timeout=30)
        print("the reader saw:", ours.recv())
    queue.wait()
    process.join()


if __name__ == "__main__":
    main()
