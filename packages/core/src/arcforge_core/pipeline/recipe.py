"""The stages that a pipeline's recipe names, with groups that repeat written out, and references between them."""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from arcforge_core.configs import PipelineConfig
from arcforge_core.errors import ConfigError, nearest

REFERENCE = re.compile(r"\$\{(stage|rounds):(\w+)\}([^,\]\s'\"]*)")
PLACEHOLDER = re.compile(r"RUN_OF_(\w+)")
SHAPE = "a stage is a list of overrides, or has job and overrides; a group has repeat and stages"


@dataclass(frozen=True)
class Template:
    """A stage of the recipe.

    Attributes:
        name: in the recipe; `number` is added in a group: ``learn_2``.
        job: which job it runs.
        overrides: the recipe's.
        round: of its group, from 1; 0 outside of groups.
    """

    name: str
    job: str
    overrides: tuple[str, ...]
    round: int = 0

    @property
    def full_name(self) -> str:
        """Unique in the pipeline."""
        return f"{self.name}_{self.round}" if self.round else self.name


def templates(config: PipelineConfig, given: Mapping[str, Sequence[str]]) -> list[Template]:
    """Returns the stages in the order in which they run.

    Args:
        config: the recipe.
        given: overrides of the command line by stage; for a group ``repeat=N``.

    Raises:
        ConfigError: an entry is neither a stage nor a group, or two stages have one name.
    """
    found: list[Template] = []
    for name, entry in config.stages.items():
        if not isinstance(entry, dict) or "stages" not in entry:
            found.append(_template(config, name, entry))
            continue
        repeat = _repeat(name, entry, given.get(name, []))
        inner = [_template(config, *item) for item in entry["stages"].items()]
        found += [dataclasses.replace(one, round=number) for number in range(1, repeat + 1) for one in inner]
    names = [template.full_name for template in found]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError("stages", name, "names must differ, with the numbers of rounds after them too")
    return found


def _template(config: PipelineConfig, name: str, entry: Any) -> Template:
    parts = {"overrides": entry} if isinstance(entry, list) else entry
    if not re.fullmatch(r"[A-Za-z]\w*", name):
        raise ConfigError("stages", name, "names are letters, digits and _, e.g. extend_2k")
    if not isinstance(parts, dict) or set(parts) - {"job", "overrides"}:
        raise ConfigError(f"stages.{name}", entry, SHAPE)
    overrides = parts.get("overrides", [])
    if not isinstance(overrides, list) or not all(isinstance(one, str) for one in overrides):
        raise ConfigError(f"stages.{name}", overrides, "overrides are a list of FIELD=VALUE and GROUP=OPTION")
    return Template(name, str(parts.get("job", config.job)), tuple(overrides))


def _repeat(name: str, entry: dict[str, Any], given: Sequence[str]) -> int:
    """Returns how often a group runs."""
    if set(entry) - {"repeat", "stages"} or not isinstance(entry["stages"], dict) or not entry["stages"]:
        raise ConfigError(f"stages.{name}", entry, SHAPE)
    repeat = entry.get("repeat", 1)
    for override in given:
        key, _, value = override.partition("=")
        if key != "repeat" or not value.isdecimal():
            raise ConfigError(f"stages.{name}", override, "a group of stages has only repeat=N")
        repeat = int(value)
    if not isinstance(repeat, int) or repeat < 1:
        raise ConfigError(f"stages.{name}.repeat", repeat, "must be a whole number of at least 1")
    return repeat


def refer(override: str, stage: str, before: Mapping[str, Sequence[str]]) -> str:
    """Returns an override with a placeholder for each reference.

    ``${stage:NAME}`` is the folder of the last stage of that name; ``${rounds:NAME}`` with the rest of its word is
    repeated for every round so far, separated by commas.

    Args:
        override: of a stage.
        stage: its name, for errors.
        before: name in the recipe -> full names of the stages that ran before this one.

    Raises:
        ConfigError: it refers to a stage that does not run before this one.
    """

    def placeholders(match: re.Match[str]) -> str:
        kind, name, rest = match.groups()
        if name not in before:
            accepted = f"only stages before it: {', '.join(before) or 'there are none'}{nearest(name, before)}"
            raise ConfigError(f"stages.{stage}", match[0], accepted)
        names = before[name] if kind == "rounds" else before[name][-1:]
        return ",".join(f"RUN_OF_{one}{rest}" for one in names)

    return REFERENCE.sub(placeholders, override)


def quoted(value: str) -> str:
    """Returns a text as the value of an override, quoted if it has special characters."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return value if re.fullmatch(r"[\w./-]+", value) else f"'{escaped}'"


def filled(value: Any, places: Mapping[str, str]) -> Any:
    """Returns a copy of a configuration with folders for the placeholders of stages that have one in `places`."""
    if isinstance(value, str):
        return PLACEHOLDER.sub(lambda match: places.get(match[1], match[0]), value)
    if isinstance(value, list):
        return [filled(item, places) for item in value]
    if isinstance(value, dict):
        return {key: filled(item, places) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        new = copy.copy(value)
        for field in dataclasses.fields(value):
            setattr(new, field.name, filled(getattr(value, field.name), places))
        return new
    return value
