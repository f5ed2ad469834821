"""Sends many arrays through pools and queues. All of them arrive, and the process's resources do
not grow.

`--items 10000` sends that many arrays through each.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import crosshandle
from conftest import DEADLINE

METHODS = ["fork", "spawn", "forkserver"]


def make(number: int) -> crosshandle.Array:
    array = crosshandle.empty(1000, "int64")
    memoryview(array)[0] = number
    return array


def put(queue: Any, items: int) -> None:
    for number in range(items):
        queue.put(make(number))


def usage() -> tuple[int, int, int]:
    """Returns this process's numbers of descriptors and threads, and its resident memory in KiB."""
    gc.collect()
    status = Path("/proc/self/status").read_text()
    resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
    return len(os.listdir("/proc/self/fd")), threading.active_count(), resident


def arrive(received: Iterable[crosshandle.Array], items: int) -> None:
    """Checks that all items arrive, and that the second half needs no more resources than the
    first."""
    found = []
    before = usage()
    for place, array in enumerate(received):
        found.append(memoryview(array)[0])
        if place == items // 2:
            before = usage()
    assert sorted(found) == list(range(items))
    descriptors, threads, resident = (after - earlier for after, earlier in zip(usage(), before, strict=True))
    assert descriptors <= 8, f"{descriptors} descriptors more"
    assert threads <= 2, f"{threads} threads more"
    assert resident <= 16 * 1024 + items, f"{resident} KiB more"


@pytest.mark.parametrize("method", METHODS)
def test_a_queue(method: str, items: int) -> None:
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=put, args=(queue, items))
    process.start()
    try:
        arrive((queue.get(timeout=DEADLINE) for _ in range(items)), items)
        process.join(DEADLINE)
        assert process.exitcode == 0
    finally:
        process.kill()
        process.join(DEADLINE)


@pytest.mark.parametrize("method", METHODS)
def test_a_pool(method: str, items: int) -> None:
    with multiprocessing.get_context(method).Pool(2) as pool:
        results = pool.imap(make, range(items))
        arrive((results.next(timeout=DEADLINE) for _ in range(items)), items)


@pytest.mark.parametrize("method", METHODS)
def test_an_executor(method: str, items: int) -> None:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as executor:
        arrive(executor.map(make, range(items), chunksize=8, timeout=DEADLINE * (1 + items / 1000)), items)


def test_joblib(items: int) -> None:
    joblib = pytest.importorskip("joblib")
    parallel = joblib.Parallel(n_jobs=2, return_as="generator", timeout=DEADLINE * (1 + items / 1000))
    arrive(parallel(joblib.delayed(make)(number) for number in range(items)), items)


class Samples:
    """A dataset whose samples are arrays of this package."""

    def __init__(self, items: int):
        self.items = items

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, number: int) -> crosshandle.Array:
        return make(number)


def first(samples: list[crosshandle.Array]) -> crosshandle.Array:
    return samples[0]


@pytest.mark.parametrize("method", METHODS)
def test_a_data_loader(method: str, items: int) -> None:
    data = pytest.importorskip("torch.utils.data")
    collate: Callable[[list[crosshandle.Array]], crosshandle.Array] = first
    loader = data.DataLoader(
        Samples(items), batch_size=1, num_workers=2, collate_fn=collate, multiprocessing_context=method, timeout=DEADLINE
    )
    arrive(iter(loader), items)
