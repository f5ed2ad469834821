"""`crosshandle.torch.DataLoader` with real worker processes."""

from __future__ import annotations

from typing import Any

import pytest

import crosshandle.torch

torch = pytest.importorskip("torch")


class Numbers:
    """A dataset of dicts of tensors and text."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 1000:
            raise LookupError("no such sample")
        return {"image": torch.full((3, 16, 16), index, dtype=torch.uint8), "label": (index, float(index)), "name": f"n{index}"}


def check(batches: list[Any], size: int) -> None:
    first = 0
    for batch in batches:
        numbers = list(range(first, min(first + size, 40)))
        assert batch["name"] == [f"n{number}" for number in numbers]
        assert batch["label"][0].tolist() == numbers and batch["label"][1].tolist() == numbers
        assert batch["label"][1].dtype == torch.float64 and batch["image"].shape == (len(numbers), 3, 16, 16)
        assert batch["image"].sum(dim=(1, 2, 3)).tolist() == [768 * number for number in numbers]
        first += size
    assert first >= 40


@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.parametrize("persistent", [False, True])
def test_batches_come_in_order(context: str, persistent: bool) -> None:
    loader = crosshandle.torch.DataLoader(
        Numbers(), batch_size=7, num_workers=3, batch_bytes=1 << 16,
        multiprocessing_context=context, persistent_workers=persistent,
    )  # fmt: skip
    with loader:
        for _ in range(2):
            check([{**batch, "image": batch["image"].clone()} for batch in loader], 7)
        # A second iteration starts while batches of the first one are still in the channels.
        next(iter(loader))
        check([{**batch, "image": batch["image"].clone()} for batch in loader], 7)


def test_tensors_use_the_slot_in_place() -> None:
    with crosshandle.torch.DataLoader(Numbers(), batch_size=4, num_workers=1, batch_bytes=1 << 16, held=2) as loader:
        kept = []
        with pytest.raises(crosshandle.LimitReachedError):
            for batch in loader:
                kept.append(batch)
        assert len(kept) == 2
        assert kept[0]["image"].sum().item() == 768 * (0 + 1 + 2 + 3)


@pytest.mark.parametrize("workers", [0, 2])
def test_large_batches_cross_as_with_torch(workers: int) -> None:
    with crosshandle.torch.DataLoader(Numbers(), batch_size=4, num_workers=workers, batch_bytes=64) as loader:
        check(list(loader), 4)


def test_an_error_of_a_worker_reaches_the_trainer() -> None:
    with crosshandle.torch.DataLoader(
        Numbers(), batch_size=1, num_workers=1, batch_bytes=1 << 16, sampler=[0, 1000]
    ) as loader:
        with pytest.raises(LookupError, match="no such sample"):
            list(loader)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU of NVIDIA's")
def test_batches_go_to_a_gpu() -> None:
    with crosshandle.torch.DataLoader(
        Numbers(), batch_size=7, num_workers=3, batch_bytes=1 << 16, device="cuda"
    ) as loader:
        for _ in range(2):
            batches = list(loader)
            assert all(batch["image"].is_cuda for batch in batches)
            check(batches, 7)
