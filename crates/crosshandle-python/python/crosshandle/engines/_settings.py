"""The settings of the engines' loaders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from .. import store

FORMAT = "crosshandle"
"""The name of the load format. It is also the key of the settings in engines with a fixed list of
formats."""


@dataclass(frozen=True)
class Ranks:
    """The ranks of an engine's process, which select its part of the model."""

    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1

    def __str__(self) -> str:
        return f"tp{self.tp_rank}-of-{self.tp_size}-pp{self.pp_rank}-of-{self.pp_size}"


@dataclass(frozen=True)
class Settings:
    """The settings of a loader. Each field is a key of `--model-loader-extra-config`."""

    name: str | None = None
    """The name of the checkpoint, whose tensors have the same names as in its files. `{tp_rank}`,
    `{tp_size}`, `{pp_rank}` and `{pp_size}` are replaced by the numbers of the process, for example
    if each GPU has its own copy."""
    state: str | None = None
    """The name prefix under which the engine's processed weights are kept, one name for each rank.
    The first engine publishes them. Later engines map them without a copy."""
    expected_hash: str | None = None
    """The expected hash of the checkpoint. A checkpoint with another hash is not loaded."""
    place: str | int | None = None
    """The addresses at which the weights of `state` are mapped. See `place` of
    `crosshandle.store.open`."""
    socket_dir: str | None = None
    token: str | None = None

    @classmethod
    def read(cls, given: Mapping[str, Any] | None) -> Settings:
        """Reads the settings. Raises `ValueError` for unknown keys."""
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
        """Returns the store that these settings select."""
        return store.Store(self.socket_dir, token=self.token)

    def name_for(self, ranks: Ranks) -> str:
        """Returns the checkpoint's name for a process."""
        assert self.name is not None
        numbers = {field.name: getattr(ranks, field.name) for field in fields(ranks)}
        try:
            return self.name.format(**numbers)
        except (KeyError, IndexError, ValueError) as error:
            raise ValueError(f"the name {self.name!r} has a placeholder other than {', '.join(numbers)}") from error

    def state_for(self, ranks: Ranks) -> str:
        """Returns the name of a process's part of the state."""
        return f"{self.state}/{ranks}"
