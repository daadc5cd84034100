"""The interface of a language, which says all that builder, verifier and environment need to know about it."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import ClassVar

from arcforge_core.contracts.sandbox import Sandbox, SandboxError, SandboxFault, SandboxLimits
from arcforge_rl.layers.fetch import ensure
from arcforge_rl.layers.recipes import Recipe
from arcforge_rl.swe.instance import Instance
from arcforge_rl.swe.patches import Files
from arcforge_rl.swe.results import TestRun

WORKDIR = "/testbed"
"""Folder of the repository in sandboxes."""
LIMITS = SandboxLimits(
    cpu_seconds=300, wall_seconds=300, memory_bytes=2 << 30, processes=128, disk_bytes=512 << 20, output_bytes=32 << 20
)
FOLDERS_OF_TESTS = ("test", "tests", "testing")


@dataclass(frozen=True)
class Bug:
    """A fault.

    Attributes:
        kind: of the change.
        function: in which it is.
        text: the whole file with the fault.
        line: where it is, from 1.
    """

    kind: str
    function: str
    text: str
    line: int


@dataclass(frozen=True)
class RunRequest:
    """One run of tests.

    Attributes:
        sandbox: a fresh one, with the repository in `WORKDIR` and the language's layers.
        python: interpreter inside.
        paths: test files, relative to the repository.
        seconds: bound on the run's wall time.
        seed: decides the order of the tests; empty: the runner's own.
        canaries: plants tests that must fail; a run that reports one as anything else is not whole.
        packages: those of the set-up.
        explained: whether failures come with tracebacks, where a runner can leave them out. A verdict needs none, and
            formatting them can take longer than the tests.
    """

    sandbox: Sandbox
    python: str
    paths: Sequence[str]
    seconds: float
    seed: str = ""
    canaries: bool = True
    packages: Sequence[str] = ()
    explained: bool = True

    async def text(self, path: str) -> str | None:
        """Returns the text of a file of the repository in the sandbox; None if there is none.

        Raises:
            SandboxFault: the sandbox broke.
        """
        try:
            return (await self.sandbox.read(f"{WORKDIR}/{path}")).decode(errors="replace")
        except SandboxFault:
            raise
        except SandboxError:
            return None


def files_of(tree: Path) -> list[str]:
    """Returns the paths of the regular files of a tree, relative to it."""
    return [str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file() and not path.is_symlink()]


def first_unknown(chain: Iterable[str], known: Collection[str]) -> list[str]:
    """Returns the first part of ``a.b.c`` that the code does not have, whose own the rest is; none for none."""
    return next(([part] for part in chain if part not in known), [])


class Language(ABC):
    """One language; a subclass without state, created as ``target()``.

    Attributes:
        name: as registered.
        suffixes: of source files.
        settings: names of files that decide what the test runner does. The verifier uses those of the repository, never
            the solver's.
        left_out: names of folders that are not copied, in addition to those of version control and caches.
        not_code: paths that get no faults.
        limits: of the sandboxes.
    """

    name: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]
    settings: ClassVar[tuple[str, ...]] = ()
    left_out: ClassVar[tuple[str, ...]] = ()
    not_code: ClassVar[re.Pattern[str]] = re.compile(r"^(docs?|examples?|benchmarks?|scripts?)/")
    limits: ClassVar[SandboxLimits] = LIMITS

    # Files

    def is_test(self, path: str) -> bool:
        """Returns whether a path belongs to the tests, their helpers and data included; no repair changes it."""
        return any(part in FOLDERS_OF_TESTS for part in PurePosixPath(path).parts[:-1])

    @abstractmethod
    def takes(self, path: str) -> bool:
        """Returns whether `run` takes a file; helpers and data of tests are none."""

    def test_files(self, tree: Path) -> list[str]:
        """Returns the files of a repository that `run` takes, sorted."""
        return sorted(path for path in files_of(tree) if self.takes(path))

    def is_code(self, path: str) -> bool:
        """Returns whether a path may belong to a repair."""
        return path.endswith(self.suffixes) and not self.is_test(path) and not self.is_setting(path)

    def is_setting(self, path: str) -> bool:
        """Returns whether the solver's version of a file is ignored, as it decides what the test runner does."""
        return PurePosixPath(path).name in self.settings

    # Layers and set-up

    @abstractmethod
    def tools(self) -> list[Recipe]:
        """Returns the layers of the toolchain and the test runner."""

    @abstractmethod
    def site(self, packages: Sequence[str]) -> Recipe:
        """Returns the layer of the packages of a set-up, at least one."""

    def shown(self, packages: Sequence[str]) -> list[tuple[Path, str]]:
        """Returns the argument ``layers`` of `SandboxBackend.open`; missing layers are fetched.

        Raises:
            LayerError: one cannot be fetched.
        """
        recipes = [*self.tools(), *([self.site(packages)] if packages else [])]
        return [part for recipe in recipes for part in ensure(recipe).shown]

    @abstractmethod
    def declared(self, tree: Path) -> list[str]:
        """Returns the packages that a repository declares for itself and its tests, by rule."""

    def missed(self, run: TestRun) -> list[str]:
        """Returns the packages whose absence the failures of a run name."""
        return []

    # Tests

    @abstractmethod
    async def run(self, request: RunRequest) -> TestRun:
        """Runs test files and returns the verdict of each test, named ``FILE::NAME``.

        Results must come from where the code under test cannot write, or be signed; see `arcforge_rl.swe.languages`.

        Raises:
            SandboxFault: the sandbox broke.
        """

    def observed(self, text: str) -> list[str]:
        """Returns the lines of a failure that a task may quote: values and messages, without places in files."""
        return [line.strip() for line in text.splitlines() if line.strip()]

    def required_names(self, tests: Iterable[str], code: Files) -> list[str]:
        """Returns names of the repository that tests use and the code has nowhere, so that nobody could guess them.

        Args:
            tests: texts.
            code: path -> text before the repair; None for a file that the repair adds.
        """
        return []

    # Faults and cheats

    @abstractmethod
    def bugs(self, text: str, seed: str) -> Iterator[Bug]:
        """Yields the faults that can be put into a file's functions, in an order that the seed decides.

        A file that cannot be parsed has none.
        """

    @abstractmethod
    def cheats(self, instance: Instance, tree: Path) -> Iterator[Mapping[str, str | None]]:
        """Yields files to write, each an attempt to pass the hidden tests without a repair; None deletes a file."""
