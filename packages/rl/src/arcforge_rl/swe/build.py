"""Builds instances: faults put into working code, and new tests of a release or change on the code before it."""

from __future__ import annotations

import hashlib
import json
import random
import re
import shutil
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from arcforge_core.errors import DataError
from arcforge_rl.layers.fetch import ensure
from arcforge_rl.layers.store import tree_hash
from arcforge_rl.swe.instance import FILE, Instance, read_text
from arcforge_rl.swe.languages.base import Language, files_of
from arcforge_rl.swe.leaks import leak
from arcforge_rl.swe.messages import class_by_tests, class_of, text_of
from arcforge_rl.swe.patches import Files, apply, diff
from arcforge_rl.swe.results import FAILED, PASSED, TestRun, stable, turned
from arcforge_rl.swe.running import RUNS, runs_of
from arcforge_rl.swe.setup import LEAST, reason_of
from arcforge_rl.swe.sources import copy_clean
from arcforge_rl.swe.statements import SHORT, forbidden, modules_of, statement_of

MOST_TURNED = 0.5
"""Share of the tests that one fault may break."""
TRIES = 20
"""Faults or changes that are tried for each instance that is wanted."""
COPY = "a copy of its code is installed, which passes tests"


@dataclass(frozen=True)
class Repository:
    """A repository from which instances are built, and their folder.

    Attributes:
        language: of the repository.
        name, version: of it.
        packages: that its tests need.
        to: folder of the environment.
        seconds: bound of one run of the tests.
        left_out: test files that its set-up leaves out; no run and no instance has them.
    """

    language: Language
    name: str
    version: str
    packages: Sequence[str]
    to: Path
    seconds: float
    left_out: Sequence[str] = ()


@dataclass(frozen=True)
class Origin:
    """Where a repair comes from.

    Attributes:
        kind: ``bug``, ``release``, ``patch`` or ``change``.
        base: hash of the commit before it; empty: that of the tree's files.
        created: its time.
        message: of its commit, from which class and text are taken, as far as it says them.
        classes: of changes that are wanted; others are refused.
        change: its class.
    """

    kind: str
    base: str = ""
    created: str = ""
    message: str = ""
    classes: Collection[str] = ()
    change: str = ""


@dataclass
class Tried:
    """Outcomes of the faults or changes that were tried.

    Attributes:
        of: that which was tried.
        made: instances.
        candidates: that could have been tried.
        refused: reason -> number of those that are no instance.
    """

    of: str = "faults"
    made: list[Instance] = field(default_factory=list)
    candidates: int = 0
    refused: Counter[str] = field(default_factory=Counter)

    @property
    def tried(self) -> int:
        """Number of those that were tried."""
        return len(self.made) + self.refused.total()

    def __str__(self) -> str:
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.refused.most_common())
        return f"{self.tried} of {self.candidates} {self.of} tried" + (f": {reasons}" if reasons else "")


async def inject(repo: Repository, tree: Path, count: int, seed: int, tries: int) -> Tried:
    """Puts faults into a repository, keeps those that tests notice, and writes them as instances.

    Args:
        repo: how its tests run.
        tree: the repository, whose tests pass.
        count: instances to make.
        seed: decides which faults are tried.
        tries: number of faults to try at most; each takes one to three runs of the tests.

    Raises:
        DataError: its own tests do not pass.
    """
    language, packages, seconds = repo.language, repo.packages, repo.seconds
    paths = [path for path in language.test_files(tree) if path not in repo.left_out]
    good = await runs_of(language, tree, {}, packages, paths, seconds)
    passing = {name for name, outcome in stable(good).items() if outcome == PASSED}
    if len(passing) < LEAST or not all(run.whole for run in good):
        raise DataError(f"{repo.name}: {reason_of(good[0], len(passing), ())}; its own tests are no baseline")
    bare = await without_code(repo, tree, {}, paths)
    modules = [path for path in files_of(tree) if language.is_code(path) and not language.not_code.search(path)]
    candidates = [(m, bug) for m in sorted(modules) for bug in language.bugs(read_text(tree / m) or "", f"{seed}/{m}")]
    random.Random(seed).shuffle(candidates)
    found = Tried(candidates=len(candidates))
    for module, bug in candidates[:tries]:
        if len(found.made) == count:
            break
        one = await _instance(repo, tree, {module: bug.text}, paths, passing, good, bare)
        if isinstance(one, Instance):
            found.made.append(one)
        else:
            found.refused[one] += 1
    return found


async def _instance(
    repo: Repository, tree: Path, files: Mapping[str, str], paths: Sequence[str], passing: set[str],
    good: Sequence[TestRun], bare: TestRun,
) -> Instance | str:  # fmt: skip
    """Writes the instance of a fault, or returns why it is none."""
    language, packages, seconds = repo.language, repo.packages, repo.seconds
    [first] = await runs_of(language, tree, files, packages, paths, seconds, (0,))
    broken = [name for name in passing if not first.passed(name)]
    if not broken:
        return "noticed by no test"
    if len(broken) > max(1, MOST_TURNED * len(passing)):
        return "broke too many tests"
    if any(bare.passed(name) for name in broken):
        return COPY
    before = [first, *await runs_of(language, tree, files, packages, paths, seconds, range(1, RUNS))]
    fixed, kept = turned(before, good)
    if not fixed or not kept:
        return "broke no test in every run, or kept none"
    if not all(run.whole for run in before):
        return "ended a run of the tests"
    gold = diff(files, {module: read_text(tree / module) for module in files})
    statement = statement_of(language, repo.name, fixed, before[0].texts, forbidden(gold))
    tests = {path: text for path in paths if (text := read_text(tree / path)) is not None}
    made = write(repo, tree, files, gold, fixed, kept, tests, statement, Origin("bug"))
    return made or "can be found in the repository"


async def without_code(repo: Repository, tree: Path, files: Files, paths: Sequence[str]) -> TestRun:
    """Returns a run of the tests without the repository's code: those that pass find a copy that is installed."""
    nothing = dict.fromkeys(code_of(repo.language, tree))
    [run] = await runs_of(repo.language, tree, {**files, **nothing}, repo.packages, paths, repo.seconds, (0,))
    return run


async def compare(repo: Repository, old: Path, new: Path, origin: Origin) -> Instance:
    """Makes an instance of two states of a repository: the later one's tests on the earlier one's code.

    Raises:
        DataError: no test is turned, none is kept (a baseline that fails wholesale), or the repair can be found.
    """
    made = await compared(repo, old, new, origin)
    if isinstance(made, str):
        raise DataError(f"{repo.name} {repo.version}: {made}")
    return made


async def compared(repo: Repository, old: Path, new: Path, origin: Origin) -> Instance | str:
    """Writes the instance of `compare`, or returns why there is none."""
    language, packages, seconds = repo.language, repo.packages, repo.seconds
    supporting = [path for path in files_of(new) if language.is_test(path) and path not in repo.left_out]
    support = {path: text for path in supporting if (text := read_text(new / path)) is not None}
    paths = sorted(path for path in support if language.takes(path))
    if not paths:
        return "has no tests"
    before_code, after_code = code_of(language, old), code_of(language, new)
    gold = diff(before_code, after_code)
    if not gold:
        return f"the {origin.kind} changes no code"
    repaired = {**support, **apply(gold, before_code)}
    before, after = list[TestRun](), list[TestRun]()
    for numbers in ((0,), range(1, RUNS)):  # most pairs are refused after one run of each
        before += await runs_of(language, old, support, packages, paths, seconds, numbers)
        after += await runs_of(language, old, repaired, packages, paths, seconds, numbers)
        fixed, kept = turned(before, after)
        if not fixed:
            return "no test fails before and passes after"
        if not kept:
            return "no test passes in both, so that the baseline fails wholesale"
    if not all(run.whole for run in [*before, *after]):
        return next(run.reason for run in [*before, *after] if not run.whole)
    names = language.required_names([support[path] for path in paths], {**dict.fromkeys(after_code), **before_code})
    if origin.kind == "change":
        failed = [test for test in fixed if before[0].outcomes.get(test) == FAILED and _was_there(test, old)]
        origin = replace(origin, change=class_of(origin.message) or class_by_tests(failed, names))
        if origin.change not in origin.classes:
            return f"is of class {origin.change}"
    bare = await without_code(repo, old, support, paths)
    if any(bare.passed(name) for name in fixed):
        return COPY
    said = text_of(origin.message, forbidden(gold, SHORT) | modules_of(gold))
    statement = statement_of(language, repo.name, fixed, before[0].texts, forbidden(gold), names, said)
    hidden = {p: text for p, text in support.items() if language.takes(p) or text != read_text(old / p)}
    one = write(repo, old, {}, gold, fixed, kept, hidden, statement, origin)
    return one or "the repair can be found in its files"


def _was_there(test: str, old: Path) -> bool:
    """Returns whether a file of the earlier state has the name of a test."""
    path, _, name = test.partition("::")
    own = re.sub(r"\[.*", "", name).split("::")[-1]
    return re.search(rf"(?<!\w){re.escape(own)}(?!\w)", read_text(old / path) or "") is not None


def code_of(language: Language, tree: Path) -> dict[str, str | None]:
    """Returns the files of a repository that a repair may change."""
    return {path: read_text(tree / path) for path in files_of(tree) if language.is_code(path)}


def write(
    repo: Repository, tree: Path, files: Files, gold: str, fixed: Sequence[str], kept: Sequence[str],
    tests: Mapping[str, str], statement: str, origin: Origin,
) -> Instance | None:  # fmt: skip
    """Writes a tree without its telling tests, and the instance; None if the repair can be found there.

    Args:
        repo: the source.
        tree: the repository before the repair, apart from `files`.
        files: that replace the tree's; the fault.
        gold: the repair.
        fixed, kept: tests that it turns, and those that it keeps.
        tests: files that the verifier lays over the solver's work.
        statement: text of the task.
        origin: of the repair.
    """
    digest = hashlib.sha256(f"{repo.name} {repo.version} {gold}".encode()).hexdigest()[:10]
    name = f"{repo.name.replace('/', '-')}-{repo.version or '0'}-{digest}"
    target = repo.to / "trees" / name
    if target.exists():
        shutil.rmtree(target)
    copy_clean(tree, target, repo.language.left_out)
    for path, text in files.items():
        (target / path).write_text(text or "")
    telling = {test.split("::")[0] for test in fixed}
    old = {path: read_text(tree / path) for path in telling}
    for path in telling:
        (target / path).unlink(missing_ok=True)
    sites = [repo.language.site(repo.packages)] if repo.packages else []
    installed, tools = ([ensure(one).folder / "tree" for one in recipes] for recipes in (sites, repo.language.tools()))
    if leak([target, *installed], gold, tools):
        shutil.rmtree(target)
        return None
    base = origin.base or tree_hash(target)[:40]
    test_patch = diff(dict.fromkeys(old), {path: tests[path] for path in telling if path in tests})
    recipe = ({"name": "swe-site", "packages": list(repo.packages)},) if repo.packages else ()
    one = Instance(
        name, repo.name, base, gold, test_patch, statement, tuple(fixed), tuple(kept), version=repo.version,
        tree=name, tests=tests, layers=recipe, kind=origin.kind, language=repo.language.name,
        created_at=origin.created, change=origin.change,
    )  # fmt: skip
    with (repo.to / FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(one.as_row()) + "\n")
    return one
