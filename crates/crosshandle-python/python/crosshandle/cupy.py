"""Support for CuPy: an allocator whose arrays can be shared without a copy.

    import crosshandle.cupy

    cupy.cuda.set_allocator(crosshandle.cupy.allocator)

    pool = cupy.cuda.MemoryPool(crosshandle.cupy.allocator)     # or with CuPy's pool above it
    cupy.cuda.set_allocator(pool.malloc)
"""

from __future__ import annotations

import atexit
from typing import Any

import cupy

from . import _crosshandle as _rust
from ._sharing import default_context


atexit.register(_rust.stop_freeing)


class _Block(cupy.cuda.BaseMemory):
    """A CuPy memory block. It is freed when no array uses it any more."""

    def __init__(self, nbytes: int):
        number = cupy.cuda.runtime.getDevice()
        self.block = _rust.Block(default_context(f"cuda:{number}"), nbytes)
        self.ptr = self.block.address
        self.size = nbytes
        self.device_id = number


def allocator(nbytes: int) -> Any:
    """Allocates `nbytes` bytes for CuPy on the current device.

    Pass this function to `cupy.cuda.set_allocator`.

    Arrays in such memory can be shared without a copy. If CuPy frees memory that other processes
    have open, those processes keep it.

    >>> before = cupy.cuda.get_allocator()                       # needs gpu
    >>> cupy.cuda.set_allocator(crosshandle.cupy.allocator)      # needs gpu
    >>> array = cupy.ones(1024)                                  # needs gpu
    >>> cupy.cuda.set_allocator(before)                          # needs gpu
    """
    return cupy.cuda.MemoryPointer(_Block(max(nbytes, 1)), 0)
