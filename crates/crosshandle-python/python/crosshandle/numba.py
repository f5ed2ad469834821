"""Signals and waits in kernels of numba-cuda.

A kernel takes the addresses of a `DeviceEvent` as integers. One thread calls the functions.

    @cuda.jit
    def consume(words, awaited, abort, empty_words, empty_signalled, result):
        result[0] = crosshandle.numba.wait_next(words, awaited, abort, 1_000_000_000)
        if result[0] == crosshandle.kernels.COMPLETE:
            crosshandle.numba.signal(empty_words, empty_signalled)

    full, empty = context.device_event(one), context.device_event(two)
    consume[1, 1](full.words, full.awaited, full.abort, empty.words, empty.signalled, result)

The functions are those of `crosshandle.cuh`, which has the rules. numba-cuda compiles them with the
kernel. `crosshandle.kernels` has the results of waits.
"""

from __future__ import annotations

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from numba import cuda

from .kernels import HEADER

# numba-cuda passes the address of the result first. A function returns 0.
SOURCE = HEADER + """
extern "C" __device__ int crosshandle_numba_signal(
    crosshandle_u64 *result, crosshandle_u64 words, crosshandle_u64 signalled)
{
    crosshandle_device_event event = {(void *)words, (void *)signalled, 0, 0};
    *result = crosshandle::signal(event);
    return 0;
}

extern "C" __device__ int crosshandle_numba_fail(
    crosshandle_u64 *result, crosshandle_u64 words, crosshandle_u64 signalled)
{
    crosshandle_device_event event = {(void *)words, (void *)signalled, 0, 0};
    *result = crosshandle::fail(event);
    return 0;
}

extern "C" __device__ int crosshandle_numba_wait_next(
    crosshandle_u32 *result, crosshandle_u64 words, crosshandle_u64 awaited, crosshandle_u64 abort,
    crosshandle_u64 timeout)
{
    crosshandle_device_event event = {(void *)words, 0, (void *)awaited, (void *)abort};
    *result = crosshandle::wait_next(event, timeout);
    return 0;
}

extern "C" __device__ int crosshandle_numba_is_aborted(
    crosshandle_u32 *result, crosshandle_u64 abort)
{
    crosshandle_device_event event = {0, 0, 0, (void *)abort};
    *result = crosshandle::is_aborted(event);
    return 0;
}
"""
_LINK = cuda.CUSource(SOURCE, "crosshandle.cu")

# Signals the next number of an event, and returns it: signal(words, signalled).
signal = cuda.declare_device("crosshandle_numba_signal", "uint64(uint64, uint64)", link=_LINK)

# Signals the next number as failed, and returns it: fail(words, signalled).
fail = cuda.declare_device("crosshandle_numba_fail", "uint64(uint64, uint64)", link=_LINK)

# Waits for the next signal for at most `timeout` nanoseconds, and returns the result:
# wait_next(words, awaited, abort, timeout).
wait_next = cuda.declare_device(
    "crosshandle_numba_wait_next", "uint32(uint64, uint64, uint64, uint64)", link=_LINK
)

# Returns 1 if code on the device should stop, otherwise 0: is_aborted(abort).
is_aborted = cuda.declare_device("crosshandle_numba_is_aborted", "uint32(uint64)", link=_LINK)
