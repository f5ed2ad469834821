"""Events of LMCache's platform layer cross processes, and report deaths."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from conftest import STEP, Program

CHOSEN = {"LMCACHE_DEVICE_BACKEND": "crosshandle-cpu"}


def test_events_cross_and_a_dead_process_is_noticed(start: Callable[..., Program]) -> None:
    engine, server = (start("lmcache_program.py", environment=CHOSEN) for _ in range(2))
    for program in (engine, server):
        program.receive(STEP)
        assert program.ask("describe") == ["crosshandle-cpu", "crosshandle.engines.lmcache"]
    handle = engine.ask("create", "done")
    server.ask("import", "done", handle)
    assert server.ask("query", "done") is True
    engine.ask("record", "done")
    server.ask("wait", "done")
    assert server.ask("query", "done") is True
    print(engine.ask("figures"))

    # The server waits for an event that the engine never records, because it is killed.
    server.ask("import", "never", engine.ask("create", "never"))
    assert server.process.stdin is not None
    server.process.stdin.write(b'["wait", "never"]\n')
    server.process.stdin.flush()
    begin = time.monotonic()
    engine.kill()
    with pytest.raises(RuntimeError, match="PeerDied"):
        server.receive(STEP)
    print(f"noticed after {time.monotonic() - begin:.3f} s")


def test_the_backend_is_used_only_if_it_is_chosen(start: Callable[..., Program]) -> None:
    program = start("lmcache_program.py")
    program.receive(STEP)
    assert program.ask("describe")[0] == "cpu"
