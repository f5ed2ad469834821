"""A tensor transport for Ray: actors of one machine pass tensors and arrays without a copy.

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
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy
import ray
from ray.experimental import register_tensor_transport
from ray.experimental.rdt.tensor_transport_manager import (
    CommunicatorMetadata,
    TensorTransportManager,
    TensorTransportMetadata,
)

from ._errors import Error, TimedOutError
from ._sharing import Bundle, default_context, open, share

NAME = "crosshandle"
NUMPY_NAME = "crosshandle_numpy"

FETCH_TIMEOUT = 30.0
"""Maximum number of seconds that a fetch waits for the sender to answer."""

ABORT_INTERVAL = 0.2
"""Interval in seconds at which a fetch in progress checks whether Ray has aborted it."""

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
    """Ray's identifier of the machine that has the tensors."""


class _Transport(TensorTransportManager):
    _name = NAME

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
        return Metadata(tensor_meta=meta, tensor_device=device, bundle=bytes(known), node=node)

    def recv_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: Any,
        communicator_metadata: CommunicatorMetadata,
        target_buffers: list[Any] | None = None,
    ) -> list[Any]:
        if not tensor_transport_metadata.bundle:
            return []
        node = ray.get_runtime_context().get_node_id()
        if node != tensor_transport_metadata.node:
            raise Error(
                f"the transport {self._name} reaches actors on the same machine, and these tensors are on Ray's node {tensor_transport_metadata.node}, not {node}"
            )
        arrays = [self._native(array) for array in self._opened(obj_id, tensor_transport_metadata.bundle)]
        if not target_buffers:
            return arrays
        for target, array in zip(target_buffers, arrays, strict=True):
            self._fill(target, array)
        return target_buffers

    def _opened(self, obj_id: str, data: bytes) -> list[Any]:
        deadline = time.monotonic() + FETCH_TIMEOUT
        while True:
            with self._lock:
                if obj_id in self._aborted:
                    del self._aborted[obj_id]
                    raise TransferAbortedError(f"Ray has aborted the fetch of {obj_id}")
            try:
                found: list[Any] = open(data, timeout=ABORT_INTERVAL)
            except TimedOutError:
                if time.monotonic() > deadline:
                    raise
            else:
                return found

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


class TorchTransport(_Transport):
    """Passes torch tensors."""

    def _shared(self, arrays: list[Any]) -> tuple[Bundle, str]:
        device = arrays[0].device
        if any(one.device != device for one in arrays):
            raise ValueError("all tensors of an object must be on the same device")
        event = None
        if device.type == "cuda":
            import torch

            event = default_context(f"cuda:{device.index}").event()
            event.signal(torch.cuda.current_stream(device))
        return share([one.detach() for one in arrays], copy=True, event=event), device.type

    def _native(self, array: Any) -> Any:
        return array.torch()

    def _fill(self, target: Any, array: Any) -> None:
        target.copy_(array)


class NumpyTransport(_Transport):
    """Passes NumPy arrays."""

    _name = NUMPY_NAME

    def _shared(self, arrays: list[Any]) -> tuple[Bundle, str]:
        return share(arrays, copy=True), "cpu"

    def _native(self, array: Any) -> Any:
        return array.numpy()

    def _fill(self, target: Any, array: Any) -> None:
        target[...] = array


def register() -> None:
    """Registers the transports `"crosshandle"` and `"crosshandle_numpy"` with Ray.

    Call this in the process that creates the actors, before it defines their classes. Ray then
    registers the transports in the actors. Later calls do nothing.
    """
    from ray.experimental.rdt.util import transport_manager_info

    if NUMPY_NAME.upper() not in transport_manager_info:
        register_tensor_transport(NUMPY_NAME, ["cpu"], NumpyTransport, numpy.ndarray)
    if NAME.upper() not in transport_manager_info:
        try:
            import torch
        except ImportError:
            return
        register_tensor_transport(NAME, ["cuda", "cpu"], TorchTransport, torch.Tensor)
