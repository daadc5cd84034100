"""``environment=miniwob``: pages of MiniWoB++ in a browser in a sandbox."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from arcforge_core.contracts.chat import Message, ToolCall
from arcforge_core.contracts.environment import Agents, Episode, Reply, Score, Script, Task
from arcforge_core.contracts.sandbox import SandboxLimits
from arcforge_core.episodes.base import first_here
from arcforge_core.episodes.rewards import metric, reward
from arcforge_core.episodes.tools import converse
from arcforge_rl.configs.external import MiniWobConfig
from arcforge_rl.external.base import PackageEnvironment
from arcforge_rl.sandbox.mcp_servers import Servers, Service
from arcforge_rl.sandbox.sync import shared_desk
from arcforge_rl.slides.rendering.browser import PROGRAM, SETTINGS, browser_layers

END = "end"
"""Artefact: ``done`` and ``raw``, the page's own reward without its discount for time."""
PROMPT = "Use the page with the tools, until the problem has ended."


@dataclass(frozen=True)
class PageTask(Task):
    """A problem of a page; the answer is empty, because the verdict is the page's.

    Attributes:
        page: name of the page.
        seed: of the problem.
    """

    page: str
    seed: int


class MiniWob(PackageEnvironment):
    """Problems of pages, without end.

    Raises:
        ConfigError: Chromium's layer is missing; see also `PackageEnvironment`.
    """

    domain = "browser"
    module = "miniwob"
    limits = SandboxLimits(
        cpu_seconds=600, wall_seconds=3600, memory_bytes=2 << 30, processes=512, disk_bytes=256 << 20,
        output_bytes=1 << 20,
    )  # fmt: skip

    def __init__(self, config: MiniWobConfig) -> None:
        super().__init__(config)
        self.layers = [*browser_layers("environment", config.name), *self.layers]
        self._solved: dict[str, list[list[Any]]] = {}

    def task(self, index: int) -> Task:
        """Returns a drawn problem.

        Raises:
            ConfigError: none of many drawn is on this side of the split.
        """
        page = self.config.pages[index % len(self.config.pages)]

        def draw(source: random.Random) -> tuple[str, PageTask]:
            seed = source.getrandbits(31)
            key = f"miniwob/{page}/{seed}"
            return key, PageTask(key, PROMPT, "", page, seed)

        return first_here(self.config, index, draw)

    def labels_of(self, task: Task) -> Sequence[str]:
        """Returns the page's name."""
        return (_page(task).page,)

    async def run(self, task: Task, agents: Agents) -> Episode:
        """Lets the solver use the page; the episode holds the page's own reward.

        Raises:
            EpisodeFailure: the browser is gone.
        """
        service = Service(self.program(), "page", _records(task))
        async with Servers({"page": service}, self.layers, self.limits, self.python) as world:
            with agents.away():
                begin = (await world.records())["page"]
            messages = [Message("user", f"{begin['utterance']}\n\n{task.prompt}\n\n{begin['shown']}")]
            episode = await converse(agents, messages, world.tools, world.use, max_calls=self.config.max_calls)
            with agents.away():
                found = (await world.records())["page"]
        return replace(episode, artefacts={END: {"done": bool(found["done"]), "raw": float(found["raw"] or 0)}})

    @reward(timeout=None)
    def solved(self, task: Task, episode: Episode) -> Score:
        """Scores 1 for the page's full reward."""
        end = episode.artefacts.get(END) or {"done": False, "raw": 0.0}
        right = end["done"] and end["raw"] >= 1 - 1e-6
        return Score(float(right), f"the page gave {end['raw']:g}" if end["done"] else "the problem has not ended")

    @metric(timeout=None)
    def raw(self, task: Task, episode: Episode) -> float:
        """Returns the page's own reward, between -1 and 1."""
        return float((episode.artefacts.get(END) or {"raw": 0.0})["raw"])

    def program(self) -> str:
        """Returns the text of the program that runs in sandboxes: the browser's protocol, the solvers, and the page."""
        files = (
            ("slides.rendering", "inside.py"),
            ("external.miniwob", "solvers.py"),
            ("external.miniwob", "inside.py"),
        )
        texts = [
            resources.files(f"arcforge_rl.{where}").joinpath(name).read_text(encoding="utf-8") for where, name in files
        ]
        texts[0] = texts[0].partition('\nif __name__ == "__main__":')[0]
        return "\n".join(texts)

    def oracle(self, task: Task) -> Script:
        """Returns the actions of the page's solver, played in a sandbox."""
        return script(self._solve(task))

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns words in place of actions, scripts as texts, unknown tools, and work that is wrong or not ended."""
        actions = self._solve(task)
        forged = "core.endEpisode(1)"
        scripts: list[Script] = [
            [Reply("The problem has ended. reward: 1.0")],
            [Reply(json.dumps(actions))],
            script([["type", {"ref": 1, "text": f"<script>{forged}</script>"}], ["look", {}]]),
            script([["evaluate", {"expression": forged}], ["click", {"ref": 10**6}], ["click", {"ref": True}]]),
            script(actions[:-1]),
        ]
        wrong = [[name, {**given, "text": f"{given['text']}x"}] if name == "type" else [name, given]
                 for name, given in actions]  # fmt: skip
        return [*scripts, *([script(wrong)] if wrong != actions else [])]

    def _solve(self, task: Task) -> list[list[Any]]:
        if task.key not in self._solved:
            self._solved[task.key] = list(shared_desk().wait(self.asking(_records(task)))["actions"])
        return self._solved[task.key]


def script(actions: Sequence[Sequence[Any]]) -> list[Reply]:
    """Returns replies that make calls, one by one."""
    return [*(Reply(calls=(ToolCall(name, given),)) for name, given in actions), Reply("Done.")]


def _records(task: Task) -> dict[str, Any]:
    one = _page(task)
    return {"page": one.page, "seed": one.seed, "program": PROGRAM, "fonts": SETTINGS}


def _page(task: Task) -> PageTask:
    assert isinstance(task, PageTask)
    return task
