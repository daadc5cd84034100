"""Tool calls as grammars, in Lark's notation, of the formats that the parsers of `arcforge_core.chat` read.

Arguments come in the order of their schema, and none that it does not name. A tool without ``properties`` takes any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from arcforge_core.chat.glm_parser import END_KEY, END_VALUE, KEY, VALUE, GlmParser
from arcforge_core.chat.json_parsers import HermesParser, LlamaParser
from arcforge_core.chat.parser import CALL, END_CALL
from arcforge_core.chat.values import DEEPEST, permitted_types, resolve_reference
from arcforge_core.contracts.chat import ChatParser, Tool
from arcforge_core.errors import ConfigError
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_serving.engine.grammar import schema_text
from arcforge_serving.server.shared.structured import literal

RAW = r"/(.|\n)*/"
"""Any text; special tokens are none."""


def strict(tool: Tool) -> bool:
    """Returns whether arguments must fit the tool's schema whatever the model wants."""
    function = tool.definition.get("function", tool.definition)
    return bool(function.get("strict"))


def whole_calls(parser: ChatParser, tokenizer: Tokenizer, tools: Sequence[Tool], many: bool) -> str:
    """Returns the grammar of an answer that is one call, or with `many` at least one.

    Raises:
        ConfigError: the parser's format, or a schema, has no grammar here.
    """
    begin, end = _token(CALL, tokenizer), _token(END_CALL, tokenizer)
    match parser:
        case GlmParser():
            rules, between = [f"call: {begin} body {end}", *_glm_body(tools, tokenizer)], ""
        case HermesParser():
            rules, between = [f'call: {begin} "\\n" body "\\n" {end}', *_json_body(tools, "arguments")], r'"\n" '
        case LlamaParser():
            rules, between = ["call: body", *_json_body(tools, "parameters")], '";" '
        case _:
            name = type(parser).__name__
            raise ConfigError("tool_choice", name, f"must be auto or none: there is no grammar of {name}'s format")
    start = f"start: call ({between}call)*" if many else "start: call"
    return "\n".join([start, *rules])


def rest_of_call(parser: ChatParser, tokenizer: Tokenizer, tools: Sequence[Tool]) -> str:
    """Returns the grammar of what follows the token that begins a call; only strict tools have to have their arguments.

    Raises:
        ConfigError: the format does not begin calls by a token.
    """
    tools = [tool if strict(tool) else without_schema(tool) for tool in tools]
    begins = CALL in tokenizer.special and END_CALL in tokenizer.special
    if isinstance(parser, GlmParser) and begins:
        return "\n".join([f"start: body {_token(END_CALL, tokenizer)}", *_glm_body(tools, tokenizer)])
    if isinstance(parser, HermesParser) and begins:
        start = rf"start: /\s{{0,4}}/ body /\s{{0,4}}/ {_token(END_CALL, tokenizer)}"
        return "\n".join([start, *_json_body(tools, "arguments")])
    raise ConfigError(
        "tools", "strict", "strict needs a model whose calls begin with a token of their own, or tool_choice=required"
    )


def without_schema(tool: Tool) -> Tool:
    """Returns a tool of the same name that takes any arguments."""
    return Tool({"type": "function", "function": {"name": tool.name}})


def _token(text: str, tokenizer: Tokenizer) -> str:
    id_ = tokenizer.special.get(text)
    return literal(text) if id_ is None else f"<[{id_}]>"


# ---- GLM: strings raw, other values JSON -----------------------------------------------------------------------------


def _glm_body(tools: Sequence[Tool], tokenizer: Tokenizer) -> list[str]:
    rules = [f"RAW: {RAW}", f"body: {' | '.join(f'tool_{n}' for n in range(len(tools)))}"]
    for number, tool in enumerate(tools):
        root = tool.parameters
        properties, required = root.get("properties"), root.get("required")
        if isinstance(properties, Mapping):
            named = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
            arguments = [(literal(key), _value(schema, root), key in named) for key, schema in properties.items()]
            arguments += [(literal(key), "RAW", True) for key in named if key not in properties]
            parts = [_argument(key, value, tokenizer) + ("" if must else "?") for key, value, must in arguments]
        else:
            parts = [_argument("RAW", "RAW", tokenizer) + "*"]
        rules.append(f"tool_{number}: {' '.join([literal(tool.name), *parts])}")
    return rules


def _argument(key: str, value: str, tokenizer: Tokenizer) -> str:
    around = [_token(tag, tokenizer) for tag in (KEY, END_KEY, VALUE, END_VALUE)]
    return f"({around[0]} {key} {around[1]} {around[2]} {value} {around[3]})"


def _value(schema: Any, root: Mapping[str, Any]) -> str:
    types = permitted_types(schema, root)
    if "string" not in types:
        return f"%json {schema_text(_with_definitions(schema, root))}"
    found = schema
    for _ in range(DEEPEST):
        if isinstance(found, Mapping) and "$ref" in found:
            found = resolve_reference(str(found["$ref"]), root)
    if types != {"string"} or not isinstance(found, Mapping):
        return "RAW"
    choices = [found["const"]] if "const" in found else found.get("enum")
    if isinstance(choices, list) and choices and all(isinstance(choice, str) for choice in choices):
        return f"({' | '.join(map(literal, choices))})"
    least, most = found.get("minLength", 0), found.get("maxLength", "")
    if (least or most != "") and isinstance(least, int) and isinstance(most, int | str):
        return rf"/(.|\n){{{least},{most}}}/"
    return "RAW"


# ---- JSON ------------------------------------------------------------------------------------------------------------


def _json_body(tools: Sequence[Tool], arguments: str) -> list[str]:
    rules = [f"body: {' | '.join(f'tool_{n}' for n in range(len(tools)))}"]
    for number, tool in enumerate(tools):
        schema = {
            "type": "object",
            "properties": {"name": {"const": tool.name}, arguments: {"type": "object", **tool.parameters}},
            "required": ["name", arguments],
            "additionalProperties": False,
        }
        rules.append(f"tool_{number}: %json {schema_text(_with_definitions(schema, tool.parameters))}")
    return rules


def _with_definitions(schema: Any, root: Mapping[str, Any]) -> Any:
    """Returns a part of a schema with the definitions that its references lead to."""
    if not isinstance(schema, Mapping):
        return {}
    return {**{word: root[word] for word in ("$defs", "definitions") if word in root}, **schema}
