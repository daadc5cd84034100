"""Authors of tasks, and the one who draws them from templates."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from arcforge_rl.terminal.authoring.pages.table import PAGE_FAMILIES, Unfit
from arcforge_rl.terminal.authoring.sources import TaskSource
from arcforge_rl.terminal.drafts import Draft
from arcforge_rl.terminal.table import FAMILIES


@dataclass(frozen=True)
class Proposal:
    """A draft of a task.

    Attributes:
        family: of tasks like it.
        draft: the task.
    """

    family: str
    draft: Draft


class Writer(Protocol):
    """Writes the task of one source."""

    async def write(self, complaints: Sequence[str]) -> Proposal:
        """Returns a draft.

        Args:
            complaints: about the draft before; empty for the first one.

        Raises:
            Unfit: no task can be made of the source.
            EpisodeFailure: who writes it did not answer.
        """
        ...

    async def review(self, draft: Draft) -> Sequence[str]:
        """Returns complaints about a draft that the validator accepts.

        Raises:
            EpisodeFailure: who reviews it did not answer.
        """
        ...


class Author(Protocol):
    """Writes tasks.

    Attributes:
        name: for the record.
    """

    name: str

    def begin(self, source: TaskSource) -> Writer:
        """Returns the writer of a source's task."""
        ...


class TemplateAuthor:
    """Draws tasks from template families: for a seed, that of its topic, for pages, one that fits them."""

    name = "templates"

    def begin(self, source: TaskSource) -> Writer:
        """Returns a writer that draws; a further draft is another draw."""
        return _Drawing(source)


class _Drawing:
    def __init__(self, source: TaskSource) -> None:
        self.source, self.drafts = source, 0

    async def write(self, complaints: Sequence[str]) -> Proposal:
        source = self.source
        draw = random.Random(f"{source.route}/{source.key}/{self.drafts}")
        self.drafts += 1
        if not source.pages:
            return Proposal(source.topic, FAMILIES[source.topic](draw))
        reasons = []
        for family in sorted(PAGE_FAMILIES, key=lambda name: (name != "examples", draw.random())):
            try:
                return Proposal(family, PAGE_FAMILIES[family](draw, source.pages))
            except Unfit as error:  # few pages have examples, so that these come first
                reasons.append(f"{family}: {error}")
        raise Unfit("; ".join(reasons))

    async def review(self, draft: Draft) -> Sequence[str]:
        return ()
