"""Stories that people tell in ``environment=empathy``, and the rubric as rules."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from arcforge_core.contracts.environment import Reply
from arcforge_rl.objectives.text import unsound, words

FEELINGS: Mapping[str, tuple[str, ...]] = {
    "sad": ("sad", "down", "grief", "sorrow", "heartbroken", "hurt"),
    "anxious": ("anxious", "worried", "nervous", "afraid", "scared", "uneasy"),
    "angry": ("angry", "upset", "furious", "annoyed", "frustrated"),
    "lonely": ("lonely", "alone", "isolated", "left out"),
    "ashamed": ("ashamed", "embarrassed", "guilty", "humiliated"),
}
"""Words for each feeling."""
WHO = ("sister", "neighbour", "cousin", "flatmate", "manager", "coach", "uncle", "partner")
WHERE = ("at work", "at the club", "at home", "on the bus", "at school", "in the choir")
WHEN = ("last night", "on Sunday", "this morning", "two days ago", "yesterday")
EVENTS: Mapping[str, tuple[tuple[str, str, str], ...]] = {
    "sad": (("my {who} moved away {when}", "We used to cook every week", "cook"),
            ("my old dog died {when}, {where}", "He waited at the window for me each day", "window"),
            ("my {who} forgot my birthday {when}", "I had baked a cake for everyone", "cake")),
    "anxious": (("I have an exam soon and my {who} asked about it {when}", "I read the same page ten times", "page"),
                ("I must speak in front of everyone {where}, as my {who} told me {when}",
                 "My voice shakes on the phone already", "voice"),
                ("my {who} did not call back since {when}", "The hospital does not tell me anything", "hospital")),
    "angry": (("my {who} took credit for my work {where} {when}", "I have the drafts with my name on them", "drafts"),
              ("my {who} read my letters {when}", "The box was locked with a key", "key"),
              ("someone broke my bicycle {where} {when}, and my {who} laughed",
               "I had saved for it since spring", "saved")),
    "lonely": (("nobody sat with me {where} {when}, not even my {who}", "I eat with headphones on now", "headphones"),
               ("everyone went out {when} and my {who} did not ask me", "I saw the pictures afterwards", "pictures")),
    "ashamed": (("I fell asleep {where} {when} and my {who} saw it", "I work nights to pay the rent", "nights"),
                ("I shouted at my {who} {when}", "The door was open and all heard it", "door")),
}  # fmt: skip
MINIMISING = re.compile(
    r"\b(?:calm down|at least|get over|not a big deal|others have it worse|stop (?:crying|worrying)|cheer up|"
    r"your (?:own )?fault|overreact\w*|you should(?: have)?|you must|just (?:do|forget|ignore))\b",
    re.IGNORECASE,
)
OFFER = re.compile(
    r"\b(?:would it help|could we|we could|i could|shall we|would you like|if you like|i am here)\b", re.IGNORECASE
)
MOST_WORDS = 80


@dataclass(frozen=True)
class Case:
    """An event and who it happened to.

    Attributes:
        feeling: a key of `FEELINGS`.
        opening: the user's first message; it does not name the feeling.
        more: told by the user when asked.
        key: the word of it that shows that a reply has listened.
        listen, help: two good replies.
    """

    feeling: str
    opening: str
    more: str
    key: str
    listen: str
    help: str


@dataclass(frozen=True)
class Item:
    """An item of the rubric.

    Attributes:
        says: the condition.
        weight: in the share that holds.
    """

    says: str
    weight: float


RUBRIC: Mapping[str, Item] = {
    "names the feeling": Item("the first reply names how the user feels", 2.0),
    "asks": Item("the first reply asks a question", 1.0),
    "does not minimise": Item("no reply blames, minimises or lectures", 2.0),
    "takes it up": Item("the second reply takes up what the user told after the first", 2.0),
    "offers": Item("the second reply offers something to do together and does not order", 1.0),
    "is sound": Item(f"both replies are sound English of at most {MOST_WORDS} words", 1.0),
}


def judged_by_rules(case: Case, first: str, second: str) -> Mapping[str, bool]:
    """Returns which items hold for two replies, by their words."""
    both = (first, second)
    lowered = first.lower()
    sound = not any(unsound(Reply(text), f"{case.opening} {case.more}") for text in both)
    return {
        "names the feeling": any(re.search(rf"\b{word}\b", lowered) for word in FEELINGS[case.feeling]),
        "asks": "?" in first,
        "does not minimise": not any(MINIMISING.search(text) for text in both),
        "takes it up": case.key in words(second),
        "offers": OFFER.search(second) is not None,
        "is sound": sound and all(len(words(text)) <= MOST_WORDS for text in both),
    }


def _case(feeling: str) -> Callable[[random.Random], Case]:
    def drawn(draw: random.Random) -> Case:
        event, more, key = draw.choice(EVENTS[feeling])
        happened = event.format(who=draw.choice(WHO), where=draw.choice(WHERE), when=draw.choice(WHEN))
        named = FEELINGS[feeling][0]
        listen = (
            f"That sounds really hard, and it makes sense to feel {named} about it. "
            f"What has been on your mind the most since then?"
        )
        helpful = (
            f"Thank you for telling me about the {key}. Anyone would feel {named} there, and it weighs a lot. "
            f"Would it help if we looked for one small step together?"
        )
        opening = f"{happened[:1].upper()}{happened[1:]}. I cannot stop thinking about it."
        return Case(feeling, opening, f"{more}.", key, listen, helpful)

    return drawn


CASES: Mapping[str, Callable[[random.Random], Case]] = {feeling: _case(feeling) for feeling in FEELINGS}
"""A generator of cases for each feeling."""
