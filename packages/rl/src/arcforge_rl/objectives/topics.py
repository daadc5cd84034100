"""Subjects of the tasks, and sentences about them, for oracles."""

from __future__ import annotations

import random

from arcforge_rl.objectives.text import words

TOPICS = (
    "rivers", "bread", "bicycles", "lighthouses", "gardens", "clouds", "bridges", "libraries", "honey", "trains",
    "mountains", "candles", "pencils", "islands", "kites", "markets", "owls", "paper", "rain", "salt",
    "sheep", "stairs", "tea", "umbrellas", "violins", "windows", "apples", "boats", "clocks", "deserts",
    "elevators", "ferries", "glass", "harbours", "ice", "juggling", "kitchens", "ladders", "maps", "needles",
    "onions", "parks", "quilts", "ropes", "soap", "tunnels", "valleys", "wells", "yarn", "zebras",
    "anchors", "beaches", "carpets", "drums", "engines", "forests", "gloves", "horses", "ink", "jackets",
    "lamps", "mirrors", "nests", "orchards", "pottery", "roofs", "saddles", "tents", "vineyards", "wheels",
)  # fmt: skip
"""Plural nouns or substances, so that the sentences need no article."""
OPENINGS = (
    "Many people first meet {topic} when they are young",
    "There is more to {topic} than most visitors expect",
    "A careful look at {topic} rewards anyone with a little time",
    "Old stories often mention {topic} with great respect",
    "Every region has its own habits around {topic}",
    "My neighbour talks about {topic} whenever we share a walk",
    "Good teachers use {topic} to explain how small things matter",
    "Few subjects are as calm and as rich as {topic}",
    "Children ask the best questions about {topic}",
    "Our town once had a festival about {topic}",
    "Some days seem made for thinking about {topic}",
    "Working with {topic} takes patience and steady hands",
)
REMARKS = (
    "The work begins early and ends late",
    "Nothing about it is simple at first sight",
    "Small mistakes teach more than quick success",
    "Friends often help each other with the heavy parts",
    "Weather and season change what can be done",
    "Experience grows slowly and stays for life",
    "Most of the beauty hides in plain details",
    "Visitors leave with a new idea or two",
    "A short pause can make the result better",
    "Careful people keep notes of what they learn",
    "Even experts find surprises from time to time",
    "Prices rise when the quality is high",
    "Older methods still work in quiet places",
    "Young hands bring fresh energy to the task",
    "Simple tools are enough for the first steps",
    "Long evenings are perfect for such a hobby",
    "Local habits shape how things are done",
    "Success depends on patience more than luck",
    "Quiet mornings give the clearest view of all",
    "People return because it makes them happy",
    "One good example says more than ten rules",
    "Travel shows how different customs can be",
    "Nobody learns everything in a single year",
    "The best moments come without any warning",
    "Shared meals turn strangers into helpful partners",
    "Clean hands and clear minds prevent trouble",
    "Letters from distant friends describe similar scenes",
    "Music sometimes plays while the others rest",
    "Winter asks for warm clothes and strong coffee",
    "Summer offers bright light until the late hours",
)
"""Sentences that fit any topic, without an end, a comma or a digit."""


class Sentences:
    """Sentences about a topic, none of them twice.

    Args:
        topic: one of `TOPICS`.
        draw: decides their order.
    """

    def __init__(self, topic: str, draw: random.Random) -> None:
        first, *others = draw.sample(OPENINGS, len(OPENINGS))
        rest = [*draw.sample(REMARKS, len(REMARKS)), *(other.format(topic=topic) for other in others)]
        self._rest = iter([first.format(topic=topic), *rest])

    def next(self, end: str = ".") -> str:
        """Returns another sentence; the first one names the topic."""
        return f"{next(self._rest)}{end}"

    def take(self, count: int) -> list[str]:
        """Returns several."""
        return [self.next() for _ in range(count)]


def names_topic(text: str, topic: str) -> bool:
    """Returns whether a text has the topic as a word, in singular or plural."""
    stems = {topic, topic.removesuffix("s"), topic.removesuffix("es")}
    stems |= {topic.removesuffix("ies") + "y", topic.removesuffix("ves") + "f"}
    return bool(stems & set(words(text)))
