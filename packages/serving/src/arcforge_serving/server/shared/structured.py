"""What the output must look like: OpenAI's and vLLM's spellings of it, and the one `Structure` that they become."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from arcforge_core.contracts.engine import Matcher
from arcforge_core.errors import ConfigError
from arcforge_serving.engine.grammar import Grammars
from arcforge_serving.server.shared.body import Body, Text

MatcherFactory = Callable[[], Matcher]
OBJECT = {"type": "object"}


@dataclass(frozen=True)
class Structure:
    """A constraint of the output.

    Attributes:
        field: the request's field that set it, for errors.
        kind: of `StructuredOutputs`: ``json``, ``regex``, ``choice``, ``grammar`` or ``json_object``.
        value: the schema, pattern, choices or grammar.
    """

    field: str
    kind: str
    value: Any

    def matcher(self, grammars: Grammars) -> MatcherFactory:
        """Returns what makes a sequence's matcher.

        Raises:
            ConfigError: names the request's field.
        """
        try:
            match self.kind:
                case "json":
                    return grammars.json_schema(self.value if isinstance(self.value, str) else json.dumps(self.value))
                case "json_object":
                    return grammars.json_schema(OBJECT)
                case "regex":
                    return grammars.regex(self.value)
                case "choice":
                    return grammars.lark("start: " + " | ".join(map(literal, self.value)))
                case _:
                    return grammars.lark(self.value)
        except ConfigError as error:
            raise ConfigError(self.field, error.value, error.accepted) from error


class StructuredOutputs(Body):
    """vLLM's field; exactly one of these is set."""

    json_: dict[str, Any] | bool | Text | None = Field(default=None, alias="json")
    regex: Text | None = None
    choice: Annotated[list[Text], Field(min_length=1)] | None = None
    grammar: Text | None = None
    json_object: bool | None = None


class NamedSchema(Body):
    """A JSON schema; the output follows it whether it is ``strict`` or not."""

    name: Text
    description: Text | None = None
    schema_: dict[str, Any] = Field(default={}, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """OpenAI's field."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None


class StructuredRequest(Body):
    """The fields of a request that constrain its output; `structure` is the only one that the server reads."""

    structured_outputs: StructuredOutputs | None = None
    response_format: ResponseFormat | None = Field(
        default=None, description="as OpenAI: structured_outputs.json or json_object"
    )
    guided_json: dict[str, Any] | bool | Text | None = Field(default=None, description="structured_outputs.json")
    guided_regex: Text | None = Field(default=None, description="structured_outputs.regex")
    guided_choice: Annotated[list[Text], Field(min_length=1)] | None = Field(
        default=None, description="structured_outputs.choice"
    )
    guided_grammar: Text | None = Field(default=None, description="structured_outputs.grammar")

    @property
    def structure(self) -> Structure | None:
        """The constraint, whichever field sets it; None for free text.

        Raises:
            ConfigError: two are set, or a response format lacks its schema.
        """
        found = [
            *_of_response_format(self.response_format),
            *(
                Structure(f"guided_{kind}", kind, value)
                for kind in ("json", "regex", "choice", "grammar")
                if (value := getattr(self, f"guided_{kind}")) is not None
            ),
            *_of_structured_outputs(self.structured_outputs),
        ]
        if len(found) > 1:
            first, second = found[:2]
            raise ConfigError(second.field, "given", f"{first.field} ({first.kind}) is given too; one can be followed")
        return found[0] if found else None


def _of_response_format(form: ResponseFormat | None) -> list[Structure]:
    if form is None or form.type == "text":
        return []
    if form.type == "json_object":
        return [Structure("response_format", "json_object", True)]
    if form.json_schema is None:
        raise ConfigError("response_format", form.type, "needs json_schema: {name, schema}")
    return [Structure("response_format", "json", form.json_schema.schema_)]


def _of_structured_outputs(given: StructuredOutputs | None) -> list[Structure]:
    if given is None:
        return []
    kinds = {
        "json": given.json_, "regex": given.regex, "choice": given.choice, "grammar": given.grammar,
        "json_object": given.json_object or None,
    }  # fmt: skip
    return [Structure("structured_outputs", kind, value) for kind, value in kinds.items() if value is not None]


def literal(text: str) -> str:
    """Returns a text as Lark writes it."""
    return json.dumps(text, ensure_ascii=False)
