"""``environment=logic``: orders and liars, drawn so that the clues leave exactly one answer."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Sequence

from arcforge_core.contracts.environment import Episode, Reply, Score, Script, Task
from arcforge_core.episodes.rewards import reward
from arcforge_rl.objectives.base import Objective, ObjectiveTask, replies

NAMES = ("Ann", "Ben", "Cara", "Dan", "Eva", "Finn", "Gus", "Hana", "Ida", "Jon")
Clue = tuple[str, Callable[[dict[str, int]], bool]]
"""A text, and whether it holds for the value of each name."""
LINE = re.compile(r"(?:the )?(?:final )?answer(?: is)?: *", re.IGNORECASE)


class Logic(Objective):
    """The reward is 1 for the whole right answer in the last line."""

    domain = "logic"

    def draw(self, draw: random.Random) -> tuple[str, Task]:
        """Returns a puzzle; those with the same names in the same roles are on one side of the split."""
        kind = draw.choice(self.config.kinds)
        people = draw.sample(NAMES, draw.randint(self.config.fewest, self.config.most))
        question, answer = {"order": order, "liars": liars, "seats": seats}[kind](draw, people)
        prompt = f"{question}\nThink if you like, and end with the answer alone in the last line."
        task = ObjectiveTask(f"{kind}/{question}", prompt, answer, self.domain, "puzzle", (kind,))
        return f"{kind}/{answer}", task

    @reward(timeout=None)
    def right(self, task: Task, episode: Episode) -> Score:
        """Compares the last line, item by item; needs no timeout."""
        return judge_items(task.answer, episode.reply)

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns the right items in another order, several answers, and answers that are not in the last line."""
        parts = task.answer.split(", ")
        turned = ", ".join(parts[::-1])
        moved = (
            task.answer.replace("knight", "x").replace("liar", "knight").replace("x", "liar")
            if ":" in task.answer
            else turned
        )
        texts = [
            turned if ":" not in task.answer else moved,
            f"{task.answer} or {turned}",
            f"{task.answer}\nor any other order",
            ", ".join(parts[:-1]),
            f"{task.answer}, {parts[0]}",
            f"{task.answer}\n{turned.upper()}x",
            "\n".join(", ".join(each) for each in itertools.permutations(parts)) + "\nall of them",
        ]
        return [*replies(*(text for text in texts if text)), [Reply(task.answer, finish_reason="length")]]


def judge_items(answer: str, reply: Reply) -> Score:
    """Scores whether the last line is the answer: the same items, separated by commas, in the same order."""
    if reply.finish_reason != "stop":
        return Score(0.0, f"the reply was cut off ({reply.finish_reason})")
    last = (reply.text.strip().splitlines() or [""])[-1].strip().strip("*`").rstrip(".").strip()
    found = [item.strip().lower() for item in LINE.sub("", last, count=1).split(",")]
    wanted = [item.strip().lower() for item in answer.split(",")]
    return Score(float(found == wanted), f"the last line is {last[:80]!r}")


def order(draw: random.Random, people: list[str]) -> tuple[str, str]:
    """Returns a puzzle about who is taller than whom."""
    more, most, least = draw.choice(
        [("taller", "tallest", "shortest"), ("older", "oldest", "youngest"), ("faster", "fastest", "slowest")]
    )
    ranked = draw.sample(people, len(people))
    rank = {name: place for place, name in enumerate(ranked)}
    possible: list[Clue] = []
    for first, second in itertools.permutations(people, 2):
        possible.append(
            (f"{first} is {more} than {second}.", lambda found, a=first, b=second: found[a] < found[b])  # type: ignore[misc]
        )
    for name in people:
        possible.append((f"{name} is not the {most}.", lambda found, a=name: found[a] != 0))  # type: ignore[misc]
    clues = _enough(draw, people, rank, [clue for clue in possible if clue[1](rank)])
    listed = f"{', '.join(people[:-1])} and {people[-1]}"
    return f"{listed} differ. {' '.join(clues)} List them from the {most} to the {least}.", ", ".join(ranked)


def seats(draw: random.Random, people: list[str]) -> tuple[str, str]:
    """Returns a puzzle about who sits where in a row."""
    row = draw.sample(people, len(people))
    place = {name: number for number, name in enumerate(row)}
    possible: list[Clue] = []
    for first, second in itertools.permutations(people, 2):
        possible.append(
            (
                f"{first} sits directly to the left of {second}.",
                lambda found, a=first, b=second: found[a] + 1 == found[b],  # type: ignore[misc]
            )
        )
        possible.append(
            (
                f"{first} and {second} are not neighbours.",
                lambda found, a=first, b=second: abs(found[a] - found[b]) > 1,  # type: ignore[misc]
            )
        )
    for name in people:
        possible.append(
            (f"{name} sits at an end.", lambda found, a=name: found[a] in (0, len(found) - 1))  # type: ignore[misc]
        )
        possible.append((f"{name} is not in the first seat.", lambda found, a=name: found[a] != 0))  # type: ignore[misc]
    clues = _enough(draw, people, place, [clue for clue in possible if clue[1](place)])
    listed = f"{', '.join(people[:-1])} and {people[-1]}"
    return f"{listed} sit in a row. {' '.join(clues)} List them from left to right.", ", ".join(row)


def liars(draw: random.Random, people: list[str]) -> tuple[str, str]:
    """Returns a puzzle about who always tells the truth and who always lies."""
    while True:
        honest = {name: draw.random() < 0.5 for name in people}
        said: list[tuple[str, str, Callable[[dict[str, bool]], bool]]] = []
        for name in people:
            about = draw.choice([other for other in people if other != name])
            truth = honest[about] if honest[name] else not honest[about]
            if draw.random() < 0.5:
                text = f"{about} is a {'knight' if truth else 'liar'}"
                said.append((name, text, lambda found, b=about, t=truth: found[b] == t))  # type: ignore[misc]
            else:
                same = (honest[about] == honest[name]) == honest[name]
                text = f"{about} and I are {'of the same kind' if same else 'of different kinds'}"
                said.append(
                    (name, text, lambda found, a=name, b=about, s=same: (found[a] == found[b]) == s)  # type: ignore[misc]
                )
        worlds = [
            dict(zip(people, values, strict=True)) for values in itertools.product((True, False), repeat=len(people))
        ]
        left = [world for world in worlds if all(holds(world) == world[name] for name, _, holds in said)]
        if len(left) == 1:
            break
    spoken = " ".join(f'{name} says: "{text}."' for name, text, _ in said)
    answer = ", ".join(f"{name}: {'knight' if honest[name] else 'liar'}" for name in people)
    shape = ", ".join(f"{name}: ..." for name in people)
    return f"Knights always tell the truth, liars always lie. {spoken} Who is what? Answer in the form {shape}", answer


def _enough(draw: random.Random, people: list[str], truth: dict[str, int], clues: list[Clue]) -> list[str]:
    """Returns texts of as many true clues as leave one order, in which none is superfluous."""
    draw.shuffle(clues)
    worlds = [dict(zip(order, range(len(order)), strict=True)) for order in itertools.permutations(people)]

    def alone(chosen: list[Clue]) -> bool:
        return [world for world in worlds if all(holds(world) for _, holds in chosen)] == [truth]

    chosen = list(clues)
    for clue in clues:
        if alone(rest := [one for one in chosen if one is not clue]):
            chosen = rest
    return [text for text, _ in chosen]
