"""Implements ``arcforge-conversations``: turns problems into conversations and writes them to files."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from arcforge_core import __version__
from arcforge_core.console.progress import say, track
from arcforge_core.console.result import Result
from arcforge_core.data.split import key_hash
from arcforge_core.errors import ArcforgeError
from arcforge_rl.configs.commands import ConversationsConfig
from arcforge_rl.problems.problem import HELDOUT, TRAIN, Problem, ProblemSource, side
from arcforge_rl.problems.tools import READING, Foresight, Unforeseen
from arcforge_rl.sandbox.sync import Desk

PLACES = {
    "arithmetic": "numbers:Arithmetic",
    "expressions": "numbers:Expressions",
    "terse_expressions": "numbers:TerseExpressions",
    "algebra": "numbers:Algebra",
    "puzzles": "puzzles:Puzzles",
    "traces": "traces:Traces",
    "functions": "functions:Functions",
    "calculator": "dialogues:Calculator",
    "lookup": "dialogues:Lookup",
    "files": "dialogues:Files",
    "search": "dialogues:Search",
    "python": "dialogues:Programs",
    "instructions": "chat:Instructions",
    "documentation": "chat:Documentation",
    "greetings": "chat:Greetings",
    "everyday": "everyday:Everyday",
    "everyday_calculator": "everyday:EverydayCalculator",
}
"""The class of each source."""
ALIKE = {"terse_expressions": "expressions", "everyday_calculator": "everyday"}
"""Sources that share the problems of another one: the same tasks, on the same side of the split."""
SETTINGS_FILE = "made_with.json"
MOST_MISSES = 500
"""Consecutive problems on the other side, known or unsolvable, after which a source counts as exhausted."""
AHEAD = 256
"""Conversations whose calls share one process, if the tools allow it."""


def run(config: ConversationsConfig) -> Result:
    """Writes ``<output_dir>/{train,heldout}/<corpus>/<source>.jsonl``, prints how many, and returns the counts.

    Raises:
        ArcforgeError: the files cannot be written.
        ConfigError: no sandbox can run programs on this machine.
    """
    folder = Path(config.output_dir)
    counts: dict[str, float] = {}
    try:
        (folder / SETTINGS_FILE).unlink(missing_ok=True)
        for name in (TRAIN, HELDOUT):
            shutil.rmtree(folder / name, ignore_errors=True)
        with Desk(config.sandbox) as desk:
            for name in config.sources:
                for which, wanted in ((TRAIN, config.counts.get(name, config.count)), (HELDOUT, config.heldout)):
                    made = Maker(name, which, config.seed, desk, config.system)
                    path = folder / which / made.source.corpus / f"{name}.jsonl"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    written = write_lines(path, made, wanted)
                    counts[f"{name}, {which}"] = written
                    if written < wanted:
                        say(f"{name}: only {written:,} of {wanted:,} for {which}: the source is exhausted")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / SETTINGS_FILE).write_text(json.dumps(settings(config), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise ArcforgeError(f"cannot write below {folder}: {error.strerror or error}") from error
    figures = Result(folder, counts)
    figures.show("conversations")
    return figures


def settings(config: ConversationsConfig) -> dict[str, Any]:
    """Returns the settings that determine the conversations."""
    names = ("sources", "count", "counts", "heldout", "system", "seed")
    return {"arcforge": __version__, **{name: getattr(config, name) for name in names}}


def write_lines(path: Path, made: Maker, wanted: int) -> int:
    """Writes `wanted` records, or fewer if the source is exhausted; returns their number."""
    with path.open("w", encoding="utf-8") as file:
        count = 0
        for record in track(made.records(wanted), f"{made.name}, {made.side}", wanted):
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
            count += 1
    return count


@dataclass
class Maker:
    """Builds the conversations of one source for one side of the split.

    Attributes:
        name: name of the source.
        side: ``train`` or ``heldout``.
        seed: random seed.
        desk: runs programs.
        system: system message, or None.
    """

    name: str
    side: str
    seed: int
    desk: Desk
    system: str | None = None
    source: ProblemSource = field(init=False)
    _kind: str = field(init=False)
    _known: set[str] = field(init=False, default_factory=set)
    _bench: Foresight = field(init=False)

    def __post_init__(self) -> None:
        place = PLACES[self.name]
        module, _, attribute = place.partition(":")
        self.source = load_source(module, attribute)
        self._kind = ALIKE.get(self.name, self.name)
        self._bench = Foresight(self.desk)

    def records(self, count: int) -> Iterator[dict[str, Any]]:
        """Yields records; record n does not depend on `count`."""
        tools = {tool["function"]["name"] for tool in self.source.tools}
        for number in range(count):
            if number % AHEAD == 0 and tools and tools <= set(READING):
                self._rehearse(range(number, min(number + AHEAD, count)))
            record = self._record(self._draw(number), number)
            if record is None:
                return
            yield record

    def _draw(self, number: int) -> random.Random:
        return random.Random(f"{self.seed}/{self.name}/{self.side}/{number}")  # the same in every process

    def _rehearse(self, numbers: range) -> None:
        """Precomputes the results of all calls of some records, assuming that every problem can be solved.

        Calls that this misses, because a problem could not be solved, run when they are needed.
        """
        known, problems = set(self._known), []
        for number in numbers:
            draw = self._draw(number)
            files = dict[str, str]()
            for _ in range(draw.randint(1, self.source.most)):
                problem = self._fitting(draw, known)
                if problem is not None:
                    files |= problem.files
                    problems.append((problem, dict(files)))
        bench = self._bench
        bench.forget()
        bench.rehearsing = True
        while problems:
            calls, waiting = [], []
            for problem, files in problems:
                bench.begin()
                bench.lay(files)
                try:
                    problem.solve(bench)
                except Unforeseen as missing:
                    calls.append(missing.call)
                    waiting.append((problem, files))
            problems = waiting if calls and bench.learn(calls) else []
        bench.rehearsing = False

    def _record(self, draw: random.Random, number: int) -> dict[str, Any] | None:
        modes = self.source.modes
        mode = modes[number % len(modes)]
        self._bench.begin()
        messages: list[dict[str, Any]] = []
        tasks, files = [], dict[str, str]()
        for _ in range(draw.randint(1, self.source.most)):
            found = self._solved(draw)
            if found is None:
                break
            problem, solution = found
            if mode == "off":
                solution = [{k: v for k, v in m.items() if k != "reasoning_content"} for m in solution]
            solution[-1]["checker"] = problem.checked.as_record()
            messages += solution
            files |= problem.files
            short = problem.operands if len(problem.operands) <= 60 else f"{key_hash(problem.operands):016x}"
            tasks.append(f"{self._kind}/{short}")
        if not messages:
            return None
        if self.system is not None:
            messages = [{"role": "system", "content": self.system}, *messages]
        record = {
            "source": self.name,
            "task": " ; ".join(tasks),
            "thinking": mode if any("reasoning_content" in m for m in messages) else "off",
            "checker": messages[-1].pop("checker"),
            "messages": messages,
        }
        if self.source.tools:
            record["tools"] = list(self.source.tools)
        if files:
            record["files"] = files
        return record

    def _solved(self, draw: random.Random) -> tuple[Problem, list[dict[str, Any]]] | None:
        """Returns the next unused problem of this side, with its solution."""
        for _ in range(MOST_MISSES):
            problem = self._fitting(draw, self._known)
            if problem is None:
                return None
            self._bench.lay(problem.files)
            solution = problem.solve(self._bench)
            if solution is not None:
                return problem, solution
        return None

    def _fitting(self, draw: random.Random, known: set[str]) -> Problem | None:
        """Returns the next problem of this side that is not in `known`, and adds it."""
        for _ in range(MOST_MISSES):
            problem = self.source.draw(draw)
            question = problem.question or problem.operands
            if side(self._kind, problem.operands) == self.side and question not in known:
                known.add(question)
                return problem
        return None


def load_source(module: str, attribute: str) -> ProblemSource:
    """Imports and builds a source; a source that needs an extra is imported only when used."""
    source: ProblemSource = getattr(import_module(f"arcforge_rl.problems.{module}"), attribute)()
    return source
