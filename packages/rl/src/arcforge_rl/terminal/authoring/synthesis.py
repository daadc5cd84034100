"""The loop of a synthesis: an author writes, rules and validator complain, the author mends; good tasks are kept."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

from arcforge_core.console.progress import say
from arcforge_core.contracts.environment import EpisodeFailure
from arcforge_core.data.sources.readers import continued
from arcforge_core.errors import ArcforgeError, DataError
from arcforge_rl.terminal.authoring.authors import Author, Writer
from arcforge_rl.terminal.authoring.pages.drawing import Unfit
from arcforge_rl.terminal.authoring.rubric import complaints_about
from arcforge_rl.terminal.authoring.sources import TaskSource
from arcforge_rl.terminal.authoring.trial import Trial, tried
from arcforge_rl.terminal.drafts import task_of
from arcforge_rl.terminal.environment import Terminal
from arcforge_rl.terminal.harbor import HarborTask, name_of, write_task

RECORD, PARTIAL = "authored.jsonl", ".partial"
MOST_FAILURES = 3
"""Sources in a row that the infrastructure may fail before the synthesis ends."""
MOST_SOURCES = 10
"""Sources that are taken for each wanted task."""


@dataclass(frozen=True)
class DraftAttempt:
    """One draft of a source's task.

    Attributes:
        route, source, topic, difficulty: see `TaskSource`.
        author: name of who wrote it.
        number: of the draft, from 0.
        family: of the task; empty if no draft came about.
        built: whether its world was built; None if it was not tried.
        complaints: about it.
        last: whether no further draft follows.
        task: name of the folder; empty if it was not admitted.
        plays: verdicts of the validator.
        seconds: wall time.
    """

    route: str
    source: str
    topic: str
    difficulty: str
    author: str
    number: int
    family: str
    built: bool | None
    complaints: list[str]
    last: bool
    task: str
    plays: int
    seconds: float


class Synthesis:
    """Writes tasks into a folder, one process at a time; a stopped one continues.

    Args:
        folder: of the tasks.
        author: writes them.
        environment: plays them.
        revisions: drafts that may follow the first one.
        repeats: plays of each script.

    Raises:
        DataError: the record is malformed before its last line.
    """

    def __init__(self, folder: Path, author: Author, environment: Terminal, revisions: int, repeats: int) -> None:
        self.folder, self.author, self.environment = folder, author, environment
        self.revisions, self.repeats = revisions, repeats
        self.attempts = continued(folder / RECORD, DraftAttempt, "attempt")
        for partial in folder.glob(f"{PARTIAL}-*"):
            shutil.rmtree(partial)
        self.unanswered, self._in_a_row = list[str](), 0

    def admitted(self, route: str) -> list[DraftAttempt]:
        """Returns the attempts of a route whose task is in the folder."""
        return [one for one in self.attempts if one.route == route and one.task]

    async def run(self, sources: Iterator[TaskSource], route: str, count: int, jobs: int) -> None:
        """Takes sources that have no last attempt until a route has enough tasks.

        Args:
            sources: in the order in which they are taken.
            route: of the sources.
            count: tasks of the route in the folder at the end, earlier ones included.
            jobs: sources at a time.

        Raises:
            ArcforgeError: the infrastructure failed for several sources in a row.
        """
        done = {one.source for one in self.attempts if one.route == route and one.last}
        sources, running = itertools.islice(sources, MOST_SOURCES * count), 0

        async def work() -> None:
            nonlocal running
            while len(self.admitted(route)) + running < count:
                source = next(sources, None)
                if source is None:
                    return
                if source.key in done:
                    continue
                running += 1
                try:
                    await self._author(source)
                finally:
                    running -= 1

        await asyncio.gather(*[work() for _ in range(jobs)])

    async def _author(self, source: TaskSource) -> None:
        writer, complaints = self.author.begin(source), list[str]()
        try:
            for number in range(self.revisions + 1):
                attempt = await self._attempt(source, writer, complaints, number)
                self._write(attempt)
                if attempt.last:
                    break
                complaints = attempt.complaints
        except EpisodeFailure as error:
            self.unanswered.append(source.key)
            self._in_a_row += 1
            say(f"{source.key}: {error}; the next run takes it again")
            if self._in_a_row >= MOST_FAILURES:
                raise ArcforgeError(f"{self._in_a_row} sources in a row failed; the last one: {error}") from error
            return
        self._in_a_row = 0

    async def _attempt(self, source: TaskSource, writer: Writer, complaints: list[str], number: int) -> DraftAttempt:
        began, family, task, trial = time.monotonic(), "", "", Trial()
        built: bool | None = None
        last = number == self.revisions
        try:
            proposal = await writer.write(complaints)
            family, draft = proposal.family, proposal.draft
            found = complaints_about(draft)
            if not found:
                digest = sha256(f"{source.route}/{source.key}".encode()).hexdigest()[:8]
                name = name_of(f"{family}-{digest}")
                more = {"route": source.route, "source": source.key, "group": source.group, "author": self.author.name}
                more |= {"topic": source.topic, "difficulty": source.difficulty}
                harbor = task_of(name, family, draft, **more)
                trial = await tried(self.environment, harbor, self.repeats)
                built, found = trial.built, trial.complaints or list(await writer.review(draft))
                if not found:
                    self._keep(harbor, name)
                    last, task = True, name
        except Unfit as error:
            last, found = True, [str(error)]
        except DataError as error:
            found = [str(error)]
        seconds = round(time.monotonic() - began, 2)
        return DraftAttempt(source.route, source.key, source.topic, source.difficulty, self.author.name, number, family,
                       built, found, last, task, trial.plays, seconds)  # fmt: skip

    def _keep(self, harbor: HarborTask, name: str) -> None:
        """Writes a task's folder whole; one of a killed process that the record does not name is replaced."""
        partial = self.folder / f"{PARTIAL}-{name}"
        write_task(harbor, partial)
        shutil.rmtree(self.folder / name, ignore_errors=True)
        partial.rename(self.folder / name)

    def _write(self, attempt: DraftAttempt) -> None:
        self.attempts.append(attempt)
        with (self.folder / RECORD).open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(attempt)) + "\n")
        if attempt.last:
            said = f"task {attempt.task}, {attempt.plays} plays" if attempt.task else attempt.complaints[0][:160]
            say(f"{attempt.source}: {said} ({attempt.seconds:.0f} s)")


def figures_of(attempts: list[DraftAttempt]) -> list[tuple[str, ...]]:
    """Returns for each route: sources, drafts, those whose world was tried, built ones, tasks and families."""
    rows = []
    for route in sorted({one.route for one in attempts}):
        own = [one for one in attempts if one.route == route]
        tried_ = [one for one in own if one.built is not None]
        built = sum(one.built is True for one in tried_)
        share = f"{built / len(tried_):.0%}" if tried_ else "-"
        tasks = [one for one in own if one.task]
        figures = (len({one.source for one in own}), sum(bool(one.family) for one in own), len(tried_), built)
        rows.append((route, *map(str, figures), share, str(len(tasks)), str(len({one.family for one in tasks}))))
    return rows


def refused_by(attempts: list[DraftAttempt]) -> Counter[str]:
    """Returns the complaints about drafts that were not admitted, without names and numbers, counted."""
    return Counter(one.complaints[0].split(":")[0][:80] for one in attempts if one.complaints)
