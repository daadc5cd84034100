import ast
import inspect
import random
import shlex
import string
import textwrap
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcforge_core.contracts.data import Document
from arcforge_core.contracts.engine import GenerationOutput
from arcforge_core.errors import DataError
from arcforge_core.eval.python_functions import check_function, function_names, judge, sample_functions


def functions_of(*modules) -> list[tuple[str, int]]:
    """Returns (source from ``def`` on, offset of the end of the first statement) of real functions."""
    found = []
    for module in modules:
        source = inspect.getsource(module)
        lines = source.splitlines(keepends=True)
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef) and node.lineno < node.body[0].lineno:
                text = "".join(lines[node.lineno - 1 : node.end_lineno])[node.col_offset :]
                end = len("".join(lines[node.lineno - 1 : node.body[0].end_lineno])) - node.col_offset
                found.append((text, end))
    return found


FUNCTIONS = functions_of(ast, inspect, textwrap, string, random, shlex)


@given(st.sampled_from(FUNCTIONS), st.data())
def test_accepts_a_real_function_cut_anywhere_after_its_first_statement(function, data):
    text, end = function
    sample = judge("def f(", text[: data.draw(st.integers(end, len(text)))], finished=False)
    assert sample.ok, sample
    assert text.startswith(sample.cut)


@given(st.sampled_from(FUNCTIONS), st.sampled_from(["class C:\n    x = (", "x = 1\n", "@d", "import os\n", "  !"]))
def test_the_next_statement_ends_the_function(function, after):
    text, _ = function
    sample = judge("def f(", text.rstrip("\n") + "\n\n\n" + after, finished=False)
    assert sample.ok and sample.cut.rstrip() == text.rstrip()


@given(st.sampled_from(FUNCTIONS), st.data())
def test_an_error_in_the_middle_is_an_error(function, data):
    text, _ = function
    lines = text.splitlines(keepends=True)
    body = ast.parse(textwrap.dedent(text)).body[0].body
    row = data.draw(st.sampled_from([s.end_lineno for s in body]))
    indent = " " * (len(lines[body[-1].lineno - 1]) - len(lines[body[-1].lineno - 1].lstrip()))
    lines[row - 1] = lines[row - 1].rstrip("\n") + "\n"
    garbage = data.draw(st.sampled_from(["x y", "return (", "a = b)", "if x", "'open", "for in x:", "x = [1, 2\n"]))
    lines.insert(row, f"{indent}{garbage}\n{indent}done = True\n")
    assert not judge("def f(", "".join(lines), finished=False).ok


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("def f(x):\n    y = x\n    return y +", "def f(x):\n    y = x\n"),
        ("def f(x):\n    y = x\n    return y", "def f(x):\n    y = x\n"),  # the last line may continue
        ("def f(x):\n    y = x\n    return y\n", "def f(x):\n    y = x\n    return y\n"),
        ("def f(x):\n    y = x\n    if y:\n        for z in y:\n", "def f(x):\n    y = x\n"),
        ("def f(x):\n    y = x\n    @cache\n    def g(\n", "def f(x):\n    y = x\n"),
        (
            "def f(x):\n    y = x\n    try:\n        z = y\n        if z:\n            return\n",
            "def f(x):\n    y = x\n",
        ),
        ("def f(x):\n    try:\n        z = x\n    except E:\n        re", ""),  # its one statement is open
        ("def f(x):\n    if x:\n        return 1\n    else:\n", "def f(x):\n    if x:\n        return 1\n"),
        ("def f(x):\n    y = g(x,\n          1,\n", ""),
        ("def f(x):\n    '''Text\n    that goes on\n", ""),
        ("def f(x): return x\n", "def f(x): return x\n"),
        ("def f(x): return x\ny = f(", "def f(x): return x\n"),
        ("def f(self):\n        return 1\n\n    def g(self):\n        return 2\n", "def f(self):\n        return 1\n"),
        ("def f(x,\n      y", ""),
        ("def f(", ""),
    ],
)
def test_what_is_cut(text, cut):
    sample = judge("def f(", text, finished=False)
    assert sample.cut == cut and sample.ok == bool(cut), sample


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("def f(:\n    return 1\n", "invalid syntax"),
        ("def f(x)\n    return 1\n", "expected ':'"),
        ("def f(x):\nreturn 1\n", "expected an indented block"),
        ("def f(x):\n        a = 1\n    return a\n", ""),  # the return stands outside: it ends the function
        ("def f(x):\n    if x:\n            a = 1\n        return a\n", "unindent"),
        ("def f(x):\n    a = (b\n    c = d\n    return c\n", "never closed"),
        ("def f(x):\n    a = 1\n    try:\n        b c\n    fin", "invalid syntax"),  # in what is cut
        ("def f(x):\n    a = 1\n    b = g(1 2,\n", "invalid syntax"),
        ("def f(x):\n    a = 'b\n    return a\n", "unterminated"),
        ("def f(x):\n    return <|user|>\n", "invalid syntax"),
        ("def f(x):\n    return '\0'\n", "null"),
        ("def f(x):\n    # only a comment\n", "no function"),
        ("def f(x):\n    \ufffd\n", "invalid"),
        (")\n    pass\n", "unmatched"),
        ("lambda: 1\n", "no function"),
    ],
)
def test_what_is_refused(text, error):
    sample = judge("def f(", text, finished=False)
    assert sample.ok == (not error)
    assert error in sample.error


def test_a_text_that_the_model_ended_is_judged_whole():
    assert not judge("def f(", "def f(x):\n    a = 1\n    b = (", finished=True).ok
    assert judge("def f(", "def f(x):\n    a = 1\n    b = 2", finished=True).ok
    assert judge("def f(", "def f(x):\n    a = 1\n\nx = (", finished=True).ok


@given(st.text(max_size=80))
def test_any_text_gets_a_verdict(text):
    for finished in (True, False):
        sample = judge("def f(", "def f(" + text, finished)
        assert sample.text.startswith(sample.cut)
        assert not sample.ok or isinstance(ast.parse(sample.cut).body[0], ast.FunctionDef)


@given(st.text("()[]{}:=,. \nabx1'\"\\", max_size=80))
def test_noise_is_refused_or_parses_whole(text):
    sample = judge("def f(", "def f(" + text, finished=False)
    assert sample.ok == (check_function(sample.cut) == "" and sample.error == "")


def test_names_are_distinct_deterministic_and_python_only():
    documents = [
        Document("a.py", "def one(): pass\nclass C:\n    def two(self): pass\n    def one(self): pass\n", "s"),
        Document("b.txt", "def three( is no Python", "s"),
        Document("c.py", "async def four(): pass\nfive = lambda: 1\ndef six(): pass\n", "s"),
    ]
    assert sorted(function_names(documents, 50, seed=0)) == ["one", "six", "two"]
    assert function_names(documents, 2, seed=1) == function_names(documents[::-1], 2, seed=1)
    assert function_names(documents[1:2], 5, seed=0) == []


class Characters:
    """A tokenizer whose ids are code points."""

    eos_id, bos_id = 0, 1

    def encode(self, text):
        return [ord(c) for c in text]

    def decode(self, ids):
        return "".join(map(chr, ids))


class Scripted:
    """An engine that answers from a list and keeps what it was asked."""

    def __init__(self, outputs):
        self.outputs, self.weight_version = outputs, 0

    def generate(self, prompts, params):
        self.prompts, self.params = prompts, params
        return [GenerationOutput(ids, [0.0] * len(ids), reason, 0) for ids, reason in self.outputs]


def test_samples_from_the_engine():
    tokenizer = Characters()
    engine = Scripted(
        [
            (tokenizer.encode("x):\n    return x\n    y ="), "length"),
            ([*tokenizer.encode("):\n    return 1\n"), 0], "stop"),
            (tokenizer.encode("((((("), "length"),
            ([*tokenizer.encode("):\n    return ("), 0], "stop"),
        ]
    )
    report = sample_functions(engine, tokenizer, ["a", "b", "c", "d"], temperature=0.5, max_new_tokens=40, seed=7)
    assert report.rate == 0.5
    assert [s.ok for s in report.samples] == [True, True, False, False]
    assert [s.prompt for s in report.samples] == ["def a(", "def b(", "def c(", "def d("]
    assert report.samples[1].text == "def b():\n    return 1\n"
    assert engine.prompts[0] == [1, *tokenizer.encode("def a(")]
    assert [p.seed for p in engine.params] == [7, 8, 9, 10]
    assert engine.params[0].stop_token_ids == (0,)
    assert (engine.params[0].temperature, engine.params[0].max_new_tokens) == (0.5, 40)


def test_refuses_no_names():
    with pytest.raises(DataError, match="no functions"):
        sample_functions(SimpleNamespace(), Characters(), [])
