"""On-policy distillation from earlier stages, at the end of a pipeline or after each of its stages (GLM-5, 3.5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from arcforge_core.errors import ConfigError, nearest
from arcforge_core.pipeline.recipe import Template, quoted

INIT = "init"
"""Names the checkpoint that the pipeline starts from, among the teachers."""
NAME = "distill"
FIELDS = ("job", "overrides", "prompts", "after_each")


def add_distillation(distill: Mapping[str, Any], stages: Sequence[Template], init: str | None) -> list[Template]:
    """Returns the stages with those that distill from earlier ones.

    The stage ``distill`` follows the last teacher. With ``after_each``, ``distill_STAGE`` follows each teacher from the
    second on, with the teachers so far. Each has the overrides of `distill` and, of each teacher, its checkpoint as
    ``teachers.STAGE`` and the overrides that add its prompts.

    Args:
        distill: `PipelineConfig.distill`; empty adds no stage.
        stages: of the recipe.
        init: the checkpoint that the pipeline starts from.

    Raises:
        ConfigError: a field is unknown or has a value that it cannot have, or a teacher is no stage.
    """
    if not distill:
        return list(stages)
    prompts, after_each = _checked(distill, stages, init)
    found, teachers = list(stages), [name for name in prompts if name == INIT]
    order = [stage.full_name for stage in stages if stage.full_name in prompts]
    for name in order:
        teachers.append(name)
        last = name == order[-1]
        if not last and not (after_each and len(teachers) > 1):
            continue
        overrides = list(distill.get("overrides", []))
        for teacher in teachers:
            checkpoint = init if teacher == INIT else f"${{stage:{teacher}}}"
            overrides += [f"+teachers.{teacher}={quoted(str(checkpoint))}", *prompts[teacher]]
        stage = Template(f"{NAME}_{name}" if after_each else NAME, str(distill.get("job", "rl")), tuple(overrides))
        place = next(number for number, one in enumerate(found) if one.full_name == name)
        found.insert(place + 1, stage)
    return found


def _checked(
    distill: Mapping[str, Any], stages: Sequence[Template], init: str | None
) -> tuple[dict[str, list[str]], bool]:
    """Returns the overrides by teacher, and whether to distill after each stage."""
    for name in distill:
        if name not in FIELDS:
            raise ConfigError(f"distill.{name}", distill[name], f"it has {', '.join(FIELDS)}{nearest(name, FIELDS)}")
    after_each, prompts = distill.get("after_each", False), distill.get("prompts")
    if not isinstance(after_each, bool):
        raise ConfigError("distill.after_each", after_each, "must be true or false")
    if not isinstance(prompts, Mapping) or not prompts:
        accepted = "must name the stages that teach, each with the overrides that add its prompts"
        raise ConfigError("distill.prompts", prompts, accepted)
    _check_overrides("distill.overrides", distill.get("overrides", []))
    known = [INIT, *(stage.full_name for stage in stages)]
    for name, overrides in prompts.items():
        if name not in known:
            accepted = f"no stage of that name; there are {', '.join(known)}{nearest(name, known)}"
            raise ConfigError(f"distill.prompts.{name}", overrides, accepted)
        _check_overrides(f"distill.prompts.{name}", overrides)
    if INIT in prompts and init is None:
        raise ConfigError(f"distill.prompts.{INIT}", prompts[INIT], "needs a checkpoint to start from, init=CHECKPOINT")
    if set(prompts) == {INIT}:
        raise ConfigError(
            "distill.prompts", dict(prompts), "must name a stage besides init: one that changes the model"
        )
    taken = {f"{NAME}_{name}" for name in prompts} if after_each else {NAME}
    for stage in stages:
        if stage.full_name in taken:
            raise ConfigError(f"stages.{stage.full_name}", list(stage.overrides), "is a name of distill's own stages")
    return {name: list(overrides) for name, overrides in prompts.items()}, after_each


def _check_overrides(field: str, overrides: Any) -> None:
    if not isinstance(overrides, list) or not all(isinstance(one, str) for one in overrides):
        raise ConfigError(field, overrides, "overrides are a list of FIELD=VALUE and GROUP=OPTION")
