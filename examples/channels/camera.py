"""A camera, a detector and a viewer: three processes that share the frames of one channel.

    python examples/channels/camera.py

The camera draws each frame in place. The detector and the viewer read the same bytes. The viewer is
slow, and loses frames without making the camera wait.
"""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.connection import Connection

import crosshandle

FRAMES = 60
LIMIT = 30.0


def camera(channel: crosshandle.Channel, start: Connection) -> None:
    with channel.producer() as producer:
        # Consumers of a broadcast receive the frames that are published after they have joined.
        start.recv()
        for number in range(FRAMES):
            with producer.reserve(timeout=LIMIT) as slot:
                image = slot.numpy()
                image[:] = 0
                image[number * 10 : number * 10 + 10] = 255
                slot.user = b"last" if number == FRAMES - 1 else b""
            time.sleep(0.005)


def detector(channel: crosshandle.Channel, result: Connection) -> None:
    consumer = channel.consumer()
    result.send("joined")
    rows = []
    for frame in consumer:
        rows.append(int(frame.numpy()[:, 0, 0].argmax()))
    result.send((rows, consumer.lost))


def viewer(channel: crosshandle.Channel, result: Connection) -> None:
    consumer = channel.consumer()
    result.send("joined")
    shown = []
    while True:
        frame = consumer.receive_latest(timeout=LIMIT)
        shown.append(frame.number)
        if frame.user == b"last":
            break
        del frame
        time.sleep(0.05)
    result.send(shown)


def main() -> None:
    spawn = multiprocessing.get_context("spawn")
    channel = crosshandle.Channel((720, 1280, 3), "uint8", depth=64, broadcast=True, drop_oldest=True, consumers=2)
    processes, results = [], []
    for role in (detector, viewer):
        here, there = spawn.Pipe()
        processes.append(spawn.Process(target=role, args=(channel, there)))
        results.append(here)
    start, there = spawn.Pipe()
    processes.append(spawn.Process(target=camera, args=(channel, there)))
    for process in processes:
        process.start()
    for result in results:
        assert result.poll(LIMIT) and result.recv() == "joined"
    start.send("start")
    assert results[0].poll(LIMIT) and results[1].poll(LIMIT)
    rows, lost = results[0].recv()
    shown = results[1].recv()
    for process in processes:
        process.join(LIMIT)
        assert process.exitcode == 0
    assert len(rows) + lost == FRAMES and rows == sorted(rows)
    assert shown == sorted(shown) and shown[-1] == FRAMES - 1
    print(f"detected {len(rows)} frames, showed {len(shown)}")


if __name__ == "__main__":
    main()
