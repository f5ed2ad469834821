"""SGLang's weight cache with the transport `crosshandle`: the daemon's death ends no engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from conftest import STEP, Holder, Program
from crosshandle import store

Start = Callable[..., Program]


def wait_for(path: Path) -> None:
    # SGLang's daemon writes a file when it listens. It sends no message.
    deadline = time.monotonic() + STEP
    while not path.exists():
        assert time.monotonic() < deadline, f"there is no {path}"
        time.sleep(0.05)


def test_engines_continue_when_the_daemon_and_the_holder_die(start: Start, holder: Holder, tmp_path: Path) -> None:
    path = tmp_path / "cache.sock"
    daemon = start("sglang_program.py", "daemon", str(path))
    made = daemon.receive(STEP)
    assert made["transport"] == "crosshandle" and made["left"] == 0
    assert [held.name for held in store.ls()] == ["sglang/host"]
    wait_for(tmp_path / "cache.sock.ready")
    engines = [start("sglang_program.py", "engine", str(path)) for _ in range(2)]
    for engine in engines:
        found = engine.receive(STEP)
        assert found["answer"] == made["expected"] and found["watched"] == []
    daemon.kill()
    assert engines[0].ask("answer") == made["expected"]
    holder.stop()
    engines[0].kill()
    assert engines[1].ask("answer") == made["expected"]
