"""Beam search for the layers that need only a sliding window (spec 3.5).

Every layer starts as F, full attention. A step gives a window (S) to a few more F layers of each pattern in the beam,
in all combinations, and keeps the best patterns. With two layers per step, a beam of 8 and windows in half of 40 layers
these are the paper's ten steps. The search is a deterministic function of the scores; ties go to the pattern that comes
first in alphabetical order.
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

from arcforge_core.console.progress import track
from arcforge_core.errors import ConfigError, DataError

FILE = "swa_search.json"
SCHEMA = 1

Score = tuple[float, ...]
"""Higher is better; later numbers break ties of earlier ones."""


@dataclass(frozen=True)
class SearchStep:
    """A finished step.

    Attributes:
        windows: number of layers with a window in its patterns.
        candidates: number of patterns that were compared.
        beam: the kept patterns, best first.
    """

    windows: int
    candidates: int
    beam: tuple[str, ...]


@dataclass
class SearchResult:
    """The result of a search so far.

    Attributes:
        scores: score of every pattern, in the order of evaluation.
        steps: finished ones; the first is the pattern without windows.
        pattern: the best one with all windows; empty before the last step is finished.
    """

    scores: dict[str, Score]
    steps: list[SearchStep]
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
    """Searches for the pattern with the best score; scores each pattern once.

    Args:
        score: called with one letter, S or F, per layer.
        num_layers: number of letters in a pattern.
        windows: number of S in the resulting pattern, between 1 and `num_layers`.
        beam: patterns kept after each step. If it is the number of all patterns, the search is exhaustive.
        layers_per_step: F layers that become S in each step; the last step takes the rest.
        known: scores of an earlier search, which are not computed again.
        keep: called after every new score with the result so far.
    """
    known = known or {}
    scores: dict[str, Score] = {}
    steps: list[SearchStep] = []
    candidates = ["F" * num_layers]
    counts = step_windows(windows, layers_per_step)
    for step, count in enumerate(counts):
        for pattern in track(candidates, f"step {step} of {len(counts) - 1}, patterns with {count} windows"):
            scores[pattern] = known[pattern] if pattern in known else score(pattern)
            if keep is not None and pattern not in known:
                keep(SearchResult(scores, steps))
        beam_patterns = ranked(candidates, scores)[:beam]
        steps.append(SearchStep(count, len(candidates), tuple(beam_patterns)))
        if count < windows:
            candidates = extensions(beam_patterns, counts[step + 1] - count)
    return SearchResult(scores, steps, beam_patterns[0])


def checked_windows(window_layers: int | None, num_layers: int) -> int:
    """Returns the number of layers that get a window; None means half of them, rounded down.

    Raises:
        ConfigError: the model has fewer layers.
    """
    windows = num_layers // 2 if window_layers is None else window_layers
    if not 1 <= windows <= num_layers:
        raise ConfigError("window_layers", window_layers, f"must be between 1 and the model's {num_layers} layers")
    return windows


def step_windows(windows: int, layers_per_step: int) -> list[int]:
    """Returns the number of windows after each step, 0 before the first."""
    return [*range(0, windows, layers_per_step), windows]


def extensions(patterns: Iterable[str], count: int) -> list[str]:
    """Returns each pattern with `count` more windows, in all combinations, each once, in alphabetical order."""
    found = set()
    for pattern in patterns:
        free = [index for index, letter in enumerate(pattern) if letter == "F"]
        for chosen in itertools.combinations(free, count):
            found.add("".join("S" if index in chosen else letter for index, letter in enumerate(pattern)))
    return sorted(found)


def ranked(patterns: Iterable[str], scores: Mapping[str, Score]) -> list[str]:
    """Returns the patterns, best first; ties in alphabetical order."""
    return sorted(patterns, key=lambda pattern: (tuple(-number for number in scores[pattern]), pattern))


def most_scores(num_layers: int, windows: int, beam: int, layers_per_step: int) -> int:
    """Returns the maximum number of patterns that are scored."""
    total, parents = 1, 1
    for before, after in itertools.pairwise(step_windows(windows, layers_per_step)):
        reached = min(parents * math.comb(num_layers - before, after - before), math.comb(num_layers, after))
        total, parents = total + reached, min(beam, reached)
    return total


def write_result(folder: Path, settings: Mapping[str, Any], result: SearchResult) -> None:
    """Writes ``swa_search.json`` atomically: a process that dies leaves the previous file."""
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
    """Returns the scores of an earlier search in a folder; empty if there was none.

    Raises:
        DataError: the file is damaged, or it is of a different search.
    """
    path = folder / FILE
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found = dict(content["settings"])
        scores = {str(pattern): tuple(map(float, score)) for pattern, score in content["scores"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is damaged; delete it to start over: {type(error).__name__}: {error}") from error
    differing = [name for name in settings if found.get(name) != settings[name]]
    if differing:
        was = ", ".join(f"{name}={found.get(name)!r} (now {settings[name]!r})" for name in differing)
        raise DataError(f"{path} contains a different search: {was}; choose another output")
    return scores
