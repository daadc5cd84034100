"""``environment=facts``: closed-book questions, some of which have no answer; a model may say that it does not know."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from arcforge_core.contracts.environment import Episode, Reply, Score, Script, Task
from arcforge_core.episodes.rewards import metric, reward
from arcforge_rl.objectives.base import Objective, ObjectiveTask, of, replies
from arcforge_rl.objectives.facts_known import QUESTIONS, invented

ABSTAINED = "I do not know."
ABSTENTION = re.compile(
    r"(?:sorry,? )?(?:i (?:do not|don['\u2019]t) know(?: (?:this|that|the answer))?|i(?: am|'m) not sure|unknown)\.?",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class FactTask(ObjectiveTask):
    """A question.

    Attributes:
        known: whether it has an answer; the others ask about what does not exist.
        wrong: answers of other questions of its kind.
    """

    known: bool
    wrong: tuple[str, ...]


class Facts(Objective):
    """1 for the right answer, `FactsConfig.abstention` for "I do not know", 0 for a wrong one.

    Where nothing is there to be known, only "I do not know" scores, and it scores 1. The credit is the confidence from
    which an answer pays. Facts are split, and so are the invented names.
    """

    domain = "facts"

    def draw(self, draw: random.Random) -> tuple[str, Task]:
        """Returns a question about a fact, or about an invented name."""
        kind = draw.choice(self.config.kinds)
        source = QUESTIONS[kind]
        subject, answer = draw.choice(source.pairs)
        known = draw.random() >= self.config.unanswerable
        if not known:
            subject, answer = invented(draw), ABSTAINED
        others = [other for _, other in draw.sample(source.pairs, min(8, len(source.pairs))) if other != answer]
        question = draw.choice(source.wordings).format(subject)
        prompt = f"{question} Answer with the {source.what} alone, or with {ABSTAINED!r}"
        skill = self.domain if known else f"{self.domain}_unknown"
        task = FactTask(f"{kind}/{question}", prompt, answer, skill, "question", (kind,), known, tuple(others))
        return f"{kind}/{subject}", task

    @reward(timeout=None)
    def right(self, task: Task, episode: Episode) -> Score:
        """Compares the whole reply; needs no timeout."""
        known, said = of(task, FactTask), stated(episode.reply)
        if said is None:
            return Score(0.0, f"the reply was cut off ({episode.reply.finish_reason})")
        if ABSTENTION.fullmatch(said):
            return Score(self.config.abstention, "abstained") if known.known else Score(1.0, "rightly abstained")
        return Score(float(known.known and said == plain(task.answer)), f"said {said[:60]!r}")

    @metric(timeout=None)
    def abstained(self, task: Task, episode: Episode) -> Score:
        """Returns whether the reply says that it does not know."""
        said = stated(episode.reply)
        return Score(float(bool(said and ABSTENTION.fullmatch(said))), "whether it abstained")

    @metric(timeout=None)
    def hallucinated(self, task: Task, episode: Episode) -> Score:
        """Returns whether the reply states something that is not so."""
        known, said = of(task, FactTask), stated(episode.reply)
        wrong = bool(said) and not ABSTENTION.fullmatch(said or "") and not (known.known and said == plain(task.answer))
        return Score(float(wrong), "whether it stated something false")

    def cheats(self, task: Task) -> Sequence[Script]:
        """Returns wrong answers, several, and hedged ones."""
        known = of(task, FactTask)
        first = known.wrong[0]
        texts = [
            first,
            f"{known.answer} or {first}",
            ", ".join([*known.wrong, known.answer]),
            f"{known.answer}\n{first}",
            f"I do not know, but maybe {first}",
            f"not {known.answer}",
            "I know.",
        ]
        return [*replies(*texts), [Reply(known.answer, finish_reason="length")]]


def plain(text: str) -> str:
    """Returns a text in lower case, without a final full stop, emphasis and outer blanks."""
    return text.strip().rstrip(".").strip("*`\"' ").rstrip(".").strip().lower()


def stated(reply: Reply) -> str | None:
    """Returns what a reply says, as `plain`; None if it was cut off."""
    return plain(reply.text) if reply.finish_reason == "stop" else None
