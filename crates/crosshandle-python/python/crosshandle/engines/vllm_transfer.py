"""Weight updates of running vLLM engines through a holder (`--weight-transfer-config`).

    vllm serve … --weight-transfer-config '{"backend": "crosshandle"}'

    from vllm.distributed.weight_transfer.base import ModuleSource
    from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
    from crosshandle.engines.vllm_transfer import TrainerInit

    client, source = HTTPVLLMWeightSyncClient(url), ModuleSource(module)
    init = TrainerInit(rank=0, name="policy")
    trainer = WeightTransferTrainerFactory.trainer_init(init, client=client, source=source)
    trainer.send_weights()

The trainer publishes its weights as the next version of a name. Only the name, the version and the
hash travel to the engines, as plain JSON, so `VLLM_ALLOW_INSECURE_SERIALIZATION` stays unset. Each
worker first opens the version, and changes nothing. When all workers have it open,
`finish_weight_update` loads it between two steps of the engine. If the trainer dies before that,
the engines keep their old weights, and the next trainer continues.

As with vLLM's own backends, requests in progress continue with the new weights, and the prefix
cache has to be reset by the caller.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory

from .. import store
from ._settings import FORMAT

_log = logging.getLogger(__name__)

MAPPED = "_crosshandle_state"
"""The attribute of a module whose weights are mapped from a published state. It has the state's
name."""


@dataclass
class Init(WeightTransferInitInfo):
    """What a trainer sends to the workers once."""

    name: str
    """The name under which the trainer publishes its weights."""
    socket_dir: str | None = None
    token: str | None = None


@dataclass
class Update(WeightTransferUpdateInfo):
    """What a trainer sends to the workers for each update."""

    version: int
    hash: str


class Engine(WeightTransferEngine[Init, Update]):
    """The part in a vLLM worker. It opens published versions, and loads them."""

    init_info_cls = Init
    update_info_cls = Update

    def __init__(self, config: Any, vllm_config: Any, device: torch.device, model: torch.nn.Module):
        super().__init__(config, vllm_config, device, model)
        state = getattr(model, MAPPED, None)
        if state is not None:
            raise ValueError(f"the weights of {state} are mapped read-only, so they cannot be updated: use `name` without `state`")
        self._init: Init | None = None
        self._received: store.Model | None = None

    def init_transfer_engine(self, init_info: Init) -> None:
        # A previous trainer may have died after the workers had opened its version.
        self._drop()
        self._end_abandoned()
        self._init = init_info

    def _end_abandoned(self) -> None:
        """Makes the worker forget an update whose trainer has died.

        Otherwise the worker would refuse the next update. vLLM's executor does not read the
        refusals of the other ranks, and takes them for their next replies. The worker does not
        pass itself to its transfer engine, so this method reads it from the caller's frame.
        """
        caller = sys._getframe(2)
        worker: Any = caller.f_locals.get("self")
        if getattr(worker, "weight_transfer_engine", None) is self and getattr(worker, "_weight_update_active", False):
            _log.warning("an earlier update is ended without a change: its trainer has not finished it")
            self.reset_weight_update_target()
            worker._weight_update_active = False

    def start_weight_update(self) -> None:
        self._drop()

    def update_weights(self, update_info: dict[str, Any]) -> None:
        # Nothing is on the device yet, so the synchronisation of the base class is not needed.
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: Update) -> None:
        """Opens a version, and checks that it is the trainer's. Changes no weight."""
        if self._init is None:
            raise ValueError("the trainer has sent no name: init_weight_transfer_engine comes first")
        self._drop()
        where = store.Store(self._init.socket_dir, token=self._init.token)
        held = where.open(self._init.name, update_info.hash, framework="torch")
        if held.version != update_info.version:
            held.close()
            raise store.StoreError(f"{held.name} has version {held.version}, and the trainer sent version {update_info.version}")
        self._received = held

    def finish_weight_update(self) -> None:
        """Loads the opened version. Does nothing if no version is open."""
        held = self._received
        if held is None:
            return
        from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

        initialize_layerwise_reload(self.model)
        with torch.device(self.device), disable_mtp_completeness_check():
            self.model.load_weights((name, held.get_tensor(name, "torch")) for name in held.keys())
            finalize_layerwise_reload(self.model, self.model_config)
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        _log.info("the weights are version %d of %s", held.version, held.name)
        self._drop()

    def shutdown(self) -> None:
        self._drop()

    def _drop(self) -> None:
        if self._received is not None:
            self._received.close()
            self._received = None


@dataclass
class TrainerInit(TrainerInitInfo):
    """The settings of a trainer process. Only the process with rank 0 publishes."""

    backend: ClassVar[str] = FORMAT
    name: str = ""
    """The name under which the weights are published."""
    device: str = "host"
    """The device on which the holder keeps the weights."""
    socket_dir: str | None = None
    token: str | None = None


class Trainer(TrainerWeightTransferEngine[TrainerInit]):
    """The part in a trainer process."""

    init_info_cls = TrainerInit

    def __init__(self, init: TrainerInit, **named: Any):
        super().__init__(is_sender=init.is_sender, **named)
        self._settings = init
        self._store = store.Store(init.socket_dir, token=init.token)

    @classmethod
    def trainer_init(cls, init_info: TrainerInit, *, client: Any, source: Any = None) -> Trainer:
        """Returns a trainer whose workers know the name."""
        if source is None or not init_info.name:
            raise ValueError(f"the transfer {FORMAT} needs a source of weights, and a name to publish them under")
        trainer = cls(init_info, client=client, source=source)
        if trainer.is_sender:
            sent = {"name": init_info.name, "socket_dir": init_info.socket_dir, "token": init_info.token}
            client.init_weight_transfer_engine(sent)
        return trainer

    def send_weights(self) -> None:
        """Publishes the weights as the next version, and makes all workers load it.

        Raises an exception if a worker cannot open the version. In that case, no worker has changed
        its weights.
        """
        assert self.source is not None
        if not self.is_sender:
            for _ in self.source:
                # All ranks gather each tensor together.
                pass
            return
        tensors = {name: tensor.detach() for name, tensor in self.source}
        published = self._store.publish(self._settings.name, tensors, device=self._settings.device, replace=True)
        self._start()
        self.client.update_weights({"version": published.version, "hash": published.hash})
        self.client.finish_weight_update(str(published.version))

    def _start(self) -> None:
        try:
            self.client.start_weight_update()
        except Exception as error:
            # The workers still wait for a trainer that has died. `init_weight_transfer_engine` has
            # made them drop its version, so this ends its update without a change.
            _log.warning("an earlier update is ended without a change: %s", error)
            self.client.finish_weight_update(None)
            self.client.start_weight_update()


def register() -> None:
    """Registers the backend with vLLM, for engines and for trainers."""
    for factory, name in ((WeightTransferEngineFactory, "Engine"), (WeightTransferTrainerFactory, "Trainer")):
        if FORMAT not in factory._registry:
            factory.register_engine(FORMAT, __name__, name)


register()
