"""Builds instances: faults put into working code, and new tests of a release on the code of the one before."""

from __future__ import annotations

import ast
import hashlib
import json
import random
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from arcforge_core.contracts.sandbox import SandboxBackend
from arcforge_core.errors import DataError
from arcforge_rl.layers.store import LayerError, tree_hash
from arcforge_rl.sandbox.sync import shared_desk
from arcforge_rl.swe.bugs import bugs
from arcforge_rl.swe.environment import lay
from arcforge_rl.swe.instance import FILE, Instance, is_test, read_text
from arcforge_rl.swe.patches import Files, apply, diff
from arcforge_rl.swe.prepared import Attempt, copy_clean, declared, files_of_tests, layers_for, missed
from arcforge_rl.swe.results import FAILED, PASSED, TestRun, stable, turned
from arcforge_rl.swe.running import opened, run_tests, seed_of

RUNS = 3
LEAST = 3
"""Tests that must pass before a repository is used."""
MOST_TURNED = 0.5
"""Share of the tests that one fault may break."""
TRIES = 4
"""Attempts at a set-up."""
NOT_CODE = re.compile(r"(^|/)(setup|conftest|noxfile|__main__|_?version)\.py$|^(docs?|examples?|benchmarks?|scripts?)/")
LONG = 20
"""Characters of a line that tells a repair."""


async def runs_of(
    tree: Path, files: Files, packages: Sequence[str], paths: Sequence[str], seconds: float, count: int = RUNS
) -> list[TestRun]:
    """Returns runs of tests over a tree with some files replaced, each in a fresh sandbox and its own order."""
    desk, layers = shared_desk(), layers_for(packages)

    def one(number: int):  # type: ignore[no-untyped-def]
        async def work(backend: SandboxBackend) -> TestRun:
            sandbox = await opened(backend, tree, layers)
            try:
                await lay(sandbox, files)
                return await run_tests(sandbox, desk.python, paths, seconds=seconds, seed=seed_of(number))
            finally:
                await sandbox.stop()

        return work

    return [await desk.do(one(number)) for number in range(count)]


async def set_up(tree: Path, seconds: float) -> tuple[tuple[str, ...], list[Attempt]]:
    """Returns the packages with which a repository's tests run, and the attempts; the last one says why it failed.

    Rules come first; then each module that a run misses is added, as long as that helps.
    """
    paths, attempts = files_of_tests(tree), list[Attempt]()
    if not paths:
        return (), [Attempt((), "it has no tests")]
    packages: tuple[str, ...] = ()
    rules = tuple(declared(tree))
    while len(attempts) < TRIES:
        try:
            [run] = await runs_of(tree, {}, packages, paths, seconds, 1)
        except LayerError as error:
            attempts.append(Attempt(packages, str(error)))
            return packages, attempts
        lost = [name for name in missed(run.texts) if name not in packages]
        passed = sum(outcome == PASSED for outcome in run.outcomes.values())
        good = run.whole and passed >= LEAST and passed >= len(run.outcomes) / 2 and not lost
        reason = "" if good else reason_of(run, passed, lost)
        attempts.append(Attempt(packages, reason))
        further = tuple(sorted({*packages, *rules, *lost}))
        if good or further == packages:
            break
        packages = further
    return packages, attempts


def reason_of(run: TestRun, passed: int, lost: Sequence[str]) -> str:
    """Returns why a run is no baseline."""
    if lost:
        return f"modules are missing: {', '.join(lost)}"
    if not run.whole:
        return run.reason
    failed = sum(outcome == FAILED for outcome in run.outcomes.values())
    return f"{passed} tests pass, {failed} fail, {len(run.uncollected)} files cannot be collected"


async def inject(
    tree: Path, repo: str, version: str, packages: Sequence[str], to: Path, count: int, seconds: float, seed: int
) -> list[Instance]:
    """Puts faults into a repository, keeps those that tests notice, and writes them as instances.

    Args:
        tree: the repository, whose tests pass.
        repo, version: its name and version.
        packages: that it needs.
        to: folder of the environment.
        count: instances to make.
        seconds: bound of one run.
        seed: decides which faults are tried.

    Raises:
        DataError: its own tests do not pass.
    """
    paths = files_of_tests(tree)
    good = await runs_of(tree, {}, packages, paths, seconds)
    passing = {name for name, outcome in stable(good).items() if outcome == PASSED}
    if len(passing) < LEAST or not all(run.whole for run in good):
        raise DataError(f"{repo}: {reason_of(good[0], len(passing), ())}; its own tests are no baseline")
    modules = [
        p for path in tree.rglob("*.py") if not is_test(p := str(path.relative_to(tree))) and not NOT_CODE.search(p)
    ]
    candidates = [(m, bug) for m in sorted(modules) for bug in bugs(read_text(tree / m) or "", f"{seed}/{m}")]
    random.Random(seed).shuffle(candidates)
    made: list[Instance] = []
    for module, bug in candidates:
        if len(made) == count:
            break
        files = {module: bug.text}
        [first] = await runs_of(tree, files, packages, paths, seconds, 1)
        broken = [name for name in passing if not first.passed(name)]
        if not 0 < len(broken) <= max(1, MOST_TURNED * len(passing)):
            continue
        before = await runs_of(tree, files, packages, paths, seconds)
        fixed, kept = turned(before, good)
        if not fixed or not kept or not all(run.whole for run in before):
            continue
        gold = diff({module: bug.text}, {module: read_text(tree / module)})
        statement = statement_of(repo, fixed, before[0].texts, forbidden(module, gold))
        one = write(to, tree, files, gold, fixed, kept, paths, repo, version, statement, packages, "bug")
        if one is not None:
            made.append(one)
    return made


async def compare(
    old: Path, new: Path, repo: str, version: str, packages: Sequence[str], to: Path, seconds: float
) -> Instance:
    """Makes an instance of two releases: the later one's tests on the earlier one's code.

    Raises:
        DataError: no test is turned, none is kept (a baseline that fails wholesale), or the repair can be found.
    """
    tests = {path: text for path in files_of_tests(new) if (text := read_text(new / path)) is not None}
    if not tests:
        raise DataError(f"{repo} {version}: has no tests")
    before_code, after_code = code_of(old), code_of(new)
    gold = diff(before_code, after_code)
    if not gold:
        raise DataError(f"{repo} {version}: its code is that of the release before")
    base = {path: text for path in new.rglob("*") if (text := read_text(path)) is not None}
    support = {str(p.relative_to(new)): t for p, t in base.items() if is_test(str(p.relative_to(new)))}
    repaired = {**support, **apply(gold, before_code)}
    before = await runs_of(old, support, packages, sorted(tests), seconds)
    after = await runs_of(old, repaired, packages, sorted(tests), seconds)
    fixed, kept = turned(before, after)
    if not fixed:
        raise DataError(f"{repo} {version}: no test fails before and passes after")
    if not kept:
        raise DataError(f"{repo} {version}: no test passes in both, so that the baseline fails wholesale")
    if not all(run.whole for run in [*before, *after]):
        raise DataError(f"{repo} {version}: {next(run.reason for run in [*before, *after] if not run.whole)}")
    names = required_names(tests.values(), before_code)
    statement = statement_of(repo, fixed, before[0].texts, forbidden("", gold), names)
    hidden = {path: text for path, text in support.items() if path.endswith(".py")}
    one = write(to, old, {}, gold, fixed, kept, sorted(hidden), repo, version, statement, packages, "release", hidden)
    if one is None:
        raise DataError(f"{repo} {version}: the repair can be found in its files")
    return one


def code_of(tree: Path) -> dict[str, str | None]:
    """Returns the Python files of a repository that are no tests and say no version alone."""
    paths = {str(path.relative_to(tree)): path for path in tree.rglob("*.py")}
    return {name: read_text(path) for name, path in paths.items() if not is_test(name) and name != "setup.py"}


def required_names(tests: Iterable[str], code: Files) -> list[str]:
    """Returns names that tests import or call and that the code has nowhere, so that nobody could guess them."""
    known = set(re.findall(r"\w+", " ".join(text or "" for text in code.values())))
    wanted: set[str] = set()
    for text in tests:
        try:
            nodes = list(ast.walk(ast.parse(text)))
        except SyntaxError:
            continue
        imported = {n.asname or n.name for node in nodes if isinstance(node, ast.Import) for n in node.names}
        wanted |= {n.name for node in nodes if isinstance(node, ast.ImportFrom) for n in node.names}
        wanted |= {
            node.attr for node in nodes
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in imported
        }  # fmt: skip
    standard = {"pytest", "mock", "patch", "raises", "mark", "fixture", "parametrize", "approx"}
    return sorted(name for name in wanted - known - standard if not hasattr(__builtins__, name))


def forbidden(module: str, patch: str) -> set[str]:
    """Returns what a statement must not say: the file of the repair, and its lines."""
    lines = {line[1:].strip() for line in patch.splitlines() if line[:1] in "+-" and len(line.strip()) > LONG}
    return {part for part in (module, Path(module).name, *lines) if part}


def statement_of(
    repo: str, fixed: Sequence[str], texts: Mapping[str, str], secret: set[str], names: Sequence[str] = ()
) -> str:
    """Returns the text of a task: behaviour that failing tests saw, without file and line of the repair."""
    seen = []
    for test in fixed[:5]:
        lines = [line[1:].strip() for line in texts.get(test, "").splitlines() if line.startswith("E ")]
        told = [line for line in lines if line and not any(part in line for part in secret)][:4]
        if told:
            name = re.sub(r"\[.*", "", test.split("::")[-1]).removeprefix("test_").replace("_", " ")
            seen.append(f"- {name}: {' / '.join(told)[:400]}")
    parts = [f"Something in {repo} does not behave as it should. Find the fault in this repository and repair it."]
    parts += ["This was observed:\n" + "\n".join(dict.fromkeys(seen))] if seen else []
    parts += [f"These names are required: {', '.join(names)}."] if names else []
    return "\n\n".join(
        [*parts, "Hidden tests judge the repository as you leave it; tests that you change do not count."]
    )


def leak(tree: Path, files: Files, patch: str) -> str | None:
    """Returns a file that a repair does not change and that holds all of its telling lines; None for none."""
    added = {line[1:].strip() for line in patch.splitlines() if line.startswith("+") and not line.startswith("+++")}
    telling = {line.encode() for line in added if len(line) >= LONG}
    if not telling:
        return None
    changed = set(re.findall(r"^\+\+\+ b/(.*)$", patch, re.MULTILINE)) | set(files)
    for path in sorted(tree.rglob("*")):
        name = str(path.relative_to(tree))
        if path.is_file() and name not in changed and all(line in path.read_bytes() for line in telling):
            return name
    return None


def write(
    to: Path, tree: Path, files: Files, gold: str, fixed: Sequence[str], kept: Sequence[str], paths: Sequence[str],
    repo: str, version: str, statement: str, packages: Sequence[str], kind: str, tests: Mapping[str, str] | None = None,
) -> Instance | None:  # fmt: skip
    """Writes a tree without its telling tests, and the instance; None if the repair can be found in the tree."""
    tests = tests or {path: text for path in paths if (text := read_text(tree / path)) is not None}
    digest = hashlib.sha256(f"{repo} {version} {gold}".encode()).hexdigest()[:10]
    name = f"{repo}-{version or '0'}-{digest}"
    target = to / "trees" / name
    if target.exists():
        shutil.rmtree(target)
    copy_clean(tree, target)
    for path, text in files.items():
        (target / path).write_text(text or "")
    telling = {test.split("::")[0] for test in fixed}
    old = {path: read_text(tree / path) for path in telling}
    for path in telling:
        (target / path).unlink(missing_ok=True)
    if leak(target, {}, gold):
        shutil.rmtree(target)
        return None
    base = tree_hash(target)
    test_patch = diff(dict.fromkeys(old), {path: tests[path] for path in telling if path in tests})
    recipe = ({"name": "swe-site", "packages": list(packages)},) if packages else ()
    one = Instance(
        name, repo, base[:40], gold, test_patch, statement, tuple(fixed), tuple(kept), version=version, tree=name,
        tests=tests, layers=recipe, kind=kind,
    )  # fmt: skip
    with (to / FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(one.as_row()) + "\n")
    return one
