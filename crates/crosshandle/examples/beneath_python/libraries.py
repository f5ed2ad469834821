"""One interface to NumPy, torch and CuPy: arrays, streams, events, and the owner of the memory.

All three compute on arrays with the same expressions, so only these parts differ. """

import contextlib
import ctypes

# Number of 32-bit elements in an array.
COUNT = 1 << 20
SIZE = 4 * COUNT
# Timeout of a wait on the host, in seconds.
SOON = 30


class NumPy:
    """Arrays in host memory. There are no streams: the thread itself waits and signals."""

    device = "host"
    streams = ("the thread",)
    has_events = False
    # Environment variables for each way in which the library can allocate.
    settings = {"usual": {}}

    def __init__(self):
        import numpy

        self.numpy = numpy

    def share(self, context):
        """Returns Crosshandle's memory and an array in it, because there is no driver memory to
        adopt."""
        memory = context.allocate(SIZE)
        return memory, self.wrap(memory)

    def wrap(self, memory):
        buffer = (ctypes.c_int32 * COUNT).from_address(memory.address)
        return self.numpy.frombuffer(buffer, self.numpy.int32)

    def arange(self):
        return self.numpy.arange(COUNT, dtype=self.numpy.int32)

    def zero(self):
        return self.numpy.zeros((), self.numpy.int64)

    @contextlib.contextmanager
    def stream(self, name, context):
        class Thread:
            def wait(self, event, value):
                event.wait(value, SOON)

            def signal(self, event):
                event.signal()

            def finish(self, seconds):
                pass

        yield Thread()

    def refused(self, setting):
        return ()

    def synchronize(self):
        pass


class OnGpu:
    """The common part of torch and CuPy."""

    device = "cuda:0"
    streams = ("its own stream", "the default stream", "a queue of Crosshandle's")
    has_events = True

    def share(self, context):
        """Returns memory inside a block of the library's cache, adopted by Crosshandle."""
        array = self.allocate()
        self.synchronize()
        start = ctypes.c_uint64()
        address = self.address(array)
        self.driver("cuMemGetAddressRange_v2", ctypes.byref(start), None, ctypes.c_uint64(address))
        assert address > start.value, "the array is at the start of its allocation"
        return context.adopt_memory(address, SIZE), array

    @contextlib.contextmanager
    def stream(self, name, context):
        """Yields the library's current stream as a queue."""
        if name == "a queue of Crosshandle's":
            with context.create_queue() as queue, self.current(self.outside(queue.value)):
                yield queue
            return
        stream = self.null() if name == "the default stream" else self.new_stream()
        with context.adopt_queue(self.number(stream)) as queue, self.current(stream):
            yield queue

    def driver(self, name, *arguments):
        """Calls the driver, in the context that torch or CuPy has made current."""
        code = getattr(ctypes.CDLL("libcuda.so.1"), name)(*arguments)
        assert code == 0, f"{name}: {code}"


class Torch(OnGpu):
    # Memory of the last setting cannot be shared.
    settings = {
        "usual": {},
        "expandable segments": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        "cudaMallocAsync": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
    }

    def __init__(self):
        import torch

        torch.cuda.init()
        self.torch = torch

    def refused(self, setting):
        if setting == "expandable segments":
            # The driver has one allocation for each 20 MiB.
            text = "are not all in one allocation of the driver"
            yield "a tensor of 64 MiB", self.empty(64 << 20), 64 << 20, text
        if setting == "cudaMallocAsync":
            yield "a tensor", self.empty(SIZE), SIZE, "it comes from a pool of the driver"

    def empty(self, size):
        return self.torch.empty(size // 4, dtype=self.torch.int32, device="cuda")

    def allocate(self):
        self.before = self.empty(SIZE)
        return self.empty(SIZE)

    def address(self, array):
        return array.data_ptr()

    def wrap(self, memory):
        class Interface:
            __cuda_array_interface__ = {
                "shape": (COUNT,),
                "typestr": "<i4",
                "data": (memory.address, False),
                "version": 3,
            }

        tensor = self.torch.as_tensor(Interface(), device="cuda")
        assert tensor.data_ptr() == memory.address, "torch made a copy"
        return tensor

    def arange(self):
        return self.torch.arange(COUNT, dtype=self.torch.int32, device="cuda")

    def zero(self):
        return self.torch.zeros((), dtype=self.torch.int64, device="cuda")

    def new_stream(self):
        return self.torch.cuda.Stream()

    def null(self):
        return self.torch.cuda.default_stream()

    def outside(self, number):
        return self.torch.cuda.ExternalStream(number)

    def number(self, stream):
        return stream.cuda_stream

    def current(self, stream):
        return self.torch.cuda.stream(stream)

    def record(self):
        """Records an event in the library's current stream. Returns the event and its number."""
        event = self.torch.cuda.Event()
        event.record()
        return event, event.cuda_event

    def wait(self, event):
        stream = self.torch.cuda.current_stream().cuda_stream
        self.driver("cuStreamWaitEvent", ctypes.c_void_p(stream), ctypes.c_void_p(event.value), 0)

    def synchronize(self):
        self.torch.cuda.synchronize()


class CuPy(OnGpu):
    settings = {"usual": {}}

    def __init__(self):
        import cupy

        self.cupy = cupy

    def refused(self, setting):
        pooled = self.of(self.cupy.cuda.malloc_async(SIZE))
        yield "memory of cudaMallocAsync", pooled, SIZE, "it comes from a pool of the driver"
        managed = self.of(self.cupy.cuda.malloc_managed(SIZE))
        yield "managed memory", managed, SIZE, "it is managed memory"

    def of(self, pointer):
        return self.cupy.ndarray((COUNT,), self.cupy.int32, pointer)

    def allocate(self):
        # The pool keeps this freed block and splits it for the next arrays.
        self.cupy.empty(2 * COUNT, self.cupy.int32)
        self.before = self.cupy.empty(COUNT, self.cupy.int32)
        return self.cupy.empty(COUNT, self.cupy.int32)

    def address(self, array):
        return array.data.ptr

    def wrap(self, memory):
        unowned = self.cupy.cuda.UnownedMemory(memory.address, len(memory), memory)
        return self.of(self.cupy.cuda.MemoryPointer(unowned, 0))

    def arange(self):
        return self.cupy.arange(COUNT, dtype=self.cupy.int32)

    def zero(self):
        return self.cupy.zeros((), self.cupy.int64)

    def new_stream(self):
        return self.cupy.cuda.Stream(non_blocking=True)

    def null(self):
        return self.cupy.cuda.Stream.null

    def outside(self, number):
        return self.cupy.cuda.ExternalStream(number)

    def number(self, stream):
        return stream.ptr

    def current(self, stream):
        return stream

    def record(self):
        event = self.cupy.cuda.Event(disable_timing=True)
        event.record()
        return event, event.ptr

    def wait(self, event):
        stream = self.cupy.cuda.get_current_stream().ptr
        self.cupy.cuda.runtime.streamWaitEvent(stream, event.value)

    def synchronize(self):
        self.cupy.cuda.Device().synchronize()


LIBRARIES = {"numpy": NumPy, "torch": Torch, "cupy": CuPy}
