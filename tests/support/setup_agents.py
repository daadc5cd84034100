"""Servers of models that set up repositories, and worlds in which their packages matter."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from arcforge_rl.layers.store import LayerError
from arcforge_rl.swe.results import TestRun
from support.listening import JsonHandler, listening

Said = Mapping[str, Any]


def calling(*calls: tuple[str, Any]) -> Said:
    """A reply with calls of tools; arguments that are a text are sent as they are."""
    made = [
        {
            "id": f"c{number}",
            "type": "function",
            "function": {"name": name, "arguments": given if isinstance(given, str) else json.dumps(given)},
        }
        for number, (name, given) in enumerate(calls)
    ]
    return {"role": "assistant", "content": None, "tool_calls": made}


def trying(*packages: str, leave_out: Sequence[str] = ()) -> Said:
    """A reply that tries packages."""
    return calling(("try", {"packages": packages, "leave_out": leave_out}))


@contextmanager
def model_server(say: Callable[[list[dict[str, Any]]], Said] | Sequence[Said]) -> Iterator[tuple[str, list[Any]]]:
    """A server whose model says what a function of the conversation tells it, or one reply after the other, the last
    of them for ever; yields its address and the bodies of requests."""
    asked: list[Any] = []

    def post(request: JsonHandler) -> None:
        body = request.body()
        asked.append({**body, "key": request.headers.get("authorization")})
        said = say(body["messages"]) if callable(say) else say[min(len(asked), len(say)) - 1]
        with suppress(ConnectionError):  # a client that waits no longer
            request.answer(200, {"choices": [{"message": said, "finish_reason": "tool_calls"}]})

    with listening(post) as url:
        yield url, asked


def results_of(asked: Sequence[Any]) -> list[str]:
    """Returns the results of tools that the last request carries."""
    return [message["content"] for message in asked[-1]["messages"] if message["role"] == "tool"]


class World:
    """In place of `runs_of`: tests pass if the packages that they need are shown and no file breaks the run.

    Attributes:
        needed: packages.
        breaking: a test file that ends the run.
        unknown: packages that the registry does not have.
        runs: packages and test files of each run.
    """

    def __init__(self, needed: Sequence[str], breaking: str = "", unknown: Sequence[str] = ("oddmod",)) -> None:
        self.needed, self.breaking, self.unknown = {*needed}, breaking, {*unknown}
        self.runs: list[tuple[tuple[str, ...], tuple[str, ...]]] = []

    async def __call__(
        self, language: Any, tree: Any, files: Any, packages: Sequence[str], paths: Sequence[str], *_: Any
    ) -> list[TestRun]:
        """Returns one run."""
        self.runs.append(((*packages,), (*paths,)))
        if found := sorted(self.unknown & {*packages}):
            raise LayerError("registry", f"layer swe-site: No matching distribution found for {found[0]}")
        if self.breaking in paths:
            return [TestRun(texts={"": "the machine\nSystemExit: 7"}, reason="the run broke: SystemExit: 7")]
        if not self.needed <= {*packages}:
            return [TestRun(texts={paths[0]: "ModuleNotFoundError: No module named 'oddmod'"}, whole=True)]
        return [TestRun({f"{path}::test_{n}": "passed" for path in paths for n in range(3)}, whole=True)]
