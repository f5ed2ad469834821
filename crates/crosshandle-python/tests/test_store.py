"""Named models, with a holder for each test, and with loaders and readers in separate processes."""

from __future__ import annotations

import inspect
import json
import os
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import crosshandle
from conftest import DEADLINE, Peer, running_holder
from crosshandle import store

Start = Callable[..., Peer]


@pytest.fixture(autouse=True)
def _holder() -> Iterator[None]:
    with running_holder():
        yield


def arrays(seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    made = np.random.default_rng(seed)
    return {
        "w": made.standard_normal((300, 70)).astype("float32"),
        "b": made.standard_normal(70).astype("float16"),
        "scalar": np.array(7 + seed, dtype="int64"),
        "none": np.empty((0, 3), dtype="uint8"),
        "transposed": made.standard_normal((5, 8)).T,
    }


def same(model: store.Model, expected: dict[str, np.ndarray[Any, Any]]) -> None:
    assert sorted(model.keys()) == sorted(expected)
    for name, array in expected.items():
        found = model.get_tensor(name, "numpy")
        assert found.dtype == array.dtype and found.shape == array.shape
        assert np.array_equal(found, array)
        assert not found.flags.writeable


def publish(pipe: Any, seed: int, replace: bool) -> None:
    pipe.send(store.publish("model", arrays(seed), replace=replace))


def test_arrays_are_published_by_one_process_and_opened_by_another(start: Start) -> None:
    peer = start(publish, 1, False)
    published = peer.receive()
    peer.end()
    assert published.version == 1 and published.is_safe
    model = store.open("model", published.hash)
    same(model, arrays(1))
    assert (model.version, model.hash, model.device, len(model)) == (1, published.hash, "host:0", 5)
    assert model.dtype("b") == "F16" and model.shape("transposed") == (8, 5) and "w" in model
    model.verify()
    assert store.verify("model", published.hash) == published.hash
    with pytest.raises(store.WrongContentsError):
        store.open("model", "00" * 32)
    with pytest.raises(KeyError):
        model.get_tensor("no")
    held = store.ls()
    assert [(name.name, name.version, name.label, name.device) for name in held] == [
        ("model", 1, published.hash, "host:0")
    ]
    # Mapped tensors stay valid, whatever happens to the name and the model object.
    weights = model["w"]
    model.close()
    with pytest.raises(ValueError, match="closed"):
        model.keys() and model.hash
    store.rm("model")
    assert np.array_equal(weights, arrays(1)["w"])
    with pytest.raises(store.NoSuchNameError):
        store.open("model")
    with pytest.raises(store.StoreError):
        crosshandle.open("model")


def read_shared(pipe: Any) -> None:
    tree = crosshandle.open(pipe.recv())
    pipe.send(float(tree["w"].numpy().sum()))


def test_a_name_opens_as_a_handle_does_and_its_arrays_can_be_shared(start: Start) -> None:
    store.publish("llama/70b", arrays(2))
    model = crosshandle.open("llama/70b")
    assert isinstance(model, store.Model)
    same(model, arrays(2))
    array = model.get_tensor("w", "crosshandle")
    assert array.read_only and array.shape == (300, 70)
    peer = start(read_shared)
    with crosshandle.share({"w": array}, read_only=True) as bundle:
        peer.send(bytes(bundle))
        assert peer.receive() == float(arrays(2)["w"].sum())
    peer.end()
    with pytest.raises(ValueError):
        crosshandle.open("xh is how handles begin")


def test_what_would_be_lost_is_not_published() -> None:
    class Quantity(np.ndarray):  # type: ignore[type-arg]
        unit = "m"

    numbers = np.arange(4, dtype="float32")
    lossy = {
        "mask": np.ma.masked_array(numbers, mask=[0, 1, 0, 0]),
        "unit": numbers.view(Quantity),
        "order": numbers.astype(">f4"),
        "format": np.array([object()]),
        "dates": np.array(["2026-11-28"], dtype="datetime64[ns]"),
        "strings": np.array(["a", "b"]),
    }
    for name, array in lossy.items():
        with pytest.raises(TypeError):
            store.publish("lossy", {"whole": numbers, name: array})
        if name in ("mask", "unit"):
            with pytest.raises(TypeError, match=name):
                crosshandle.share({"x": array}, copy=True)
    with pytest.raises(store.NoSuchNameError):
        store.open("lossy")


def test_jax_takes_tensors() -> None:
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        store.publish("model", arrays(3))
        model = store.open("model", framework="jax")
        for name, array in arrays(3).items():
            if array.size:
                assert np.array_equal(np.asarray(model[name]), array), name


def write_file(path: Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> None:
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


def test_files_are_loaded_also_of_types_that_numpy_lacks(tmp_path: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.arange(1000, dtype="float32").astype(ml_dtypes.bfloat16)
    small = np.arange(-4, 4).astype(ml_dtypes.float8_e4m3fn)
    path = tmp_path / "m.safetensors"
    write_file(
        path,
        {
            "bf": ("BF16", [10, 100], values.tobytes()),
            "f8": ("F8_E4M3", [8], small.tobytes()),
            "packed": ("F4", [4], b"\x12\x34"),
        },
    )
    told: list[tuple[int, int]] = []
    loaded = store.load("model", path, progress=lambda done, total: told.append((done, total)))
    for direct in (False, True):
        try:
            again = store.load("model", [path], replace=True, direct=direct, threads=2, expected_hash=loaded.hash)
        except OSError:
            assert direct, "the file system has no direct reads"
            continue
        assert again.hash == loaded.hash
    model = store.open("model")
    assert told and sum(done for done, _ in told) == told[0][1] == model.nbytes
    assert model.metadata() == {"format": "pt"}
    assert np.array_equal(model["bf"].astype("float32"), values.reshape(10, 100).astype("float32"))
    assert np.array_equal(model["f8"].astype("float32"), small.astype("float32"))
    with pytest.raises(TypeError, match="F4"):
        model["packed"]
    (tmp_path / "none.json").write_text("[]")
    with pytest.raises(ValueError):
        store.load("other", tmp_path / "none.json")
    with pytest.raises(FileNotFoundError):
        store.load("other", tmp_path / "missing")


def await_next(pipe: Any) -> None:
    version = pipe.recv()
    pipe.send("waiting")
    pipe.send(store.await_version("model", version, DEADLINE))


def test_versions_pins_and_waiting_for_the_next_one(start: Start) -> None:
    store.publish("model", arrays(1))
    with pytest.raises(store.StoreError):
        store.publish("model", arrays(1))
    with pytest.raises(crosshandle.TimedOutError):
        store.await_version("model", 1, timeout=0.01)
    peer = start(await_next)
    peer.send(1)
    assert peer.receive() == "waiting"
    first = store.open("model")
    assert store.publish("model", arrays(2), replace=True).version == 2
    assert peer.receive() == 2
    same(first, arrays(1))
    same(store.open("model"), arrays(2))
    store.pin("model")
    with pytest.raises(store.StoreError):
        store.rm("model")
    store.pin("model", False)
    store.rm("model")
    assert store.ls() == []


class Interrupted(Exception):
    pass


@contextmanager
def interrupted() -> Iterator[None]:
    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def update(pipe: Any) -> None:
    updater = store.updater("model")
    pipe.send("open")
    while (what := pipe.recv()) is not None:
        if what == "die":

            def pieces() -> Iterator[tuple[str, Any]]:
                yield "w", arrays(9)["w"]
                pipe.send("begun")
                pipe.recv()

            updater.update(pieces())
        elif what == "fail":

            def broken() -> Iterator[tuple[str, Any]]:
                yield "w", arrays(9)["w"]
                # An update is in progress, and properties can still be read.
                assert updater.version == 1
                with pytest.raises(ValueError, match="in progress"):
                    updater.update(arrays(9))
                raise ZeroDivisionError

            try:
                updater.update(broken())
            except ZeroDivisionError:
                pipe.send("failed")
        else:
            names, seed, hashed = what
            tensors = {name: array for name, array in arrays(seed).items() if names is None or name in names}
            try:
                pipe.send(updater.update(tensors, hashed=hashed))
            except store.TornUpdateError as error:
                pipe.send(str(error))


def test_updates_in_place_are_seen_and_those_that_end_early_are_too(start: Start) -> None:
    store.publish("model", arrays(1))
    model = store.open("model")
    number = model.stable()
    peer = start(update)
    assert peer.receive() == "open"
    peer.send((None, 4, True))
    hash = peer.receive()
    number = model.next_update(number, DEADLINE)
    assert model.is_still(number)
    model.refresh()
    assert model.hash == hash and model.number == number
    model.verify()
    same(model, arrays(4))
    assert store.publish("other", arrays(4)).hash == hash
    peer.send((["b"], 5, False))
    unhashed = peer.receive()
    model.refresh()
    assert model.hash == unhashed and np.array_equal(model["b"], arrays(5)["b"])
    with pytest.raises(store.StoreError):
        model.verify()
    for way in ("fail", "die"):
        peer.send(way)
        if way == "die":
            assert peer.receive() == "begun"
            with pytest.raises(crosshandle.TimedOutError):
                model.stable(0.05)
            own = store.updater("model")
            with pytest.raises(crosshandle.TimedOutError):
                own.update(arrays(9), timeout=0.1)
            with interrupted(), pytest.raises(Interrupted):
                own.update(arrays(9), timeout=DEADLINE)
            peer.kill()
            peer = start(update)
            assert peer.receive() == "open"
        else:
            assert peer.receive() == "failed"
        with pytest.raises(store.TornUpdateError):
            model.stable(DEADLINE)
        with pytest.raises(store.TornUpdateError):
            store.open("model")
        peer.send((["b"], 6, True))
        assert "torn" in peer.receive()
        peer.send((None, 4, True))
        assert peer.receive() == hash
        model.refresh()
        model.verify()
        same(model, arrays(4))
    with pytest.raises(ValueError):
        store.updater("model").update({"w": np.zeros(3, "float32")})
    # The update wrote nothing.
    model.stable(DEADLINE)
    same(store.open("model"), arrays(4))


def begin_update(pipe: Any) -> None:
    def tensors() -> Iterator[tuple[str, Any]]:
        yield "w", arrays(2)["w"]
        pipe.send("begun")
        pipe.recv()

    store.updater("model").update(tensors())


TIMEOUT, LATENESS = 0.2, 1.0


def functions_with_timeouts() -> set[str]:
    classes = {"Store": store.Store, "Model": store.Model, "Updater": store.Updater}
    return {
        f"{name}.{called}"
        for name, kind in classes.items()
        for called, function in inspect.getmembers(kind, inspect.isfunction)
        if "timeout" in inspect.signature(function).parameters
    }


@pytest.mark.parametrize("stopped", ["writer", "holder"])
def test_no_call_waits_longer_for_a_stopped_process(start: Start, stopped: str) -> None:
    ours = store.Store()
    ours.publish("model", arrays(1))
    ours.publish("other", arrays(1))
    ours.publish("unwanted", arrays(1))
    model, updater = ours.open("model"), ours.updater("model")
    number = model.stable()
    calls: dict[str, Callable[[], object]] = {
        "Model.stable": lambda: model.stable(TIMEOUT),
        "Model.next_update": lambda: model.next_update(number, TIMEOUT),
        "Model.refresh": lambda: model.refresh(TIMEOUT),
        "Store.open": lambda: ours.open("model", timeout=TIMEOUT),
        "Store.updater": lambda: ours.updater("other", timeout=TIMEOUT),
        "Store.updater, claimed": lambda: ours.updater("other", claim=True, timeout=TIMEOUT),
        "Store.await_version": lambda: ours.await_version("model", 9, TIMEOUT),
        "Store.ls": lambda: ours.ls(timeout=TIMEOUT),
        "Store.rm": lambda: ours.rm("unwanted", timeout=TIMEOUT),
        "Store.pin": lambda: ours.pin("other", False, timeout=TIMEOUT),
        "Updater.update": lambda: updater.update({}, timeout=TIMEOUT),
    }
    assert {name.partition(",")[0] for name in calls} == functions_with_timeouts()
    if stopped == "writer":
        writer = start(begin_update)
        assert writer.receive() == "begun"
        process, late = writer.process.pid, set(calls)
        late -= {"Store.updater", "Store.updater, claimed", "Store.ls", "Store.rm", "Store.pin"}
    else:
        process, late = holder_processes()[0], {name for name in calls if name.startswith("Store.")} | {"Model.next_update"}
    assert process is not None
    os.kill(process, signal.SIGSTOP)
    try:
        for name, call in calls.items():
            began = time.monotonic()
            if name in late:
                with pytest.raises(crosshandle.TimedOutError):
                    call()
            else:
                call()
            assert time.monotonic() - began <= TIMEOUT + LATENESS, name
    finally:
        os.kill(process, signal.SIGCONT)


def place(pipe: Any) -> None:
    model = store.open("model", place="agreed")
    weights = model["w"]
    pipe.send((model.address, weights.ctypes.data, float(weights.sum())))
    while pipe.recv():
        with pytest.raises(store.StoreError, match="keep_tensors"):
            model.sleep()
        assert not model.asleep and float(weights.sum()) != 0
        model.sleep(keep_tensors=True)
        assert model.asleep
        with pytest.raises(store.StoreError, match="wake"):
            model.get_tensor("w")
        with pytest.raises(store.StoreError):
            model.verify()
        pipe.send("sleeps")
        pipe.recv()
        another = model.wake()
        # This array was made before the model slept.
        pipe.send((another, model.address, float(weights.sum())))


def test_models_sleep_and_wake_at_the_same_addresses(start: Start) -> None:
    peer = start(publish, 1, False)
    peer.receive()
    peer.end()
    engines = [start(place), start(place)]
    found = [engine.receive() for engine in engines]
    total = float(arrays(1)["w"].sum())
    assert found[0] == found[1] and found[0][2] == total
    address = found[0][0]
    for seed in (1, 2):
        for engine in engines:
            engine.send(True)
            assert engine.receive() == "sleeps"
        if seed == 2:
            store.publish("model", arrays(2), replace=True)
        for engine in engines:
            engine.send(True)
            assert engine.receive() == (seed == 2, address, float(arrays(seed)["w"].sum()))
    for engine in engines:
        engine.send(False)
        engine.end()
    model = store.open("model")
    with pytest.raises(ValueError):
        model.sleep()
    anywhere = store.open("model", place="sleepable")
    weights = anywhere["w"][1:]
    with pytest.raises(store.StoreError, match="keep_tensors"):
        anywhere.sleep()
    del weights
    anywhere.sleep()
    assert not anywhere.wake()
    assert anywhere.address is not None
    with pytest.raises(store.AddressTakenError):
        store.open("model", place=anywhere.address)
    elsewhere = store.open("model", place=anywhere.address, or_elsewhere=True)
    same(elsewhere, arrays(2))
    with pytest.raises(ValueError):
        anywhere.get_tensor("w", "jax")


def holder_processes() -> tuple[int, int]:
    """Returns the process ids of the holder and of its successor."""
    done = subprocess.run([crosshandle.command(), "hold", "--check"], capture_output=True, text=True, check=True)
    words = done.stdout.split()
    holder, successor = (int(words[at + 1]) for at, word in enumerate(words) if word == "process")
    return holder, successor


def kill_holder() -> None:
    """Kills the holder and its successor, so that neither can start another one."""
    holder, successor = holder_processes()
    os.kill(holder, signal.SIGSTOP)
    os.kill(successor, signal.SIGKILL)
    os.kill(holder, signal.SIGKILL)
    deadline = time.monotonic() + DEADLINE
    while True:
        try:
            store.ls()
        except store.NoHolderError:
            return
        assert time.monotonic() < deadline, "somebody holds still"


@contextmanager
def next_holder() -> Iterator[None]:
    with subprocess.Popen([crosshandle.command(), "hold"], stderr=subprocess.DEVNULL) as holder:
        try:
            yield
        finally:
            subprocess.run([crosshandle.command(), "hold", "--stop"], check=False, capture_output=True)
            holder.kill()


def await_back(name: str) -> store.Held:
    deadline = time.monotonic() + DEADLINE
    while True:
        try:
            found = [held for held in store.ls() if held.name == name]
            if found:
                return found[0]
        except store.NoHolderError:
            pass
        assert time.monotonic() < deadline, "it does not come back"
        time.sleep(0.005)


def keep(pipe: Any) -> None:
    model = store.open("model", back_up=True)
    pipe.send(model.version)
    pipe.recv()
    same(model, arrays(1))


def test_a_model_comes_back_from_a_reader_when_both_holders_die(start: Start) -> None:
    peer = start(publish, 1, False)
    published = peer.receive()
    peer.end()
    reader = start(keep)
    assert reader.receive() == 1
    assert store.ls()[0].recovered is None
    kill_holder()
    with next_holder():
        held = await_back("model")
        assert (held.version, held.label, held.recovered) == (1, published.hash, "same files")
        model = store.open("model", published.hash)
        same(model, arrays(1))
        model.verify()
        with pytest.raises(store.StoreError, match="publish its next version"):
            store.updater("model")
        reader.send(True)
        reader.end()


def write_alone(pipe: Any, seed: int) -> None:
    own = store.updater("model", claim=True, timeout=DEADLINE)
    own.update(arrays(seed))
    pipe.send(own.epoch)
    pipe.recv()


def test_one_process_at_a_time_writes_a_claimed_model(start: Start) -> None:
    peer = start(publish, 1, False)
    peer.receive()
    peer.end()
    model = store.open("model")
    first = start(write_alone, 2)
    assert first.receive() == 1
    model.stable()
    same(model, arrays(2))
    with pytest.raises(store.StoreError):
        store.updater("model")
    with pytest.raises(store.StoreError):
        store.updater("model", claim=True)
    first.kill()
    second = start(write_alone, 3)
    assert second.receive() == 2
    same(model, arrays(3))
    second.send(True)
    second.end()


def test_there_may_be_no_holder(tmp_path: Path) -> None:
    nobody = store.Store(tmp_path)
    with pytest.raises(store.NoHolderError, match="crosshandle hold"):
        nobody.open("model")


def test_a_taken_name_and_a_full_holder_are_told_apart(tmp_path: Path) -> None:
    store.publish("model", arrays(1))
    with pytest.raises(store.NameTakenError, match="in use"):
        store.publish("model", arrays(2))
    # A holder that may open few files has room for few names.
    full = {**os.environ, "CROSSHANDLE_SOCKET_DIR": str(tmp_path)}
    command = ["prlimit", "--nofile=500:500", crosshandle.command(), "hold"]
    with subprocess.Popen(command, env=full, stderr=subprocess.DEVNULL) as holder:
        try:
            deadline, own = time.monotonic() + DEADLINE, store.Store(tmp_path)
            while subprocess.run([crosshandle.command(), "hold", "--check"], env=full, check=False, capture_output=True).returncode:
                assert time.monotonic() < deadline, "there is no holder"
            with pytest.raises(store.NoRoomError, match="descriptors"):
                for number in range(500):
                    own.publish(f"{number}", {"x": np.zeros(1)})
            # A name that is removed makes room.
            own.rm("0")
            own.publish("again", {"x": np.zeros(1)})
        finally:
            holder.kill()


def test_tokens_are_asked_for() -> None:
    store.publish("secret", arrays(1), read_token="r", write_token="w")
    with pytest.raises(store.NotAllowedError):
        store.open("secret")
    with pytest.raises(store.NotAllowedError):
        store.Store(token="r").updater("secret")
    same(store.Store(token="r").open("secret"), arrays(1))
    store.Store(token="w").updater("secret").update(arrays(2))
    store.Store(token="w").rm("secret")
