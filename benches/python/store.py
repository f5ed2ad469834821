"""Measures a holder and its store.

    store.py [--device cuda:0] [--gib 16] [--big-gib 54] [--dir DIR] [--only TEXT]

Each result is printed with its target and with its peer in the same run. Without a GPU,
`--device host` measures small models on the host. The program starts the command, the module and
its own second processes. It ends with exit code 1 if any check failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

DEADLINE = 120.0


def gigabytes(count: float, seconds: float) -> str:
    return f"{count / seconds / 1e9:.1f} GB/s"


def speed(line: str) -> float:
    """Returns the speed in a line about a load."""
    return float(line.split("included: ")[1].split()[0])


def milliseconds(times: list[float]) -> str:
    return f"median {statistics.median(times) * 1e3:.2f} ms, greatest {max(times) * 1e3:.2f} ms of {len(times)}"


# The second processes run this file too, and receive their orders through a pipe.


class Engine:
    """A process that opens models as an inference engine does."""

    def __init__(self, device: str):
        import multiprocessing

        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=engine, args=(theirs, device))
        self.process.start()
        theirs.close()
        self.ask("ready")

    def say(self, *order: Any) -> None:
        self.pipe.send(order)

    def hear(self) -> Any:
        if not self.pipe.poll(DEADLINE):
            raise TimeoutError("an engine says nothing")
        answer = self.pipe.recv()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def ask(self, *order: Any) -> Any:
        self.say(*order)
        return self.hear()

    def kill(self) -> None:
        self.process.kill()
        self.process.join(DEADLINE)


def engine(pipe: Connection, device: str) -> None:
    from crosshandle import store

    held: dict[str, Any] = {}
    while True:
        try:
            what, *rest = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(Orders(held, device, store, pipe).__getattribute__(what)(*rest))
        except Exception as error:
            traceback.print_exc()
            pipe.send(RuntimeError(f"{type(error).__name__}: {error}"))


class Orders:
    def __init__(self, held: dict[str, Any], device: str, store: Any, pipe: Connection | None):
        self.held, self.device, self.store, self.pipe = held, device, store, pipe

    def ready(self) -> bool:
        return True

    def open_once(self, name: str, place: str | None = None) -> float:
        """Opens a model and looks up every tensor. Returns the seconds."""
        begin = time.monotonic()
        model = self.store.open(name, framework="crosshandle", place=place)
        addresses = [model._tensors[key][2] for key in model.keys()]
        took = time.monotonic() - begin
        assert len(addresses) == len(model)
        self.held[name] = model
        return took

    def places(self, name: str) -> str:
        """Returns the addresses, in units of half a TiB, at which the model can be mapped."""
        good = []
        for unit in range(1, 256):
            address = (unit << 39) + (77 << 21)
            try:
                self.store.open(name, framework="crosshandle", place=address).close()
                good.append(unit)
            except self.store.AddressTakenError:
                pass
        spans: list[list[int]] = []
        for unit in good:
            if spans and spans[-1][1] == unit - 1:
                spans[-1][1] = unit
            else:
                spans.append([unit, unit])
        return ", ".join(f"{low << 39:#x}-{(high + 1) << 39:#x}" for low, high in spans) or "none"

    def drop(self, name: str) -> None:
        del self.held[name]

    def mapped_at(self, name: str) -> float:
        """Opens a model, and returns the time at which everything was mapped."""
        self.open_once(name)
        return time.monotonic()

    def await_update(self, name: str) -> float:
        model = self.held[name]
        number = model.stable()
        assert self.pipe
        self.pipe.send("waiting")
        model.next_update(number, DEADLINE)
        return time.monotonic()

    def sleep(self, name: str, to: str | None = None) -> float:
        begin = time.monotonic()
        self.held[name].sleep(to, keep_tensors=True)
        return time.monotonic() - begin

    def wake(self, name: str) -> tuple[float, int]:
        begin = time.monotonic()
        self.held[name].wake()
        return time.monotonic() - begin, self.held[name].address


def attach(device: str) -> None:
    """Opens a model twice, and prints the time of each step in seconds."""
    import crosshandle
    from crosshandle import store

    framework = "numpy"
    if not device.startswith("host"):
        import torch

        framework = "torch"
        torch.zeros(1, device=device)
        torch.cuda.synchronize()
    else:
        import ml_dtypes  # noqa: F401
        import numpy  # noqa: F401
    times: dict[str, float] = {}
    began = time.monotonic()

    def lap(step: str) -> None:
        nonlocal began
        now = time.monotonic()
        times[step] = now - began
        began = time.monotonic()

    crosshandle.default_context(device)
    lap("context")
    for when in ("first", "again"):
        began = time.monotonic()
        model = store.open("many", framework=framework)
        lap(f"{when}: open")
        tensor = model["layers.0.0.weight"]
        lap(f"{when}: one tensor")
        tensors = model.state_dict()
        lap(f"{when}: all tensors by name")
        assert len(tensors) == 256
        times[when] = sum(took for step, took in times.items() if step.startswith(f"{when}:"))
        for other in tensors.values():
            assert other is not None
        lap(f"{when}: every view")
        model.close()
        del model, tensor, tensors, other
        lap(f"{when}: close")
    print(json.dumps(times))


# Creating model files.


def layout(count: int, each: int, file: int = 0) -> bytes:
    tensors = {
        f"layers.{file}.{index}.weight": {
            "dtype": "BF16",
            "shape": [each // 2],
            "data_offsets": [index * each, (index + 1) * each],
        }
        for index in range(count)
    }
    text = json.dumps(tensors).encode()
    return struct.pack("<Q", len(text)) + text


def write_files(directory: Path, nbytes: int) -> list[Path]:
    """Writes four safetensors files. Their bytes are a repeated random block with a stamp."""
    count, per_file = 32, nbytes // 4
    each = per_file // count // 4096 * 4096
    block = os.urandom(min(each, 16 << 20))

    def write(file: int) -> None:
        with open(directory / f"{file}.safetensors", "wb", buffering=0) as out:
            out.write(layout(count, each, file))
            for index in range(count):
                left = each
                while left:
                    stamped = struct.pack("<QQ", file * count + index, left) + block[16:]
                    left -= out.write(stamped[:left])

    threads = [threading.Thread(target=write, args=(file,)) for file in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [directory / f"{file}.safetensors" for file in range(4)]


def write_sparse(path: Path, nbytes: int, count: int) -> None:
    """Writes one file with many tensors. The file uses no disk space, because its bytes are a
    hole."""
    each = nbytes // count // 4096 * 4096
    head = layout(count, each)
    with open(path, "wb") as out:
        out.write(head)
        out.truncate(len(head) + count * each)


def room(directories: list[str], nbytes: int) -> Path:
    for directory in directories:
        if os.path.isdir(directory) and shutil.disk_usage(directory).free > nbytes * 1.1:
            return Path(tempfile.mkdtemp(prefix="xh-store-", dir=directory))
    raise OSError(f"none of {directories} has room for {nbytes} bytes")


class Run:
    def __init__(self, arguments: argparse.Namespace):
        self.device: str = arguments.device
        self.is_gpu = not self.device.startswith("host")
        self.nbytes: int = int(arguments.gib * (1 << 30))
        self.big: int = int(arguments.big_gib * (1 << 30))
        self.dir: str | None = arguments.dir
        self.files: list[Path] = []
        self.directories: list[Path] = []

    def place(self, nbytes: int, first: list[str]) -> Path:
        place = room([self.dir] if self.dir else first, nbytes)
        self.directories.append(place)
        return place

    # The measurements, in the order of the output.

    def loading(self) -> Iterator[str]:
        from crosshandle import store

        self.files = write_files(self.place(self.nbytes, ["/dev/shm", "/tmp"]), self.nbytes)
        total = sum(path.stat().st_size for path in self.files)
        yield f"files: {total / 1e9:.1f} GB in {self.files[0].parent}, in the page cache"
        yield from self._stages(total)
        yield from self._raw(total)
        yield from self._safetensors(total)
        yield from self._instanttensor(total)
        for threads in (1, 4, 8, 16, 16):
            yield self._load(total, threads=threads) + "  (to reach: InstantTensor)"
        # These are the fastest settings so far. `--only tuning` searches for faster ones.
        for threads, staging in ((12, 1 << 20), (16, 1 << 20), (16, 2 << 20), (16, 4 << 20), (24, 1 << 20)):
            lines = [self._load(total, threads=threads, staging_bytes=staging) for _ in range(3)]
            yield max(lines, key=speed) + ", the best of 3"
        yield self._load(total, threads=16, resume=True) + ", so that it can be resumed"
        with store.open("loaded") as model:
            for attempt in range(3):
                begin = time.monotonic()
                model.verify()
                took = time.monotonic() - begin
                yield f"hash on demand, attempt {attempt + 1}: {gigabytes(total, took)}  (to reach: 200)"

    def _load(self, total: int, **options: Any) -> str:
        """Loads a model once, and returns a line with the times of the parts."""
        from crosshandle import store

        begin = time.monotonic()
        published = store.load("loaded", self.files, device=self.device, replace=True, **options)
        took = time.monotonic() - begin
        memory, staging, filling = (f"{seconds * 1e3:.0f}" for seconds in published.seconds)
        said = ", ".join(f"{key} {value >> 10} KiB" if key.endswith("bytes") else f"{key} {value}" for key, value in options.items())
        parts = f"{took * 1e3:.0f} ms: memory {memory}, filling {filling} with its staging {staging}"
        return f"load, {said}, all included: {gigabytes(total, took)} ({parts})"

    def tuning(self) -> Iterator[str]:
        """Loads with several buffer sizes and numbers of threads, to find faster settings. It has
        no target."""
        from crosshandle import store

        if not self.files:
            self.files = write_files(self.place(self.nbytes, ["/dev/shm", "/tmp"]), self.nbytes)
        total = sum(path.stat().st_size for path in self.files)
        for threads in (12, 16, 24, 32):
            for staging in (512 << 10, 1 << 20, 2 << 20, 4 << 20):
                for part in (128 << 10, 256 << 10, 512 << 10):
                    sizes = {"staging_bytes": staging, "part_bytes": part}
                    yield max((self._load(total, threads=threads, **sizes) for _ in range(2)), key=speed)
        store.rm("loaded")

    def _stages(self, total: int) -> Iterator[str]:
        """Measures each stage of a load alone: reading into pinned memory, and copying from it."""
        if not self.is_gpu:
            return
        import torch

        for chunk in (1 << 20, 4 << 20):
            for threads in (4, 8, 12, 16):
                buffers = [torch.empty(chunk, dtype=torch.uint8, pin_memory=True).numpy() for _ in range(threads)]
                files = [os.open(path, os.O_RDONLY) for path in self.files]
                todo = iter([(file, at) for file in files for at in range(0, os.fstat(file).st_size, chunk)])
                lock = threading.Lock()

                def work(buffer: Any, todo: Any = todo, lock: Any = lock) -> None:
                    while True:
                        with lock:
                            part = next(todo, None)
                        if part is None:
                            return
                        os.preadv(part[0], [buffer], part[1])

                workers = [threading.Thread(target=work, args=(buffer,)) for buffer in buffers]
                begin = time.monotonic()
                for worker in workers:
                    worker.start()
                for worker in workers:
                    worker.join()
                took = time.monotonic() - begin
                yield f"stage: page cache to {threads} pinned buffers of {chunk >> 20} MiB: {gigabytes(total, took)}"
                for file in files:
                    os.close(file)
        target = torch.empty(128 << 20, dtype=torch.uint8, device=self.device)
        pinned = torch.empty(128 << 20, dtype=torch.uint8, pin_memory=True)
        for chunk in (1 << 20, 4 << 20):
            for count in (1, 2, 4):
                streams = [torch.cuda.Stream(self.device) for _ in range(count)]
                torch.cuda.synchronize()
                begin = time.monotonic()
                for number in range((8 << 30) // chunk):
                    at = number * chunk % (128 << 20)
                    with torch.cuda.stream(streams[number % count]):
                        target[at : at + chunk].copy_(pinned[at : at + chunk], non_blocking=True)
                torch.cuda.synchronize()
                took = time.monotonic() - begin
                yield f"stage: pinned to GPU, {chunk >> 20} MiB, {count} streams: {gigabytes(8 << 30, took)}"

    def _instanttensor(self, total: int) -> Iterator[str]:
        try:
            import instanttensor
            import torch
        except ImportError:
            yield "InstantTensor is not installed"
            return
        for attempt in range(4):
            begin = time.monotonic()
            with instanttensor.safe_open([str(path) for path in self.files], framework="pt", device=0) as file:
                loaded = dict(file.tensors())
            torch.cuda.synchronize()
            took = time.monotonic() - begin
            yield f"InstantTensor {instanttensor.__version__}, attempt {attempt + 1}: {gigabytes(total, took)}"
            del loaded
        torch.cuda.empty_cache()

    def _raw(self, total: int) -> Iterator[str]:
        """Measures the raw technique, which reads into pinned memory and copies to the GPU."""
        if not self.is_gpu:
            return
        import torch

        target = torch.empty(total, dtype=torch.uint8, device=self.device)
        chunk = 8 << 20
        parts, at = [], 0
        for path in self.files:
            size = path.stat().st_size
            parts += [(path, offset, min(chunk, size - offset), at + offset) for offset in range(0, size, chunk)]
            at += size
        for threads in (1, 8, 16):
            buffers = [[torch.empty(chunk, dtype=torch.uint8, pin_memory=True) for _ in range(2)] for _ in range(threads)]
            todo = iter(parts)
            lock = threading.Lock()

            def work(number: int) -> None:
                stream = torch.cuda.Stream(self.device)
                events = [torch.cuda.Event(), torch.cuda.Event()]
                opened = {path: os.open(path, os.O_RDONLY) for path in self.files}
                turn = 0
                with torch.cuda.stream(stream):
                    while True:
                        with lock:
                            part = next(todo, None)
                        if part is None:
                            break
                        path, offset, size, to = part
                        buffer = buffers[number][turn % 2]
                        events[turn % 2].synchronize()
                        os.preadv(opened[path], [memoryview(buffer.numpy())[:size]], offset)
                        target[to : to + size].copy_(buffer[:size], non_blocking=True)
                        events[turn % 2].record(stream)
                        turn += 1
                stream.synchronize()
                for file in opened.values():
                    os.close(file)

            workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
            begin = time.monotonic()
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            yield f"raw: read into pinned memory and copy, {threads} threads: {gigabytes(total, time.monotonic() - begin)}"
        del target
        torch.cuda.empty_cache()

    def _safetensors(self, total: int) -> Iterator[str]:
        try:
            import safetensors.torch
            import torch
        except ImportError:
            yield "safetensors is not there"
            return
        for attempt in range(2):
            begin = time.monotonic()
            loaded = [safetensors.torch.load_file(path, device=self.device if self.is_gpu else "cpu") for path in self.files]
            if self.is_gpu:
                torch.cuda.synchronize()
            yield f"safetensors.torch.load_file, attempt {attempt + 1}: {gigabytes(total, time.monotonic() - begin)}"
            del loaded
        if self.is_gpu:
            torch.cuda.empty_cache()

    def disk(self) -> Iterator[str]:
        """Reads from a disk without the page cache."""
        from crosshandle import store

        nbytes = min(self.nbytes, 8 << 30)
        files = write_files(self.place(nbytes, ["/tmp", os.getcwd()]), nbytes)
        os.sync()
        total = sum(path.stat().st_size for path in files)
        begin = time.monotonic()
        done = [
            subprocess.run(
                ["dd", f"if={path}", "of=/dev/null", "bs=16M", "iflag=direct"], capture_output=True, check=False
            ).returncode
            for path in files
        ]
        if any(done):
            yield f"disk: {files[0].parent} has no direct reads"
            return
        yield f"disk: dd with O_DIRECT: {gigabytes(total, time.monotonic() - begin)}"
        begin = time.monotonic()
        store.load("disk", files, device=self.device, direct=True)
        yield f"disk: load with direct=True: {gigabytes(total, time.monotonic() - begin)}  (to reach: 0.9 of dd)"
        store.rm("disk")
        for path in files:
            path.unlink()

    def attaching(self) -> Iterator[str]:
        from crosshandle import store

        for name in ("loaded",):
            if any(held.name == name for held in store.ls()):
                store.rm(name)
        path = self.place(0, ["/tmp"]) / "big.safetensors"
        write_sparse(path, self.big, 500)
        begin = time.monotonic()
        store.load("big", path, device=self.device)
        size = path.stat().st_size
        yield f"load of {size / 1e9:.1f} GB, a hole of the file system: {gigabytes(size, time.monotonic() - begin)}"
        tiny = self.directories[-1] / "tiny.safetensors"
        write_sparse(tiny, 1 << 20, 4)
        store.load("tiny", tiny, device=self.device)
        begin = time.monotonic()
        first = Engine(self.device)
        started = time.monotonic() - begin
        begin = time.monotonic()
        first.ask("open_once", "tiny")
        yield f"an engine: starts in {started * 1e3:.0f} ms, makes its contexts in {(time.monotonic() - begin) * 1e3:.0f} ms"
        times = []
        for _ in range(20):
            times.append(first.ask("open_once", "big"))
            first.ask("drop", "big")
        yield f"attach to {size / 1e9:.1f} GB, 500 tensors, contexts up: {milliseconds(times)}  (to reach: 5 ms)"
        placed = []
        for _ in range(20):
            placed.append(first.ask("open_once", "big", "sleepable"))
            first.ask("drop", "big")
        yield f"the same at reserved addresses: {milliseconds(placed)}"
        first.kill()

    def fresh(self) -> Iterator[str]:
        """Opens 256 tensors in new processes, which have imported their libraries and use the
        device already."""
        from crosshandle import store

        path = self.place(0, ["/tmp"]) / "many.safetensors"
        write_sparse(path, min(self.nbytes, 4 << 30), 256)
        store.load("many", path, device=self.device)
        stages: dict[str, list[float]] = {}
        for _ in range(5):
            done = subprocess.run(
                [sys.executable, __file__, "--fresh", self.device], capture_output=True, text=True, timeout=DEADLINE, check=False
            )
            if done.returncode:
                raise RuntimeError(done.stderr)
            for stage, took in json.loads(done.stdout).items():
                stages.setdefault(stage, []).append(took)
        for stage, times in stages.items():
            yield f"256 tensors in a new process, {stage}: {milliseconds(times)}"
        store.rm("many")

    def engines(self) -> Iterator[str]:
        """Kills an engine, and measures how the next engine maps its weights."""
        times = []
        for _ in range(5):
            old, new = Engine(self.device), Engine(self.device)
            old.ask("open_once", "big")
            new.ask("open_once", "tiny")
            begin = time.monotonic()
            os.kill(old.process.pid or 0, signal.SIGKILL)
            times.append(new.ask("mapped_at", "big") - begin)
            old.kill()
            new.kill()
        yield f"engine killed, the next one with its context up has the weights mapped: {milliseconds(times)}  (to reach: 100 ms)"
        code = "from crosshandle import store; m = store.open('big'); print(len(m), m.address)"
        times = []
        for _ in range(5):
            begin = time.monotonic()
            done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=DEADLINE)
            times.append(time.monotonic() - begin)
            assert done.stdout.startswith("500 ")
        yield f"from exec, without torch, the process's end included: {milliseconds(times)}  (to reach: 700 ms)"

    def sleeping(self) -> Iterator[str]:
        engine = Engine(self.device)
        engine.ask("open_once", "big", "agreed" if self.is_gpu else "sleepable")
        address = None
        sleeps, wakes = [], []
        for _ in range(10):
            sleeps.append(engine.ask("sleep", "big"))
            took, found = engine.ask("wake", "big")
            assert address in (None, found), "another address"
            address = found
            wakes.append(took)
        yield f"sleep: {milliseconds(sleeps)}; wake: {milliseconds(wakes)}; at {address:#x} each time"
        if self.is_gpu:
            from crosshandle import store

            size = next(held.nbytes for held in store.ls() if held.name == "big")
            slept = engine.ask("sleep", "big", "host")
            took, found = engine.ask("wake", "big")
            assert found == address, "another address"
            yield f"sleep of {size / 1e9:.1f} GB on the host: {slept:.2f} s, {gigabytes(size, slept)}; wake from there: {took:.2f} s, {gigabytes(size, took)}"
        engine.kill()

    def copying(self) -> Iterator[str]:
        """Publishes tensors that are already on the GPU."""
        if not self.is_gpu:
            return
        import torch

        from crosshandle import store

        nbytes = min(self.nbytes, 8 << 30)
        tensors = {f"w{at}": torch.full((nbytes // 64 // 2,), float(at), dtype=torch.bfloat16, device=self.device) for at in range(64)}
        torch.cuda.synchronize()
        for attempt in range(3):
            begin = time.monotonic()
            published = store.publish("copied", tensors, device=self.device, replace=True)
            took = time.monotonic() - begin
            yield f"publish of {nbytes / 1e9:.1f} GB of the GPU's own tensors, hash included, attempt {attempt + 1}: {gigabytes(nbytes, took)} ({published.seconds[2]:.3f} s of it the copies and the hash)"
        store.rm("copied")

    def updating(self) -> Iterator[str]:
        """Updates a model with one writer and four readers on one device."""
        from crosshandle import store

        readers = [Engine(self.device) for _ in range(4)]
        for reader in readers:
            reader.ask("open_once", "big")
        updater = store.updater("big")
        with store.open("big") as model:
            shapes = {name: model.shape(name) for name in model.keys()}
        if self.is_gpu:
            import torch

            source = {
                name: torch.full(shape, float(at % 7), dtype=torch.bfloat16, device=self.device)
                for at, (name, shape) in enumerate(shapes.items())
            }
            torch.cuda.synchronize()
            spare = torch.empty_like(next(iter(source.values())))
            begin = time.monotonic()
            for tensor in source.values():
                spare.copy_(tensor)
            torch.cuda.synchronize()
            raw = time.monotonic() - begin
        else:
            import ml_dtypes
            import numpy

            source = {name: numpy.full(shape, 3, dtype=ml_dtypes.bfloat16) for name, shape in shapes.items()}
            spare = numpy.empty_like(next(iter(source.values())))
            begin = time.monotonic()
            for tensor in source.values():
                spare[:] = tensor
            raw = time.monotonic() - begin
        nbytes = sum(shape[0] * 2 for shape in shapes.values())
        took, told = [], []
        for _ in range(5):
            for reader in readers:
                assert reader.ask("await_update", "big") == "waiting"
            begin = time.monotonic()
            updater.update(source, hashed=False)
            end = time.monotonic()
            took.append(end - begin)
            told += [reader.hear() - end for reader in readers]
        best = min(took)
        yield f"update of {nbytes / 1e9:.1f} GB in place, 4 readers, without hash: {milliseconds(took)}"
        yield f"  the copies alone by torch or NumPy: {raw * 1e3:.1f} ms; the best is {(best - raw) * 1e3:.1f} ms over that  (to reach: 50)"
        yield f"  until a reader was told, after the writer's return: greatest {max(told) * 1e3:.2f} ms of {len(told)}"
        first = next(iter(shapes))
        begin = time.monotonic()
        updater.update({first: source[first]})
        yield f"  then one tensor with the hash of all, which the others lacked: {(time.monotonic() - begin) * 1e3:.0f} ms"
        begin = time.monotonic()
        updater.update({first: source[first]})
        yield f"  one tensor with its hash: {(time.monotonic() - begin) * 1e3:.1f} ms"
        with store.open("big") as model:
            model.verify()
        for reader in readers:
            reader.kill()

    def places(self) -> Iterator[str]:
        """Lists the addresses that the driver grants on request, on which readers can agree. It has
        no target."""
        if not self.is_gpu:
            return
        import torch

        torch.zeros(1, device=self.device)
        plain = Engine(self.device)
        plain.ask("open_once", "tiny")
        yield f"without torch: {plain.ask('places', 'tiny')}"
        plain.kill()
        from crosshandle import store

        yield f"with torch: {Orders({}, self.device, store, None).places('tiny')}"

    def cost(self) -> Iterator[str]:
        pids = self.holder_pids()
        for pid in pids:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            private = sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private_"))
            yield f"process {pid} of the holder: {private} KiB of private memory  (to reach: 20 MB)"
        if not self.is_gpu:
            return
        asked = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader"]
        listed = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
        on_gpu = [line for line in listed.splitlines() if line.split(",")[0].strip() in map(str, pids)]
        for pid in pids:
            maps = Path(f"/proc/{pid}/maps").read_text()
            assert "libcuda" not in maps, "the holder has the driver's library"
        yield f"processes of the holder that nvidia-smi lists: {len(on_gpu)} of {len(listed.splitlines())}; neither has libcuda  (to reach: 0 B)"

    def holder_pids(self) -> list[int]:
        import crosshandle

        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            done = subprocess.run([crosshandle.command(), "hold", "--check"], capture_output=True, text=True, check=False)
            if done.returncode == 0:
                words = done.stdout.split()
                return [int(words[at + 1]) for at, word in enumerate(words) if word == "process"]
        raise TimeoutError("there is no holder with a successor")

    def takeover(self) -> Iterator[str]:
        from crosshandle import store

        times = []
        with store.open("big") as model:
            hash = model.hash
            for _ in range(20):
                pid = self.holder_pids()[0]
                begin = time.monotonic()
                os.kill(pid, signal.SIGKILL)
                with store.open("big") as again:
                    times.append(time.monotonic() - begin)
                    assert again.hash == hash
        yield f"holder killed, the name is open again: {milliseconds(times)}  (to reach: 100 ms)"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--gib", type=float, default=16)
    parser.add_argument("--big-gib", type=float, default=50.3)
    parser.add_argument("--dir", help="where the files go (default: /dev/shm or /tmp)")
    parser.add_argument("--only", default="", help="only the parts whose name contains this, and those that they need; tuning: sizes and threads of loads")
    parser.add_argument("--fresh", metavar="DEVICE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.fresh:
        attach(arguments.fresh)
        return 0
    sockets = tempfile.mkdtemp(prefix="xh-")
    os.environ["CROSSHANDLE_SOCKET_DIR"] = sockets
    import crosshandle

    holder = subprocess.Popen([crosshandle.command(), "hold"])
    run = Run(arguments)
    failed = 0
    try:
        run.holder_pids()
        parts: list[Callable[[], Iterator[str]]] = [
            run.loading,
            *([run.tuning] if arguments.only == "tuning" else []),
            run.disk,
            run.copying,
            run.fresh,
            run.attaching,
            run.engines,
            run.sleeping,
            run.updating,
            run.places,
            run.cost,
            run.takeover,
        ]
        for part in parts:
            needed = part.__name__ == "attaching" and arguments.only not in ("loading", "disk", "copying", "fresh", "tuning")
            if arguments.only not in part.__name__ and not needed:
                continue
            print(f"\n== {part.__name__}", flush=True)
            begin = time.monotonic()
            try:
                for line in part():
                    print(line, flush=True)
            except Exception:
                failed += 1
                print(f"failed {part.__name__}", flush=True)
                traceback.print_exc()
            print(f"({time.monotonic() - begin:.1f} s)", flush=True)
    finally:
        subprocess.run([crosshandle.command(), "hold", "--stop"], check=False, capture_output=True)
        holder.kill()
        holder.wait()
        for place in run.directories:
            shutil.rmtree(place, ignore_errors=True)
        shutil.rmtree(sockets, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
