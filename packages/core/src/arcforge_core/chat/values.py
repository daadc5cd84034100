"""Arguments as text: strings as they are, other values as JSON, read back as the types that their schema permits."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping
from typing import Any

JSON_TYPES: dict[type, str] = {
    bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object", type(None): "null",
}  # fmt: skip
ANY = frozenset(JSON_TYPES.values())
DEEPEST = 16
"""Nesting depth to which schemas are read."""


def write_value(value: Any) -> str:
    """Returns an argument's text: a string raw, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def read_value(text: str, schema: Any, root: Any = None) -> Any:
    """Returns the value that a text denotes.

    If the schema permits only strings, returns the text. If it permits strings and other types, returns JSON of one of
    the other types, else the text. If it permits no strings, returns any JSON, else a Python literal of a permitted
    type, else the text. A JSON string is never unquoted, because strings are written raw: ``"a"`` keeps its quotes.

    Args:
        text: the argument's text.
        schema: its JSON schema; an invalid schema permits everything.
        root: the schema of all arguments, in which ``$ref`` is resolved.
    """
    types = permitted_types(schema, root)
    if types == {"string"}:
        return text
    value = _attempt(_json, text)
    if "string" in types:
        return value if _is_other(value, types) else text
    if not isinstance(value, str):
        return value
    value = _attempt(ast.literal_eval, text)
    return value if _is_other(value, types) else text


def _attempt(reading: Callable[[str], Any], text: str) -> Any:
    """Returns the text read by `reading` as a JSON value, or the text itself if that fails."""
    try:
        value = reading(text)
        written = json.dumps(value, ensure_ascii=False, allow_nan=False)  # rejects sets, NaN and too deep nesting
        written.encode()  # rejects lone surrogates
        return text if isinstance(value, str) else json.loads(written)  # of a literal: no tuples, keys are strings
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return text


def _json(text: str) -> Any:
    return json.loads(text, parse_constant=refuse_constant)


def refuse_constant(constant: str) -> Any:
    """Rejects NaN and Infinity, which Python's JSON parser accepts (`parse_constant`)."""
    raise ValueError(f"{constant} is not JSON")


def _is_other(value: Any, types: frozenset[str]) -> bool:
    """Whether a value has a permitted type other than string; a number without a fraction is also an integer."""
    kind = JSON_TYPES[type(value)]
    if kind == "integer":
        return bool(types & {"integer", "number"})
    if kind == "number":
        return "number" in types or ("integer" in types and value.is_integer())
    return kind != "string" and kind in types


def permitted_types(schema: Any, root: Any = None) -> frozenset[str]:
    """Returns the JSON types that a schema permits; `ANY` if it does not restrict them.

    Reads ``type``, ``enum``, ``const``, ``anyOf``, ``oneOf``, ``allOf``, local ``$ref``, OpenAPI's ``nullable``, and
    infers from ``properties`` and ``items``.
    """
    return _permitted(schema, root, {}, 0)


def _permitted(schema: Any, root: Any, known: dict[str, frozenset[str]], depth: int) -> frozenset[str]:
    """`permitted_types`; `known` caches resolved references, so that each is followed once."""
    if not isinstance(schema, Mapping) or depth > DEEPEST:
        return ANY
    types = _stated_types(schema, root, known, depth + 1)
    return types | {"null"} if schema.get("nullable") is True else types


def _stated_types(schema: Mapping[str, Any], root: Any, known: dict[str, frozenset[str]], depth: int) -> frozenset[str]:
    if "$ref" in schema:
        reference = str(schema["$ref"])
        if reference not in known:
            known[reference] = _permitted(resolve_reference(reference, root), root, known, depth)
        return known[reference]
    if "type" in schema:
        stated = schema["type"]
        return (
            ANY & frozenset(x for x in (stated if isinstance(stated, list) else [stated]) if isinstance(x, str)) or ANY
        )
    if "const" in schema or isinstance(schema.get("enum"), list):
        values = [schema["const"]] if "const" in schema else schema["enum"]
        return frozenset(JSON_TYPES.get(type(value), "string") for value in values) or ANY
    for word in ("anyOf", "oneOf"):
        if isinstance(schema.get(word), list):
            return frozenset().union(*(_permitted(part, root, known, depth) for part in schema[word])) or ANY
    if isinstance(schema.get("allOf"), list):
        types = ANY
        for part in schema["allOf"]:
            types &= _permitted(part, root, known, depth)
        return types or ANY
    if "properties" in schema:
        return frozenset({"object"})
    return frozenset({"array"}) if "items" in schema else ANY


def resolve_reference(reference: str, root: Any) -> Any:
    """Resolves ``#/$defs/Name``; None if it does not exist."""
    found = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found
