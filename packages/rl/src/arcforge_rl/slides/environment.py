"""``environment=slides``: a brief is answered by a deck of HTML pages, judged by named rules."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING

from arcforge_core.contracts.environment import Agents, Episode, NoVerdict, Reply, Score, Script, Task
from arcforge_core.episodes.base import GeneratedEnvironment
from arcforge_core.episodes.rewards import metric, reward
from arcforge_core.errors import DataError
from arcforge_rl.configs.slides import SlidesConfig
from arcforge_rl.slides.brief import Brief, draw_brief, prompt_of

if TYPE_CHECKING:
    from arcforge_rl.slides.judge import Verdict

GRADES = "grades"
"""Artefact of an episode with the judge's grades."""
FENCED = "```html\n{}\n```"
SECONDS = 20.0
"""Bound of a verdict."""


@dataclass(frozen=True)
class SlidesTask(Task):
    """A brief; the answer is a deck that keeps every rule."""

    brief: Brief


class Slides(GeneratedEnvironment):
    """Decks earn the mean of their pages; a page earns the share of grades that it keeps, or 0 if it is defective.

    A deck that breaks a rule about tricks earns 0. With ``judge=agent``, the agent ``judge`` lowers what pages earn.

    Raises:
        DataError: the parsers are not installed.
        ConfigError: a level needs Chromium, which is not there.
    """

    domain = "slides"

    def __init__(self, config: SlidesConfig) -> None:
        super().__init__(config)
        try:
            from arcforge_rl.slides import judge, oracle
        except ImportError as error:
            raise DataError(f"environment=slides needs pip install 'arcforge-rl[slides]' ({error})") from error
        self._rules, self._writer = judge, oracle
        self.agents = self.seeing = ("judge",) if config.judge == "agent" else ()
        if not self.agents:
            self.verifiers = {name: one for name, one in self.verifiers.items() if name != "judged"}  # type: ignore[misc]
        if config.level > 1:
            from arcforge_rl.slides.rendering.browser import browser_layers

            browser_layers()

    def draw(self, draw: random.Random) -> tuple[str, Task]:
        """Returns a brief; those with one title are on one side of the split."""
        brief = draw_brief(draw, self.config.fewest, self.config.most, self.config.points)
        prompt = prompt_of(brief, self.config.rules)
        title = brief.pages[0].title
        key = f"slides/{title}/{sha256(prompt.encode()).hexdigest()[:16]}"
        return f"slides/{title}", SlidesTask(key, prompt, FENCED.format(self._writer.deck_of(brief)), brief)

    async def run(self, task: Task, agents: Agents) -> Episode:
        """Asks the solver once, and shows a deck that earns something to the judge, if there is one.

        Raises:
            SandboxFault: the browser broke.
            EpisodeFailure: the judge gave no grades.
        """
        assert isinstance(task, SlidesTask)
        episode = await super().run(task, agents)
        document = self._document(episode) if self.agents else ""
        if not document or not (await self.elsewhere("markup", task, episode, SECONDS)).value:
            return episode
        from arcforge_rl.slides.rendering.verdict import pictured
        from arcforge_rl.slides.rendering.vision import graded

        with agents.away():
            verdict, pictures = await pictured(document, task.brief, self.config.level)
        grades = await graded(agents.judge, task.brief, verdict.pages, pictures)
        return replace(episode, artefacts={**episode.artefacts, GRADES: grades})

    @reward(timeout=None)
    async def deck(self, task: Task, episode: Episode) -> Score:
        """Judges the deck; each step bounds its time.

        Raises:
            SandboxFault: the browser broke.
            NoVerdict: the judge has not graded it.
        """
        assert isinstance(task, SlidesTask)
        if not self._document(episode):
            return Score(0.0, "the reply is no HTML document")
        marked = await self.elsewhere("markup", task, episode, SECONDS)
        if self.config.level == 1 or not marked.value:
            return marked
        verdict = await self._shown(task, self._document(episode))
        if not self.agents or not verdict.score:
            return Score(verdict.score, verdict.reason)
        from arcforge_rl.slides.rendering.vision import lowered, lowest

        grades = self._grades(episode)
        words = [part for part in (verdict.reason, lowest(grades)) if part]
        return Score(lowered(verdict.pages, grades), "; ".join(words))

    def markup(self, task: Task, episode: Episode) -> Score:
        """Judges markup and styles; called in a process that is killed after `SECONDS`."""
        assert isinstance(task, SlidesTask)
        verdict = self._rules.judge(self._document(episode), task.brief)
        return Score(verdict.score, verdict.reason)

    @metric(timeout=None)
    async def strict_16_9(self, task: Task, episode: Episode) -> Score:
        """Returns the share of the pages asked for that are 1280 by 720 px, with everything on them.

        Decks that earn something are measured, where `level` says so.

        Raises:
            SandboxFault: the browser broke.
        """
        assert isinstance(task, SlidesTask)
        marked = await self.elsewhere("strict_markup", task, episode, SECONDS)
        earns = self.config.level > 1 and (await self.elsewhere("markup", task, episode, SECONDS)).value
        if not earns:
            return marked
        verdict = await self._shown(task, self._document(episode))
        return Score(verdict.strict_share(len(task.brief.pages)), "of the pages asked for, measured")

    def strict_markup(self, task: Task, episode: Episode) -> Score:
        """Returns the share by markup and styles."""
        assert isinstance(task, SlidesTask)
        found = self._rules.judge(self._document(episode), task.brief)
        return Score(found.strict_share(len(task.brief.pages)), "of the pages asked for")

    @metric(timeout=SECONDS)
    def trivial(self, task: Task, episode: Episode) -> Score:
        """Returns 1 for a deck without structure: no page has two boxes and something besides text."""
        assert isinstance(task, SlidesTask)
        found = self._rules.judge(self._document(episode), task.brief)
        return Score(float(found.trivial), "without structure" if found.trivial else "with structure")

    @metric(timeout=None)
    def judged(self, task: Task, episode: Episode) -> Score:
        """Returns the mean of the judge's grades in [0, 1]; 0 for a deck that it was not shown."""
        from arcforge_rl.slides.rendering.vision import share

        grades = episode.artefacts.get(GRADES, {})
        shares = [share(own) for own in grades.values()]
        return Score(sum(shares) / len(shares) if shares else 0.0, f"{len(shares)} pages were graded")

    def _grades(self, episode: Episode) -> Mapping[str, Mapping[str, int]]:
        if GRADES not in episode.artefacts:
            raise NoVerdict("agents.judge was not asked")
        grades: Mapping[str, Mapping[str, int]] = episode.artefacts[GRADES]
        return grades

    async def _shown(self, task: SlidesTask, document: str) -> Verdict:
        """Returns the verdict of all levels on a document that the process for markup has read already."""
        from arcforge_rl.slides.rendering.verdict import shown

        return await shown(document, task.brief, self.config.level)

    def _document(self, episode: Episode) -> str:
        if episode.finish_reason != "stop":
            return ""
        document: str = self._rules.document_of(episode.reply.text)
        return document

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns the known hacks."""
        from arcforge_rl.slides.hacks import decks

        assert isinstance(task, SlidesTask)
        return [[Reply(FENCED.format(deck))] for _, deck in decks(task.brief)]
