"""Signals and waits in kernels that CuPy compiles.

`HEADER` is the text of `crosshandle.cuh`. `argument` makes an argument of a kernel.

>>> event = context.event(single_signaller=True)                        # needs gpu, cupy
>>> module = cupy.RawModule(code=crosshandle.kernels.HEADER + SOURCE)   # needs gpu, cupy
"""

from __future__ import annotations

from typing import Any

from ._crosshandle import DeviceEvent, device_header

HEADER: str = device_header()

# The results of waits.
COMPLETE, TIMED_OUT, PEER_DIED, FAILED, ABORTED = range(5)


def argument(event: DeviceEvent) -> Any:
    """Returns the `crosshandle_device_event` that a kernel of CuPy takes by value, as a NumPy
    scalar. `event` must exist until the kernel has ended."""
    import numpy

    layout = numpy.dtype([(name, numpy.uint64) for name in ("words", "signalled", "awaited", "abort")])
    return numpy.frombuffer(bytes(event), layout)[0]
