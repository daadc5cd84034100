"""Signed runs: a program inside a sandbox reports tests in signed lines, and planted tests keep it honest."""

from __future__ import annotations

import json
import random
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from arcforge_core.contracts.sandbox import Command, CommandStatus, SandboxLimits
from arcforge_rl.swe.languages.base import WORKDIR, RunRequest
from arcforge_rl.swe.results import FAILED, TestRun, read_run

WORDS = (
    "values", "empty", "nested", "order", "default", "string", "unicode", "copy", "none", "repeat", "limits", "types",
)  # fmt: skip


FEW = 600
"""Files whose names three words tell apart in few draws; more files have names of more words."""


@dataclass(frozen=True)
class Wrong:
    """A planted assertion: two lists that are not equal.

    Attributes:
        words: name of its test.
        made, wanted: whole numbers below 200; the last of `wanted` is greater than that of `made`.
        kind: name of the assertion.
    """

    words: tuple[str, ...]
    made: tuple[int, ...]
    wanted: tuple[int, ...]
    kind: str

    def fill(self, text: str, **more: str) -> str:
        """Returns a text with ``{made}`` and ``{wanted}``, and their last numbers as ``{a}`` and ``{b}``."""
        return text.format(made=[*self.made], wanted=[*self.wanted], a=self.made[-1], b=self.wanted[-1], **more)


Maker = Callable[[tuple[str, ...], Sequence[Wrong], Sequence[str]], tuple[str, str]]
"""Returns name and text of a planted file, from words for its name, its tests, and the texts of the tests beside it."""


def kinds_in(texts: Iterable[str], known: Collection[str], default: str) -> list[str]:
    """Returns the assertions that tests use, of those that can be planted; `default` if there are none.

    Args:
        texts: of the tests.
        known: names that a test says when it uses the assertion.
        default: one of them.
    """
    return sorted({word for text in texts for word in re.findall(r"\w+", text)} & {*known}) or [default]


def planted(kinds: Sequence[str], taken: Collection[tuple[str, ...]] = ()) -> tuple[tuple[str, ...], list[Wrong]]:
    """Returns the words of a file's name, and two or more assertions that fail; no two draws are alike.

    Args:
        kinds: names of assertions, each of which is used.
        taken: words of other files, which must differ.
    """
    draw = random.SystemRandom()
    count, names = max(draw.randint(2, 5), len(kinds)), set[tuple[str, ...]]()
    while len(names) < count:
        names.add(tuple(draw.sample(WORDS, draw.randint(2, 3))))
    mixed = [*kinds, *draw.choices(kinds, k=count - len(kinds))]
    tests = []
    for words, kind in zip(draw.sample(sorted(names), count), draw.sample(mixed, count), strict=True):
        made = [draw.randint(0, 99) for _ in range(draw.randint(1, 4))]
        tests.append(Wrong(words, tuple(made), (*made[:-1], made[-1] + draw.randint(1, 9)), kind))
    length = min(3 + len(taken) // FEW, len(WORDS))
    while (file := tuple(draw.sample(WORDS, length))) in taken:
        continue
    return file, tests


async def plant_in_folders(request: RunRequest, known: Collection[str], default: str, make: Maker) -> dict[str, int]:
    """Plants a file of failing tests in each folder of tests, no two of one name; none in a run without canaries.

    Args:
        request: of the run.
        known, default: see `kinds_in`.
        make: returns name and text of a file.

    Returns:
        Number of tests by path.
    """
    counts, taken, beside = dict[str, int](), set[tuple[str, ...]](), dict[str, list[str]]()
    for path in request.paths if request.canaries else ():
        beside.setdefault(str(PurePosixPath(path).parent), []).append(path)
    for folder, paths in sorted(beside.items()):
        texts = [text for path in paths if (text := await request.text(path)) is not None]
        words, tests = planted(kinds_in(texts, known, default), taken)
        taken.add(words)
        name, text = make(words, tests, texts)
        path = str(PurePosixPath(folder) / name)
        await request.sandbox.write(f"{WORKDIR}/{path}", text.encode())
        counts[path] = len(tests)
    return counts


def without_planted(run: TestRun, files: Mapping[str, int]) -> TestRun:
    """Returns a run without its planted tests; not whole unless each of them is reported as failed.

    Args:
        run: with all tests.
        files: planted file -> number of its tests.
    """
    seen = {test: outcome for test, outcome in run.outcomes.items() if test.split("::")[0] in files}
    rest = {test: outcome for test, outcome in run.outcomes.items() if test not in seen}
    if len(seen) != sum(files.values()) or any(outcome != FAILED for outcome in seen.values()):
        return replace(run, outcomes=rest, whole=False, reason="a planted test that fails was not reported as failed")
    return replace(run, outcomes=rest)


def without_inserted(run: TestRun, tests: Mapping[str, Collection[str]]) -> TestRun:
    """Returns a run without tests that were planted in test files; not whole unless each is reported as failed.

    A file of which nothing is reported, as it could not be collected, needs none.

    Args:
        run: with all tests.
        tests: file -> names of the tests planted in it.
    """
    names = {f"{file}::{name}" for file, inside in tests.items() for name in inside}
    rest = {test: outcome for test, outcome in run.outcomes.items() if test not in names}
    reported = {test.split("::")[0] for test in run.outcomes}
    wanted = {name for name in names if name.split("::")[0] in reported}
    if any(run.outcomes.get(name) != FAILED for name in wanted):
        return replace(run, outcomes=rest, whole=False, reason="a planted test that fails was not reported as failed")
    return replace(run, outcomes=rest)


async def signed_run(
    request: RunRequest, limits: SandboxLimits, argv: Sequence[str], given: Mapping[str, Any]
) -> TestRun:
    """Runs a program that reads a JSON object with ``key`` and reports tests as `read_run` wants them.

    Args:
        request: the run.
        limits: of the language.
        argv: the program.
        given: the object, without its key.

    Raises:
        SandboxFault: the sandbox broke.
    """
    key = secrets.token_hex(32)
    limits = replace(limits, wall_seconds=request.seconds, cpu_seconds=request.seconds)
    text = json.dumps({"key": key, **given}).encode()
    done = await request.sandbox.exec(Command(argv, text, cwd=WORKDIR, limits=limits))
    run = read_run(done.stdout, key)
    if run.whole:
        return run
    late = done.outcome is CommandStatus.TIMEOUT
    how = "" if done.ok else f" ({done.outcome.value} {done.code})"
    return replace(run, reason=f"{run.reason}{how}", late=late)
