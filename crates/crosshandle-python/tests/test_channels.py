from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import crosshandle
from conftest import DEADLINE, Peer, running_holder
from crosshandle import Channel, Consumer
from crosshandle._crosshandle import parse_handle

Start = Callable[..., Peer]
SHAPE = (120, 160, 3)


def frame(number: int) -> Any:
    return np.full(SHAPE, number % 251, "uint8")


def number_of(item: crosshandle.Item) -> int:
    """Returns the number that all elements of a frame have."""
    array = item.numpy()
    assert array.shape == SHAPE and (array == array[0, 0, 0]).all()
    return int(array[0, 0, 0])


def produce(pipe: Any, channel: Channel, count: int, in_place: bool) -> None:
    with channel.producer() as producer:
        pipe.send("joined")
        pipe.recv()
        for number in range(count):
            if in_place:
                with producer.reserve(timeout=DEADLINE) as slot:
                    slot[:] = number % 251
                    slot.user = str(number).encode()
            else:
                assert producer.send(frame(number), user=str(number).encode(), timeout=DEADLINE) == number
    pipe.recv()


@pytest.mark.parametrize("in_place", [True, False])
def test_frames_cross_in_place_and_as_copies(start: Start, in_place: bool) -> None:
    channel = Channel(SHAPE, "uint8", depth=4)
    consumer = channel.consumer()
    peer = start(produce, channel, 300, in_place)
    peer.receive()
    before = time.monotonic_ns()
    peer.send("start")
    received = 0
    for item in consumer:
        assert item.number == received and int(item.user) == received
        assert number_of(item) == received % 251
        assert before <= item.time <= time.monotonic_ns()
        received += 1
    assert received == 300 and channel.published == 300
    peer.send("end")
    peer.end()


def work(pipe: Any, channel: Channel) -> None:
    consumer = channel.consumer()
    pipe.send("joined")
    pipe.send([int(item.user) for item in consumer])


def test_consumers_share_the_work(start: Start) -> None:
    channel = Channel(slot_size=1 << 16, producers=2, consumers=3)
    peers = [start(work, channel) for _ in range(3)]
    for peer in peers:
        peer.receive()
    producers = [channel.producer() for _ in range(2)]
    for number in range(300):
        producers[number % 2].send(b"work", user=str(number).encode(), timeout=DEADLINE)
    for producer in producers:
        producer.close()
    parts = [peer.receive() for peer in peers]
    assert sorted(number for part in parts for number in part) == list(range(300))
    for peer in peers:
        peer.end()


def watch(pipe: Any, channel: Channel) -> None:
    consumer = channel.consumer()
    pipe.send("joined")
    pipe.recv()
    numbers = [item.number for item in consumer]
    pipe.send((numbers, consumer.lost))


def test_a_slow_consumer_of_a_broadcast_loses_the_oldest_items(start: Start) -> None:
    channel = Channel(SHAPE, "uint8", depth=4, broadcast=True, drop_oldest=True, consumers=2)
    slow, fast = start(watch, channel), channel.consumer()
    slow.receive()
    with channel.producer() as producer:
        for number in range(50):
            producer.send(frame(number))            # never waits
            assert number_of(fast.receive(timeout=DEADLINE)) == number
    # The other consumer has not received anything yet.
    slow.send("continue")
    assert slow.receive() == ([46, 47, 48, 49], 46)
    slow.end()
    assert fast.lost == 0
    with pytest.raises(crosshandle.ChannelClosedError):
        fast.receive(timeout=DEADLINE)


def publish_and_reserve(pipe: Any, channel: Channel) -> None:
    producer = channel.producer()
    for number in range(3):
        producer.send(frame(number), timeout=DEADLINE)
    slot = producer.reserve()
    slot[:] = 99
    pipe.send("reserved")
    pipe.recv()


def test_items_of_a_killed_producer_come_before_its_death(start: Start) -> None:
    channel = Channel(SHAPE, "uint8", depth=4)
    consumer = channel.consumer()
    peer = start(publish_and_reserve, channel)
    peer.receive()
    peer.kill()
    assert [number_of(consumer.receive(timeout=DEADLINE)) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(crosshandle.PeerDiedError):
        consumer.receive(timeout=DEADLINE)
    with pytest.raises(crosshandle.PeerDiedError):
        next(consumer)
    # The place of the dead producer is free again, and so is its slot.
    with channel.producer() as producer:
        slots = [producer.reserve() for _ in range(2)]
        for slot in slots:
            slot.publish(timeout=DEADLINE)
    assert len([item for item in consumer]) == 2


def hold_items(pipe: Any, channel: Channel) -> None:
    consumer = channel.consumer()
    items = [consumer.receive(timeout=DEADLINE).numpy() for _ in range(4)]
    pipe.send([int(item[0, 0, 0]) for item in items])
    pipe.recv()


def test_slots_of_a_killed_consumer_return(start: Start) -> None:
    channel = Channel(SHAPE, "uint8", depth=2, held=4)
    producer = channel.producer()
    for round in range(3):
        peer = start(hold_items, channel)
        for number in range(4):
            producer.send(frame(number), timeout=DEADLINE)
        assert peer.receive() == [0, 1, 2, 3]
        peer.kill()
    consumer = channel.consumer()
    for number in range(100):
        producer.send(frame(number), timeout=DEADLINE)
        assert number_of(consumer.receive(timeout=DEADLINE)) == number


def test_an_array_keeps_its_slot() -> None:
    channel = Channel(SHAPE, "uint8", depth=2, held=2)
    producer, consumer = channel.producer(), channel.consumer()
    producer.send(frame(1))
    producer.send(frame(2))
    with consumer.receive(timeout=DEADLINE) as item:
        kept = item.numpy()[10:20]                  # a view outlives the item
    with pytest.raises(ValueError, match="was released"):
        item.numpy()
    other = memoryview(consumer.receive(timeout=DEADLINE))
    for number in range(3, 5):
        producer.send(frame(number))
    with pytest.raises(crosshandle.LimitReachedError, match="holds all the slots"):
        consumer.receive(timeout=DEADLINE)
    with pytest.raises(crosshandle.LimitReachedError, match="holds all the slots"):
        consumer.try_receive()
    assert (kept == 1).all() and other[0, 0, 0] == 2
    # The arrays stay valid after the consumer, the producer and the channel were closed.
    del other
    assert number_of(consumer.receive(timeout=DEADLINE)) == 3
    for part in (consumer, producer, channel):
        part.close()
    assert (kept == 1).all() and not kept.flags.writeable
    del item, kept
    gc.collect()


def test_reserved_slots() -> None:
    channel = Channel(SHAPE, "uint8", reserved=2)
    producer, consumer = channel.producer(), channel.consumer()
    with pytest.raises(ZeroDivisionError):
        with producer.reserve() as slot:
            slot[:] = 1 // 0
    assert channel.published == 0
    with pytest.raises(ValueError, match="published or returned"):
        slot.numpy()
    slots = [producer.reserve(), producer.reserve()]
    with pytest.raises(crosshandle.LimitReachedError):
        producer.reserve()
    slots[1][:] = 1
    slots[0][:] = 2
    assert [slots[1].publish(), slots[0].publish()] == [0, 1]
    with pytest.raises(ValueError, match="published or returned"):
        slots[0].publish()
    assert [number_of(consumer.receive(timeout=DEADLINE)) for _ in range(2)] == [1, 2]
    del slots, slot
    with producer.reserve() as slot:
        slot.release()                              # the block then publishes nothing
    assert channel.published == 2 and consumer.try_receive() is None


def test_wrong_arguments() -> None:
    channel = Channel(SHAPE, "uint8")
    producer = channel.producer()
    for wrong in (frame(0)[1:], frame(0).astype("int8"), b"bytes", frame(0).reshape(-1)):
        with pytest.raises(crosshandle.InvalidArgumentError, match=r"shape \(120, 160, 3\) and dtype uint8"):
            producer.send(wrong)
    with pytest.raises(crosshandle.InvalidArgumentError):
        producer.reserve().nbytes = 5
    with pytest.raises(crosshandle.InvalidArgumentError, match="64"):
        producer.send(frame(0), user=bytes(65))
    assert channel.published == 0
    with pytest.raises(crosshandle.LimitReachedError):
        channel.producer()
    bytes_only = Channel(slot_size=16).producer()
    for large in (bytes(17), np.zeros(3, "float64")):
        with pytest.raises(crosshandle.InvalidArgumentError, match="16 bytes"):
            bytes_only.send(large)
    with pytest.raises(crosshandle.UnsupportedError, match="send their bytes"):
        bytes_only.send(np.zeros(1, "M8[s]"))
    with pytest.raises(TypeError):
        producer.send(object())
    for arguments in ({}, {"shape": 3, "slot_size": 3}, {"dtype": "int8", "slot_size": 3}):
        with pytest.raises(TypeError, match="slot_size"):
            Channel(**arguments)                    # type: ignore[arg-type]
    for options in ({"depth": 3}, {"producers": 0}, {"consumers": 65}, {"held": 16}):
        with pytest.raises(crosshandle.InvalidArgumentError):
            Channel(slot_size=8, **options)         # type: ignore[arg-type]
    with pytest.raises(crosshandle.InvalidHandleError):
        Channel.open(b"nothing")
    with pytest.raises(TypeError, match="not as int"):
        Channel.open(5)                             # type: ignore[arg-type]


def test_handles_of_channels_have_their_own_kind() -> None:
    channel, memory, event = Channel(slot_size=8), crosshandle.default_context().allocate(1 << 20), crosshandle.event()
    both, reading = channel.handle(), channel.handle(read_only=True)
    assert str(both).startswith("xhc3.") and len(bytes(both)) == 104
    assert not both.read_only and reading.read_only and both != reading
    assert both.exporter_pid == os.getpid() and both.backend == "host"
    for form in (both, bytes(both), bytearray(bytes(both)), str(both), pickle.loads(pickle.dumps(both))):
        assert crosshandle.ChannelHandle(form) == both == parse_handle(form)
        assert Channel.open(form).handle() == both
    # A handle of another kind is refused in each form, and the error names both kinds.
    for other, kind in ((memory.handle(), "memory"), (event.handle(), "event")):
        for wrong in (other, bytes(other), str(other)):
            for function in (Channel.open, crosshandle.ChannelHandle):
                with pytest.raises(crosshandle.InvalidHandleError, match=f'"channel", found one of kind "{kind}"'):
                    function(wrong)
    for wrong in (both, bytes(both), str(both)):
        with pytest.raises(crosshandle.InvalidHandleError, match='"memory", found one of kind "channel"'):
            crosshandle.MemoryHandle(wrong)
        for opening in (crosshandle.open, crosshandle.default_context().open):
            with pytest.raises(crosshandle.InvalidArgumentError, match="Channel.open"):
                opening(wrong)
    with pytest.raises(TypeError, match="travel by themselves"):
        crosshandle.share([both])


def test_the_command_and_python_open_each_other_s_channels() -> None:
    try:
        command = crosshandle.command()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    channel = Channel(slot_size=64, awaits_producers=True)
    for handle in (channel.handle(read_only=True), channel.handle()):
        channel.producer().send(b"from python", timeout=DEADLINE)
        receive = [command, "channel", "receive", str(handle), "--count", "1", "--timeout", f"{DEADLINE:.0f}s"]
        done = subprocess.run(receive, capture_output=True, timeout=2 * DEADLINE, check=False)
        assert (done.returncode, done.stdout) == (0, b"from python\n"), done.stderr
    create = [command, "channel", "new", "--slot", "64"]
    with subprocess.Popen(create, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as creator:
        try:
            assert creator.stdout is not None and select.select([creator.stdout], [], [], DEADLINE)[0]
            opened = Channel.open(creator.stdout.readline())
            opened.producer().send(b"to itself", timeout=DEADLINE)
            assert bytes(opened.consumer().receive(timeout=DEADLINE)) == b"to itself"
        finally:
            creator.kill()


def test_arrays_of_any_shape_and_bytes() -> None:
    channel = Channel(slot_size=4096)
    producer, consumer = channel.producer(), channel.consumer()
    sent = [
        np.arange(12.0).reshape(3, 4).T,            # copied without gaps
        np.array(7, "complex64"),
        np.zeros((0, 5), "int16"),
        np.arange(6, dtype=">i2").astype("=i2")[::-2],
        crosshandle.asarray([[1, 2], [3, 4]], "float16"),
    ]
    for value in sent:
        producer.send(value, timeout=DEADLINE)
        with consumer.receive(timeout=DEADLINE) as item:
            expected = np.asarray(value)
            assert item.shape == expected.shape and item.dtype == str(expected.dtype)
            assert np.array_equal(np.asarray(item), expected)
    for text in (b"", b"text", bytearray(b"more"), memoryview(b"view")):
        producer.send(text, timeout=DEADLINE)
        item = consumer.receive(timeout=DEADLINE)
        assert bytes(item) == bytes(text) and item.nbytes == len(text)
    assert np.asarray(item).dtype == "uint8" and np.from_dlpack(item).shape == (4,)
    with producer.reserve() as slot:
        slot.set_array((2, 8), "int64")
        slot.numpy()[:] = 9
    assert consumer.receive(timeout=DEADLINE).array.tolist() == [[9] * 8] * 2


def test_rights_of_consumers() -> None:
    channel = Channel(SHAPE, "uint8", broadcast=True)
    handle = channel.handle(read_only=True)
    assert handle.read_only
    opened = Channel.open(str(handle))
    assert opened.read_only and opened.handle(read_only=True) == handle
    with pytest.raises(crosshandle.ReadOnlyError):
        opened.handle()
    with pytest.raises(crosshandle.ReadOnlyError):
        opened.producer()
    with pytest.raises(crosshandle.InvalidArgumentError, match="broadcast"):
        channel.consumer(writable=True)
    queue = Channel(SHAPE, "uint8")
    producer, consumer = queue.producer(), queue.consumer(writable=True)
    producer.send(frame(3))
    array = consumer.receive(timeout=DEADLINE).numpy()
    array += 1
    assert (array == 4).all()
    with pytest.raises(crosshandle.ReadOnlyError):
        Channel.open(queue.handle(read_only=True)).consumer(writable=True)


def test_items_are_shared_only_as_copies() -> None:
    channel = Channel(SHAPE, "uint8")
    producer, consumer = channel.producer(), channel.consumer()
    producer.send(frame(5))
    item = consumer.receive(timeout=DEADLINE)
    with pytest.raises(crosshandle.UnsupportedError, match="copy=True"):
        crosshandle.share(item.array)
    with pytest.raises(ValueError, match="copy=True"):
        crosshandle.share(item.numpy())
    same = crosshandle.open(crosshandle.share([item.array, item.numpy()], copy=True))
    item.release()
    assert all((array.numpy() == 5).all() for array in same)


def pass_on(pipe: Any, first: Any, last: Any) -> None:
    channel = pipe.recv()
    pipe.send(channel)                              # an opened channel is pickled too
    producer = last.producer()
    for item in first:
        producer.send(item, timeout=DEADLINE)
    pipe.recv()


def test_channels_are_pickled(start: Start) -> None:
    first, last = Channel(SHAPE, "uint8", consumers=2), Channel(SHAPE, "uint8")
    peer = start(pass_on, first, last)
    peer.send(first)
    same = peer.receive()
    assert same.shape == first.shape and same.handle() == first.handle()
    consumer, other = last.consumer(), same.consumer()
    del other
    with same.producer() as producer:
        producer.send(frame(7), timeout=DEADLINE)
        assert number_of(consumer.receive(timeout=DEADLINE)) == 7
    peer.send("end")
    peer.end()
    queue = multiprocessing.get_context("spawn").Queue()
    queue.put(first)
    assert queue.get(timeout=DEADLINE).dtype == "uint8"


def test_waits_end_in_time_and_let_other_threads_run() -> None:
    channel = Channel(SHAPE, "uint8", depth=1)
    producer, consumer = channel.producer(), channel.consumer()
    assert consumer.try_receive() is None
    for wait in (lambda: consumer.receive(timeout=0.1), lambda: consumer.receive_latest(timeout=0.1)):
        with pytest.raises(crosshandle.TimedOutError):
            wait()
    with ThreadPoolExecutor() as threads:
        # Two threads wait in turns.
        waiting = [threads.submit(lambda: number_of(consumer.receive(timeout=DEADLINE))) for _ in range(2)]
        for number in (1, 2):
            producer.send(frame(number), timeout=DEADLINE)
        assert sorted(one.result(DEADLINE) for one in waiting) == [1, 2]
    producer.send(frame(3))
    assert producer.try_send(frame(4)) is None
    with pytest.raises(crosshandle.TimedOutError):
        producer.send(frame(4), timeout=0.1)
    slot = producer.reserve()
    slot[:] = 5
    with pytest.raises(crosshandle.TimedOutError):
        slot.publish(timeout=0.1)
    assert number_of(consumer.receive(timeout=DEADLINE)) == 3
    slot.publish(timeout=DEADLINE)                  # it was still reserved
    assert number_of(consumer.receive_latest(timeout=DEADLINE)) == 5


def test_a_closed_consumer_ends_the_wait_of_another_thread() -> None:
    channel = Channel(slot_size=8)
    consumer = channel.consumer()
    started = threading.Event()

    def wait() -> None:
        started.set()
        consumer.receive(timeout=DEADLINE)

    with ThreadPoolExecutor() as threads, channel.producer():
        waiting = threads.submit(wait)
        assert started.wait(DEADLINE)
        consumer.close()
        with pytest.raises(ValueError, match="closed"):
            waiting.result(DEADLINE)
    assert channel.members == (0, 0)


def interrupted(pipe: Any, channel: Channel, receives: bool) -> None:
    producer, consumer = channel.producer(), channel.consumer()
    if not receives:
        producer.send(b"full")
    try:
        pipe.send("waiting")
        if receives:
            consumer.receive(timeout=DEADLINE)
        else:
            producer.send(b"more", timeout=DEADLINE)
    except KeyboardInterrupt:
        pipe.send("interrupted")
    pipe.send((consumer.try_receive() is None, channel.members))


@pytest.mark.parametrize("receives", [True, False])
def test_ctrl_c_interrupts_a_wait(start: Start, receives: bool) -> None:
    channel = Channel(slot_size=8, depth=1)
    peer = start(interrupted, channel, receives)
    peer.receive()
    assert peer.process.pid is not None
    os.kill(peer.process.pid, signal.SIGINT)
    assert peer.receive() == "interrupted"
    assert peer.receive() == (receives, (1, 1))
    peer.end()


def test_tasks_receive(start: Start) -> None:
    channel = Channel(SHAPE, "uint8", depth=4)
    peer = start(produce, channel, 100, True)

    async def main() -> list[int]:
        consumer = channel.consumer()
        await asyncio.to_thread(peer.receive)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await consumer.received()
        waiting = asyncio.create_task(first(consumer))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="another task"):
            await consumer.received()
        peer.send("start")
        numbers = [await waiting]
        async with asyncio.timeout(DEADLINE):
            async for item in consumer:
                numbers.append(number_of(item))
        return numbers

    async def first(consumer: Consumer) -> int:
        return number_of(await consumer.received())

    assert asyncio.run(main()) == list(range(100))
    peer.send("end")
    peer.end()


def test_a_death_ends_the_wait_of_a_task(start: Start) -> None:
    channel = Channel(SHAPE, "uint8", depth=4)
    peer = start(publish_and_reserve, channel)

    async def main() -> int:
        received = 0
        with pytest.raises(crosshandle.PeerDiedError):
            async with asyncio.timeout(DEADLINE):
                async for item in channel.consumer():
                    assert number_of(item) == received
                    received += 1
                    if received == 3:
                        await asyncio.to_thread(peer.receive)
                        asyncio.get_running_loop().call_later(0.05, peer.process.kill)
        return received

    assert asyncio.run(main()) == 3


def test_trio_tasks_receive() -> None:
    trio = pytest.importorskip("trio")
    channel = Channel(slot_size=8)
    producer, consumer = channel.producer(), channel.consumer()

    async def main() -> None:
        async def send() -> None:
            producer.send(b"first")
            await trio.sleep(0.01)
            producer.send(b"second")
            producer.close()

        with trio.fail_after(DEADLINE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send)
                texts = [bytes(item) async for item in consumer]
        assert texts == [b"first", b"second"]

    trio.run(main)


def hand_over(pipe: Any) -> None:
    channel = Channel(SHAPE, "uint8", awaits_producers=True)
    channel.hand_over("frames")
    channel.producer().send(frame(1))


def test_a_channel_with_a_name_survives_its_processes(start: Start) -> None:
    with running_holder():
        start(hand_over).end()
        channel = Channel.open("frames")
        consumer = channel.consumer()
        assert number_of(consumer.receive(timeout=DEADLINE)) == 1
        # It waits for the next producer.
        with pytest.raises(crosshandle.TimedOutError):
            consumer.receive(timeout=0.1)
        peer = start(produce, channel, 5, False)
        peer.receive()
        peer.kill()
        reader = Channel.open("frames", read_only=True)
        assert reader.read_only
        with Channel.open("frames").producer() as producer:
            producer.send(frame(2), timeout=DEADLINE)
            assert number_of(consumer.receive(timeout=DEADLINE)) == 2
        with pytest.raises(crosshandle.Error, match="nothing is held"):
            Channel.open("nothing")


def test_a_forked_child_cannot_use_an_inherited_channel() -> None:
    channel = Channel(slot_size=8)
    producer, consumer = channel.producer(), channel.consumer()
    producer.send(b"before")
    item = consumer.receive(timeout=DEADLINE)
    child = os.fork()
    if child == 0:
        refused = 0
        for use in (channel.producer, consumer.try_receive, lambda: producer.send(b"x"), producer.reserve):
            try:
                use()                               # type: ignore[operator]
            except crosshandle.UnsupportedError:
                refused += 1
        own = Channel(slot_size=8)
        own.producer().send(b"own")
        works = bytes(own.consumer().receive(timeout=DEADLINE)) == b"own"
        del item
        os._exit(0 if refused == 4 and works else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert bytes(item) == b"before" and channel.members == (1, 1)
    producer.send(b"after")
    assert bytes(consumer.receive(timeout=DEADLINE)) == b"after"


def test_the_example_runs() -> None:
    example = Path(__file__).resolve().parents[3] / "examples" / "channels" / "camera.py"
    if not example.exists():
        pytest.skip("the packed tests have no examples")
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, timeout=2 * DEADLINE, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("detected ")
