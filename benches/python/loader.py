"""Loading of batches for torch, compared with torch's own loader. Needs torch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

import crosshandle.torch
from harness import Row, pick

WORKERS = 8
# Number of samples in a batch, and the size of a sample in bytes.
BATCH = 64
SAMPLE = 1 << 20
# Number of batches that are measured, after the first ones.
MEASURED = 24


class Samples(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Samples that cost little to make, so that the transfer decides."""

    def __init__(self, count: int):
        self._count = count
        self._sample = torch.arange(SAMPLE, dtype=torch.uint8)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._sample


def period(batches: Iterator[Any], device: str | None, warm: int) -> float:
    """Returns the time from batch to batch in microseconds."""
    began, count = 0, 0
    for batch in batches:
        if device is not None:
            batch = batch.to(device, non_blocking=True)
        batch.reshape(-1)[-1].item()
        count += 1
        if count == warm:
            began = time.monotonic_ns()
    return (time.monotonic_ns() - began) / 1e3 / (count - warm)


def loaders() -> Iterator[Row]:
    warm = 2 * WORKERS
    dataset = Samples((MEASURED + warm) * BATCH)
    device = "cuda" if torch.cuda.is_available() else None
    options: dict[str, Any] = {
        "batch_size": BATCH, "num_workers": WORKERS, "multiprocessing_context": "spawn", "persistent_workers": True,
    }  # fmt: skip
    theirs = torch.utils.data.DataLoader(dataset, pin_memory=device is not None, **options)
    ours, peer = [], []
    with crosshandle.torch.DataLoader(dataset, batch_bytes=BATCH * SAMPLE, device=device, **options) as loader:
        # The first round of each starts its workers, and the second touches all memory.
        for _ in range(2 + pick(5, 2)):
            peer.append(period(iter(theirs), device, warm))
            ours.append(period(iter(loader), None, warm))
    place = "the GPU" if device else "the host"
    yield Row(
        f"batch of 64 MiB to {place}, {WORKERS} workers, time from batch to batch",
        ours[2:], peer[2:], "torch's DataLoader", "≤ 0.77 ×",
    )  # fmt: skip


ROWS = [loaders]
