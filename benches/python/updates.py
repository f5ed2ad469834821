"""Compares ways in which a trainer updates the weights of two engines on one device.

    updates.py [--device cuda:0] [--gib 8] [--rounds 5]

The peer does the steps of vLLM's backend `ipc` in packed mode, without vLLM. For each chunk, the
trainer copies tensors into a buffer and pickles it with torch's reductions. Each engine opens the
buffer, clones its tensors, copies them into its weights, and confirms the chunk. Here, the trainer
updates a holder's model in place. The engines compute with the mapped model, or copy it into
weights of their own. The trainer's time ends when both engines have confirmed the whole update.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

DEADLINE = 120.0
# Size of a chunk in bytes, as in vLLM.
CHUNK = 1 << 30
# Largest part of the peer's time that an update should take.
GOAL = 0.3
# Number of elements of one tensor, of two bytes each: 64 MiB.
ELEMENTS = 32 << 20


def weights(device: str, count: int, value: float) -> dict[str, Any]:
    import torch

    return {f"layers.{at}.weight": torch.full((ELEMENTS,), value + at, dtype=torch.bfloat16, device=device) for at in range(count)}


def synchronize(device: str) -> None:
    import torch

    if device != "cpu":
        torch.cuda.synchronize()


def engine(pipe: Any, device: str, count: int) -> None:
    """Runs an engine, which answers the trainer's messages."""
    import torch
    import torch.multiprocessing  # registers torch's reductions

    from crosshandle import store

    own = weights(device, count, 0.0)
    model: Any = None
    while (message := pipe.recv()) is not None:
        kind, *arguments = message
        if kind == "chunk":
            names, data = arguments
            buffer = ForkingPickler.loads(data)
            cloned = [part.clone() for part in buffer.split(ELEMENTS)]
            for name, tensor in zip(names, cloned):
                own[name].copy_(tensor)
            synchronize(device)
            del buffer, cloned
            answer: Any = None
        elif kind == "open":
            model = store.open(arguments[0], framework="torch")
            answer = None
        elif kind == "updated":
            number, copied = arguments
            model.stable(DEADLINE)
            assert model.number >= 0 and model.next_update(number, DEADLINE) > number
            if copied:
                for name in own:
                    own[name].copy_(model.get_tensor(name))
            synchronize(device)
            answer = None
        else:
            mapped = arguments[0]
            source = {name: model.get_tensor(name) for name in own} if mapped else own
            answer = [float(source[name][place]) for name in own for place in (0, -1)]
        pipe.send(answer)


class Engines:
    def __init__(self, device: str, count: int):
        context = multiprocessing.get_context("spawn")
        self._pipes, self._processes = [], []
        for _ in range(2):
            ours, theirs = context.Pipe()
            process = context.Process(target=engine, args=(theirs, device, count), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def ask(self, *message: Any) -> list[Any]:
        return self.ask_each([message] * len(self._pipes))

    def ask_each(self, messages: list[tuple[Any, ...]]) -> list[Any]:
        for pipe, message in zip(self._pipes, messages):
            pipe.send(message)
        answers = []
        for pipe in self._pipes:
            if not pipe.poll(DEADLINE):
                raise TimeoutError("an engine does not reply")
            answers.append(pipe.recv())
        return answers

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


def peer(engines: Engines, tensors: dict[str, Any], device: str) -> None:
    import torch
    import torch.multiprocessing  # registers torch's reductions

    names = list(tensors)
    per_chunk = max(1, CHUNK // (2 * ELEMENTS))
    buffer = torch.empty(per_chunk * ELEMENTS, dtype=torch.bfloat16, device=device)
    for first in range(0, len(names), per_chunk):
        part = names[first : first + per_chunk]
        for at, name in enumerate(part):
            buffer[at * ELEMENTS : (at + 1) * ELEMENTS].copy_(tensors[name])
        synchronize(device)
        # torch counts the processes that have opened a pickle, so each engine gets its own.
        filled = buffer[: len(part) * ELEMENTS]
        engines.ask_each([("chunk", part, bytes(ForkingPickler.dumps(filled))) for _ in range(2)])


def run(device: str, count: int, rounds: int) -> Iterator[str]:
    from crosshandle import store

    place = "cpu" if device == "host" else device
    engines = Engines(place, count)
    try:
        store.publish("policy", weights(place, count, 0.0), device=device)
        engines.ask("open", "policy")
        updater = store.updater("policy", claim=True, timeout=DEADLINE)
        own = store.open("policy", framework="torch")
        number = own.number
        times: dict[str, list[float]] = {"the steps of vLLM's ipc": [], "holder, mapped": [], "holder, copied": []}
        value = 0.0
        for turn in range(rounds + 1):
            for name, taken in times.items():
                value = (value + 1) % 100
                tensors = weights(place, count, value)
                synchronize(place)
                begin = time.perf_counter()
                if name.startswith("the"):
                    peer(engines, tensors, place)
                else:
                    updater.update(tensors, hashed=False)
                    engines.ask("updated", number, name.endswith("copied"))
                took = time.perf_counter() - begin
                if not name.startswith("the"):
                    number = own.next_update(number, DEADLINE)
                expected = [float(tensors[key][at]) for key in tensors for at in (0, -1)]
                found = engines.ask("values", name.endswith("mapped"))
                assert found == [expected, expected], f"{name}: wrong weights"
                if turn > 0:
                    taken.append(took)
        first = statistics.median(times["the steps of vLLM's ipc"])
        for name, taken in times.items():
            middle = statistics.median(taken)
            goal = "" if name.startswith("the") else "reached" if middle <= GOAL * first else "NOT reached"
            yield f"| {name} | {middle * 1e3:.1f} ms | {middle / first:.2f} × | {goal} |"
    finally:
        engines.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--gib", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    count = max(1, int(arguments.gib * (1 << 30)) // (2 * ELEMENTS))
    os.environ["CROSSHANDLE_SOCKET_DIR"] = tempfile.mkdtemp(prefix="xh-")
    import crosshandle

    holder = subprocess.Popen([crosshandle.command(), "hold"], stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + DEADLINE
        while subprocess.run([crosshandle.command(), "hold", "--check"], capture_output=True, check=False).returncode:
            if time.monotonic() > end:
                raise TimeoutError("there is no holder")
        print(f"{count * 2 * ELEMENTS / (1 << 30):.1f} GiB, one trainer and two engines on {arguments.device}\n")
        print(f"| way | update, median | of the peer's time | goal: {GOAL} × |\n|---|---|---|---|")
        for line in run(arguments.device, count, arguments.rounds):
            print(line, flush=True)
    finally:
        subprocess.run([crosshandle.command(), "hold", "--stop"], check=False, capture_output=True)
        holder.kill()
        holder.wait()


if __name__ == "__main__":
    sys.exit(main())
