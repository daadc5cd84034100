"""What a chat request lets the model write: tool choice, strict tools and response formats as matchers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from arcforge_core.chat.parser import CALL, END_CALL, END_THINK, THINK
from arcforge_core.contracts.chat import ChatTemplate, Tool
from arcforge_core.errors import ConfigError
from arcforge_serving.server.state import ServerState
from arcforge_serving.server.structured import MatcherFactory, compiled, wanted_structure
from arcforge_serving.server.tool_grammar import rest_of_call, strict, whole_calls
from arcforge_serving.server.turn import Calls, Turn, free_mask

if TYPE_CHECKING:
    from arcforge_serving.server.chat import ChatRequest


def turn_matcher(
    body: ChatRequest, server: ServerState, template: ChatTemplate, prompt: Sequence[int], tools: Sequence[Tool]
) -> MatcherFactory | None:
    """Returns what follows the turn that a prompt begins; None where the model is free.

    Raises:
        ConfigError: fields that do not go together, a schema that cannot be followed, or a format without grammar.
    """
    parser, grammars = template.parser(prompt, tools), server.grammars
    wanted = _structure(body)
    if wanted is not None:
        if tools and body.tool_choice != "none":
            raise ConfigError(wanted[0], wanted[1], "does not go with tools that may be called; tool_choice=none does")
        return _after_reasoning(compiled(grammars, *wanted), server, template, prompt)
    if body.is_forced:
        many = body.tool_choice == "required" and body.parallel_tool_calls
        grammar = whole_calls(parser, server.tokenizer, tools, many)
        return _after_reasoning(compiled(grammars, "tools", "grammar", grammar), server, template, prompt)
    special = server.tokenizer.special
    known = server.tokenizer.vocab_size
    if body.tool_choice == "none" and body.tools:
        begin, free_V = special.get(CALL), free_mask(grammars.vocabulary, known)
        without_V = free_mask(grammars.vocabulary, known, () if begin is None else (begin,))
        return None if begin is None else partial(Calls, begin, begin, None, without_V, free_V)
    if tools and (any(map(strict, tools)) or not body.parallel_tool_calls):
        return _checked_calls(body, server, template, prompt, tools)
    return None


def _checked_calls(
    body: ChatRequest, server: ServerState, template: ChatTemplate, prompt: Sequence[int], tools: Sequence[Tool]
) -> MatcherFactory:
    """Returns a free turn whose calls are looked after."""
    special, vocabulary, known = server.tokenizer.special, server.grammars.vocabulary, server.tokenizer.vocab_size
    if CALL not in special or END_CALL not in special:
        field = "parallel_tool_calls" if not body.parallel_tool_calls else "tools"
        accepted = "strict and parallel_tool_calls=false need a model whose calls begin with a token of their own"
        raise ConfigError(field, template.__class__.__name__, accepted)
    call = None
    if any(map(strict, tools)):
        grammar = rest_of_call(template.parser(prompt, tools), server.tokenizer, tools)
        call = compiled(server.grammars, "tools", "grammar", grammar)
    free_V, inside_V = free_mask(vocabulary, known), free_mask(vocabulary, known, template.stop_ids)
    last_V = None
    if not body.parallel_tool_calls:
        last_V = ~free_mask(vocabulary, vocabulary, template.stop_ids)
    return partial(Calls, special[CALL], special[END_CALL], call, free_V, inside_V, last_V)


def _after_reasoning(
    inner: MatcherFactory, server: ServerState, template: ChatTemplate, prompt: Sequence[int]
) -> MatcherFactory:
    tokenizer = server.tokenizer
    until = None
    if tokenizer.decode(prompt[-32:]).rstrip().endswith(THINK):
        until = tokenizer.special.get(END_THINK)
        if until is None:
            accepted = f"must be false for structured output and forced calls: {END_THINK} is no token of this model"
            raise ConfigError("chat_template_kwargs", "enable_thinking", accepted)
    stops = [*template.stop_ids, tokenizer.eos_id]
    calls = [tokenizer.special[CALL]] if CALL in tokenizer.special else []  # one would end the reasoning for parsers
    free_V = free_mask(server.grammars.vocabulary, tokenizer.vocab_size, [*stops, *calls])
    return partial(Turn, inner, free_V, until, tokenizer.eos_id, stops)


def _structure(body: ChatRequest) -> tuple[str, str, Any] | None:
    wanted = wanted_structure(body)
    form = body.response_format
    if form is None or form.type == "text":
        return wanted
    if wanted is not None:
        raise ConfigError(wanted[0], "given", "response_format is given too; one can be followed")
    if form.type == "json_object":
        return "response_format", "json_object", True
    if form.json_schema is None:
        raise ConfigError("response_format", form.type, "needs json_schema: {name, schema}")
    return "response_format", "json", form.json_schema.schema_
