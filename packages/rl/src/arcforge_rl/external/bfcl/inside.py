"""Runs in sandboxes: the programs of a task as a service, and the leaderboard's own checker.

As a program it reads ``{"entry", "gold", "turns"}`` from standard input, where a turn is a list of calls
``[name, arguments]``, and prints the checker's verdict. Plain Python without imports of ours.
"""

import json
import os
import sys
from typing import Any

Json = dict[str, Any]
sys.path.insert(0, "/opt/arcforge-package")


def spelled(name: str, arguments: Json) -> str:
    """Returns a call as the leaderboard's code reads it.

    Raises:
        ValueError: a name is none.
    """
    for word in (name, *arguments):
        if not word.isidentifier() or word.startswith("_"):
            raise ValueError(f"{word[:100]!r} is no name")
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


class Programs:
    """The programs of one task.

    Args:
        records: ``entry``, the task as published, and ``tools``, definitions by name.
    """

    def __init__(self, records: Json) -> None:
        from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils import execute_multi_turn_func_call

        self._entry, self._tools = records["entry"], records["tools"]
        self._execute = execute_multi_turn_func_call
        self.records: Json = {}

    def _call(self, name: str, arguments: Json) -> str:
        entry = self._entry
        given = entry["initial_config"], entry["involved_classes"], "agent", entry["id"]
        results, _ = self._execute([spelled(name, arguments)], *given, long_context="long_context" in entry["id"])
        return str(results[0])


def verdict(entry: Json, gold: list[list[str]], turns: list[list[tuple[str, Json]]], name: str) -> Json:
    """Returns ``valid`` and a ``reason``; judgements of one process need different names."""
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

    said = [[[spelled(*call)] for call in turn] for turn in turns]
    found = multi_turn_checker(said, gold, entry, entry["id"].rsplit("_", 1)[0], name)
    return {"valid": bool(found["valid"]), "reason": str(found.get("error_message", "as the gold calls"))[:300]}


SERVICES = {"programs": Programs}

if __name__ == "__main__":
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    asked = json.load(sys.stdin)
    jobs = asked if isinstance(asked, list) else [asked]
    answers = [verdict(job["entry"], job["gold"], job["turns"], f"agent{n}") for n, job in enumerate(jobs)]
    print(json.dumps(answers), file=out, flush=True)
