"""Chooses the tasks of a mixture by how much the teacher of each part still has to teach."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from arcforge_core.contracts.environment import Environment, Task
from arcforge_core.errors import ConfigError
from arcforge_rl.configs.collection import SynchronousConfig
from arcforge_rl.configs.learning import RlConfig
from arcforge_rl.rollouts.curriculum import Curriculum

LEAST = 0.05
"""Share of prompts that every part keeps, so that its gap is measured again."""
MEMORY = 0.7
"""Weight of the earlier gap in the running mean."""


class GapCurriculum(Curriculum):
    """Gives each part of a mixture prompts in proportion to its gap; in turn until every gap is known.

    Args:
        config: of the run; without a pool.
        stage_of: returns the part of a task number.
        parts: names of all parts.
    """

    def __init__(self, config: RlConfig, stage_of: Callable[[int], str], parts: tuple[str, ...]) -> None:
        super().__init__(config.curriculum, config.seed)
        self.stage_of, self.parts = stage_of, parts
        self._gaps: dict[str, float] = {}
        self._after = dict.fromkeys(parts, 0)
        self._credit = dict.fromkeys(parts, 0.0)

    @property
    def shares(self) -> Mapping[str, float]:
        """The share of each part; a part whose gap is 0 or less keeps `LEAST`."""
        gaps = {part: max(0.0, self._gaps.get(part, 0.0)) for part in self.parts}
        whole = sum(gaps.values())
        if len(self._gaps) < len(self.parts) or not whole:
            return dict.fromkeys(self.parts, 1.0 / len(self.parts))
        free = 1.0 - LEAST * len(self.parts)
        return {part: LEAST + free * gap / whole for part, gap in gaps.items()}

    def take(self, count: int) -> list[int]:
        """Returns the next tasks of the parts whose turn it is."""
        found = []
        for _ in range(count):
            for part, share in self.shares.items():
                self._credit[part] += share
            part = max(self.parts, key=lambda name: self._credit[name])
            self._credit[part] -= 1.0
            number = next(n for n in itertools.count(self._after[part]) if self.stage_of(n) == part)
            self._after[part] = number + 1
            found.append(number)
        return found

    def learn_gaps(self, gaps: Mapping[str, float]) -> None:
        """Takes the gaps of a step into the running means."""
        for part in self.parts:
            if part in gaps:
                before = self._gaps.get(part, gaps[part])
                self._gaps[part] = MEMORY * before + (1.0 - MEMORY) * gaps[part]

    @property
    def state(self) -> dict[str, Any]:
        """The state stored in checkpoints."""
        return {"gaps": dict(self._gaps), "after": dict(self._after), "credit": dict(self._credit)}

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        self._gaps, self._after, self._credit = dict(state["gaps"]), dict(state["after"]), dict(state["credit"])

    @property
    def figures(self) -> dict[str, float]:
        """Returns the share of each part."""
        return {f"share_{part}": share for part, share in self.shares.items()}


def curriculum_of(config: RlConfig, environment: Environment) -> Curriculum:
    """Returns the curriculum of a run.

    Raises:
        ConfigError: `algorithm.ratios` is ``gap``, and there are no parts, a pool, or rollouts that are not in order.
    """
    if getattr(config.algorithm, "ratios", "given") == "given":
        return Curriculum(config.curriculum, config.seed)
    parts: Any = getattr(environment, "parts", None)
    if not parts or not 2 <= len(parts) < 1 / LEAST:
        raise ConfigError("algorithm.ratios", "gap", "needs environment=mixture with 2 to 19 parts")
    if config.curriculum.pool is not None or not isinstance(config.collection, SynchronousConfig):
        raise ConfigError("algorithm.ratios", "gap", "needs curriculum.pool=null and collection=sync")
    stage_of: Callable[[Task], str] = environment.stage_of  # type: ignore[attr-defined]  # parts are stages
    return GapCurriculum(config, lambda number: stage_of(environment.task(number)), tuple(parts))
