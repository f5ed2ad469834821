"""dpctl on the adapter: memory of each kind, copies, fills, queues, events.

`arrays.py listed` also expects the device in dpctl's lists, which omit the backend native_cpu.
"""

import sys

import dpctl
import dpctl.memory
import numpy

KINDS = (
    dpctl.memory.MemoryUSMDevice,
    dpctl.memory.MemoryUSMHost,
    dpctl.memory.MemoryUSMShared,
)
SIZE = 3 << 20


def check_lists():
    """Check that the devices are in every list, and that every selector finds one."""
    devices = dpctl.get_devices()
    kind = "gpu" if dpctl.SyclDevice().is_gpu else "cpu"
    assert devices, "no devices"
    assert getattr(dpctl, f"has_{kind}_devices")()
    assert dpctl.get_num_devices(device_type=kind) == len(devices)
    assert getattr(dpctl, f"select_{kind}_device")() in devices
    assert all(dpctl.SyclDevice(device.filter_string) == device for device in devices)
    assert dpctl.SyclDevice(kind) in devices
    assert [platform.get_devices() for platform in dpctl.get_platforms()] == [devices]


def check_device(device):
    """Check the properties that programs query before they use a device."""
    assert device.is_cpu or device.is_gpu
    assert device.max_compute_units > 0 and device.global_mem_size > 0
    assert device.has_aspect_usm_device_allocations
    assert device.has_aspect_usm_host_allocations
    assert device.has_aspect_usm_shared_allocations
    device.print_device_info()


def check_memory(kind, queue):
    """Check copies into an allocation, out of it, and between two."""
    numbers = numpy.arange(SIZE // 4, dtype="u4")
    memory = kind(SIZE, queue=queue)
    assert memory.nbytes == SIZE
    memory.copy_from_host(numbers.view("u1"))
    assert numpy.array_equal(memory.copy_to_host().view("u4"), numbers)
    memory.memset(7)
    assert numpy.all(memory.copy_to_host() == 7)

    aligned = kind(SIZE, alignment=64, queue=queue)
    aligned.copy_from_host(numbers.view("u1"))
    memory.copy_from_device(aligned)
    assert memory.tobytes() == numbers.tobytes()
    if kind is not dpctl.memory.MemoryUSMDevice:
        seen = numpy.asarray(memoryview(memory)).view("u4")
        assert numpy.array_equal(seen, numbers)
        seen[:] = 5
        aligned.copy_from_device(memory)
        assert numpy.all(aligned.copy_to_host().view("u4") == 5)
    for other in KINDS:
        target = other(SIZE, queue=queue)
        queue.memcpy(target, memory, SIZE)
        assert target.tobytes() == memory.tobytes()


def check_events(queue):
    """Check copies that wait for each other's events."""
    numbers = numpy.arange(SIZE, dtype="u4").astype("u1")
    hops = [dpctl.memory.MemoryUSMDevice(SIZE, queue=queue) for _ in range(8)]
    events = [queue.memcpy_async(hops[0], numbers, SIZE)]
    for source, target in zip(hops, hops[1:]):
        events.append(queue.memcpy_async(target, source, SIZE, [events[-1]]))
    back = numpy.empty_like(numbers)
    events.append(queue.memcpy_async(back, hops[-1], SIZE, [events[-1]]))
    events[-1].wait()
    assert numpy.array_equal(back, numbers)

    dpctl.SyclEvent.wait_for(events)
    barrier = queue.submit_barrier(events)
    queue.prefetch(hops[0], SIZE)
    queue.mem_advise(hops[0], SIZE, 0)
    queue.wait()
    assert barrier.execution_status == dpctl.event_status_type.complete
    if queue.has_enable_profiling:
        times = [events[0].profiling_info_submit]
        times += [events[0].profiling_info_start, events[0].profiling_info_end]
        assert 0 < times[0] <= times[1] <= times[2], times


def peak_memory():
    """Return the peak memory size of this process in KiB."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


def check_reuse(queue):
    """Check that freed memory is reused."""
    before = peak_memory()
    for _ in range(300):
        memory = dpctl.memory.MemoryUSMDevice(SIZE, queue=queue)
        memory.memset(1)
    more = peak_memory() - before
    assert more < 300 << 10, f"{more} KiB more for one allocation of {SIZE} bytes"


def main():
    if sys.argv[1:] == ["listed"]:
        check_lists()
    device = dpctl.SyclDevice()
    check_device(device)
    for properties in ((), "in_order", "enable_profiling"):
        queue = dpctl.SyclQueue(device, property=properties)
        assert queue.sycl_device == device
        for kind in KINDS:
            check_memory(kind, queue)
        check_events(queue)
    check_reuse(queue)


main()
