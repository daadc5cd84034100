"""Builds instances: faults put into working code, and new tests of a release on the code of the one before."""

from __future__ import annotations

import hashlib
import json
import random
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from arcforge_core.errors import DataError
from arcforge_rl.layers.fetch import ensure
from arcforge_rl.layers.store import tree_hash
from arcforge_rl.swe.instance import FILE, Instance, read_text
from arcforge_rl.swe.languages.base import Language, files_of
from arcforge_rl.swe.patches import Files, apply, diff
from arcforge_rl.swe.results import PASSED, TestRun, stable, turned
from arcforge_rl.swe.running import RUNS, runs_of
from arcforge_rl.swe.setup import LEAST, reason_of
from arcforge_rl.swe.sources import copy_clean

MOST_TURNED = 0.5
"""Share of the tests that one fault may break."""
TRIES = 20
"""Faults that are tried for each instance that is wanted."""
COPY = "a copy of its code is installed, which passes tests"
LONG = 20
"""Characters of a line that tells a repair."""


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


@dataclass
class Injected:
    """Outcomes of the faults that were tried.

    Attributes:
        made: instances.
        candidates: faults that could have been tried.
        refused: reason -> tried faults that are no instance.
    """

    made: list[Instance] = field(default_factory=list)
    candidates: int = 0
    refused: Counter[str] = field(default_factory=Counter)

    @property
    def tried(self) -> int:
        """Number of faults that were tried."""
        return len(self.made) + self.refused.total()

    def __str__(self) -> str:
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.refused.most_common())
        return f"{self.tried} of {self.candidates} faults tried" + (f": {reasons}" if reasons else "")


async def inject(repo: Repository, tree: Path, count: int, seed: int, tries: int) -> Injected:
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
    found = Injected(candidates=len(candidates))
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
    [module] = files
    gold = diff(files, {module: read_text(tree / module)})
    statement = statement_of(repo, fixed, before[0].texts, forbidden(module, gold))
    tests = {path: text for path in paths if (text := read_text(tree / path)) is not None}
    return write(repo, tree, files, gold, fixed, kept, tests, statement, "bug") or "can be found in the repository"


async def without_code(repo: Repository, tree: Path, files: Files, paths: Sequence[str]) -> TestRun:
    """Returns a run of the tests without the repository's code: those that pass find a copy that is installed."""
    nothing = dict.fromkeys(code_of(repo.language, tree))
    [run] = await runs_of(repo.language, tree, {**files, **nothing}, repo.packages, paths, repo.seconds, (0,))
    return run


async def compare(repo: Repository, old: Path, new: Path, kind: str = "release") -> Instance:
    """Makes an instance of two releases: the later one's tests on the earlier one's code.

    Raises:
        DataError: no test is turned, none is kept (a baseline that fails wholesale), or the repair can be found.
    """
    language, packages, seconds = repo.language, repo.packages, repo.seconds
    what = f"{repo.name} {repo.version}"
    supporting = [path for path in files_of(new) if language.is_test(path) and path not in repo.left_out]
    support = {path: text for path in supporting if (text := read_text(new / path)) is not None}
    paths = sorted(path for path in support if language.takes(path))
    if not paths:
        raise DataError(f"{what}: has no tests")
    before_code, after_code = code_of(language, old), code_of(language, new)
    gold = diff(before_code, after_code)
    if not gold:
        raise DataError(f"{what}: its code is that of the release before")
    repaired = {**support, **apply(gold, before_code)}
    before, after = list[TestRun](), list[TestRun]()
    for numbers in ((0,), range(1, RUNS)):  # most pairs are refused after one run of each
        before += await runs_of(language, old, support, packages, paths, seconds, numbers)
        after += await runs_of(language, old, repaired, packages, paths, seconds, numbers)
        fixed, kept = turned(before, after)
        if not fixed:
            raise DataError(f"{what}: no test fails before and passes after")
        if not kept:
            raise DataError(f"{what}: no test passes in both, so that the baseline fails wholesale")
    if not all(run.whole for run in [*before, *after]):
        raise DataError(f"{what}: {next(run.reason for run in [*before, *after] if not run.whole)}")
    bare = await without_code(repo, old, support, paths)
    if any(bare.passed(name) for name in fixed):
        raise DataError(f"{what}: {COPY}")
    names = language.required_names([support[path] for path in paths], {**dict.fromkeys(after_code), **before_code})
    statement = statement_of(repo, fixed, before[0].texts, forbidden("", gold), names)
    hidden = {p: text for p, text in support.items() if language.takes(p) or text != read_text(old / p)}
    one = write(repo, old, {}, gold, fixed, kept, hidden, statement, kind)
    if one is None:
        raise DataError(f"{what}: the repair can be found in its files")
    return one


def code_of(language: Language, tree: Path) -> dict[str, str | None]:
    """Returns the files of a repository that a repair may change."""
    return {path: read_text(tree / path) for path in files_of(tree) if language.is_code(path)}


def forbidden(module: str, patch: str) -> set[str]:
    """Returns what a statement must not say: the file of the repair, and its lines."""
    lines = {line[1:].strip() for line in patch.splitlines() if line[:1] in "+-" and len(line.strip()) > LONG}
    return {part for part in (module, Path(module).name, *lines) if part}


def statement_of(
    repo: Repository, fixed: Sequence[str], texts: Mapping[str, str], secret: set[str], names: Sequence[str] = ()
) -> str:
    """Returns the text of a task: behaviour that failing tests saw, without file and line of the repair."""
    seen = []
    for test in fixed[:5]:
        lines = repo.language.observed(texts.get(test, ""))
        told = [line for line in lines if not any(part in line for part in secret)][:4]
        if told:
            name = re.sub(r"\[.*", "", test.split("::")[-1]).removeprefix("test_").replace("_", " ")
            seen.append(f"- {name}: {' / '.join(told)[:400]}")
    parts = [f"Something in {repo.name} does not behave as it should. Find the fault in this repository and repair it."]
    parts += ["This was observed:\n" + "\n".join(dict.fromkeys(seen))] if seen else []
    parts += [f"These names are required: {', '.join(names)}."] if names else []
    return "\n\n".join(
        [*parts, "Hidden tests judge the repository as you leave it; tests that you change do not count."]
    )


def leak(trees: Iterable[Path], patch: str, tools: Iterable[Path] = ()) -> str | None:
    """Returns a file that a repair does not change and that holds all of its telling lines; None for none.

    Args:
        trees: the repository, then folders of installed packages, which may have a copy.
        patch: the repair.
        tools: folders of a toolchain, so large that they have any common line: a copy there has its file's name.
    """
    added = {line[1:].strip() for line in patch.splitlines() if line.startswith("+") and not line.startswith("+++")}
    telling = {line.encode() for line in added if len(line) >= LONG}
    if not telling:
        return None
    changed = set(re.findall(r"^\+\+\+ b/(.*)$", patch, re.MULTILINE))
    names = {Path(path).name for path in changed}
    repository, *installed = trees
    suspects = [(repository, path) for path in files_of(repository) if path not in changed]
    suspects += [(tree, path) for tree in installed for path in files_of(tree)]
    suspects += [(tree, path) for tree in tools for path in files_of(tree) if Path(path).name in names]
    return next((path for tree, path in suspects if _holds(tree / path, telling)), None)


def _holds(path: Path, lines: Iterable[bytes]) -> bool:
    content = path.read_bytes()
    return all(line in content for line in lines)


def write(
    repo: Repository, tree: Path, files: Files, gold: str, fixed: Sequence[str], kept: Sequence[str],
    tests: Mapping[str, str], statement: str, kind: str,
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
        kind: ``bug``, ``release`` or ``patch``.
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
    base = tree_hash(target)
    test_patch = diff(dict.fromkeys(old), {path: tests[path] for path in telling if path in tests})
    recipe = ({"name": "swe-site", "packages": list(repo.packages)},) if repo.packages else ()
    one = Instance(
        name, repo.name, base[:40], gold, test_patch, statement, tuple(fixed), tuple(kept), version=repo.version,
        tree=name, tests=tests, layers=recipe, kind=kind, language=repo.language.name,
    )  # fmt: skip
    with (repo.to / FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(one.as_row()) + "\n")
    return one
