"""Beam search for the layers that need no more than a sliding window (spec 3.5).

Every layer starts as F, full attention. A step gives a window (S) to a few more layers of each pattern in the beam, any
of those that are still F, and keeps the best patterns. With two layers a step, a beam of 8 and windows in half of 40
layers these are the paper's ten steps. Everything is a function of the scores: no chance, and ties go to the pattern
that comes first in the alphabet.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arcforge_core.cli.progress import track
from arcforge_core.errors import ConfigError, DataError

FILE = "swa_search.json"
SCHEMA = 1

Score = tuple[float, ...]
"""Higher is better; later numbers decide where the earlier ones are equal."""


@dataclass(frozen=True)
class Step:
    """A finished step.

    Attributes:
        windows: layers with a window in its patterns.
        candidates: patterns that were compared.
        beam: those that were kept, best first.
    """

    windows: int
    candidates: int
    beam: tuple[str, ...]


@dataclass
class SearchResult:
    """What a search has found so far.

    Attributes:
        scores: of every pattern that was scored, in that order.
        steps: finished ones; the first is the pattern without windows.
        pattern: the best one with all windows; empty before the last step is finished.
    """

    scores: dict[str, Score]
    steps: list[Step]
    pattern: str = ""


def search_pattern(
    score: Callable[[str], Score],
    num_layers: int,
    *,
    windows: int,
    beam: int = 8,
    layers_per_step: int = 2,
    known: Mapping[str, Score] | None = None,
    keep: Callable[[SearchResult], None] | None = None,
) -> SearchResult:
    """Searches for the pattern with the best score; a pattern is scored once.

    Args:
        score: called with a letter, S or F, for each layer.
        num_layers: letters of a pattern.
        windows: S in the pattern that is found, between 1 and `num_layers`.
        beam: patterns that are kept after each step. With as many as there are the search is exhaustive.
        layers_per_step: F that become S in each step; the last one takes what is left.
        known: scores of an earlier search, which are not computed again.
        keep: called after every new score with the result so far.
    """
    known = known or {}
    scores: dict[str, Score] = {}
    steps: list[Step] = []
    candidates = ["F" * num_layers]
    counts = step_windows(windows, layers_per_step)
    for step, count in enumerate(counts):
        for pattern in track(candidates, f"step {step} of {len(counts) - 1}, patterns with {count} windows"):
            scores[pattern] = known[pattern] if pattern in known else score(pattern)
            if keep is not None and pattern not in known:
                keep(SearchResult(scores, steps))
        beam_patterns = ranked(candidates, scores)[:beam]
        steps.append(Step(count, len(candidates), tuple(beam_patterns)))
        if count < windows:
            candidates = extensions(beam_patterns, counts[step + 1] - count)
    return SearchResult(scores, steps, beam_patterns[0])


def checked_windows(window_layers: int | None, num_layers: int) -> int:
    """Returns how many layers get a window; None is half of them, rounded down.

    Raises:
        ConfigError: there are not so many layers.
    """
    windows = num_layers // 2 if window_layers is None else window_layers
    if not 1 <= windows <= num_layers:
        raise ConfigError("window_layers", window_layers, f"must be between 1 and the model's {num_layers} layers")
    return windows


def step_windows(windows: int, layers_per_step: int) -> list[int]:
    """Returns the number of windows after each step, 0 before the first."""
    return [*range(0, windows, layers_per_step), windows]


def extensions(patterns: Iterable[str], count: int) -> list[str]:
    """Returns each pattern with `count` more windows in all places, every result once, in alphabetical order."""
    found = set()
    for pattern in patterns:
        free = [index for index, letter in enumerate(pattern) if letter == "F"]
        for chosen in itertools.combinations(free, count):
            found.add("".join("S" if index in chosen else letter for index, letter in enumerate(pattern)))
    return sorted(found)


def ranked(patterns: Iterable[str], scores: Mapping[str, Score]) -> list[str]:
    """Returns the patterns, best first; equals in alphabetical order."""
    return sorted(patterns, key=lambda pattern: (tuple(-number for number in scores[pattern]), pattern))


def most_scores(num_layers: int, windows: int, beam: int, layers_per_step: int) -> int:
    """Returns how many patterns are scored at most."""
    total, parents = 1, 1
    for before, after in itertools.pairwise(step_windows(windows, layers_per_step)):
        reached = min(parents * math.comb(num_layers - before, after - before), math.comb(num_layers, after))
        total, parents = total + reached, min(beam, reached)
    return total


def write_result(folder: Path, settings: Mapping[str, Any], result: SearchResult) -> None:
    """Writes ``swa_search.json``; a process that dies leaves the former one."""
    content = {
        "schema": SCHEMA,
        "settings": settings,
        "pattern": result.pattern,
        "score": result.scores.get(result.pattern),
        "steps": [{"windows": s.windows, "candidates": s.candidates, "beam": s.beam} for s in result.steps],
        "scores": result.scores,
    }
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{FILE}.partial"
    partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    os.replace(partial, folder / FILE)


def read_scores(folder: Path, settings: Mapping[str, Any]) -> dict[str, Score]:
    """Returns the scores of an earlier search in a folder; none when there was none.

    Raises:
        DataError: the file is damaged, or it is another search.
    """
    path = folder / FILE
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found = dict(content["settings"])
        scores = {str(pattern): tuple(map(float, score)) for pattern, score in content["scores"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: damaged, delete it to start anew: {type(error).__name__}: {error}") from error
    differing = [name for name in settings if found.get(name) != settings[name]]
    if differing:
        was = ", ".join(f"{name}={found.get(name)!r} (now {settings[name]!r})" for name in differing)
        raise DataError(f"{path} holds another search: {was}; choose another output")
    return scores
