"""The stages of a pipeline: what the recipe and the command line say of each, composed as ``arcforge-train`` would."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields

from arcforge_core.config.compose import compose
from arcforge_core.config.schema import TrainConfig
from arcforge_core.configs import PipelineConfig
from arcforge_core.errors import ArcforgeError, ConfigError, nearest

OWN = ("pipeline", "hydra", *(entry.name for entry in fields(PipelineConfig)))
"""First words of what is the pipeline's own on its command line."""
NOT_FOR_STAGES = {
    "resume": "a stage is resumed with its pipeline: arcforge-pipeline ... resume=latest",
    "output_dir": "a stage's folder is in that of its pipeline",
    "sweep": "a stage is one run",
    "hydra": "a stage is one run",
}


@dataclass(frozen=True)
class CommandLine:
    """Arguments of ``arcforge-pipeline`` by what they are for.

    Attributes:
        own: of the pipeline itself, and flags.
        common: overrides of all stages.
        stages: stage -> overrides of this one.
    """

    own: list[str] = field(default_factory=list)
    common: list[str] = field(default_factory=list)
    stages: dict[str, list[str]] = field(default_factory=dict)


def read_command_line(arguments: Sequence[str]) -> CommandLine:
    """Sorts arguments: ``stages.NAME.OVERRIDE`` is for one stage, a pipeline's field its own, the rest for all."""
    line = CommandLine()
    if {"-sc", "--shell-completion"} & set(arguments):
        return CommandLine(own=[*arguments])
    for argument in arguments:
        sigil, key = _key(argument)
        of_stage = re.match(r"stages\.([^.]+)\.(.+)", argument.removeprefix(sigil), re.DOTALL)
        if of_stage and of_stage[1] in key:
            line.stages.setdefault(of_stage[1], []).append(sigil + of_stage[2])
        elif argument.startswith("-") or not ("=" in argument or sigil) or re.split(r"[.@]", key)[0] in OWN:
            line.own.append(argument)
        else:
            line.common.append(argument)
    return line


def _key(override: str) -> tuple[str, str]:
    """Returns what stands before the field of an override (``+``, ``~``), and the field."""
    sigil, key = re.match(r"([+~]*)([^=]*)", override, re.DOTALL).groups()  # type: ignore[union-attr] # always matches
    return sigil, key


@dataclass(frozen=True)
class Stage:
    """One stage.

    Attributes:
        number: from 1.
        name: unique in the pipeline.
        overrides: as ``arcforge-train`` takes them.
        config: what they amount to; ``init`` of the stages after the first is not known before they begin.
    """

    number: int
    name: str
    overrides: tuple[str, ...]
    config: TrainConfig

    @property
    def folder(self) -> str:
        """Name of the run's folder."""
        return f"{self.number}-{self.name}"

    @property
    def tokens(self) -> int | None:
        """Tokens of the budget of steps, where packing fills every row; None with a budget of time alone."""
        trainer = self.config.trainer
        if trainer.max_steps is None:
            return None
        return trainer.max_steps * trainer.accumulate * trainer.micro_batch_tokens

    def command(self, init: str | None = None) -> str:
        """Returns the command line that trains this stage by itself."""
        words = [*self.overrides, *([f"init={init}"] if init else [])]
        return shlex.join(["arcforge-train", *words])


def plan_stages(config: PipelineConfig, line: CommandLine) -> list[Stage]:
    """Composes every stage. Later overrides win: the recipe's, its stage's, the command line's, its stage's.

    Raises:
        ConfigError: a stage that there is not, or an override that stages cannot have.
        ArcforgeError: a stage cannot be composed; it is named.
    """
    for name, given in line.stages.items():
        if name not in config.stages:
            accepted = f"no stage of that name; there are {', '.join(config.stages)}{nearest(name, config.stages)}"
            raise ConfigError(f"stages.{name}", given, accepted)
    stages = []
    for number, (name, recipe) in enumerate(config.stages.items(), 1):
        parts = [config.overrides, recipe, line.common, line.stages.get(name, [])]
        if number > 1:  # what all stages are told about init is for the first one
            parts[0::2] = [[o for o in part if _key(o)[1] != "init"] for part in parts[0::2]]
        overrides = (f"name={config.name}-{name}", *(override for part in parts for override in part))
        _refuse(name, overrides, later=number > 1)
        with named(name):
            composed = compose(overrides)
        if composed.procedure.name != "one_run":
            accepted = "a stage is one run: leave the procedure, and experiments that set one, to arcforge-train"
            raise ConfigError(f"stages.{name}.procedure", composed.procedure.name, accepted)
        stages.append(Stage(number, name, overrides, composed))
    return stages


def _refuse(stage: str, overrides: Sequence[str], later: bool) -> None:
    for override in overrides:
        word = re.split(r"[.@]", _key(override)[1])[0]
        reason = NOT_FOR_STAGES.get(word)
        if later and word == "init":
            reason = "only the first stage may have it; the others start from the stage before"
        if reason:
            raise ConfigError(f"stages.{stage}.{word}", override.partition("=")[2], reason)


@contextmanager
def named(stage: str) -> Iterator[None]:
    """Puts the stage's name before a user's error."""
    try:
        yield
    except ArcforgeError as error:
        error.args = (f"stage {stage}: {error}",)
        raise
