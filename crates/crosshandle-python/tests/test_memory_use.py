"""How much memory a process keeps, and how much it may request."""

from __future__ import annotations

import gc
import os
import time
from typing import Any

import numpy as np
import pytest

import crosshandle


MIB = 1 << 20
# The limit is documented for 200 MiB, which takes a while to touch.
ALIVE = int(os.environ.get("CROSSHANDLE_TEST_ALIVE_MIB", "64")) * MIB
LIMIT = 1.3 * ALIVE + 64 * MIB


def resident() -> int:
    """Returns the bytes of resident shared pages, which include all host memory of the package."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("RssShmem:"):
                return int(line.split()[1]) << 10
    raise AssertionError("Linux has this line")


def settles_below(limit: float, seconds: float = 2.0) -> bool:
    end = time.monotonic() + seconds
    while resident() > limit and time.monotonic() < end:
        time.sleep(0.02)
    return resident() <= limit


def filled(context: crosshandle.Context, nbytes: int, total: int) -> list[Any]:
    arrays = [context.empty(nbytes, "uint8") for _ in range(total // nbytes)]
    for array in arrays:
        np.asarray(array).fill(1)
    return arrays


def test_freed_memory_serves_other_sizes_and_goes_back() -> None:
    sizes = [(64 << 10) << step // 3 for step in range(16)]
    sizes = sorted({min(size + (64 << 10) * (step % 3) // 3, 2 * MIB) for step, size in enumerate(sizes)})
    with_start = resident()
    context = crosshandle.Context("host")
    for size in sizes:
        arrays = filled(context, size, ALIVE)
        assert settles_below(with_start + LIMIT), (size, resident() // MIB)
        del arrays
        gc.collect()
    assert settles_below(with_start + 64 * MIB), resident() // MIB


def test_pages_of_freed_blocks_go_back_beside_blocks_in_use() -> None:
    start = resident()
    context = crosshandle.Context("host")
    arrays = filled(context, 96 << 10, ALIVE)
    # Each segment still has a part in use.
    kept = arrays[::8]
    del arrays
    gc.collect()
    assert settles_below(start + 1.3 * ALIVE / 8 + 64 * MIB), resident() // MIB
    for array in kept:
        assert np.asarray(array).all(), "what is in use stays as it is"
    # Blocks whose pages were returned to the system can be used again.
    again = filled(context, 96 << 10, ALIVE // 2)
    assert all(np.asarray(array).all() for array in [*kept, *again])


def test_trim_gives_back_at_once() -> None:
    start = resident()
    arrays = filled(crosshandle.default_context(), 256 << 10, 64 * MIB)
    kept = arrays[::16]
    del arrays
    gc.collect()
    crosshandle.trim()
    assert resident() - start < 16 * MIB
    assert all(np.asarray(array).all() for array in kept)


def test_more_than_the_machine_has_is_refused_unless_asked_for() -> None:
    context = crosshandle.default_context()
    for refused in (
        lambda: crosshandle.empty(1 << 46, "uint8"),
        lambda: context.allocate(1 << 46),
        lambda: context.physical_memory(1 << 46),
    ):
        with pytest.raises(crosshandle.OutOfMemoryError, match="bytes left.*overcommit") as error:
            refused()
        assert isinstance(error.value, MemoryError)
    sparse = context.allocate(1 << 45, overcommit=True)
    sparse.write(b"end", offset=(1 << 45) - 3)
    assert sparse.read(3, offset=(1 << 45) - 3) == b"end"
    sparse.close()
    crosshandle.Context("host", overcommit=True).allocate(1 << 45)
