"""The languages that are registered, by name and by the files of a repository."""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path

from arcforge_core.errors import DataError
from arcforge_core.plugins.loader import registry
from arcforge_rl.swe.languages.base import Language

KIND = "swe_language"


@functools.cache
def language_of(name: str) -> Language:
    """Returns a language.

    Raises:
        UnknownComponentError: it is not registered.
    """
    language: Language = registry().get(KIND, name).load()()
    return language


def language_in(tree: Path) -> Language:
    """Returns the language of most source files of a repository.

    Raises:
        DataError: it has none of a known language.
    """
    languages = [language_of(name) for name in registry().names(KIND)]
    names = [path.name for path in tree.rglob("*") if path.is_file()]
    counts = Counter({one.name: sum(name.endswith(one.suffixes) for name in names) for one in languages})
    name, count = counts.most_common(1)[0]
    if not count:
        raise DataError(f"{tree.name} has no source file of {', '.join(counts)}")
    return language_of(name)
