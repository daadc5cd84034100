"""Names of a repository that only its tests know, in JavaScript and TypeScript."""

from __future__ import annotations

import re
from collections.abc import Iterable

from arcforge_rl.swe.languages.base import first_unknown
from arcforge_rl.swe.patches import Files

TAKEN = re.compile(
    r"(?:import|const|let|var)\s+(?:type\s+)?(?:(\w+)\s*,\s*)?(?:\{([^}]*)\}|(?:\*\s*as\s+)?(\w+))"
    r"\s*(?:=\s*require\(|from\s*)['\"]\."
)
"""A test takes from a module of the repository: a default, names, or a whole."""


def required_names(tests: Iterable[str], code: Files) -> list[str]:
    """Returns names that tests take from the repository's modules, at any depth (``whole.a.b``), and no code has."""
    known = set(re.findall(r"[\w$]+", " ".join(text or "" for text in code.values())))
    wanted: set[str] = set()
    for text in tests:
        for default, names, whole in TAKEN.findall(text):
            taken = set(re.findall(r"(\w+)\s*(?:[:,]|\bas\b|$)", names))
            wanted |= taken
            for base in {default, whole, *taken} - {""}:
                for chain in re.findall(rf"(?<![\w$.]){base}((?:\.\w+)+)", text):
                    wanted |= set(first_unknown(chain.strip(".").split("."), known))
    return sorted(wanted - known - BUILT_IN)


OWN = """
    apply at bind call catch charAt charCodeAt concat constructor description endsWith entries every filter finally find
    findIndex flat flatMap forEach get has includes indexOf join keys lastIndexOf length map match matchAll message name
    normalize padEnd padStart pop prototype push reduce repeat replace replaceAll reverse set shift size slice some sort
    splice split stack startsWith substring then toFixed toISOString toString toUpperCase toLowerCase trim unshift
    values valueOf
"""
BUILT_IN = frozenset(OWN.split())
"""Properties of JavaScript's own values."""
