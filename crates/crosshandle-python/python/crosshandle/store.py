"""Named models. One process loads a model, a holder process (`crosshandle hold`) keeps it in
memory, and any process opens it within milliseconds.

    from crosshandle import store

    store.load("llama-70b", ["model.safetensors"], device="cuda:0")     # one process, which may end

    with store.open("llama-70b", framework="torch") as model:             # any number of others
        model.keys()
        model.get_tensor("lm_head.weight")                                # no copy

Opened models are read-only. On the host, the memory is mapped without write access. torch has no
read-only tensors, so a program can still try to write to one. On the host, such a write kills the
process (`SIGSEGV`). On a GPU, it causes a device error.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, ValuesView
from types import TracebackType
from typing import Any, NamedTuple, Union

from . import _crosshandle as _rust
from . import _storages
from ._crosshandle import Array
from ._store_errors import (
    AddressTakenError,
    NameTakenError,
    NoHolderError,
    NoRoomError,
    NoSuchNameError,
    NotAllowedError,
    StoreError,
    TornUpdateError,
    WrongContentsError,
)

__all__ = [
    "AddressTakenError",
    "Held",
    "Model",
    "NameTakenError",
    "NoHolderError",
    "NoRoomError",
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

# This package's names for the element types in safetensors files. Tensors of other types cannot be
# opened as arrays.
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
    """Releases the stores' contexts when the interpreter exits, while the drivers are still
    loaded."""
    for one in list(_stores):
        one._store.forget_contexts()


class Published(NamedTuple):
    """Describes a model that a store has handed over to the holder.

    >>> published = store.publish("example", {"w": crosshandle.ones(8)})
    >>> published.version, published.is_safe
    (1, True)
    """

    version: int
    """The version of the model under its name. The first version is 1."""
    hash: str
    """The hash of the whole model. Readers can pass it as `expected_hash`."""
    is_safe: bool
    """Whether the holder's successor also has the model. If so, the model survives the death of the
    holder."""
    resumed_bytes: int = 0
    """The number of bytes that this load did not have to read again, because an earlier,
    interrupted load had read them."""
    seconds: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Three durations in seconds: for allocating the memory, for allocating staging buffers, and
    for filling the memory. The third duration includes the second."""


class Held(NamedTuple):
    """Describes a name that the holder keeps.

    >>> published = store.publish("example", {"w": crosshandle.ones(8)})
    >>> [(held.name, held.version) for held in store.ls()]
    [('example', 1)]
    """

    name: str
    version: int
    label: str
    """The hash of the model when it was published."""
    pinned: bool
    created: int
    """The time of publication, in seconds since 1970."""
    has_tokens: bool
    device: str
    nbytes: int
    recovered: str | None = None
    """How the holder has verified the memory of a restored name: `"same files"` or `"unverified"`.

    None if the name was never restored. A reader restores names after a holder and its successor
    have died at the same time. A restored name can be read, but not updated.
    """


class _View:
    """All memory of a model, as an array for other libraries. It keeps the model open."""

    def __init__(self, owner: object, address: int, nbytes: int, device: str, read_only: bool):
        self._owner = owner
        interface = {"shape": (nbytes,), "typestr": "|u1", "data": (address, read_only), "version": 3}
        if device.startswith("host"):
            self.__array_interface__ = interface
        else:
            self.__cuda_array_interface__ = {**interface, "stream": None}


class Model:
    """A model that this process has opened. One mapping contains all of its tensors. Any thread may
    use it.

    A `with` statement closes the model at its end. Arrays that were created from the model stay
    valid after that.

    >>> published = store.publish("example", {"w": crosshandle.ones((2, 2), "float32")})
    >>> model = store.open("example")
    >>> model.keys(), model.shape("w"), model.dtype("w"), model.metadata()
    (['w'], (2, 2), 'F32', {})
    >>> model.get_tensor("w", "numpy").sum()
    np.float32(4.0)
    >>> weights = model.state_dict("numpy")
    >>> model.verify()
    >>> number = model.stable(timeout=5)
    >>> updater = store.updater("example")
    >>> new_hash = updater.update({"w": crosshandle.zeros((2, 2), "float32")})
    >>> model.is_still(number)
    False
    >>> number = model.next_update(number, timeout=5)
    >>> version = model.refresh(timeout=5)
    >>> del weights
    >>> model.close()

    A model that was opened with `place` can sleep, which unmaps its memory. It wakes at the same
    addresses:

    >>> model = store.open("example", place="sleepable")
    >>> model.sleep()
    >>> model.wake()
    False
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
        """The name under which the holder keeps the model."""
        return self._model.describe()[0]

    @property
    def version(self) -> int:
        """The version of the model that this process has opened."""
        return self._model.describe()[1]

    @property
    def hash(self) -> str:
        """The hash of the model (names, types, shapes and contents) when it was opened, or at the
        last `refresh` or `wake`."""
        return self._model.describe()[2]

    @property
    def device(self) -> str:
        """The name of the device that the tensors are on, such as `cuda:0`."""
        return self._model.describe()[3]

    @property
    def nbytes(self) -> int:
        """The size of the model in bytes, including gaps between tensors."""
        return self._model.describe()[4]

    @property
    def number(self) -> int:
        """The number of the latest update that this object has seen. Pass it to `is_still` or
        `next_update`."""
        return self._model.describe()[5]

    @property
    def address(self) -> int | None:
        """The address of the model's first byte in this process, or None if it has no address.

        A model that was opened with `place` keeps its address while it sleeps.
        """
        return self._model.address

    @property
    def asleep(self) -> bool:
        """Whether the model is asleep, which means that its memory is unmapped."""
        return self._model.asleep

    def keys(self) -> list[str]:
        """Returns the names of all tensors, in the model's order."""
        return list(self._tensors)

    def metadata(self) -> dict[str, str]:
        """Returns the metadata that the model's safetensors files contained."""
        return self._model.metadata()

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a tensor."""
        return tuple(self._tensors[name][1])

    def dtype(self, name: str) -> str:
        """Returns the element type of a tensor, as a name from safetensors such as `F32`."""
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
        """Returns a tensor without copying its bytes. `framework` names the library whose array
        type is returned (default: the `framework` with which the model was opened).

        With `"crosshandle"`, returns this package's `Array`. The tensor keeps the memory mapped,
        unless the model was opened with `place`. In that case, its tensors are valid only while the
        model is open and awake.
        """
        if name not in self._tensors:
            raise KeyError(name)
        framework = framework or self._framework
        if framework in ("torch", "pt"):
            return self._torch([name], self._torch_view())[name]
        if framework == "numpy" and (self._placed or self.device.startswith("host")):
            return self._numpy([name], self._numpy_view())[name]
        if self._placed:
            raise ValueError(_ONLY_WITHOUT_PLACE)
        return self._array(self._model, name, framework)

    def _array(self, model: _rust.StoreModel, name: str, framework: str) -> Any:
        array: Array = model.array(name, _named(name, self._tensors[name][0]))
        return array if framework == "crosshandle" else getattr(array, framework)()

    def state_dict(self, framework: str | None = None) -> Mapping[str, Any]:
        """Returns all tensors by name, without copying their bytes. `framework` has the same
        meaning as for `get_tensor`.

        The mapping creates each tensor when it is used first. It keeps the memory mapped as a
        tensor does, also after `close`.
        """
        framework = framework or self._framework
        if framework in ("torch", "pt"):
            every = self._torch_view()
            return _Tensors(self._tensors, lambda names: self._torch(names, every))
        if framework == "numpy" and (self._placed or self.device.startswith("host")):
            bytes_ = self._numpy_view()
            return _Tensors(self._tensors, lambda names: self._numpy(names, bytes_))
        model = self._model
        if self._placed:
            raise ValueError(_ONLY_WITHOUT_PLACE)
        return _Tensors(self._tensors, lambda names: {name: self._array(model, name, framework) for name in names})

    def _view(self, kind: str, make: Callable[[], Any]) -> Any:
        with self._lock:
            if self.asleep:
                raise StoreError("the model is asleep: wake it first")
            if kind not in self._views:
                self._views[kind] = make()
            return self._views[kind]

    def _kept_view(self, read_only: bool) -> _View:
        address = self.address
        assert address is not None
        return _View(self._model, address, self.nbytes, self.device, read_only)

    def _numpy_view(self) -> Any:
        import numpy

        return self._view("numpy", lambda: numpy.asarray(self._kept_view(True)))

    def _numpy(self, names: Iterable[str], every: Any) -> dict[str, Any]:
        import numpy

        kinds: dict[str, Any] = {}
        tensors = {}
        for name in names:
            dtype, shape, offset, nbytes = self._tensors[name]
            kind = kinds.get(dtype)
            if kind is None:
                kind = kinds[dtype] = _numpy_dtype(_named(name, dtype))
            # A tensor without elements may be at the end of the memory.
            tensors[name] = numpy.ndarray(shape, kind, every, offset if nbytes else 0)
        return tensors

    def _torch_view(self) -> Any:
        import torch

        def make() -> Any:
            if self.device.startswith("host"):
                import numpy

                return torch.from_numpy(numpy.asarray(self._kept_view(False)))
            return torch.as_tensor(self._kept_view(False), device=self.device)

        return self._view("torch", make)

    def _torch(self, names: Iterable[str], every: Any) -> dict[str, Any]:
        import torch

        # One view of all bytes for each element type, so that each tensor takes one call of torch.
        typed: dict[str, Any] = {}
        tensors = {}
        for name in names:
            dtype, shape, offset, nbytes = self._tensors[name]
            whole = typed.get(dtype)
            if whole is None:
                kind = getattr(torch, _named(name, dtype))
                whole = typed[dtype] = every[: len(every) // kind.itemsize * kind.itemsize].view(kind)
            if not nbytes:
                tensors[name] = torch.empty(shape, dtype=whole.dtype, device=every.device)
                continue
            strides, step = [], 1
            for size in reversed(shape):
                strides.append(step)
                step *= size
            tensors[name] = whole.as_strided(shape, strides[::-1], offset * step // nbytes)
        return tensors

    def verify(self, threads: int | None = None) -> None:
        """Hashes all bytes of the model again, and compares the result with the recorded hash.

        Raises `WrongContentsError` if the hashes differ.
        """
        self._model.verify(threads)

    def stable(self, timeout: float | None = 30.0) -> int:
        """Waits until no update of the model is in progress. Returns a number that changes with
        each update.

        Raises `TornUpdateError` if the writer died during an update, and an exception after
        `timeout` seconds. Ctrl-C interrupts the wait.
        """
        return self._model.stable(timeout)

    def is_still(self, number: int) -> bool:
        """Returns whether no update has started since `stable` returned `number`.

        If so, all data that the program has read since that call is consistent.
        """
        return self._model.is_still(number)

    def next_update(self, number: int, timeout: float | None = None) -> int:
        """Waits until an update later than update `number` has finished, and returns the later
        update's number. Raises an exception after `timeout` seconds. Ctrl-C interrupts the wait."""
        return self._model.next_update(number, timeout)

    def refresh(self, timeout: float | None = 30.0) -> int:
        """Reads the model's hash again, because an update may have changed it. First waits at most
        `timeout` seconds until no update is in progress. Returns the number of the latest
        update."""
        return self._model.refresh(timeout)

    def _is_used(self) -> bool:
        """Returns whether the program still has tensors from this model. Applies only to models
        that were opened with `place`."""
        for kind in list(self._views):
            every = self._views[kind]
            # Three references belong to this package: the dict, the local variable, and the
            # argument of `getrefcount`. Any other belongs to the program.
            if sys.getrefcount(every) > 3:
                return True
            # Two uses belong to this package: the tensor in the dict, and the storage's Python
            # object. Any other belongs to the program.
            if kind == "torch" and _storages.uses_of_torch(every.untyped_storage()) > 2:
                return True
        return False

    def sleep(self, to: str | None = None, *, keep_tensors: bool = False) -> None:
        """Unmaps the memory of a model that was opened with `place`. `wake` maps it again.

        With `to` (usually `"host"`), first copies the model to that device, and publishes the copy
        as the next version of the name. The old memory is freed when no other process has it open.

        Raises `StoreError` if the program still has tensors from the model, because their memory
        would be unmapped. With `keep_tensors`, the program may keep its tensors, which are valid
        again after `wake`. Until then, the program must not use them, and no work that uses them
        may be in progress. On the host, an access to such a tensor kills the process (`SIGSEGV`).
        On a GPU, the access causes a device error, after which the process can no longer use the
        device.
        """
        with self._lock:
            if not keep_tensors and not self.asleep and self._is_used():
                raise StoreError(
                    "the program still has tensors from this model, whose memory would be unmapped: drop them, or pass "
                    "keep_tensors=True if nothing touches them until the model is awake"
                )
        if not self.device.startswith("host"):
            _synchronize(self.device)
        self._model.sleep(to)

    def wake(self) -> bool:
        """Maps the latest version of the model at the same addresses as before.

        Returns whether the version has changed since the model was last mapped.

        Tensors that the program has kept are valid again after this call.
        """
        return self._model.wake()

    def close(self) -> None:
        """Closes the model in this process. Tensors stay valid, unless the model was opened with
        `place`."""
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


_ONLY_WITHOUT_PLACE = (
    "a model with a place supports only torch and NumPy tensors: arrays of other libraries would keep it awake"
)


class _Tensors(Mapping[str, Any]):
    """The tensors of a model by name, created when they are used first."""

    def __init__(self, names: Mapping[str, Any], make: Callable[[Iterable[str]], dict[str, Any]]):
        self._names = names
        self._make = make
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        tensor = self._made.get(name)
        if tensor is None:
            if name not in self._names:
                raise KeyError(name)
            tensor = self._made.setdefault(name, self._make([name])[name])
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def _all(self) -> dict[str, Any]:
        """Creates the missing tensors together, which is faster than one by one."""
        if len(self._made) < len(self._names):
            self._made = {**self._make(self._names), **self._made}
        return self._made

    def items(self) -> ItemsView[str, Any]:
        return self._all().items()

    def values(self) -> ValuesView[Any]:
        return self._all().values()

    def __repr__(self) -> str:
        return f"<tensors of a model: {', '.join(list(self)[:3])}{', …' if len(self) > 3 else ''}>"


class Updater:
    """Updates a model in place, while other processes have it open. An update needs no second copy
    of the model.

    A program can use one updater for any number of updates. Readers wait during an update
    (`Model.stable`), and are notified when it ends. If this process dies during an update, readers
    get `TornUpdateError` until another update has written all tensors.

    >>> published = store.publish("example", {"w": crosshandle.ones(8, "float32")})
    >>> updater = store.updater("example")
    >>> new_hash = updater.update({"w": crosshandle.zeros(8, "float32")})
    >>> new_hash == published.hash
    False
    """

    def __init__(self, updater: _rust.StoreUpdater):
        self._updater = updater

    @property
    def version(self) -> int:
        """The model version that this updater writes to. The holder may already have a later
        version."""
        return self._updater.version

    @property
    def epoch(self) -> int | None:
        """The number of the claim by which this process is the only writer, or None if this process
        has not claimed the name."""
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
        """Overwrites tensors in the model with tensors that have the same names, types and shapes.

        Returns the model's new hash.

        `tensors` may be an iterator that creates tensors one by one, so that only one of them needs
        memory at a time. Arrays on the model's GPU are copied on the device, after the work that
        their library's current stream contains. The program must not write to an array until
        `update` returns or takes the next array from the iterator. `files` are paths of safetensors
        files, which contain further tensors to write. With `hashed=False`, `verify` does not work
        until a later update with `hashed=True`. `timeout` is the maximum number of seconds to wait
        for the end of another process's update. After that, this method raises an exception.
        """
        items: Any = tensors.items() if isinstance(tensors, Mapping) else tensors
        pieces = ([_described(name, array, on_host=False)] for name, array in items)
        options = {"threads": threads, "progress": progress}
        return self._updater.update(pieces, _files(files), hashed=hashed, timeout=timeout, options=options)


class Store:
    """A client for the holder in a socket directory. By default, environment variables select the
    directory.

    A store loads, publishes, updates and opens models.

    The store sends `token` to the holder, for names that require a token. The functions in this
    module use a store with the default socket directory and no token.

    >>> published = store.Store().publish("example", {"w": crosshandle.ones(8)})
    >>> model = store.Store().open("example")
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
        """Opens a model read-only, without copying it.

        Raises `NoSuchNameError` if the holder does not have the name, and `WrongContentsError` if
        the model's hash is not `expected_hash`.

        `framework` names the library whose arrays `get_tensor` returns: `"numpy"`, `"torch"`,
        `"jax"`, `"cupy"`, or `"crosshandle"` for this package's arrays.

        `place` selects the addresses at which the model is mapped. `"agreed"` selects the same
        addresses in every process that passes it. A number selects an address, which must be a
        multiple of 32 MiB. `"sleepable"` selects any free addresses. A model that is opened with
        `place` can `sleep` and `wake`. If the addresses are already in use, this method raises
        `AddressTakenError`. With `or_elsewhere`, it uses other addresses instead.

        With `back_up`, this process gives the model to the next holder if the current holder and
        its successor die at the same time. For this purpose, the process keeps one file descriptor
        per part of the model open. `timeout` is the maximum number of seconds to wait for the
        holder's reply and for the end of an update in progress. After that, this method raises an
        exception. Ctrl-C interrupts the wait.

        >>> published = store.publish("example", {"w": crosshandle.ones(8)})
        >>> store.open("example", published.hash).keys()
        ['w']
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
        """Loads safetensors files, or a checkpoint through its index file, into shared memory.
        Hands the memory over to the holder under a name.

        With `replace`, publishes the next version if the name exists. Processes that have the
        previous version open keep it. With `direct`, reads the files without the page cache. With
        `resume`, the holder keeps the bytes of an interrupted load, and the next load of the same
        files under the same name continues from there. `metadata` is added to the files' metadata.
        `threads` is the number of threads that read files. Each of them has two staging buffers of
        `staging_bytes` bytes, and reads `part_bytes` bytes at a time. The threads call `progress`
        with two numbers: the bytes that were just loaded, and the bytes of the whole model.

        >>> loaded = store.load("example", ["model.safetensors"])
        >>> loaded.version
        1
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
        """Copies arrays from any library into new memory on a device. Hands the memory over to the
        holder under a name.

        If all arrays are already on `device`, they are copied on the device. Otherwise they are
        copied through the host. The options have the same meaning as for `load`. The program must
        not write to the arrays until `publish` returns.

        >>> published = store.publish("example", {"w": crosshandle.ones(8)})
        >>> published = store.publish("example", {"w": crosshandle.zeros(8)}, replace=True)
        >>> published.version
        2
        """
        on_host = not all(_is_on(array, device) for array in tensors.values())
        described = [_described(key, array, on_host=on_host) for key, array in tensors.items()]
        options = {"metadata": dict(metadata or {}), "threads": threads, "progress": progress}
        hold = {"replace": replace, "read_token": read_token, "write_token": write_token, "admin_token": admin_token}
        return Published(*self._store.publish(name, described, device=device, options=options, hold=hold))

    def updater(
        self, name: str, *, claim: bool = False, force: bool = False, timeout: float | None = 0.0
    ) -> Updater:
        """Opens a model for updates of its tensors in place.

        With `claim`, this process becomes the only writer until it ends. For this, the holder must
        be sure that the previous writer has ended. `timeout` is the maximum number of seconds to
        wait for that. With `force`, the holder does not check. The holder must also reply within
        `timeout`, or within 30 seconds if `timeout` is 0. If a wait takes longer, this method
        raises an exception.

        >>> published = store.publish("example", {"w": crosshandle.ones(8, "float32")})
        >>> updater = store.updater("example")
        >>> new_hash = updater.update({"w": crosshandle.zeros(8, "float32")})
        """
        return Updater(self._store.updater(name, claim=claim, force=force, timeout=timeout))

    def verify(self, name: str, expected_hash: str | None = None, *, threads: int | None = None) -> str:
        """Opens a model and hashes all of its bytes. Returns the model's hash. Raises
        `WrongContentsError` if the bytes do not match the hash.

        >>> published = store.publish("example", {"w": crosshandle.ones(8)})
        >>> store.verify("example") == published.hash
        True
        """
        with self.open(name, expected_hash) as model:
            model.verify(threads)
            return model.hash

    def ls(self, *, timeout: float | None = None) -> list[Held]:
        """Returns descriptions of all names that the holder keeps.

        Waits for the holder's reply for at most `timeout` seconds, and never longer than 30
        seconds. After that, raises an exception.

        >>> published = store.publish("example", {"w": crosshandle.ones(8)})
        >>> [held.name for held in store.ls()]
        ['example']
        """
        return [Held(**name) for name in self._store.ls(timeout)]

    def rm(self, name: str, *, timeout: float | None = None) -> None:
        """Removes a name from the holder. Processes that have the model open keep it. `timeout` has
        the same meaning as for `ls`.

        >>> published = store.publish("example", {"w": crosshandle.ones(8)})
        >>> store.rm("example")
        >>> store.ls()
        []
        """
        self._store.rm(name, timeout)

    def pin(self, name: str, pinned: bool = True, *, timeout: float | None = None) -> None:
        """Protects a name from being removed or replaced. With `pinned=False`, ends the protection.

        `timeout` has the same meaning as for `ls`.

        >>> published = store.publish("example", {"w": crosshandle.ones(8)})
        >>> store.pin("example")
        >>> store.pin("example", False)
        """
        self._store.pin(name, pinned, timeout)

    def await_version(self, name: str, version: int, timeout: float | None = None) -> int:
        """Waits until a name has a version later than `version`, and returns the later version.
        Raises an exception after `timeout` seconds. Ctrl-C interrupts the wait.

        >>> published = store.publish("example", {"w": crosshandle.ones(8)})
        >>> store.await_version("example", 0, timeout=5)
        1
        """
        return self._store.await_version(name, version, timeout)


def _named(name: str, dtype: str) -> str:
    """Returns this package's name for the safetensors type `dtype`. `name` is the tensor's name,
    for the error message."""
    if dtype not in _DTYPES:
        raise TypeError(f"the tensor {name} has elements of {dtype}, which no array library knows")
    return _DTYPES[dtype]


def _numpy_dtype(dtype: str) -> Any:
    import numpy

    try:
        return numpy.dtype(dtype)
    except TypeError:
        import ml_dtypes

        return numpy.dtype(getattr(ml_dtypes, dtype))


def _files(files: Files) -> list[str]:
    if isinstance(files, (str, os.PathLike)):
        return [os.fspath(files)]
    return [os.fspath(file) for file in files]


def _synchronize(device: str) -> None:
    """Waits until the device has finished the work from torch and CuPy, if the program has imported
    them."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize(device)
    if cupy is not None:
        with cupy.cuda.Device(int(device.rpartition(":")[2] or 0)):
            cupy.cuda.runtime.deviceSynchronize()


def _is_on(array: Any, device: str) -> bool:
    """Returns whether an array comes from torch or CuPy and is on the CUDA device `device`."""
    library, _, number = device.partition(":")
    if library != "cuda":
        return False
    where: Any = getattr(array, "device", None)
    kind = type(array).__module__.partition(".")[0]
    if kind == "torch":
        return bool(where.type == "cuda" and where.index == int(number or 0))
    return kind == "cupy" and bool(where.id == int(number or 0))


def _described(name: str, array: Any, *, on_host: bool) -> tuple[str, str, list[int], _rust.Foreign]:
    """Prepares a tensor for the store: waits until its bytes are ready, and copies it if it has
    gaps or must be on the host.

    Returns the tensor's name, its safetensors type, its shape, and a description of the prepared
    array.
    """
    _rust.check_whole(array)
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

        # `ascontiguousarray` copies an array that has gaps. `describe` rejects an array in another
        # byte order.
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
    """Opens a model read-only, without copying it. See `Store.open`.

    >>> published = store.publish("example", {"w": crosshandle.ones(8)})
    >>> store.open("example").keys()
    ['w']
    """
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
