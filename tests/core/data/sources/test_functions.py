import ast
import textwrap
import warnings
from pathlib import Path

import pytest

from arcforge_core.data.sources import functions
from arcforge_core.data.sources.functions import functions_in


def found(source: str) -> list[str]:
    return list(functions_in(textwrap.dedent(source)))


def test_a_method_comes_to_the_margin_without_its_docstring() -> None:
    source = '''
        class A:
            @property
            def name(self):
                """Says
                who."""

                # why
                return self._name  # who

            def f(self): return 1
    '''
    name = "def name(self):\n    # why\n    return self._name  # who\n"
    assert found(source) == [name, "def f(self): return 1\n"]


@pytest.mark.parametrize("before", ["import x\n\f\n", "import x\r\n", "import x\r", "name = '\u2028'\n"])
def test_lines_are_those_that_the_parser_counts(before: str) -> None:
    assert list(functions_in(before + "def f(a):\n    return a\n")) == ["def f(a):\n    return a\n"]


def test_inner_functions_stand_alone_too() -> None:
    outer = "def f(x):\n    def g(y):\n        return x + y\n    return g\n"
    assert found(outer) == [outer, "def g(y):\n    return x + y\n"]


@pytest.mark.parametrize(
    "source",
    [
        "not python (",
        "a\0b",
        "async def f():\n    pass\n",
        'def f():\n    """Only a docstring."""\n',
        'def f(): "docstring"; return 1\n',
        'class A:\n    def f(self):\n        return """\nleft of the function"""\n',
    ],
)
def test_what_has_no_function_that_stands_alone(source: str) -> None:
    assert list(functions_in(source)) == []


@pytest.mark.parametrize("module", ["json/decoder.py", "ast.py", "typing.py", "dataclasses.py"])
def test_functions_of_the_library_parse(module: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        texts = list(functions_in((Path(ast.__file__).parent / module).read_text()))
    assert texts
    for text in texts:
        [function] = ast.parse(text).body
        assert isinstance(function, ast.FunctionDef)
        assert ast.get_docstring(function) is None
        assert text == text.strip() + "\n"


def test_the_same_statements_are_left() -> None:
    source = Path(functions.__file__).read_text()
    names = [node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    for name, text in zip(names, functions_in(source), strict=True):
        [taken] = ast.parse(text).body
        original = next(n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef) and n.name == name)
        body = original.body[1:] if ast.get_docstring(original) else original.body
        assert ast.unparse(body) == ast.unparse(taken.body)
