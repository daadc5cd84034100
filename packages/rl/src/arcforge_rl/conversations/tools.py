"""What the tools of the dialogues are called, what they take, and how they are run on a desk."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from arcforge_core.contracts.sandbox import Command, ExecResult, Limits
from arcforge_rl.conversations.problem import Messages, said

MANY = Limits(cpu_seconds=30, wall_seconds=60, memory_bytes=256 << 20, processes=16, disk_bytes=16 << 20)
LIMITS = Limits(cpu_seconds=5, wall_seconds=10, memory_bytes=256 << 20, processes=16, disk_bytes=16 << 20)
DESCRIPTIONS = {
    "calculator": ("Computes an expression of numbers.", ("expression",)),
    "lookup": ("Returns the value of a key of the table.", ("key",)),
    "list_files": ("Lists all files.", ()),
    "read_file": ("Returns the text of a file.", ("path",)),
    "write_file": ("Writes a text to a file.", ("path", "text")),
    "search": ("Finds the lines of all files that hold a text.", ("text",)),
    "python": ("Runs a Python program and returns what it prints.", ("code",)),
}
"""What each does, and its parameters, all of them texts."""
READING = ("calculator", "lookup")
"""Tools that write nothing and run no programs: calls of many conversations can share a process."""
NEED_FILES = ("lookup", "list_files", "read_file", "search")
"""Tools that are about files that are there before."""


class Bench(Protocol):
    """Where tools run: a desk, or one of its places."""

    @property
    def python(self) -> str:
        """Path of the interpreter inside."""

    def run(self, command: Command) -> ExecResult:
        """Runs a command."""


def definition(name: str) -> dict[str, Any]:
    """Returns a tool as OpenAI's API has it."""
    description, parameters = DESCRIPTIONS[name]
    schema = {
        "type": "object",
        "properties": {parameter: {"type": "string"} for parameter in parameters},
        "required": list(parameters),
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


@functools.cache
def toolbox() -> str:
    """Returns the program of all tools."""
    return Path(__file__).with_name("toolbox.py").read_text(encoding="utf-8")


def use(desk: Bench, name: str, arguments: Mapping[str, str]) -> str:
    """Runs a tool in the desk's sandbox and returns its result, or the error's last line."""
    given = json.dumps(dict(arguments)).encode()
    result = desk.run(Command((desk.python, "-I", "-S", "-c", toolbox(), name), stdin=given, limits=LIMITS))
    if result.ok:
        return result.stdout.decode(errors="replace").rstrip("\n")
    lines = result.stderr.decode(errors="replace").strip().splitlines()
    told = lines and lines[-1].startswith("Error")
    return lines[-1] if told else f"Error: the tool ended with {result.outcome.value}"


def use_many(desk: Bench, calls: Sequence[tuple[str, Mapping[str, Any], Mapping[str, str]]]) -> list[str] | None:
    """Runs calls of `READING` tools, each with its files, in one process; None when that did not end well."""
    given = json.dumps([[name, dict(arguments), dict(files)] for name, arguments, files in calls]).encode()
    result = desk.run(Command((desk.python, "-I", "-S", "-c", toolbox(), "--many"), stdin=given, limits=MANY))
    if not result.ok:
        return None
    found: list[str] = json.loads(result.stdout)
    return [text.rstrip("\n") for text in found]


def call(desk: Bench, name: str, arguments: Mapping[str, str], reasoning: str) -> Messages:
    """Returns the assistant's message that calls a tool and the result that the tool has given."""
    message = said("", reasoning, [{"type": "function", "function": {"name": name, "arguments": dict(arguments)}}])
    return [message, {"role": "tool", "content": use(desk, name, arguments)}]
