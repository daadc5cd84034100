"""The tools of the agent that sets up a repository; none of them runs a command of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from arcforge_core.contracts.chat import Tool, ToolCall
from arcforge_core.episodes.tools import ends_of
from arcforge_core.errors import UnavailableError, listed
from arcforge_rl.layers.npm import WITHOUT
from arcforge_rl.layers.store import LayerError
from arcforge_rl.swe.instance import read_text
from arcforge_rl.swe.languages.base import Language, files_of
from arcforge_rl.swe.packages import MOST, flaw_in, name_of
from arcforge_rl.swe.results import BROKEN, TestRun
from arcforge_rl.swe.running import runs_of
from arcforge_rl.swe.setup import AGENT, Attempt, own_names, passing, reason_of, works

TRIES = 12
"""Tries of the agent, each of which may fetch packages."""
SHOWN, FEW_LINES, LONGEST_FILE = 5_000, 200, 1 << 20
"""Characters of a result, lines of a file that are shown without a range, and bytes of one that can be read."""
OF_THE_REGISTRY = ("registry", "partial")
"""Kinds of `LayerError` that other packages may avoid."""


def _tool(name: str, description: str, required: str, **properties: Mapping[str, Any]) -> Tool:
    schema = {"type": "object", "properties": properties, "required": [required]}
    return Tool({"type": "function", "function": {"name": name, "description": description, "parameters": schema}})


TEXT, NUMBER = {"type": "string"}, {"type": "integer", "minimum": 1}
TEXTS = {"type": "array", "items": TEXT}
TOOLS = (
    _tool("list", "Lists a folder of the repository; '.' is its top.", "folder", folder=TEXT),
    _tool(
        "read", f"Shows lines of a text file of the repository, by default the first {FEW_LINES}.", "path",
        path=TEXT, first=NUMBER, last=NUMBER,
    ),
    _tool(
        "try", "Runs the tests with these packages, and no others, and without the test files that are left out.",
        "packages", packages=TEXTS, leave_out=TEXTS,
    ),
    _tool("done", "Gives up.", "reason", reason=TEXT),
)  # fmt: skip


class RefusedCall(Exception):
    """A call that is not carried out; the message says why."""


class SetupTools:
    """The tools of one conversation about one repository.

    Args:
        name, language, tree: the repository.
        seconds: bound of one run of the tests.
        attempts: so far; tries are added.

    Attributes:
        source: of the language's packages.
        files, tests: paths of files of the repository that can be read, and of all test files.
        ended: why the agent has no further turn; empty while it has.
    """

    def __init__(self, name: str, language: Language, tree: Path, seconds: float, attempts: list[Attempt]) -> None:
        self.name, self.language, self.tree = name, language, tree
        self.seconds, self.attempts = seconds, attempts
        self.source = language.site(("a",)).source
        self.declared = language.declared(tree)
        self.files = sorted(path for path in files_of(tree) if path.isprintable())
        self.tests = language.test_files(tree)
        kept_out = [package for package in self.declared if package.startswith(WITHOUT)]
        self._kept_out, self._own = {*kept_out}, {name_of(package[1:]) for package in kept_out}
        self._own |= {name_of(stem) for stem in own_names(tree) if stem}
        self._tried = dict[tuple[tuple[str, ...], tuple[str, ...]], str]()
        self.ended = ""

    async def use(self, call: ToolCall) -> str:
        """Carries out a call.

        Raises:
            UnavailableError: layers cannot be stored here.
            SandboxFault: the sandbox broke.
        """
        given = call.arguments
        try:
            if self.ended:
                raise RefusedCall("the set-up has ended")
            if call.name == "list":
                result = self._listed(_text(given, "folder"))
            elif call.name == "read":
                result = self._read(_text(given, "path"), given.get("first"), given.get("last"))
            elif call.name == "try":
                result = await self._try(_texts(given, "packages"), _texts(given, "leave_out"))
            else:
                self.ended = f"gave up: {_text(given, 'reason')[:300]}"
                result = "The set-up has ended."
        except RefusedCall as error:
            result = f"Error: {error}"
        return shown(result)

    def _listed(self, folder: str) -> str:
        place = PurePosixPath(folder)
        paths = [PurePosixPath(path) for path in self.files]
        inside = [path.relative_to(place) for path in paths if place in path.parents]
        names = {f"{path.parts[0]}/" if len(path.parts) > 1 else path.name for path in inside}
        if not names:
            raise RefusedCall(f"the repository has no folder {folder[:100]!r}")
        return "\n".join(sorted(names))

    def _read(self, path: str, first: object, last: object) -> str:
        name = str(PurePosixPath(path))
        if name not in self.files:
            raise RefusedCall(f"the repository has no file {path[:100]!r}")
        if (self.tree / name).stat().st_size > LONGEST_FILE or (text := read_text(self.tree / name)) is None:
            raise RefusedCall(f"{name} is no text, or longer than {LONGEST_FILE:,} bytes")
        begin = 1 if first is None else first
        end = begin + FEW_LINES - 1 if last is None and isinstance(begin, int) else last
        if not isinstance(begin, int) or not isinstance(end, int) or not 1 <= begin <= end:
            raise RefusedCall("first and last must be numbers of lines, from 1")
        lines = text.splitlines()
        return "\n".join([f"{name}: lines {begin} to {min(end, len(lines))} of {len(lines)}", *lines[begin - 1 : end]])

    async def _try(self, packages: Sequence[str], leave_out: Sequence[str]) -> str:
        """Runs the tests; a set-up that works ends the conversation."""
        chosen, left_out = self._checked(packages, leave_out)
        if told := self._tried.get((chosen, left_out)):
            raise RefusedCall(f"this was tried before: {told}")
        if len(self._tried) == TRIES:
            self.ended = f"has used its {TRIES} tries"
            raise RefusedCall("no try is left")
        paths, report = [path for path in self.tests if path not in left_out], ""
        try:
            [run] = await runs_of(self.language, self.tree, {}, chosen, paths, self.seconds, (0,))
        except LayerError as error:
            if error.kind not in OF_THE_REGISTRY:
                raise UnavailableError(f"{self.name}: {error}") from error
            reason = str(error)
        else:
            reason = "" if works(run) else reason_of(run, passing(run), ())
            report = report_of(run, self.language.missed(run))
        self._tried[chosen, left_out] = reason
        self.attempts.append(Attempt(chosen, reason, AGENT, left_out))
        if reason:
            return f"It does not work: {reason}\n{report}"
        self.ended = "has found one"
        return "It works."

    def _checked(self, packages: Sequence[str], leave_out: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the packages and the left-out test files of a try, sorted.

        To packages of npm is added which copies of the repository are removed from among them.

        Raises:
            RefusedCall: one of them must not be chosen.
        """
        if len(packages) > MOST:
            raise RefusedCall(f"at most {MOST} packages can be named, not {len(packages)}")
        for package in packages:
            if flaw := flaw_in(package, self.source):
                raise RefusedCall(flaw)
            if name_of(package) in self._own:
                raise RefusedCall(f"{package} has the name of the repository's own code, of which no copy is installed")
        left_out = tuple(sorted({*leave_out}))
        if unknown := [path for path in left_out if path not in self.tests]:
            raise RefusedCall(f"{unknown[0][:100]!r} is no test file of the repository")
        if 2 * len(left_out) > len(self.tests):
            raise RefusedCall(f"at most half of the {len(self.tests)} test files can be left out, not {len(left_out)}")
        return tuple(sorted({*packages} | (self._kept_out if packages else set()))), left_out


def report_of(run: TestRun, missed: Sequence[str]) -> str:
    """Returns a run in words: missing packages, then failures, each kind once, those of whole files first."""
    parts = [f"Packages that failures miss: {listed(missed)}"] if missed else []
    seen = set[str]()
    for name, text in sorted(run.texts.items(), key=lambda pair: pair[0] in run.outcomes):
        last = next((line for line in reversed(text.splitlines()) if line.strip()), "")
        if last not in seen:
            parts.append(f"== {'the run' if name == BROKEN else name}\n{ends_of(text.strip(), SHOWN // 4)}")
        seen.add(last)
    return "\n".join(parts)


def shown(text: str) -> str:
    """Returns a text as the agent sees it: the ends of a long one, and nothing that a request cannot carry."""
    return ends_of(text, SHOWN).encode(errors="replace").decode()


def _text(given: Mapping[str, Any], name: str) -> str:
    value = given[name]
    if not isinstance(value, str):
        raise RefusedCall(f"{name} must be a text")
    return value


def _texts(given: Mapping[str, Any], name: str) -> list[str]:
    value = given.get(name, [])
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise RefusedCall(f"{name} must be a list of texts")
    return value
