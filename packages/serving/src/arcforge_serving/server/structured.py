"""What a request wants its output to look like, as a grammar: OpenAI's ``response_format`` and vLLM's fields."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from arcforge_core.contracts.engine import Matcher
from arcforge_core.errors import ConfigError
from arcforge_serving.grammar import Grammars
from arcforge_serving.server.common import GenerateRequest

MatcherFactory = Callable[[], Matcher]
OBJECT = {"type": "object"}


def wanted_structure(request: GenerateRequest) -> tuple[str, str, Any] | None:
    """Returns (field, kind, value) of what a request asks for outside `response_format`; None for free text.

    Raises:
        ConfigError: it asks for two things.
    """
    given = {
        "guided_json": ("json", request.guided_json),
        "guided_regex": ("regex", request.guided_regex),
        "guided_choice": ("choice", request.guided_choice),
        "guided_grammar": ("grammar", request.guided_grammar),
    }
    found = [(field, kind, value) for field, (kind, value) in given.items() if value is not None]
    if request.structured_outputs is not None:
        inner = request.structured_outputs
        kinds = {
            "json": inner.json_, "regex": inner.regex, "choice": inner.choice, "grammar": inner.grammar,
            "json_object": inner.json_object or None,
        }  # fmt: skip
        found += [("structured_outputs", kind, value) for kind, value in kinds.items() if value is not None]
    if len(found) > 1:
        raise ConfigError(found[1][0], "given", f"{found[0][0]} ({found[0][1]}) is given too; one can be followed")
    return found[0] if found else None


def compiled(grammars: Grammars, field: str, kind: str, value: Any) -> MatcherFactory:
    """Returns a matcher for what `wanted_structure` found.

    Raises:
        ConfigError: names the request's field.
    """
    try:
        match kind:
            case "json":
                return grammars.json_schema(value if isinstance(value, str) else json.dumps(value))
            case "json_object":
                return grammars.json_schema(OBJECT)
            case "regex":
                return grammars.regex(value)
            case "choice":
                return grammars.lark("start: " + " | ".join(map(literal, value)))
            case _:
                return grammars.lark(value)
    except ConfigError as error:
        raise ConfigError(field, error.value, error.accepted) from error


def literal(text: str) -> str:
    """Returns a text as Lark writes it."""
    return json.dumps(text, ensure_ascii=False)
