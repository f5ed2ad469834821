"""Kernels and captured graphs that signal events and wait for them.

Without a CUDA device, all tests are skipped.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import crosshandle
from conftest import DEADLINE, Peer
from crosshandle import kernels

Start = Callable[..., Peer]
GPUS = [device.name for device in crosshandle.Device.all() if device.backend == "cuda"]
pytestmark = pytest.mark.skipif(not GPUS, reason="there is no CUDA device")
SECOND = 1_000_000_000

ADD_ONE = """
extern "C" __global__ void add_one(
    crosshandle_device_event full, crosshandle_device_event empty, unsigned *value, unsigned *result,
    unsigned long long rounds)
{
    for (unsigned long long round = 0; round < rounds; round++) {
        result[0] = crosshandle::wait_next(full, 8000000000ull);
        if (result[0])
            return;
        *value += 1;
        crosshandle::signal(empty);
    }
}
"""


def graphs(pipe: Any, full: Any, rounds: int) -> None:
    """Replays a graph that waits for the next signal of `full`, counts, and signals `empty`."""
    import torch

    empty = crosshandle.event(device=GPUS[0], single_signaller=True)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    count = torch.zeros(1, dtype=torch.int64, device="cuda")
    with torch.cuda.graph(graph, stream=stream):
        full.wait_on(stream)
        count.add_(1)
        empty.signal(stream)
    pipe.send(empty)
    with torch.cuda.stream(stream):
        for _ in range(rounds):
            graph.replay()
    stream.synchronize()
    pipe.send(int(count))
    pipe.recv()                                                # until this process is killed


def test_replays_of_two_processes_take_turns(start: Start) -> None:
    torch = pytest.importorskip("torch")
    rounds, eager = 100, 20
    full = crosshandle.event(device=GPUS[0], single_signaller=True)
    done = crosshandle.event(device=GPUS[0], single_signaller=True)
    peer = start(graphs, full, rounds)
    empty = peer.receive()
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    # Signals outside of a graph take numbers of the same sequence.
    for turn in range(1, eager + 1):
        full.signal(stream)
        empty.wait_value(turn, DEADLINE)
    with torch.cuda.graph(graph, stream=stream):
        full.signal(stream)
        empty.wait_on(stream)
        done.signal(stream)
    assert (full.completed, done.completed) == (eager, 0)
    began = time.monotonic()
    with torch.cuda.stream(stream):
        for _ in range(rounds - eager):
            graph.replay()
    stream.synchronize()
    print(f"{(time.monotonic() - began) / (rounds - eager) * 1e6:.0f} µs a turn")
    assert peer.receive() == rounds
    assert (full.completed, empty.completed, done.completed) == (rounds, rounds, rounds - eager)
    # A replay that waits for a process that dies ends, and its own signals fail.
    with torch.cuda.stream(stream):
        graph.replay()
    peer.kill()
    with pytest.raises(crosshandle.CommandFailedError):
        done.wait_value(rounds - eager + 1, DEADLINE)
    stream.synchronize()


def test_replays_are_neither_stale_nor_lost() -> None:
    """Replays wait for signals of the host and of a stream, next to signals without a graph."""
    torch = pytest.importorskip("torch")
    replays = int(os.environ.get("CROSSHANDLE_REPLAYS", "200"))
    ahead = 8
    ready = crosshandle.event(device=GPUS[0])
    done = crosshandle.event(device=GPUS[0], single_signaller=True)
    stream, other, graph = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    given, seen = (torch.zeros(1, dtype=torch.int64).pin_memory() for _ in range(2))
    between = torch.zeros(1, dtype=torch.int64, device="cuda")
    with torch.cuda.graph(graph, stream=stream):
        ready.wait_on(stream)
        between.copy_(given, non_blocking=True)
        seen.copy_(between, non_blocking=True)
        done.signal(stream)
    number, eager, began = 0, 0, time.monotonic()
    for replay in range(1, replays + 1):
        if replay % ahead == 1:
            with torch.cuda.stream(stream):
                for _ in range(min(ahead, replays - replay + 1)):
                    graph.replay()
        assert not done.done(number + 1), f"replay {replay} is stale"
        given[0] = replay
        if replay % 2:
            ready.signal()
        else:
            ready.signal(other)
        number += 1
        done.wait_value(number, DEADLINE)
        assert int(seen) == replay
        if replay % ahead == 0:
            done.signal(stream)                                # the next number, without a replay
            number, eager = number + 1, eager + 1
            done.wait_value(number, DEADLINE)
    torch.cuda.synchronize()
    assert (ready.submitted, done.completed) == (replays, replays + eager)
    print(f"{replays} replays, {(time.monotonic() - began) / replays * 1e6:.0f} µs each")


def test_other_signals_cannot_be_captured() -> None:
    torch = pytest.importorskip("torch")
    event = crosshandle.event(device=GPUS[0])
    counted = crosshandle.event(device=GPUS[0], single_signaller=True)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        with pytest.raises(crosshandle.UnsupportedError, match="single signaller"):
            event.signal(stream)
        with pytest.raises(crosshandle.UnsupportedError, match="same number"):
            counted.wait_on(stream, 1)
        counted.signal(stream)
    with pytest.raises(crosshandle.InvalidArgumentError):
        counted.signal()
    for _ in range(3):
        graph.replay()
        counted.signal(stream)
    torch.cuda.synchronize()
    assert (event.submitted, counted.completed) == (0, 6)
    assert counted.done(6) and not counted.done(7)


def test_replays_end_when_the_program_stops_them() -> None:
    torch = pytest.importorskip("torch")
    context = crosshandle.default_context(GPUS[0])
    never, done = context.event(single_signaller=True), context.event(single_signaller=True)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        never.wait_on(stream)
        done.signal(stream)
    with torch.cuda.stream(stream):
        graph.replay()
    assert not done.ready()
    context.abort_kernels()
    with pytest.raises(crosshandle.CommandFailedError):
        done.wait_value(1, DEADLINE)
    context.clear_abort()
    never.signal(stream)
    never_again = torch.cuda.Stream()
    with torch.cuda.stream(never_again):
        graph.replay()
    done.wait_value(2, DEADLINE)
    torch.cuda.synchronize()


def owner(pipe: Any) -> None:
    """Creates an event that it never signals."""
    pipe.send(crosshandle.event(device=GPUS[0]))
    pipe.recv()                                                # until this process is killed


def test_branches_do_not_fail_each_other(start: Start) -> None:
    """The failure of a wait reaches the signals after it, and no signal of a parallel branch."""
    torch = pytest.importorskip("torch")
    peer = start(owner)
    never = peer.receive()
    context = crosshandle.default_context(GPUS[0])
    ready = context.event()
    bad, good, both = (context.event(single_signaller=True) for _ in range(3))
    stream, side, graph = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        fork, join = torch.cuda.Event(), torch.cuda.Event()
        fork.record(stream)
        side.wait_event(fork)
        never.wait_on(stream)
        bad.signal(stream)
        ready.wait_on(side)
        good.signal(side)
        join.record(side)
        stream.wait_event(join)
        both.signal(stream)
    with torch.cuda.stream(stream):
        graph.replay()
    peer.kill()
    with pytest.raises(crosshandle.CommandFailedError):
        bad.wait_value(1, DEADLINE)
    ready.signal()
    good.wait_value(1, DEADLINE)
    with pytest.raises(crosshandle.CommandFailedError):
        both.wait_value(1, DEADLINE)
    stream.synchronize()


def test_kernels_of_cupy(start: Start) -> None:
    cupy = pytest.importorskip("cupy")
    context = crosshandle.default_context(GPUS[0])
    full, empty = context.event(), context.event(single_signaller=True)
    rounds = 50
    one, two = context.device_event(full), context.device_event(empty)
    module = cupy.RawModule(code=kernels.HEADER + ADD_ONE)
    value, result = cupy.zeros(1, "uint32"), cupy.zeros(1, "uint32")
    stream = cupy.cuda.Stream(non_blocking=True)
    arguments = (kernels.argument(one), kernels.argument(two), value, result, cupy.uint64(rounds))
    module.get_function("add_one")((1,), (1,), arguments, stream=stream)
    for number in range(1, rounds + 1):
        full.signal()
        empty.wait_value(number, DEADLINE)
    stream.synchronize()
    assert (int(value[0]), int(result[0])) == (rounds, kernels.COMPLETE)


def test_kernels_of_triton() -> None:
    torch, triton = pytest.importorskip("torch"), pytest.importorskip("triton")
    tl = triton.language
    import crosshandle.triton as functions

    wait_next, signal = functions.wait_next, functions.signal

    @triton.jit
    def add_one(words, awaited, abort, own_words, signalled, value, result, rounds, timeout):  # type: ignore[no-untyped-def]
        for _ in range(rounds):
            status = wait_next(words, awaited, abort, timeout)
            tl.store(result, status)
            if status == 0:
                each = value + tl.arange(0, 128)
                tl.store(each, tl.load(each) + 1)
                signal(own_words, signalled)

    add_one.__globals__.update(wait_next=wait_next, signal=signal, tl=tl)
    context = crosshandle.default_context(GPUS[0])
    full, empty = context.event(), context.event(single_signaller=True)
    one, two = context.device_event(full), context.device_event(empty)
    value = torch.zeros(128, dtype=torch.int32, device="cuda")
    result = torch.full((1,), 9, dtype=torch.int32, device="cuda")
    rounds = 50

    def launch(rounds: int, timeout: int) -> None:
        add_one[(1,)](
            one.words, one.awaited, one.abort, two.words, two.signalled, value, result, rounds, timeout
        )

    launch(1, SECOND // 100)                                   # compiles, and times out
    torch.cuda.synchronize()
    assert int(result) == kernels.TIMED_OUT
    launch(rounds, 8 * SECOND)
    for number in range(1, rounds + 1):
        full.signal()
        empty.wait_value(number, DEADLINE)
    torch.cuda.synchronize()
    assert int(result) == kernels.COMPLETE
    assert value.tolist() == [rounds] * 128


def test_kernels_of_numba() -> None:
    try:
        cuda = pytest.importorskip("numba.cuda")
    except AttributeError as error:
        pytest.skip(f"this numba does not work with this NumPy: {error}")
    pytest.importorskip("cuda.core", reason="these kernels need the package numba-cuda")
    from crosshandle.numba import signal, wait_next

    @cuda.jit
    def add_one(words, awaited, abort, own_words, signalled, value, result, rounds, timeout):  # type: ignore[no-untyped-def]
        for _ in range(rounds):
            result[0] = wait_next(words, awaited, abort, timeout)
            if result[0] != 0:
                return
            value[0] += 1
            signal(own_words, signalled)

    context = crosshandle.default_context(GPUS[0])
    full, empty = context.event(), context.event(single_signaller=True)
    one, two = context.device_event(full), context.device_event(empty)
    value, result = cuda.to_device([0]), cuda.to_device([9])
    rounds = 50

    def launch(rounds: int, timeout: int) -> None:
        addresses = one.words, one.awaited, one.abort, two.words, two.signalled
        add_one[1, 1](*addresses, value, result, rounds, timeout)

    launch(1, SECOND // 100)                                   # compiles, and times out
    cuda.synchronize()
    assert int(result.copy_to_host()[0]) == kernels.TIMED_OUT
    launch(rounds, 8 * SECOND)
    for number in range(1, rounds + 1):
        full.signal()
        empty.wait_value(number, DEADLINE)
    cuda.synchronize()
    assert (int(value.copy_to_host()[0]), int(result.copy_to_host()[0])) == (rounds, kernels.COMPLETE)


def test_threads_wait_for_replays() -> None:
    torch = pytest.importorskip("torch")
    event = crosshandle.event(device=GPUS[0], single_signaller=True)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        event.signal(stream)
    waited = []

    def wait() -> None:
        event.wait_value(1000, DEADLINE)
        waited.append(True)

    thread = threading.Thread(target=wait)
    thread.start()
    for _ in range(1000):
        graph.replay()
    thread.join(DEADLINE)
    assert waited == [True] and event.completed == 1000
