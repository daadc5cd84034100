"""The stages of a pipeline, composed from the recipe and the command line as each job's own command would."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from arcforge_core.config.compose import compose_config
from arcforge_core.config.schema import RunConfig
from arcforge_core.configs import PipelineConfig
from arcforge_core.errors import ArcforgeError, ConfigError, nearest
from arcforge_core.pipeline.distill import add_distillation
from arcforge_core.pipeline.recipe import PLACEHOLDER, Template, quoted, refer, templates
from arcforge_core.plugins.loader import registry
from arcforge_core.plugins.registry import JobEntry

OWN = ("pipeline", "hydra", *(entry.name for entry in fields(PipelineConfig)))
"""First words of the pipeline's own options on its command line."""
STARTS = frozenset({"init", "checkpoint"})
"""Options that name the checkpoint a job starts from."""
NOT_FOR_STAGES = {
    "resume": "a stage is resumed with its pipeline: arcforge-pipeline ... resume=latest",
    **dict.fromkeys(("output_dir", "folder"), "a stage's folder is in that of its pipeline"),
    **dict.fromkeys(("sweep", "hydra"), "a stage is one run"),
    "job": "the recipe says which job a stage runs",
    "procedure": "a stage is a job: see docs/pipelines.md",
}


@dataclass(frozen=True)
class CommandLine:
    """Arguments of ``arcforge-pipeline``, sorted.

    Attributes:
        own: the pipeline's own, and flags.
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
    """Returns the prefix of an override (``+``, ``~``) and its field."""
    sigil, key = re.match(r"([+~]*)([^=]*)", override, re.DOTALL).groups()  # type: ignore[union-attr] # always matches
    return sigil, key


@dataclass(frozen=True)
class Stage:
    """One stage.

    Attributes:
        number: from 1.
        name: unique in the pipeline.
        job: the job that it runs.
        overrides: as the job's command takes them.
        config: their composition, with ``RUN_OF_NAME`` for the folder of an earlier stage.
    """

    number: int
    name: str
    job: JobEntry
    overrides: tuple[str, ...]
    config: Any

    @property
    def folder(self) -> str:
        """Name of its folder in the pipeline's."""
        return f"{self.number}-{self.name}"

    @property
    def is_run(self) -> bool:
        """Whether it trains."""
        return isinstance(self.config, RunConfig)

    @property
    def trains_policy(self) -> bool:
        """Whether later stages start from its weights: not from those of a reward model."""
        return isinstance(self.config, RunConfig) and self.config.trains_policy

    @property
    def source(self) -> str | None:
        """Name of the stage whose weights it starts from; None if it starts from a checkpoint, or from no weights."""
        match = PLACEHOLDER.fullmatch(str(getattr(self.config, "init", None)))
        return match[1] if match else None

    @property
    def tokens(self) -> int | None:
        """Tokens of the budget, if packing fills every row; None with a budget of time only."""
        trainer = self.config.trainer
        steps = trainer.max_steps and trainer.max_steps * trainer.accumulate * trainer.micro_batch_tokens
        return min((tokens for tokens in (steps, trainer.max_tokens) if tokens), default=None)

    def command(self) -> str:
        """Returns the command line that runs this stage by itself, with ``RUN_OF_NAME`` for earlier stages."""
        return shlex.join([*self.job.script.split(), *self.overrides])


def plan_stages(config: PipelineConfig, line: CommandLine) -> list[Stage]:
    """Composes every stage. Later overrides win: the recipe's, its stage's, the command line's, its stage's.

    Raises:
        ConfigError: a stage that does not exist, a reference to one that has not run, or an override that stages
            cannot have.
        ArcforgeError: a stage cannot be composed; it is named.
    """
    found = add_distillation(config.distill, templates(config, line.stages), config.init)
    known = list(dict.fromkeys([*config.stages, *(template.name for template in found)]))
    for name, given in line.stages.items():
        if name not in known:
            accepted = f"no stage of that name; there are {', '.join(known)}{nearest(name, known)}"
            raise ConfigError(f"stages.{name}", given, accepted)
    stages: list[Stage] = []
    before: dict[str, list[str]] = {}
    for number, template in enumerate(found, 1):
        runs = [stage.name for stage in stages if stage.trains_policy]
        weights = f"RUN_OF_{runs[-1]}" if runs else config.init
        with named(template.full_name):
            stages.append(_stage(number, template, config, line, weights, before))
        before.setdefault(template.name, []).append(template.full_name)
        before.setdefault(template.full_name, [template.full_name])
    return stages


def links_in(stages: Sequence[Stage]) -> dict[str, str]:
    """Returns the checkpoints that are named through a symbolic link, and the folder that each leads to now."""
    named = {getattr(stage.config, name, None) for stage in stages for name in STARTS}
    paths = [Path(name) for name in sorted(name for name in named if isinstance(name, str))]
    return {str(path): os.path.relpath(path.resolve()) for path in paths if path.resolve() != path.absolute()}


def follow_links(stages: Sequence[Stage], links: Mapping[str, str]) -> None:
    """Replaces links by their folders: a pipeline moves ``outputs/pipelines/latest``, which its ``init`` may name."""
    for stage in stages:
        for name in STARTS:
            if (folder := links.get(str(getattr(stage.config, name, None)))) is not None:
                setattr(stage.config, name, folder)


def _stage(
    number: int,
    template: Template,
    config: PipelineConfig,
    line: CommandLine,
    weights: str | None,
    before: dict[str, list[str]],
) -> Stage:
    """Composes one stage, which starts from `weights` unless it names its own."""
    job, name = registry().job(template.job), template.full_name
    if job.name == "pipeline":
        raise ConfigError(f"stages.{name}.job", "pipeline", "a stage cannot be a pipeline; use a group with repeat")
    schema = job.load_schema()
    names = {entry.name: entry.default for entry in fields(schema)}
    for_all = [config.overrides, line.common] if template.job == config.job else [[], []]
    if weights is not None and weights.startswith("RUN_OF_"):  # an init of all stages is that of the first one
        for_all = [[o for o in part if _key(o)[1] != "init"] for part in for_all]
    parts = [for_all[0], template.overrides, for_all[1], line.stages.get(template.name, [])]
    overrides = [refer(override, name, before) for part in parts for override in part]
    _refuse(name, overrides)
    keys = {_key(override)[1] for override in overrides}
    if issubclass(schema, RunConfig):
        overrides.insert(0, f"name={config.name}-{name}")
    elif "output_dir" in names:
        overrides.append(f"output_dir=RUN_OF_{name}")
    for field_name in STARTS & (names.keys() - keys):
        if weights is not None:
            overrides.append(f"{field_name}={quoted(weights)}")
        elif names[field_name] == MISSING:
            raise ConfigError("init", None, "it needs a checkpoint to start from, as init=outputs/latest")
    composed: Any = compose_config(job.name, schema, overrides)
    if template.round > 1 and "seed" in names:  # so that every round draws other numbers
        overrides.append(f"seed={composed.seed + template.round - 1}")
        composed.seed += template.round - 1
    return Stage(number, name, job, tuple(overrides), composed)


def _refuse(stage: str, overrides: Sequence[str]) -> None:
    for override in overrides:
        word = re.split(r"[.@]", _key(override)[1])[0]
        if word in NOT_FOR_STAGES:
            raise ConfigError(f"stages.{stage}.{word}", override.partition("=")[2], NOT_FOR_STAGES[word])


@contextmanager
def named(stage: str) -> Iterator[None]:
    """Puts the stage's name before a user's error."""
    try:
        yield
    except ArcforgeError as error:
        error.args = (f"stage {stage}: {error}",)
        raise
