"""Samples Python functions from a model and counts those that parse.

The model continues ``def NAME(`` with NAME from held-out files. `judge` applies one rule and does not search for a
prefix that parses:

- A statement indented less than the function's body ends the function; everything before it is judged.
- Otherwise, a text that the model ended by itself is judged whole.
- Otherwise, the token limit cut the text, and it is cut back to its last complete statement. This removes the last
  physical line if it has no line end, a statement with open brackets, string or continuation, then block headers and
  decorators without a body, and a ``try`` that has no handler yet. The removed part must not contain an error: the
  parser must read all of it and expect more, so an unclosed bracket with statements after it is an error.

The rest must parse as a whole and be one function with a statement in its body.
"""

from __future__ import annotations

import ast
import codeop
import io
import itertools
import random
import tokenize
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.errors import DataError

if TYPE_CHECKING:
    from arcforge_core.contracts.data import Document
    from arcforge_core.contracts.engine import Engine
    from arcforge_core.tokenizer.tokenizer import Tokenizer

ALLOW_INCOMPLETE_INPUT: int = codeop.PyCF_ALLOW_INCOMPLETE_INPUT  # type: ignore[attr-defined]
SKIPPED = {tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


@dataclass(frozen=True)
class FunctionSample:
    """One sampled function.

    Attributes:
        prompt: ``def NAME(``.
        text: prompt and continuation.
        cut: the judged part of `text`.
        ok: whether it is a function that parses.
        error: the reason if it is not, otherwise empty.
    """

    prompt: str
    text: str
    cut: str
    ok: bool
    error: str


@dataclass(frozen=True)
class FunctionReport:
    """The share of samples that parse, and the samples."""

    rate: float
    samples: list[FunctionSample]


@dataclass(frozen=True)
class Statement:
    """One logical line.

    Attributes:
        first_row, last_row: its physical lines, from 1; `last_row` is None if the text ends inside it.
        column: width of the indentation.
        keyword: the first token.
        opens_block: whether it ends with a colon.
    """

    first_row: int
    last_row: int | None
    column: int
    keyword: str
    opens_block: bool


def function_names(documents: Iterable[Document], count: int, seed: int) -> list[str]:
    """Returns at most `count` distinct names of functions defined in the Python files of `documents`."""
    names: set[str] = set()
    for document in documents:
        if (tree := _parse(document.text)[0]) is not None:
            names |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    return random.Random(seed).sample(sorted(names), min(count, len(names)))


def sample_functions(
    engine: Engine,
    tokenizer: Tokenizer,
    names: Sequence[str],
    *,
    temperature: float = 0.6,
    max_new_tokens: int = 160,
    seed: int = 0,
) -> FunctionReport:
    """Samples one function per name; sample n uses seed + n.

    Prompts look like the beginning of a document in training: BOS, then the tokens of the text.

    Raises:
        DataError: there are no names.
    """
    if not names:
        raise DataError("no functions to sample: the held-out documents define none in Python")
    texts = [f"def {name}(" for name in names]
    prompts = [tokenizer.encode(text) for text in texts]
    params = [
        SamplingParams(max_new_tokens, temperature, stop_token_ids=(tokenizer.eos_id,), seed=seed + n)
        for n in range(len(names))
    ]
    outputs = engine.generate([[tokenizer.bos_id, *prompt] for prompt in prompts], params)
    samples = []
    for text, prompt, output in zip(texts, prompts, outputs, strict=True):
        finished = output.finish_reason == "stop"
        ids = output.token_ids[:-1] if finished else output.token_ids
        samples.append(judge(text, tokenizer.decode([*prompt, *ids]), finished))
    return FunctionReport(sum(s.ok for s in samples) / len(samples), samples)


def judge(prompt: str, text: str, finished: bool) -> FunctionSample:
    """Cuts and checks `text`, which begins with a function header; `finished`: the model ended it by itself."""
    found = statements(text)
    lines = io.StringIO(text).readlines()
    if (end := end_of_function(found)) is not None:
        cut = "".join(lines[:end])
        error = check_function(cut)
    elif finished:
        cut = text
        error = check_function(cut)
    else:
        complete_rows = text.count("\n")
        cut = "".join(lines[: last_complete_row(found, complete_rows)])
        error = _parse("".join(lines[:complete_rows]), may_be_incomplete=True)[1] or check_function(cut)
    return FunctionSample(prompt, text, cut, not error, error)


def check_function(text: str) -> str:
    """Returns the reason why `text` as a whole is not one function with a body, or an empty string."""
    tree, error = _parse(text)
    if tree is None:
        return error
    if len(tree.body) != 1 or not isinstance(tree.body[0], ast.FunctionDef):
        return "no function with a complete statement in its body"
    return ""


def statements(text: str) -> list[Statement]:
    """Returns the logical lines of `text` up to its end or to the first place that cannot be tokenised."""
    found: list[Statement] = []
    first: tokenize.TokenInfo | None = None
    last = ""
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NEWLINE and first is not None:
                found.append(_statement(first, token.start[0], last))
                first = None
            elif token.type not in SKIPPED:
                first, last = first or token, token.string
    except IndentationError as error:  # a dedent between two levels; the statement there still has a column
        line = text.split("\n")[(error.lineno or 1) - 1]
        found.append(Statement(error.lineno or 1, None, _width(line), "", False))
    except tokenize.TokenError:  # the text ends inside brackets or a string
        pass
    if first is not None:
        found.append(_statement(first, None, last))
    return found


def end_of_function(found: Sequence[Statement]) -> int | None:
    """Returns the last row of the function that starts with the first statement, or None if nothing follows it."""
    body = 1  # for ``def f(): return 1``, which no indented line may follow
    if len(found) > 1 and found[0].opens_block:
        body = max(body, found[1].column)
    for before, statement in itertools.pairwise(found):
        if statement.column < body:
            return before.last_row
    return None


def last_complete_row(found: Sequence[Statement], complete_rows: int) -> int:
    """Returns the last row of the last complete statement, or 0 if there is none."""
    kept = [s for s in found if s.last_row is not None and s.last_row <= complete_rows]
    while kept:
        if (open_try := _open_try(kept)) is not None:
            del kept[open_try:]
        elif kept[-1].opens_block or kept[-1].keyword == "@":
            kept.pop()
        else:
            return kept[-1].last_row or 0
    return 0


def _open_try(kept: Sequence[Statement]) -> int | None:
    """Returns the index of the outermost ``try`` whose body contains the last statement."""
    outermost, column = None, kept[-1].column + 1
    for n in reversed(range(len(kept))):
        if kept[n].column < column:  # the last statement itself, then the header of each enclosing block
            column = kept[n].column
            outermost = n if kept[n].keyword == "try" else outermost
    return outermost


def _statement(first: tokenize.TokenInfo, last_row: int | None, last_token: str) -> Statement:
    return Statement(first.start[0], last_row, _width(first.line), first.string, last_token == ":")


def _width(line: str) -> int:
    expanded = line.expandtabs(8)
    return len(expanded) - len(expanded.lstrip())


def _parse(text: str, may_be_incomplete: bool = False) -> tuple[ast.Module | None, str]:
    """Returns the tree, or the error; an allowed incomplete text has neither."""
    flags = ast.PyCF_ONLY_AST | (ALLOW_INCOMPLETE_INPUT if may_be_incomplete else 0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in generated strings
            return compile(text, "<sample>", "exec", flags, dont_inherit=True), ""
    except SyntaxError as error:
        open_string = error.msg.startswith("unterminated triple-quoted")  # Python 3.12's message for an f-string
        if may_be_incomplete and (open_string or error.msg == "incomplete input"):
            return None, ""
        return None, f"line {error.lineno}: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:  # null characters, nesting beyond the parser's stack
        return None, f"{type(error).__name__}: {error}"
