"""Compares models that a holder keeps with loaders of safetensors, and with the limits of the
machine: reading the page cache, and the memory of a GPU."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import crosshandle
import harness
from harness import DEADLINE, Row, Skipped, in_turns, microseconds, package, pick, torch_with_gpu

MIB, GIB = 1 << 20, 1 << 30
# Number of threads that read the page cache in the raw technique.
READERS = min(8, len(os.sched_getaffinity(0)))
held: list[Any] = []


@contextmanager
def holder() -> Iterator[Any]:
    """Runs a holder. Removes its models at the end."""
    sockets = tempfile.mkdtemp(prefix="xh-")
    os.environ["CROSSHANDLE_SOCKET_DIR"] = sockets
    from crosshandle import store

    command = crosshandle.command()
    process = subprocess.Popen([command, "hold"], stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + DEADLINE
        while subprocess.run([command, "hold", "--check"], capture_output=True, check=False).returncode:
            if time.monotonic() > end:
                raise TimeoutError("there is no holder")
        yield store
    finally:
        subprocess.run([command, "hold", "--stop"], capture_output=True, check=False)
        process.kill()
        process.wait()
        shutil.rmtree(sockets, ignore_errors=True)
        del os.environ["CROSSHANDLE_SOCKET_DIR"]


@contextmanager
def model_files(nbytes: int, places: tuple[str, ...] = ("/dev/shm", "/tmp")) -> Iterator[list[str]]:
    """Writes four safetensors files with 32 tensors each. They are in the page cache."""
    found = (place for place in places if os.path.isdir(place) and shutil.disk_usage(place).free > 1.2 * nbytes)
    place = next(found, None)
    if place is None:
        raise Skipped(f"none of {', '.join(places)} has room for {nbytes >> 20} MiB")
    directory = Path(tempfile.mkdtemp(prefix="xh-models-", dir=place))
    each = nbytes // 128 // 4096 * 4096
    block = os.urandom(min(each, 16 * MIB))

    def write(file: int) -> None:
        tensors = {
            f"layers.{file}.{index}": {"dtype": "BF16", "shape": [each // 2], "data_offsets": [index * each, (index + 1) * each]}
            for index in range(32)
        }
        head = json.dumps(tensors).encode()
        with open(directory / f"{file}.safetensors", "wb", buffering=0) as out:
            out.write(struct.pack("<Q", len(head)) + head)
            for index in range(32):
                left = each
                while left:
                    stamped = struct.pack("<QQ", file * 32 + index, left) + block[16:]
                    left -= out.write(stamped[:left])

    try:
        threads = [threading.Thread(target=write, args=(file,)) for file in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        yield [str(directory / f"{file}.safetensors") for file in range(4)]
    finally:
        shutil.rmtree(directory, ignore_errors=True)


# Other loaders


def safetensors_way(files: list[str], device: str) -> Any:
    from safetensors.torch import load_file

    return [load_file(file, device=device) for file in files]


def copied_safetensors(files: list[str], device: str) -> Any:
    """Reads all bytes. `load_file` on the CPU only maps the file."""
    return [{name: tensor.clone() for name, tensor in tensors.items()} for tensors in safetensors_way(files, device)]


def fastsafetensors_way(files: list[str], device: str) -> Any:
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    loader = SafeTensorsFileLoader(SingleGroup(), device, nogds=True)
    loader.add_filenames({0: files})
    buffers = loader.copy_files_to_device()
    return loader, buffers, [buffers.get_tensor(name) for name in loader.get_keys()]


def instanttensor_way(files: list[str], device: str) -> Any:
    from instanttensor import safe_open

    with safe_open(files, framework="pt", device=device) as opened:
        return dict(opened.tensors())


# A loader: the name in the table, the package, the function, and the number of recorded and of
# other rounds.
Way = tuple[str, str, Callable[[list[str], str], Any], int, int]


def loads(
    store: Any, files: list[str], device: str, ways: list[Way], where: str, before: Callable[[], None] = lambda: None, **options: Any
) -> Iterator[Row]:
    """Compares loads of the same files. Ours computes the hash of the content too. `before` runs
    before each load."""
    torch = package("torch")
    torch_device = "cpu" if device == "host" else device
    nbytes = sum(os.path.getsize(file) for file in files)

    def ours() -> float:
        before()
        took = microseconds(lambda: store.load("loaded", files, device=device, **options))
        store.rm("loaded")
        return took

    place = "the host" if device == "host" else "a GPU"
    for name, package_name, way, rounds, warm in ways:
        what = f"load {nbytes / GIB:.3g} GiB of safetensors into memory of {place}, from {where}"
        row = Row(what, peer_name=name, goal="≤ 1 ×", at=("bytes", nbytes))
        row.group = f"load-{device.split(':')[0]}.{package_name}"
        try:
            package(package_name)
            harness.versions(package_name)

            def peer(way: Callable[[list[str], str], Any] = way) -> float:
                def all() -> None:
                    held.append(way(files, torch_device))
                    if torch_device != "cpu":
                        torch.cuda.synchronize()

                before()
                took = microseconds(all)
                held.clear()
                if torch_device != "cpu":
                    torch.cuda.empty_cache()
                return took

            row.ours, row.peer = in_turns(ours, peer, rounds, warm)
        except Skipped as reason:
            row.skipped = str(reason)
        except Exception as error:
            row.failed = repr(error)[:500]
        yield row


# Raw techniques


def in_threads(count: int, work: Callable[[int], None]) -> float:
    """Runs `work` with the numbers from 0 in threads. Returns the microseconds."""
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    began = time.perf_counter_ns()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (time.perf_counter_ns() - began) / 1e3


def populated(nbytes: int) -> tuple[mmap.mmap, float]:
    """Maps memory that processes can share, and populates it by threads. Returns the microseconds
    too."""
    file = os.memfd_create("raw")
    os.ftruncate(file, nbytes)
    memory = mmap.mmap(file, nbytes)
    os.close(file)
    # This function releases the interpreter's lock.
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    huge, populate_write = 14, 23
    advise(start, nbytes, huge)
    part = -(-nbytes // READERS // (2 * MIB)) * 2 * MIB
    failed: list[int] = []

    def work(number: int) -> None:
        length = max(0, min(part, nbytes - number * part))
        if length and advise(start + number * part, length, populate_write):
            failed.append(number)

    took = in_threads(READERS, work)
    if failed:
        raise Skipped("this kernel cannot populate memory")
    return memory, took


def read_into(files: list[str], memory: mmap.mmap | None) -> float:
    """Reads files by threads, into memory or into a small buffer of each thread. Returns the
    microseconds."""
    part = 4 * MIB
    todo: list[tuple[str, int, int]] = []
    at = 0
    for file in files:
        length = os.path.getsize(file)
        todo += [(file, offset, at + offset) for offset in range(0, length, part)]
        at += length
    rest = iter(todo)
    lock = threading.Lock()
    whole = memoryview(memory) if memory is not None else None

    def work(_number: int) -> None:
        opened = {file: os.open(file, os.O_RDONLY) for file in files}
        own = memoryview(bytearray(part))
        while True:
            with lock:
                piece = next(rest, None)
            if piece is None:
                break
            file, offset, to = piece
            os.preadv(opened[file], [own if whole is None else whole[to : to + part]], offset)
        for file in opened.values():
            os.close(file)

    took = in_threads(READERS, work)
    if whole is not None:
        whole.release()
    return took


# Rows


def load_into_gpu() -> Iterator[Row]:
    torch_with_gpu()
    ways: list[Way] = [
        ("InstantTensor", "instanttensor", instanttensor_way, pick(4, 2), 1),
        ("safetensors: load_file", "safetensors", safetensors_way, pick(2, 1), 0),
        ("fastsafetensors without GPUDirect", "fastsafetensors", fastsafetensors_way, 1, 0),
    ]
    with holder() as store, model_files(pick(16 * GIB, GIB)) as files:
        yield from loads(store, files, "cuda:0", ways, "the page cache")
        yield from verify(store, files, "cuda:0")


def verify(store: Any, files: list[str], device: str) -> Iterator[Row]:
    torch = torch_with_gpu()
    store.load("verified", files, device=device)
    nbytes = sum(os.path.getsize(file) for file in files)
    count = nbytes // 8
    array = torch.ones(count, dtype=torch.int64, device=device)

    def peer() -> float:
        def read() -> None:
            assert int(array.sum()) == count

        return microseconds(read)

    with store.open("verified") as model:
        times = in_turns(lambda: microseconds(model.verify), peer, pick(5, 2))
    del array
    torch.cuda.empty_cache()
    store.rm("verified")
    what = f"verify {nbytes / GIB:.3g} GiB of a held model on a GPU"
    goal = f"≤ {nbytes / 200e3:.0f} µs"
    yield Row(what, *times, "torch: the sum of as many bytes, which reads them once", goal, ("bytes", nbytes), "verify")


def load_cold_into_gpu() -> Iterator[Row]:
    torch_with_gpu()
    ways: list[Way] = [("InstantTensor, which reads without the page cache", "instanttensor", instanttensor_way, pick(3, 1), 0)]
    with holder() as store, model_files(pick(4 * GIB, GIB), ("/tmp", os.getcwd())) as files:

        def drop() -> None:
            for file in files:
                opened = os.open(file, os.O_RDONLY)
                os.fsync(opened)
                os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(opened)

        try:
            for file in files:
                os.close(os.open(file, os.O_RDONLY | os.O_DIRECT))
        except OSError as error:
            raise Skipped(f"this disk has no direct reads: {error}") from None
        yield from loads(store, files, "cuda:0", ways, "a disk, not in the page cache", drop, direct=True)


def load_into_host() -> Iterator[Row]:
    """Also measures the stages of a load next to their limits."""
    ways: list[Way] = [
        ("safetensors: load_file, then a copy of each tensor", "safetensors", copied_safetensors, pick(5, 2), 1),
        ("fastsafetensors on the CPU", "fastsafetensors", fastsafetensors_way, pick(5, 2), 1),
    ]
    with holder() as store, model_files(pick(GIB, 256 * MIB)) as files:
        yield from loads(store, files, "host", ways, "the page cache")


def stages_of_host() -> Iterator[Row]:
    """Loads a large model into host memory, and measures the stages next to their limits."""
    cores = len(os.sched_getaffinity(0))
    nbytes = pick(8 * GIB, 2 * GIB) if cores >= 8 else pick(2 * GIB, 256 * MIB)
    names = ("all", "memory", "filling")
    ours: dict[str, list[float]] = {name: [] for name in names}
    raw: dict[str, list[float]] = {name: [] for name in (*names, "reading")}
    rounds = pick(2, 1)
    with holder() as store, model_files(nbytes) as files:
        total = sum(os.path.getsize(file) for file in files)
        for number in range(rounds + 1):
            began = time.perf_counter_ns()
            published = store.load("loaded", files)
            took = (time.perf_counter_ns() - began) / 1e3
            store.rm("loaded")
            reading = read_into(files, None)
            memory, creating = populated(total)
            filling = read_into(files, memory)
            memory.close()
            if number:
                ours["all"].append(took)
                ours["memory"].append(published.seconds[0] * 1e6)
                ours["filling"].append(published.seconds[2] * 1e6)
                raw["all"].append(creating + filling)
                raw["memory"].append(creating)
                raw["filling"].append(filling)
                raw["reading"].append(reading)
        store.load("verified", files)
        with store.open("verified") as model:
            hashing = [microseconds(model.verify) for _ in range(rounds)]
        store.rm("verified")
    size, at, group = f"{total / GIB:.3g} GiB", ("bytes", total), "stages-host"
    technique = f"memfd, {READERS} threads populate it and read"
    goal = f"≤ {total / 20e3:.0f} µs" if cores >= 16 else ""
    yield Row(f"load {size} into memory of the host, hash included", ours["all"], raw["all"], technique, goal, at, group)
    yield Row(f"load {size}: its memory", ours["memory"], raw["memory"], f"memfd, {READERS} threads populate it", "", at, group)
    yield Row(f"load {size}: filling, hash included", ours["filling"], raw["filling"], f"{READERS} threads read", "", at, group)
    name = f"{READERS} threads read the page cache into small buffers"
    yield Row(f"verify {size} of the host: the hash alone", hashing, raw["reading"], name, "", at, group)


def attach(device: str) -> Iterator[Row]:
    """Opens 256 tensors in new processes, which have imported their libraries and use the device
    already."""
    import store as store_rows

    with holder() as store:
        directory = Path(tempfile.mkdtemp(prefix="xh-models-", dir="/tmp"))
        try:
            path = directory / "many.safetensors"
            store_rows.write_sparse(path, pick(4 * GIB, GIB) if device != "host" else GIB, 256)
            store.load("many", path, device=device)
            stages: dict[str, list[float]] = {}
            # Each process imports its libraries, which takes seconds.
            for _ in range(pick(5, 3)):
                done = subprocess.run(
                    [sys.executable, store_rows.__file__, "--fresh", device], capture_output=True, text=True, timeout=DEADLINE, check=False
                )
                if done.returncode:
                    raise RuntimeError(done.stderr[-400:])
                for stage, took in json.loads(done.stdout).items():
                    stages.setdefault(stage, []).append(took * 1e6)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    goals = {"first": "≤ 4 ms", "again": "≤ 0.5 ms"}
    place = "the host" if device == "host" else "a GPU"
    for stage, times in stages.items():
        what = f"attach 256 tensors in a new process, {place}, {stage}"
        yield Row(what, times, goal=goals.get(stage, ""), group=f"attach-{device.split(':')[0]}")


def attach_on_host() -> Iterator[Row]:
    yield from attach("host")


def attach_on_gpu() -> Iterator[Row]:
    torch_with_gpu()
    yield from attach("cuda:0")


ROWS = [load_into_gpu, load_cold_into_gpu, attach_on_gpu, attach_on_host, stages_of_host]
