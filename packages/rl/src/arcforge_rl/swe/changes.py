"""Changes of a git repository that come with tests: each becomes an instance, or has a reason why it does not."""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from arcforge_core.errors import DataError
from arcforge_rl.swe.agent_options import AgentBounds
from arcforge_rl.swe.build import Origin, Repository, Tried, compared
from arcforge_rl.swe.history import LINK, SUBMODULE, Commit, History
from arcforge_rl.swe.instance import FILE, Instance, read_instances, read_text
from arcforge_rl.swe.languages.base import Language, files_of
from arcforge_rl.swe.languages.known import language_in, language_of
from arcforge_rl.swe.listed import LOG
from arcforge_rl.swe.messages import class_of
from arcforge_rl.swe.setup import NOT_SET_UP, Attempt
from arcforge_rl.swe.setup_agent import attempts_at
from arcforge_rl.swe.sources import source_tree

SHORT = 10
"""Characters of a hash that name a version."""
POINTER = b"version https://git-lfs.github.com/spec/"
"""Beginning of the files that Git LFS has in place of large ones."""


@dataclass
class ChangeWalk:
    """A walk over the changes of a repository.

    Attributes:
        history: of the repository.
        name: of the repository.
        to: folder of the environment.
        count: instances to make at most.
        tries: changes whose tests run at most.
        classes: of changes that are wanted.
        branch: branch or range; empty: the repository's own.
        language: of the repository; empty: that of most source files.
        seconds: bound of one run of the tests.
        agent: sets up what rules cannot; None for rules alone.
    """

    history: History
    name: str
    to: Path
    count: int
    tries: int
    classes: Collection[str]
    branch: str = ""
    language: str = ""
    seconds: float = 120.0
    agent: AgentBounds | None = None
    _known: dict[tuple[str, ...], Attempt] = field(default_factory=dict)

    async def build(self) -> Tried:
        """Builds instances of the latest changes of code and tests; those that the folder has are passed over.

        Raises:
            DataError: there is no such change, or none became an instance.
        """
        commits = self.history.commits(self.branch)
        language = self._language(commits[0])
        both = [one for one in commits if changes_both(one, language)]
        if not both:
            raise DataError(
                f"{self.name}: none of its {len(commits)} commits changes code and tests of {language.name}"
            )
        wanted = [one for one in both if class_of(one.message) in ("", *self.classes)]
        if not wanted:
            listed = ", ".join(self.classes)
            raise DataError(f"{self.name}: none of its {len(both)} changes with tests is of --classes {listed}")
        there = read_instances(self.to) if (self.to / FILE).exists() else []
        known = {one.version for one in there if (one.repo, one.kind) == (self.name, "change")}
        left = [one for one in wanted if one.hash[:SHORT] not in known]
        found = Tried("changes", candidates=len(left))
        for commit in left[: self.tries]:
            if len(found.made) == self.count:
                break
            made = await self._built(commit, language)
            if isinstance(made, Instance):
                found.made.append(made)
            else:
                found.refused[made] += 1
        if not found.made:
            raise DataError(f"{self.name}: no change became an instance; {found}")
        return found

    def _language(self, latest: Commit) -> Language:
        if self.language:
            return language_of(self.language)
        with tempfile.TemporaryDirectory() as place:
            tree = Path(place, self.name.replace("/", "-"))
            try:
                self.history.check_out(latest.hash, tree)
            except DataError as error:
                raise DataError(f"{self.history.source}: {error}") from error
            return language_in(tree)

    async def _built(self, commit: Commit, language: Language) -> Instance | str:
        """Writes the instance of a change, or returns why there is none."""
        with tempfile.TemporaryDirectory() as place:
            before, after = Path(place, "before"), Path(place, "after")
            try:
                self.history.check_out(commit.parents[0], before)
                self.history.check_out(commit.hash, after)
            except DataError as error:
                return str(error)
            if reason := unreadable(commit, language, before, after):
                return reason
            with source_tree(before) as old, source_tree(after) as new:
                last = await self._set_up(language, new)
                if last.reason:
                    return f"{NOT_SET_UP}: {last.reason}"
                version = commit.hash[:SHORT]
                repo = Repository(language, self.name, version, last.packages, self.to, self.seconds, last.left_out)
                origin = Origin("change", commit.parents[0], commit.created, commit.message, self.classes)
                return await compared(repo, old, new, origin)

    async def _set_up(self, language: Language, tree: Path) -> Attempt:
        """Returns the last attempt at the set-up of a state; states with equal requirements have one set-up."""
        declared = tuple(language.declared(tree))
        if declared not in self._known:
            log = self.to / LOG
            attempts = await attempts_at(self.name, language, tree, self.seconds, log, self.agent)
            self._known[declared] = attempts[-1]
        return self._known[declared]


def changes_both(commit: Commit, language: Language) -> bool:
    """Returns whether a commit changes code and a test file."""
    return any(map(language.is_code, commit.changed)) and any(map(language.takes, commit.changed))


def unreadable(commit: Commit, language: Language, before: Path, after: Path) -> str:
    """Returns why a change cannot be written as texts; empty if it can."""
    for path, modes in commit.changed.items():
        if SUBMODULE in modes:
            return "changes a submodule, whose files are not here"
        if not (language.is_code(path) or language.is_test(path)):
            continue
        files = [tree / path for tree in (before, after) if (tree / path).is_file()]
        if LINK in modes:
            return "changes a link among code or tests"
        if any(file.read_bytes().startswith(POINTER) for file in files):
            return "changes a file of Git LFS, whose content is not here"
        if language.is_code(path) and (not path.isprintable() or any(read_text(file) is None for file in files)):
            return "changes code that is no text"
    return "" if any(files_of(after)) else "has no files"
