"""What runs wrote, read without times, and compared bit by bit."""

from __future__ import annotations

import csv
import hashlib
import json
from pathlib import Path
from typing import Any

TIMES = ("seconds", "tokens_per_s", "mfu")
"""Columns of ``metrics.csv`` that are never the same twice."""
Row = dict[str, float]


def read_rows(path: Path) -> list[Row]:
    """Returns the complete rows of a CSV file of numbers, without times."""
    if not path.exists():
        return []
    whole = path.read_text().rpartition("\n")[0]
    rows = csv.DictReader(whole.splitlines())
    return [{name: float(value) for name, value in row.items() if name not in TIMES} for row in rows]


def read_cells(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a CSV file of numbers, texts and empty cells, without times."""
    rows = csv.DictReader(path.read_text().splitlines())
    timed = ("seconds", *TIMES)
    return [{k: number_or_text(v) for k, v in row.items() if not k.startswith(timed)} for row in rows]


def number_or_text(cell: str) -> float | str:
    """Returns a cell as a number where it is one."""
    try:
        return float(cell)
    except ValueError:
        return cell


def read_lines(path: Path, *fields: str) -> list[dict[str, Any]]:
    """Returns these fields of each line of a jsonl file."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [{name: line[name] for name in fields if name in line} for line in lines]


def weights(folder: Path) -> dict[str, str]:
    """Returns a hash of each tensor in the safetensors files of a checkpoint: its type, shape and bytes."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        for name, tensor in json.loads(data[8:start]).items():
            if name == "__metadata__":
                continue
            first, last = tensor["data_offsets"]
            kind = f"{tensor['dtype']} {tensor['shape']}".encode()
            found[name] = hashlib.sha256(kind + data[start + first : start + last]).hexdigest()[:16]
    return found


def same(a: float, b: float) -> bool:
    """Whether two values have the same bits; NaN equals NaN."""
    return a.hex() == b.hex()


def relative(a: float, b: float) -> float:
    """Returns the difference relative to the larger value."""
    return abs(a - b) / max(abs(a), abs(b)) if not same(a, b) else 0.0


def compare(first: list[Row], second: list[Row]) -> tuple[bool, list[str]]:
    """Returns whether all values are the same bits, and the lines to print."""
    names = [name for name in first[0] if name in second[0] and name != "step"]
    only = sorted(first[0].keys() ^ second[0].keys())
    for a, b in zip(first, second, strict=True):
        differing = [name for name in names if not same(a[name], b[name])]
        if differing:
            values = [f"  {n}: {a[n]!r} and {b[n]!r}, relative {relative(a[n], b[n]):.1e}" for n in differing]
            worst = max(relative(x[n], y[n]) for x, y in zip(first, second, strict=True) for n in names)
            last = f"largest relative difference of all steps: {worst:.1e}"
            return False, [f"first difference in step {a['step']:.0f}:", *values, last]
    if only:
        return False, [f"bit-identical but for values that one of them lacks: {', '.join(only)}"]
    return True, [f"bit-identical over {len(first)} steps: {', '.join(names)}"]


def difference(a: Any, b: Any, place: str = "") -> str | None:
    """Returns the first place where two JSON values differ, with both values; None where all bits are the same.

    Fields that only one of them has come after the fields of both.
    """
    if isinstance(a, dict) and isinstance(b, dict):
        inner = (difference(a[key], b[key], f"{place}.{key}") for key in a if key in b)
        lacking = [f"{place}.{key} is only in the {'first' if key in a else 'second'}" for key in a.keys() ^ b.keys()]
    elif isinstance(a, list) and isinstance(b, list):
        inner = (difference(x, y, f"{place}[{n}]") for n, (x, y) in enumerate(zip(a, b, strict=False)))
        lacking = [f"{place} has {len(a)} and {len(b)} entries"] if len(a) != len(b) else []
    elif isinstance(a, (int, float)) and isinstance(b, (int, float)):
        equal = same(float(a), float(b)) if isinstance(a, float) or isinstance(b, float) else a == b
        return None if equal else f"{place}: {a!r} and {b!r}"
    else:
        return None if a == b else f"{place}: {shown(a)} and {shown(b)}"
    return next((found for found in inner if found), min(lacking, default=None))


def shown(value: Any) -> str:
    """Returns a value in at most 60 characters."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def count(value: Any) -> int:
    """Returns how many numbers and texts a JSON value holds."""
    if isinstance(value, (dict, list)):
        return sum(map(count, value.values() if isinstance(value, dict) else value))
    return 1
