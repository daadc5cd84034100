"""What the tools of the dialogues are called, what they take, and how they are run on a desk."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from arcforge_core.contracts.sandbox import Command, Limits
from arcforge_rl.conversations.problem import Messages, said
from arcforge_rl.sandbox.desk import Desk

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


def use(desk: Desk, name: str, arguments: Mapping[str, str]) -> str:
    """Runs a tool in the desk's sandbox and returns its result, or the error's last line."""
    given = json.dumps(dict(arguments)).encode()
    result = desk.run(Command((desk.python, "-I", "-S", "-c", toolbox(), name), stdin=given, limits=LIMITS))
    if result.ok:
        return result.stdout.decode(errors="replace").rstrip("\n")
    lines = result.stderr.decode(errors="replace").strip().splitlines()
    told = lines and lines[-1].startswith("Error")
    return lines[-1] if told else f"Error: the tool ended with {result.outcome.value}"


def call(desk: Desk, name: str, arguments: Mapping[str, str], reasoning: str) -> Messages:
    """Returns the assistant's message that calls a tool and the result that the tool has given."""
    message = said("", reasoning, [{"type": "function", "function": {"name": name, "arguments": dict(arguments)}}])
    return [message, {"role": "tool", "content": use(desk, name, arguments)}]
