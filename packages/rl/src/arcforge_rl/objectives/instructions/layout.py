"""Kinds of constraints on layout: lists, headings, tables, JSON. Each decides the layout alone."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable

from arcforge_rl.objectives.instructions.kind import LAYOUT, Arguments, Draft, kind, one_number
from arcforge_rl.objectives.text import BULLET, HEADING, NUMBERED, lines, paragraphs, sentences

BEGINNINGS = {
    "A": "Always", "B": "Before", "D": "During", "E": "Every", "F": "First", "H": "Here", "I": "Indeed", "L": "Later",
    "M": "Maybe", "N": "Now", "O": "Often", "R": "Rarely", "S": "Sometimes", "T": "Then", "W": "Within",
}  # fmt: skip
ACROSTICS = ("STAR", "MOON", "LEAF", "RAIN", "BIRD", "WIND", "STONE", "HOME", "WATER")
HEADS = ("Origins", "Daily use", "Common mistakes", "Care", "Outlook", "A closer look")
KEYS = ("title", "summary", "audience", "tone", "detail", "closing")
FENCE = re.compile(r"```[a-z]*\n(.+?)\n?```", re.DOTALL)


def _bulleted(draft: Draft, units: list[str]) -> None:
    draft.text = "\n".join(f"- {unit}" for unit in units)


def _filled(draft: Draft, count: int) -> list[str]:
    """Returns this many sentences: longer drafts are joined at the end, shorter ones get more."""
    while len(draft.units) < count:
        draft.add()
    return [*draft.units[: count - 1], " ".join(draft.units[count - 1 :])]


def _numbered(text: str, count: int) -> bool:
    found = [int(re.split(r"[.)]", match.group().strip())[0]) for match in NUMBERED.finditer(text)]
    return found == list(range(1, count + 1))


def _make_numbered(draft: Draft, count: int) -> None:
    draft.text = "\n".join(f"{n}. {unit}" for n, unit in enumerate(_filled(draft, count), 1))


def _headed(draft: Draft, count: int) -> None:
    parts = zip(HEADS, _filled(draft, count), strict=False)
    draft.text = "\n\n".join(f"## {head}\n{unit}" for head, unit in parts)


def _split(count: int, by: str) -> Callable[[Draft], None]:
    def made(draft: Draft) -> None:
        draft.text = by.join(_filled(draft, count))

    return made


def _rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines(text) if line.startswith("|")]


def _table(text: str, count: int) -> bool:
    rows = _rows(text)
    ruled = len(rows) == count + 2 and all(re.fullmatch(r":?-+:?", cell) for cell in rows[1])
    return ruled and len({len(row) for row in rows}) == 1 and len(rows[0]) >= 2


def _make_table(draft: Draft, count: int) -> None:
    rows = [f"| {n} | {unit} |" for n, unit in zip("abcdef", _filled(draft, count), strict=False)]
    draft.text = "\n".join(["| Point | Remark |", "| --- | --- |", *rows])


def _object(text: str, *keys: str) -> bool:
    try:
        found = json.loads(text)
    except ValueError:
        return False
    return (
        isinstance(found, dict) and list(found) == list(keys) and all(isinstance(v, str) and v for v in found.values())
    )


def _make_object(draft: Draft, *keys: str) -> None:
    draft.text = json.dumps(dict(zip(keys, _filled(draft, len(keys)), strict=True)), indent=1)


def _keys(draw: random.Random, topic: str) -> Arguments:
    return tuple(draw.sample(KEYS, draw.randint(2, 4)))


def _sorted(text: str, count: int) -> bool:
    items = [line.lstrip("-*\u2022 ").lower() for line in lines(text) if BULLET.match(line)]
    return len(items) == count and items == sorted(items)


def _make_sorted(draft: Draft, count: int) -> None:
    _bulleted(draft, sorted(_filled(draft, count), key=str.lower))


def _acrostic(text: str, word: str) -> bool:
    found = lines(text)
    return "".join(line[:1].upper() for line in found) == word and all(len(line) > 5 for line in found)


def _make_acrostic(draft: Draft, word: str) -> None:
    units = _filled(draft, len(word))
    begun = [f"{BEGINNINGS[letter]} {unit[:1].lower()}{unit[1:]}" for letter, unit in zip(word, units, strict=True)]
    draft.text = "\n".join(begun)


def _own_lines(text: str) -> bool:
    found = lines(text)
    return len(found) > 1 and all(len(sentences(line)) == 1 for line in found)


def _fenced(text: str) -> bool:
    found = FENCE.fullmatch(text.strip())
    return found is not None and "```" not in found[1]


def _make_fenced(draft: Draft) -> None:
    draft.text = "```\n" + "\n".join(draft.units) + "\n```"


KINDS = (
    kind("bullets", "layout", "layout", LAYOUT, one_number(2, 5),
        lambda count: f"Give exactly {count} bullet points, each beginning with '- '.",
        lambda text, count: len(BULLET.findall(text)) == count,
        lambda draft, count: _bulleted(draft, _filled(draft, count))),
    kind("numbered", "layout", "layout digits", LAYOUT, one_number(2, 5),
        lambda count: f"Give a numbered list from 1 to {count}, as '1. '.", _numbered, _make_numbered),
    kind("headings", "layout", "layout", LAYOUT, one_number(2, 4),
        lambda count: f"Structure it with exactly {count} markdown headings ('## ').",
        lambda text, count: len(HEADING.findall(text)) == count, _headed),
    kind("paragraphs", "layout", "layout", LAYOUT, one_number(2, 4),
        lambda count: f"Write exactly {count} paragraphs, with an empty line between them.",
        lambda text, count: len(paragraphs(text)) == count, lambda draft, count: _split(count, "\n\n")(draft)),
    kind("table", "layout", "layout digits first last", LAYOUT, one_number(2, 4),
        lambda count: f"Answer with a markdown table: a header, its rule, and {count} rows.", _table, _make_table),
    kind("json_object", "layout", "layout first last case commas sentences", LAYOUT, _keys,
        lambda *keys: f"Answer with one JSON object and nothing else; its keys are {', '.join(keys)}, in this order, "
        "its values are texts.", _object, _make_object),
    kind("sorted_bullets", "layout", "layout", LAYOUT, one_number(3, 5),
        lambda count: f"Give {count} bullet points ('- ') in alphabetical order.", _sorted, _make_sorted),
    kind("acrostic", "layout", "layout length first last letters", LAYOUT,
        lambda draw, topic: (draw.choice(ACROSTICS),),
        lambda word: f"The first letters of the lines must spell {word}, one line for each letter.", _acrostic,
        _make_acrostic),
    kind("line_per_sentence", "layout", "layout first last", LAYOUT, lambda draw, topic: (),
        lambda: "Write each sentence on a line of its own; at least two.", _own_lines,
        lambda draft: _split(len(draft.units), "\n")(draft)),
    kind("fenced", "layout", "layout first last", LAYOUT, lambda draw, topic: (),
        lambda: "Put the whole answer into one fenced block (three backticks before and after).",
        _fenced, _make_fenced),
)  # fmt: skip
"""Ten kinds."""
