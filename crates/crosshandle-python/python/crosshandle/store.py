"""Models under names: loaded once, opened in milliseconds by any process, kept by a holder (`crosshandle hold`).

    from crosshandle import store

    store.load("llama-70b", ["model.safetensors"], device="cuda:0")       # one process, which may end

    with store.open("llama-70b", framework="torch") as model:             # any number of others
        model.keys()
        model.get_tensor("lm_head.weight")                                # no copy

What is opened can be read only. The host's descriptor allows no more, and a program that writes all the same, by a tensor
of torch, which knows no read-only memory, ends by the fault; on a GPU that is an error of the device.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Union

from . import _crosshandle as _rust
from ._crosshandle import Array
from ._store_errors import AddressTakenError, NoHolderError, NoSuchNameError, NotAllowedError, StoreError, TornUpdateError, WrongContentsError

__all__ = [
    "AddressTakenError",
    "Held",
    "Model",
    "NoHolderError",
    "NoSuchNameError",
    "NotAllowedError",
    "Published",
    "Store",
    "StoreError",
    "TornUpdateError",
    "Updater",
    "WrongContentsError",
    "await_version",
    "load",
    "ls",
    "open",
    "pin",
    "publish",
    "rm",
    "updater",
    "verify",
]

Files = Union[str, "os.PathLike[str]", Iterable[Union[str, "os.PathLike[str]"]]]
Progress = Callable[[int, int], object]

# The types of safetensors, and their names here. What has no other name stays bytes.
_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}
_NAMES = {name: dtype for dtype, name in _DTYPES.items()}


_stores: weakref.WeakSet[Store] = weakref.WeakSet()


@atexit.register
def _end() -> None:
    """Lets contexts end while the drivers are there."""
    for one in list(_stores):
        one._store.forget_contexts()


class Published(NamedTuple):
    """What was handed over."""

    version: int
    """The version of the name, from 1."""
    hash: str
    """The hash of all of the model, for `expected_hash`."""
    is_safe: bool
    """Whether the holder's successor has it too, so that it outlives the holder."""
    resumed_bytes: int = 0
    """Bytes that a load before, which was killed, had brought to their places."""
    seconds: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """How long making the memory took, making staging buffers, and filling the memory, staging buffers included."""


class Held(NamedTuple):
    """A name that the holder knows."""

    name: str
    version: int
    label: str
    """The hash that the model had when it was published."""
    pinned: bool
    created: int
    """When it was published, in seconds since 1970."""
    has_tokens: bool
    device: str
    nbytes: int
    recovered: str | None = None
    """`"same files"` or `"unverified"` if it has come back from a process that had it open, after a holder and its successor
    had died at the same moment. It can be read then, and not written."""


class _View:
    """All of a model's memory, for libraries that take an address. It keeps what has that open."""

    def __init__(self, owner: object, address: int, nbytes: int, device: str, read_only: bool):
        self._owner = owner
        interface = {"shape": (nbytes,), "typestr": "|u1", "data": (address, read_only), "version": 3}
        if device.startswith("host"):
            self.__array_interface__ = interface
        else:
            self.__cuda_array_interface__ = {**interface, "stream": None}


class Model:
    """A model that was opened: one mapping, in which all its tensors are. Any thread may use it.

    It can be used in a `with` statement; arrays that were made of it stay good after that.
    """

    def __init__(self, model: _rust.StoreModel, framework: str = "numpy", placed: bool = False):
        self._opened: _rust.StoreModel | None = model
        self._framework = framework
        self._placed = placed
        self._tensors = model.tensors()
        self._lock = threading.Lock()
        self._views: dict[str, Any] = {}
        if framework not in ("numpy", "torch", "pt", "jax", "cupy", "crosshandle"):
            raise ValueError(f"there is no framework {framework!r}: numpy, torch, jax, cupy or crosshandle")

    @property
    def _model(self) -> _rust.StoreModel:
        if self._opened is None:
            raise ValueError("this model was closed")
        return self._opened

    @property
    def name(self) -> str:
        """The name under which it was opened."""
        return self._model.describe()[0]

    @property
    def version(self) -> int:
        """The version of the name."""
        return self._model.describe()[1]

    @property
    def hash(self) -> str:
        """The hash of names, types, shapes and contents, as of the last `refresh` or `wake`."""
        return self._model.describe()[2]

    @property
    def device(self) -> str:
        """The device that the tensors are on, such as `cuda:0`."""
        return self._model.describe()[3]

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors, and those between them."""
        return self._model.describe()[4]

    @property
    def number(self) -> int:
        """The number of the last update, for `is_still` and `next_update`."""
        return self._model.describe()[5]

    @property
    def address(self) -> int | None:
        """The address of the first byte; of a model that was opened at a `place`, also while it sleeps."""
        return self._model.address

    @property
    def asleep(self) -> bool:
        """Whether it sleeps."""
        return self._model.asleep

    def keys(self) -> list[str]:
        """The names of the tensors, in order."""
        return list(self._tensors)

    def metadata(self) -> dict[str, str]:
        """What the files said beside the tensors."""
        return self._model.metadata()

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor."""
        return tuple(self._tensors[name][1])

    def dtype(self, name: str) -> str:
        """The type of a tensor's elements, as safetensors calls it."""
        return self._tensors[name][0]

    def __len__(self) -> int:
        return len(self._tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __getitem__(self, name: str) -> Any:
        return self.get_tensor(name)

    def get_tensor(self, name: str, framework: str | None = None) -> Any:
        """A tensor, without a copy: of `framework`, or of the one that the model was opened for.

        `crosshandle` is this package's `Array`. What is made keeps the memory mapped, except of a model that was opened
        at a `place`: its tensors have their addresses, and are there unless it sleeps.
        """
        if name not in self._tensors:
            raise KeyError(name)
        framework = framework or self._framework
        if framework in ("torch", "pt"):
            return self._torch(name)
        if self._placed and framework == "numpy":
            return self._numpy(name)
        if self._placed:
            raise ValueError(
                "tensors of a model at a place of its own are torch's or NumPy's: those of others would keep it awake"
            )
        dtype = self._tensors[name][0]
        array: Array = self._model.array(name, _named(name, dtype))
        if framework == "crosshandle":
            return array
        return getattr(array, framework)()

    def state_dict(self, framework: str | None = None) -> dict[str, Any]:
        """All tensors by their names, without a copy."""
        return {name: self.get_tensor(name, framework) for name in self._tensors}

    def _view(self, kind: str, make: Callable[[], Any]) -> Any:
        with self._lock:
            if kind not in self._views:
                if self.asleep:
                    raise StoreError("the model sleeps: wake it first")
                self._views[kind] = make()
            return self._views[kind]

    def _kept_view(self, read_only: bool) -> _View:
        address = self.address
        assert address is not None
        return _View(self._model, address, self.nbytes, self.device, read_only)

    def _numpy(self, name: str) -> Any:
        import numpy

        dtype, shape, offset, nbytes = self._tensors[name]
        called = _named(name, dtype)
        try:
            kind = numpy.dtype(called)
        except TypeError:
            import ml_dtypes

            kind = numpy.dtype(getattr(ml_dtypes, called))
        every = self._view("numpy", lambda: numpy.asarray(self._kept_view(True)))
        return every[offset : offset + nbytes].view(kind).reshape(shape)

    def _torch(self, name: str) -> Any:
        import torch

        def make() -> Any:
            if self.device.startswith("host"):
                import numpy

                return torch.from_numpy(numpy.asarray(self._kept_view(False)))
            return torch.as_tensor(self._kept_view(False), device=self.device)

        dtype, shape, offset, nbytes = self._tensors[name]
        kind = getattr(torch, _named(name, dtype))
        every = self._view("torch", make)
        if not nbytes:
            return torch.empty(shape, dtype=kind, device=every.device)
        return every[offset : offset + nbytes].view(kind).view(shape)

    def verify(self, threads: int | None = None) -> None:
        """Takes the hash of all bytes again. Raises `WrongContentsError` if it is another one."""
        self._model.verify(threads)

    def stable(self, timeout: float | None = 30.0) -> int:
        """Waits until no update is under way, and returns a number that every update changes. Raises `TornUpdateError`."""
        return self._model.stable(timeout)

    def is_still(self, number: int) -> bool:
        """Whether no update has begun since `stable` returned this: what was read meanwhile is whole."""
        return self._model.is_still(number)

    def next_update(self, number: int, timeout: float | None = None) -> int:
        """Waits for the end of an update after this one, and returns its number."""
        return self._model.next_update(number, timeout)

    def refresh(self, timeout: float | None = 30.0) -> int:
        """Reads the hash again, after updates. Returns the number of the last one."""
        return self._model.refresh(timeout)

    def sleep(self, to: str | None = None) -> None:
        """Unmaps the model, which was opened at a `place`. With `to`, as a rule `"host"`, its memory goes to that device
        first, as the next version of its name, so that what it had is free when no other process has it open; `wake`
        brings it back. Its addresses stay, and touching them is a fault: a process
        that does so ends on the host, and gets an error of the device on a GPU. No work that uses the tensors may be
        under way."""
        if not self.device.startswith("host"):
            _synchronize(self.device)
        self._model.sleep(to)

    def wake(self) -> bool:
        """Maps what the name stands for now at the same addresses. Returns whether that is something else than before.
        Tensors that were made before are good again."""
        return self._model.wake()

    def close(self) -> None:
        """Closes it for this process, as far as no tensor keeps it open."""
        with self._lock:
            self._opened = None
            self._views = {}

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, _class: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._opened is None:
            return "<crosshandle.store.Model, closed>"
        name, version, hash, device, nbytes, _ = self._opened.describe()
        tensors = f"{len(self)} tensors, {nbytes} bytes on {device}"
        return f"<crosshandle.store.Model {name} version {version}: {tensors}, {hash[:8]}…>"


class Updater:
    """A model that this process can write, in place: while others have it open, and without more memory.

    Keep it for any number of updates. Readers wait meanwhile (`Model.stable`), and learn of the end. If this process
    dies in the middle, they get `TornUpdateError` until an update has written all tensors.
    """

    def __init__(self, updater: _rust.StoreUpdater):
        self._updater = updater

    @property
    def version(self) -> int:
        """The version that it writes, also if the name has a later one."""
        return self._updater.version

    @property
    def epoch(self) -> int | None:
        """The number of this process as the name's one writer; `None` unless it was claimed."""
        return self._updater.epoch

    def update(
        self,
        tensors: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
        *,
        files: Files = (),
        hashed: bool = True,
        timeout: float = 30.0,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> str:
        """Writes tensors over those of the same names, types and shapes, and returns the model's new hash.

        `tensors` may yield them one by one, as they are made: then the peak of memory is one of them. Arrays on the
        model's GPU are copied there, when the work that was submitted to their library's current stream is done.
        `files` are of safetensors. Without `hashed`, nobody can `verify` the contents until a later update with it.
        `timeout` is for another process's update to end.
        """
        items: Any = tensors.items() if isinstance(tensors, Mapping) else tensors
        pieces = ([_described(name, array, on_host=False)] for name, array in items)
        options = {"threads": threads, "progress": progress}
        return self._updater.update(pieces, _files(files), hashed=hashed, timeout=timeout, options=options)


class Store:
    """Where models are loaded to and opened from: the holder of a directory of sockets, by default the usual one.

    `token` is shown to the holder, for names that need one. The functions of this module are those of a usual store.
    """

    def __init__(self, socket_dir: str | os.PathLike[str] | None = None, *, token: str | None = None):
        self._store = _rust.StoreClient(None if socket_dir is None else os.fspath(socket_dir), token)
        _stores.add(self)

    def open(
        self,
        name: str,
        expected_hash: str | None = None,
        *,
        framework: str = "numpy",
        place: str | int | None = None,
        or_elsewhere: bool = False,
        back_up: bool = False,
        timeout: float = 30.0,
    ) -> Model:
        """Opens a model, to read it. Raises `WrongContentsError` if it has another hash than `expected_hash`.

        `framework` is what `get_tensor` makes: numpy, torch, jax, cupy, or crosshandle for this package's arrays. `place` is
        `"agreed"` for the same addresses in every process that asks so, a number for addresses of the program's choice
        (a multiple of 32 MiB), `"sleepable"` for any: such a model can `sleep` and `wake`. If the addresses are taken,
        `AddressTakenError` is raised, or with `or_elsewhere` others are used.
        With `back_up`, this process brings the model back to the next holder if the one that runs and its successor die at
        the same moment; that takes some descriptors. The holder, and the end of an update that is under
        way, are waited for at most `timeout` seconds.
        """
        options = {"expected_hash": expected_hash, "or_elsewhere": or_elsewhere, "back_up": back_up}
        model = self._store.open(name, place=place, timeout=timeout, options=options)
        return Model(model, framework, place is not None)

    def load(
        self,
        name: str,
        files: Files,
        *,
        device: str = "host",
        replace: bool = False,
        expected_hash: str | None = None,
        threads: int | None = None,
        direct: bool = False,
        resume: bool = False,
        metadata: Mapping[str, str] | None = None,
        staging_bytes: int | None = None,
        part_bytes: int | None = None,
        progress: Progress | None = None,
        read_token: str | None = None,
        write_token: str | None = None,
        admin_token: str | None = None,
    ) -> Published:
        """Loads files of safetensors, or a checkpoint by its index, and hands them over under a name.

        `replace` publishes the name's next version: who has the one before open keeps it. `direct` reads past the page
        cache. With `resume`, a load that is killed leaves what it has brought with the holder, and the next one of the same
        files under the same name goes on there. `metadata` is added to the files' own. `staging_bytes` and `part_bytes` are
        how much each of a thread's two staging buffers has, and how much a thread reads at a time. `progress` is called
        with the bytes of each piece and of all, by several threads.
        """
        options = {
            "threads": threads,
            "direct": direct,
            "resume": resume,
            "expected_hash": expected_hash,
            "metadata": dict(metadata or {}),
            "staging_bytes": staging_bytes,
            "part_bytes": part_bytes,
            "progress": progress,
        }
        hold = {"replace": replace, "read_token": read_token, "write_token": write_token, "admin_token": admin_token}
        return Published(*self._store.load(name, _files(files), device=device, options=options, hold=hold))

    def publish(
        self,
        name: str,
        tensors: Mapping[str, Any],
        *,
        device: str = "host",
        replace: bool = False,
        metadata: Mapping[str, str] | None = None,
        threads: int | None = None,
        progress: Progress | None = None,
        read_token: str | None = None,
        write_token: str | None = None,
        admin_token: str | None = None,
    ) -> Published:
        """Copies arrays of any library into memory of a device, and hands that over, as `load` does.

        If all arrays are on that device already, it copies them itself; otherwise they go by way of the host.
        """
        on_host = not all(_is_on(array, device) for array in tensors.values())
        described = [_described(key, array, on_host=on_host) for key, array in tensors.items()]
        options = {"metadata": dict(metadata or {}), "threads": threads, "progress": progress}
        hold = {"replace": replace, "read_token": read_token, "write_token": write_token, "admin_token": admin_token}
        return Published(*self._store.publish(name, described, device=device, options=options, hold=hold))

    def updater(
        self, name: str, *, claim: bool = False, force: bool = False, timeout: float | None = 0.0
    ) -> Updater:
        """Opens a model to write its tensors in place.

        With `claim` this process is its one writer until it ends: others are let in when it has. `timeout` is how long to
        wait until the writer before has provably ended, in seconds; `force` does not ask for the proof. A `timeout` that
        is not 0 also limits how long the holder may take to answer (otherwise 30 s).
        """
        return Updater(self._store.updater(name, claim=claim, force=force, timeout=timeout))

    def verify(self, name: str, expected_hash: str | None = None, *, threads: int | None = None) -> str:
        """Opens a model and takes the hash of all its bytes. Returns the model's hash."""
        with self.open(name, expected_hash) as model:
            model.verify(threads)
            return model.hash

    def ls(self, *, timeout: float | None = None) -> list[Held]:
        """What the holder has. Waits for its answer at most `timeout` seconds, and never more than 30."""
        return [Held(**name) for name in self._store.ls(timeout)]

    def rm(self, name: str, *, timeout: float | None = None) -> None:
        """Lets go of a name. Who has it open keeps it. `timeout` as for `ls`."""
        self._store.rm(name, timeout)

    def pin(self, name: str, pinned: bool = True, *, timeout: float | None = None) -> None:
        """Protects a name from being removed and replaced, or does so no more. `timeout` as for `ls`."""
        self._store.pin(name, pinned, timeout)

    def await_version(self, name: str, version: int, timeout: float | None = None) -> int:
        """Waits until a name has a later version than this, and returns its number."""
        return self._store.await_version(name, version, timeout)


def _named(name: str, dtype: str) -> str:
    """This package's name of a type."""
    if dtype not in _DTYPES:
        raise TypeError(f"the tensor {name} has elements of {dtype}, which no array library knows")
    return _DTYPES[dtype]


def _files(files: Files) -> list[str]:
    if isinstance(files, (str, os.PathLike)):
        return [os.fspath(files)]
    return [os.fspath(file) for file in files]


def _synchronize(device: str) -> None:
    """Waits for what torch and CuPy have submitted, if they are there."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize(device)
    if cupy is not None:
        with cupy.cuda.Device(int(device.rpartition(":")[2] or 0)):
            cupy.cuda.runtime.deviceSynchronize()


def _is_on(array: Any, device: str) -> bool:
    """Whether an array is torch's or CuPy's, on this GPU."""
    library, _, number = device.partition(":")
    if library != "cuda":
        return False
    where: Any = getattr(array, "device", None)
    kind = type(array).__module__.partition(".")[0]
    if kind == "torch":
        return bool(where.type == "cuda" and where.index == int(number or 0))
    return kind == "cupy" and bool(where.id == int(number or 0))


def _described(name: str, array: Any, *, on_host: bool) -> tuple[str, str, list[int], _rust.Foreign]:
    """A tensor as the store takes it: without gaps, and with its bytes there."""
    library = type(array).__module__.partition(".")[0]
    if library == "torch":
        array = array.detach().contiguous()
        if on_host:
            array = array.cpu()
        elif array.is_cuda:
            import torch

            torch.cuda.current_stream(array.device).synchronize()
    elif library == "cupy":
        import cupy

        array = array.get() if on_host else cupy.ascontiguousarray(array)
        cupy.cuda.get_current_stream().synchronize()
    elif library == "numpy":
        import numpy

        # A copy if it has gaps, and with the other byte order turned round.
        shape = array.shape
        array = numpy.ascontiguousarray(array).reshape(shape)
    elif on_host and library.startswith("jax"):
        import numpy

        array = numpy.asarray(array)
    found = _rust.describe(array)
    dtype = _NAMES.get(found.dtype)
    if dtype is None:
        raise TypeError(f"the tensor {name} has elements of {found.dtype}, which safetensors do not have")
    return name, dtype, list(found.shape), found


_usual = Store()


def open(
    name: str,
    expected_hash: str | None = None,
    *,
    framework: str = "numpy",
    place: str | int | None = None,
    or_elsewhere: bool = False,
    back_up: bool = False,
    timeout: float = 30.0,
) -> Model:
    """Opens a model, to read it: see `Store.open`."""
    return _usual.open(
        name,
        expected_hash,
        framework=framework,
        place=place,
        or_elsewhere=or_elsewhere,
        back_up=back_up,
        timeout=timeout,
    )


load = _usual.load
publish = _usual.publish
updater = _usual.updater
verify = _usual.verify
ls = _usual.ls
rm = _usual.rm
pin = _usual.pin
await_version = _usual.await_version
