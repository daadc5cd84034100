"""The tools of the dialogues: names, parameters, and their execution on a desk."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from arcforge_core.contracts.sandbox import Command, ExecResult, SandboxLimits
from arcforge_rl.problems.problem import Messages, said
from arcforge_rl.sandbox.sync import Bench, Desk

MANY = SandboxLimits(cpu_seconds=30, wall_seconds=60, memory_bytes=256 << 20, processes=16, disk_bytes=16 << 20)
LIMITS = SandboxLimits(cpu_seconds=5, wall_seconds=10, memory_bytes=256 << 20, processes=16, disk_bytes=16 << 20)
DESCRIPTIONS = {
    "calculator": ("Computes an expression of numbers.", ("expression",)),
    "lookup": ("Returns the value of a key of the table.", ("key",)),
    "list_files": ("Lists all files.", ()),
    "read_file": ("Returns the text of a file.", ("path",)),
    "write_file": ("Writes a text to a file.", ("path", "text")),
    "search": ("Finds the lines of all files that hold a text.", ("text",)),
    "python": ("Runs a Python program and returns what it prints.", ("code",)),
}
"""Description and parameters of each tool; all parameters are strings."""
READING = ("calculator", "lookup")
"""Read-only tools that run no programs: calls of many conversations can share a process."""
NEED_FILES = ("lookup", "list_files", "read_file", "search")
"""Tools that work on existing files."""


Call = tuple[str, Mapping[str, Any], Mapping[str, str]]
"""A tool's name, its arguments, and the existing files."""


class Unforeseen(Exception):
    """A call without a known result, during a rehearsal."""

    def __init__(self, call: Call) -> None:
        super().__init__(call[0])
        self.call = call


class Foresight:
    """A desk that caches results of `READING` tools, precomputed for many conversations in one process.

    Files are laid out when the first command needs them: a conversation with known results only opens no sandbox.
    """

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.rehearsing = False
        self._results: dict[str, str] = {}
        self._files: dict[str, str] = {}
        self._unlaid: dict[str, str] = {}
        self._laid = True  # by the previous conversation

    @property
    def python(self) -> str:
        """Path of the interpreter inside."""
        return self.desk.python

    def begin(self) -> None:
        """Begins a conversation without the files of earlier ones. A sandbox without files is reused."""
        if self._laid:
            self.clear()
        self._files, self._unlaid = {}, {}

    def clear(self) -> None:
        """Ends the sandbox."""
        self.desk.clear()
        self._files, self._unlaid, self._laid = {}, {}, False

    def lay(self, files: Mapping[str, str]) -> None:
        self._files |= files
        self._unlaid |= files

    def run(self, command: Command) -> ExecResult:
        """Runs a command in the sandbox."""
        self._laid |= bool(self._unlaid)
        self.desk.lay(self._unlaid)
        self._unlaid = {}
        return self.desk.run(command)

    def known(self, name: str, arguments: Mapping[str, Any]) -> str | None:
        """Returns a precomputed result, if there is one.

        Raises:
            Unforeseen: there is none, during a rehearsal.
        """
        found = self._results.get(_key((name, arguments, self._files)))
        if found is None and self.rehearsing:
            raise Unforeseen((name, arguments, dict(self._files)))
        return found

    def learn(self, calls: Sequence[Call]) -> bool:
        """Precomputes results; returns whether that succeeded."""
        self.begin()
        results = use_many(self.desk, calls)
        self._laid = results is None
        self._results |= {_key(call): result for call, result in zip(calls, results or (), strict=bool(results))}
        return results is not None

    def forget(self) -> None:
        """Drops all results."""
        self._results = {}


def _key(call: Call) -> str:
    return json.dumps(call, sort_keys=True)


def definition(name: str) -> dict[str, Any]:
    """Returns a tool in the format of OpenAI's API."""
    description, parameters = DESCRIPTIONS[name]
    schema = {
        "type": "object",
        "properties": {parameter: {"type": "string"} for parameter in parameters},
        "required": list(parameters),
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


@functools.cache
def toolbox() -> str:
    """Returns the source of the program with all tools."""
    return Path(__file__).with_name("toolbox.py").read_text(encoding="utf-8")


def use(desk: Bench, name: str, arguments: Mapping[str, str]) -> str:
    """Runs a tool in the desk's sandbox and returns its result, or the error's last line."""
    known = desk.known(name, arguments) if isinstance(desk, Foresight) else None
    if known is not None:
        return known
    return tool_result(desk.run(tool_command(desk.python, name, arguments)))


def tool_command(python: str, name: str, arguments: Mapping[str, Any]) -> Command:
    """Returns the command that runs a tool with the interpreter `python`."""
    given = json.dumps(dict(arguments)).encode()
    return Command((python, "-I", "-S", "-c", toolbox(), name), stdin=given, limits=LIMITS)


def tool_result(result: ExecResult) -> str:
    """Returns the output of a tool, or the last line of its error."""
    if result.ok:
        return result.stdout.decode(errors="replace").rstrip("\n")
    lines = result.stderr.decode(errors="replace").strip().splitlines()
    told = lines and lines[-1].startswith("Error")
    return lines[-1] if told else f"Error: the tool ended with {result.outcome.value}"


def use_many(desk: Bench, calls: Sequence[Call]) -> list[str] | None:
    """Runs calls of `READING` tools, each with its files, in one process; returns None if that failed."""
    return many_results(desk.run(many_command(desk.python, calls)))


def many_command(python: str, calls: Sequence[Call]) -> Command:
    """Returns the command that runs calls of `READING` tools with the interpreter `python`."""
    given = json.dumps([[name, dict(arguments), dict(files)] for name, arguments, files in calls]).encode()
    return Command((python, "-I", "-S", "-c", toolbox(), "--many"), stdin=given, limits=MANY)


def many_results(result: ExecResult) -> list[str] | None:
    """Returns the result of each call; None if the process failed."""
    if not result.ok:
        return None
    found: list[str] = json.loads(result.stdout)
    return [text.rstrip("\n") for text in found]


def call(desk: Bench, name: str, arguments: Mapping[str, str], reasoning: str) -> Messages:
    """Returns the assistant's message that calls a tool, and the tool's result."""
    message = said("", reasoning, [{"type": "function", "function": {"name": name, "arguments": dict(arguments)}}])
    return [message, {"role": "tool", "content": use(desk, name, arguments)}]
