"""The results file of ``arcforge-env validate``: one JSON line per play, so that a stopped check continues."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from omegaconf import OmegaConf

from arcforge_core.errors import ConfigError
from arcforge_rl.configs.commands import ValidateConfig


@dataclass(frozen=True)
class Play:
    """One play of one script.

    Attributes:
        task: index of the task.
        key: its key.
        kind: oracle, silence, question or cheat.
        script: number of the script among those of the task.
        repeat: number of the play of this script, from 0.
        wanted: required reward.
        reward: earned reward; None if the infrastructure failed.
        reason: the verifier's reason, or the failure.
        said: beginning of the replies.
        seconds: wall time.
    """

    task: int
    key: str
    kind: str
    script: int
    repeat: int
    wanted: float
    reward: float | None
    reason: str
    said: str
    seconds: float


class PlayRecord:
    """Reads finished plays and appends further ones; without ``results`` nothing is kept.

    Attributes:
        played: finished plays by task, key, kind, script and repeat. Failures are left out, so they are played again.

    Raises:
        ConfigError: the file is of another environment, or not such a file.
    """

    def __init__(self, config: ValidateConfig) -> None:
        self.path = None if config.results is None else Path(config.results)
        self.played: dict[tuple[int, str, str, int, int], Play] = {}
        if self.path is None:
            return
        head = json.dumps({"environment": OmegaConf.to_container(OmegaConf.structured(config.environment))})
        lines = self.path.read_text().split("\n") if self.path.exists() else []
        whole = lines[:-1]  # a line without its end was being written when the check was stopped
        if lines and lines != [""] and whole[:1] != [head]:
            raise ConfigError("results", str(self.path), "must be new, or of this environment with the same settings")
        for line in whole[1:]:
            try:
                row = Play(**json.loads(line))
            except (TypeError, ValueError):
                raise ConfigError("results", str(self.path), f"has a line that is no play: {line[:60]!r}") from None
            if row.reward is not None:
                self.played[row.task, row.key, row.kind, row.script, row.repeat] = row
        self.path.parent.mkdir(parents=True, exist_ok=True)
        kept = [head, *(json.dumps(asdict(row)) for row in self.played.values())]
        partial = self.path.with_name(self.path.name + ".partial")
        partial.write_text("".join(f"{line}\n" for line in kept))
        partial.replace(self.path)

    def write(self, row: Play) -> None:
        """Appends a play."""
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps(asdict(row)) + "\n")
