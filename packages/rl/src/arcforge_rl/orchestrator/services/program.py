"""The other end of a task service: an environment that answers the requests of `orchestrator.services.far`."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from arcforge_core.contracts.chat import ChatOptions, Message, Tool
from arcforge_core.contracts.environment import Agents, Environment, Episode, Failure, Reply
from arcforge_core.episodes.rollout import FailedTask, failure_by, take_task
from arcforge_rl.orchestrator.record import episode_fields, episode_of, reply_of
from arcforge_rl.orchestrator.services.far import VERSION
from arcforge_rl.orchestrator.services.lines import LONGEST

Fields = Mapping[str, Any]


class Talk:
    """A rollout whose policy is at the other end; implements `contracts.environment.Agent`."""

    def __init__(self) -> None:
        self.asks: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.replies: asyncio.Queue[Reply] = asyncio.Queue()
        self.playing: asyncio.Task[None] | None = None
        self._known: list[Message] = []

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), options: ChatOptions | None = None
    ) -> Reply:
        """Asks the policy; sends the messages that it has not had."""
        keep = 0
        while keep < min(len(messages), len(self._known)) and messages[keep] == self._known[keep]:
            keep += 1
        self._known = list(messages)
        news = [asdict(message) for message in messages[keep:]]
        self.asks.put_nowait(
            {"ask": {"keep": keep, "messages": news, "tools": [dict(tool.definition) for tool in tools]}}
        )
        return await self.replies.get()


class Program:
    """Answers requests with an environment."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self._talks: dict[str, Talk] = {}

    async def answer(self, request: Fields) -> dict[str, Any]:
        """Returns the answer to a request, a failure included."""
        named = {"id": request.get("id"), "rollout": request.get("rollout")}
        try:
            return {**named, **await getattr(self, f"_{request['op']}")(request)}
        except Exception as error:  # whatever an environment, or a request, is wrong in
            return {**named, "failure": asdict(failure_by(error))}

    async def _describe(self, request: Fields) -> dict[str, Any]:
        return {"version": VERSION, "domain": self.environment.domain, "tasks": self.environment.num_tasks}

    async def _begin(self, request: Fields) -> dict[str, Any]:
        task, talk = take_task(self.environment, request["task"]), Talk()
        if isinstance(task, FailedTask):
            return {"failure": asdict(task.failure)}

        async def play() -> None:
            try:
                episode: Episode = await self.environment.run(task, Agents(talk))
                talk.asks.put_nowait({"episode": episode_fields(episode)})
            except Exception as error:
                talk.asks.put_nowait({"failure": asdict(failure_by(error))})

        self._talks[request["rollout"]] = talk
        talk.playing = asyncio.get_running_loop().create_task(play())
        return await self._next(request["rollout"])

    async def _reply(self, request: Fields) -> dict[str, Any]:
        if request["rollout"] not in self._talks:
            return {"failure": asdict(Failure("worker", f"no rollout {request['rollout']} runs here"))}
        self._talks[request["rollout"]].replies.put_nowait(reply_of(request["reply"]))
        return await self._next(request["rollout"])

    async def _next(self, rollout: str) -> dict[str, Any]:
        said = await self._talks[rollout].asks.get()
        if "ask" not in said:
            del self._talks[rollout]
        return said

    async def _cancel(self, request: Fields) -> dict[str, Any]:
        talk = self._talks.pop(request["rollout"], None)
        if talk is not None and talk.playing is not None:
            talk.playing.cancel()
            with suppress(asyncio.CancelledError):
                await talk.playing
        return {}

    async def _score(self, request: Fields) -> dict[str, Any]:
        task = take_task(self.environment, request["task"])
        if isinstance(task, FailedTask):
            return {"failure": asdict(task.failure)}
        outcome = await self.environment.score(task, episode_of(request["episode"]))
        if outcome.failure is not None:
            return {"failure": asdict(outcome.failure)}
        return {"rewards": dict(outcome.rewards), "reasons": dict(outcome.reasons), "raw": dict(outcome.raw)}


async def serve_lines(environment: Environment) -> None:
    """Answers the lines of standard input on standard output until it ends; other output goes to standard error."""
    output, sys.stdout = sys.stdout, sys.stderr
    loop, program = asyncio.get_running_loop(), Program(environment)
    reader = asyncio.StreamReader(limit=LONGEST)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    answering: set[asyncio.Task[None]] = set()

    async def answer(line: bytes) -> None:
        text = json.dumps(await program.answer(json.loads(line)))
        output.write(text + "\n")
        output.flush()

    while line := await reader.readline():
        task = loop.create_task(answer(line))
        answering.add(task)
        task.add_done_callback(answering.discard)
