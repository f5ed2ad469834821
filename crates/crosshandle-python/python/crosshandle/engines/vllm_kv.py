"""A KV connector for vLLM, which keeps the prefix cache in a holder.

    vllm serve … --kv-transfer-config '{"kv_connector": "HolderConnector", "kv_role": "kv_both",
        "kv_connector_module_path": "crosshandle.engines.vllm_kv",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"name": "kv/llama-70b"}}'

Each full block of a prompt is published under a name that contains the hash of all tokens up to its
end. An engine that starts again, or another engine with the same settings, copies the blocks that
it finds instead of computing them. A block becomes visible only when it is complete, so an engine
that dies leaves no partial blocks.

The settings are `name`, the prefix of all names, `max_blocks` (default: 1024), after which the
oldest blocks are removed, `socket_dir` and `token`. The oldest blocks are also removed if the
holder has no room for a new block. Use another name for other weights, because
blocks belong to the weights that have computed them. If a block disappears before it is copied,
vLLM computes it with the policy `recompute`, and fails the request otherwise.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass, field
from typing import Any

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)

from .. import store
from .._errors import Error, LimitReachedError, OutOfMemoryError

_log = logging.getLogger(__name__)

_LS_TIMEOUT = 5.0
"""Maximum number of seconds that the scheduler waits for the list of blocks."""


_EVICTED_PART = 8
"""The part of its blocks that a worker removes if the holder has no room: one of this many."""

_EVICTIONS = 2
"""Number of times that a worker removes blocks for a new one. If this is not enough, other programs
take the room."""

_FULL = (store.NoRoomError, LimitReachedError, OutOfMemoryError)
"""The errors after which a worker removes blocks."""


@dataclass
class Blocks(KVConnectorMetadata):
    """What the workers have to copy in one step: pairs of a hash and the number of a block."""

    load: list[tuple[str, int]] = field(default_factory=list)
    store: list[tuple[str, int]] = field(default_factory=list)


@dataclass
class _Request:
    hashes: list[str]
    """The hashes of the full blocks of the prompt, without the block of its last token."""
    first: int = 0
    """The number of blocks that the engine had already."""
    loaded: int = 0
    """The number of blocks to load after those."""
    blocks: list[int] = field(default_factory=list)
    stored: int = 0
    """The number of blocks that were loaded, stored, or present before."""


class HolderConnector(KVConnectorBase_V1):
    """Keeps full blocks of prompts in a holder."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any):
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        extra = self._kv_transfer_config.kv_connector_extra_config
        unknown = sorted(set(extra) - {"name", "max_blocks", "socket_dir", "token"})
        if unknown or not extra.get("name"):
            raise ValueError(f"the connector needs the setting name, and does not know {', '.join(unknown) or 'more'}")
        groups = len(kv_cache_config.kv_cache_groups)
        if groups != 1:
            raise ValueError(f"the connector supports one kind of KV cache, and this model has {groups}")
        self._store = store.Store(extra.get("socket_dir"), token=extra.get("token"))
        self._size: int = vllm_config.cache_config.block_size
        self._max_blocks = int(extra.get("max_blocks", 1024))
        self._ranks: int = vllm_config.parallel_config.world_size
        self._prefix = f"{extra['name']}/{_fingerprint(vllm_config)}"
        self._requests: dict[str, _Request] = {}
        self._caches: dict[str, Any] = {}
        self._failed: set[int] = set()
        # The names that this process has published, in order. The holder's times are whole seconds.
        self._published: dict[str, int] = {}

    # The scheduler's part.

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """Returns the number of tokens whose blocks can be loaded."""
        found = self._requests[request.request_id] = _Request(self._hashes(request))
        found.first = num_computed_tokens // self._size
        try:
            held = {one.name for one in self._store.ls(timeout=_LS_TIMEOUT)}
        except (Error, store.StoreError) as error:
            _log.warning("no blocks are loaded: %s", error)
            held = set()
        for block in found.hashes[found.first :]:
            if not all(self._name(rank, block) in held for rank in range(self._ranks)):
                break
            found.loaded += 1
        return found.loaded * self._size, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        found = self._requests.setdefault(request.request_id, _Request(self._hashes(request)))
        found.loaded = num_external_tokens // self._size
        found.blocks = list(blocks.get_block_ids()[0])
        found.stored = 0

    def build_connector_meta(self, scheduler_output: Any) -> Blocks:
        made = Blocks()
        computed = {one.req_id: one.num_computed_tokens for one in scheduler_output.scheduled_new_reqs}
        cached = scheduler_output.scheduled_cached_reqs
        for request, more, tokens in zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens):
            computed[request] = tokens
            if request in self._requests and request not in cached.resumed_req_ids and more is not None:
                self._requests[request].blocks.extend(more[0])
        for request, tokens in computed.items():
            found = self._requests.get(request)
            if found is None:
                continue
            if found.stored == 0:
                found.stored = found.first + found.loaded
                made.load += [(found.hashes[at], found.blocks[at]) for at in range(found.first, found.stored)]
            full = (tokens + scheduler_output.num_scheduled_tokens[request]) // self._size
            full = min(full, len(found.hashes), len(found.blocks))
            made.store += [(found.hashes[at], found.blocks[at]) for at in range(found.stored, full)]
            found.stored = max(found.stored, full)
        return made

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
        self._requests.pop(request.request_id, None)
        return False, None

    def _hashes(self, request: Any) -> list[str]:
        tokens = request.prompt_token_ids or []
        # Anything else that changes what a token means.
        start = [[one.identifier for one in request.mm_features], request.cache_salt]
        start.append(None if request.lora_request is None else request.lora_request.lora_path)
        hashed, hashes = hashlib.sha256(json.dumps(start).encode()), []
        for end in range(self._size, len(tokens), self._size):
            hashed.update(json.dumps(list(tokens[end - self._size : end])).encode())
            hashes.append(hashed.hexdigest())
        return hashes

    def _name(self, rank: int, block: str) -> str:
        return f"{self._prefix}/{rank}/{block}"

    # The workers' part.

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Copies the blocks that the scheduler has found into the engine's cache."""
        layers = forward_context.no_compile_layers
        caches = {name: getattr(layer, "kv_cache", None) for name, layer in layers.items()}
        self._caches = {name: cache for name, cache in caches.items() if cache is not None}
        for hashed, block in self._blocks().load:
            try:
                with self._store.open(self._name(self._rank(), hashed), framework="torch") as held:
                    for name, cache in self._caches.items():
                        cache[block].copy_(held.get_tensor(name))
            except (Error, store.StoreError, KeyError) as error:
                _log.warning("a block could not be loaded: %s", error)
                self._failed.add(block)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Does nothing, because `start_load_kv` has copied all layers."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Does nothing, because `wait_for_save` publishes all layers of a block at once."""

    def wait_for_save(self) -> None:
        """Publishes the blocks that are full after this step."""
        made = self._blocks().store
        for hashed, block in made:
            tensors = {name: cache[block] for name, cache in self._caches.items()}
            device = next(iter(tensors.values())).device
            where = f"cuda:{device.index or 0}" if device.type == "cuda" else "host"
            self._publish(hashed, tensors, where)
        if made:
            self._evict(self._max_blocks)

    def _publish(self, hashed: str, tensors: dict[str, Any], where: str) -> None:
        """Publishes a block. If the holder has no room, removes old blocks, and tries again."""
        name = self._name(self._rank(), hashed)
        for evictions in range(_EVICTIONS + 1):
            try:
                self._store.publish(name, tensors, device=where)
            except store.NameTakenError:
                # Another engine with the same settings has published the block.
                return
            except _FULL as error:
                if evictions == _EVICTIONS or not self._evict(None):
                    _log.info("a block is not published: %s", error)
                    return
            except (Error, store.StoreError) as error:
                _log.info("a block is not published: %s", error)
                return
            else:
                self._published[name] = len(self._published)
                return

    def get_block_ids_with_load_errors(self) -> set[int]:
        failed, self._failed = self._failed, set()
        return failed

    def _blocks(self) -> Blocks:
        found = self._get_connector_metadata()
        assert isinstance(found, Blocks)
        return found

    def _evict(self, most: int | None) -> int:
        """Removes the oldest of this worker's blocks, so that `most` blocks are left. With `None`,
        removes a part of them. Returns the number of removed blocks."""
        removed = 0
        try:
            own = [one for one in self._store.ls(timeout=_LS_TIMEOUT) if one.name.startswith(self._name(self._rank(), ""))]
            own.sort(key=lambda one: (one.created, self._published.get(one.name, -1)))
            count = -(-len(own) // _EVICTED_PART) if most is None else max(0, len(own) - most)
            for one in own[:count]:
                self._store.rm(one.name)
                removed += 1
            held = {one.name for one in own[count:]}
            numbers = enumerate(name for name in self._published if name in held)
            self._published = {name: number for number, name in numbers}
        except (Error, store.StoreError) as error:
            _log.info("old blocks are not removed: %s", error)
        return removed

    def _rank(self) -> int:
        from vllm.distributed import parallel_state

        return int(parallel_state.get_world_group().rank_in_group)


def _fingerprint(vllm_config: Any) -> str:
    """Returns a hash of everything that engines must have in common to use each other's blocks."""
    model, cache, parallel = vllm_config.model_config, vllm_config.cache_config, vllm_config.parallel_config
    found = [vllm.__version__, model.model, model.revision, str(model.dtype), model.quantization]
    found += [cache.cache_dtype, cache.block_size, parallel.tensor_parallel_size, parallel.pipeline_parallel_size]
    return hashlib.sha256(json.dumps(found, default=str).encode()).hexdigest()[:16]
