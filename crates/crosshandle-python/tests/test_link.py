"""Links. A second process plays the other host, with its own boot identity if the system allows
that."""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import crosshandle
from conftest import DEADLINE, Peer
from crosshandle import link

Start = Callable[..., Peer]

CERTIFICATES = Path(__file__).parents[2] / "crosshandle-link" / "tests" / "certificates"


def become_another_host(directory: str) -> bool:
    """Gives this process its own boot identity in a mount namespace. Returns whether that is
    allowed."""
    new_namespace, bind, private = 0x20000, 4096, 16384 | 1 << 18
    file = Path(directory) / "boot"
    file.write_text("c0ffee00-0000-4000-8000-000000000000\n")
    libc = ctypes.CDLL(None)
    return (
        libc.unshare(new_namespace) == 0
        and libc.mount(b"none", b"/", None, private, None) == 0
        and libc.mount(bytes(file), b"/proc/sys/kernel/random/boot_id", None, bind, None) == 0
    )


def own(pipe: Any, directory: str, token: str) -> None:
    is_another = become_another_host(directory)
    context = crosshandle.Context("host")
    memory, event = context.allocate(4000), context.event()
    memory.write(bytes(4000))
    with link.listen("127.0.0.1:0", context=context, token=token, data="tls", keep_alive=20) as listener:
        pipe.send((is_another, listener.address, bytes(memory.handle()), str(event.handle())))
        with listener.accept(timeout=DEADLINE) as other:
            event.wait_value(1, timeout=DEADLINE)
            pipe.send(memory.read())
            event.signal()
            pipe.recv()
            assert other.ended is None
    pipe.recv()


def test_memory_and_events_of_another_host(start: Start, tmp_path: Path) -> None:
    token = link.new_token()
    peer = start(own, str(tmp_path), token)
    is_another, address, memory_handle, event_handle = peer.receive()
    if is_another:
        with pytest.raises(crosshandle.WrongHostError):
            crosshandle.open(memory_handle)
    other = link.connect(address, token=token, data="tls")
    assert other.ended is None and other.peer == address
    memory, event = other.open_memory(memory_handle), other.open_event(event_handle)
    assert (memory.nbytes, memory.read_only, memory.staged) == (4000, False, False)
    assert memory.read() == bytes(4000)

    # Writes bytes, arrays, and memory of this host.
    numbers = np.arange(500, dtype="float32")
    memory.write(numbers.reshape(20, 25), offset=1000)
    back = np.zeros(500, dtype="float32")
    memory.read_into(back, offset=1000)
    assert np.array_equal(back, numbers)
    memory.write(b"abc", offset=3997)
    assert memory.read(offset=3997) == b"abc" and memory.read(2, offset=3998) == b"bc"
    local = crosshandle.default_context().allocate(1000)
    memory.copy_to(local, offset=1000, nbytes=1000)
    assert local.read() == numbers.tobytes()[:1000]
    local.write(b"x" * 1000)
    memory.copy_from(local, nbytes=1000)

    # Commands of a queue. The copy back waits for an event, and no thread waits for the copy.
    context = crosshandle.default_context()
    queue, begin, done = context.queue(), context.event(), context.event()
    queue.wait(begin, 1)
    memory.copy_to(local, offset=1000, nbytes=1000, queue=queue, after=[done], signal=done)
    assert not done.done(1) and local.read() == b"x" * 1000
    begin.signal()
    done.wait_value(1, timeout=DEADLINE)
    assert local.read() == numbers.tobytes()[:1000]
    local.write(b"x" * 1000)
    memory.copy_from(local, nbytes=1000, queue=queue)
    queue.finish(timeout=DEADLINE)

    # A process that sees the signal also sees the bytes that were written before it.
    assert memory.write_and_signal(b"first", event) == 1
    seen = peer.receive()
    assert seen[:5] == b"first" and seen[5:1000] == b"x" * 995 and seen[1000:3000] == numbers.tobytes()
    event.mirror.wait_value(2, timeout=DEADLINE)
    assert event.signal() == 3

    async def awaits() -> None:
        await event.mirror.reached(3)

    asyncio.run(awaits())

    for wrong in (lambda: memory.read(4001), lambda: memory.read(1, offset=4000)):
        with pytest.raises(ValueError):
            wrong()
    with pytest.raises(crosshandle.InvalidArgumentError):
        memory.write(b"abc", offset=3999)
    reader = other.open_memory(memory_handle, writable=False)
    with pytest.raises(crosshandle.ReadOnlyError):
        reader.write(b"abc")
    with pytest.raises(TypeError):
        memory.write(numbers.tolist())

    # The other side ends the link, so pending waits fail.
    peer.send(None)
    with pytest.raises(crosshandle.PeerDiedError):
        event.mirror.wait_value(100, timeout=DEADLINE)
    with pytest.raises(crosshandle.PeerDiedError):
        memory.read(1)
    assert other.ended is not None
    memory.close()
    with pytest.raises(ValueError, match="was closed"):
        memory.read(1)
    peer.send(None)
    peer.end()


def test_who_may_link(tmp_path: Path) -> None:
    token = link.new_token()
    with link.listen("127.0.0.1:0", token=token, data="tls") as listener:
        with pytest.raises(crosshandle.NotAdmittedError):
            link.connect(listener.address, token=link.new_token(), data="tls")
        with pytest.raises(crosshandle.TimedOutError):
            listener.accept(timeout=0.01)
        file = tmp_path / "token"
        file.write_text(token)
        file.chmod(0o644)
        with pytest.raises(crosshandle.InvalidArgumentError, match="chmod 600"):
            link.connect(listener.address, token_file=file, data="tls")
        file.chmod(0o600)
        link.connect(listener.address, token_file=file, data="tls").close()
    for options in ({}, {"token": token, "token_file": "x"}, {"token": token, "data": "pigeons"}):
        with pytest.raises(ValueError):
            link.listen("127.0.0.1:0", **options)
    with pytest.raises(crosshandle.SystemCallError):
        link.connect("127.0.0.1:1", token=token, data="tls")


@pytest.mark.skipif(not CERTIFICATES.is_dir(), reason="the certificates of the tests are not beside them")
def test_certificates_link_instead_of_a_token() -> None:
    def files(who: str, name: str = "owner.example") -> link.Certificates:
        return link.Certificates(
            CERTIFICATES / "authority.pem", CERTIFICATES / f"{who}.pem", CERTIFICATES / f"{who}.key.pem", name
        )

    with link.listen("127.0.0.1:0", certificates=files("owner"), data="tls") as listener:
        with pytest.raises(crosshandle.NotAdmittedError):
            link.connect(listener.address, certificates=files("other"), data="tls")
        with pytest.raises(crosshandle.NotAdmittedError):
            link.connect(listener.address, certificates=files("user", "another.example"), data="tls")
        with link.connect(listener.address, certificates=files("user"), data="tls") as other:
            assert other.ended is None


def own_bundle(pipe: Any, directory: str, token: str) -> None:
    become_another_host(directory)
    context = crosshandle.default_context()
    numbers = crosshandle.asarray(np.arange(24, dtype="int32").reshape(4, 6))
    ready = context.event()
    ready.signal()
    short = crosshandle.share({"part": numbers[1:, ::-2], "empty": crosshandle.empty((0, 3))}, event=ready)
    many = crosshandle.share([crosshandle.full(3, number, dtype="int16") for number in range(500)])
    with link.listen("127.0.0.1:0", context=context, token=token, data="tls") as listener:
        pipe.send((listener.address, bytes(short), bytes(many)))
        with listener.accept(timeout=DEADLINE):
            pipe.recv()


def test_bundles_of_another_host_are_copied(start: Start, tmp_path: Path) -> None:
    from crosshandle import _crosshandle as rust
    from crosshandle import _trees

    token = link.new_token()
    peer = start(own_bundle, str(tmp_path), token)
    address, short, many = peer.receive()
    waited: list[int] = []
    fetched: list[int] = []
    with link.connect(address, token=token, data="tls") as other:

        def fetch(handle: crosshandle.MemoryHandle, offset: int, nbytes: int) -> crosshandle.Memory:
            fetched.append(nbytes)
            own = crosshandle.default_context().allocate(nbytes)
            other.open_memory(handle, writable=False).copy_to(own, offset=offset, nbytes=nbytes)
            return own

        def wait(handle: crosshandle.EventHandle, number: int) -> None:
            event = other.open_event(handle)
            event.mirror.wait_value(number, timeout=DEADLINE)
            waited.append(number)

        tree = _trees.rearrange(*rust.unpack_copied(short, fetch, wait))
        assert tree["part"].tolist() == [[11, 9, 7], [17, 15, 13], [23, 21, 19]]
        assert tree["empty"].shape == (0, 3) and waited == [1]
        # Only the array's own bytes cross: from the first to the last element.
        assert fetched == [(23 - 7 + 1) * 4]
        arrays = _trees.rearrange(*rust.unpack_copied(many, fetch, wait))
        assert [array.tolist() for array in arrays] == [[number] * 3 for number in range(500)]
        # Memory that is too short for an array is refused.
        with pytest.raises(ValueError, match="has bytes up to"):
            rust.unpack_copied(short, lambda handle, offset, nbytes: crosshandle.default_context().allocate(8), wait)
        with pytest.raises(TypeError):
            rust.unpack_copied(short, lambda handle, offset, nbytes: b"bytes", wait)
        peer.send(None)
    peer.end()
