"""Hugging Face's Jinja templates, rendered as transformers does, with marks around the text of messages.

Marks are characters that do not occur in the conversation, mostly from Unicode's private use areas. They reveal which
part of the rendered text came from which message, however the template transformed it; without marks the text is what
transformers renders.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from arcforge_core.errors import ConfigError

PRIVATE = (range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE), range(0xE000, 0xF900))
GENERATION, END_GENERATION, END = "\ufdd0", "\ufdd1", "\ufdd2"
"""Marks around ``{% generation %}`` blocks, and the mark that ends a message's text. Unicode reserves these characters
for internal use; exchanged text never contains them."""


class GenerationTag(jinja2.ext.Extension):
    """``{% generation %}`` of training templates: its contents are written by the assistant."""

    tags = {"generation"}  # noqa: RUF012 jinja2 declares it so

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        """Returns a block that is marked when rendered."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller: Callable[[], str]) -> str:
        return GENERATION + caller() + END_GENERATION


@functools.lru_cache(maxsize=64)
def compile_template(text: str) -> jinja2.Template:
    """Compiles a template with transformers' settings, in Jinja's sandbox.

    Raises:
        ConfigError: the text is not a Jinja template.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(text)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(
            "chat_template", text[:80], f"is not a Jinja template: line {error.lineno}: {error}"
        ) from error


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without HTML escapes, which Jinja's own filter adds."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


@dataclass(frozen=True)
class TextPiece:
    """A part of the rendered text.

    Attributes:
        start, end: range in the text.
        source: number of the marked string that it belongs to; None for the template's own text.
    """

    start: int
    end: int
    source: int | None


@dataclass(frozen=True)
class Marked:
    """A rendered text.

    Attributes:
        text: the text without marks.
        pieces: consecutive pieces that cover the text.
        generated: ranges of ``{% generation %}`` blocks.
    """

    text: str
    pieces: tuple[TextPiece, ...]
    generated: tuple[tuple[int, int], ...]


class Marker:
    """Puts marks around strings and finds them in rendered text.

    Args:
        texts: all rendered strings, to choose marks that do not occur in them.
    """

    def __init__(self, texts: str) -> None:
        used = set(texts)
        self._free: Iterator[str] = (c for area in PRIVATE for c in map(chr, area) if c not in used)
        self._numbers: dict[str, int] = {}
        if reserved := used & {GENERATION, END_GENERATION, END}:
            raise ConfigError(
                "messages", ascii(min(reserved)), "is reserved by Unicode for internal use and must not occur"
            )

    def mark(self, text: str) -> str:
        """Returns `text` with marks; surrounding white space stays outside, for templates that strip."""
        kept = text.strip()
        if not kept:
            return text
        begin = next(self._free)
        self._numbers[begin] = len(self._numbers)
        start = text.index(kept)
        return text[:start] + begin + kept + END + text[start + len(kept) :]

    def find(self, rendered: str) -> Marked | None:
        """Returns the text and its pieces; None if the template split a marked string."""
        marks = re.compile("[" + re.escape("".join((GENERATION, END_GENERATION, END, *self._numbers))) + "]")
        parts: list[str] = []
        pieces: list[TextPiece] = []
        generated: list[tuple[int, int]] = []
        source: int | None = None
        position, length, begun = 0, 0, 0
        for found in [*marks.finditer(rendered), None]:
            part = rendered[position : found.start() if found else len(rendered)]
            if part:
                parts.append(part)
                pieces.append(TextPiece(length, length + len(part), source))
                length += len(part)
            if found is None:
                break
            position, mark = found.end(), found[0]
            if mark == GENERATION:
                begun = length
            elif mark == END_GENERATION:
                generated.append((begun, length))
            elif (mark == END) == (source is None):
                return None
            else:
                source = None if mark == END else self._numbers[mark]
        return None if source is not None else Marked("".join(parts), tuple(pieces), tuple(generated))


def mark_strings(value: Any, mark: Callable[[str], str]) -> Any:
    """Returns JSON values with all strings marked, field names included."""
    if isinstance(value, str):
        return mark(value)
    if isinstance(value, Mapping):
        return {mark(str(key)): mark_strings(inner, mark) for key, inner in value.items()}
    if isinstance(value, Sequence):
        return [mark_strings(inner, mark) for inner in value]
    return value
