"""Kinds of constraints on punctuation, emphasis, case, and on both ends of a reply."""

from __future__ import annotations

import random
import re

from arcforge_rl.objectives.instructions.kind import CASE, ENDS, WORDING, Arguments, Draft, kind, one_number
from arcforge_rl.objectives.text import paragraphs, words

BOLD = re.compile(r"\*\*[^*\n]+\*\*")
ROUND = re.compile(r"\([^()\n]+\)")
TITLE = re.compile(r"<<[^<>\n]+>>")
CAPITAL = re.compile(r"\b[A-Z]{2,}\b")
FIRST = ("In short,", "To begin with,", "As promised,", "Dear reader,", "Let me start here:")
LAST = ("That is all for now.", "Thank you for reading.", "Ask me for more.", "The rest is up to you.")
SEPARATOR = "******"


def _exclaimed(draft: Draft, count: int) -> None:
    for number in range(count):
        if number >= len(draft.units) or draft.units[number].endswith("?"):
            draft.add("!")
        else:
            draft.units[number] = draft.units[number][:-1] + "!"


def _asked(draft: Draft, count: int) -> None:
    while len(draft.units) < count:
        draft.add()
    draft.units[-count:] = [unit[:-1] + "?" for unit in draft.units[-count:]]


def _emphasised(draft: Draft, count: int) -> None:
    for number in range(count):
        if number >= len(draft.units):
            draft.add()
        first, _, rest = draft.units[number].partition(" ")
        draft.units[number] = f"**{first}** {rest}"


def _bracketed(draft: Draft, count: int) -> None:
    for number in range(count):
        if number >= len(draft.units):
            draft.add()
        draft.weave(number, ("(as always)", "(or nearly so)", "(in theory)", "(of course)")[number % 4])


def _linked(draft: Draft, count: int) -> None:
    while len(draft.units) < 2 * count:
        draft.add()
    for _ in range(count):
        first, second = draft.units.pop(0), draft.units.pop(0)
        draft.units.append(f"{first[:-1]}; {second[:1].lower()}{second[1:]}")


def _without_commas(draft: Draft) -> None:
    draft.units = [unit.replace(",", "") for unit in draft.units]


def _capitals(draft: Draft, count: int) -> None:
    for number, word in enumerate(("TRULY", "NEVER", "LOUD", "CLEAR", "BRIGHT")[:count]):
        draft.weave(number % len(draft.units), word)


def _titled(draft: Draft) -> None:
    draft.text = f"<<A plain view>>\n{draft.text}"


def _twice(text: str) -> bool:
    parts = [part.strip() for part in text.split(SEPARATOR)]
    return len(parts) == 2 and all(map(words, parts)) and words(parts[0]) != words(parts[1])


def _make_twice(draft: Draft) -> None:
    other = " ".join(draft.supply.take(2))
    draft.text = f"{draft.text}\n{SEPARATOR}\n{other}"


def _placed(draw: random.Random, topic: str) -> Arguments:
    return (draw.choice(LAST),)


KINDS = (
    kind("bold", "emphasis", "emphasis", WORDING, one_number(1, 3),
        lambda least: f"Set at least {least} word{'s'[: least > 1]} in bold, as **word**.",
        lambda text, least: len(BOLD.findall(text)) >= least, _emphasised),
    kind("parentheses", "emphasis", "", WORDING, one_number(1, 3),
        lambda least: f"Use at least {least} remark{'s'[: least > 1]} in round brackets.",
        lambda text, least: len(ROUND.findall(text)) >= least, _bracketed),
    kind("capital_words", "emphasis", "case", WORDING, one_number(2, 4),
        lambda least: f"Write at least {least} words in capital letters only.",
        lambda text, least: len(CAPITAL.findall(text)) >= least and text != text.upper(), _capitals),
    kind("no_commas", "punctuation", "commas", WORDING, lambda draw, topic: (),
        lambda: "Do not use any comma.", lambda text: bool(words(text)) and "," not in text, _without_commas),
    kind("no_digits", "punctuation", "digits", WORDING, lambda draw, topic: (),
        lambda: "Do not use any digit.", lambda text: bool(words(text)) and not re.search(r"\d", text),
        lambda draft: None),
    kind("questions", "punctuation", "last", WORDING, one_number(1, 3),
        lambda count: f"Ask exactly {count} question{'s'[: count > 1]} (with '?').",
        lambda text, count: text.count("?") == count, _asked),
    kind("exclamations", "punctuation", "", WORDING, one_number(1, 3),
        lambda least: f"Use at least {least} exclamation mark{'s'[: least > 1]}.",
        lambda text, least: text.count("!") >= least, _exclaimed),
    kind("semicolons", "punctuation", "length layout", WORDING, one_number(1, 2),
        lambda least: f"Use at least {least} semicolon{'s'[: least > 1]}.",
        lambda text, least: text.count(";") >= least, _linked),
    kind("title", "ends", "first", ENDS, lambda draw, topic: (),
        lambda: "Put a title in double angle brackets, as <<title>>, on the first line.",
        lambda text: TITLE.fullmatch((text.strip().splitlines() or [""])[0].strip()) is not None, _titled),
    kind("begins_with", "ends", "first", ENDS, lambda draw, topic: (draw.choice(FIRST),),
        lambda phrase: f"Begin with the words {phrase!r}",
        lambda text, phrase: text.lstrip().lower().startswith(phrase.lower()) and len(text.strip()) > len(phrase),
        lambda draft, phrase: setattr(draft, "text", f"{phrase} {draft.text}")),
    kind("ends_with", "ends", "last", ENDS, _placed,
        lambda phrase: f"End with the sentence {phrase!r}",
        lambda text, phrase: text.rstrip().lower().endswith(phrase.lower()) and len(text.strip()) > len(phrase),
        lambda draft, phrase: setattr(draft, "text", f"{draft.text} {phrase}")),
    kind("postscript", "ends", "last", ENDS, lambda draw, topic: (),
        lambda: "Add a postscript at the end that begins with 'P.S.'",
        lambda text: re.match(r"p\.s\. *\S", (paragraphs(text) or [""])[-1].splitlines()[-1], re.IGNORECASE) is not None
        if words(text) else False,
        lambda draft: setattr(draft, "text", f"{draft.text}\n\nP.S. Bring a friend along")),
    kind("quoted", "ends", "first last", ENDS, lambda draw, topic: (),
        lambda: "Wrap the whole answer in double quotation marks.",
        lambda text: len(text.strip()) > 2 and text.strip()[0] == text.strip()[-1] == '"' and text.count('"') == 2,
        lambda draft: setattr(draft, "text", f'"{draft.text}"')),
    kind("two_versions", "ends", "layout length first last", ENDS, lambda draw, topic: (),
        lambda: f"Give two different versions, separated by a line with {SEPARATOR} alone.", _twice, _make_twice),
    kind("lower_case", "case", "case", CASE, lambda draw, topic: (),
        lambda: "Use lower case only, no capital letters.",
        lambda text: bool(words(text)) and text == text.lower(),
        lambda draft: setattr(draft, "text", draft.text.lower())),
    kind("upper_case", "case", "case emphasis", CASE, lambda draw, topic: (),
        lambda: "Write everything in capital letters.",
        lambda text: bool(words(text)) and text == text.upper(),
        lambda draft: setattr(draft, "text", draft.text.upper())),
)  # fmt: skip
"""Sixteen kinds."""
