"""The transport for Ray, without Ray: a stand-in replaces the names that it imports from Ray. The
tests in `engine_tests` run Ray itself."""

from __future__ import annotations

import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import crosshandle
from conftest import DEADLINE, Peer
from crosshandle import link

Start = Callable[..., Peer]


class Plain:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class Runtime:
    def get_node_id(self) -> str:
        return "this"


def stand_in(address: str = "127.0.0.1") -> Any:
    """Imports `crosshandle.ray` over a stand-in for Ray."""
    contents: dict[str, dict[str, Any]] = {
        "ray": {"get_runtime_context": Runtime},
        "ray.util": {"get_node_ip_address": lambda: address},
        "ray.experimental": {"register_tensor_transport": None},
        "ray.experimental.rdt": {},
        "ray.experimental.rdt.tensor_transport_manager": {
            "CommunicatorMetadata": type("CommunicatorMetadata", (Plain,), {}),
            "TensorTransportManager": type("TensorTransportManager", (), {}),
            "TensorTransportMetadata": described(),
        },
    }
    for name, found in contents.items():
        module = types.ModuleType(name)
        module.__dict__.update(found)
        module.__path__ = []
        sys.modules[name] = module
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], own, module)
    import crosshandle.ray

    return crosshandle.ray


def described() -> type:
    from dataclasses import dataclass

    @dataclass
    class TensorTransportMetadata:
        tensor_meta: list[Any]
        tensor_device: str | None = None

    return TensorTransportMetadata


@pytest.fixture
def ours() -> Iterator[Any]:
    found = stand_in()
    yield found
    for name in [name for name in sys.modules if name == "ray" or name.startswith(("ray.", "crosshandle.ray"))]:
        del sys.modules[name]
    del crosshandle.ray


def source(pipe: Any, delay: bool) -> None:
    """Extracts an object for each message, with one event for all of them. With `delay`, does not
    signal."""
    module = stand_in()
    event = crosshandle.event()

    class WithEvents(module.NumpyTransport):  # type: ignore[misc]
        _hosts = True

        def _shared(self, arrays: list[Any]) -> tuple[Any, str]:
            number = event.submitted + 1 if delay else event.signal()
            return module.share_list(arrays, "host", event, number), "cpu"

    transport = WithEvents()
    kept: dict[str, Any] = {}
    while (message := pipe.recv()) is not None:
        name, value = message
        if value is None:
            transport.garbage_collect(name, kept.pop(name)[0], [])
            pipe.send("collected")
        else:
            arrays = [crosshandle.asarray([value] * 1000).numpy(), np.arange(4)]
            # Only the first array is in shared memory.
            meta = transport.extract_tensor_transport_metadata(name, arrays)
            kept[name] = meta, arrays
            pipe.send({key: getattr(meta, key) for key in ("tensor_meta", "bundle", "node", "address", "token")})


def fetched(module: Any, name: str, described: dict[str, Any], transport: Any = None) -> list[Any]:
    meta = module.Metadata(**described)
    found: list[Any] = (transport or module.NumpyTransport()).recv_multiple_tensors(name, meta, Plain())
    return found


def from_another_host(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this process a process of another machine, to which the sender has no local way."""

    def refuse(data: bytes, timeout: float) -> Any:
        raise crosshandle.WrongHostError("another machine")

    monkeypatch.setattr(module, "open_list", refuse)


def receive(pipe: Any) -> None:
    module = stand_in()
    kept = []
    while (described := pipe.recv()) is not None:
        kept.append(fetched(module, "object", described))
        pipe.send(int(kept[-1][0].sum()))


def test_objects_of_one_event_outlive_each_other_and_their_receivers(ours: Any, start: Start) -> None:
    sender, first, second = start(source, False), start(receive), start(receive)

    def extracted(name: str, value: int) -> dict[str, Any]:
        sender.send((name, value))
        found: dict[str, Any] = sender.receive()
        return found

    # More objects than the event has places for signals.
    for value in range(1, 21):
        described = extracted(f"object-{value}", value)
        for receiver in (first, second):
            receiver.send(described)
            assert receiver.receive() == 1000 * value
        sender.send((f"object-{value}", None))
        assert sender.receive() == "collected"
    # A receiver that dies keeps the event open. The sender and the other receiver continue.
    first.kill()
    described = extracted("later", 7)
    second.send(described)
    assert second.receive() == 7000
    mine = fetched(ours, "later", described)
    # An object that was collected cannot be fetched, but receivers keep its memory.
    sender.send(("later", None))
    assert sender.receive() == "collected"
    assert mine[0].sum() == 7000 and mine[1].tolist() == [0, 1, 2, 3]
    third = extracted("last", 8)
    sender.kill()
    begin = time.monotonic()
    with pytest.raises((crosshandle.ExporterGoneError, crosshandle.PeerDiedError)):
        fetched(ours, "last", third)
    assert time.monotonic() - begin < 5
    assert mine[0].sum() == 7000
    second.send(None)
    second.end()


def test_an_object_crosses_a_link(ours: Any, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    sender = start(source, False)
    from_another_host(ours, monkeypatch)
    for value in (3, 4):
        sender.send(("object", value))
        described = sender.receive()
        found = fetched(ours, "object", described)
        assert found[0].sum() == 1000 * value and found[1].tolist() == [0, 1, 2, 3]
        sender.send(("object", None))
        assert sender.receive() == "collected"
    # One link serves both objects.
    assert len(ours._links._connected) == 1
    sender.send(("object", 5))
    described = sender.receive()
    sender.kill()
    begin = time.monotonic()
    with pytest.raises((crosshandle.ExporterGoneError, crosshandle.PeerDiedError)):
        fetched(ours, "object", described)
    assert time.monotonic() - begin < 10


def test_a_fetch_over_a_link_ends_at_its_deadline(ours: Any, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    sender = start(source, True)
    from_another_host(ours, monkeypatch)
    monkeypatch.setattr(ours, "FETCH_TIMEOUT", 1.0)
    closed: list[str] = []
    monkeypatch.setattr(ours, "_closed", counted(ours._closed, closed))
    sender.send(("object", 1))
    described = sender.receive()
    begin = time.monotonic()
    with pytest.raises(crosshandle.TimedOutError):
        fetched(ours, "object", described)
    assert 0.9 < time.monotonic() - begin < 5
    # Ray aborts the next fetch.
    monkeypatch.setattr(ours, "FETCH_TIMEOUT", 60.0)
    transport = ours.NumpyTransport()
    errors: list[BaseException] = []

    def fetch() -> None:
        try:
            fetched(ours, "object", described, transport)
        except BaseException as error:
            errors.append(error)

    opened = len(closed)
    thread = threading.Thread(target=fetch)
    thread.start()
    deadline = time.monotonic() + DEADLINE
    while len(closed) == opened and time.monotonic() < deadline:
        time.sleep(0.01)
    transport.abort_transport("object", Plain())
    thread.join(DEADLINE)
    assert [type(error) for error in errors] == [ours.TransferAbortedError]
    # Each remote object was closed after its error.
    assert closed.count("opened") == closed.count("closed") == 2
    sender.kill()


def counted(function: Callable[[Any], Any], closed: list[str]) -> Callable[[Any], Any]:
    def noted(remote: Any) -> Any:
        closed.append("opened")
        close = remote.close

        class Noted:
            def __getattr__(self, name: str) -> Any:
                return getattr(remote, name)

            def close(self) -> None:
                close()
                closed.append("closed")

        return function(Noted())

    return noted


def test_a_sender_listens_at_an_address_of_the_sixth_version(ours: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["ray.util"], "get_node_ip_address", lambda: "::1")
    address, token = ours._Links().listen("host")
    assert address.startswith("[::1]:")
    with link.connect(address, token=token, data="tls", timeout=DEADLINE) as linked:
        assert linked.ended is None


def test_a_sender_whose_listener_has_ended_listens_again(ours: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    links, ended = ours._Links(), threading.Event()

    class Failing:
        def __init__(self, listener: Any) -> None:
            self.address, self._listener = listener.address, listener

        def accept(self, timeout: float) -> Any:
            raise crosshandle.SystemCallError("no files left")

        def close(self) -> None:
            self._listener.close()
            ended.set()

    listen = link.listen
    monkeypatch.setattr(link, "listen", lambda *all, **named: Failing(listen(*all, **named)))
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    first, _ = links.listen("host")
    assert ended.wait(DEADLINE)
    monkeypatch.setattr(link, "listen", listen)
    second, token = links.listen("host")
    assert second != first
    with link.connect(second, token=token, data="tls", timeout=DEADLINE) as linked:
        assert linked.ended is None


def test_links_that_have_ended_are_dropped(ours: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "_LINKS_INTERVAL", 0.02)
    accepted: list[Any] = []

    class Noting:
        def __init__(self, listener: Any) -> None:
            self.address, self._listener = listener.address, listener

        def accept(self, timeout: float) -> Any:
            found = Noted(self._listener.accept(timeout))
            accepted.append(weakref.ref(found))
            return found

        def close(self) -> None:
            self._listener.close()

    class Noted:
        """A link, with a weak reference that shows whether it was dropped."""

        def __init__(self, accepted: Any) -> None:
            self.link, self.is_open = accepted, True

        def end(self) -> None:
            self.is_open = False
            self.link.close()

        @property
        def ended(self) -> Any:
            return self.link.ended if self.is_open else "closed"

    listen = link.listen
    monkeypatch.setattr(link, "listen", lambda *all, **named: Noting(listen(*all, **named)))
    senders, receiver = [ours._Links(), ours._Links()], ours._Links()
    context = crosshandle.default_context()
    (first, second) = [sender.listen("host") for sender in senders]
    linked = receiver.connected(*first, context, DEADLINE)
    assert receiver.connected(*first, context, DEADLINE) is linked
    until(lambda: len(accepted) == 1 and accepted[0]() is not None)
    # The sender ends the link. The receiver drops its end when it uses another link.
    accepted[0]().end()
    until(lambda: linked.ended is not None)
    receiver.connected(*second, context, DEADLINE)
    assert len(receiver._connected) == 1
    # The sender of the second link drops its end after the receiver has ended it.
    until(lambda: len(accepted) == 2)
    receiver._connected.popitem()[1].close()
    until(lambda: accepted[1]() is None)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)
