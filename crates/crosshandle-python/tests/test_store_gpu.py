"""A holder's models in torch on a CUDA device. Without a device or torch, all tests are skipped."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

import crosshandle
from conftest import DEADLINE, Peer
from crosshandle import store
from test_store import _holder as _holder
from test_store import await_back, kill_holder, next_holder

GPUS = [device.name for device in crosshandle.Device.all() if device.backend == "cuda"]
pytestmark = pytest.mark.skipif(not GPUS, reason="there is no CUDA device")
torch = pytest.importorskip("torch")

Start = Callable[..., Peer]
DEVICE = "cuda:0"


def network(seed: int) -> Any:
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(256, 512), torch.nn.LayerNorm(512), torch.nn.Linear(512, 16)]
    return torch.nn.Sequential(*layers).to(DEVICE, torch.bfloat16)


def question() -> Any:
    return torch.linspace(-1, 1, 256, device=DEVICE, dtype=torch.bfloat16)


def answer(module: Any) -> list[float]:
    with torch.no_grad():
        found: list[float] = module(question()).float().cpu().tolist()
    return found


class Other:
    """The functions of the second process, by name."""

    def __init__(self, pipe: Any) -> None:
        self.pipe = pipe

    def load(self, place: str | None) -> tuple[list[float], int, int]:
        with torch.device("meta"):
            layers = [torch.nn.Linear(256, 512), torch.nn.LayerNorm(512), torch.nn.Linear(512, 16)]
            self.module = torch.nn.Sequential(*layers)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        self.model = store.open("net", framework="torch", place=place)
        self.state = crosshandle.torch.load_state_dict(self.model, self.module)  # type: ignore[attr-defined]
        allocated = torch.cuda.memory_allocated() - before
        return answer(self.module), self.state["0.weight"].data_ptr(), allocated

    def answer(self) -> list[float]:
        return answer(self.module)

    def sleep_and_wake(self) -> tuple[bool, list[float]]:
        self.model.sleep(keep_tensors=True)
        self.pipe.send("sleeps")
        self.pipe.recv()
        another = self.model.wake()
        return another, answer(self.module)

    def begin_to_update(self) -> None:
        def pieces() -> Any:
            yield "0.bias", torch.zeros(512, device=DEVICE, dtype=torch.bfloat16)
            self.pipe.send("begun")
            self.pipe.recv()

        store.updater("net").update(pieces())


def other(pipe: Any) -> None:
    import crosshandle.torch

    own = Other(pipe)
    while (order := pipe.recv()) is not None:
        what, *rest = order
        pipe.send(getattr(own, what)(*rest))


def ask(peer: Peer, *order: Any) -> Any:
    peer.send(order)
    return peer.receive()


def test_a_module_is_loaded_without_a_copy_and_follows_updates(start: Start) -> None:
    net = network(1)
    published = store.publish("net", net.state_dict(), device=DEVICE)
    peers = [start(other), start(other)]
    for peer in peers:
        found, _, allocated = ask(peer, "load", None)
        assert found == answer(net)
        assert allocated < 1 << 20
    model = store.open("net", published.hash, framework="torch")
    model.verify()
    # The tensors are copied from this GPU to itself, not through the host.
    changed = network(2)
    number = model.stable()
    hash = store.updater("net").update(changed.state_dict())
    assert model.next_update(number, DEADLINE) > number
    for peer in peers:
        assert ask(peer, "answer") == answer(changed)
    assert store.publish("same", changed.state_dict(), device=DEVICE).hash == hash
    model.refresh()
    assert model.hash == hash
    model.verify()
    for peer in peers:
        peer.send(None)
        peer.end()


def test_modules_sleep_and_wake_at_the_same_addresses(start: Start) -> None:
    publisher = start(publish)
    assert publisher.receive() == 1
    publisher.end()
    peers = [start(other), start(other)]
    loaded = [ask(peer, "load", "agreed") for peer in peers]
    assert loaded[0][:2] == loaded[1][:2] == (answer(network(1)), loaded[0][1])
    for peer in peers:
        assert ask(peer, "sleep_and_wake") == "sleeps"
        peer.send(True)
        assert peer.receive() == (False, loaded[0][0])
        assert ask(peer, "sleep_and_wake") == "sleeps"
    store.publish("net", network(3).state_dict(), device=DEVICE, replace=True)
    for peer in peers:
        peer.send(True)
        assert peer.receive() == (True, answer(network(3)))
        peer.send(None)
        peer.end()


def publish(pipe: Any) -> None:
    pipe.send(store.publish("net", network(1).state_dict(), device=DEVICE).version)


LARGE = 256 << 20


def large() -> dict[str, Any]:
    torch.manual_seed(7)
    weights = torch.randint(0, 255, (LARGE // 2,), dtype=torch.uint8, device=DEVICE)
    return {"weights": weights, "same": weights.clone(), "odd": weights[:1001].clone()}


def publish_large(pipe: Any) -> None:
    published = store.publish("large", large(), device=DEVICE)
    pipe.send((published.version, published.hash))


def test_a_gpu_copies_its_own_tensors_and_their_hash_is_right() -> None:
    tensors = large()
    copied = store.publish("copied", tensors, device=DEVICE)
    through_host = store.publish("host", {name: it.cpu() for name, it in tensors.items()}, device=DEVICE)
    assert copied.hash == through_host.hash
    assert store.verify("copied", copied.hash) == copied.hash
    model = store.open("copied", framework="torch")
    for name, tensor in tensors.items():
        assert torch.equal(model[name], tensor)


def test_weights_sleep_on_the_host_and_come_back(start: Start) -> None:
    publisher = start(publish_large)
    version, hash = publisher.receive()
    publisher.end()
    model = store.open("large", hash, framework="torch", place="sleepable")
    address = model.address
    expected = large()
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    model.sleep(to="host", keep_tensors=True)
    assert [(it.device, it.version, it.label) for it in store.ls()] == [("host:0", version + 1, hash)]
    # No other process has the model open, so the GPU's memory is freed.
    end = time.monotonic() + DEADLINE
    while torch.cuda.mem_get_info()[0] < before + LARGE * 3 // 4:
        assert time.monotonic() < end, (before, torch.cuda.mem_get_info())
        time.sleep(0.01)
    assert store.verify("large", hash) == hash
    assert not model.wake()
    assert [(it.device, it.version, it.label) for it in store.ls()] == [(DEVICE, version + 2, hash)]
    assert (model.address, model.version, model.hash) == (address, version + 2, hash)
    for name, tensor in expected.items():
        assert torch.equal(model[name], tensor)
    model.verify()


def keep(pipe: Any) -> None:
    model = store.open("net", framework="torch", back_up=True)
    pipe.send(answer(model_of(model)))
    pipe.recv()
    pipe.send(answer(model_of(model)))


def model_of(model: store.Model) -> Any:
    import crosshandle.torch

    module = network(9)
    crosshandle.torch.load_state_dict(model, module)  # type: ignore[attr-defined]
    return module


def test_weights_come_back_from_a_reader_when_both_holders_die(start: Start) -> None:
    publisher = start(publish)
    assert publisher.receive() == 1
    publisher.end()
    reader = start(keep)
    assert reader.receive() == answer(network(1))
    kill_holder()
    with next_holder():
        # Descriptors of CUDA memory do not differ, so the reader verifies the hash.
        held = await_back("net")
        assert (held.version, held.recovered) == (1, "unverified")
        model = store.open("net", held.label, framework="torch")
        assert answer(model_of(model)) == answer(network(1))
        reader.send(True)
        assert reader.receive() == answer(network(1))
        reader.end()


def test_a_writer_that_is_killed_leaves_the_model_torn(start: Start) -> None:
    net = network(1)
    store.publish("net", net.state_dict(), device=DEVICE)
    model = store.open("net", framework="torch")
    peer = start(other)
    assert ask(peer, "begin_to_update") == "begun"
    with pytest.raises(crosshandle.TimedOutError):
        model.stable(0.05)
    peer.kill()
    with pytest.raises(store.TornUpdateError):
        model.stable(DEADLINE)
    store.updater("net").update(net.state_dict())
    model.stable()
    model.refresh()
    model.verify()
    assert torch.equal(model["0.bias"], net.state_dict()["0.bias"])


def test_gpu_arrays_are_of_all_libraries() -> None:
    net = network(4)
    store.publish("net", {"w": net.state_dict()["0.weight"].float()}, device=DEVICE)
    expected = net.state_dict()["0.weight"].float()
    model = store.open("net", framework="torch")
    assert torch.equal(model["w"], expected) and model.device == DEVICE
    assert model.get_tensor("w", "crosshandle").read_only
    cupy = pytest.importorskip("cupy")
    assert bool(cupy.array_equal(model.get_tensor("w", "cupy"), cupy.asarray(expected)))


def test_only_what_is_loaded_loses_its_gradient() -> None:
    import crosshandle.torch

    net = network(1)
    store.publish("net", {"0.weight": net.state_dict()["0.weight"]}, device=DEVICE)
    with pytest.raises(RuntimeError):
        crosshandle.torch.load_state_dict("net", net)  # type: ignore[attr-defined]
    net = network(1)
    crosshandle.torch.load_state_dict("net", net, strict=False)  # type: ignore[attr-defined]
    frozen = [name for name, own in net.named_parameters() if not own.requires_grad]
    assert frozen == ["0.weight"]
