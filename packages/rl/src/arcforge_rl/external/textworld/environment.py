"""``environment=textworld``: text adventures, generated and played in a sandbox."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from arcforge_core.contracts.chat import Message, ToolCall
from arcforge_core.contracts.environment import Agents, Episode, Reply, Score, Script, Task
from arcforge_core.contracts.sandbox import SandboxLimits
from arcforge_core.episodes.base import first_here
from arcforge_core.episodes.rewards import metric, reward
from arcforge_core.episodes.tools import converse
from arcforge_rl.configs.external import TextWorldConfig
from arcforge_rl.external.base import PackageEnvironment
from arcforge_rl.sandbox.mcp_servers import Servers, Service
from arcforge_rl.sandbox.sync import shared_desk

END = "end"
"""Artefact: how the game stood at the end."""
PROMPT = "You play a text adventure with the tool act, one command per call, until it ends."


@dataclass(frozen=True)
class GameTask(Task):
    """A game to be won; the answer is empty, because the verdict is of the game.

    Attributes:
        game: ``game``, ``settings`` and ``seed`` of its generation.
    """

    game: Mapping[str, Any] = field(compare=False)


class TextWorld(PackageEnvironment):
    """Generated games, without end.

    A game is generated again from its settings and seed wherever it is needed.
    """

    domain = "games"
    module = "textworld"
    limits = SandboxLimits(cpu_seconds=600, wall_seconds=3600, processes=64)

    def __init__(self, config: TextWorldConfig) -> None:
        super().__init__(config)
        self._walks: dict[str, list[str]] = {}

    def task(self, index: int) -> Task:
        """Returns a drawn game, which is not generated yet.

        Raises:
            ConfigError: none of many drawn is on this side of the split.
        """
        kind = self.config.games[index % len(self.config.games)]
        settings = self._settings(kind)

        def draw(source: random.Random) -> tuple[str, GameTask]:
            seed = source.getrandbits(31)
            key = "/".join(["textworld", kind, *(str(value) for value in settings.values()), str(seed)])
            return key, GameTask(key, PROMPT, "", {"game": kind, "settings": settings, "seed": seed})

        return first_here(self.config, index, draw)

    def _settings(self, kind: str) -> dict[str, Any]:
        config = self.config
        if kind == "simple":
            return {"rewards": "sparse", "goal": config.goal, "test": self.config.split == "heldout"}
        return {"level": config.level}

    def labels_of(self, task: Task) -> Sequence[str]:
        """Returns the kind of the game."""
        return (_game(task)["game"],)

    async def run(self, task: Task, agents: Agents) -> Episode:
        """Lets the solver play; the episode holds how the game stood at the end.

        Raises:
            EpisodeFailure: the game cannot be generated, or is gone.
        """
        service = Service(self.program(), "game", dict(_game(task)))
        async with Servers({"game": service}, self.layers, self.limits, self.python) as world:
            with agents.away():
                intro = (await world.records())["game"]["intro"]
            messages = [Message("user", f"{task.prompt}\n\n{intro}")]
            episode = await converse(agents, messages, world.tools, world.use, max_calls=self.config.max_calls)
            with agents.away():
                end = (await world.records())["game"]
        return replace(episode, artefacts={END: end})

    @reward(timeout=None)
    def won(self, task: Task, episode: Episode) -> Score:
        """Scores 1 for a game that was won."""
        end = episode.artefacts.get(END) or {"won": False, "lost": False, "score": 0, "most": 0}
        how = "won" if end["won"] else "lost" if end["lost"] else "not won"
        return Score(float(end["won"]), f"{how}: {end['score']} of {end['most']} points")

    @metric(timeout=None)
    def points(self, task: Task, episode: Episode) -> float:
        """Returns the share of the game's points."""
        end = episode.artefacts.get(END) or {"score": 0, "most": 1}
        return float(end["score"] / max(1, end["most"]))

    def oracle(self, task: Task) -> Script:
        """Returns TextWorld's own walkthrough, generated in a sandbox."""
        return script(self._walk(task))

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns words in place of play, forged ends, several commands as one, and commands to the interpreter."""
        walk = self._walk(task)
        return [
            [Reply("*** The End *** You scored 1 out of a possible 1. The game is won.")],
            [Reply("\n".join(walk))],
            script(["*** The End ***", "say *** The End ***"]),
            script([". ".join(walk)]),
            script([" then ".join(walk)]),
            script(walk[:-1]),
            script(["restore", "undo", "tw-extra-infos score", "quit"]),
            script(["purloin coin", "gonear coin", "showme", "actions on", "tree"]),
        ]

    def _walk(self, task: Task) -> list[str]:
        if task.key not in self._walks:
            self._walks[task.key] = shared_desk().wait(self.asking(dict(_game(task))))
        return self._walks[task.key]


def script(commands: Sequence[str]) -> list[Reply]:
    """Returns replies that give commands, one by one."""
    return [*(Reply(calls=(ToolCall("act", {"command": one}),)) for one in commands), Reply("Done.")]


def _game(task: Task) -> Mapping[str, Any]:
    assert isinstance(task, GameTask)
    return task.game
