"""Set-up of repositories: packages that they declare, then those that tests miss; every attempt has its reason."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from arcforge_rl.layers.store import LayerError
from arcforge_rl.layers.unknown import unknown_packages
from arcforge_rl.swe.languages.base import Language
from arcforge_rl.swe.results import FAILED, PASSED, TestRun
from arcforge_rl.swe.running import runs_of

LEAST = 3
"""Tests that must pass before a repository is used."""
TRIES = 4
"""Attempts at a set-up, besides those that a registry refuses as it does not know a package."""
RULES, AGENT = "rules", "agent"
NOT_SET_UP = "cannot be set up"


@dataclass(frozen=True)
class Attempt:
    """One attempt at a set-up.

    Attributes:
        packages: that were shown.
        reason: why it failed; empty for success.
        by: who chose the packages, `RULES` or `AGENT`.
        left_out: test files that were not run.
    """

    packages: tuple[str, ...]
    reason: str
    by: str = RULES
    left_out: tuple[str, ...] = ()


async def set_up(language: Language, tree: Path, seconds: float) -> tuple[tuple[str, ...], list[Attempt]]:
    """Returns the packages with which a repository's tests run, and the attempts; the last one says why it failed.

    Rules come first; then what a run misses is added, as long as that helps. Packages that a registry does not know are
    left out.
    """
    paths, attempts = language.test_files(tree), list[Attempt]()
    if not paths:
        return (), [Attempt((), "it has no tests")]
    packages: tuple[str, ...] = ()
    rules, unknown = tuple(language.declared(tree)), set[str]()
    own = own_names(tree)
    while len(attempts) < TRIES + len(unknown):
        try:
            [run] = await runs_of(language, tree, {}, packages, paths, seconds, (0,))
        except LayerError as error:
            attempts.append(Attempt(packages, str(error)))
            named = [name for name in unknown_packages(str(error)) if name in packages]
            if not named:
                return packages, attempts
            unknown |= {*named}
            packages = tuple(name for name in packages if name not in unknown)
            continue
        lost = [name for name in language.missed(run) if name not in {*packages, *unknown, *own}]
        good = works(run) and not lost
        attempts.append(Attempt(packages, "" if good else reason_of(run, passing(run), lost)))
        further = tuple(sorted({*packages, *rules, *lost} - unknown - own))
        if good or further == packages:
            break
        packages = further
    return packages, attempts


def own_names(tree: Path) -> set[str]:
    """Returns names of a repository's own modules: no copy of them is installed."""
    return {path.stem for folder in ("", "src", "lib") for path in (tree / folder).glob("*")}


def passing(run: TestRun) -> int:
    """Returns the number of tests that pass."""
    return sum(outcome == PASSED for outcome in run.outcomes.values())


def works(run: TestRun) -> bool:
    """Returns whether a run is a baseline: it ended by itself, `LEAST` tests pass, and half of all."""
    return run.whole and passing(run) >= max(LEAST, len(run.outcomes) / 2)


def reason_of(run: TestRun, passed: int, lost: Sequence[str]) -> str:
    """Returns why a run is no baseline."""
    if lost:
        return f"packages are missing: {', '.join(lost)}"
    if not run.whole:
        return run.reason
    failed = sum(outcome == FAILED for outcome in run.outcomes.values())
    told = f"{passed} tests pass, {failed} fail, {len(run.uncollected)} files cannot be collected"
    return f"{told}; at least {LEAST} must pass, and half of all"


def log_attempts(path: Path, repo: str, language: str, attempts: Sequence[Attempt]) -> None:
    """Appends attempts to a file, one JSON line each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        for one in attempts:
            file.write(json.dumps({"repo": repo, "language": language, **asdict(one)}) + "\n")
