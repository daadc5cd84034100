"""Runs in the sandbox of the candidate, after the text of `plain_values`: calls the function, prints its results."""

from __future__ import annotations

import json
import sys
from typing import Any

from arcforge_rl.execution.plain_values import from_plain, load_module, to_plain


def outcome(function: Any, arguments: Any, names: Any) -> dict[str, Any]:
    """Returns what a call returned, or the name and text of the exception that it raised."""
    try:
        return {"returned": to_plain(function(*from_plain(arguments), **from_plain(names)))}
    except Exception as error:
        builtin = next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins")
        return {"raised": builtin.__name__, "text": str(error)[:1000]}


def main() -> None:
    """Reads source, name and calls from standard input and prints the outcomes after the given word."""
    given = json.loads(sys.stdin.read())
    names = load_module(given["module"], given["source"])
    function = names[given["name"]] if given["name"] in names else getattr(names["Solution"](), given["name"])
    outcomes = [outcome(function, *call) for call in given["calls"]]
    sys.stdout.write("\n" + given["word"] + json.dumps(outcomes) + "\n")


if __name__ == "__main__":
    main()
