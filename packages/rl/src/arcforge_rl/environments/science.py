"""Procedural science: quantities with units, and multiple choice about quantities and elements."""

from __future__ import annotations

import importlib.util
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from arcforge_core.contracts.environment import Episode, Reply, Score, Script, Task
from arcforge_core.episodes.base import GeneratedEnvironment
from arcforge_core.episodes.rewards import reward
from arcforge_core.errors import ConfigError
from arcforge_rl.configs.environments import ScienceConfig
from arcforge_rl.environments.answers import NoAnswer, final_answer
from arcforge_rl.environments.quantities import equal_quantities, last_quantity, quantity_text
from arcforge_rl.environments.science_problems import QUANTITIES, element_question

LETTERS = "ABCD"
CHOICE = re.compile(r"(?:(?:the )?(?:right |correct |final )?answer(?: is)?:? *)?\(?([A-D])\)?[.)]?", re.IGNORECASE)
SECONDS = 2.0


@dataclass(frozen=True)
class ScienceTask(Task):
    """A question.

    Attributes:
        kind: ``quantity`` or ``choice``.
    """

    kind: str


class Science(GeneratedEnvironment):
    r"""Formulas of physics and chemistry, with numbers, and multiple choice.

    A quantity is the last line, or the ``\boxed{}``: one number with any unit of the dimension, within one percent. A
    choice is one letter, alone in the last line or in the box, optionally after ``Answer:``.
    """

    domain = "science"

    def __init__(self, config: ScienceConfig) -> None:
        super().__init__(config)
        if "quantity" in config.kinds and importlib.util.find_spec("pint") is None:
            raise ConfigError("environment", "pint", "is not installed: pip install 'arcforge-rl[science]'")

    def draw(self, draw: random.Random) -> tuple[str, Task]:
        """Returns a quantity, or a question with four choices."""
        kind = draw.choice(self.config.kinds)
        if kind == "choice" and draw.random() < 0.5:
            question, right, wrong = element_question(draw)
            key = f"choice/{right}"
        else:
            question, value, unit, mistakes = draw.choice(QUANTITIES)(draw)
            right, wrong = quantity_text(value, unit), [quantity_text(mistake, unit) for mistake in mistakes]
            key = f"quantity/{question}"
            if kind == "quantity":
                return key, ScienceTask(key, question, right, kind)
        options = [right, *[option for option in dict.fromkeys(wrong) if option != right][:3]]
        draw.shuffle(options)
        listed = "\n".join(f"{letter}. {option}" for letter, option in zip(LETTERS, options, strict=False))
        prompt = f"{question}\n{listed}\nAnswer with the letter."
        return key, ScienceTask(f"choice/{prompt}", prompt, LETTERS[options.index(right)], kind)

    @reward(timeout=None)
    async def correct(self, task: Task, episode: Episode) -> Score:
        """Compares letters in this process, quantities in a killable one."""
        assert isinstance(task, ScienceTask)
        if task.kind == "choice":
            return judge_choice(task.answer, episode.reply)
        try:
            last_quantity(episode.reply)
        except NoAnswer as reason:
            return Score(0.0, str(reason))
        return await self.elsewhere("equal", task, episode, SECONDS)

    def warm_up(self) -> None:
        """Imports pint if it is needed."""
        if "quantity" in self.config.kinds:
            equal_quantities((1.0, "m"), (1.0, "m"))

    def equal(self, task: Task, episode: Episode) -> Score:
        """Compares quantities with pint."""
        found = last_quantity(episode.reply)
        return equal_quantities(last_quantity(Reply(task.answer)), found)

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns several letters, or a number without its unit, with another unit, or among others."""
        assert isinstance(task, ScienceTask)
        if task.kind == "choice":
            return choice_cheats(task)
        right = task.answer
        number, _, unit = right.partition(" ")
        texts = [
            number,
            unit,
            f"{number} furlong*parsec",
            f"{float(number) * 1.05:.6g} {unit}",
            f"-{right}",
            f"{right} or {number}1 {unit}",
            f"\\boxed{{{right}}} \\boxed{{1 {unit}}}",
            f"{number}*1 {unit}",
            f"{number} {unit}**9**9",
            " ".join(f"{n} {unit}" for n in range(1, 100)) + f" {right}",
        ]
        return [*([Reply(text)] for text in texts), [Reply(right, finish_reason="length")]]


def judge_choice(letter: str, reply: Reply) -> Score:
    """Scores whether the reply's last line, or its box, is this letter."""
    try:
        boxed = final_answer(reply) if "\\boxed" in reply.text else None
    except NoAnswer as reason:
        return Score(0.0, str(reason))
    if reply.finish_reason != "stop":
        return Score(0.0, f"the reply was cut off ({reply.finish_reason})")
    line = (boxed if boxed is not None else reply.text.strip().rsplit("\n", 1)[-1]).strip().strip("*").strip()
    found = CHOICE.fullmatch(line) if len(line) <= 40 else None
    if found is None:
        return Score(0.0, f"the last line is not a single letter: {line[:40]!r}")
    return Score(float(found[1].upper() == letter), f"the answer is {found[1].upper()}")


def choice_cheats(task: Task) -> Sequence[Script]:
    """Returns several letters, a wrong one, and the right one among others."""
    right = task.answer
    wrong = next(letter for letter in LETTERS if letter != right)
    texts = [
        "A B C D",
        "A, B, C or D",
        f"{right} or {wrong}",
        f"\\boxed{{{right}}} \\boxed{{{wrong}}}",
        "ABCD",
        wrong,
        f"{right}{right}",
        f"{right}\nor {wrong}",
        task.prompt,
    ]
    return [*([Reply(text)] for text in texts), [Reply(right, finish_reason="length")]]
