"""Signals and waits in kernels that CuPy compiles.

`HEADER` is the text of `crosshandle.cuh`. `argument` makes an argument of a kernel.

>>> event = context.event(single_signaller=True)                        # needs gpu, cupy
>>> module = cupy.RawModule(code=crosshandle.kernels.HEADER + SOURCE)   # needs gpu, cupy
"""

from __future__ import annotations

import sys
from typing import Any

from ._crosshandle import DeviceEvent, device_header

HEADER: str = device_header()

# The results of waits.
COMPLETE, TIMED_OUT, PEER_DIED, FAILED, ABORTED = range(5)


def argument(event: DeviceEvent) -> Any:
    """Returns the `crosshandle_device_event` that a kernel of CuPy takes by value, as a NumPy
    scalar. `event` must exist until the kernel has ended."""
    import numpy

    return numpy.frombuffer(bytes(event), _event_layout())[0]


def channel(full: DeviceEvent, empty: DeviceEvent, slots: int, stride: int, depth: int) -> Any:
    """Returns the `crosshandle_device_channel` that a kernel of CuPy takes by value, as a NumPy
    scalar.

    The producer has created `full`, and the consumer has created `empty`. `slots` is the address of
    `depth` slots, which are `stride` bytes apart. The events and the memory must exist until the
    kernel has ended."""
    import numpy

    event, number = _event_layout(), numpy.uint64
    layout = [("full", event), ("empty", event), ("slots", number), ("stride", number), ("depth", number)]
    numbers = b"".join(value.to_bytes(8, sys.byteorder) for value in (slots, stride, depth))
    return numpy.frombuffer(bytes(full) + bytes(empty) + numbers, numpy.dtype(layout))[0]


def _event_layout() -> Any:
    import numpy

    return numpy.dtype([(name, numpy.uint64) for name in ("words", "signalled", "awaited", "abort")])
