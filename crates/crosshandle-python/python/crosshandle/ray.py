"""A tensor transport for Ray: actors pass tensors and arrays, on one machine without a copy.

    import crosshandle.ray

    crosshandle.ray.register()                    # in the driver, before it defines the actors

    @ray.remote
    class Source:
        @ray.method(tensor_transport="crosshandle")
        def weights(self):
            return torch.ones(1 << 20, device="cuda")

    @ray.remote(enable_tensor_transport=True)
    class Sink: ...

    sink.use.remote(source.weights.remote())      # the bytes stay where they are

`"crosshandle"` is for torch tensors on CUDA devices and on the CPU, `"crosshandle_numpy"` for NumPy
arrays. The receiver's tensors have the sender's memory, so a write by one of them is seen by both.
CUDA memory may come from any allocator. Arrays in the host's memory cross without a copy if they
are in shared memory (`crosshandle.empty`). Other host arrays are copied once, by the sender.

After `register(hosts=True)`, actors on other machines receive copies over a link (`docs/hosts.md`).
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy
import ray.util
from ray.experimental import register_tensor_transport
from ray.experimental.rdt.tensor_transport_manager import (
    CommunicatorMetadata,
    TensorTransportManager,
    TensorTransportMetadata,
)

from . import _trees, link
from ._crosshandle import Context, Event, EventHandle, Memory, MemoryHandle, unpack_copied
from ._errors import (
    CommandFailedError,
    Error,
    ExporterGoneError,
    PeerDiedError,
    SystemCallError,
    TimedOutError,
    WrongHostError,
)
from ._sharing import Bundle, _context_of, default_context, open_list, share_list

NAME = "crosshandle"
NUMPY_NAME = "crosshandle_numpy"

FETCH_TIMEOUT = 30.0
"""Maximum number of seconds that a fetch waits for the sender to answer."""

ABORT_INTERVAL = 0.2
"""Interval in seconds at which a fetch in progress checks whether Ray has aborted it."""

LINK_KEEP_ALIVE = 0.6
"""Number of silent seconds after which a link to another machine ends. The fetch then connects
again, which fails at once if the sender has died."""

_LINKS_OF_A_FETCH = 3
"""Number of links that a fetch from another machine uses if links end during the fetch."""

_LINKS_INTERVAL = 5.0
"""Interval in seconds at which a sender drops links that have ended."""

_EVENTS = 64
"""Maximum number of streams for which a process keeps an event."""

_ABORTED_OBJECTS = 4096
"""Maximum number of aborted objects that a process remembers."""


class TransferAbortedError(Error):
    """Ray has aborted the fetch of an object."""


@dataclass
class Metadata(TensorTransportMetadata):
    """The description of an object's tensors that Ray sends to receivers. It contains no code."""

    bundle: bytes = b""
    """The tensors, as `crosshandle.open` accepts them. Empty if there are no tensors."""
    node: str = ""
    """Ray's identifier of the node that has the tensors."""
    address: str = ""
    """The address at which the sender accepts links. Empty if it accepts none."""
    token: str = ""
    """The token of the sender's links."""


class _Links:
    """The links of this process to actors on other machines, in both directions."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: dict[str, tuple[str, str]] = {}
        self._connected: dict[tuple[str, str], link.Link] = {}

    def listen(self, device: str) -> tuple[str, str]:
        """Returns the address and the token with which other machines reach memory of a device."""
        with self._lock:
            if device not in self._listeners:
                token, host = link.new_token(), ray.util.get_node_ip_address()
                listener = link.listen(
                    f"[{host}]:0" if ":" in host else f"{host}:0",
                    context=default_context(device),
                    token=token,
                    data="tls",
                    keep_alive=LINK_KEEP_ALIVE,
                )
                arguments = (device, listener)
                threading.Thread(target=self._accept, args=arguments, name="xhray-accept", daemon=True).start()
                self._listeners[device] = listener.address, token
            return self._listeners[device]

    def _accept(self, device: str, listener: link.Listener) -> None:
        """Keeps links from other machines until they end."""
        accepted: list[link.Link] = []
        try:
            while True:
                try:
                    accepted.append(listener.accept(_LINKS_INTERVAL))
                except TimedOutError:
                    pass
                accepted = [one for one in accepted if one.ended is None]
        finally:
            # The next object gets a new listener, because no thread accepts links here any more.
            with self._lock:
                self._listeners.pop(device, None)
            listener.close()

    def connected(self, address: str, token: str, context: Context, timeout: float) -> link.Link:
        """Returns a link whose local memory is in a context."""
        key = address, context.device.name
        with self._lock:
            self._connected = {other: one for other, one in self._connected.items() if one.ended is None}
            known = self._connected.get(key)
        if known is not None:
            return known
        timeout = min(timeout, ABORT_INTERVAL * 5)
        made = link.connect(
            address, context=context, token=token, data="tls", keep_alive=LINK_KEEP_ALIVE, timeout=timeout
        )
        with self._lock:
            known = self._connected.setdefault(key, made)
        if known is not made:
            # Another thread has connected meanwhile.
            made.close()
        return known


_links = _Links()


class _Transport(TensorTransportManager):
    _name = NAME
    _hosts = False

    def __init__(self) -> None:
        self._bundles: dict[str, Bundle] = {}
        self._aborted: dict[str, None] = {}
        self._lock = threading.Lock()

    def tensor_transport_backend(self) -> str:
        return self._name.upper()

    @staticmethod
    def is_one_sided() -> bool:
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        return True

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        return True

    def get_communicator_metadata(
        self, src_actor: Any, dst_actor: Any, backend: str | None = None
    ) -> CommunicatorMetadata:
        return CommunicatorMetadata()

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[Any]) -> Metadata:
        if not rdt_object:
            return Metadata(tensor_meta=[])
        meta = [(one.shape, one.dtype) for one in rdt_object]
        bundle, device = self._shared(rdt_object)
        with self._lock:
            # Ray repeats a task whose reply was lost. Receivers may have either description.
            known = self._bundles.setdefault(obj_id, bundle)
        node = ray.get_runtime_context().get_node_id()
        address, token = _links.listen(_device_name(rdt_object[0])) if self._hosts else ("", "")
        return Metadata(
            tensor_meta=meta, tensor_device=device, bundle=bytes(known), node=node, address=address, token=token
        )

    def recv_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: Any,
        communicator_metadata: CommunicatorMetadata,
        target_buffers: list[Any] | None = None,
    ) -> list[Any]:
        if not tensor_transport_metadata.bundle:
            return []
        arrays = [self._native(array) for array in self._opened(obj_id, tensor_transport_metadata)]
        if not target_buffers:
            return arrays
        for target, array in zip(target_buffers, arrays, strict=True):
            self._fill(target, array)
        return target_buffers

    def _opened(self, obj_id: str, metadata: Metadata) -> Any:
        """Returns the arrays of an object: the sender's own, or copies if it is on another
        machine."""
        deadline = time.monotonic() + FETCH_TIMEOUT
        is_linked, links = False, 0
        while True:
            self._check(obj_id)
            try:
                if is_linked:
                    return self._copied(obj_id, metadata, deadline)
                return open_list(metadata.bundle, ABORT_INTERVAL)
            except TimedOutError:
                if time.monotonic() > deadline:
                    raise
            except (WrongHostError, ExporterGoneError) as error:
                # In containers of one machine, the sender's sockets may be in another directory.
                is_here = metadata.node == ray.get_runtime_context().get_node_id()
                if is_linked or (is_here and not isinstance(error, WrongHostError)):
                    raise
                if not metadata.address:
                    raise type(error)(
                        f"{error}: call crosshandle.ray.register(hosts=True) to fetch tensors from other machines"
                    ) from None
                is_linked = True
            except (PeerDiedError, CommandFailedError):
                # The link has ended. If the sender has died too, it refuses the next connection.
                links += 1
                if not is_linked or links == _LINKS_OF_A_FETCH:
                    raise

    def _check(self, obj_id: str) -> None:
        with self._lock:
            if obj_id in self._aborted:
                del self._aborted[obj_id]
                raise TransferAbortedError(f"Ray has aborted the fetch of {obj_id}")

    def _copied(self, obj_id: str, metadata: Metadata, deadline: float) -> Any:
        """Returns copies of an object's arrays. Raises `TimedOutError` after the deadline."""

        def left() -> float:
            self._check(obj_id)
            seconds = deadline - time.monotonic()
            if seconds <= 0:
                raise TimedOutError(f"the sender at {metadata.address} did not send {obj_id} in time")
            return seconds

        def until(event: Event, number: int) -> None:
            """Waits for a signal, until Ray aborts the fetch."""
            while True:
                try:
                    return event.wait_value(number, timeout=min(ABORT_INTERVAL, left()))
                except TimedOutError:
                    left()

        def linked(context: Context) -> link.Link:
            return _links.connected(metadata.address, metadata.token, context, left())

        def fetch(handle: MemoryHandle, offset: int, nbytes: int) -> Memory:
            context = _context_of(handle.backend, handle.device_uuid)
            own, done = context.allocate(nbytes), context.event()
            with _closed(linked(context).open_memory(handle, writable=False, timeout=left())) as remote:
                remote.copy_to(own, offset=offset, nbytes=nbytes, queue=context.queue(), signal=done)
                until(done, 1)
            return own

        def wait(handle: EventHandle, number: int) -> None:
            with _closed(linked(default_context()).open_event(handle, timeout=left())) as remote:
                until(remote.mirror, number)

        try:
            structure, arrays = unpack_copied(metadata.bundle, fetch, wait)
        except SystemCallError as error:
            raise ExporterGoneError(f"the sender at {metadata.address} cannot be reached: {error}") from error
        return _trees.rearrange(structure, arrays)

    def send_multiple_tensors(
        self,
        tensors: list[Any],
        tensor_transport_metadata: TensorTransportMetadata,
        communicator_metadata: CommunicatorMetadata,
    ) -> None:
        raise NotImplementedError("Ray does not call this for a one-sided transport")

    def garbage_collect(self, obj_id: str, tensor_transport_meta: TensorTransportMetadata, tensors: list[Any]) -> None:
        with self._lock:
            bundle = self._bundles.pop(obj_id, None)
        if bundle is not None:
            bundle.release()

    def abort_transport(self, obj_id: str, communicator_metadata: CommunicatorMetadata) -> None:
        with self._lock:
            self._aborted[obj_id] = None
            while len(self._aborted) > _ABORTED_OBJECTS:
                del self._aborted[next(iter(self._aborted))]

    def _shared(self, arrays: list[Any]) -> tuple[Bundle, str]:
        """Returns a bundle of the arrays, and the type of their device."""
        raise NotImplementedError

    def _native(self, array: Any) -> Any:
        """Converts an array to one of the library."""
        raise NotImplementedError

    def _fill(self, target: Any, array: Any) -> None:
        """Copies an array into a buffer of the receiver."""
        raise NotImplementedError


@contextmanager
def _closed(remote: Any) -> Iterator[Any]:
    """Closes an object of another machine at the end of a `with` block."""
    try:
        yield remote
    finally:
        remote.close()


class _Signals:
    """An event for each stream. The objects of a stream share the event, and each has a number."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: OrderedDict[tuple[int, int], Event] = OrderedDict()

    def after(self, device: Any) -> tuple[Event, int]:
        """Signals the event of a device's current stream, after the work that is submitted to it.
        Returns the event and the signal's number."""
        import torch

        stream = torch.cuda.current_stream(device)
        key = device.index, stream.cuda_stream
        with self._lock:
            event = self._events.pop(key, None) or default_context(f"cuda:{device.index}").event()
            self._events[key] = event
            # Bundles keep the events that they need.
            surplus = self._events.popitem(last=False) if len(self._events) > _EVENTS else None
        del surplus
        return event, event.signal(stream)


_signals = _Signals()


def _device_name(array: Any) -> str:
    """Returns the name of an array's device."""
    device = getattr(array, "device", "cpu")
    kind = getattr(device, "type", "cpu")
    return "host" if kind == "cpu" else f"{kind}:{device.index}"


class TorchTransport(_Transport):
    """Passes torch tensors."""

    def _shared(self, arrays: list[Any]) -> tuple[Bundle, str]:
        device = arrays[0].device
        if any(one.device != device for one in arrays):
            raise ValueError("all tensors of an object must be on the same device")
        event, number = _signals.after(device) if device.type == "cuda" else (None, None)
        tensors = [one.detach() if one.requires_grad else one for one in arrays]
        return share_list(tensors, _device_name(arrays[0]), event, number), device.type

    def _native(self, array: Any) -> Any:
        return array.torch()

    def _fill(self, target: Any, array: Any) -> None:
        target.copy_(array)


class NumpyTransport(_Transport):
    """Passes NumPy arrays."""

    _name = NUMPY_NAME

    def _shared(self, arrays: list[Any]) -> tuple[Bundle, str]:
        return share_list(arrays, "host", None, None), "cpu"

    def _native(self, array: Any) -> Any:
        return array.numpy()

    def _fill(self, target: Any, array: Any) -> None:
        target[...] = array


class TorchTransportOfHosts(TorchTransport):
    """Passes torch tensors, also to actors on other machines."""

    _hosts = True


class NumpyTransportOfHosts(NumpyTransport):
    """Passes NumPy arrays, also to actors on other machines."""

    _hosts = True


def register(*, hosts: bool = False) -> None:
    """Registers the transports `"crosshandle"` and `"crosshandle_numpy"` with Ray.

    Call this in the process that creates the actors, before it defines their classes. Ray then
    registers the transports in the actors. Later calls do nothing.

    With `hosts`, actors on other machines can fetch the tensors. Each actor that sends tensors then
    listens at a free port of its node's address, over TLS. The description that Ray sends to
    receivers contains the token.
    """
    from ray.experimental.rdt.util import transport_manager_info

    if NUMPY_NAME.upper() not in transport_manager_info:
        made = NumpyTransportOfHosts if hosts else NumpyTransport
        register_tensor_transport(NUMPY_NAME, ["cpu"], made, numpy.ndarray)
    if NAME.upper() not in transport_manager_info:
        try:
            import torch
        except ImportError:
            return
        chosen = TorchTransportOfHosts if hosts else TorchTransport
        register_tensor_transport(NAME, ["cuda", "cpu"], chosen, torch.Tensor)
