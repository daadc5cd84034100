"""Teachers of on-policy distillation; torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from arcforge_core.config.schema import check_minimums
from arcforge_core.errors import ConfigError
from arcforge_rl.configs.entries import entry_of


@dataclass
class TeacherConfig:
    """A frozen model that scores the policy's tokens. One of `init` and `engine`."""

    init: str | None = None
    """Checkpoint, loaded in the trainer's process."""
    engine: str | None = None
    """``arcforge``, ``vllm`` or ``sglang``: a server of the teacher, asked for the log-probs of prompts."""
    options: dict[str, Any] = field(default_factory=dict)
    """Fields of that engine's config, such as its ``url``."""
    attempts: int = 6
    """At a request that the server does not answer, for example because it restarts; 31 s with six."""

    max_change: float = 0.01
    """Nats by which log-probs of a fixed text may differ during a run; more are those of other weights, which end it.
    A server whose kernels are not deterministic may need a higher bound."""

    def check(self, where: str) -> None:
        """Checks the fields; `where` is where they were given."""
        named = [name for name in ("init", "engine") if getattr(self, name)]
        if len(named) != 1:
            raise ConfigError(where, named, "must be a checkpoint, or name one of init and engine")
        if self.options and self.engine is None:
            raise ConfigError(f"{where}.options", self.options, "are of a teacher's engine: name engine, not init")
        check_minimums(self, where, attempts=1, max_change=0.0)


def teacher_of(fields: Any, name: str) -> TeacherConfig:
    """Returns the teacher of an entry of `teachers`: a checkpoint, or the fields of a `TeacherConfig`.

    Raises:
        ConfigError: a field cannot be used.
    """
    where = f"teachers.{name}"
    given: Any = fields if isinstance(fields, (Mapping, TeacherConfig)) else {"init": fields}
    made = entry_of(TeacherConfig, given, where, "a teacher")
    made.check(where)
    return made
