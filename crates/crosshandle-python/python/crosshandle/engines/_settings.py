"""The settings that the model loaders for vLLM and SGLang accept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from .. import store

FORMAT = "crosshandle"
"""The name of the load format. For SGLang, which has a fixed list of formats, it is the key of the
settings."""


@dataclass(frozen=True)
class Ranks:
    """The tensor-parallel and pipeline-parallel ranks of an engine process. They select the part of
    the model that the process computes."""

    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1

    def __str__(self) -> str:
        return f"tp{self.tp_rank}-of-{self.tp_size}-pp{self.pp_rank}-of-{self.pp_size}"


@dataclass(frozen=True)
class Settings:
    """The settings of a model loader. Each field is a key in `--model-loader-extra-config`."""

    name: str | None = None
    """The name under which the holder keeps the checkpoint. Its tensors have the same names as in
    the checkpoint's files. The placeholders `{tp_rank}`, `{tp_size}`, `{pp_rank}` and `{pp_size}`
    are replaced by the ranks of the process. They are useful if each GPU has its own copy."""
    state: str | None = None
    """The prefix of the names under which the holder keeps the engine's processed weights. There is
    one name for each rank. The first engine publishes these weights. Later engines map them without
    a copy."""
    expected_hash: str | None = None
    """The expected hash of the checkpoint. Loading fails if the hash differs."""
    place: str | int | None = None
    """The addresses at which the weights in `state` are mapped, as for the argument `place` of
    `crosshandle.store.open`."""
    socket_dir: str | None = None
    token: str | None = None

    @classmethod
    def read(cls, given: Mapping[str, Any] | None) -> Settings:
        """Parses the settings. Raises `ValueError` for unknown keys, and if both `name` and `state`
        are missing."""
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(given or {}) - known)
        if unknown:
            raise ValueError(f"the loader {FORMAT} does not know {', '.join(unknown)}: it has {', '.join(sorted(known))}")
        found = cls(**(given or {}))
        if found.name is None and found.state is None:
            raise ValueError(
                f"the loader {FORMAT} needs a name: --model-loader-extra-config '{{\"name\": \"llama-70b\"}}'"
            )
        return found

    def store(self) -> store.Store:
        """Returns a client for the holder that these settings select."""
        return store.Store(self.socket_dir, token=self.token)

    def name_for(self, ranks: Ranks) -> str:
        """Returns the checkpoint's name for a process, with all placeholders replaced."""
        assert self.name is not None
        numbers = {field.name: getattr(ranks, field.name) for field in fields(ranks)}
        try:
            return self.name.format(**numbers)
        except (KeyError, IndexError, ValueError) as error:
            raise ValueError(f"the name {self.name!r} has a placeholder other than {', '.join(numbers)}") from error

    def state_for(self, ranks: Ranks) -> str:
        """Returns the name under which the holder keeps a process's processed weights."""
        return f"{self.state}/{ranks}"
