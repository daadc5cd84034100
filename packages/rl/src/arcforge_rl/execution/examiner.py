"""Runs in a sandbox without candidates, after the text of `plain_values`: a test whose ``candidate`` is recorded calls.

The reference is loaded first, so that the test finds its helpers; the candidate's program never is. Without outcomes,
``candidate`` is the reference, and its calls are recorded. With outcomes, ``candidate`` gives those of the candidate's
process, call by call. A call without an outcome ends the test, and is asked for.
"""

from __future__ import annotations

import builtins
import json
import random
import sys
from typing import Any

from arcforge_rl.execution.plain_values import from_plain, load_module, to_plain


class Unknown(BaseException):
    """The candidate has not made this call yet. A test that expects an `Exception` does not catch it."""


class Calls:
    """The function ``candidate`` of a test.

    Attributes:
        made: the test's calls so far, as JSON.
        asked: the calls up to the first one without an outcome; empty if there is none.
    """

    def __init__(self, reference: Any, known: list[str], outcomes: list[Any] | None) -> None:
        self._reference, self._known, self._outcomes = reference, known, outcomes
        self._inside = False
        self.made: list[str] = []
        self.asked: list[str] = []

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if self._inside:  # the reference calls itself
            return self._reference(*arguments, **named)
        call = json.dumps([to_plain(list(arguments)), to_plain(named)])
        self.made.append(call)
        return self._refer(call) if self._outcomes is None else self._recall(call, self._outcomes)

    def _refer(self, call: str) -> Any:
        arguments, named = (from_plain(part) for part in json.loads(call))
        state, self._inside = random.getstate(), True
        try:
            return from_plain(to_plain(self._reference(*arguments, **named)))
        finally:
            random.setstate(state)
            self._inside = False

    def _recall(self, call: str, outcomes: list[Any]) -> Any:
        place = len(self.made) - 1
        if self.asked or place >= len(self._known) or self._known[place] != call:
            self.asked = self.asked or list(self.made)
            raise Unknown
        found = outcomes[place]
        if type(found) is dict and found.keys() == {"returned"}:
            return from_plain(found["returned"])
        if type(found) is dict and found.keys() == {"raised", "text"}:
            error = as_error(str(found["raised"]), str(found["text"]))
            if isinstance(error, StopIteration | StopAsyncIteration) and not self._stops(call):
                raise RuntimeError(f"the function raised {found['raised']}")  # it would end loops of the test quietly
            raise error
        raise ValueError("the outcome of a call has a form that none is sent in")

    def _stops(self, call: str) -> bool:
        """Returns whether the reference ends an iteration in this call, too."""
        try:
            self._refer(call)
        except (StopIteration, StopAsyncIteration):
            return True
        except Exception:
            return False
        return False


def as_error(name: str, text: str) -> Exception:
    """Returns the built-in exception of that name, or an `Exception` where none of that name takes one text."""
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(text)
        except TypeError:  # as those of Unicode
            pass
    return Exception(text)


def examine(given: dict[str, Any]) -> dict[str, Any]:
    """Returns ``passed`` and its ``reason``, the ``calls`` of the test, and those that it ``asks`` for."""
    outcomes = None if given["outcomes"] is None else json.loads(given["outcomes"])
    if outcomes is not None and (type(outcomes) is not list or len(outcomes) != len(given["calls"])):
        raise ValueError("the calls were not made")
    names = load_module(given["module"], given["reference"])
    calls = Calls(names[given["name"]], given["calls"], outcomes)
    names["candidate"] = names[given["name"]] = calls
    random.seed(0)  # so that the same calls are made again
    reason = "all tests passed" if given["test"].strip() else "there is no test"
    passed = False
    try:
        exec(compile(given["test"], "test.py", "exec"), names)
        passed = bool(calls.made) and not calls.asked
    except BaseException as error:
        reason = f"{type(error).__name__}: {str(error).strip()}".partition("\n")[0][:100]
    return {"passed": passed, "reason": reason, "calls": calls.made, "asks": calls.asked}


def main() -> None:
    """Reads a test from standard input and prints its verdict after the given word."""
    given = json.loads(sys.stdin.read())
    try:
        verdict = examine(given)
    except (ValueError, RecursionError) as error:  # the outcomes cannot be read
        verdict = {"passed": False, "reason": str(error)[:100], "calls": [], "asks": []}
    sys.stdout.write("\n" + given["word"] + json.dumps(verdict) + "\n")


if __name__ == "__main__":
    main()
