"""The leaderboard's multi-turn tasks, read without running its code."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arcforge_core.contracts.chat import Tool
from arcforge_core.errors import DataError

MODULE = "bfcl_eval"
DOCUMENTS = {
    "GorillaFileSystem": "gorilla_file_system", "MathAPI": "math_api", "MessageAPI": "message_api",
    "TwitterAPI": "posting_api", "TicketAPI": "ticket_api", "TradingBot": "trading_bot", "TravelAPI": "travel_booking",
    "VehicleControlAPI": "vehicle_control",
}  # fmt: skip
"""Class of a program -> file with its functions."""
TYPES = {"dict": "object", "float": "number", "tuple": "array", "list": "array", "bool": "boolean", "any": "string"}
"""The leaderboard's types that JSON Schema calls otherwise."""
MORE = "I have updated some more functions you can choose from. What about now?"
"""Said by the leaderboard's user in the turn in which a missing function is offered."""
Call = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class BfclCase:
    """One task.

    Attributes:
        key: as published.
        number: in its category; tasks of one number in several categories are variants of one task.
        entry: the published task without questions.
        says: the user's messages, one a turn.
        functions: definitions of tools by name.
        late: name of a function -> the first turn that offers it.
        gold: calls of each turn, as published.
    """

    key: str
    number: str
    entry: Mapping[str, Any]
    says: tuple[str, ...]
    functions: Mapping[str, Mapping[str, Any]]
    late: Mapping[str, int]
    gold: tuple[tuple[str, ...], ...]

    def tools(self, turn: int) -> list[Tool]:
        """Returns the tools that a turn offers."""
        offered = [one for name, one in self.functions.items() if self.late.get(name, 0) <= turn]
        return [
            Tool({"type": "function", "function": {**one, "parameters": one["inputSchema"]}})
            for one in ({key: one[key] for key in ("name", "description", "inputSchema")} for one in offered)
        ]

    def calls(self) -> list[list[Call]]:
        """Returns the gold calls of each turn, with names for all arguments."""
        return [[self._call(text) for text in turn] for turn in self.gold]

    @property
    def flaw(self) -> str:
        """Why the gold calls cannot be made with the tools that are offered; empty if they can."""
        for turn, calls in enumerate(self.calls()):
            for name, given in calls:
                schema = self.functions[name]["inputSchema"]
                if self.late.get(name, 0) > turn:
                    return f"its gold calls use {name} in turn {turn + 1}, which is offered later"
                if not set(schema["required"]) <= set(given) <= set(schema["properties"]):
                    return f"its gold call of {name} in turn {turn + 1} has other arguments than the function"
        return ""

    def _call(self, text: str) -> Call:
        node = ast.parse(text, mode="eval").body
        assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        names = [*self.functions[node.func.id]["inputSchema"]["properties"]]
        values = {names[place]: ast.literal_eval(value) for place, value in enumerate(node.args)}
        return node.func.id, values | {str(one.arg): ast.literal_eval(one.value) for one in node.keywords}


def read_cases(folder: Path, categories: Sequence[str]) -> list[BfclCase]:
    """Reads tasks of some categories, in order.

    Args:
        folder: that has the package.
        categories: of the multi-turn tasks.

    Raises:
        DataError: a file is missing or has another form.
    """
    data = folder / MODULE / "data"
    try:
        functions = {name: _functions(data / f"multi_turn_func_doc/{file}.json") for name, file in DOCUMENTS.items()}
        return [case for category in categories for case in _cases(data, category, functions)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"bfcl: {data} cannot be read: {type(error).__name__}: {error}") from error


def _cases(data: Path, category: str, functions: Mapping[str, Mapping[str, Any]]) -> list[BfclCase]:
    file = f"BFCL_v4_multi_turn_{category}.json"
    gold = {row["id"]: row["ground_truth"] for row in _rows(data / "possible_answer" / file)}
    found = []
    for row in _rows(data / file):
        turns = row["question"]
        says = tuple("\n".join(one["content"] for one in turn) or MORE for turn in turns)
        known = {name: one for kind in row["involved_classes"] for name, one in functions[kind].items()}
        late = {name: int(turn) for turn, names in row.get("missed_function", {}).items() for name in names}
        entry = {key: row[key] for key in ("id", "initial_config", "involved_classes")}
        right = tuple(tuple(turn) for turn in gold[row["id"]])
        if len(right) != len(says):
            raise ValueError(f"{row['id']} has {len(says)} turns and gold calls of {len(right)}")
        found.append(BfclCase(row["id"], row["id"].rsplit("_", 1)[1], entry, says, known, late, right))
    return found


def _functions(path: Path) -> dict[str, Any]:
    return {
        row["name"]: {
            "name": row["name"], "description": row["description"],
            "inputSchema": {"required": [], **_schema(row["parameters"])},
        }
        for row in (_rows(path) if path.exists() else [])
    }  # fmt: skip


def _schema(given: Any) -> Any:
    """Returns JSON Schema."""
    if isinstance(given, list):
        return [_schema(one) for one in given]
    if not isinstance(given, dict):
        return given
    kept = {name: _schema(value) for name, value in given.items()}
    kind = given.get("type")
    return {**kept, "type": TYPES.get(kind, kind)} if isinstance(kind, str) else kept


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
