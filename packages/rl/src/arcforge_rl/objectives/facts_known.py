"""Known facts: capitals, elements, status codes and entities of the web, numbers of things."""

from __future__ import annotations

import functools
import html.entities
import http
import mimetypes
import random
from collections.abc import Mapping
from dataclasses import dataclass

from arcforge_rl.environments.science_problems import ELEMENTS

CAPITALS = """Argentina Buenos Aires|Australia Canberra|Austria Vienna|Belgium Brussels|Brazil Brasilia|Bulgaria Sofia
Canada Ottawa|Chile Santiago|China Beijing|Colombia Bogota|Croatia Zagreb|Cuba Havana|Cyprus Nicosia|Denmark Copenhagen
Ecuador Quito|Egypt Cairo|Estonia Tallinn|Ethiopia Addis Ababa|Finland Helsinki|France Paris|Germany Berlin|Ghana Accra
Greece Athens|Hungary Budapest|Iceland Reykjavik|India New Delhi|Indonesia Jakarta|Iran Tehran|Iraq Baghdad
Ireland Dublin|Italy Rome|Jamaica Kingston|Japan Tokyo|Jordan Amman|Kenya Nairobi|Latvia Riga|Lebanon Beirut
Lithuania Vilnius|Malaysia Kuala Lumpur|Malta Valletta|Mexico Mexico City|Mongolia Ulaanbaatar|Morocco Rabat
Nepal Kathmandu|Norway Oslo|Pakistan Islamabad|Peru Lima|Philippines Manila|Poland Warsaw|Portugal Lisbon
Romania Bucharest|Russia Moscow|Senegal Dakar|Serbia Belgrade|Slovenia Ljubljana|Somalia Mogadishu|Spain Madrid
Sudan Khartoum|Sweden Stockholm|Thailand Bangkok|Tunisia Tunis|Turkey Ankara|Uganda Kampala|Ukraine Kyiv
Uruguay Montevideo|Venezuela Caracas|Vietnam Hanoi|Yemen Sanaa|Zambia Lusaka|Zimbabwe Harare"""
SYLLABLES = (
    "bra", "dol", "fen", "gim", "hul", "jor", "kel", "lum", "mav", "nor", "pel", "quo", "rin", "sul", "tov", "wex"
)  # fmt: skip


@dataclass(frozen=True)
class FactSource:
    """Facts of one kind.

    Attributes:
        what: noun for the answer.
        wordings: questions with a place for the subject.
        pairs: subjects and answers.
    """

    what: str
    wordings: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...]


def invented(draw: random.Random) -> str:
    """Returns a name that nothing has."""
    return "".join(draw.sample(SYLLABLES, 3)).capitalize() + draw.choice(("ia", "um", "land", "or"))


def _capitals() -> tuple[tuple[str, str], ...]:
    rows = CAPITALS.replace("\n", "|").split("|")
    return tuple((country, capital) for country, capital in (row.split(" ", 1) for row in rows))


@functools.cache
def _types() -> tuple[tuple[str, str], ...]:
    known = mimetypes.MimeTypes(()).types_map[1]  # of the library alone, not of this machine
    wanted = (".html", ".css", ".csv", ".pdf", ".png", ".gif", ".jpg", ".json", ".txt", ".zip", ".tar", ".mp3", ".wav",
              ".mp4", ".avi", ".svg", ".xml", ".js", ".doc", ".bmp")  # fmt: skip
    return tuple((extension, known[extension]) for extension in wanted)


ENTITIES = (
    "amp", "lt", "gt", "nbsp", "copy", "reg", "euro", "pound", "yen", "cent", "deg", "plusmn", "times", "divide",
    "frac12", "para", "sect", "micro", "alpha", "beta", "gamma", "delta", "pi", "sigma", "omega", "infin", "sum",
)  # fmt: skip
QUESTIONS: Mapping[str, FactSource] = {
    "capital": FactSource("name", ("What is the capital of {}?", "Which city is the capital of {}?"), _capitals()),
    "symbol": FactSource("symbol", ("What is the symbol of the element {}?",),
        tuple((name.capitalize(), symbol) for name, (symbol, _, _) in ELEMENTS.items())),
    "number": FactSource(
        "number", ("What is the atomic number of {}?",),
        tuple((name.capitalize(), str(number)) for name, (_, number, _) in ELEMENTS.items())),
    "status": FactSource(
        "number", ("Which HTTP status code has the phrase {}?",),
        tuple((status.phrase, str(status.value)) for status in http.HTTPStatus if status.value >= 200)),
    "entity": FactSource(
        "number", ("Which code point does the HTML entity {} name, in decimal?",),
        tuple((name, str(html.entities.name2codepoint[name])) for name in ENTITIES)),
    "media_type": FactSource("type", ("Which media type do files have whose names end with {}?",), _types()),
}  # fmt: skip
"""Kinds of facts."""
