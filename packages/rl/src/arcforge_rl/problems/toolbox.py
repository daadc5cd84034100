"""The tools of the dialogues as one program for a sandbox: ``python -c <this file> NAME``, JSON arguments as input.

It needs only Python. A failure is one line on standard error that begins with ``Error:``, and exit code 1. With
``--many`` as the name, the input is a list of (name, arguments, files), and the output a list of results and errors;
only for read-only tools that run no programs, because the calls share the folder.
"""

import ast
import contextlib
import io
import json
import operator
import pathlib
import sys

OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def calculator(expression: str) -> str:
    """Returns the value of an expression of numbers."""

    def value(node: ast.AST) -> float:
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            result: float = OPERATORS[type(node.op)](value(node.left), value(node.right))
            return result
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand)
        raise ValueError("only numbers and + - * / // % are understood")

    return str(value(ast.parse(expression, mode="eval").body))


def lookup(key: str) -> str:
    """Returns the value of a key in table.json."""
    table = json.loads(pathlib.Path("table.json").read_text())
    if key not in table:
        raise ValueError(f"no key {key!r}")
    return str(table[key])


def list_files() -> str:
    """Returns the names of all files."""
    return "\n".join(sorted(p.as_posix() for p in pathlib.Path().rglob("*") if p.is_file()))


def read_file(path: str) -> str:
    """Returns a file's text."""
    file = pathlib.Path(path)
    if not file.is_file():
        raise ValueError(f"no file {path!r}")
    return file.read_text()


def write_file(path: str, text: str) -> str:
    """Writes a file."""
    file = pathlib.Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return f"wrote {len(text)} characters"


def search(text: str) -> str:
    """Returns the lines that contain a text, with file and line number."""
    found = []
    for path in sorted(p for p in pathlib.Path().rglob("*.txt") if p.is_file()):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if text.lower() in line.lower():
                found.append(f"{path.as_posix()}:{number}: {line}")
    return "\n".join(found) or "nothing found"


def python(code: str) -> str:
    """Runs a program and returns its output."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "code", "exec"), {"__name__": "__main__"})
    return printed.getvalue().strip()


TOOLS = (calculator, lookup, list_files, read_file, write_file, search, python)


def use(name: str, arguments: dict[str, str]) -> tuple[bool, str]:
    """Returns whether a tool succeeded, and its result or error."""
    tool = {tool.__name__: tool for tool in TOOLS}[name]
    try:
        return True, tool(**arguments)
    except Exception as error:
        return False, f"Error: {type(error).__name__}: {error}" if tool is python else f"Error: {error}"


def use_many(calls: list[tuple[str, dict[str, str], dict[str, str]]]) -> list[str]:
    """Returns the result of each call, run with only its files in the folder."""
    results = []
    for name, arguments, files in calls:
        for path, text in files.items():
            write_file(path, text)
        results.append(use(name, arguments)[1])
        for path in files:
            pathlib.Path(path).unlink()
    return results


def main() -> int:
    """Runs the named tool with the arguments on standard input."""
    given = json.loads(sys.stdin.read())
    if sys.argv[1] == "--many":
        print(json.dumps(use_many(given)))
        return 0
    done, text = use(sys.argv[1], given)
    print(text, file=sys.stdout if done else sys.stderr)
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
