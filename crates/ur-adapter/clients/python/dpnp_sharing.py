"""dpnp computes in two processes on the same array, in memory that the adapter shares.

One process makes an array and starts a second process. That process opens the memory by its handle,
adds up the array and squares it. dpnp has no functions for handles, so the program calls the SYCL
runtime's. It needs an OpenCL runtime, dpnp, and CROSSHANDLE_UR_BACKEND=opencl.
"""

import ctypes
import subprocess
import sys

import dpctl
import dpctl.memory
import dpnp
import numpy

ROWS = 64
TIMEOUT_SECONDS = 60
SYCL = ctypes.CDLL("libsycl.so.9")


class Bytes(ctypes.Structure):
    """A handle, as returned by the runtime."""

    _fields_ = (("start", ctypes.c_void_p), ("size", ctypes.c_size_t))


def function(name, result, *arguments):
    """Return a function of the SYCL runtime."""
    found = SYCL[name]
    found.restype, found.argtypes = result, arguments
    return found


POINTER = ctypes.c_void_p
MEMORY = "_ZN4sycl3_V13ext6oneapi12experimental3ipc6memory"
get = function(MEMORY + "3getEPvRKNS0_7contextE", Bytes, POINTER, POINTER)
close = function(MEMORY + "5closeEPvRKNS0_7contextE", None, POINTER, POINTER)
open_handle = function(
    "_ZN4sycl3_V16detail16openIPCMemHandleEPKSt4bytemRKNS0_7contextERKNS0_6deviceE",
    POINTER,
    ctypes.c_char_p,
    ctypes.c_size_t,
    POINTER,
    POINTER,
)


class Opened:
    """Memory at an address, in the form that dpctl accepts."""

    def __init__(self, address, count, queue):
        self.__sycl_usm_array_interface__ = {
            "data": (address, False),
            "shape": (count,),
            "typestr": "<f8",
            "strides": None,
            "version": 1,
            "syclobj": queue,
            "offset": 0,
        }


def consume(handle):
    """Add up and square the array of the other process."""
    queue = dpctl.SyclQueue("opencl:cpu")
    context, device = queue.sycl_context.addressof_ref(), queue.sycl_device.addressof_ref()
    address = open_handle(handle, len(handle), context, device)
    memory = dpctl.memory.as_usm_memory(Opened(address, ROWS * ROWS, queue))
    array = dpnp.ndarray((ROWS, ROWS), "f8", buffer=memory)
    print(float(array.sum()))
    array[...] = array @ array
    array.sycl_queue.wait()
    del array, memory
    close(address, context)


def produce():
    """Make the array, and check the changes of the other process."""
    queue = dpctl.SyclQueue("opencl:cpu")
    array = dpnp.arange(ROWS * ROWS, dtype="f8", sycl_queue=queue).reshape(ROWS, ROWS)
    before = dpnp.asnumpy(array)
    address = array.__sycl_usm_array_interface__["data"][0]
    handle = get(address, queue.sycl_context.addressof_ref())
    handle = ctypes.string_at(handle.start, handle.size)
    command = [sys.executable, __file__, handle.hex()]
    consumer = subprocess.run(
        command, check=True, timeout=TIMEOUT_SECONDS, stdout=subprocess.PIPE, text=True
    )
    assert float(consumer.stdout) == before.sum()
    assert numpy.array_equal(dpnp.asnumpy(array), before @ before)
    print("the other process computed in place")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        consume(bytes.fromhex(sys.argv[1]))
    else:
        produce()
