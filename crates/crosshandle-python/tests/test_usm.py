"""Arrays of dpnp and memory of dpctl, through the wheel's Unified Runtime adapter."""

from __future__ import annotations

import gc
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import crosshandle
from conftest import DEADLINE, Peer

np = pytest.importorskip("numpy")
pytest.importorskip("dpctl")

from crosshandle._libraries import usm  # noqa: E402

Start = Callable[..., Peer]

# Set before the SYCL runtime starts, here and in the other processes.
os.environ["UR_ADAPTERS_FORCE_LOAD"] = crosshandle.ur_adapter("host")
os.environ["CROSSHANDLE_UR_BACKEND"] = "opencl"


def device_memory(data: bytes) -> Any:
    from dpctl.memory import MemoryUSMDevice

    memory = MemoryUSMDevice(len(data))
    memory.copy_from_host(np.frombuffer(data, "u1"))
    return memory


def reverse(pipe: Any) -> None:
    array = crosshandle.open(pipe.recv())
    memory = array.dpctl()
    assert memory.get_usm_type() == "device"
    memory.copy_from_host(memory.copy_to_host()[::-1].copy())
    pipe.send("done")


def test_dpctl_s_memory_crosses_both_ways(start: Start) -> None:
    memory = device_memory(bytes(range(100)))
    peer = start(reverse)
    with crosshandle.share(memory) as bundle:
        peer.send(bytes(bundle))
        assert peer.receive() == "done"
    peer.end()
    assert memory.tobytes() == bytes(range(100))[::-1]


def make_and_free(pipe: Any) -> None:
    memory = device_memory(b"kept" * 1000)
    bundle = crosshandle.share(memory)
    pipe.send(bytes(bundle))
    pipe.recv()
    bundle.release()
    del memory
    # These would reuse the freed memory.
    others = [device_memory(b"else" * 1000) for _ in range(20)]
    pipe.send("freed")
    pipe.recv()
    del others


def test_who_has_it_open_keeps_the_bytes(start: Start) -> None:
    peer = start(make_and_free)
    array = crosshandle.open(peer.receive())
    memory = array.dpctl()
    peer.send("opened")
    assert peer.receive() == "freed"
    assert memory.tobytes() == b"kept" * 1000
    peer.send("read")
    peer.end()
    assert memory.tobytes() == b"kept" * 1000 and bytes(array) == b"kept" * 1000


class Owner:
    def __init__(self, told: list[str]):
        self.told = told

    def __del__(self) -> None:
        self.told.append("dropped")


def hold(pipe: Any) -> None:
    array = crosshandle.open(pipe.recv())
    first, second = array.dpctl(), array.dpctl()
    del array
    pipe.send(len(usm._opened))
    pipe.recv()
    del first
    gc.collect()
    pipe.send(second.tobytes())
    pipe.recv()
    del second
    gc.collect()
    pipe.send(len(usm._opened))
    pipe.recv()


def test_the_last_array_closes_the_memory(start: Start) -> None:
    told: list[str] = []
    context = crosshandle.default_context()
    block = context.allocate(4096)
    block.write(b"lent")
    part = block.lend(Owner(told), nbytes=4)
    peer = start(hold)
    with crosshandle.share(part.array()) as bundle:
        peer.send(bytes(bundle))
        assert peer.receive() == 2
    part.close()

    def is_dropped() -> bool:
        context.allocate(64).handle()
        return told == ["dropped"]

    assert not is_dropped()
    peer.send("drop the first")
    assert peer.receive() == b"lent"
    assert not is_dropped()
    peer.send("drop the second")
    assert peer.receive() == 0
    # The close by the peer arrives in the background.
    end = time.monotonic() + DEADLINE
    while not is_dropped():
        assert time.monotonic() < end, "the owner is kept"
    peer.send(None)
    peer.end()


def test_memory_of_this_process_is_opened_too() -> None:
    array = crosshandle.empty((3, 4), "int32")
    array.numpy()[:] = np.arange(12).reshape(3, 4)
    memory = array.dpctl()
    assert memory.tobytes() == array.numpy().tobytes()
    memory.memset(1)
    assert (array.numpy() == 0x01010101).all()
    # Opened memory is shared again by the handle that opened it.
    again = crosshandle.open(crosshandle.share(memory))
    assert not again.read_only and bytes(again) == b"\1" * 48


def test_a_queue_can_be_named() -> None:
    import dpctl

    array = crosshandle.empty(16, "uint8")
    array.numpy()[:] = 7
    device = dpctl.SyclDevice()
    for queue in (dpctl.SyclQueue(device), dpctl.SyclQueue(dpctl.SyclContext(device), device)):
        memory = array.dpctl(queue)
        assert memory.sycl_context == queue.sycl_context
        target = device_memory(bytes(16))
        assert memory.tobytes() == b"\7" * 16
        del target


def test_a_part_and_an_empty_array() -> None:
    array = crosshandle.empty((8, 8), "uint8")
    array.numpy()[:] = np.arange(64).reshape(8, 8)
    part = crosshandle.open(crosshandle.share(array.numpy()[2:4, ::-1]))
    assert part.dpctl().tobytes() == bytes(range(16, 32))
    with pytest.raises(ValueError, match="without elements"):
        crosshandle.empty((0, 3)).dpctl()


def fill(pipe: Any) -> None:
    array, gate = pipe.recv()
    array.numpy()[:] = 9
    gate.signal()
    pipe.recv()


def test_what_takes_the_array_waits_for_its_event(start: Start) -> None:
    context = crosshandle.default_context()
    array = crosshandle.empty(4, "uint8")
    array.numpy()[:] = 0
    gate, ready = context.event(), context.event()
    queue = context.queue()
    queue.wait(gate, 1)
    queue.signal(ready)
    opened = crosshandle.open(crosshandle.share(array, event=ready))
    assert not ready.done()
    peer = start(fill)
    peer.send((array, gate))
    assert opened.dpctl().tobytes() == b"\x09" * 4
    peer.send(None)
    peer.end()


def test_host_and_shared_memory_is_copied_if_asked() -> None:
    from dpctl.memory import MemoryUSMHost, MemoryUSMShared

    for kind in (MemoryUSMHost, MemoryUSMShared):
        memory = kind(10)
        memory.copy_from_host(np.full(10, 3, "u1"))
        with pytest.raises(ValueError, match="only memory allocated on a device.*copy=True"):
            crosshandle.share(memory)
        assert bytes(crosshandle.open(crosshandle.share(memory, copy=True))) == b"\3" * 10


def test_read_only_arrays_are_not_mapped_writable() -> None:
    array = crosshandle.empty(4, "uint8")
    array.numpy()[:] = 5
    opened = crosshandle.open(bytes(crosshandle.share(array)), writable=False)
    with pytest.raises(crosshandle.UnsupportedError, match="opened with a writable handle"):
        opened.dpctl()
    assert crosshandle.open(bytes(crosshandle.share(array, read_only=True))).dpctl().tobytes() == b"\5" * 4


def make_and_go(pipe: Any) -> None:
    array = crosshandle.empty(4, "uint8")
    array.numpy()[:] = 6
    pipe.send(bytes(crosshandle.share(array)))
    pipe.recv()


def test_memory_whose_maker_has_gone_is_no_longer_attached(start: Start) -> None:
    peer = start(make_and_go)
    array = crosshandle.open(peer.receive())
    peer.send("opened")
    peer.end()
    with pytest.raises(crosshandle.ExporterGoneError):
        array.dpctl()
    assert bytes(array) == b"\6" * 4


def test_what_an_adapter_cannot_share_is_copied_if_asked() -> None:
    memory = device_memory(b"adapter's")
    with crosshandle.share(memory) as bundle:
        opened = crosshandle.open(bytes(bundle))
        view = opened.dpctl()
    adapter, = usm.adapters()

    class Refusing:
        def handle(self, address: int) -> tuple[bytes, int]:
            # A handle of a device that this package does not have.
            handle, inside = adapter.handle(address)
            return handle[:-1] + bytes([handle[-1] ^ 1]), inside

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(usm, "_tried", lambda: iter([Refusing()]))
        with pytest.raises(ValueError, match="cannot be shared.*copy=True"):
            crosshandle.share(memory)
        assert bytes(crosshandle.open(crosshandle.share(memory, copy=True))) == b"adapter's"
    assert view.tobytes() == b"adapter's"


def test_the_adapter_refuses_bad_handles_and_unknown_pointers() -> None:
    memory = device_memory(b"beside")
    adapter, = usm.adapters()
    handle, inside = adapter.handle(memory._pointer + 3)
    assert inside == 3
    damaged = bytearray(handle)
    damaged[60] ^= 4
    for data in (b"", b"garbage", bytes(104), bytes(damaged), handle + b"\0"):
        with pytest.raises(ValueError):
            adapter.open(memory._pointer, data)
    for address in (0, 1, memory._pointer + memory.nbytes, 2**64 - 1):
        with pytest.raises(usm._Unknown):
            adapter.open(address, handle)
    # Neither of these exists.
    adapter.close(2**63, memory._pointer)
    adapter.close(1, 12345)
    assert memory.tobytes() == b"beside"


def test_a_file_with_an_adapter_s_name_is_no_adapter(tmp_path: Path) -> None:
    path = tmp_path / "libur_adapter_crosshandle_evil (deleted).so"
    path.write_bytes(bytes(4096))
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        assert str(path) in usm._mapped() and len(mapped) == 4096
        assert usm._adapter_at(str(path)) is None


WITHOUT = """
import crosshandle
try:
    crosshandle.empty(4).dpctl()
except crosshandle.UnsupportedError as error:
    print(error)
"""


def test_without_the_adapter_the_error_says_what_to_set() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "UR_ADAPTERS_FORCE_LOAD"}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], env=environment, capture_output=True, text=True, timeout=DEADLINE
    )
    assert done.returncode == 0, done.stderr
    assert f"UR_ADAPTERS_FORCE_LOAD={crosshandle.ur_adapter('host')}" in done.stdout


def compute(pipe: Any) -> None:
    import dpnp

    array = crosshandle.open(pipe.recv())["x"].dpnp()
    pipe.send(float(array.sum()))
    array[...] = array @ array
    array.sycl_queue.wait()
    del array
    own = dpnp.arange(24, dtype="f4").reshape(4, 6)
    bundle = crosshandle.share([own[1:, ::-2], own])
    pipe.send(bytes(bundle))
    pipe.recv()


def test_dpnp_computes_on_the_other_s_array(start: Start) -> None:
    dpnp = pytest.importorskip("dpnp")
    array = dpnp.arange(64 * 64, dtype="f8").reshape(64, 64)
    before = array.asnumpy()
    peer = start(compute)
    with crosshandle.share({"x": array}) as bundle:
        peer.send(bytes(bundle))
        assert peer.receive() == before.sum()
        theirs, whole = crosshandle.open(peer.receive())
    assert np.array_equal(array.asnumpy(), before @ before)
    expected = np.arange(24, dtype="f4").reshape(4, 6)
    assert np.array_equal(theirs.numpy(), expected[1:, ::-2])
    view = theirs.dpnp()
    assert view.strides == theirs.strides and np.array_equal((view * 2).asnumpy(), 2 * expected[1:, ::-2])
    # The arrays share their bytes.
    view[0, 0] = -1
    view.sycl_queue.wait()
    assert whole.numpy()[1, 5] == -1 and np.array_equal(whole.dpnp().asnumpy(), whole.numpy())
    peer.send("done")
    peer.end()


def test_dpnp_s_arrays_of_read_only_memory_are_not_writable() -> None:
    pytest.importorskip("dpnp")
    array = crosshandle.empty((2, 3), "float32")
    array.numpy()[:] = 1
    opened = crosshandle.open(crosshandle.share(array, read_only=True))
    view = opened.dpnp()
    with pytest.raises(ValueError, match="read-only"):
        view[0, 0] = 5
    assert float(view.sum()) == 6 and not view.flags.writable


def test_dpnp_has_no_arrays_of_some_types() -> None:
    pytest.importorskip("dpnp")
    with pytest.raises(TypeError, match="dpnp has no dtype for bfloat16"):
        crosshandle.empty(4, "bfloat16").dpnp()
    assert crosshandle.empty((0, 3), "int16").dpnp().shape == (0, 3)
