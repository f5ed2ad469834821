"""Channels with slots in the memory of a CUDA device. Without a device, all tests are skipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import crosshandle
from conftest import DEADLINE, Peer
from crosshandle import Channel

Start = Callable[..., Peer]
GPUS = [device.name for device in crosshandle.Device.all() if device.backend == "cuda"]
pytestmark = pytest.mark.skipif(not GPUS, reason="there is no CUDA device")
SHAPE = (256, 1024)


def read(pipe: Any, channel: Channel) -> None:
    torch = pytest.importorskip("torch")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        sums = []
        consumer = channel.consumer(stream=stream, writable=True)
        pipe.send("joined")
        for item in consumer:
            sums.append(item.torch().sum())
            item.release()
        pipe.send([int(one) for one in sums])


def test_streams_publish_and_release(start: Start) -> None:
    torch = pytest.importorskip("torch")
    channel = Channel(SHAPE, "int32", depth=4, device=GPUS[0])
    peer = start(read, channel)
    peer.receive()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), channel.producer(stream=stream) as producer:
        for number in range(200):
            with producer.reserve(timeout=DEADLINE) as slot:
                slot.torch().fill_(number)
    assert peer.receive() == [number * SHAPE[0] * SHAPE[1] for number in range(200)]
    peer.end()


def test_arrays_of_the_host_and_the_gpu_are_copied(start: Start) -> None:
    torch = pytest.importorskip("torch")
    channel = Channel(SHAPE, "int32", device=GPUS[0])
    producer, consumer = channel.producer(), channel.consumer()
    values = np.arange(SHAPE[0] * SHAPE[1], dtype="int32").reshape(SHAPE)
    tensor = torch.from_numpy(values).to(GPUS[0])
    copies = [
        (values, values),
        (np.asfortranarray(values), values),        # copied without gaps
        (tensor, values),
        (tensor.flip(0), values[::-1]),
        (crosshandle.asarray(values, device=GPUS[0]), values),
    ]
    for value, expected in copies:
        producer.send(value, timeout=DEADLINE)
        item = consumer.receive(timeout=DEADLINE)
        assert np.array_equal(item.torch(copy=True).cpu().numpy(), expected)
        with pytest.raises(BufferError):
            item.numpy()
        del item


def produce(pipe: Any, channel: Channel) -> None:
    torch = pytest.importorskip("torch")
    producer = channel.producer()
    for number in range(3):
        producer.send(torch.full(SHAPE, number, dtype=torch.int32, device=GPUS[0]), timeout=DEADLINE)
    torch.cuda.synchronize()
    slot = producer.reserve()
    pipe.send("reserved")
    pipe.recv()
    del slot


def test_items_of_a_killed_producer_come_before_its_death(start: Start) -> None:
    channel = Channel(SHAPE, "int32", depth=4, device=GPUS[0])
    consumer = channel.consumer()
    peer = start(produce, channel)
    peer.receive()
    assert [int(consumer.receive(timeout=DEADLINE).torch(copy=True)[0, 0]) for _ in range(3)] == [0, 1, 2]
    peer.kill()
    with pytest.raises(crosshandle.PeerDiedError):
        consumer.receive(timeout=DEADLINE)
