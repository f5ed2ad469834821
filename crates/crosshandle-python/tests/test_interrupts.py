"""Every call that waits for another process ends at Ctrl-C and at its timeout. Its errors name the
process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import crosshandle
from conftest import DEADLINE
from crosshandle import link, store

# Maximum delay in seconds from Ctrl-C or the timeout to the end of a call.
SOON = 1.0

EXPORTER = """
import sys, crosshandle
event = crosshandle.default_context().event()
array = crosshandle.empty(4, "int32")
ready = crosshandle.share(array, event=event)
print(bytes(crosshandle.share(array)).hex(), str(event.handle()), flush=True)
sys.stdin.read()
"""

# Reports its next action, performs it, and reports how it ended. The test interrupts it during the
# action.
CALLER = """
import signal, sys, time, crosshandle
import numpy
signal.signal(signal.SIGINT, signal.default_int_handler)
arguments = sys.argv[2:]
{before}
print("ready", flush=True)
try:
    {call}
except KeyboardInterrupt:
    print("KeyboardInterrupt", flush=True)
except BaseException as error:
    print(type(error).__name__, error, flush=True)
else:
    print("it ended", flush=True)
"""


def chosen(calls: dict[str, str], by_default: int) -> list[Any]:
    """Returns the calls to test. Each needs its own process, so all of them run only if the
    environment requests it."""
    all_of_them = "CROSSHANDLE_TEST_ALL_CALLS" in os.environ
    some = list(calls.items())[: None if all_of_them else by_default]
    return [pytest.param(call, id=name) for name, call in some]


class Caller:
    """A process that runs `CALLER` for one call."""

    def __init__(self, call: str, *arguments: str, before: str = ""):
        program = CALLER.format(call=call, before=before)
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, "-", *arguments],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.line() == "ready"

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def interrupted(self) -> tuple[str, float]:
        # If the process sleeps for a moment, the call has started to wait.
        self.awaits()
        began = time.monotonic()
        self.process.send_signal(signal.SIGINT)
        ended = self.line()
        took = time.monotonic() - began
        assert self.process.wait(DEADLINE) == 0
        return ended, took

    def awaits(self) -> None:
        asleep = 0
        end = time.monotonic() + DEADLINE
        while asleep < 8 and time.monotonic() < end:
            state = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0]
            asleep = asleep + 1 if state == "S" else 0
            time.sleep(0.01)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE)


class Stopped:
    """An exporter that was stopped by `SIGSTOP`. It does not reply, but it has not ended."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", EXPORTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.bundle, self.event = self.process.stdout.readline().split()
        self.process.send_signal(signal.SIGSTOP)
        # Waits until the parent sees that the process has stopped.
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)


@pytest.fixture
def stopped() -> Iterator[Stopped]:
    exporter = Stopped()
    yield exporter
    exporter.process.kill()
    exporter.process.wait(DEADLINE)


OPENING = {
    "a bundle": "crosshandle.open(bytes.fromhex(arguments[0]))",
    "an event": "crosshandle.open(arguments[1])",
    "in a context": "crosshandle.Context('host').open(arguments[1])",
    "without a timeout": "crosshandle.Context('host', exchange_timeout=float('inf')).open_event(arguments[1])",
}


@pytest.mark.parametrize("call", chosen(OPENING, 1))
def test_opening_what_a_stopped_process_has(stopped: Stopped, call: str) -> None:
    caller = Caller(call, stopped.bundle, stopped.event)
    ended, took = caller.interrupted()
    assert (ended, took < SOON) == ("KeyboardInterrupt", True), took


def test_a_timeout_of_opening_names_the_process(stopped: Stopped) -> None:
    began = time.monotonic()
    with pytest.raises(crosshandle.TimedOutError, match=rf"process {stopped.process.pid} \(") as late:
        crosshandle.open(bytes.fromhex(stopped.bundle), timeout=0.2)
    assert time.monotonic() - began < SOON + 0.2
    assert late.value.pid == stopped.process.pid
    assert late.value.program.startswith("python")
    # The timeout affects neither the exporter nor the next call.
    stopped.process.send_signal(signal.SIGCONT)
    assert crosshandle.open(bytes.fromhex(stopped.bundle)).shape == (4,)


NOT_READY = """
from crosshandle import default_context
event = default_context().event()
array = crosshandle.default_context().allocate(64).array((4,), "int32")
# Submits a signal that never completes, because it follows a wait for a signal that no process
# submits.
never = default_context().event()
queue = default_context().queue()
queue.wait(never, 1)
queue.signal(event)
bundle = crosshandle.share(array, event=event)
opened = crosshandle.open(bundle)
"""

WAITING = {
    "numpy()": "opened.numpy()",
    "numpy.asarray": "numpy.asarray(opened)",
    "memoryview": "memoryview(opened)",
    "wait": "opened.wait()",
    "an event": "event.wait()",
    "a number": "never.wait_value(1)",
    "several events": "crosshandle.Event.wait_all([event])",
    "a queue": "queue.finish()",
    "DLPack": "numpy.from_dlpack(opened)",
}


@pytest.mark.parametrize("call", chosen(WAITING, 2))
def test_waiting_for_a_signal(call: str) -> None:
    # The queue's commands end only when the process ends.
    caller = Caller(call, before=NOT_READY)
    caller.awaits()
    began = time.monotonic()
    caller.process.send_signal(signal.SIGINT)
    assert caller.line() == "KeyboardInterrupt"
    assert time.monotonic() - began < SOON
    caller.stop()


def test_an_array_that_is_not_ready_in_time() -> None:
    context = crosshandle.default_context()
    event, never, queue = context.event(), context.event(), context.queue()
    queue.wait(never, 1)
    queue.signal(event)
    opened = crosshandle.open(crosshandle.share(crosshandle.empty(4), event=event))
    calls: list[Callable[[], Any]] = [partial(opened.numpy, timeout=0.05), partial(opened.wait, 0.05)]
    for call in calls:
        with pytest.raises(crosshandle.TimedOutError):
            call()
    never.signal()
    assert opened.numpy(timeout=DEADLINE).shape == (4,)
    assert np.asarray(opened).shape == (4,)


STORE = {
    "ls": "store.ls()",
    "rm": "store.rm('name')",
    "pin": "store.pin('name')",
    "open": "store.open('name')",
    "updater": "store.updater('name')",
    "claim": "store.updater('name', claim=True, timeout=60)",
    "await_version": "store.await_version('name', 1)",
    "publish": "store.publish('other', {'a': numpy.ones(4)})",
    "verify": "store.verify('name')",
}


@pytest.fixture(scope="module")
def stopped_holder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    directory = str(tmp_path_factory.mktemp("holder"))
    environment = os.environ | {"CROSSHANDLE_SOCKET_DIR": directory}
    command = [crosshandle.command(), "hold"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as holder:
        end = time.monotonic() + DEADLINE
        while subprocess.run([*command, "--check"], env=environment, capture_output=True).returncode != 0:
            assert time.monotonic() < end, "there is no holder"
        store.Store(directory).publish("name", {"a": np.ones(4)})
        holder.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, holder.pid, os.WSTOPPED)
        yield directory, holder.pid
        holder.send_signal(signal.SIGCONT)
        subprocess.run([*command, "--stop"], env=environment, capture_output=True, timeout=DEADLINE)
        holder.kill()


@pytest.mark.parametrize("call", chosen(STORE, 2))
def test_asking_a_stopped_holder(stopped_holder: tuple[str, int], call: str) -> None:
    before = "import crosshandle.store; store = crosshandle.store.Store(arguments[0])"
    ended, took = Caller(call, stopped_holder[0], before=before).interrupted()
    assert (ended, took < SOON) == ("KeyboardInterrupt", True), took


def test_a_timeout_of_asking_names_the_holder(stopped_holder: tuple[str, int]) -> None:
    directory, pid = stopped_holder
    began = time.monotonic()
    with pytest.raises(crosshandle.TimedOutError, match=rf"process {pid} \(crosshandle\)") as late:
        store.Store(directory).ls(timeout=0.2)
    assert late.value.pid == pid
    assert time.monotonic() - began < SOON + 0.2


LISTENER = """
import sys, crosshandle
from crosshandle import link
context = crosshandle.Context("host")
memory, event = context.allocate(4096), context.event()
listener = link.listen("127.0.0.1:0", token=sys.argv[1], data="tls", context=context)
print(listener.address, str(memory.handle()), str(event.handle()), flush=True)
other = listener.accept()
sys.stdin.read()
"""

LINK = {
    "open_memory": "other.open_memory(arguments[2])",
    "open_event": "other.open_event(arguments[3])",
    "open_name": "other.open_name('name')",
    "read": "memory.read()",
    "write": "memory.write(bytes(4096))",
    "signal": "event.signal()",
    "connect": "link.connect(arguments[0], token=arguments[1], data='tls', context=context)",
}


@pytest.mark.parametrize("call", chosen(LINK, 1))
def test_asking_a_stopped_host(call: str) -> None:
    token = link.new_token()
    command = [sys.executable, "-c", LISTENER, token]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        address, memory, event = host.stdout.readline().split()
        before = f"""
import os
from crosshandle import link
context = crosshandle.Context("host")
address, token = arguments[:2]
other = link.connect(address, token=token, data="tls", context=context, timeout={DEADLINE})
memory, event = other.open_memory(arguments[2]), other.open_event(arguments[3])
os.kill({host.pid}, signal.SIGSTOP)
"""
        try:
            ended, took = Caller(call, address, token, memory, event, before=before).interrupted()
            assert (ended, took < SOON) == ("KeyboardInterrupt", True), took
        finally:
            host.kill()


def test_accepting_no_host() -> None:
    before = "from crosshandle import link; listener = link.listen('127.0.0.1:0', token=arguments[0], data='tls')"
    ended, took = Caller("listener.accept()", link.new_token(), before=before).interrupted()
    assert (ended, took < SOON) == ("KeyboardInterrupt", True), took
