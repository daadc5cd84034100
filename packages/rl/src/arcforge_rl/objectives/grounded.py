"""``environment=grounded``: questions about pages of Python's documentation that the prompt shows.

Some ask about what the pages do not say. A reply that states anything else is counted as a hallucination.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from arcforge_core.contracts.environment import Episode, Reply, Score, Script, Task
from arcforge_core.episodes.rewards import metric, reward
from arcforge_core.errors import ConfigError
from arcforge_rl.configs.objectives import GroundedConfig
from arcforge_rl.objectives.base import Objective, ObjectiveTask, of, replies
from arcforge_rl.objectives.facts import plain, stated

MODULES = (
    "math", "statistics", "textwrap", "shutil", "os.path", "bisect", "heapq", "random", "string", "json", "calendar",
    "itertools", "functools", "operator", "glob", "html", "locale", "colorsys", "difflib", "copy", "shlex", "tempfile",
)  # fmt: skip
ABSENT = "Not in the documentation."
LONGEST = 160
"""Characters of a shown sentence."""


@dataclass(frozen=True)
class Entry:
    """A function as its documentation has it.

    Attributes:
        name: qualified.
        says: the first sentence.
        defaults: parameters with numbers, texts or truth values as defaults.
    """

    name: str
    says: str
    defaults: tuple[tuple[str, str], ...]

    @property
    def page(self) -> str:
        """The entry as the prompt shows it."""
        given = "".join(f"\n  Default of {name}: {value}." for name, value in self.defaults)
        return f"{self.name}: {self.says}{given}"


@dataclass(frozen=True)
class GroundedTask(ObjectiveTask):
    """A question about entries.

    Attributes:
        shown: names of the entries in the prompt.
        answered: whether they have the answer.
    """

    shown: tuple[str, ...]
    answered: bool


class Grounded(Objective):
    """The reward is 1 for exactly the answer of the pages, or for saying that they have none."""

    domain = "grounded"

    def __init__(self, config: GroundedConfig) -> None:
        super().__init__(config)
        if len(entries()) < config.pages + 1:
            raise ConfigError("environment", "grounded", "needs docstrings: run Python without -OO")

    def draw(self, draw: random.Random) -> tuple[str, Task]:
        """Returns a question about one of several functions, or about one that is not shown."""
        known = entries()
        asked, *others = draw.sample(known, self.config.pages + 1)
        answered = draw.random() >= self.config.unanswerable
        shown = [asked, *others[:-1]] if answered else others
        draw.shuffle(shown)
        kind = draw.choice(("which", "quote", "default") if asked.defaults else ("which", "quote"))
        if kind == "which":
            question = f"Which function does this: {asked.says!r} Answer with its name alone"
            answer = asked.name
        elif kind == "quote":
            question = f"What does the documentation say that {asked.name} does? Quote its sentence alone"
            answer = asked.says
        else:
            parameter, answer = draw.choice(asked.defaults)
            question = f"What is the default of the parameter {parameter} of {asked.name}? Answer with the value alone"
        pages = "\n".join(entry.page for entry in shown)
        prompt = f"Documentation:\n{pages}\n\n{question}, or with {ABSENT!r}"
        skill = self.domain if answered else f"{self.domain}_absent"
        names = tuple(entry.name for entry in shown)
        key = f"{kind}/{asked.name}"
        answer = answer if answered else ABSENT
        return key, GroundedTask(f"{key}/{','.join(names)}", prompt, answer, skill, kind, (kind,), names, answered)

    @reward(timeout=None)
    def right(self, task: Task, episode: Episode) -> Score:
        """Compares the whole reply; needs no timeout."""
        said = stated(episode.reply)
        if said is None:
            return Score(0.0, f"the reply was cut off ({episode.reply.finish_reason})")
        return Score(float(bool(said) and said == plain(task.answer)), f"said {said[:80]!r}")

    @metric(timeout=None)
    def hallucinated(self, task: Task, episode: Episode) -> Score:
        """Returns whether the reply states what the pages do not say: neither right nor that they have no answer."""
        said = stated(episode.reply) or ""
        return Score(float(said not in ("", plain(task.answer), plain(ABSENT))), "whether it is not of the pages")

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns all names, the page, several answers, and the other kind of answer."""
        known = of(task, GroundedTask)
        texts = [
            " ".join(known.shown),
            known.prompt.split("\n\n")[0],
            f"{known.answer} {ABSENT}",
            f"{known.answer}\n{known.shown[0]}",
            f"It is {known.answer}, or something else",
            ABSENT if known.answered else f"{known.shown[0]}",
        ]
        return [*replies(*texts), [Reply(known.answer, finish_reason="length")]]


@functools.cache
def entries() -> tuple[Entry, ...]:
    """Returns the documented functions of `MODULES` whose first sentences differ, by name."""
    found: dict[str, Entry] = {}
    for module in MODULES:
        for name, made in sorted(vars(importlib.import_module(module)).items()):
            if name.startswith("_") or not callable(made) or inspect.isclass(made):
                continue
            says = _sentence(inspect.getdoc(made) or "")
            if says and (getattr(made, "__module__", None) or module).lstrip("_").startswith(module.split(".")[0][:4]):
                found.setdefault(says, Entry(f"{module}.{name}", says, _defaults(made)))
    return tuple(sorted(found.values(), key=lambda entry: entry.name))


def _sentence(doc: str) -> str:
    first = " ".join(doc.split("\n\n")[0].split())
    end = re.match(r".+?\.(?= |$)", first)
    said = end[0] if end else ""
    return said if 15 <= len(said) <= LONGEST and said.isascii() and "->" not in said else ""


def _defaults(made: object) -> tuple[tuple[str, str], ...]:
    try:
        parameters = inspect.signature(made).parameters.values()  # type: ignore[arg-type]
    except (TypeError, ValueError):  # written in C without a signature
        return ()
    kept = [one for one in parameters if isinstance(one.default, (bool, int, float, str)) and str(one.default).strip()]
    return tuple((one.name, repr(one.default)) for one in kept if len(repr(one.default)) <= 20)
