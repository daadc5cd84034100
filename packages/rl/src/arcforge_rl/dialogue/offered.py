"""The tools that tau2 offers, read from the benchmark's source without running it, and checks of calls."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from arcforge_core.contracts.chat import Tool
from arcforge_core.errors import DataError

TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}
CHOICES = {
    "FlightType": ["round_trip", "one_way"],
    "CabinClass": ["business", "economy", "basic_economy"],
    "Insurance": ["yes", "no"],
}
"""Named types of the airline."""
PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "array": (list, tuple),
    "object": (Mapping,),
}  # fmt: skip
PARAMETER = re.compile(r"^(\w+)(?: \([^)]*\))?: (.*)$")


def read_tools(source: str, shared: str, listed: str) -> list[Tool]:
    """Returns the tools of a list in a module.

    Args:
        source: text of the module.
        shared: text of the module with tools of all domains.
        listed: name of the list.

    Raises:
        DataError: the source has no such list, or a tool of another form.
    """
    try:
        trees = [ast.parse(source), ast.parse(shared)]
        (names,) = [
            [name.id for name in node.value.elts if isinstance(name, ast.Name)]
            for node in trees[0].body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.List)
            and isinstance(node.targets[0], ast.Name) and node.targets[0].id == listed
        ]  # fmt: skip
        found = {name: inner for tree in trees[::-1] for name, inner in _tools(tree)}
        return [_tool(name, found[name]) for name in names]
    except (SyntaxError, ValueError, KeyError) as error:
        raise DataError(f"tau2: the tools of {listed} cannot be read: {error}") from error


def _tools(tree: ast.Module) -> Iterator[tuple[str, ast.AsyncFunctionDef]]:
    for outer in tree.body:
        if isinstance(outer, ast.FunctionDef):
            for inner in outer.body:
                if isinstance(inner, ast.AsyncFunctionDef):
                    yield outer.name, inner


def _tool(name: str, function: ast.AsyncFunctionDef) -> Tool:
    said = ast.get_docstring(function) or ""
    described, _, rest = said.partition("\nArgs:")
    notes: dict[str, str] = {}
    last = ""
    for line in rest.split("\nReturns:")[0].split("\nRaises:")[0].splitlines():
        match = PARAMETER.match(line.strip())
        if match:
            last = match[1]
            notes[last] = match[2]
        elif last and line.strip():
            notes[last] += f" {line.strip()}"
    arguments, defaults = function.args.args, function.args.defaults
    properties = {
        one.arg: _schema(one.annotation) | ({"description": notes[one.arg]} if one.arg in notes else {})
        for one in arguments
    }
    required = [one.arg for one in arguments[: len(arguments) - len(defaults)]]
    parameters = {"type": "object", "properties": properties, "required": required}
    text = " ".join(described.split("\nReturns:")[0].split())
    return Tool({"type": "function", "function": {"name": name, "description": text, "parameters": parameters}})


def _schema(annotation: ast.expr | None) -> dict[str, Any]:
    text = ast.unparse(annotation) if annotation else ""
    if text.startswith("list["):
        items = {"type": "string"} if text == "list[str]" else {"type": "object"}
        return {"type": "array", "items": items}
    if text in CHOICES:
        return {"type": "string", "enum": CHOICES[text]}
    names = [name.strip() for name in text.split("|")]
    if "dict[str, Any]" in names:
        return {"type": "object"}
    return {"type": next((TYPES[name] for name in names if name in TYPES), "string")}


def flaw(tool: Tool, arguments: Mapping[str, Any]) -> str:
    """Returns why a tool cannot take these arguments, or an empty text."""
    properties = tool.parameters.get("properties") or {}
    missing = [name for name in tool.parameters.get("required") or () if name not in arguments]
    strange = [str(name)[:40] for name in arguments if name not in properties]
    if missing or strange:
        wrong = f"needs {', '.join(missing)}" if missing else f"does not take {', '.join(strange)}"
        return f"{tool.name} {wrong}"
    for name, value in arguments.items():
        schema = properties[name]
        if not _fits(value, schema):
            return f"{tool.name}: {name} must be of type {schema['type']}, not {str(value)[:60]!r}"
        if "enum" in schema and value not in schema["enum"]:
            return f"{tool.name}: {name} must be one of {', '.join(schema['enum'])}, not {str(value)[:60]!r}"
    return ""


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    wanted = schema["type"]
    if isinstance(value, bool) and wanted != "boolean":
        return False
    if not isinstance(value, PYTHON_TYPES[wanted]):
        return False
    if isinstance(value, (list, tuple)):
        return all(_fits(item, schema["items"]) for item in value)
    return not isinstance(value, float) or math.isfinite(value)
