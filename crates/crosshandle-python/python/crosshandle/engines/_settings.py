"""What an engine is told of a holder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from .. import store

FORMAT = "crosshandle"
"""The name of the load format, and the key of the settings where the engine has no format for others."""


@dataclass(frozen=True)
class Ranks:
    """Which part of a model an engine's process has."""

    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1

    def __str__(self) -> str:
        return f"tp{self.tp_rank}-of-{self.tp_size}-pp{self.pp_rank}-of-{self.pp_size}"


@dataclass(frozen=True)
class Settings:
    """The settings, as keys of the engine's extra configuration."""

    name: str | None = None
    """The checkpoint's name, whose tensors are named as in its files. `{tp_rank}`, `{tp_size}`, `{pp_rank}` and
    `{pp_size}` are replaced by the process's, for instance where each GPU has a copy of its own."""
    state: str | None = None
    """The name under which the weights are kept as the engine has them when it has loaded and changed them: one for
    each rank, behind this. The first engine publishes them, the next ones map them without a copy."""
    expected_hash: str | None = None
    """The checkpoint's hash; no other one is loaded."""
    place: str | int | None = None
    """Where the weights of `state` are to lie: see `crosshandle.store.open`."""
    socket_dir: str | None = None
    token: str | None = None

    @classmethod
    def read(cls, given: Mapping[str, Any] | None) -> Settings:
        """Reads them. Raises `ValueError` for what is not known."""
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
        """The store that is meant."""
        return store.Store(self.socket_dir, token=self.token)

    def name_for(self, ranks: Ranks) -> str:
        """The checkpoint's name for a process."""
        assert self.name is not None
        numbers = {field.name: getattr(ranks, field.name) for field in fields(ranks)}
        try:
            return self.name.format(**numbers)
        except (KeyError, IndexError, ValueError) as error:
            raise ValueError(f"the name {self.name!r} has another placeholder than {', '.join(numbers)}") from error

    def state_for(self, ranks: Ranks) -> str:
        """The name of a process's part of the state."""
        return f"{self.state}/{ranks}"
