"""Python values as JSON and back, by type: the only form in which values leave or enter the process of a candidate.

A sandbox runs this file's text before `candidate` or `examiner`, so it imports the standard library only.

None, bool, int, float, str are themselves, a list is an array, and an object with one key is a value of another type:
``{"tuple": [...]}``, ``{"set": [...]}``, ``{"frozenset": [...]}``, ``{"dict": [[key, value], ...]}``,
``{"bytes": "00ff"}``, ``{"complex": [real, imaginary]}``. Instances of subclasses become instances of these types.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

SEQUENCES = {"tuple": tuple, "set": set, "frozenset": frozenset}
DEEPEST = 100
"""Maximum nesting of containers."""


def to_plain(value: Any, deepest: int = DEEPEST) -> Any:
    """Returns a value as JSON can hold it.

    Raises:
        TypeError: the value, or one inside it, has another type.
        ValueError: containers are nested too deeply.
    """
    if not deepest:
        raise ValueError(f"the value has more than {DEEPEST} containers inside one another")
    if value is None or isinstance(value, bool):
        return value
    for scalar in (int, float, str):
        if isinstance(value, scalar):
            return scalar(value)
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, dict):
        return {"dict": [[to_plain(part, deepest - 1) for part in pair] for pair in value.items()]}
    kinds: dict[str, type[Any]] = {"list": list, **SEQUENCES}
    for name, kind in kinds.items():
        if isinstance(value, kind):
            parts = [to_plain(part, deepest - 1) for part in value]
            if name in ("set", "frozenset"):
                parts.sort(key=repr)  # equal sets have equal JSON
            return parts if name == "list" else {name: parts}
    raise TypeError(f"a value of type {type(value).__name__} cannot leave its process")


def from_plain(plain: Any, deepest: int = DEEPEST) -> Any:
    """Returns the value that `to_plain` was given; every part has exactly one of the types listed above.

    Raises:
        TypeError: a key of a dict, or an element of a set, cannot be hashed.
        ValueError: `to_plain` does not return this.
    """
    if not deepest:
        raise ValueError(f"the value has more than {DEEPEST} containers inside one another")
    if plain is None or type(plain) in (bool, int, float, str):
        return plain
    if type(plain) is list:
        return [from_plain(part, deepest - 1) for part in plain]
    if type(plain) is dict and len(plain) == 1:
        ((name, parts),) = plain.items()
        if name == "bytes" and type(parts) is str:
            return bytes.fromhex(parts)
        if name == "complex" and type(parts) is list and [type(part) for part in parts] == [float, float]:
            return complex(*parts)
        if name == "dict" and type(parts) is list and all(type(pair) is list and len(pair) == 2 for pair in parts):
            return {from_plain(key, deepest - 1): from_plain(value, deepest - 1) for key, value in parts}
        if name in SEQUENCES and type(parts) is list:
            return SEQUENCES[name](from_plain(part, deepest - 1) for part in parts)
    raise ValueError("the value has a form that no value is sent in")


def load_module(name: str, source: str) -> dict[str, Any]:
    """Runs a source as a module of that name and returns its names."""
    module = ModuleType(name)
    module.__dict__["__file__"] = name + ".py"
    if name.partition(".")[0] not in sys.stdlib_module_names:  # dataclasses look their module up
        sys.modules[name] = module
    exec(compile(source, name + ".py", "exec"), module.__dict__)
    sys.modules[name] = module
    return module.__dict__
