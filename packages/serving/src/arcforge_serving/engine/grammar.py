"""Structured output: grammars over a tokenizer's vocabulary, through llguidance. Shape: V vocabulary.

Grammars are compiled and followed within fixed limits of memory and work; one that exceeds them is refused or fails its
own request, after a second at most.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from functools import cached_property, lru_cache, partial
from typing import Any

import llguidance
import numpy as np
import torch
from torch import Tensor

from arcforge_core.errors import ArcforgeError, ConfigError
from arcforge_core.tokenizer.tokenizer import Tokenizer

LIMITS = llguidance.LLParserLimits(
    max_grammar_size=200_000, initial_lexer_fuel=1_000_000, step_lexer_fuel=200_000,
    max_items_in_row=2_000, step_max_items=50_000, max_lexer_states=250_000,
)  # fmt: skip
"""What a grammar may take, in llguidance's units: the size of its rules, work at the start and for one token."""

MOST_CHARACTERS, MOST_PARTS = 200_000, 10_000
"""Size of a grammar's text; its strings, commas and alternatives. Compiling time grows faster than their number: 10,000
choices take 0.7 s, 100,000 half a minute, of which `LIMITS` know nothing."""

KEPT = 64
"""Compiled grammars that are kept: agents send the same tools with every request."""


WHITE_SPACE = r"[ \t]{0,2}|\r?\n[ \t]{0,40}"
"""Between two tokens of JSON: enough for any usual layout, with an end for models that would never stop writing it."""


def schema_text(schema: Any) -> str:
    """Returns a JSON schema for llguidance, with bounded white space."""
    if schema is True:
        schema = {}
    if not isinstance(schema, Mapping):
        return json.dumps(schema)
    given = schema.get("x-guidance")
    options = {**(given if isinstance(given, Mapping) else {}), "whitespace_pattern": WHITE_SPACE}
    return json.dumps({**schema, "x-guidance": options})


class GrammarError(ArcforgeError):
    """A grammar that took more work for a token than is allowed."""


class Grammars:
    """Makes matchers for one tokenizer.

    Args:
        tokenizer: of the model.
        vocabulary: V of the model; ids that the tokenizer does not have are never allowed.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self._compiled = lru_cache(KEPT)(self._compile)
        self._source, self._making = tokenizer, threading.Lock()

    @cached_property
    def _tokenizer(self) -> llguidance.LLTokenizer:
        """Made for the first grammar: it takes seconds and hundreds of MiB for a large vocabulary."""
        size = max(self.vocabulary, self._source.vocab_size)
        return llguidance.LLTokenizer(self._source.definition, n_vocab=size, eos_token=self._source.eos_id)

    def json_schema(self, schema: Mapping[str, Any] | str) -> partial[GrammarMatcher]:
        """Returns a `SamplingParams.matcher` for JSON of a schema.

        Raises:
            ConfigError: it is no schema, nothing can match it, it uses unsupported keywords, or it is too large.
        """
        text = schema if isinstance(schema, str) else json.dumps(schema)
        try:
            given = json.loads(text)  # or what follows a stray bracket would be read as options
            grammar = llguidance.LLMatcher.grammar_from_json_schema(schema_text(given))
        except ValueError as error:
            raise ConfigError("json_schema", _short(text), str(error)) from error
        return self._compiled("json_schema", grammar, text)

    def regex(self, pattern: str) -> partial[GrammarMatcher]:
        """Returns the same for texts that match a regular expression as a whole; see `json_schema`."""
        return self._compiled("regex", llguidance.LLMatcher.grammar_from_regex(pattern), pattern)

    def lark(self, grammar: str) -> partial[GrammarMatcher]:
        """Returns the same for a context-free grammar in Lark's notation; see `json_schema`.

        Special tokens are written as they are, e.g. ``<tool_call>``, and ``%json {...}`` is a JSON schema: that makes
        grammars of tool calls.
        """
        return self._compiled("grammar", llguidance.LLMatcher.grammar_from_lark(grammar), grammar)

    def _compile(self, field: str, grammar: str, given: str) -> partial[GrammarMatcher]:
        parts = given.count('"') // 2 + given.count(",") + given.count("|")
        if parts > MOST_PARTS or len(given) > MOST_CHARACTERS:
            accepted = f"must have at most {MOST_CHARACTERS:,} characters and {MOST_PARTS:,} strings and separators"
            raise ConfigError(field, _short(given), f"{accepted}, not {len(given):,} and {parts:,}")
        with self._making:  # several threads may ask for the first grammar
            tokenizer = self._tokenizer
        matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise ConfigError(field, _short(given), matcher.get_error().strip())
        return partial(GrammarMatcher, matcher, self.vocabulary)


class GrammarMatcher:
    """Follows one sequence; implements `arcforge_core.contracts.engine.Matcher`.

    Args:
        compiled: a matcher at its start, which is copied.
        vocabulary: V.
    """

    def __init__(self, compiled: llguidance.LLMatcher, vocabulary: int) -> None:
        self._matcher, self._vocabulary = compiled.deep_copy(), vocabulary

    def allowed(self) -> Tensor:
        """Returns bool [V]; see the contract.

        Raises:
            GrammarError: finding it took more work than is allowed.
        """
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        self._check()
        return torch.from_numpy(np.unpackbits(bits, bitorder="little")[: self._vocabulary].astype(np.bool_))

    def accept(self, token: int) -> None:
        """Accepts a token; see the contract."""
        self._matcher.consume_token(token)
        self._check()

    @property
    def finished(self) -> bool:
        """Whether the text is complete."""
        return bool(self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(f"the grammar cannot be followed: {self._matcher.get_error().strip()}")


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."
